//! The first words of a connection: hello, welcome and reject.

use sealane_transport::limits::{HELLO_BYTES_MAX, NAME_BYTES_MAX, REASON_BYTES_MAX, TASKS_PER_HELLO};
use sealane_transport::wire::{Greeting, Hello, PREFACE_BYTES, PROOF_BYTES, Reject, RejectCode};

use super::assert_says;

/// Reads a greeting; it is written again and must read the same.
pub(super) fn run(input: &[u8]) {
    let (greeting, length) = match Greeting::parse(input) {
        Ok(None) => return,
        Err(error) => return assert_says(&error),
        Ok(Some(read)) => read,
    };
    assert!(length <= PREFACE_BYTES + HELLO_BYTES_MAX);
    match &greeting {
        Greeting::Hello(hello) | Greeting::Welcome(hello) => {
            assert!(hello.tasks.len() <= TASKS_PER_HELLO && hello.shard < hello.shards);
            assert!(hello.tasks.iter().chain([&hello.address]).all(|name| name.len() <= NAME_BYTES_MAX));
        }
        Greeting::Reject(reject) => assert!(reject.reason.len() <= REASON_BYTES_MAX),
        Greeting::Challenge(_) | Greeting::Proof(_) => assert_eq!(length, PREFACE_BYTES + PROOF_BYTES),
    }
    let written = greeting.to_bytes();
    assert_eq!(Greeting::parse(&written), Ok(Some((greeting, written.len()))));
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let hello = |tasks: &[&str]| Hello {
        features: 1,
        incarnation: 77,
        remembers: 78,
        tensor_bytes_max: 1 << 30,
        epoch: 2,
        shards: 4,
        shard: 3,
        lane: 9,
        address: "10.0.0.1:7000".into(),
        job: Some("train-7".parse().expect("a valid name")),
        tasks: tasks.iter().map(|task| (*task).to_owned()).collect(),
    };
    let reject = Reject { code: RejectCode::Full, reason: "4096 links".into() };
    let greetings = [
        Greeting::Hello(hello(&["10.0.0.1:2222", "ps1:2223"])),
        Greeting::Welcome(hello(&[])),
        Greeting::Reject(reject),
        Greeting::Challenge([7; PROOF_BYTES]),
        Greeting::Proof([9; PROOF_BYTES]),
    ];
    greetings.iter().map(Greeting::to_bytes).collect()
}
