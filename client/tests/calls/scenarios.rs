//! What sends, publications, plans and pushes guarantee between a parameter server and a worker, wherever their engines run.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use sealane::{
    AcceptOptions, Accepted, Buffer, Code, DType, Destination, Keys, RecvOptions, SendOptions, SliceVersions, Slicing,
    Task, Tensor, TensorMeta, Unreceived,
};

use crate::fixture::{block_on, bytes, meta, tensor};

macro_rules! all {
    ($run:ident) => {
        $run!(
            tensors_of_all_sizes_arrive_as_they_were_sent,
            a_destination_comes_back_with_the_tensor,
            a_destination_that_is_too_small_comes_back_with_the_error,
            destination_of_another_meta_leaves_the_tensor,
            tensors_of_a_batch_come_each_for_itself,
            a_call_can_be_looked_at_and_then_waited_for,
            calls_end_at_their_deadlines_and_with_their_steps,
            tensors_of_any_size_are_published_and_pulled,
            what_is_refused_or_absent_is_an_error_of_its_own,
            a_plan_keeps_its_memory_from_pull_to_pull,
            what_a_plan_misses_is_told_of_each_tensor,
            slices_arrive_where_they_belong_in_one_array,
            tensors_of_any_size_are_pushed_and_accepted,
            accepts_are_awaited_and_may_be_dropped,
            many_threads_accept_and_each_tensor_comes_once,
            a_second_acceptor_of_a_queue_hears_so,
            a_queue_whose_name_is_too_long_is_refused,
        );
    };
}
pub(crate) use all;

/// Empty, and sizes that travel in the ring or lie in the arena of an attached task.
const SIZES: [usize; 5] = [64, 0, 512, 513, 100_000];

/// Few tensors, so that credit is used up.
const NARROW: AcceptOptions = AcceptOptions { tensors_max: 8, bytes_max: 1 << 20 };

/// Looks until something is there.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "it does not come");
        thread::yield_now();
    }
}

/// Timeouts that grow: a loaded machine may need longer for what is there.
fn timeouts() -> impl Iterator<Item = Duration> {
    (0..16).map(|doublings| Duration::from_millis(1 << doublings))
}

pub fn tensors_of_all_sizes_arrive_as_they_were_sent(ps: &Task, worker: &Task) {
    for (step, len) in [0, 1, 64, 511, 512, 513, 4096, 100_000, 1 << 20].into_iter().enumerate() {
        let step = step as i64 - 3;
        let sending = ps.send(worker.name(), step, "key", tensor(len, 7));
        let arrived = worker.recv(ps.name(), step, "key").wait().unwrap();
        assert_eq!(arrived.meta(), &meta(len));
        assert_eq!(arrived.bytes(), bytes(len, 7), "{len} bytes");
        sending.wait().unwrap();
    }
    // What was received can be sent again.
    let mut tensor = tensor(50_000, 9);
    for step in 10..20 {
        let (from, to) = if step % 2 == 0 { (ps, worker) } else { (worker, ps) };
        let sending = from.send(to.name(), step, "key", tensor);
        tensor = to.recv(from.name(), step, "key").wait().unwrap();
        sending.wait().unwrap();
    }
    assert_eq!(tensor.bytes(), bytes(50_000, 9));
}

pub fn a_destination_comes_back_with_the_tensor(ps: &Task, worker: &Task) {
    for len in [0, 64, 10_000] {
        for (key, memory) in [("lent", worker.alloc(20_000).unwrap()), ("heap", Buffer::from_vec(vec![0; 20_000]))] {
            let place = memory.as_ptr();
            let receiving = worker.recv_into(ps.name(), 1, key, memory);
            ps.send(worker.name(), 1, key, tensor(len, 3)).wait().unwrap();
            let arrived = receiving.wait().unwrap();
            assert_eq!(arrived.bytes(), bytes(len, 3));
            assert_eq!(arrived.into_buffer().as_ptr(), place);
        }
    }
    worker.alloc(4 << 20).expect("no block of an arena is left behind");
}

