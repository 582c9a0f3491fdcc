//! The queues that this task accepts from: tensors that the shards have delivered and nobody has taken, and the credit for
//! more. Under the attachment's lock; bounded by the credit, which is renewed as tensors are taken.
//!
//! An acceptor outlives the link: its queue is opened again with a new daemon, and tensors delivered before stay. Tensors that
//! it has not taken when it is dropped wait here for the queue's next acceptor, and count against its window.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use hashbrown::{HashMap, HashSet};
use sealane_runtime::Buffer;
use sealane_transport::{
    Code, Error, Tensor,
    shm::{Submission, limits::QUEUES_MAX},
};

use super::{
    Attachment, Held, Line, State,
    aftermath::Aftermath,
    calls::{Calls, Fault},
    link::{Grant, Link, Unsubmitted},
    memory::Memory,
    submit::{WHILE_IT_READS, down, table_full},
};
use crate::{
    acceptor::{AcceptOptions, Accepted},
    clock::Tick,
    limits::{ACCEPT_AREA_SHARE, ACCEPT_WINDOW_TENSORS, PUSHERS_MAX},
};

/// The acceptors of one attachment.
#[derive(Default)]
pub(super) struct Acceptors {
    open: HashMap<u32, Inbox>,
    /// Closed queues, by number: the shards hand over more until they have heard of it.
    closing: HashMap<u32, Closing>,
    /// Tensors handed over and not taken, by queue: for the next acceptor.
    left: HashMap<Box<str>, VecDeque<Item>>,
    last: u32,
    /// Names of pushers, which many tensors share.
    names: HashSet<Arc<str>>,
}

/// One acceptor.
struct Inbox {
    name: Box<str>,
    options: AcceptOptions,
    /// The link with which its queue is open.
    serial: Option<u64>,
    /// By segment.
    windows: Vec<Window>,
    items: VecDeque<Item>,
    /// Calls that end when there is something to look at.
    watches: Vec<u32>,
    /// Why the daemon does not open it.
    refused: Option<Error>,
}

struct Closing {
    name: Box<str>,
    serial: u64,
    /// By segment; `None` where the queue is closed.
    windows: Vec<Option<Window>>,
}

struct Item {
    /// The link whose window it counts against, if any.
    serial: Option<u64>,
    segment: u16,
    accepted: Accepted,
}

#[derive(Debug, Clone, Copy, Default)]
struct Amount {
    tensors: u32,
    bytes: i64,
}

/// What one shard may hand over.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    whole: Amount,
    /// Granted and not used; the bytes are negative after a large tensor.
    credit: Amount,
    /// Taken, and not granted again.
    owed: Amount,
}

impl Amount {
    fn add(&mut self, tensors: u32, bytes: i64) {
        self.tensors += tensors;
        self.bytes += bytes;
    }
}

impl Window {
    /// A window for one shard of a queue, and how much more may wait at the shard.
    fn of(options: &AcceptOptions, segments: u16, area_bytes: u64) -> (Window, Amount) {
        let share = |sum: usize| (sum / usize::from(segments)).max(1);
        let (tensors, bytes) = (share(options.tensors_max), share(options.bytes_max));
        let area_bytes = usize::try_from(area_bytes / ACCEPT_AREA_SHARE).unwrap_or(usize::MAX);
        let here = (tensors.div_ceil(2).min(ACCEPT_WINDOW_TENSORS), bytes.div_ceil(2).min(area_bytes.max(1)));
        let there = ((tensors - here.0).max(1), (bytes - here.1).max(1));
        let amount = |(tensors, bytes): (usize, usize)| Amount {
            tensors: u32::try_from(tensors).unwrap_or(u32::MAX),
            bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
        };
        (Window { whole: amount(here), ..Window::default() }, amount(there))
    }

    /// Counts a tensor against the credit; false if there is none.
    fn spend(&mut self, bytes: usize) -> bool {
        let has_credit = self.credit.tensors > 0 && self.credit.bytes > 0;
        if has_credit {
            self.credit.tensors -= 1;
            self.credit.bytes -= bytes as i64;
        }
        has_credit
    }

    /// Credit to be granted again, in large parts.
    fn due(&mut self) -> Option<Amount> {
        let Window { whole, owed, .. } = *self;
        if 2 * owed.tensors < whole.tensors && 2 * owed.bytes < whole.bytes {
            return None;
        }
        self.owed = Amount::default();
        self.credit.add(owed.tensors, owed.bytes);
        Some(owed)
    }
}

