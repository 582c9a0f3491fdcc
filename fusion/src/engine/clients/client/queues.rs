//! The queues that one client accepts from on one shard, and its pushes into queues of others.
//!
//! The node fills a queue; its tensors are passed to the client as its credit allows, so a client that takes nothing applies
//! back-pressure to its pushers. Only queues that may have something are looked at, one after the other. Bounded by
//! `QUEUES_MAX`, `QUEUED_TENSORS_MAX`, a share of the receive area for each queue, and the credit.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Instant;
use std::vec;

use hashbrown::HashMap;
use sealane_transport::Error;
use sealane_transport::shm::limits::{
    QUEUE_AREA_SHARE, QUEUE_CREDIT_BYTES_MAX, QUEUE_CREDIT_TENSORS_MAX, QUEUED_TENSORS_MAX, QUEUES_MAX,
};
use sealane_transport::shm::{PayloadAt, Record};

use super::answers::Answer;
use super::{Client, Misconduct, lender, name};
use crate::limits::{HANDED_AT_ONCE, HANDED_PER_TURN};
use crate::node::{ClientCall, Node, PushRequest, SendWaiter};
use crate::queue::{AcceptOptions, AcceptQueue, Accepted};

#[derive(Default)]
pub(super) struct Queues {
    open: HashMap<u32, Seat>,
    /// Tensors that may wait in all open queues together.
    tensors_max: usize,
    /// Closed queues in which tensors wait for the next queue of that name, and how many.
    left: HashMap<Box<str>, usize>,
    /// The sum of `left`.
    left_tensors: usize,
    ready: Ready,
    /// Tensors taken out of queues that the client was not handed yet.
    in_hand: usize,
}

/// Queues that may have something for the client: they were given credit, were filled after they had been found empty, or had more
/// than was handed over.
#[derive(Default, Clone)]
struct Ready(Arc<Mutex<VecDeque<u32>>>);

impl Ready {
    fn lock(&self) -> MutexGuard<'_, VecDeque<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue's entry among the ready ones. It is woken when a queue that was found empty is filled.
struct Entry {
    number: u32,
    ready: Ready,
    is_in: AtomicBool,
}

impl Entry {
    fn enter(&self) {
        if !self.is_in.swap(true, Ordering::Relaxed) {
            self.ready.lock().push_back(self.number);
        }
    }
}

impl Wake for Entry {
    fn wake(self: Arc<Self>) {
        self.enter();
    }
}

/// What a queue may still have after some of its tensors were handed over.
enum Rest {
    /// Nothing, or there is no credit.
    Nothing,
    Something,
    /// A tensor for which there is no memory.
    Stuck,
}

struct Seat {
    name: Box<str>,
    tensors_max: usize,
    /// `None` if it could not be opened.
    queue: Option<Arc<AcceptQueue>>,
    /// Set when there is room again for pushers that wait for it.
    has_room: Arc<AtomicBool>,
    credit: Credit,
    /// Tensors taken out of the queue and not handed over yet.
    batch: vec::IntoIter<Accepted>,
    /// The next of them, if there was no memory for it.
    stuck: Option<Accepted>,
    entry: Arc<Entry>,
    /// Of `entry`.
    waker: Waker,
}

/// How much may be handed over.
#[derive(Default)]
struct Credit {
    tensors: u32,
    /// Negative after a tensor that was larger than what was left.
    bytes: i64,
}

impl Credit {
    fn is_left(&self) -> bool {
        self.tensors > 0 && self.bytes > 0
    }

    fn grant(&mut self, tensors: u32, bytes: u64) -> Option<()> {
        let tensors = self.tensors.checked_add(tensors).filter(|tensors| *tensors <= QUEUE_CREDIT_TENSORS_MAX)?;
        let bytes = i64::try_from(bytes).ok().and_then(|bytes| self.bytes.checked_add(bytes));
        let bytes = bytes.filter(|bytes| *bytes <= QUEUE_CREDIT_BYTES_MAX as i64)?;
        *self = Credit { tensors, bytes };
        Some(())
    }

