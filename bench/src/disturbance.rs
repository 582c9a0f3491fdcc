//! Whether the machine had other work, or less CPU time to give, during a run: then its figures mean little, and the report warns.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use itertools::Itertools;

use crate::figures::Measured;

/// How long the machine is watched before the first system is set up.
const LOOK: Duration = Duration::from_millis(200);
/// How much of one CPU other programs may use.
const BUSY_CPUS_MAX: f64 = 0.3;
/// Share of the machine's CPU time that the hypervisor may keep back.
const STEAL_MAX: f64 = 0.01;
/// Factor by which the rounds of one system may differ.
const ROUNDS_FACTOR_MAX: f64 = 2.0;

/// CPU time of the machine since it started, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ticks {
    all: u64,
    idle: u64,
    stolen: u64,
}

impl Ticks {
    fn now() -> Ticks {
        Ticks::of(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Reads the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal; guests' time is included in
    /// user's.
    fn of(stat: &str) -> Ticks {
        let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
        let [.., idle, waiting, _, _, stolen] = ticks[..] else { return Ticks::default() };
        Ticks { all: ticks.iter().sum(), idle: idle + waiting, stolen }
    }

    /// The shares of the CPU time since `before` that were used, and that the hypervisor kept back.
    fn shares_since(self, before: Ticks) -> [f64; 2] {
        let all = self.all.saturating_sub(before.all).max(1) as f64;
        let grown = |now: u64, then: u64| now.saturating_sub(then) as f64 / all;
        let stolen = grown(self.stolen, before.stolen);
        [(1.0 - grown(self.idle, before.idle) - stolen).max(0.0), stolen]
    }
}

/// The machine's load before a run.
#[derive(Debug)]
pub(crate) struct Quiet {
    /// CPUs used by other programs.
    busy_cpus: f64,
    begun: Ticks,
}

impl Quiet {
    pub(crate) fn watch() -> Quiet {
        let before = Ticks::now();
        sleep(LOOK);
        let begun = Ticks::now();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        Quiet { busy_cpus: begun.shares_since(before)[0] * cpus, begun }
    }

    /// Reasons why the figures of the run that has just ended may not be those of its systems.
    pub(crate) fn warnings(&self, measured: &[Measured]) -> Vec<String> {
        let [_, stolen] = Ticks::now().shares_since(self.begun);
        let mut warnings = Vec::new();
        if self.busy_cpus > BUSY_CPUS_MAX {
            warnings.push(format!(
                "the machine was busy: other programs used {:.1} CPUs before the first round; stop them and measure again",
                self.busy_cpus
            ));
        }
        if stolen > STEAL_MAX {
            let percent = stolen * 100.0;
            warnings.push(format!("the hypervisor kept {percent:.0}% of the CPU time back (steal in /proc/stat)"));
        }
        warnings.extend(measured.iter().filter_map(uneven));
        warnings
    }
}

/// The warning about a system whose rounds differ too much.
fn uneven(one: &Measured) -> Option<String> {
    let (_, rounds) = one.compared().into_iter().next()?;
    let (least, most) = rounds.iter().copied().filter(|value| *value > 0.0).minmax().into_option()?;
    let (system, factor) = (one.system, most / least);
    (factor >= ROUNDS_FACTOR_MAX).then(|| {
        format!(
            "the rounds of {system} differ by a factor of {factor:.1}: take more, or longer ones, on a quiet machine"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Metric, Sample};

    #[test]
    fn shares_of_cpu_time_are_read() {
        let before = Ticks::of("cpu  100 0 100 1000 0 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n");
        let after = Ticks::of("cpu  150 0 100 1040 0 0 0 10 0 0\n");
        assert_eq!(after, Ticks { all: 1300, idle: 1040, stolen: 10 });
        assert_eq!(after.shares_since(before), [0.5, 0.1]);
        assert_eq!(Ticks::of("").shares_since(Ticks::default()), [1.0, 0.0]);
        assert!(Ticks::now().all > 0);
    }

    #[test]
    fn a_busy_machine_and_uneven_rounds_are_warned_of() {
        let rounds = |values: &[f64]| Measured {
            system: "sealane",
            variant: String::new(),
            samples: values.iter().map(|value| Sample::figure(Metric::GigabytesPerSecond, *value)).collect(),
        };
        let quiet = Quiet { busy_cpus: 0.1, begun: Ticks::now() };
        assert_eq!(quiet.warnings(&[rounds(&[1.0, 1.9])]), Vec::<String>::new());
        let busy = Quiet { busy_cpus: 0.8, ..quiet };
        let warnings = busy.warnings(&[rounds(&[1.0, 2.5, 2.0])]);
        assert!(warnings[0].contains("other programs used 0.8 CPUs"), "{warnings:?}");
        assert!(warnings[1].starts_with("the rounds of sealane differ by a factor of 2.5"), "{warnings:?}");
    }
}
