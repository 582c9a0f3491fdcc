//! Publications and pulls. Versions are ticks of the clock, so they also increase from process to process.

use std::borrow::Borrow;
use std::time::Duration;

use sealane::{Error, Keys, Pulled, Tensor};

use super::ledger::{Kind, Outcome, What};
use super::tensors::Label;
use super::{Actor, CALL_TIMEOUT, PULL_PAUSE, name};

/// Duration of a version, in microseconds.
const VERSION_US: u64 = 50_000;

/// Sizes of what every task publishes; their indices are their keys.
const SIZES: [usize; 4] = [64, 8 * 1024, 64, 200 * 1024 + 5];

/// One in this many pulls is made without a plan.
const WITHOUT_PLAN: u64 = 5;

/// Number of small tensors besides those, each published again once in a number of versions: publishing all of them again fills the
/// ring of a new daemon more than once, while the table is written.
const BESIDE: usize = 500;
const BESIDE_EVERY: u64 = 16;

/// A key that exists in two versions of four, and the time in which nothing must be found under it after it was withdrawn.
const PASSING: &str = "published/passing";
const NOTHING_WITHIN: Duration = Duration::from_millis(10);

fn key(index: usize) -> String {
    format!("published/{index}")
}

fn beside(index: usize) -> String {
    format!("beside/{index}")
}

/// Publishes a version of everything, in a loop.
pub(super) fn publish(actor: &Actor) {
    let mut is_withdrawn = false;
    actor.each_version(VERSION_US, |version| {
        // A daemon that does not answer delays it by a second; nothing else does.
        actor.ledger.call(What::new(Kind::Publish, &[], version as i64), Duration::ZERO, || {
            let one = |(index, &bytes)| Ok((key(index), actor.tensor(Kind::Publish, version, index as u32, bytes)?));
            let all: Result<Vec<_>, Error> = SIZES.iter().enumerate().map(one).collect();
            if version.is_multiple_of(BESIDE_EVERY) {
                let one = |index| Ok((beside(index), actor.tensor(Kind::Publish, version, index as u32, SIZES[0])?));
                let many: Result<Vec<_>, Error> = (0..BESIDE).map(one).collect();
                // It may fail.
                let _ = many.map(|many| actor.task.publish_many(version as i64, many));
            }
            let outcome = all.and_then(|all| actor.task.publish_many(version as i64, all).wait());
            pass(actor, version, &mut is_withdrawn).map_or_else(|| outcome.into(), Outcome::Wrong)
        });
    });
}

/// Publishes a tensor that it withdraws two versions later; a daemon may be killed at any time between. The tensor must not exist
/// again in the version after the withdrawal: if it does, returns what is wrong.
fn pass(actor: &Actor, version: u64, is_withdrawn: &mut bool) -> Option<String> {
    match version % 4 {
        0 => {
            *is_withdrawn = false;
            let tensor = actor.tensor(Kind::Publish, version, 0, SIZES[0]);
            // It may fail.
            let _ = tensor.map(|tensor| actor.task.publish(PASSING, version as i64, tensor));
        }
        2 => *is_withdrawn = actor.task.withdraw(PASSING).is_ok(),
        3 if *is_withdrawn => {
            let keys = Keys::new([PASSING]).expect("one key");
            let mut pulled = actor.task.pull_many_within(&name(actor.me), keys, i64::MIN, Some(NOTHING_WITHIN)).wait();
            let found = pulled.remove(0).ok()?;
            return Some(format!("{PASSING} was withdrawn, and is there in version {}", found.version));
        }
        _ => {}
    }
    None
}

/// Withdraws everything, so that it takes no memory any more.
pub(super) fn withdraw(actor: &Actor) -> Result<(), Error> {
    let mut all = (0..SIZES.len()).map(key).chain((0..BESIDE).map(beside)).chain([PASSING.to_owned()]);
    all.try_for_each(|key| actor.task.withdraw(&key))
}

/// Pulls all that a peer publishes, with a plan and without: versions newer than the last, and any version.
pub(super) fn pull(actor: &Actor, from: usize) {
    let keys = Keys::new((0..SIZES.len()).map(key)).expect("few keys, all different");
    let mut plan = actor.task.plan(&name(from), keys.clone());
    let mut newest = i64::MIN;
    actor.again(PULL_PAUSE, |times| {
        let min = if times % 2 == 0 { newest.saturating_add(1) } else { i64::MIN };
        actor.ledger.call(What::new(Kind::Pull, &[from], min), CALL_TIMEOUT, || {
            let outcome = if times % WITHOUT_PLAN == 0 {
                let pulled = actor.task.pull_many_within(&name(from), keys.clone(), min, Some(CALL_TIMEOUT)).wait();
                judge(from, pulled.into_iter().map(|pulled| pulled.map(|Pulled { tensor, version }| (tensor, version))))
            } else {
                // Each tensor has its own result.
                let _ = plan.pull_within(min, CALL_TIMEOUT).wait();
                judge(from, (0..SIZES.len()).map(|index| plan.get(index).map(|tensor| (tensor, plan.version(index)))))
            };
            if let Outcome::Pulled(versions) = &outcome {
                newest = versions.iter().flatten().copied().fold(newest, i64::max);
            }
            outcome
        });
    });
}

/// The result of a pull: the versions, the first error if nothing came, or what is wrong.
fn judge<T: Borrow<Tensor>>(from: usize, all: impl Iterator<Item = Result<(T, i64), Error>>) -> Outcome {
    let (mut versions, mut first_error) = (Vec::new(), None);
    for ((index, pulled), &bytes) in all.enumerate().zip(&SIZES) {
        let wanted = Label::of(Kind::Publish, from, 0, index as u32);
        match pulled.map(|(tensor, version)| (wanted.read(tensor.borrow(), bytes), version)) {
            Ok((Ok(label), version)) if label.number as i64 == version => versions.push(Some(version)),
            Ok((read, version)) => return Outcome::Wrong(format!("{read:?} as version {version}")),
            Err(error) => {
                first_error.get_or_insert(error);
                versions.push(None);
            }
        }
    }
    match first_error {
        Some(error) if versions.iter().all(Option::is_none) => Outcome::failed(&error),
        _ => Outcome::Pulled(versions),
    }
}
