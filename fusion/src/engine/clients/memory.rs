//! Memory shared with a client, as the shard uses it: parts of its arena, and the receive area as a pool. Shard thread only,
//! except for the lists in which dropped buffers record themselves.
//!
//! The client may write to all of it at any time, and refer to a part any number of times: buffers here are foreign and have no slice.
//! Their bytes are only copied, or passed to the kernel.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sealane_runtime::{Block, Buffer, Extents, Lender};
use sealane_transport::shm::limits::INLINE_BYTES_MAX;
use sealane_transport::shm::table_places::Place;
use sealane_transport::shm::{OutOfRange, SharedMemory, Span};
use sealane_transport::{Arena, Error, Handle, Payload};

use crate::limits::{VIEW_BYTES_MIN, VIEWS_MAX};
use crate::node::Pool;

/// Lends parts of the client's arena as destinations, and as payloads that many may read. Parts given back without an outcome are listed
/// here, for the client to be told.
pub(super) struct ArenaMemory {
    memory: SharedMemory,
    shown: Option<Shown>,
    /// The client has gone: nothing is written to the arena any more, whether it is viewed or not.
    left: AtomicBool,
    returned: Mutex<Vec<u64>>,
    /// True if `returned` is not empty; spares taking the lock in every turn.
    any: AtomicBool,
}

/// An arena that other clients may view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shown {
    /// The number by which other clients ask for it.
    pub(super) number: u64,
    /// The user of its client; only clients of this user may view it.
    pub(super) uid: u32,
}

/// The arena in which a published tensor lies, if others may view it there.
fn arena_of(payload: &Payload) -> Option<(&ArenaMemory, Shown)> {
    let Payload::Shared(buffer) = payload else { return None };
    let lender: &dyn Any = &**buffer.lender()?.0;
    let arena = lender.downcast_ref::<ArenaMemory>()?;
    arena.shown.map(|shown| (arena, shown))
}

/// Lends parts of the client's arena as payloads. The end of the send tells the client that they are back.
struct ArenaPayloads {
    _memory: SharedMemory,
}

impl ArenaMemory {
    /// Offset and length of a payload that lies here.
    fn span_of(&self, payload: &Payload) -> Span {
        let offset = payload.volatile().as_ptr().addr() - self.memory.base().as_ptr().addr();
        Span { offset: offset as u64, len: payload.len() as u64 }
    }
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

pub(super) struct ClientArena {
    destinations: Arc<ArenaMemory>,
    payloads: Arc<ArenaPayloads>,
}

impl ClientArena {
    pub(super) fn new(memory: SharedMemory, shown: Option<Shown>) -> Self {
        let payloads = Arc::new(ArenaPayloads { _memory: memory.clone() });
        let (left, any) = (AtomicBool::new(false), AtomicBool::new(false));
        let destinations = ArenaMemory { memory, shown, left, returned: Mutex::default(), any };
        Self { payloads, destinations: Arc::new(destinations) }
    }

    /// How other clients may view it, if they may.
    pub(super) fn shown(&self) -> Option<Shown> {
        self.destinations.shown
    }

    /// Its client has gone: leases for views granted from now on hold nothing here.
    pub(super) fn leave(&self) {
        self.destinations.left.store(true, Ordering::Relaxed);
    }

    /// True if no part of it is lent.
    pub(super) fn is_unused(&self) -> bool {
        Arc::strong_count(&self.destinations) == 1 && Arc::strong_count(&self.payloads) == 1
    }

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

    /// Where the tensor of a recv is to go, or the bytes of a publication: the client is told when it is given back.
    pub(super) fn destination(&self, call: u32, span: Span) -> Result<Buffer, OutOfRange> {
        let bytes = self.destinations.memory.bytes(span)?;
        // SAFETY: as in `payload`.
        Ok(unsafe { Buffer::foreign(bytes.cast(), bytes.len(), u64::from(call), self.destinations.clone()) })
    }

    /// True if the buffer is a destination of this arena, which the outcome of its call gives back.
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

