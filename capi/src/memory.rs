//! Memory for tensors that are sent and received without a copy.
//!
//! The map from blocks to buffers is kept here and not next to the blocks, because the daemon can write to the arena.
#![allow(unsafe_code)]

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    collections::HashMap,
    ffi::c_void,
    ptr::{NonNull, null_mut},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicPtr, Ordering},
    },
};

use sealane::Buffer;
use sealane_runtime::Lender;

use crate::{
    error::{sealane_code, sealane_error},
    guard::{Outcome, entry, unpanicked},
    task::{place, sealane_task, task},
};

const ALIGNMENT: usize = 64;

/// Buffers of the allocated blocks, by address.
type Blocks = Mutex<HashMap<usize, Buffer>>;

/// The blocks of this process; null before the first.
static BLOCKS: AtomicPtr<Blocks> = AtomicPtr::new(null_mut());

fn blocks() -> MutexGuard<'static, HashMap<usize, Buffer>> {
    let mut blocks = BLOCKS.load(Ordering::Acquire);
    if blocks.is_null() {
        let new = Box::into_raw(Box::default());
        blocks = match BLOCKS.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(first) => {
                // SAFETY: it was just made, and nobody else has it.
                drop(unsafe { Box::from_raw(new) });
                first
            }
        };
    }
    // SAFETY: what is there was made above, and is never freed.
    unsafe { &*blocks }.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a child the blocks belong to the parent, and their lock may be held forever.
pub(crate) fn forget_in_child() {
    BLOCKS.store(null_mut(), Ordering::Release);
}

/// Memory that a task sends from, aligned to [`ALIGNMENT`]. It contains zeros, or its old contents.
///
/// # Errors
/// ResourceExhausted if there is no room, InvalidArgument if the size is impossible.
pub(crate) fn allocate(task: &sealane_task, bytes: usize) -> Outcome<Buffer> {
    if !task.is_embedded() {
        return Ok(task.task.alloc(bytes)?);
    }
    let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT)
        .map_err(|_| sealane_error::invalid(format!("{bytes} bytes are too many")))?;
    // SAFETY: the layout is not empty.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| {
        sealane_error::new(sealane_code::ResourceExhausted, format!("the system has no {bytes} bytes of memory"))
    })?;
    // SAFETY: the memory was just allocated for this buffer, and is freed when that drops its lender.
    Ok(unsafe { Buffer::lent(start, bytes, 0, Arc::new(Heap { start, layout })) })
}

/// Heap memory that is freed when dropped.
struct Heap {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it gives nobody access to the memory.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Lender for Heap {
    fn give_back(&self, _token: u64) {
        // The buffer drops its reference to this right after, which is what frees the memory.
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and its buffer is gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Allocates memory for tensors that are sent and received without a copy, aligned to 64 bytes: from the arena shared with the
/// daemon, or from the heap with an embedded engine. Its contents are undefined.
///
/// It stays usable after its task is detached, until sealane_free. After a restart of the daemon it is ordinary memory, and is
/// copied. Fails with SEALANE_CODE_RESOURCE_EXHAUSTED if there is no room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_alloc(
    task: *mut sealane_task,
    bytes: usize,
    memory: *mut *mut c_void,
) -> *mut sealane_error {
    entry(|| {
        let place = place(memory, "memory")?;
        // SAFETY: as the header asks of C code.
        let task = unsafe { self::task(task) }?;
        let mut buffer = allocate(task, bytes.max(1))?;
        let start = buffer.as_mut_ptr();
        blocks().insert(start.addr(), buffer);
        // SAFETY: the place was checked.
        unsafe { place.write(start.cast()) };
        Ok(())
    })
}

/// Frees memory from sealane_alloc of any task; does nothing with NULL or other memory, such as a parent's in the child of a
/// fork. Can be used as a sealane_release with the memory as its context, to free lent memory as soon as it is no longer used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_free(memory: *mut c_void) {
    let unpanicked = unpanicked(|| {
        drop(taken(memory));
        Ok(())
    });
    // An error cannot be reported.
    drop(unpanicked);
}

/// The buffer of memory from sealane_alloc, which C code no longer owns; `None` for other memory.
pub(crate) fn taken(memory: *const c_void) -> Option<Buffer> {
    blocks().remove(&memory.addr())
}

/// Returns the address range of the arena that a task shares with its daemon: tensors in it are sent and received in place. 0
/// bytes for a task with an embedded engine. A restarted daemon has a new arena: call this again after calls ended with
/// SEALANE_CODE_UNAVAILABLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_arena_range(
    task: *mut sealane_task,
    start: *mut *const c_void,
    bytes: *mut usize,
) -> *mut sealane_error {
    entry(|| {
        let (start, bytes) = (place(start, "start")?, place(bytes, "bytes")?);
        // SAFETY: as the header asks of C code.
        let range = unsafe { self::task(task) }?.task.arena_range()?;
        // SAFETY: the places were checked.
        unsafe {
            start.write(range.as_ref().map_or(std::ptr::null(), |range| range.start.cast()));
            bytes.write(range.map_or(0, |range| range.end.addr() - range.start.addr()));
        }
        Ok(())
    })
}

/// Has the CUDA driver pin the arena that a task shares with its daemon for all devices, by the context of this one: copies between it and GPUs are then
/// asynchronous and at full speed. Experimental. A restarted daemon has a new arena. SEALANE_CODE_UNAVAILABLE or
/// SEALANE_CODE_RESOURCE_EXHAUSTED with the driver's reason, SEALANE_CODE_UNIMPLEMENTED for a task with an embedded engine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_pin(task: *mut sealane_task, device: usize) -> *mut sealane_error {
    // SAFETY: as the header asks of C code.
    entry(|| Ok(unsafe { self::task(task) }?.task.pin(device)?))
}

/// True if all of this memory is in the arena that a task shares with its daemon. False for a NULL task, and for memory outside
/// its arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_in_arena(task: *mut sealane_task, memory: *const c_void, bytes: usize) -> bool {
    let inside = unpanicked(|| {
        // SAFETY: as the header asks of C code.
        let Some(range) = unsafe { self::task(task) }?.task.arena_range()? else { return Ok(false) };
        let end = memory.addr().checked_add(bytes);
        Ok(memory.addr() >= range.start.addr() && end.is_some_and(|end| end <= range.end.addr()))
    });
    inside.unwrap_or(false)
}
