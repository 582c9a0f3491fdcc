//! Publications by the program and by the thread that publishes again with the next daemon meet in the rings. The daemons here are
//! small stores that read only when a test lets them, so that the test decides between which records the two meet.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Instant,
};

use sealane::{Attach, Code, Error, Task};
use sealane_fusion::Portion;
use sealane_transport::shm::{
    Completion, DaemonEnd, PayloadAt, Record, Submission,
    attach::{Request, accept, credentials, listen, read_request},
};

use crate::{
    daemon::{LONG, PORTION},
    fixture::{TASK, bytes, directory, tensor},
};

const SHARDS: usize = 2;

/// Tensors that are published: three times as many as a ring holds. The program's own set is [`IN_SET`] of them.
const TENSORS: usize = 600;
const IN_SET: usize = 20;

/// Calls that one record reports the end of.
const CALLS_TOLD: usize = 64;

/// Bytes of each tensor: as many as travel in a record.
const BYTES: usize = 512;

/// The tensors of one shard by key, and those that wait for the last of their set.
#[derive(Default)]
struct Shard {
    store: BTreeMap<String, (i64, Vec<u8>)>,
    together: Vec<(u32, String, i64, Vec<u8>)>,
    /// How many keys were there each time something became visible.
    seen: Vec<usize>,
    /// The key that this shard refuses.
    refuses: Option<String>,
}

impl Shard {
    fn carry_out(&mut self, end: &mut DaemonEnd, asked: &Submission<'_>) {
        match *asked {
            Submission::Publish { call, key, .. } if self.refuses.as_deref() == Some(key) => {
                let mut record = Record::new();
                let failed = Completion::Failed { call, memory_back: true, error: Error::invalid("refused") };
                failed.encode(&mut record).unwrap();
                end.completions.push(&record).unwrap();
            }
            Submission::Publish { call, version, key, payload: PayloadAt::Inline(bytes), more, .. } => {
                self.together.push((call, key.to_owned(), version, bytes.to_vec()));
                if !more {
                    self.show(end);
                }
            }
            Submission::Withdraw { key } => drop(self.store.remove(key)),
            _ => {}
        }
    }

    fn show(&mut self, end: &mut DaemonEnd) {
        let calls: Vec<u32> = self.together.iter().map(|(call, ..)| *call).collect();
        for (_, key, version, bytes) in self.together.drain(..) {
            self.store.insert(key, (version, bytes));
        }
        // Few records, as from a real daemon: the client may be about to publish more before it reads them.
        for calls in calls.chunks(CALLS_TOLD) {
            let mut record = Record::new();
            Completion::Sent { calls }.encode(&mut record).unwrap();
            end.completions.push(&record).unwrap();
        }
        self.seen.push(self.store.len());
    }
}

/// A daemon that reads only as many records as it is allowed.
struct Stores {
    allowed: Arc<AtomicUsize>,
    read: Arc<AtomicUsize>,
    killed: Arc<AtomicBool>,
    again: Arc<AtomicBool>,
    shards: Arc<[Mutex<Shard>; SHARDS]>,
    thread: Option<JoinHandle<()>>,
}

impl Stores {
    fn start(directory: &Path, allowed: usize) -> Stores {
        let listener = listen(&directory.join("sealane.sock")).unwrap();
        let mut stores = Stores {
            allowed: Arc::new(allowed.into()),
            read: Arc::default(),
            killed: Arc::default(),
            again: Arc::default(),
            shards: Arc::default(),
            thread: None,
        };
        let (allowed, read) = (stores.allowed.clone(), stores.read.clone());
        let (killed, again, shards) = (stores.killed.clone(), stores.again.clone(), stores.shards.clone());
        stores.thread = Some(thread::spawn(move || {
            let may_read = || read.load(Ordering::SeqCst) < allowed.load(Ordering::SeqCst);
            serve(&listener, &killed, |at, end, record| {
                let mut some = false;
                while !killed.load(Ordering::SeqCst) && may_read() && end.submissions.pop(record).unwrap() {
                    let asked = Submission::decode(record).unwrap();
                    again.fetch_or(matches!(asked, Submission::PublishedAgain { .. }), Ordering::SeqCst);
                    shards[at].lock().unwrap().carry_out(end, &asked);
                    read.fetch_add(1, Ordering::SeqCst);
                    end.submissions.publish();
                    some = true;
                }
                some
            });
        }));
        stores
    }

