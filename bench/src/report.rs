//! The report of a run: the JSON that scripts rely on.

use serde::{Deserialize, Serialize};

use crate::machine::RdmaDevice;
use crate::plan::{Bench, Executor, Fuse, Link, Mode, Plan, Registration, Security, Tables, Transfer};
use crate::run::Measured;
use crate::sample::Metric;
use crate::spread::{Ratio, Spread, ratios, rounded};
use sealane_cli::machine::Machine;

/// Names the JSON's shape; another shape gets another number.
pub const SCHEMA: &str = "sealane-bench/1";

/// As `build.rs` found it.
const PROFILE: &str = env!("SEALANE_PROFILE");

/// Everything that a run found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// What was measured.
    pub bench: Bench,
    /// What carried the tensors.
    pub link: Link,
    /// With which settings.
    pub parameters: Parameters,
    /// On which machine.
    pub machine: Machine,
    /// One row a system and metric.
    pub results: Vec<ResultRow>,
    /// Quotients of Sealane's figures and the baselines', taken round by round.
    pub ratios: Vec<Ratio>,
    /// Why the figures may not be those of the systems: other work on the machine, uneven rounds.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
}

/// The settings of a run, as far as they can change its figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// Bytes of a tensor.
    pub size_bytes: usize,
    /// How often each system was measured.
    pub rounds: u32,
    /// Counted seconds of each measurement.
    pub seconds: f64,
    /// Requests in flight at once.
    pub window: usize,
    /// Whether small messages were fused.
    pub fuse: Fuse,
    /// Whether both sides spun.
    pub polling: Switch,
    /// Gap before each request, in microseconds.
    pub idle_us: u64,
    /// Tensors of a step; `None` without steps.
    pub tensors: Option<usize>,
    /// Bytes of a step; `None` without steps.
    pub step_bytes: Option<usize>,
    /// The model whose step it is; `None` where all tensors have one size.
    pub workload: Option<String>,
    /// Peers of the engine; `None` where there is one.
    pub peers: Option<usize>,
    /// Workers of the parameter-server experiment; `None` elsewhere, as with what follows.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub workers: Option<usize>,
    /// Its parameter servers.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ps: Option<usize>,
    /// Who waited for whom between two steps.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<Mode>,
    /// How long a worker computed in each step, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub compute_us: Option<u64>,
    /// The tables of which rows were pulled.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub tables: Vec<Tables>,
    /// What Sealane's two sides showed each other.
    pub security: Security,
    /// What Sealane's shards were to run on.
    pub executor: Executor,
    /// The congestion control of every socket, read back from one; `None` without TCP.
    pub congestion: Option<String>,
    /// How large tensors moved; `None` where the link is not verbs.
    pub transfer: Option<Transfer>,
    /// When memory was registered; `None` where the link is not verbs.
    pub registration: Option<Registration>,
    /// The RDMA device that they moved through; `None` where the link is not verbs.
    pub device: Option<RdmaDevice>,
    /// The profile of Cargo with which this program was built: debug, release, or dist, which published figures have.
    #[serde(default)]
    pub profile: String,
}

/// What carried the tensors, as the systems found it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Carrier {
    /// The congestion control of every socket; `None` without TCP.
    pub(crate) congestion: Option<String>,
    /// The RDMA device, if there was one.
    pub(crate) device: Option<RdmaDevice>,
}

/// On or off, as flags spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// One metric of one system over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultRow {
    /// The system's name.
    pub system: String,
    /// How it was run.
    pub variant: String,
    /// Which metric this is.
    pub metric: Metric,
    /// Its figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// The figures of a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Figures {
    /// Of all round trips of all rounds together, in microseconds.
    RoundTrips {
        /// Half are at most this long.
        p50: f64,
        /// 90 % are.
        p90: f64,
        /// 99 % are.
        p99: f64,
        /// 99.9 % are.
        p999: f64,
        /// The longest.
        max: f64,
        /// How many there were.
        count: u64,
    },
    /// Of the rounds' values.
    Value {
        /// The median round.
        value: f64,
        /// The lowest round.
        min: f64,
        /// The highest round.
        max: f64,
    },
}

