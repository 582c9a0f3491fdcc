//! Shards from outside: jobs, tasks, panics, and stopping, on either executor, with every polling policy.

#[macro_use]
mod executors;

use std::{
    cell::RefCell,
    future::{Future, pending, poll_fn},
    pin::pin,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use sealane_runtime::{ExecutorChoice, Pin, Polling, Runtime, RuntimeError, RuntimeSettings, Shard};

on_each_executor! {
    every_shard_runs_what_it_is_given,
    no_wake_up_is_lost_between_shards_that_sleep,
    a_task_awaits_a_job_on_another_shard,
    any_thread_may_wake_a_task,
    a_shards_load_is_read_from_any_thread,
    a_panic_ends_the_task_and_nothing_else,
    a_spawned_task_starts_only_after_the_caller_gave_way,
    a_dropped_handle_lets_the_task_run_on,
    jobs_that_may_not_be_refused_all_run_and_in_order,
    a_sleep_may_be_without_end,
    stopping_drops_tasks_wherever_they_wait,
    a_stopped_shard_takes_nothing_and_stopping_again_does_nothing,
    the_last_handle_stops_the_shards,
    a_shard_can_stop_its_own_runtime,
    a_task_that_does_not_return_is_not_waited_for_for_ever,
    waiting_on_a_shards_thread_is_a_bug_that_is_noticed,
    settings_that_cannot_work_are_refused,
}

fn settings(executor: ExecutorChoice, shards: usize, polling: Polling) -> RuntimeSettings {
    RuntimeSettings { executor, shards, polling, pin: Pin::Off, ..RuntimeSettings::default() }
}

fn start(executor: ExecutorChoice, shards: usize, polling: Polling) -> Runtime {
    Runtime::start(settings(executor, shards, polling)).unwrap()
}

const POLICIES: [Polling; 3] =
    [Polling::Spin, Polling::SpinThenPark { idle_spin: Duration::from_micros(200) }, Polling::Park];

/// Says that it was dropped.
struct Witness(Arc<AtomicUsize>);

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn every_shard_runs_what_it_is_given(executor: ExecutorChoice) {
    for polling in POLICIES {
        let runtime = start(executor, 3, polling);
        assert_eq!((runtime.shards(), runtime.cpus()), (3, vec![None; 3]));
        let handles: Vec<_> = (0..3)
            .map(|index| {
                runtime.on_shard(index, async move |shard| {
                    let seen = shard.spawn({
                        let shard = shard.clone();
                        async move {
                            shard.yield_now().await;
                            Shard::current().unwrap().index()
                        }
                    });
                    (shard.index(), shard.shards(), seen.await.unwrap())
                })
            })
            .collect();
        for (index, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.wait().unwrap(), (index, 3, index));
        }
        runtime.stop().unwrap();
    }
}

fn bounce(shard: &Shard, rounds: usize, done: mpsc::Sender<()>) {
    if rounds == 0 {
        done.send(()).unwrap();
        return;
    }
    let other = shard.shard_ref(1 - shard.index());
    other.submit(Box::new(move |shard| bounce(shard, rounds - 1, done))).unwrap();
}

/// A single lost wake-up would leave both shards asleep forever.
fn no_wake_up_is_lost_between_shards_that_sleep(executor: ExecutorChoice) {
    let runtime = start(executor, 2, Polling::Park);
    let (sender, done) = mpsc::channel();
    runtime.shard(0).submit(Box::new(move |shard| bounce(shard, 40_000, sender))).unwrap();
    done.recv().unwrap();
    assert!(runtime.load(0).sleeps() > 0 && runtime.load(1).sleeps() > 0);
    runtime.stop().unwrap();
}

fn a_task_awaits_a_job_on_another_shard(executor: ExecutorChoice) {
    for polling in POLICIES {
        let runtime = start(executor, 2, polling);
        let sum = runtime.on_shard(0, async |shard| {
            let other = shard.shard_ref(1);
            let mut sum = 0;
            for number in 0..500 {
                sum += other.run(async move |_| number).await.unwrap();
            }
            sum
        });
        assert_eq!(sum.wait().unwrap(), 124_750);
        runtime.stop().unwrap();
    }
}

