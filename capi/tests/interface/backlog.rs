//! Starting a call never waits: calls without room are sent later, and a missing daemon is reported at once.

use std::{
    ffi::c_void,
    io::{BufRead, BufReader, Read, Write},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    ptr::{null, null_mut},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sealane_c::*;
use tempfile::TempDir;

use crate::{
    daemon::{Daemon, LONG, Settings},
    fixture::*,
};

/// A daemon in a process of its own, which can be stopped and killed.
struct Process {
    child: Child,
    /// Kept open, because the daemon may write more.
    _output: BufReader<ChildStdout>,
}

const PLACE_VARIABLE: &str = "SEALANE_TEST_DAEMON";

impl Process {
    /// Starts a daemon that listens at `socket`, replacing any earlier one.
    fn start(socket: &Path) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "backlog::the_daemon_process_of_other_tests"])
            .env(PLACE_VARIABLE, socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let said = output.by_ref().lines().map(Result::unwrap).find(|line| line.contains("it listens"));
        assert!(said.is_some());
        Process { child, _output: output }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Stops the process, and waits until none of its threads runs.
    fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let is_stopped = |stat: String| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"));
        let threads = || std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        while !threads().all(|task| is_stopped(stat(task.unwrap()))) {
            thread::yield_now();
        }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A failed test must leave no process behind, not even a stopped one.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tasks() -> Vec<String> {
    let numbered = (0..PAIRS).flat_map(|pair| [ps(pair), worker(pair)]);
    [PS, WORKER].map(str::to_owned).into_iter().chain(numbered).collect()
}

/// Two tasks per pair, since one would exceed a limit: a daemon has at most 16,384 calls of a process in flight on a core.
const PAIRS: usize = 4;

fn ps(pair: usize) -> String {
    format!("ps{}.pairs:2222", pair + 1)
}

fn worker(pair: usize) -> String {
    format!("worker{}.pairs:2222", pair + 1)
}

/// The process that other tests start: a daemon that drains on request and ends when its standard input closes.
#[test]
#[ignore = "it is a process of other tests"]
fn the_daemon_process_of_other_tests() {
    let socket: PathBuf = std::env::var_os(PLACE_VARIABLE).expect("the socket is given").into();
    let directory = TempDir::new().unwrap();
    let daemon = Daemon::start(&directory, Settings { shards: 2, tasks: tasks() });
    let _none = std::fs::remove_file(&socket);
    symlink(&daemon.socket, &socket).unwrap();
    println!("it listens");
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "announce" => daemon.engine.announce_drain().unwrap(),
            "drain" => {
                daemon.engine.drain().unwrap();
                return;
            }
            other => panic!("{other}"),
        }
    }
}

/// How one call ended: its number, its code, and the received bytes.
type Report = (usize, sealane_code, Vec<u8>);

struct Reporter {
    number: usize,
    reports: Sender<Report>,
}

impl Reporter {
    fn context(number: usize, reports: &Sender<Report>) -> *mut c_void {
        Box::into_raw(Box::new(Reporter { number, reports: reports.clone() })).cast()
    }

    /// Frees the context of a call that was refused.
    unsafe fn free(context: *mut c_void) {
        // SAFETY: `context` made it, and no callback has it.
        drop(unsafe { Box::from_raw(context.cast::<Reporter>()) });
    }
}

unsafe extern "C" fn report_done(context: *mut c_void, error: *const sealane_error) {
    // SAFETY: the context is a `Reporter` that nobody else has; the error is null or valid for this call.
    unsafe {
        let reporter = Box::from_raw(context.cast::<Reporter>());
        // A failed test no longer receives.
        let _ = reporter.reports.send((reporter.number, sealane_error_code(error), Vec::new()));
    }
}

unsafe extern "C" fn report_received(context: *mut c_void, error: *const sealane_error, tensor: *mut sealane_tensor) {
    // SAFETY: as above; the tensor is null or this callback's.
    unsafe {
        let reporter = Box::from_raw(context.cast::<Reporter>());
        let bytes = if tensor.is_null() { Vec::new() } else { Held(tensor).bytes().to_vec() };
        let _ = reporter.reports.send((reporter.number, sealane_error_code(error), bytes));
    }
}

fn start_send(
    task: &Task,
    (to, step, key): (&str, i64, &str),
    bytes: &[u8],
    context: *mut c_void,
) -> *mut sealane_error {
    let dims = [bytes.len() as u64];
    let source = source(bytes, &dims);
    // SAFETY: everything lives until the function returns, the context until it is told.
    unsafe { sealane_send(task.0, text(to), step, text(key), &source, 0, Some(report_done), context, null_mut()) }
}