    /// Removes a call's destination from the list of those given back; false if it is not there.
    pub(super) fn has_returned(&self, call: u32) -> bool {
        let mut returned = self.destinations.returned.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.any_returned() {
            return false;
        }
        let place = returned.iter().position(|other| *other == u64::from(call));
        place.map(|place| returned.swap_remove(place)).is_some()
    }
}

/// What a token stands for.
enum Lent {
    /// A block of the receive area, and leases on tensors in other arenas (by arena number), which stay in place as long as the client has
    /// the block.
    Block(Block, Vec<(u64, Option<Payload>)>),
    /// A tensor in the arena of that number; the lease keeps its client from reusing the memory.
    View { arena: u64, lease: Option<Payload> },
}

/// Memory that the client may look at. It is freed when neither side holds it.
struct Out {
    memory: Lent,
    /// A buffer refers to it.
    held: bool,
    /// The client has its token, and may give it back.
    told: bool,
}

/// Takes back blocks from buffers that were dropped here instead of going to the client.
struct AreaMemory {
    memory: SharedMemory,
    returned: Mutex<Vec<u64>>,
}

impl Lender for AreaMemory {
    fn give_back(&self, token: u64) {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner).push(token);
    }
}

/// A receive area: where tensors land that come without a destination. Its bookkeeping is in private memory, so that nothing the client
/// writes can corrupt it.
pub(super) struct ReceiveArea {
    memory: Arc<AreaMemory>,
    /// The client's user, if it may view arenas of others of that user.
    viewer: Option<u32>,
    views_refused: Cell<u64>,
    books: RefCell<Books>,
}

struct Books {
    /// Created with the first block, since it takes about 1 % of the area's size, and most clients bring their own memory.
    extents: Option<Extents>,
    out: Arena<Out>,
    views: usize,
    /// Arenas, of clients that have not gone, that this client was told of.
    viewed: Vec<u64>,
}

impl ReceiveArea {
    /// `viewer` is the client's user, if it may view what others of that user have published.
    pub(super) fn new(memory: SharedMemory, viewer: Option<u32>) -> Self {
        let books = Books { extents: None, out: Arena::new(usize::MAX), views: 0, viewed: Vec::new() };
        let (memory, books) = (Arc::new(AreaMemory { memory, returned: Mutex::default() }), RefCell::new(books));
        Self { memory, viewer, views_refused: Cell::new(0), books }
    }

    pub(super) fn len(&self) -> u64 {
        self.memory.memory.len()
    }

