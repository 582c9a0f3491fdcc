//! The arguments of `sealane-bench`: measures Sealane and what users would otherwise run, side by side.

mod ps;
mod restart;
mod rows;
mod tables;

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use sealane_cli::flags::LogFlags;
use sealane_cli::output_file::{OutputFile, ReportOutput};
use sealane_cli::workload::Workload;
use sealane_cli::{Context, Failure, Program, command_line};

use crate::{
    Bench, BenchError, Executor, Fuse, IDLE_US_DEFAULT, Link, PeerProgram, Plan, Progress, Registration, Report,
    STEP_TENSORS_MAX, Security, Sizes, SystemName, Transfer, parse_bytes, run as measure, run_own, serve_peer,
};

/// What starts this program as a producer; the job follows as the last argument.
const PRODUCER: [&str; 1] = ["peer"];

/// What each link's figures mean; part of `--help`.
const LINKS: &str = "\
Links:
  tcp
    Two engines in two processes, each on its own CPU, and one connection over
    the loopback interface. A consumer requests tensors, one at a time or
    with a window.
    raw: the same requests and responses over bare sockets, spinning, or
    blocking with --polling off.
    ps: all workers in one thread, each with a connection to every ps.
    grpc: unary calls through tonic. grpc-stream: one bidirectional stream
    through tonic; with --fuse push, one stream of tensors.
    stream: the same requests and responses as bytes of one sealane::Stream;
    each end is a thread that blocks, beside its engine's shard.
  shm
    A daemon of one shard on the second CPU, and two of its clients, a ps and
    a worker, in one process on the first. Every tensor goes from client to
    daemon to client through shared memory.
    latency: the worker's recv is waiting; the time is from the call of send
    on the ps until the worker has the tensor.
    rate: a window of sends and recvs; with --fuse turn in batches (send_all,
    recv_all), else one call each.
    bandwidth: from memory in the ps's arena to memory in the worker's.
    raw: between the same two CPUs, whatever --size is, a descriptor of 64
    bytes there and back through two bare rings (latency; with --polling off
    two processes that wake each other by futex), one bare ring at full
    speed, one way (rate), memcpy by one thread with as many buffers as the
    window (bandwidth).
    ps: every worker is a client of the parameter servers' engine, with a
    separate thread; the ps run on that engine's shard, so their calls cross no
    thread. Memory that is not reused is allocated from the client's arena each
    time. 64 workers at most; no --fuse turn, no baselines but whole.
    grpc, grpc-stream: through tonic over a Unix socket.
    stream: as over tcp, between the two clients, each on a thread.
  verbs
    Two engines in two processes, as over tcp, and one queue pair of an RDMA
    device; only the handshake uses the loopback interface. Tensors are in
    registered memory, or with --registration dynamic are registered for
    each transfer.
    raw: perftest on the same device and port; it must be installed:
    ib_send_lat (latency), and ib_write_bw with the window, at least two,
    outstanding (bandwidth); spinning, or with --polling off sleeping until
    there is a completion. It has no counterpart of rate and fuse.
    ps: every worker is an engine with its own thread and a queue pair to every
    ps. 64 workers at most; no raw.
    grpc, grpc-stream: through tonic over TCP. stream: as over tcp.
  loopback
    Inside one process, without the kernel.
    raw: two rings of bytes in one thread.

Example:
  sealane bench latency --link shm --baseline raw";

/// Measures Sealane and its baselines side by side.
#[derive(Debug, Parser)]
#[command(
    name = "sealane bench",
    version,
    after_help = "Example:\n  sealane bench latency --baseline raw --baseline grpc-stream",
    after_long_help = LINKS
)]
pub struct Cli {
    #[command(flatten)]
    log: LogFlags,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Request and response of one tensor, one at a time
    #[command(after_help = "Example:\n  sealane bench latency --baseline raw --polling off --json -\n  \
                      sealane bench latency --link shm --baseline raw")]
    Latency {
        #[command(flatten)]
        common: Common,

        /// Bytes of a tensor, as in 64 or 4MiB; or a range, 64..4MiB: a line for each power of two
        #[arg(long, value_name = "BYTES", default_value = "64")]
        size: Sizes,

        /// Whether both sides spin instead of sleeping
        #[arg(long, value_name = "ON|OFF", default_value = "on")]
        polling: Polling,

        /// Microseconds without work before each request [default: 0; with --polling off: 1000]
        #[arg(long, value_name = "US")]
        idle_us: Option<u64>,
    },

