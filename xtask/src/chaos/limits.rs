//! What a soak may leave behind: after each round, when everything has ended, the watched processes must hold what they held after
//! the first one. Resident memory, descriptors, threads and mappings of shared memory are measured from outside; an engine in a
//! task reports its own figures in the ledger.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::verdict::Verdict;
use super::wakes::Prober;
use crate::hosts::{Hosts, PAIRS_PER_DAEMON, ledger};
use crate::traffic::Order;
use crate::traffic::ledger::{Bound, HOLDINGS, Line};

/// How long nothing new begins before the comparison: longer than any call's deadline, so that everything has ended and been
/// released.
pub(super) const REST: Duration = Duration::from_secs(12);

/// Processes that live through the whole soak: two daemons, a client of each, and the task with its own engine.
const DAEMONS: [usize; 2] = [0, 1];
const TASKS: [usize; 3] = [0, 2, 6];

/// What a process holds, and by how much each may have grown at the end.
///
/// Private memory: the allocator keeps free memory between blocks in use, and tables of calls, peers and keys keep the size of
/// their largest peak, which comes sooner or later. In 20 rounds a daemon's grew from 113,252 KiB in the second to 122,684 in the
/// seventh, and was 122,984 in the last. Shared memory: what it has touched of arenas and areas. Descriptors: connections to a
/// newly started daemon are made on demand, up to two a shard. Direct lanes appear with traffic and vanish with either of their
/// clients, so there may be none at first: only their number counts.
const FIGURES: [(&str, Bound); 6] = [
    ("own memory, KiB", Bound::More(12 * 1024)),
    ("shared memory, KiB", Bound::None),
    ("descriptors", Bound::More(4)),
    ("threads", Bound::More(0)),
    ("shared mappings", Bound::More(0)),
    ("direct lanes", Bound::Most(PAIRS_PER_DAEMON)),
];

/// A process, and what it held after each round, in the order of [`FIGURES`] and [`HOLDINGS`]; `None` if it did not exist.
struct Watched {
    name: String,
    process: u32,
    held: Vec<Option<Vec<u64>>>,
}

pub(super) struct Limits {
    watched: Vec<Watched>,
    prober: Prober,
}

impl Limits {
    /// Watches the processes that exist now.
    pub(super) fn start(hosts: &Hosts) -> Limits {
        let daemons = DAEMONS.map(|host| (format!("daemon{host}"), &hosts.daemons[host]));
        let tasks = TASKS.map(|task| (format!("task{task}"), &hosts.tasks[task]));
        let watched = daemons
            .into_iter()
            .chain(tasks)
            .filter_map(|(name, slot)| Some(Watched { name, process: slot.id()?, held: Vec::new() }));
        Limits { watched: watched.collect(), prober: Prober::start() }
    }

    /// Lets everything end, and records what is held then.
    pub(super) fn rest_and_look(&mut self, hosts: &mut Hosts) {
        let order = Order::Rest { millis: REST.as_millis() as u64 };
        hosts.tasks.iter_mut().for_each(|task| task.order(order));
        // Not to the very end: the next round must not have begun.
        thread::sleep(REST - Duration::from_secs(1));
        for watched in &mut self.watched {
            let task = watched.name.strip_prefix("task").and_then(|task| task.parse().ok());
            let ledger = task.map(|task: usize| ledger(&hosts.folder, task, 0));
            let held = look(watched.process, ledger.as_deref());
            println!("{:8} holds {:?}", watched.name, held.as_deref().unwrap_or_default());
            watched.held.push(held);
        }
    }

    /// Compares what was held after the first and the last round.
    pub(super) fn judge(self, verdict: &mut Verdict) {
        println!("\nheld: at first, most, in the end");
        self.watched.iter().for_each(|watched| watched.judge(&mut verdict.violations));
        self.prober.stop(verdict);
    }
}

impl Watched {
    fn judge(&self, violations: &mut Vec<String>) {
        let name = &self.name;
        let there: Option<Vec<&Vec<u64>>> = self.held.iter().map(Option::as_ref).collect();
        let Some([first, .., last]) = there.as_deref() else {
            return violations.push(format!("{name} was not there all the time"));
        };
        for (index, (what, bound)) in FIGURES.iter().chain(&HOLDINGS).enumerate().take(last.len()) {
            let most = there.iter().flatten().map(|held| held[index]).max().unwrap_or(0);
            let (first, last) = (first[index], last[index]);
            println!("  {name:8}  {what:20}  {first:8}  {most:8}  {last:8}");
            let too_much = match *bound {
                Bound::None => false,
                Bound::More(more) => last > first + more,
                Bound::Most(most) => last > most,
            };
            if too_much {
                violations.push(format!("{name} holds more than it did, {what}: {first}, then {last}"));
            }
        }
    }
}

fn look(process: u32, ledger: Option<&Path>) -> Option<Vec<u64>> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{process}/{file}")).ok();
    let status = read("status")?;
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).ok()?.count() as u64;
    let maps = read("maps")?;
    let mapped = |name: &str| maps.lines().filter(|line| line.contains(name)).count() as u64;
    let lanes = mapped("/memfd:sealane-lane");
    let mappings = mapped("/memfd:") - lanes;
    let mut held = vec![field("RssAnon")?, field("RssShmem")?, descriptors, field("Threads")?, mappings, lanes];
    // Tasks of a daemon report no engine figures.
    let lines = ledger.map(fs::read_to_string).and_then(Result::ok).unwrap_or_default();
    let told = lines.lines().rev().find(|line| line.contains("Holds"));
    if let Some(Ok(Line::Holds(more))) = told.map(serde_json::from_str) {
        held.extend(more);
    }
    Some(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_something() {
        let held = look(std::process::id(), None).unwrap();
        assert!(held[0] > 0 && held[2] > 2 && held[3] > 0, "{held:?}");
        assert_eq!(look(u32::MAX, None), None);
    }

    #[test]
    fn a_peak_is_no_leak_and_more_in_the_end_than_at_first_is_one() {
        let judged = |held: &[Option<(u64, u64)>]| {
            let held = held.iter().map(|held| held.map(|(own_kib, lanes)| vec![own_kib, 0, 0, 0, 0, lanes])).collect();
            let mut violations = Vec::new();
            Watched { name: "daemon0".into(), process: 0, held }.judge(&mut violations);
            violations.join("\n")
        };
        let Bound::More(more) = FIGURES[0].1 else { panic!("no bound") };
        assert_eq!(judged(&[Some((1000, 0)), Some((900_000, 9)), Some((1000 + more, PAIRS_PER_DAEMON))]), "");
        assert!(judged(&[Some((1000, 0)), Some((1001 + more, 0))]).contains("own memory"));
        let lanes = judged(&[Some((1000, PAIRS_PER_DAEMON)), Some((1000, PAIRS_PER_DAEMON + 1))]);
        assert!(lanes.contains("direct lanes"), "{lanes}");
        for missing in [&[][..], &[Some((1000, 0)), None, Some((1000, 0))]] {
            assert!(judged(missing).contains("was not there"));
        }
    }
}
