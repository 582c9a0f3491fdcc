//! What tasks do while their cluster has faults: this program in a hidden role, one process for each task. In a loop it sends and
//! receives, publishes and pulls, pushes and accepts, dials and reads streams, and writes a table whose rows others pull. It knows
//! every byte that may come, and keeps a ledger of its calls and their results. There is no coordination: what two tasks exchange,
//! and when, follows from their numbers and the clock, so that a task that was killed or stopped meets the others again by itself.

pub(crate) mod ledger;
mod meet;
mod orders;
mod publish;
mod push;
mod streams;
mod tables;
mod tensors;

use std::ffi::OsString;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use sealane::{AcceptOptions, Accepted, Attach, Buffer, EndpointMap, Engine, Error, Streams, Table, Task, Tensor};
use sealane_cli::engine_settings::engine_settings;
use sealane_cli::settings::Settings;
use serde::{Deserialize, Serialize};

pub(crate) use ledger::now_us;
pub(crate) use orders::Order;
/// The name of a task in the endpoint map, by its number.
pub(crate) use sealane_tests::fixture::task as name;
pub(crate) use tensors::TIMEOUT_MAX;

use crate::Outcome;
use crate::hosts::{self, Manner, TASKS, host_of, is_embedded};
use ledger::{Arrival, Kind, Ledger, Line, What};
use orders::Orders;
use tensors::Label;

/// The role's name on the command line.
pub(crate) const ROLE: &str = "traffic-of-a-task";

/// A task's arena: a few of the largest tensors, so that a burst fills it.
const ARENA_BYTES: u64 = 48 << 20;

/// How long attaching may take: a stopped daemon does not answer.
pub(crate) const ATTACH_TIMEOUT: Duration = Duration::from_secs(1);

/// How soon memory is free after the last call: peers release what they got in batches.
const FREE_WITHIN: Duration = Duration::from_secs(5);

/// Time between two looks at what an engine in this process holds.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Pause before an operation that was refused is retried: attaching, or accepting from a queue that is taken.
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// Tensors accepted at once, how long an accept waits, and how long the last pushes are accepted.
const ACCEPT_MOST: usize = 8;
const ACCEPT_TIMEOUT: Duration = Duration::from_millis(400);
const AFTERWARDS: Duration = Duration::from_secs(6);

/// The deadline of pulls and pushes: longer than most faults, so that calls outlast them.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// Time between two pulls. Seven tasks and three daemons share two processors, and must not use them fully: a call that is late
/// because the machine is busy looks like a lost one.
const PULL_PAUSE: Duration = Duration::from_millis(100);

fn number(name: &str) -> Option<usize> {
    name.strip_prefix("task")?.strip_suffix(":2222")?.parse().ok()
}

