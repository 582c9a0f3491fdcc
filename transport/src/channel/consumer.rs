//! The consumer's side of a half: where recvs and arriving tensors meet.
//!
//! While no tensor is unexpected and recvs are served in the order in which they were posted, recvs are a list, and an arriving tensor is
//! compared with the first one only. The first that differs moves the list into a table. A table entry is the chain of all slots of one
//! name: recvs in the order of posting, or what arrived before its recv.
//!
//! A recv whose tensor is announced is *moved* to the switch: from then on it is a call there, and the half keeps its name (*adopted*), since
//! a small tensor of that name may arrive here after all.
//!
//! Limits: [`SLOTS_MAX`](super::SLOTS_MAX) recvs and unexpected tensors.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    Accepts, BrokenChannel, ChannelMemory, KEY_BYTES_MAX, Why,
    key::{Name, SHORT_BYTES, Seed},
    record::{FIXED_WORDS, Kind, Shape, bytes_of},
    slots::{Content, NONE, Slot, Slots, State},
    table::Table,
};
use crate::ring::{Header, Reader};

const IMPOSSIBLE: BrokenChannel = BrokenChannel("a record has an impossible length");

/// What an arrival means for the rest of the half.
pub(super) enum Arrival {
    /// A recv has the tensor.
    Matched(u32),
    /// A recv is to be asked for at the switch.
    Asks(u32),
    /// The tensor or announcement waits for its recv.
    Kept,
    /// The tensor with this number goes back.
    Refused(u64, Why),
    /// An announcement found no slot.
    Lost,
}

/// A recv to be posted.
pub struct Posting<'a, D> {
    pub step: i64,
    pub key: &'a [u8],
    /// Milliseconds; `u64::MAX` for none.
    pub deadline: u64,
    pub fails_if_gone: bool,
    /// Taken if the recv is entered.
    pub data: &'a mut Option<D>,
}

pub(super) struct Consumer<M, D> {
    pub(super) reader: Reader<M>,
    seed: Seed,
    pub(super) slots: Slots<D>,
    table: Table,
    /// The list of recvs in the order of posting, while the table is empty.
    first: u32,
    last: u32,
    /// Number of the next tensor.
    arrived: u64,
    /// Numbers of unexpected tensors, in order.
    unsettled: VecDeque<u64>,
    /// Ranges of numbers that were settled out of order and not acknowledged yet.
    ranges: Vec<(u64, u64)>,
    /// The acknowledgement that the producer was told last.
    told: u64,
    /// The earliest deadline of a posted recv, or earlier.
    earliest: u64,
    /// Recvs that have failed because they do not accept a tensor of their name.
    pub(super) misfits: Vec<u32>,
    /// Tensors and bytes received.
    pub(super) moved: (u64, u64),
}

impl<M: ChannelMemory, D: Accepts> Consumer<M, D> {
    pub(super) fn new(memory: M, seed: Seed) -> Self {
        Consumer {
            reader: Reader::new(memory),
            seed,
            slots: Slots::default(),
            table: Table::default(),
            first: NONE,
            last: NONE,
            arrived: 0,
            unsettled: VecDeque::new(),
            ranges: Vec::new(),
            told: 0,
            earliest: u64::MAX,
            misfits: Vec::new(),
            moved: (0, 0),
        }
    }

    /// The number before which all tensors are settled.
    #[inline]
    pub(super) fn settled_before(&self) -> u64 {
        self.unsettled.front().copied().unwrap_or(self.arrived)
    }

