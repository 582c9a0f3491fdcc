//! Engines to test with: one a task, joined by a map of the ports that they got.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use sealane_fusion::{
    Begun, Counters, DType, EndpointMap, Engine, EngineSettings, Error, Keys, Plan, Pulled, Task, Tensor, TensorMeta,
};
use sealane_runtime::Pin;
use sealane_transport::PullOptions;
use sealane_transport::wire::Hello;
use socket2::{Domain, Socket, Type};

/// A wait that is over by then has failed; far beyond what a loaded machine takes.
pub const LONG: Duration = Duration::from_secs(60);

/// Of a pull that does not wait.
pub const AT_ONCE: PullOptions = PullOptions { timeout: Some(Duration::ZERO), fail_if_gone: false };

/// A pull of one tensor in progress.
pub struct Pulling(Plan, Begun);

/// Pulls a tensor of that version or newer.
///
/// # Panics
/// If the key is too long.
pub fn pull(task: &Task, from: &str, key: &str, min_version: i64) -> Pulling {
    let mut plan = task.plan(from, Keys::new([key]).expect("a short key"));
    let begun = plan.begin(min_version, PullOptions::default());
    Pulling(plan, begun)
}

impl Pulling {
    /// What it brought.
    ///
    /// # Errors
    /// The pull's.
    pub fn wait(self) -> Result<Pulled, Error> {
        let Pulling(mut plan, begun) = self;
        plan.end(begun.wait())?;
        plan.pull_buffer_mut().take_pulled(0)
    }
}

/// A listening socket on a loopback port of the system's choice.
///
/// # Panics
/// If there is none.
pub fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port")
}

/// Its port.
///
/// # Panics
/// If it has none.
pub fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("a bound socket has an address").port()
}

/// A loopback port that refuses whoever calls, until it listens: bound, so that nobody else gets it meanwhile.
pub struct Refusing(Socket);

impl Refusing {
    /// One of the system's choice.
    ///
    /// # Panics
    /// If there is none.
    #[expect(clippy::new_without_default, reason = "it takes a port of the system")]
    pub fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("loopback has a free port");
        Refusing(socket)
    }

    /// Its number.
    ///
    /// # Panics
    /// Never: it is bound.
    pub fn port(&self) -> u16 {
        self.0.local_addr().ok().and_then(|address| address.as_socket()).expect("bound").port()
    }

    /// It refuses no more.
    ///
    /// # Panics
    /// Never: nobody else has the port.
    pub fn listen(self) -> TcpListener {
        self.0.listen(8).expect("the port is its own");
        self.0.into()
    }
}

/// The name of a task.
pub fn task(index: usize) -> String {
    format!("task{index}:2222")
}

/// A map of `task0:2222` and so on to loopback ports.
///
/// # Panics
/// Never: it is well-formed.
pub fn map(ports: &[u16]) -> EndpointMap {
    let line = |(index, port): (usize, &u16)| format!("{}=127.0.0.1:{port}\n", task(index));
    let text: String = ports.iter().enumerate().map(line).collect();
    EndpointMap::parse(&text, "test").expect("well-formed")
}

/// Settings for tests: small slabs, no pinning, since many tests share the machine.
///
/// # Panics
/// Never: the name is well-formed.
pub fn settings(map: EndpointMap, index: usize, listener: TcpListener) -> EngineSettings {
    let mut settings = EngineSettings::new(map, &[&task(index)]).expect("a well-formed name");
    settings.listeners = vec![listener];
    settings.runtime.pin = Pin::Off;
    settings.slab_send_bytes = 1 << 20;
    settings.slab_receive_bytes = 16 << 20;
    settings.request_timeout = LONG;
    settings.connect_timeout = LONG;
    settings
}

/// `count` engines, each with one task, that know each other; `tweak` changes the settings of each.
///
/// # Panics
/// If one does not start.
pub fn engines(count: usize, tweak: impl Fn(usize, &mut EngineSettings)) -> Vec<Engine> {
    let listeners: Vec<_> = (0..count).map(|_| listener()).collect();
    let ports: Vec<_> = listeners.iter().map(port).collect();
    let start = |(index, listener)| {
        let mut settings = settings(map(&ports), index, listener);
        tweak(index, &mut settings);
        Engine::start(settings).expect("an engine starts")
    };
    listeners.into_iter().enumerate().map(start).collect()
}

/// Two engines with default test settings.
///
/// # Panics
/// If one does not start.
pub fn two() -> (Engine, Engine) {
    let mut engines = engines(2, |_, _| {}).into_iter();
    (engines.next().expect("two"), engines.next().expect("two"))
}

/// What a caller says that is no engine: it is at `address`, and serves these tasks.
pub fn hello(address: &str, tasks: Vec<String>) -> Hello {
    Hello {
        features: 0,
        incarnation: 1,
        remembers: 0,
        tensor_bytes_max: 1 << 30,
        epoch: 0,
        shards: 1,
        shard: 0,
        lane: 0,
        address: address.into(),
        tasks,
    }
}

/// A tensor of `len` bytes, [`bytes()`] of that seed.
///
/// # Panics
/// Never: the sizes agree.
pub fn tensor(len: usize, seed: u64) -> Tensor {
    Tensor::new(TensorMeta::new(DType::U8, &[len as u64]).expect("rank 1"), bytes(len, seed)).expect("sizes agree")
}

/// Bytes that no other seed has.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31) ^ seed ^ (at >> 8)) as u8).collect()
}

/// What all shards of an engine hold and have done, added up.
///
/// # Panics
/// If the engine has stopped.
pub fn total(engine: &Engine) -> Counters {
    let mut total = Counters::default();
    for shard in engine.counters().expect("the engine runs") {
        total.tensors_received += shard.tensors_received;
        total.tensors_sent += shard.tensors_sent;
        total.links += shard.links;
        for (total, shard) in total.kinds.iter_mut().zip(&shard.kinds) {
            total.links += shard.links;
            total.figures.iter_mut().zip(shard.figures).for_each(|(total, figure)| *total += figure);
        }
        total.links_lost += shard.links_lost;
        total.pending_sends += shard.pending_sends;
        total.parked += shard.parked;
        total.slab_send_bytes += shard.slab_send_bytes;
        total.slab_receive_bytes += shard.slab_receive_bytes;
        total.callers.unauthenticated += shard.callers.unauthenticated;
        total.callers.turned_away += shard.callers.turned_away;
    }
    total
}

/// Looks at the counters until `done` holds.
///
/// # Panics
/// If that takes longer than [`LONG`].
pub fn until(engine: &Engine, what: &str, done: impl Fn(&Counters) -> bool) {
    let deadline = std::time::Instant::now() + LONG;
    loop {
        let counters = total(engine);
        if done(&counters) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{what}: still {counters:?}");
        std::thread::yield_now();
    }
}

/// Nothing is left of anything: the memory is free, nobody waits.
///
/// # Panics
/// If that is not so within [`LONG`].
pub fn assert_empty(engine: &Engine) {
    until(engine, "memory or waiters leaked", |counters| {
        (counters.slab_send_bytes, counters.slab_receive_bytes, counters.pending_sends, counters.parked) == (0, 0, 0, 0)
    });
}
