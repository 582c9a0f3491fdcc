//! What the lab runs, in this order: one row a step.

use std::collections::BTreeMap;

use super::build::Build;
use super::perftest;

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
    Build { package: "sealane-transport", kind: "example", target: "verbs_probe", release: false };

/// Every step. Each runs in the same boot, and all that it leaves running is killed when it ends.
pub(crate) const STEPS: &[Step] = &[
    Step { name: "ibv_devinfo", run: "ibv_devinfo -v", within_s: 30, needs: &[], judge: port_is_active },
    Step { name: "verbs_probe", run: "verbs_probe", within_s: 60, needs: &[VERBS_PROBE], judge: trials },
    Step {
        name: "ib_send_lat",
        run: "pair ib_send_lat -d rxe0 -x 1 -s 64 -n 5000",
        within_s: 60,
        needs: &[],
        judge: latency,
    },
    Step {
        name: "ib_write_bw",
        run: "pair ib_write_bw -d rxe0 -x 1 -s 1048576 -n 200",
        within_s: 60,
        needs: &[],
        judge: bandwidth,
    },
];

fn of<'a>(outputs: &'a Outputs, step: &str) -> &'a str {
    outputs.get(step).map_or("", String::as_str)
}

/// Counts what `verbs_probe` tried with success; what failed shows in its exit code.
fn trials(outputs: &Outputs, step: &str) -> Result<String, String> {
    match of(outputs, step).lines().filter(|line| line.starts_with("ok ")).count() {
        0 => Err("nothing was tried".to_string()),
        tried => Ok(format!("{tried} trials of the device")),
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
