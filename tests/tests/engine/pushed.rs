//! Queues whose acceptors come and go while their pushers never stop, and queues closed while a mailbox is full: each tensor is accepted
//! once, in order, and nothing stays open.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use sealane_fusion::{
    AcceptOptions, Accepted, Acceptor, Code, EndpointMap, Engine, EngineSettings, Error, Keys, Sending, Task, Tensor,
};
use sealane_runtime::JoinHandle;
use sealane_transport::RecvOptions;
use sealane_transport::authentication::Authentication;

use crate::fixture::{AT_ONCE, LONG, assert_empty, engines, task, total, until};

const QUEUE: &str = "grads";

/// How often an acceptor is dropped and the next one opened.
const ROUNDS: usize = 1000;

/// Most pushes of one task in flight at once.
const PUSHES_AT_ONCE: usize = 8;

/// A numbered tensor: most are small and share a frame, some have their own.
fn numbered(number: u64) -> Tensor {
    let len = if number % 8 == 7 { 1200 } else { 1 };
    Tensor::from_elements(&[len as u64], &vec![number; len]).unwrap()
}

fn number_in(tensor: &Tensor) -> u64 {
    u64::from_le_bytes(tensor.bytes()[..8].try_into().unwrap())
}

/// Numbers accepted, by pusher.
#[derive(Default)]
struct Ledger(HashMap<String, Vec<u64>>);

impl Ledger {
    fn note(&mut self, items: Vec<Accepted>) {
        for item in items {
            self.0.entry(item.from.to_string()).or_default().push(number_in(&item.tensor));
        }
    }

    fn wait(&mut self, acceptor: &Acceptor, most: usize) {
        let items = acceptor.wait_many(most, Some(LONG)).unwrap();
        assert!(!items.is_empty(), "nothing is accepted, and pushes are under way");
        self.note(items);
    }

    fn count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }
}

/// Pushes until `over`; returns how many. Each push must be taken.
fn push_on(pusher: &Task, to: &str, over: &AtomicBool) -> u64 {
    let (mut under_way, mut number) = (VecDeque::new(), 0);
    while !over.load(Ordering::Relaxed) {
        if under_way.len() == PUSHES_AT_ONCE {
            under_way.pop_front().map(Sending::wait).expect("there are some").unwrap();
        }
        under_way.push_back(pusher.push(to, QUEUE, numbered(number)));
        number += 1;
    }
    under_way.into_iter().for_each(|push| push.wait().unwrap());
    number
}

fn acceptors_come_and_go(ps: &Task, pushers: &[Task]) {
    let over = AtomicBool::new(false);
    let mut ledger = Ledger::default();
    let pushed: Vec<u64> = std::thread::scope(|scope| {
        let pushing: Vec<_> = pushers.iter().map(|pusher| scope.spawn(|| push_on(pusher, ps.name(), &over))).collect();
        for round in 0..ROUNDS {
            let options = AcceptOptions { tensors_max: 1 + round % 7, ..AcceptOptions::default() };
            let acceptor = ps.acceptor(QUEUE, options);
            if round % 2 == 0 {
                ledger.wait(&acceptor, 3);
            }
        }
        over.store(true, Ordering::Relaxed);
        let last = ps.acceptor(QUEUE, AcceptOptions::default());
        while !pushing.iter().all(|pushing| pushing.is_finished()) {
            ledger.note(last.wait_many(100, Some(Duration::from_millis(1))).unwrap());
        }
        let pushed: Vec<_> = pushing.into_iter().map(|pushing| pushing.join().unwrap()).collect();
        while ledger.count() < pushed.iter().sum::<u64>() as usize {
            ledger.wait(&last, 100);
        }
        assert_eq!(last.try_accept(1, &mut Vec::new()).unwrap(), 0, "more was accepted than pushed");
        pushed
    });
    for (pusher, pushed) in pushers.iter().zip(pushed) {
        assert!(ledger.0[pusher.name()].iter().copied().eq(0..pushed), "{}: not each once, in order", pusher.name());
    }
}

/// Settings of an engine that serves two tasks.
fn both_tasks(settings: &mut EngineSettings) {
    let map = format!("{}=127.0.0.1:1\n{}=127.0.0.1:1\n", task(0), task(1));
    settings.map = EndpointMap::parse(&map, "test").unwrap().into();
    settings.tasks = [task(0), task(1)].map(|name| name.parse().unwrap()).into();
}

