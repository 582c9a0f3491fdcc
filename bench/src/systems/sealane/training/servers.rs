//! The parameter servers, on one shard of their engine, whatever links it with the workers. Tensors that are pulled by plan are
//! published, again whenever as many gradients have arrived as all workers push in a step; for workers that receive, the tensors of
//! their next steps are sent in advance. Bounded by the plan's workers and tensors.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use sealane::{Attach, Table, Task};
use sealane_fusion::{
    AcceptOptions, Acceptor, Engine, EngineSettings, Error, LocalEngine, LocalPair, LocalTask, TensorView,
};
use sealane_transport::shm::attach;
use sealane_transport::verbs::Verbs;
use tokio::sync::watch;

use super::super::attached::serve_clients;
use super::super::engine::{self, PATIENCE, QUEUE, listener, on_shard, ps_task};
use super::super::peers;
use super::super::producer::{AHEAD, Parameter, publish, send_ahead, told};
use super::memory;
use super::rows;
use crate::error::BenchError;
use crate::limits::FILL;
use crate::peer::{PeerJob, announce, until_ended};
use crate::plan::{Bench, Fuse, Link, Mode, Plan, Size, Training};
use crate::process;
use crate::systems::training::{self, Share};

/// Memory for gradients, in addition to twice the largest of each ps, so that a worker's next one finds room at once; and
/// the limit of the whole slab.
const SLAB_BYTES: usize = 512 << 20;
const SLAB_BYTES_MAX: usize = 3 << 30;

/// The same over verbs, in addition to the gradients that all workers push in a step.
pub(super) const REGISTERED_BYTES: usize = 4 << 20;

/// Serves workers until the process ends.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = &super::pulled(job);
    if plan.daemon.is_some() {
        return super::attached::serve(job, plan);
    }
    let training = training::of(plan);
    let _engine_and_tables = if plan.link == Link::Shm {
        process::allow_open_files("--workers", training.size.workers, memory::OPEN_FILES)?;
        let engine = host_clients(job, plan)?;
        let door = attach::listen(job.meeting_place()?).map_err(BenchError::sealane("listen for clients"))?;
        let area_bytes = memory::area_bytes(plan);
        if plan.bench == Bench::Rows && !plan.tables.is_empty() {
            return serve_tables(job, engine, door, area_bytes);
        }
        let tables = publish_tables(&engine, plan)?;
        announce(&[])?;
        serve_clients(engine, door, (area_bytes, false));
        (None, tables)
    } else {
        process::allow_open_files("--workers x --ps", training.pairs(), 1)?;
        let (engine, tables, addresses) =
            host_peers(plan, job.hosts.producer, engine::verbs_settings(plan).map(|(verbs, _)| verbs))?;
        announce(&addresses.iter().map(SocketAddr::port).collect::<Vec<_>>())?;
        (Some(engine), tables)
    };
    until_ended()
}

/// Parameter servers that workers reach over the network, each at its own address.
pub(super) fn host_peers(
    plan: &Plan,
    ip: IpAddr,
    verbs: Option<Verbs>,
) -> Result<(Engine, Vec<Table>, Vec<SocketAddr>), BenchError> {
    let training = training::of(plan);
    let listening = (0..training.size.ps).map(|_| listener(plan, ip)).collect::<Result<Vec<_>, _>>()?;
    let (listeners, addresses): (Vec<_>, Vec<_>) = listening.into_iter().unzip();
    let tasks: Vec<String> = (0..training.size.ps).map(ps_task).collect();
    let engine = start_engine(plan, &map(training, &addresses), &tasks, listeners, verbs)?;
    let tables = publish_tables(&engine, plan)?;
    Ok((engine, tables, addresses))
}

/// The tables of parameter servers that are code on their engine's shard.
fn publish_tables(engine: &Engine, plan: &Plan) -> Result<Vec<Table>, BenchError> {
    rows::publish(plan, |ps| Ok(Task::from(engine.task(&ps_task(ps))?)))
}

/// Serves workers, with parameter servers that are clients like the workers, as training processes with tables are.
fn serve_tables(job: &PeerJob, engine: Engine, door: OwnedFd, area_bytes: u64) -> Result<(), BenchError> {
    serve_clients(engine, door, (area_bytes, true));
    let socket = job.meeting_place()?;
    let attach = |ps| Attach::new(&ps_task(ps)).socket(socket).arena_bytes(rows::room_for_part(&job.plan)).attach();
    let _tables = rows::publish(&job.plan, attach)?;
    announce(&[])?;
    until_ended()
}

/// Parameter servers in an engine that also serves the workers: all are tasks of one host.
fn host_clients(job: &PeerJob, plan: &Plan) -> Result<Engine, BenchError> {
    let Size { workers, ps } = training::of(plan).size;
    let (listener, address) = listener(plan, job.hosts.producer)?;
    let tasks: Vec<String> = (0..ps).map(ps_task).chain((0..workers).map(peers::task)).collect();
    let map: String = tasks.iter().map(|task| format!("{task}={address}\n")).collect();
    start_engine(plan, &map, &tasks, vec![listener], None)
}

/// The endpoint map of the parameter servers at these addresses, and the workers.
pub(super) fn map(training: &Training, addresses: &[SocketAddr]) -> String {
    let tasks: Vec<String> = (0..training.size.ps).map(ps_task).collect();
    peers::map(tasks.iter().map(String::as_str).zip(addresses.iter().copied()), training.size.workers)
}

