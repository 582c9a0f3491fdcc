//! The arguments of `sealane-bench`: it measures Sealane and the alternatives that users would otherwise run, side by side.

mod collectives;
mod ps;
mod restart;
mod sweep;
mod tables;

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use itertools::Itertools;
use sealane_cli::flags::LogFlags;
use sealane_cli::output_file::{OutputFile, ReportOutput};
use sealane_cli::workload::Workload;
use sealane_cli::{Context, Failure, Program, command_line};

use crate::byte_count::{Sizes, parse_bytes};
use crate::hosts::{self, Connect};
use crate::limits::{IDLE_US_DEFAULT, STEP_TENSORS_MAX};
use crate::plan::{Bench, Collective, Collectives, Fuse, Link, Plan, Size, Tables, Training, within};
use crate::run::{Outcome, run as run_pairs, run_own, serve_peer};
use crate::{BenchError, PeerProgram, Progress, Report};

pub(crate) use collectives::serve_ranks;

/// Arguments that start this program as a producer; the job follows as the last argument.
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
    grpc, grpc-stream: through tonic over a Unix socket. grpc-connector:
    through tonic over a stream of the two clients.
    stream: as over tcp, between the two clients, by a direct lane.
    direct: a worker and a ps in two processes, on the two CPUs, and a direct
    lane between them, past the daemon. The worker asks for a tensor (latency)
    or a batch of them (rate) by a small one, and the ps sends them.
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

