//! A task's half of a channel: what it sent and is not settled, and what it waits for. Pure: no I/O, no clock, no threads. It writes one ring,
//! reads another, and collects in [`News`] what its caller must do.

use std::task::Waker;

use super::{
    Accepts, BrokenChannel, ChannelMemory, Outgoing, Posting, Sent, Steps, Unsettled, Why,
    consumer::{Arrival, Consumer},
    key::Seed,
    producer::Producer,
    record::{FIXED_WORDS, Kind, bytes_of},
    slots::{Content, State},
};
use crate::ring::Header;

/// What the caller of a half does after each call, without the half's lock where that runs others' code.
#[derive(Debug, Default)]
pub struct News {
    /// To be woken.
    pub wakers: Vec<Waker>,
    /// Recvs that the switch is to be asked for: see [`Half::wanted`].
    pub asks: Vec<u32>,
    /// Adopted names whose tensors have arrived: see [`Half::arrived_for`].
    pub arrived: Vec<u32>,
}

impl News {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.wakers.is_empty() && self.is_served()
    }

    /// True if there is nothing to ask for, and nothing has arrived.
    #[inline]
    pub fn is_served(&self) -> bool {
        self.asks.is_empty() && self.arrived.is_empty()
    }
}

/// How urgently the peer is to be woken, if it sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ring {
    /// Not at all.
    No,
    /// Only if it waits for acknowledgements.
    Settled,
    /// If it waits for anything.
    Written,
    /// Even if nothing there waits for this side: it must answer.
    Urgent,
}

/// The state of a recv.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recv {
    Waiting,
    /// Its tensor is in its slot.
    Done,
    Failed(Why),
    /// It is this call at the switch.
    Moved(u32),
}

/// A recv that the switch is to be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub step: i64,
    pub key: Vec<u8>,
    /// Milliseconds; `u64::MAX` for none.
    pub deadline: u64,
    pub fails_if_gone: bool,
}

/// Why the channel does not take a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is the switch's: the channel has ended, or the step may have, or the tensor is large.
    Switch,
    /// It fails.
    Fails(Why),
}

pub struct Half<M, D> {
    tx: Producer<M>,
    rx: Consumer<M, D>,
    pub news: News,
    /// Steps that this task has ended, and those that the peer has.
    ended: Steps,
    ended_there: Steps,
    /// The peer holds tensors: it is asked for each that a recv waits for.
    peer_holds: bool,
    /// The peer's tensors may go another way without an announcement.
    is_blind: bool,
    /// The peer was told so of this side's tensors.
    has_blinded: bool,
    /// Why the channel has ended.
    end: Option<Why>,
    /// Recvs with a watched waker.
    watched_recvs: usize,
    /// Returns that were written, as the peer was told.
    returns_told: u64,
}

impl<M: ChannelMemory, D: Accepts> Half<M, D> {
    /// The half that writes `outgoing` and reads `incoming`. Both sides begin blind.
    pub fn new(outgoing: M, incoming: M, seed: Seed, ended: Steps) -> Self {
        Half {
            tx: Producer::new(outgoing),
            rx: Consumer::new(incoming, seed),
            news: News::default(),
            ended,
            ended_there: Steps::default(),
            peer_holds: false,
            is_blind: true,
            has_blinded: true,
            end: None,
            watched_recvs: 0,
            returns_told: 0,
        }
    }

    /// True if a tensor of that key is sent through the ring, rather than announced.
    #[inline]
    pub fn is_small(key: &[u8], tensor: &Outgoing<'_>) -> bool {
        Producer::<M>::is_small(key, tensor)
    }

    /// True if the channel has ended.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// True if neither side has ended the step, for certain.
    #[inline]
    fn is_live(&self, step: i64) -> bool {
        let is_quiet = self.ended.is_empty() && self.ended_there.is_empty();
        is_quiet || !self.ended.may_have(step) && !self.ended_there.may_have(step)
    }

