//! Several shards, different numbers of them on the two sides, and code that runs on shards.

use std::hint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use sealane_fusion::{Code, Error, Keys, SendOptions};
use sealane_runtime::Polling;

use crate::fixture::{AT_ONCE, assert_empty, bytes, carry, engines, task, tensor, total};

/// How often two threads publish at once.
const ROUNDS: usize = 400;

#[test]
fn engines_with_unlike_numbers_of_shards_serve_every_pair() {
    let shards = [3, 2, 1, 4];
    let engines = engines(shards.len(), |index, settings| settings.runtime.shards = shards[index]);
    for (from, sender) in engines.iter().enumerate() {
        for (to, receiver) in engines.iter().enumerate().filter(|(to, _)| *to != from) {
            carry((sender, from), (receiver, to), from as i64, 20_000);
        }
    }
    for engine in &engines {
        // Three peers, one pair of tasks with each: one link per pair, whichever side called.
        assert_eq!(total(engine).links, 3);
        assert_empty(engine);
    }
}

#[test]
fn shards_agree_on_what_two_threads_publish_and_withdraw() {
    let engine = &engines(1, |_, settings| settings.runtime.shards = 4)[0];
    let one = engine.task(&task(0)).unwrap();
    let there = |shard| {
        let mut plan = one.plan_over(shard, &task(0), Keys::new(["w"]).unwrap());
        let pulled = plan.pull(1, AT_ONCE);
        pulled.ok().map(|()| plan.pull_buffer().get(0).unwrap().bytes().to_vec())
    };
    let met = AtomicUsize::new(0);
    // Both threads go on within nanoseconds of each other, which no lock achieves.
    let meet = |time: usize| {
        met.fetch_add(1, Ordering::AcqRel);
        while met.load(Ordering::Acquire) < 2 * time {
            hint::spin_loop();
        }
    };
    let publish = |round: usize, seed| {
        meet(2 * round - 1);
        if round.is_multiple_of(4) && seed == 1 {
            one.withdraw("w").unwrap();
        } else {
            one.publish("w", 1, tensor(8, seed)).wait().unwrap();
        }
        meet(2 * round);
    };
    let different = thread::scope(|scope| {
        scope.spawn(|| (1..=ROUNDS).for_each(|round| publish(round, 0)));
        Vec::from_iter((1..=ROUNDS).filter(|&round| {
            publish(round, 1);
            let first = there(0);
            (1..4).any(|shard| there(shard) != first)
        }))
    });
    assert_eq!(different, [0; 0], "rounds after which shards did not agree");
}

#[test]
fn many_tasks_of_one_host_share_its_links() {
    use crate::fixture::{listener, map, port, settings};
    let (one, other) = (listener(), listener());
    // Tasks 0 to 7 on one host, 8 to 15 on the other, two shards each.
    let ports: Vec<_> = (0..16).map(|index| if index < 8 { port(&one) } else { port(&other) }).collect();
    let start = |listener, tasks: std::ops::Range<usize>| {
        let mut settings = settings(map(&ports), tasks.start, listener);
        settings.tasks = tasks.map(|index| task(index).parse().unwrap()).collect();
        settings.runtime.shards = 2;
        sealane_fusion::Engine::start(settings).unwrap()
    };
    let (one, other) = (start(one, 0..8), start(other, 8..16));
    for from in 0..8 {
        for to in 8..16 {
            carry((&one, from), (&other, to), from as i64, 100);
        }
    }
    // 64 pairs, but a link always joins shards of the same number on both sides: two links.
    assert_eq!((total(&one).links, total(&other).links), (2, 2));
}

