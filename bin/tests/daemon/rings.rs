//! Calls of a client with one shard that reads and writes the rings' records itself.

use sealane_fusion::{DType, TensorMeta};
use sealane_transport::shm::{NO_TIMEOUT, PayloadAt, Submission};

use crate::fixture::Place;
use crate::raw::Raw;

/// The number of the client's only peer.
const PEER: u16 = 0;

/// The step of all calls.
const STEP: i64 = 1;

/// An attached client.
pub struct Client(Raw);

impl Client {
    /// Attaches as a task whose only peer is `peer`.
    pub fn attach(place: &Place, task: &str, peer: &str) -> Client {
        let mut raw = Raw::attach(place, task).unwrap();
        raw.submit(&Submission::Peer { number: PEER, name: peer });
        Client(raw)
    }

    pub fn recv(&mut self, call: u32, key: &str) {
        self.0.submit(&Submission::Recv {
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
        self.0.submit(&Submission::Send { call, peer: PEER, step: STEP, timeout_ms: NO_TIMEOUT, key, meta, payload });
    }

    /// The next completion, formatted.
    pub fn next(&mut self) -> String {
        self.next_before_the_end().expect("the daemon closed the connection")
    }

    /// Like [`Client::next`]; `None` if the daemon hangs up first, which ends every call too.
    pub fn next_before_the_end(&mut self) -> Option<String> {
        self.0.next()
    }
}
