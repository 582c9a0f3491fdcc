//! Every baseline, through the whole harness, with real producer processes. The cases start this
//! very executable as the producer, which is why it has its own `main`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use libtest_mimic::{Arguments, Failed, Trial};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use sealane_bench::{
    Bench, BenchError, FEW_PEERS, Figures, Fuse, Hosts, Link, Metric, Mode, Peer, PeerJob, PeerProgram, Plan, Progress,
    Registration, STALL_LIMIT, Security, Size, Skew, SystemName, Tables, Training, Variant, run, serve_peer,
};
use sealane_transport::shm::attach;

/// Makes this executable a producer.
const PRODUCE: &str = "produce";
/// Makes it a producer that fails, or one that never gets ready.
const FAIL: &str = "fail";
const BABBLE: &str = "babble";

/// Makes it a producer whose engine knows fewer peers than will come.
const FORGET: &str = "forget";

/// Makes it parameter servers that die when they are first measured.
const PERISH: &str = "perish";

/// Peers of a run, where they count.
const PEERS: usize = 5;

/// Length of a round: long enough for many round trips, short enough for a test.
const ROUND_SECONDS: f64 = 0.02;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, job] = arguments.as_slice() {
        match role.as_str() {
            PRODUCE => return ended(serve_peer(job)),
            FORGET => return ended(forget_a_peer(job)),
            PERISH => return ended(perish_in_a_round(job)),
            FAIL => {
                eprintln!("the dog ate it");
                return ExitCode::from(7);
            }
            BABBLE => {
                println!("not ready at all");
                return ExitCode::SUCCESS;
            }
            _ => {}
        }
    }
    libtest_mimic::run(&Arguments::from_args(), cases()).exit_code()
}

fn forget_a_peer(job: &str) -> Result<(), BenchError> {
    let mut job: PeerJob = serde_json::from_str(job).expect("the harness wrote it");
    job.plan.peers -= 1;
    serve_peer(&serde_json::to_string(&job).expect("it was JSON before"))
}

/// A producer rests until its first round, for which it is told to continue: that ends this one.
fn perish_in_a_round(job: &str) -> Result<(), BenchError> {
    let mut continued = SigSet::empty();
    continued.add(Signal::SIGCONT);
    continued.thread_block().expect("every thread of this process inherits it");
    std::thread::spawn(move || {
        continued.wait().expect("it comes");
        eprintln!("the parameters are lost");
        std::process::exit(7);
    });
    serve_peer(job)
}