    /// Lets it read everything.
    fn go_on(&self) {
        self.allowed.store(usize::MAX, Ordering::SeqCst);
    }

    fn until_read(&self, records: usize) {
        until(|| (self.read.load(Ordering::SeqCst) >= records).then_some(()));
    }

    fn until_published_again(&self) {
        until(|| self.again.load(Ordering::SeqCst).then_some(()));
    }

    /// The contents, which are the same at all shards.
    fn contents(&self) -> BTreeMap<String, (i64, Vec<u8>)> {
        let contents = self.shards.each_ref().map(|shard| shard.lock().unwrap().store.clone());
        let differ = || contents[0].iter().filter(|(key, of)| contents[1].get(*key) != Some(of)).count();
        assert!(contents[0] == contents[1], "the shards differ for ever, in {} keys", differ());
        contents.into_iter().next().unwrap()
    }
}

impl Drop for Stores {
    /// Ends like a crash.
    fn drop(&mut self) {
        self.killed.store(true, Ordering::SeqCst);
        let served = self.thread.take().unwrap().join();
        assert!(served.is_ok() || thread::panicking());
    }
}

/// Serves one client: calls `read` on each of its rings until the client goes or the daemon is killed.
fn serve(listener: &OwnedFd, killed: &AtomicBool, mut read: impl FnMut(usize, &mut DaemonEnd, &mut Record) -> bool) {
    let Some(socket) = until(|| match killed.load(Ordering::SeqCst) {
        true => Some(None),
        false => accept(listener).unwrap().map(|socket| Some(Arc::new(socket))),
    }) else {
        return;
    };
    let Request::Attach(wish) = until(|| read_request(&socket).unwrap()) else { panic!("it attaches") };
    let portion = Portion { shards: SHARDS, ..PORTION };
    let (mut ends, mut welcoming) = portion.make(&wish, credentials(&socket).unwrap(), &socket, &[]).unwrap();
    until(|| welcoming.step(&socket).unwrap().then_some(()));
    let mut record = Record::new();
    while !killed.load(Ordering::SeqCst)
        && let Ok(None) = read_request(&socket)
    {
        for (at, (end, _)) in ends.shards.iter_mut().enumerate() {
            if read(at, end, &mut record) {
                ends.bell.ring();
            }
        }
        thread::yield_now();
    }
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "nothing came of it");
        thread::yield_now();
    }
}

fn key(number: usize) -> String {
    format!("t{number}")
}

fn publish(task: &Task, numbers: impl Iterator<Item = usize>, seed: u64) -> Result<(), Error> {
    task.publish_many(7, numbers.map(|number| (key(number), tensor(BYTES, seed)))).wait()
}

/// Publishes [`TENSORS`] tensors of seed 1 with a daemon that is then killed. The next daemon has read `records` records, and the
/// thread that publishes again waits for room.
fn published_again(records: usize) -> (tempfile::TempDir, Task, Stores) {
    let (directory, task, stores) = published();
    assert_eq!(stores.contents().len(), TENSORS);
    let next = next_after(stores, &directory, records);
    next.until_read(records);
    (directory, task, next)
}

/// A task that has published [`TENSORS`] tensors of seed 1, and its daemon.
fn published() -> (tempfile::TempDir, Task, Stores) {
    let directory = directory();
    let stores = Stores::start(directory.path(), usize::MAX);
    let task = Attach::new(TASK).socket(directory.path().join("sealane.sock")).arena_bytes(1 << 20).attach().unwrap();
    publish(&task, 0..TENSORS, 1).unwrap();
    (directory, task, stores)
}

