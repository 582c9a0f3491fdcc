//! Sends and recvs: each tick's parcels, all in flight at once as futures on one thread a direction.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use sealane::{Buffer, RecvOptions, RecvOutcome, SendOptions, Sending};

use super::ledger::{Line, Outcome, What, now_us};
use super::tensors::{Kind, Label, Parcel, TICK_US, mix, parcels, read};
use super::{Actor, name};
use crate::hosts::TASKS;

/// Calls in flight at once, each direction: a tick that finds more begins none.
const UNDER_WAY_MAX: usize = 400;

/// The step in which nobody sends, and of bursts for which nobody asks.
const NEVER: i64 = -1;

/// How long a recv stands that is never answered.
const STAND: Duration = Duration::from_secs(60);

/// Sends of a burst wait so long for somebody who asks.
const BURST_TIMEOUT: Duration = Duration::from_secs(2);

/// A thread that is kept longer than this by making calls was held up: the daemon did not read, or was not there.
const HELD: Duration = Duration::from_millis(50);

/// Sends each tick's tensors.
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
    let label = Label { kind: Kind::Sent, from: actor.me, life: actor.life, number: tick, key };
    let call = actor.ledger.begin(What::Send { to, step: tick as i64, key, bytes }, timeout);
    let options = SendOptions { timeout: Some(timeout) };
    let began = label
        .tensor(&actor.task, bytes)
        .map(|tensor| actor.task.send_with(&name(to), tick as i64, &key.to_string(), tensor, options));
    async move {
        let outcome = match began {
            Ok(sending) => sending.await,
            Err(error) => Err(error),
        };
        actor.ledger.end(call, outcome);
    }
}

/// Asks for each tick's tensors, and has a recv stand with every peer.
pub(super) fn receive(actor: &Actor) {
    let mut standing = FuturesUnordered::new();
    let mut stood = vec![None; TASKS];
    let mut calls = FuturesUnordered::new();
    each_tick(actor, &mut calls, |calls, tick| {
        for peer in actor.peers() {
            calls.extend(receive_tick(actor, peer, tick));
        }
        drive(&mut standing, Instant::now(), |(peer, call, outcome): (usize, u64, Outcome)| {
            actor.ledger.end(call, outcome);
            stood[peer] = None;
        });
        for peer in actor.peers() {
            if stood[peer].is_none() {
                let call = actor.ledger.begin(What::Stand { from: peer }, STAND);
                stood[peer] = Some(call);
                let options = RecvOptions { timeout: Some(STAND), destination: None };
                let receiving = actor.task.recv_with(&name(peer), NEVER, "never", options);
                standing.push(async move {
                    let outcome = match receiving.await {
                        Ok(_) => Outcome::Wrong("a tensor that nobody sent".into()),
                        Err(unreceived) => Outcome::failed(&unreceived.error),
                    };
                    (peer, call, outcome)
                });
            }
        }
    });
    drop(standing);
    stood.into_iter().flatten().for_each(|call| actor.ledger.end(call, Outcome::Dropped));
}

/// Asks for the parcels of a tick: for several with one call.
fn receive_tick(actor: &Actor, from: usize, tick: u64) -> impl Iterator<Item = impl Future<Output = ()>> {
    let (mut asked, mut wanted) = (Vec::new(), Vec::new());
    for Parcel { key, bytes, timeout } in parcels(from, actor.me, tick) {
        let label = Label { kind: Kind::Sent, from, life: 0, number: tick, key };
        let call = actor.ledger.begin(What::Recv { from, step: tick as i64, key, bytes }, timeout);
        // Into shared memory, into memory of this process, and wherever it lands.
        let destination = match mix(tick, u64::from(key)) % 3 {
            0 => actor.task.alloc(bytes).ok(),
            1 => Some(Buffer::from_vec(vec![0; bytes])),
            _ => None,
        };
        asked.push((call, label, bytes));
        wanted.push((key.to_string(), RecvOptions { timeout: Some(timeout), destination }));
    }
    let receivings = actor.task.recv_all(&name(from), tick as i64, wanted);
    asked.into_iter().zip(receivings).map(move |((call, label, bytes), receiving)| async move {
        actor.ledger.end(call, received(receiving.await, label, bytes));
    })
}

fn received(outcome: RecvOutcome, label: Label, bytes: usize) -> Outcome {
    match outcome.map(|tensor| read(&tensor, label, bytes)) {
        Ok(Ok(Label { life, .. })) => Outcome::Got { life },
        Ok(Err(how)) => Outcome::Wrong(how),
        Err(unreceived) => Outcome::failed(&unreceived.error),
    }
}

/// Sends many tensors that nobody asks for, all at once.
pub(super) fn burst(actor: &Actor, bytes: usize, count: usize) {
    let to = (actor.me + 1) % TASKS;
    let began = now_us();
    let mut sendings: Vec<(u64, Sending)> = Vec::new();
    for number in 0..count {
        let call = actor.ledger.begin(What::Burst { to, bytes }, BURST_TIMEOUT);
        let label = Label { kind: Kind::Sent, from: actor.me, life: actor.life, number: began, key: number as u32 };
        let options = SendOptions { timeout: Some(BURST_TIMEOUT) };
        let key = format!("burst {began} {number}");
        match label.tensor(&actor.task, bytes) {
            Ok(tensor) => sendings.push((call, actor.task.send_with(&name(to), NEVER, &key, tensor, options))),
            Err(error) => actor.ledger.end(call, Err(error)),
        }
    }
    let (calls, sendings): (Vec<u64>, Vec<Sending>) = sendings.into_iter().unzip();
    for (call, outcome) in calls.into_iter().zip(Sending::wait_all(sendings)) {
        actor.ledger.end(call, outcome);
    }
}

/// Begins calls at every tick until the order to finish, and sees all of them end.
fn each_tick<F: Future<Output = ()>>(
    actor: &Actor,
    calls: &mut FuturesUnordered<F>,
    mut begin: impl FnMut(&mut FuturesUnordered<F>, u64),
) {
    // A former process may have begun this tick.
    let mut tick = now_us() / TICK_US + 1;
    loop {
        drive(calls, instant(tick * TICK_US), drop);
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
        // Ticks that were missed are gone.
        tick = (tick + 1).max(now_us() / TICK_US);
    }
    while !calls.is_empty() {
        drive(calls, Instant::now() + Duration::from_secs(1), drop);
    }
}

/// When the clock will show so many microseconds.
fn instant(at_us: u64) -> Instant {
    Instant::now() + Duration::from_micros(at_us.saturating_sub(now_us()))
}

/// Polls futures until then, or until there are none left, and at least once.
fn drive<F: Future>(calls: &mut FuturesUnordered<F>, until: Instant, mut ended: impl FnMut(F::Output)) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        while let Poll::Ready(Some(outcome)) = Pin::new(&mut *calls).poll_next(&mut context) {
            ended(outcome);
        }
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
