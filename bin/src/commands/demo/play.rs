//! A demo being played: starts tasks and daemons, orders the steps, and sees all of them end.

use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use sealane_transport::endpoint_map;

use super::children::Children;
use super::daemons::{Daemon, pinned_cpus};
use super::figures::{Figures, Traffic};
use super::outcome::Parameters;
use super::peers::{EngineLinks, PeerLink};
use super::progress::Progress;
use super::protocol::{Fetched, Job, Order, Part, Report};
use super::setup::Setup;
use super::{Args, Demo, WARMUP_STEPS};
use crate::commands::stat;
use crate::links::Links;
use crate::trace;
use crate::{Context, Failure};

/// A demo and what it was asked for with.
pub(super) struct Play<'a> {
    pub(super) demo: &'a Demo,
    pub(super) args: &'a Args,
    pub(super) context: &'a Context,
}

/// What was found out, up to the end or to what went wrong.
pub(super) struct Played {
    pub(super) figures: Figures,
    /// The CPUs that shards were pinned to.
    pub(super) pinned: Vec<usize>,
    /// The links between engines that stood at the end.
    pub(super) links: Links,
    /// The same one by one, as each engine tells.
    pub(super) peers: Vec<PeerLink>,
    /// What the daemons traced, if that was asked for.
    pub(super) trace: Option<String>,
}

impl Played {
    pub(super) fn new(parameters: &Parameters) -> Played {
        Played {
            figures: Figures::new(parameters.workers, parameters.steps),
            pinned: Vec::new(),
            links: Links::default(),
            peers: Vec::new(),
            trace: None,
        }
    }
}

/// An engine of the demo.
struct Engine {
    /// The task, or the daemon.
    name: String,
    /// Its transport address.
    address: String,
    /// Of a daemon: where it is asked.
    socket: Option<PathBuf>,
}

