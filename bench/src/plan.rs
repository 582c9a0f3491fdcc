//! What to measure: the typed form of `sealane bench`'s flags, checked before anything starts.
//! The producer process gets the same plan.

mod tables;
mod training;
mod words;

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::limits::{
    IDLE_US_MAX, PEERS_MAX, ROUNDS_MAX, SECONDS_MAX, SHARED_BYTES_MAX, SIZE_BYTES_MAX, STEP_BYTES_MAX,
    STEP_TENSORS_MAX, WINDOW_MAX,
};

pub(crate) use tables::in_words;
pub use tables::{Skew, Tables};
pub(crate) use training::spread;
pub use training::{Mode, Size, Training, Variant};
pub use words::{Executor, Fuse, Keys, Registration, Security, SystemName, Transfer};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bench {
    /// Request and response of one tensor, one at a time: percentiles of the round trip.
    Latency,
    /// Small tensors a second, with a window of requests in flight.
    Rate,
    /// Large tensors, in 10^9 bytes a second.
    Bandwidth,
    /// Many peers that connect to one engine at once: how long it takes until all are greeted.
    Connect,
    /// Many peers that are connected to one engine and want nothing: what the engine costs meanwhile.
    Idle,
    /// Many peers that ask one engine for small tensors, and a few that do.
    FanIn,
    /// One step of many tensors.
    Fuse,
    /// A daemon that drains and is started anew under its clients: how long nothing reaches them.
    Restart,
    /// Many workers that train with several parameter servers.
    Ps,
    /// Workers that pull rows of tables.
    Rows,
}

/// What carries the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// Two processes and a TCP connection over the loopback interface.
    Tcp,
    /// Two processes of one host and memory that they share: a client, and the daemon that it sends and receives through.
    Shm,
    /// Two processes of one host and an RDMA device, which they greet each other for over the loopback interface.
    Verbs,
    /// Inside one process, without the kernel.
    Loopback,
}

/// A complete, serialisable description of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What is measured.
    pub bench: Bench,
    /// What carries the tensors. Default: tcp.
    pub link: Link,
    /// Bytes of a tensor. Default: 64; for bandwidth 4 MiB.
    pub size_bytes: usize,
    /// Counted seconds of each system in each round; the warm-up comes on top. Default: 1.
    pub seconds: f64,
    /// Rounds, in each of which every system is measured once. Default: 5.
    pub rounds: u32,
    /// Requests in flight at once; of each peer, where there are many. Default: 1 for latency, 256 for rate, 2 for
    /// bandwidth, 16 for fanin, 40 for fuse.
    pub window: usize,
    /// What is fused. Default: turn; plan for fuse.
    pub fuse: Fuse,
    /// Whether both sides spin instead of sleeping. Default: yes; no for connect, idle and restart, as an engine's own default is.
    /// Latency can do with either, and so can the engine of idle.
    pub polling: bool,
    /// Gap between two requests of a latency round, in microseconds. Default: 0.
    pub idle_us: u64,
    /// Peers of the engine, where that counts. Default: 64.
    pub peers: usize,
    /// Bytes of every tensor of a step; empty where there are no steps. Default: a thousand of 64 bytes.
    pub step: Vec<usize>,
    /// What the step is called, if it is a model's.
    pub workload: Option<String>,
    /// How large tensors move over verbs; `None` elsewhere. Default: write.
    pub transfer: Option<Transfer>,
    /// When memory is registered for verbs; `None` elsewhere. Default: static.
    pub registration: Option<Registration>,
    /// The parameter-server experiment; `None` elsewhere.
    pub training: Option<Training>,
    /// The tables of which rows are pulled, those of one size together; none elsewhere.
    pub tables: Vec<Tables>,
    /// What Sealane's two sides show each other. Default: nothing.
    pub security: Security,
    /// What Sealane's shards run on. Default: auto.
    pub executor: Executor,
    /// Congestion control of every TCP socket. Default: the kernel's.
    pub congestion: Option<String>,
    /// CPUs of the consumer and of the producer. Default: the first two that are allowed.
    pub cpus: Option<[usize; 2]>,
    /// What is measured beside Sealane, in turn with it.
    pub baselines: Vec<SystemName>,
}

