//! Results that were never measured, for tests: every experiment has one, of round numbers.

use std::time::UNIX_EPOCH;

use sealane_bench::{Page, Section};
use serde_json::{Value, json};

use super::chapters::experiments;
use super::results::{Provenance, Results, Run};

pub(super) fn provenance() -> Provenance {
    Provenance {
        command: "sealane bench latency".to_owned(),
        unix_seconds: 1_763_668_991,
        took_s: 12.3,
        commit: "0123abc".to_owned(),
        compiler: "rustc 1.95.0".to_owned(),
        congestion: "bbr".to_owned(),
        memory_gib: 8.0,
        load: 0.1,
    }
}

pub(super) fn run(report: Value) -> Run {
    Run { provenance: provenance(), report }
}

/// One result for every experiment.
pub(super) fn results() -> Results {
    Results::of(experiments().map(|experiment| {
        let run = run(report(experiment.name));
        let provenance = Provenance { command: experiment.command(), ..run.provenance };
        (experiment.name, Run { provenance, ..run })
    }))
}

/// A page of one section.
pub(super) fn page_of(section: Section) -> Page {
    let empty = String::new;
    let (highlights, sections) = (Vec::new(), vec![section]);
    Page {
        kind: empty(),
        title: empty(),
        result: empty(),
        failure: None,
        command: empty(),
        made: UNIX_EPOCH,
        highlights,
        sections,
    }
}

fn report(experiment: &str) -> Value {
    match experiment {
        "ps_buffers_50" | "ps_buffers_100" | "ps_buffers_200" => variants(&[
            ("fuse off, 1 request buffer, dynamic, polling", 10.0),
            ("fuse off, 1 request buffer, static, polling", 10.0),
            ("fuse off, 40 request buffers, dynamic, polling", 20.0),
            ("fuse off, 40 request buffers, static, polling", 20.0),
        ]),
        "ps_fusion" => variants(&[
            ("fuse off, static, polling", 10.0),
            ("fuse turn, static, polling", 15.0),
            ("fuse receive, static, polling", 20.0),
            ("fuse receive-wait-all, static, polling", 18.0),
            ("fuse plan, static, polling", 40.0),
        ]),
        "ps_polling" | "ps_polling_few" => variants(&[("fuse plan, polling", 10.0), ("fuse plan, parking", 5.0)]),
        "ps_growth_kept" => {
            variants(&[("50 workers + 5 ps, fuse plan", 100.0), ("200 workers + 10 ps, fuse plan", 90.0)])
        }
        name if name.starts_with("ps_") => variants(&[("fuse plan", 50.0), ("fuse plan, copied", 45.0)]),
        "growth" => json!({
            "schema": "sealane-growth/1",
            "costs": {
                "worker": {"message_ns": 280.0}, "ps": {"message_ns": 310.0},
                "inputs": [{"workload":"dlrm_kaggle","variant":"v","workers":50,"ps":5,"measured_steps_per_s":100.0,
                    "predicted_steps_per_s":95.5,"error_percent":-4.5}],
                "calibrated_from": ["a.json", "b.json"], "worst_error_percent": 4.5,
            },
            "sizes": [
                size(10.0, 1.0, 1_000.0, 1.0),
                size(10_000.0, 500.0, 250_000.0, 0.97),
            ],
        }),
        "training" => json!({
            "schema": "sealane-train/1",
            "systems": [
                {"name":"sealane","steps_per_s":{"median":700.0,"min":690.0,"max":710.0},"training_steps_per_s":{"median":100.0,"min":90.0,"max":110.0},"losses":[0.7,0.6,0.5]},
                {"name":"sealane-tcp","steps_per_s":{"median":300.0,"min":290.0,"max":310.0},"training_steps_per_s":{"median":80.0,"min":80.0,"max":80.0},"losses":[0.7,0.6,0.5]},
                {"name":"grpc","steps_per_s":{"median":200.0,"min":190.0,"max":210.0},"training_steps_per_s":{"median":50.0,"min":50.0,"max":50.0},"losses":[0.7,0.6,0.5]},
            ],
            "ratios": [
                {"name":"sealane/grpc","of":"steps_per_s","median":3.5,"min":3.2,"max":3.9},
                {"name":"sealane-tcp/grpc","of":"steps_per_s","median":1.5,"min":1.4,"max":1.6},
                {"name":"sealane/grpc","of":"training_steps_per_s","median":2.0,"min":1.9,"max":2.1},
            ],
            "losses_equal": true,
        }),
        "tensorflow" => tensorflow(),
        _ => systems(),
    }
}

