//! Bytes that others may write at any time: handled by pointer and length, never as a `&[u8]`.
//!
//! Memory that another process shares may change between two reads, and a reference promises that it does not. So these bytes can
//! only be copied or given to the kernel. Like `VolatileSlice` of rust-vmm's vm-memory, whose copies are memmove above a word too.
#![allow(unsafe_code)]

use std::{
    fmt, io,
    marker::PhantomData,
    ops::Range,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::atomic::{Ordering, compiler_fence},
};

/// Bytes to read, laid out as `iovec`. Any `&[u8]` can be one; memory of another process can only be this.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct VolatileSlice<'a>(libc::iovec, PhantomData<&'a [u8]>);

/// Bytes to write, laid out as `iovec`. Any `&mut [u8]` is one.
#[repr(transparent)]
pub struct VolatileSliceMut<'a>(libc::iovec, PhantomData<&'a mut [u8]>);

// SAFETY: an address and a length; its maker promised that the bytes can be read from any thread.
unsafe impl Send for VolatileSlice<'_> {}

impl<'a> VolatileSlice<'a> {
    /// Bytes at an address.
    ///
    /// # Safety
    /// The `len` bytes at `start` can be read during `'a`. This process writes there meanwhile only through [`VolatileSliceMut`];
    /// other processes may write as they like.
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        Self(libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len }, PhantomData)
    }

    pub const fn empty() -> Self {
        Self(libc::iovec { iov_base: NonNull::<u8>::dangling().as_ptr().cast(), iov_len: 0 }, PhantomData)
    }

    #[inline]
    pub fn len(self) -> usize {
        self.0.iov_len
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Address of the first byte; for devices, which read by address.
    #[inline]
    pub fn as_ptr(self) -> *const u8 {
        self.0.iov_base.cast()
    }

    /// The bytes in `range`.
    ///
    /// # Panics
    /// If the range exceeds the bytes.
    #[inline]
    pub fn range(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        // SAFETY: the range was just checked, and the bytes are those of `self`.
        unsafe { Self::new(self.as_ptr().add(range.start), range.len()) }
    }

    /// The first `len` bytes, or all if there are fewer.
    #[inline]
    pub fn first(self, len: usize) -> Self {
        self.range(0..len.min(self.len()))
    }

    #[inline]
    pub fn append_to(self, bytes: &mut Vec<u8>) {
        bytes.reserve(self.len());
        // SAFETY: room for `len` bytes was just made behind the vector's own, which nobody else sees.
        unsafe {
            copy(self.as_ptr(), bytes.as_mut_ptr().add(bytes.len()), self.len());
            bytes.set_len(bytes.len() + self.len());
        }
    }

    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    pub fn overlaps(self, other: VolatileSlice<'_>) -> bool {
        let (one, other) = (self.addresses(), other.addresses());
        one.start < other.end && other.start < one.end
    }

    fn addresses(self) -> Range<usize> {
        self.as_ptr().addr()..self.as_ptr().addr() + self.len()
    }

    /// Sends from the front of `slices` with sendmsg(2), or send(2) for a single slice; returns the number of bytes taken.
    ///
    /// # Errors
    /// Those of the kernel.
    #[inline]
    pub fn send(socket: BorrowedFd<'_>, slices: &[Self], flags: i32) -> io::Result<usize> {
        // One slice is the common case, and `send` is the shorter way through the kernel.
        let sent = if let [only] = slices {
            // SAFETY: the bytes can be read, as `new` asks of its caller.
            unsafe { libc::send(socket.as_raw_fd(), only.0.iov_base, only.0.iov_len, flags) }
        } else {
            // SAFETY: a header of zeros is one without name, control data and flags.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = slices.as_ptr().cast_mut().cast();
            message.msg_iovlen = slices.len() as _;
            // SAFETY: the header names an array of `iovec`s, which the slices are, whose bytes can be read.
            unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) }
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

impl<'a> VolatileSliceMut<'a> {
    /// Bytes at an address.
    ///
    /// # Safety
    /// The `len` bytes at `start` can be written during `'a`, and meanwhile this process uses them only through slices of this kind
    /// and [`VolatileSlice`], so that they hold one writer's bytes or the other's. Other processes may write as they like.
    pub unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self(libc::iovec { iov_base: start.cast(), iov_len: len }, PhantomData)
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.0.iov_len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of the first byte; for devices, which write by address.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    /// The bytes in `range`.
    ///
    /// # Panics
    /// If the range exceeds the bytes.
    #[inline]
    pub fn range(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        // SAFETY: the range was just checked, and `self` is gone.
        unsafe { Self::new(self.0.iov_base.cast::<u8>().add(range.start), range.len()) }
    }

    /// The same bytes, for reading.
    #[inline]
    pub fn as_volatile(&self) -> VolatileSlice<'_> {
        VolatileSlice(self.0, PhantomData)
    }

    /// The same bytes, for a shorter lifetime.
    #[inline]
    pub fn reborrow(&mut self) -> VolatileSliceMut<'_> {
        VolatileSliceMut(self.0, PhantomData)
    }

    /// Overwrites all of it with a copy of `bytes`. The two may overlap.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_from<'b>(&mut self, bytes: impl Into<VolatileSlice<'b>>) {
        let bytes = bytes.into();
        assert_eq!(bytes.len(), self.len(), "a copy has the length of what is copied");
        // SAFETY: both sides have this many bytes, readable and writable, as `new` asks of its callers.
        unsafe { copy(bytes.as_ptr(), self.0.iov_base.cast(), bytes.len()) };
    }

    /// Receives into one target after the other with readv(2), or recv(2) for a single one; returns the number of bytes received.
    ///
    /// # Errors
    /// Those of the kernel.
    #[inline]
    pub fn receive(socket: BorrowedFd<'_>, targets: &mut [Self]) -> io::Result<usize> {
        let received = if let [only] = targets {
            // SAFETY: the bytes can be written, as `new` asks of its caller.
            unsafe { libc::recv(socket.as_raw_fd(), only.0.iov_base, only.0.iov_len, 0) }
        } else {
            // SAFETY: the targets are an array of `iovec`s, whose bytes can be written.
            unsafe { libc::readv(socket.as_raw_fd(), targets.as_ptr().cast(), targets.len() as _) }
        };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }
}

