//! `sealane bench`: measures Sealane and what users would otherwise run, side by side.

mod growth;
mod ps;
mod restart;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{Subcommand, ValueEnum};
use sealane_bench::{
    Bench, BenchError, Executor, Fuse, IDLE_US_DEFAULT, Link, Outcome, PeerProgram, Plan, Progress, Registration,
    STEP_TENSORS_MAX, Security, SystemName, Transfer, parse_bytes, run as measure, run_own, serve_peer,
};

use self::restart::Restart;
use crate::output_file::OutputFile;
use crate::workload::Workload;
use crate::{Context, Failure, command_line};

/// What starts this program as a producer; the job follows as the last argument.
const PRODUCER: [&str; 2] = ["bench", "peer"];

/// What stands for standard output where a file is expected.
const STANDARD_OUTPUT: &str = "-";

/// What each link's figures mean, for people who read `--help`.
const LINKS: &str = "\
Links:
  tcp
    Two engines in two processes, each on its CPU, and one connection over
    the loopback interface. A consumer asks for tensors, one at a time or
    with a window.
    raw: the same requests and answers over bare sockets, spinning, or
    blocking with --polling off.
    ps: all workers in one thread, each with a connection to every ps.
    grpc: unary calls through tonic.
  shm
    A daemon of one shard on the second CPU, and two of its clients, a ps and
    a worker, in one process on the first. Every tensor goes from client to
    daemon to client through shared memory.
    latency: the worker has asked; timed is from the call of send on the ps
    until the worker has the tensor.
    rate: a window of sends and recvs; with --fuse turn in batches (send_all,
    recv_all), else one call each.
    bandwidth: from memory in the ps's arena to memory in the worker's.
    raw: between the same two CPUs, whatever --size is, a descriptor of 64
    bytes there and back through two bare rings (latency; with --polling off
    two processes that wake each other by futex), one bare ring at full
    speed, one way (rate), memcpy by one thread with as many buffers as the
    window (bandwidth).
    ps: every worker is a client of the parameter servers' engine, with a
    thread of its own; the ps are code on that engine's shard, so what they
    do takes no hop. Memory that is not kept is taken from the client's arena
    anew. 64 workers at most; no --fuse turn, no baselines.
    grpc: unary calls through tonic over a Unix socket.
  verbs
    Two engines in two processes, as over tcp, and one queue pair of an RDMA
    device; only the greeting passes through the loopback interface. Needs a
    build with `--features verbs`. Tensors lie in registered memory, or with
    --registration dynamic are registered for each transfer.
    raw: perftest on the same device and port, which has to be installed:
    ib_send_lat (latency), and ib_write_bw with the window, at least two,
    outstanding (bandwidth); spinning, or asleep until there is a completion
    with --polling off. It has nothing like rate and fuse.
    ps: every worker is an engine with a queue pair to every ps, and a thread
    of its own. 64 workers at most; no raw.
    grpc: unary calls through tonic over TCP.
  loopback
    Inside one process, without the kernel.
    raw: two rings of bytes in one thread.

Example:
  sealane bench latency --link shm --baseline raw";

/// Measure Sealane and what would run without it, side by side
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  sealane bench latency --baseline raw --baseline grpc",
    after_long_help = LINKS
)]
pub struct Args {
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

        /// Bytes of a tensor, as in 64 or 4MiB
        #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "64")]
        size: usize,

        /// Whether both sides spin instead of sleeping
        #[arg(long, value_name = "ON|OFF", default_value = "on")]
        polling: Polling,

