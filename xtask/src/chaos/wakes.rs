//! Watches for lost wake-ups. Two engines that never spin handle one request at a time, each after a pause in which every shard
//! parks; nothing else wakes them, so a lost wake-up shows as a request that waits for the next heartbeat. Time in which a thread
//! of this process was runnable but waited for a processor is not the executor's fault, and is subtracted.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sealane::{Engine, RecvOptions, SendOptions, Task, Tensor};
use sealane_runtime::Polling;
use sealane_tests::fixture::{engines as engines_of, task as name};

use super::history::micros;
use super::verdict::Verdict;

/// How long the shards stay parked before each request: some hundred times what going to sleep takes.
const PARK_PERIOD: Duration = Duration::from_millis(20);

/// A request that takes longer has lost a wake-up: ten times as long as they slept, a hundred times as long as it takes on
/// a busy machine, and a fiftieth of the heartbeat that would wake them.
const LOST: Duration = PARK_PERIOD.saturating_mul(10);

/// How long a request may take at all.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Prober {
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Probe>, String>>,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    took: Duration,
    /// How much of it runnable threads had no processor.
    unscheduled: Duration,
}

impl Prober {
    pub(super) fn start() -> Prober {
        let engines = engines();
        let stopped = Arc::new(AtomicBool::new(false));
        let told = stopped.clone();
        let thread = thread::spawn(move || probe_until(&engines, || told.load(Ordering::Relaxed)));
        Prober { stopped, thread }
    }

    /// Stops and reports the result.
    pub(super) fn stop(self, verdict: &mut Verdict) {
        self.stopped.store(true, Ordering::Relaxed);
        match self.thread.join().unwrap_or_else(|_| Err("it panicked".to_owned())) {
            Ok(probes) => judge(&probes, verdict),
            Err(error) => verdict.violations.push(format!("a probe failed: {error}")),
        }
    }
}

fn engines() -> Vec<Engine> {
    engines_of(2, |_, settings| {
        settings.runtime.polling = Polling::Park;
        settings.runtime.stall_report = Duration::ZERO;
    })
}

fn probe_until(engines: &[Engine], mut is_over: impl FnMut() -> bool) -> Result<Vec<Probe>, String> {
    let task = |index: usize| engines[index].task(&name(index)).map(Task::from).map_err(|error| error.to_string());
    let (asks, answers) = (task(0)?, task(1)?);
    let mut probes = Vec::new();
    while !is_over() {
        probes.push(probe(&asks, &answers, probes.len() as i64).map_err(|error| error.to_string())?);
    }
    // The first request establishes the connection.
    probes.drain(..1.min(probes.len()));
    engines.iter().for_each(|engine| drop(engine.stop()));
    Ok(probes)
}

/// Issues the recv, lets everything go to sleep, sends, and waits for both calls to end.
fn probe(asks: &Task, answers: &Task, step: i64) -> Result<Probe, sealane::Error> {
    let options = RecvOptions { timeout: Some(TIMEOUT), destination: None, ..RecvOptions::default() };
    let receiving = asks.recv_with(&name(1), step, "probe", options);
    thread::sleep(PARK_PERIOD);
    let tensor = Tensor::from_elements(&[1], &[step])?;
    let (began, unscheduled) = (Instant::now(), unscheduled());
    let options = SendOptions { timeout: Some(TIMEOUT) };
    let sending = answers.send_with(&name(0), step, "probe", tensor, options);
    receiving.wait()?;
    sending.wait()?;
    let took = began.elapsed();
    Ok(Probe { took, unscheduled: self::unscheduled().saturating_sub(unscheduled) })
}

/// How long threads of this process were runnable but did not run, in total; the kernel's second figure.
fn unscheduled() -> Duration {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let waited = threads.filter_map(|thread| {
        let figures = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        figures.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(waited.sum())
}

fn judge(probes: &[Probe], verdict: &mut Verdict) {
    let lost = probes.iter().filter(|probe| probe.took.saturating_sub(probe.unscheduled) > LOST);
    verdict.violations.extend(lost.map(|probe| format!("a wake-up was lost: {probe:?}")));
    verdict.times.insert("requests to who sleeps", probes.iter().map(|probe| micros(probe.took)).collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_asked_wakes() {
        let mut left = 51;
        let is_over = || {
            left -= 1;
            left < 0
        };
        let probes = probe_until(&engines(), is_over).unwrap();
        assert_eq!(probes.len(), 50);
        for Probe { took, unscheduled } in probes {
            // Half of the heartbeat that would wake them.
            assert!(took.saturating_sub(unscheduled) < Duration::from_secs(5), "{took:?}, of it {unscheduled:?}");
        }
    }

    #[test]
    fn who_waits_for_a_processor_has_lost_no_wake_up_and_who_sleeps_on_has() {
        let probe = |took, unscheduled| Probe { took, unscheduled };
        let (millis, mut verdict) = (Duration::from_millis, Verdict::default());
        let probes = [probe(millis(900), millis(800)), probe(millis(1), millis(0)), probe(LOST, millis(0))];
        judge(&probes, &mut verdict);
        assert_eq!(verdict.violations, Vec::<String>::new());
        judge(&[probe(LOST + millis(2), millis(1))], &mut verdict);
        assert_eq!(verdict.violations.len(), 1);
    }
}
