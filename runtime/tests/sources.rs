//! Sources and timers: what a shard polls, how it wakes for them, and that neither can starve the other.

#[macro_use]
mod executors;

use std::{
    cell::Cell,
    future::poll_fn,
    io::{Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    rc::Rc,
    sync::mpsc,
    task::Poll,
    time::{Duration, Instant},
};

use sealane_runtime::{ExecutorChoice, Interest, Pin, Polling, Readiness, Runtime, RuntimeSettings, Shard, Source};

on_each_executor! {
    a_descriptor_that_becomes_ready_wakes_a_sleeping_shard,
    a_source_that_will_not_sleep_keeps_the_shard_awake,
    a_sources_timeout_ends_the_sleep,
    a_shard_with_a_runnable_task_does_not_sleep,
    a_sleep_is_on_time_beside_a_task_that_yields_for_ever,
    a_source_may_call_back_and_one_that_panics_is_dropped,
    sources_are_dropped_when_the_shard_stops,
}

fn start(executor: ExecutorChoice, polling: Polling) -> Runtime {
    Runtime::start(RuntimeSettings { executor, polling, pin: Pin::Off, ..RuntimeSettings::default() }).unwrap()
}

/// Reads what comes in on a socket, but only when it was told that there is something.
struct Reader {
    stream: UnixStream,
    token: u64,
    readable: bool,
    received: mpsc::Sender<u8>,
}

impl Source for Reader {
    fn poll(&mut self, _: &Shard, budget: usize) -> usize {
        if !self.readable {
            return 0;
        }
        let mut bytes = vec![0; budget];
        match self.stream.read(&mut bytes) {
            Ok(count) => {
                bytes[..count].iter().for_each(|byte| self.received.send(*byte).unwrap());
                count
            }
            Err(_would_block) => {
                self.readable = false;
                0
            }
        }
    }

    fn ready(&mut self, token: u64, readiness: Readiness) {
        assert_eq!(token, self.token);
        self.readable |= readiness.readable;
    }

    fn has_work(&self) -> bool {
        self.readable
    }

    fn try_sleep(&mut self) -> bool {
        true
    }

    fn wake(&mut self) {}
}

fn a_descriptor_that_becomes_ready_wakes_a_sleeping_shard(executor: ExecutorChoice) {
    for (polling, interest) in [
        (Polling::Park, Interest::READ.edge()),
        (Polling::Park, Interest::READ),
        (Polling::default(), Interest::READ.edge()),
        (Polling::Spin, Interest::READ.edge()),
    ] {
        let runtime = start(executor, polling);
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let (sender, received) = mpsc::channel();
        let added = runtime.on_shard(0, async move |shard| {
            let fd = near.as_fd().try_clone_to_owned().unwrap();
            let source = shard.add_source(Reader { stream: near, token: 42, readable: false, received: sender });
            shard.watch(source, fd.as_fd(), 42, interest).unwrap();
            source
        });
        let source = added.wait().unwrap();
        for byte in 0..200 {
            far.write_all(&[byte]).unwrap();
            assert_eq!(received.recv().unwrap(), byte);
        }
        runtime.on_shard(0, async move |shard| shard.remove_source(source)).wait().unwrap();
        // The sender went with the source.
        received.recv().unwrap_err();
        runtime.stop().unwrap();
    }
}

/// Writes down what it was asked, and answers as it is told.
#[derive(Default)]
struct Diary {
    polls: Cell<usize>,
    sleeps: Cell<usize>,
    wakes: Cell<usize>,
    refusals_left: Cell<usize>,
    due: Cell<Option<Instant>>,
}

struct Writer(Rc<Diary>);

impl Source for Writer {
    fn poll(&mut self, shard: &Shard, _: usize) -> usize {
        self.0.polls.set(self.0.polls.get() + 1);
        match self.0.due.get() {
            Some(due) if due <= shard.now() => {
                self.0.due.set(None);
                1
            }
            _ => 0,
        }
    }

    fn has_work(&self) -> bool {
        false
    }

    fn try_sleep(&mut self) -> bool {
        self.0.sleeps.set(self.0.sleeps.get() + 1);
        let left = self.0.refusals_left.get();
        self.0.refusals_left.set(left.saturating_sub(1));
        left == 0
    }

    fn wake(&mut self) {
        self.0.wakes.set(self.0.wakes.get() + 1);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.0.due.get()
    }
}

fn a_source_that_will_not_sleep_keeps_the_shard_awake(executor: ExecutorChoice) {
    let runtime = start(executor, Polling::Park);
    let parks_at_last_refusal = runtime.on_shard(0, async |shard| {
        let diary = Rc::new(Diary::default());
        diary.refusals_left.set(100);
        shard.add_source(Writer(diary.clone()));
        // Fires from a sleep or between turns, whichever the source allows.
        let here = shard.shard_ref(0).load();
        let mut parks = here.sleeps();
        let mut parks_while_refusing = 0;
        while diary.sleeps.get() <= 100 {
            shard.sleep(Duration::from_micros(50)).await;
            if diary.refusals_left.get() > 0 {
                parks_while_refusing += here.sleeps() - parks;
            }
            parks = here.sleeps();
        }
        assert!(diary.wakes.get() >= 100, "who refuses is told that it stays awake");
        parks_while_refusing
    });
    // The shard may have been on its way to sleep when the source was added, once.
    assert!(parks_at_last_refusal.wait().unwrap() <= 1);
    assert!(runtime.load(0).sleeps() > 0);
}

fn a_sources_timeout_ends_the_sleep(executor: ExecutorChoice) {
    let runtime = start(executor, Polling::Park);
    let polled_when_due = runtime.on_shard(0, async |shard| {
        let diary = Rc::new(Diary::default());
        shard.add_source(Writer(diary.clone()));
        for _ in 0..20 {
            diary.due.set(Some(Instant::now() + Duration::from_micros(300)));
            shard.notify();
            // Woken by nothing but the source's work: without its timeout the shard would sleep forever.
            while diary.due.get().is_some() {
                give_way().await;
            }
        }
        diary.polls.get() > 0
    });
    assert!(polled_when_due.wait().unwrap());
}

/// Gives way without telling the shard, as a task does that yields to another executor's future.
async fn give_way() {
    let mut first = true;
    poll_fn(|context| {
        if std::mem::take(&mut first) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

fn a_shard_with_a_runnable_task_does_not_sleep(executor: ExecutorChoice) {
    let runtime = start(executor, Polling::Park);
    let load = runtime.on_shard(0, async |shard| {
        let here = shard.shard_ref(0).load();
        let (parks, turns) = (here.sleeps(), here.turns());
        for _ in 0..1000 {
            give_way().await;
        }
        assert_eq!(here.sleeps(), parks);
        assert!(here.turns() - turns >= 1000, "every other task and the sources had their turn");
        here
    });
    let load = load.wait().unwrap();
    while load.sleeps() == 0 {
        std::thread::yield_now();
    }
}

/// Judged by what the shard's own clock showed, turn by turn, not by how long the test took.
fn a_sleep_is_on_time_beside_a_task_that_yields_for_ever(executor: ExecutorChoice) {
    for polling in [Polling::Spin, Polling::default(), Polling::Park] {
        let runtime = start(executor, polling);
        let late = runtime.on_shard(0, async |shard| {
            let deadline = Instant::now() + Duration::from_millis(5);
            let over = Rc::new(Cell::new(false));
            let busy = shard.spawn({
                let (shard, over) = (shard.clone(), over.clone());
                async move {
                    let (mut early, mut late) = (0, 0);
                    while !over.get() {
                        match shard.now() < deadline {
                            true => early += 1,
                            false => late += 1,
                        }
                        shard.yield_now().await;
                    }
                    (early, late)
                }
            });
            shard.sleep_until(deadline).await;
            assert!(shard.now() >= deadline);
            over.set(true);
            busy.await.unwrap()
        });
        let (_early, late) = late.wait().unwrap();
        assert!(late <= 2, "the first turn after the deadline fires it, but {late} went by");
    }
}

/// Uses everything that a shard offers from inside its own poll.
struct Reentrant {
    step: usize,
    done: mpsc::Sender<&'static str>,
    stream: UnixStream,
}

impl Source for Reentrant {
    fn poll(&mut self, shard: &Shard, _: usize) -> usize {
        self.step += 1;
        shard.notify();
        let (sender, _) = mpsc::channel();
        let stream = self.stream.try_clone().unwrap();
        let inner = shard.add_source(Reader { stream, token: 0, readable: false, received: sender });
        shard.watch(inner, self.stream.as_fd(), 0, Interest::WRITE.edge()).unwrap();
        shard.unwatch(self.stream.as_fd()).unwrap();
        shard.remove_source(inner);
        let done = self.done.clone();
        drop(shard.spawn(async move { done.send("spawned").unwrap() }));
        if self.step == 3 {
            panic!("a source on purpose");
        }
        1
    }

    fn has_work(&self) -> bool {
        true
    }

    fn try_sleep(&mut self) -> bool {
        true
    }

    fn wake(&mut self) {}
}

impl Drop for Reentrant {
    fn drop(&mut self) {
        let shard = Shard::current().expect("a source is dropped on its shard");
        shard.notify();
        self.done.send("dropped").unwrap();
    }
}

fn a_source_may_call_back_and_one_that_panics_is_dropped(executor: ExecutorChoice) {
    let runtime = start(executor, Polling::default());
    let (sender, events) = mpsc::channel();
    let (stream, _far) = UnixStream::pair().unwrap();
    let added = runtime.on_shard(0, async move |shard| shard.add_source(Reentrant { step: 0, done: sender, stream }));
    added.wait().unwrap();
    let mut events: Vec<_> = events.into_iter().collect();
    events.sort_unstable();
    assert_eq!(events, ["dropped", "spawned", "spawned", "spawned"]);
    assert_eq!(runtime.on_shard(0, async |_| 1).wait().unwrap(), 1, "the shard goes on");
}

fn sources_are_dropped_when_the_shard_stops(executor: ExecutorChoice) {
    let runtime = start(executor, Polling::Park);
    let (sender, received) = mpsc::channel();
    let (near, _far) = UnixStream::pair().unwrap();
    let added = runtime.on_shard(0, async move |shard| {
        shard.add_source(Reader { stream: near, token: 0, readable: false, received: sender })
    });
    added.wait().unwrap();
    runtime.stop().unwrap();
    received.recv().unwrap_err();
}