    /// Enters a recv; returns its slot. The recv is done if its tensor is here, and is to be asked for if it was announced.
    ///
    /// # Errors
    /// `Full` if there are too many slots.
    #[inline]
    pub(super) fn post(&mut self, posting: Posting<'_, D>) -> Result<(u32, bool), Why> {
        let Posting { step, key, deadline, fails_if_gone, data } = posting;
        let name = Name::new(step, key);
        if !self.table.is_empty() {
            return self.post_in_table(name, deadline, fails_if_gone, data);
        }
        let at = self.slots.add(State::Posted, name, deadline).ok_or(Why::Full)?;
        self.earliest = self.earliest.min(deadline);
        if fails_if_gone || data.is_some() {
            let slot = self.slots.get_mut(at);
            (slot.fails_if_gone, slot.data) = (fails_if_gone, data.take());
        }
        match self.first {
            NONE => self.first = at,
            _ => self.slots.get_mut(self.last).next = at,
        }
        self.last = at;
        Ok((at, false))
    }

    #[inline(never)]
    fn post_in_table(
        &mut self,
        name: Name,
        deadline: u64,
        fails_if_gone: bool,
        data: &mut Option<D>,
    ) -> Result<(u32, bool), Why> {
        let hash = name.hash(&self.seed);
        let entry = self.find(hash, &name);
        let unexpected = entry.and_then(|(_, head)| {
            self.in_chain(head, |slot| matches!(slot.state, State::Unexpected(_) | State::Announced))
        });
        if let Some(found) = unexpected {
            let asks = self.slots.get(found).state == State::Announced;
            let content = self.content(found);
            let accepts = |data: &D| data.accepts(content.meta(), content.payload().len() as u64);
            if !asks && !data.as_ref().is_none_or(accepts) {
                return self.misfit(found, name, data);
            }
            self.take_unexpected(found, if asks { State::Asking } else { State::Done });
            let slot = self.slots.get_mut(found);
            (slot.fails_if_gone, slot.data, slot.deadline) = (fails_if_gone, data.take(), deadline);
            return Ok((found, asks));
        }
        let at = self.slots.add(State::Posted, name, deadline).ok_or(Why::Full)?;
        self.earliest = self.earliest.min(deadline);
        let slot = self.slots.get_mut(at);
        (slot.hash, slot.fails_if_gone, slot.data) = (hash, fails_if_gone, data.take());
        self.link(at);
        Ok((at, false))
    }

    /// True if a tensor of that name is here.
    pub(super) fn has_tensor(&self, step: i64, key: &[u8]) -> bool {
        if self.table.is_empty() {
            return false;
        }
        let name = Name::new(step, key);
        let entry = self.find(name.hash(&self.seed), &name);
        entry.is_some_and(|(_, head)| self.in_chain(head, |slot| matches!(slot.state, State::Unexpected(_))).is_some())
    }

    /// Enters a recv that has failed, because it does not accept the tensor of a slot.
    #[cold]
    fn misfit(&mut self, tensor: u32, name: Name, data: &mut Option<D>) -> Result<(u32, bool), Why> {
        let content = self.content(tensor).clone();
        let at = self.slots.add(State::Failed(Why::Misfit), name, u64::MAX).ok_or(Why::Full)?;
        let slot = self.slots.get_mut(at);
        (slot.data, slot.content) = (data.take(), content);
        Ok((at, false))
    }

    /// Turns an unexpected tensor, or an announcement, into a recv.
    fn take_unexpected(&mut self, at: u32, state: State) {
        self.unlink(at);
        let was = std::mem::replace(&mut self.slots.get_mut(at).state, state);
        if let State::Unexpected(Some(number)) = was {
            self.has_taken(at, number);
            self.count(at);
        }
    }

    /// A slot has taken an unsettled tensor. If it is an adopted name, the tensor is settled once its call has that.
    fn has_taken(&mut self, at: u32, number: u64) {
        match &mut self.slots.get_mut(at).state {
            State::Arrived { number: unsettled, .. } => *unsettled = Some(number),
            _ => self.settle(number),
        }
    }

    /// The call of an adopted name has the tensor, as far as the producer is concerned.
    pub(super) fn settle_arrived(&mut self, at: u32) {
        if let State::Arrived { number, .. } = &mut self.slots.get_mut(at).state
            && let Some(number) = number.take()
        {
            self.settle(number);
        }
    }