fn start_recv(task: &Task, (from, step, key): (&str, i64, &str), context: *mut c_void) -> *mut sealane_error {
    // SAFETY: as above.
    unsafe { sealane_recv(task.0, text(from), step, text(key), null(), 0, Some(report_received), context, null_mut()) }
}

fn attached_to(socket: &Path, options: sealane_attach_options) -> (Task, Task) {
    (attach_with(socket, PS, options), attach_with(socket, WORKER, options))
}

const SMALL: sealane_attach_options = sealane_attach_options { arena_bytes: 4 << 20, ..DEFAULTS };

#[test]
fn what_is_started_while_a_daemon_is_stopped_all_arrives_in_order() {
    const THREADS: usize = 2 * PAIRS;
    const EACH: usize = 6_250;
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("sealane.sock");
    let daemon = Process::start(&socket);
    let (pusher, acceptance) = attached_to(&socket, SMALL);
    let pairs: Vec<(Task, Task)> = (0..PAIRS)
        .map(|pair| (attach_with(&socket, &ps(pair), SMALL), attach_with(&socket, &worker(pair), SMALL)))
        .collect();
    let mut acceptor = null_mut();
    // SAFETY: everything lives until the function returns.
    ok(unsafe { sealane_acceptor_open(acceptance.0, text("queue"), null(), &mut acceptor) });
    assert!(pusher.knows(WORKER));
    daemon.stop();
    let ((sends, sent), (recvs, received)) = (channel(), channel());
    let value = |number: usize| number.to_le_bytes().repeat(8);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let pair = thread / 2;
            let ((of_ps, of_worker), sends, recvs) = (&pairs[pair], sends.clone(), recvs.clone());
            scope.spawn(move || {
                for step in 0..EACH {
                    let number = thread * EACH + step;
                    let (step, key) = (step as i64, ["a", "b"][thread % 2]);
                    let context = Reporter::context(number, &sends);
                    ok(start_send(of_ps, (&worker(pair), step, key), &value(number), context));
                    ok(start_recv(of_worker, (&ps(pair), step, key), Reporter::context(number, &recvs)));
                }
            });
        }
    });
    let pushed = push_numbers(&pusher, 5000);
    assert!(sent.try_recv().is_err() && received.try_recv().is_err(), "the daemon is stopped");
    daemon.signal(Signal::SIGCONT);
    let reports = |from: &Receiver<Report>| {
        let mut reports: Vec<Report> = (0..THREADS * EACH).map(|_| from.recv_timeout(LONG).unwrap()).collect();
        reports.sort_by_key(|(number, ..)| *number);
        reports
    };
    for (expected, (number, code, _)) in reports(&sent).into_iter().enumerate() {
        assert_eq!((number, code), (expected, sealane_code::Ok));
    }
    for (expected, (number, code, bytes)) in reports(&received).into_iter().enumerate() {
        assert_eq!((number, code), (expected, sealane_code::Ok));
        assert_eq!(bytes, value(expected));
    }
    let mut next = 0_u64;
    while next < 5000 {
        let ear = Ear::new();
        // SAFETY: the acceptor is open, the ear lives until it is told.
        ok(unsafe { sealane_accept(acceptor, 100, 0, Some(accepted), ear.context(), null_mut()) });
        for tensor in ear.ok().tensors {
            assert_eq!(tensor.bytes(), next.to_le_bytes());
            next += 1;
        }
    }
    (0..5000).for_each(|_| drop(pushed.ok()));
    // SAFETY: it is closed once.
    unsafe { sealane_acceptor_close(acceptor) };
}

fn push_numbers(ps: &Task, count: u64) -> Ear {
    let ear = Ear::new();
    for number in 0..count {
        let bytes = number.to_le_bytes();
        let source = source(&bytes, &[8]);
        // SAFETY: everything lives until the function returns, the ear until it is told.
        ok(unsafe {
            sealane_push(ps.0, text(WORKER), text("queue"), &source, 1, 0, Some(done), ear.context(), null_mut())
        });
    }
    ear
}