    fn spend(&mut self, bytes: usize) {
        self.tensors -= 1;
        self.bytes -= bytes as i64;
    }
}

impl Seat {
    fn new((number, name): (u32, &str), tensors_max: usize, bytes_max: u64, ready: Ready) -> Seat {
        let has_room = Arc::new(AtomicBool::new(false));
        let flag = has_room.clone();
        let options = AcceptOptions { tensors_max, bytes_max: bytes_max as usize };
        let entry = Arc::new(Entry { number, ready, is_in: AtomicBool::new(false) });
        let queue = AcceptQueue::new(options, Box::new(move || flag.store(true, Ordering::Relaxed)));
        Seat {
            name: name.into(),
            tensors_max,
            queue: Some(Arc::new(queue)),
            has_room,
            credit: Credit::default(),
            batch: Vec::new().into_iter(),
            stuck: None,
            waker: entry.clone().into(),
            entry,
        }
    }

    fn in_hand(&self) -> usize {
        self.batch.len() + usize::from(self.stuck.is_some())
    }

    /// The next tensor, if there is credit for one.
    fn next(&mut self) -> Option<Accepted> {
        #[cfg(test)]
        crate::engine::clients::tests::look_at_queue();
        if !self.credit.is_left() {
            return None;
        }
        if let Some(next) = self.stuck.take().or_else(|| self.batch.next()) {
            return Some(next);
        }
        let mut batch = Vec::new();
        // Only its seat closes the queue, or an engine that stops.
        let most = HANDED_AT_ONCE.min(self.credit.tensors as usize);
        let _ = self.queue.as_ref()?.poll_take(most, &mut batch, &Context::from_waker(&self.waker));
        self.batch = batch.into_iter();
        self.batch.next()
    }

    /// Closes the queue. What the client was not handed waits for the next queue of that name; returns how much.
    fn close(self, node: &mut Node, task: u16) -> usize {
        let Some(queue) = &self.queue else { return 0 };
        let shard = node.settings().shard;
        queue.put_back(shard, self.stuck.into_iter().chain(self.batch));
        node.close_queue(task, &self.name, queue);
        queue.count_of(shard)
    }
}

impl Queues {
    fn get(&mut self, queue: u32) -> Result<&mut Seat, Misconduct> {
        self.open.get_mut(&queue).ok_or_else(|| Misconduct(format!("queue {queue} is not open")))
    }

    /// Checks whether a queue of that name may hold so many more tensors.
    fn check(&self, name: &str, tensors_max: usize) -> Result<(), Error> {
        let sum = self.tensors_max + self.left_tensors + tensors_max;
        if sum > QUEUED_TENSORS_MAX {
            let reason = format!("{sum} tensors could wait on one core, at most {QUEUED_TENSORS_MAX} may");
            return Err(Error::full("client queues", reason));
        }
        let queues = self.open.len() + self.left.len();
        if queues >= QUEUES_MAX && !self.left.contains_key(name) {
            let reason = format!("{queues} queues are open or have unaccepted tensors, at most {QUEUES_MAX} may");
            return Err(Error::full("client queues", reason));
        }
        Ok(())
    }

    pub(super) fn grant(&mut self, queue: u32, tensors: u32, bytes: u64) -> Result<(), Misconduct> {
        let seat = self.get(queue)?;
        let granted = seat.credit.grant(tensors, bytes);
        seat.entry.enter();
        granted.ok_or_else(|| Misconduct(format!("queue {queue} is given more credit than allowed")))
    }

    fn next_ready(&mut self) -> Option<u32> {
        self.ready.lock().pop_front()
    }

    pub(super) fn close(&mut self, node: &mut Node, task: u16, queue: u32) -> Result<(), Misconduct> {
        self.get(queue)?;
        if let Some(seat) = self.open.remove(&queue) {
            self.tensors_max -= seat.tensors_max;
            self.in_hand -= seat.in_hand();
            let name = seat.name.clone();
            let left = seat.close(node, task);
            // Another queue may get its number.
            self.ready.lock().retain(|ready| *ready != queue);
            if left > 0 {
                self.left.insert(name, left);
                self.left_tensors += left;
            }
        }
        Ok(())
    }