    /// Enters the name of a call that waits at the switch; returns its slot, unless there are too many, and whether it has its tensor, which
    /// may have arrived while the switch was asked.
    pub(super) fn adopt(
        &mut self,
        (step, key): (i64, &[u8]),
        call: u32,
        is_announced: bool,
        is_certain: bool,
    ) -> Option<(u32, bool)> {
        self.spill();
        let name = Name::new(step, key);
        let hash = name.hash(&self.seed);
        let head = self.find(hash, &name).map(|(_, head)| head);
        let is_here = |slot: &Slot<D>| matches!(slot.state, State::Unexpected(_));
        if let Some(found) = head.and_then(|head| self.in_chain(head, is_here)) {
            self.take_unexpected(found, State::Arrived { call, number: None });
            if is_announced {
                // The announced tensor is another recv's.
                let _kept = self.add_unexpected(name, hash, State::Announced);
            }
            return Some((found, true));
        }
        let announcement = head.and_then(|head| self.in_chain(head, |slot| slot.state == State::Announced));
        if let Some(announcement) = announcement.filter(|_| !is_announced) {
            self.remove(announcement);
            return self.adopt((step, key), call, true, false);
        }
        let at = self.slots.add(State::Adopted { call, is_announced, is_certain }, name, u64::MAX)?;
        self.slots.get_mut(at).hash = hash;
        self.link(at);
        Some((at, false))
    }

    /// The first recv of that name that waits here alone.
    pub(super) fn posted(&mut self, step: i64, key: &[u8]) -> Option<u32> {
        self.spill();
        let name = Name::new(step, key);
        let (_, head) = self.find(name.hash(&self.seed), &name)?;
        self.in_chain(head, |slot| slot.state == State::Posted)
    }

    /// The entry of a name: its place and the first slot of its chain.
    fn find(&self, hash: u64, name: &Name) -> Option<(usize, u32)> {
        self.table.find(hash, |at| self.slots.get(at).name == *name)
    }

    /// The first slot of a chain for which `is` holds.
    fn in_chain(&self, head: u32, is: impl Fn(&Slot<D>) -> bool) -> Option<u32> {
        let mut at = head;
        while at != NONE {
            let slot = self.slots.get(at);
            if is(slot) {
                return Some(at);
            }
            at = slot.next;
        }
        None
    }

    /// Appends a slot to the chain of its name.
    fn link(&mut self, at: u32) {
        let hash = self.slots.get(at).hash;
        self.slots.get_mut(at).next = NONE;
        let entry = self.table.find(hash, |head| self.slots.get(head).name == self.slots.get(at).name);
        let Some((_, mut last)) = entry else { return self.table.insert(hash, at) };
        while self.slots.get(last).next != NONE {
            last = self.slots.get(last).next;
        }
        self.slots.get_mut(last).next = at;
    }

    /// Takes a slot out of the chain of its name.
    fn unlink(&mut self, at: u32) {
        let Slot { hash, next, .. } = *self.slots.get(at);
        let entry = self.table.find(hash, |head| self.slots.get(head).name == self.slots.get(at).name);
        let Some((place, head)) = entry else { return };
        match (head == at, next) {
            (true, NONE) => self.table.remove(place),
            (true, next) => self.table.replace(place, next),
            (false, next) => {
                let mut before = head;
                while self.slots.get(before).next != at {
                    before = self.slots.get(before).next;
                    if before == NONE {
                        return;
                    }
                }
                self.slots.get_mut(before).next = next;
            }
        }
    }

    /// Moves the list of recvs into the table.
    #[cold]
    #[inline(never)]
    pub(super) fn spill(&mut self) {
        let mut at = std::mem::replace(&mut self.first, NONE);
        while at != NONE {
            let seed = self.seed;
            let slot = self.slots.get_mut(at);
            let next = slot.next;
            slot.hash = slot.name.hash(&seed);
            self.link(at);
            at = next;
        }
    }

