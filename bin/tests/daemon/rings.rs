//! A client with one shard that reads and writes the rings' records itself.

use std::time::Instant;

use sealane_fusion::{DType, TensorMeta};
use sealane_transport::shm::attach::Attached;
use sealane_transport::shm::{
    ClientEar, ClientEnd, Completion, Doorbell, NO_TIMEOUT, PayloadAt, Record, Submission, Woken,
};

use crate::fixture::STUCK;

/// The number of the client's only peer.
const PEER: u16 = 0;

/// The step of all calls.
const STEP: i64 = 1;

/// An attached client.
pub struct Client {
    end: ClientEnd,
    doorbell: Doorbell,
    ear: ClientEar,
    record: Record,
}

impl Client {
    /// A client whose only peer is `peer`.
    pub fn new(mut attached: Attached, peer: &str) -> Client {
        let (end, doorbell) = attached.shards.pop().unwrap();
        assert!(attached.shards.is_empty());
        let mut client = Client { end, doorbell, ear: ClientEar::new(attached.socket), record: Record::new() };
        client.submit(&Submission::Peer { number: PEER, name: peer });
        client
    }

    fn submit(&mut self, submission: &Submission<'_>) {
        submission.encode(&mut self.record).unwrap();
        self.end.submissions.push(&self.record).unwrap();
        if self.end.daemon_sleep().must_ring() {
            self.doorbell.ring();
        }
    }

    pub fn recv(&mut self, call: u32, key: &str) {
        self.submit(&Submission::Recv {
            call,
            peer: PEER,
            step: STEP,
            timeout_ms: NO_TIMEOUT,
            key,
            destination: None,
            fused: false,
            fail_if_gone: false,
        });
    }

    /// Sends one byte to the client's peer.
    pub fn send(&mut self, call: u32, key: &str) {
        let meta = TensorMeta::new(DType::U8, &[1]).unwrap();
        let (meta, payload) = (meta.as_wire(), PayloadAt::Inline(&[7]));
        self.submit(&Submission::Send { call, peer: PEER, step: STEP, timeout_ms: NO_TIMEOUT, key, meta, payload });
    }

    /// The next completion, formatted.
    pub fn next(&mut self) -> String {
        self.next_before_the_end().expect("the daemon closed the connection")
    }

    /// Like [`Client::next`]; `None` if the daemon hangs up first, which ends every call too.
    pub fn next_before_the_end(&mut self) -> Option<String> {
        let stuck = Instant::now() + STUCK;
        loop {
            assert!(Instant::now() < stuck, "no completion comes");
            if self.end.completions.pop(&mut self.record).unwrap() {
                return Some(format!("{:?}", Completion::decode(&self.record).unwrap()));
            }
            self.end.own_sleep().announce();
            if self.end.completions.is_empty() {
                let woken = self.ear.wait(Some(STUCK)).unwrap();
                // Completions written before the end can still be read.
                if woken == Woken::HungUp && self.end.completions.is_empty() {
                    return None;
                }
            }
            self.end.own_sleep().awake();
        }
    }
}
