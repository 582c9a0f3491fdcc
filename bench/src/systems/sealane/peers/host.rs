//! The engine's process: one shard with the settings that an engine has by default, apart from polling. What peers cost
//! is the whole process, which does nothing else.

use std::net::TcpListener;
use std::thread;

use sealane_fusion::Engine;
use sealane_transport::shm::attach;

use super::super::attached::{AREA_BYTES, admit_next};
use super::super::engine::{self, PATIENCE, listener};
use super::super::fanin::answers;
use super::super::names::PS;
use super::greeting;
use crate::error::BenchError;
use crate::open_files;
use crate::peer::{PeerJob, announce};
use crate::plan::{Bench, Link, Plan};

/// Serves peers until the process ends.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = &job.plan;
    open_files::allow_for("--peers", plan.peers, open_files_each(plan.link))?;
    let (listener, port) = listener(plan)?;
    let _engine_and_clients = if plan.link == Link::Shm {
        let tasks: Vec<String> = (0..plan.peers).map(greeting::task).collect();
        let map: String = tasks.iter().map(|task| format!("{task}=127.0.0.1:{port}\n")).collect();
        let engine = start(plan, &map, &tasks, listener)?;
        let door = attach::listen(job.meeting_place()?).map_err(BenchError::sealane("listen for clients"))?;
        announce(0)?;
        let clients = tasks.iter().map(|_| admit_next(&engine, &door, AREA_BYTES)).collect::<Result<Vec<_>, _>>()?;
        (engine, clients)
    } else {
        let map = greeting::map([(PS, port)].into_iter(), plan.peers);
        let engine = start(plan, &map, &[PS.to_owned()], listener)?;
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

/// Open files of a peer, on either side: its socket; of a client also its doorbell, and what it sleeps on.
pub(super) fn open_files_each(link: Link) -> usize {
    if link == Link::Shm { 3 } else { 1 }
}

/// An engine that serves these tasks.
fn start(plan: &Plan, map: &str, tasks: &[String], listener: TcpListener) -> Result<Engine, BenchError> {
    let mut settings = engine::settings(plan, map, tasks, vec![listener], None)?;
    if plan.bench == Bench::FanIn {
        engine::let_rest(&mut settings);
        settings.request_timeout = PATIENCE;
    }
    engine::start(settings)
}