        /// Microseconds without work before each request [default: 0; with --polling off: 1000]
        #[arg(long, value_name = "US")]
        idle_us: Option<u64>,
    },

    /// Small tensors a second
    #[command(after_help = "Example:\n  sealane bench rate --window 256 --fuse off --baseline grpc")]
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
        /// plan per window; push: one-way pushes. Over shm only off (one call per tensor) and turn (batched calls)
        #[arg(long, value_name = "off|turn|receive|plan|push", default_value_t = Fuse::Turn)]
        fuse: Fuse,
    },

    /// Large tensors, in 10^9 bytes a second
    #[command(after_help = "Example:\n  sealane bench bandwidth --size 4MiB --congestion reno --baseline raw")]
    Bandwidth {
        #[command(flatten)]
        common: Common,

        /// Bytes of a tensor, as in 4MiB
        #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "4MiB")]
        size: usize,

        /// Tensors in flight at once; the raw baseline streams without a window over tcp, and over shm copies between so
        /// many buffers
        #[arg(long, value_name = "N", default_value_t = Plan::new(Bench::Bandwidth).window)]
        window: usize,
    },

    /// Many peers that connect to one engine and greet it at once: milliseconds until the last is welcomed
    ///
    /// The peers are plain sockets of one thread that speak the wire's own greeting; in every round all of them come, and
    /// go again. None may be refused. A first time that does not count warms up. raw: as many bare connections to a thread
    /// that waits in epoll, and as many bytes each way as the greetings have.
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
    /// The engine has a process to itself. cpu_percent is that process's user and system time, in percent of one CPU;
    /// rss_bytes_per_peer is what its resident memory has grown by since before the first peer came, divided by N.
    /// The peers over tcp are plain sockets that greet, answer pings and stay; over shm they are attached clients. Over tcp
    /// all peers are pinged every ten seconds: a longer --seconds shows what that costs.
    #[command(after_help = "Example:\n  sealane bench idle --peers 1000 --seconds 10\n  \
                      sealane bench idle --peers 64 --link shm --polling on --seconds 5")]
    Idle {
        #[command(flatten)]
        common: Common,

        /// Peers that are connected
        #[arg(long, value_name = "N", default_value_t = Plan::new(Bench::Idle).peers)]
        peers: usize,

        /// Whether the engine spins, or sleeps when nothing has come for a while
        #[arg(long, value_name = "ON|OFF", default_value = "off")]
        polling: Polling,
    },

    /// N workers pulling small tensors from one ps, compared with 10
    ///
    /// The ps's engine has a process to itself and spins; the workers are sessions over sockets of their own, in one thread.
    /// Each keeps a window of requests in flight, or pulls a plan of so many tensors again and again. tensors_per_s is that of all together; slowest_share what the worker
    /// that got the fewest got, in what each would have got if all had got the same; rss_bytes_per_peer what the engine's
    /// resident memory had grown by when all had greeted and none had asked, divided by N.
    /// raw: N bare connections to a thread that answers every request of 64 bytes.
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

        /// Whether each worker receives what the ps sends to it (turn), or pulls what it has published for all (plan)
        #[arg(long, value_name = "turn|plan", default_value_t = Plan::new(Bench::FanIn).fuse)]
        fuse: Fuse,
    },

    /// One step of many tensors: a worker pulls all of them from a ps, each from its own memory into its own
    ///
    /// step_ms is the median step of a round, from the first request until the last tensor is in its place. off and turn: a
    /// recv a tensor, with a window in flight; the ps has sent ahead what is asked for. receive: the same with one fused recv.
    /// plan: the ps has published the tensors once, or does so each step. raw: one request, answered
    /// by all tensors at once. grpc is measured twice: a unary call a tensor with 64 in flight, and one call whose answer is
    /// one message with all tensors, which is compared as `sealane/grpc, one message`.
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

        /// A request a tensor, whose messages leave one by one (off) or as one write a turn (turn); one request by keys
        /// (receive), or by the number of a plan (plan)
        #[arg(long, value_name = "off|turn|receive|plan", default_value_t = Plan::new(Bench::Fuse).fuse)]
        fuse: Fuse,

        /// With a plan: the ps publishes all tensors again for each step, when the worker has told it to
        #[arg(long)]
        republish: bool,

        /// Requests in flight at once, where each tensor is one
        #[arg(long, value_name = "N", default_value_t = Plan::new(Bench::Fuse).window)]
        window: usize,
    },

    /// A daemon that is drained and started anew while its tasks go on: milliseconds in which nothing reaches them
    ///
    /// Two daemons of this program, with one shard each and all else as by default; a ps and a worker at the first, a worker
    /// at the second. The ps pushes a tensor to both workers every half millisecond. In each round, after --seconds of that, the
    /// first daemon is ended by `sealane drain` and started anew. gap_ms is the longest time between two tensors that reached the
    /// worker of the same host, peer_gap_ms the other's; failed_calls counts the calls that ended with an error and were made
    /// again. Nothing is pinned.
    #[command(after_help = "Example:\n  sealane bench restart --rounds 10")]
    Restart {
        #[command(flatten)]
        common: Common,

        /// Bytes of a tensor, as in 64 or 4MiB
        #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "64")]
        size: usize,
    },

    Ps(ps::Args),

    /// The parameter-server experiment at sizes that no machine here can run: simulated, on virtual time
    ///
    /// W workers pull all variables from M ps and push all gradients, step after step. Every core and NIC has a cost for each
    /// write, message and byte, and a queue. Costs are built in, or fitted with --calibrate; fitted costs are checked by predicting
    /// those measurements. For each size: steps a second, how busy the busiest core and NIC are, the efficiency against perfect
    /// growth, the first bottleneck, and how far relieving it helps.
    #[command(after_help = "Example:\n  sealane bench growth --sizes 200+10,10000+500 --slice 64KiB\n  \
                      sealane bench growth --calibrate small.json large.json --json growth.json")]
    Growth(growth::Args),

    /// Serve a measurement that another process makes
    #[command(
        hide = true,
        after_help = "Example:\n  sealane bench peer JSON  # started by the other commands, not by people"
    )]
    Peer {
        /// What to serve
        job: String,
    },
}