    /// Small tensors per second
    #[command(after_help = "Example:\n  sealane bench rate --window 256 --baseline grpc --baseline grpc-stream")]
    Rate {
        #[command(flatten)]
        common: Common,

        /// Bytes of a tensor, as in 64 or 4KiB
        #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "64")]
        size: usize,

        /// Requests in flight at once
        #[arg(long, value_name = "N", default_value_t = Plan::new(Bench::Rate).window)]
        window: usize,

        /// off: one write per message; turn: one write per turn; receive: one fused request per window; plan: one pull of a
        /// plan per window; push: one-way pushes. Over shm, of these, off (one call per tensor), turn (batched calls) and push
        #[arg(long, value_name = "off|turn|receive|plan|push", default_value_t = Fuse::Turn)]
        fuse: Fuse,
    },

    /// Large tensors, in 10^9 bytes per second
    #[command(after_help = "Example:\n  sealane bench bandwidth --size 4MiB --congestion reno --baseline raw")]
    Bandwidth {
        #[command(flatten)]
        common: Common,

        /// Bytes of a tensor, as in 4MiB; or a range, 64..4MiB: a line for each power of two
        #[arg(long, value_name = "BYTES", default_value = "4MiB")]
        size: Sizes,

        /// Tensors in flight at once; the raw baseline streams without a window over tcp, and over shm copies between that many
        /// buffers
        #[arg(long, value_name = "N", default_value_t = Plan::new(Bench::Bandwidth).window)]
        window: usize,
    },

    /// Many peers that connect to one engine at once: milliseconds until the last handshake is complete
    ///
    /// The peers are plain sockets of one thread that perform the real handshake; in every round, all of them connect and
    /// disconnect. None may be refused. A warm-up round is not counted. raw: the same number of bare connections to a thread
    /// that waits in epoll, with as many bytes each way as the handshakes have.
    #[command(after_help = "Example:\n  sealane bench connect --peers 1000 --baseline raw")]
    Connect {
        #[command(flatten)]
        common: Common,

        /// Peers that connect at once
        #[arg(long, value_name = "N", default_value_t = Plan::new(Bench::Connect).peers)]
        peers: usize,
    },

    /// Cost of N idle peers: CPU time, and memory per peer
    ///
    /// The engine runs in a separate process. cpu_percent is that process's user and system time, in percent of one CPU;
    /// rss_bytes_per_peer is the growth of its resident memory since before the first peer connected, divided by N. The peers
    /// over tcp are plain sockets that complete the handshake, answer pings and stay; over shm they are attached clients. Over
    /// tcp, all peers are pinged every ten seconds: a longer --seconds shows the cost of that.
    #[command(after_help = "Example:\n  sealane bench idle --peers 1000 --seconds 10\n  \
                      sealane bench idle --peers 64 --link shm --polling on --seconds 5")]
    Idle {
        #[command(flatten)]
        common: Common,

        /// Peers that are connected
        #[arg(long, value_name = "N", default_value_t = Plan::new(Bench::Idle).peers)]
        peers: usize,

        /// Whether the engine spins, or sleeps when idle
        #[arg(long, value_name = "ON|OFF", default_value = "off")]
        polling: Polling,
    },

