//! Groups whose ranks are threads of this process.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Condvar, Mutex},
    thread,
    time::Duration,
};

use sealane_transport::{
    Code, Error,
    shm::group::{MAIL_PIECE_BYTES, MAIL_PIECES, SLOT_BYTES},
    tensor::DType,
};

use super::{Group, GroupOptions, ReduceOp, Store};

mod hosts;
mod interleavings;
mod mail;

/// No test comes close to this.
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

#[derive(Default)]
struct InMemory(Mutex<HashMap<String, Vec<u8>>>, Condvar);

impl Store for InMemory {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.0.lock().unwrap().insert(key.into(), value.into());
        self.1.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, limit: Duration) -> Result<Vec<u8>, Error> {
        let all = self.0.lock().unwrap();
        let (all, _) = self.1.wait_timeout_while(all, limit, |all| !all.contains_key(key)).unwrap();
        all.get(key).cloned().ok_or_else(|| Error::unavailable("the store", "nobody has set the key"))
    }
}

/// Runs each rank of a group on its own thread, all on one host; the results by rank.
fn ranks<T: Send>(size: usize, each: impl Fn(Group) -> T + Sync) -> Vec<T> {
    ranks_on(&vec![0; size], each)
}

/// Runs each rank on the host with its number; the results by rank.
fn ranks_on<T: Send>(hosts: &[usize], each: impl Fn(Group) -> T + Sync) -> Vec<T> {
    ranks_with(hosts, |_, options| options, each).into_iter().map(Result::unwrap).collect()
}

/// Like [`ranks_on`], with options changed for some ranks. Some ranks may fail to meet.
fn ranks_with<T: Send>(
    hosts: &[usize],
    change: impl Fn(usize, GroupOptions) -> GroupOptions + Sync,
    each: impl Fn(Group) -> T + Sync,
) -> Vec<Result<T, Error>> {
    ranks_by(&InMemory::default(), hosts, change, each)
}

