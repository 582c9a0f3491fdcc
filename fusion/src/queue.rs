//! The queue that tensors are pushed into: bounded, filled by shards, emptied by any thread.
//!
//! Nobody waits for room here: while the queue is full its pushers get no credit, and do not send. One lock, held for a few nanoseconds a
//! tensor. Small tensors that came together stay together until they are taken out one by one.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use sealane_transport::limits::{QUEUE_BYTES_MAX, QUEUE_TENSORS_MAX};
use sealane_transport::tensor::{TensorBatch, TensorView};
use sealane_transport::{Error, Tensor};

/// How much a queue holds, not counting its pushers' credit, which together is at most as much again.
#[derive(Debug, Clone, Copy)]
pub struct AcceptOptions {
    /// Tensors that may wait. Default 4,096.
    pub tensors_max: usize,
    /// Bytes at which the queue is full. Default 256 MiB.
    pub bytes_max: usize,
}

impl Default for AcceptOptions {
    fn default() -> Self {
        Self { tensors_max: QUEUE_TENSORS_MAX, bytes_max: QUEUE_BYTES_MAX }
    }
}

/// A tensor that was pushed.
#[derive(Debug)]
pub struct Accepted {
    pub from: Arc<str>,
    pub tensor: Tensor,
}

/// Tensors that one task pushed and that came together: small ones in the memory of their frame, or one of any size.
#[derive(Debug)]
pub struct AcceptedBatch {
    from: Arc<str>,
    tensors: Tensors,
}

#[derive(Debug)]
enum Tensors {
    One(Tensor),
    Many(TensorBatch),
}

impl AcceptedBatch {
    pub(crate) fn new(from: Arc<str>, tensors: TensorBatch) -> AcceptedBatch {
        AcceptedBatch { from, tensors: Tensors::Many(tensors) }
    }

    pub fn from(&self) -> &Arc<str> {
        &self.from
    }

    /// Number of tensors, at least one.
    pub fn len(&self) -> usize {
        match &self.tensors {
            Tensors::One(_) => 1,
            Tensors::Many(batch) => batch.len(),
        }
    }

