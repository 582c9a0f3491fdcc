//! What to measure: the typed form of `sealane bench`'s flags, checked before anything starts. The producer process gets the same
//! plan.

mod collectives;
mod tables;
mod training;
mod words;

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use sealane_transport::endpoint_map::TaskName;
use sealane_transport::shm::limits::INLINE_BYTES_MAX;

use crate::error::BenchError;
use crate::limits::{
    IDLE_US_MAX, PEERS_MAX, ROUNDS_MAX, SECONDS_MAX, SHARED_BYTES_MAX, SIZE_BYTES_MAX, STEP_BYTES_MAX,
    STEP_TENSORS_MAX, WINDOW_MAX,
};

pub use collectives::{Collective, Collectives};
pub use tables::{Skew, Tables};
pub(crate) use training::spread;
pub use training::{Mode, Size, Training, Variant};
pub(crate) use words::Executor;
pub use words::{Fuse, Keys, Registration, Security, SystemName, Transfer};

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
    /// The ranks of a group that make a call together.
    Collectives,
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

/// A complete, serialisable description of one run: what all benches have as flags, and what each has of its own.
#[derive(Clone, Debug, PartialEq, clap::Args, Serialize, Deserialize)]
pub struct Plan {
    /// What is measured.
    #[arg(skip = Bench::Latency)]
    pub bench: Bench,

    /// The link that carries the tensors: tcp, shm, verbs or loopback
    #[arg(long, default_value_t = Link::Tcp)]
    pub link: Link,

    /// Over verbs: whether the producer writes large tensors into the consumer's memory, or the consumer reads them from the
    /// producer's [default: write]
    #[arg(long, value_name = "write|read")]
    pub transfer: Option<Transfer>,

    /// Over verbs: whether memory is registered with the device once, or for each transfer; with ps over tcp or shm: whether it
    /// is reused, or allocated for each transfer. With ps, a list gives variants [default: static]
    #[arg(long, value_name = "static|dynamic", value_delimiter = ',')]
    pub registration: Vec<Registration>,

    /// Measured seconds of each system in each round, after its warm-up; not used by connect
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub seconds: f64,

    /// Number of rounds; each measures every system once
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: u32,

    /// Over tcp: authentication of Sealane's two sides: none, a shared secret, or TLS, which also encrypts
    #[arg(long, value_name = "none|secret|tls", default_value_t = Security::None)]
    pub security: Security,

    /// Executor of Sealane's shards; auto: io_uring where available, else epoll
    #[arg(long, value_name = "auto|io_uring|epoll", default_value_t = Executor::Auto)]
    pub executor: Executor,

    /// Also measure raw (the bare operation of the kernel, memory or RDMA device), grpc (unary calls), grpc-stream (one stream)
    /// and stream (Sealane's streams of bytes; both with latency, rate and bandwidth), over shm direct (a direct lane; with latency and
    /// rate), with rows and ps --rows, whole (tables as a
    /// whole), with collectives gloo (PyTorch's), or, with --security, open (Sealane without it); repeatable
    #[arg(long = "baseline", value_name = "raw|grpc|grpc-stream|stream|direct|whole|open|gloo")]
    pub baselines: Vec<SystemName>,

    /// CPUs of the consumer and the producer, as in 0,1 [default: the first two allowed]
    #[arg(long, value_name = "A,B", value_parser = two_cpus)]
    pub cpus: Option<[usize; 2]>,

    /// Between hosts: Sealane is what two training processes get, which are attached to the daemons of their hosts: as TASK here, and as
    /// PEER there; both must be in the endpoint maps of both daemons
    #[arg(long, value_name = "TASK,PEER", value_parser = two_tasks)]
    pub daemon: Option<[String; 2]>,

    /// TCP congestion control of every system [default: the kernel's]
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,

