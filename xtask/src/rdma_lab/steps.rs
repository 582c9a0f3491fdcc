//! What the lab runs, in this order: one row a step.

use std::collections::BTreeMap;

use super::{figures, perftest};
use crate::build::Build;

/// One step: a command line in the guest, that must end with 0, and whose output must be as wanted.
pub(crate) struct Step {
    /// Names its log, too.
    pub(crate) name: &'static str,
    /// For `/bin/sh`; the guest's scripts `pair` and `listening` help with two programs that talk to each other.
    pub(crate) run: &'static str,
    /// Seconds after which it is killed: several times what it takes on two busy cores.
    pub(crate) within_s: u64,
    /// What of this workspace it runs.
    pub(crate) needs: &'static [Build],
    /// The step's one line in the table, or what is wrong with what was printed.
    pub(crate) judge: Judge,
}

/// Judges a step by the output of every step so far, its own the one of that name.
pub(crate) type Judge = fn(&Outputs, &str) -> Result<String, String>;

/// What each step printed, by the step's name.
pub(crate) type Outputs = BTreeMap<&'static str, String>;

const VERBS_PROBE: Build =
    Build { package: "sealane-transport", kind: "example", target: "verbs_probe", release: false, verbs: true };
const CONFORMANCE: Build =
    Build { package: "sealane-transport", kind: "test", target: "conformance", release: false, verbs: true };
const ENGINE: Build = Build { package: "sealane-tests", kind: "test", target: "engine", release: false, verbs: true };
/// What is measured, and so built as users get it.
const SEALANE: Build = Build { package: "sealane-cli", kind: "bin", target: "sealane", release: true, verbs: true };

/// Every step. Each runs in the same boot, and all that it leaves running is killed when it ends. Tests use the guest's device
/// where `SEALANE_TEST_RDMA` is set.
pub(crate) const STEPS: &[Step] = &[
    Step { name: "ibv_devinfo", run: "ibv_devinfo -v", within_s: 30, needs: &[], judge: port_is_active },
    Step { name: "verbs_probe", run: "verbs_probe", within_s: 60, needs: &[VERBS_PROBE], judge: trials },
    Step {
        name: "conformance",
        // Without those that ask of a device in memory what a real one does not do.
        run: "SEALANE_TEST_RDMA=1 conformance --test-threads 1 verbs \
              --skip tiny --skip slow --skip failing --skip without --skip crowded",
        within_s: 600,
        needs: &[CONFORMANCE],
        judge: tests,
    },
    Step {
        name: "256_links",
        run: "SEALANE_TEST_RDMA=1 conformance crowded_verbs::",
        within_s: 120,
        needs: &[CONFORMANCE],
        judge: tests,
    },
    Step {
        name: "engine",
        // As before.
        run: "SEALANE_TEST_RDMA=1 engine --test-threads 1 verbs:: --skip nothing_is_lost --skip a_port_that_goes_down --skip links_go_back",
        within_s: 400,
        needs: &[ENGINE],
        judge: tests,
    },
    Step {
        name: "peer_is_killed",
        run: "SEALANE_TEST_RDMA=1 engine --ignored real_device::a_process_killed",
        within_s: 120,
        needs: &[ENGINE],
        judge: tests,
    },
    Step {
        name: "200_are_killed",
        run: "SEALANE_TEST_RDMA=1 engine --ignored --nocapture real_device::receive_buffers",
        within_s: 400,
        needs: &[ENGINE],
        judge: tests,
    },
    Step {
        name: "port_goes_down",
        // Should the test have failed with the port down, the steps after it need it nevertheless.
        run: "SEALANE_TEST_RDMA=1 engine --ignored real_device::a_port_that_goes_down; code=$?; ip link set eth0 up; exit $code",
        within_s: 120,
        needs: &[ENGINE],
        judge: tests,
    },
    Step {
        name: "demo",
        run: "sealane demo --link verbs --steps 3 --workload mobilenet_v2",
        within_s: 120,
        needs: &[SEALANE],
        judge: every_byte,
    },
    Step {
        name: "demo_embedded",
        run: "sealane demo --link verbs --steps 3 --workload mobilenet_v2 --embedded",
        within_s: 120,
        needs: &[SEALANE],
        judge: every_byte,
    },
    Step {
        name: figures::PERFTEST_LATENCY,
        run: "pair ib_send_lat -d rxe0 -x 1 -s 64 -n 5000",
        within_s: 60,
        needs: &[],
        judge: latency,
    },
    Step {
        name: figures::PERFTEST_BANDWIDTH,
        run: "pair ib_write_bw -d rxe0 -x 1 -s 1048576 -n 200",
        within_s: 60,
        needs: &[],
        judge: bandwidth,
    },
    Step {
        name: figures::LATENCY,
        run: "sealane bench latency --link verbs --size 64 --rounds 3 --baseline raw --json -",
        within_s: 120,
        needs: &[SEALANE],
        judge: figures::latency,
    },
    bench(0, "sealane bench bandwidth --link verbs --size 1MiB --rounds 3 --transfer write --baseline raw --json -"),
    bench(1, "sealane bench bandwidth --link verbs --size 1MiB --rounds 3 --transfer read --json -"),
    bench(2, "sealane bench bandwidth --link verbs --size 1MiB --rounds 3 --registration dynamic --json -"),
    bench(3, "sealane bench bandwidth --link verbs --size 1MiB --rounds 3 --window 1 --json -"),
    bench(4, "sealane bench bandwidth --link verbs --size 1MiB --rounds 3 --window 40 --json -"),
    Step {
        name: figures::TRAINING,
        // Some 16 MB move in a step of all workers, at tens of MB/s.
        run: "sealane bench ps --link verbs --workers 4 --ps 2 --workload dlrm_kaggle --fuse turn \
              --request-buffers 1,40 --registration dynamic,static --rounds 3 --seconds 2 --json -",
        within_s: 300,
        needs: &[SEALANE],
        judge: figures::training,
    },
];

