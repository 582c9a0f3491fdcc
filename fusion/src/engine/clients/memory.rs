//! Memory shared with a client, as the shard uses it: parts of its arena, and the receive area as a pool. Shard thread only,
//! except for the lists in which dropped buffers record themselves.
//!
//! The client may write to all of it at any time, and refer to a part any number of times: buffers here are foreign and have no
//! slice. Their bytes are only copied, or given to the kernel.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sealane_runtime::{Block, Buffer, Extents, Lender};
use sealane_transport::shm::limits::INLINE_BYTES_MAX;
use sealane_transport::shm::{OutOfRange, SharedMemory, Span};
use sealane_transport::{Arena, Error, Handle};

use crate::node::Pool;

/// Lends parts of the client's arena as destinations, and as payloads that many may read; where they are given back
/// without a word of their own, keeps that for the client to be told.
pub(super) struct ArenaMemory {
    memory: SharedMemory,
    returned: Mutex<Vec<u64>>,
    /// Spares a look under the lock in every turn.
    any: AtomicBool,
}

/// Lends parts of the client's arena as payloads: the end of the send says that they are back.
struct ArenaPayloads {
    _memory: SharedMemory,
}

impl Lender for ArenaMemory {
    fn give_back(&self, token: u64) {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner).push(token);
        self.any.store(true, Ordering::Release);
    }
}

impl Lender for ArenaPayloads {
    fn give_back(&self, _token: u64) {}
}

/// The client's arena.
pub(super) struct ClientArena {
    destinations: Arc<ArenaMemory>,
    payloads: Arc<ArenaPayloads>,
}

impl ClientArena {
    pub(super) fn new(memory: SharedMemory) -> Self {
        Self {
            payloads: Arc::new(ArenaPayloads { _memory: memory.clone() }),
            destinations: Arc::new(ArenaMemory { memory, returned: Mutex::default(), any: AtomicBool::new(false) }),
        }
    }

    /// True if no part of it is lent.
    pub(super) fn is_unused(&self) -> bool {
        Arc::strong_count(&self.destinations) == 1 && Arc::strong_count(&self.payloads) == 1
    }

    /// The memory itself.
    pub(super) fn memory(&self) -> &SharedMemory {
        &self.destinations.memory
    }

    /// The bytes of a send.
    pub(super) fn payload(&self, call: u32, span: Span) -> Result<Buffer, OutOfRange> {
        let bytes = self.destinations.memory.bytes(span)?;
        // SAFETY: the span was just checked and the memory is mapped as long as the lender lives; in this process only
        // such buffers use it.
        Ok(unsafe { Buffer::foreign(bytes.cast(), bytes.len(), u64::from(call), self.payloads.clone()) })
    }

    /// Where the tensor of a recv is to go, or the bytes of a publication: the client hears when it is given back.
    pub(super) fn destination(&self, call: u32, span: Span) -> Result<Buffer, OutOfRange> {
        let bytes = self.destinations.memory.bytes(span)?;
        // SAFETY: as in `payload`.
        Ok(unsafe { Buffer::foreign(bytes.cast(), bytes.len(), u64::from(call), self.destinations.clone()) })
    }

    /// True if the buffer is a destination of this arena, which its call's outcome gives back.
    pub(super) fn is_destination(&self, buffer: &Buffer) -> bool {
        let lent_here =
            |lender: &Arc<dyn Lender>| std::ptr::addr_eq(Arc::as_ptr(lender), Arc::as_ptr(&self.destinations));
        buffer.lender().is_some_and(|(lender, _)| lent_here(lender))
    }

    /// True if destinations were given back without an outcome.
    pub(super) fn any_returned(&self) -> bool {
        self.destinations.any.load(Ordering::Relaxed)
    }

    /// The calls whose destinations were given back without an outcome.
    pub(super) fn take_returned(&self, into: &mut Vec<u32>) {
        if !self.any_returned() {
            return;
        }
        let mut returned = self.destinations.returned.lock().unwrap_or_else(PoisonError::into_inner);
        self.destinations.any.store(false, Ordering::Relaxed);
        into.extend(returned.drain(..).map(|call| call as u32));
    }