    /// Bytes of a tensor. Default: 64; for bandwidth 4 MiB.
    #[arg(skip)]
    pub size_bytes: usize,
    /// Requests in flight at once; of each peer, where there are many. Default: 1 for latency, 256 for rate, 2 for
    /// bandwidth, 16 for fanin, 40 for fuse.
    #[arg(skip)]
    pub window: usize,
    /// What is fused. Default: turn; plan for fuse.
    #[arg(skip)]
    pub fuse: Fuse,
    /// Whether both sides spin instead of sleeping. Default: yes; no for connect, idle, restart and collectives.
    /// Latency can do with either, and so can the engine of idle.
    #[arg(skip)]
    pub polling: bool,
    /// Gap between two requests of a latency round, in microseconds. Default: 0.
    #[arg(skip)]
    pub idle_us: u64,
    /// Peers of the engine, where that counts. Default: 64.
    #[arg(skip)]
    pub peers: usize,
    /// Bytes of every tensor of a step; empty where there are no steps. Default: a thousand of 64 bytes.
    #[arg(skip)]
    pub step: Vec<usize>,
    /// What the step is called, if it is a model's.
    #[arg(skip)]
    pub workload: Option<String>,
    /// The parameter-server experiment; `None` elsewhere.
    #[arg(skip)]
    pub training: Option<Training>,
    /// The call of a group's ranks; `None` elsewhere.
    #[arg(skip)]
    pub collectives: Option<Collectives>,
    /// The tables of which rows are pulled, those of one size together; none elsewhere.
    #[arg(skip)]
    pub tables: Vec<Tables>,
}

fn two_cpus(text: &str) -> Result<[usize; 2], String> {
    let cpus: Option<Vec<usize>> = text.split(',').map(|cpu| cpu.trim().parse().ok()).collect();
    cpus.and_then(|cpus| cpus.try_into().ok()).ok_or_else(|| "write two CPU numbers, as in 0,1".to_owned())
}

fn two_tasks(text: &str) -> Result<[String; 2], String> {
    let tasks = text.split(',').map(|task| task.trim().parse::<TaskName>().map(|task| task.to_string()));
    let tasks: Vec<String> = tasks.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    match <[String; 2]>::try_from(tasks) {
        Ok([task, peer]) if task != peer => Ok([task, peer]),
        _ => Err("write two different tasks, as in worker0:2222,ps0:2222".to_owned()),
    }
}

/// What a bench can be measured with over a link.
struct Offer {
    links: &'static [Link],
    baselines: &'static [SystemName],
    fuses: &'static [Fuse],
}

impl Plan {
    /// The plan that `sealane bench BENCH` runs without flags.
    pub fn new(bench: Bench) -> Self {
        let none = <Self as clap::Args>::augment_args(clap::Command::new("bench").no_binary_name(true));
        let none = none.get_matches_from([""; 0]);
        let flags = <Self as clap::FromArgMatches>::from_arg_matches(&none).expect("no flag is required");
        flags.of(bench)
    }

    /// These flags, with the defaults of that bench.
    pub(crate) fn of(self, bench: Bench) -> Self {
        let (size_bytes, window) = match bench {
            Bench::Rate => (64, 256),
            Bench::Bandwidth => (4 << 20, 2),
            Bench::FanIn => (64, 16),
            Bench::Fuse => (64, 40),
            Bench::Ps => (1 << 10, 40),
            Bench::Latency | Bench::Connect | Bench::Idle | Bench::Restart | Bench::Rows => (64, 1),
            Bench::Collectives => (64 << 10, 1),
        };
        let step = match bench {
            Bench::Fuse => vec![size_bytes; 1_000],
            Bench::Ps => vec![size_bytes; 100],
            _ => Vec::new(),
        };
        let training = match bench {
            Bench::Ps => Some(Training::of(&step)),
            Bench::Rows => Some(Training::of_rows()),
            _ => None,
        };
        Self {
            bench,
            size_bytes,
            window,
            fuse: if matches!(bench, Bench::Fuse | Bench::Ps) { Fuse::Plan } else { Fuse::Turn },
            polling: !matches!(bench, Bench::Connect | Bench::Idle | Bench::Restart | Bench::Collectives),
            peers: 64,
            step,
            training,
            collectives: (bench == Bench::Collectives).then(Collectives::default),
            tables: if bench == Bench::Rows { vec![Tables::default()] } else { Vec::new() },
            ..self
        }
    }

