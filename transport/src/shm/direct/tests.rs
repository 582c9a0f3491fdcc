use std::{collections::VecDeque, sync::atomic::Ordering};

use super::{
    DirectLane, FATE_AT, Fate, LaneCopy, LaneKeeper, LaneReceiver, LaneRecord, LaneSender, Note, Side, Standing,
    WITHDRAWAL, heap::Heap, queued,
};
use crate::shm::limits::{LANE_NOTES_TOGETHER, LANE_SECTION_WORDS};

const ENTRIES: usize = 2;

fn record(value: u64) -> LaneRecord<'static> {
    LaneRecord::ByDaemon { step: value as i64, key: "w" }
}

/// Both ends, and what each knows of the records.
struct Both {
    sender: LaneSender<Heap<ENTRIES>>,
    receiver: LaneReceiver<Heap<ENTRIES>>,
    /// Entry and record of what the sender has sent and not got back.
    away: Vec<(u16, u64)>,
    /// Entry and record of what the receiver has read and not decided.
    waiting: VecDeque<(u16, u64)>,
    sent: u64,
    received: Vec<u64>,
    withdrawn: Vec<u64>,
    /// The fate of each record that came back to the sender.
    told: Vec<(u64, Fate)>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send,
    WithdrawFirst,
    WithdrawLast,
    Return,
    Note,
    SettleFirst,
    SettleLast,
    Publish,
    PublishReturns,
}

const STEPS: [Step; 9] = [
    Step::Send,
    Step::WithdrawFirst,
    Step::WithdrawLast,
    Step::Return,
    Step::Note,
    Step::SettleFirst,
    Step::SettleLast,
    Step::Publish,
    Step::PublishReturns,
];

impl Both {
    fn new() -> Self {
        let memory = Heap::new();
        let (sender, receiver) = (LaneSender::new(memory.clone()), LaneReceiver::new(memory));
        let (away, waiting) = (Vec::new(), VecDeque::new());
        Self { sender, receiver, away, waiting, sent: 0, received: vec![], withdrawn: vec![], told: vec![] }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send => {
                let entry = self.sender.send(&record(self.sent));
                assert_eq!(entry.is_some(), self.away.len() < ENTRIES, "an entry would be lost, or used twice");
                if let Some(entry) = entry {
                    self.away.push((entry, self.sent));
                    self.sent += 1;
                }
            }
            Step::WithdrawFirst => self.withdraw(self.away.first().copied()),
            Step::WithdrawLast => self.withdraw(self.away.last().copied()),
            Step::Return => {
                if let Some(returned) = self.sender.next_returned().unwrap() {
                    let place = self.away.iter().position(|(entry, _)| *entry == returned.entry).unwrap();
                    self.told.push((self.away.remove(place).1, returned.fate));
                }
            }
            Step::Note => match self.receiver.next_note().unwrap() {
                Some(Note::Sent(entry)) => {
                    let mut loaded = LaneCopy::new();
                    self.receiver.load(entry, &mut loaded).unwrap();
                    let Ok(LaneRecord::ByDaemon { step, .. }) = loaded.record() else {
                        panic!("{:?}", loaded.record())
                    };
                    self.waiting.push_back((entry, step as u64));
                }
                Some(Note::Withdrawn(entry)) => self.waiting.retain(|(other, _)| *other != entry),
                None => {}
            },
            Step::SettleFirst => self.settle(true),
            Step::SettleLast => self.settle(false),
            Step::Publish => self.sender.publish(),
            Step::PublishReturns => self.receiver.publish(),
        }
    }

    fn withdraw(&mut self, which: Option<(u16, u64)>) {
        if let Some((entry, value)) = which
            && self.sender.withdraw(entry)
        {
            self.withdrawn.push(value);
        }
    }

    fn settle(&mut self, first: bool) {
        let place = if first { 0 } else { self.waiting.len().wrapping_sub(1) };
        if let Some(&(entry, value)) = self.waiting.get(place) {
            // A withdrawn entry stays until its sender's note says so.
            if self.receiver.settle(entry, Fate::Taken) {
                self.waiting.remove(place);
                self.received.push(value);
            }
        }
    }

    /// Lets both ends read and decide everything, and checks the result.
    fn check(mut self, steps: &[Step]) {
        self.step(Step::Publish);
        while self.receiver.has_note() || !self.waiting.is_empty() {
            self.step(Step::Note);
            self.step(Step::SettleFirst);
        }
        self.step(Step::PublishReturns);
        while self.sender.has_returned() {
            self.step(Step::Return);
        }
        assert_eq!((self.away.len(), self.sender.away()), (0, 0), "an entry is lost after {steps:?}");
        let mut ended = [&self.received[..], &self.withdrawn].concat();
        ended.sort_unstable();
        assert_eq!(ended, (0..self.sent).collect::<Vec<_>>(), "of {steps:?} one ended twice, or never");
        for (value, fate) in &self.told {
            let fates = (self.received.contains(value), self.withdrawn.contains(value));
            assert_eq!(fates, (*fate == Fate::Taken, *fate == Fate::Withdrawn), "{value} after {steps:?}");
        }
        assert_eq!(self.told.len() as u64, self.sent, "{steps:?}");
    }
}

