//! Both ends of the raw baseline over fake devices, each on a thread of its own.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::Duration;

use sealane_transport::verbs::device::{Remote, Status};
use sealane_transport::verbs::fake::{Fabric, FakeSettings, Fault, RequestKind, Strike, Verb};

use super::*;
use crate::limits::FILL;
use crate::sample::Metric;

const LENGTH: Duration = Duration::from_millis(2);

/// A device that takes little at once.
fn small() -> FakeSettings {
    FakeSettings { work_bytes_max: 1000, send_depth: 20, ..FakeSettings::default() }
}

fn end(fabric: &Fabric, settings: &FakeSettings, plan: &Plan, side: Side) -> io::Result<End> {
    let device: Box<dyn Device> = Box::new(fabric.open(settings.clone()));
    End::open(device, Areas::of(plan, side), Patient { spins: plan.polling, limit: Some(STALL_LIMIT) })
}

/// Lets a producer's end be served on another thread while a consumer is used on this one.
fn meet<T>(
    (fabric, settings, plan): (&Fabric, &FakeSettings, &Plan),
    serve: impl FnOnce(End, Remote) + Send,
    consume: impl FnOnce(&mut Consumer) -> T,
) -> T {
    let listener = sockets::listen(None).expect("a port is free");
    let mut near = sockets::connect(sockets::port(&listener).expect("bound"), None).expect("listening");
    let mut far = sockets::accept(&listener).expect("connected");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut end = end(fabric, settings, plan, Side::Producer).expect("a device");
            let theirs = card::answer(&mut far, &mut end).expect("a consumer");
            serve(end, theirs);
        });
        let mut end = end(fabric, settings, plan, Side::Consumer).expect("a device");
        let theirs = card::call(&mut near, &mut end).expect("a producer");
        consume(&mut Consumer::new(end, theirs))
    })
}

/// Two rounds of what a producer answers to.
fn two_rounds(fabric: &Fabric, settings: &FakeSettings, plan: &Plan) -> [Result<Sample, BenchError>; 2] {
    let over = AtomicBool::new(false);
    let (has_ended, ended) = mpsc::channel::<()>();
    let serve = |end, theirs| {
        let _has_ended = has_ended;
        let mut producer = Producer::new(plan, end, theirs);
        while producer.turn().is_ok() && !over.load(Relaxed) {}
    };
    meet((fabric, settings, plan), serve, |consumer| {
        let samples = [(); 2].map(|()| consumer.round(plan, LENGTH));
        // The producer looks whether it is over once it has heard something, or that the consumer is gone.
        over.store(true, Relaxed);
        let said = consumer.ask();
        // Its device stays until then: an answer needs somebody to go to.
        let silence = ended.recv_timeout(STALL_LIMIT * 2);
        assert_eq!(silence, Err(mpsc::RecvTimeoutError::Disconnected), "{said:?}");
        samples
    })
}

#[test]
fn every_measurement_yields_its_figures() {
    for (settings, polling) in [(FakeSettings::default(), true), (small(), true), (small(), false)] {
        let plans = [
            Plan::new(Bench::Latency),
            Plan { size_bytes: 900, ..Plan::new(Bench::Latency) },
            Plan { size_bytes: 40, window: 19, ..Plan::new(Bench::Rate) },
            Plan { size_bytes: 9, fuse: Fuse::Off, window: 100, ..Plan::new(Bench::Rate) },
            Plan { step: vec![1, 2_000, 70], ..Plan::new(Bench::Fuse) },
        ];
        for plan in plans.map(|plan| Plan { polling, ..plan }) {
            let fabric = Fabric::new(7);
            for sample in two_rounds(&fabric, &settings, &plan) {
                let sample = sample.unwrap_or_else(|error| panic!("{plan:?}: {error}"));
                assert!(sample.round_trips.is_none_or(|all| !all.is_empty()));
                assert!(sample.figures.iter().all(|(_, value)| *value > 0.0), "{:?}", sample.figures);
            }
            assert_eq!(fabric.violations(), Vec::<String>::new());
            assert_eq!((fabric.receiver_not_ready(), fabric.completion_overruns()), (0, 0), "{plan:?}");
        }
    }
}

#[test]
fn writes_are_cut_to_what_the_device_takes_and_their_last_byte_is_there() {
    for (size_bytes, window) in [(100, 1), (1_000, 3), (25_001, 5)] {
        let plan = Plan { size_bytes, window, ..Plan::new(Bench::Bandwidth) };
        let fabric = Fabric::new(7);
        let (is_over, over) = mpsc::channel::<()>();
        let serve = move |end: End, _| {
            // Nobody writes any more when this ends.
            assert!(over.recv().is_err());
            let areas = end.areas();
            assert!(end.is_all(areas.place()..areas.place() + areas.place_bytes, FILL));
        };
        meet((&fabric, &small(), &plan), serve, |consumer| {
            let _is_over = is_over;
            for _ in 0..2 {
                let sample = consumer.round(&plan, LENGTH).expect("it moves");
                assert!(matches!(sample.figures[..], [(Metric::GigabytesPerSecond, value)] if value > 0.0));
            }
        });
        assert_eq!(fabric.violations(), Vec::<String>::new());
    }
}

#[test]
fn a_request_that_fails_ends_the_round_with_its_status() {
    let plan = Plan::new(Bench::Latency);
    let fabric = Fabric::new(7);
    let [mut ours, mut theirs] = [Side::Consumer, Side::Producer]
        .map(|side| end(&fabric, &FakeSettings::default(), &plan, side).expect("a device"));
    let strike = Strike { kind: Some(RequestKind::Send), status: Status::RETRIES_EXCEEDED, carried_out: false };
    assert!(fabric.inject("fake0", Fault::Request { strike, skip: 0 }));
    ours.connect(&theirs.endpoint()).expect("connected");
    theirs.connect(&ours.endpoint()).expect("connected");
    let error = Consumer::new(ours, theirs.place()).round(&plan, LENGTH).expect_err("its SEND fails");
    assert!(error.to_string().contains("the peer does not acknowledge") && !error.is_usage(), "{error}");
}

#[test]
fn a_device_that_does_not_suit_says_why() {
    let fabric = Fabric::new(7);
    let plan = Plan { window: 9, fuse: Fuse::Off, ..Plan::new(Bench::Rate) };
    let shallow = FakeSettings { receive_depth: 9, ..FakeSettings::default() };
    let error = end(&fabric, &shallow, &plan, Side::Consumer).err().expect("ten buffers are needed");
    assert!(error.to_string().contains("10 are needed, the device has 9"), "{error}");
    for verb in [Verb::Register, Verb::Create, Verb::PostReceives] {
        fabric.inject("fake0", Fault::Verb { verb, reason: "not today".into(), skip: 0 });
        let error = end(&fabric, &FakeSettings::default(), &plan, Side::Producer).err().expect("it fails");
        assert!(error.to_string().contains("not today"), "{error}");
    }
}
