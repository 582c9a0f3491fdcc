//! `sealane demo`: a parameter server and workers, each in its own process and attached to a daemon of its side, move a real
//! model's tensors back and forth on this machine, and every byte is verified. This process starts them all, tells the tasks what
//! to do step by step, and adds up what they measured; it moves no tensors itself.

mod children;
mod outcome;
mod pattern;
mod task;

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{fs, io};

use clap::ValueEnum;
use indicatif::DecimalBytes;
use sealane_runtime::allowed_cpus;
use sealane_transport::{endpoint_map, verbs};

pub use self::task::{TaskArgs, run_task};

use self::children::Children;
use self::outcome::Outcome;
use self::task::{Job, Part, REQUEST_TIMEOUT};
use super::stat;
use crate::figures::Shard;
use crate::flags::SettingsFlags;
use crate::machine::Machine;
use crate::output_file::{OutputFile, ReportOutput};
use crate::progress::{Bar, write_line};
use crate::settings::{ClientsSocket, Settings, Source};
use crate::workload::Workload;
use crate::{Context, Failure, command_line, host};

/// Most tasks of one part: more would only wait for this machine's CPUs.
const TASKS_MAX: u64 = 64;
const STEPS_MAX: u64 = 1_000_000;
/// Most lines of output of a whole demo if there is no bar.
const LINES_MAX: u64 = 5;
/// One of this many CPUs is for each daemon's shards: with two daemons, half of them are left to the tasks.
const CPUS_PER_SHARD: usize = 4;
/// Slab size of a demo's engine: tensors bring their own memory.
const SLAB_BYTES: u64 = 1 << 20;
/// How long a daemon of a failed demo waits for calls in progress, which have all lost their tasks.
const DRAIN_TIMEOUT_MS: u64 = 500;

/// Move a real model's tensors between processes on this machine, and verify every byte
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane demo --workload mobilenet_v2 --workers 2 --ps 1 --steps 20")]
pub struct Args {
    /// Model whose tensors to move: resnet50, mobilenet_v2, vgg16, wide_deep_400, dlrm_kaggle, or a JSON file with tensors
    #[arg(long, value_name = "NAME|FILE.json", default_value = "resnet50")]
    workload: String,

    /// Number of worker processes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=TASKS_MAX))]
    workers: u64,

    /// Number of parameter-server processes; tensors are assigned to them round-robin
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=TASKS_MAX))]
    ps: u64,

    /// Measured steps, after one warm-up step that connects the tasks
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=STEPS_MAX))]
    steps: u64,

    /// What carries the tensors from ps to workers and back
    #[arg(long, default_value = "auto")]
    link: Link,

    /// Run an engine inside each process instead of a daemon for the ps and one for the workers
    #[arg(long)]
    embedded: bool,

    /// Write the figures as JSON to a file, or with `-` to standard output and nothing else
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,

    /// Write a report with all figures and the machine: one self-contained page
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    /// Settings file, instead of `sealane.toml` in the working directory
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Set a setting, as in `transport.window=80`; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Link {
    /// As between two hosts: follow the setting transport.require
    Auto,
    /// TCP
    Tcp,
    /// Shared memory: one daemon serves ps and workers
    Shm,
    /// RDMA verbs, or an error
    Verbs,
}

/// Runs `sealane demo`.
///
/// # Errors
///
/// The arguments, a setting or the workload is wrong; a task ended or failed; a byte was not what it should be; or a
/// signal came.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let start = Instant::now();
    let output = ReportOutput::to(args.json.as_ref())?;
    let report_file = OutputFile::named("--report", args.report.as_ref())?;
    let (demo, mut outcome) = Demo::plan(args, context)?;
    let played = demo.play(&mut outcome);
    outcome.seconds = start.elapsed().as_secs_f64();
    // The demo's own failure matters more than one to write its report.
    let report_written = report_file.map_or(Ok(()), |file| file.write(&outcome.to_html(played.as_ref().err())));
    played?;
    let text = format!("{}\n{}", outcome.to_text(), comparison(args, context));
    output.write(context, &outcome.to_json(), &text)?;
    report_written
}

