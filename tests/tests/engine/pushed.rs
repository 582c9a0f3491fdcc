//! What is closed while a mailbox is full is closed all the same.

use std::sync::mpsc;
use std::time::Duration;

use sealane_fusion::{Code, EndpointMap, Engine, EngineSettings, Keys, Task};
use sealane_runtime::JoinHandle;

use crate::fixture::{engines, task, tensor, total, until};

/// Settings of an engine that serves two tasks.
fn both_tasks(settings: &mut EngineSettings) {
    let map = format!("{}=127.0.0.1:1\n{}=127.0.0.1:1\n", task(0), task(1));
    settings.map = EndpointMap::parse(&map, "test").unwrap().into();
    settings.tasks = [task(0), task(1)].map(|name| name.parse().unwrap()).into();
}

/// A shard that takes no turns, and has no free mailbox slot.
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

    /// Lets it go on, until all that waits for it has run.
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
fn a_plan_that_is_dropped_while_the_mailbox_is_full_lets_its_keys_go() {
    let engine = engines(1, |index, settings| {
        few_slots(index, settings);
        both_tasks(settings);
        settings.published_tensors_max = 1;
    })
    .remove(0);
    let [ps, worker] = [0, 1].map(|index| engine.task(&task(index)).unwrap());
    let mut plan = worker.plan(&task(0), Keys::new(["w"]).unwrap());
    let error = plan.pull_within(1, Duration::ZERO).wait().unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    assert_eq!(ps.publish("b", 1, tensor(8, 1)).wait().unwrap_err().code(), Code::ResourceExhausted);
    let blocked = Blocked::new(&engine, &ps);
    drop(plan);
    blocked.release();
    ps.publish("b", 1, tensor(8, 1)).wait().unwrap();
}

#[test]
fn a_recv_that_is_dropped_while_the_mailbox_is_full_is_given_up() {
    let engines = engines(2, few_slots);
    let (ps, worker) = (engines[0].task(&task(0)).unwrap(), engines[1].task(&task(1)).unwrap());
    let (one, many) = (worker.recv(&task(0), 1, "w"), worker.recv_fused(&task(0), 1, ["a", "b"]));
    until(&engines[0], "the requests arrive", |counters| counters.parked == 3);
    let blocked = Blocked::new(&engines[1], &worker);
    drop((one, many));
    blocked.release();
    until(&engines[0], "the requests are withdrawn", |counters| counters.parked == 0);
    assert_eq!(total(&engines[0]).deposits, 0);
    drop(ps);
}