impl Inbox {
    /// Windows for the shards of a new link, and how much more may wait there. Tensors here from that link count against them.
    fn windows(&mut self, serial: u64, areas: &[u64]) -> Vec<(Window, Amount)> {
        let segments = areas.len() as u16;
        let window = |area_bytes: &u64| {
            let (window, there) = Window::of(&self.options, segments, *area_bytes);
            (Window { credit: window.whole, ..window }, there)
        };
        let mut windows: Vec<_> = areas.iter().map(window).collect();
        for item in &mut self.items {
            item.serial = item.serial.filter(|of| *of == serial);
            let Some((window, _)) = windows.get_mut(usize::from(item.segment)) else { continue };
            if item.serial.is_some() && !window.spend(item.accepted.tensor.bytes().len()) {
                item.serial = None;
            }
        }
        windows.iter_mut().for_each(|(window, _)| window.credit.bytes = window.credit.bytes.max(0));
        windows
    }

    /// Wakes those who watch: something is there, or the daemon has refused the queue.
    fn tell(&mut self, calls: &mut Calls, after: &mut Aftermath) {
        self.watches.drain(..).for_each(|watch| calls.noticed(watch, after));
    }
}

impl Acceptors {
    /// Takes in a tensor that a shard hands over.
    pub(super) fn accepted(
        &mut self,
        (serial, segment, queue): (u64, u16, u32),
        from: &str,
        (meta, memory): (&[u8], Buffer),
        calls: &mut Calls,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        let Some(window) = self.window((serial, segment, queue)) else {
            after.spent.push(Memory::Destination(memory.into()));
            return Err("it delivered a tensor for a queue that is not open");
        };
        if !window.spend(memory.len()) {
            after.spent.push(Memory::Destination(memory.into()));
            return Err("it delivered more to a queue than its credit allows");
        }
        let Ok(tensor) = Tensor::from_wire(meta, memory) else {
            return Err("a pushed tensor has invalid metadata");
        };
        let from = match self.names.get(from) {
            Some(known) => known.clone(),
            None => {
                if self.names.len() >= PUSHERS_MAX {
                    self.names.clear();
                }
                let name: Arc<str> = from.into();
                self.names.insert(name.clone());
                name
            }
        };
        let item = Item { serial: Some(serial), segment, accepted: Accepted { from, tensor } };
        match self.closing.get(&queue) {
            Some(closing) if closing.serial == serial => {
                let name = closing.name.clone();
                self.leave(name, [item], calls, after);
            }
            _ => {
                let inbox = self.open.get_mut(&queue).expect("it has a window");
                inbox.items.push_back(item);
                inbox.tell(calls, after);
            }
        }
        Ok(())
    }

    /// A shard's window for a queue that is open there, or that it has not closed yet.
    #[inline]
    fn window(&mut self, (serial, segment, queue): (u64, u16, u32)) -> Option<&mut Window> {
        let segment = usize::from(segment);
        if let Some(closing) = self.closing.get_mut(&queue).filter(|closing| closing.serial == serial) {
            return closing.windows.get_mut(segment)?.as_mut();
        }
        let inbox = self.open.get_mut(&queue).filter(|inbox| inbox.serial == Some(serial))?;
        inbox.windows.get_mut(segment)
    }

    /// Passes tensors of an acceptor that is gone to the one that has the queue now, or to the next.
    fn leave(
        &mut self,
        name: Box<str>,
        items: impl IntoIterator<Item = Item>,
        calls: &mut Calls,
        after: &mut Aftermath,
    ) {
        let of_that_name = self.open.iter_mut().filter(|(_, inbox)| inbox.name == name);
        let heir = of_that_name.min_by_key(|(number, inbox)| (inbox.refused.is_some(), **number));
        match heir {
            Some((_, inbox)) => {
                // Tensors that were not handed to this open queue itself do not count against its window.
                let opened = inbox.serial;
                let counts = |item: &Item| item.serial != opened;
                inbox.items.extend(
                    items.into_iter().map(|item| Item { serial: item.serial.filter(|_| counts(&item)), ..item }),
                );
                inbox.tell(calls, after);
            }
            None => self.left.entry(name).or_default().extend(items),
        }
    }

    /// Notes that a shard has closed a queue, and hands over nothing more of it.
    pub(super) fn closed(&mut self, serial: u64, segment: u16, queue: u32) -> Result<(), Fault> {
        let closing = self.closing.get_mut(&queue).filter(|closing| closing.serial == serial);
        let window = closing.and_then(|closing| closing.windows.get_mut(usize::from(segment))?.take());
        window.ok_or("it closed a queue that nobody has closed")?;
        self.closing.retain(|_, closing| closing.windows.iter().any(Option::is_some));
        Ok(())
    }