pub fn a_destination_that_is_too_small_comes_back_with_the_error(ps: &Task, worker: &Task) {
    let heap = || Buffer::from_vec(vec![0; 100]);
    for (memory, asked_first) in [(worker.alloc(100).unwrap(), true), (heap(), true), (heap(), false)] {
        let place = memory.as_ptr();
        let send = || ps.send(worker.name(), 1, "key", tensor(101, 3));
        let sent = (!asked_first).then(send);
        let receiving = worker.recv_into(ps.name(), 1, "key", memory);
        let sending = sent.unwrap_or_else(send);
        let unreceived = receiving.wait().unwrap_err();
        assert_eq!(unreceived.error.to_string(), "the destination has 100 bytes, the tensor needs 101");
        assert_eq!(unreceived.destination.unwrap().as_ptr(), place);
        let next = worker.recv(ps.name(), 1, "key").wait().unwrap();
        assert_eq!(next.bytes(), bytes(101, 3), "the next recv has the tensor");
        sending.wait().unwrap();
    }
}

pub fn destination_of_another_meta_leaves_the_tensor(ps: &Task, worker: &Task) {
    for (len, asked_first) in [64, 1000, 100_000].into_iter().flat_map(|len| [(len, false), (len, true)]) {
        let others = [TensorMeta::new(DType::I8, &[len as u64]), TensorMeta::new(DType::U8, &[len as u64 / 2, 2])];
        for (other, in_arena) in others.map(Result::unwrap).into_iter().zip([false, true]) {
            let mut memory = if in_arena { worker.alloc(len).unwrap() } else { Buffer::from_vec(vec![0; len]) };
            memory.fill(0);
            let place = memory.as_ptr();
            let send = || ps.send(worker.name(), 1, "key", tensor(len, 3));
            let sent = (!asked_first).then(send);
            let recv = |meta, memory| {
                let options =
                    RecvOptions { destination: Some(Destination::of(meta, memory)), ..RecvOptions::default() };
                worker.recv_with(ps.name(), 1, "key", options)
            };
            let receiving = recv(other.clone(), memory);
            let mut sending = sent.unwrap_or_else(send);
            let Unreceived { error, destination } = receiving.wait().unwrap_err();
            let (wanted, found) = (format!("takes {other:?}"), format!("is {:?}", meta(len)));
            assert!(error.code() == Code::InvalidArgument, "{error}");
            assert!(error.to_string().contains(&wanted) && error.to_string().contains(&found), "{error}");
            let memory = destination.expect("nothing arrives there");
            assert_eq!(memory.as_ptr(), place);
            assert!(memory.iter().all(|byte| *byte == 0), "it was overwritten");
            assert!(sending.try_outcome().is_none(), "nobody has the tensor yet");
            let arrived = recv(meta(len), memory).wait().unwrap();
            assert_eq!((arrived.bytes(), arrived.meta()), (&bytes(len, 3)[..], &meta(len)));
            assert_eq!(arrived.into_buffer().as_ptr(), place);
            sending.wait().unwrap();
        }
    }
}

pub fn tensors_of_a_batch_come_each_for_itself(ps: &Task, worker: &Task) {
    let keys: Vec<String> = (0..3000).map(|number| format!("tensor/{number}")).collect();
    let len = |index: usize| if index.is_multiple_of(100) { 5000 } else { 64 };
    let receivings = worker.recv_all(ps.name(), 1, keys.iter().map(|key| (key, RecvOptions::default())));
    let tensors = keys.iter().enumerate().rev().map(|(index, key)| (key, tensor(len(index), index as u64)));
    let sendings = ps.send_all(worker.name(), 1, tensors);
    assert_eq!((receivings.len(), sendings.len()), (3000, 3000));
    for (index, receiving) in receivings.into_iter().enumerate() {
        assert_eq!(receiving.wait().unwrap().bytes(), bytes(len(index), index as u64));
    }
    sendings.into_iter().for_each(|sending| sending.wait().unwrap());
}