/// The tasks whose publications a task pulls, and to which it pushes.
fn owners(task: usize) -> [usize; 2] {
    [1, 3].map(|distance| (task + distance) % TASKS)
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Role {
    pub(crate) task: usize,
    /// How many processes this task has had before.
    pub(crate) life: u32,
    pub(crate) manner: Manner,
    /// Where the files of the run are.
    pub(crate) folder: PathBuf,
}

impl Role {
    /// Arguments that start this program as that task: the role's name, and all the rest as one word.
    pub(crate) fn arguments(&self) -> [OsString; 2] {
        [ROLE.into(), serde_json::to_string(self).expect("a role is plain data").into()]
    }

    pub(crate) fn take_on(role: &str) -> Outcome {
        serde_json::from_str::<Role>(role).map_err(|error| format!("no role: {error}"))?.run()
    }

    fn run(&self) -> Outcome {
        let ledger = hosts::ledger(&self.folder, self.task, self.life);
        let ledger = Ledger::create(&ledger).map_err(|error| format!("{}: {error}", ledger.display()))?;
        let engine = if is_embedded(self.task) { Some(self.start_engine()?) } else { None };
        let task = match &engine {
            Some(engine) => engine.task(&name(self.task)).map(Task::from).map_err(|error| error.to_string())?,
            None => self.attach(),
        };
        let actor = &Actor { task, me: self.task, life: self.life, ledger, orders: Orders::default() };
        let dialed = &Streams::of(&actor.task);
        let table = thread::scope(|scope| {
            scope.spawn(|| meet::send(actor));
            scope.spawn(|| meet::receive(actor));
            scope.spawn(|| publish::publish(actor));
            for peer in actor.peers() {
                scope.spawn(move || meet::stand(actor, peer));
            }
            for peer in owners(self.task) {
                scope.spawn(move || publish::pull(actor, peer));
                scope.spawn(move || push::push(actor, peer));
                scope.spawn(move || streams::dial(actor, dialed, peer));
            }
            scope.spawn(|| push::accept(actor));
            scope.spawn(move || streams::serve(actor, dialed, scope));
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

    /// Starts an engine in this process, for a task that needs no daemon.
    fn start_engine(&self) -> Result<Engine, String> {
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let map = EndpointMap::load(hosts::map(&self.folder)).map_err(|error| told(&error))?;
        let settings = Settings::of(self.manner.settings(&self.folder, hosts::address(self.task)))
            .map_err(|error| told(&error))?;
        let settings = engine_settings(&settings, map, &[&name(self.task)]).map_err(|error| told(&error))?;
        Engine::start(settings).map_err(|error| told(&error))
    }

    /// Attaches, retrying: the end of the earlier process may not have been noticed yet, or the daemon may not exist.
    fn attach(&self) -> Task {
        let socket = hosts::socket(&self.folder, host_of(self.task));
        loop {
            let attach = Attach::new(&name(self.task)).socket(&socket).arena_bytes(ARENA_BYTES);
            match attach.timeout(ATTACH_TIMEOUT).attach() {
                Ok(task) => return task,
                Err(error) => eprintln!("{error}"),
            }
            thread::sleep(TRY_AGAIN);
        }
    }
}

/// Records what an engine in this process holds, until the end.
fn sample(actor: &Actor, engine: &Engine) {
    while !actor.orders.is_over(now_us()) {
        thread::sleep(SAMPLE_INTERVAL);
        let Ok(shards) = engine.counters() else { continue };
        let mut held = [0; 5];
        for shard in shards {
            let slabs = shard.slab_send_bytes + shard.slab_receive_bytes;
            let more = [slabs, shard.pending_sends, shard.parked, shard.published, shard.links];
            held.iter_mut().zip(more).for_each(|(held, more)| *held += more);
        }
        actor.ledger.write(&Line::Holds(held));
    }
}

/// State shared by all threads of a task.
struct Actor {
    task: Task,
    me: usize,
    life: u32,
    ledger: Ledger,
    orders: Orders,
}

impl Actor {
    /// Once all calls have ended, nobody holds a tensor of this process.
    fn arena_is_free(&self, mut table: Option<Table>) -> Outcome {
        let until = Instant::now() + FREE_WITHIN;
        let mut free = || -> Result<(), Error> {
            publish::withdraw(self)?;
            // Its rows lie in the arena too.
            table.take_if(|table| table.withdraw().is_ok());
            self.task.alloc(ARENA_BYTES as usize).map(drop)
        };
        loop {
            match free() {
                Ok(()) => return Ok(true),
                Err(error) if Instant::now() > until => return Err(format!("all is over, and yet: {error}")),
                Err(_) => thread::sleep(TRY_AGAIN),
            }
        }
    }

    fn peers(&self) -> impl Iterator<Item = usize> {
        (0..TASKS).filter(|&peer| peer != self.me)
    }

    /// A tensor of this process.
    fn tensor(&self, kind: Kind, number: u64, key: u32, bytes: usize) -> Result<Tensor, Error> {
        Label { life: self.life, ..Label::of(kind, self.me, number, key) }.tensor(&self.task, bytes)
    }

    /// A destination for a tensor: shared memory, memory of this process, or none.
    fn destination(&self, choice: u64, bytes: usize) -> Option<Buffer> {
        match choice % 3 {
            0 => self.task.alloc(bytes).ok(),
            1 => Some(Buffer::from_vec(vec![0; bytes])),
            _ => None,
        }
    }

    /// Repeats `act` with a pause between, until the end, passing the number of repetitions.
    fn again(&self, pause: Duration, mut act: impl FnMut(u64)) {
        for times in 1.. {
            if self.orders.is_over(now_us()) {
                return;
            }
            thread::sleep(self.orders.rest_for());
            act(times);
            thread::sleep(pause);
        }
    }

    /// Calls `act` for every version: a tick of the clock, so that versions also increase from process to process.
    fn each_version(&self, version_us: u64, mut act: impl FnMut(u64)) {
        let mut version = now_us() / version_us + 1;
        while !self.orders.is_over(now_us()) {
            thread::sleep(Duration::from_micros((version * version_us).saturating_sub(now_us())));
            thread::sleep(self.orders.silence_for());
            act(version);
            version = (version + 1).max(now_us() / version_us);
        }
    }

    /// Records that all of a push or stream has come from a task, if it is what that task sends.
    fn note_arrival(&self, kind: Kind, from: &str, bytes: &[u8], bytes_of: fn(u64) -> usize) -> Result<(), String> {
        let sender = number(from).ok_or_else(|| format!("{kind:?} of {from}"))?;
        // Its key is the task that it is meant for.
        let read = Label::of(kind, sender, 0, self.me as u32).read_bytes(bytes);
        let Label { life, number, .. } = read.map_err(|how| format!("{kind:?} of {from}: {how}"))?;
        if bytes_of(number) != bytes.len() {
            return Err(format!("{kind:?} {number} of {from} has {} bytes", bytes.len()));
        }
        let arrival = Arrival { at: now_us(), kind, from: sender, life, number: number as i64 };
        self.ledger.write(&Line::Arrived(arrival));
        Ok(())
    }

    /// Accepts what comes into a queue, and checks it, until nothing can come any more.
    fn accept(&self, kind: Kind, queue: &str, options: AcceptOptions, look: impl Fn(Accepted) -> Result<(), String>) {
        let acceptor = self.task.acceptor(queue, options);
        while !self.orders.is_over(now_us().saturating_sub(AFTERWARDS.as_micros() as u64)) {
            thread::sleep(self.orders.deaf_for());
            self.ledger.call(What::new(kind, &[], 0), ACCEPT_TIMEOUT, || {
                match acceptor.accept_many(ACCEPT_MOST).wait_within(ACCEPT_TIMEOUT) {
                    Ok(accepted) => {
                        let wrong = accepted.into_iter().find_map(|accepted| look(accepted).err());
                        wrong.map_or(ledger::Outcome::Ok, ledger::Outcome::Wrong)
                    }
                    Err(error) => {
                        thread::sleep(TRY_AGAIN);
                        ledger::Outcome::failed(&error)
                    }
                }
            });
        }
    }
}
