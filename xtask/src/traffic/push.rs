//! Pushes and accepts. Each process numbers what it pushes into a queue.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use sealane::{AcceptOptions, Accepted, SendOptions, Sending};

use super::ledger::{Kind, What, now_us};
use super::tensors::{HEAD_BYTES, mix};
use super::{Actor, CALL_TIMEOUT, name};

/// Every task accepts from one queue.
const QUEUE: &str = "gradients";

/// Small, so that pushers sometimes have to wait.
const OPTIONS: AcceptOptions = AcceptOptions { tensors_max: 48, bytes_max: 4 << 20 };

/// Pushes of a thread in flight at once.
const UNDER_WAY: usize = 6;

const PUSH_PAUSE: Duration = Duration::from_millis(50);

fn bytes_of(number: u64) -> usize {
    match mix(number, 7) % 16 {
        0..10 => HEAD_BYTES + 32,
        10..15 => 8 * 1024,
        _ => 300 * 1024 + 3,
    }
}

/// Pushes one tensor after the other into a peer's queue, with a few of them in flight.
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
        let call = actor.ledger.begin(What::new(Kind::Push, &[to], number as i64), CALL_TIMEOUT);
        let options = SendOptions { timeout: Some(CALL_TIMEOUT) };
        match actor.tensor(Kind::Push, number, to as u32, bytes) {
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

pub(super) fn accept(actor: &Actor) {
    actor.accept(Kind::Accept, QUEUE, OPTIONS, |Accepted { from, tensor }| {
        actor.note_arrival(Kind::Push, &from, tensor.bytes(), bytes_of)
    });
}
