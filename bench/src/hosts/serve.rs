//! `sealane bench serve`: starts producers for one consumer at a time.
//!
//! Threads: one accepts, and one serves each caller. Limits: `CALLERS_MAX` callers that have not authenticated, each for
//! `CONNECT_LIMIT`; one consumer for `SESSION_LIMIT`; `PRODUCERS_MAX` processes; `--memory-max` bytes of tensors for each.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use sealane_cli::machine::Machine;
use sealane_cli::{Context, Failure};
use sealane_runtime::allowed_cpus;
use sealane_transport::authentication::Authentication;
use tempfile::TempDir;

use super::{Access, Answer, Control, Directory, Order, PORT};
use crate::byte_count::parse_bytes;
use crate::error::BenchError;
use crate::limits::{CALLERS_MAX, CONNECT_LIMIT, PRODUCERS_MAX, SESSION_LIMIT, TURN_LIMIT};
use crate::peer::{Hosts, Peer, PeerJob, PeerProgram};
use crate::plan::{Bench, Link, Plan};

/// Wait for a consumer that runs `sealane bench ... --connect` on another host, and produce the tensors that it measures
///
/// Serves one consumer at a time, until it is stopped. The other host connects to --listen for its orders, and to ports that the system
/// chooses for the tensors: a firewall between the two must let both through. The producers send only test data. The second example is for
/// the other host.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane bench serve --listen 0.0.0.0:7411 --secret-file bench.secret\n  \
                  sealane bench sweep --connect 10.0.0.2 --secret-file bench.secret")]
pub(crate) struct Serve {
    /// Address to listen on. One that other hosts can reach needs --secret-file, --tls-certificate or --insecure
    #[arg(long, value_name = "ADDR", default_value_t = SocketAddr::from(([127, 0, 0, 1], PORT)))]
    listen: SocketAddr,

    #[command(flatten)]
    access: Access,

    /// Let every host that can reach --listen start measurements here
    #[arg(long)]
    insecure: bool,

    /// CPU of the producers [default: the last that this process may use, so that a consumer on the same host has the first]
    #[arg(long, value_name = "CPU")]
    cpu: Option<usize>,

    /// For consumers with --daemon: the socket of this host's daemon [default: where clients find it]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Most bytes of tensors of a measurement, as in 512MiB
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "4GiB")]
    memory_max: usize,

    /// End after one consumer
    #[arg(long)]
    once: bool,
}

/// What each consumer is served with.
struct Terms {
    authentication: Authentication,
    /// Arguments with which this program is a producer.
    arguments: &'static [&'static str],
    cpu: Option<usize>,
    socket: Option<PathBuf>,
    memory_max: usize,
    machine: Machine,
}

/// Counts callers that have not authenticated, and the consumer that is served.
#[derive(Default)]
struct Admission {
    callers: AtomicUsize,
    is_serving: Mutex<bool>,
    finished: Condvar,
}

/// The turn of a consumer, until it is dropped.
struct Turn<'a>(&'a Admission);