Between two hosts, with --connect: the producers run on the other host, where
`sealane bench serve` has started them, on one CPU of it. Only tcp and verbs.
With --daemon, Sealane is two clients of the daemons of both hosts, in latency,
rate, bandwidth, fuse, rows and ps.

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
    ///
    /// With --daemon, off is one call per tensor, with a window in flight, and receive is one recv_all. The ps sends the tensors of a
    /// step when a small tensor requests them. plan needs room for all tensors of the step in daemon.area_bytes.
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

    /// Rows of embedding tables by their numbers: workers pull a batch of every table, from all ps at once
    ///
    /// All tables have the same size, are sharded over the ps by modulo, and have 32-bit floats. In each step a worker names --batch rows
    /// of every table and waits until all are in its memory. Over tcp, all ps are tasks of one engine and the workers of another; over shm
    /// all are clients of one engine, which has a process to itself together with the ps. Every worker has a thread; several share a CPU,
    /// so they sleep whenever they wait. rows_per_s counts rows as often as they were named; step_ms is one worker's step; CPU times are
    /// per step. Rows that a step names twice are asked for once by Sealane, and gathered twice by the others.
    ///
    /// raw over tcp: a gather in one process, and one message with all rows; over shm: a gather in the process that wants the rows, as by
    /// numpy.take. grpc: one tonic call per ps, whose request has the numbers and whose answer has the rows. whole: Sealane pulls
    /// all tables as a whole, by a plan.
    ///
    /// With --daemon, one worker is a client of this host's daemon and one ps a client of the other host's; there is no whole.
    #[command(after_help = "Example:\n  sealane bench rows --baseline raw --baseline grpc\n  \
                      sealane bench rows --link shm --baseline raw\n  \
                      sealane bench rows --rows 10000000 --tables 4 --skew uniform --baseline raw\n  \
                      sealane bench rows --workers 4 --ps 2 --baseline grpc")]
    Rows {
        #[command(flatten)]
        common: Common,

        #[command(flatten)]
        tables: Tables,

        /// Workers
        #[arg(long, value_name = "N", default_value_t = 1)]
        workers: usize,

        /// Parameter servers
        #[arg(long, value_name = "N", default_value_t = 1)]
        ps: usize,
    },

    /// A call of all ranks of a group, each a process, as those of PyTorch's backend
    ///
    /// call_us is the time of a call on the slowest rank. --size is of each rank's tensor; with reduce_scatter, all_gather and all_to_all,
    /// of each rank's part. send is a message of the first rank to the last and one back. Ranks of different --hosts pretend to share no
    /// memory and use TCP over loopback; --link and --cpus change nothing. gloo: the same call in PyTorch, whose ranks always use TCP. Nothing is pinned.
    #[command(after_help = "Example:\n  sealane bench collectives --ranks 4 --size 64KiB..16MiB\n  \
                      sealane bench collectives --call all_to_all --ranks 4 --baseline gloo")]
    Collectives {
        #[command(flatten)]
        common: Common,

        /// Which call
        #[arg(long, value_name = "NAME", default_value_t = Collective::default())]
        call: Collective,

        /// Bytes of a tensor, as in 64 or 4MiB; or a range, 64..4MiB: a line for each power of two
        #[arg(long, value_name = "BYTES", default_value = "64KiB")]
        size: Sizes,

        /// Processes
        #[arg(long, value_name = "N", default_value_t = Collectives::default().ranks)]
        ranks: usize,

        /// Hosts that they pretend to be on; with --connect they are on two, half of them on each
        #[arg(long, value_name = "N", default_value_t = Collectives::default().hosts)]
        hosts: usize,

        /// For gloo: a Python that has PyTorch
        #[arg(long, value_name = "PROGRAM", default_value = "python3")]
        python: String,
    },

    Sweep(sweep::Args),

    Serve(hosts::Serve),

    /// Be a rank of collectives
    #[command(
        hide = true,
        after_help = "Example:\n  sealane bench rank JSON  # started by the other commands, not by hand"
    )]
    Rank {
        /// Which one
        job: String,
    },

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
    #[command(flatten)]
    plan: Plan,

    #[command(flatten)]
    connect: Connect,

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
    let of = |bench: Bench, common: &Common| common.plan.clone().of(bench);
    let (common, plan) = match command {
        Command::Latency { common, size, polling, idle_us } => {
            let polling = *polling == Polling::On;
            let idle_us = idle_us.unwrap_or(if polling { 0 } else { IDLE_US_DEFAULT });
            let plan = Plan { polling, idle_us, ..of(Bench::Latency, common) };
            return measure_all(&size.of(&plan), common, context);
        }
        &Command::Bandwidth { ref common, ref size, window } => {
            let plan = Plan { window, ..of(Bench::Bandwidth, common) };
            return measure_all(&size.of(&plan), common, context);
        }
        Command::Collectives { common, call, size, ranks, hosts, python } => {
            let hosts = if common.connect.is_given() { &2 } else { hosts };
            let collectives = Some(Collectives { call: *call, ranks: *ranks, hosts: *hosts });
            let link = match common.plan.link {
                Link::Tcp | Link::Shm if *hosts > 1 => Link::Tcp,
                Link::Tcp | Link::Shm => Link::Shm,
                other => other,
            };
            let plans = size.of(&Plan { collectives, link, ..of(Bench::Collectives, common) });
            let program = program(&plans, common)?;
            return measure_by(&plans, common, context, |plan| {
                run_own(plan, collectives::systems(plan, python, &program)?, program.other_host(), Progress::Shown)
            });
        }
        Command::Rank { job } => return Ok(collectives::serve(job)?),
        &Command::Rate { ref common, size: size_bytes, window, fuse } => {
            (common, Plan { size_bytes, window, fuse, ..of(Bench::Rate, common) })
        }
        &Command::Connect { ref common, peers } => (common, Plan { peers, ..of(Bench::Connect, common) }),
        &Command::Idle { ref common, peers, polling } => {
            (common, Plan { peers, polling: polling == Polling::On, ..of(Bench::Idle, common) })
        }
        &Command::FanIn { ref common, peers, size: size_bytes, window, fuse } => {
            (common, Plan { peers, size_bytes, window, fuse, ..of(Bench::FanIn, common) })
        }
        &Command::Fuse { ref common, tensors, size, ref workload, fuse, window } => {
            let plan = Plan { fuse, window, ..of(Bench::Fuse, common) };
            (common, with_step(plan, tensors, size, workload.as_deref())?)
        }
        &Command::Restart { ref common, size: size_bytes } => {
            (common, Plan { size_bytes, ..of(Bench::Restart, common) })
        }
        Command::Rows { common, tables, workers, ps } => {
            let plan = of(Bench::Rows, common);
            let size = Size { workers: *workers, ps: *ps };
            let training = plan.training.map(|training| Training { size, ..training });
            (common, Plan { training, tables: vec![*tables], ..plan })
        }
        Command::Ps(experiment) => (&experiment.common, experiment.plan()?),
        Command::Sweep(args) => return sweep::measure(args, context),
        Command::Serve(flags) => return hosts::serve(flags, &PRODUCER, context),
        Command::Peer { job } => return Ok(serve_peer(job)?),
    };
    measure_all(&[plan], common, context)
}