    /// Makes sure that the plan can be run.
    ///
    /// # Errors
    /// [`BenchError::Setting`] names the first flag that is outside its limits.
    pub fn check(&self) -> Result<(), BenchError> {
        within("--size", self.size_bytes, 1, SIZE_BYTES_MAX)?;
        within("--rounds", self.rounds as usize, 1, ROUNDS_MAX as usize)?;
        within("--window", self.window, 1, WINDOW_MAX)?;
        within("--peers", self.peers, 1, PEERS_MAX)?;
        within("--idle-us", self.idle_us as usize, 0, IDLE_US_MAX as usize)?;
        if !(self.seconds > 0.0 && self.seconds <= SECONDS_MAX) {
            let accepted = format!("more than 0 and at most {SECONDS_MAX}");
            return Err(BenchError::setting("--seconds", self.seconds, accepted));
        }
        let refuse = |is_refused: bool, flag, value: &dyn ToString, accepted: &str| {
            if is_refused { Err(BenchError::setting(flag, value.to_string(), accepted)) } else { Ok(()) }
        };
        let has_none =
            matches!(self.bench, Bench::Connect | Bench::Idle | Bench::FanIn | Bench::Restart | Bench::Collectives);
        let of_daemons = "it with latency, rate, bandwidth, fuse, rows or ps";
        refuse(self.daemon.is_some() && has_none, "--daemon", &format!("of {}", self.bench), of_daemons)?;
        self.check_offer()?;
        let most = SHARED_BYTES_MAX / self.size_bytes;
        let is_crowded = matches!(self.link, Link::Shm | Link::Verbs) && self.window > most;
        let accepted = format!("at most {most} with tensors of this size, which all lie in memory of {}", self.link);
        refuse(is_crowded, "--window", &self.window, &accepted)?;
        let spins = matches!(self.bench, Bench::Rate | Bench::Bandwidth | Bench::FanIn | Bench::Fuse);
        refuse(spins && !self.polling, "--polling", &"off", "on; only latency and idle are measured asleep")?;
        let [is_tcp, is_verbs] = [Link::Tcp, Link::Verbs].map(|link| link == self.link);
        let (of_verbs, registration) = ("it with --link verbs alone", self.registration());
        refuse(self.transfer.is_some() && !is_verbs, "--transfer", &self.transfer.unwrap_or_default(), of_verbs)?;
        if self.bench != Bench::Ps {
            refuse(!self.registration.is_empty() && !is_verbs, "--registration", &registration, of_verbs)?;
            let of_ps = "static or dynamic, or lists with `bench ps`";
            refuse(self.registration.len() > 1, "--registration", &"a list", of_ps)?;
        }
        // Only connections can be secured, and only secured ones can be compared with open ones.
        let has_pair = matches!(self.bench, Bench::Latency | Bench::Rate | Bench::Bandwidth | Bench::Fuse);
        let (is_secured, of_pairs) =
            (self.security != Security::None, "it with latency, rate, bandwidth or fuse over tcp alone");
        refuse(is_secured && !(has_pair && is_tcp), "--security", &self.security, of_pairs)?;
        let is_open = !is_secured && self.baselines.contains(&SystemName::Open);
        refuse(is_open, "--baseline", &SystemName::Open, "it with --security secret or tls alone")?;
        let is_direct = self.baselines.contains(&SystemName::Direct);
        let accepted = format!("at most {INLINE_BYTES_MAX} with --baseline direct: larger tensors go by the daemon");
        refuse(is_direct && self.size_bytes > INLINE_BYTES_MAX, "--size", &self.size_bytes, &accepted)?;
        let is_pushed = is_direct && self.fuse == Fuse::Push;
        refuse(is_pushed, "--fuse", &self.fuse, "off or turn with --baseline direct: pushes go by the daemon")?;
        let is_one = self.cpus.is_some_and(|[consumer, producer]| consumer == producer);
        refuse(is_one, "--cpus", &"one twice", "two different CPUs")?;
        if let Some(collectives) = &self.collectives {
            collectives.check(self.size_bytes)?;
        }
        self.check_trainees()?;
        self.check_step()
    }

