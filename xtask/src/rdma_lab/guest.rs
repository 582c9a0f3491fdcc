//! The guest's first program, and what it tells the host: pure text, both ways.
//!
//! One stream comes out of the guest, the second serial port: the lines that jobs print, and between them the lab's own
//! records. A record begins with a mark drawn anew for every boot, so no program prints one by accident.

use std::fmt::Write;
use std::time::Duration;

/// A command line to run in the guest.
pub(crate) struct Job {
    /// For `/bin/sh`.
    pub(crate) script: String,
    /// When it is killed.
    pub(crate) within: Duration,
}

/// Where the guest has a job's script.
pub(crate) fn script_path(job: usize) -> String {
    format!("/lab/{job}")
}

/// Begins every record: a byte that text does not use, then the mark.
const RECORD: char = '\u{1e}';

/// What every boot does before modules are loaded. `must` stops the boot with the name of what failed.
const MOUNTS: &str = r#"
must() { "$@" || { say broken "$*"; poweroff -f; }; }
must /bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin 2>/dev/null
must mount -t sysfs sys /sys
must mount -t devtmpfs dev /dev
exec </dev/null >/dev/ttyS1 2>&1
must stty raw </dev/ttyS1
must mkdir -p /dev/shm /dev/pts
must mount -t tmpfs -o mode=1777 shm /dev/shm
must mount -t tmpfs -o mode=1777 tmp /tmp
must mount -t devpts pts /dev/pts
for one in fd:/proc/self/fd stdin:/proc/self/fd/0 stdout:/proc/self/fd/1 stderr:/proc/self/fd/2; do
    must ln -sf "${one#*:}" "/dev/${one%%:*}"
done
"#;

/// What follows the modules: names, limits, addresses and the device.
const NETWORK: &str = r#"
must hostname lab
must ulimit -l unlimited
must ulimit -n 65536
must ip link set lo up
# The address is there before the link is up: Soft-RoCE takes what the device has when it is made.
must ip addr add 10.9.0.1/24 dev eth0
must ip addr add 10.9.0.2/24 dev eth0
must ip link set eth0 up
must rdma link add rxe0 type rxe netdev eth0
rdma link show rxe0/1 | grep -q 'state ACTIVE' || { say broken "bring a port up: $(rdma link show)"; poweroff -f; }
cd /tmp
export HOME=/tmp PATH=/bin RUST_BACKTRACE=1
"#;

/// Runs job `$1` for at most `$2` seconds, and kills every process that it leaves behind.
const JOB: &str = r#"
job() {
    say began "$1"
    timeout -s KILL "$2" /bin/sh "/lab/$1"
    say ended "$1" $?
    kill -9 -1 2>/dev/null
}
"#;

/// The script that the kernel starts, for jobs that lie at [`script_path`].
pub(crate) fn init(mark: &str, modules: &[String], jobs: &[Job]) -> String {
    let mut script = String::from("#!/bin/sh\n");
    let octal = u32::from(RECORD);
    let _ = writeln!(script, "say() {{ printf '\\{octal:03o}{mark} %s\\n' \"$*\"; }}");
    script += MOUNTS;
    for module in modules {
        let _ = writeln!(script, "must insmod /modules/{module}");
    }
    let _ = writeln!(script, "{NETWORK}{JOB}say ready");
    for (number, job) in jobs.iter().enumerate() {
        let _ = writeln!(script, "job {number} {}", job.within.as_secs());
    }
    script + "say done\npoweroff -f\n"
}

/// One thing heard from the guest.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    /// The device's port is active, jobs come next.
    Ready,
    /// A command of the boot failed.
    Broken(String),
    Began(usize),
    /// A line that a job printed.
    Line(String),
    /// A job's exit code.
    Ended(usize, u8),
    /// All jobs have ended.
    Done,
}

/// Reads the guest's stream, line by line.
pub(crate) struct Console {
    mark: String,
}

impl Console {
    /// A reader of records with that mark.
    pub(crate) fn new(mark: &str) -> Self {
        Self { mark: format!("{RECORD}{mark} ") }
    }