    /// Takes in the next record, which is a tensor; returns the acknowledgement that rides on it, and what the tensor means.
    ///
    /// # Errors
    /// Its lengths are impossible.
    #[inline]
    pub(super) fn tensor(
        &mut self,
        header: Header,
        refused: impl Fn(i64) -> Option<Why>,
    ) -> Result<(u32, Arrival), BrokenChannel> {
        let arrived = self.arrive(header, refused)?;
        self.reader.head += header.words();
        Ok(arrived)
    }

    #[inline]
    fn arrive(
        &mut self,
        header: Header,
        refused: impl Fn(i64) -> Option<Why>,
    ) -> Result<(u32, Arrival), BrokenChannel> {
        let (shape, words) = (header.shape(), header.words());
        if shape.words() != words || words > super::TENSOR_WORDS_MAX as u64 || shape.payload > super::PAYLOAD_BYTES_MAX
        {
            return Err(BrokenChannel("a tensor has impossible lengths"));
        }
        let record = self.reader.record(words).ok_or(IMPOSSIBLE)?;
        // From here on, each word of the record is loaded once.
        let (acknowledged, step) = (record[1].load(Ordering::Relaxed) as u32, record[2].load(Ordering::Relaxed) as i64);
        let number = self.arrived;
        self.arrived += 1;
        if shape.key > SHORT_BYTES {
            let key = bytes_of(&record[FIXED_WORDS..], shape.key);
            let name = Name::new(step, &key);
            return Ok((acknowledged, self.named(name, number, (self.reader.head, words), shape, refused)));
        }
        let mut short = [0; 3];
        let keys = &record[FIXED_WORDS..shape.meta_at()];
        short.iter_mut().zip(keys).for_each(|(short, word)| *short = word.load(Ordering::Relaxed));
        if self.first != NONE {
            let at = self.first;
            let slot = self.slots.get_mut(at);
            if slot.name.is_short(step, shape.key, short) && slot.data.is_none() {
                self.first = slot.next;
                slot.content.load(record, shape);
                slot.state = State::Done;
                self.has_settled(number);
                self.moved = (self.moved.0 + 1, self.moved.1 + shape.payload as u64);
                return Ok((acknowledged, Arrival::Matched(at)));
            }
        }
        let name = Name::of_words(step, shape.key, short);
        Ok((acknowledged, self.named(name, number, (self.reader.head, words), shape, refused)))
    }

    /// Takes a recv that waits out of a chain, for a tensor that is here; rather one for which the switch is not known to have a tensor. Recvs
    /// that do not accept it fail.
    fn take_waiting(&mut self, mut head: Option<u32>, name: &Name, hash: u64, tensor: &Content) -> Option<u32> {
        let (meta, bytes) = (tensor.meta(), tensor.payload().len() as u64);
        let refuses = |slot: &Slot<D>| {
            slot.state == State::Posted && slot.data.as_ref().is_some_and(|data| !data.accepts(meta, bytes))
        };
        while let Some(misfit) = head.and_then(|head| self.in_chain(head, refuses)) {
            self.unlink(misfit);
            let slot = self.slots.get_mut(misfit);
            (slot.state, slot.content) = (State::Failed(Why::Misfit), tensor.clone());
            self.misfits.push(misfit);
            head = self.find(hash, name).map(|(_, head)| head);
        }
        let in_chain = |is: fn(&Slot<D>) -> bool| head.and_then(|head| self.in_chain(head, is));
        let recv = in_chain(|slot| matches!(slot.state, State::Posted | State::Adopted { is_announced: false, .. }));
        let recv = recv.or_else(|| in_chain(|slot| matches!(slot.state, State::Adopted { .. })))?;
        self.unlink(recv);
        let slot = self.slots.get_mut(recv);
        let (state, was_announced) = match slot.state {
            State::Adopted { call, is_announced, .. } => (State::Arrived { call, number: None }, is_announced),
            _ => (State::Done, false),
        };
        slot.state = state;
        if was_announced {
            // The announced tensor is still there for another recv. Without a slot, that one waits for its deadline.
            let _kept = self.add_unexpected(name.clone(), hash, State::Announced);
        }
        Some(recv)
    }

