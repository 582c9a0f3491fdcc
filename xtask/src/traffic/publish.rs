//! Publications and pulls. Versions are ticks of the clock, so they go up over processes as well.

use std::borrow::Borrow;
use std::thread;
use std::time::Duration;

use sealane::{Error, Keys, Pulled, Tensor};

use super::ledger::{Outcome, What, now_us};
use super::tensors::{Kind, Label, read};
use super::{Actor, name};

/// A version, in microseconds.
const VERSION_US: u64 = 50_000;

/// Sizes of what every task publishes; their places are their keys.
const SIZES: [usize; 4] = [64, 8 * 1024, 64, 200 * 1024 + 5];

/// Longer than most troubles, so that pulls outlast them.
const PULL_TIMEOUT: Duration = Duration::from_secs(4);

/// Pulls without a pause would leave nobody else a processor.
const PULL_PAUSE: Duration = Duration::from_millis(30);

/// One pull in so many is made without a plan.
const WITHOUT_PLAN: u64 = 5;

fn key(index: usize) -> String {
    format!("published/{index}")
}

/// Publishes a version of everything, again and again.
pub(super) fn publish(actor: &Actor) {
    let mut version = now_us() / VERSION_US + 1;
    while !actor.orders.is_over(now_us()) {
        thread::sleep(Duration::from_micros((version * VERSION_US).saturating_sub(now_us())));
        thread::sleep(actor.orders.silence_for());
        // A daemon that says nothing keeps it for a second; nothing else does.
        let call = actor.ledger.begin(What::Publish { version: version as i64 }, Duration::ZERO);
        let outcome = tensors(actor, version).and_then(|all| actor.task.publish_many(version as i64, all).wait());
        actor.ledger.end(call, outcome);
        version = (version + 1).max(now_us() / VERSION_US);
    }
}

fn tensors(actor: &Actor, version: u64) -> Result<Vec<(String, Tensor)>, Error> {
    let one = |(index, &bytes): (usize, &usize)| {
        let key_number = index as u32;
        let label = Label { kind: Kind::Published, from: actor.me, life: actor.life, number: version, key: key_number };
        Ok((key(index), label.tensor(&actor.task, bytes)?))
    };
    SIZES.iter().enumerate().map(one).collect()
}

/// Takes everything back, so that it takes no memory any more.
pub(super) fn withdraw(actor: &Actor) -> Result<(), Error> {
    (0..SIZES.len()).try_for_each(|index| actor.task.withdraw(&key(index)))
}

/// Pulls all that a peer publishes, by a plan and without: what is newer than the last, and whatever there is.
pub(super) fn pull(actor: &Actor, from: usize) {
    let keys = Keys::new((0..SIZES.len()).map(key)).expect("few keys, all different");
    let mut plan = actor.task.plan(&name(from), keys.clone());
    let mut newest = i64::MIN;
    let mut pulls = 0;
    while !actor.orders.is_over(now_us()) {
        thread::sleep(actor.orders.rest_for());
        pulls += 1;
        let min = if pulls % 2 == 0 { newest.saturating_add(1) } else { i64::MIN };
        let call = actor.ledger.begin(What::Pull { from, min }, PULL_TIMEOUT);
        let outcome = if pulls % WITHOUT_PLAN == 0 {
            let pulled = actor.task.pull_many_within(&name(from), keys.clone(), min, Some(PULL_TIMEOUT)).wait();
            judge(from, pulled.into_iter().map(|pulled| pulled.map(|Pulled { tensor, version }| (tensor, version))))
        } else {
            // Each tensor says for itself how it went.
            let _ = plan.pull_within(min, PULL_TIMEOUT).wait();
            judge(from, (0..SIZES.len()).map(|index| plan.get(index).map(|tensor| (tensor, plan.version(index)))))
        };
        if let Outcome::Pulled(versions) = &outcome {
            newest = versions.iter().flatten().copied().fold(newest, i64::max);
        }
        actor.ledger.end(call, outcome);
        thread::sleep(PULL_PAUSE);
    }
}

/// What came of a pull: the versions, the first error where nothing came, or what is wrong.
fn judge<T: Borrow<Tensor>>(from: usize, all: impl Iterator<Item = Result<(T, i64), Error>>) -> Outcome {
    let (mut versions, mut first_error) = (Vec::new(), None);
    for ((index, pulled), &bytes) in all.enumerate().zip(&SIZES) {
        let version = match pulled {
            Ok((tensor, version)) => {
                let wanted = Label { kind: Kind::Published, from, life: 0, number: 0, key: index as u32 };
                match read(tensor.borrow(), wanted, bytes) {
                    Ok(label) if label.number as i64 == version => Some(version),
                    Ok(label) => {
                        return Outcome::Wrong(format!("bytes of version {} as version {version}", label.number));
                    }
                    Err(how) => return Outcome::Wrong(how),
                }
            }
            Err(error) => {
                first_error.get_or_insert(error);
                None
            }
        };
        versions.push(version);
    }
    match first_error {
        Some(error) if versions.iter().all(Option::is_none) => Outcome::failed(&error),
        _ => Outcome::Pulled(versions),
    }
}
