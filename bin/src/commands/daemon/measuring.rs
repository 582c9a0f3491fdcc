//! Measures the links to all peers, for `sealane check --measure`: on a thread of its own, which also answers the caller.
//!
//! Threads: one per measurement. Limits: [`Turn`], [`PEERS_MAX`], and [`TIME_MAX`] for all peers together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sealane_fusion::{EndpointMap, Engine};
use sealane_transport::Error;
use sealane_transport::shm::attach;

use super::connections::Connection;
use crate::measurement::{Figures, Measurement, Measurements, SCHEMA};

/// Most peers in one measurement: each of them still gets a tenth of a second.
const PEERS_MAX: usize = 64;
/// When the measurement of the last peer begins, at the latest: it may take two seconds more, and the answer arrives within ten.
const TIME_MAX: Duration = Duration::from_secs(7);
/// Time limit for a peer: enough for some ten bursts.
const PEER_TIME_MAX: Duration = Duration::from_secs(1);
/// How long peers may take to connect and to answer the first tensor; all are tried at the same time.
const ANSWER_TIME: Duration = Duration::from_millis(1500);

static IN_PROGRESS: AtomicBool = AtomicBool::new(false);

/// The right to measure: one measurement of a process at a time.
pub(super) struct Turn(());

impl Turn {
    /// `None` if a measurement is in progress.
    pub(super) fn take() -> Option<Turn> {
        (!IN_PROGRESS.swap(true, Ordering::Relaxed)).then(|| Turn(()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        IN_PROGRESS.store(false, Ordering::Relaxed);
    }
}

/// Measures the links to the peers in `map`, and sends the results on the connection `asking`, which is then closed.
pub(super) fn answer(engine: Engine, map: Arc<EndpointMap>, asking: Connection, turn: Turn) {
    let measure = move || {
        let _turn = turn;
        let measurements = Measurements { schema: SCHEMA.to_owned(), peers: measure_all(&engine, &map) };
        let text = serde_json::to_vec(&measurements).expect("texts and numbers are JSON");
        if let Err(error) = attach::show_figures(&asking.socket, &text) {
            tracing::debug!(%error, pid = asking.peer.pid, "results of a measurement could not be sent");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("sealane-measure".into()).spawn(measure) {
        tracing::warn!(%error, "no thread is available to measure links");
    }
}

fn measure_all(engine: &Engine, map: &EndpointMap) -> Vec<Measurement> {
    let begun = Instant::now();
    let own = engine.addresses();
    let others = map.addresses().filter(|address| !own.contains(address));
    let named = others.filter_map(|address| Some((address, map.tasks_at(address).next()?.as_str())));
    let peers: Vec<_> = named.collect();
    let tasks = engine.tasks();
    let Some(task) = tasks.first().map(|task| task.as_str()) else { return Vec::new() };
    let greeted: Vec<_> = peers.iter().take(PEERS_MAX).map(|(_, peer)| engine.greet(task, peer, ANSWER_TIME)).collect();
    let mut greeted: Vec<Result<(), Error>> = greeted
        .into_iter()
        .map(|greeted| greeted.wait().unwrap_or_else(|error| Err(Error::unavailable("this engine", error.to_string()))))
        .collect();
    let reason = || format!("one measurement covers at most {PEERS_MAX} peers");
    greeted.resize_with(peers.len(), || Err(Error::full("measured peers", reason())));
    let answering = greeted.iter().filter(|greeted| greeted.is_ok()).count();
    let time = TIME_MAX.saturating_sub(begun.elapsed()) / answering.max(1) as u32;
    let measure = |peer: &str| match begun.elapsed() < TIME_MAX {
        true => engine.measure(task, peer, time.min(PEER_TIME_MAX)),
        false => Err(Error::full("time of a measurement", format!("{TIME_MAX:?} are over"))),
    };
    let each = peers.iter().zip(greeted).map(|((address, peer), greeted)| {
        let measured = greeted.and_then(|()| measure(peer));
        let (figures, problem) = match measured {
            Ok(measured) => (Some(Figures::from(measured)), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Measurement { transport_address: address.to_string(), task: (*peer).to_owned(), figures, problem }
    });
    each.collect()
}