    /// Matches a tensor by the table.
    fn named(
        &mut self,
        name: Name,
        number: u64,
        (at, words): (u64, u64),
        shape: Shape,
        refused: impl Fn(i64) -> Option<Why>,
    ) -> Arrival {
        self.spill();
        if let Some(why) = refused(name.step) {
            return Arrival::Refused(number, why);
        }
        let hash = name.hash(&self.seed);
        let head = self.find(hash, &name).map(|(_, head)| head);
        let mut content = Content::default();
        content.load(self.reader.memory.words(at, words), shape);
        if let Some(recv) = self.take_waiting(head, &name, hash, &content) {
            self.slots.get_mut(recv).content = content;
            self.unsettled.push_back(number);
            self.has_taken(recv, number);
            self.count(recv);
            return Arrival::Matched(recv);
        }
        let is_duplicate = |slot: &Slot<D>| matches!(slot.state, State::Unexpected(Some(_)));
        if head.is_some_and(|head| self.in_chain(head, is_duplicate).is_some()) {
            return Arrival::Refused(number, Why::Duplicate);
        }
        match self.add_unexpected(name, hash, State::Unexpected(Some(number))) {
            Some(kept) => {
                self.slots.get_mut(kept).content = content;
                self.unsettled.push_back(number);
                Arrival::Kept
            }
            None => Arrival::Refused(number, Why::Full),
        }
    }

    fn add_unexpected(&mut self, name: Name, hash: u64, state: State) -> Option<u32> {
        let at = self.slots.add(state, name, u64::MAX)?;
        self.slots.get_mut(at).hash = hash;
        self.link(at);
        Some(at)
    }

    /// Takes in an announcement.
    pub(super) fn announced(&mut self, step: i64, key: &[u8]) -> Arrival {
        self.spill();
        let name = Name::new(step, key);
        let hash = name.hash(&self.seed);
        let waits = |slot: &Slot<D>| matches!(slot.state, State::Posted | State::Adopted { is_announced: false, .. });
        let recv = self.find(hash, &name).and_then(|(_, head)| self.in_chain(head, waits));
        let Some(recv) = recv else {
            return match self.add_unexpected(name, hash, State::Announced) {
                Some(_) => Arrival::Kept,
                None => Arrival::Lost,
            };
        };
        match &mut self.slots.get_mut(recv).state {
            State::Adopted { is_announced, .. } => {
                *is_announced = true;
                Arrival::Kept
            }
            state => {
                *state = State::Asking;
                self.unlink(recv);
                Arrival::Asks(recv)
            }
        }
    }

    /// Counts the tensor of a slot as received.
    fn count(&mut self, at: u32) {
        let bytes = self.slots.get(at).content.payload().len() as u64;
        self.moved = (self.moved.0 + 1, self.moved.1 + bytes);
    }

    /// A tensor is settled as it arrives.
    #[inline]
    fn has_settled(&mut self, number: u64) {
        if !self.unsettled.is_empty() {
            self.settled_out_of_order(number);
        }
    }

    /// An unexpected tensor is taken or returned.
    pub(super) fn settle(&mut self, number: u64) {
        let Ok(at) = self.unsettled.binary_search(&number) else { return };
        self.unsettled.remove(at);
        if at > 0 {
            self.settled_out_of_order(number);
        }
    }

    /// Notes a number that the acknowledgement does not cover.
    fn settled_out_of_order(&mut self, number: u64) {
        match self.ranges.last_mut() {
            Some((_, to)) if *to == number => *to += 1,
            _ => self.ranges.push((number, number + 1)),
        }
    }

    /// A range that the acknowledgement does not cover, and that the producer was not told.
    #[inline]
    pub(super) fn take_range(&mut self) -> Option<(u64, u64)> {
        while let Some((from, to)) = self.ranges.pop() {
            if to > self.settled_before() {
                return Some((from, to));
            }
        }
        None
    }

