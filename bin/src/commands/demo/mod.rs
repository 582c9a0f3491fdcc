//! `sealane demo`: a parameter server and workers, each in a process of its own and attached to a daemon of its side, move a
//! real model's tensors back and forth on this machine, and every byte is verified. This process starts all of them, tells
//! the tasks what to do step by step, and adds up what they measured; it moves nothing itself.

mod children;
mod daemons;
mod figures;
mod outcome;
mod page;
mod pattern;
mod play;
mod protocol;
mod share;
mod task;

use std::fs;
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use clap::ValueEnum;
use sealane_bench::Machine;
use sealane_runtime::allowed_cpus;

pub use self::task::{TaskArgs, run_task};

use self::daemons::{Setup, expected_network, may_spin, settings_of_demo};
use self::figures::Figures;
use self::outcome::{Outcome, Parameters, shown_bytes};
use self::protocol::{Job, Part, task_name};
use self::share::Share;
use crate::arena_size::arena_bytes;
use crate::links::Links;
use crate::output_file::{self, OutputFile};
use crate::settings::VERBS_BUILT_IN;
use crate::workload::Workload;
use crate::{Context, Failure, host};

/// Most tasks of one part: more would only wait for this machine's CPUs.
const TASKS_MAX: u64 = 64;
/// Most steps of a demo.
const STEPS_MAX: u64 = 1_000_000;
/// Steps before those that count: they make the connections.
const WARMUP_STEPS: u64 = 1;
/// Where the kernel says which congestion control its sockets have.
const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

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

    /// Write a report with plots, all figures and the machine: one self-contained page
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    /// Write a trace of every call in the daemons to a file; open it in ui.perfetto.dev for a timeline
    #[arg(long, value_name = "FILE", conflicts_with = "embedded")]
    trace: Option<PathBuf>,

    /// Have this task flip one bit in what it sends, to check that verification detects it
    #[arg(long, value_name = "TASK")]
    flip_bit: Option<String>,

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

impl Link {
    /// The setting that asks every process of the demo for this link.
    fn setting(self) -> Option<String> {
        match self {
            Link::Auto | Link::Shm => None,
            Link::Tcp => Some("transport.require=tcp".to_owned()),
            Link::Verbs => Some("transport.require=verbs".to_owned()),
        }
    }
}

impl Args {
    fn setup(&self) -> Result<Setup, Failure> {
        match (self.embedded, self.link) {
            (_, Link::Verbs) if !VERBS_BUILT_IN => Err(Failure::input(
                "--link verbs asks for RDMA verbs, and this build has none; build it with `--features verbs`, or name \
                 another link",
            )),
            (true, Link::Shm) => Err(Failure::input(
                "--embedded gives every task its own engine, and --link shm does not connect engines; \
                 drop one of the two",
            )),
            (true, _) => Ok(Setup::Embedded),
            (false, Link::Shm) => Ok(Setup::OneDaemon),
            (false, _) => Ok(Setup::TwoDaemons),
        }
    }

    /// The settings given to every process; what the link asks for is the last word.
    fn set(&self) -> Vec<String> {
        self.set.iter().cloned().chain(self.link.setting()).collect()
    }
}

/// Runs `sealane demo`.
///
/// # Errors
///
/// The arguments, a setting or the workload is wrong; a task ended or failed; a byte was not what it should be; or a
/// signal came.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let (start, made) = (Instant::now(), SystemTime::now());
    let report_file = OutputFile::named("--report", args.report.as_ref())?;
    let trace_file = OutputFile::named("--trace", args.trace.as_ref())?;
    let (demo, mut outcome) = Demo::plan(args, context)?;
    let played = demo.play(&mut outcome);
    outcome.seconds = start.elapsed().as_secs_f64();
    if let Some(file) = report_file {
        let written = file.write(&outcome.to_page(played.as_ref().err(), made).to_html());
        // Why the demo failed is more than that its report did as well.
        played.as_ref().map_or_else(|_| Ok(()), |_| written)?;
    }
    if let Some((file, trace)) = trace_file.zip(played?) {
        file.write(&trace)?;
    }
    output_file::report(context, args.json.as_deref(), &outcome.to_json(), &outcome.to_text())
}