    /// Notes that a shard does not open a queue.
    pub(super) fn unopened(&mut self, serial: u64, queue: u32, error: Error, calls: &mut Calls, after: &mut Aftermath) {
        if let Some(inbox) = self.open.get_mut(&queue).filter(|inbox| inbox.serial == Some(serial)) {
            inbox.refused.get_or_insert(error);
            inbox.tell(calls, after);
        }
    }
}

impl Attachment {
    /// Enters an acceptor and returns its number. Its queue is opened by [`open_queue`](Self::open_queue), or when something is to be
    /// taken. In a forked child it is no acceptor's number, and the child is refused before it is used.
    pub(crate) fn enter_acceptor(&self, name: &str, options: AcceptOptions) -> u32 {
        if self.mark.forked() {
            return 0;
        }
        let mut held = self.lock();
        let acceptors = &mut held.acceptors;
        acceptors.last = acceptors.last.wrapping_add(1);
        let inbox = Inbox {
            name: name.into(),
            options,
            serial: None,
            windows: Vec::new(),
            items: acceptors.left.remove(name).unwrap_or_default(),
            watches: Vec::new(),
            refused: None,
        };
        let number = acceptors.last;
        acceptors.open.insert(number, inbox);
        number
    }

    /// Opens the queue of an acceptor, if this daemon does not know it.
    ///
    /// # Errors
    /// ResourceExhausted if there are too many queues, Unavailable if there is no daemon.
    pub(crate) fn open_queue(&self, number: u32) -> Result<(), Error> {
        // Callers that accept wait for a restart.
        self.up(Tick::now(), Some(Duration::ZERO))?.open_queue(number)
    }

    /// Takes what was handed over, at most `most` tensors; waits for a daemon that is being restarted, for at most `timeout`.
    ///
    /// # Errors
    /// Why nothing will come.
    pub(crate) fn accept(
        &self,
        number: u32,
        most: usize,
        into: &mut Vec<Accepted>,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        self.check_fork()?;
        let mut held = self.lock();
        if held.inbox(number).items.is_empty() {
            let now = Tick::now();
            held.check_life(now);
            // A daemon that drains still hands over what was pushed.
            if !held.is_open(number) {
                drop(held);
                held = match self.up(now, timeout) {
                    Ok(held) => held,
                    Err(error) if error.code() == Code::Unavailable && self.awaits_restart() => return Ok(0),
                    Err(error) => return Err(error),
                };
                held.open_queue(number)?;
            }
            held.pump();
        }
        let count = held.take_accepted(number, most, into);
        if count > 0 || most == 0 {
            return Ok(count);
        }
        match (held.inbox(number).refused.clone(), &held.line) {
            (Some(error), _) => Err(error),
            (None, Line::Up(_)) => Ok(0),
            (None, _) if held.awaits_restart() => Ok(0),
            (None, line) => Err(down(line)),
        }
    }

    /// [`poll_daemon`](Self::poll_daemon), but ready if there may be something to take before.
    pub(crate) fn poll_queue(&self, number: u32, waker: &Waker) -> Poll<()> {
        if self.check_fork().is_err() {
            return Poll::Ready(());
        }
        let mut held = self.lock();
        let is_open = !held.inbox(number).items.is_empty() || held.is_open(number);
        if is_open { Poll::Ready(()) } else { held.poll_daemon(waker) }
    }

    /// A call that ends when there is something to look at, at the latest some time after `deadline`; `None` if there is now.
    ///
    /// # Errors
    /// ResourceExhausted if there are too many calls.
    pub(crate) fn watch(&self, number: u32, deadline: Tick) -> Result<Option<u32>, Error> {
        let mut held = self.lock();
        if !held.is_quiet(number) {
            return Ok(None);
        }
        let watch = held.calls.watch(deadline).ok_or_else(table_full)?;
        held.inbox(number).watches.push(watch);
        Ok(Some(watch))
    }

    /// True if a queue is open with the daemon as it is now.
    pub(crate) fn is_open(&self, number: u32) -> bool {
        self.lock().is_open(number)
    }

    /// Ends a watch that is not needed any more.
    pub(crate) fn unwatch(&self, number: u32, watch: u32) {
        if self.abandon_if_forked() {
            return;
        }
        let mut held = self.lock();
        let State { calls, acceptors, aftermath, .. } = &mut *held;
        let _nothing_of_the_daemon = calls.forsake(watch, false, aftermath);
        if let Some(inbox) = acceptors.open.get_mut(&number) {
            inbox.watches.retain(|other| *other != watch);
        }
    }

