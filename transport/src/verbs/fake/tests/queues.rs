//! Depths, completions, and the descriptors that announce them.

use super::harness::{Host, Pair, is_readable};
use crate::verbs::device::{AsyncEvent, Device, Post, RECEIVED, Status, Work};
use crate::verbs::fake::{Fabric, FakeSettings, Fault};

fn small() -> FakeSettings {
    FakeSettings { receive_depth: 4, completion_depth: 8, send_depth: 3, inline_bytes: 16, ..FakeSettings::default() }
}

#[test]
fn attributes_are_those_of_the_settings() {
    let fabric = Fabric::new(1);
    let settings = FakeSettings { name: "near".into(), mtu: 4096, reads: 3, ..small() };
    let host = Host::new(&fabric, settings.clone());
    let of = host.device.attributes();
    assert_eq!((of.receive_depth, of.completion_depth, of.send_depth), (4, 8, 3));
    assert_eq!((of.device.as_str(), of.mtu, of.reads, of.has_windows), ("near", 4096, 3, true));
    // Devices of one adapter share its GID; other adapters have other GIDs.
    let (shard, other) = (Host::new(&fabric, settings), Host::new(&fabric, small()));
    assert_eq!(shard.device.attributes().gid, of.gid);
    assert_ne!(other.device.attributes().gid, of.gid);
}

#[test]
fn a_full_send_queue_takes_what_fits() {
    let mut pair = Pair::with(small());
    (0..4).for_each(|id| pair.far.receive(id, 0, 4));
    let work = Work::Send(pair.near.piece(0, 4));
    let quiet = |id| Post { id, signaled: false, work };
    let (taken, error) = pair.near.post(pair.here, &[0, 1, 2, 3, 4].map(quiet)).expect_err("too many");
    assert_eq!(taken, 3);
    assert!(error.to_string().contains("the send queue holds 3"), "{error}");
    assert_eq!(pair.far.poll().len(), 3, "what was taken is carried out");
    assert!(pair.near.poll().is_empty());
    // No completion tells the sender that they are done, so their slots are not free.
    assert_eq!(pair.near.post(pair.here, &[quiet(5)]).expect_err("full").0, 0);
}

#[test]
fn polling_a_completion_frees_the_places_up_to_it() {
    let mut pair = Pair::with(small());
    (0..4).for_each(|id| pair.far.receive(id, 0, 4));
    let work = Work::Send(pair.near.piece(0, 4));
    let posts = [(0, false), (1, true), (2, false)].map(|(id, signaled)| Post { id, signaled, work });
    pair.near.post(pair.here, &posts).expect("three requests");
    let next = Post { id: 3, signaled: true, work };
    assert!(pair.near.post(pair.here, &[next]).is_err(), "not polled");
    assert_eq!(pair.near.outcomes(), [(1, Status::SUCCESS)]);
    pair.near.post(pair.here, &[next]).expect("two places are free");
    assert_eq!(pair.near.outcomes(), [(3, Status::SUCCESS)]);
}

#[test]
fn too_much_inline_is_refused() {
    let mut pair = Pair::with(small());
    assert_eq!(pair.here.inline_bytes, 16);
    let (here, work) = (pair.here, pair.near.inline(0, 17));
    let (taken, error) = pair.near.post(here, &[Post { id: 1, signaled: true, work }]).expect_err("too long");
    assert_eq!(taken, 0);
    assert!(error.to_string().contains("17 bytes inline, at most 16"), "{error}");
}

#[test]
fn ids_of_sends_and_of_receives_are_told_apart() {
    let mut pair = Pair::with(small());
    let (here, work) = (pair.here, Work::Send(pair.near.piece(0, 4)));
    assert!(pair.near.post(here, &[Post { id: RECEIVED | 1, signaled: true, work }]).is_err());
    let piece = pair.near.piece(0, 4);
    assert!(pair.near.receives(&[(1, piece)]).is_err());
}

#[test]
fn a_full_receive_queue_takes_none() {
    let mut pair = Pair::with(small());
    let piece = pair.far.piece(0, 4);
    let error = pair.far.receives(&[(RECEIVED, piece); 5]).expect_err("too many");
    assert!(error.to_string().contains("the shared receive queue holds 4"), "{error}");
    pair.far.receives(&[(RECEIVED, piece); 4]).expect("as many as it holds");
    assert_eq!(pair.send(b"x"), Status::SUCCESS);
    assert!(pair.far.receives(&[(RECEIVED, piece)]).is_err(), "the completion was not polled");
    assert_eq!(pair.far.poll().len(), 1);
    pair.far.receives(&[(RECEIVED, piece)]).expect("one is free");
}

#[test]
fn an_overrun_completion_queue_is_told_and_counted() {
    let mut pair = Pair::with(FakeSettings { completion_depth: 2, ..small() });
    (0..4).for_each(|id| pair.far.receive(id, 0, 4));
    let work = Work::Send(pair.near.piece(0, 4));
    let quiet = |id| Post { id, signaled: false, work };
    pair.near.post(pair.here, &[0, 1, 2].map(quiet)).expect("three requests");
    assert_eq!(pair.fabric.completion_overruns(), 1, "at the receiver");
    assert_eq!(pair.far.device.next_event(), Some(AsyncEvent::CompletionQueueOverrun));
    assert_eq!(pair.far.device.next_event(), None);
    assert_eq!(pair.far.poll().len(), 2, "the third is lost");
    assert_eq!(pair.near.device.next_event(), None);
}