fn ranks_by<T: Send>(
    store: &(impl Store + Sync),
    hosts: &[usize],
    change: impl Fn(usize, GroupOptions) -> GroupOptions + Sync,
    each: impl Fn(Group) -> T + Sync,
) -> Vec<Result<T, Error>> {
    let (each, change) = (&each, &change);
    thread::scope(|scope| {
        let run = |rank: usize| Group::new(store, rank, hosts.len(), &change(rank, on(hosts[rank]))).map(each);
        let threads: Vec<_> = (0..hosts.len()).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Options for a host with this number. All hosts are this machine.
fn on(host: usize) -> GroupOptions {
    GroupOptions {
        limit: LIMIT.unwrap(),
        interface: Some("127.0.0.1".into()),
        host: Some(format!("host {host}")),
        ..GroupOptions::default()
    }
}

/// The bytes that a rank contributes to a call.
fn bytes(len: usize, rank: usize, call: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 + index / 251 + rank * 17 + call * 5) as u8).collect()
}

fn sum(len: usize, size: usize, call: usize) -> Vec<u8> {
    let add = |mut sum: Vec<u8>, rank: usize| {
        sum.iter_mut().zip(bytes(len, rank, call)).for_each(|(sum, byte)| *sum = sum.wrapping_add(byte));
        sum
    };
    (0..size).fold(vec![0; len], add)
}

/// Runs the collective with this number on tensors, or parts, of `len` bytes, and checks the result.
fn collective(group: &Group, number: usize, len: usize) {
    let (rank, size, root) = (group.rank(), group.size(), number / 9 % group.size());
    let own = bytes(len, rank, number);
    let all: Vec<u8> = (0..size).flat_map(|rank| bytes(len, rank, number)).collect();
    // What one rank gives to another.
    let to = |from: usize, to: usize| bytes(len, from * size + to, number);
    match number % 9 {
        0 => group.barrier(LIMIT).unwrap(),
        1 => {
            let mut data = own;
            group.broadcast(&mut data, root, LIMIT).unwrap();
            assert_eq!(data, bytes(len, root, number));
        }
        2 => {
            let mut data = own;
            group.all_reduce(&mut data, DType::U8, ReduceOp::Sum, LIMIT).unwrap();
            assert_eq!(data, sum(len, size, number));
        }
        3 => {
            let mut data = own.clone();
            group.reduce(&mut data, DType::U8, ReduceOp::Sum, root, LIMIT).unwrap();
            assert_eq!(data, if rank == root { sum(len, size, number) } else { own });
        }
        4 => {
            let from: Vec<u8> = (0..size).flat_map(|other| to(rank, other)).collect();
            let mut data = vec![0; len];
            group.reduce_scatter(&from, &mut data, DType::U8, ReduceOp::Max, LIMIT).unwrap();
            let given: Vec<Vec<u8>> = (0..size).map(|other| to(other, rank)).collect();
            assert!((0..len).all(|index| Some(data[index]) == given.iter().map(|given| given[index]).max()));
        }
        5 => {
            let mut whole = vec![0; len * size];
            whole[rank * len..][..len].copy_from_slice(&own);
            group.all_gather(&mut whole, LIMIT).unwrap();
            assert_eq!(whole, all);
        }
        6 => {
            let mut whole = (rank == root).then(|| vec![0; len * size]);
            group.gather(&own, whole.as_deref_mut(), root, LIMIT).unwrap();
            assert!(whole.is_none_or(|whole| whole == all));
        }
        7 => {
            let mut part = vec![0; len];
            group.scatter((rank == root).then_some(&all[..]), &mut part, root, LIMIT).unwrap();
            assert_eq!(part, own);
        }
        _ => {
            let from: Vec<u8> = (0..size).flat_map(|other| to(rank, other)).collect();
            let mut data = vec![0; len * size];
            group.all_to_all(&from, &mut data, LIMIT).unwrap();
            assert!((0..size).all(|other| data[other * len..][..len] == to(other, rank)));
        }
    }
}

/// The host of each rank: up to five ranks of one host, two single ranks, two equal hosts, three hosts with uneven and unordered
/// ranks, and more.
const HOSTS: [&[usize]; 11] = [
    &[0],
    &[0, 0],
    &[0, 0, 0],
    &[0, 0, 0, 0],
    &[0, 0, 0, 0, 0],
    &[0, 1],
    &[0, 0, 1, 1],
    &[0, 1, 1, 0, 2],
    &[0, 1, 0, 0, 0],
    &[0, 1, 2, 3, 4],
    &[0, 0, 0, 1, 1, 1],
];

const SIZES: [usize; 8] = [0, 1, 63, 16 << 10, (16 << 10) + 1, SLOT_BYTES, SLOT_BYTES + 1, 5 * SLOT_BYTES + 333];

#[test]
fn every_collective_of_every_size_gives_what_it_should() {
    for hosts in HOSTS {
        ranks_on(hosts, |group| {
            assert_eq!((group.size(), group.hosts()), (hosts.len(), hosts.iter().max().unwrap() + 1));
            for (index, len) in SIZES.into_iter().enumerate() {
                // Each rank is the root of some collective.
                for number in 0..9 {
                    collective(&group, 9 * (index + number % 5) + number, len);
                }
            }
        });
    }
}

#[test]
fn collectives_follow_each_other_in_any_order_and_ranks_are_late_by_turns() {
    for (hosts, calls) in [(&[0, 0, 0][..], 600), (&[0, 0, 1, 1], 300), (&[0, 1, 1, 2], 300)] {
        ranks_on(hosts, |group| {
            let mut random = 12345_usize;
            for call in 0..calls {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if (random >> 40) % 5 == group.rank() {
                    (0..(random >> 50) % 50).for_each(|_| thread::yield_now());
                }
                let len = [0, 8, 1000, 20_000, 300_000][(random >> 33) % 5];
                collective(&group, 9 * (call / 9) + (random >> 20) % 9, len);
            }
        });
    }
}

#[test]
fn parts_of_any_length_go_to_all_and_who_expects_another_length_is_named() {
    let lengths = |from: usize, to: usize| [0, 100, SLOT_BYTES, 7][(from * 3 + to) % 4];
    let places = |lengths: Vec<usize>| -> Vec<Range<usize>> {
        let starts = lengths.iter().scan(0, |end, len| Some(std::mem::replace(end, *end + len)));
        starts.zip(&lengths).map(|(start, len)| start..start + len).collect()
    };
    let errors = ranks(4, |group| {
        let rank = group.rank();
        let given = places((0..4).map(|to| lengths(rank, to)).collect());
        let mut wanted = places((0..4).map(|from| lengths(from, rank)).collect());
        let from: Vec<u8> = (0..4).flat_map(|to| bytes(lengths(rank, to), rank, to)).collect();
        let mut to = vec![0; wanted[3].end];
        group.all_to_all_uneven(&from, &given, &mut to, &wanted, LIMIT).unwrap();
        for (other, place) in wanted.iter().enumerate() {
            assert_eq!(to[place.clone()], bytes(lengths(other, rank), other, rank));
        }
        if rank == 2 {
            wanted[1].end -= 1;
        }
        group.all_to_all_uneven(&from, &given, &mut to, &wanted, LIMIT).and_then(|()| group.barrier(LIMIT)).unwrap_err()
    });
    for error in errors {
        assert!(error.to_string().contains("rank 1 gives rank 2"), "{error}");
    }
}

#[test]
fn sums_of_floats_are_the_same_bits_on_all_ranks_and_in_each_run() {
    let run = |hosts: &[usize], elements: usize| {
        ranks_on(hosts, |group| {
            let value = |index: usize| ((index * 7919 + group.rank() * 104_729) % 1_000_003) as f32 * 1.000_1e-3;
            let mut data: Vec<u8> = (0..elements).flat_map(|index| value(index).to_ne_bytes()).collect();
            group.all_reduce(&mut data, DType::F32, ReduceOp::Average, LIMIT).unwrap();
            data
        })
    };
    for (hosts, elements) in [([0; 5], 100), ([0; 5], 100_000), ([0, 1, 1, 0, 2], 100), ([0, 1, 1, 0, 2], 200_000)] {
        let first = run(&hosts, elements);
        assert!(first.iter().all(|rank| *rank == first[0]));
        assert_eq!(first, run(&hosts, elements));
        // An average is over all ranks.
        let mean = |index: usize| {
            (0..5).map(|rank| ((index * 7919 + rank * 104_729) % 1_000_003) as f64 * 1.000_1e-3).sum::<f64>() / 5.0
        };
        let own = f32::from_ne_bytes(first[0][396..400].try_into().unwrap());
        assert!((f64::from(own) - mean(99)).abs() < 1e-3, "{own} {}", mean(99));
    }
}

#[test]
fn ranks_that_call_differently_all_hear_what_both_call() {
    type Differs = fn(&Group) -> Result<(), Error>;
    let all_reduce: Differs = |group| group.all_reduce(&mut [0; 64], DType::F32, ReduceOp::Sum, LIMIT);
    let others: [(Differs, &str); 5] = [
        (|group| group.all_reduce(&mut [0; 128], DType::F32, ReduceOp::Sum, LIMIT), "128 bytes"),
        (|group| group.all_reduce(&mut vec![0; 1 << 20], DType::F32, ReduceOp::Sum, LIMIT), "1048576 bytes"),
        (|group| group.all_reduce(&mut [0; 64], DType::I32, ReduceOp::Sum, LIMIT), "sum of i32"),
        (|group| group.all_reduce(&mut [0; 64], DType::F32, ReduceOp::Max, LIMIT), "max of f32"),
        (|group| group.barrier(LIMIT), "barrier"),
    ];
    let hosts = [&[0, 0, 0][..], &[0, 1], &[0, 0, 1, 1]];
    for ((other, what), hosts) in others.into_iter().flat_map(|other| hosts.map(|hosts| (other, hosts))) {
        let errors = ranks_on(hosts, |group| {
            let call = if group.rank() == 1 { other } else { all_reduce };
            // A rank that needs nothing from the differing one notices at its next call.
            call(&group).and_then(|()| group.barrier(LIMIT)).unwrap_err().to_string()
        });
        for error in errors {
            assert!(error.contains(what) && error.contains("all_reduce (call 1, 64 bytes, sum of f32)"), "{error}");
        }
    }
}

#[test]
fn ranks_of_which_none_reads_another_hear_at_their_next_call_that_they_differ() {
    type Differs = fn(&Group) -> Result<(), Error>;
    let all: [Differs; 3] = [
        |group| group.broadcast(&mut [0; 64], group.rank(), LIMIT),
        |group| group.gather(&[0; 64], None, 1 - group.rank(), LIMIT),
        |group| group.broadcast(&mut vec![0; (1 + group.rank()) * SLOT_BYTES], group.rank(), LIMIT),
    ];
    for differs in all {
        let errors = ranks(2, |group| {
            differs(&group).unwrap();
            let next = group.all_reduce(&mut [0; 64], DType::F32, ReduceOp::Sum, LIMIT);
            next.and_then(|()| group.barrier(LIMIT)).unwrap_err().to_string()
        });
        for error in errors {
            // While another rank is still in an earlier round, its next call is not known yet.
            assert!(error.contains("must make the same calls in the same order: rank"), "{error}");
            assert!(error.contains("all_reduce (call 2, 64 bytes"), "{error}");
        }
    }
}

#[test]
fn a_rank_that_leaves_ends_what_waits_for_it_on_all_hosts_and_is_named() {
    for hosts in [[0, 0, 0], [0, 1, 1], [0, 0, 1], [0, 1, 2]] {
        let errors = ranks_on(&hosts, |group| {
            group.barrier(LIMIT).unwrap();
            if group.rank() == 2 {
                return None;
            }
            // More ranks than rank 2 leave: whichever of the others hears first leaves too.
            let error = group.barrier(LIMIT).unwrap_err();
            assert_eq!(group.error(), Some(error.clone()));
            assert_eq!(group.send(vec![0; 8], 2, 0).map(drop).unwrap_err(), error);
            Some(error)
        });
        for error in errors.into_iter().flatten() {
            assert_eq!(error.code(), Code::Unavailable);
            assert!(error.to_string().contains("rank 2 has left (it has left the group)"), "{error}");
        }
    }
}

#[test]
fn a_call_whose_time_is_over_names_who_is_late_and_ends_the_group() {
    let cases = [
        (&[0, 0, 0, 0][..], &[1, 3][..], "ranks 1, 3, which have not arrived"),
        (&[0, 0, 1], &[2], "rank 2, which has not arrived"),
    ];
    for (hosts, late, named) in cases {
        let (met, over) = (std::sync::Barrier::new(hosts.len()), std::sync::Barrier::new(hosts.len()));
        let errors = ranks_on(hosts, |group| {
            met.wait();
            let is_late = late.contains(&group.rank());
            let error = (!is_late).then(|| group.barrier(Some(Duration::from_millis(30))).unwrap_err());
            over.wait();
            error.unwrap_or_else(|| group.barrier(LIMIT).unwrap_err()).to_string()
        });
        for error in errors {
            assert!(error.contains(&format!("Timed out waiting for {named}")), "{error}");
        }
    }
}

#[test]
fn who_aborts_ends_calls_that_wait_everywhere() {
    for hosts in [[0, 0, 0], [0, 1, 1]] {
        let errors = ranks_on(&hosts, |group| {
            thread::scope(|scope| {
                let waits = scope.spawn(|| group.recv(vec![0; 8], None, 7).and_then(|recv| recv.wait(LIMIT)).map(drop));
                match group.rank() {
                    0 => group.abort("as the test says"),
                    _ => drop(group.barrier(LIMIT).unwrap_err()),
                }
                waits.join().unwrap().unwrap_err().to_string()
            })
        });
        for error in errors {
            assert!(error.contains("it was aborted: as the test says"), "{error}");
        }
    }
}

/// Memory that can be inspected after a message has come.
#[derive(Clone)]
struct Shared(std::sync::Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn new(len: usize) -> Shared {
        Shared(std::sync::Arc::new(Mutex::new(vec![0; len])))
    }

    /// The bytes that came, once the recv has dropped its reference, possibly on another thread.
    fn bytes(self) -> Vec<u8> {
        while std::sync::Arc::strong_count(&self.0) > 1 {
            thread::yield_now();
        }
        self.0.lock().unwrap().clone()
    }
}

struct Room(Shared, Vec<u8>);

impl AsMut<[u8]> for Room {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.1
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap() = std::mem::take(&mut self.1);
    }
}