#[test]
fn more_than_may_wait_is_refused_at_once_and_takes_nothing_over() {
    let directory = TempDir::new().unwrap();
    let daemon = Daemon::start(&directory, Settings { shards: 1, tasks: tasks() });
    let (ps, worker) = attached_to(&daemon.socket, sealane_attach_options { backlog_calls_max: 500, ..SMALL });
    assert!(ps.knows(WORKER) && worker.knows(PS));
    let held = daemon.hold();
    let (sends, sent) = channel();
    let mut started = 0;
    let message = loop {
        let context = Reporter::context(started, &sends);
        match code(start_send(&ps, (WORKER, started as i64, "key"), &[1; 8], context)) {
            (sealane_code::Ok, _) => started += 1,
            (refused, message) => {
                assert_eq!(refused, sealane_code::ResourceExhausted);
                // SAFETY: it was refused.
                unsafe { Reporter::free(context) };
                break message;
            }
        }
        assert!(started <= 2048 + 500, "the bound is kept: a ring has 2048 cache lines");
    };
    assert!(message.contains("client backlog_calls is full"), "{message}");
    assert!(started > 500);
    // A batch that exceeds the limit is refused as a whole, and none of its memory is released.
    let ear = Ear::new();
    let (bytes, dims) = ([7_u8; 8], [8]);
    let lent = sealane_source { release: Some(release), release_context: ear.context(), ..source(&bytes, &dims) };
    let items = [0, 1].map(|_| sealane_item { key: text("batch"), source: lent, context: ear.context() });
    // SAFETY: nothing is taken over.
    refused(
        unsafe { sealane_send_all(ps.0, text(WORKER), 0, items.as_ptr(), 2, 0, Some(done), null_mut()) },
        sealane_code::ResourceExhausted,
    );
    // The end of a step is accepted all the same.
    // SAFETY: the task is attached.
    ok(unsafe { sealane_cleanup(ps.0, 1_000_000) });
    drop(held);
    let (recvs, received) = channel();
    for step in 0..started {
        while code(start_recv(&worker, (PS, step as i64, "key"), Reporter::context(step, &recvs))).0 != sealane_code::Ok
        {
            thread::yield_now();
        }
    }
    (0..started).for_each(|_| assert_eq!(sent.recv_timeout(LONG).unwrap().1, sealane_code::Ok));
    (0..started).for_each(|_| assert_eq!(received.recv_timeout(LONG).unwrap().2, [1; 8]));
    ear.nothing();
    ok(start_send(&ps, (WORKER, -1, "key"), &[1; 8], Reporter::context(0, &sends)));
    ok(start_recv(&worker, (PS, -1, "key"), Reporter::context(0, &recvs)));
    assert_eq!(received.recv_timeout(LONG).unwrap().2, [1; 8]);
}

#[test]
fn tensors_that_the_arena_has_no_room_for_wait_and_stay_their_owners_until_they_are_released() {
    const COUNT: usize = 40;
    const LEN: usize = 256 << 10;
    let directory = TempDir::new().unwrap();
    let daemon = Daemon::start(&directory, Settings { shards: 1, tasks: tasks() });
    let (ps, worker) = attached_to(&daemon.socket, sealane_attach_options { backlog_bytes_max: 8 << 20, ..SMALL });
    let memory: Vec<Vec<u8>> = (0..COUNT as u8).map(|value| vec![value; LEN]).collect();
    let (ear, dims) = (Ear::new(), [LEN as u64]);
    let send = |step: usize, release_context| {
        let lent = sealane_source { release: Some(release), release_context, ..source(&memory[step % COUNT], &dims) };
        let (to, key) = (text(WORKER), text("key"));
        // SAFETY: memory lives until the end, the ear until it is told.
        unsafe { sealane_send(ps.0, to, step as i64, key, &lent, 0, Some(done), ear.context(), null_mut()) }
    };
    // About 16 fit into the arena, 31 more into the backlog.
    let releases = Ear::new();
    (0..COUNT).for_each(|step| ok(send(step, releases.context())));
    let none = Ear::new();
    let mut more = 0;
    let message = loop {
        match code(send(COUNT + more, none.context())) {
            (sealane_code::Ok, _) => more += 1,
            (refused, message) => {
                assert_eq!(refused, sealane_code::ResourceExhausted);
                break message;
            }
        }
        assert!(more < COUNT, "the bound is kept");
    };
    assert!(message.contains("client backlog_bytes is full"), "{message}");
    // Calls that need no room overtake them.
    let (got, small) = (Ear::new(), Ear::new());
    ps.send(WORKER, 1, "small", &[9; 100], &small);
    worker.recv(PS, 1, "small", &got);
    assert_eq!(got.tensor().bytes(), [9; 100]);
    small.ok();
    let mut released = 0;
    while releases.try_told().is_some() {
        released += 1;
    }
    assert!(released <= 16, "{released} tensors have been copied into an arena that has room for 16");
    for (step, memory) in memory.iter().enumerate() {
        worker.recv(PS, step as i64, "key", &got);
        assert!(got.tensor().bytes() == memory);
    }
    (released..COUNT).for_each(|_| assert!(releases.ok().released));
    (0..COUNT).for_each(|_| drop(ear.ok()));
    ps.detach();
    releases.nothing();
    (0..more).for_each(|_| drop(none.told()));
    none.nothing();
}