    /// Allocates a block, as a buffer.
    fn allocate_block(&self, len: usize) -> Result<Buffer, Error> {
        let mut books = self.books.borrow_mut();
        for token in self.memory.returned.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            books.dropped(Handle::from_bits(token));
        }
        let area_bytes = self.memory.memory.len();
        let extents = books.extents.get_or_insert_with(|| Extents::new(area_bytes as usize));
        let Some(block) = extents.allocate(len) else {
            let (limit, used) = (area_bytes, extents.in_use_bytes());
            let free = limit.saturating_sub(used as u64);
            let (why, first) = match len as u64 {
                len if len > limit => (format!("one shard's area has {limit}"), ""),
                len if len > free => (format!("{used} of {limit} are in use"), "drop tensors that are done with, "),
                _ => {
                    let why = format!("{free} of {limit} are free, but not in one piece");
                    (why, "drop tensors that are done with, ")
                }
            };
            let reason = format!(
                "the tensor has {len} bytes, and {why}: {first}give the recv a destination, or raise daemon.area_bytes"
            );
            return Err(Error::full("daemon.area_bytes", reason));
        };
        let span = span_of(&block, len);
        let bytes = self.memory.memory.bytes(span).expect("the books are those of this memory");
        let Ok(token) = books.out.insert(Out { memory: Lent::Block(block, Vec::new()), held: true, told: false })
        else {
            unreachable!("2^32 blocks do not fit in memory")
        };
        // SAFETY: the block was just taken for this buffer and the memory is mapped as long as the lender lives.
        Ok(unsafe { Buffer::foreign(bytes.cast(), len, token.to_bits(), self.memory.clone()) })
    }

    /// The token of a buffer, if it belongs to this area.
    fn token_of(&self, buffer: &Buffer) -> Option<u64> {
        let (lender, token) = buffer.lender()?;
        std::ptr::addr_eq(Arc::as_ptr(lender), Arc::as_ptr(&self.memory)).then_some(token)
    }

    /// How the client sees a buffer: its position, and the token to give it back; `None` if it does not belong to this area.
    pub(super) fn place_of(&self, buffer: &Buffer) -> Option<(Span, u64)> {
        let token = self.token_of(buffer)?;
        let books = self.books.borrow();
        let out = books.out.get(Handle::from_bits(token)).expect("a lent buffer's block is out");
        let Lent::Block(block, _) = &out.memory else { unreachable!("no buffer of this area lies over a view") };
        Some((span_of(block, buffer.len()), token))
    }

    /// True if tensors in other arenas are held in place until that block is given back.
    pub(super) fn lends_by(&self, token: u64) -> bool {
        let books = self.books.borrow();
        let out = books.out.get(Handle::from_bits(token));
        out.is_some_and(|out| matches!(&out.memory, Lent::Block(_, lent) if !lent.is_empty()))
    }

    /// Lends the client a view of a published tensor that [`shares`](Pool::shares) has allowed: the number of its arena, its position
    /// there, and the token to give it back. `None` if it lies elsewhere.
    pub(super) fn lend_view(&self, payload: &Payload) -> Option<(u64, Span, u64)> {
        let (arena, Shown { number, .. }) = arena_of(payload)?;
        let span = arena.span_of(payload);
        let mut books = self.books.borrow_mut();
        let (_, lease) = books.lease(payload.share())?;
        let view = Out { memory: Lent::View { arena: number, lease }, held: false, told: true };
        let Ok(token) = books.out.insert(view) else { unreachable!("2^32 views do not fit in memory") };
        Some((number, span, token.to_bits()))
    }

    pub(super) fn end_views(&self) {
        let mut books = self.books.borrow_mut();
        for view in books.out.select(|out| matches!(out.memory, Lent::View { .. })) {
            books.out.remove(view);
        }
        for (_, out) in books.out.iter_mut() {
            if let Lent::Block(_, lent) = &mut out.memory {
                lent.clear();
            }
        }
        books.views = 0;
    }

    /// The client of that arena has gone and needs nothing in it any more. True if this client was told of the arena.
    pub(super) fn forget_arena(&self, number: u64) -> bool {
        let mut books = self.books.borrow_mut();
        for (_, out) in books.out.iter_mut() {
            match &mut out.memory {
                Lent::View { arena, lease } if *arena == number => *lease = None,
                Lent::View { .. } => {}
                Lent::Block(_, lent) => {
                    lent.iter_mut().filter(|(arena, _)| *arena == number).for_each(|of| of.1 = None)
                }
            }
        }
        let place = books.viewed.iter().position(|viewed| *viewed == number);
        place.map(|place| books.viewed.swap_remove(place)).is_some()
    }

    /// The client's current views, and the number that were refused.
    pub(super) fn count_views(&self) -> (u64, u64) {
        (self.books.borrow().views as u64, self.views_refused.get())
    }

    /// The client has been told of a buffer that is kept here: it may look at it, and must also give it back.
    pub(super) fn told(&self, token: u64) {
        if let Some(out) = self.books.borrow_mut().out.get_mut(Handle::from_bits(token)) {
            out.told = true;
        }
    }

    /// The client has been told of this buffer, which belongs to it alone from now on.
    pub(super) fn hand_over(&self, buffer: Buffer) {
        let Some(token) = self.token_of(&buffer) else {
            // A destination of the client's own: the record that reported it has given it back.
            let _the_clients_again = buffer.into_token();
            return;
        };
        if let Some(out) = self.books.borrow_mut().out.get_mut(Handle::from_bits(token)) {
            (out.held, out.told) = (false, true);
        }
        let _owned_by_the_client = buffer.into_token();
    }

    /// Takes a block back from the client. The client may name anything, so only tokens it was told of count.
    pub(super) fn free(&self, token: u64) {
        let mut books = self.books.borrow_mut();
        let handle = Handle::from_bits(token);
        let Some(out) = books.out.get_mut(handle).filter(|out| out.told) else { return };
        out.told = false;
        books.free_unused(handle);
    }
}