/// What a thread that is no shard's fulfils.
#[derive(Clone, Default)]
struct Promise(Arc<Mutex<(bool, Option<Waker>)>>);

impl Promise {
    fn keep(&self) {
        let waker = {
            let mut state = self.0.lock().unwrap();
            state.0 = true;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake_by_ref();
            // Once too often, and perhaps too late.
            waker.wake();
        }
    }
}

impl Future for Promise {
    type Output = ();

    fn poll(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap();
        state.1 = Some(context.waker().clone());
        if state.0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

fn any_thread_may_wake_a_task(executor: ExecutorChoice) {
    for polling in POLICIES {
        let runtime = start(executor, 1, polling);
        let (sender, promises) = mpsc::channel::<Promise>();
        let thread = thread::spawn(move || {
            let mut last = None;
            for promise in promises {
                promise.keep();
                last = Some(promise);
            }
            last
        });
        let kept = runtime.on_shard(0, async move |shard| {
            for _ in 0..500 {
                let promise = Promise::default();
                sender.send(promise.clone()).unwrap();
                shard.spawn(promise).await.unwrap();
            }
        });
        kept.wait().unwrap();
        let last = thread.join().unwrap().unwrap();
        runtime.stop().unwrap();
        // The task and the shard are gone; its waker may still be used.
        last.keep();
    }
}

/// All of a shard's time is busy, idle or asleep, as a thread sees it that stops nobody.
fn a_shards_load_is_read_from_any_thread(executor: ExecutorChoice) {
    let work = || {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
    };
    for polling in POLICIES {
        let before = Instant::now();
        let runtime = start(executor, 1, polling);
        let load = runtime.load(0);
        runtime.shard(0).submit(Box::new(move |_| work())).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let seen = loop {
            runtime
                .on_shard(0, async move |shard| {
                    shard.sleep(Duration::from_millis(5)).await;
                    work();
                    // The time of a lap is counted when the next one begins.
                    shard.yield_now().await;
                })
                .wait()
                .unwrap();
            let seen = load.snapshot();
            // A shard that others keep from its core may find its sleep over before it has begun.
            let rested = seen.idle_ns + seen.asleep_ns >= 3_000_000 && (polling == Polling::Spin || seen.asleep_ns > 0);
            if rested || Instant::now() >= deadline {
                break seen;
            }
        };
        let alive = before.elapsed().as_nanos() as u64;
        assert!(seen.busy.count() >= 2 && seen.busy.sum() >= 4_000_000, "{seen:?}");
        assert!(seen.longest_ns >= 2_000_000 && seen.longest_ns <= seen.busy.sum(), "{seen:?}");
        assert!(seen.busy.sum() + seen.idle_ns + seen.asleep_ns <= alive, "no time is counted twice: {seen:?}");
        assert!(seen.idle_ns + seen.asleep_ns >= 3_000_000, "{seen:?}");
        assert!(seen.turns > seen.busy.count());
        match polling {
            Polling::Spin => assert_eq!((seen.sleeps, seen.asleep_ns), (0, 0)),
            _ => assert!(seen.sleeps > 0 && seen.asleep_ns > 0, "{seen:?}"),
        }
        if polling == Polling::Park {
            while !load.snapshot().asleep {
                thread::yield_now();
            }
        }
        runtime.stop().unwrap();
        let after = load.snapshot();
        assert!(after.turns >= seen.turns && after.busy.since(&seen.busy).count() <= after.busy.count());
    }
}

fn a_panic_ends_the_task_and_nothing_else(executor: ExecutorChoice) {
    let runtime = start(executor, 1, Polling::default());
    let panicked = runtime.on_shard(0, async |_| panic!("on purpose {}", 7));
    let error: Result<(), _> = panicked.wait();
    let Err(RuntimeError::TaskPanicked { message }) = error else { panic!("{error:?}") };
    assert_eq!(message, "on purpose 7");

    runtime.shard(0).submit(Box::new(|_| panic!("a job on purpose"))).unwrap();
    let inner = runtime.on_shard(0, async |shard| {
        let task = shard.spawn(async {
            struct Bomb;
            impl Drop for Bomb {
                fn drop(&mut self) {
                    panic!("a drop on purpose");
                }
            }
            let _bomb = Bomb;
            if Shard::current().is_some() {
                pending::<()>().await;
            }
        });
        drop(task);
        let task = shard.spawn(async { panic!("a task on purpose") });
        let ended: Result<(), _> = task.await;
        matches!(ended, Err(RuntimeError::TaskPanicked { .. }))
    });
    assert!(inner.wait().unwrap());
    runtime.stop().unwrap();
}

fn a_spawned_task_starts_only_after_the_caller_gave_way(executor: ExecutorChoice) {
    let runtime = start(executor, 1, Polling::default());
    let order = runtime.on_shard(0, async |shard| {
        let order = Rc::new(RefCell::new(Vec::new()));
        let task = {
            let mut caller = order.borrow_mut();
            let task = shard.spawn({
                let order = order.clone();
                async move { order.borrow_mut().push("task") }
            });
            caller.push("caller");
            task
        };
        task.await.unwrap();
        order.take()
    });
    assert_eq!(order.wait().unwrap(), ["caller", "task"]);
}

fn a_dropped_handle_lets_the_task_run_on(executor: ExecutorChoice) {
    let runtime = start(executor, 1, Polling::Park);
    let (sender, receiver) = mpsc::channel();
    drop(runtime.on_shard(0, async move |shard| {
        let task = shard.spawn(async move { sender.send(5).unwrap() });
        drop(task);
    }));
    assert_eq!(receiver.recv().unwrap(), 5);
}

/// Threads open things and close them, with a mailbox that is nearly always full.
fn jobs_that_may_not_be_refused_all_run_and_in_order(executor: ExecutorChoice) {
    const THREADS: usize = 3;
    const ROUNDS: usize = 2000;
    let runtime = Runtime::start(RuntimeSettings { mailbox_slots: 2, ..settings(executor, 1, Polling::Park) }).unwrap();
    let shard = runtime.shard(0);
    let (sender, ran) = mpsc::channel();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (shard, sender) = (shard.clone(), sender.clone());
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let job = |opens: bool| {
                        let sender = sender.clone();
                        Box::new(move |_: &Shard| sender.send((thread, round, opens)).unwrap())
                    };
                    while shard.submit(job(true)).is_err() {
                        thread::yield_now();
                    }
                    shard.submit_always(job(false));
                }
            });
        }
    });
    drop(sender);
    let mut next = [(0, true); THREADS];
    for (thread, round, opens) in ran.iter().take(2 * THREADS * ROUNDS) {
        assert_eq!((round, opens), next[thread], "the next of thread {thread}");
        next[thread] = if opens { (round, false) } else { (round + 1, true) };
    }
    assert_eq!(next, [(ROUNDS, true); THREADS]);
}