    /// Sends a tensor; returns the handle of the send. One that is not [small](Self::is_small) is the switch's.
    ///
    /// # Errors
    /// [`Refusal`].
    #[inline]
    pub fn send(&mut self, name: (i64, &[u8]), tensor: Outgoing<'_>, deadline: u64) -> Result<u64, Refusal> {
        if self.end.is_some() || !self.is_live(name.0) {
            return Err(Refusal::Switch);
        }
        if let Some(handle) = self.tx.send_at_once(name, tensor, deadline, || self.rx.settled_before()) {
            return Ok(handle);
        }
        self.send_late(name, tensor, deadline)
    }

    /// Sends what cannot be sent at once.
    #[cold]
    fn send_late(&mut self, name: (i64, &[u8]), tensor: Outgoing<'_>, deadline: u64) -> Result<u64, Refusal> {
        if !Self::is_small(name.1, &tensor) {
            return Err(Refusal::Switch);
        }
        // Returns that were not read yet keep the producer from reusing its ring. A broken ring is reported by the next drain.
        let _broken = self.take_in();
        let took = self.acknowledgement();
        self.tx.send(name, tensor, deadline, took).map_err(Refusal::Fails)
    }

    /// What is written from now on becomes visible together, with [`end_batch`](Self::end_batch).
    pub fn begin_batch(&mut self) {
        self.tx.begin_batch();
    }

    pub fn end_batch(&mut self) {
        self.tx.end_batch();
    }

    /// Tells the peer which steps this side has ended before there was a channel.
    pub fn tell_ended(&mut self) {
        for (step, reason) in self.ended.iter() {
            self.tx.note_named(Kind::Ended, step, reason.as_bytes());
        }
    }

    /// What became of a send.
    pub fn sent(&mut self, handle: u64) -> Sent {
        self.tx.status(handle)
    }

    /// The step and key of a send that was returned.
    pub fn name_of_returned(&self, handle: u64) -> Option<(i64, &[u8])> {
        self.tx.name_of_returned(handle)
    }

    /// Nobody asks for the outcome of a send any more.
    pub fn forget_send(&mut self, handle: u64) {
        self.tx.forget(handle);
    }

    /// Wakes `waker` when a send has ended; `is_watched` if only other threads poll for it. Returns the waker that it replaces.
    pub fn wait_for_send(&mut self, handle: u64, waker: Waker, is_watched: bool) -> Option<Waker> {
        self.tx.wait(handle, waker, is_watched)
    }

    pub fn wait_for_send_no_more(&mut self, handle: u64) {
        self.tx.wait_no_more(handle);
    }

    /// Announces a tensor that goes through the switch; false if too many announcements wait, and the peer is to be [blinded](Self::blind).
    pub fn announce(&mut self, step: i64, key: &[u8]) -> bool {
        self.end.is_some() || self.ended.may_have(step) || self.tx.announce(step, key)
    }

    /// Tells the peer that tensors go through the switch without announcements.
    pub fn blind(&mut self) {
        if !std::mem::replace(&mut self.has_blinded, true) {
            self.tx.note(Kind::Blind, 0, 0);
        }
    }

    /// Tells the peer that all tensors that went through the switch without announcements are settled.
    pub fn clear(&mut self) {
        if std::mem::replace(&mut self.has_blinded, false) {
            self.tx.note(Kind::Clear, 0, 0);
        }
    }

    /// True until [`clear`](Self::clear), and after [`blind`](Self::blind).
    pub fn has_blinded(&self) -> bool {
        self.has_blinded
    }

    /// True if the recvs of this side must be asked for at the switch, too.
    pub fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// True if recvs of a step are [posted](Self::post) here. Otherwise the switch is asked for each, unless its tensor can be
    /// [claimed](Self::claim) here.
    #[inline]
    pub fn takes_recvs(&self, step: i64) -> bool {
        self.end.is_none() && !self.is_blind && self.is_live(step)
    }