impl Admission {
    /// Waits until no consumer is served: the last one may just have finished. `None` if that takes too long.
    fn begin(&self) -> Option<Turn<'_>> {
        let is_serving = self.is_serving.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.finished.wait_timeout_while(is_serving, TURN_LIMIT, |is_serving| *is_serving);
        let (mut is_serving, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        *is_serving = true;
        (!waited.timed_out()).then(|| Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.is_serving.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.finished.notify_one();
    }
}

/// Serves consumers, one after the other; `arguments` make this program a producer.
///
/// # Errors
/// The address may not, or cannot, be listened on.
pub(crate) fn serve(flags: &Serve, arguments: &'static [&'static str], context: &Context) -> Result<(), Failure> {
    let authentication = flags.access.authentication()?;
    if authentication.is_open() && !flags.insecure && !flags.listen.ip().is_loopback() {
        return Err(Failure::input(format!(
            "--listen {}: other hosts can reach this address, and could start measurements here; add --secret-file or \
             --tls-certificate, or --insecure to allow that",
            flags.listen
        )));
    }
    let allowed = allowed_cpus().map_err(Failure::work)?;
    if let Some(cpu) = flags.cpu.filter(|cpu| !allowed.contains(cpu)) {
        return Err(Failure::input(format!(
            "--cpu {cpu}: give one of the CPUs that this process may use: {allowed:?}"
        )));
    }
    let cpu = flags.cpu.or(allowed.last().copied());
    let machine = Machine::look(&allowed, cpu.as_slice()).map_err(Failure::work)?;
    let (socket, memory_max) = (flags.socket.clone(), flags.memory_max);
    let terms = Arc::new(Terms { authentication, arguments, cpu, socket, memory_max, machine });
    let listener = TcpListener::bind(flags.listen).map_err(|error| {
        Failure::work(format!("cannot listen on {}: {error}; give --listen another address", flags.listen))
    })?;
    let listens = listener.local_addr().map_err(Failure::work)?;
    context.print(&format!("listening on {listens}\n"))?;
    let (ended, served) = mpsc::channel();
    let accepts = thread::spawn(move || accept(&listener, &terms, &ended));
    if flags.once {
        // The sender is kept by the thread that accepts.
        let _ = served.recv();
        return Ok(());
    }
    Err(accepts.join().expect("the accepting thread does not panic").into())
}

/// Accepts callers until the listener fails.
fn accept(listener: &TcpListener, terms: &Arc<Terms>, ended: &Sender<()>) -> BenchError {
    let admission = Arc::new(Admission::default());
    loop {
        let caller = match listener.accept() {
            Ok((caller, _)) => caller,
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
            Err(error) => return BenchError::io("accept a consumer")(error),
        };
        if admission.callers.fetch_add(1, Ordering::Relaxed) >= CALLERS_MAX {
            admission.callers.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (terms, admission, ended) = (terms.clone(), admission.clone(), ended.clone());
        // Producers are killed with the thread that has started them.
        thread::spawn(move || greet(caller, &terms, &admission, &ended));
    }
}

/// Authenticates a caller, and serves it unless another one is served.
fn greet(caller: TcpStream, terms: &Terms, admission: &Admission, ended: &Sender<()>) {
    let until = Instant::now() + CONNECT_LIMIT;
    let mut turn = None;
    let accepted = Control::accept(caller.into(), &terms.authentication, until, || {
        turn = admission.begin();
        turn.is_some()
    });
    admission.callers.fetch_sub(1, Ordering::Relaxed);
    let mut control = match accepted {
        Ok(control) => control,
        Err(error) => return eprintln!("rejected a caller: {error}"),
    };
    let consumer = control.other();
    eprintln!("serving {consumer}");
    let failure = attend(&mut control, terms);
    eprintln!("finished serving {consumer}{}", failure.map_or_else(String::new, |error| format!(": {error}")));
    drop(turn);
    // Without --once nobody listens.
    let _ = ended.send(());
}

/// Follows orders until the consumer leaves; returns why it was made to, if it was.
fn attend(control: &mut Control, terms: &Terms) -> Option<BenchError> {
    let until = Instant::now() + SESSION_LIMIT;
    let hosts = match control.hosts() {
        Ok(Hosts { consumer: here, producer: there }) => Hosts { consumer: there, producer: here },
        Err(error) => return Some(error),
    };
    let store = match tempfile::tempdir() {
        Ok(store) => store,
        Err(error) => return Some(BenchError::io("make a directory for ranks")(error)),
    };
    let mut producers = Producers { terms, hosts, running: BTreeMap::new(), store };
    loop {
        let order = match control.receive(until) {
            Ok(order) => order,
            Err(_) if Instant::now() < until => return None,
            Err(_) => {
                return Some(BenchError::failed("serve", "serve longer")(format!("{SESSION_LIMIT:?} have passed")));
            }
        };
        let answer = producers.follow(order).unwrap_or_else(|error| Answer::Failed { reason: error.to_string() });
        if let Err(error) = control.send(&answer, Instant::now() + CONNECT_LIMIT) {
            return Some(error);
        }
    }
}

/// The producers of one consumer, by its numbers.
struct Producers<'t> {
    terms: &'t Terms,
    hosts: Hosts,
    running: BTreeMap<u32, Peer>,
    /// Where the ranks of a group find those of the other host.
    store: TempDir,
}