fn measure_all(plans: &[Plan], common: &Common, context: &Context) -> Result<(), Failure> {
    let program = program(plans, common)?;
    measure_by(plans, common, context, |plan| match plan.bench {
        Bench::Restart => run_own(plan, restart::systems(plan)?, None, Progress::Shown),
        _ => run_pairs(plan, &program, Progress::Shown),
    })
}

/// Where the producers of these plans are started.
fn program(plans: &[Plan], common: &Common) -> Result<PeerProgram, Failure> {
    let here = PeerProgram::this(&PRODUCER);
    plans.iter().try_for_each(Plan::check)?;
    if common.connect.is_given() {
        plans.iter().try_for_each(Plan::check_between_hosts)?;
    } else if common.plan.daemon.is_some() {
        return Err(Failure::input("--daemon is for measurements between two hosts; add --connect HOST:PORT"));
    }
    common.connect.program(here)
}

/// Measures each of the plans; several share one table, and the JSON is a list of their reports. If one fails, those before it are
/// still reported.
fn measure_by(
    plans: &[Plan],
    common: &Common,
    context: &Context,
    measure: impl Fn(&Plan) -> Result<Outcome, BenchError>,
) -> Result<(), Failure> {
    if plans.len() > 1 && common.plot.is_some() {
        return Err(Failure::input("--plot is of one size; give one to --size, or leave it out"));
    }
    let output = ReportOutput::to(common.json.as_ref())?;
    let plot_file = OutputFile::named("--plot", common.plot.as_ref())?;
    plans.iter().try_for_each(Plan::check)?;
    let mut outcomes = Vec::new();
    let measured = plans.iter().try_for_each(|plan| measure(plan).map(|outcome| outcomes.push(outcome)));
    if outcomes.is_empty() {
        return Ok(measured?);
    }
    let reports: Vec<&Report> = outcomes.iter().map(|outcome| &outcome.report).collect();
    let json = match reports[..] {
        [one] if plans.len() == 1 => one.to_json(),
        _ => format!("[{}]\n", reports.iter().map(|report| report.to_json()).join(",").trim_end()),
    };
    output.write(context, &json, &Report::to_text(&reports))?;
    measured?;
    let Some(file) = plot_file else { return Ok(()) };
    file.write(&outcomes[0].to_svg(&command_line::this("sealane bench")))
}

/// The plan with the step that the flags describe.
fn with_step(plan: Plan, tensors: Option<usize>, size: Option<usize>, workload: Option<&str>) -> Result<Plan, Failure> {
    let Some(name) = workload else {
        let (size_bytes, tensors) = (size.unwrap_or(plan.size_bytes), tensors.unwrap_or(plan.step.len()));
        within("--tensors", tensors, 1, STEP_TENSORS_MAX)?;
        return Ok(Plan { size_bytes, step: vec![size_bytes; tensors], ..plan });
    };
    let workload = Workload::parse(&Workload::text(name)?, name)?;
    let sizes = workload.pull.iter().map(|tensor| usize::try_from(tensor.bytes()).unwrap_or(usize::MAX));
    Ok(Plan { step: sizes.collect(), workload: Some(workload.name), ..plan })
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
    fn a_step_is_so_many_tensors_or_what_a_model_pulls() {
        let step = |tensors, size, workload| with_step(Plan::new(Bench::Fuse), tensors, size, workload);
        for ((tensors, size, workload), expected) in [
            ((None, None, None), (1_000, 64_000)),
            ((Some(16), Some(4 << 20), None), (16, 64 << 20)),
            ((None, None, Some("resnet50")), (214, 102_334_368)),
        ] {
            let plan = step(tensors, size, workload).unwrap();
            plan.check().unwrap();
            assert_eq!((plan.step.len(), plan.step.iter().sum::<usize>()), expected);
            assert_eq!(plan.workload.as_deref(), workload);
        }
        for refused in [step(Some(STEP_TENSORS_MAX + 1), None, None), step(None, None, Some("resnet51"))] {
            assert_eq!(
                format!("{:?}", refused.unwrap_err().report()),
                format!("{:?}", std::process::ExitCode::from(2))
            );
        }
    }
}