fn receive(group: &Group, len: usize, from: Option<usize>, tag: i64) -> (usize, Vec<u8>) {
    let shared = Shared::new(len);
    let message = group.recv(Room(shared.clone(), vec![0; len]), from, tag).unwrap();
    let from = message.wait(LIMIT).unwrap();
    (from, shared.bytes())
}

const MESSAGES: [usize; 5] = [0, 1, 4096, MAIL_PIECE_BYTES * MAIL_PIECES, 1 << 20];

#[test]
fn messages_of_every_size_arrive_in_the_order_of_their_tag() {
    // On two hosts, rank 2's counterpart is on the other; rank 1 has counterparts only on its own host.
    for hosts in [[0, 0, 0], [0, 0, 1]] {
        ranks_on(&hosts, |group| {
            let (next, before) = ((group.rank() + 1) % 3, (group.rank() + 2) % 3);
            let mut sends = Vec::new();
            for (number, len) in MESSAGES.into_iter().enumerate() {
                for tag in [1, 2] {
                    sends.push(group.send(bytes(len, group.rank(), number * 2 + tag as usize), next, tag).unwrap());
                }
            }
            // Messages with the other tag must wait in memory meanwhile.
            for tag in [2, 1] {
                for (number, len) in MESSAGES.into_iter().enumerate() {
                    let (from, came) = receive(&group, len, Some(before), tag);
                    assert!(from == before && came == bytes(len, before, number * 2 + tag as usize), "{len} of {tag}");
                }
            }
            sends.into_iter().for_each(|send| assert_eq!(send.wait(LIMIT), Ok(next)));
            group.barrier(LIMIT).unwrap();
        });
    }
}

