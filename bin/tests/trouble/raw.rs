//! A client that speaks the rings itself, and writes whatever it likes into the memory that it shares with the daemon.

use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use sealane_transport::shm::attach::{AttachError, Attached};
use sealane_transport::shm::{
    ClientEar, ClientEnd, Completion, Doorbell, PushError, Record, SharedMemory, Submission, Woken, segment_bytes,
};

use crate::fixture::{Place, STUCK};

/// How often the processor is left to a daemon that may have something to read: it needs some microseconds.
const YIELDS_MAX: usize = 200;

/// A client of a daemon with one shard.
pub struct Raw {
    pub end: ClientEnd,
    pub arena: SharedMemory,
    doorbell: Doorbell,
    ear: ClientEar,
    record: Record,
}

impl Raw {
    pub fn attach(place: &Place, task: &str) -> Result<Raw, AttachError> {
        let Attached { arena, mut shards, socket, .. } = place.attach(task)?;
        let (end, doorbell) = shards.pop().expect("a daemon has a shard");
        assert!(shards.is_empty());
        Ok(Raw { end, arena, doorbell, ear: ClientEar::new(socket), record: Record::new() })
    }

    /// Writes a submission, of which the daemon is not told.
    pub fn write(&mut self, submission: &Submission<'_>) -> Result<(), PushError> {
        submission.encode(&mut self.record).unwrap();
        self.end.submissions.push(&self.record)
    }

    /// Waits a while for the daemon to read what was written, which it may not want to.
    pub fn let_daemon_read(&mut self) {
        for _ in 0..YIELDS_MAX {
            if self.end.submissions.behind().is_some() {
                thread::yield_now();
            }
        }
    }

    /// The words of a submission, as they would be written.
    pub fn words(&mut self, submission: &Submission<'_>) -> Vec<u64> {
        submission.encode(&mut self.record).unwrap();
        self.record.content().to_vec()
    }

    /// Writes a record that may mean nothing.
    pub fn write_words(&mut self, kind: u8, words: &[u64]) -> Result<(), PushError> {
        self.record.set(kind, words);
        self.end.submissions.push(&self.record)
    }

    /// Wakes the daemon, whatever it says of its sleep.
    pub fn ring(&self) {
        self.doorbell.ring();
    }

    pub fn submit(&mut self, submission: &Submission<'_>) {
        self.write(submission).unwrap();
        self.ring();
    }

    /// The next completion if there is one.
    pub fn look(&mut self) -> Option<Completion<'_>> {
        self.end.completions.pop(&mut self.record).unwrap().then(|| Completion::decode(&self.record).unwrap())
    }

    /// As [`Raw::look`], in a ring that may hold anything.
    pub fn try_look(&mut self) -> Option<Completion<'_>> {
        let is_there = self.end.completions.pop(&mut self.record) == Ok(true);
        is_there.then(|| Completion::decode(&self.record).ok()).flatten()
    }

    /// Whether the daemon has hung up by now.
    pub fn is_hung_up(&self) -> bool {
        self.ear.wait(Some(Duration::ZERO)).unwrap() == Woken::HungUp
    }

    /// The next completion, as it is printed; nothing if the daemon hangs up first.
    pub fn next(&mut self) -> Option<String> {
        self.next_as(|completion| format!("{completion:?}"))
    }

    /// The calls of the next completion, which has their small tensors.
    pub fn arrived(&mut self) -> Vec<u32> {
        let calls = self.next_as(|completion| match completion {
            Completion::Arrived { calls } => calls.iter().map(|small| small.call).collect(),
            Completion::ArrivedAlone { call, .. } => vec![call],
            other => panic!("{other:?}"),
        });
        calls.expect("the daemon goes on")
    }

    fn next_as<T>(&mut self, look: impl Fn(Completion<'_>) -> T) -> Option<T> {
        let stuck = Instant::now() + STUCK;
        loop {
            assert!(Instant::now() < stuck, "no completion comes");
            if let Some(completion) = self.look() {
                return Some(look(completion));
            }
            self.end.completions.publish();
            self.end.own_sleep().announce();
            // What was written before the end is still there.
            if self.end.completions.is_empty()
                && self.ear.wait(Some(STUCK)).unwrap() == Woken::HungUp
                && self.end.completions.is_empty()
            {
                return None;
            }
            self.end.own_sleep().awake();
        }
    }

    /// All words of the segment: the header with heads and flags, the rings, the receive area.
    pub fn memory(&self) -> &[AtomicU64] {
        let len = segment_bytes(self.end.area().len()) as usize;
        let before = segment_bytes(0) as usize;
        // SAFETY: the area lies in one mapping of `len` bytes, `before` of which are in front of it, and which lives as
        // long as `self`; the start is aligned to a page, and of an atomic every value is legal.
        unsafe {
            let start = self.end.area().base().sub(before).cast::<AtomicU64>();
            std::slice::from_raw_parts(start.as_ptr(), len / 8)
        }
    }

    /// All words of the arena.
    pub fn arena_words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping lives as long as `self` and begins at a page; of an atomic every value is legal.
        unsafe { std::slice::from_raw_parts(self.arena.base().cast().as_ptr(), self.arena.len() as usize / 8) }
    }
}

/// How the small tensor of a call is printed that has come alone.
pub fn arrived(call: u32) -> String {
    format!("ArrivedAlone {{ call: {call}, ")
}