    /// Makes sure that the plan can be measured between two hosts.
    ///
    /// # Errors
    /// [`BenchError::Setting`].
    pub(crate) fn check_between_hosts(&self) -> Result<(), BenchError> {
        let refused = |setting, value: &dyn ToString, accepted: &str| {
            Err(BenchError::setting(setting, value.to_string(), accepted))
        };
        if matches!(self.bench, Bench::Connect | Bench::Idle | Bench::FanIn | Bench::Restart) {
            return refused("--connect", &self.bench, "it with another bench, or leave it out");
        }
        if self.baselines.contains(&SystemName::Gloo) {
            return refused("--baseline", &SystemName::Gloo, "it without --connect: this host starts all of its ranks");
        }
        if !matches!(self.link, Link::Tcp | Link::Verbs) {
            return refused("--link", &self.link, "tcp or verbs with --connect: other links do not leave a host");
        }
        if self.link == Link::Verbs && self.baselines.contains(&SystemName::Raw) {
            return refused(
                "--baseline",
                &SystemName::Raw,
                "it without --link verbs: start both ends of perftest by hand",
            );
        }
        Ok(())
    }

    /// Bytes of all tensors that a producer may have at the same time.
    pub(crate) fn tensor_bytes(&self) -> usize {
        let step: usize = self.step.iter().sum();
        let window = self.size_bytes.saturating_mul(self.window);
        let tables = self.tables.iter().map(Tables::bytes).fold(0, u64::saturating_add) as usize;
        let pushed = self.training.as_ref().map_or(0, |training| {
            let workers = training.sizes().map(|size| size.workers).max().unwrap_or(0);
            workers.saturating_mul(training.push.iter().sum())
        });
        // Each rank has its tensor, and two with a part for each rank.
        let of_ranks = self
            .collectives
            .as_ref()
            .map_or(0, |group| group.ranks.saturating_mul(2 * group.ranks + 1).saturating_mul(self.size_bytes));
        [step, window, tables, pushed, of_ranks].into_iter().fold(0, usize::saturating_add)
    }