    /// Takes a call's destination off the list of those given back; false if it is not there.
    pub(super) fn has_returned(&self, call: u32) -> bool {
        let mut returned = self.destinations.returned.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.any_returned() {
            return false;
        }
        let place = returned.iter().position(|other| *other == u64::from(call));
        place.map(|place| returned.swap_remove(place)).is_some()
    }
}

/// A block of the receive area. It is free again when neither side has it.
struct Out {
    block: Block,
    /// A buffer lies over it.
    held: bool,
    /// The client has its token, and may give it back.
    told: bool,
}

/// Blocks that buffers gave back without going to the client.
struct AreaMemory {
    memory: SharedMemory,
    returned: Mutex<Vec<u64>>,
}

impl Lender for AreaMemory {
    fn give_back(&self, token: u64) {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner).push(token);
    }
}

/// A receive area: where tensors land that come without a destination. The books are private, so that nothing which the
/// client writes can mislead them.
pub(super) struct ReceiveArea {
    memory: Arc<AreaMemory>,
    books: RefCell<Books>,
}

struct Books {
    /// Made for the first block, since they take about 1 % of what they are of: most clients bring memory of their own.
    extents: Option<Extents>,
    out: Arena<Out>,
}

impl ReceiveArea {
    pub(super) fn new(memory: SharedMemory) -> Self {
        let books = RefCell::new(Books { extents: None, out: Arena::new(usize::MAX) });
        Self { memory: Arc::new(AreaMemory { memory, returned: Mutex::default() }), books }
    }

    /// Its size in bytes.
    pub(super) fn len(&self) -> u64 {
        self.memory.memory.len()
    }

    /// A block under a buffer.
    fn allocate_block(&self, len: usize) -> Result<Buffer, Error> {
        let mut books = self.books.borrow_mut();
        for token in self.memory.returned.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            books.dropped(Handle::from_bits(token));
        }
        let area_bytes = self.memory.memory.len();
        let extents = books.extents.get_or_insert_with(|| Extents::new(area_bytes as usize));
        let Some(block) = extents.allocate(len) else {
            let (limit, used) = (area_bytes, extents.in_use_bytes());
            let reason = format!(
                "the tensor has {len} bytes, {used} of {limit} are in use: drop tensors that are done with, or give the \
                 recv a destination"
            );
            return Err(Error::full("daemon.area_bytes", reason));
        };
        let span = Span { offset: block.offset() as u64, len: len as u64 };
        let bytes = self.memory.memory.bytes(span).expect("the books are those of this memory");
        let Ok(token) = books.out.insert(Out { block, held: true, told: false }) else {
            unreachable!("2^32 blocks do not fit in memory")
        };
        // SAFETY: the block was just taken for this buffer and the memory is mapped as long as the lender lives.
        Ok(unsafe { Buffer::foreign(bytes.cast(), len, token.to_bits(), self.memory.clone()) })
    }

    /// The token of a buffer, if it is of this area.
    fn token_of(&self, buffer: &Buffer) -> Option<u64> {
        let (lender, token) = buffer.lender()?;
        std::ptr::addr_eq(Arc::as_ptr(lender), Arc::as_ptr(&self.memory)).then_some(token)
    }

    /// What a buffer is to the client: where it is, and the token to give it back by; `None` if it is not of this area.
    pub(super) fn place_of(&self, buffer: &Buffer) -> Option<(Span, u64)> {
        let token = self.token_of(buffer)?;
        let books = self.books.borrow();
        let out = books.out.get(Handle::from_bits(token)).expect("a lent buffer's block is out");
        Some((Span { offset: out.block.offset() as u64, len: buffer.len() as u64 }, token))
    }

    /// The client has been told of a buffer that is kept here: it may look at it, and must give it back as well.
    pub(super) fn told(&self, token: u64) {
        if let Some(out) = self.books.borrow_mut().out.get_mut(Handle::from_bits(token)) {
            out.told = true;
        }
    }

    /// The client has been told of this buffer, and it is the client's alone from now on.
    pub(super) fn hand_over(&self, buffer: Buffer) {
        let Some(token) = self.token_of(&buffer) else {
            // A destination of the client's own: the record that told of it has given it back.
            let _the_clients_again = buffer.into_token();
            return;
        };
        if let Some(out) = self.books.borrow_mut().out.get_mut(Handle::from_bits(token)) {
            (out.held, out.told) = (false, true);
        }
        let _owned_by_the_client = buffer.into_token();
    }

    /// Takes a block back from the client, which may name anything: only what it was told of counts.
    pub(super) fn free(&self, token: u64) {
        let mut books = self.books.borrow_mut();
        let handle = Handle::from_bits(token);
        let Some(out) = books.out.get_mut(handle).filter(|out| out.told) else { return };
        out.told = false;
        books.free_unused(handle);
    }
}