impl Play<'_> {
    /// Starts the tasks, plays all steps, and ends the tasks.
    ///
    /// # Errors
    /// A task or a daemon failed, or a signal came; `played` has what was found out until then.
    pub(super) fn play(&self, played: &mut Played) -> Result<(), Failure> {
        let parameters = &self.demo.parameters;
        let directory = tempfile::Builder::new().prefix("sealane-demo-").tempdir().map_err(|error| {
            Failure::work(format!("no temporary directory can be created ({error}); set TMPDIR to one with free space"))
        })?;
        let program = std::env::current_exe()
            .map_err(|error| Failure::work(format!("this program's executable cannot be found ({error})")))?;
        let names: Vec<String> = self.demo.jobs.iter().map(Job::task).collect();
        let mut children = Children::start(&names, || {
            let mut command = Command::new(&program);
            command.arg("demo-task").args(self.settings_given());
            command
        })?;
        let progress = Progress::on_stderr(parameters.steps);
        let (pinned, engines) = match self.demo.setup {
            Setup::Embedded => self.start_engines(&mut children, directory.path(), &progress)?,
            Setup::TwoDaemons | Setup::OneDaemon => {
                self.start_daemons(&mut children, &program, directory.path(), &progress)?
            }
        };
        played.pinned = pinned;
        progress.say(&format!("a tensor's way: {}", self.demo.setup.path(self.demo.network)));
        let mut began = Instant::now();
        for number in 0..WARMUP_STEPS + parameters.steps {
            children.set_doing(format!("in step {number}"));
            if number == WARMUP_STEPS {
                began = Instant::now();
            }
            let step = self.step(&mut children, &mut played.figures, number, began)?;
            if number >= WARMUP_STEPS {
                progress.stepped(number + 1 - WARMUP_STEPS, &step);
            }
        }
        children.set_doing("at the end".to_owned());
        (played.links, played.peers) = self.links_of_engines(&mut children, &engines)?;
        children.finish()?;
        // Whole, now that the daemons have ended.
        if self.args.trace.is_some() {
            played.trace = Some(trace::of_all_in(directory.path())?);
        }
        Ok(())
    }

    /// How many links there are between engines, and each as either of its ends tells of it, by the names of both.
    fn links_of_engines(&self, children: &mut Children, engines: &[Engine]) -> Result<(Links, Vec<PeerLink>), Failure> {
        let mut told = Vec::new();
        for Engine { name, socket, .. } in engines {
            let Some(socket) = socket else { continue };
            told.push(EngineLinks::of(name, stat::look(socket)?.shards));
        }
        if self.demo.setup == Setup::Embedded {
            for report in children.ask(self.all(), &Order::ShowLinks)? {
                let Report::Links(links) = report else { return Err(astray(&report)) };
                told.push(links);
            }
        }
        // Every link has a ps at one of its ends, and the engines of those come first.
        let of_ps = if self.demo.setup == Setup::Embedded { self.demo.parameters.ps } else { 1 };
        let links = told[..of_ps].iter().map(|engine| engine.count).sum();
        let mut peers: Vec<PeerLink> = told.into_iter().flat_map(|engine| engine.peers).collect();
        for link in &mut peers {
            if let Some(peer) = engines.iter().find(|engine| engine.address == link.peer) {
                link.peer.clone_from(&peer.name);
            }
        }
        Ok((links, peers))
    }

    /// The flags for settings, for processes that read the same.
    fn settings_given(&self) -> Vec<OsString> {
        let config = self.args.config.iter().flat_map(|file| ["--config".into(), file.into()]);
        config.chain(self.args.set().into_iter().flat_map(|pair| ["--set".into(), pair.into()])).collect()
    }

    /// Every task takes a port of its own and says which, and the map that results goes to all.
    fn start_engines(
        &self,
        children: &mut Children,
        directory: &Path,
        progress: &Progress,
    ) -> Result<(Vec<usize>, Vec<Engine>), Failure> {
        let begin: Vec<_> = self.demo.jobs.iter().cloned().map(Order::Begin).collect();
        let (mut map, mut engines) = (String::new(), Vec::new());
        for (index, report) in children.ask_each(&begin)?.into_iter().enumerate() {
            let Report::Listening { address } = report else { return Err(astray(&report)) };
            let task = self.demo.jobs[index].task();
            progress.say(&format!("{task} listens on {address} (process {})", children.process_id(index)));
            map.push_str(&format!("{task}={address}\n"));
            engines.push(Engine { name: task, address: address.to_string(), socket: None });
        }
        let endpoint_map = write_map(directory, &map)?;
        let mut pinned = Vec::new();
        for report in children.ask(self.all(), &Order::Start { endpoint_map })? {
            let Report::Ready { cpus } = report else { return Err(astray(&report)) };
            pinned.extend(cpus);
        }
        Ok((pinned, engines))
    }

    /// The tasks of a daemon share its transport address; each attaches at its socket.
    fn start_daemons(
        &self,
        children: &mut Children,
        program: &Path,
        directory: &Path,
        progress: &Progress,
    ) -> Result<(Vec<usize>, Vec<Engine>), Failure> {
        let daemons = Daemon::all(self.demo.setup, &self.demo.jobs, directory)?;
        let spin = self.demo.spin;
        let mut map = String::new();
        let mut attach = Vec::new();
        for daemon in &daemons {
            daemon.tasks().for_each(|task| map.push_str(&format!("{task}={}\n", daemon.address)));
            let order = |job: &Job| Order::Attach { job: job.clone(), socket: daemon.socket.clone(), spin };
            attach.extend(daemon.jobs.iter().map(order));
        }
        let endpoint_map = write_map(directory, &map)?;
        let (mut pinned, mut engines) = (Vec::new(), Vec::new());
        for daemon in daemons {
            let name = daemon.name;
            let (address, socket) = (daemon.address.to_string(), Some(daemon.socket.clone()));
            engines.push(Engine { name: name.to_owned(), address, socket });
            let tasks = daemon.tasks().collect::<Vec<_>>().join(", ");
            let serves = format!("serves {tasks} at {}, clients at {}", daemon.address, daemon.socket.display());
            let settings = self.settings_of_daemon(daemon.part);
            let trace = self.args.trace.as_ref().map(|_| directory.join(name).with_extension(trace::EXTENSION));
            let command = daemon.command(program, &endpoint_map, &settings, trace.as_deref());
            let process = children.start_daemon(name, command, self.context.log_is_wanted())?;
            progress.say(&format!("{name} {serves} (process {process})"));
            pinned.extend(pinned_cpus(process));
        }
        for (index, report) in children.ask_each(&attach)?.into_iter().enumerate() {
            let Report::Ready { .. } = report else { return Err(astray(&report)) };
            let task = self.demo.jobs[index].task();
            progress.say(&format!("{task} is attached (process {})", children.process_id(index)));
        }
        Ok((pinned, engines))
    }

    fn settings_of_daemon(&self, part: Part) -> Vec<OsString> {
        let ours = self.demo.settings.iter().filter(|(of, _)| *of == part).flat_map(|(_, settings)| settings);
        self.settings_given().into_iter().chain(ours.map(Into::into)).collect()
    }

    /// One step: all make what they send; the workers pull; the ps take the pushes; all compare what they got. The first
    /// that counts `began` then.
    fn step(
        &self,
        children: &mut Children,
        figures: &mut Figures,
        number: u64,
        began: Instant,
    ) -> Result<Traffic, Failure> {
        let step = number as i64;
        let (ps, workers) = (0..self.demo.parameters.ps, self.demo.parameters.ps..self.demo.jobs.len());
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
        Ok(figures.add_step(&pulled, &pushed, began.elapsed()))
    }

    fn all(&self) -> Range<usize> {
        0..self.demo.jobs.len()
    }
}

fn write_map(directory: &Path, map: &str) -> Result<PathBuf, Failure> {
    let file = directory.join(endpoint_map::FILE_NAME);
    match fs::write(&file, map) {
        Ok(()) => Ok(file),
        Err(error) => Err(Failure::work(format!("{} cannot be written ({error})", file.display()))),
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
    Failure::work(format!("a task reported {report:?} when something else was expected; run the demo again"))
}
