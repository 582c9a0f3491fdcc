//! A buffer: bytes with one owner, stored inline, in a slab, on the heap or lent; any thread, bounded by its slab.
#![allow(unsafe_code)]

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::Arc,
};

use super::{
    extents::Block,
    home::{self, Home},
};
use crate::device_memory::{DeviceError, DeviceMemory, HostCopy, MemoryKind, OnDevice};
use crate::dma_buf::DmaBuf;
use crate::volatile::{VolatileSlice, VolatileSliceMut};

/// Lends memory that does not belong to a slab, and is told when it is no longer used.
pub trait Lender: std::any::Any + Send + Sync {
    /// The buffer that was lent as `token` is dropped: nobody uses its bytes any more. Called on the thread that drops it, at any
    /// point: it must not call back into what owns the buffer.
    fn give_back(&self, token: u64);
}

/// Bytes with one owner, which return to their slab when dropped, from any thread.
///
/// A buffer from a [`Slab`](super::Slab) is 64-byte aligned and exactly as long as was asked for. One made by
/// [`from_vec`](Self::from_vec) lies on the heap. [`copy_of`](Self::copy_of) stores a few bytes in the buffer itself, where they
/// move with it. The default is empty and owns nothing. One made by [`on_device`](Self::on_device) is in the memory of a device: it
/// is copied by [`read`](Self::read) and [`write`](Self::write), and cannot be a slice.
pub struct Buffer(Storage);

const OWN_WORDS: usize = Buffer::OWN_BYTES / 8;

enum Storage {
    Slab { start: NonNull<u8>, len: usize, block: Block, home: NonNull<Home> },
    Lent { start: NonNull<u8>, len: usize, token: u64, lender: Arc<dyn Lender>, is_foreign: bool },
    Heap(Vec<u8>),
    Own { len: u8, words: [u64; OWN_WORDS] },
    Device(OnDevice),
    Part { start: NonNull<u8>, len: usize, of: Arc<Whole> },
}

/// A buffer that was [split](Buffer::split): its bytes are used only through the parts.
struct Whole {
    buffer: Buffer,
    start: NonNull<u8>,
}

// SAFETY: the address is only compared and used to find a part's own bytes.
unsafe impl Send for Whole {}
// SAFETY: as above.
unsafe impl Sync for Whole {}