    /// The client goes; the node then also drops what waits for it.
    pub(super) fn close_all(&mut self, node: &mut Node, task: u16) {
        for (_, seat) in self.open.drain() {
            seat.close(node, task);
        }
        self.in_hand = 0;
    }
}

impl Client {
    pub(super) fn open_queue(
        &mut self,
        node: &mut Node,
        queue: u32,
        (tensors_max, bytes_max): (u32, u64),
        name: &str,
    ) -> Result<(), Misconduct> {
        if self.queues.open.len() >= QUEUES_MAX {
            return Err(Misconduct(format!("queue {queue} is one more than {QUEUES_MAX}")));
        }
        if self.queues.open.contains_key(&queue) {
            return Err(Misconduct(format!("queue {queue} is already open")));
        }
        let bytes_max = bytes_max.min(self.area.len() / QUEUE_AREA_SHARE);
        let mut seat = Seat::new((queue, name), tensors_max as usize, bytes_max, self.queues.ready.clone());
        let shared = seat.queue.clone().expect("a new one is open");
        let opened = self.queues.check(name, seat.tensors_max);
        match opened.and_then(|()| node.open_queue(self.task, name, shared)) {
            Ok(()) => self.queues.left_tensors -= self.queues.left.remove(name).unwrap_or(0),
            Err(error) => {
                (seat.queue, seat.tensors_max) = (None, 0);
                self.queues_told.push(Answer::Unopened { queue, error });
            }
        }
        self.queues.tensors_max += seat.tensors_max;
        self.queues.open.insert(queue, seat);
        Ok(())
    }

    /// Hands over what the client has credit for, a part of each queue in turn; returns the work done.
    pub(in crate::engine::clients) fn hand_out(&mut self, node: &mut Node, record: &mut Record) -> usize {
        let mut open = std::mem::take(&mut self.queues.open);
        let (mut work, mut stuck) = (0, Vec::new());
        while work < HANDED_PER_TURN
            && self.can_be_handed()
            && let Some(number) = self.queues.next_ready()
        {
            // Otherwise it was closed meanwhile.
            let Some(seat) = open.get_mut(&number) else { continue };
            seat.entry.is_in.store(false, Ordering::Relaxed);
            let before = seat.in_hand();
            let (handed, rest) = self.hand_from(number, seat, record);
            self.queues.in_hand = self.queues.in_hand + seat.in_hand() - before;
            match rest {
                Rest::Nothing => work += 1,
                Rest::Something => seat.entry.enter(),
                // Tried again in each turn, and no reason for one.
                Rest::Stuck => stuck.push(seat.entry.clone()),
            }
            work += handed;
            if seat.has_room.swap(false, Ordering::Relaxed) {
                node.replenish_named(self.task, &seat.name);
                work += 1;
            }
        }
        stuck.iter().for_each(|entry| entry.enter());
        self.queues.open = open;
        work
    }

    /// False if answers find no room in the ring: what is there is kept, and nothing more is added.
    fn can_be_handed(&self) -> bool {
        !self.closed && !self.is_blocked() && self.backlog.is_empty()
    }

    /// Hands over some tensors of a queue; returns how many.
    fn hand_from(&mut self, queue: u32, seat: &mut Seat, record: &mut Record) -> (usize, Rest) {
        for handed in 0..HANDED_AT_ONCE {
            if !self.can_be_handed() {
                return (handed, Rest::Something);
            }
            let Some(Accepted { from, tensor }) = seat.next() else { return (handed, Rest::Nothing) };
            match self.within_reach(&tensor) {
                Ok(moved) => {
                    seat.credit.spend(tensor.len());
                    let tensor = moved.unwrap_or(tensor);
                    self.count_accepted(&from, tensor.len());
                    self.put(Answer::Accepted { queue, from, tensor }, record);
                }
                // A tensor in another client's memory, if this client has replaced that one. There is room when blocks come back.
                Err(_full) => {
                    seat.stuck = Some(Accepted { from, tensor });
                    return (handed, Rest::Stuck);
                }
            }
        }
        (HANDED_AT_ONCE, Rest::Something)
    }