impl Books {
    /// A buffer was dropped.
    fn dropped(&mut self, handle: Handle) {
        if let Some(out) = self.out.get_mut(handle) {
            out.held = false;
            self.free_unused(handle);
        }
    }

    fn free_unused(&mut self, handle: Handle) {
        if self.out.get(handle).is_some_and(|out| !out.held && !out.told)
            && let Some(out) = self.out.remove(handle)
        {
            self.extents.as_mut().expect("a block is out").free(out.block);
        }
    }
}

impl Pool for ReceiveArea {
    fn allocate(&self, len: usize) -> Result<Buffer, Error> {
        if len <= INLINE_BYTES_MAX {
            // It travels in the ring, and until then is in no memory that others share.
            return Ok(Buffer::of_len(len));
        }
        self.allocate_block(len)
    }

    fn allocate_to_stay(&self, len: usize) -> Result<Buffer, Error> {
        if len == 0 { Ok(Buffer::default()) } else { self.allocate_block(len) }
    }

    fn inline_bytes(&self) -> usize {
        INLINE_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 16;

    fn area() -> ReceiveArea {
        ReceiveArea::new(SharedMemory::create("test", BYTES, false).unwrap().0)
    }

    fn whole(area: &ReceiveArea) -> Result<Buffer, Error> {
        area.allocate_to_stay(BYTES as usize)
    }

    #[test]
    fn small_tensors_that_stay_lie_in_the_area_and_others_do_not() {
        let area = area();
        assert!(area.place_of(&area.allocate(64).unwrap()).is_none());
        assert!(area.place_of(&area.allocate_to_stay(64).unwrap()).is_some());
        assert!(area.place_of(&area.allocate_to_stay(0).unwrap()).is_none());
        assert!(area.place_of(&area.allocate(1000).unwrap()).is_some());
    }

    #[test]
    fn what_a_client_may_write_to_is_no_slice() {
        let (memory, _descriptor) = SharedMemory::create("test", BYTES, false).unwrap();
        let arena = ClientArena::new(memory);
        let span = Span { offset: 8, len: 100 };
        let buffers = [arena.payload(1, span).unwrap(), arena.destination(2, span).unwrap(), whole(&area()).unwrap()];
        assert!(buffers.iter().all(|buffer| buffer.memory() == sealane_runtime::MemoryKind::Foreign));
        // Named twice, it is copied onto itself.
        let [from, mut to, _] = buffers;
        to.volatile_mut().copy_from(from.volatile());
    }

    #[test]
    fn a_block_is_free_when_neither_side_has_it() {
        let area = area();
        let buffer = whole(&area).unwrap();
        let (_, token) = area.place_of(&buffer).unwrap();
        // The client was not told of it, whatever it says.
        area.free(token);
        drop(buffer);
        let buffer = whole(&area).unwrap();
        let (_, token) = area.place_of(&buffer).unwrap();
        area.told(token);
        drop(buffer);
        assert!(whole(&area).is_err());
        area.free(token);
        area.free(token);
        let buffer = whole(&area).unwrap();
        let (_, token) = area.place_of(&buffer).unwrap();
        area.told(token);
        area.free(token);
        assert!(whole(&area).is_err(), "a buffer still lies there");
        drop(buffer);
        let buffer = whole(&area).unwrap();
        let (_, token) = area.place_of(&buffer).unwrap();
        area.hand_over(buffer);
        assert!(whole(&area).is_err());
        area.free(token);
        whole(&area).unwrap();
    }
}
