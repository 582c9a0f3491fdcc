//! Watches for lost wake-ups. Two engines that never spin have nothing to do but one request at a time, each after a pause in
//! which every shard parks; nothing else wakes them, so a wake-up that is lost shows as a request that waits for the next
//! heartbeat. Time in which a thread of this process was ready and waited for a processor is not the executor's, and is
//! taken off.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sealane::{EndpointMap, Engine, EngineSettings, RecvOptions, SendOptions, Task, Tensor};
use sealane_runtime::{Pin, Polling};

use super::Report;

/// How long the shards are left parked before each request: some hundred times what going to sleep takes.
const PARK_PERIOD: Duration = Duration::from_millis(20);

/// A request that takes longer has lost a wake-up: ten times as long as they slept, a hundred times as long as it takes on
/// a busy machine, and a fiftieth of the heartbeat that would wake them.
const LOST: Duration = PARK_PERIOD.saturating_mul(10);

/// How long a request may take at all.
const TIMEOUT: Duration = Duration::from_secs(30);

const NAMES: [&str; 2] = ["asks:1", "answers:1"];

/// See the module.
pub(super) struct Prober {
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<Report>,
}

/// One request.
#[derive(Clone, Copy, Debug)]
struct Probe {
    took: Duration,
    /// Of it, threads that were ready had no processor.
    unscheduled: Duration,
}

impl Prober {
    /// Starts the engines and begins.
    ///
    /// # Errors
    /// The engines cannot be started.
    pub(super) fn start() -> Result<Prober, String> {
        let engines = engines()?;
        let stopped = Arc::new(AtomicBool::new(false));
        let told = stopped.clone();
        let failed = |error| Report { text: String::new(), violations: vec![format!("a probe failed: {error}")] };
        let thread = thread::spawn(move || probe_until(&engines, &told).map_or_else(failed, report));
        Ok(Prober { stopped, thread })
    }

    /// Ends it and tells what came of it.
    pub(super) fn stop(self) -> Report {
        self.stopped.store(true, Ordering::Relaxed);
        let panicked = |_| Report { text: String::new(), violations: vec!["the prober panicked".into()] };
        self.thread.join().unwrap_or_else(panicked)
    }
}

fn engines() -> Result<[Engine; 2], String> {
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| format!("no port: {error}"));
    let listeners = [listen()?, listen()?];
    let address = |listener: &TcpListener| listener.local_addr().map_err(|error| error.to_string());
    let map = format!("{}={}\n{}={}\n", NAMES[0], address(&listeners[0])?, NAMES[1], address(&listeners[1])?);
    let mut engines = Vec::new();
    for (name, listener) in NAMES.into_iter().zip(listeners) {
        let map = EndpointMap::parse(&map, "the map of the probes").map_err(|error| error.to_string())?;
        let mut settings = EngineSettings::new(map, &[name]).map_err(|error| error.to_string())?;
        settings.listeners = vec![listener];
        (settings.runtime.pin, settings.runtime.polling) = (Pin::Off, Polling::Park);
        settings.runtime.stall_report = Duration::ZERO;
        (settings.slab_send_bytes, settings.slab_receive_bytes) = (1 << 20, 1 << 20);
        engines.push(Engine::start(settings).map_err(|error| error.to_string())?);
    }
    engines.try_into().map_err(|_| "two names, two engines".into())
}

fn probe_until(engines: &[Engine; 2], stopped: &AtomicBool) -> Result<Vec<Probe>, String> {
    let task = |index: usize| engines[index].task(NAMES[index]).map(Task::from).map_err(|error| error.to_string());
    let (asks, answers) = (task(0)?, task(1)?);
    let mut probes = Vec::new();
    while !stopped.load(Ordering::Relaxed) {
        let probe = probe(&asks, &answers, probes.len() as i64).map_err(|error| error.to_string())?;
        // The first makes the connection.
        probes.push(probe);
    }
    probes.drain(..1.min(probes.len()));
    engines.iter().for_each(|engine| drop(engine.stop()));
    Ok(probes)
}

/// Asks, lets all go to sleep, sends, and sees both calls end.
fn probe(asks: &Task, answers: &Task, step: i64) -> Result<Probe, sealane::Error> {
    let options = RecvOptions { timeout: Some(TIMEOUT), destination: None };
    let receiving = asks.recv_with(NAMES[1], step, "probe", options);
    thread::sleep(PARK_PERIOD);
    let tensor = Tensor::from_elements(&[1], &[step])?;
    let (began, unscheduled) = (Instant::now(), unscheduled());
    let options = SendOptions { timeout: Some(TIMEOUT) };
    let sending = answers.send_with(NAMES[0], step, "probe", tensor, options);
    receiving.wait()?;
    sending.wait()?;
    let took = began.elapsed();
    Ok(Probe { took, unscheduled: self::unscheduled().saturating_sub(unscheduled) })
}

/// How long threads of this process were ready to run and did not, all together; the kernel's second figure.
fn unscheduled() -> Duration {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let waited = threads.filter_map(|thread| {
        let figures = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        figures.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(waited.sum())
}

fn report(mut probes: Vec<Probe>) -> Report {
    let lost = |probe: &&Probe| probe.took.saturating_sub(probe.unscheduled) > LOST;
    let violations = probes.iter().filter(lost).map(|probe| format!("a wake-up was lost: {probe:?}")).collect();
    probes.sort_unstable_by_key(|probe| probe.took);
    let at = |share: f64| probes.get((probes.len() as f64 * share) as usize).map_or(0, |probe| probe.took.as_micros());
    let most = probes.last().map_or(0, |probe| probe.took.as_micros());
    let text = format!(
        "\nrequests to who sleeps: {}, median {} us, 99 of 100 within {} us, most {most} us\n",
        probes.len(),
        at(0.5),
        at(0.99)
    );
    Report { text, violations }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_asked_wakes() {
        let engines = engines().unwrap();
        let task = |index: usize| engines[index].task(NAMES[index]).map(Task::from).unwrap();
        let (asks, answers) = (task(0), task(1));
        for step in 0..50 {
            let Probe { took, unscheduled } = probe(&asks, &answers, step).unwrap();
            // Half of the heartbeat that would wake them.
            assert!(took.saturating_sub(unscheduled) < Duration::from_secs(5), "{took:?}, of it {unscheduled:?}");
        }
    }

    #[test]
    fn who_waits_for_a_processor_has_lost_no_wake_up() {
        let probe = |took, unscheduled| Probe { took, unscheduled };
        let millis = Duration::from_millis;
        let report = report(vec![probe(millis(900), millis(800)), probe(millis(1), millis(0)), probe(LOST, millis(0))]);
        assert!(report.violations.is_empty(), "{:?}", report.violations);
        assert!(report.text.contains(": 3, median 200000 us"), "{}", report.text);
    }

    #[test]
    fn who_sleeps_on_has() {
        let late = Probe { took: LOST + Duration::from_millis(2), unscheduled: Duration::from_millis(1) };
        assert_eq!(report(vec![late]).violations.len(), 1);
    }
}
