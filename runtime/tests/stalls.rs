//! Stall reports: a shard that takes no turn for too long is counted, and the log names who kept it.

use std::{
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use sealane_runtime::{ExecutorChoice, Pin, Runtime, RuntimeSettings, Shard, Source};

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const LIMIT: Duration = Duration::from_millis(20);

/// Keeps the thread busy for longer than the limit.
fn overrun() {
    let start = Instant::now();
    while start.elapsed() < 2 * LIMIT {
        std::hint::spin_loop();
    }
}

struct Slow {
    polls: usize,
}

impl Source for Slow {
    fn poll(&mut self, _: &Shard, _: usize) -> usize {
        self.polls += 1;
        if self.polls == 1 {
            overrun();
        }
        usize::from(self.polls == 1)
    }

    fn has_work(&self) -> bool {
        false
    }

    fn try_sleep(&mut self) -> bool {
        true
    }

    fn wake(&mut self) {}

    fn name(&self) -> &'static str {
        "the slow source"
    }
}

fn start(executor: ExecutorChoice) -> Runtime {
    let settings = RuntimeSettings { executor, pin: Pin::Off, stall_report: LIMIT, ..RuntimeSettings::default() };
    Runtime::start(settings).unwrap()
}

#[test]
fn the_log_names_who_kept_the_shard() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();

    for executor in [ExecutorChoice::Auto, ExecutorChoice::Epoll] {
        log.0.lock().unwrap().clear();
        // Each on a runtime of its own, because reports of one shard are a second apart; and again where the machine was
        // too busy to give the shard its CPU and the report of that came first.
        let names = |culprit: &str, overrun: fn(&Runtime)| {
            while !log.text().contains(&format!("culprit=\"{culprit}")) {
                let runtime = start(executor);
                overrun(&runtime);
                // The turn that answers comes after the one that overran.
                runtime.on_shard(0, async |_| ()).wait().unwrap();
                while runtime.load(0).stalls() == 0 {
                    runtime.on_shard(0, async |_| ()).wait().unwrap();
                }
            }
        };
        names("a task, or", |runtime| runtime.on_shard(0, async |_| overrun()).wait().unwrap());
        names("a job\"", |runtime| runtime.shard(0).submit(Box::new(|_| overrun())).unwrap());
        names("the slow source\"", |runtime| {
            let added = runtime.on_shard(0, async |shard| shard.add_source(Slow { polls: 0 }));
            added.wait().unwrap();
        });
    }
}