#[test]
fn an_acceptor_is_opened_again_a_thousand_times_and_pushers_of_other_engines_lose_nothing() {
    let engines = engines(3, |_, settings| settings.runtime.shards = 2);
    let tasks: Vec<_> = (0..3).map(|index| engines[index].task(&task(index)).unwrap()).collect();
    acceptors_come_and_go(&tasks[0], &tasks[1..]);
    engines.iter().for_each(assert_empty);
}

#[test]
fn an_acceptor_is_opened_again_a_thousand_times_and_pushers_of_its_engine_lose_nothing() {
    let engine = engines(1, |_, settings| {
        settings.runtime.shards = 2;
        both_tasks(settings);
    })
    .remove(0);
    let [ps, worker] = [0, 1].map(|index| engine.task(&task(index)).unwrap());
    acceptors_come_and_go(&ps, &[worker]);
    assert_empty(&engine);
}

/// A shard that takes no turns and whose mailbox is full.
struct Blocked<'a> {
    engine: &'a Engine,
    hold: mpsc::Sender<()>,
    busy: JoinHandle<()>,
}

impl Blocked<'_> {
    fn new<'a>(engine: &'a Engine, of: &Task) -> Blocked<'a> {
        let (hold, held) = mpsc::channel::<()>();
        let (ready, is_ready) = mpsc::channel();
        let busy = engine.on_shard(0, async move |_| {
            ready.send(()).unwrap();
            let _ = held.recv();
        });
        is_ready.recv().unwrap();
        while of.withdraw("nothing").is_ok() {}
        Blocked { engine, hold, busy }
    }

    /// Unblocks the shard and waits until it has run everything in its mailbox.
    fn release(self) {
        drop(self.hold);
        self.busy.wait().unwrap();
        while self.engine.on_shard(0, async |_| ()).wait().is_err() {
            std::thread::yield_now();
        }
    }
}

fn few_slots(_: usize, settings: &mut EngineSettings) {
    settings.runtime.mailbox_slots = 2;
}

#[test]
fn room_that_is_made_while_the_mailbox_is_full_is_used() {
    let engines = engines(2, few_slots);
    let (ps, worker) = (engines[0].task(&task(0)).unwrap(), engines[1].task(&task(1)).unwrap());
    let acceptor = ps.acceptor(QUEUE, AcceptOptions { tensors_max: 4, ..AcceptOptions::default() });
    let pushing = worker.push_many(&task(0), QUEUE, (0..50).map(numbered).collect(), None);
    let mut ledger = Ledger::default();
    while ledger.count() < 50 {
        // As many as the queue holds, or all that are left: the shard had no room for more.
        let due = 4.min(50 - ledger.count() as u64) + ledger.count() as u64;
        until(&engines[0], "the queue is full", |counters| counters.tensors_received >= due);
        let blocked = Blocked::new(&engines[0], &ps);
        let mut items = Vec::new();
        while acceptor.try_accept(10, &mut items).unwrap() > 0 {}
        ledger.note(items);
        blocked.release();
    }
    pushing.wait().unwrap();
    assert!(ledger.0[&task(1)].iter().copied().eq(0..50));
}

#[test]
fn an_acceptor_that_is_dropped_while_the_mailbox_is_full_leaves_its_queue_to_the_next() {
    let engines = engines(2, few_slots);
    let (ps, worker) = (engines[0].task(&task(0)).unwrap(), engines[1].task(&task(1)).unwrap());
    let first = ps.acceptor(QUEUE, AcceptOptions::default());
    let pushing = worker.push_many(&task(0), QUEUE, (0..2).map(numbered).collect(), None);
    pushing.wait().unwrap();
    let blocked = Blocked::new(&engines[0], &ps);
    drop(first);
    // The queue cannot be opened now, and the error says so; nothing of it stays.
    let refused = ps.acceptor(QUEUE, AcceptOptions::default());
    let error = refused.wait_many(1, Some(LONG)).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    drop(refused);
    blocked.release();
    let second = ps.acceptor(QUEUE, AcceptOptions::default());
    let mut ledger = Ledger::default();
    let pushing = worker.push(&task(0), QUEUE, numbered(2));
    while ledger.count() < 3 {
        ledger.wait(&second, 9);
    }
    pushing.wait().unwrap();
    assert_eq!(ledger.0[&task(1)], [0, 1, 2]);
    drop(second);
    engines.iter().for_each(assert_empty);
}

