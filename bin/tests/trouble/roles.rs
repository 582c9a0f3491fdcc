//! What client processes do. Each reports its progress on standard error.

use std::io::{Read, stdin};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealane::{AcceptOptions, Attach, Code, Error, Keys, Plan, RecvOptions, SendOptions, StreamOptions, Streams, Task};

use crate::fixture::STUCK;
use crate::hosts::ARENA_BYTES;
use crate::tensors::{LARGE, MIDDLING, STEP, in_arena, meta, number_in, tensor, verify};

/// Large sends in flight at once.
const SENDS_AT_ONCE: u64 = 2;

/// Items that each member of a circle sends, and the number it receives.
pub const ITEMS: usize = 600;

/// Threads of a member that send, and as many that receive.
const LANES: usize = 2;

/// How often a member reports its progress.
pub const REPORTS: usize = 4;

/// After this time a member gives up a send: the consumer may already have the tensor, and the daemon may have died
/// before it could report that.
const PATIENCE: Duration = Duration::from_millis(500);

pub fn play(words: &[&str], socket: &Path) {
    let attach =
        |task: &str| Attach::new(task).socket(socket).arena_bytes(ARENA_BYTES).timeout(STUCK).attach().unwrap();
    match *words {
        ["hold", task] => {
            let _task = attach(task);
            eprintln!("attached");
            until_released();
        }
        ["send", task, to] => send(&attach(task), to),
        ["recv", task, from] => recv(&attach(task), from),
        ["ask", task, from, count] => ask(&attach(task), from, count.parse().unwrap()),
        ["publish", task] => publish(&attach(task)),
        ["pull", task, from] => pull(attach(task).plan(from, Keys::new(PUBLISHED).unwrap())),
        ["view", task, from] => pull(attach(task).viewing_plan(from, Keys::new(PUBLISHED).unwrap())),
        ["accept", task] => accept(&attach(task)),
        ["push", task, to] => push(&attach(task), to),
        ["echo", task] => echo(&attach(task)),
        ["circle", task, to, from] => circle(&attach(task), to, from),
        ["lead", task] => lead(&attach(task)),
        ["train", task, ps] => train(&attach(task), ps),
        _ => panic!("{words:?} is no role"),
    }
}

fn until_released() {
    let _ = stdin().read_to_end(&mut Vec::new());
}

fn send(task: &Task, to: &str) {
    let mut under_way = std::collections::VecDeque::new();
    for number in 0.. {
        under_way.push_back(task.send(to, STEP, &number.to_string(), in_arena(task, number, LARGE)));
        if number + 1 >= SENDS_AT_ONCE {
            under_way.pop_front().expect("just pushed").wait().unwrap();
            eprintln!("sent {}", number + 1 - SENDS_AT_ONCE);
        }
    }
}

/// Receives large tensors forever, alternately into the receive area and into a destination.
fn recv(task: &Task, from: &str) {
    for number in 0.. {
        let key = number.to_string();
        let receiving = match number % 2 {
            0 => task.recv(from, STEP, &key),
            _ => task.recv_into(from, STEP, &key, task.alloc(LARGE).unwrap()),
        };
        verify(&receiving.wait().unwrap(), number, LARGE);
        eprintln!("got {number}");
    }
}

/// The keys of the large tensors that are published and pulled.
pub const PUBLISHED: [&str; 3] = ["a", "b", "c"];

/// Publishes large tensors forever, each version replacing the one before.
fn publish(task: &Task) {
    for version in 0..i64::MAX {
        let tensors = PUBLISHED.map(|key| (key, in_arena(task, version as u64, LARGE)));
        task.publish_many(version, tensors).wait().unwrap();
        // There is room for two versions: the one before must have been freed.
        while task.alloc(PUBLISHED.len() * LARGE).is_err() {
            std::thread::yield_now();
        }
        eprintln!("published {version}");
    }
}

fn pull(mut plan: Plan) {
    for number in 0.. {
        plan.pull(0).wait().unwrap();
        (0..PUBLISHED.len()).for_each(|at| drop(plan.get(at).unwrap().bytes().to_vec()));
        eprintln!("pulled {number}");
    }
}