/// Replaces a daemon that dies.
fn next_after(stores: Stores, directory: &tempfile::TempDir, records: usize) -> Stores {
    drop(stores);
    std::fs::remove_file(directory.path().join("sealane.sock")).unwrap();
    Stores::start(directory.path(), records)
}

/// How many records the next daemon has read when the program goes on: from the first to the last of both shards.
fn meetings() -> impl Iterator<Item = usize> {
    (1..SHARDS * TENSORS).step_by(67).chain([SHARDS * TENSORS - 1])
}

#[test]
fn what_the_program_publishes_meanwhile_is_not_replaced_by_what_it_had_published_before() {
    for records in meetings() {
        let (_directory, task, next) = published_again(records);
        thread::scope(|scope| {
            let publishing = scope.spawn(|| publish(&task, 0..IN_SET, 2));
            next.go_on();
            publishing.join().unwrap().unwrap();
        });
        next.until_published_again();
        let contents = next.contents();
        for number in 0..TENSORS {
            let seed = if number < IN_SET { 2 } else { 1 };
            assert!(
                contents[&key(number)].1 == bytes(BYTES, seed),
                "after {records} records t{number} is an older one"
            );
        }
    }
}

#[test]
fn what_the_program_withdraws_meanwhile_does_not_come_back() {
    for records in meetings() {
        let (_directory, task, next) = published_again(records);
        thread::scope(|scope| {
            let withdrawing = scope.spawn(|| (0..IN_SET).try_for_each(|number| task.withdraw(&key(number))));
            next.go_on();
            withdrawing.join().unwrap().unwrap();
        });
        next.until_published_again();
        // Sent last, so it is read last.
        publish(&task, TENSORS..TENSORS + 1, 3).unwrap();
        let back = next.contents().keys().filter(|there| (0..IN_SET).any(|number| key(number) == **there)).count();
        assert_eq!(back, 0, "after {records} records");
    }
}

#[test]
fn a_set_is_seen_whole_whatever_else_is_published() {
    for records in meetings() {
        let (_directory, task, next) = published_again(records);
        thread::scope(|scope| {
            let one = scope.spawn(|| publish(&task, TENSORS..TENSORS + 1, 2));
            let others = scope.spawn(|| publish(&task, TENSORS + 1..TENSORS + 1 + IN_SET, 2));
            next.go_on();
            one.join().unwrap().unwrap();
            others.join().unwrap().unwrap();
        });
        next.until_published_again();
        for shard in next.shards.iter() {
            let mut seen = shard.lock().unwrap().seen.clone();
            seen.dedup();
            let (last, whole) = (TENSORS + 1 + IN_SET, [TENSORS, TENSORS + 1, TENSORS + IN_SET]);
            let (end, before) = seen.split_last().unwrap();
            assert!(
                *end == last && before.iter().all(|seen| whole.contains(seen)),
                "after {records} records: {seen:?}"
            );
        }
    }
}

#[test]
fn what_two_threads_publish_is_the_same_at_every_shard() {
    for _ in 0..20 {
        let (_directory, task, next) = published_again(1);
        next.go_on();
        next.until_published_again();
        thread::scope(|scope| {
            let publishing = [2, 3].map(|seed| {
                let task = &task;
                scope.spawn(move || publish(task, 0..TENSORS, seed))
            });
            publishing.into_iter().for_each(|publishing| publishing.join().unwrap().unwrap());
        });
        let contents = next.contents();
        let first = &contents[&key(0)];
        assert!((0..TENSORS).all(|number| contents[&key(number)] == *first), "a part of each");
    }
}

