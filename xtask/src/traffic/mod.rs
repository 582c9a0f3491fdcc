//! What tasks do while their cluster is harmed: this very program in a hidden role, a process a task. It sends and receives,
//! publishes and pulls, pushes and accepts, and writes a table of which others pull rows, without a pause, knows every byte that may come, and keeps a ledger of what it
//! called and what it was told. Nobody agrees on anything: what two tasks exchange, and when, follows from their numbers and
//! the clock, so that one which was killed or stopped meets the others again by itself.

pub(crate) mod ledger;
mod meet;
mod orders;
mod publish;
mod push;
mod tables;
mod tensors;

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use sealane::{Attach, EndpointMap, Engine, Error, Table, Task};
use sealane_cli::engine_settings::engine_settings;
use sealane_cli::settings::Settings;
use serde::{Deserialize, Serialize};

pub(crate) use ledger::now_us;
pub(crate) use orders::Order;
pub(crate) use tensors::TIMEOUT_MAX;

use crate::Outcome;
use crate::hosts::{self, Manner, TASKS, host_of, is_embedded};
use ledger::{Holdings, Ledger, Line};
use orders::Orders;

/// The role's name on the command line.
pub(crate) const ROLE: &str = "traffic-of-a-task";

/// A task's arena: a few of the largest tensors, so that a burst fills it.
const ARENA_BYTES: u64 = 48 << 20;

/// How long attaching may take: a daemon that is stopped answers nobody.
pub(crate) const ATTACH_TIMEOUT: Duration = Duration::from_secs(1);

/// How soon memory is free after the last call: peers release what they got in batches.
const FREE_WITHIN: Duration = Duration::from_secs(5);

/// Between two looks at what an engine in this process holds.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Between two attempts to attach.
const ATTACH_AGAIN: Duration = Duration::from_millis(50);

/// The task of a number, as the endpoint map has it.
pub(crate) fn name(task: usize) -> String {
    format!("task{task}:2222")
}

/// The number of a task.
fn number(name: &str) -> Option<usize> {
    name.strip_prefix("task")?.strip_suffix(":2222")?.parse().ok()
}

/// Whose publications a task pulls, and whom it pushes to.
fn owners(task: usize) -> [usize; 2] {
    [1, 3].map(|distance| (task + distance) % TASKS)
}

/// Who this process is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Role {
    pub(crate) task: usize,
    /// How many processes this task has had before.
    pub(crate) life: u32,
    pub(crate) manner: Manner,
    /// Where the files of the run are.
    pub(crate) folder: PathBuf,
}

/// How the chore hands it over.
impl FromStr for Role {
    type Err = serde_json::Error;

    fn from_str(text: &str) -> Result<Role, serde_json::Error> {
        serde_json::from_str(text)
    }
}

impl Role {
    /// What starts this program as that task: the role's name, and all the rest as one word.
    pub(crate) fn arguments(&self) -> [OsString; 2] {
        [ROLE.into(), serde_json::to_string(self).expect("a role is plain data").into()]
    }

    pub(crate) fn run(&self) -> Outcome {
        let ledger = hosts::ledger(&self.folder, self.task, self.life);
        let ledger = Ledger::create(&ledger).map_err(|error| format!("{}: {error}", ledger.display()))?;
        let orders = Orders::default();
        let engine = if is_embedded(self.task) { Some(self.start_engine()?) } else { None };
        let task = match &engine {
            Some(engine) => engine.task(&name(self.task)).map(Task::from).map_err(|error| error.to_string())?,
            None => self.attach(),
        };
        ledger.attached();
        let actor = &Actor { task, me: self.task, life: self.life, ledger, orders };
        let table = thread::scope(|scope| {
            scope.spawn(|| meet::send(actor));
            scope.spawn(|| meet::receive(actor));
            scope.spawn(|| publish::publish(actor));
            for peer in owners(self.task) {
                scope.spawn(move || publish::pull(actor, peer));
                scope.spawn(move || push::push(actor, peer));
            }
            scope.spawn(|| push::accept(actor));
            let written = scope.spawn(|| tables::write(actor));
            scope.spawn(|| tables::pull(actor));
            scope.spawn(|| tables::push(actor));
            scope.spawn(|| tables::accept(actor));
            if let Some(engine) = &engine {
                scope.spawn(move || sample(actor, engine));
            }
            actor.orders.obey(|bytes, count| {
                scope.spawn(move || meet::burst(actor, bytes, count));
            });
            written.join().expect("the thread that writes rows does not panic")
        });
        if engine.is_none() { actor.arena_is_free(table) } else { Ok(true) }
    }

    /// Starts an engine in this process: the task needs no daemon.
    fn start_engine(&self) -> Result<Engine, String> {
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let map = EndpointMap::load(hosts::map(&self.folder)).map_err(|error| told(&error))?;
        let settings = Settings::of(self.manner.settings(&self.folder, hosts::address(self.task)))
            .map_err(|error| told(&error))?;
        let settings = engine_settings(&settings, map, &[&name(self.task)]).map_err(|error| told(&error))?;
        Engine::start(settings).map_err(|error| told(&error))
    }

    /// Attaches, sooner or later: the former process may not have been missed yet, or the daemon not be there.
    fn attach(&self) -> Task {
        let socket = hosts::socket(&self.folder, host_of(self.task));
        let attach = || -> Result<Task, Error> {
            Attach::new(&name(self.task)).socket(&socket).arena_bytes(ARENA_BYTES).timeout(ATTACH_TIMEOUT).attach()
        };
        loop {
            match attach() {
                Ok(task) => return task,
                Err(error) => eprintln!("{error}"),
            }
            thread::sleep(ATTACH_AGAIN);
        }
    }
}

/// Notes what an engine in this process holds, until all is over.
fn sample(actor: &Actor, engine: &Engine) {
    while !actor.orders.is_over(now_us()) {
        thread::sleep(SAMPLE_INTERVAL);
        let Ok(shards) = engine.counters() else { continue };
        let total = shards.iter().fold(Holdings::default(), |total, shard| Holdings {
            slab_bytes: total.slab_bytes + shard.slab_send_bytes + shard.slab_receive_bytes,
            deposits: total.deposits + shard.deposits,
            parked: total.parked + shard.parked,
            published: total.published + shard.published,
            links: total.links + shard.links,
        });
        actor.ledger.write(&Line::Holds { at: now_us(), holdings: total });
    }
}

/// What all threads of a task share.
struct Actor {
    task: Task,
    me: usize,
    life: u32,
    ledger: Ledger,
    orders: Orders,
}

impl Actor {
    /// When all calls have ended, no tensor of this process is in anybody's hands.
    fn arena_is_free(&self, mut table: Option<Table>) -> Outcome {
        let until = Instant::now() + FREE_WITHIN;
        loop {
            let free =
                publish::withdraw(self).and_then(|()| table.as_ref().map_or(Ok(()), Table::withdraw)).and_then(|()| {
                    // Its rows lie in the arena too.
                    table = None;
                    self.task.alloc(ARENA_BYTES as usize)
                });
            match free {
                Ok(_) => return Ok(true),
                Err(error) if Instant::now() > until => return Err(format!("all is over, and yet: {error}")),
                Err(_) => thread::sleep(ATTACH_AGAIN),
            }
        }
    }

    fn peers(&self) -> impl Iterator<Item = usize> {
        (0..TASKS).filter(|&peer| peer != self.me)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_number() {
        assert_eq!(number(&name(17)), Some(17));
        assert_eq!(number("ps0:2222"), None);
    }
}