/// Returns the command that measures Sealane and gRPC with the demo's tensors, for a shell. The demo does not measure gRPC itself,
/// because every build of this program would then build a gRPC library.
fn comparison(args: &Args, context: &Context) -> String {
    let Args { workload, workers, ps, .. } = args;
    // `cargo run` sets this variable. Its users may have neither program in PATH.
    let is_run_by_cargo = context.environment().get("CARGO").is_ok_and(|cargo| cargo.is_some());
    let bench = if is_run_by_cargo { "cargo run --release -p sealane-bench --" } else { "sealane bench" };
    let workload = command_line::quoted(workload);
    format!(
        "to compare Sealane with gRPC on this machine, with the same tensors and without verification:\n  \
         {bench} ps --workload {workload} --workers {workers} --ps {ps} --baseline grpc\n"
    )
}

/// A demo ready to run: all arguments are read and checked.
struct Demo<'a> {
    args: &'a Args,
    context: &'a Context,
    /// One for each task: first those of the ps, then those of the workers.
    jobs: Vec<Job>,
    /// The daemons, which together serve all tasks; none if each task has its own engine.
    daemons: Vec<Daemon>,
    /// Settings passed with `--set` to the processes of the ps and of the workers.
    set: [Vec<String>; 2],
}

struct Daemon {
    name: &'static str,
    /// The part whose settings it reads.
    part: Part,
    /// The tasks that it serves, as a range of the jobs.
    jobs: Range<usize>,
}

struct Engine {
    /// The name of the task or the daemon.
    name: String,
    address: SocketAddr,
    /// For a daemon: the socket at which it answers questions.
    socket: Option<PathBuf>,
}

impl<'a> Demo<'a> {
    /// Also returns its outcome, which is still empty.
    fn plan(args: &'a Args, context: &'a Context) -> Result<(Demo<'a>, Outcome<'a>), Failure> {
        let (workers, ps) = (args.workers as usize, args.ps as usize);
        let tasks = workers + ps;
        let daemon = |name, part, jobs| Daemon { name, part, jobs };
        let daemons = match (args.embedded, args.link) {
            (true, Link::Shm) => {
                return Err(Failure::input(
                    "--embedded gives every task its own engine, and --link shm does not connect engines; \
                     drop one of the two",
                ));
            }
            (true, _) => vec![],
            (false, Link::Shm) => vec![daemon("daemon", Part::Ps, 0..tasks)],
            (false, _) => vec![daemon("ps-daemon", Part::Ps, 0..ps), daemon("worker-daemon", Part::Worker, ps..tasks)],
        };
        let require = match args.link {
            Link::Auto | Link::Shm => None,
            Link::Tcp => Some("transport.require=tcp".to_owned()),
            Link::Verbs => Some("transport.require=verbs".to_owned()),
        };
        // The link's own requirement comes last, so that it wins.
        let given: Vec<String> = args.set.iter().cloned().chain(require).collect();
        let text = Workload::text(&args.workload)?;
        let workload = Workload::parse(&text, &args.workload)?;
        // Errors in a part's settings are reported here, before any process is started.
        let settings = |part: Part| {
            let (role, config, set) = (Some(part.role()), args.config.clone(), given.clone());
            context.settings(&SettingsFlags { endpoint_map: None, role, config, set }, [])
        };
        let (of_ps, of_workers) = (settings(Part::Ps)?, settings(Part::Worker)?);
        let allowed = allowed_cpus().map_err(Failure::work)?;
        let cpus = allowed.len();
        let has_cpu = cpus >= tasks + daemons.len();
        let parts = [(Part::Ps, ps), (Part::Worker, workers)].into_iter();
        let jobs = parts.flat_map(|(part, count)| (0..count).map(move |index| (part, index)));
        let job = |(part, index): (Part, usize)| {
            let (is_embedded, workload, steps) = (args.embedded, text.clone(), args.steps);
            Job { part, index, workers, ps, workload, steps, is_embedded, pin: has_cpu, at: PathBuf::new() }
        };
        let jobs: Vec<Job> = jobs.map(job).collect();
        let memory: Vec<u64> = jobs.iter().map(|job| job.memory_bytes(&workload)).collect();
        let needed = memory.iter().sum();
        if let Some(available) = host::available_bytes().filter(|available| needed > *available) {
            return Err(Failure::input(format!(
                "{} with {workers} workers needs {} of memory and {} are free; use fewer workers or a smaller workload",
                workload.name,
                DecimalBytes(needed),
                DecimalBytes(available)
            )));
        }
        let arena_bytes_max = memory.into_iter().max().unwrap_or(0);
        let shards = if args.embedded { 1 } else { (cpus / CPUS_PER_SHARD).clamp(1, workers * ps) };
        let set = [&of_ps, &of_workers].map(|settings| {
            let ours = settings_of_demo(settings, shards, has_cpu, arena_bytes_max);
            given.iter().cloned().chain(ours).collect()
        });
        let (machine, window) =
            (Machine::look(&allowed, &[]).map_err(Failure::work)?, of_workers.transport.window.value);
        let outcome = Outcome::new(args, workload, daemons.len(), window, machine);
        Ok((Demo { args, context, jobs, daemons, set }, outcome))
    }