    /// N workers pulling small tensors from one ps, compared with 10
    ///
    /// The ps's engine runs in a separate process and spins; the workers are sessions over separate sockets, in one thread.
    /// Each keeps a window of requests in flight, or repeatedly pulls a plan of that many tensors. tensors_per_s is the total
    /// of all workers; slowest_share is the slowest worker's share relative to an equal share; rss_bytes_per_peer is the growth
    /// of the engine's resident memory when all had connected and none had sent a request, divided by N. raw: N bare
    /// connections to a thread that answers every request of 64 bytes.
    #[command(name = "fanin", after_help = "Example:\n  sealane bench fanin --peers 1000 --baseline raw")]
    FanIn {
        #[command(flatten)]
        common: Common,

        /// Workers
        #[arg(long, value_name = "N", default_value_t = Plan::new(Bench::FanIn).peers)]
        peers: usize,

        /// Bytes of a tensor, as in 64 or 4KiB
        #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "64")]
        size: usize,

        /// Requests of each worker in flight at once, or the tensors of its plan
        #[arg(long, value_name = "N", default_value_t = Plan::new(Bench::FanIn).window)]
        window: usize,

        /// Whether each worker receives tensors sent to it (turn), or pulls tensors published for all (plan)
        #[arg(long, value_name = "turn|plan", default_value_t = Plan::new(Bench::FanIn).fuse)]
        fuse: Fuse,
    },

    /// One step of many tensors: a worker pulls all of them from a ps, each between separate buffers
    ///
    /// step_ms is the median step of a round, from the first request until the last tensor has arrived. off and turn: one recv
    /// per tensor, with a window in flight; the ps has sent the tensors in advance. receive: the same with one fused recv.
    /// plan: the ps has published the tensors once. raw: one request, answered with all tensors at once.
    /// grpc is measured twice: one unary call per tensor with 64 in flight, and one call whose response is one message with all
    /// tensors, which is compared as `sealane/grpc, one message`.
    #[command(
        after_help = "Example:\n  sealane bench fuse --tensors 1000 --size 64 --baseline raw --baseline grpc\n  \
                      sealane bench fuse --workload resnet50 --baseline raw"
    )]
    Fuse {
        #[command(flatten)]
        common: Common,

        /// Tensors of the step [default: 1000]
        #[arg(long, value_name = "N", conflicts_with = "workload")]
        tensors: Option<usize>,

        /// Bytes of a tensor, as in 64 or 4MiB [default: 64]
        #[arg(long, value_name = "BYTES", value_parser = parse_bytes, conflicts_with = "workload")]
        size: Option<usize>,

        /// The tensors that a worker pulls in a step of a model: resnet50, wide_deep_400, ..., or a JSON file
        #[arg(long, value_name = "NAME|FILE.json")]
        workload: Option<String>,

        /// One request per tensor, sent as single messages (off) or as one write per turn (turn); one request by keys
        /// (receive), or by the number of a plan (plan)
        #[arg(long, value_name = "off|turn|receive|plan", default_value_t = Plan::new(Bench::Fuse).fuse)]
        fuse: Fuse,

        /// Requests in flight at once, if each tensor is one
        #[arg(long, value_name = "N", default_value_t = Plan::new(Bench::Fuse).window)]
        window: usize,
    },

    /// A daemon whose place another takes while its tasks continue: milliseconds during which they receive nothing
    ///
    /// Two daemons, with one shard each and defaults otherwise; a ps and a worker on the first, a worker on the second. The ps
    /// pushes a tensor to both workers every half millisecond, and they pull as often one of 32 that it has published once, of 31
    /// MiB. In each round, after --seconds of that, the first daemon hands over to one that is started with --take-over, or is
    /// stopped by `sealane drain` and started again. gap_ms is the longest time between two tensors that reached the worker on the
    /// same host, peer_gap_ms the same for the other worker; pull_gap_ms and peer_pull_gap_ms are the longest times between two
    /// pulls that brought a tensor; failed_calls counts calls of pushing and accepting that failed and were repeated.
    /// Nothing is pinned.
    #[command(after_help = "Example:\n  sealane bench restart --rounds 10")]
    Restart {
        #[command(flatten)]
        common: Common,

        /// Bytes of a tensor, as in 64 or 4MiB
        #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "64")]
        size: usize,
    },

    Ps(ps::Args),

    Rows(rows::Args),

    /// Serve a measurement made by another process
    #[command(
        hide = true,
        after_help = "Example:\n  sealane bench peer JSON  # started by the other commands, not by hand"
    )]
    Peer {
        /// What to serve
        job: String,
    },
}