    /// Enters a recv; returns its slot. Of two recvs of one name, the first is served first.
    ///
    /// # Errors
    /// `Full` if there are too many recvs and unexpected tensors.
    #[inline]
    pub fn post(&mut self, posting: Posting<'_, D>) -> Result<u32, Why> {
        let (step, key) = (posting.step, posting.key);
        let (slot, asks) = self.rx.post(posting)?;
        if asks {
            self.news.asks.push(slot);
        }
        match self.rx.slots.get(slot).state {
            State::Done => self.tell(),
            _ if !self.peer_holds => {}
            _ => {
                self.tx.note_named(Kind::Ask, step, key);
            }
        }
        Ok(slot)
    }

    /// Step and key of a recv, whatever its state.
    pub fn name(&self, slot: u32) -> (i64, Vec<u8>) {
        let name = &self.rx.slots.get(slot).name;
        (name.step, name.key())
    }

    /// The state of a recv.
    #[inline]
    pub fn recv(&self, slot: u32) -> Recv {
        match self.rx.slots.get(slot).state {
            State::Done => Recv::Done,
            State::Failed(why) => Recv::Failed(why),
            State::Moved(call) => Recv::Moved(call),
            _ => Recv::Waiting,
        }
    }

    /// The tensor of a recv that is done, or of an adopted name.
    #[inline]
    pub fn content(&self, slot: u32) -> &Content {
        self.rx.content(slot)
    }

    /// What the caller keeps with a recv.
    pub fn take_data(&mut self, slot: u32) -> Option<D> {
        self.rx.slots.get_mut(slot).data.take()
    }

    /// Gives back what [`take_data`](Self::take_data) took.
    pub fn give_data(&mut self, slot: u32, data: Option<D>) {
        self.rx.slots.get_mut(slot).data = data;
    }

    /// Frees the slot of a recv that has ended and whose outcome was taken.
    #[inline]
    pub fn free(&mut self, slot: u32) {
        let at = self.rx.slots.get_mut(slot);
        at.data = None;
        if let Some(waker) = at.waker.take() {
            self.watched_recvs -= usize::from(at.is_watched);
            self.news.wakers.push(waker);
        }
        self.rx.slots.free(slot);
    }

    /// Wakes `waker` when a recv has ended or moved; `is_watched` if only other threads poll for it. Returns the waker that it replaces.
    pub fn wait_for_recv(&mut self, slot: u32, waker: Waker, is_watched: bool) -> Option<Waker> {
        let before = self.wait_for_recv_no_more(slot);
        let at = self.rx.slots.get_mut(slot);
        (at.waker, at.is_watched) = (Some(waker), is_watched);
        self.watched_recvs += usize::from(is_watched);
        before
    }

    pub fn wait_for_recv_no_more(&mut self, slot: u32) -> Option<Waker> {
        let at = self.rx.slots.get_mut(slot);
        let waker = at.waker.take()?;
        self.watched_recvs -= usize::from(at.is_watched);
        Some(waker)
    }

    /// Sends and recvs with a watched waker.
    pub fn watched(&self) -> usize {
        self.watched_recvs + self.tx.watched()
    }

    /// Wakes all who wait for sends: what a closed channel has left went on.
    pub fn wake_senders(&mut self) {
        self.tx.wake_all(&mut self.news.wakers);
    }

    /// Nothing of a closed channel goes on: recvs that are to be asked for fail.
    pub fn end_for_good(&mut self) {
        for slot in std::mem::take(&mut self.news.asks) {
            self.fail(slot, Why::Closed);
        }
        self.wake_senders();
    }

    /// True if somebody waits for an acknowledgement.
    pub fn has_send_waiters(&self) -> bool {
        self.tx.has_waiters()
    }

    fn wake(&mut self, slot: u32) {
        if let Some(waker) = self.wait_for_recv_no_more(slot) {
            self.news.wakers.push(waker);
        }
    }

    fn fail(&mut self, slot: u32, why: Why) {
        self.rx.slots.get_mut(slot).state = State::Failed(why);
        self.wake(slot);
    }