#[test]
fn a_recv_whose_destination_finds_no_room_in_the_arena_is_filled_all_the_same() {
    let World { ps, worker, daemon: _daemon, _directory } = &world();
    let mut all = null_mut();
    // SAFETY: the place lives.
    ok(unsafe { sealane_alloc(worker.0, 4 << 20, &mut all) });
    let (got, filled, sent) = (Ear::new(), Ear::new(), Ear::new());
    for (step, len) in [(1, 100_000), (2, 100)] {
        for room in [len - 1, len + 10] {
            let mut memory = vec![0_u8; room];
            let destination = filled.destination(&mut memory);
            // SAFETY: memory stays until it is released, all else until the function returns.
            ok(unsafe {
                let (from, key, context) = (text(PS), text("key"), got.context());
                sealane_recv(worker.0, from, step, key, &destination, 0, Some(received), context, null_mut())
            });
            if room < len {
                ps.send(WORKER, step, "key", &vec![step as u8; len], &sent);
                let told = got.told();
                assert_eq!(told.code, sealane_code::InvalidArgument);
                assert!(
                    told.message.contains(&format!("has {room} bytes, the tensor needs {len}")),
                    "{}",
                    told.message
                );
            } else {
                let tensor = got.tensor();
                assert!(tensor.bytes() == vec![step as u8; len] && tensor.view().data == memory.as_ptr().cast());
            }
            assert!(filled.ok().released);
        }
        sent.ok();
    }
    // SAFETY: it is freed once.
    unsafe { sealane_free(all) };
}

#[test]
fn a_call_that_waits_ends_at_its_deadline_or_with_its_step_or_when_it_is_given_up() {
    let directory = TempDir::new().unwrap();
    let daemon = Daemon::start(&directory, Settings { shards: 1, tasks: tasks() });
    let (ps, worker) = attached_to(&daemon.socket, SMALL);
    assert!(ps.knows(WORKER) && worker.knows(PS));
    // Pending sends fill the arena.
    let (pending_sends, waiting) = (Ear::new(), Ear::new());
    (0..4).for_each(|step| ps.send(WORKER, step, "pending", &vec![1; 1 << 20], &pending_sends));
    (10..12).for_each(|step| ps.send(WORKER, step, "waits", &vec![2; 1 << 20], &waiting));
    pending_sends.nothing();
    // SAFETY: the task is attached.
    ok(unsafe { sealane_abort(ps.0, 10, text("enough")) });
    let told = waiting.told();
    assert_eq!(told.code, sealane_code::Aborted, "{}", told.message);
    assert!(told.message.contains("enough"), "{}", told.message);
    // SAFETY: the task is attached.
    ok(unsafe { sealane_cleanup(ps.0, 11) });
    assert_eq!(waiting.told().code, sealane_code::Aborted);

    let held = daemon.hold();
    let (early, late, given_up) = (Ear::new(), Ear::new(), Ear::new());
    (100..4100).for_each(|step| worker.recv_within(PS, step, "early", SEALANE_NO_TIMEOUT, &early));
    worker.recv_within(PS, 1, "late", 1, &late);
    let call = worker.recv_call(PS, 2, "given up", &given_up);
    call.cancel();
    assert_eq!(given_up.told().code, sealane_code::Cancelled);
    let told = late.told();
    assert_eq!(told.code, sealane_code::DeadlineExceeded, "{}", told.message);
    assert!(told.message.contains("'late'"), "{}", told.message);
    given_up.nothing();
    drop(held);
    daemon.until("only what has time is under way", |daemon| daemon.under_way() == 4000 + 4);
    worker.detach();
    (0..4000).for_each(|_| assert_eq!(early.told().code, sealane_code::Cancelled));
    drop(ps);
}

/// Starts recvs until one ends with `expected`; fails if that takes too long.
fn until(task: &Task, expected: sealane_code, told_at_once: bool) {
    let deadline = Instant::now() + LONG;
    loop {
        let (recvs, received) = channel();
        let context = Reporter::context(0, &recvs);
        let begun = Instant::now();
        // With a daemon, it ends soon.
        // SAFETY: everything lives until the function returns, the context until it is told.
        let (started, message) = code(unsafe {
            sealane_recv(task.0, text(PS), 1, text("none"), null(), 1, Some(report_received), context, null_mut())
        });
        assert!(!told_at_once || begun.elapsed() < Duration::from_secs(30), "no function waits for a daemon");
        let ended = match started {
            // SAFETY: it was refused.
            code if code != sealane_code::Ok => unsafe {
                Reporter::free(context);
                code
            },
            _ => received.recv_timeout(LONG).unwrap().1,
        };
        if ended == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{ended:?} {message}");
        thread::yield_now();
    }
}