#[test]
fn code_on_a_shard_sends_and_receives_without_crossing_threads() {
    for polling in [Polling::Spin, Polling::Park, Polling::default()] {
        let engines = engines(2, |_, settings| settings.runtime.polling = polling);
        let producing = engines[0].on_shard(0, async |shard| {
            let pair = shard.task(&task(0))?.pair(&task(1))?;
            for step in 0..100 {
                let mut buffer = shard.allocate(64)?;
                buffer.copy_from_slice(&bytes(64, step as u64));
                let meta = tensor(64, 0).meta().clone();
                pair.send(step, "w", sealane_fusion::Tensor::new(meta, buffer)?).await?;
            }
            Ok::<(), Error>(())
        });
        let consuming = engines[1].on_shard(0, async |shard| {
            let pair = shard.task(&task(1))?.pair(&task(0))?;
            for step in 0..100 {
                let tensor = pair.recv(step, "w").await.map_err(Error::from)?;
                assert_eq!(tensor.bytes(), bytes(64, step as u64));
            }
            Ok::<(), Error>(())
        });
        consuming.wait().unwrap().unwrap();
        producing.wait().unwrap().unwrap();
        engines.iter().for_each(assert_empty);
    }
}

#[test]
fn code_on_a_shard_sends_many_by_reference_and_reads_them_where_they_lie() {
    const KEYS: [&str; 4] = ["a", "b", "large", "c"];
    let (first, lengths) = (tensor(64, 9), [64, 0, 20_000, 300]);
    let engines = engines(2, |_, _| {});
    let producing = engines[0].on_shard(0, async move |shard| {
        let pair = shard.task(&task(0))?.pair(&task(1))?;
        for step in 0..100 {
            let tensors = lengths.map(|length| tensor(length, step as u64));
            let many = pair.send_many(step, KEYS.into_iter().zip(&tensors), SendOptions::default());
            pair.send(step, "single", &first).await?;
            many.await?;
        }
        Ok::<(), Error>(())
    });
    let consuming = engines[1].on_shard(0, async move |shard| {
        let pair = shard.task(&task(1))?.pair(&task(0))?;
        for step in 0..100 {
            // Every other call is made after its tensors were sent.
            let early = (step % 2 == 0).then(|| pair.recv_many(step, KEYS, None));
            assert_eq!(pair.recv(step, "single").await.map_err(Error::from)?.bytes(), bytes(64, 9));
            let received = early.unwrap_or_else(|| pair.recv_many(step, KEYS, None)).await;
            for (outcome, length) in received.iter().zip(lengths) {
                assert_eq!(outcome.map_err(Error::clone)?.bytes, bytes(length, step as u64));
            }
            assert_eq!(received.len(), KEYS.len());
        }
        drop(pair.recv_many(100, KEYS, None));
        Ok::<(), Error>(())
    });
    consuming.wait().unwrap().unwrap();
    producing.wait().unwrap().unwrap();
    engines.iter().for_each(assert_empty);
}

#[test]
fn a_pair_is_refused_on_a_shard_that_does_not_serve_it() {
    let engines = engines(2, |_, settings| settings.runtime.shards = 2);
    let owner = engines[0].shard_of(&task(0), &task(1));
    let refused = engines[0].on_shard(1 - owner, async |shard| shard.task(&task(0))?.pair(&task(1)).map(|_| ()));
    let error = refused.wait().unwrap().unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.to_string().contains(&format!("served by shard {owner}")), "{error}");
}

#[test]
fn a_dropped_recv_leaves_its_tensor_to_the_next() {
    let engines = engines(2, |_, _| {});
    engines[1]
        .on_shard(0, async |shard| {
            let pair = shard.task(&task(1)).unwrap().pair(&task(0)).unwrap();
            drop(pair.recv(1, "w"));
        })
        .wait()
        .unwrap();
    let sending = engines[0].task(&task(0)).unwrap().send(&task(1), 1, "w", tensor(10, 1));
    let arrived = engines[1].task(&task(1)).unwrap().recv(&task(0), 1, "w").wait().unwrap();
    assert_eq!(arrived.bytes(), bytes(10, 1));
    drop(arrived);
    sending.wait().unwrap();
    engines.iter().for_each(assert_empty);
}