/// An engine with the parameter servers on its shard.
fn start_engine(
    plan: &Plan,
    map: &str,
    tasks: &[String],
    listeners: Vec<TcpListener>,
    verbs: Option<Verbs>,
) -> Result<Engine, BenchError> {
    let mut settings = engine::settings(plan, map, tasks, listeners, verbs)?;
    // The workers' sockets show no keys, on whichever host they are; all that they could get is test data.
    settings.insecure = true;
    if !matches!(plan.bench, Bench::Connect | Bench::Idle) {
        engine::let_rest(&mut settings);
        settings.request_timeout = PATIENCE;
        make_room(&mut settings, plan, training::of(plan));
    }
    let engine = engine::start(settings)?;
    let of_all = plan.clone();
    on_shard(&engine, "start its parameter servers", async move |shard| {
        training::shares(&of_all).enumerate().try_for_each(|(number, share)| start_one(&shard, &of_all, number, &share))
    })?;
    Ok(engine)
}

/// Gives the settings room for all workers at the same time.
fn make_room(settings: &mut EngineSettings, plan: &Plan, training: &Training) {
    let pairs = training.pairs();
    settings.links_max = settings.links_max.max(2 * pairs);
    // All of them call one ps at the same time, and from one host.
    settings.greetings_max = settings.greetings_max.max(training.size.workers);
    settings.greetings_per_host_max = settings.greetings_per_host_max.max(training.size.workers);
    let sent = AHEAD * training.size.workers * plan.step.len();
    settings.pending_sends_max = settings.pending_sends_max.max(2 * sent);
    settings.fuse = engine::fuse(plan);
    let largest: usize = training::shares(plan).filter_map(|share| share.pushed.into_iter().max()).sum();
    if largest > 0 {
        settings.slab_receive_bytes = (SLAB_BYTES + 2 * largest).min(SLAB_BYTES_MAX);
    }
    match plan.link {
        // Memory that the device reaches is allocated at once: no more than needed.
        Link::Verbs => {
            let pushed = training.size.workers * engine::room_bytes(&training.push);
            settings.slab_receive_bytes = (REGISTERED_BYTES + pushed).min(SLAB_BYTES_MAX);
            settings.slab_send_bytes = REGISTERED_BYTES + engine::room_bytes(&plan.step);
        }
        // Every worker may request all tensors of a step before they are there.
        Link::Shm => {
            let asked = training.size.workers * plan.step.len();
            settings.session.parked_requests_max = settings.session.parked_requests_max.max(asked);
        }
        Link::Tcp | Link::Loopback => {}
    }
}

/// Starts a ps on the shard; it runs until the engine stops.
fn start_one(shard: &LocalEngine, plan: &Plan, number: usize, share: &Share) -> Result<(), Error> {
    let training = training::of(plan);
    let parameter = |&tensor: &usize| Parameter::new(tensor, engine::filled(shard, plan, plan.step[tensor])?);
    let (task, ended) = (shard.task(&ps_task(number))?, format!("{} no longer serves", ps_task(number)));
    let parameters: Rc<[Parameter]> = share.numbers.iter().map(parameter).collect::<Result<_, Error>>()?;
    let gradients = share.pushed.len() * training.size.workers;
    let server = Rc::new(Server { task, parameters, versions: watch::Sender::new(0), gradients });
    if server.parameters.is_empty() {
        // Nothing is pulled.
    } else if plan.fuse == Fuse::Plan {
        publish(&server.task, 0, &server.parameters)?;
    } else {
        // Without gradients no version follows the first.
        let waits = training.mode == Mode::Sync && gradients > 0;
        for worker in 0..training.size.workers {
            let pair = server.task.pair(&peers::task(worker))?;
            drop(shard.shard().spawn(told(ended.clone(), pending(server.clone(), pair, waits))));
        }
    }
    if gradients == 0 {
        return Ok(());
    }
    // Room for everything that the workers push in a step, so that transfers are measured, not waiting.
    let options = AcceptOptions { tensors_max: gradients, ..AcceptOptions::default() };
    let acceptor = server.task.acceptor(QUEUE, options);
    let publishes = plan.fuse == Fuse::Plan;
    drop(shard.shard().spawn(told(ended, accept(server, acceptor, publishes))));
    Ok(())
}

struct Server {
    task: LocalTask,
    parameters: Rc<[Parameter]>,
    /// The current version; the first is 0.
    versions: watch::Sender<i64>,
    /// Gradients that all workers together push in a step.
    gradients: usize,
}

/// Serves one worker that receives: its next tensors are sent before it requests them, unless everybody's gradients are waited for.
async fn pending(server: Rc<Server>, pair: LocalPair, waits: bool) -> Result<(), Error> {
    let mut versions = server.versions.subscribe();
    let ready = async |step| {
        if waits {
            // It ends only with the engine.
            let _ = versions.wait_for(|version| *version >= step).await;
        }
    };
    send_ahead(&pair, &server.parameters, ready).await
}

/// Accepts gradients; once as many have arrived as all workers push in a step, there is a new version.
async fn accept(server: Rc<Server>, acceptor: Acceptor, publishes: bool) -> Result<(), Error> {
    let (mut taken, mut version) = (0, 0);
    loop {
        for batch in acceptor.accept_all().await? {
            let is_gradient =
                |view: TensorView<'_>| view.bytes.first() == Some(&FILL) && view.bytes.last() == Some(&FILL);
            if !batch.iter().all(is_gradient) {
                let reason = format!("{} pushed other bytes than its gradients", batch.from());
                return Err(Error::InvalidArgument { reason: reason.into() });
            }
            taken += batch.len();
        }
        while taken >= server.gradients {
            taken -= server.gradients;
            version += 1;
            server.versions.send_replace(version);
            if publishes {
                publish(&server.task, version, &server.parameters)?;
            }
        }
    }
}