impl Producers<'_> {
    fn follow(&mut self, order: Order) -> Result<Answer, BenchError> {
        match order {
            Order::Machine => return Ok(Answer::Machine(self.terms.machine.clone())),
            Order::Start { peer, job } => return self.start(peer, *job),
            Order::Count { peer, counter } => return self.find(peer)?.meter()?.read(counter).map(Answer::Counted),
            Order::Resume { peer } => self.find(peer)?.resume()?,
            Order::Rest { peer } => self.find(peer)?.rest()?,
            Order::Blame { peer } => self.find(peer)?.death().map_or(Ok(()), Err)?,
            Order::End { peer } => drop(self.running.remove(&peer)),
            Order::Values => return Directory::at(self.store.path()).values().map(Answer::Values),
            Order::Write { name, value } => Directory::at(self.store.path()).write(&name, &value)?,
        }
        Ok(Answer::Done)
    }

    fn start(&mut self, number: u32, job: PeerJob) -> Result<Answer, BenchError> {
        check(&job.plan, self.terms.memory_max)?;
        if self.running.len() >= PRODUCERS_MAX || self.running.contains_key(&number) {
            let reason = format!("{} run already, and at most {PRODUCERS_MAX} may", self.running.len());
            return Err(BenchError::failed("serve", "start a producer")(reason));
        }
        let (cpu, hosts, socket) = (self.terms.cpu, self.hosts, self.terms.socket.clone());
        let is_group = job.plan.bench == Bench::Collectives;
        if is_group && !self.running.is_empty() {
            return Err(BenchError::failed("serve", "start a group")("other producers run; a group runs alone"));
        }
        if is_group {
            // Ranks that met before have left keys in the last store.
            self.store = tempfile::tempdir().map_err(BenchError::io("make a directory for ranks"))?;
        }
        // Ranks share the CPUs of their host.
        let (cpu, meeting_place) = if is_group { (None, Some(self.store.path().to_owned())) } else { (cpu, socket) };
        let peer =
            Peer::start(&PeerProgram::this(self.terms.arguments), &PeerJob { cpu, hosts, meeting_place, ..job })?;
        let answer = Answer::Started { process_id: peer.process_id(), ports: peer.ports().to_vec() };
        self.running.insert(number, peer);
        Ok(answer)
    }

    fn find(&mut self, number: u32) -> Result<&mut Peer, BenchError> {
        let unknown = || BenchError::failed("serve", "find a producer")(format!("there is no number {number}"));
        self.running.get_mut(&number).ok_or_else(unknown)
    }
}

/// Checks what a consumer wants to measure: it may be of another release, or made by hand.
fn check(plan: &Plan, memory_max: usize) -> Result<(), BenchError> {
    // The plan of one system still names all baselines, and has the registration of its variant.
    let registration = if plan.link == Link::Verbs { plan.registration.clone() } else { Vec::new() };
    Plan { baselines: Vec::new(), registration, ..plan.clone() }.check()?;
    plan.check_between_hosts()?;
    let bytes = plan.tensor_bytes();
    if bytes > memory_max {
        let accepted = format!("tensors of at most {memory_max} bytes in all, or serve with a larger --memory-max");
        return Err(BenchError::setting("the measurement", format!("of {bytes} bytes"), accepted));
    }
    Ok(())
}