#[derive(Debug, clap::Args)]
struct Common {
    /// What carries the tensors: tcp, shm, verbs or loopback
    #[arg(long, default_value_t = Link::Tcp)]
    link: Link,

    /// Over verbs: whether the producer writes large tensors into the consumer's memory, or the consumer reads them out of
    /// the producer's [default: write]
    #[arg(long, value_name = "write|read")]
    transfer: Option<Transfer>,

    /// Over verbs: whether memory is registered with the device once, or for each transfer; with ps over tcp or shm: whether it is
    /// kept, or made anew for each transfer. With ps a list makes variants [default: static]
    #[arg(long, value_name = "static|dynamic", value_delimiter = ',')]
    registration: Vec<Registration>,

    /// Counted seconds of each system in each round; connect does not need them
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,

    /// Rounds, in each of which every system is measured once
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,

    /// Over tcp: what Sealane's two sides show each other: nothing, a shared secret, or certificates, and then all is
    /// encrypted
    #[arg(long, value_name = "none|secret|tls", default_value_t = Security::None)]
    security: Security,

    /// What Sealane's shards run on and sleep in; auto: io_uring where it can be used, else epoll
    #[arg(long, value_name = "auto|io_uring|epoll", default_value_t = Executor::Auto)]
    executor: Executor,

    /// Also measure raw (the bare operation of the kernel, of memory, or of an RDMA device), grpc, or, beside --security,
    /// open (Sealane without it); repeatable
    #[arg(long, value_name = "raw|grpc|open")]
    baseline: Vec<SystemName>,

    /// CPUs of the consumer and the producer, as in 0,1 [default: the first two allowed]
    #[arg(long, value_name = "A,B", value_parser = two_cpus)]
    cpus: Option<[usize; 2]>,

    /// TCP congestion control of every system [default: the kernel's]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,

    /// Write the report as JSON to a file, or alone to standard output with `-`
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,