#[test]
fn unsignaled_requests_that_fail_overrun_too() {
    let mut pair = Pair::with(FakeSettings { completion_depth: 2, ..small() });
    let (here, work) = (pair.here, Work::Send(pair.near.piece(0, 4)));
    let quiet = |id| Post { id, signaled: false, work };
    pair.near.post(here, &[0, 1, 2].map(quiet)).expect("three requests");
    assert_eq!(pair.fabric.counters_of("near").completion_overruns, 1);
    assert_eq!(pair.near.outcomes(), [(0, Status::RECEIVER_NOT_READY), (1, Status::FLUSHED)]);
}

#[test]
fn the_worst_case_of_completions_is_known() {
    let mut pair = Pair::with(small());
    let worst = |pair: &Pair| pair.fabric.counters_of("near").completions_worst;
    pair.far.receive(1, 0, 4);
    pair.far.receive(2, 0, 4);
    pair.near.receive(3, 0, 4);
    assert_eq!(worst(&pair), 1);
    let work = Work::Send(pair.near.piece(0, 4));
    let posts = [false, true].map(|signaled| Post { id: 1, signaled, work });
    pair.near.post(pair.here, &posts).expect("two requests");
    assert_eq!(worst(&pair), 3, "a receive, and two that may fail for all that the sender knows");
    pair.near.device.destroy(pair.here.id);
    pair.near.receive(4, 0, 4);
    assert_eq!(worst(&pair), 3, "two receives, and a completion that waits");
    assert_eq!(pair.near.outcomes(), [(1, Status::SUCCESS)]);
    pair.near.receive(5, 0, 4);
    pair.near.receive(6, 0, 4);
    assert_eq!(worst(&pair), 4);
}

#[test]
fn polling_moves_as_many_as_are_wanted() {
    let mut pair = Pair::with(small());
    for id in 0..3 {
        pair.far.receive(id, 0, 4);
        assert_eq!(pair.send(b"x"), Status::SUCCESS);
    }
    let mut into = Vec::new();
    assert_eq!(pair.far.device.poll(&mut into, 2), Ok(2));
    assert_eq!(pair.far.device.poll(&mut into, 2), Ok(1));
    assert_eq!(pair.far.device.poll(&mut into, 2), Ok(0));
    assert_eq!(into.iter().map(|found| found.id & !RECEIVED).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_completion_is_told_once_for_each_time_it_was_armed() {
    let mut pair = Pair::with(small());
    (0..4).for_each(|id| pair.far.receive(id, 0, 4));
    assert_eq!(pair.send(b"x"), Status::SUCCESS);
    assert!(!is_readable(pair.far.device.completion_descriptor()), "not armed");
    pair.far.device.arm().expect("a device that works");
    assert!(!is_readable(pair.far.device.completion_descriptor()), "it came before");
    assert_eq!(pair.send(b"x"), Status::SUCCESS);
    assert!(is_readable(pair.far.device.completion_descriptor()));
    pair.far.device.disarm();
    assert!(!is_readable(pair.far.device.completion_descriptor()));
    assert_eq!(pair.send(b"x"), Status::SUCCESS);
    assert!(!is_readable(pair.far.device.completion_descriptor()), "not armed again");
    assert_eq!(pair.far.poll().len(), 3);
    pair.far.device.arm().expect("a device that works");
    pair.far.device.arm().expect("a device that works");
    pair.far.device.disarm();
    assert_eq!(pair.send(b"x"), Status::SUCCESS);
    assert!(is_readable(pair.far.device.completion_descriptor()), "nothing was to be taken, so it stays armed");
    pair.far.device.disarm();
    assert!(!is_readable(pair.far.device.completion_descriptor()), "told once");
}

#[test]
fn what_is_not_signaled_rings_nothing() {
    let mut pair = Pair::with(small());
    let (here, work) = (pair.here, Work::Send(pair.near.piece(0, 4)));
    pair.far.receive(1, 0, 4);
    pair.near.device.arm().expect("a device that works");
    pair.near.post(here, &[Post { id: 1, signaled: false, work }]).expect("one request");
    assert!(!is_readable(pair.near.device.completion_descriptor()));
    pair.near.post(here, &[Post { id: 2, signaled: false, work }]).expect("one request");
    assert!(is_readable(pair.near.device.completion_descriptor()), "it failed");
}

#[test]
fn the_event_descriptor_is_readable_while_there_are_events() {
    let mut pair = Pair::new();
    assert!(!is_readable(pair.near.device.event_descriptor()));
    pair.fabric.inject("near", Fault::PortDown);
    pair.fabric.inject("near", Fault::PortUp);
    assert!(!is_readable(pair.far.device.event_descriptor()));
    assert!(is_readable(pair.near.device.event_descriptor()));
    assert_eq!(pair.near.device.next_event(), Some(AsyncEvent::PortDown));
    assert!(is_readable(pair.near.device.event_descriptor()));
    assert_eq!(pair.near.device.next_event(), Some(AsyncEvent::PortUp));
    assert!(!is_readable(pair.near.device.event_descriptor()));
    assert_eq!(pair.near.device.next_event(), None);
}