    /// Starts all processes, plays all steps, and ends the processes.
    ///
    /// # Errors
    /// A process failed, or a signal came; `outcome` has the results up to then.
    fn play(&self, outcome: &mut Outcome) -> Result<(), Failure> {
        let directory = tempfile::Builder::new().prefix("sealane-demo-").tempdir().map_err(|error| {
            Failure::work(format!("no temporary directory can be created ({error}); set TMPDIR to one with free space"))
        })?;
        // The children end before the directory does, even if this fails.
        let mut children = Children::none()?;
        let steps = self.args.steps;
        let bar = Bar::on_stderr(steps, "{bar:32} step {pos}/{len} {msg}");
        bar.say(&outcome.announcement());
        let engines = self.start(&mut children, directory.path(), &bar)?;
        for number in 0..=steps {
            children.doing = format!("in step {number}");
            let start = Instant::now();
            // All make what they send; the workers pull; the ps accept the pushes; all compare what they received.
            for _ in ["make", "pull", "push"] {
                children.go_on()?;
            }
            let (mut fetched, mut shards) = (Vec::new(), Vec::new());
            for told in children.go_on()? {
                outcome.verified = (outcome.verified.0 + told.verified.0, outcome.verified.1 + told.verified.1);
                fetched.push(told.fetched);
                shards.push(told.shards);
            }
            if number == 0 || number == steps {
                self.look(shards, &engines, outcome)?;
            }
            if number == 0 {
                // The step that establishes the connections does not count.
                bar.say(&format!("a tensor's way: {}", outcome.path()));
                bar.say(&outcome.estimate(start.elapsed()));
                continue;
            }
            let (pushed, pulled) = fetched.split_at(self.args.ps as usize);
            let [pull, push] = outcome.add_step(pulled, pushed).map(|flow| flow.gigabytes_per_s());
            let rates = format!("pull {pull:.2} GB/s, push {push:.2} GB/s");
            // Drawn between steps, so that it does not slow any transfer.
            if !bar.at(number, &rates) && is_told(number, steps) {
                write_line(&format!("step {number} of {steps}: {rates}"));
            }
        }
        children.doing = "at the end".to_owned();
        children.finish()
    }

