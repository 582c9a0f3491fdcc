//! A task whose engine is in this process behaves like one that is attached.

mod grpc;
mod rows;
mod sockets;
mod streams;

use std::{future::Future, net::TcpListener, pin::Pin, task::Context, task::Waker, time::Duration};

use sealane::{
    AcceptOptions, Buffer, Code, DType, EndpointMap, Engine, EngineSettings, Keys, RecvOptions, SendOptions,
    SliceVersions, Slicing, Task, Tensor, TensorMeta,
};

/// Two tasks of two engines, as on two hosts.
fn two() -> (Task, Task) {
    two_with(|_| {})
}

/// Like [`two`], with changed engine settings.
fn two_with(change: impl Fn(&mut EngineSettings)) -> (Task, Task) {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let map = format!("ps0:2222={}\nworker0:2222={}\n", ports[0], ports[1]);
    let mut names = ["ps0:2222", "worker0:2222"].into_iter();
    let [ps, worker] = listeners.map(|listener| {
        let name = names.next().unwrap();
        let mut settings = EngineSettings::new(EndpointMap::parse(&map, "test").unwrap(), &[name]).unwrap();
        settings.listeners = vec![listener];
        change(&mut settings);
        Task::from(Engine::start(settings).unwrap().task(name).unwrap())
    });
    (ps, worker)
}