#[test]
fn without_a_daemon_calls_fail_at_once_and_work_again_with_the_next() {
    for drains in [false, true] {
        let directory = TempDir::new().unwrap();
        let socket = directory.path().join("sealane.sock");
        let mut daemon = Process::start(&socket);
        let options = sealane_attach_options { restart_timeout_ms: SEALANE_DO_NOT_WAIT, ..SMALL };
        let (ps, worker) = attached_to(&socket, options);
        let under_way = Ear::new();
        worker.recv(PS, 7, "under way", &under_way);
        assert!(worker.knows(PS));
        if drains {
            daemon.say("announce");
            until(&worker, sealane_code::Unavailable, true);
            daemon.say("drain");
            daemon.child.wait().unwrap();
        } else {
            daemon.signal(Signal::SIGKILL);
        }
        assert_eq!(under_way.told().code, sealane_code::Unavailable);
        until(&worker, sealane_code::Unavailable, true);
        // The function itself returns the error, and takes nothing over.
        let ear = Ear::new();
        let (bytes, dims) = ([7_u8; 8], [8]);
        let lent = sealane_source { release: Some(release), release_context: ear.context(), ..source(&bytes, &dims) };
        // SAFETY: nothing is taken over.
        unsafe {
            let (to, key, context) = (text(WORKER), text("key"), ear.context());
            refused(
                sealane_send(worker.0, to, 1, key, &lent, 0, Some(done), context, null_mut()),
                sealane_code::Unavailable,
            );
            refused(sealane_cleanup(worker.0, 1), sealane_code::Unavailable);
            let (mut start, mut length) = (null(), 0);
            refused(sealane_arena_range(worker.0, &mut start, &mut length), sealane_code::Unavailable);
            refused(sealane_knows_task(worker.0, text(PS), &mut false), sealane_code::Unavailable);
        }
        // Only the attaching thread waits for a daemon that does not answer.
        let next = Process::start(&socket);
        next.stop();
        for _ in 0..100 {
            until(&worker, sealane_code::Unavailable, true);
        }
        ear.nothing();
        next.signal(Signal::SIGCONT);
        for task in [&ps, &worker] {
            until(task, sealane_code::DeadlineExceeded, true);
        }
        let (got, sent) = (Ear::new(), Ear::new());
        ps.send(WORKER, 8, "key", &[5; 5000], &sent);
        worker.recv(PS, 8, "key", &got);
        assert_eq!(got.tensor().bytes(), [5; 5000]);
        sent.ok();
    }
}

#[test]
fn pushes_stay_in_order_when_some_of_them_wait_for_the_arena() {
    let World { ps, worker, daemon: _daemon, _directory } = &world();
    const COUNT: usize = 60;
    let tensor = |number: usize| vec![number as u8; if number.is_multiple_of(3) { 300 << 10 } else { 10 + number }];
    // The arena has room for 13 of the large ones; nobody accepts them yet.
    let pushed = Ear::new();
    for number in 0..COUNT {
        let bytes = tensor(number);
        let dims = [bytes.len() as u64];
        let source = source(&bytes, &dims);
        // SAFETY: everything lives until the function returns, the ear until it is told.
        ok(unsafe {
            let (to, queue) = (text(WORKER), text("queue"));
            sealane_push(ps.0, to, queue, &source, 1, 0, Some(done), pushed.context(), null_mut())
        });
    }
    let mut acceptor = null_mut();
    // SAFETY: everything lives until the functions return, the ear until it is told; it is closed once.
    unsafe {
        ok(sealane_acceptor_open(worker.0, text("queue"), null(), &mut acceptor));
        let mut next = 0;
        while next < COUNT {
            let ear = Ear::new();
            ok(sealane_accept(acceptor, 1, 0, Some(accepted), ear.context(), null_mut()));
            for accepted in ear.ok().tensors {
                assert!(accepted.bytes() == tensor(next), "the one of number {next} is next");
                next += 1;
            }
        }
        sealane_acceptor_close(acceptor);
    }
    (0..COUNT).for_each(|_| drop(pushed.ok()));
}