#[test]
fn a_recv_from_any_rank_says_from_which_it_came() {
    for hosts in [[0, 0, 0, 0], [0, 0, 1, 2]] {
        ranks_on(&hosts, |group| {
            if group.rank() == 0 {
                let mut from: Vec<usize> = (0..3)
                    .map(|_| {
                        let (from, came) = receive(&group, 100, None, 5);
                        assert_eq!(came, bytes(100, from, 0));
                        from
                    })
                    .collect();
                from.sort_unstable();
                assert_eq!(from, [1, 2, 3]);
            } else {
                group.send(bytes(100, group.rank(), 0), 0, 5).unwrap().wait(LIMIT).unwrap();
            }
            group.barrier(LIMIT).unwrap();
        });
    }
}

#[test]
fn a_message_to_oneself_arrives_whichever_call_comes_first() {
    ranks(1, |group| {
        group.send(bytes(100, 0, 0), 0, 1).unwrap().wait(LIMIT).unwrap();
        let shared = Shared::new(70);
        let later = group.recv(Room(shared.clone(), vec![0; 70]), None, 2).unwrap();
        assert_eq!(receive(&group, 100, Some(0), 1), (0, bytes(100, 0, 0)));
        group.send(bytes(70, 0, 1), 0, 2).unwrap().wait(LIMIT).unwrap();
        later.wait(LIMIT).unwrap();
        assert_eq!(shared.bytes(), bytes(70, 0, 1));
    });
}

