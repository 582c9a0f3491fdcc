//! Steps of many tensors, many peers, and a daemon that is exchanged.

use sealane_bench::{Column, Section, Table};

use super::Chapter;
use crate::report::comparison::{Line, against_grpc, line, systems};
use crate::report::experiment::bench;
use crate::report::figure::{self, NOT_MEASURED, cell, quotient};
use crate::report::results::Results;

/// Pulled in one step.
pub(in crate::report) const LINES: &[Line] = &[
    line("1000 x 64 B by a plan; gRPC: a call each", "fuse_plan", "step_ms").by("steps_per_s"),
    line("the same; gRPC: all in one message", "fuse_plan", "step_ms").by("steps_per_s").with_grpc("one message"),
    line("1000 x 64 B by one fused recv", "fuse_receive", "step_ms").by("steps_per_s"),
    line("1000 x 64 B by recvs, a write a turn", "fuse_turn", "step_ms").by("steps_per_s"),
    line("1000 x 64 B by recvs, a write each", "fuse_off", "step_ms").by("steps_per_s"),
    line("16 x 4 MiB by a plan; gRPC: a call each", "fuse_large", "step_ms").by("steps_per_s"),
    line("the same, congestion control reno", "fuse_large_reno", "step_ms").by("steps_per_s"),
    line("ResNet-50 by a plan; gRPC: a call each", "fuse_resnet50", "step_ms").by("steps_per_s"),
    line("1000 x 64 B by a plan, shared memory", "fuse_shm", "step_ms"),
    line("16 x 4 MiB by a plan, shared memory", "fuse_shm_large", "step_ms"),
];

pub(super) const STEPS: Chapter = Chapter {
    name: "steps",
    heading: "Many tensors in a step",
    question: "What does it cost a worker to pull all tensors of a step from one ps? raw asks once and is answered by all bytes at once; gRPC is \
               measured with a call a tensor, 64 in flight, and with all tensors in one message. Rows are runs of their own; the columns of a row \
               were measured in turn. Speeds are quotients of steps a second.",
    experiments: &[
        bench("fuse_plan", "fuse --tensors 1000 --size 64 --fuse plan --baseline raw --baseline grpc"),
        bench("fuse_receive", "fuse --tensors 1000 --size 64 --fuse receive --baseline raw --baseline grpc"),
        bench("fuse_turn", "fuse --tensors 1000 --size 64 --fuse turn --baseline raw --baseline grpc"),
        bench("fuse_off", "fuse --tensors 1000 --size 64 --fuse off --baseline raw --baseline grpc"),
        bench("fuse_large", "fuse --tensors 16 --size 4MiB --fuse plan --baseline raw --baseline grpc"),
        bench(
            "fuse_large_reno",
            "fuse --tensors 16 --size 4MiB --fuse plan --congestion reno --baseline raw --baseline grpc",
        ),
        bench("fuse_resnet50", "fuse --workload resnet50 --fuse plan --baseline raw --baseline grpc"),
        bench("fuse_shm", "fuse --link shm --tensors 1000 --size 64 --fuse plan"),
        bench("fuse_shm_large", "fuse --link shm --tensors 16 --size 4MiB --fuse plan"),
    ],
    answer: |results, section| {
        let section = against_grpc(results, LINES, section).table(systems(results, LINES));
        section.table(messages(results))
    },
};

/// How many messages a step of 1000 tensors took.
fn messages(results: &Results) -> Table {
    let metric = "messages_per_step";
    let row = |(what, experiment): (&str, &str)| {
        let figure = results.get(experiment)?.figure("sealane", None, metric)?;
        Some(vec![what.to_owned(), figure::with_spread(metric, figure)])
    };
    let ways = [
        ("a write each", "fuse_off"),
        ("a write a turn", "fuse_turn"),
        ("one fused recv", "fuse_receive"),
        ("a plan", "fuse_plan"),
    ];
    let columns = [Column::text("1000 x 64 B by"), Column::number("messages a step, both ways")];
    Table::new(columns, ways.into_iter().filter_map(row)).titled("Messages")
}