// SAFETY: a buffer is the only one to access its bytes, and `give_back` may be called from any thread.
unsafe impl Send for Buffer {}
// SAFETY: a shared buffer gives out only `&[u8]` and the address of bytes that are only copied.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Safety
    /// `block` was just taken from `home` for at least `len` bytes, lies at `start`, and goes to this buffer alone.
    pub(super) unsafe fn from_block(start: NonNull<u8>, len: usize, block: Block, home: NonNull<Home>) -> Self {
        Self(Storage::Slab { start, len, block, home })
    }

    /// A buffer on the heap that takes `bytes` over without copying.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self(Storage::Heap(bytes))
    }

    /// Most bytes that a buffer stores inline: a row of 16 floats. More would make every move of a tensor dearer; fewer would miss
    /// the tensors that are sent in the largest numbers.
    pub const OWN_BYTES: usize = 64;

    /// A buffer with a copy of `bytes`: stored inline if they are few, so that nothing is allocated, else on the heap. Aligned to 8
    /// bytes.
    #[inline]
    pub fn copy_of(bytes: &[u8]) -> Self {
        Self::copy_of_volatile(bytes.into())
    }

    /// Like [`copy_of`](Self::copy_of), for bytes that others may write at any time.
    #[inline]
    pub fn copy_of_volatile(bytes: VolatileSlice<'_>) -> Self {
        if bytes.len() > Self::OWN_BYTES {
            return Self::from_vec(bytes.to_vec());
        }
        let mut buffer = Self(Storage::Own { len: bytes.len() as u8, words: [0; OWN_WORDS] });
        buffer.volatile_mut().copy_from(bytes);
        buffer
    }

    /// A buffer of `len` zeros, stored as by [`copy_of`](Self::copy_of).
    pub fn of_len(len: usize) -> Self {
        if len > Self::OWN_BYTES {
            return Self::from_vec(vec![0; len]);
        }
        Self(Storage::Own { len: len as u8, words: [0; OWN_WORDS] })
    }

    /// A buffer over memory that `lender` lends as `token`, and gets back when the buffer is dropped.
    ///
    /// # Safety
    /// The `len` bytes at `start` stay readable and writable as long as `lender` lives, and until they are given back
    /// nobody else uses them.
    pub unsafe fn lent(start: NonNull<u8>, len: usize, token: u64, lender: Arc<dyn Lender>) -> Self {
        Self(Storage::Lent { start, len, token, lender, is_foreign: false })
    }

    /// Like [`lent`](Self::lent), for memory that others may write at any time, such as another process that shares it: it has only
    /// [`volatile`](Self::volatile) bytes, and cannot be a slice.
    ///
    /// # Safety
    /// The `len` bytes at `start` stay readable and writable as long as `lender` lives, and this process uses them only through
    /// such buffers.
    pub unsafe fn foreign(start: NonNull<u8>, len: usize, token: u64, lender: Arc<dyn Lender>) -> Self {
        Self(Storage::Lent { start, len, token, lender, is_foreign: true })
    }

    /// A buffer over all of a device's memory. Only this buffer may write there.
    pub fn on_device(memory: Arc<dyn DeviceMemory>) -> Self {
        let len = memory.size();
        Self(Storage::Device(OnDevice { memory, len, copy: None }))
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Storage::Slab { len, .. } | Storage::Lent { len, .. } | Storage::Part { len, .. } => *len,
            Storage::Heap(bytes) => bytes.len(),
            Storage::Own { len, .. } => usize::from(*len),
            Storage::Device(device) => device.len,
        }
    }

    /// True if there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What kind of memory the bytes are in. A device's bytes count as host memory while they have a [copy](Self::set_host_copy)
    /// there.
    #[inline]
    pub fn memory(&self) -> MemoryKind {
        match &self.0 {
            Storage::Lent { is_foreign: true, .. } => MemoryKind::Foreign,
            Storage::Device(OnDevice { memory, copy: None, .. }) => MemoryKind::Device(memory.name()),
            _ => MemoryKind::Host,
        }
    }

    /// The device memory that contains the bytes, if any.
    #[inline]
    pub fn device(&self) -> Option<&Arc<dyn DeviceMemory>> {
        match &self.0 {
            Storage::Device(device) => Some(&device.memory),
            _ => None,
        }
    }

    /// The exported memory of a device that contains the bytes, and their address for a device that has registered it; `None` if
    /// they are elsewhere, or have a [copy](Self::set_host_copy) in host memory.
    #[inline]
    pub fn direct(&self) -> Option<(&Arc<DmaBuf>, u64)> {
        match &self.0 {
            Storage::Device(device) => device.direct(),
            _ => None,
        }
    }

    /// If the bytes are in a device's memory, makes what a link has written there visible to the [device](DeviceMemory::flush).
    ///
    /// # Errors
    /// The device could not flush.
    #[inline]
    pub fn flush(&self) -> Result<(), DeviceError> {
        match &self.0 {
            Storage::Device(device) => device.memory.flush(),
            _ => Ok(()),
        }
    }

    /// The bytes, if they lie in host memory that only this buffer uses; `None` if they are lent or in a device's memory.
    #[inline]
    pub fn private_bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            Storage::Lent { .. } | Storage::Device(_) => None,
            _ => Some(self),
        }
    }

    /// The bytes, wherever in host memory they lie; `None` if they are only in a device's memory.
    #[inline]
    pub fn host_bytes(&self) -> Option<VolatileSlice<'_>> {
        match &self.0 {
            // SAFETY: as `lent` and `foreign` ask of their callers.
            Storage::Lent { start, len, .. } => Some(unsafe { VolatileSlice::new(start.as_ptr(), *len) }),
            Storage::Device(device) => device.host_bytes(),
            _ => Some((&**self).into()),
        }
    }

    /// [`host_bytes`](Self::host_bytes), for bytes that are known to be in host memory.
    ///
    /// # Panics
    /// If they are not.
    #[inline]
    pub fn volatile(&self) -> VolatileSlice<'_> {
        self.host_bytes().expect(DEVICE)
    }

    /// The bytes for writing, wherever in host memory they lie; `None` if they are in a device's memory.
    #[inline]
    pub fn host_bytes_mut(&mut self) -> Option<VolatileSliceMut<'_>> {
        match &mut self.0 {
            // SAFETY: as `lent` and `foreign` ask of their callers, and `self` is borrowed mutably.
            Storage::Lent { start, len, .. } => Some(unsafe { VolatileSliceMut::new(start.as_ptr(), *len) }),
            Storage::Device(_) => None,
            _ => Some((&mut **self).into()),
        }
    }

    /// [`host_bytes_mut`](Self::host_bytes_mut), for bytes that are known to be in host memory.
    ///
    /// # Panics
    /// If they are not.
    #[inline]
    pub fn volatile_mut(&mut self) -> VolatileSliceMut<'_> {
        self.host_bytes_mut().expect(DEVICE)
    }

    /// Copies bytes from offset `from` until `to` is full, whatever memory they are in.
    ///
    /// # Errors
    /// The device could not copy.
    ///
    /// # Panics
    /// If the buffer has not as many.
    pub fn read(&self, from: usize, mut to: VolatileSliceMut<'_>) -> Result<(), DeviceError> {
        if let Storage::Device(device) = &self.0 {
            return device.read(from, to);
        }
        let end = from + to.len();
        to.copy_from(self.volatile().range(from..end));
        Ok(())
    }

    /// Copies `bytes` to offset `to`, whatever memory the buffer is in.
    ///
    /// # Errors
    /// The device could not copy.
    ///
    /// # Panics
    /// If there is no room for all of them.
    #[inline]
    pub fn write(&mut self, to: usize, bytes: VolatileSlice<'_>) -> Result<(), DeviceError> {
        if let Storage::Device(device) = &mut self.0 {
            return device.write(to, bytes);
        }
        self.volatile_mut().range(to..to + bytes.len()).copy_from(bytes);
        Ok(())
    }

    /// A copy on the heap or inline; for device memory, another handle to the same memory.
    pub fn duplicate(&self) -> Buffer {
        match &self.0 {
            Storage::Device(OnDevice { memory, len, .. }) => {
                Self(Storage::Device(OnDevice { memory: memory.clone(), len: *len, copy: None }))
            }
            _ => Self::copy_of_volatile(self.volatile()),
        }
    }

    /// Stores a host copy of a device's bytes, which is read instead of them until it is [dropped](Self::drop_host_copy).
    ///
    /// # Panics
    /// If the buffer is not in device memory, or the copy has another length.
    pub fn set_host_copy(&mut self, copy: HostCopy) {
        let Storage::Device(device) = &mut self.0 else { panic!("only a device's memory is read by a copy") };
        assert_eq!(copy.buffer.len(), device.len, "a copy has the length of what is copied");
        device.copy = Some(Arc::new(copy));
    }

    /// Drops the host copy, if there is one: the bytes are in the device's memory again.
    #[inline]
    pub fn drop_host_copy(&mut self) {
        if let Storage::Device(device) = &mut self.0 {
            device.drop_host_copy();
        }
    }

    /// The token of a lent buffer. This does not give the memory back: the caller owes that to the lender.
    ///
    /// # Errors
    /// The buffer itself if it is not lent.
    pub fn into_token(mut self) -> Result<u64, Self> {
        match std::mem::replace(&mut self.0, Storage::Heap(Vec::new())) {
            Storage::Lent { token, .. } => Ok(token),
            other => {
                self.0 = other;
                Err(self)
            }
        }
    }

    /// The lender of the memory and its token; `None` if it is not lent.
    pub fn lender(&self) -> Option<(&Arc<dyn Lender>, u64)> {
        match &self.0 {
            Storage::Lent { lender, token, .. } => Some((lender, *token)),
            _ => None,
        }
    }

    /// The heap memory of a buffer that was made by [`from_vec`](Self::from_vec), without copying.
    ///
    /// # Errors
    /// The buffer itself if it lies elsewhere.
    pub fn into_vec(mut self) -> Result<Vec<u8>, Self> {
        match &mut self.0 {
            Storage::Heap(bytes) => Ok(std::mem::take(bytes)),
            Storage::Slab { .. }
            | Storage::Lent { .. }
            | Storage::Own { .. }
            | Storage::Device(_)
            | Storage::Part { .. } => Err(self),
        }
    }

    /// Splits the buffer into consecutive parts of these lengths, each with one owner. The memory is freed when the last part is
    /// dropped; [`join`](Self::join) makes it whole again.
    ///
    /// # Panics
    /// If the lengths do not add up to that of the buffer, or it is not in the [host's own memory](MemoryKind::Host).
    pub fn split(mut self, lens: &[usize]) -> Vec<Buffer> {
        assert!(self.device().is_none(), "{DEVICE}");
        assert_eq!(lens.iter().sum::<usize>(), self.len(), "the parts are all there is");
        if let Storage::Own { .. } = self.0 {
            // Inline bytes move with the buffer, and those of parts must stay where they are.
            self = Self::from_vec(self.to_vec());
        }
        let start = NonNull::from(&mut *self).cast::<u8>();
        let of = Arc::new(Whole { buffer: self, start });
        let mut at = 0;
        let part = |&len: &usize| {
            // SAFETY: the address lies in the buffer, or one past its end, as the sum shows.
            let start = unsafe { start.add(at) };
            at += len;
            Self(Storage::Part { start, len, of: of.clone() })
        };
        lens.iter().map(part).collect()
    }

    /// The whole buffer, if these are all its parts, in order and at full length.
    ///
    /// # Errors
    /// The parts, if they are not.
    pub fn join(parts: Vec<Buffer>) -> Result<Buffer, Vec<Buffer>> {
        let Some(Buffer(Storage::Part { of: whole, .. })) = parts.first() else { return Err(parts) };
        let whole = whole.clone();
        let mut at = 0;
        let follows = |part: &Buffer| {
            let Storage::Part { start, len, of } = &part.0 else { return false };
            // SAFETY: the address lies in the buffer, or one past its end: `at` is the length of the parts before, which lie there.
            let fits = Arc::ptr_eq(of, &whole) && *start == unsafe { whole.start.add(at) };
            at += if fits { *len } else { 0 };
            fits
        };
        if !parts.iter().all(follows) || at != whole.buffer.len() {
            return Err(parts);
        }
        drop(parts);
        // A part without bytes may be elsewhere, and is no reason to lose the rest.
        Arc::try_unwrap(whole).map(|whole| whole.buffer).map_err(|_| Vec::new())
    }

    /// Shortens the buffer to `len` bytes; does nothing if it is not longer. The whole block stays taken.
    pub fn truncate(&mut self, len: usize) {
        match &mut self.0 {
            Storage::Heap(bytes) => bytes.truncate(len),
            Storage::Slab { len: now, .. } | Storage::Lent { len: now, .. } | Storage::Part { len: now, .. } => {
                *now = len.min(*now);
            }
            Storage::Own { len: now, .. } => *now = len.min(usize::from(*now)) as u8,
            Storage::Device(device) => (device.len, device.copy) = (len.min(device.len), None),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.0 {
            // SAFETY: the block belongs to this buffer alone, which nobody can use any more.
            Storage::Slab { block, home, .. } => unsafe { home::give_back(*home, *block) },
            Storage::Lent { token, lender, .. } => lender.give_back(*token),
            Storage::Heap(_) | Storage::Own { .. } | Storage::Device(_) | Storage::Part { .. } => {}
        }
    }
}