/// Every figure of a TensorFlow job: a step takes 40 ms over gRPC, or there are 40 a second.
fn tensorflow() -> Value {
    let figure = |system: &str, metric: &str, value: f64| json!({"system":system,"variant":"","metric":metric,"value":value,"min":value,"max":value});
    let ratio = |system: &str, metric: &str, value: f64| json!({"name":format!("{system}/grpc"),"of":metric,"median":value,"min":value,"max":value});
    let (mut results, mut ratios) = (Vec::new(), Vec::new());
    let mut add = |metric: &str, one: f64, two: f64| {
        for (system, value) in [("grpc", 40.0), ("sealane", one), ("sealane-tcp", two)] {
            results.push(figure(system, metric, value));
            ratios.push(ratio(system, metric, value / 40.0));
        }
    };
    for job in ["pull_small", "push_small", "pull_resnet50", "push_resnet50", "pull_one", "strategy"] {
        add(&format!("{job}_ms"), 5.0, 10.0);
        add(&format!("{job}_cpu_ms"), 5.0, 10.0);
    }
    add("wide_deep_steps_per_s", 100.0, 60.0);
    add("wide_deep_cpu_ms", 5.0, 10.0);
    json!({"schema": "sealane-tensorflow/1", "results": results, "ratios": ratios, "least_share": 0.995})
}

fn size(workers: f64, ps: f64, steps: f64, efficiency: f64) -> Value {
    json!({
        "workers": workers, "ps": ps, "steps_per_s": steps, "step_ms": {"p50": 40.0, "p99": 90.0},
        "utilisation": {"ps_cpu": 0.95, "ps_nic": 0.2, "worker_cpu": 0.3, "worker_nic": 0.1},
        "efficiency": efficiency, "first_limit": "ps_cpu", "moved_by": {"what": "two shards a ps", "factor": 1.7},
    })
}

fn machine() -> Value {
    json!({"cpus": 2, "cpu_model": "Abacus 9", "kernel": "6.18", "pinned": [0, 1]})
}

/// Variants of Sealane that make so many steps a second and need 80 messages in all of them, and gRPC.
fn variants(steps: &[(&str, f64)]) -> Value {
    let (first, of_first) = steps[0];
    let rows = steps.iter().flat_map(|(variant, steps)| {
        [("steps_per_s", *steps), ("step_ms", 1e3 / steps), ("messages_per_step", 80.0 / steps)].map(|(metric, value)| {
            json!({"system":"sealane","variant":variant,"metric":metric,"value":value,"min":value,"max":value})
        })
    });
    let ratios = steps.iter().skip(1).flat_map(|(variant, steps)| {
        let ratio = steps / of_first;
        [("steps_per_s", ratio), ("messages_per_step", 1.0 / ratio)].map(
            |(of, ratio)| json!({"name":format!("{variant} / {first}"),"of":of,"median":ratio,"min":ratio,"max":ratio}),
        )
    });
    let grpc = json!({"system":"grpc","variant":"unary","metric":"steps_per_s","value":5.0,"min":5.0,"max":5.0});
    let to_grpc = ["sealane/grpc", "sealane/grpc, async, one message, polling"]
        .map(|name| json!({"name":name,"of":"steps_per_s","median":2.0,"min":2.0,"max":2.0}));
    json!({
        "machine": machine(),
        "results": rows.chain([grpc]).collect::<Vec<_>>(),
        "ratios": ratios.chain(to_grpc).collect::<Vec<_>>(),
    })
}

/// Every figure that a benchmark of two systems can have.
fn systems() -> Value {
    let trips =
        |system: &str, us: f64| json!({"system":system,"variant":"v","metric":"rtt_us","p50":us,"p99":2.0 * us});
    let mut results = vec![
        trips("sealane", 8.0),
        trips("raw", 6.4),
        trips("grpc", 24.0),
        trips("open", 7.14),
        trips("perftest", 8.0),
    ];
    let mut ratios = Vec::new();
    for (metric, value) in [
        ("tensors_per_s", 1e6),
        ("gigabytes_per_s", 10.0),
        ("step_ms", 0.03),
        ("steps_per_s", 30_000.0),
        ("messages_per_step", 9.0),
        ("connect_all_ms", 50.0),
        ("cpu_percent", 0.4),
        ("rss_bytes_per_peer", 14_000.0),
        ("slowest_share", 0.96),
        ("gap_ms", 190.0),
        ("peer_gap_ms", 170.0),
        ("failed_calls", 0.0),
    ] {
        for (system, variant) in [
            ("sealane", "v"),
            ("raw", "v"),
            ("grpc", "unary"),
            ("grpc", "one message"),
            ("open", "v"),
            ("perftest", ""),
        ] {
            results
                .push(json!({"system":system,"variant":variant,"metric":metric,"value":value,"min":value,"max":value}));
        }
        ratios.push((metric, "sealane/raw", 0.8));
        ratios.push((metric, "sealane/grpc", 3.0));
        ratios.push((metric, "sealane/grpc, one message", 1.5));
        ratios.push((metric, "sealane/open", 0.35));
        ratios.push((metric, "1000 peers/10 peers", 0.7));
    }
    for (name, ratio) in [("sealane/raw", 1.25), ("sealane/grpc", 0.3333), ("sealane/open", 1.12)] {
        ratios.extend([("rtt_us.p50", name, ratio), ("rtt_us.p99", name, ratio)]);
    }
    let ratio =
        |(of, name, ratio): (&str, &str, f64)| json!({"name":name,"of":of,"median":ratio,"min":ratio,"max":ratio});
    json!({"machine": machine(), "results": results, "ratios": ratios.into_iter().map(ratio).collect::<Vec<_>>()})
}