impl Plan {
    /// The plan that `sealane bench BENCH` runs without flags.
    pub fn new(bench: Bench) -> Self {
        let (size_bytes, window) = match bench {
            Bench::Latency => (64, 1),
            Bench::Rate => (64, 256),
            Bench::Bandwidth => (4 << 20, 2),
            Bench::Connect | Bench::Idle | Bench::Restart => (64, 1),
            Bench::FanIn => (64, 16),
            Bench::Rows => (64, 1),
            Bench::Fuse => (64, 40),
            Bench::Ps => (1 << 10, 40),
        };
        let step = match bench {
            Bench::Fuse => vec![size_bytes; 1_000],
            Bench::Ps => vec![size_bytes; 100],
            _ => Vec::new(),
        };
        Self {
            bench,
            link: Link::Tcp,
            size_bytes,
            seconds: 1.0,
            rounds: 5,
            window,
            fuse: if matches!(bench, Bench::Fuse | Bench::Ps) { Fuse::Plan } else { Fuse::Turn },
            polling: !matches!(bench, Bench::Connect | Bench::Idle | Bench::Restart),
            idle_us: 0,
            peers: 64,
            training: match bench {
                Bench::Ps => Some(Training::of(&step)),
                Bench::Rows => Some(Training::of_rows()),
                _ => None,
            },
            tables: if bench == Bench::Rows { vec![Tables::default()] } else { Vec::new() },
            step,
            workload: None,
            transfer: None,
            registration: None,
            security: Security::None,
            executor: Executor::Auto,
            congestion: None,
            cpus: None,
            baselines: Vec::new(),
        }
    }

    /// Makes sure that the plan can be run.
    ///
    /// # Errors
    /// [`BenchError::Setting`] names the first flag that is outside its limits.
    pub fn check(&self) -> Result<(), BenchError> {
        within("--size", self.size_bytes, 1..=SIZE_BYTES_MAX)?;
        within("--rounds", self.rounds, 1..=ROUNDS_MAX)?;
        within("--window", self.window, 1..=WINDOW_MAX)?;
        within("--peers", self.peers, 1..=PEERS_MAX)?;
        within("--idle-us", self.idle_us, 0..=IDLE_US_MAX)?;
        if !(self.seconds > 0.0 && self.seconds <= SECONDS_MAX) {
            return Err(BenchError::setting(
                "--seconds",
                self.seconds,
                format!("more than 0 and at most {SECONDS_MAX}"),
            ));
        }
        if let Some(memory) = match self.link {
            Link::Shm => Some("shared"),
            Link::Verbs => Some("registered"),
            Link::Tcp | Link::Loopback => None,
        } {
            let most = SHARED_BYTES_MAX / self.size_bytes;
            if self.window > most {
                let accepted = format!("at most {most} with tensors of this size, which all lie in {memory} memory");
                return Err(BenchError::setting("--window", self.window, accepted));
            }
        }
        if !self.polling && matches!(self.bench, Bench::Rate | Bench::Bandwidth | Bench::FanIn | Bench::Fuse) {
            return Err(BenchError::setting("--polling", "off", "on; only latency and idle are measured asleep"));
        }
        self.check_fuse()?;
        self.check_links()?;
        self.check_trainees()?;
        self.check_verbs()?;
        self.check_security()?;
        self.check_step()?;
        if let Some([consumer, producer]) = self.cpus
            && consumer == producer
        {
            return Err(BenchError::setting("--cpus", format!("{consumer},{producer}"), "two different CPUs"));
        }
        Ok(())
    }

