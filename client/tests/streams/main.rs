//! Streams between two engines in this process, as on two hosts.

mod scenarios;

use std::net::TcpListener;

use sealane::{EndpointMap, Engine, EngineSettings, Task};

fn two() -> (Task, Task) {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let map = format!("ps0:2222={}\nworker0:2222={}\n", ports[0], ports[1]);
    let mut names = ["ps0:2222", "worker0:2222"].into_iter();
    let [ps, worker] = listeners.map(|listener| {
        let name = names.next().unwrap();
        let mut settings = EngineSettings::new(EndpointMap::parse(&map, "test").unwrap(), &[name]).unwrap();
        settings.listeners = vec![listener];
        Task::from(Engine::start(settings).unwrap().task(name).unwrap())
    });
    (ps, worker)
}

macro_rules! between_engines {
    ($($scenario:ident),* $(,)?) => {
        $(#[test]
        fn $scenario() {
            let (ps, worker) = two();
            scenarios::$scenario(&ps, &worker);
        })*
    };
}

between_engines!(
    both_ways_end_by_themselves,
    a_stream_that_is_not_read_holds_up_itself_alone,
    a_stream_that_is_dropped_unfinished_is_reset,
    what_cannot_be_dialed_says_why,
    a_thousand_pass_at_once,
);