pub fn a_call_can_be_looked_at_and_then_waited_for(ps: &Task, worker: &Task) {
    let mut receiving = worker.recv(ps.name(), 1, "key");
    assert!(receiving.try_outcome().is_none());
    let mut sending = ps.send(worker.name(), 1, "key", tensor(10, 1));
    until(|| sending.try_outcome()).unwrap();
    assert_eq!(receiving.wait().unwrap().bytes(), bytes(10, 1));
    // Looked at until it has arrived.
    drop(ps.send(worker.name(), 2, "key", tensor(10, 2)));
    let mut receiving = worker.recv(ps.name(), 2, "key");
    assert_eq!(until(|| receiving.try_outcome()).unwrap().bytes(), bytes(10, 2));
}

pub fn calls_end_at_their_deadlines_and_with_their_steps(ps: &Task, worker: &Task) {
    let timeout = Some(Duration::from_millis(1));
    let late = |destination| RecvOptions { timeout, destination, ..RecvOptions::default() };
    let recv = worker.recv_with(ps.name(), 5, "late", late(Some(Buffer::from_vec(vec![0; 10]).into())));
    let send = ps.send_with(worker.name(), 6, "late", tensor(10, 1), SendOptions { timeout });
    let unreceived = recv.wait().unwrap_err();
    assert_eq!(unreceived.error.code(), Code::DeadlineExceeded);
    assert!(unreceived.error.to_string().starts_with("recv of step 5 key 'late' waited"), "{unreceived}");
    assert_eq!(unreceived.destination.map(|memory| memory.len()), Some(10));
    assert_eq!(send.wait().unwrap_err().code(), Code::DeadlineExceeded);
    let awaited = block_on(worker.recv_with(ps.name(), 5, "later", late(None))).unwrap_err();
    assert_eq!(awaited.error.code(), Code::DeadlineExceeded);
    let receiving = worker.recv(ps.name(), 2, "key");
    worker.abort(2, "enough").unwrap();
    assert_eq!(receiving.wait().unwrap_err().error.to_string(), "step 2 was aborted: enough");
    worker.cleanup(2).unwrap();
    assert_eq!(ps.recv("nobody:1", 1, "key").wait().unwrap_err().error.code(), Code::NotFound);
}

fn keys(names: &[&str]) -> Keys {
    Keys::new(names).unwrap()
}

fn names() -> Vec<String> {
    SIZES.iter().map(|size| format!("{size} bytes")).collect()
}

/// Publishes a tensor of each size; the bytes differ for each version.
fn publish_all(task: &Task, version: i64) {
    let tensors = names().into_iter().zip(SIZES.map(|size| tensor(size, version as u64)));
    task.publish_many(version, tensors).wait().unwrap();
}

pub fn tensors_of_any_size_are_published_and_pulled(ps: &Task, worker: &Task) {
    publish_all(ps, 3);
    let pulled = worker.pull_many(ps.name(), Keys::new(names()).unwrap(), 2).wait();
    for (pulled, size) in pulled.into_iter().zip(SIZES) {
        let pulled = pulled.unwrap();
        assert_eq!((pulled.version, pulled.tensor.bytes()), (3, &*bytes(size, 3)));
    }
    let pulled = block_on(worker.pull(ps.name(), "64 bytes", i64::MIN)).unwrap();
    assert_eq!(pulled.tensor.bytes(), bytes(64, 3));
    // A pulled tensor belongs to the caller and is freed when dropped: 50 of them would not fit into a receive area.
    for _ in 0..50 {
        worker.pull(ps.name(), "100000 bytes", 3).wait().unwrap();
    }
}