    /// Returns a tensor that was counted and is in no slot; the record was written or noted.
    pub(super) fn has_returned(&mut self, number: u64) {
        if self.unsettled.is_empty() {
            return;
        }
        match self.unsettled.binary_search(&number) {
            Ok(_) => self.settle(number),
            Err(_) => self.settled_out_of_order(number),
        }
    }

    /// Tells the producer how many returns were written.
    #[cold]
    pub(super) fn tell_returned(&mut self, returned: u64) {
        // RELEASE: before the acknowledgement passes the tensors.
        self.reader.memory.returned().store(returned, Ordering::Release);
    }

    /// Tells the producer how far this side has read, and `took` if that is new; returns whether it is.
    #[inline]
    pub(super) fn tell(&mut self, took: u64) -> bool {
        let is_new = took != self.told;
        self.told = took;
        self.reader.tell();
        if is_new {
            // SEQ_CST: as for headers.
            self.reader.memory.took().swap(took, Ordering::SeqCst);
        }
        is_new
    }

    /// The words of the next record, which is no tensor, and the rest of what its header says.
    ///
    /// # Errors
    /// Its length is impossible.
    pub(super) fn note(&self, header: Header) -> Result<(Kind, &[AtomicU64]), BrokenChannel> {
        let kind = header.kind().ok_or(BrokenChannel("a record has an unknown kind"))?;
        let record = self.reader.record(header.words()).ok_or(IMPOSSIBLE)?;
        let shape = header.shape();
        let least = FIXED_WORDS + shape.key.div_ceil(8);
        if kind != Kind::Pad && (record.len() < least || shape.key > KEY_BYTES_MAX) {
            return Err(BrokenChannel("a note has an impossible length"));
        }
        Ok((kind, record))
    }

    /// The acknowledgement on a tensor's record that is not taken in.
    ///
    /// # Errors
    /// Its length is impossible.
    pub(super) fn acknowledged(&self, header: Header) -> Result<u32, BrokenChannel> {
        let record = self.reader.record(header.words()).ok_or(IMPOSSIBLE)?;
        Ok(record.get(1).ok_or(BrokenChannel("a tensor has impossible lengths"))?.load(Ordering::Relaxed) as u32)
    }

    pub(super) fn skip(&mut self, words: u64) {
        self.reader.head += words;
    }

    /// True if a tensor with this number is unexpected; it is dropped.
    pub(super) fn drop_unexpected(&mut self, number: u64) -> bool {
        if self.unsettled.binary_search(&number).is_err() {
            return false;
        }
        let found = self.slots.find_all(|slot| slot.state == State::Unexpected(Some(number)));
        found.iter().for_each(|at| self.remove(*at));
        // A call that is being given the tensor counts as having it.
        let is_given = |state: State| matches!(state, State::Arrived { number: Some(given), .. } if given == number);
        let given = self.slots.find_all(|slot| is_given(slot.state));
        given.into_iter().for_each(|at| self.settle_arrived(at));
        !found.is_empty()
    }

    /// Takes a slot out of the table and frees it.
    pub(super) fn remove(&mut self, at: u32) {
        self.spill();
        self.unlink(at);
        self.slots.free(at);
    }

    /// Takes a posted recv out of the table or the list, for another state.
    pub(super) fn unpost(&mut self, at: u32, state: State) {
        self.spill();
        self.unlink(at);
        self.slots.get_mut(at).state = state;
    }