fn ended(outcome: Result<(), BenchError>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn cases() -> Vec<Trial> {
    let mut cases = Vec::new();
    for link in [Link::Tcp, Link::Shm, Link::Loopback] {
        for system in [SystemName::Raw, SystemName::Grpc, SystemName::GrpcStream] {
            for bench in [Bench::Latency, Bench::Rate, Bench::Bandwidth] {
                let plan = short_plan(bench, link, vec![system]);
                cases.push(yields_figures(format!("{system} {bench} over {link}"), plan));
            }
            let mut asleep = short_plan(Bench::Latency, link, vec![system]);
            asleep.polling = false;
            asleep.idle_us = 300;
            cases.push(yields_figures(format!("{system} latency over {link} asleep"), asleep));
            let mut large = short_plan(Bench::Latency, link, vec![system]);
            large.size_bytes = (3 << 20) + 1;
            cases.push(yields_figures(format!("{system} latency over {link}, large"), large));
            for size_bytes in [1, 100_003] {
                let mut unfused = short_plan(Bench::Rate, link, vec![system]);
                unfused.fuse = Fuse::Off;
                unfused.window = 7;
                unfused.size_bytes = size_bytes;
                let name = format!("{system} rate over {link} of {size_bytes} bytes, not fused");
                cases.push(yields_figures(name, unfused));
            }
        }
    }
    let of_streams =
        [(Link::Tcp, SystemName::Stream), (Link::Shm, SystemName::Stream), (Link::Shm, SystemName::GrpcConnector)];
    for (link, system) in of_streams {
        for bench in [Bench::Latency, Bench::Rate, Bench::Bandwidth] {
            let plan = short_plan(bench, link, vec![system]);
            cases.push(yields_figures(format!("{system} {bench} over {link}"), plan));
        }
    }
    let mut all = short_plan(Bench::Rate, Link::Tcp, vec![SystemName::Raw, SystemName::Grpc, SystemName::GrpcStream]);
    all.congestion = Some("reno".to_owned());
    cases.push(yields_figures("all in turn with reno".to_owned(), all));
    for security in [Security::Secret, Security::Tls] {
        for bench in [Bench::Latency, Bench::Bandwidth] {
            let plan = Plan { security, ..short_plan(bench, Link::Tcp, vec![SystemName::Open]) };
            cases.push(yields_figures(format!("{bench} with security {security}"), plan));
        }
    }
    for baselines in [vec![], vec![SystemName::Raw]] {
        let plan = Plan { peers: PEERS, ..short_plan(Bench::Connect, Link::Tcp, baselines) };
        cases.push(yields_figures(format!("connect with {} baselines", plan.baselines.len()), plan));
    }
    for link in [Link::Tcp, Link::Shm] {
        for polling in [true, false] {
            let plan = Plan { peers: PEERS, polling, ..short_plan(Bench::Idle, link, vec![]) };
            cases.push(Trial::test(format!("idle over {link}, polling {polling}"), move || idle(&plan)));
        }
    }
    for (name, step) in [("small", vec![64; 300]), ("mixed", vec![1, 100_003, 8_192, 8_193, 3 << 20, 5])] {
        for fuse in [Fuse::Off, Fuse::Turn, Fuse::Receive, Fuse::Plan] {
            let baselines = vec![SystemName::Raw, SystemName::Grpc];
            let plan = Plan { step: step.clone(), fuse, ..short_plan(Bench::Fuse, Link::Tcp, baselines) };
            cases.push(Trial::test(format!("a step of {name} tensors, fuse {fuse}"), move || steps(&plan)));
        }
        for fuse in [Fuse::Receive, Fuse::Plan] {
            let plan = Plan { step: step.clone(), fuse, ..short_plan(Bench::Fuse, Link::Shm, vec![]) };
            cases.push(Trial::test(format!("a step of {name} tensors over shm, fuse {fuse}"), move || steps(&plan)));
        }
    }
    for link in [Link::Tcp, Link::Loopback] {
        for fuse in [Fuse::Receive, Fuse::Plan, Fuse::Push] {
            let baselines = vec![SystemName::Raw, SystemName::GrpcStream];
            let plan = Plan { fuse, window: 7, ..short_plan(Bench::Rate, link, baselines) };
            cases.push(yields_figures(format!("rate over {link}, fuse {fuse}"), plan));
        }
    }
    for size_bytes in [64, 100_003] {
        let plan = Plan { fuse: Fuse::Push, window: 7, size_bytes, ..short_plan(Bench::Rate, Link::Shm, vec![]) };
        cases.push(yields_figures(format!("rate over shm of {size_bytes} bytes, fuse push"), plan));
    }
    for peers in [PEERS, 2 * PEERS + 1] {
        for (size_bytes, fuse) in [(64, Fuse::Turn), (64, Fuse::Plan), (300_001, Fuse::Turn), (300_001, Fuse::Plan)] {
            let baselines = vec![SystemName::Raw];
            let plan = Plan { peers, window: 3, size_bytes, fuse, ..short_plan(Bench::FanIn, Link::Tcp, baselines) };
            let name = format!("fanin of {peers} peers, {size_bytes} bytes, fuse {fuse}");
            cases.push(Trial::test(name, move || fan_in(&plan)));
        }
    }
    for mode in [Mode::Async, Mode::Sync] {
        for link in [Link::Tcp, Link::Shm] {
            let plan = training_plan(link, mode, 0, &variants(link));
            cases.push(Trial::test(format!("workers train over {link}, {mode}"), move || train(&plan)));
        }
        let mut beside_grpc = training_plan(Link::Tcp, mode, 0, &[Variant::default()]);
        beside_grpc.baselines = vec![SystemName::Grpc];
        cases.push(Trial::test(format!("workers train beside grpc, {mode}"), move || train(&beside_grpc)));
    }
    for link in [Link::Tcp, Link::Shm] {
        let alone = Variant { size: Some(Size { workers: 1, ps: 3 }), ..Variant::default() };
        let asleep = Variant { polling: false, request_buffers: 2, fuse: Fuse::Off, ..alone };
        let anew = Variant { fuse: Fuse::Receive, registration: Registration::Dynamic, ..alone };
        let plan = training_plan(link, Mode::Sync, 300, &[alone, asleep, anew]);
        cases.push(Trial::test(format!("one worker trains over {link}"), move || train(&plan)));
        let plan = training_plan(link, Mode::Async, 0, &[Variant::default()]);
        cases.push(Trial::test(format!("a ps over {link} that dies is shown with its words"), move || {
            let error = run(&plan, &PeerProgram::this(&[PERISH]), Progress::Silent).expect_err("it is gone");
            assert!(matches!(error, BenchError::PeerDied { .. }), "{error}");
            assert!(error.to_string().contains("the parameters are lost"), "{error}");
            Ok(())
        }));
    }
    for (workers, ps) in [(1, 1), (3, 2)] {
        for (link, baselines) in [
            (Link::Tcp, vec![SystemName::Raw, SystemName::Grpc, SystemName::Whole]),
            (Link::Shm, vec![SystemName::Raw]),
        ] {
            let plan = rows_plan(link, Size { workers, ps }, baselines);
            cases.push(Trial::test(format!("{workers} workers pull rows of {ps} ps over {link}"), move || rows(&plan)));
        }
    }
    for (link, fuse) in [(Link::Tcp, Fuse::Plan), (Link::Shm, Fuse::Plan), (Link::Tcp, Fuse::Receive)] {
        let plan = training_plan(link, Mode::Sync, 0, &[Variant { fuse, ..Variant::default() }]);
        // More parameter servers than the least table has rows.
        let of = |rows, dim| Tables { tables: 1, rows, dim, batch: 300, skew: Skew::Zipf(1.05) };
        let plan = Plan { tables: vec![of(1_000, 5), of(1, 16)], baselines: vec![SystemName::Whole], ..plan };
        cases.push(Trial::test(format!("workers train with rows over {link}, fuse {fuse}"), move || train_rows(&plan)));
    }
    cases.push(Trial::test("an engine that does not know its callers refuses them", refused_callers));
    cases.push(Trial::test("a producer that fails is shown with its words", a_failing_producer));
    cases.push(Trial::test("a producer that babbles is not understood", a_babbling_producer));
    cases.push(Trial::test("a program that is missing is named", a_missing_program));
    cases.push(Trial::test("a producer that was killed is reported", a_killed_producer));
    cases.push(Trial::test("a producer without a place to meet says so", a_producer_without_a_place));
    cases.push(Trial::test("a client of another task is refused", a_client_of_another_task));
    cases.push(Trial::test("a daemon of the bench only lets clients in", a_client_that_does_not_attach));
    cases.push(Trial::test("verbs without a device say so", verbs_without_a_device));
    cases
}

fn short_plan(bench: Bench, link: Link, baselines: Vec<SystemName>) -> Plan {
    let seconds = ROUND_SECONDS;
    Plan { link, baselines, seconds, rounds: 2, ..Plan::new(bench) }
}

fn yields_figures(name: String, plan: Plan) -> Trial {
    Trial::test(name, move || {
        let outcome = run(&plan, &PeerProgram::this(&[PRODUCE]), Progress::Silent)?;
        let report = &outcome.report;
        let systems = ["sealane"].into_iter().chain(plan.baselines.iter().map(|name| name.as_str()));
        let is_cpu = |metric: Metric| matches!(metric, Metric::CpuPerGigabyte | Metric::ProducerCpuPerGigabyte);
        let rows = || report.results.iter().filter(|row| !is_cpu(row.metric));
        assert!(rows().map(|row| row.system).eq(systems));
        let ratios = report.ratios.iter().filter(|ratio| !ratio.of.contains("cpu_s_per_gigabyte")).count();
        let figures = if plan.bench == Bench::Latency { 4 } else { 1 };
        assert_eq!(ratios, plan.baselines.len() * figures);
        assert_eq!(report.parameters["congestion"].is_string(), plan.link == Link::Tcp);
        if let Some(congestion) = &plan.congestion {
            assert_eq!(report.parameters["congestion"], *congestion);
        }
        for row in rows() {
            let expected = match plan.bench {
                Bench::Latency => Metric::RoundTrip,
                Bench::Rate => Metric::TensorsPerSecond,
                Bench::Bandwidth => Metric::GigabytesPerSecond,
                Bench::Connect => Metric::ConnectAll,
                Bench::Idle => Metric::CpuPercent,
                Bench::FanIn | Bench::Fuse | Bench::Restart | Bench::Ps | Bench::Rows | Bench::Collectives => {
                    unreachable!("they yield several")
                }
            };
            assert_eq!(row.metric, expected);
            match row.figures {
                Figures::RoundTrips { p50, count, max, .. } => {
                    assert!(p50 > 0.0 && p50 <= max);
                    assert!(count >= u64::from(plan.rounds));
                }
                Figures::Value { value, min, max } => {
                    // On a machine where others run, nothing may have come in the slowest of these short rounds.
                    assert!(0.0 <= min && min <= value && value <= max && 0.0 < max);
                }
            }
        }
        let svg = outcome.to_svg("sealane bench");
        roxmltree::Document::parse(&svg)?;
        Ok(())
    })
}

/// Every way in which the tensors can move over a link, with few request buffers, and memory of both kinds.
fn variants(link: Link) -> Vec<Variant> {
    let fused = [Fuse::Plan, Fuse::Off, Fuse::Turn, Fuse::Receive, Fuse::ReceiveWaitAll];
    let possible = fused.into_iter().filter(|fuse| link == Link::Tcp || *fuse != Fuse::Turn);
    let of = |fuse| Variant { fuse, request_buffers: 2, ..Variant::default() };
    let dynamic = Variant { registration: Registration::Dynamic, ..of(Fuse::Off) };
    possible.map(of).chain([dynamic]).collect()
}

/// Tables whose rows have a size that needs a call to be copied.
fn rows_plan(link: Link, size: Size, baselines: Vec<SystemName>) -> Plan {
    let plan = short_plan(Bench::Rows, link, baselines);
    let training = plan.training.clone().map(|training| Training { size, ..training });
    let tables = Tables { tables: 3, rows: 1_000, dim: 5, batch: 300, skew: Skew::Zipf(1.05) };
    Plan { training, tables: vec![tables], ..plan }
}

/// What comes is looked at by the systems themselves.
fn rows(plan: &Plan) -> Result<(), Failed> {
    let outcome = run(plan, &PeerProgram::this(&[PRODUCE]), Progress::Silent)?;
    let report = &outcome.report;
    let value = |system: &str, metric| {
        let row = report.results.iter().find(|row| row.system == system && row.metric == metric);
        row.and_then(|row| if let Figures::Value { value, .. } = row.figures { Some(value) } else { None })
    };
    for system in ["sealane"].into_iter().chain(plan.baselines.iter().map(|name| name.as_str())) {
        let (steps, rows) = (value(system, Metric::StepsPerSecond), value(system, Metric::RowsPerSecond));
        assert!(steps > Some(0.0) && rows > steps, "{system}: {rows:?} rows in {steps:?} steps");
    }
    let bytes = |system: &str| value(system, Metric::BytesPerStep).unwrap_or_default();
    // Rows that were named twice are sent once, and whole tables are more. gRPC's are all that passed the loopback interface meanwhile,
    // whoever sent them: no limit of them holds on a machine where others run.
    let least = bytes("sealane");
    assert!(plan.link == Link::Shm || (least < bytes("grpc") && least < bytes("whole")));
    assert_eq!(report.parameters["tables"], serde_json::to_value(&plan.tables)?);
    roxmltree::Document::parse(&outcome.to_svg("sealane bench"))?;
    Ok(())
}

/// What comes is looked at by the systems themselves.
fn train_rows(plan: &Plan) -> Result<(), Failed> {
    let report = run(plan, &PeerProgram::this(&[PRODUCE]), Progress::Silent)?.report;
    let value = |system: &str, metric| {
        let row = report.results.iter().find(|row| row.system == system && row.metric == metric);
        row.and_then(|row| if let Figures::Value { value, .. } = row.figures { Some(value) } else { None })
    };
    let [steps, rows] = [Metric::StepsPerSecond, Metric::RowsPerSecond].map(|metric| value("sealane", metric));
    assert!(
        steps > Some(0.0) && rows.zip(steps).is_some_and(|(rows, steps)| (rows / steps - 600.0).abs() < 1.0),
        "{rows:?}"
    );
    assert!(value("whole", Metric::StepsPerSecond) > Some(0.0) && value("whole", Metric::RowsPerSecond).is_none());
    assert!(report.ratios.iter().any(|ratio| ratio.name == "sealane/whole" && ratio.of == "steps_per_s"));
    assert_eq!(report.parameters["tables"], serde_json::to_value(&plan.tables)?);
    Ok(())
}

/// Five workers and two ps, and tensors of all kinds.
fn training_plan(link: Link, mode: Mode, compute_us: u64, variants: &[Variant]) -> Plan {
    let whole = short_plan(Bench::Ps, link, vec![]);
    let size = Size { workers: 5, ps: 2 };
    let (push, variants) = (vec![100_003, 8, 20_000], variants.to_vec());
    let training = Training { size, mode, compute_us, push, variants };
    let first = training.variants[0];
    let step = vec![64, 9_000, 1, 100_000, 513];
    Plan { step, window: first.request_buffers, fuse: first.fuse, training: Some(training), ..whole }
}

fn train(plan: &Plan) -> Result<(), Failed> {
    let training = plan.training.as_ref().expect("it is one of training");
    let outcome = run(plan, &PeerProgram::this(&[PRODUCE]), Progress::Silent)?;
    let report = &outcome.report;
    assert_eq!(report.parameters["congestion"].is_string(), plan.link == Link::Tcp);
    let of =
        |system: &str, metric| report.results.iter().filter(|row| row.system == system && row.metric == metric).count();
    for (system, variants) in [("sealane", training.variants.len()), ("grpc", 2 * plan.baselines.len())] {
        for metric in [Metric::StepsPerSecond, Metric::StepTime, Metric::StepTimeP99, Metric::CpuPerStep] {
            assert_eq!(of(system, metric), variants, "{system} {metric:?}");
        }
        let counted = if plan.link == Link::Tcp { variants } else { 0 };
        assert_eq!(of(system, Metric::MessagesPerStep), counted, "{system}");
    }
    let messages = |fuse: &str| {
        let is_it = |variant: &str| variant.split(", ").any(|part| part == fuse);
        let mut rows = report.results.iter().filter(|row| row.metric == Metric::MessagesPerStep && is_it(&row.variant));
        rows.find_map(|row| if let Figures::Value { value, .. } = row.figures { Some(value) } else { None })
    };
    if let (Some(planned), Some(single)) = (messages("fuse plan"), messages("fuse off")) {
        assert!(planned < single, "a plan takes {planned} messages, {single} are without");
    }
    for row in &report.results {
        let Figures::Value { value, min, max } = row.figures else { panic!("{row:?}") };
        assert!(min <= value && value <= max, "{row:?}");
        match row.metric {
            Metric::StepsPerSecond | Metric::MessagesPerStep | Metric::BytesPerStep => assert!(min > 0.0, "{row:?}"),
            Metric::StepTime => assert!(min * 1e3 >= training.compute_us as f64, "{row:?}"),
            Metric::SlowestShare => assert!(0.0 < min && max <= 1.0, "{row:?}"),
            Metric::FastestShare => assert!(min >= 1.0, "{row:?}"),
            _ => {}
        }
    }
    roxmltree::Document::parse(&outcome.to_svg("sealane bench"))?;
    Ok(())
}

fn idle(plan: &Plan) -> Result<(), Failed> {
    let outcome = run(plan, &PeerProgram::this(&[PRODUCE]), Progress::Silent)?;
    let report = &outcome.report;
    let metrics: Vec<Metric> = report.results.iter().map(|row| row.metric).collect();
    assert_eq!(metrics, [Metric::CpuPercent, Metric::ResidentBytesPerPeer]);
    assert_eq!(report.parameters["peers"], PEERS);
    for row in &report.results {
        let Figures::Value { value, min, max } = row.figures else { panic!("{row:?}") };
        assert!(min <= value && value <= max && (row.metric != Metric::CpuPercent || min >= 0.0), "{row:?}");
    }
    roxmltree::Document::parse(&outcome.to_svg("sealane bench"))?;
    Ok(())
}

fn fan_in(plan: &Plan) -> Result<(), Failed> {
    let outcome = run(plan, &PeerProgram::this(&[PRODUCE]), Progress::Silent)?;
    let report = &outcome.report;
    assert_eq!(report.parameters["peers"], plan.peers);
    let is_compared = plan.peers > FEW_PEERS;
    let systems: Vec<_> = report.results.iter().map(|row| (row.system, row.metric)).collect();
    let metrics = [Metric::TensorsPerSecond, Metric::SlowestShare, Metric::ResidentBytesPerPeer];
    let of_sealane = metrics.map(|metric| ("sealane", metric));
    let expected =
        [of_sealane.repeat(if is_compared { 2 } else { 1 }), metrics[..2].iter().map(|m| ("raw", *m)).collect()];
    assert_eq!(systems, expected.concat());
    let rates = report.ratios.iter().filter(|ratio| ratio.of == "tensors_per_s");
    assert_eq!(rates.count(), 1 + usize::from(is_compared));
    for row in &report.results {
        let Figures::Value { value, min, max } = row.figures else { panic!("{row:?}") };
        assert!(min <= value && value <= max, "{row:?}");
        match row.metric {
            Metric::TensorsPerSecond => assert!(min > 0.0, "{row:?}"),
            Metric::SlowestShare => assert!((0.0..=1.0).contains(&min), "{row:?}"),
            _ => {}
        }
    }
    Ok(())
}

fn steps(plan: &Plan) -> Result<(), Failed> {
    let outcome = run(plan, &PeerProgram::this(&[PRODUCE]), Progress::Silent)?;
    let report = &outcome.report;
    assert_eq!(report.parameters["tensors"], plan.step.len());
    assert_eq!(report.parameters["step_bytes"], plan.step.iter().sum::<usize>());
    for system in ["sealane", "raw", "grpc"] {
        let rows = report.results.iter().filter(|row| row.system == system);
        let times = rows.clone().filter(|row| row.metric == Metric::StepTime).count();
        let is_measured = system == "sealane" || !plan.baselines.is_empty();
        let variants = if system == "grpc" { 2 } else { 1 };
        assert_eq!(times, if is_measured { variants } else { 0 }, "{system}");
        for row in rows {
            let Figures::Value { value, min, max } = row.figures else { panic!("{row:?}") };
            assert!(0.0 < min && min <= value && value <= max, "{row:?}");
            match (row.metric, system) {
                (Metric::MessagesPerStep, "raw") => assert_eq!((min, max), (2.0, 2.0)),
                (Metric::MessagesPerStep, "sealane") => assert!(min >= 2.0, "{row:?}"),
                _ => {}
            }
        }
    }
    for ratio in ["sealane/raw", "sealane/grpc", "sealane/grpc, one message"] {
        if plan.baselines.is_empty() {
            break;
        }
        let of: Vec<_> = report.ratios.iter().filter(|one| one.name == ratio).map(|one| one.of.as_str()).collect();
        assert!(
            of == ["step_ms", "steps_per_s", "tensors_per_s", "gigabytes_per_s", "messages_per_step"],
            "{ratio}: {of:?}"
        );
    }
    Ok(())
}

fn refused_callers() -> Result<(), Failed> {
    for bench in [Bench::Connect, Bench::Idle, Bench::FanIn] {
        let plan = Plan { peers: PEERS, ..short_plan(bench, Link::Tcp, vec![]) };
        let error = run(&plan, &PeerProgram::this(&[FORGET]), Progress::Silent).expect_err("one is unknown");
        assert!(error.to_string().contains(&format!("1 of {PEERS} were refused")), "{error}");
        assert!(error.to_string().contains("endpoint map"), "{error}");
    }
    Ok(())
}

fn raw_job() -> PeerJob {
    PeerJob {
        system: SystemName::Raw,
        plan: Plan::new(Bench::Latency),
        cpu: None,
        hosts: Hosts::default(),
        consumer_port: None,
        meeting_place: None,
        keys: None,
    }
}

fn job_over_shm(system: SystemName, meeting_place: Option<PathBuf>) -> PeerJob {
    let plan = Plan { link: Link::Shm, ..Plan::new(Bench::Latency) };
    PeerJob { system, plan, meeting_place, ..raw_job() }
}

/// Waits for the end of a producer, which has to come by itself, and gives its words.
fn last_words(peer: &mut Peer) -> String {
    loop {
        if let Err(error) = peer.resume() {
            assert!(matches!(error, BenchError::PeerDied { .. }), "{error}");
            return error.to_string();
        }
        std::thread::yield_now();
    }
}

fn a_producer_without_a_place() -> Result<(), Failed> {
    for system in [SystemName::Sealane, SystemName::Grpc] {
        let error = Peer::start(&PeerProgram::this(&[PRODUCE]), &job_over_shm(system, None)).expect_err("no place");
        assert!(error.to_string().contains("the job names no place"), "{error}");
    }
    Ok(())
}

fn a_client_of_another_task() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("s");
    let job = job_over_shm(SystemName::Sealane, Some(socket.clone()));
    let mut peer = Peer::start(&PeerProgram::this(&[PRODUCE]), &job)?;
    let error = sealane::Attach::new("nobody:1").socket(socket).attach().expect_err("nobody is not served");
    assert_eq!(error.code(), sealane::Code::NotFound);
    let words = last_words(&mut peer);
    assert!(words.contains("let a client in") && words.contains("nobody:1"), "{words}");
    Ok(())
}