pub fn what_is_refused_or_absent_is_an_error_of_its_own(ps: &Task, worker: &Task) {
    block_on(ps.publish("here", 5, tensor(10, 1))).unwrap();
    let older = ps.publish("here", 4, tensor(10, 2)).wait().unwrap_err();
    assert_eq!(older.code(), Code::InvalidArgument);
    let here = timeouts().find_map(|timeout| {
        let mut pulled = worker.pull_many_within(ps.name(), keys(&["absent", "here"]), 5, Some(timeout)).wait();
        assert_eq!(pulled.remove(0).unwrap_err().code(), Code::DeadlineExceeded);
        pulled.remove(0).ok()
    });
    assert_eq!(here.expect("what is published comes").tensor.bytes(), bytes(10, 1));
    let long = worker.pull(ps.name(), &"k".repeat(5000), 1).wait().unwrap_err();
    assert_eq!(long.code(), Code::InvalidArgument);
    ps.withdraw("here").unwrap();
    // The other side hears of it a moment later.
    let at_once = Some(Duration::from_millis(1));
    let withdrawn = until(|| worker.pull_many_within(ps.name(), keys(&["here"]), 5, at_once).wait().remove(0).err());
    assert_eq!(withdrawn.code(), Code::DeadlineExceeded);
    assert!(ps.publish_many::<&str>(1, []).wait().is_ok());
    assert!(worker.pull_many(ps.name(), keys(&[]), 1).wait().is_empty());
}

pub fn a_plan_keeps_its_memory_from_pull_to_pull(ps: &Task, worker: &Task) {
    let mut plan = worker.plan(ps.name(), Keys::new(names()).unwrap());
    assert_eq!(plan.get(0).unwrap_err().code(), Code::InvalidArgument);
    let mut places = Vec::new();
    for version in 1..5 {
        publish_all(ps, version);
        plan.pull(version).wait().unwrap();
        for (at, size) in SIZES.into_iter().enumerate() {
            let tensor = plan.get(at).unwrap();
            assert_eq!((plan.version(at), tensor.bytes()), (version, &*bytes(size, version as u64)));
        }
        let now: Vec<_> = (0..SIZES.len()).map(|at| plan.get(at).unwrap().bytes().as_ptr()).collect();
        places = if version == 1 { now.clone() } else { places };
        assert_eq!(now, places);
    }
    assert_eq!((plan.keys().len(), plan.keys().get(1)), (SIZES.len(), "0 bytes"));
    drop(plan);
    // A dropped plan frees its memory: 50 plans would not fit into a receive area.
    for _ in 0..50 {
        worker.plan(ps.name(), keys(&["100000 bytes"])).pull(4).wait().unwrap();
    }
}

pub fn what_a_plan_misses_is_told_of_each_tensor(ps: &Task, worker: &Task) {
    let publish = |version: i64| {
        let mut publishing = ps.publish_many(version, ["a", "b"].map(|key| (key, tensor(8, version as u64))));
        until(|| publishing.try_outcome()).unwrap();
    };
    let mut plan = worker.plan(ps.name(), keys(&["a", "b"]));
    publish(1);
    plan.pull(1).wait().unwrap();
    let mut pulling = plan.pull(2);
    assert!(pulling.try_outcome().is_none());
    publish(2);
    pulling.wait().unwrap();
    assert_eq!((plan.version(1), plan.get(1).unwrap().bytes()), (2, &*bytes(8, 2)));
    drop(plan.pull(3));
    assert_eq!(plan.get(1).unwrap_err().code(), Code::InvalidArgument);
    ps.withdraw("a").unwrap();
    // The worker's pull would race with the withdrawal itself, but not with what is published after it.
    ps.publish("later", 1, tensor(8, 1)).wait().unwrap();
    let there = timeouts().find(|timeout| {
        let late = plan.pull_within(2, *timeout).wait().unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded);
        assert!(late.to_string().starts_with("pull of version 2 of key 'a' waited"), "{late}");
        assert_eq!(plan.get(0).unwrap_err(), late);
        plan.get(1).is_ok()
    });
    assert!(there.is_some(), "what is published did not come");
}

