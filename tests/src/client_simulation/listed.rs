//! Calls of clients in lists and one by one: whatever two clients do, each of their calls ends in the same way.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use sealane_fusion::fuzzing::Clients;
use sealane_fusion::{DType, TensorMeta};
use sealane_transport::Handle;
use sealane_transport::shm::{
    CallListBuf, ClientEnd, Completion, NO_TIMEOUT, PayloadAt, Record, SmallCall, Submission,
};

use super::seats::TASKS;
use super::world::node;

const MEMORY_BYTES: u64 = 1 << 20;
const BYTES: [u8; 8] = [7; 8];
const SHORT_MS: u32 = 5;
/// Longer than that, and than recvs wait as a list.
const LONG: Duration = Duration::from_millis(20);
const STEPS: i64 = 2;

/// What one of the clients does.
#[derive(Debug, Clone, Copy)]
pub enum Deed {
    /// Asks for tensors, or sends some: those of these numbers.
    Calls {
        are_recvs: bool,
        step: i64,
        first: u32,
        count: u32,
        is_short: bool,
    },
    /// Sends tensors, of which the last has metadata of another.
    SendsOne {
        step: i64,
        first: u32,
        count: u32,
    },
    /// Gives up one of its calls.
    GivesUp {
        call: u32,
    },
    Aborts {
        step: i64,
    },
    Cleans {
        step: i64,
    },
    Leaves,
    /// Time passes.
    Waits,
}

/// How the calls of two clients ended, by client and call, and what the node has counted.
pub type Outcomes = (BTreeMap<(usize, u32), String>, [u64; 4]);

struct Client {
    handle: Handle,
    end: ClientEnd,
    record: Record,
    calls: u32,
    /// What it has asked for and sent: each once, as two of one name are each other's fault.
    made: HashSet<(bool, i64, u32)>,
}

/// Lets the clients do this, with a record for all calls that are made `together`, or with one for each.
///
/// # Errors
/// A call has not ended, or the engine says something else.
pub fn outcomes(deeds: &[(usize, Deed)], together: bool) -> Result<Outcomes, String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let (mut now, mut ended) = (Instant::now(), BTreeMap::new());
    let mut clients = Clients::new(node(0, &[0, 0])?);
    let mut all = Vec::new();
    for (task, other) in [(0, TASKS[1]), (1, TASKS[0])] {
        let (handle, mut attached) = clients.attach(task, MEMORY_BYTES, MEMORY_BYTES).map_err(|error| said(&error))?;
        let (end, _) = attached.shards.pop().expect("there is one shard");
        let mut client = Client { handle, end, record: Record::new(), calls: 0, made: HashSet::new() };
        client.submit(&Submission::Peer { number: 0, name: other })?;
        all.push(Some(client));
    }
    for (number, deed) in deeds {
        if let Deed::Waits = deed {
            wait(&mut clients, &mut now);
        }
        match (&mut all[*number], deed) {
            (Some(client), Deed::Leaves) => {
                clients.dismiss(client.handle, "it has left");
                all[*number] = None;
            }
            (Some(client), deed) => client.act(*deed, together)?,
            (None, _) => {}
        }
        (0..2).for_each(|_| clients.turn(now));
        for (number, client) in all.iter_mut().enumerate() {
            client.iter_mut().try_for_each(|client| client.read(number, &mut ended))?;
        }
    }
    wait(&mut clients, &mut now);
    for (task, step) in (0..2).flat_map(|task| (0..STEPS).map(move |step| (task, step))) {
        clients.node.abort(task, step, "it is over");
    }
    (0..2).for_each(|_| clients.turn(now));
    for (number, client) in all.iter_mut().enumerate() {
        let Some(client) = client else { continue };
        client.read(number, &mut ended)?;
        let calls = (0..client.calls).filter(|call| !ended.contains_key(&(number, *call))).collect::<Vec<_>>();
        if !calls.is_empty() || clients.under_way(client.handle) > 0 || clients.is_closed(client.handle) {
            return Err(format!("calls {calls:?} of client {number} have not ended"));
        }
    }
    let counters = clients.node.counters();
    let counted = [counters.tensors_sent, counters.bytes_sent, counters.tensors_received, counters.bytes_received];
    Ok((ended, counted))
}