#[derive(Debug, clap::Args)]
struct Common {
    /// The link that carries the tensors: tcp, shm, verbs or loopback
    #[arg(long, default_value_t = Link::Tcp)]
    link: Link,

    /// Over verbs: whether the producer writes large tensors into the consumer's memory, or the consumer reads them from the
    /// producer's [default: write]
    #[arg(long, value_name = "write|read")]
    transfer: Option<Transfer>,

    /// Over verbs: whether memory is registered with the device once, or for each transfer; with ps over tcp or shm: whether it
    /// is reused, or allocated for each transfer. With ps, a list gives variants [default: static]
    #[arg(long, value_name = "static|dynamic", value_delimiter = ',')]
    registration: Vec<Registration>,

    /// Measured seconds of each system in each round; not used by connect
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,

    /// Number of rounds; each measures every system once
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,

    /// Over tcp: authentication of Sealane's two sides: none, a shared secret, or TLS, which also encrypts
    #[arg(long, value_name = "none|secret|tls", default_value_t = Security::None)]
    security: Security,

    /// Executor of Sealane's shards; auto: io_uring where available, else epoll
    #[arg(long, value_name = "auto|io_uring|epoll", default_value_t = Executor::Auto)]
    executor: Executor,

    /// Also measure raw (the bare operation of the kernel, memory or RDMA device), grpc (unary calls), grpc-stream (one stream)
    /// and stream (Sealane's streams of bytes; both with latency, rate and bandwidth), with rows and ps --rows, whole (tables as a whole), or, with --security, open
    /// (Sealane without it); repeatable
    #[arg(long, value_name = "raw|grpc|grpc-stream|stream|whole|open")]
    baseline: Vec<SystemName>,

    /// CPUs of the consumer and the producer, as in 0,1 [default: the first two allowed]
    #[arg(long, value_name = "A,B", value_parser = two_cpus)]
    cpus: Option<[usize; 2]>,

    /// TCP congestion control of every system [default: the kernel's]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,

    /// Write the report as JSON to a file, or with `-` to standard output and nothing else
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,

    /// Write a plot of the report
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Polling {
    On,
    Off,
}

impl Program for Cli {
    fn log(&self) -> (&LogFlags, &str) {
        (&self.log, "warn")
    }

