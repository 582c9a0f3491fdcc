//! A demo being played: starts tasks and daemons, orders the steps, and sees all of them end.

use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use sealane_transport::endpoint_map;

use super::children::Children;
use super::daemons::{Daemon, Setup};
use super::figures::{Figures, PeerLink, Traffic};
use super::outcome::Outcome;
use super::protocol::{Fetched, Job, Order, Part, Report};
use super::{Demo, WARMUP_STEPS};
use crate::Failure;
use crate::commands::stat;
use crate::figures::Shard;
use crate::links::Links;
use crate::progress::{Bar, write_line};
use crate::trace;

/// Lines of a whole demo where there is no bar, at most.
const LINES_MAX: u64 = 5;

/// An engine of the demo.
struct Engine {
    /// The task, or the daemon.
    name: String,
    /// Its transport address.
    address: String,
    /// Of a daemon: where it is asked.
    socket: Option<PathBuf>,
}

impl Demo<'_> {
    /// Starts the tasks, plays all steps, and ends the tasks. Gives what the daemons traced, if that was asked for.
    ///
    /// # Errors
    /// A task or a daemon failed, or a signal came; `outcome` has what was found out until then.
    pub(super) fn play(&self, outcome: &mut Outcome) -> Result<Option<String>, Failure> {
        let directory = tempfile::Builder::new().prefix("sealane-demo-").tempdir().map_err(|error| {
            Failure::work(format!("no temporary directory can be created ({error}); set TMPDIR to one with free space"))
        })?;
        let program = std::env::current_exe()
            .map_err(|error| Failure::work(format!("this program's executable cannot be found ({error})")))?;
        let names: Vec<String> = self.jobs.iter().map(Job::task).collect();
        let mut children = Children::start(&names, || {
            let mut command = Command::new(&program);
            command.arg("demo-task").args(self.settings_given());
            command
        })?;
        let (setup, steps) = (self.setup, outcome.parameters.steps);
        let bar = Bar::on_stderr(steps, "{bar:32} step {pos}/{len} {msg}");
        let engines = match setup {
            Setup::Embedded => self.start_engines(&mut children, directory.path(), &bar)?,
            Setup::TwoDaemons | Setup::OneDaemon => {
                self.start_daemons(&mut children, &program, directory.path(), &bar)?
            }
        };
        let shards = self.shards(&mut children, &engines)?;
        outcome.machine.pinned = shards.iter().flatten().filter_map(|shard| shard.cpu).collect();
        bar.say(&format!("a tensor's way: {}", setup.path(outcome.network)));
        let mut began = Instant::now();
        for number in 0..WARMUP_STEPS + steps {
            children.set_doing(format!("in step {number}"));
            if number == WARMUP_STEPS {
                began = Instant::now();
            }
            let step = self.step(&mut children, &mut outcome.figures, number, began)?;
            if number >= WARMUP_STEPS {
                stepped(&bar, number + 1 - WARMUP_STEPS, steps, &step);
            }
        }
        children.set_doing("at the end".to_owned());
        let shards = self.shards(&mut children, &engines)?;
        self.tell_links(outcome, &engines, shards);
        children.finish()?;
        // Whole, now that the daemons have ended.
        self.args.trace.as_ref().map(|_| trace::of_all_in(directory.path())).transpose()
    }

    /// What the shards of each engine show.
    fn shards(&self, children: &mut Children, engines: &[Engine]) -> Result<Vec<Vec<Shard>>, Failure> {
        if self.setup != Setup::Embedded {
            let sockets = engines.iter().filter_map(|engine| engine.socket.as_ref());
            return sockets.map(|socket| Ok(stat::look(socket)?.shards)).collect();
        }
        let shards = |report| match report {
            Report::Shards(shards) => Ok(shards),
            other => Err(astray(&other)),
        };
        children.ask(self.all(), &Order::ShowShards)?.into_iter().map(shards).collect()
    }

    /// How many links there are between engines, and each as either of its ends tells of it, by the names of both.
    fn tell_links(&self, outcome: &mut Outcome, engines: &[Engine], shards: Vec<Vec<Shard>>) {
        // Every link has a ps at one of its ends, and the engines of those come first.
        let of_ps = if self.setup == Setup::Embedded { outcome.parameters.ps } else { 1 };
        outcome.links = Links::of(shards[..of_ps].iter().flatten().map(|shard| &shard.counters));
        outcome.network = outcome.links.kind().unwrap_or(outcome.network);
        for (engine, shards) in engines.iter().zip(shards) {
            let peers = shards.into_iter().flat_map(|shard| shard.peers);
            outcome.peers.extend(PeerLink::of_engine(&engine.name, peers));
        }
        for link in &mut outcome.peers {
            if let Some(peer) = engines.iter().find(|engine| engine.address == link.peer) {
                link.peer.clone_from(&peer.name);
            }
        }
    }

    /// The flags for settings, for processes that read the same.
    fn settings_given(&self) -> Vec<OsString> {
        let config = self.args.config.iter().flat_map(|file| ["--config".into(), file.into()]);
        config.chain(self.args.set().into_iter().flat_map(|pair| ["--set".into(), pair.into()])).collect()
    }

    /// Every task takes a port of its own and says which, and the map that results goes to all.
    fn start_engines(&self, children: &mut Children, directory: &Path, bar: &Bar) -> Result<Vec<Engine>, Failure> {
        let begin: Vec<_> = self.jobs.iter().cloned().map(Order::Begin).collect();
        let (mut map, mut engines) = (String::new(), Vec::new());
        for (index, report) in children.ask_each(&begin)?.into_iter().enumerate() {
            let Report::Listening { address } = report else { return Err(astray(&report)) };
            let task = self.jobs[index].task();
            bar.say(&format!("{task} listens on {address} (process {})", children.process_id(index)));
            map.push_str(&format!("{task}={address}\n"));
            engines.push(Engine { name: task, address: address.to_string(), socket: None });
        }
        let endpoint_map = write_map(directory, &map)?;
        let reports = children.ask(self.all(), &Order::Start { endpoint_map })?;
        must_be_ready(&reports)?;
        Ok(engines)
    }

    /// The tasks of a daemon share its transport address; each attaches at its socket.
    fn start_daemons(
        &self,
        children: &mut Children,
        program: &Path,
        directory: &Path,
        bar: &Bar,
    ) -> Result<Vec<Engine>, Failure> {
        let daemons = Daemon::all(self.setup, &self.jobs, directory)?;
        let spin = self.spin;
        let mut map = String::new();
        let mut attach = Vec::new();
        for daemon in &daemons {
            daemon.tasks().for_each(|task| map.push_str(&format!("{task}={}\n", daemon.address)));
            let order = |job: &Job| Order::Attach { job: job.clone(), socket: daemon.socket.clone(), spin };
            attach.extend(daemon.jobs.iter().map(order));
        }
        let endpoint_map = write_map(directory, &map)?;
        let mut engines = Vec::new();
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
            bar.say(&format!("{name} {serves} (process {process})"));
        }
        must_be_ready(&children.ask_each(&attach)?)?;
        for (index, job) in self.jobs.iter().enumerate() {
            bar.say(&format!("{} is attached (process {})", job.task(), children.process_id(index)));
        }
        Ok(engines)
    }

    fn settings_of_daemon(&self, part: Part) -> Vec<OsString> {
        let ours = self.settings.iter().filter(|(of, _)| *of == part).flat_map(|(_, settings)| settings);
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
        let of_ps = self.jobs.partition_point(|job| job.part == Part::Ps);
        children.ask(self.all(), &Order::Fill { step })?;
        let pulled = fetched(children.ask(of_ps..self.jobs.len(), &Order::Fetch { step })?)?;
        let pushed = fetched(children.ask(0..of_ps, &Order::Fetch { step })?)?;
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
        0..self.jobs.len()
    }
}