#[test]
fn a_daemon_that_dies_at_any_record_leaves_the_next_one_what_the_program_was_told() {
    for records in meetings() {
        let (directory, task, dying) = published_again(records);
        let (published, withdrawn, next) = thread::scope(|scope| {
            let publishing = scope.spawn(|| publish(&task, 0..IN_SET, 2));
            let withdrawing = scope.spawn(|| (IN_SET..2 * IN_SET).map(|number| task.withdraw(&key(number))).collect());
            drop(dying);
            std::fs::remove_file(directory.path().join("sealane.sock")).unwrap();
            let next = Stores::start(directory.path(), usize::MAX);
            let withdrawn: Vec<Result<(), Error>> = withdrawing.join().unwrap();
            (publishing.join().unwrap(), withdrawn, next)
        });
        next.until_published_again();
        // Sent last, so it is read last.
        publish(&task, TENSORS..TENSORS + 1, 3).unwrap();
        let contents = next.contents();
        let of_set: Vec<&Vec<u8>> = (0..IN_SET).map(|number| &contents[&key(number)].1).collect();
        match published {
            Ok(()) => assert!(of_set.iter().all(|of| **of == bytes(BYTES, 2)), "after {records} records"),
            Err(error) => {
                assert_eq!(error.code(), Code::Unavailable, "{error}");
                assert!(of_set.iter().all(|of| *of == of_set[0]), "after {records} records a part of the set");
            }
        }
        // Even where the program was told that no daemon could be told.
        assert_eq!(withdrawn.len(), IN_SET);
        assert!((IN_SET..2 * IN_SET).all(|number| !contents.contains_key(&key(number))), "after {records} records");
        assert_eq!(contents.len(), TENSORS + 1 - IN_SET);
    }
}

#[test]
fn what_a_daemon_refuses_leaves_the_next_one_the_version_before() {
    // The first is refused while the rest is still being sent, the last after that; all others follow.
    for refused in [0, TENSORS - 2] {
        let (directory, task, stores) = published();
        for shard in stores.shards.iter() {
            shard.lock().unwrap().refuses = Some(key(refused));
        }
        assert_eq!(publish(&task, 0..TENSORS, 2).unwrap_err().code(), Code::InvalidArgument);
        let next = next_after(stores, &directory, usize::MAX);
        next.until_published_again();
        // Sent last, so it is read last.
        publish(&task, TENSORS..TENSORS + 1, 2).unwrap();
        for (key, (_, there)) in next.contents() {
            let seed = if key == self::key(refused) { 1 } else { 2 };
            assert!(there == bytes(BYTES, seed), "{key} is not of seed {seed}");
        }
        assert_eq!(next.contents().len(), TENSORS + 1);
    }
}

#[test]
fn what_one_shard_has_shown_before_the_daemon_dies_is_there_with_the_next_one() {
    let (directory, task, stores) = published();
    stores.allowed.store(stores.read.load(Ordering::SeqCst), Ordering::SeqCst);
    let next = thread::scope(|scope| {
        let publishing = scope.spawn(|| publish(&task, 0..TENSORS, 2));
        // Record by record, so that the other shard's ring is full when the first has read everything.
        until(|| {
            let shown = stores.shards[0].lock().unwrap().store[&key(0)].1 == bytes(BYTES, 2);
            // Allow one more only when all allowed records are read: otherwise the other shard would read the surplus.
            stores.allowed.store(stores.read.load(Ordering::SeqCst) + usize::from(!shown), Ordering::SeqCst);
            shown.then_some(())
        });
        stores.allowed.store(0, Ordering::SeqCst);
        assert!(stores.shards[1].lock().unwrap().store[&key(0)].1 == bytes(BYTES, 1));
        let next = next_after(stores, &directory, usize::MAX);
        // The ring may first stay full for a second.
        let error = publishing.join().unwrap().unwrap_err();
        assert!(matches!(error.code(), Code::Unavailable | Code::ResourceExhausted), "{error}");
        next
    });
    next.until_published_again();
    publish(&task, TENSORS..TENSORS + 1, 2).unwrap();
    assert!(next.contents().values().all(|(_, there)| *there == bytes(BYTES, 2)), "an older one");
}