#[test]
fn messages_move_while_nobody_waits_for_them() {
    ranks(2, |group| {
        let other = 1 - group.rank();
        let send = group.send(bytes(1 << 20, group.rank(), 0), other, 0).unwrap();
        let (told, hears) = std::sync::mpsc::channel();
        let recv = group.recv(vec![0; 1 << 20], Some(other), 0).unwrap();
        recv.then(move |outcome| told.send(outcome.clone()).unwrap());
        // Neither rank blocks on the other.
        assert_eq!(hears.recv().unwrap(), Ok(other));
        while send.outcome().is_none() {
            thread::yield_now();
        }
        group.barrier(LIMIT).unwrap();
    });
}

#[test]
fn messages_that_do_not_fit_or_do_not_come_fail_alone() {
    ranks(2, |group| {
        if group.rank() == 0 {
            group.send(vec![1; 10], 1, 0).unwrap().wait(LIMIT).unwrap();
        } else {
            let error = group.recv(vec![0; 12], Some(0), 0).unwrap().wait(LIMIT).unwrap_err();
            assert!(error.to_string().contains("rank 0 has sent 10 bytes to a recv of 12"), "{error}");
            let error = group.recv(vec![0; 12], Some(0), 9).unwrap().wait(Some(Duration::from_millis(1))).unwrap_err();
            assert!(error.to_string().contains("rank 0 has sent nothing of that tag"), "{error}");
            assert_eq!(error.code(), Code::DeadlineExceeded);
            drop(group.recv(vec![0; 4], None, 3).unwrap());
        }
        let error = group.send(vec![0; 1], 5, 0).map(drop).unwrap_err().to_string();
        assert!(error.contains("there is no rank 5"), "{error}");
        group.barrier(LIMIT).unwrap();
        let (from, came) = if group.rank() == 0 {
            group.send(vec![7; 3], 1, 3).unwrap().wait(LIMIT).unwrap();
            return;
        } else {
            receive(&group, 3, None, 3)
        };
        assert_eq!((from, came), (0, vec![7; 3]));
    });
}