impl Report {
    /// Puts a report together.
    pub(crate) fn new(plan: &Plan, machine: Machine, carrier: Carrier, measured: &[Measured]) -> Self {
        let steps = matches!(plan.bench, Bench::Fuse | Bench::Ps);
        let training = plan.training.as_ref();
        Self {
            schema: SCHEMA.to_owned(),
            bench: plan.bench,
            link: plan.link,
            parameters: Parameters {
                size_bytes: plan.size_bytes,
                rounds: plan.rounds,
                seconds: plan.seconds,
                window: plan.window,
                fuse: plan.fuse,
                polling: if plan.polling { Switch::On } else { Switch::Off },
                idle_us: plan.idle_us,
                tensors: steps.then_some(plan.step.len()),
                step_bytes: steps.then(|| plan.step.iter().sum()),
                workload: plan.workload.clone(),
                peers: matches!(plan.bench, Bench::Connect | Bench::Idle | Bench::FanIn).then_some(plan.peers),
                workers: training.map(|training| training.size.workers),
                ps: training.map(|training| training.size.ps),
                mode: training.filter(|_| steps).map(|training| training.mode),
                compute_us: training.filter(|_| steps).map(|training| training.compute_us),
                tables: plan.tables.clone(),
                security: plan.security,
                executor: plan.executor,
                congestion: carrier.congestion,
                transfer: plan.verbs().map(|(transfer, _)| transfer),
                registration: plan.verbs().map(|(_, registration)| registration),
                device: carrier.device,
                profile: PROFILE.to_owned(),
            },
            machine,
            results: measured.iter().flat_map(rows).collect(),
            ratios: ratios(measured),
            warnings: Vec::new(),
        }
    }

    /// The JSON text, with a line break at its end.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a report has only named fields and finite numbers");
        text.push('\n');
        text
    }
}

