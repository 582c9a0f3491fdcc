//! Engines for tests, one per task, joined by a map of the ports they got.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use sealane_fusion::{
    Begun, Counters, DType, EndpointMap, Engine, EngineSettings, Error, Keys, Plan, Pulled, Task, Tensor, TensorMeta,
};
use sealane_runtime::Pin;
use sealane_transport::PullOptions;
use sealane_transport::wire::{Greeting, Hello};
use socket2::{Domain, Socket, Type};

/// A wait that takes this long has failed; far longer than a loaded machine needs.
pub const LONG: Duration = Duration::from_secs(60);

/// Options of a pull that does not wait.
pub const AT_ONCE: PullOptions = PullOptions { timeout: Some(Duration::ZERO), fail_if_gone: false };

/// A pull of one tensor in progress.
pub struct Pulling(Plan, Begun);

/// Pulls a tensor of version `min_version` or newer.
///
/// # Panics
/// If the key is too long.
pub fn pull(task: &Task, from: &str, key: &str, min_version: i64) -> Pulling {
    let mut plan = task.plan(from, Keys::new([key]).expect("a short key"));
    let begun = plan.begin(min_version, PullOptions::default());
    Pulling(plan, begun)
}

impl Pulling {
    /// Waits for the tensor.
    ///
    /// # Errors
    /// The error of the pull.
    pub fn wait(self) -> Result<Pulled, Error> {
        let Pulling(mut plan, begun) = self;
        plan.end(begun.wait())?;
        plan.pull_buffer_mut().take_pulled(0)
    }
}

/// A listening socket on a free loopback port.
///
/// # Panics
/// If no port is free.
pub fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port")
}

/// The port of a listener.
///
/// # Panics
/// If it has none.
pub fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("a bound socket has an address").port()
}

/// A loopback port that refuses callers until it listens: it is bound, so that nobody else gets it meanwhile.
pub struct Refusing(Socket);

impl Refusing {
    /// Binds a free port.
    ///
    /// # Panics
    /// If no port is free.
    #[expect(clippy::new_without_default, reason = "it takes a port of the system")]
    pub fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("loopback has a free port");
        Refusing(socket)
    }

    /// The port's number.
    ///
    /// # Panics
    /// Never: it is bound.
    pub fn port(&self) -> u16 {
        self.0.local_addr().ok().and_then(|address| address.as_socket()).expect("bound").port()
    }

    /// Starts to accept calls.
    ///
    /// # Panics
    /// Never: nobody else has the port.
    pub fn listen(self) -> TcpListener {
        self.0.listen(8).expect("the port is its own");
        self.0.into()
    }
}

/// The name of task number `index`.
pub fn task(index: usize) -> String {
    format!("task{index}:2222")
}

/// A map of `task0:2222` and so on to loopback ports, in order.
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

/// `count` engines with one task each that know each other; `tweak` changes each one's settings.
///
/// # Panics
/// If one of them does not start.
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
/// If one of them does not start.
pub fn two() -> (Engine, Engine) {
    let mut engines = engines(2, |_, _| {}).into_iter();
    (engines.next().expect("two"), engines.next().expect("two"))
}

/// The greeting of a caller that is not an engine: it is reached at `address` and serves these tasks.
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
        job: None,
        tasks,
    }
}

/// A tensor of `len` bytes, as [`bytes()`] makes them from `seed`.
///
/// # Panics
/// Never: the sizes agree.
pub fn tensor(len: usize, seed: u64) -> Tensor {
    Tensor::new(TensorMeta::new(DType::U8, &[len as u64]).expect("rank 1"), bytes(len, seed)).expect("sizes agree")
}

/// Bytes that differ for each seed.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31) ^ seed ^ (at >> 8)) as u8).collect()
}

/// Moves a tensor from a task of one engine to a task of another; the second engine calls if there is no link.
///
/// # Panics
/// If it does not arrive.
pub fn carry((ps, from): (&Engine, usize), (worker, to): (&Engine, usize), step: i64, len: usize) {
    let receiving = worker.task(&task(to)).expect("its task").recv(&task(from), step, "w");
    let sent = tensor(len, step as u64);
    let sending = ps.task(&task(from)).expect("its task").send(&task(to), step, "w", sent);
    assert!(
        receiving.wait().expect("it arrives").bytes() == bytes(len, step as u64),
        "step {step}: {len} bytes differ"
    );
    sending.wait().expect("it is taken");
}

/// A connection to an engine, welcomed as the caller that `hello` describes.
///
/// # Panics
/// If it is not welcomed.
pub fn welcomed(engine: &Engine, hello: Hello) -> TcpStream {
    let mut stream = TcpStream::connect(engine.addresses()[0].to_string()).expect("the engine listens");
    stream.set_read_timeout(Some(LONG)).expect("a timeout can be set");
    stream.write_all(&Greeting::Hello(hello).to_bytes()).expect("the engine reads");
    let mut heard = Vec::new();
    while !matches!(Greeting::parse(&heard).expect("it greets correctly"), Some((Greeting::Welcome(_), _))) {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("the engine answers");
        heard.push(byte[0]);
    }
    stream
}

/// The counters of all shards of an engine, added up.
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

/// Polls the counters until `done` holds.
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

/// Waits until nothing is left: all memory is free, and nothing waits.
///
/// # Panics
/// If something is left after [`LONG`].
pub fn assert_empty(engine: &Engine) {
    until(engine, "memory or waiters leaked", |counters| {
        (counters.slab_send_bytes, counters.slab_receive_bytes, counters.pending_sends, counters.parked) == (0, 0, 0, 0)
    });
}
