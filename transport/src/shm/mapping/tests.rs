//! Memory as two processes see it (here: two mappings in one process), and memory that must not be trusted.

use std::os::fd::OwnedFd;

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
    unistd::ftruncate,
};

use super::{ARENA, FINAL_SEALS, Mapping, PAGE, ReadOnlyMemory, SEGMENT, SharedMemory, seal_for_readers};
use crate::shm::{OutOfRange, ShmError, Span, limits::MEMORY_BYTES_MAX};

fn write(memory: &SharedMemory, span: Span, byte: u8) {
    let bytes = memory.bytes(span).unwrap();
    for at in 0..bytes.len() {
        // SAFETY: within the span, which the test uses alone.
        unsafe { bytes.cast::<u8>().add(at).write(byte) };
    }
}

fn read(memory: &SharedMemory, span: Span) -> Vec<u8> {
    // SAFETY: the span is within the memory, and nobody writes it meanwhile.
    unsafe { memory.bytes(span).unwrap().as_ref() }.to_vec()
}

#[test]
fn what_one_side_writes_the_other_reads() {
    for populated in [false, true] {
        let (here, fd) = SharedMemory::create("test", 3 * PAGE - 5).unwrap();
        assert_eq!(here.len(), 3 * PAGE);
        assert!(!here.is_empty() && here.base().as_ptr().addr().is_multiple_of(PAGE as usize));
        let there = SharedMemory::open(&fd, here.len()).unwrap();
        drop(fd);
        if populated {
            there.populate().unwrap();
        }
        let span = Span { offset: PAGE - 2, len: 4 };
        assert_eq!(read(&there, span), [0; 4]);
        write(&here, span, 7);
        // The mapping outlives the one it was cloned from.
        let clone = there.clone();
        drop(there);
        assert_eq!(read(&clone, span), [7; 4]);
    }
}

#[test]
fn spans_are_within_the_memory_or_refused() {
    let (memory, _fd) = SharedMemory::create("test", 1).unwrap();
    for (offset, len) in [(0, PAGE), (PAGE, 0), (PAGE - 1, 1), (0, 0)] {
        assert_eq!(memory.bytes(Span { offset, len }).unwrap().len() as u64, len);
    }
    for (offset, len) in [(0, PAGE + 1), (PAGE, 1), (PAGE + 1, 0), (1, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
        let span = Span { offset, len };
        let refused = memory.bytes(span).unwrap_err();
        assert_eq!(refused, OutOfRange { span, bytes: PAGE });
        assert!(refused.to_string().contains("are not within 4096 bytes"));
    }
}

#[test]
fn nobody_can_change_size_or_seals() {
    for purpose in [SEGMENT, ARENA] {
        let (_memory, fd) = Mapping::create("test", PAGE, purpose).unwrap();
        assert_eq!(ftruncate(&fd, 0), Err(Errno::EPERM));
        assert_eq!(ftruncate(&fd, 1 << 20), Err(Errno::EPERM));
        // More seals may be added to an arena, but none that would take rights from a process that has mapped it.
        let refused = if purpose.seals == FINAL_SEALS { Errno::EPERM } else { Errno::EBUSY };
        assert_eq!(fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)), Err(refused));
    }
}

#[test]
fn who_is_shown_an_arena_can_only_read_it() {
    let (here, fd) = SharedMemory::create("test", PAGE).unwrap();
    let unsealed = ReadOnlyMemory::open(&fd, PAGE).unwrap_err();
    assert!(matches!(unsealed, ShmError::Unsealed { .. }), "{unsealed}");
    seal_for_readers(&fd).unwrap();
    seal_for_readers(&fd).unwrap();
    let there = ReadOnlyMemory::open(&fd, PAGE).unwrap();
    let span = Span { offset: 8, len: 100 };
    write(&here, span, 7);
    // SAFETY: the span is within the memory, and nobody writes it meanwhile.
    assert_eq!(unsafe { there.bytes(span).unwrap().as_ref() }, [7; 100]);
    assert!(there.bytes(Span { offset: PAGE, len: 1 }).is_err());
    let refused = SharedMemory::open(&fd, PAGE).unwrap_err();
    assert!(matches!(refused, ShmError::System { operation: "mapping shared memory", .. }), "{refused}");
    assert_eq!(nix::unistd::write(&fd, &[1]), Err(Errno::EPERM));
    drop((here, fd));
    // SAFETY: as above.
    assert_eq!(unsafe { there.bytes(span).unwrap().as_ref() }, [7; 100], "the owner's end leaves it");
}

fn unsealed(bytes: i64, seals: SealFlag) -> OwnedFd {
    let fd = memfd_create("test", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    fd
}

#[test]
fn memory_without_all_seals_is_refused() {
    for missing in [SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_GROW, SealFlag::F_SEAL_SEAL] {
        let fd = unsealed(PAGE as i64, FINAL_SEALS.difference(missing));
        let refused = Mapping::open(&fd, PAGE, SEGMENT).unwrap_err();
        assert!(matches!(refused, ShmError::Unsealed { .. }), "{refused}");
        assert_eq!(SharedMemory::open(&fd, PAGE).is_ok(), missing == SealFlag::F_SEAL_SEAL);
    }
    // Not a memory file at all.
    let (pipe, _writer) = nix::unistd::pipe().unwrap();
    assert!(matches!(SharedMemory::open(&pipe, PAGE), Err(ShmError::Unsealed { seals: 0 })));
}

#[test]
fn memory_of_another_size_is_refused() {
    let fd = unsealed(PAGE as i64, super::SEALS);
    for announced in [0, PAGE - 1, 2 * PAGE, u64::MAX] {
        let refused = SharedMemory::open(&fd, announced).unwrap_err();
        assert!(matches!(refused, ShmError::WrongSize { found: PAGE, .. }), "{refused}");
    }
    SharedMemory::open(&fd, PAGE).unwrap();
}

#[test]
fn memory_that_cannot_be_written_is_refused() {
    let fd = unsealed(PAGE as i64, super::SEALS | SealFlag::F_SEAL_WRITE);
    let refused = SharedMemory::open(&fd, PAGE).unwrap_err();
    assert!(matches!(refused, ShmError::System { operation: "mapping shared memory", .. }), "{refused}");
}

#[test]
fn more_than_there_is_fails_when_it_is_made() {
    for bytes in [MEMORY_BYTES_MAX + 1, u64::MAX] {
        let refused = SharedMemory::create("test", bytes).unwrap_err();
        assert!(matches!(refused, ShmError::TooLarge { .. }), "{refused}");
    }
}