    /// The caller gives a recv up, whatever its state. A tensor that it has goes to the next recv of its name.
    pub fn cancel(&mut self, slot: u32) {
        if let Some(waker) = self.wait_for_recv_no_more(slot) {
            self.news.wakers.push(waker);
        }
        match self.rx.slots.get(slot).state {
            State::Posted => {
                self.rx.slots.get_mut(slot).data = None;
                self.rx.remove(slot);
            }
            State::Done => self.pass_on(slot),
            State::Asking => {
                self.news.asks.retain(|other| *other != slot);
                let (step, key) = self.name(slot);
                self.free(slot);
                self.announced(step, &key);
            }
            State::Failed(_) | State::Moved(_) => self.free(slot),
            _ => {}
        }
    }

    fn pass_on(&mut self, slot: u32) {
        self.rx.slots.get_mut(slot).data = None;
        if let Some(next) = self.rx.pass_on(slot) {
            self.matched(next);
        }
        self.wake_misfits();
    }

    /// Ends a recv that waits, at its deadline.
    pub fn expire(&mut self, slot: u32) {
        match self.rx.slots.get(slot).state {
            State::Posted => {
                self.rx.unpost(slot, State::Failed(Why::Late));
                self.wake(slot);
            }
            State::Asking => {
                self.news.asks.retain(|other| *other != slot);
                self.fail_asking(slot, Why::Late);
            }
            _ => {}
        }
    }

    /// A recv that the switch is to be asked for; `None` if it has ended.
    pub fn wanted(&self, slot: u32) -> Option<Wanted> {
        let at = self.rx.slots.get(slot);
        (at.state == State::Asking).then(|| Wanted {
            step: at.name.step,
            key: at.name.key(),
            deadline: at.deadline,
            fails_if_gone: at.fails_if_gone,
        })
    }

    /// The switch was asked for a recv, which is this call from now on. Returns the slot of the adopted name, if there is one.
    pub fn has_moved(&mut self, slot: u32, call: u32) -> Option<u32> {
        let (step, key) = self.name(slot);
        self.rx.slots.get_mut(slot).state = State::Moved(call);
        self.wake(slot);
        if self.end.is_some() { None } else { self.adopt_as((step, &key), call, true) }
    }

    /// The first recv of that name that waits here alone, for a tensor that arrived another way.
    pub fn posted(&mut self, step: i64, key: &[u8]) -> Option<u32> {
        if self.end.is_some() { None } else { self.rx.posted(step, key) }
    }

    /// A [posted](Self::posted) recv is this call from now on, which has a tensor.
    pub fn is_served_elsewhere(&mut self, slot: u32, call: u32) {
        self.rx.unpost(slot, State::Moved(call));
        self.wake(slot);
    }

    /// The switch cannot be asked for a recv.
    pub fn is_refused(&mut self, slot: u32) {
        self.fail_asking(slot, Why::Refused);
    }

    /// Fails a recv whose tensor is at the switch, where the next recv of its name is to ask for it.
    fn fail_asking(&mut self, slot: u32, why: Why) {
        self.fail(slot, why);
        if self.end.is_none() {
            let (step, key) = self.name(slot);
            self.announced(step, &key);
        }
    }

    /// Enters a recv that is done at once, if its tensor is here.
    ///
    /// Takes the data only then.
    pub fn claim(&mut self, step: i64, key: &[u8], data: &mut Option<D>) -> Option<u32> {
        if self.end.is_some() || !self.rx.has_tensor(step, key) {
            return None;
        }
        let posting = Posting { step, key, deadline: u64::MAX, fails_if_gone: false, data };
        let (slot, asks) = self.rx.post(posting).ok()?;
        if asks {
            self.news.asks.push(slot);
        }
        self.tell();
        Some(slot)
    }

    /// The switch was asked for a recv as this call. A tensor that arrives here may serve it. Returns the slot of the name, unless the channel
    /// has ended or has no slot left.
    pub fn adopt(&mut self, step: i64, key: &[u8], call: u32) -> Option<u32> {
        if self.end.is_some() { None } else { self.adopt_as((step, key), call, false) }
    }

    fn adopt_as(&mut self, (step, key): (i64, &[u8]), call: u32, is_announced: bool) -> Option<u32> {
        let (slot, has_tensor) = self.rx.adopt((step, key), call, is_announced, is_announced)?;
        if has_tensor {
            self.news.arrived.push(slot);
            self.tell();
        } else if self.peer_holds {
            self.tx.note_named(Kind::Ask, step, key);
        }
        Some(slot)
    }