#[test]
fn the_same_calls_work() {
    let (ps, worker) = two();
    assert_eq!(worker.name(), "worker0:2222");
    assert_eq!(worker.arena_range(), Ok(None));
    let tensor = || Tensor::from_elements(&[3], &[1_u32, 2, 3]).unwrap();

    let sending = ps.send("worker0:2222", 1, "key", tensor());
    assert_eq!(worker.recv("ps0:2222", 1, "key").wait().unwrap().elements::<u32>().unwrap(), [1, 2, 3]);
    sending.wait().unwrap();

    // Polled first, waited for later.
    let destination = worker.alloc(100).unwrap();
    let mut receiving = worker.recv_into("ps0:2222", 2, "key", destination);
    assert!(receiving.try_outcome().is_none());
    drop(ps.send("worker0:2222", 2, "key", tensor()));
    assert_eq!(receiving.wait().unwrap().into_buffer().len(), 12);

    // Polled until it has arrived.
    drop(ps.send("worker0:2222", 3, "key", tensor()));
    let mut receiving = worker.recv("ps0:2222", 3, "key");
    let outcome = loop {
        match receiving.try_outcome() {
            Some(outcome) => break outcome,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(outcome.unwrap().shape()[..], [3]);

    let keys = ["a", "b", "c"];
    let sendings = ps.send_all("worker0:2222", 4, keys.map(|key| (key, tensor())));
    for receiving in worker.recv_all("ps0:2222", 4, keys.map(|key| (key, RecvOptions::default()))) {
        assert_eq!(receiving.wait().unwrap().bytes().len(), 12);
    }
    sendings.into_iter().for_each(|sending| sending.wait().unwrap());
}

#[test]
fn the_same_errors_come() {
    let (ps, worker) = two();
    let timeout = Some(Duration::from_millis(1));
    let destination = Some(Buffer::from_vec(vec![0; 10]));
    let unreceived = worker
        .recv_with("ps0:2222", 1, "key", RecvOptions { timeout, destination, ..RecvOptions::default() })
        .wait()
        .unwrap_err();
    assert_eq!(unreceived.error.code(), Code::DeadlineExceeded);
    let receiving = worker.recv("ps0:2222", 2, "key");
    worker.abort(2, "enough").unwrap();
    assert_eq!(receiving.wait().unwrap_err().error.to_string(), "step 2 was aborted: enough");
    worker.cleanup(2).unwrap();
    assert_eq!(ps.recv("nobody:1", 1, "key").wait().unwrap_err().error.code(), Code::NotFound);
}

#[test]
fn what_is_published_is_pulled() {
    let (ps, worker) = two();
    let tensor = |value: u32| Tensor::from_elements(&[2], &[value, value]).unwrap();
    let keys = || Keys::new(["a", "b"]).unwrap();
    let mut publishing = ps.publish_many(1, [("a", tensor(1)), ("b", tensor(2))]);
    let published = loop {
        match publishing.try_outcome() {
            Some(outcome) => break outcome,
            None => std::thread::yield_now(),
        }
    };
    published.unwrap();
    let pulled = worker.pull("ps0:2222", "b", 1).wait().unwrap();
    assert_eq!((pulled.version, pulled.tensor.elements::<u32>().unwrap()), (1, &[2, 2][..]));
    let pulled = worker.pull_many("ps0:2222", keys(), 1).wait();
    assert!(pulled.into_iter().all(|pulled| pulled.is_ok()));

    let mut plan = worker.plan("ps0:2222", keys());
    assert!(plan.get(0).is_err());
    plan.pull(1).wait().unwrap();
    let place = plan.get(1).unwrap().bytes().as_ptr();
    let mut pulling = plan.pull(2);
    assert!(pulling.try_outcome().is_none());
    ps.publish_many(2, [("a", tensor(3)), ("b", tensor(4))]).wait().unwrap();
    pulling.wait().unwrap();
    assert_eq!((plan.version(1), plan.get(1).unwrap().elements::<u32>().unwrap()), (2, &[4, 4][..]));
    assert_eq!((plan.get(1).unwrap().bytes().as_ptr(), plan.keys().get(1)), (place, "b"));
    drop(plan.pull(3));
    assert_eq!((plan.get(1).unwrap_err().code(), plan.version(1)), (Code::InvalidArgument, 0));

    ps.withdraw("a").unwrap();
    // A loaded machine may need longer for the tensor that is there.
    for timeout in (0..16).map(|doublings| Duration::from_millis(1 << doublings)) {
        let late = plan.pull_within(2, timeout).wait().unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded);
        assert_eq!(plan.get(0).unwrap_err(), late);
        if plan.get(1).is_ok() {
            return;
        }
    }
    panic!("what is published did not come");
}

#[test]
fn slices_arrive_where_they_belong_in_one_array() {
    let (ps, worker) = two();
    // One owner is at the other engine, and one at this engine.
    let slicing = |rows| {
        let meta = TensorMeta::new(DType::U32, &[rows, 2]).unwrap();
        Slicing::even(meta, ["ps0:2222", "worker0:2222", "ps0:2222"]).unwrap()
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
    let mut places = Vec::new();
    for version in 1..4 {
        let mut pulling = plan.pull(version);
        assert!(version > 1 || pulling.try_outcome().is_none());
        publish(&ps, version);
        publish(&worker, version);
        pulling.wait().unwrap();
        for (index, rows) in [5, 100_000].into_iter().enumerate() {
            let tensor = plan.get(index).unwrap();
            assert!(tensor.bytes() == array(rows, version as u32).bytes() && plan.version(index) == version);
        }
        places.push(plan.get(1).unwrap().bytes().as_ptr());
    }
    assert!(places.iter().all(|place| *place == places[0]));

    publish(&worker, 4);
    assert_eq!(plan.pull(3).wait().unwrap_err().code(), Code::Aborted);
    assert_eq!(plan.version(1), 4);
    let late = plan.pull_within(4, Duration::from_millis(1)).wait().unwrap_err();
    assert!(late.to_string().contains("'w[0:1/5]'"), "{late}");
    drop(plan.pull(4));
    let mut any = worker.sliced_plan(wanted(), SliceVersions::Any).unwrap();
    any.pull(3).wait().unwrap();
    assert_eq!(any.version(1), 3);
    publish(&ps, 4);
    plan.pull(4).wait().unwrap();
    assert!(plan.get(1).unwrap().bytes() == array(100_000, 4).bytes());
}

#[test]
fn what_is_pushed_is_accepted() {
    let (ps, worker) = two();
    let tensor = |value: u32| Tensor::from_elements(&[2], &[value, value]).unwrap();
    let soon = SendOptions { timeout: Some(Duration::from_millis(1)) };
    let late = worker.push_with("ps0:2222", "grads", tensor(0), soon).wait().unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);

    let acceptor = ps.acceptor("grads", AcceptOptions { tensors_max: 2, ..AcceptOptions::default() });
    assert_eq!(acceptor.name(), "grads");
    let mut accepting = acceptor.accept();
    assert!(Pin::new(&mut accepting).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    worker.push("ps0:2222", "grads", tensor(1)).wait().unwrap();
    let accepted = accepting.wait().unwrap();
    assert_eq!((&*accepted.from, accepted.tensor.elements::<u32>().unwrap()), ("worker0:2222", &[1, 1][..]));

    let mut pushing = worker.push_all("ps0:2222", "grads", (2..20).map(tensor));
    assert!(pushing.try_outcome().is_none());
    let mut all = acceptor.accept_many(1).wait().unwrap();
    assert_eq!(all.len(), 1);
    while all.len() < 18 {
        let before = all.len();
        let taken = acceptor.try_accept(3, &mut all).unwrap();
        assert_eq!(all.len(), before + taken);
    }
    pushing.wait().unwrap();
    let values: Vec<u32> = all.iter().map(|accepted| accepted.tensor.elements::<u32>().unwrap()[0]).collect();
    assert_eq!(values, (2..20).collect::<Vec<u32>>());
    assert!(acceptor.accept().wait_within(Duration::from_millis(1)).unwrap().is_none());

    let second = ps.acceptor("grads", AcceptOptions::default());
    assert_eq!(second.accept().wait().unwrap_err().code(), Code::InvalidArgument);
}