    /// What this bench offers over this link.
    fn offer(&self) -> Offer {
        use Fuse::{Off, Plan, Push, Receive, ReceiveWaitAll, Turn};
        use Link::{Loopback, Shm, Tcp, Verbs};
        use SystemName::{Direct, Gloo, Grpc, GrpcConnector, GrpcStream, Open, Raw, Stream, Whole};
        let is_of_rows = !self.tables.is_empty();
        let has_daemon = self.daemon.is_some();
        let links: &[Link] = match self.bench {
            // The daemons choose their links.
            _ if has_daemon => &[Tcp],
            Bench::Connect | Bench::FanIn | Bench::Restart => &[Tcp],
            Bench::Ps if is_of_rows => &[Tcp, Shm],
            Bench::Idle | Bench::Rows | Bench::Collectives => &[Tcp, Shm],
            Bench::Fuse | Bench::Ps => &[Tcp, Shm, Verbs],
            Bench::Latency | Bench::Rate | Bench::Bandwidth => &[Tcp, Shm, Verbs, Loopback],
        };
        let baselines: &[SystemName] = match (self.bench, self.link) {
            // Only one system can attach as the plan's tasks.
            (Bench::Ps, _) if is_of_rows && has_daemon => &[],
            (Bench::Rows, _) if has_daemon => &[Raw, Grpc],
            (Bench::Connect | Bench::FanIn, _) | (Bench::Rows, Shm) => &[Raw],
            (Bench::Idle | Bench::Restart, _) => &[],
            (Bench::Collectives, _) => &[Gloo],
            (Bench::Ps, _) if is_of_rows => &[Whole],
            (Bench::Ps | Bench::Fuse, Shm) => &[],
            (Bench::Ps, _) | (Bench::Fuse, Verbs) => &[Grpc],
            (Bench::Rows, _) => &[Raw, Grpc, Whole],
            (Bench::Fuse, _) => &[Raw, Grpc, Open],
            // perftest has no program for this.
            (Bench::Rate, Verbs) => &[Grpc, GrpcStream],
            (_, Loopback) => &[Raw, Grpc, GrpcStream, Open],
            (Bench::Latency | Bench::Rate, Shm) => &[Raw, Grpc, GrpcConnector, GrpcStream, Stream, Direct, Open],
            (Bench::Bandwidth, Shm) => &[Raw, Grpc, GrpcConnector, GrpcStream, Stream, Open],
            (Bench::Latency | Bench::Rate | Bench::Bandwidth, _) => &[Raw, Grpc, GrpcStream, Stream, Open],
        };
        let fuses: &[Fuse] = match (self.bench, self.link) {
            (Bench::FanIn, _) => &[Turn, Plan],
            (Bench::Ps, _) if self.has_hosted_workers() => &[Off, Receive, ReceiveWaitAll, Plan],
            (Bench::Ps, _) => &[Off, Turn, Receive, ReceiveWaitAll, Plan],
            (Bench::Fuse, _) if has_daemon => &[Off, Receive, Plan],
            (Bench::Rate, _) if has_daemon => &[Off, Turn],
            (Bench::Fuse, Shm) => &[Receive, Plan],
            (Bench::Fuse, _) => &[Off, Turn, Receive, Plan],
            (Bench::Rate, Tcp | Verbs | Loopback) => &[Off, Turn, Receive, Plan, Push],
            (Bench::Rate, Shm) => &[Off, Turn, Push],
            _ => &[Off, Turn],
        };
        Offer { links, baselines, fuses }
    }

    fn check_offer(&self) -> Result<(), BenchError> {
        let Offer { links, baselines, fuses } = self.offer();
        let bench = self.bench;
        let how = match (&self.daemon, self.tables.is_empty()) {
            (Some(_), _) => "and --daemon".to_owned(),
            (None, true) => format!("over {}", self.link),
            (None, false) => "and rows".to_owned(),
        };
        one_of("--link", [self.link], links, &format!("with {bench}"))?;
        one_of("--baseline", self.baselines.iter().copied(), baselines, &format!("with {bench} {how}"))?;
        let variants = self.training.iter().flat_map(|training| &training.variants).map(|variant| variant.fuse);
        one_of("--fuse", variants.chain([self.fuse]), fuses, &format!("with {bench} {how}"))
    }

    /// How tensors move, and when their memory is registered; `None` where the link is not verbs.
    pub fn verbs(&self) -> Option<(Transfer, Registration)> {
        (self.link == Link::Verbs).then(|| (self.transfer.unwrap_or_default(), self.registration()))
    }

    fn registration(&self) -> Registration {
        self.registration.first().copied().unwrap_or_default()
    }

    /// Checks that both sides have room for the step.
    fn check_step(&self) -> Result<(), BenchError> {
        if let Some(training) = &self.training {
            training.check()?;
        }
        tables::check(&self.tables)?;
        if !matches!(self.bench, Bench::Fuse | Bench::Ps) {
            return Ok(());
        }
        within("--tensors", self.step.len(), 1, STEP_TENSORS_MAX)?;
        self.step.iter().try_for_each(|bytes| within("--size", *bytes, 1, SIZE_BYTES_MAX))?;
        let sum = self.step.iter().sum::<usize>();
        if sum > STEP_BYTES_MAX {
            let given = format!("{} with {sum} bytes in all", self.step.len());
            return Err(BenchError::setting("--tensors", given, format!("at most {STEP_BYTES_MAX} bytes a step")));
        }
        Ok(())
    }