    /// The call of an adopted name whose tensor has arrived.
    pub fn arrived_for(&self, slot: u32) -> u32 {
        match self.rx.slots.get(slot).state {
            State::Arrived { call, .. } | State::Adopted { call, .. } => call,
            state => unreachable!("only adopted names are reported, not {state:?}"),
        }
    }

    /// The call of an adopted name has its tensor, or is over: `is_used` if it has taken the tensor in the slot.
    pub fn is_served(&mut self, slot: u32, is_used: bool) {
        match is_used {
            true => {
                self.rx.settle_arrived(slot);
                self.rx.slots.free(slot);
            }
            false => self.pass_on(slot),
        }
        if self.end.is_none() {
            self.tell();
        }
    }

    /// The call of an adopted name has ended at the switch; `is_received` if with a tensor.
    pub fn is_over(&mut self, slot: u32, call: u32, is_received: bool) {
        let (is_announced, is_certain) = match self.rx.slots.get(slot).state {
            State::Adopted { call: known, is_announced, is_certain } if known == call => (is_announced, is_certain),
            _ => return,
        };
        if self.end.is_some() {
            return;
        }
        let (step, key) = self.name(slot);
        self.rx.remove(slot);
        if is_announced && !(is_received && is_certain) {
            // The announced tensor is still at the switch, or may be.
            self.announced(step, &key);
        }
    }

    /// The number before which the producer may know that all tensors are settled: not past one whose return is not written.
    #[inline]
    fn acknowledgement(&self) -> u64 {
        let settled = self.rx.settled_before();
        if self.tx.is_plain() {
            settled
        } else {
            self.tx.unwritten_return().map_or(settled, |first| first.min(settled))
        }
    }

    /// Tells the producer what was read and settled.
    #[inline]
    fn tell(&mut self) {
        while let Some((from, to)) = self.rx.take_range() {
            self.tx.note(Kind::Took, from, to);
        }
        if self.tx.returns_written != self.returns_told {
            self.returns_told = self.tx.returns_written;
            self.rx.tell_returned(self.returns_told);
        }
        let took = self.acknowledgement();
        if self.rx.tell(took) {
            self.tx.ring = self.tx.ring.max(Ring::Settled);
        }
    }

    /// Takes in all records that have arrived, at most one lap.
    ///
    /// # Errors
    /// The peer broke the channel, which must be [closed](Self::close).
    #[inline]
    pub fn drain(&mut self) -> Result<(), BrokenChannel> {
        if self.end.is_some() {
            return Ok(());
        }
        self.take_in()?;
        self.tx.check_notes()?;
        if !self.tx.is_plain() {
            self.flush();
        }
        if self.tx.has_waiters() {
            self.tx.wake(&mut self.news.wakers);
        }
        Ok(())
    }

    /// Writes what found no room before.
    #[cold]
    fn flush(&mut self) {
        let took = self.acknowledgement();
        self.tx.flush(took);
        // Returns may have been among it.
        self.tell();
    }

    #[inline]
    fn take_in(&mut self) -> Result<(), BrokenChannel> {
        let begin = self.rx.reader.head;
        while let Some(header) = self.rx.reader.peek().filter(|_| self.rx.reader.head < begin + M::WORDS) {
            match header.is_tensor() {
                true => self.tensor(header)?,
                false => self.note(header)?,
            }
        }
        if self.rx.reader.head != begin {
            self.tell();
        }
        Ok(())
    }

    #[inline]
    fn tensor(&mut self, header: Header) -> Result<(), BrokenChannel> {
        let ended = &self.ended;
        let (acknowledged, arrival) =
            self.rx.tensor(header, |step| ended.reason(step).is_some().then_some(Why::Aborted))?;
        self.tx.acknowledged(acknowledged);
        match arrival {
            Arrival::Matched(slot) => self.matched(slot),
            Arrival::Kept => {}
            Arrival::Refused(number, why) => self.give_back(number, why),
            Arrival::Asks(slot) => self.news.asks.push(slot),
            Arrival::Lost => {}
        }
        self.wake_misfits();
        Ok(())
    }