#[test]
fn a_plan_that_is_dropped_while_the_mailbox_is_full_lets_its_keys_go() {
    let engine = engines(1, |index, settings| {
        few_slots(index, settings);
        both_tasks(settings);
        // Plans may name as many unpublished keys.
        settings.published_tensors_max = 1;
    })
    .remove(0);
    let [ps, worker] = [0, 1].map(|index| engine.task(&task(index)).unwrap());
    let begun = |key: &str| {
        let mut plan = worker.plan(&task(0), Keys::new([key]).unwrap());
        let error = plan.pull(1, AT_ONCE).unwrap_err();
        (plan, error.code())
    };
    let (plan, waited) = begun("w");
    assert_eq!(waited, Code::DeadlineExceeded);
    assert_eq!(begun("b").1, Code::ResourceExhausted, "the name's place is taken");
    let blocked = Blocked::new(&engine, &ps);
    drop(plan);
    blocked.release();
    assert_eq!(begun("b").1, Code::DeadlineExceeded);
}

#[test]
fn a_recv_that_is_dropped_while_the_mailbox_is_full_is_given_up() {
    let engines = engines(2, few_slots);
    let (ps, worker) = (engines[0].task(&task(0)).unwrap(), engines[1].task(&task(1)).unwrap());
    let asked = |key| (key, RecvOptions::default());
    let (one, many) = (worker.recv(&task(0), 1, "w"), worker.recv_all(&task(0), 1, ["a", "b"].map(asked)));
    until(&engines[0], "the requests arrive", |counters| counters.parked == 3);
    let blocked = Blocked::new(&engines[1], &worker);
    drop((one, many));
    blocked.release();
    until(&engines[0], "the requests are withdrawn", |counters| counters.parked == 0);
    assert_eq!(total(&engines[0]).pending_sends, 0);
    drop(ps);
}

/// Credentials or a map that only some shards have would contradict each other, and a drain that a shard missed would be none.
#[test]
fn what_all_shards_must_do_is_done_with_a_full_mailbox_too() {
    let engine = engines(1, |index, settings| {
        few_slots(index, settings);
        settings.runtime.shards = 2;
        settings.authentication = Authentication::secret_bytes(&[1; 32]).unwrap();
    })
    .remove(0);
    let ps = engine.task(&task(0)).unwrap();
    let (map, new) = (
        Arc::new(EndpointMap::parse(&format!("{}=127.0.0.1:1\n", task(0)), "test").unwrap()),
        Authentication::secret_bytes(&[2; 32]).unwrap(),
    );
    let asked: [Box<dyn Fn() -> Result<(), Error> + Send + Sync>; 5] = [
        Box::new(|| engine.set_authentication(new.clone())),
        Box::new(|| engine.set_map(map.clone(), &[])),
        Box::new(|| engine.counters().map(drop)),
        Box::new(|| engine.announce_drain()),
        Box::new(|| engine.under_way().map(drop)),
    ];
    for ask in &asked {
        let blocked = Blocked::new(&engine, &ps);
        let (telling, told) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || telling.send(ask()).unwrap());
            // It cannot have been done yet; the wait is long enough for a refusal to come.
            assert!(told.recv_timeout(Duration::from_millis(20)).is_err());
            blocked.release();
            told.recv().unwrap().unwrap();
        });
    }
}

#[test]
fn an_acceptor_that_an_engine_no_longer_opens_hears_that_it_stops() {
    let engine = engines(1, few_slots).remove(0);
    let ps = engine.task(&task(0)).unwrap();
    let (ready, is_ready) = mpsc::channel();
    let busy = engine.on_shard(0, async move |local| {
        ready.send(()).unwrap();
        while !local.shard().stopping() {
            std::thread::yield_now();
        }
    });
    is_ready.recv().unwrap();
    let acceptor = ps.acceptor(QUEUE, AcceptOptions::default());
    while ps.withdraw("nothing").is_ok() {}
    // There is no slot for the goodbye either, so the shard stops before it looks into its mailbox.
    engine.stop().unwrap();
    drop(busy);
    let error = acceptor.wait_many(1, Some(LONG)).unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
}