fn a_client_that_does_not_attach() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let socket = directory.path().join("s");
    let job = job_over_shm(SystemName::Sealane, Some(socket.clone()));
    let mut peer = Peer::start(&PeerProgram::this(&[PRODUCE]), &job)?;
    let error = attach::drain(&socket, Instant::now() + STALL_LIMIT).expect_err("it cannot be drained");
    assert!(matches!(error, attach::AttachError::HungUp), "{error}");
    let words = last_words(&mut peer);
    assert!(words.contains("is not to attach"), "{words}");
    Ok(())
}

/// Where there is a device, both systems are measured.
fn verbs_without_a_device() -> Result<(), Failed> {
    let latency = short_plan(Bench::Latency, Link::Verbs, vec![SystemName::Raw]);
    for plan in [latency, training_plan(Link::Verbs, Mode::Async, 0, &[Variant::default()])] {
        match run(&plan, &PeerProgram::this(&[PRODUCE]), Progress::Silent) {
            Ok(outcome) => assert!(outcome.report.parameters["device"].is_object()),
            Err(error) => assert!(error.to_string().contains("verbs are required") && !error.is_usage(), "{error}"),
        }
    }
    Ok(())
}

fn a_failing_producer() -> Result<(), Failed> {
    let error = Peer::start(&PeerProgram::this(&[FAIL]), &raw_job()).expect_err("it fails");
    let text = error.to_string();
    assert!(matches!(error, BenchError::PeerDied { .. }), "{text}");
    assert!(text.contains("the dog ate it") && text.contains('7'), "{text}");
    Ok(())
}

