//! Figures for tests.

use sealane_fusion::Counters;
use sealane_fusion::metrics::{
    ClientCounters, ClientFigures, LatencyFigures, Operation, PeerCounters, PeerFigures, PeerPath, ShardFigures,
    TrafficCounters, TrafficFigures,
};
use sealane_runtime::{HistogramSnapshot, LoadSnapshot};

use super::{Credentials, Figures, SCHEMA, Shard, State};

/// A daemon with one of each thing that it shows.
pub(crate) fn example() -> Figures {
    let calls = LatencyFigures { operation: Operation::Recv, way: "tcp", nanoseconds: HistogramSnapshot::default() };
    let address = "127.0.0.1:7000".to_owned();
    let peer = PeerFigures { address, shard: Some(0), path: PeerPath::default(), counters: PeerCounters::default() };
    let traffic = TrafficFigures { peer: "ps0:2222".to_owned(), counters: TrafficCounters::default() };
    let (task, counters) = ("worker0:2222".to_owned(), ClientCounters::default());
    let client = ClientFigures { task, pid: 1, counters, traffic: vec![traffic] };
    let shard = ShardFigures {
        shard: 0,
        cpu: None,
        load: LoadSnapshot::default(),
        counters: Counters::default(),
        kinds: Vec::new(),
        latencies: vec![calls],
        peers: vec![peer],
        clients: vec![client],
        slab_send_bytes_max: 0,
        slab_receive_bytes_max: 0,
    };
    Figures {
        schema: SCHEMA.to_owned(),
        version: "1".to_owned(),
        pid: 1,
        taken_unix_ms: 0,
        uptime_ms: 0,
        state: State::Serving,
        executor: "io_uring".to_owned(),
        addresses: Vec::new(),
        tasks: Vec::new(),
        credentials: Credentials { shown: "TLS 1.3".to_owned(), days_left: Some(1.0), taken: 0, refused: 0 },
        shards: vec![Shard::from(shard)],
    }
}