/// One of the [`figures::BANDWIDTHS`].
const fn bench(which: usize, run: &'static str) -> Step {
    Step { name: figures::BANDWIDTHS[which], run, within_s: 120, needs: &[SEALANE], judge: figures::bandwidth }
}

/// What a step printed; nothing, if it has not run.
pub(super) fn of<'a>(outputs: &'a Outputs, step: &str) -> &'a str {
    outputs.get(step).map_or("", String::as_str)
}

/// Counts what `verbs_probe` tried with success; what failed shows in its exit code.
fn trials(outputs: &Outputs, step: &str) -> Result<String, String> {
    match of(outputs, step).lines().filter(|line| line.starts_with("ok ")).count() {
        0 => Err("nothing was tried".to_string()),
        tried => Ok(format!("{tried} trials of the device")),
    }
}

/// The tests of a test binary that passed; what failed shows in its exit code.
fn tests(outputs: &Outputs, step: &str) -> Result<String, String> {
    let passed = of(outputs, step).lines().find_map(|line| {
        let (passed, _) = line.strip_prefix("test result: ok. ")?.split_once(" passed")?;
        passed.parse().ok()
    });
    match passed {
        None => Err("no tests ran".to_string()),
        Some(0) => Err("no test has that name".to_string()),
        Some(1) => Ok("1 test".to_string()),
        Some(count @ 2_u64..) => Ok(format!("{count} tests")),
    }
}

/// The demo's links are verbs alone, and it has looked at all that it moved.
fn every_byte(outputs: &Outputs, step: &str) -> Result<String, String> {
    let printed = of(outputs, step);
    let line = |what| printed.lines().find(|line: &&str| line.contains(what));
    let links = line("links between engines: ").ok_or("no link was counted")?;
    let verified = line("verified").ok_or("nothing was verified")?;
    match links.ends_with(" verbs, 0 tcp") && !links.contains(" 0 verbs") {
        true => Ok(verified.trim().to_string()),
        false => Err(links.to_string()),
    }
}

fn port_is_active(outputs: &Outputs, step: &str) -> Result<String, String> {
    let printed = of(outputs, step);
    let gids = printed.lines().filter(|line| line.trim_start().starts_with("GID[")).count();
    match printed.lines().any(|line| line.contains("PORT_ACTIVE")) {
        true => Ok(format!("port active, {gids} GIDs")),
        false => Err("no port is active".to_string()),
    }
}

fn latency(outputs: &Outputs, step: &str) -> Result<String, String> {
    let us = perftest::latency_us(of(outputs, step)).ok_or("no latency was printed")?;
    Ok(format!("{us:.2} µs one way (median)"))
}

fn bandwidth(outputs: &Outputs, step: &str) -> Result<String, String> {
    let bytes = perftest::bytes_per_s(of(outputs, step)).ok_or("no bandwidth was printed")?;
    Ok(format!("{:.1} MB/s", bytes / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_a_name_of_its_own() {
        for (number, step) in STEPS.iter().enumerate() {
            assert!(!STEPS[..number].iter().any(|other| other.name == step.name), "{}", step.name);
            assert!(step.name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)), "{}", step.name);
        }
    }

    #[test]
    fn one_name_in_the_guest_is_one_program() {
        let builds: Vec<_> = STEPS.iter().flat_map(|step| step.needs).collect();
        for (number, build) in builds.iter().enumerate() {
            assert!(
                builds[..number].iter().all(|other| other.target != build.target || other == build),
                "{}",
                build.target
            );
        }
    }

    #[test]
    fn tests_must_have_run() {
        let result = |passed: &str| {
            let printed = format!("running it\n\ntest result: ok. {passed} passed; 0 failed; 3 filtered out\n");
            tests(&Outputs::from([("one", printed)]), "one")
        };
        assert_eq!((result("1").as_deref(), result("44").as_deref()), (Ok("1 test"), Ok("44 tests")));
        assert!(result("0").is_err() && tests(&Outputs::new(), "one").is_err());
    }

    #[test]
    fn a_demo_is_of_verbs_alone() {
        let demo = |links: &str, end: &str| {
            let printed = format!("links between engines: {links}\n\n{end}\n");
            every_byte(&Outputs::from([("demo", printed)]), "demo")
        };
        let end = "every byte of 2528 tensors verified (224.31 MB); 7.5 s in all";
        assert_eq!(demo("2 verbs, 0 tcp", end).as_deref(), Ok(end));
        assert_eq!(demo("10 verbs, 0 tcp", end).as_deref(), Ok(end));
        assert!(demo("1 verbs, 1 tcp", end).is_err() && demo("0 verbs, 0 tcp", end).is_err());
        assert!(demo("1 verbs, 0 tcp", "").is_err());
    }

    #[test]
    fn output_is_judged() {
        let outputs = Outputs::from([
            ("up", "state: PORT_ACTIVE (4)\n\tGID[  0]: fe80::1\n\n".into()),
            ("down", "PORT_DOWN".into()),
        ]);
        assert_eq!(port_is_active(&outputs, "up").unwrap(), "port active, 1 GIDs");
        assert_eq!(
            trials(&Outputs::from([("one", "ok  this\nok  that\n".into())]), "one").unwrap(),
            "2 trials of the device"
        );
        assert!(trials(&outputs, "up").is_err());
        assert!(port_is_active(&outputs, "down").is_err());
        assert!(latency(&outputs, "down").is_err() && bandwidth(&outputs, "none").is_err());
    }
}