/// Overwrites `to` with a copy of `from`, as fast as the processor can: see [`VolatileSliceMut::copy_from`].
///
/// Use this for the bytes of tensors instead of [`copy_from_slice`](slice::copy_from_slice), which is up to twenty times slower on
/// some processors if `to` starts a few bytes behind `from` in its page, as the data of a numpy array does.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy_bytes(to: &mut [u8], from: &[u8]) {
    VolatileSliceMut::from(to).copy_from(from);
}

/// # Safety
/// `len` bytes can be read at `from` and written at `to`.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // The compiler may read memory twice, or leave out a copy, if it assumes that nobody else uses the memory: between the fences
    // it does neither.
    compiler_fence(Ordering::SeqCst);
    if len > PIECE_BYTES && is_slow(from, to, len) {
        // SAFETY: as this function asks of its caller.
        unsafe { copy_in_pieces(from, to, len) };
    } else {
        // SAFETY: as this function asks of its caller.
        unsafe { libc::memmove(to.cast(), from.cast(), len) };
    }
    compiler_fence(Ordering::SeqCst);
}

/// Bytes for which the C library does not use `rep movsb` on any processor.
const PIECE_BYTES: usize = 2048;

/// True if `rep movsb` would copy so slowly that the C library should not use it. On AMD's Zen 3 it copies 2.7 GB/s instead of 50 if
/// the target starts 1 to 31 bytes behind the source in its page (glibc bug 30994). Copies to lower addresses of one piece of
/// memory may overlap, others not: those do not use it anyway, and cannot be copied from the front.
#[inline]
fn is_slow(from: *const u8, to: *mut u8, len: usize) -> bool {
    let ahead = to.addr().wrapping_sub(from.addr());
    matches!(ahead % 4096, 1..32) && ahead >= len
}