/// The queue that tensors are pushed into.
pub const QUEUE: &str = "grads";

/// The name that the echo listens under.
pub const LISTENER: &str = "echo";

/// Echoes every stream, and ends each when it ends.
fn echo(task: &Task) {
    let listener = Streams::of(task).listen(LISTENER, StreamOptions::default()).unwrap();
    eprintln!("listens");
    loop {
        let stream = listener.accept().wait().unwrap();
        std::thread::spawn(move || {
            std::io::copy(&mut &stream, &mut &stream)?;
            stream.finish().wait().map_err(std::io::Error::other)
        });
    }
}

/// Accepts tensors of any size forever.
fn accept(task: &Task) {
    let acceptor = task.acceptor(QUEUE, AcceptOptions { tensors_max: 4, ..AcceptOptions::default() });
    for count in 0_u64.. {
        let accepted = acceptor.accept().wait().unwrap();
        let (number, len) = (number_in(&accepted.tensor), accepted.tensor.bytes().len());
        verify(&accepted.tensor, number, len);
        eprintln!("accepted {count}");
    }
}

fn push(task: &Task, to: &str) {
    let mut under_way = std::collections::VecDeque::new();
    for number in 0.. {
        under_way.push_back(task.push(to, QUEUE, in_arena(task, number, MIDDLING)));
        if number >= SENDS_AT_ONCE {
            under_way.pop_front().expect("just pushed").wait().unwrap();
        }
    }
}

/// Training steps.
const STEPS: u64 = 2_000;

/// Publishes the weights of each step once the gradient of the previous step has arrived. Nothing may fail.
fn lead(task: &Task) {
    let gradients = task.acceptor(QUEUE, AcceptOptions::default());
    for step in 0..STEPS {
        task.publish("weights", step as i64, in_arena(task, step, MIDDLING)).wait().unwrap();
        let gradient = gradients.accept().wait().unwrap().tensor;
        verify(&gradient, step, MIDDLING);
    }
    eprintln!("done");
    until_released();
}

/// Pulls the weights of each step, pushes a gradient, and reports its progress. Nothing may fail.
fn train(task: &Task, ps: &str) {
    let mut plan = task.plan(ps, Keys::new(["weights"]).unwrap());
    for step in 0..STEPS {
        plan.pull(step as i64).wait().unwrap();
        verify(plan.get(0).unwrap(), step, MIDDLING);
        task.push(ps, QUEUE, in_arena(task, step, MIDDLING)).wait().unwrap();
        if (step + 1) % (STEPS / REPORTS as u64) == 0 {
            eprintln!("has {step}");
        }
    }
    eprintln!("done");
    until_released();
}

/// Starts many small recvs at once, then takes what has arrived.
fn ask(task: &Task, from: &str, count: u64) {
    let wanted = (0..count).map(|number| (number.to_string(), RecvOptions::default()));
    let under_way = task.recv_all(from, STEP, wanted);
    eprintln!("asked");
    for (number, receiving) in under_way.into_iter().enumerate() {
        verify(&receiving.wait().unwrap(), number as u64, 64);
    }
    eprintln!("got all");
    until_released();
}

/// Low bits of a tensor's number that hold its item; the rest is the attempt.
const ITEM_BITS: u32 = 16;

/// An item of a circle, and the attempt to send it.
type Attempt = (usize, u64);

/// What a member of a circle has sent and received.
#[derive(Default)]
struct Ledger {
    /// Sends that reported success.
    sent: Vec<Attempt>,
    /// Tensors that arrived.
    got: Vec<Attempt>,
}

