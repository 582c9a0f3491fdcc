//! Steps of one client of a shard that sends to itself: records into the client's ring, turns of the shard, and records out of its ring,
//! written by hand or through calls of the client library.

use std::os::fd::AsFd;
use std::time::Instant;

use sealane::{Attach, Error, Receiving, RecvOptions, RecvOutcome, Sending, Task, Tensor};
use sealane_fusion::fuzzing::Attachment;
use sealane_fusion::{DType, Fuse, TensorMeta};
use sealane_transport::shm::attach::{Attached, GivenLane};
use sealane_transport::shm::{
    CallListBuf, ClientBell, Completion, DirectLane, LaneKeeper, NO_TIMEOUT, PayloadAt, Record, Side, SmallCall,
    Submission,
};

use super::keys;
use crate::two_nodes::{PS, node};

const MEMORY_BYTES: u64 = 1 << 20;
/// The client, which is its own peer.
const TASK: &str = "ps:1";
/// The other client, where there are two.
const OTHER: &str = "worker:1";
const BYTES: [u8; 64] = [7; 64];
/// The client's number for its peer.
const PEER: u16 = 0;
/// Most turns of one step.
const TURNS_MAX: usize = 1_000;

fn attachment() -> Result<(Attachment, Attached), String> {
    let made = Attachment::new(node(PS, TASK, Fuse::Turn)?, 0, MEMORY_BYTES, MEMORY_BYTES);
    made.map_err(|error| error.to_string())
}

/// Sends and receives all tensors of a step at once, each with a record of its own or all in lists; the tensors are short enough to travel
/// in the rings.
pub(super) fn exchanges(tensors: usize, steps: i64, together: bool) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let (mut shard, Attached { mut shards, .. }) = attachment()?;
    let (mut end, _) = shards.pop().expect("there is one shard");
    let (keys, now, mut record) = (keys(tensors), Instant::now(), Record::new());
    let mut lists = <[CallListBuf; 2]>::default();
    let meta = TensorMeta::new(DType::U8, &[64]).map_err(|error| said(&error))?;
    let (peer, timeout_ms, payload) = (PEER, NO_TIMEOUT, PayloadAt::Inline(&BYTES));
    Submission::Peer { number: PEER, name: TASK }.encode(&mut record).map_err(|error| said(&error))?;
    end.submissions.push(&record).map_err(|error| said(&error))?;
    for step in 0..steps {
        let mut submit = |submission: Submission<'_>| -> Result<(), String> {
            submission.encode(&mut record).map_err(|error| said(&error))?;
            end.submissions.push(&record).map_err(|error| said(&error))
        };
        let (destination, fused, fail_if_gone) = (None, false, false);
        for (number, key) in keys.iter().enumerate().filter(|_| !together) {
            let call = 2 * number as u32;
            submit(Submission::Send { call, peer, step, timeout_ms, key, meta: meta.as_wire(), payload })?;
            let call = call + 1;
            submit(Submission::Recv { call, peer, step, timeout_ms, key, destination, fused, fail_if_gone })?;
        }
        if together {
            lists.iter_mut().for_each(CallListBuf::clear);
            for (number, key) in keys.iter().enumerate() {
                let (call, meta) = (2 * number as u32, meta.as_wire());
                let send = SmallCall { call, key, meta, bytes: &BYTES };
                let recv = SmallCall { call: call + 1, key, meta: &[], bytes: &[] };
                if !lists[0].push(send) || !lists[1].push(recv) {
                    return Err("a list is full".into());
                }
            }
            let [sends, recvs] = lists.each_ref().map(CallListBuf::as_list);
            submit(Submission::RecvMany { peer, step, timeout_ms, calls: recvs, fail_if_gone })?;
            submit(Submission::SendMany { peer, step, timeout_ms, calls: sends })?;
        }
        let mut ended = 0;
        for _ in 0..TURNS_MAX {
            if ended == 2 * tensors {
                break;
            }
            shard.turn(now);
            while end.completions.pop(&mut record).map_err(|error| said(&error))? {
                match Completion::decode(&record).map_err(|error| said(&error))? {
                    Completion::Sent { calls } => ended += calls.len(),
                    Completion::Arrived { calls } => ended += calls.len(),
                    Completion::ArrivedAlone { .. } => ended += 1,
                    other => return Err(format!("{other:?}")),
                }
            }
            end.completions.publish();
        }
        if ended != 2 * tensors {
            return Err(format!("{ended} of {} calls ended in step {step}", 2 * tensors));
        }
    }
    Ok(())
}

/// As `exchanges`, through calls of the client library, one for each tensor.
pub(super) fn calls(tensors: usize, steps: i64) -> Result<(), String> {
    let (mut library, mut receivings, mut sendings) = (Library::new()?, Vec::new(), Vec::new());
    let keys = keys(tensors);
    for step in 0..steps {
        for key in &keys {
            receivings.push(library.task.recv(TASK, step, key));
            sendings.push(library.task.send(TASK, step, key, library.tensor.share()));
        }
        library.turn()?;
        for (receiving, sending) in receivings.drain(..).zip(sendings.drain(..)) {
            check(receiving.wait())?;
            sending.wait().map_err(said)?;
        }
    }
    Ok(())
}

