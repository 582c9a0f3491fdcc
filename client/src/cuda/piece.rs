//! Pieces of memory to copy, and which of them can be copied as one. Pure, except for the copy itself.
#![allow(unsafe_code)]

use sealane_transport::Error;

use super::{
    DeviceBytes, Direction,
    driver::{Current, ForeignStream, Stream},
};

/// Bytes on the host and as many on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    host: *mut u8,
    device: u64,
    len: usize,
}

impl Piece {
    /// A piece that may be written on the host.
    pub(super) fn new(host: &mut [u8], device: &DeviceBytes) -> Piece {
        Piece { host: host.as_mut_ptr(), device: device.address, len: device.len.min(host.len()) }
    }

    /// A piece that is only read on the host.
    pub(super) fn new_read(host: &[u8], device: &DeviceBytes) -> Piece {
        Piece { host: host.as_ptr().cast_mut(), device: device.address, len: device.len.min(host.len()) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Enqueues the copy. The device's memory is a caller's, who promised that it exists; [`super::Device::copy`]
    /// keeps both sides until the copy has ended, and copies to the host only into buffers that it alone has.
    fn copy(&self, direction: Direction, current: &Current, stream: &Stream) -> Result<(), Error> {
        let Piece { host, device, len } = *self;
        // SAFETY: as said above.
        unsafe {
            match direction {
                Direction::ToHost => current.copy_to_host(host, device, len, stream),
                Direction::ToDevice => current.copy_to_device(device, host, len, stream),
            }
        }
    }
}

/// Makes `stream` wait for the work that a caller's memory waits for.
pub(super) fn follow(bytes: &DeviceBytes, current: &Current, stream: &Stream) -> Result<(), Error> {
    match bytes.after {
        // SAFETY: the caller of `DeviceBytes::new` promised that it exists.
        Some(other) => unsafe { current.wait_for(stream, ForeignStream(other)) },
        None => Ok(()),
    }
}

/// Enqueues the copies of all pieces. Pieces that are adjacent on both sides are one copy: views of a flat buffer are
/// copied at the price of one. The driver refuses a copy across two allocations; such pieces are then copied one by one.
pub(super) fn copy_all(
    pieces: &[Piece],
    direction: Direction,
    current: &Current,
    stream: &Stream,
) -> Result<(), Error> {
    let mut rest = pieces;
    while let Some((first, count)) = merged(rest) {
        let (parts, others) = rest.split_at(count);
        match first.copy(direction, current, stream) {
            Err(_) if count > 1 => parts.iter().try_for_each(|part| part.copy(direction, current, stream))?,
            outcome => outcome?,
        }
        rest = others;
    }
    Ok(())
}

/// The first piece merged with those that follow it on both sides, and how many they are.
fn merged(pieces: &[Piece]) -> Option<(Piece, usize)> {
    let (first, others) = pieces.split_first()?;
    let mut whole = *first;
    for (count, next) in others.iter().enumerate() {
        let follows = whole.host.wrapping_add(whole.len) == next.host && whole.device + whole.len as u64 == next.device;
        if !follows {
            return Some((whole, count + 1));
        }
        whole.len += next.len;
    }
    Some((whole, pieces.len()))
}

/// Host offsets of these in one block, and the block's size: laid out as on the device if they are adjacent there,
/// otherwise aligned.
pub(super) fn layout(device: &[DeviceBytes], alignment: usize) -> (Vec<usize>, usize) {
    let (mut at, mut next) = (0, None);
    let place = |bytes: &DeviceBytes| {
        if next != Some(bytes.address) {
            at = usize::next_multiple_of(at, alignment);
        }
        let place = at;
        at += bytes.len;
        next = bytes.address.checked_add(bytes.len as u64);
        place
    };
    (device.iter().map(place).collect(), at)
}

#[cfg(test)]
mod tests {
    use std::{ptr, sync::Arc};

    use super::*;

    fn piece(host: usize, device: u64, len: usize) -> Piece {
        Piece { host: ptr::without_provenance_mut(host), device, len }
    }

    fn bytes(address: u64, len: usize) -> DeviceBytes {
        DeviceBytes { device: 0, address, len, after: None, _keeper: Arc::new(()) }
    }

    #[test]
    fn what_follows_on_both_sides_is_one_copy() {
        let pieces = [piece(100, 1000, 10), piece(110, 1010, 5), piece(115, 1016, 4), piece(120, 1020, 4)];
        assert_eq!(merged(&pieces), Some((piece(100, 1000, 15), 2)));
        assert_eq!(merged(&pieces[2..]), Some((piece(115, 1016, 4), 1)));
        assert_eq!(merged(&pieces[3..]), Some((piece(120, 1020, 4), 1)));
        assert_eq!(merged(&[]), None);
    }

    #[test]
    fn views_of_one_buffer_stay_together_and_others_are_aligned() {
        let (places, size) = layout(&[bytes(1000, 10), bytes(1010, 20), bytes(5000, 3), bytes(5003, 1)], 64);
        assert_eq!((places, size), (vec![0, 10, 64, 67], 68));
        assert_eq!(layout(&[], 64), (vec![], 0));
    }
}
