//! What the two ends of a stream push to each other: 24 bytes, little-endian, and what follows them. Each is a tensor of bytes.
//!
//! kind `u8`, from `u8` (1 if its sender has dialed the stream), zeros (6), the stream's number `u64`, which its dialer chose, and a
//! value `u64`.

use crate::{attachment::RingPlace, limits::STREAM_REASON_MAX};

/// The kind of a frame, with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// The sender dials the listener whose name follows; the other end may send so many bytes.
    Open(u64),
    /// The stream is open; the dialer may send so many bytes.
    Accept(u64),
    /// Bytes follow; they come after the first so many of the stream.
    Data(u64),
    /// The other end may send so many bytes, since the stream began.
    Window(u64),
    /// The stream ends after the first so many bytes.
    Finish(u64),
    /// The stream has ended for a reason of this [`Code`](sealane_transport::Code), or [`CLOSED`]. The number of bytes that the sender
    /// has taken in follows, and the reason.
    Reset(u64),
    /// So many bytes were taken in, which are all of them.
    Taken(u64),
    /// Bytes behind the first so many come through a ring of a direct lane, whose [place](place_to_bytes) follows.
    Ring(u64),
    /// The sender's daemon has made the connection of that number for the stream: the other end is to ask its own daemon for it.
    Offer(u64),
    /// The sender has its end of the connection of that number.
    Have(u64),
    /// Bytes behind the first so many come through a connection of the two tasks, which [follows](socket_to_bytes).
    Socket(u64),
    /// The connection of that number cannot be had, or its writer finds it broken: the other end is to say what came by it.
    Broken(u64),
    /// Bytes behind the first so many did not come by the connection whose number follows, which is not read any more.
    Lost(u64),
}

/// Instead of a code: the owner has finished and closed the stream; nobody reads what the other end writes.
pub(super) const CLOSED: u64 = 0;

/// Instead of a number of bytes taken in: it is unknown.
pub(super) const UNKNOWN: u64 = u64::MAX;

/// Contents of a reset: how many bytes were taken in, and the reason.
pub(super) fn reset_to_bytes(taken: u64, reason: &str) -> Vec<u8> {
    let mut end = reason.len().min(STREAM_REASON_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    [&taken.to_le_bytes(), &reason.as_bytes()[..end]].concat()
}

/// Reads the contents of a reset.
pub(super) fn parse_reset(bytes: &[u8]) -> (u64, String) {
    match bytes.split_first_chunk() {
        Some((taken, reason)) => (u64::from_le_bytes(*taken), text(reason)),
        None => (UNKNOWN, String::new()),
    }
}

/// Contents of a ring frame: the number of the lane, which use of the ring it is, and the number of the ring.
pub(super) fn place_to_bytes(place: RingPlace) -> [u8; 17] {
    let mut bytes = [place.ring; 17];
    bytes[..8].copy_from_slice(&place.lane.to_le_bytes());
    bytes[8..16].copy_from_slice(&place.used.to_le_bytes());
    bytes
}

/// Reads the contents of a ring frame.
pub(super) fn parse_place(bytes: &[u8]) -> Option<RingPlace> {
    let (lane, rest) = bytes.split_first_chunk()?;
    let (used, &[ring]) = rest.split_first_chunk()? else { return None };
    Some(RingPlace { lane: u64::from_le_bytes(*lane), ring, used: u64::from_le_bytes(*used) })
}

/// Contents of a socket frame: the number of the connection, and how many its writer has used for the stream, including this one.
pub(super) fn socket_to_bytes(number: u64, serial: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..].copy_from_slice(&serial.to_le_bytes());
    bytes
}

/// Reads the contents of a socket frame.
pub(super) fn parse_socket(bytes: &[u8]) -> Option<(u64, u64)> {
    let (number, serial) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), parse_number(serial)?))
}

/// Contents of a lost frame: the number of the connection.
pub(super) fn number_to_bytes(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// Reads the contents of a lost frame.
pub(super) fn parse_number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_le_bytes)
}

/// Reads a name or a reason.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(STREAM_REASON_MAX)]).into_owned()
}

/// The head of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) is_from_dialer: bool,
    pub(super) stream: u64,
}

impl Frame {
    pub(super) const BYTES: usize = 24;