    fn run(&self, context: &Context) -> Result<(), Failure> {
        run(&self.command, context)
    }
}

fn run(command: &Command, context: &Context) -> Result<(), Failure> {
    let (common, plan) = match command {
        Command::Latency { common, size, polling, idle_us } => {
            let polling = *polling == Polling::On;
            let idle_us = idle_us.unwrap_or(if polling { 0 } else { IDLE_US_DEFAULT });
            let plan = Plan { polling, idle_us, ..plan(Bench::Latency, common) };
            return sweep(&size.0, &plan, common, context);
        }
        Command::Rate { common, size, window, fuse } => {
            let plan = Plan { size_bytes: *size, window: *window, fuse: *fuse, ..plan(Bench::Rate, common) };
            (common, plan)
        }
        Command::Bandwidth { common, size, window } => {
            let plan = Plan { window: *window, ..plan(Bench::Bandwidth, common) };
            return sweep(&size.0, &plan, common, context);
        }
        Command::Connect { common, peers } => (common, Plan { peers: *peers, ..plan(Bench::Connect, common) }),
        Command::Idle { common, peers, polling } => {
            let polling = *polling == Polling::On;
            (common, Plan { peers: *peers, polling, ..plan(Bench::Idle, common) })
        }
        Command::FanIn { common, peers, size, window, fuse } => {
            let plan = plan(Bench::FanIn, common);
            (common, Plan { peers: *peers, size_bytes: *size, window: *window, fuse: *fuse, ..plan })
        }
        Command::Fuse { common, tensors, size, workload, fuse, window } => {
            let plan = Plan { fuse: *fuse, window: *window, ..plan(Bench::Fuse, common) };
            (common, with_step(plan, *tensors, *size, workload.as_deref())?)
        }
        Command::Restart { common, size } => (common, Plan { size_bytes: *size, ..plan(Bench::Restart, common) }),
        Command::Rows(rows) => (&rows.common, rows.plan()),
        Command::Ps(experiment) => (&experiment.common, experiment.plan()?),
        Command::Peer { job } => return Ok(serve_peer(job)?),
    };
    if plan.bench != Bench::Ps {
        only(common)?;
    }
    measure_one(&plan, common, context)
}

/// Measures each of the sizes; of several there is one table, and the JSON is a list of their reports.
fn sweep(sizes: &[usize], plan: &Plan, common: &Common, context: &Context) -> Result<(), Failure> {
    only(common)?;
    if let [size_bytes] = *sizes {
        return measure_one(&Plan { size_bytes, ..plan.clone() }, common, context);
    }
    if common.plot.is_some() {
        return Err(Failure::input("--plot is of one size; give one to --size, or leave it out"));
    }
    let output = ReportOutput::to(common.json.as_ref())?;
    let plans: Vec<Plan> = sizes.iter().map(|&size_bytes| Plan { size_bytes, ..plan.clone() }).collect();
    plans.iter().try_for_each(Plan::check)?;
    let mut reports = Vec::new();
    for plan in &plans {
        reports.push(measure(plan, &PeerProgram::this(&PRODUCER), &mut Progress::on_stderr())?.report);
    }
    let json: Vec<String> = reports.iter().map(|report| report.to_json()).collect();
    output.write(context, &format!("[{}]\n", json.join(",").trim_end()), &Report::sweep(&reports))
}

fn measure_one(plan: &Plan, common: &Common, context: &Context) -> Result<(), Failure> {
    let output = ReportOutput::to(common.json.as_ref())?;
    let plot_file = OutputFile::named("--plot", common.plot.as_ref())?;
    let mut progress = Progress::on_stderr();
    let outcome = if plan.bench == Bench::Restart {
        plan.check()?;
        run_own(plan, restart::systems(plan.size_bytes)?, &mut progress)?
    } else {
        measure(plan, &PeerProgram::this(&PRODUCER), &mut progress)?
    };
    let report = &outcome.report;
    output.write(context, &report.to_json(), &report.to_table())?;
    plot_file.map_or(Ok(()), |file| file.write(&outcome.to_svg(&command_line::this("sealane bench"))))
}

fn plan(bench: Bench, common: &Common) -> Plan {
    Plan {
        link: common.link,
        transfer: common.transfer,
        registration: common.registration.first().copied(),
        seconds: common.seconds,
        rounds: common.rounds,
        security: common.security,
        executor: common.executor,
        congestion: common.congestion.clone(),
        cpus: common.cpus,
        baselines: common.baseline.clone(),
        ..Plan::new(bench)
    }
}

/// The only value of a flag that other commands take lists of.
fn only(common: &Common) -> Result<(), Failure> {
    match common.registration.len() {
        0 | 1 => Ok(()),
        _ => Err(Failure::input("--registration is a list; give static or dynamic, or lists with `bench ps`")),
    }
}

/// The plan with the step that the flags describe.
fn with_step(plan: Plan, tensors: Option<usize>, size: Option<usize>, workload: Option<&str>) -> Result<Plan, Failure> {
    let Some(name) = workload else {
        let size_bytes = size.unwrap_or(plan.size_bytes);
        let tensors = tensors.unwrap_or(plan.step.len());
        if tensors > STEP_TENSORS_MAX {
            let refused = format!("--tensors is {tensors}; give 1 to {STEP_TENSORS_MAX}");
            return Err(Failure::input(refused));
        }
        return Ok(Plan { size_bytes, step: vec![size_bytes; tensors], ..plan });
    };
    let text = Workload::text(name)?;
    let workload = Workload::parse(&text, name)?;
    let sizes = workload.pull.iter().map(|tensor| usize::try_from(tensor.bytes()).unwrap_or(usize::MAX));
    Ok(Plan { step: sizes.collect(), workload: Some(workload.name), ..plan })
}

fn two_cpus(text: &str) -> Result<[usize; 2], String> {
    text.split_once(',')
        .and_then(|(consumer, producer)| Some([consumer.trim().parse().ok()?, producer.trim().parse().ok()?]))
        .ok_or_else(|| "write two CPU numbers, as in 0,1".to_owned())
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        if error.is_usage() { Failure::input(error) } else { Failure::work(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cpus_are_two_numbers() {
        assert_eq!(two_cpus("0,1"), Ok([0, 1]));
        assert_eq!(two_cpus(" 3 , 2 "), Ok([3, 2]));
        for text in ["", "0", "0,1,2", "a,b", "-1,0"] {
            assert!(two_cpus(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_step_is_so_many_tensors_or_what_a_model_pulls() {
        let step = |tensors, size, workload| {
            let plan = with_step(Plan::new(Bench::Fuse), tensors, size, workload).unwrap();
            plan.check().unwrap();
            (plan.step.len(), plan.step.iter().sum::<usize>(), plan.workload)
        };
        assert_eq!(step(None, None, None), (1_000, 64_000, None));
        assert_eq!(step(Some(16), Some(4 << 20), None), (16, 64 << 20, None));
        assert_eq!(step(None, None, Some("resnet50")), (214, 102_334_368, Some("resnet50".to_owned())));
    }

    #[test]
    fn a_step_that_there_is_not_is_refused() {
        let refused = |tensors, workload| with_step(Plan::new(Bench::Fuse), tensors, None, workload).unwrap_err();
        for failure in [refused(Some(STEP_TENSORS_MAX + 1), None), refused(None, Some("resnet51"))] {
            assert_eq!(format!("{:?}", failure.report()), format!("{:?}", std::process::ExitCode::from(2)));
        }
    }

    #[test]
    fn what_can_be_chosen_is_passed_on_and_what_is_of_verbs_is_refused_elsewhere() {
        let plan_of = |line: &str| {
            let Command::Bandwidth { common, .. } = Cli::parse_from(line.split(' ')).command else {
                panic!("another command")
            };
            plan(Bench::Bandwidth, &common)
        };
        let chosen = plan_of("bench bandwidth --transfer read --registration dynamic");
        assert_eq!((chosen.transfer, chosen.registration), (Some(Transfer::Read), Some(Registration::Dynamic)));
        assert!(chosen.check().unwrap_err().to_string().contains("--link verbs"));
        Plan { link: Link::Verbs, ..chosen }.check().unwrap();
        assert_eq!(plan_of("bench bandwidth --executor epoll").executor, Executor::Epoll);
        let plain = plan_of("bench bandwidth");
        assert_eq!(plain.executor, Executor::Auto);
        assert_eq!((plain.transfer, plain.registration), (None, None));
        assert!(Cli::try_parse_from(["bench", "bandwidth", "--transfer", "carry"]).is_err());
    }

    #[test]
    fn a_wrong_plan_is_the_users_and_a_failed_round_is_not() {
        let wrong = Failure::from(BenchError::Setting {
            setting: "--link",
            value: "pigeon".to_owned(),
            accepted: "tcp".to_owned(),
        });
        assert_eq!(format!("{:?}", wrong.report()), format!("{:?}", std::process::ExitCode::from(2)));
        let failed = BenchError::Stalled { system: "raw", waited: std::time::Duration::ZERO };
        let failed = Failure::from(failed);
        assert_eq!(format!("{:?}", failed.report()), format!("{:?}", std::process::ExitCode::from(1)));
    }
}