fn a_sleep_may_be_without_end(executor: ExecutorChoice) {
    let runtime = start(executor, 1, Polling::Park);
    let asleep = runtime.on_shard(0, async |shard| {
        let mut sleep = pin!(shard.sleep(Duration::MAX));
        poll_fn(|context| Poll::Ready(sleep.as_mut().poll(context).is_pending())).await
    });
    assert!(asleep.wait().unwrap());
    runtime.stop().unwrap();
}

fn stopping_drops_tasks_wherever_they_wait(executor: ExecutorChoice) {
    for polling in POLICIES {
        let runtime = start(executor, 2, polling);
        let dropped = Arc::new(AtomicUsize::new(0));
        let witness = || Witness(Arc::clone(&dropped));
        let (one, two, three) = (witness(), witness(), witness());
        let sleeping = runtime.on_shard(0, async move |shard| {
            let _one = one;
            shard.sleep(Duration::from_secs(3600)).await;
        });
        let for_ever = runtime.on_shard(1, async move |shard| {
            let other = shard.shard_ref(0);
            let task = shard.spawn(async move {
                let _two = two;
                other.run(async |_| pending::<()>().await).await
            });
            task.await
        });
        let yielding = runtime.on_shard(1, async move |shard| {
            let _three = three;
            loop {
                shard.yield_now().await;
            }
        });
        // All are in flight once these have answered, in the order of the mailboxes.
        runtime.on_shard(0, async |_| ()).wait().unwrap();
        runtime.on_shard(1, async |_| ()).wait().unwrap();
        runtime.stop().unwrap();
        assert_eq!(dropped.load(Ordering::SeqCst), 3);
        assert!(matches!(sleeping.wait(), Err(RuntimeError::ShardGone { shard: 0 })));
        // Either shard may be the first to end, and to tell the task.
        let ended = for_ever.wait();
        let ended = ended.and_then(|outer| outer).and_then(|inner| inner);
        assert!(matches!(ended, Err(RuntimeError::ShardGone { .. })));
        let ended: Result<(), _> = yielding.wait();
        assert!(matches!(ended, Err(RuntimeError::ShardGone { shard: 1 })));
    }
}