    /// Wakes recvs that have failed because they do not accept a tensor.
    #[inline]
    fn wake_misfits(&mut self) {
        while let Some(slot) = self.rx.misfits.pop() {
            self.wake(slot);
        }
    }

    #[inline]
    fn matched(&mut self, slot: u32) {
        let at = self.rx.slots.get(slot);
        if at.state != State::Done {
            self.news.arrived.push(slot);
        } else if at.waker.is_some() {
            self.wake(slot);
        }
    }

    fn announced(&mut self, step: i64, key: &[u8]) {
        match self.rx.announced(step, key) {
            Arrival::Asks(slot) => self.news.asks.push(slot),
            // No recv that comes later may wait here alone for the tensor.
            Arrival::Lost => self.is_blind = true,
            _ => {}
        }
    }

    /// Returns a tensor to its producer.
    fn give_back(&mut self, number: u64, why: Why) {
        self.tx.note(Kind::Returned, number, why as u64);
        self.rx.has_returned(number);
    }

    /// A record that is no tensor.
    #[cold]
    #[inline(never)]
    fn note(&mut self, header: Header) -> Result<(), BrokenChannel> {
        let (kind, record) = self.rx.note(header)?;
        let load = |at: usize| record[at].load(std::sync::atomic::Ordering::Relaxed);
        let (one, two) = match kind {
            Kind::Pad => (0, 0),
            _ => (load(1), load(2)),
        };
        let key = match kind {
            Kind::Announce | Kind::Ask | Kind::Ended => bytes_of(&record[FIXED_WORDS..], header.shape().key),
            _ => Vec::new(),
        };
        self.rx.skip(header.words());
        match kind {
            Kind::Tensor => unreachable!("tensors are told apart before"),
            Kind::Pad => {}
            Kind::Announce => self.announced(two as i64, &key),
            Kind::Took => self.tx.taken(one, two),
            Kind::Returned => {
                let why = Why::of_return(two).ok_or(BrokenChannel("a tensor was returned without a reason"))?;
                self.tx.returned(one, why);
            }
            Kind::Revoke => {
                if self.rx.drop_unexpected(one) {
                    self.give_back(one, Why::Revoked);
                }
            }
            Kind::Held => {
                self.peer_holds = true;
                self.rx.spill();
                for slot in self.rx.slots.find_all(|slot| matches!(slot.state, State::Posted | State::Adopted { .. })) {
                    let (step, key) = self.name(slot);
                    self.tx.note_named(Kind::Ask, step, &key);
                }
            }
            Kind::Resumed => self.peer_holds = false,
            Kind::Ask => {
                let took = self.acknowledgement();
                self.tx.asked(two as i64, &key, took);
            }
            Kind::Ended => self.ended_there(two as i64, &String::from_utf8_lossy(&key)),
            Kind::Blind => {
                self.is_blind = true;
                // What waits here may wait for a tensor that is there.
                self.ask_for_all();
            }
            Kind::Clear => self.is_blind = false,
            Kind::Reopened => self.ended_there.forget(two as i64),
        }
        Ok(())
    }

    /// The switch is to be asked for every recv that waits here.
    fn ask_for_all(&mut self) {
        for slot in self.rx.slots.find_all(|slot| slot.state == State::Posted) {
            self.rx.unpost(slot, State::Asking);
            self.news.asks.push(slot);
        }
    }

    /// The peer has ended a step: what this side sends and wants in it is the switch's from now on.
    fn ended_there(&mut self, step: i64, reason: &str) {
        self.ended_there.end(step, reason);
        self.tx.end_step(step);
        self.fail_step(step);
        self.tx.wake(&mut self.news.wakers);
    }