/// Figures of many peers.
const PEERS_FIGURES: [(&str, &str, &str); 9] = [
    ("1000 workers pull a plan of 16 x 64 B from one ps", "fanin_plan", "tensors_per_s"),
    ("the same: what the slowest gets of its share", "fanin_plan", "slowest_share"),
    ("the same: memory of an idle peer", "fanin_plan", "rss_bytes_per_peer"),
    ("1000 workers are each sent tensors of 64 B, 16 in flight", "fanin_sent", "tensors_per_s"),
    ("1000 peers connect at once: all are welcome after", "connect", "connect_all_ms"),
    ("1000 idle peers: CPU of the engine", "idle", "cpu_percent"),
    ("the same: memory of a peer", "idle", "rss_bytes_per_peer"),
    ("1000 idle clients of a daemon: CPU", "idle_clients", "cpu_percent"),
    ("the same: memory of a client", "idle_clients", "rss_bytes_per_peer"),
];

pub(super) const PEERS: Chapter = Chapter {
    name: "peers",
    heading: "Many peers",
    question: "What do a thousand peers cost one engine, when all want something and when none does? The peers are sessions over sockets of their \
               own in one thread. raw is as many bare connections to a thread that answers.",
    experiments: &[
        bench("fanin_plan", "fanin --peers 1000 --window 16 --fuse plan --baseline raw"),
        bench("fanin_sent", "fanin --peers 1000 --window 16 --fuse turn --baseline raw"),
        bench("connect", "connect --peers 1000 --baseline raw"),
        bench("idle", "idle --peers 1000").rounds(5, 2.0),
        bench("idle_clients", "idle --peers 1000 --link shm").rounds(5, 2.0),
    ],
    answer: peers,
};

fn peers(results: &Results, section: Section) -> Section {
    let row = |(what, experiment, metric): (&str, &str, &str)| {
        let run = results.get(experiment);
        let of = |system| run.and_then(|run| run.figure(system, None, metric));
        let raw = run.and_then(|run| run.ratio("sealane/raw", metric));
        let few = run.and_then(|run| run.ratio("1000 peers/10 peers", metric));
        vec![
            what.to_owned(),
            of("sealane").map_or_else(|| NOT_MEASURED.to_owned(), |spread| figure::with_spread(metric, spread)),
            cell(of("raw").map(|spread| figure::median(metric, spread))),
            cell(raw.map(quotient)),
            cell(few.map(quotient)),
        ]
    };
    let heads = ["Sealane", "raw", "Sealane / raw", "with 1000 / with 10 peers"].map(Column::number);
    section.table(Table::new([&[Column::text("what")], &heads[..]].concat(), PEERS_FIGURES.map(row)))
}

/// Of the gap that a restart leaves.
const GAPS: [(&str, &str); 3] = [
    ("nothing reaches the tasks of its host for", "gap_ms"),
    ("nothing reaches those of other hosts for", "peer_gap_ms"),
    ("calls that failed and were made again", "failed_calls"),
];

pub(super) const RESTART: Chapter = Chapter {
    name: "restart",
    heading: "A daemon is drained and started anew under traffic",
    question: "How long does training stand still when a daemon is exchanged? Two daemons with one shard each; tensors every half millisecond.",
    experiments: &[bench("restart", "restart").rounds(20, 0.2)],
    answer: |results, section| {
        let run = results.get("restart");
        let row = |(what, metric): (&str, &str)| {
            let figure = run.and_then(|run| run.figure("sealane", None, metric));
            vec![
                what.to_owned(),
                figure.map_or_else(|| NOT_MEASURED.to_owned(), |spread| figure::with_spread(metric, spread)),
            ]
        };
        section.table(Table::new([Column::text("what"), Column::number("median (lowest to highest)")], GAPS.map(row)))
    },
};
