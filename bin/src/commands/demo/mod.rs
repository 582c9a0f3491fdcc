//! `sealane demo`: a parameter server and workers, each in a process of its own, move a real model's tensors back and
//! forth on this machine, and every byte is verified. This process starts them, tells them what to do step by step,
//! and adds up what they measured; it moves nothing itself.

mod bars;
mod children;
mod exchange;
mod figures;
mod interrupts;
mod outcome;
mod pattern;
mod progress;
mod protocol;
mod share;
mod task;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::ValueEnum;
use sealane_bench::Machine;
use sealane_runtime::allowed_cpus;
use sealane_transport::endpoint_map;

pub use self::task::{TaskArgs, run_task};

use self::children::Children;
use self::figures::{Figures, Traffic};
use self::outcome::{Outcome, Parameters, shown_bytes};
use self::progress::Progress;
use self::protocol::{Fetched, Job, Order, Part, Report, task_name};
use crate::workload::{Workload, WorkloadError};
use crate::{Context, Failure, host_memory};

/// Most tasks of one part: more would only wait for this machine's CPUs.
const TASKS_MAX: u64 = 64;
/// Most steps of a demo.
const STEPS_MAX: u64 = 1_000_000;
/// Steps before those that count: they make the connections.
const WARMUP_STEPS: u64 = 1;
/// What stands for standard output where a file is expected.
const STANDARD_OUTPUT: &str = "-";
/// Where the kernel says which congestion control its sockets have.
const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Move a real model's tensors between processes on this machine, and verify every byte
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane demo --workload mobilenet_v2 --workers 2 --ps 1 --steps 20")]
pub struct Args {
    /// Whose tensors to move: resnet50, mobilenet_v2, vgg16, wide_deep_400, dlrm_kaggle, or a file that describes some
    #[arg(long, value_name = "NAME|FILE.json", default_value = "resnet50")]
    workload: String,

    /// Workers, each a process
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=TASKS_MAX))]
    workers: u64,

    /// Parameter servers, each a process; tensors are dealt out to them in turn
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=TASKS_MAX))]
    ps: u64,

    /// Steps that count, after one that makes the connections
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=STEPS_MAX))]
    steps: u64,

    /// What carries the tensors
    #[arg(long, default_value = "auto")]
    link: Link,

    /// Run the engine inside each process, which is the only way in this version
    #[arg(long)]
    embedded: bool,

    /// Write the figures as JSON to a file, or alone to standard output with `-`
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,

    /// Let this task flip one bit of what it sends, to see that it is found out
    #[arg(long, value_name = "TASK")]
    flip_bit: Option<String>,

    /// The settings file to read, instead of `sealane.toml` in the working directory
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Gives a setting a value, as in `transport.window=80`; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Link {
    /// The best there is between processes of this machine: TCP
    Auto,
    /// TCP
    Tcp,
}

/// Runs `sealane demo`.
///
/// # Errors
///
/// The arguments, a setting or the workload is wrong; a task ended or failed; a byte was not what it should be; or a
/// signal came.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let start = Instant::now();
    let demo = Demo::plan(args, context)?;
    let (figures, pinned) = demo.play(args)?;
    let allowed = allowed_cpus().map_err(Failure::work)?;
    let machine = Machine { pinned, ..Machine::look(&allowed, None)? };
    let parameters = demo.parameters;
    let seconds = start.elapsed().as_secs_f64();
    let outcome = Outcome { workload: demo.workload.name, parameters, machine, figures, seconds };
    report(&outcome, args.json.as_deref(), context)
}

fn report(outcome: &Outcome, json: Option<&Path>, context: &Context) -> Result<(), Failure> {
    match json {
        Some(file) if file == Path::new(STANDARD_OUTPUT) => return context.print(&outcome.to_json()),
        Some(file) => fs::write(file, outcome.to_json()).map_err(|error| {
            let file = file.display();
            Failure::input(format!("{file} cannot be written ({error}); name a file in a directory that exists"))
        })?,
        None => {}
    }
    context.print(&outcome.to_text())
}

/// A demo that can be played: all arguments are read and checked.
struct Demo {
    workload: Workload,
    parameters: Parameters,
    /// One for each task: first the ps, then the workers.
    jobs: Vec<Job>,
}

