//! A daemon that is killed between any two records that it writes for its clients: who heard that a tensor was received may rely on it.

use std::collections::HashSet;
use std::time::Instant;

use sealane_fusion::fuzzing::Clients;
use sealane_fusion::{DType, TensorMeta};
use sealane_transport::shm::{
    CallListBuf, ClientEnd, Completion, NO_TIMEOUT, PayloadAt, Record, SmallCall, Submission,
};

use super::seats::TASKS;
use super::world::node;

const MEMORY_BYTES: u64 = 1 << 20;
const BYTES: [u8; 8] = [7; 8];
const TURNS: usize = 3;
/// More records than a round writes.
const RECORDS_MAX: usize = 64;

/// Tensors that two clients of one shard exchange.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// How many go each way.
    pub tensors: u32,
    /// Each call has a record of its own, instead of one for all.
    pub alone: bool,
    /// The recvs come a turn before the sends, or a turn after.
    pub recvs_first: bool,
}

/// One client, its ring, and what it was told.
struct Process {
    end: ClientEnd,
    record: Record,
    /// Numbers of its sends that it knows were received.
    sent: HashSet<u32>,
    /// Numbers of its recvs whose tensors it has.
    received: HashSet<u32>,
}

/// Plays a round with a daemon that is killed after each number of records; returns how many records a whole round takes.
///
/// # Errors
/// A client was told that a tensor was received which its receiver does not have.
pub fn kill_anywhere(round: Round) -> Result<usize, String> {
    for records in 0..RECORDS_MAX {
        let processes = play(round, records)?;
        for (own, other) in [(0, 1), (1, 0)] {
            let [sender, receiver]: [&Process; 2] = [&processes[own], &processes[other]];
            if let Some(lost) = sender.sent.iter().find(|call| !receiver.received.contains(&(**call - round.tensors))) {
                let (who, lost) = (TASKS[own], lost - round.tensors);
                return Err(format!("{round:?}: {who} relied on its tensor {lost}, lost after {records} records"));
            }
        }
        if processes.iter().all(|process| process.sent.len() == round.tensors as usize) {
            return Ok(records);
        }
    }
    Err(format!("{round:?}: it does not end within {RECORDS_MAX} records"))
}

/// Plays a round up to that many records of the daemon. A tensor's send has the number of its recv, after those of all recvs.
fn play(round: Round, records: usize) -> Result<[Process; 2], String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let mut clients = Clients::new(node(0, &[0, 0])?);
    Clients::is_killed_after(usize::MAX);
    let mut attach = |task| -> Result<Process, String> {
        let (_, mut attached) = clients.attach(task, MEMORY_BYTES, MEMORY_BYTES).map_err(|error| said(&error))?;
        let (end, _) = attached.shards.pop().expect("there is one shard");
        Ok(Process { end, record: Record::new(), sent: HashSet::new(), received: HashSet::new() })
    };
    let mut processes = [attach(0)?, attach(1)?];
    for (process, other) in processes.iter_mut().zip([TASKS[1], TASKS[0]]) {
        process.submit(&Submission::Peer { number: 0, name: other })?;
    }
    Clients::is_killed_after(records);
    for are_recvs in [round.recvs_first, !round.recvs_first] {
        for process in &mut processes {
            process.call(round, are_recvs)?;
        }
        (0..TURNS).for_each(|_| clients.turn(Instant::now()));
    }
    Clients::is_killed_after(usize::MAX);
    processes.iter_mut().try_for_each(Process::read)?;
    Ok(processes)
}

impl Process {
    fn call(&mut self, Round { tensors, alone, .. }: Round, are_recvs: bool) -> Result<(), String> {
        let meta = TensorMeta::new(DType::U8, &[BYTES.len() as u64]).map_err(|error| error.to_string())?;
        let (peer, step, timeout_ms, fail_if_gone) = (0, 1, NO_TIMEOUT, false);
        let mut list = CallListBuf::default();
        for call in 0..tensors {
            let key = format!("layer_{call}/kernel");
            let call = if are_recvs { call } else { tensors + call };
            match (alone, are_recvs) {
                (true, true) => {
                    let (key, destination, fused) = (&*key, None, false);
                    let recv = Submission::Recv { call, peer, step, timeout_ms, key, destination, fused, fail_if_gone };
                    self.submit(&recv)?;
                }
                (true, false) => {
                    let (key, meta, payload) = (&*key, meta.as_wire(), PayloadAt::Inline(&BYTES));
                    self.submit(&Submission::Send { call, peer, step, timeout_ms, key, meta, payload })?;
                }
                (false, true) => assert!(list.push(SmallCall { call, key: &key, meta: &[], bytes: &[] })),
                (false, false) => {
                    assert!(list.push(SmallCall { call, key: &key, meta: meta.as_wire(), bytes: &BYTES }));
                }
            }
        }
        let calls = list.as_list();
        match (alone, are_recvs) {
            (true, _) => Ok(()),
            (false, true) => self.submit(&Submission::RecvMany { peer, step, timeout_ms, calls, fail_if_gone }),
            (false, false) => self.submit(&Submission::SendMany { peer, step, timeout_ms, calls }),
        }
    }

    fn submit(&mut self, submission: &Submission<'_>) -> Result<(), String> {
        submission.encode(&mut self.record).map_err(|error| error.to_string())?;
        self.end.submissions.push(&self.record).map_err(|error| error.to_string())
    }

    /// Reads what the daemon has written.
    fn read(&mut self) -> Result<(), String> {
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        while self.end.completions.pop(&mut self.record).map_err(|error| error.to_string())? {
            match Completion::decode(&self.record).map_err(|error| error.to_string())? {
                Completion::Sent { calls } => sent.extend_from_slice(calls),
                Completion::Arrived { calls } => received.extend(calls.iter().map(|small| small.call)),
                Completion::ArrivedAlone { call, .. } => received.push(call),
                other => return Err(format!("{other:?}")),
            }
        }
        self.received.extend(received);
        self.sent.extend(sent);
        Ok(())
    }
}