/// Panic message for using such a buffer as a slice: a fault of the program, never of the memory's owner.
const FOREIGN: &str = "memory that others write at any time is no slice";
const DEVICE: &str = "memory of a device is copied before its bytes are used";

/// # Panics
/// If the buffer is not in the [host's own memory](MemoryKind::Host).
impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Storage::Heap(bytes) => bytes,
            // SAFETY: the block lies in a mapping that outlives the buffer, has at least `len` bytes, all of them initialised
            // (zeroed by the kernel or written since), and is accessed only through this buffer.
            Storage::Slab { start, len, .. } => unsafe { std::slice::from_raw_parts(start.as_ptr(), *len) },
            Storage::Lent { start, len, is_foreign, .. } => {
                assert!(!is_foreign, "{FOREIGN}");
                // SAFETY: as `lent` asks of its caller.
                unsafe { std::slice::from_raw_parts(start.as_ptr(), *len) }
            }
            // SAFETY: the bytes are the part's alone, in memory of the host that the whole keeps.
            Storage::Part { start, len, .. } => unsafe { std::slice::from_raw_parts(start.as_ptr(), *len) },
            // SAFETY: `len` is at most the size of the words, every one of which is initialised.
            Storage::Own { len, words } => unsafe {
                std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), usize::from(*len))
            },
            Storage::Device(_) => panic!("{DEVICE}"),
        }
    }
}

