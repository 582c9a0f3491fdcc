//! Pushes and accepts. Each process numbers what it pushes into a queue.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use sealane::{AcceptOptions, Accepted, SendOptions, Sending};

use super::ledger::{Line, Outcome, What, now_us};
use super::tensors::{HEAD_BYTES, Kind, Label, mix, read};
use super::{Actor, name, number};

/// Every task accepts from one queue.
const QUEUE: &str = "gradients";

/// Small, so that pushers are held back at times.
const OPTIONS: AcceptOptions = AcceptOptions { tensors_max: 48, bytes_max: 4 << 20 };

const PUSH_TIMEOUT: Duration = Duration::from_secs(4);

/// Pushes of a thread in flight at once.
const UNDER_WAY: usize = 6;

/// Between two pushes.
const PUSH_PAUSE: Duration = Duration::from_millis(20);

/// How long an accept waits.
const ACCEPT_TIMEOUT: Duration = Duration::from_millis(400);

/// Tensors taken at once.
const ACCEPT_MOST: usize = 8;

/// Before the queue is tried again that could not be had.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// How long what is pushed in the end is accepted.
const AFTERWARDS: Duration = Duration::from_secs(6);

fn bytes_of(number: u64) -> usize {
    match mix(number, 7) % 16 {
        0..10 => HEAD_BYTES + 32,
        10..15 => 8 * 1024,
        _ => 300 * 1024 + 3,
    }
}

/// Pushes one tensor after the other into a peer's queue, a few of them in flight.
pub(super) fn push(actor: &Actor, to: usize) {
    let mut under_way: VecDeque<(u64, Sending)> = VecDeque::new();
    let end_first = |under_way: &mut VecDeque<(u64, Sending)>| {
        let Some((call, sending)) = under_way.pop_front() else { return };
        actor.ledger.end(call, sending.wait());
    };
    let mut number = 0;
    while !actor.orders.is_over(now_us()) {
        while !under_way.is_empty() && !actor.orders.rest_for().is_zero() {
            end_first(&mut under_way);
        }
        thread::sleep(actor.orders.rest_for());
        let bytes = bytes_of(number);
        let call = actor.ledger.begin(What::Push { to, number, bytes }, PUSH_TIMEOUT);
        // Its key tells whom it is for.
        let label = Label { kind: Kind::Pushed, from: actor.me, life: actor.life, number, key: to as u32 };
        let options = SendOptions { timeout: Some(PUSH_TIMEOUT) };
        match label.tensor(&actor.task, bytes) {
            Ok(tensor) => under_way.push_back((call, actor.task.push_with(&name(to), QUEUE, tensor, options))),
            Err(error) => actor.ledger.end(call, Err(error)),
        }
        number += 1;
        if under_way.len() >= UNDER_WAY {
            end_first(&mut under_way);
        }
        thread::sleep(PUSH_PAUSE);
    }
    while !under_way.is_empty() {
        end_first(&mut under_way);
    }
}

/// Accepts what comes, but for times when it is told to be deaf.
pub(super) fn accept(actor: &Actor) {
    let acceptor = actor.task.acceptor(QUEUE, OPTIONS);
    while !actor.orders.is_over(now_us().saturating_sub(AFTERWARDS.as_micros() as u64)) {
        thread::sleep(actor.orders.deaf_for());
        let call = actor.ledger.begin(What::Accept, ACCEPT_TIMEOUT);
        let accepted = acceptor.accept_many(ACCEPT_MOST).wait_within(ACCEPT_TIMEOUT);
        let is_refused = accepted.is_err();
        let outcome = match accepted {
            Ok(accepted) => took(actor, &accepted),
            Err(error) => Outcome::failed(&error),
        };
        actor.ledger.end(call, outcome);
        if is_refused {
            thread::sleep(ACCEPT_AGAIN);
        }
    }
}

fn took(actor: &Actor, accepted: &[Accepted]) -> Outcome {
    for Accepted { from, tensor } in accepted {
        let Some(pusher) = number(from) else { return Outcome::Wrong(format!("a push of {from}")) };
        let wanted = Label { kind: Kind::Pushed, from: pusher, life: 0, number: 0, key: actor.me as u32 };
        let bytes = tensor.bytes().len();
        match read(tensor, wanted, bytes) {
            Ok(label) if bytes_of(label.number) == bytes => {
                let Label { from, life, number, .. } = label;
                actor.ledger.write(&Line::Accepted { at: now_us(), from, life, number });
            }
            Ok(label) => return Outcome::Wrong(format!("push {} of {from} has {bytes} bytes", label.number)),
            Err(how) => return Outcome::Wrong(format!("of {from}: {how}")),
        }
    }
    Outcome::Took(accepted.len())
}