    /// What a line (without its end) says. A job's last line may lack its end: then a record follows in the same line.
    pub(crate) fn read(&self, line: &[u8]) -> Vec<Heard> {
        let line = String::from_utf8_lossy(line);
        let line = line.strip_suffix('\r').unwrap_or(&line);
        match line.split_once(&self.mark) {
            None => vec![Heard::Line(line.to_string())],
            Some((before, record)) => {
                let printed = (!before.is_empty()).then(|| Heard::Line(before.to_string()));
                printed.into_iter().chain(read_record(record)).collect()
            }
        }
    }
}

fn read_record(record: &str) -> Option<Heard> {
    let (kind, rest) = record.split_once(' ').unwrap_or((record, ""));
    match kind {
        "ready" => Some(Heard::Ready),
        "broken" => Some(Heard::Broken(rest.to_string())),
        "began" => rest.parse().ok().map(Heard::Began),
        "ended" => {
            let (job, code) = rest.split_once(' ')?;
            Some(Heard::Ended(job.parse().ok()?, code.parse().ok()?))
        }
        "done" => Some(Heard::Done),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_jobs_print_is_theirs_and_records_are_the_labs() {
        let console = Console::new("abc");
        assert_eq!(console.read(b"\x1eabc ready"), [Heard::Ready]);
        assert_eq!(console.read(b"\x1eabc began 3\r"), [Heard::Began(3)]);
        assert_eq!(console.read(b"ended 3 0"), [Heard::Line("ended 3 0".to_string())]);
        assert_eq!(console.read(b"\x1ewrong ended 3 0"), [Heard::Line("\u{1e}wrong ended 3 0".to_string())]);
        assert_eq!(console.read(b""), [Heard::Line(String::new())]);
        assert_eq!(console.read(b"\x1eabc ended 3 137"), [Heard::Ended(3, 137)]);
        assert_eq!(console.read(b"\x1eabc broken insmod x.ko"), [Heard::Broken("insmod x.ko".to_string())]);
        assert_eq!(console.read(b"\x1eabc done"), [Heard::Done]);
    }

    #[test]
    fn a_last_line_without_its_end_is_kept() {
        let heard = Console::new("abc").read(b"almost\x1eabc ended 0 1");
        assert_eq!(heard, [Heard::Line("almost".to_string()), Heard::Ended(0, 1)]);
    }

    #[test]
    fn bytes_that_are_no_text_and_records_that_make_no_sense_do_no_harm() {
        let console = Console::new("abc");
        assert_eq!(console.read(b"\xff!"), [Heard::Line("\u{fffd}!".to_string())]);
        assert_eq!(console.read(b"\x1eabc ended 3"), []);
        assert_eq!(console.read(b"\x1eabc ended 3 1000"), []);
        assert_eq!(console.read(b"\x1eabc"), [Heard::Line("\u{1e}abc".to_string())]);
    }

    #[test]
    fn the_first_program_loads_modules_in_order_and_runs_every_job() {
        let job = |seconds| Job { script: String::new(), within: Duration::from_secs(seconds) };
        let script = init("abc", &["a.ko".to_string(), "b.ko".to_string()], &[job(5), job(60)]);
        let at = |text: &str| script.find(text).unwrap_or_else(|| panic!("{text} is not in\n{script}"));
        assert!(at("/modules/a.ko") < at("/modules/b.ko"));
        assert!(at("/modules/b.ko") < at("must hostname lab"));
        assert!(at("rdma link add") < at("say ready"));
        assert!(at("say ready") < at("job 0 5\n") && at("job 0 5\n") < at("job 1 60\n"));
        assert!(at("job 1 60\n") < at("say done\npoweroff -f"));
    }

    #[test]
    fn a_record_is_printed_as_it_is_read() {
        let script = init("abc", &[], &[]);
        let say = script.lines().nth(1).unwrap();
        let said = std::process::Command::new("sh").arg("-c").arg(format!("{say}\nsay ended 4 2")).output().unwrap();
        assert_eq!(Console::new("abc").read(said.stdout.trim_ascii_end()), [Heard::Ended(4, 2)]);
    }
}
