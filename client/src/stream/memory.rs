//! Memory that bytes are sent from: the task's, or the streams' own in place of the heap, which would return pages and take them
//! again all the time.

use std::sync::Arc;

use sealane_runtime::{Buffer, copy_bytes};
use sealane_transport::shm::{SharedMemory, limits::INLINE_BYTES_MAX};

use crate::{
    Task,
    memory::{Arena, ForkMark},
};

pub(super) enum Source {
    Task(Task),
    Own(Arc<Arena>),
}

impl Source {
    /// The memory of a task, or of the streams themselves; then with room for `bytes`, the most that may be in flight.
    pub(super) fn of(task: &Task, bytes: u64) -> Source {
        let own = || {
            let (memory, _) = SharedMemory::create("sealane-streams", bytes).ok()?;
            Some(Arc::new(Arena::new(memory, Arc::new(ForkMark::new().ok()?))))
        };
        match if task.is_attached() { None } else { own() } {
            Some(arena) => Source::Own(arena),
            None => Source::Task(task.clone()),
        }
    }

    /// Memory with the bytes of both parts. If there is no room, they lie in the heap, and are copied like those of any tensor there.
    pub(super) fn filled(&self, first: &[u8], rest: &[u8]) -> Buffer {
        let bytes = first.len() + rest.len();
        // So few bytes travel in the ring.
        let memory = match self {
            _ if bytes <= INLINE_BYTES_MAX => None,
            Source::Task(task) => task.is_attached().then(|| task.alloc(bytes).ok()).flatten(),
            Source::Own(arena) => arena.allocate(bytes),
        };
        let Some(mut memory) = memory else { return Buffer::from_vec([first, rest].concat()) };
        copy_bytes(&mut memory[..first.len()], first);
        copy_bytes(&mut memory[first.len()..], rest);
        memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_its_own_holds_what_fits_and_the_heap_the_rest() {
        let (memory, _) = SharedMemory::create("test", 64 << 10).unwrap();
        let arena = Arc::new(Arena::new(memory, Arc::new(ForkMark::new().unwrap())));
        let source = Source::Own(arena.clone());
        let (first, rest) = ([1; 24], vec![2; 40 << 10]);
        let [large, more, few] = [&rest[..], &rest, &rest[..8]].map(|rest| source.filled(&first, rest));
        assert_eq!([&large, &more, &few].map(|memory| arena.is_of(memory)), [true, false, false]);
        for memory in [large, more, few] {
            assert!(memory[..24] == first && memory[24..].iter().all(|byte| *byte == 2));
        }
        assert_eq!(arena.size_and_free(), (64 << 10, 64 << 10));
    }
}