    /// Always false: there is at least one tensor.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn bytes(&self) -> usize {
        match &self.tensors {
            Tensors::One(tensor) => tensor.len(),
            Tensors::Many(batch) => batch.payload_bytes(),
        }
    }

    /// The tensors in place, in the order of pushing.
    ///
    /// # Panics
    /// If one lies in a device's memory, which only a pusher of this engine can have put there.
    pub fn iter(&self) -> impl Iterator<Item = TensorView<'_>> {
        let (one, many) = match &self.tensors {
            Tensors::One(tensor) => (Some(TensorView { meta: tensor.meta(), bytes: tensor.bytes() }), None),
            Tensors::Many(batch) => (None, Some(batch.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

impl From<Accepted> for AcceptedBatch {
    fn from(Accepted { from, tensor }: Accepted) -> Self {
        AcceptedBatch { from, tensors: Tensors::One(tensor) }
    }
}

#[derive(Default)]
struct Inner {
    /// What waits, with the shard that brought it.
    items: VecDeque<(u16, AcceptedBatch)>,
    tensors: usize,
    bytes: usize,
    /// A pusher found the queue full.
    starved: bool,
    closed: Option<Error>,
    wakers: Vec<Waker>,
    sleepers: usize,
}

impl Inner {
    fn put(&mut self, shard: u16, batch: AcceptedBatch) {
        self.count(&batch);
        self.items.push_back((shard, batch));
    }

    fn count(&mut self, batch: &AcceptedBatch) {
        (self.tensors, self.bytes) = (self.tensors + batch.len(), self.bytes + batch.bytes());
    }

    /// Uncounts tensors that left the queue.
    fn took(&mut self, tensors: usize, bytes: usize) {
        debug_assert!(bytes <= self.bytes && tensors <= self.tensors, "the queue would be full for ever, or never");
        (self.tensors, self.bytes) = (self.tensors - tensors, self.bytes - bytes);
        let is_empty = (self.tensors, self.bytes) == (0, 0);
        debug_assert!(!self.items.is_empty() || is_empty, "an empty queue would have no room for its pushers");
    }

    fn pop(&mut self) -> Option<Accepted> {
        if let (_, AcceptedBatch { from, tensors: Tensors::Many(batch) }) = self.items.front_mut()? {
            let (from, tensor) = (from.clone(), batch.pop()?);
            if batch.is_empty() {
                self.items.pop_front();
            }
            return Some(Accepted { from, tensor });
        }
        match self.items.pop_front()? {
            (_, AcceptedBatch { from, tensors: Tensors::One(tensor) }) => Some(Accepted { from, tensor }),
            _ => unreachable!("just looked at"),
        }
    }
}

/// The queue between shards and an [`Acceptor`](crate::Acceptor).
pub struct AcceptQueue {
    inner: Mutex<Inner>,
    filled: Condvar,
    options: AcceptOptions,
    /// Called when there is room again for pushers that found it full.
    on_room: Box<dyn Fn() + Send + Sync>,
    /// Tensors are dropped as they arrive, so that the queue is always empty.
    discards: bool,
}

impl AcceptQueue {
    /// An empty queue; `on_room` is called when there is room again for pushers that found it full.
    pub fn new(options: AcceptOptions, on_room: Box<dyn Fn() + Send + Sync>) -> AcceptQueue {
        let options = AcceptOptions { tensors_max: options.tensors_max.max(1), bytes_max: options.bytes_max.max(1) };
        AcceptQueue { inner: Mutex::default(), filled: Condvar::new(), options, on_room, discards: false }
    }

    /// Returns a queue that drops what is pushed into it.
    pub(crate) fn discarding() -> AcceptQueue {
        AcceptQueue { discards: true, ..AcceptQueue::new(AcceptOptions::default(), Box::new(|| ())) }
    }

    pub(crate) fn discards(&self) -> bool {
        self.discards
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tensors that may wait.
    pub(crate) fn capacity(&self) -> usize {
        self.options.tensors_max
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.options.bytes_max
    }

    /// Room for tensors, and for bytes. `None` if it is full; then `on_room` will be called.
    pub(crate) fn room(&self) -> Option<(usize, usize)> {
        let mut inner = self.lock();
        let tensors = self.options.tensors_max.saturating_sub(inner.tensors);
        let bytes = self.options.bytes_max.saturating_sub(inner.bytes);
        let has_room = tensors > 0 && bytes > 0;
        inner.starved |= !has_room;
        has_room.then_some((tensors, bytes))
    }

    /// Adds tensors, even to a closed queue: their pushers have been told that they were taken.
    pub(crate) fn fill(&self, shard: u16, items: &mut Vec<AcceptedBatch>) {
        if self.discards {
            return items.clear();
        }
        let mut inner = self.lock();
        items.drain(..).for_each(|item| inner.put(shard, item));
        let wakers = std::mem::take(&mut inner.wakers);
        let sleepers = inner.sleepers;
        drop(inner);
        if sleepers > 0 {
            self.filled.notify_all();
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Puts back the tensors that were taken out last, in their order, at the front.
    pub(crate) fn put_back(&self, shard: u16, items: impl DoubleEndedIterator<Item = Accepted>) {
        let mut inner = self.lock();
        for item in items.rev() {
            let item = item.into();
            inner.count(&item);
            inner.items.push_front((shard, item));
        }
    }

    /// Takes out what a shard has put in, for its next queue of that name.
    pub(crate) fn take_back(&self, shard: u16) -> Vec<AcceptedBatch> {
        let mut inner = self.lock();
        let all = std::mem::take(&mut inner.items);
        let (mine, others): (VecDeque<_>, _) = all.into_iter().partition(|(by, _)| *by == shard);
        inner.items = others;
        let mine: Vec<_> = mine.into_iter().map(|(_, item)| item).collect();
        inner.took(mine.iter().map(AcceptedBatch::len).sum(), mine.iter().map(AcceptedBatch::bytes).sum());
        mine
    }

    /// Tensors that a shard has put in and that are still in the queue.
    pub(crate) fn count_of(&self, shard: u16) -> usize {
        self.lock().items.iter().filter(|(by, _)| *by == shard).map(|(_, batch)| batch.len()).sum()
    }

    /// Closes the queue: nothing more comes, and waiters get the error; tensors in the queue can still be taken.
    pub fn close(&self, error: Error) {
        let mut inner = self.lock();
        inner.closed.get_or_insert(error);
        let wakers = std::mem::take(&mut inner.wakers);
        drop(inner);
        self.filled.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Like [`close`](Self::close), before anyone waits: `error` replaces any earlier one.
    pub(crate) fn refuse(&self, error: Error) {
        self.lock().closed = Some(error);
    }

    /// Takes up to `most` tensors; returns how many.
    ///
    /// # Errors
    /// The error that the queue was closed with, once it is empty.
    pub fn take(&self, most: usize, into: &mut Vec<Accepted>) -> Result<usize, Error> {
        self.take_from(self.lock(), most, into)
    }

    fn take_from(&self, inner: MutexGuard<'_, Inner>, most: usize, into: &mut Vec<Accepted>) -> Result<usize, Error> {
        let count = inner.tensors.min(most);
        let take = |inner: &mut Inner| {
            let before = into.len();
            into.extend((0..count).map_while(|_| inner.pop()));
            into[before..].iter().map(|item| item.tensor.len()).sum()
        };
        self.take_out(inner, (count, most > 0), take)
    }

    /// Takes all tensors, grouped as they arrived; returns how many.
    ///
    /// # Errors
    /// Those of [`take`](Self::take).
    pub fn take_all(&self, into: &mut Vec<AcceptedBatch>) -> Result<usize, Error> {
        let inner = self.lock();
        let count = inner.tensors;
        let take = |inner: &mut Inner| {
            into.extend(inner.items.drain(..).map(|(_, batch)| batch));
            inner.bytes
        };
        self.take_out(inner, (count, true), take)
    }

    /// Counts `count` tensors out of the queue: `take` takes them, and returns their bytes.
    fn take_out(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        (count, is_asked): (usize, bool),
        take: impl FnOnce(&mut Inner) -> usize,
    ) -> Result<usize, Error> {
        if count == 0
            && is_asked
            && let Some(error) = &inner.closed
        {
            return Err(error.clone());
        }
        let bytes = take(&mut inner);
        inner.took(count, bytes);
        // Half of it at once, so that pushers are not told of every single free place.
        let roomy = 2 * inner.tensors <= self.options.tensors_max && 2 * inner.bytes <= self.options.bytes_max;
        let starved = inner.starved && roomy;
        if starved {
            inner.starved = false;
        }
        drop(inner);
        if starved {
            (self.on_room)();
        }
        Ok(count)
    }

    /// Waits until there is a tensor, and takes up to `most`; returns 0 if `deadline` passes.
    pub(crate) fn wait(
        &self,
        most: usize,
        deadline: Option<Instant>,
        into: &mut Vec<Accepted>,
    ) -> Result<usize, Error> {
        let mut inner = self.lock();
        while inner.items.is_empty() && inner.closed.is_none() {
            inner.sleepers += 1;
            inner = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.filled.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.filled.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0,
            };
            inner.sleepers -= 1;
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                break;
            }
        }
        self.take_from(inner, most, into)
    }

    pub(crate) fn poll_take(
        &self,
        most: usize,
        into: &mut Vec<Accepted>,
        context: &Context<'_>,
    ) -> Poll<Result<usize, Error>> {
        match self.poll_filled(context) {
            Poll::Ready(inner) => Poll::Ready(self.take_from(inner, most, into)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Ready when there is a tensor, or the queue is closed.
    fn poll_filled(&self, context: &Context<'_>) -> Poll<MutexGuard<'_, Inner>> {
        let mut inner = self.lock();
        if !inner.items.is_empty() || inner.closed.is_some() {
            return Poll::Ready(inner);
        }
        // A future that is polled repeatedly before it is ready registers one waker.
        if !inner.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            inner.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// An accept in progress: the next tensors, at least one.
#[must_use = "await it to get the tensors"]
pub struct AcceptingMany<'a> {
    pub(crate) queue: &'a AcceptQueue,
    pub(crate) most: usize,
}

impl Future for AcceptingMany<'_> {
    type Output = Result<Vec<Accepted>, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut items = Vec::new();
        self.queue.poll_take(self.most, &mut items, context).map_ok(|_| items)
    }
}

/// An accept of all that is there, in progress: at least one batch.
#[must_use = "await it to get the tensors"]
pub struct AcceptingAll<'a> {
    pub(crate) queue: &'a AcceptQueue,
}

impl Future for AcceptingAll<'_> {
    type Output = Result<Vec<AcceptedBatch>, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(inner) = self.queue.poll_filled(context) else { return Poll::Pending };
        drop(inner);
        let mut batches = Vec::new();
        Poll::Ready(self.queue.take_all(&mut batches).map(|_| batches))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    fn queue(tensors_max: usize, bytes_max: usize) -> (AcceptQueue, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let on_room = Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        (AcceptQueue::new(AcceptOptions { tensors_max, bytes_max }, on_room), calls)
    }

    fn item(bytes: usize) -> AcceptedBatch {
        let tensor = Tensor::from_elements(&[bytes as u64], &vec![1_u8; bytes]).unwrap();
        Accepted { from: "worker:1".into(), tensor }.into()
    }

    #[test]
    fn it_is_full_by_tensors_or_by_bytes_and_says_when_there_is_room() {
        let (queue, calls) = queue(4, 100);
        for (tensors, bytes) in [(4, 1), (1, 100), (2, 300)] {
            let before = calls.load(Ordering::Relaxed);
            assert!(queue.room().is_some());
            queue.fill(0, &mut (0..tensors).map(|_| item(bytes)).collect());
            assert!(queue.room().is_none());
            let mut taken = Vec::new();
            while taken.len() < tensors {
                queue.take(1, &mut taken).unwrap();
            }
            assert_eq!(calls.load(Ordering::Relaxed) - before, 1, "once, although there were {tensors}");
        }
    }

    #[test]
    fn a_shard_takes_back_its_own_in_their_order() {
        let (queue, _) = queue(4, 1000);
        queue.fill(0, &mut vec![item(1), item(2)]);
        queue.fill(1, &mut vec![item(30)]);
        queue.fill(0, &mut vec![item(3)]);
        let mut taken = Vec::new();
        queue.take(2, &mut taken).unwrap();
        queue.put_back(0, taken.into_iter());
        assert_eq!((queue.count_of(0), queue.count_of(1), queue.count_of(2)), (3, 1, 0));
        let lengths = |items: Vec<AcceptedBatch>| items.iter().map(AcceptedBatch::bytes).collect::<Vec<_>>();
        assert_eq!(lengths(queue.take_back(0)), [1, 2, 3]);
        assert_eq!(queue.room(), Some((3, 970)));
        assert_eq!(lengths(queue.take_back(1)), [30]);
        assert_eq!(queue.room(), Some((4, 1000)));
    }

    #[test]
    fn who_asks_often_is_woken_once() {
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let ((queue, _), count) = (queue(4, 100), Arc::new(Count(AtomicUsize::new(0))));
        let waker = Waker::from(count.clone());
        for _ in 0..10 {
            assert!(queue.poll_take(1, &mut Vec::new(), &Context::from_waker(&waker)).is_pending());
        }
        queue.fill(0, &mut vec![item(1)]);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn who_waits_is_woken_by_a_tensor_a_deadline_or_the_end() {
        let (queue, _) = queue(4, 100);
        let mut taken = Vec::new();
        let soon = Some(Instant::now() + Duration::from_millis(1));
        assert_eq!(queue.wait(1, soon, &mut taken).unwrap(), 0);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.wait(9, None, &mut taken).unwrap());
            queue.fill(0, &mut vec![item(1)]);
            assert_eq!(waiting.join().unwrap(), 1);
        });
        queue.fill(0, &mut vec![item(1)]);
        queue.close(Error::invalid("closed by the test"));
        assert_eq!(queue.wait(9, None, &mut Vec::new()).unwrap(), 1, "what is there can be taken");
        assert!(queue.wait(9, None, &mut Vec::new()).is_err());
    }
}