#[test]
fn whatever_the_order_each_record_is_received_or_withdrawn_once() {
    const LENGTH: usize = 6;
    for number in 0..STEPS.len().pow(LENGTH as u32) {
        let mut rest = number;
        let steps: [Step; LENGTH] = std::array::from_fn(|_| {
            let step = STEPS[rest % STEPS.len()];
            rest /= STEPS.len();
            step
        });
        let mut both = Both::new();
        steps.iter().for_each(|step| both.step(*step));
        both.check(&steps);
    }
}

#[test]
fn queues_go_round_and_each_entry_is_used_again() {
    let mut both = Both::new();
    for round in 0..100 {
        let sent = [Step::Send, Step::Publish, Step::Note, Step::Send, Step::WithdrawLast, Step::Publish];
        let settled = [Step::SettleFirst, Step::Note, Step::Note, Step::PublishReturns];
        sent.iter().chain(&settled).for_each(|step| both.step(*step));
        (0..2).for_each(|_| both.step(Step::Return));
        assert_eq!((both.away.len(), both.received.len(), both.withdrawn.len()), (0, round + 1, round + 1));
    }
    both.check(&[]);
}

#[test]
fn as_many_notes_or_returns_as_are_told_together_are_told_at_once() {
    let memory = Heap::<{ 2 * LANE_NOTES_TOGETHER }>::new();
    let (mut sender, mut receiver) = (LaneSender::new(memory.clone()), LaneReceiver::new(memory));
    let mut entries = Vec::new();
    for value in 0..LANE_NOTES_TOGETHER as u64 {
        assert!(!receiver.has_note());
        entries.push(sender.send(&record(value)).unwrap());
    }
    for entry in &entries {
        assert_eq!(receiver.next_note().unwrap(), Some(Note::Sent(*entry)));
    }
    for entry in &entries {
        assert!(!sender.has_returned());
        assert!(receiver.settle(*entry, Fate::Taken));
    }
    for entry in &entries {
        assert_eq!(sender.next_returned().unwrap().unwrap().entry, *entry);
    }
}

#[test]
fn what_is_longer_than_an_entry_is_not_sent() {
    let mut sender = LaneSender::new(Heap::<ENTRIES>::new());
    let key = "k".repeat(8 * LANE_SECTION_WORDS + 1);
    let record = |len| LaneRecord::ByDaemon { step: 1, key: &key[..len] };
    assert_eq!((sender.send(&record(8 * LANE_SECTION_WORDS + 1)), sender.away()), (None, 0));
    let entry = sender.send(&record(8 * LANE_SECTION_WORDS)).unwrap();
    let mut loaded = LaneCopy::new();
    sender.load(entry, &mut loaded);
    assert_eq!(loaded.record(), Ok(record(8 * LANE_SECTION_WORDS)));
}