    /// Starts the daemons, whose tasks share an address and attach at a socket, and the tasks; those without a daemon get a port of
    /// their own.
    fn start(&self, children: &mut Children, directory: &Path, bar: &Bar) -> Result<Vec<Engine>, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::work(format!("this program's executable cannot be found ({error})")))?;
        let map_file = directory.join(endpoint_map::FILE_NAME);
        let write_map = |map: String| {
            fs::write(&map_file, map)
                .map_err(|error| Failure::work(format!("{} cannot be written ({error})", map_file.display())))
        };
        let of_daemon = |daemon: &Daemon| {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let (name, socket) = (daemon.name.to_owned(), Some(directory.join(format!("{}.sock", daemon.name))));
            Ok((Engine { name, address: listener.local_addr()?, socket }, listener))
        };
        let bound = self.daemons.iter().map(of_daemon).collect::<io::Result<Vec<_>>>();
        let bound = bound.map_err(|error| Failure::work(format!("no port is available on 127.0.0.1 ({error})")))?;
        let (mut engines, listeners): (Vec<Engine>, Vec<TcpListener>) = bound.into_iter().unzip();
        let lines = self.daemons.iter().zip(&engines).flat_map(|(daemon, engine)| {
            self.jobs[daemon.jobs.clone()].iter().map(|job| format!("{}={}\n", job.task(), engine.address))
        });
        write_map(lines.collect())?;
        let mut jobs = self.jobs.clone();
        jobs.iter_mut().for_each(|job| job.at.clone_from(&map_file));
        for ((daemon, engine), listener) in self.daemons.iter().zip(&engines).zip(listeners) {
            let (name, socket) = (&engine.name, engine.socket.as_ref().expect("daemons have one"));
            let tasks: Vec<String> = self.jobs[daemon.jobs.clone()].iter().map(Job::task).collect();
            let mut command = Command::new(&program);
            command.arg("daemon").arg("--endpoint-map").arg(&map_file).arg("--socket").arg(socket);
            command
                .args(["--metrics", "off"])
                .args(self.settings_of(daemon.part))
                .args(tasks.iter().flat_map(|task| ["--task", task]));
            // The terminal's signals are not for it: the demo ends it when its tasks have ended.
            command.arg("--listener-on-stdin").stdin(Stdio::from(OwnedFd::from(listener)));
            command.arg("--end-with").arg(std::process::id().to_string()).process_group(0);
            let process = children.start_daemon(name, &mut command, socket, self.context.log_is_wanted())?;
            let (tasks, address, clients) = (tasks.join(", "), engine.address, socket.display());
            bar.say(&format!("{name} serves {tasks} at {address}, clients at {clients} (process {process})"));
            jobs[daemon.jobs.clone()].iter_mut().for_each(|job| job.at.clone_from(socket));
        }
        let start_task = |job: &Job| {
            let mut command = Command::new(&program);
            children.start_task(job, command.arg("demo-task").args(self.settings_of(job.part)))
        };
        let processes = jobs.iter().map(start_task).collect::<Result<Vec<_>, _>>()?;
        let own = self.jobs.iter().zip(children.hear()?);
        engines.extend(
            own.filter_map(|(job, told)| Some(Engine { name: job.task(), address: told.address?, socket: None })),
        );
        if self.args.embedded {
            write_map(engines.iter().map(|engine| format!("{}={}\n", engine.name, engine.address)).collect())?;
        }
        children.go_on()?;
        for (job, process) in self.jobs.iter().zip(processes) {
            bar.say(&format!("{} is ready (process {process})", job.task()));
        }
        Ok(engines)
    }

    /// Collects the links between engines as both ends report them, by the names of both, and the CPUs of shards. Tasks with an
    /// engine of their own have already reported theirs.
    fn look(&self, told: Vec<Vec<Shard>>, engines: &[Engine], outcome: &mut Outcome) -> Result<(), Failure> {
        let sockets = engines.iter().filter_map(|engine| engine.socket.as_ref());
        let of_daemons =
            sockets.map(|socket| Ok(stat::look(&ClientsSocket::at(socket))?.shards)).collect::<Result<_, Failure>>()?;
        let shards: Vec<Vec<Shard>> = if self.args.embedded { told } else { of_daemons };
        // Every link has a ps at one end, and the engines of the ps come first.
        let of_ps = if self.args.embedded { self.args.ps as usize } else { 1 };
        outcome.links = [0, 0];
        for counters in shards[..of_ps].iter().flatten().map(|shard| &shard.counters) {
            let over_verbs = counters.links_of(verbs::KIND);
            outcome.links[0] += over_verbs;
            outcome.links[1] += counters.links.saturating_sub(over_verbs);
        }
        outcome.machine.pinned = shards.iter().flatten().filter_map(|shard| shard.cpu).collect();
        outcome.peers.clear();
        for (engine, shards) in engines.iter().zip(shards) {
            for peer in shards.into_iter().flat_map(|shard| shard.peers) {
                let other = engines.iter().find(|engine| engine.address.to_string() == peer.peer);
                let other = other.map_or(peer.peer, |engine| engine.name.clone());
                let link = peer.link.unwrap_or_else(|| "none".to_owned());
                let sums = outcome.peers.entry([engine.name.clone(), other, link, peer.reason]).or_default();
                let counters = peer.counters;
                let sent = [counters.tensors_sent, counters.messages_sent, counters.writes];
                sums.iter_mut().zip(sent).for_each(|(sum, sent)| *sum += sent);
            }
        }
        Ok(())
    }

    /// The flags that pass settings to a part's processes.
    fn settings_of(&self, part: Part) -> Vec<OsString> {
        let role = ["--role".into(), part.role().to_string().into()];
        let config = self.args.config.iter().flat_map(|file| ["--config".into(), file.into()]);
        let set = self.set[usize::from(part == Part::Worker)].iter();
        role.into_iter().chain(config).chain(set.flat_map(|pair| ["--set".into(), pair.into()])).collect()
    }
}