#[test]
fn a_thousand_groups_leave_nothing_behind() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("sealane-group").count();
    // Other tests run groups at the same time, but a leak here would leave thousands.
    for _ in 0..1000 {
        ranks(2, |group| group.barrier(LIMIT).unwrap());
    }
    assert!(open() < 1000, "{} descriptors are open", open());
    assert!(mapped() < 1000, "{} segments are mapped", mapped());
}

#[test]
fn what_ranks_have_called_is_found_while_they_are_there() {
    let figures_of = |group: u64| {
        let mut ranks = Group::ranks_here().unwrap();
        ranks.retain(|figures| figures.group == group);
        ranks
    };
    let groups = ranks(3, |group| {
        let mut data = [1_u8; 4096];
        for _ in 0..5 {
            group.all_reduce(&mut data, DType::U8, ReduceOp::Max, LIMIT).unwrap();
        }
        let parts: Vec<_> = (0..3).map(|rank| rank..rank + 1).collect();
        group.all_to_all_uneven(&[1; 3], &parts, &mut [0; 3], &parts, LIMIT).unwrap();
        if group.rank() == 2 {
            group.send([0; 100], 0, 7).unwrap().wait(LIMIT).unwrap();
        } else if group.rank() == 0 {
            group.recv([0; 100], Some(2), 7).unwrap().wait(LIMIT).unwrap();
        }
        group.barrier(LIMIT).unwrap();
        let found = figures_of(group.counters.group());
        // Wait until all have looked.
        group.barrier(LIMIT).unwrap();
        assert_eq!(found.iter().map(|figures| figures.rank).collect::<Vec<_>>(), [0, 1, 2]);
        for figures in &found {
            assert_eq!((figures.process, figures.size, figures.hosts), (std::process::id(), 3, 1));
            assert!(figures.uptime < LIMIT.unwrap());
            let calls: Vec<_> = figures.calls.iter().map(|calls| (calls.name, calls.count, calls.bytes)).collect();
            assert_eq!(calls[..2], [("all_reduce", 5, 5 * 4096), ("all_to_all of uneven parts", 1, 3)]);
            assert!(figures.calls[0].time > Duration::ZERO && figures.calls[0].waits_for_all());
            let message = calls.iter().find(|(name, ..)| ["send", "recv"].contains(name));
            assert_eq!(message, [Some(&("recv", 1, 100)), None, Some(&("send", 1, 100))][figures.rank]);
        }
        group.counters.group()
    });
    assert!(groups.iter().all(|group| *group == groups[0]));
    assert_eq!(figures_of(groups[0]), []);
}