#[test]
fn a_sender_that_says_what_cannot_be_is_found_out() {
    let says = |values: &[u64]| {
        let memory = Heap::<ENTRIES>::new();
        for (position, value) in values.iter().enumerate() {
            memory.notes[position].store(queued(position as u64, 2 * ENTRIES, *value), Ordering::Relaxed);
        }
        let mut receiver = LaneReceiver::new(memory);
        (0..values.len()).find_map(|_| receiver.next_note().err()).map(|broken| broken.what)
    };
    assert_eq!(says(&[0, 1]), None);
    for wrong in [2, 0xffff, 1 << 17, u64::from(u32::MAX)] {
        assert!(says(&[wrong]).unwrap().contains("there is not"), "{wrong:x}");
    }
    assert!(says(&[1, 1]).unwrap().contains("sent again"));
    assert!(says(&[WITHDRAWAL]).unwrap().contains("was not sent"));
    // The note says that it was withdrawn, but its state does not.
    assert!(says(&[0, WITHDRAWAL]).unwrap().contains("was not sent"));

    let memory = Heap::<ENTRIES>::new();
    memory.entries[0][1].store(0xffff << 16, Ordering::Relaxed);
    let receiver = LaneReceiver::new(memory);
    assert!(receiver.load(0, &mut LaneCopy::new()).is_err());
}

#[test]
fn a_receiver_that_returns_what_it_cannot_is_found_out() {
    let returns = |entries: &[u64], fate: u64, is_withdrawn: bool| {
        let memory = Heap::<ENTRIES>::new();
        let mut sender = LaneSender::new(memory.clone());
        assert_eq!(sender.send(&record(1)), Some(0));
        assert!(!is_withdrawn || sender.withdraw(0));
        for (position, entry) in entries.iter().enumerate() {
            let word = queued(position as u64, ENTRIES, fate << FATE_AT | entry);
            memory.returns[position].store(word, Ordering::Relaxed);
        }
        (0..entries.len()).find_map(|_| sender.next_returned().err()).map(|broken| broken.what)
    };
    let (taken, withdrawn) = (Fate::Taken.state(), Fate::Withdrawn.state());
    assert_eq!((returns(&[0], taken, false), returns(&[0], withdrawn, true)), (None, None));
    for not_away in [&[1][..], &[0, 0], &[2], &[0xffff]] {
        assert!(returns(not_away, taken, false).unwrap().contains("not away"), "{not_away:?}");
    }
    for undecided in [0, 1, 9, 0xffff] {
        assert!(returns(&[0], undecided, false).unwrap().contains("cannot have become"), "{undecided}");
    }
    assert!(returns(&[0], withdrawn, false).unwrap().contains("cannot have become"), "nobody has withdrawn it");
    assert!(returns(&[0], taken, true).unwrap().contains("cannot have become"), "its sender has it back");
}

#[test]
fn two_ends_of_one_memory_speak_to_each_other_until_one_goes() {
    let keeper = LaneKeeper::create().unwrap();
    let descriptor = std::os::fd::AsFd::as_fd(&keeper).try_clone_to_owned().unwrap();
    let [mut one, mut other] = [Side::First, Side::Second].map(|side| DirectLane::open(&descriptor, side).unwrap());
    assert_eq!(one.other(), Standing::Absent);
    other.arrive();
    assert_eq!((one.other(), other.other()), (Standing::Here, Standing::Absent));
    one.arrive();
    let entry = one.sender.send(&record(9)).unwrap();
    assert!(!other.has_news());
    one.sender.publish();
    assert!(other.has_news());
    assert_eq!(other.receiver.next_note().unwrap(), Some(Note::Sent(entry)));
    assert!(other.receiver.settle(entry, Fate::Duplicate));
    other.receiver.publish();
    assert_eq!(one.sender.next_returned().unwrap().unwrap().fate, Fate::Duplicate);
    assert!(!one.has_news() && !other.has_news() && !keeper.has_ended());
    other.leave();
    assert_eq!((one.other(), keeper.has_ended(), one.has_news()), (Standing::Gone, true, true));
    keeper.end(Side::First);
    one.arrive();
    assert_eq!((one.other(), other.other()), (Standing::Gone, Standing::Gone), "an end that comes too late");
    keeper.abandon();
    assert_eq!((one.other(), other.other()), (Standing::Abandoned, Standing::Abandoned));
}
