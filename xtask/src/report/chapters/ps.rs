//! The parameter-server experiment: many workers that train with several ps, in variants that are measured in turn, beside what
//! others have published of theirs.

use sealane_bench::{Column, Section, Table};

use super::Chapter;
use crate::report::comparison::{Line, bars, line, names, systems, variants};
use crate::report::experiment::bench;
use crate::report::figure::{self, cell, quotient};
use crate::report::results::{Results, Run};

/// What the tables of variants show; the quotient is of the first.
const METRICS: &[(&str, &str)] = &[
    ("steps a second", "steps_per_s"),
    ("step, p50", "step_ms"),
    ("p99", "step_p99_ms"),
    ("messages a step", "messages_per_step"),
    ("CPU a step", "cpu_ms_per_step"),
    ("slowest worker's share", "slowest_share"),
];

/// The sizes of the published experiment: what they are called, and what ours of the size is called.
const SIZES: [(&str, &str); 5] = [
    ("50 workers + 5 ps", "ps_buffers_50"),
    ("100 + 10", "ps_buffers_100"),
    ("200 + 10", "ps_buffers_200"),
    ("200 + 10, a write a message", "ps_buffers_off"),
    ("200 + 10, wide & deep", "ps_buffers_wide"),
];

/// mt-verbs by verbs at these sizes: published for DLRM over RDMA, both changes together.
const PUBLISHED: [&str; 5] = ["equal", "1.25", "1.48", "", ""];

pub(super) const BUFFERS: Chapter = Chapter {
    name: "ps_buffers",
    heading: "Many request buffers and static registration, apart and together",
    question: "TensorFlow's mt-verbs gave each peer 40 request buffers instead of one, and registered memory once instead of for each transfer. \
               Together that was published as a gain of 24.96 % at 100 workers + 10 ps and 47.94 % at 200 + 10, with DLRM over RDMA; which part of \
               it does what was never shown. Here each alone, and both, of one implementation and over TCP, where registration is memory that \
               stays against memory that is made for each transfer. What leaves in a turn leaves in one write, so 40 requests in flight also \
               mean fewer writes; the fourth column is without that.",
    experiments: &[
        bench(
            "ps_buffers_50",
            "ps --workload dlrm_kaggle --workers 50 --ps 5 --fuse turn --request-buffers 1,40 --registration dynamic,static",
        ),
        bench(
            "ps_buffers_100",
            "ps --workload dlrm_kaggle --workers 100 --ps 10 --fuse turn --request-buffers 1,40 --registration dynamic,static",
        ),
        bench(
            "ps_buffers_200",
            "ps --workload dlrm_kaggle --workers 200 --ps 10 --fuse turn --request-buffers 1,40 --registration dynamic,static",
        ),
        bench(
            "ps_buffers_off",
            "ps --workload dlrm_kaggle --workers 200 --ps 10 --fuse off --request-buffers 1,40 --registration dynamic,static",
        ),
        bench(
            "ps_buffers_wide",
            "ps --workload wide_deep_400 --workers 200 --ps 10 --fuse turn --request-buffers 1,40 --registration dynamic,static",
        ),
    ],
    answer: |results, section| {
        let largest = results.get("ps_buffers_200");
        let section = section.table(gains(results).titled("Gains")).table(sizes(results).titled("Figures"));
        match largest {
            Some(run) => section.illustration(bars(run, "steps a second at 200 + 10", "steps_per_s")),
            None => section,
        }
    },
};

/// Steps a second of each variant by those of the first, at each size; and what was published.
fn gains(results: &Results) -> Table {
    let runs = SIZES.map(|(_, experiment)| results.get(experiment));
    let Some(any) = runs.iter().flatten().next() else { return Table::new([Column::text("variant")], []) };
    let found = any.variants("sealane");
    // Runs differ in what their variants have in common, and so in how these are called in full.
    let called = |run: &Run, name: &str| {
        let variants = run.variants("sealane");
        let place = names(&variants).iter().position(|other| other == name)?;
        run.to_first(&variants[place], "steps_per_s")
    };
    let ours = names(&found).into_iter().map(|name| {
        let gains: Vec<String> =
            runs.iter().map(|run| cell(run.and_then(|run| called(run, &name)).map(quotient))).collect();
        [vec![name], gains].concat()
    });
    let published =
        ["published: mt-verbs by verbs (DLRM, RDMA)"].into_iter().chain(PUBLISHED).map(str::to_owned).collect();
    let heads = SIZES.map(|(size, _)| Column::number(size));
    Table::new(
        [&[Column::text("steps a second, first row = 1")], &heads[..]].concat(),
        ours.chain([published]).collect::<Vec<_>>(),
    )
}

/// Steps a second themselves.
fn sizes(results: &Results) -> Table {
    let rows =
        SIZES.iter().filter_map(|(size, experiment)| Some((size, results.get(experiment)?))).flat_map(|(size, run)| {
            let found = run.variants("sealane");
            let names = names(&found);
            let row = move |(variant, name): (String, String)| {
                let of = |metric| run.figure("sealane", Some(&variant), metric);
                let spread = |metric| cell(of(metric).map(|spread| figure::with_spread(metric, spread)));
                let median = |metric| cell(of(metric).map(|spread| figure::median(metric, spread)));
                let medians = ["step_ms", "step_p99_ms", "cpu_ms_per_step", "slowest_share"].map(median);
                [(*size).to_owned(), name, spread("steps_per_s")].into_iter().chain(medians).collect()
            };
            found.into_iter().zip(names).map(row).collect::<Vec<Vec<String>>>()
        });
    let heads = ["steps a second", "step, p50", "p99", "CPU a step", "slowest worker's share"].map(Column::number);
    Table::new([&["size", "variant"].map(Column::text)[..], &heads].concat(), rows.collect::<Vec<_>>())
}