/// Time passes: first lists of calls are entered one by one, then those end whose deadline has passed.
fn wait(clients: &mut Clients, now: &mut Instant) {
    for _ in 0..2 {
        *now += LONG;
        clients.turn(*now);
    }
}

impl Client {
    fn act(&mut self, deed: Deed, together: bool) -> Result<(), String> {
        match deed {
            Deed::Calls { are_recvs, step, first, count, is_short } => {
                let timeout_ms = if is_short { SHORT_MS } else { NO_TIMEOUT };
                self.call(are_recvs, step, first..first + count, (timeout_ms, false), together)
            }
            Deed::SendsOne { step, first, count } => {
                self.call(false, step, first..first + count, (NO_TIMEOUT, true), together)
            }
            Deed::GivesUp { call } => match call < self.calls {
                true => self.submit(&Submission::Cancel { call }),
                false => Ok(()),
            },
            Deed::Aborts { step } => self.submit(&Submission::Abort { step, reason: "it is over" }),
            Deed::Cleans { step } => self.submit(&Submission::Cleanup { step }),
            Deed::Leaves | Deed::Waits => Ok(()),
        }
    }

    fn call(
        &mut self,
        are_recvs: bool,
        step: i64,
        tensors: std::ops::Range<u32>,
        (timeout_ms, is_wrong): (u32, bool),
        together: bool,
    ) -> Result<(), String> {
        let metas = [BYTES.len(), 3].map(|len| TensorMeta::new(DType::U8, &[len as u64]).expect("a shape"));
        let (peer, fail_if_gone, last) = (0, false, tensors.end - 1);
        let mut list = CallListBuf::default();
        for tensor in tensors {
            if !self.made.insert((are_recvs, step, tensor)) {
                continue;
            }
            let (key, call) = (format!("layer_{tensor}"), self.calls);
            self.calls += 1;
            let meta = metas[usize::from(is_wrong && tensor == last)].as_wire();
            let (meta, bytes): (&[u8], &[u8]) = if are_recvs { (&[], &[]) } else { (meta, &BYTES) };
            if together {
                assert!(list.push(SmallCall { call, key: &key, meta, bytes }));
            } else if are_recvs {
                let (key, destination, fused) = (&*key, None, true);
                self.submit(&Submission::Recv { call, peer, step, timeout_ms, key, destination, fused, fail_if_gone })?;
            } else {
                let (key, payload) = (&*key, PayloadAt::Inline(bytes));
                self.submit(&Submission::Send { call, peer, step, timeout_ms, key, meta, payload })?;
            }
        }
        let calls = list.as_list();
        match are_recvs {
            _ if calls.is_empty() => Ok(()),
            true => self.submit(&Submission::RecvMany { peer, step, timeout_ms, calls, fail_if_gone }),
            false => self.submit(&Submission::SendMany { peer, step, timeout_ms, calls }),
        }
    }

    fn submit(&mut self, submission: &Submission<'_>) -> Result<(), String> {
        submission.encode(&mut self.record).map_err(|error| error.to_string())?;
        self.end.submissions.push(&self.record).map_err(|error| error.to_string())
    }

    /// Reads what the daemon has written.
    fn read(&mut self, number: usize, ended: &mut BTreeMap<(usize, u32), String>) -> Result<(), String> {
        while self.end.completions.pop(&mut self.record).map_err(|error| error.to_string())? {
            let mut end = |call, how: String| match ended.insert((number, call), how) {
                None => Ok(()),
                Some(before) => Err(format!("call {call} of client {number} has ended twice, first: {before}")),
            };
            match Completion::decode(&self.record).map_err(|error| error.to_string())? {
                Completion::Sent { calls } => calls.iter().try_for_each(|call| end(*call, "sent".into()))?,
                Completion::Arrived { calls } => {
                    for SmallCall { call, meta, bytes, .. } in calls.iter() {
                        end(call, format!("{meta:?} {bytes:?}"))?;
                    }
                }
                Completion::ArrivedAlone { call, meta, bytes } => end(call, format!("{meta:?} {bytes:?}"))?,
                Completion::Failed { call, error, .. } => end(call, format!("{:?}", error.code()))?,
                other => return Err(format!("{other:?}")),
            }
        }
        self.end.completions.publish();
        Ok(())
    }
}
