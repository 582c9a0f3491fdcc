//! Sends and recvs: each tick's parcels, all in flight at once as futures on one thread for each direction.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use sealane::{RecvOptions, RecvOutcome, SendOptions, Sending};

use super::ledger::{Kind, Line, Outcome, What, now_us};
use super::tensors::{Label, Parcel, TICK_US, mix, parcels};
use super::{Actor, TRY_AGAIN, name};
use crate::hosts::TASKS;

/// Most calls in flight in each direction: a tick that finds more begins none.
const UNDER_WAY_MAX: usize = 400;

/// The step in which nobody sends, and of bursts that nobody requests.
const NEVER: i64 = -1;

/// How long a recv that is never answered waits, and how often the end is checked for.
const STAND: Duration = Duration::from_secs(60);
const STAND_LOOK: Duration = Duration::from_millis(400);

/// How long sends of a burst wait for a request.
const BURST_TIMEOUT: Duration = Duration::from_secs(2);

/// A thread whose calls took longer than this was held up: the daemon did not read, or did not exist.
const HELD: Duration = Duration::from_millis(50);

pub(super) fn send(actor: &Actor) {
    let mut calls = FuturesUnordered::new();
    each_tick(actor, &mut calls, |calls, tick| {
        for peer in actor.peers() {
            for parcel in parcels(actor.me, peer, tick) {
                calls.push(send_one(actor, peer, tick, parcel));
            }
        }
    });
}

fn send_one(actor: &Actor, to: usize, tick: u64, parcel: Parcel) -> impl Future<Output = ()> + use<'_> {
    let Parcel { key, bytes, timeout } = parcel;
    let call = actor.ledger.begin(What { key, ..What::new(Kind::Send, &[to], tick as i64) }, timeout);
    let options = SendOptions { timeout: Some(timeout) };
    let began = actor.tensor(Kind::Send, tick, key, bytes);
    let began = began.map(|tensor| actor.task.send_with(&name(to), tick as i64, &key.to_string(), tensor, options));
    async move {
        let outcome = match began {
            Ok(sending) => sending.await,
            Err(error) => Err(error),
        };
        actor.ledger.end(call, outcome);
    }
}

pub(super) fn receive(actor: &Actor) {
    let mut calls = FuturesUnordered::new();
    each_tick(actor, &mut calls, |calls, tick| {
        for peer in actor.peers() {
            calls.extend(receive_tick(actor, peer, tick));
        }
    });
}

/// Keeps a recv waiting for a peer that never answers it.
pub(super) fn stand(actor: &Actor, peer: usize) {
    while !actor.orders.is_over(now_us()) {
        actor.ledger.call(What::new(Kind::Stand, &[peer], 0), STAND, || {
            let options = RecvOptions { timeout: Some(STAND), destination: None, ..RecvOptions::default() };
            let mut receiving = actor.task.recv_with(&name(peer), NEVER, "never", options);
            let waiter = actor.task.waiter();
            loop {
                match waiter.block_on(&mut receiving, STAND_LOOK) {
                    Some(Ok(_)) => return Outcome::Wrong("a tensor that nobody sent".into()),
                    Some(Err(unreceived)) => return Outcome::failed(&unreceived.error),
                    None if actor.orders.is_over(now_us()) => return Outcome::Dropped,
                    None => {}
                }
            }
        });
        thread::sleep(TRY_AGAIN);
    }
}

/// Requests the parcels of a tick: several with one call.
fn receive_tick(actor: &Actor, from: usize, tick: u64) -> impl Iterator<Item = impl Future<Output = ()>> {
    let (mut asked, mut wanted) = (Vec::new(), Vec::new());
    for Parcel { key, bytes, timeout } in parcels(from, actor.me, tick) {
        let label = Label::of(Kind::Send, from, tick, key);
        let call = actor.ledger.begin(What { key, ..What::new(Kind::Recv, &[from], tick as i64) }, timeout);
        let destination = actor.destination(mix(tick, u64::from(key)), bytes).map(Into::into);
        asked.push((call, label, bytes));
        wanted.push((key.to_string(), RecvOptions { timeout: Some(timeout), destination, ..RecvOptions::default() }));
    }
    let receivings = actor.task.recv_all(&name(from), tick as i64, wanted);
    asked.into_iter().zip(receivings).map(move |((call, label, bytes), receiving)| async move {
        actor.ledger.end(call, received(receiving.await, label, bytes));
    })
}

fn received(outcome: RecvOutcome, label: Label, bytes: usize) -> Outcome {
    match outcome.map(|tensor| label.read(&tensor, bytes)) {
        Ok(Ok(Label { life, .. })) => Outcome::Got(life),
        Ok(Err(how)) => Outcome::Wrong(how),
        Err(unreceived) => Outcome::failed(&unreceived.error),
    }
}

/// Sends many tensors that nobody requests, all at once.
pub(super) fn burst(actor: &Actor, bytes: usize, count: usize) {
    let to = (actor.me + 1) % TASKS;
    let began = now_us();
    let mut sendings: Vec<(u64, Sending)> = Vec::new();
    for number in 0..count {
        let call = actor.ledger.begin(What::new(Kind::Burst, &[to], 0), BURST_TIMEOUT);
        let options = SendOptions { timeout: Some(BURST_TIMEOUT) };
        let key = format!("burst {began} {number}");
        match actor.tensor(Kind::Burst, began, number as u32, bytes) {
            Ok(tensor) => sendings.push((call, actor.task.send_with(&name(to), NEVER, &key, tensor, options))),
            Err(error) => actor.ledger.end(call, Err(error)),
        }
    }
    let (calls, sendings): (Vec<u64>, Vec<Sending>) = sendings.into_iter().unzip();
    for (call, outcome) in calls.into_iter().zip(Sending::wait_all(sendings)) {
        actor.ledger.end(call, outcome);
    }
}

/// Begins calls at every tick until the order to finish, and waits until all have ended.
fn each_tick<F: Future<Output = ()>>(
    actor: &Actor,
    calls: &mut FuturesUnordered<F>,
    mut begin: impl FnMut(&mut FuturesUnordered<F>, u64),
) {
    // An earlier process may have begun this tick.
    let mut tick = now_us() / TICK_US + 1;
    loop {
        drive(calls, instant(tick * TICK_US));
        if actor.orders.is_over(tick * TICK_US) {
            break;
        }
        if calls.len() < UNDER_WAY_MAX && actor.orders.rest_for().is_zero() {
            let (from, began) = (now_us(), Instant::now());
            begin(calls, tick);
            if began.elapsed() > HELD {
                actor.ledger.write(&Line::Held { from, until: now_us() });
            }
        }
        // Missed ticks are skipped.
        tick = (tick + 1).max(now_us() / TICK_US);
    }
    while !calls.is_empty() {
        drive(calls, Instant::now() + Duration::from_secs(1));
    }
}

/// When the clock will show `at_us` microseconds.
fn instant(at_us: u64) -> Instant {
    Instant::now() + Duration::from_micros(at_us.saturating_sub(now_us()))
}

/// Polls futures until that time, or until there are none left, and at least once.
fn drive<F: Future<Output = ()>>(calls: &mut FuturesUnordered<F>, until: Instant) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        while let Poll::Ready(Some(())) = Pin::new(&mut *calls).poll_next(&mut context) {}
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
