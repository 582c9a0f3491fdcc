//! How much of a client's memory a daemon's RDMA device registers.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::Arc,
};

use sealane_fusion::{EndpointMap, Engine, EngineSettings};
use sealane_runtime::Pin;
use sealane_transport::verbs::{
    PortCounters, Verbs, VerbsSettings,
    device::Device,
    fake::{Fabric, FakeSettings},
};

use crate::{
    daemon::{Daemon, Settings},
    fixture::{TASK, directory, tensor, to},
};

const ELSEWHERE: &str = "elsewhere:1";

/// Large enough for a transfer of its own.
const LEN: usize = 1 << 20;

fn verbs(fabric: &Fabric, name: &'static str, client_pinned_bytes_max: u64) -> Verbs {
    let fabric = fabric.clone();
    let open = move |_: &VerbsSettings| {
        Ok(Box::new(fabric.open(FakeSettings { name: name.into(), ..FakeSettings::default() })) as Box<dyn Device>)
    };
    let settings = VerbsSettings { client_pinned_bytes_max, ..VerbsSettings::default() };
    Verbs { is_required: true, open: Arc::new(open), ..Verbs::new(settings) }
}

#[test]
fn no_more_of_a_clients_memory_is_pinned_than_the_limit_and_the_rest_travels_by_copy() {
    let arena = 4 << 20;
    for (limit, pinned) in [(0, 0), (arena, arena), (1 << 30, arena)] {
        let fabric = Fabric::new(1);
        let (directory, socket) = (directory(), TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let address = socket.local_addr().unwrap();
        let mut map = None;
        let one_task = Settings { shards: 1, tasks: vec![TASK.to_owned()] };
        let daemon = Daemon::start_with(&directory, one_task, |settings| {
            let own = settings.listeners[0].local_addr().unwrap();
            let both = EndpointMap::parse(&format!("{TASK}={own}\n{ELSEWHERE}={address}\n"), "test").unwrap();
            settings.map = both.clone().into();
            map = Some(both);
            settings.links = vec![Arc::new(verbs(&fabric, "near", limit))];
        });
        let mut settings = EngineSettings::new(map.unwrap(), &[ELSEWHERE]).unwrap();
        settings.listeners = vec![socket];
        settings.runtime.pin = Pin::Off;
        settings.links = vec![Arc::new(verbs(&fabric, "far", limit))];
        let engine = Engine::start(settings).unwrap();
        let far = engine.task(ELSEWHERE).unwrap();
        let near = to(&daemon).arena_bytes(arena).attach().unwrap();
        let exchange = |step| {
            let receiving = far.recv(TASK, step, "key");
            near.send(ELSEWHERE, step, "key", tensor(LEN, 1)).wait().unwrap();
            assert_eq!(receiving.wait().unwrap().bytes(), tensor(LEN, 1).bytes());
        };
        exchange(1);
        daemon.until("as much is pinned", |daemon| daemon.sum(|counters| counters.pinned_bytes) == pinned);
        (2..5).for_each(exchange);
        let counters = daemon.engine.counters().unwrap();
        let streamed: u64 =
            counters.iter().map(|shard| PortCounters::of_figures(&shard.kinds[0].figures).payloads_streamed).sum();
        assert_eq!(
            streamed,
            if pinned == 0 { 4 } else { 1 },
            "by copy until it is registered, with a limit of {limit}"
        );
        drop(near);
        engine.stop().unwrap();
    }
}