    /// Closes an acceptor; what it has not taken goes to the next one.
    pub(crate) fn close_acceptor(&self, number: u32) {
        if self.abandon_if_forked() {
            return;
        }
        let mut held = self.lock();
        let State { acceptors, calls, aftermath, .. } = &mut *held;
        let Some(Inbox { name, items, serial, windows, .. }) = acceptors.open.remove(&number) else { return };
        if !items.is_empty() {
            acceptors.leave(name.clone(), items, calls, aftermath);
        }
        if let Some(serial) = serial {
            held.close_queue(number, Closing { name, serial, windows: windows.into_iter().map(Some).collect() });
        }
    }
}

impl Held<'_> {
    fn inbox(&mut self, number: u32) -> &mut Inbox {
        self.acceptors.open.get_mut(&number).expect("open as long as its acceptor")
    }

    /// Opens the queue of an acceptor at every shard, if this link does not know it.
    fn open_queue(&mut self, number: u32) -> Result<(), Error> {
        let Line::Up(link) = &self.line else { return Err(down(&self.line)) };
        let (serial, segments) = (link.serial, link.segments());
        let areas: Vec<u64> = (0..segments).map(|segment| link.area_bytes(segment)).collect();
        let is_closing = self.acceptors.closing.get(&number).is_some_and(|closing| closing.serial == serial);
        let inbox = self.inbox(number);
        if inbox.serial == Some(serial) || inbox.refused.is_some() {
            return Ok(());
        }
        if is_closing {
            let reason = "the queue could be opened only in part, and the daemon has not closed that part yet";
            return Err(Error::full("submission ring", reason));
        }
        let windows = inbox.windows(serial, &areas);
        inbox.serial = Some(serial);
        inbox.windows = windows.iter().map(|(window, _)| *window).collect();
        let name = inbox.name.clone();
        let mut opened = 0;
        let told = (0..segments).zip(windows).try_for_each(|(segment, (window, there))| {
            let (tensors_max, bytes_max) = (there.tensors, there.bytes as u64);
            let opening = Submission::OpenQueue { queue: number, tensors_max, bytes_max, name: &name };
            self.submit(WHILE_IT_READS, |link| link.open_queue(segment, &opening))?;
            opened += 1;
            let Amount { tensors, bytes } = window.credit;
            let granting = Submission::Grant { queue: number, tensors, bytes: bytes as u64 };
            self.submit(WHILE_IT_READS, |link| link.submit(segment, &granting)).map(drop)
        });
        if told.is_err() {
            let State { acceptors, calls, aftermath, .. } = &mut **self;
            let inbox = acceptors.open.get_mut(&number).expect("open as long as its acceptor");
            // While this one waited for room, another may have opened it with the next link.
            if inbox.serial == Some(serial) {
                inbox.serial = None;
                // Others took it for open, and wait for tensors.
                inbox.tell(calls, aftermath);
                let windows = inbox.windows.iter().take(opened).copied().map(Some).collect();
                self.close_queue(number, Closing { name, serial, windows });
            }
        }
        self.submitted(2 * usize::from(segments));
        told
    }

    /// Closes a queue with the shards where it is open, if the link that it was opened on is up.
    fn close_queue(&mut self, number: u32, closing: Closing) {
        let State { line: Line::Up(link), acceptors, .. } = &mut **self else { return };
        if link.serial != closing.serial || closing.windows.is_empty() {
            return;
        }
        (0..closing.windows.len() as u16).for_each(|segment| link.close_queue(segment, number));
        // Former links have nothing more to say.
        acceptors.closing.retain(|_, other| other.serial == closing.serial);
        acceptors.closing.insert(number, closing);
        let closed = link.flush();
        link.ring();
        if let Err(fault) = closed {
            self.lose(&fault);
        }
    }

    fn is_open(&mut self, number: u32) -> bool {
        let Line::Up(link) = &self.line else { return false };
        let serial = link.serial;
        self.inbox(number).serial == Some(serial)
    }

    fn is_quiet(&mut self, number: u32) -> bool {
        let is_open = self.is_open(number);
        let inbox = self.inbox(number);
        is_open && inbox.items.is_empty() && inbox.refused.is_none()
    }

    /// Takes tensors, and lets the shards hand over as many again.
    fn take_accepted(&mut self, number: u32, most: usize, into: &mut Vec<Accepted>) -> usize {
        let State { acceptors, line, .. } = &mut **self;
        let inbox = acceptors.open.get_mut(&number).expect("open as long as its acceptor");
        let count = inbox.items.len().min(most);
        for Item { serial, segment, accepted } in inbox.items.drain(..count) {
            // What a former daemon handed over, or was handed late to a former acceptor, is no credit of this window.
            if serial.is_some() && inbox.serial == serial {
                inbox.windows[usize::from(segment)].owed.add(1, accepted.tensor.bytes().len() as i64);
            }
            into.push(accepted);
        }
        if let Line::Up(link) = line
            && inbox.serial == Some(link.serial)
        {
            for (segment, window) in (0..).zip(&mut inbox.windows) {
                if let Some(Amount { tensors, bytes }) = window.due() {
                    link.grant(segment, Grant { queue: number, tensors, bytes: bytes as u64 });
                }
            }
        }
        self.chores();
        count
    }
}