/// # Safety
/// As of [`copy`]; and `to` is not within the bytes at `from`.
#[cold]
unsafe fn copy_in_pieces(mut from: *const u8, mut to: *mut u8, mut len: usize) {
    while len > 0 {
        let bytes = len.min(PIECE_BYTES);
        // SAFETY: no more bytes than are left of those that the caller promised, from the front.
        unsafe {
            libc::memmove(to.cast(), from.cast(), bytes);
            (from, to) = (from.add(bytes), to.add(bytes));
        }
        len -= bytes;
    }
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for VolatileSlice<'a> {
    #[inline]
    fn from(bytes: &'a T) -> Self {
        let bytes = bytes.as_ref();
        // SAFETY: nobody writes to the bytes of a slice while it is borrowed.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }
}

impl<'a, T: AsMut<[u8]> + ?Sized> From<&'a mut T> for VolatileSliceMut<'a> {
    #[inline]
    fn from(bytes: &'a mut T) -> Self {
        let bytes = bytes.as_mut();
        // SAFETY: the slice is borrowed exclusively.
        unsafe { Self::new(bytes.as_mut_ptr(), bytes.len()) }
    }
}

impl fmt::Debug for VolatileSlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolatileSlice({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn copies_at_any_distance_are_whole() {
        let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8).collect();
        // Targets behind the source in their page, before it, and overlapping it on both sides.
        for ahead in [4096 + 1, 4096 + 16, 4096 + 31, 4096 + 32, 8192 + 24, 4096 - 16, 8192 - 16, 16, 31, 1] {
            for len in [0, 1, 2047, 2048, 2049, 4096, 5000, 8192] {
                for (from, to) in [(100, 100 + ahead), (100 + ahead, 100)] {
                    let (mut copied, mut expected) = (bytes.clone(), bytes.clone());
                    expected.copy_within(from..from + len, to);
                    let start = copied.as_mut_ptr();
                    // SAFETY: both ranges are within the vector, which nobody else uses.
                    unsafe { copy(start.add(from), start.add(to), len) };
                    assert!(copied == expected, "{len} bytes from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn ranges_stay_within_and_copies_are_whole() {
        let mut bytes: Vec<u8> = (0..100).collect();
        let whole = VolatileSlice::from(&bytes);
        assert_eq!(whole.range(10..20).to_vec(), (10..20).collect::<Vec<u8>>());
        assert_eq!((whole.first(3).len(), whole.first(1000).len(), VolatileSlice::empty().to_vec().len()), (3, 100, 0));
        assert!(whole.range(0..10).overlaps(whole.range(9..10)) && !whole.range(0..10).overlaps(whole.range(10..20)));
        for range in [90..101, 101..101] {
            assert!(std::panic::catch_unwind(|| whole.range(range.clone()).len()).is_err(), "{range:?}");
        }
        let mut appended = vec![7];
        whole.range(98..100).append_to(&mut appended);
        assert_eq!(appended, [7, 98, 99]);
        VolatileSliceMut::from(&mut bytes).range(1..4).copy_from(&appended);
        assert_eq!(bytes[..5], [0, 7, 98, 99, 4]);
        let short = std::panic::catch_unwind(move || VolatileSliceMut::from(&mut bytes).copy_from(&[1]));
        assert!(short.is_err());
    }

    #[test]
    fn the_kernel_takes_and_fills_several_in_order() {
        let (one, other) = UnixStream::pair().unwrap();
        let slices = [&b"ab"[..], b"", b"cde"].map(VolatileSlice::from);
        assert_eq!(VolatileSlice::send(one.as_fd(), &slices, libc::MSG_NOSIGNAL).unwrap(), 5);
        assert_eq!(VolatileSlice::send(one.as_fd(), &slices[2..], libc::MSG_NOSIGNAL).unwrap(), 3);
        let (mut first, mut second) = ([0; 3], [0; 9]);
        let mut targets = [&mut first[..], &mut second[..]].map(VolatileSliceMut::from);
        assert_eq!(VolatileSliceMut::receive(other.as_fd(), &mut targets).unwrap(), 8);
        assert_eq!((&first, &second[..5]), (b"abc", &b"decde"[..]));
        drop(one);
        assert_eq!(VolatileSliceMut::receive(other.as_fd(), &mut [(&mut first).into()]).unwrap(), 0);
        drop(other);
    }
}