    /// One request for many where there are many, and over a link that can.
    fn check_fuse(&self) -> Result<(), BenchError> {
        let accepted: &[Fuse] = match (self.bench, self.link) {
            (Bench::FanIn, _) => &[Fuse::Turn, Fuse::Plan],
            (Bench::Ps, _) if self.has_hosted_workers() => {
                &[Fuse::Off, Fuse::Receive, Fuse::ReceiveWaitAll, Fuse::Plan]
            }
            (Bench::Ps, _) => &[Fuse::Off, Fuse::Turn, Fuse::Receive, Fuse::ReceiveWaitAll, Fuse::Plan],
            (Bench::Rate, Link::Tcp | Link::Verbs | Link::Loopback) => {
                &[Fuse::Off, Fuse::Turn, Fuse::Receive, Fuse::Plan, Fuse::Push]
            }
            (Bench::Rate, Link::Shm) => &[Fuse::Off, Fuse::Turn],
            (Bench::Fuse, Link::Shm) => &[Fuse::Receive, Fuse::Plan],
            (Bench::Fuse, _) => &[Fuse::Off, Fuse::Turn, Fuse::Receive, Fuse::Plan],
            _ => &[Fuse::Off, Fuse::Turn],
        };
        let variants = self.training.iter().flat_map(|training| &training.variants).map(|variant| variant.fuse);
        if let Some(refused) = variants.chain([self.fuse]).find(|fuse| !accepted.contains(fuse)) {
            let names: Vec<_> = accepted.iter().map(Fuse::to_string).collect();
            let how = if self.tables.is_empty() { format!("over {}", self.link) } else { "and --rows".to_owned() };
            let accepted = format!("{} with {} {how}", names.join(" or "), self.bench);
            return Err(BenchError::setting("--fuse", refused, accepted));
        }
        Ok(())
    }

