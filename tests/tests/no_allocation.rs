//! After a warm-up the data path allocates nothing: this is measured.
//!
//! The counting allocator is the whole process's, so this is the only test in its binary.

use std::net::{Ipv4Addr, TcpListener};

use sealane_fusion::{Buffer, DType, EndpointMap, Engine, EngineSettings, Error, LocalPair, Tensor, TensorMeta};
use sealane_runtime::{Pin, Polling};
use sealane_tests::counting::{Counting, allocations};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TENSORS: i64 = 6_000;
const WARM_UP: i64 = 2_000;

/// An engine with one task; the tensors of two engines cross a socket.
fn engine(map: &str, task: &str, listener: TcpListener) -> Engine {
    let map = EndpointMap::parse(map, "test").expect("well-formed");
    let mut settings = EngineSettings::new(map, &[task]).expect("a well-formed name");
    settings.listeners = vec![listener];
    settings.runtime.pin = Pin::Off;
    // Each sleep costs the executor a few allocations; here only the data path is counted.
    settings.runtime.polling = Polling::Spin;
    (settings.slab_send_bytes, settings.slab_receive_bytes) = (1 << 20, 1 << 20);
    Engine::start(settings).expect("an engine starts")
}

/// Sends `TENSORS` tensors from slab memory, two at a time.
async fn produce(shard: sealane_fusion::LocalEngine, size: usize) -> Result<(), Error> {
    let pair = shard.task("ps:1")?.pair("worker:1")?;
    let meta = TensorMeta::new(DType::U8, &[size as u64])?;
    let send = |step| {
        let tensor = Tensor::new(meta.clone(), shard.allocate(size)?)?;
        Ok::<_, Error>(pair.send(step, "layer/kernel", tensor))
    };
    let mut ahead = send(0)?;
    for step in 1..=TENSORS {
        let next = send(step)?;
        ahead.await?;
        ahead = next;
    }
    drop(ahead);
    Ok(())
}

/// Receives into one buffer of its own, over and over; returns the allocations of the whole process after the warm-up.
async fn consume(pair: LocalPair, size: usize) -> Result<u64, Error> {
    let mut buffer = Buffer::from_vec(vec![0; size]);
    let mut before = 0;
    for step in 0..TENSORS {
        if step == WARM_UP {
            before = allocations();
        }
        buffer = pair.recv_into(step, "layer/kernel", buffer).await?.into_buffer();
    }
    Ok(allocations() - before)
}

/// As `consume`, into the receive slab.
async fn consume_slab(pair: LocalPair) -> Result<u64, Error> {
    let mut before = 0;
    for step in 0..TENSORS {
        if step == WARM_UP {
            before = allocations();
        }
        drop(pair.recv(step, "layer/kernel").await?);
    }
    Ok(allocations() - before)
}

#[test]
fn tensors_cost_no_allocation() {
    for (size, own_memory) in [(64, true), (64, false), (20_000, true), (20_000, false)] {
        let listeners = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"));
        let addresses = listeners.each_ref().map(|listener| listener.local_addr().expect("bound"));
        let map = format!("ps:1={}\nworker:1={}\n", addresses[0], addresses[1]);
        let [ps, worker] = listeners;
        let (ps, worker) = (engine(&map, "ps:1", ps), engine(&map, "worker:1", worker));
        let producing = ps.on_shard(0, async move |shard| produce(shard, size).await);
        let consuming = worker.on_shard(0, async move |shard| {
            let pair = shard.task("worker:1")?.pair("ps:1")?;
            if own_memory { consume(pair, size).await } else { consume_slab(pair).await }
        });
        let allocations = consuming.wait().expect("the shard runs").expect("every tensor arrives");
        drop(producing);
        // Both engines, all threads: nothing may grow with the number of tensors. A table that doubles once is allowed for.
        assert!(allocations <= 16, "{allocations} allocations for {} tensors of {size} bytes", TENSORS - WARM_UP);
    }
}