    /// Fails the recvs of a step.
    fn fail_step(&mut self, step: i64) {
        let is_of_it = |state: State| matches!(state, State::Posted | State::Asking);
        for slot in self.rx.slots.find_all(|slot| slot.name.step == step && is_of_it(slot.state)) {
            match self.rx.slots.get(slot).state {
                State::Posted => self.rx.unpost(slot, State::Failed(Why::Aborted)),
                _ => self.rx.slots.get_mut(slot).state = State::Failed(Why::Aborted),
            }
            self.news.asks.retain(|other| *other != slot);
            self.wake(slot);
        }
    }

    /// Why a step has ended: on this side, or on the other.
    pub fn reason(&self, step: i64) -> Option<&str> {
        self.ended.reason(step).or_else(|| self.ended_there.reason(step))
    }

    /// This task ends a step: its sends and recvs end with Aborted, and its unexpected tensors are returned. If it was aborted, the peer is
    /// told, and later calls are the switch's, until the step is ended once more without that: then its number may be used again.
    pub fn end_step(&mut self, step: i64, reason: &str, is_aborted: bool) {
        if self.end.is_some() {
            return;
        }
        match is_aborted {
            true => self.ended.end(step, reason),
            // Whether the peer has ended the step is the peer's to say.
            false => {
                if self.ended.reason(step).is_some() {
                    self.tx.note(Kind::Reopened, 0, step as u64);
                }
                self.ended.forget(step);
            }
        }
        self.tx.end_step(step);
        self.fail_step(step);
        // An announced tensor of a step that may be used again is still at the switch, unless the daemon ends it.
        let is_here = |state: State| matches!(state, State::Unexpected(_)) || is_aborted && state == State::Announced;
        for slot in self.rx.slots.find_all(|slot| slot.name.step == step && is_here(slot.state)) {
            let state = self.rx.slots.get(slot).state;
            self.rx.remove(slot);
            if let State::Unexpected(Some(number)) = state {
                self.give_back(number, Why::Aborted);
            }
        }
        if is_aborted {
            self.tx.note_named(Kind::Ended, step, reason.as_bytes());
        }
        self.tx.wake(&mut self.news.wakers);
        self.tell();
    }

    /// Ends what is past its deadline at `now`, in milliseconds: recvs at once, sends when the consumer has returned their tensors.
    pub fn sweep(&mut self, now: u64) {
        self.rx.overdue(now).into_iter().for_each(|slot| self.expire(slot));
        if self.end.is_some() {
            return;
        }
        self.tx.sweep(now);
        if self.tx.is_waiting() {
            self.flush();
        }
        if self.tx.has_waiters() {
            self.tx.wake(&mut self.news.wakers);
        }
    }

    /// True if something waits for room in the ring, which nobody reports: [`sweep`](Self::sweep) tries again.
    pub fn is_waiting(&self) -> bool {
        self.end.is_none() && self.tx.is_waiting()
    }

    /// When to call [`sweep`](Self::sweep) next: the earliest deadline, or earlier.
    pub fn earliest(&self) -> u64 {
        self.rx.earliest().min(self.tx.earliest())
    }

    /// Ends the channel. Recvs fail with `why`, or if that is `Abandoned`, are to be asked for at the switch. The producer was told what was
    /// taken, and nothing more is taken. Returns the calls of adopted names.
    pub fn close(&mut self, why: Why) -> Vec<u32> {
        if self.end.is_some() {
            return Vec::new();
        }
        // What calls are being given is not to be sent once more.
        for slot in self.rx.slots.find_all(|slot| matches!(slot.state, State::Arrived { .. })) {
            self.rx.settle_arrived(slot);
        }
        self.tell();
        self.end = Some(why);
        for slot in self.rx.slots.find_all(|slot| matches!(slot.state, State::Posted | State::Asking)) {
            let was = self.rx.slots.get(slot).state;
            match (why, was) {
                (Why::Abandoned, State::Asking) => {}
                (Why::Abandoned, _) => {
                    self.rx.unpost(slot, State::Asking);
                    self.news.asks.push(slot);
                }
                (_, State::Posted) => {
                    self.rx.unpost(slot, State::Failed(why));
                    self.wake(slot);
                }
                _ => self.fail(slot, why),
            }
        }
        if why != Why::Abandoned {
            self.news.asks.clear();
        }
        let adopted = self.rx.slots.find_all(|slot| matches!(slot.state, State::Adopted { .. }));
        let calls = adopted.iter().map(|slot| self.arrived_for(*slot)).collect();
        adopted.into_iter().for_each(|slot| self.rx.remove(slot));
        self.tx.wake_all(&mut self.news.wakers);
        calls
    }