    /// What only verbs can choose between is chosen over verbs alone.
    fn check_verbs(&self) -> Result<(), BenchError> {
        let transfer = self.transfer.map(|transfer| ("--transfer", transfer.to_string()));
        let registration = self.registration.map(|registration| ("--registration", registration.to_string()));
        match transfer.or(registration) {
            Some(("--registration", _)) if self.bench == Bench::Ps => Ok(()),
            Some((setting, value)) if self.link != Link::Verbs => {
                Err(BenchError::Setting { setting, value, accepted: "it with --link verbs alone".to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Only connections can be secured, and only what is secured can be compared with what is not.
    fn check_security(&self) -> Result<(), BenchError> {
        let is_secured = self.security != Security::None;
        let has_pair = matches!(self.bench, Bench::Latency | Bench::Rate | Bench::Bandwidth | Bench::Fuse);
        if is_secured && !(has_pair && self.link == Link::Tcp) {
            let accepted = "it with latency, rate, bandwidth or fuse over tcp alone";
            return Err(BenchError::setting("--security", self.security, accepted));
        }
        if self.tables.is_empty() && self.baselines.contains(&SystemName::Whole) {
            return Err(BenchError::setting("--baseline", SystemName::Whole, "it with rows, or with ps --rows"));
        }
        if !is_secured && self.baselines.contains(&SystemName::Open) {
            return Err(BenchError::setting("--baseline", SystemName::Open, "it with --security secret or tls alone"));
        }
        Ok(())
    }

    /// How tensors move, and when their memory is registered; `None` where the link is not verbs.
    pub fn verbs(&self) -> Option<(Transfer, Registration)> {
        let chosen = (self.transfer.unwrap_or_default(), self.registration.unwrap_or_default());
        (self.link == Link::Verbs).then_some(chosen)
    }

    /// A step that both sides have room for.
    fn check_step(&self) -> Result<(), BenchError> {
        if let Some(training) = &self.training {
            training.check()?;
        }
        tables::check(&self.tables)?;
        if !matches!(self.bench, Bench::Fuse | Bench::Ps) {
            return Ok(());
        }
        within("--tensors", self.step.len(), 1..=STEP_TENSORS_MAX)?;
        for bytes in &self.step {
            within("--size", *bytes, 1..=SIZE_BYTES_MAX)?;
        }
        let sum = self.step.iter().sum::<usize>();
        if sum > STEP_BYTES_MAX {
            let given = format!("{} with {sum} bytes in all", self.step.len());
            return Err(BenchError::setting("--tensors", given, format!("at most {STEP_BYTES_MAX} bytes a step")));
        }
        Ok(())
    }

    /// Not every link and baseline has what a measurement needs.
    fn check_links(&self) -> Result<(), BenchError> {
        let (links, baselines): (&[Link], &[SystemName]) = match self.bench {
            Bench::Connect => (&[Link::Tcp], &[SystemName::Raw]),
            Bench::Idle => (&[Link::Tcp, Link::Shm], &[]),
            Bench::Restart => (&[Link::Tcp], &[]),
            Bench::FanIn => (&[Link::Tcp], &[SystemName::Raw]),
            Bench::Ps if !self.tables.is_empty() => (&[Link::Tcp, Link::Shm], &[SystemName::Whole]),
            Bench::Ps if self.link == Link::Shm => (&[Link::Shm], &[]),
            Bench::Ps => (&[Link::Tcp, Link::Shm, Link::Verbs], &[SystemName::Grpc]),
            Bench::Rows if self.link == Link::Shm => (&[Link::Shm], &[SystemName::Raw]),
            Bench::Rows => (&[Link::Tcp, Link::Shm], &[SystemName::Raw, SystemName::Grpc, SystemName::Whole]),
            Bench::Fuse if self.link == Link::Shm => (&[Link::Shm], &[]),
            Bench::Fuse if self.link == Link::Verbs => (&[Link::Verbs], &[SystemName::Grpc]),
            Bench::Fuse => (&[Link::Tcp, Link::Shm], &[SystemName::Raw, SystemName::Grpc, SystemName::Open]),
            // What perftest has no program for.
            Bench::Rate if self.link == Link::Verbs => (&[Link::Verbs], &[SystemName::Grpc, SystemName::GrpcStream]),
            Bench::Latency | Bench::Rate | Bench::Bandwidth if self.link != Link::Loopback => return Ok(()),
            Bench::Latency | Bench::Rate | Bench::Bandwidth => {
                (&[Link::Loopback], &[SystemName::Raw, SystemName::Grpc, SystemName::GrpcStream, SystemName::Open])
            }
        };
        let setting = |setting, value, accepted| Err(BenchError::Setting { setting, value, accepted });
        if !links.contains(&self.link) {
            let names: Vec<_> = links.iter().map(Link::to_string).collect();
            return setting("--link", self.link.to_string(), format!("{} with {}", names.join(" or "), self.bench));
        }
        match self.baselines.iter().find(|baseline| !baselines.contains(baseline)) {
            None => Ok(()),
            Some(other) if baselines.is_empty() => {
                setting("--baseline", other.to_string(), format!("none with {} over {}", self.bench, self.link))
            }
            Some(other) => {
                let names: Vec<_> = baselines.iter().map(SystemName::to_string).collect();
                let what = match self.link {
                    Link::Verbs => format!("{} over verbs", self.bench),
                    _ => self.bench.to_string(),
                };
                setting("--baseline", other.to_string(), format!("only {} with {what}", names.join(" or ")))
            }
        }
    }

    /// The plan of one variant of the parameter-server experiment.
    pub(crate) fn with_variant(&self, variant: Variant) -> Self {
        let Variant { size, request_buffers: window, registration, fuse, polling } = variant;
        let of_one = |whole: Training| Training { size: size.unwrap_or(whole.size), variants: vec![variant], ..whole };
        let training = self.training.clone().map(of_one);
        Self { window, fuse, polling, registration: Some(registration), training, ..self.clone() }
    }

    /// Whether workers of the parameter-server experiment are tasks, each with a thread, which a session over TCP has not.
    pub(crate) fn has_hosted_workers(&self) -> bool {
        self.link == Link::Shm || !self.tables.is_empty()
    }

    /// The plan in which the tables are variables like the others, after them, and pulled whole.
    pub(crate) fn with_whole_tables(&self) -> Self {
        let each = self.tables.iter().flat_map(Tables::each).map(|table| table.bytes() as usize);
        Self { step: self.step.iter().copied().chain(each).collect(), tables: Vec::new(), ..self.clone() }
    }

    /// The counted length of one round.
    pub fn round_length(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// The gap before each request of a latency round, if there is one.
    pub fn idle(&self) -> Option<Duration> {
        (self.idle_us > 0).then(|| Duration::from_micros(self.idle_us))
    }
}

/// Makes sure that a setting is within its limits.
pub(crate) fn within<T: PartialOrd + fmt::Display>(
    setting: &'static str,
    value: T,
    limits: RangeInclusive<T>,
) -> Result<(), BenchError> {
    if limits.contains(&value) {
        return Ok(());
    }
    Err(BenchError::setting(setting, value, format!("{} to {}", limits.start(), limits.end())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_plans_are_valid() {
        for bench in [
            Bench::Latency,
            Bench::Rate,
            Bench::Bandwidth,
            Bench::Connect,
            Bench::Idle,
            Bench::FanIn,
            Bench::Fuse,
            Bench::Restart,
            Bench::Ps,
            Bench::Rows,
        ] {
            Plan::new(bench).check().expect("defaults are valid");
        }
    }

    #[test]
    fn a_setting_outside_its_limits_is_named() {
        type Spoil = fn(&mut Plan);
        let cases: [(&str, Spoil); 34] = [
            ("--size", |plan| plan.size_bytes = 0),
            ("--size", |plan| plan.size_bytes = SIZE_BYTES_MAX + 1),
            ("--rounds", |plan| plan.rounds = 0),
            ("--window", |plan| plan.window = WINDOW_MAX + 1),
            ("--idle-us", |plan| plan.idle_us = IDLE_US_MAX + 1),
            ("--seconds", |plan| plan.seconds = 0.0),
            ("--seconds", |plan| plan.seconds = f64::NAN),
            ("--polling", |plan| plan.polling = false),
            ("--fuse", |plan| *plan = Plan { fuse: Fuse::Plan, ..Plan::new(Bench::Latency) }),
            ("--fuse", |plan| *plan = Plan { fuse: Fuse::Receive, link: Link::Shm, ..Plan::new(Bench::Rate) }),
            ("--fuse", |plan| *plan = Plan { fuse: Fuse::Off, ..Plan::new(Bench::FanIn) }),
            ("--cpus", |plan| plan.cpus = Some([1, 1])),
            ("--peers", |plan| plan.peers = 0),
            ("--peers", |plan| plan.peers = PEERS_MAX + 1),
            ("--link", |plan| *plan = Plan { link: Link::Shm, ..Plan::new(Bench::Connect) }),
            ("--baseline", |plan| *plan = Plan { baselines: vec![SystemName::Grpc], ..Plan::new(Bench::Connect) }),
            ("--baseline", |plan| *plan = Plan { baselines: vec![SystemName::Raw], ..Plan::new(Bench::Idle) }),
            ("--baseline", |plan| *plan = Plan { baselines: vec![SystemName::Grpc], ..Plan::new(Bench::FanIn) }),
            ("--link", |plan| *plan = Plan { link: Link::Loopback, ..Plan::new(Bench::Fuse) }),
            ("--link", |plan| *plan = Plan { link: Link::Verbs, ..Plan::new(Bench::Connect) }),
            ("--link", |plan| *plan = Plan { link: Link::Verbs, ..Plan::new(Bench::Idle) }),
            ("--link", |plan| *plan = Plan { link: Link::Verbs, ..Plan::new(Bench::FanIn) }),
            ("--link", |plan| *plan = Plan { link: Link::Shm, ..Plan::new(Bench::Restart) }),
            ("--baseline", |plan| *plan = Plan { baselines: vec![SystemName::Raw], ..Plan::new(Bench::Restart) }),
            ("--transfer", |plan| plan.transfer = Some(Transfer::Write)),
            ("--registration", |plan| plan.registration = Some(Registration::Static)),
            ("--polling", |plan| *plan = Plan { link: Link::Verbs, polling: false, ..Plan::new(Bench::Rate) }),
            ("--security", |plan| *plan = Plan { security: Security::Tls, link: Link::Shm, ..Plan::new(Bench::Rate) }),
            ("--security", |plan| *plan = Plan { security: Security::Secret, ..Plan::new(Bench::FanIn) }),
            ("--baseline", |plan| plan.baselines = vec![SystemName::Open]),
            ("--baseline", |plan| *plan = Plan { baselines: vec![SystemName::GrpcStream], ..Plan::new(Bench::Fuse) }),
            ("--tensors", |plan| *plan = Plan { step: Vec::new(), ..Plan::new(Bench::Fuse) }),
            ("--tensors", |plan| *plan = Plan { step: vec![SIZE_BYTES_MAX; 5], ..Plan::new(Bench::Fuse) }),
            ("--size", |plan| *plan = Plan { step: vec![64, 0], ..Plan::new(Bench::Fuse) }),
        ];
        for (flag, spoil) in cases {
            let mut plan = Plan::new(Bench::Rate);
            spoil(&mut plan);
            let error = plan.check().expect_err(flag);
            assert!(error.is_usage());
            assert!(error.to_string().starts_with(flag), "{error}");
        }
    }

    #[test]
    fn a_plan_over_verbs_has_its_own_choices() {
        for bench in [Bench::Latency, Bench::Rate, Bench::Bandwidth, Bench::Fuse] {
            let mut plan = Plan { link: Link::Verbs, ..Plan::new(bench) };
            plan.check().expect("it is measured over verbs");
            let with_raw = Plan { baselines: vec![SystemName::Raw], ..plan.clone() };
            let has_perftest = matches!(bench, Bench::Latency | Bench::Bandwidth);
            assert_eq!(with_raw.check().is_ok(), has_perftest, "{bench}");
            assert_eq!(plan.verbs(), Some((Transfer::Write, Registration::Static)));
            plan.transfer = Some(Transfer::Read);
            plan.registration = Some(Registration::Dynamic);
            plan.check().expect("both can be chosen");
            assert_eq!(plan.verbs(), Some((Transfer::Read, Registration::Dynamic)));
            assert_eq!(Plan::new(bench).verbs(), None);
        }
        let plan = Plan { link: Link::Verbs, ..Plan::new(Bench::Connect) };
        let error = plan.check().expect_err("nobody connects by verbs alone");
        assert_eq!(error.to_string(), "--link is verbs; give tcp with connect");
    }

    #[test]
    fn a_window_that_no_shared_memory_holds_is_refused() {
        let mut plan = Plan { link: Link::Shm, window: SHARED_BYTES_MAX / (4 << 20), ..Plan::new(Bench::Bandwidth) };
        plan.check().expect("it fits exactly");
        plan.window += 1;
        let error = plan.check().expect_err("one too many");
        assert!(error.is_usage() && error.to_string().starts_with("--window is 257; give at most 256"), "{error}");
        plan.link = Link::Verbs;
        let error = plan.check().expect_err("one too many");
        assert!(error.is_usage() && error.to_string().ends_with("registered memory"), "{error}");
        plan.link = Link::Tcp;
        plan.check().expect("other links share no memory");
    }

    #[test]
    fn a_plan_survives_the_way_to_the_producer() {
        let mut plan = Plan::new(Bench::Bandwidth);
        plan.congestion = Some("reno".to_owned());
        plan.baselines = vec![SystemName::Grpc];
        let text = serde_json::to_string(&plan).expect("serialisable");
        assert_eq!(serde_json::from_str::<Plan>(&text).expect("readable"), plan);
    }
}