/// Shows that step `number` of `steps`, counted from 1, moved `traffic`. Drawn between steps, so that it costs no transfer
/// anything.
fn stepped(bar: &Bar, number: u64, steps: u64, traffic: &Traffic) {
    let (pull, push) = (traffic.pull.gigabytes_per_s(), traffic.push.gigabytes_per_s());
    let rates = format!("pull {pull:.2} GB/s, push {push:.2} GB/s");
    if !bar.at(number, &rates) && is_told(number, steps) {
        write_line(&format!("step {number} of {steps}: {rates}"));
    }
}

fn is_told(number: u64, steps: u64) -> bool {
    number.is_multiple_of(steps.div_ceil(LINES_MAX)) || number == steps
}

fn write_map(directory: &Path, map: &str) -> Result<PathBuf, Failure> {
    let file = directory.join(endpoint_map::FILE_NAME);
    match fs::write(&file, map) {
        Ok(()) => Ok(file),
        Err(error) => Err(Failure::work(format!("{} cannot be written ({error})", file.display()))),
    }
}

fn must_be_ready(reports: &[Report]) -> Result<(), Failure> {
    reports.iter().find(|report| **report != Report::Ready).map_or(Ok(()), |other| Err(astray(other)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_steps_are_told_and_always_the_last() {
        let told = |steps| (1..=steps).filter(|number| is_told(*number, steps)).collect::<Vec<_>>();
        assert_eq!(told(1), [1]);
        assert_eq!(told(3), [1, 2, 3]);
        assert_eq!(told(20), [4, 8, 12, 16, 20]);
        assert_eq!(told(21), [5, 10, 15, 20, 21]);
    }
}