impl Books {
    /// Records one more view of a tensor in another's arena: the arena's number and, unless its client has gone, what keeps the tensor
    /// there.
    fn lease(&mut self, payload: Payload) -> Option<(u64, Option<Payload>)> {
        let (arena, Shown { number, .. }) = arena_of(&payload)?;
        let has_left = arena.left.load(Ordering::Relaxed);
        self.views += 1;
        if !has_left && !self.viewed.contains(&number) {
            self.viewed.push(number);
        }
        Some((number, Some(payload).filter(|_| !has_left)))
    }

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
            match out.memory {
                Lent::Block(block, lent) => {
                    self.extents.as_mut().expect("a block is out").free(block);
                    self.views -= lent.len();
                }
                Lent::View { .. } => self.views -= 1,
            }
        }
    }
}

fn span_of(block: &Block, len: usize) -> Span {
    Span { offset: block.offset() as u64, len: len as u64 }
}

impl Pool for ReceiveArea {
    fn shares(&self, payload: &Payload) -> bool {
        if payload.len() < VIEW_BYTES_MIN {
            return false;
        }
        let is_own_users = arena_of(payload).is_some_and(|(_, shown)| Some(shown.uid) == self.viewer);
        let shares = is_own_users && self.books.borrow().views < VIEWS_MAX;
        self.views_refused.set(self.views_refused.get() + u64::from(!shares));
        shares
    }

    fn place_of_table(&self, rows: &Payload, locks: Option<&Payload>) -> Option<Place> {
        let (arena, Shown { number, .. }) = arena_of(rows).filter(|(_, shown)| Some(shown.uid) == self.viewer)?;
        let locks = match locks {
            None => Span::default(),
            Some(locks) => arena_of(locks).filter(|(_, shown)| shown.number == number)?.0.span_of(locks),
        };
        Some(Place { arena: number, rows: arena.span_of(rows), locks })
    }

    fn allocate_lending(&self, len: usize, lent: Vec<Payload>) -> Result<Buffer, Error> {
        if self.books.borrow().views + lent.len() > VIEWS_MAX {
            self.views_refused.set(self.views_refused.get() + lent.len() as u64);
            return Err(Error::full("views of a client", format!("at most {VIEWS_MAX} are possible")));
        }
        let buffer = self.allocate_block(len)?;
        let token = self.token_of(&buffer).expect("it was just allocated here");
        let mut books = self.books.borrow_mut();
        let leases = lent.into_iter().filter_map(|payload| books.lease(payload)).collect();
        let out = books.out.get_mut(Handle::from_bits(token)).expect("a lent buffer's block is out");
        let Lent::Block(_, lent) = &mut out.memory else { unreachable!("no buffer of this area lies over a view") };
        *lent = leases;
        drop(books);
        Ok(buffer)
    }