impl Link {
    /// Submits the opening of a queue behind what waits, if one more queue is allowed.
    fn open_queue(&mut self, segment: u16, opening: &Submission<'_>) -> Result<(), Unsubmitted> {
        // Queues of other acceptors are closed first: one may have this name, and closed ones do not count.
        self.flush_segment(segment)?;
        if *self.queues_of(segment) >= QUEUES_MAX {
            let reason = format!("{QUEUES_MAX} queues are open with one shard, which is the maximum");
            return Err(Unsubmitted::Refused(Error::full("client queues", reason)));
        }
        self.submit(segment, opening)?;
        *self.queues_of(segment) += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_split_between_its_shards_and_this_side() {
        let options = AcceptOptions { tensors_max: 100, bytes_max: 1000 };
        let (window, there) = Window::of(&options, 2, 1 << 20);
        assert_eq!((window.whole.tensors, there.tensors), (25, 25));
        assert_eq!((window.whole.bytes, there.bytes), (250, 250));
        for (tensors_max, bytes_max) in [(0, 0), (1, 1), (usize::MAX, usize::MAX)] {
            let (window, there) = Window::of(&AcceptOptions { tensors_max, bytes_max }, 3, 1 << 20);
            assert!(window.whole.tensors > 0 && window.whole.bytes > 0 && there.tensors > 0 && there.bytes > 0);
            assert!(window.whole.tensors as usize <= ACCEPT_WINDOW_TENSORS);
            assert!(window.whole.bytes as u64 <= (1 << 20) / ACCEPT_AREA_SHARE);
        }
    }

    #[test]
    fn what_came_late_for_an_acceptor_fills_the_window_of_the_next() {
        use sealane_transport::tensor::{DType, TensorMeta};
        let (serial, meta) = (7, TensorMeta::new(DType::U8, &[8]).unwrap());
        let options = AcceptOptions { tensors_max: 8, bytes_max: 1 << 20 };
        let inbox = |items| Inbox {
            name: "queue".into(),
            options,
            serial: None,
            windows: Vec::new(),
            items,
            watches: Vec::new(),
            refused: None,
        };
        let (mut acceptors, mut calls, mut after) = (Acceptors::default(), Calls::default(), Aftermath::default());
        let windows = inbox(VecDeque::new()).windows(serial, &[1 << 20]);
        let whole = windows[0].0.credit.tensors;
        let windows = windows.into_iter().map(|(window, _)| Some(window)).collect();
        acceptors.closing.insert(1, Closing { name: "queue".into(), serial, windows });
        let came = (meta.as_wire(), Buffer::from_vec(vec![1; 8]));
        acceptors.accepted((serial, 0, 1), "worker:1", came, &mut calls, &mut after).unwrap();
        let mut next = inbox(acceptors.left.remove("queue").unwrap());
        assert_eq!(next.windows(serial, &[1 << 20])[0].0.credit.tensors, whole - 1);
    }

    #[test]
    fn credit_is_granted_again_in_large_parts() {
        let (mut window, _) = Window::of(&AcceptOptions { tensors_max: 20, bytes_max: 2000 }, 1, 1 << 20);
        window.owed.add(4, 100);
        assert!(window.due().is_none());
        window.owed.add(1, 100);
        assert_eq!(window.due().map(|due| (due.tensors, due.bytes)), Some((5, 200)));
        window.owed.add(1, 5000);
        assert!(window.due().is_some() && window.due().is_none());
        let (mut narrow, _) = Window::of(&AcceptOptions { tensors_max: 1, bytes_max: 1 }, 1, 1 << 20);
        assert!(narrow.due().is_none());
        narrow.owed.add(1, 0);
        assert!(narrow.due().is_some());
    }
}