/// A demo that can be played: all arguments are read and checked.
struct Demo<'a> {
    args: &'a Args,
    context: &'a Context,
    setup: Setup,
    /// Whether the processes have a CPU each, so that one may spin.
    spin: bool,
    /// One for each task: first the ps, then the workers.
    jobs: Vec<Job>,
    /// For each part, what its daemon is told beyond the settings of the demo itself.
    settings: [(Part, Vec<String>); 2],
}

impl<'a> Demo<'a> {
    /// Also gives its outcome, of which nothing is known yet.
    fn plan(args: &'a Args, context: &'a Context) -> Result<(Demo<'a>, Outcome), Failure> {
        let (workers, ps) = (args.workers as usize, args.ps as usize);
        let setup = args.setup()?;
        let text = Workload::text(&args.workload)?;
        let workload = Workload::parse(&text, &args.workload)?;
        // What is wrong with the settings of a part is said here, before any process is started.
        let set = args.set();
        let [of_ps, of_workers] =
            [Part::Ps, Part::Worker].map(|part| task::settings(part, &args.config, &set, context));
        let (of_ps, of_workers) = (of_ps?, of_workers?);
        let allowed = allowed_cpus().map_err(Failure::work)?;
        let cpus = allowed.len();
        let (pin, spin) = (cpus >= workers + ps, may_spin(setup, workers + ps, cpus));
        let parts = [(Part::Ps, ps), (Part::Worker, workers)];
        let jobs = parts.into_iter().flat_map(|(part, count)| (0..count).map(move |index| (part, index)));
        let jobs: Vec<Job> = jobs
            .map(|(part, index)| {
                let flip_bit = args.flip_bit.as_deref() == Some(&task_name(part, index));
                Job { part, index, workers, ps, workload: text.clone(), pin, flip_bit }
            })
            .collect();
        if let Some(task) = &args.flip_bit
            && !jobs.iter().any(|job| job.flip_bit)
        {
            let tasks = jobs.iter().map(Job::task).collect::<Vec<_>>().join(", ");
            return Err(Failure::input(format!("--flip-bit {task} is not a task of this demo; name one of {tasks}")));
        }
        let memory: Vec<u64> = jobs.iter().map(|job| memory_bytes(setup, job, &workload)).collect();
        check_memory(&workload, workers, memory.iter().sum())?;
        let largest = memory.into_iter().max().unwrap_or(0);
        let of_daemon = |settings| settings_of_demo(settings, workers * ps, cpus, spin, largest);
        let kernels = || fs::read_to_string(CONGESTION).map_or("unknown".to_owned(), |name| name.trim().to_owned());
        let parameters = Parameters {
            workers,
            ps,
            steps: args.steps,
            warmup_steps: WARMUP_STEPS,
            window: of_workers.transport.window.value,
            pull_tensors: workload.pull.len(),
            push_tensors: workload.push.len(),
            pull_bytes: workload.pull_bytes(),
            push_bytes: workload.push_bytes(),
            congestion: of_workers.tcp.wanted_congestion().map_or_else(kernels, str::to_owned),
        };
        let settings = [(Part::Ps, of_daemon(&of_ps)), (Part::Worker, of_daemon(&of_workers))];
        let outcome = Outcome {
            workload: workload.name,
            setup,
            network: expected_network(of_workers.transport.require.value, VERBS_BUILT_IN),
            links: Links::default(),
            peers: Vec::new(),
            figures: Figures::new(workers, args.steps),
            parameters,
            machine: Machine::look(&allowed, None)?,
            seconds: 0.0,
        };
        Ok((Demo { args, context, setup, spin, jobs, settings }, outcome))
    }
}

/// What a task holds.
fn memory_bytes(setup: Setup, job: &Job, workload: &Workload) -> u64 {
    let share = Share::new(job, workload);
    match setup {
        Setup::Embedded => share.lengths().sum(),
        Setup::TwoDaemons | Setup::OneDaemon => arena_bytes(share.lengths()),
    }
}

fn check_memory(workload: &Workload, workers: usize, needed: u64) -> Result<(), Failure> {
    match host::available_bytes() {
        Some(available) if needed > available => Err(Failure::input(format!(
            "{} with {workers} workers needs {} of memory and {} are free; use fewer workers or a smaller workload",
            workload.name,
            shown_bytes(needed),
            shown_bytes(available)
        ))),
        _ => Ok(()),
    }
}