/// # Panics
/// If the buffer is not in the [host's own memory](MemoryKind::Host).
impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Storage::Heap(bytes) => bytes,
            // SAFETY: as in `deref`, and `self` is borrowed mutably.
            Storage::Slab { start, len, .. } => unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), *len) },
            Storage::Lent { start, len, is_foreign, .. } => {
                assert!(!*is_foreign, "{FOREIGN}");
                // SAFETY: as `lent` asks of its caller, and `self` is borrowed mutably.
                unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), *len) }
            }
            // SAFETY: as in `deref`, and `self` is borrowed mutably.
            Storage::Part { start, len, .. } => unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), *len) },
            // SAFETY: as in `deref`, and any bytes are legal words.
            Storage::Own { len, words } => unsafe {
                std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), usize::from(*len))
            },
            Storage::Device(_) => panic!("{DEVICE}"),
        }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self(Storage::Heap(Vec::new()))
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.0 {
            Storage::Slab { .. } => "slab",
            Storage::Lent { .. } => "lent",
            Storage::Heap(_) => "heap",
            Storage::Own { .. } => "own",
            Storage::Device(_) => "device",
            Storage::Part { .. } => "part",
        };
        write!(f, "Buffer({} bytes, {place})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Tokens of memory that was given back.
    #[derive(Default)]
    struct Book(Mutex<Vec<u64>>);

    impl Lender for Book {
        fn give_back(&self, token: u64) {
            self.0.lock().unwrap().push(token);
        }
    }

    #[test]
    fn a_few_bytes_are_held_by_the_buffer_itself() {
        for len in [0, 1, 63, 64, 65, 1000] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let mut buffer = Buffer::copy_of(&bytes);
            assert_eq!(&*buffer, bytes);
            assert_eq!(format!("{buffer:?}").contains("own"), len <= 64);
            assert!(buffer.as_ptr().cast::<u64>().is_aligned() || len > 64);
            buffer.fill(9);
            buffer.truncate(len / 2);
            assert_eq!(&*buffer, vec![9; len / 2]);
            assert_eq!(buffer.into_vec().is_ok(), len > 64);
        }
    }

    #[test]
    fn lent_memory_is_used_in_place_and_given_back_once() {
        let book = Arc::new(Book::default());
        let mut memory = vec![1_u8; 100];
        let start = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: the memory outlives both buffers, which do not exist at the same time.
        let mut lent = unsafe { Buffer::lent(start, 100, 7, book.clone()) };
        lent[99] = 5;
        lent.truncate(50);
        assert_eq!((lent.len(), lent.lender().map(|(_, token)| token)), (50, Some(7)));
        let lent = lent.into_vec().unwrap_err();
        drop(lent);
        assert_eq!(*book.0.lock().unwrap(), [7]);

        // SAFETY: as above.
        let kept = unsafe { Buffer::lent(start, 100, 8, book.clone()) };
        assert_eq!(kept[99], 5);
        assert_eq!(kept.into_token().unwrap(), 8);
        assert_eq!(*book.0.lock().unwrap(), [7], "taking the token means owing the memory");
        assert!(Buffer::from_vec(vec![1]).into_token().is_err());
        assert_eq!(memory[99], 5);
    }

    #[test]
    fn device_memory_is_copied_and_is_no_slice() {
        struct Cells(Mutex<Vec<u8>>);
        impl DeviceMemory for Cells {
            fn name(&self) -> &'static str {
                "cells"
            }

            fn size(&self) -> usize {
                self.0.lock().unwrap().len()
            }

            fn copy_to_host(&self, from: usize, mut to: VolatileSliceMut<'_>) -> Result<(), DeviceError> {
                to.copy_from(&self.0.lock().unwrap()[from..from + to.len()]);
                Ok(())
            }

            fn copy_from_host(&self, to: usize, bytes: VolatileSlice<'_>) -> Result<(), DeviceError> {
                let mut cells = self.0.lock().unwrap();
                VolatileSliceMut::from(&mut cells[to..to + bytes.len()]).copy_from(bytes);
                Ok(())
            }
        }

        let cells = Arc::new(Cells(Mutex::new(vec![1; 100])));
        let mut buffer = Buffer::on_device(cells.clone());
        assert_eq!((buffer.len(), buffer.memory()), (100, MemoryKind::Device("cells")));
        buffer.truncate(50);
        buffer.write(48, (&[7, 8]).into()).unwrap();
        assert_eq!(cells.0.lock().unwrap()[48..51], [7, 8, 1]);
        let mut read = [0; 3];
        buffer.read(47, (&mut read).into()).unwrap();
        assert_eq!(read, [1, 7, 8]);
        let fails =
            |what: &mut dyn FnMut() -> usize| std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).is_err();
        assert!(fails(&mut || buffer.iter().len()) && fails(&mut || buffer.iter_mut().len()));
        assert!(fails(&mut || buffer.volatile().len()) && fails(&mut || buffer.volatile_mut().len()));
        assert!(fails(&mut || buffer.write(49, (&[1, 2]).into()).map_or(0, |()| 0)), "it was shortened");
        assert!(fails(&mut || buffer.read(48, (&mut [0; 3]).into()).map_or(0, |()| 0)));

        let counted = Arc::new(());
        let copy = HostCopy { buffer: Buffer::copy_of(&[5; 50]), counted: counted.clone() };
        buffer.set_host_copy(copy);
        assert_eq!((buffer.volatile().to_vec(), buffer.memory()), (vec![5; 50], MemoryKind::Host));
        assert!(buffer.duplicate().host_bytes().is_none(), "another handle to the device's memory");
        assert_eq!(Arc::strong_count(&counted), 2);
        buffer.drop_host_copy();
        assert_eq!((buffer.memory(), Arc::strong_count(&counted)), (MemoryKind::Device("cells"), 1));
        drop(buffer);
        assert_eq!(Arc::strong_count(&cells), 1, "the device's memory is its owner's again");
    }

    #[test]
    fn parts_are_one_buffer_again_when_all_are_there() {
        for len in [10, 1000] {
            let mut whole = Buffer::of_len(len);
            whole.fill(9);
            let mut parts = whole.split(&[3, 0, len - 3]);
            for (number, part) in parts.iter_mut().enumerate() {
                part.fill(number as u8);
            }
            let whole = Buffer::join(parts).unwrap();
            assert_eq!((&whole[..3], &whole[3..]), (&[0; 3][..], &vec![2; len - 3][..]));
            // In the wrong order, cut short, from another buffer, or incomplete: none of these is the whole.
            let mut parts = whole.split(&[3, len - 3]);
            parts.swap(0, 1);
            let mut parts = Buffer::join(parts).unwrap_err();
            parts.swap(0, 1);
            let mut strange = Buffer::of_len(len).split(&[3, len - 3]);
            std::mem::swap(&mut parts[1], &mut strange[1]);
            let mut parts = Buffer::join(parts).unwrap_err();
            std::mem::swap(&mut parts[1], &mut strange[1]);
            parts[1].truncate(1);
            let mut parts = Buffer::join(parts).unwrap_err();
            parts.pop();
            let mut parts = Buffer::join(parts).unwrap_err();
            let last = parts.pop().unwrap();
            assert_eq!(last[..], [0; 3]);
        }
        assert!(Buffer::join(vec![Buffer::of_len(1)]).is_err() && Buffer::join(Vec::new()).is_err());
    }

    #[test]
    fn memory_of_parts_is_free_when_the_last_is_dropped() {
        let mut memory = vec![1_u8; 100];
        let start = NonNull::new(memory.as_mut_ptr()).unwrap();
        let book = Arc::new(Book::default());
        // SAFETY: the memory outlives the buffer, and is not used meanwhile.
        let lent = unsafe { Buffer::lent(start, 100, 7, book.clone()) };
        let mut parts = lent.split(&[50, 50]);
        parts.pop();
        assert_eq!(*book.0.lock().unwrap(), [0; 0]);
        parts.pop();
        assert_eq!(*book.0.lock().unwrap(), [7]);
    }

    #[test]
    fn foreign_memory_is_copied_and_is_no_slice() {
        let mut memory = vec![1_u8; 100];
        let start = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: the memory outlives the buffer, and is not used meanwhile.
        let mut foreign = unsafe { Buffer::foreign(start, 100, 7, Arc::new(Book::default())) };
        foreign.volatile_mut().range(1..3).copy_from(&[2, 3]);
        foreign.truncate(4);
        assert_eq!(foreign.volatile().to_vec(), [1, 2, 3, 1]);
        assert!(foreign.memory() == MemoryKind::Foreign && foreign.len() == 4);
        let look =
            |look: &mut dyn FnMut() -> usize| std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)).is_err();
        assert!(look(&mut || foreign.iter().len()), "a slice of it would promise that it stays as it is");
        assert!(look(&mut || foreign.iter_mut().len()));
    }
}