    fn allocate(&self, len: usize) -> Result<Buffer, Error> {
        if len <= INLINE_BYTES_MAX {
            // It travels in the ring, and is in no shared memory until then.
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
        ReceiveArea::new(SharedMemory::create("test", BYTES).unwrap().0, None)
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
        let (memory, _descriptor) = SharedMemory::create("test", BYTES).unwrap();
        let arena = ClientArena::new(memory, None);
        let span = Span { offset: 8, len: 100 };
        let buffers = [arena.payload(1, span).unwrap(), arena.destination(2, span).unwrap(), whole(&area()).unwrap()];
        assert!(buffers.iter().all(|buffer| buffer.memory() == sealane_runtime::MemoryKind::Foreign));
        // One span given as source and destination is copied onto itself.
        let [from, mut to, _] = buffers;
        to.volatile_mut().copy_from(from.volatile());
    }

    #[test]
    fn a_client_has_only_so_many_views() {
        let (memory, _descriptor) = SharedMemory::create("test", VIEW_BYTES_MIN as u64).unwrap();
        let arena = ClientArena::new(memory, Some(Shown { number: 7, uid: 1 }));
        let of_len = |len| {
            let part = arena.destination(1, Span { offset: 0, len }).unwrap();
            Payload::from(part).into_shared()
        };
        let payload = of_len(VIEW_BYTES_MIN as u64);
        let area = ReceiveArea::new(SharedMemory::create("test", BYTES).unwrap().0, Some(1));
        assert!(!area.shares(&of_len(VIEW_BYTES_MIN as u64 - 1)), "it is small");
        assert!(!area.shares(&Payload::from(vec![0; VIEW_BYTES_MIN]).into_shared()), "it is no client's");
        assert_eq!(area.count_views(), (0, 1));
        let views: Vec<_> = (0..VIEWS_MAX).map(|_| area.lend_view(&payload).unwrap()).collect();
        assert!(!area.shares(&payload));
        let (number, span, token) = views[3];
        assert_eq!((number, span), (7, Span { offset: 0, len: VIEW_BYTES_MIN as u64 }));
        area.free(token);
        area.free(token);
        assert!(area.shares(&payload));
        assert_eq!(area.count_views(), (VIEWS_MAX as u64 - 1, 2));
        // The client that owns the memory goes first, then the client that views it.
        drop(payload);
        assert!(!arena.is_unused() && area.forget_arena(7) && !area.forget_arena(7));
        assert!(arena.is_unused());
        area.free(views[4].2);
        area.end_views();
        assert_eq!(area.count_views(), (0, 2));
    }

    #[test]
    fn tables_stay_where_they_are_as_long_as_the_client_has_the_answer_that_says_so() {
        let arena = |number, uid| {
            let (memory, _descriptor) = SharedMemory::create("test", BYTES).unwrap();
            ClientArena::new(memory, Some(Shown { number, uid }))
        };
        let part = |of: &ClientArena, offset, len| {
            Payload::from(of.destination(1, Span { offset, len }).unwrap()).into_shared()
        };
        let (own, others) = (arena(7, 1), arena(8, 2));
        let area = ReceiveArea::new(SharedMemory::create("test", BYTES).unwrap().0, Some(1));
        let (rows, locks) = (part(&own, 64, 6400), part(&own, 8192, 512));
        let place = area.place_of_table(&rows, Some(&locks)).unwrap();
        let at = |offset, len| Span { offset, len };
        assert_eq!(place, Place { arena: 7, rows: at(64, 6400), locks: at(8192, 512) });
        assert_eq!(area.place_of_table(&rows, None).unwrap().locks, Span::default());
        // Memory of another user, or partly elsewhere.
        let heap = Payload::from(vec![0; 6400]).into_shared();
        assert_eq!(area.place_of_table(&part(&others, 64, 6400), None), None);
        assert_eq!(area.place_of_table(&rows, Some(&part(&others, 0, 512))), None);
        assert_eq!(area.place_of_table(&rows, Some(&heap)), None);
        assert_eq!(area.place_of_table(&heap, None), None);
        let many = std::iter::repeat_with(|| rows.share());
        assert!(area.allocate_lending(100, many.take(VIEWS_MAX + 1).collect()).is_err());
        assert_eq!(area.count_views(), (0, VIEWS_MAX as u64 + 1));

        let answers = [(); 3].map(|()| area.allocate_lending(100, vec![rows.share(), locks.share()]).unwrap());
        drop((rows, locks));
        let tokens = answers.each_ref().map(|answer| area.place_of(answer).unwrap().1);
        assert!(tokens.iter().all(|&token| area.lends_by(token)) && !area.lends_by(tokens[0] ^ 1 << 40));
        answers.into_iter().for_each(|answer| area.hand_over(answer));
        assert_eq!((area.count_views().0, own.is_unused()), (6, false));
        area.free(tokens[0]);
        area.free(tokens[0]);
        assert_eq!((area.count_views().0, own.is_unused()), (4, false));
        // First the owner goes, whose memory is then unused; then the reader.
        assert!(area.forget_arena(7) && own.is_unused());
        area.free(tokens[1]);
        assert_eq!(area.count_views().0, 2);
        area.end_views();
        area.free(tokens[2]);
        assert_eq!(area.count_views().0, 0);
    }

    #[test]
    fn a_block_is_free_when_neither_side_has_it() {
        let area = area();
        let buffer = whole(&area).unwrap();
        let (_, token) = area.place_of(&buffer).unwrap();
        // The client was not told of the block, so its free is ignored.
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
