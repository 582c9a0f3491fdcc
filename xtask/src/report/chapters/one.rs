//! Tensors one at a time and in streams, between two processes, and between two clients of one host; and what security costs.

use sealane_bench::{Column, Section, Table};

use super::Chapter;
use crate::report::comparison::{Line, against_grpc, line, systems};
use crate::report::experiment::bench;
use crate::report::figure::{self, NOT_MEASURED, cell, quotient};
use crate::report::results::Results;

/// Between two processes.
pub(in crate::report) const LINES: &[Line] = &[
    line("64 B there and back, p50", "latency", "rtt_us.p50"),
    line("the same, p99", "latency", "rtt_us.p99"),
    line("64 B there and back after 1 ms idle, nobody spins, p50", "latency_parked", "rtt_us.p50"),
    line("64 B tensors, 1024 in flight (raw: a byte pump)", "rate", "tensors_per_s"),
    line("64 B tensors, one way into a queue", "rate_push", "tensors_per_s"),
    line("64 B tensors, 256 in flight, a write each", "rate_unfused", "tensors_per_s"),
    line("4 MiB tensors", "bandwidth", "gigabytes_per_s"),
    line("4 MiB tensors, congestion control reno", "bandwidth_reno", "gigabytes_per_s"),
];

pub(super) const TENSORS: Chapter = Chapter {
    name: "tensors",
    heading: "One tensor, and streams of them",
    question: "How far is Sealane from what the kernel can do, and from gRPC? Two processes, each pinned to a CPU of its own, over loopback \
               TCP. raw is the same exchange over bare sockets, spinning or blocking as Sealane does; gRPC is tonic at its best known settings.",
    experiments: &[
        bench("latency", "latency --size 64 --baseline raw --baseline grpc"),
        bench("latency_parked", "latency --size 64 --polling off --baseline raw --baseline grpc"),
        bench("rate", "rate --window 1024 --baseline raw --baseline grpc"),
        bench("rate_push", "rate --window 1024 --fuse push"),
        bench("rate_unfused", "rate --window 256 --fuse off --baseline raw --baseline grpc"),
        bench("bandwidth", "bandwidth --size 4MiB --baseline raw --baseline grpc"),
        bench("bandwidth_reno", "bandwidth --size 4MiB --congestion reno --baseline raw --baseline grpc"),
    ],
    answer: |results, section| against_grpc(results, LINES, section).table(systems(results, LINES)),
};

/// Between two processes of one host.
pub(in crate::report) const HOST: &[Line] = &[
    line("64 B there and back, p50", "latency_shm", "rtt_us.p50"),
    line("the same, p99", "latency_shm", "rtt_us.p99"),
    line("64 B there and back after 1 ms idle, nobody spins, p50", "latency_shm_parked", "rtt_us.p50"),
    line("64 B tensors, sent and received by one client core", "rate_shm", "tensors_per_s"),
    line("4 MiB tensors", "bandwidth_shm", "gigabytes_per_s"),
];

pub(super) const ONE_HOST: Chapter = Chapter {
    name: "one_host",
    heading: "Between processes of one host",
    question: "What does the way through the host's daemon cost, by shared memory? Two clients on one CPU, the daemon's shard on the other. raw \
               is a bare ring of descriptors between the same two CPUs (latency, rate), a futex there and back (nobody spins), and memcpy by one \
               thread (4 MiB).",
    experiments: &[
        bench("latency_shm", "latency --link shm --size 64 --baseline raw --baseline grpc"),
        bench("latency_shm_parked", "latency --link shm --size 64 --polling off --baseline raw"),
        bench("rate_shm", "rate --link shm --window 256 --baseline raw --baseline grpc"),
        bench("bandwidth_shm", "bandwidth --link shm --size 4MiB --baseline raw --baseline grpc"),
    ],
    answer: |results, section| section.table(systems(results, HOST)),
};

/// What is compared with the same over an open link.
const SECURED: [(&str, &str, &str); 3] = [
    ("shared secret, 64 B there and back, p50", "latency_secret", "rtt_us.p50"),
    ("TLS 1.3, 64 B there and back, p50", "latency_tls", "rtt_us.p50"),
    ("TLS 1.3, 4 MiB tensors", "bandwidth_tls", "gigabytes_per_s"),
];

pub(super) const SECURITY: Chapter = Chapter {
    name: "security",
    heading: "What security costs",
    question: "What is the price of a shared secret, and of TLS, on the same link in the same run? A quotient above 1 of a time is that much \
               longer, one below 1 of a rate that much slower.",
    experiments: &[
        bench("latency_secret", "latency --size 64 --security secret --baseline open"),
        bench("latency_tls", "latency --size 64 --security tls --baseline open"),
        bench("bandwidth_tls", "bandwidth --size 4MiB --security tls --baseline open"),
    ],
    answer: security,
};

fn security(results: &Results, section: Section) -> Section {
    let row = |(what, experiment, metric): (&str, &str, &str)| {
        let run = results.get(experiment);
        let of = |system| run.and_then(|run| run.figure(system, None, metric));
        let secured = of("sealane").map(|spread| figure::with_spread(metric, spread));
        let ratio = run.and_then(|run| run.ratio("sealane/open", metric));
        vec![
            what.to_owned(),
            secured.unwrap_or_else(|| NOT_MEASURED.to_owned()),
            cell(of("open").map(|spread| figure::median(metric, spread))),
            cell(ratio.map(quotient)),
        ]
    };
    let columns =
        [Column::text("what"), Column::number("secured"), Column::number("open"), Column::number("secured / open")];
    section.table(Table::new(columns, SECURED.map(row)))
}