fn a_stopped_shard_takes_nothing_and_stopping_again_does_nothing(executor: ExecutorChoice) {
    let runtime = start(executor, 1, Polling::Park);
    let shard = runtime.shard(0);
    runtime.stop().unwrap();
    runtime.clone().stop().unwrap();
    assert!(shard.submit(Box::new(|_| {})).unwrap_err().stopped);
    let error = runtime.on_shard(0, async |_| ()).wait().unwrap_err();
    assert!(matches!(error, RuntimeError::ShardGone { shard: 0 }), "{error}");
}

fn the_last_handle_stops_the_shards(executor: ExecutorChoice) {
    let runtime = start(executor, 1, Polling::Park);
    let shard = runtime.shard(0);
    drop(runtime.clone());
    runtime.on_shard(0, async |_| ()).wait().unwrap();
    drop(runtime);
    assert!(shard.submit(Box::new(|_| {})).unwrap_err().stopped);
}

fn a_shard_can_stop_its_own_runtime(executor: ExecutorChoice) {
    let runtime = start(executor, 2, Polling::Park);
    let inside = runtime.clone();
    let stopped = runtime.on_shard(0, async move |shard| {
        assert!(!shard.stopping());
        // From inside it can only be asked for.
        inside.stop().unwrap();
        drop(inside);
        shard.stopping()
    });
    // The shard ends after this turn, so its answer may not get out.
    assert!(matches!(stopped.wait(), Ok(true) | Err(RuntimeError::ShardGone { .. })));
    runtime.stop().unwrap();

    let runtime = start(executor, 1, Polling::Spin);
    drop(runtime.on_shard(0, async |shard| shard.request_stop()));
    let shard = runtime.shard(0);
    while !shard.submit(Box::new(|_| {})).is_err_and(|full| full.stopped) {
        thread::yield_now();
    }
}

fn a_task_that_does_not_return_is_not_waited_for_for_ever(executor: ExecutorChoice) {
    let runtime = Runtime::start(RuntimeSettings {
        stop_within: Duration::from_millis(5),
        ..settings(executor, 1, Polling::default())
    })
    .unwrap();
    let (release, wait) = mpsc::channel::<()>();
    let (sender, busy) = mpsc::channel();
    let stuck = runtime.on_shard(0, async move |_| {
        sender.send(()).unwrap();
        wait.recv().unwrap_err();
    });
    busy.recv().unwrap();
    let error = runtime.stop().unwrap_err();
    assert!(matches!(error, RuntimeError::StopTimedOut { shard: 0, .. }), "{error}");
    drop(release);
    drop(stuck.wait());
    while matches!(runtime.stop(), Err(RuntimeError::StopTimedOut { .. })) {}
    runtime.stop().unwrap();
}

fn waiting_on_a_shards_thread_is_a_bug_that_is_noticed(executor: ExecutorChoice) {
    let runtime = start(executor, 2, Polling::default());
    let handle = runtime.on_shard(1, async |_| ());
    let blocked = runtime.on_shard(0, async move |_| handle.wait()).wait();
    let Err(RuntimeError::TaskPanicked { message }) = blocked else { panic!("{blocked:?}") };
    assert!(message.contains("must not block"));
}

fn settings_that_cannot_work_are_refused(executor: ExecutorChoice) {
    let error = Runtime::start(settings(executor, 0, Polling::Park)).unwrap_err();
    assert!(matches!(error, RuntimeError::Setting { setting: "shards", .. }), "{error}");
}