fn rows(measured: &Measured) -> Vec<ResultRow> {
    let row = |metric, figures| ResultRow {
        system: measured.system.to_owned(),
        variant: measured.variant.clone(),
        metric,
        figures,
    };
    let round_trips = measured.all_round_trips().map(|all| {
        let at = |quantile| rounded(all.value_at_quantile(quantile) as f64 / 1_000.0);
        let figures = Figures::RoundTrips {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: rounded(all.max() as f64 / 1_000.0),
            count: all.len(),
        };
        row(Metric::RoundTrip, figures)
    });
    let values = measured.metrics().into_iter().filter_map(|metric| {
        let Spread { median, min, max } = Spread::of(&measured.values(metric))?;
        Some(row(metric, Figures::Value { value: median, min, max }))
    });
    round_trips.into_iter().chain(values).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;
    use crate::sample::{Sample, round_trip_histogram};

    fn machine() -> Machine {
        Machine { cpus: 2, cpu_model: "Abacus 9".to_owned(), kernel: "6.18".to_owned(), pinned: vec![0, 1] }
    }

    fn bbr() -> Carrier {
        Carrier { congestion: Some("bbr".into()), device: None }
    }

    fn latencies(system: &'static str, nanoseconds: u64) -> Measured {
        let mut histogram = round_trip_histogram();
        histogram.saturating_record(nanoseconds);
        Measured { system, variant: "polling".to_owned(), samples: vec![Sample::round_trips(histogram)] }
    }

    fn keys(value: &Value) -> BTreeSet<&str> {
        value.as_object().expect("an object").keys().map(String::as_str).collect()
    }

    /// The example of the command line's description, which scripts are written by.
    fn example() -> Value {
        json!({"schema":"sealane-bench/1","bench":"latency","link":"tcp",
            "parameters":{"size_bytes":64,"rounds":5},
            "machine":{"cpus":2,"cpu_model":"...","kernel":"...","pinned":[0,1]},
            "results":[{"system":"sealane","variant":"polling","metric":"rtt_us","p50":8.0,
                "p90":8.2,"p99":9.9,"p999":30.1,"max":412.0,"count":100000}],
            "ratios":[{"name":"sealane/raw","of":"rtt_us.p50","median":1.16,"min":1.12,"max":1.21}]})
    }

    #[test]
    fn latency_has_the_documented_shape() {
        let measured = [latencies("sealane", 8_000), latencies("raw", 6_400)];
        let report = Report::new(&Plan::new(Bench::Latency), machine(), bbr(), &measured);
        let made: Value = serde_json::from_str(&report.to_json()).expect("valid JSON");
        let documented = example();
        assert_eq!(keys(&made), keys(&documented));
        assert_eq!(made["schema"], documented["schema"]);
        assert_eq!(made["link"], documented["link"]);
        assert_eq!(keys(&made["machine"]), keys(&documented["machine"]));
        assert_eq!(keys(&made["results"][0]), keys(&documented["results"][0]));
        assert_eq!(keys(&made["ratios"][0]), keys(&documented["ratios"][0]));
        assert_eq!(made["ratios"][0]["name"], "sealane/raw");
        assert_eq!(made["ratios"][0]["of"], "rtt_us.p50");
        assert_eq!(made["results"][1]["system"], "raw");
        assert!(keys(&made["parameters"]).is_superset(&keys(&documented["parameters"])));
        assert_eq!(made["parameters"]["congestion"], "bbr");
        assert_eq!(made["parameters"]["polling"], "on");
        assert_eq!(made["parameters"]["fuse"], "turn");
        let profile = made["parameters"]["profile"].as_str().expect("a word");
        assert_eq!(profile == "debug", cfg!(debug_assertions), "{profile}");
    }

    #[test]
    fn other_metrics_carry_a_value_with_its_spread() {
        let samples = [30.0, 10.0, 20.0].map(|v| Sample::figure(Metric::TensorsPerSecond, v));
        let measured = Measured { system: "raw", variant: "fused".into(), samples: samples.to_vec() };
        let report = Report::new(&Plan::new(Bench::Rate), machine(), Carrier::default(), &[measured]);
        let made: Value = serde_json::from_str(&report.to_json()).expect("valid JSON");
        let row = json!({"system":"raw","variant":"fused","metric":"tensors_per_s",
            "value":20.0,"min":10.0,"max":30.0});
        assert_eq!(made["results"], json!([row]));
        assert_eq!(made["ratios"], json!([]));
        assert_eq!(made["parameters"]["congestion"], Value::Null);
    }

    #[test]
    fn verbs_are_described_by_their_device_and_how_it_is_used() {
        let device = RdmaDevice { name: "rxe0".into(), port: 1, gid_index: 1, mtu: 1024 };
        let plan = Plan { link: Link::Verbs, transfer: Some(Transfer::Read), ..Plan::new(Bench::Latency) };
        let carrier = Carrier { congestion: None, device: Some(device) };
        let report = Report::new(&plan, machine(), carrier, &[latencies("sealane", 8_000)]);
        let made: Value = serde_json::from_str(&report.to_json()).expect("valid JSON");
        let parameters = &made["parameters"];
        assert_eq!((&made["link"], &parameters["transfer"]), (&json!("verbs"), &json!("read")));
        assert_eq!(parameters["registration"], "static");
        assert_eq!(parameters["device"], json!({"name":"rxe0","port":1,"gid_index":1,"mtu":1024}));
        assert!(report.to_table().contains("rxe0 with MTU 1024"), "{}", report.to_table());
        let report = Report::new(&Plan::new(Bench::Latency), machine(), bbr(), &[]);
        assert_eq!((report.parameters.transfer, report.parameters.registration), (None, None));
    }

    #[test]
    fn a_report_can_be_read_back() {
        let measured = [latencies("sealane", 8_000), latencies("raw", 6_400)];
        let report = Report::new(&Plan::new(Bench::Latency), machine(), Carrier::default(), &measured);
        let read: Report = serde_json::from_str(&report.to_json()).expect("readable");
        assert_eq!(read, report);
    }
}