    /// Draw the report
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    /// Write a report with plots, all figures and the machine: one page that needs nothing else
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Polling {
    On,
    Off,
}

/// Runs `sealane bench`.
///
/// # Errors
///
/// The flags contradict the machine or each other, a measurement failed, or a file cannot be
/// written.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let (common, plan) = match &args.command {
        Command::Latency { common, size, polling, idle_us } => {
            let polling = *polling == Polling::On;
            let idle_us = idle_us.unwrap_or(if polling { 0 } else { IDLE_US_DEFAULT });
            let plan = Plan { size_bytes: *size, polling, idle_us, ..plan(Bench::Latency, common) };
            (common, plan)
        }
        Command::Rate { common, size, window, fuse } => {
            let plan = Plan { size_bytes: *size, window: *window, fuse: *fuse, ..plan(Bench::Rate, common) };
            (common, plan)
        }
        Command::Bandwidth { common, size, window } => {
            (common, Plan { size_bytes: *size, window: *window, ..plan(Bench::Bandwidth, common) })
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
        Command::Fuse { common, tensors, size, workload, fuse, republish, window } => {
            let plan = Plan { fuse: *fuse, republish: *republish, window: *window, ..plan(Bench::Fuse, common) };
            (common, with_step(plan, *tensors, *size, workload.as_deref())?)
        }
        Command::Restart { common, size } => (common, Plan { size_bytes: *size, ..plan(Bench::Restart, common) }),
        Command::Ps(experiment) => (&experiment.common, experiment.plan()?),
        Command::Growth(args) => return growth::run(args, context),
        Command::Peer { job } => return Ok(serve_peer(job)?),
    };
    if plan.bench != Bench::Ps {
        only(common)?;
    }
    let report_file = OutputFile::named("--report", common.report.as_ref())?;
    let made = SystemTime::now();
    let mut progress = Progress::on_stderr();
    let outcome = if plan.bench == Bench::Restart {
        plan.check()?;
        run_own(&plan, Box::new(Restart::start(plan.size_bytes)?), &mut progress)?
    } else {
        measure(&plan, &PeerProgram::this(&PRODUCER), &mut progress)?
    };
    if let Some(file) = &common.plot {
        write(file, &outcome.to_svg(&command_line::this()))?;
    }
    if let Some(file) = report_file {
        file.write(&outcome.to_page(&command_line::this(), made).to_html())?;
    }
    report(&outcome, common.json.as_deref(), context)
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

fn report(outcome: &Outcome, json: Option<&Path>, context: &Context) -> Result<(), Failure> {
    match json {
        Some(file) if file == Path::new(STANDARD_OUTPUT) => context.print(&outcome.report.to_json()),
        Some(file) => {
            write(file, &outcome.report.to_json())?;
            context.print(&outcome.report.to_table())
        }
        None => context.print(&outcome.report.to_table()),
    }
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    fs::write(file, text).map_err(|error| {
        Failure::input(format!(
            "{} cannot be written ({error}); name a file in a directory that exists",
            file.display()
        ))
    })
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
    use clap::Parser as _;

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
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let plan_of = |line: &str| {
            let Command::Bandwidth { common, .. } = Line::parse_from(line.split(' ')).args.command else {
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
        assert!(Line::try_parse_from(["bench", "bandwidth", "--transfer", "carry"]).is_err());
    }

    #[test]
    fn a_wrong_plan_is_the_users_and_a_failed_round_is_not() {
        let wrong = Failure::from(BenchError::LinkNotBuilt("verbs"));
        assert_eq!(format!("{:?}", wrong.report()), format!("{:?}", std::process::ExitCode::from(2)));
        let failed = BenchError::Stalled { system: "raw", waited: std::time::Duration::ZERO };
        let failed = Failure::from(failed);
        assert_eq!(format!("{:?}", failed.report()), format!("{:?}", std::process::ExitCode::from(1)));
    }
}