    /// A recv, which may have been adopted, gives up the tensor in its slot: the next recv of the name gets it. Returns that recv.
    pub(super) fn pass_on(&mut self, at: u32) -> Option<u32> {
        self.spill();
        let seed = self.seed;
        let slot = self.slots.get_mut(at);
        slot.hash = slot.name.hash(&seed);
        let content = std::mem::take(&mut slot.content);
        let unsettled = if let State::Arrived { number, .. } = slot.state { number } else { None };
        let (hash, name) = (slot.hash, slot.name.clone());
        let head = self.find(hash, &name).map(|(_, head)| head);
        if let Some(next) = self.take_waiting(head, &name, hash, &content) {
            self.slots.get_mut(next).content = content;
            unsettled.into_iter().for_each(|number| self.has_taken(next, number));
            self.slots.free(at);
            return Some(next);
        }
        let slot = self.slots.get_mut(at);
        (slot.state, slot.content, slot.deadline) = (State::Unexpected(unsettled), content, u64::MAX);
        self.put_first(at);
        None
    }

    /// Puts a slot in front of the chain of its name: its tensor is older than the others.
    fn put_first(&mut self, at: u32) {
        let Slot { hash, .. } = *self.slots.get(at);
        let entry = self.table.find(hash, |head| self.slots.get(head).name == self.slots.get(at).name);
        match entry {
            Some((place, head)) => {
                self.slots.get_mut(at).next = head;
                self.table.replace(place, at);
            }
            None => self.link(at),
        }
    }

    /// Recvs that wait and whose deadline has passed; recomputes the earliest deadline.
    pub(super) fn overdue(&mut self, now: u64) -> Vec<u32> {
        if self.earliest > now {
            return Vec::new();
        }
        let posted = || self.slots.iter().filter(|(_, slot)| matches!(slot.state, State::Posted | State::Asking));
        self.earliest =
            posted().map(|(_, slot)| slot.deadline).filter(|deadline| *deadline > now).min().unwrap_or(u64::MAX);
        posted().filter(|(_, slot)| slot.deadline <= now).map(|(at, _)| at).collect()
    }

    pub(super) fn earliest(&self) -> u64 {
        self.earliest
    }

    pub(super) fn content(&self, at: u32) -> &Content {
        &self.slots.get(at).content
    }

    /// # Panics
    /// If an invariant is broken.
    pub(super) fn check_invariants(&self) {
        assert!(self.first == NONE || self.table.is_empty(), "recvs are in the list or in the table");
        let mut linked = Vec::new();
        for head in self.table.slots().chain([self.first]) {
            let mut at = head;
            while at != NONE {
                linked.push(at);
                at = self.slots.get(at).next;
            }
        }
        linked.sort_unstable();
        assert!(linked.windows(2).all(|pair| pair[0] != pair[1]), "a slot is in one chain");
        let is_linked = |slot: &Slot<D>| {
            matches!(slot.state, State::Posted | State::Adopted { .. } | State::Unexpected(_) | State::Announced)
        };
        assert_eq!(linked, self.slots.find_all(is_linked), "all that wait, and only they, are found by name");
        let unexpected = self.slots.iter().filter_map(|(_, slot)| match slot.state {
            State::Unexpected(number) | State::Arrived { number, .. } => number,
            _ => None,
        });
        let mut unexpected: Vec<u64> = unexpected.collect();
        unexpected.sort_unstable();
        assert!(
            self.unsettled.iter().eq(&unexpected),
            "a tensor is unsettled if and only if it is unexpected, or is being given to a call"
        );
        assert!(self.unsettled.back().is_none_or(|last| *last < self.arrived));
        for head in self.table.slots() {
            let is_recv =
                |slot: &Slot<D>| matches!(slot.state, State::Posted | State::Adopted { is_announced: false, .. });
            let waits = self.in_chain(head, is_recv).is_some();
            let is_known = self.in_chain(head, |slot| matches!(slot.state, State::Unexpected(_) | State::Announced));
            assert!(!waits || is_known.is_none(), "no recv waits for a tensor that is known");
            let waits = self.in_chain(head, |slot| matches!(slot.state, State::Adopted { .. })).is_some();
            let is_here = self.in_chain(head, |slot| matches!(slot.state, State::Unexpected(_)));
            assert!(!waits || is_here.is_none(), "no recv waits at the switch for a tensor that is here");
        }
    }
}