/// Sends items to one neighbour and receives as many from the other, whatever the daemons do: failed calls are retried.
fn circle(task: &Task, to: &str, from: &str) {
    eprintln!("attached");
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let count = Arc::new(AtomicUsize::new(0));
    let receivers: Vec<_> = (0..LANES)
        .map(|lane| {
            let items = move || (lane..ITEMS).step_by(LANES);
            let (sender, to, sent) = (task.clone(), to.to_owned(), ledger.clone());
            std::thread::spawn(move || items().for_each(|item| give(&sender, &to, item, &sent)));
            let (receiver, from, got, count) = (task.clone(), from.to_owned(), ledger.clone(), count.clone());
            std::thread::spawn(move || items().for_each(|item| take(&receiver, &from, item, &got, &count)))
        })
        .collect();
    receivers.into_iter().for_each(|receiver| receiver.join().unwrap());
    eprintln!("done");
    // Until it is released, sends may still end.
    until_released();
    let ledger = ledger.lock().unwrap();
    ledger.sent.iter().for_each(|(item, attempt)| eprintln!("sent {item} {attempt}"));
    ledger.got.iter().for_each(|(item, attempt)| eprintln!("got {item} {attempt}"));
    eprintln!("end");
}

/// Small items travel in the ring, larger ones in one copy or several.
fn len_of(item: usize) -> usize {
    [64, 8 << 10, 64, 300 << 10][item % 4]
}

/// The tensor's number of an attempt. There are many attempts while a daemon restarts.
fn number_of((item, attempt): Attempt) -> u64 {
    attempt << ITEM_BITS | item as u64
}

/// The attempt with this tensor number.
fn attempt_of(number: u64) -> Attempt {
    ((number & ((1 << ITEM_BITS) - 1)) as usize, number >> ITEM_BITS)
}

/// Sends an item until it has arrived. A send that nobody receives is left to a thread of its own: the consumer may have
/// its tensor although this side was told that it is lost.
fn give(task: &Task, to: &str, item: usize, ledger: &Arc<Mutex<Ledger>>) {
    for attempt in 0.. {
        match try_to_give(task, to, (item, attempt), ledger) {
            Ok(()) => return,
            Err(Code::Unavailable | Code::InvalidArgument) => {}
            Err(_) => {
                let (task, to, ledger) = (task.clone(), to.to_owned(), ledger.clone());
                let give_on =
                    move || (attempt + 1..).find(|more| try_to_give(&task, &to, (item, *more), &ledger).is_ok());
                std::thread::spawn(give_on);
                return;
            }
        }
    }
}

fn try_to_give(task: &Task, to: &str, attempt: Attempt, ledger: &Mutex<Ledger>) -> Result<(), Code> {
    let tensor = tensor(number_of(attempt), len_of(attempt.0));
    let options = SendOptions { timeout: Some(PATIENCE) };
    let sent = task.send_with(to, STEP, &attempt.0.to_string(), tensor, options).wait();
    sent.map_err(|error| may_be_repeated(&error))?;
    ledger.lock().unwrap().sent.push(attempt);
    Ok(())
}

fn take(task: &Task, from: &str, item: usize, ledger: &Mutex<Ledger>, count: &AtomicUsize) {
    loop {
        match task.recv(from, STEP, &item.to_string()).wait() {
            Ok(tensor) => {
                let attempt = attempt_of(number_in(&tensor));
                assert_eq!(attempt.0, item);
                verify(&tensor, number_of(attempt), len_of(item));
                assert_eq!(tensor.meta(), &meta(len_of(item)));
                ledger.lock().unwrap().got.push(attempt);
                break;
            }
            Err(unreceived) => _ = may_be_repeated(&unreceived.error),
        }
    }
    let count = count.fetch_add(1, Ordering::Relaxed) + 1;
    if count.is_multiple_of(ITEMS / REPORTS) {
        eprintln!("has {count}");
    }
}

/// The code of a call that may be retried; any other error is a bug.
fn may_be_repeated(error: &Error) -> Code {
    // A send that was given up may have lent its tensor to a dead daemon: for a while the tensor still waits there.
    let is_there_still = error.code() == Code::InvalidArgument && error.to_string().contains("is already waiting");
    assert!(is_there_still || matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded), "{error}");
    // Lets the daemon start meanwhile.
    std::thread::yield_now();
    error.code()
}