    pub(super) fn to_bytes(self) -> [u8; Frame::BYTES] {
        let (kind, value) = match self.kind {
            Kind::Open(value) => (0, value),
            Kind::Accept(value) => (1, value),
            Kind::Data(value) => (2, value),
            Kind::Window(value) => (3, value),
            Kind::Finish(value) => (4, value),
            Kind::Reset(value) => (5, value),
            Kind::Taken(value) => (6, value),
            Kind::Ring(value) => (7, value),
            Kind::Socket(value) => (8, value),
            Kind::Broken(value) => (9, value),
            Kind::Lost(value) => (10, value),
            Kind::Offer(value) => (11, value),
            Kind::Have(value) => (12, value),
        };
        let mut bytes = [0; Frame::BYTES];
        (bytes[0], bytes[1]) = (kind, self.is_from_dialer.into());
        bytes[8..16].copy_from_slice(&self.stream.to_le_bytes());
        bytes[16..].copy_from_slice(&value.to_le_bytes());
        bytes
    }

    /// A frame and its contents; `None` if these bytes are none.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Frame, &[u8])> {
        let (head, rest) = bytes.split_at_checked(Frame::BYTES)?;
        let number = |at: usize| head[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let value = number(16)?;
        let kind = match head[0] {
            0 => Kind::Open(value),
            1 => Kind::Accept(value),
            2 => Kind::Data(value),
            3 => Kind::Window(value),
            4 => Kind::Finish(value),
            5 => Kind::Reset(value),
            6 => Kind::Taken(value),
            7 => Kind::Ring(value),
            8 => Kind::Socket(value),
            9 => Kind::Broken(value),
            10 => Kind::Lost(value),
            11 => Kind::Offer(value),
            12 => Kind::Have(value),
            _ => return None,
        };
        let is_from_dialer = match head[1] {
            0 => false,
            1 => true,
            _ => return None,
        };
        let is_zero = head[2..8].iter().all(|byte| *byte == 0);
        is_zero.then_some((Frame { kind, is_from_dialer, stream: number(8)? }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_says_how_much_was_taken_and_why_in_so_many_bytes() {
        for (taken, reason) in [(0, ""), (7, "why"), (UNKNOWN, "grüße")] {
            assert_eq!(parse_reset(&reset_to_bytes(taken, reason)), (taken, reason.to_owned()));
        }
        let long = "é".repeat(STREAM_REASON_MAX);
        let (_, reason) = parse_reset(&reset_to_bytes(1, &long));
        assert!(long.starts_with(&reason) && reason.len() == STREAM_REASON_MAX);
        assert_eq!(parse_reset(&[1; 7]), (UNKNOWN, String::new()));
    }

    #[test]
    fn a_ring_is_found_where_it_was_taken_up() {
        let place = RingPlace { lane: u64::MAX - 7, ring: 3, used: 1 << 40 };
        assert_eq!(parse_place(&place_to_bytes(place)), Some(place));
        assert_eq!((parse_place(&[1; 16]), parse_place(&[1; 18])), (None, None));
        assert_eq!(parse_socket(&socket_to_bytes(u64::MAX - 7, 3)), Some((u64::MAX - 7, 3)));
        assert_eq!((parse_socket(&[1; 15]), parse_socket(&[1; 17]), parse_number(&[1; 7])), (None, None, None));
    }

    #[test]
    fn a_frame_is_read_as_it_was_written_and_nothing_else_is_one() {
        let first = [Kind::Open, Kind::Accept, Kind::Data, Kind::Window];
        let kinds = first.into_iter().chain([Kind::Offer, Kind::Have]).chain([
            Kind::Finish,
            Kind::Reset,
            Kind::Taken,
            Kind::Ring,
            Kind::Socket,
            Kind::Broken,
            Kind::Lost,
        ]);
        for (kind, is_from_dialer) in kinds.flat_map(|kind| [(kind(u64::MAX - 1), true), (kind(7), false)]) {
            let frame = Frame { kind, is_from_dialer, stream: 1 << 63 };
            let mut bytes = frame.to_bytes().to_vec();
            bytes.extend(b"rest");
            assert_eq!(Frame::parse(&bytes), Some((frame, &b"rest"[..])));
            assert_eq!(Frame::parse(&bytes[..Frame::BYTES - 1]), None);
            for (at, byte) in [(0, 13), (1, 2), (2, 1), (7, 255)] {
                let before = std::mem::replace(&mut bytes[at], byte);
                assert_eq!(Frame::parse(&bytes), None);
                bytes[at] = before;
            }
        }
    }
}