fn a_babbling_producer() -> Result<(), Failed> {
    let error = Peer::start(&PeerProgram::this(&[BABBLE]), &raw_job()).expect_err("it babbles");
    assert!(error.to_string().contains("not ready at all"), "{error}");
    Ok(())
}

fn a_missing_program() -> Result<(), Failed> {
    let program = PeerProgram::new("/nowhere/at/all", &[]);
    let error = Peer::start(&program, &raw_job()).expect_err("there is no such program");
    assert!(error.to_string().contains("start the producer of raw"), "{error}");
    Ok(())
}

fn a_killed_producer() -> Result<(), Failed> {
    let mut peer = Peer::start(&PeerProgram::this(&[PRODUCE]), &raw_job())?;
    let process = Pid::from_raw(i32::try_from(peer.process_id())?);
    kill(process, Signal::SIGKILL)?;
    // The signal was sent; that the process is gone is seen when it is.
    let error = loop {
        if let Err(error) = peer.rest() {
            break error;
        }
    };
    assert!(matches!(error, BenchError::PeerDied { .. }), "{error}");
    let blamed = peer.blame(BenchError::Stalled { system: "sealane", waited: std::time::Duration::ZERO });
    assert!(matches!(blamed, BenchError::PeerDied { .. }), "{blamed}");
    Ok(())
}