    /// True if a queue may have something for the client.
    pub(in crate::engine::clients) fn accepts(&self) -> bool {
        !self.queues.open.is_empty() && !self.queues.ready.lock().is_empty()
    }

    /// Answers, and tensors taken out of queues, that the client has not been told of yet.
    pub(in crate::engine::clients) fn untold(&self) -> usize {
        if self.closed {
            return 0;
        }
        self.backlog.len() + self.sent.len() + self.lent_to_peers.len() + self.queues.in_hand
    }

    pub(super) fn push_into(
        &mut self,
        node: &mut Node,
        (call, peer): (u32, u16),
        queue: &str,
        (meta, payload): (&[u8], PayloadAt<'_>),
        deadline: Instant,
        now: Instant,
    ) -> Result<(), Misconduct> {
        let lent = matches!(payload, PayloadAt::Arena(_));
        let pair = self.pair(node, peer)?.and_then(|pair| self.check_calls(pair));
        let tensor = pair.and_then(|pair| Ok((pair, self.tensor_to_publish(call, meta, payload)?)));
        self.counters.count_sent(&tensor.as_ref().map(|(_, tensor)| tensor));
        match tensor {
            Ok((pair, tensor)) => {
                self.traffic_of(peer).sent(1, tensor.len() as u64);
                self.under_way += 1;
                let call = if lent { lender(call) } else { name(call) };
                let waiter = SendWaiter::Client(ClientCall { client: self.handle, call });
                node.push(now, PushRequest { pair, queue, tensors: std::iter::once(tensor), deadline, waiter });
            }
            Err(error) => {
                // The failure itself reports this.
                let _ = lent && self.arena.has_returned(call);
                self.refused.push((call, error));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_bounded_and_a_large_tensor_is_paid_later() {
        let mut credit = Credit::default();
        assert!(!credit.is_left());
        assert!(credit.grant(QUEUE_CREDIT_TENSORS_MAX, QUEUE_CREDIT_BYTES_MAX).is_some());
        for (tensors, bytes) in [(1, 0), (u32::MAX, 0), (0, 1), (0, u64::MAX), (0, i64::MAX as u64)] {
            assert!(credit.grant(tensors, bytes).is_none(), "{tensors} {bytes}");
        }
        let mut credit = Credit::default();
        credit.grant(3, 100).unwrap();
        credit.spend(1000);
        assert!(!credit.is_left() && credit.tensors == 2);
        credit.grant(0, 900).unwrap();
        assert!(!credit.is_left());
        credit.grant(0, 1).unwrap();
        assert!(credit.is_left());
    }

    #[test]
    fn a_queue_gives_what_there_is_credit_for() {
        let ready = Ready::default();
        let mut seat = Seat::new((3, "grads"), 10, 1000, ready.clone());
        let item = || Accepted {
            from: "worker:1".into(),
            tensor: sealane_transport::Tensor::from_elements(&[8], &[1_u8; 8]).unwrap(),
        };
        let shared = seat.queue.clone().unwrap();
        assert!(shared.room().is_some());
        shared.fill(0, &mut (0..10).map(|_| item().into()).collect());
        assert!(seat.next().is_none() && shared.room().is_none());
        seat.credit.grant(6, 1000).unwrap();
        let handed = std::iter::from_fn(|| {
            let next = seat.next()?;
            seat.credit.spend(next.tensor.len());
            Some(next)
        });
        assert_eq!(handed.count(), 6);
        assert!(seat.has_room.load(Ordering::Relaxed));
        // Found empty, it becomes ready when it is filled.
        seat.credit.grant(6, 1000).unwrap();
        while seat.next().is_some() {}
        assert!(ready.lock().is_empty());
        shared.fill(0, &mut vec![item().into(), item().into()]);
        seat.entry.enter();
        assert_eq!(*ready.lock(), [3], "once, however often it is entered");
    }
}