impl Demo {
    fn plan(args: &Args, context: &Context) -> Result<Demo, Failure> {
        let (workers, ps) = (args.workers as usize, args.ps as usize);
        let text = Workload::text(&args.workload)?;
        let workload = Workload::parse(&text, &args.workload)?;
        check_memory(&workload, workers)?;
        // What is wrong with the settings of a part is said here, before any process is started.
        let settings = task::settings(Part::Worker, &args.config, &args.set, context)?;
        task::settings(Part::Ps, &args.config, &args.set, context)?;
        let pin = allowed_cpus().map_err(Failure::work)?.len() >= workers + ps;
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
            return Err(Failure::input(format!("--flip-bit {task} is no task of this demo; name one of {tasks}")));
        }
        let kernels = || fs::read_to_string(CONGESTION).map_or("unknown".to_owned(), |name| name.trim().to_owned());
        let parameters = Parameters {
            workers,
            ps,
            steps: args.steps,
            warmup_steps: WARMUP_STEPS,
            window: settings.transport.window.value,
            pull_tensors: workload.pull.len(),
            push_tensors: workload.push.len(),
            pull_bytes: workload.pull_bytes(),
            push_bytes: workload.push_bytes(),
            congestion: settings.tcp.congestion.value.clone().unwrap_or_else(kernels),
        };
        Ok(Demo { workload, parameters, jobs })
    }

    /// Starts the tasks, plays all steps, and ends the tasks; also gives the CPUs that they were pinned to.
    fn play(&self, args: &Args) -> Result<(Figures, Vec<usize>), Failure> {
        let directory = tempfile::Builder::new().prefix("sealane-demo-").tempdir().map_err(|error| {
            Failure::work(format!("no temporary directory can be made ({error}); set TMPDIR to one with room"))
        })?;
        let program = std::env::current_exe()
            .map_err(|error| Failure::work(format!("this program's own file cannot be found ({error})")))?;
        let names: Vec<String> = self.jobs.iter().map(Job::task).collect();
        let mut children = Children::start(&names, || {
            let mut command = Command::new(&program);
            command.arg("demo-task").args(args.config.iter().flat_map(|file| ["--config".as_ref(), file.as_os_str()]));
            command.args(args.set.iter().flat_map(|pair| ["--set", pair]));
            command
        })?;
        let progress = Progress::on_stderr(self.parameters.steps);
        let pinned = self.start_tasks(&mut children, directory.path(), &progress)?;
        let mut figures = Figures::new(self.parameters.workers);
        for number in 0..WARMUP_STEPS + self.parameters.steps {
            children.set_doing(format!("in step {number}"));
            let step = self.step(&mut children, &mut figures, number)?;
            if number >= WARMUP_STEPS {
                progress.stepped(number + 1 - WARMUP_STEPS, &step);
            }
        }
        children.set_doing("at the end".to_owned());
        children.finish()?;
        Ok((figures, pinned))
    }

    /// Every task takes a port of its own and says which, and the map that results goes to all.
    fn start_tasks(
        &self,
        children: &mut Children,
        directory: &Path,
        progress: &Progress,
    ) -> Result<Vec<usize>, Failure> {
        let begin: Vec<_> = self.jobs.iter().cloned().map(Order::Begin).collect();
        let mut map = String::new();
        for (index, report) in children.ask_each(&begin)?.into_iter().enumerate() {
            let Report::Listening { address } = report else { return Err(astray(&report)) };
            let task = self.jobs[index].task();
            progress.say(&format!("{task} listens on {address} (process {})", children.process_id(index)));
            map.push_str(&format!("{task}={address}\n"));
        }
        let endpoint_map = directory.join(endpoint_map::FILE_NAME);
        fs::write(&endpoint_map, map)
            .map_err(|error| Failure::work(format!("{} cannot be written ({error})", endpoint_map.display())))?;
        let mut pinned = Vec::new();
        for report in children.ask(self.all(), &Order::Start { endpoint_map })? {
            let Report::Ready { cpus } = report else { return Err(astray(&report)) };
            pinned.extend(cpus.into_iter().flatten());
        }
        Ok(pinned)
    }

    /// One step: all make what they send; the workers pull; the ps take the pushes; all compare what they got.
    fn step(&self, children: &mut Children, figures: &mut Figures, number: u64) -> Result<Traffic, Failure> {
        let step = number as i64;
        let (ps, workers) = (0..self.parameters.ps, self.parameters.ps..self.jobs.len());
        children.ask(self.all(), &Order::Fill { step })?;
        let pulled = fetched(children.ask(workers, &Order::Fetch { step })?)?;
        let pushed = fetched(children.ask(ps, &Order::Fetch { step })?)?;
        for report in children.ask(self.all(), &Order::Verify { step })? {
            let Report::Verified { tensors, bytes } = report else { return Err(astray(&report)) };
            figures.add_verified(tensors, bytes);
        }
        if number < WARMUP_STEPS {
            return Ok(Traffic::default());
        }
        Ok(figures.add_step(&pulled, &pushed))
    }

    fn all(&self) -> std::ops::Range<usize> {
        0..self.jobs.len()
    }
}

fn fetched(reports: Vec<Report>) -> Result<Vec<Vec<Fetched>>, Failure> {
    let one = |report| match report {
        Report::Fetched(fetched) => Ok(fetched),
        other => Err(astray(&other)),
    };
    reports.into_iter().map(one).collect()
}

/// A task of this very program answered another order than it was given.
fn astray(report: &Report) -> Failure {
    Failure::work(format!("a task reported {report:?} when something else was asked; run the demo again"))
}

fn check_memory(workload: &Workload, workers: usize) -> Result<(), Failure> {
    let needed = share::memory_bytes(workload, workers);
    match host_memory::available_bytes() {
        Some(available) if needed > available => Err(Failure::input(format!(
            "{} with {workers} workers needs {} of memory and {} are free; take fewer workers or a smaller workload",
            workload.name,
            shown_bytes(needed),
            shown_bytes(available)
        ))),
        _ => Ok(()),
    }
}

impl From<WorkloadError> for Failure {
    fn from(error: WorkloadError) -> Failure {
        Failure::input(error)
    }
}