/// The plan against gRPC, in a run of its own, in which they are compared round by round.
pub(in crate::report) const LINES: &[Line] = &[
    line("steps of 200 workers + 10 ps, wide & deep, by plans; gRPC: a call each", "ps_grpc", "steps_per_s"),
    line("the same; gRPC: all in one message", "ps_grpc", "steps_per_s").with_grpc("async, one message, polling"),
];

/// FuseRecv's figures, by those without it: steps a second, and messages.
const FUSE_RECV: [&str; 3] = ["published: FuseRecv by none (wide & deep)", "1.4", "0.45"];

pub(super) const FUSION: Chapter = Chapter {
    name: "ps_fusion",
    heading: "Fusion: one request for many tensors",
    question: "DeepRec's FuseRecv asks for all tensors of a step at once and is answered when the slowest is there; its RFC tells of 55 % fewer \
               messages and 40 % more throughput on wide & deep, and of 1.5 to 2 times in jobs of more than 400 workers. Here: a write a message \
               (off), a write a turn (turn), one request whose tensors come as they are ready (receive) or when all are (receive-wait-all), and a \
               plan agreed on once (plan); with gRPC making the same steps.",
    experiments: &[
        bench(
            "ps_fusion",
            "ps --workload wide_deep_400 --workers 200 --ps 10 --fuse off,turn,receive,receive-wait-all,plan --baseline grpc",
        ),
        bench("ps_grpc", "ps --workload wide_deep_400 --workers 200 --ps 10 --fuse plan --baseline grpc"),
    ],
    answer: |results, section| {
        let section = of_variants(results, section, "ps_fusion", METRICS);
        let Some(run) = results.get("ps_fusion") else { return section };
        let messages =
            run.variants("sealane").into_iter().zip(names(&run.variants("sealane"))).map(|(variant, name)| {
                let by_first = |metric| cell(run.to_first(&variant, metric).map(quotient));
                vec![name, by_first("steps_per_s"), by_first("messages_per_step")]
            });
        let rows: Vec<_> = messages.chain([FUSE_RECV.map(str::to_owned).to_vec()]).collect();
        let heads = ["steps a second", "messages a step"].map(Column::number);
        let section =
            section.table(Table::new([&[Column::text("fusion")], &heads[..]].concat(), rows).titled("By the first"));
        section.table(systems(results, LINES).titled("The plan against gRPC, in a run of their own"))
    },
};

pub(super) const POLLING: Chapter = Chapter {
    name: "ps_polling",
    heading: "Polling or events",
    question: "NTT's RDMA for MXNet found polling fast and hungry for CPU, interrupts slow and cheap. Sealane's shards spin, or sleep when nothing \
               has come for a while: with 200 workers who always want something, and with 4 who compute for a millisecond between two exchanges.",
    experiments: &[
        bench("ps_polling", "ps --workload wide_deep_400 --workers 200 --ps 10 --polling on,off"),
        bench("ps_polling_few", "ps --workload wide_deep_400 --workers 4 --ps 1 --compute-us 1000 --polling on,off"),
    ],
    answer: |results, section| {
        let section = of_variants(results, section, "ps_polling", METRICS);
        match results.get("ps_polling_few") {
            Some(run) => section.table(variants(run, METRICS).titled("4 workers + 1 ps, 1 ms of computing")),
            None => section,
        }
    },
};

pub(super) const COPIES: Chapter = Chapter {
    name: "ps_copies",
    heading: "What a copy costs",
    question: "NTT took two of four copies out of a pull or push; mt-verbs put one in. Here every tensor is copied once more at the worker, each way.",
    experiments: &[bench("ps_copies", "ps --workload dlrm_kaggle --workers 50 --ps 5 --copies 0,1")],
    answer: |results, section| of_variants(results, section, "ps_copies", METRICS),
};

pub(super) const IMAGES: Chapter = Chapter {
    name: "ps_images",
    heading: "A model of images",
    question: "ResNet-50: 214 tensors of 102 MB in all, pulled and pushed whole in each step, so that bytes are all that counts.",
    experiments: &[bench("ps_images", "ps --workload resnet50 --workers 8 --ps 2 --baseline grpc").rounds(5, 1.0)],
    answer: |results, section| of_variants(results, section, "ps_images", METRICS),
};

pub(super) const SYNC: Chapter = Chapter {
    name: "ps_sync",
    heading: "Synchronous steps",
    question: "The same where a worker pulls the version that has everybody's gradients of the step before, so that each step waits for the slowest.",
    experiments: &[bench(
        "ps_sync",
        "ps --workload wide_deep_400 --workers 50 --ps 5 --mode sync --fuse off,plan --baseline grpc",
    )],
    answer: |results, section| of_variants(results, section, "ps_sync", METRICS),
};

/// How many take part.
fn size(run: &Run) -> String {
    let count =
        |of: &str| run.report["parameters"][of].as_u64().map_or_else(|| "?".to_owned(), |count| count.to_string());
    let workload = run.report["parameters"]["workload"].as_str().map_or_else(String::new, |name| format!(", {name}"));
    format!("{} workers + {} ps{workload}", count("workers"), count("ps"))
}

/// The variants of one experiment, drawn and tabled.
pub(super) fn of_variants(results: &Results, section: Section, experiment: &str, metrics: &[(&str, &str)]) -> Section {
    match (results.get(experiment), metrics) {
        (Some(run), [(label, main), ..]) => {
            section.illustration(bars(run, label, main)).table(variants(run, metrics).titled(&size(run)))
        }
        _ => section,
    }
}