/// As `calls`, through calls for many tensors.
pub(super) fn batches(tensors: usize, steps: i64) -> Result<(), String> {
    let (mut library, keys) = (Library::new()?, keys(tensors));
    for step in 0..steps {
        let wanted = keys.iter().map(|key| (key, RecvOptions::default()));
        let receivings = library.task.recv_all(TASK, step, wanted);
        let sendings = library.task.send_all(TASK, step, keys.iter().map(|key| (key, library.tensor.share())));
        library.turn()?;
        Receiving::wait_all(receivings).into_iter().try_for_each(check)?;
        Sending::wait_all(sendings).into_iter().try_for_each(|outcome| outcome.map_err(said))?;
    }
    Ok(())
}

/// Two tasks of the client library, each attached to an idle shard, and a lane between them.
pub(super) struct Neighbours {
    _shards: [Attachment; 2],
    sender: Task,
    receiver: Task,
    tensor: Tensor,
}

impl Neighbours {
    fn new() -> Result<Neighbours, String> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let ((one, to_one), (other, to_other)) = (attachment()?, attachment()?);
        let sender = Attach::new(TASK).attach_to(to_one).map_err(said)?;
        let receiver = Attach::new(OTHER).attach_to(to_other).map_err(said)?;
        let keeper = LaneKeeper::create().map_err(|error| failed(&error))?;
        let memory = keeper.as_fd().try_clone_to_owned().map_err(|error| failed(&error))?;
        for (task, peer, side) in [(&sender, OTHER, Side::First), (&receiver, TASK, Side::Second)] {
            let lane = DirectLane::open(&memory, side).map_err(|error| failed(&error))?;
            let (bell, ear) = ClientBell::between_clients().map_err(|error| failed(&error))?;
            task.open_lane(peer, GivenLane { lane, ear, bell });
        }
        // Each finds the other's end open, and is told that no tensor goes another way.
        for task in [&sender, &receiver, &sender] {
            task.look_at_lanes();
        }
        let tensor = Tensor::from_elements(&[64], &BYTES).map_err(said)?.into_shared();
        Ok(Neighbours { _shards: [one, other], sender, receiver, tensor })
    }
}

/// Sends from one task to the other by a direct lane, one call for each tensor.
pub(super) fn direct_calls(tensors: usize, steps: i64) -> Result<(), String> {
    let (two, mut receivings, mut sendings) = (Neighbours::new()?, Vec::new(), Vec::new());
    let keys = keys(tensors);
    for step in 0..steps {
        for key in &keys {
            receivings.push(two.receiver.recv(TASK, step, key));
            sendings.push(two.sender.send(OTHER, step, key, two.tensor.share()));
        }
        for (receiving, sending) in receivings.drain(..).zip(sendings.drain(..)) {
            check(receiving.wait())?;
            sending.wait().map_err(said)?;
        }
    }
    Ok(())
}

/// As `direct_calls`, with calls for many tensors.
pub(super) fn direct_batches(tensors: usize, steps: i64) -> Result<(), String> {
    let (two, keys) = (Neighbours::new()?, keys(tensors));
    for step in 0..steps {
        let receivings = two.receiver.recv_all(TASK, step, keys.iter().map(|key| (key, RecvOptions::default())));
        let sendings = two.sender.send_all(OTHER, step, keys.iter().map(|key| (key, two.tensor.share())));
        Receiving::wait_all(receivings).into_iter().try_for_each(check)?;
        Sending::wait_all(sendings).into_iter().try_for_each(|outcome| outcome.map_err(said))?;
    }
    Ok(())
}

/// A task of the client library, attached to the shard.
struct Library {
    shard: Attachment,
    task: Task,
    tensor: Tensor,
    now: Instant,
}

impl Library {
    fn new() -> Result<Library, String> {
        let (shard, attached) = attachment()?;
        let task = Attach::new(TASK).attach_to(attached).map_err(said)?;
        let tensor = Tensor::from_elements(&[64], &BYTES).map_err(said)?.into_shared();
        Ok(Library { shard, task, tensor, now: Instant::now() })
    }

    /// A turn of the shard. Everything asked is in the ring and is carried out in this turn, so that no call waits.
    fn turn(&mut self) -> Result<(), String> {
        self.shard.turn(self.now);
        match self.shard.under_way() {
            0 => Ok(()),
            calls => Err(format!("{calls} calls have not ended")),
        }
    }
}

fn check(received: RecvOutcome) -> Result<(), String> {
    let tensor = received.map_err(|unreceived| said(unreceived.error))?;
    if tensor.bytes() == BYTES { Ok(()) } else { Err("other bytes came".into()) }
}

fn said(error: Error) -> String {
    error.to_string()
}