pub fn slices_arrive_where_they_belong_in_one_array(ps: &Task, worker: &Task) {
    // One owner is elsewhere, and one is the puller itself.
    let slicing = |rows| {
        let meta = TensorMeta::new(DType::U32, &[rows, 2]).unwrap();
        Slicing::even(meta, [ps.name(), worker.name(), ps.name()]).unwrap()
    };
    let array = |rows: u64, version: u32| {
        let elements: Vec<u32> = (0..2 * rows as u32).map(|at| at ^ version).collect();
        Tensor::from_elements(&[rows, 2], &elements).unwrap()
    };
    let publish = |task: &Task, version: i64| {
        for rows in [5, 100_000] {
            let published = task.publish_slices("w", version, &slicing(rows), array(rows, version as u32));
            published.unwrap().wait().unwrap();
        }
    };
    let wanted = || [5, 100_000].map(|rows| ("w", slicing(rows)));
    let mut plan = worker.sliced_plan(wanted(), SliceVersions::Same).unwrap();
    assert_eq!((plan.keys().len(), plan.get(0).unwrap_err().code()), (2, Code::InvalidArgument));
    let mut places = Vec::new();
    for version in 1..4 {
        let mut pulling = plan.pull(version);
        assert!(version > 1 || pulling.try_outcome().is_none());
        publish(ps, version);
        publish(worker, version);
        if version == 2 {
            block_on(pulling).unwrap()
        } else {
            pulling.wait().unwrap()
        }
        for (index, rows) in [5, 100_000].into_iter().enumerate() {
            let tensor = plan.get(index).unwrap();
            assert!(tensor.bytes() == array(rows, version as u32).bytes() && plan.version(index) == version);
        }
        places.push(plan.get(1).unwrap().bytes().as_ptr());
    }
    assert!(places.iter().all(|place| *place == places[0]));

    publish(worker, 4);
    assert_eq!(plan.pull(3).wait().unwrap_err().code(), Code::Aborted);
    assert_eq!(plan.version(1), 4);
    let late = plan.pull_within(4, Duration::from_millis(1)).wait().unwrap_err();
    assert!(late.to_string().contains("'w[0:1/5]'"), "{late}");
    drop(plan.pull(4));
    let mut any = worker.sliced_plan(wanted(), SliceVersions::Any).unwrap();
    any.pull(3).wait().unwrap();
    assert_eq!(any.version(1), 3);
    publish(ps, 4);
    plan.pull(4).wait().unwrap();
    assert!(plan.get(1).unwrap().bytes() == array(100_000, 4).bytes());
}

fn seed(accepted: &Accepted) -> u8 {
    accepted.tensor.bytes()[0]
}

pub fn tensors_of_any_size_are_pushed_and_accepted(ps: &Task, worker: &Task) {
    let soon = SendOptions { timeout: Some(Duration::from_millis(1)) };
    let late = worker.push_with(ps.name(), "grads", tensor(8, 0), soon).wait().unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "nobody accepts yet");
    let acceptor = ps.acceptor("grads", AcceptOptions::default());
    assert_eq!(acceptor.name(), "grads");
    for round in 0..3 {
        for size in SIZES {
            worker.push(ps.name(), "grads", tensor(size, round)).wait().unwrap();
            let accepted = acceptor.accept().wait().unwrap();
            assert_eq!((&*accepted.from, accepted.tensor.bytes()), (worker.name(), &*bytes(size, round)));
        }
    }
    let pushing = worker.push_all(ps.name(), "grads", SIZES.map(|size| tensor(size, 9)));
    let mut all = Vec::new();
    while all.len() < SIZES.len() {
        let before = all.len();
        let taken = acceptor.try_accept(2, &mut all).unwrap();
        assert!(taken <= 2 && all.len() == before + taken);
    }
    pushing.wait().unwrap();
    for (accepted, size) in all.iter().zip(SIZES) {
        assert_eq!(accepted.tensor.bytes(), bytes(size, 9));
    }
    drop(all);
    assert_eq!(acceptor.try_accept(0, &mut Vec::new()).unwrap(), 0);
    assert!(acceptor.accept_many(1).wait_within(Duration::from_millis(1)).unwrap().is_empty());
    assert!(acceptor.accept().wait_within(Duration::from_millis(1)).unwrap().is_none());
    // Lent memory comes back, and accepted tensors free theirs: 50 of them would not fit into either arena.
    for round in 0..50 {
        worker.push(ps.name(), "grads", tensor(100_000, round)).wait().unwrap();
        assert_eq!(acceptor.accept().wait().unwrap().tensor.bytes(), bytes(100_000, round));
    }
}

