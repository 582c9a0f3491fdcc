//! The engine's process: one shard with the settings that an engine has by default, apart from polling. What peers cost
//! is the whole process, which does nothing else.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use sealane_fusion::{EndpointMap, Engine, EngineSettings, Verbs};
use sealane_runtime::{Pin, Polling};
use sealane_transport::shm::attach;
use sealane_transport::tcp::listen;
use socket2::Socket;

use super::super::attached::{AREA_BYTES, admit_next};
use super::super::fanin::answers;
use super::super::training::servers;
use super::super::{PATIENCE, PS, tcp_settings};
use super::{greeting, open_files_each};
use crate::error::BenchError;
use crate::open_files;
use crate::peer::{PeerJob, announce};
use crate::plan::{Bench, Link, Plan};

/// Serves peers until the process ends.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = &job.plan;
    if plan.bench == Bench::Ps {
        return servers::serve(job);
    }
    open_files::allow_for("--peers", plan.peers, open_files_each(plan.link))?;
    let (listener, port) = listener(plan)?;
    let _engine_and_clients = if plan.link == Link::Shm {
        let tasks: Vec<String> = (0..plan.peers).map(greeting::task).collect();
        let map = tasks.iter().map(|task| format!("{task}=127.0.0.1:{port}\n")).collect();
        let engine = start(plan, map, &tasks, vec![listener], None)?;
        let door = attach::listen(job.meeting_place()?).map_err(|error| failed(error.to_string()))?;
        announce(0)?;
        let clients = tasks.iter().map(|_| admit_next(&engine, &door, AREA_BYTES)).collect::<Result<Vec<_>, _>>()?;
        (engine, clients)
    } else {
        let map = greeting::map([(PS, port)].into_iter(), plan.peers);
        let engine = start(plan, map, &[PS.to_owned()], vec![listener], None)?;
        if plan.bench == Bench::FanIn {
            answers::start(&engine, plan)?;
        }
        announce(port)?;
        (engine, Vec::new())
    };
    loop {
        // The process ends with its standard input or its parent.
        thread::park();
    }
}

/// A listening socket as an engine makes it for itself, on a port that the system chooses.
pub(in crate::systems::sealane) fn listener(plan: &Plan) -> Result<(TcpListener, u16), BenchError> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let socket: Socket = listen(any_port, &tcp_settings(plan)).map_err(|error| failed(error.to_string()))?;
    let listener = TcpListener::from(socket);
    let port = listener.local_addr().map_err(BenchError::io("find the port"))?.port();
    Ok((listener, port))
}

/// An engine of one shard that serves these tasks, over verbs if it is given any.
pub(in crate::systems::sealane) fn start(
    plan: &Plan,
    map: String,
    tasks: &[String],
    listeners: Vec<TcpListener>,
    verbs: Option<Verbs>,
) -> Result<Engine, BenchError> {
    let map = EndpointMap::parse(&map, "the bench's endpoint map").map_err(|error| failed(error.to_string()))?;
    let tasks: Vec<&str> = tasks.iter().map(String::as_str).collect();
    let mut settings = EngineSettings::new(map, &tasks).map_err(|error| failed(error.to_string()))?;
    settings.listeners = listeners;
    settings.tcp = tcp_settings(plan);
    settings.verbs = verbs;
    settings.runtime.polling = if plan.polling { Polling::Spin } else { Polling::default() };
    if matches!(plan.bench, Bench::FanIn | Bench::Ps) {
        // It is stopped while others are measured, as are its peers.
        settings.session.heartbeat = PATIENCE;
        settings.session.peer_timeout = PATIENCE;
        settings.request_timeout = PATIENCE;
        settings.runtime.stall_report = Duration::ZERO;
    }
    if let Some(training) = &plan.training {
        servers::make_room(&mut settings, plan, training);
    }
    settings.runtime.executor = plan.executor.into();
    // The harness has pinned this thread, and a shard's thread inherits that.
    settings.runtime.pin = Pin::Off;
    Engine::start(settings).map_err(|error| failed(error.to_string()))
}

fn failed(reason: String) -> BenchError {
    BenchError::Sealane { operation: "start for many peers", reason }
}