    /// What the consumer of a closed channel has not taken, in the order of sending.
    pub fn reclaim(&mut self) -> Vec<Unsettled> {
        assert!(self.end.is_some(), "the channel is open");
        // What a peer that breaks the rules says here counts as far as it is understood.
        let _broken = self.take_in_answers();
        self.tx.reclaim()
    }

    /// Takes in what the peer has said of this side's tensors in its last records, at most one lap.
    fn take_in_answers(&mut self) -> Result<(), BrokenChannel> {
        let begin = self.rx.reader.head;
        while let Some(header) = self.rx.reader.peek().filter(|_| self.rx.reader.head < begin + M::WORDS) {
            if header.is_tensor() {
                let acknowledged = self.rx.acknowledged(header)?;
                self.tx.acknowledged(acknowledged);
                self.rx.skip(header.words());
            } else if matches!(header.kind(), Some(Kind::Took | Kind::Returned)) {
                self.note(header)?;
            } else {
                let (_, record) = self.rx.note(header)?;
                let words = record.len() as u64;
                self.rx.skip(words);
            }
        }
        Ok(())
    }

    /// The tensors of a closed channel that recvs have given up after they had taken them: step, key and slot, whose
    /// [content](Self::content) the caller copies.
    pub fn given_up(&self) -> Vec<(i64, Vec<u8>, u32)> {
        let given_up = self.rx.slots.find_all(|slot| slot.state == State::Unexpected(None));
        given_up.into_iter().map(|slot| (self.rx.slots.get(slot).name.step, self.name(slot).1, slot)).collect()
    }

    /// The caller has copied such a tensor.
    pub fn drop_given_up(&mut self, slot: u32) {
        self.rx.remove(slot);
    }

    /// How urgently the peer is to be woken for what was written and settled since the last call.
    #[inline]
    pub fn take_ring(&mut self) -> Ring {
        std::mem::replace(&mut self.tx.ring, Ring::No)
    }

    /// The position of the next record, to be polled without the half.
    #[inline]
    pub fn head(&self) -> u64 {
        self.rx.reader.head
    }

    /// True if nothing has arrived; for a caller that has announced its sleep. If it `waits_for_sends`, acknowledgements count.
    pub fn is_quiet(&self, waits_for_sends: bool) -> bool {
        let is_acknowledged = waits_for_sends && self.tx.has_waiters() && self.tx.has_acknowledgement();
        self.end.is_some() || self.rx.reader.is_empty_for_sleep() && !is_acknowledged
    }

    /// Tensors and bytes sent, and received.
    pub fn moved(&self) -> [(u64, u64); 2] {
        [self.tx.moved, self.rx.moved]
    }

    /// Tensors that are not settled, and of them those that are held; then recvs that wait, and unexpected tensors.
    pub fn counts(&self) -> [usize; 4] {
        let (in_ring, held) = self.tx.counts();
        let of = |is: fn(&State) -> bool| self.rx.slots.iter().filter(|(_, slot)| is(&slot.state)).count();
        let posted = of(|state| matches!(state, State::Posted | State::Adopted { .. }));
        [in_ring + held, held, posted, of(|state| matches!(state, State::Unexpected(_)))]
    }

    /// Checks what must hold after every call.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn check_invariants(&self) {
        if self.end.is_none() {
            self.tx.check_invariants();
            self.rx.check_invariants();
            assert!(self.acknowledgement() <= self.rx.settled_before());
        }
        let watched = self.rx.slots.iter().filter(|(_, slot)| slot.waker.is_some() && slot.is_watched).count();
        assert_eq!(self.watched_recvs, watched);
        for slot in &self.news.asks {
            assert_eq!(self.rx.slots.get(*slot).state, State::Asking);
        }
    }
}