    pub(crate) fn with_variant(&self, variant: Variant) -> Self {
        let Variant { size, request_buffers: window, registration, fuse, polling } = variant;
        let of_one = |whole: Training| Training { size: size.unwrap_or(whole.size), variants: vec![variant], ..whole };
        let training = self.training.clone().map(of_one);
        Self { window, fuse, polling, registration: vec![registration], training, ..self.clone() }
    }

    /// Whether workers of the parameter-server experiment are tasks with a thread each, which workers with sessions over TCP are
    /// not.
    pub(crate) fn has_hosted_workers(&self) -> bool {
        self.link == Link::Shm || !self.tables.is_empty() || self.daemon.is_some()
    }

    /// The plan in which the tables are added after the other variables, as variables that are pulled whole.
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

pub(crate) fn within(setting: &'static str, value: usize, least: usize, most: usize) -> Result<(), BenchError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(BenchError::setting(setting, value, format!("{least} to {most}")))
}

fn one_of<T: Copy + PartialEq + ToString>(
    setting: &'static str,
    given: impl IntoIterator<Item = T>,
    offered: &[T],
    how: &str,
) -> Result<(), BenchError> {
    let Some(refused) = given.into_iter().find(|one| !offered.contains(one)) else { return Ok(()) };
    let names: Vec<String> = offered.iter().map(T::to_string).collect();
    let accepted = if names.is_empty() { "none".to_owned() } else { names.join(" or ") };
    Err(BenchError::setting(setting, refused.to_string(), format!("{accepted} {how}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_outside_its_limits_is_named() {
        type Spoil = fn(&mut Plan);
        fn direct(plan: &mut Plan) {
            (plan.link, plan.baselines) = (Link::Shm, vec![SystemName::Direct]);
        }
        fn through_daemons(plan: &mut Plan) {
            plan.daemon = Some(["worker:1", "ps:1"].map(str::to_owned));
        }
        let cases: [(Bench, &str, Spoil); 41] = [
            (Bench::Rate, "--size", |plan| plan.size_bytes = 0),
            (Bench::Rate, "--size", |plan| plan.size_bytes = SIZE_BYTES_MAX + 1),
            (Bench::Rate, "--rounds", |plan| plan.rounds = 0),
            (Bench::Rate, "--window", |plan| plan.window = WINDOW_MAX + 1),
            (Bench::Rate, "--idle-us", |plan| plan.idle_us = IDLE_US_MAX + 1),
            (Bench::Rate, "--seconds", |plan| plan.seconds = 0.0),
            (Bench::Rate, "--seconds", |plan| plan.seconds = f64::NAN),
            (Bench::Rate, "--polling", |plan| plan.polling = false),
            (Bench::Rate, "--cpus", |plan| plan.cpus = Some([1, 1])),
            (Bench::Rate, "--peers", |plan| plan.peers = 0),
            (Bench::Latency, "--fuse", |plan| plan.fuse = Fuse::Plan),
            (Bench::Rate, "--fuse", |plan| (plan.fuse, plan.link) = (Fuse::Receive, Link::Shm)),
            (Bench::FanIn, "--fuse", |plan| plan.fuse = Fuse::Off),
            (Bench::Rate, "--baseline", |plan| plan.baselines = vec![SystemName::Direct]),
            (Bench::Rate, "--fuse", |plan| {
                direct(plan);
                plan.fuse = Fuse::Push;
            }),
            (Bench::Latency, "--size", |plan| {
                direct(plan);
                plan.size_bytes = INLINE_BYTES_MAX + 1;
            }),
            (Bench::Connect, "--link", |plan| plan.link = Link::Shm),
            (Bench::Connect, "--link", |plan| plan.link = Link::Verbs),
            (Bench::Fuse, "--link", |plan| plan.link = Link::Loopback),
            (Bench::Connect, "--baseline", |plan| plan.baselines = vec![SystemName::Grpc]),
            (Bench::Idle, "--baseline", |plan| plan.baselines = vec![SystemName::Raw]),
            (Bench::Fuse, "--baseline", |plan| plan.baselines = vec![SystemName::GrpcStream]),
            (Bench::Rate, "--baseline", |plan| plan.baselines = vec![SystemName::Open]),
            (Bench::Rate, "--baseline", |plan| (plan.link, plan.baselines) = (Link::Verbs, vec![SystemName::Raw])),
            (Bench::Rate, "--transfer", |plan| plan.transfer = Some(Transfer::Write)),
            (Bench::Rate, "--registration", |plan| plan.registration = vec![Registration::Static]),
            (Bench::Rate, "--registration", |plan| {
                (plan.link, plan.registration) = (Link::Verbs, vec![Registration::Static; 2]);
            }),
            (Bench::Rate, "--security", |plan| (plan.security, plan.link) = (Security::Tls, Link::Shm)),
            (Bench::FanIn, "--security", |plan| plan.security = Security::Secret),
            (Bench::Bandwidth, "--window", |plan| (plan.link, plan.window) = (Link::Shm, 257)),
            (Bench::FanIn, "--daemon", through_daemons),
            (Bench::Ps, "--workers", through_daemons),
            (Bench::Ps, "--daemon", |plan| {
                through_daemons(plan);
                let training = plan.training.as_mut().expect("it trains");
                (training.size, training.variants) = (Size { workers: 1, ps: 1 }, vec![Variant::default(); 2]);
            }),
            (Bench::Rows, "--workers", |plan| {
                through_daemons(plan);
                plan.training.as_mut().expect("it pulls rows").size.ps = 2;
            }),
            (Bench::Rows, "--baseline", |plan| {
                through_daemons(plan);
                plan.baselines = vec![SystemName::Whole];
            }),
            (Bench::Fuse, "--link", |plan| {
                through_daemons(plan);
                plan.link = Link::Shm;
            }),
            (Bench::Fuse, "--fuse", |plan| {
                through_daemons(plan);
                plan.fuse = Fuse::Turn;
            }),
            (Bench::Rate, "--fuse", |plan| {
                through_daemons(plan);
                plan.fuse = Fuse::Push;
            }),
            (Bench::Fuse, "--tensors", |plan| plan.step = Vec::new()),
            (Bench::Fuse, "--tensors", |plan| plan.step = vec![SIZE_BYTES_MAX; 5]),
            (Bench::Fuse, "--size", |plan| plan.step = vec![64, 0]),
        ];
        for (bench, flag, spoil) in cases {
            let mut plan = Plan::new(bench);
            plan.check().expect("defaults are valid");
            spoil(&mut plan);
            let error = plan.check().expect_err(flag);
            assert!(error.is_usage() && error.to_string().starts_with(flag), "{error}");
        }
    }

    #[test]
    fn a_plan_survives_the_way_to_the_producer() {
        let congestion = Some("reno".to_owned());
        let plan = Plan { congestion, baselines: vec![SystemName::Grpc], ..Plan::new(Bench::Ps) };
        let text = serde_json::to_string(&plan).expect("serialisable");
        assert_eq!(serde_json::from_str::<Plan>(&text).expect("readable"), plan);
    }

    #[test]
    fn two_cpus_are_two_numbers() {
        assert_eq!((two_cpus("0,1"), two_cpus(" 3 , 2 ")), (Ok([0, 1]), Ok([3, 2])));
        for text in ["", "0", "0,1,2", "a,b", "-1,0"] {
            assert!(two_cpus(text).is_err(), "{text}");
        }
    }
}