/// If there is no bar, a few steps are printed, always including the last.
fn is_told(number: u64, steps: u64) -> bool {
    number.is_multiple_of(steps.div_ceil(LINES_MAX)) || number == steps
}

/// Settings that suit a demo's processes, where no other source sets them; they `spin` if each has a CPU.
fn settings_of_demo(settings: &Settings, shards: usize, spin: bool, arena_bytes_max: u64) -> Vec<String> {
    let Settings { runtime, transport, fusion, daemon, .. } = settings;
    let idle_spin_us = if spin { runtime.idle_spin.value.as_micros() as u64 } else { 0 };
    let timeout_ms = REQUEST_TIMEOUT.as_millis() as u64;
    let wishes = [
        ("runtime.shards", shards as u64, &runtime.shards.source),
        ("runtime.idle_spin_us", idle_spin_us, &runtime.idle_spin.source),
        ("runtime.slab_send_bytes", SLAB_BYTES, &runtime.slab_send_bytes.source),
        ("runtime.slab_receive_bytes", SLAB_BYTES, &runtime.slab_receive_bytes.source),
        ("daemon.area_bytes", SLAB_BYTES, &daemon.area_bytes.source),
        ("daemon.arena_bytes_max", daemon.arena_bytes_max.value.max(arena_bytes_max), &daemon.arena_bytes_max.source),
        // A long turn only means here that the machine has other work.
        ("runtime.stall_report_ms", 0, &runtime.stall_report.source),
        ("daemon.drain_timeout_ms", DRAIN_TIMEOUT_MS, &daemon.drain_timeout.source),
        ("transport.connect_timeout_ms", timeout_ms, &transport.connect_timeout.source),
        ("fusion.request_timeout_ms", timeout_ms, &fusion.request_timeout.source),
    ];
    let ours = wishes.into_iter().filter(|(.., source)| **source == Source::Default);
    ours.map(|(name, value, _)| format!("{name}={value}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demo_sets_what_nothing_else_gives() {
        let settings = |given: &[(&str, &str)]| Settings::of(given.iter().copied()).unwrap();
        let ours = settings_of_demo(&settings(&[]), 2, true, 64 << 30);
        for expected in ["runtime.shards=2", "runtime.idle_spin_us=200", "daemon.arena_bytes_max=68719476736"] {
            assert!(ours.contains(&expected.to_owned()), "{ours:?}");
        }
        let ours = settings_of_demo(&settings(&[("runtime.shards", "7")]), 2, false, 0);
        assert!(ours.contains(&"runtime.idle_spin_us=0".to_owned()), "{ours:?}");
        assert!(!ours.iter().any(|set| set.starts_with("runtime.shards")), "{ours:?}");
        // The demo's own settings are in range.
        let pairs: Vec<_> = ours.iter().filter_map(|set| set.split_once('=')).collect();
        assert_eq!(settings(&pairs).daemon.drain_timeout.value.as_millis(), u128::from(DRAIN_TIMEOUT_MS));
    }

    #[test]
    fn a_few_steps_are_told_and_always_the_last() {
        let told = |steps| (1..=steps).filter(|number| is_told(*number, steps)).collect::<Vec<_>>();
        assert_eq!([told(1), told(3)], [vec![1], vec![1, 2, 3]]);
        assert_eq!([told(20), told(21)], [[4, 8, 12, 16, 20], [5, 10, 15, 20, 21]]);
    }
}
