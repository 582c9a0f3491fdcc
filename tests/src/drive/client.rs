//! Steps of clients: one that sends to itself, by records that are written by hand into its ring, turns of the shard, and records out of its
//! ring; and two that use the calls of the client library.

use std::os::fd::AsFd;
use std::time::Instant;

use sealane::{Attach, Error, Receiving, RecvOptions, RecvOutcome, Sending, Task, Tensor};
use sealane_fusion::fuzzing::{Attachment, Clients};
use sealane_fusion::{DType, Fuse, TensorMeta};
use sealane_transport::shm::attach::{Attached, GivenLane, LaneBells};
use sealane_transport::shm::{
    CallListBuf, ClientBell, Completion, DirectLane, LaneKeeper, NO_TIMEOUT, PayloadAt, Record, Side, SmallCall,
    Submission,
};

use super::keys;
use crate::client_simulation::{self, LaneKind, TASKS};
use crate::two_nodes::{PS, node};

const MEMORY_BYTES: u64 = 1 << 20;
/// The client, which is its own peer.
const TASK: &str = "ps:1";
/// Two clients of a shard.
const SENDER: &str = TASKS[0];
const RECEIVER: &str = TASKS[1];
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

/// Sends from one client to another, one call of the client library for each tensor.
pub(super) fn calls(lanes: LaneKind, tensors: usize, steps: i64) -> Result<(), String> {
    let (mut two, mut receivings, mut sendings) = (TwoClients::new(lanes)?, Vec::new(), Vec::new());
    let keys = keys(tensors);
    for step in 0..steps {
        for key in &keys {
            receivings.push(two.receiver.recv(SENDER, step, key));
            sendings.push(two.sender.send(RECEIVER, step, key, two.tensor.share()));
        }
        two.turn();
        receivings.drain(..).try_for_each(|receiving| check(receiving.wait()))?;
        two.turn();
        sendings.drain(..).try_for_each(|sending| sending.wait().map_err(said))?;
    }
    Ok(())
}

/// As `calls`, with calls for many tensors.
pub(super) fn batches(lanes: LaneKind, tensors: usize, steps: i64) -> Result<(), String> {
    let (mut two, keys) = (TwoClients::new(lanes)?, keys(tensors));
    for step in 0..steps {
        let receivings = two.receiver.recv_all(SENDER, step, keys.iter().map(|key| (key, RecvOptions::default())));
        let sendings = two.sender.send_all(RECEIVER, step, keys.iter().map(|key| (key, two.tensor.share())));
        two.turn();
        Receiving::wait_all(receivings).into_iter().try_for_each(check)?;
        two.turn();
        Sending::wait_all(sendings).into_iter().try_for_each(|outcome| outcome.map_err(said))?;
    }
    Ok(())
}

/// Two tasks of the client library, attached to one shard, with lanes between them.
struct TwoClients {
    shard: Clients,
    lanes: LaneKind,
    sender: Task,
    receiver: Task,
    tensor: Tensor,
    now: Instant,
}

impl TwoClients {
    fn new(lanes: LaneKind) -> Result<TwoClients, String> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let mut shard = Clients::new(client_simulation::node(0, &[0, 0])?);
        let mut attach = |task| shard.attach(task, MEMORY_BYTES, MEMORY_BYTES).map_err(|error| failed(&error));
        let ((one, to_one), (other, to_other)) = (attach(0)?, attach(1)?);
        let sender = Attach::new(SENDER).attach_to(to_one).map_err(said)?;
        let receiver = Attach::new(RECEIVER).attach_to(to_other).map_err(said)?;
        let keepers = [LaneKeeper::create(), LaneKeeper::create()].map(|made| made.map_err(|error| failed(&error)));
        let [keeper, others] = keepers;
        let (keeper, others) = (keeper?, others?);
        let is_direct = lanes == LaneKind::Direct;
        let second = if is_direct { (&keeper, Side::Second) } else { (&others, Side::First) };
        if !is_direct {
            let lanes = [&keeper, &others].map(|keeper| keeper.open(Side::Second));
            shard.connect([one, other], lanes, Instant::now());
        }
        for (task, peer, (keeper, side)) in [(&sender, RECEIVER, (&keeper, Side::First)), (&receiver, SENDER, second)] {
            let memory = keeper.as_fd().try_clone_to_owned().map_err(|error| failed(&error))?;
            let lane = DirectLane::open(&memory, side).map_err(|error| failed(&error))?;
            let (bell, ear) = ClientBell::between_clients().map_err(|error| failed(&error))?;
            task.open_lane(peer, GivenLane { lane, bells: is_direct.then_some(LaneBells { ear, bell }) });
        }
        let tensor = Tensor::from_elements(&[64], &BYTES).map_err(said)?.into_shared();
        let mut two = TwoClients { shard, lanes, sender, receiver, tensor, now: Instant::now() };
        // Each finds the other's end open, and learns that no tensor goes another way.
        for _ in 0..2 {
            two.turn();
            [&two.sender, &two.receiver].into_iter().for_each(Task::look_at_lanes);
        }
        two.turn();
        two.sender.look_at_lanes();
        Ok(two)
    }

    /// A turn of the shard, if that is between the two.
    fn turn(&mut self) {
        if self.lanes == LaneKind::Switched {
            self.shard.turn(self.now);
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
