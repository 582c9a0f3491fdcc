//! A task whose engine is in this process behaves like one that is attached.

mod calls;
#[path = "../calls/fixture.rs"]
mod fixture;
mod grpc;
mod rows;
mod sockets;
mod streams;

use std::net::TcpListener;

use sealane::{EndpointMap, Engine, EngineSettings, Task};

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