pub fn accepts_are_awaited_and_may_be_dropped(ps: &Task, worker: &Task) {
    let acceptor = ps.acceptor("grads", NARROW);
    let mut context = Context::from_waker(Waker::noop());
    for round in 0..100 {
        let mut dropped = pin!(acceptor.accept());
        let mut waiting = pin!(acceptor.accept_many(10));
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        let pushing = worker.push(ps.name(), "grads", tensor(8, round));
        let accepted = block_on(waiting);
        assert_eq!(seed(&accepted.unwrap()[0]), round as u8);
        block_on(pushing).unwrap();
    }
    // Polled first, waited for later.
    let mut accepting = acceptor.accept();
    assert!(Pin::new(&mut accepting).poll(&mut context).is_pending());
    drop(worker.push(ps.name(), "grads", tensor(8, 77)));
    assert_eq!(seed(&accepting.wait().unwrap()), 77);
}

pub fn many_threads_accept_and_each_tensor_comes_once(ps: &Task, worker: &Task) {
    const COUNT: usize = 2000;
    let acceptor = ps.acceptor("grads", NARROW);
    let mut seen = thread::scope(|scope| {
        let take = || {
            let mut seen = Vec::new();
            loop {
                let some = acceptor.accept_many(3).wait().unwrap();
                let values = some.iter().map(|accepted| accepted.tensor.elements::<u32>().unwrap()[0]);
                let before = seen.len();
                seen.extend(values.filter(|value| *value > 0));
                if seen.len() < before + some.len() {
                    return seen;
                }
            }
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(take)).collect();
        let tensor = |value| Tensor::from_elements(&[1], &[value as u32]).unwrap();
        worker.push_all(ps.name(), "grads", (1..=COUNT).map(tensor)).wait().unwrap();
        // One stop per thread; a thread that has got its own accepts no more.
        let mut seen = Vec::new();
        for thread in threads {
            while !thread.is_finished() {
                let options = SendOptions { timeout: Some(Duration::from_millis(100)) };
                let _ = worker.push_with(ps.name(), "grads", tensor(0), options).wait();
            }
            seen.extend(thread.join().unwrap());
        }
        seen
    });
    seen.sort_unstable();
    assert_eq!(seen, (1..=COUNT as u32).collect::<Vec<_>>());
}

pub fn a_second_acceptor_of_a_queue_hears_so(ps: &Task, worker: &Task) {
    let first = ps.acceptor("grads", NARROW);
    let second = ps.acceptor("grads", NARROW);
    assert_eq!(second.accept().wait().unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(block_on(second.accept()).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(second.try_accept(1, &mut Vec::new()).unwrap_err().code(), Code::InvalidArgument);
    drop((first, second));
    let third = ps.acceptor("grads", NARROW);
    drop(worker.push(ps.name(), "grads", tensor(8, 3)));
    assert_eq!(seed(&third.accept().wait().unwrap()), 3);
}

pub fn a_queue_whose_name_is_too_long_is_refused(ps: &Task, worker: &Task) {
    let name = "q".repeat(5000);
    assert_eq!(ps.acceptor(&name, NARROW).accept().wait().unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(worker.push(ps.name(), &name, tensor(8, 3)).wait().unwrap_err().code(), Code::InvalidArgument);
}
