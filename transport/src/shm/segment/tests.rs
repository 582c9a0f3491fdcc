//! The two ends of a segment, over two mappings of the same memory.

use std::{os::fd::OwnedFd, sync::atomic::Ordering};

use super::{ClientEnd, DaemonEnd, MAGIC, Mapping, SEGMENT, at, segment_bytes};
use crate::shm::{Completion, PushError, ReceivedAt, Record, ShmError, Span, Submission, limits::MEMORY_BYTES_MAX};

const AREA: u64 = 8192;

fn ends() -> (DaemonEnd, ClientEnd) {
    let (daemon, fd) = DaemonEnd::create(AREA).unwrap();
    let client = ClientEnd::open(&fd, AREA).unwrap();
    (daemon, client)
}

#[test]
fn records_cross_both_rings_and_bytes_the_area() {
    let (mut daemon, mut client) = ends();
    let mut record = Record::new();
    Submission::Cancel { call: 5 }.encode(&mut record).unwrap();
    client.submissions.push(&record).unwrap();
    let mut record = Record::new();
    assert!(daemon.submissions.pop(&mut record).unwrap());
    assert_eq!(Submission::decode(&record), Ok(Submission::Cancel { call: 5 }));
    assert!(daemon.submissions.is_empty() && client.completions.is_empty());

    let span = Span { offset: AREA - 8, len: 8 };
    daemon.mapping.word(at::AREA + span.offset).store(77, Ordering::Relaxed);
    let arrived = Completion::Received { call: 5, meta: &[1], payload: ReceivedAt::Area { span, token: 9 } };
    arrived.encode(&mut record).unwrap();
    daemon.completions.push(&record).unwrap();
    let mut record = Record::new();
    assert!(client.completions.pop(&mut record).unwrap());
    assert_eq!(Completion::decode(&record), Ok(arrived));
    assert_eq!(client.mapping.word(at::AREA + span.offset).load(Ordering::Relaxed), 77);
    assert_eq!(client.area().bytes(span).unwrap().len(), 8);
    assert_eq!((client.area().len(), daemon.area().len()), (AREA, AREA));
}

#[test]
fn sleep_is_seen_by_the_other_side_alone() {
    let (daemon, client) = ends();
    daemon.own_sleep().announce();
    assert!(!daemon.client_sleep().must_ring());
    assert!(client.daemon_sleep().must_ring());
    assert!(!client.daemon_sleep().must_ring());
    client.own_sleep().announce();
    assert!(daemon.client_sleep().must_ring());
    client.own_sleep().announce();
    client.own_sleep().awake();
    assert!(!daemon.client_sleep().must_ring());
}

#[test]
fn a_client_that_scribbles_over_the_header_breaks_its_own_ring_alone() {
    let (mut daemon, client) = ends();
    for offset in (0..at::SUBMISSIONS).step_by(8) {
        client.mapping.word(offset).store(u64::MAX, Ordering::Relaxed);
    }
    let mut record = Record::new();
    Completion::Sent { calls: &[1] }.encode(&mut record).unwrap();
    assert!(daemon.submissions.is_empty());
    assert!(!daemon.completions.is_half_free());
    assert!(daemon.client_sleep().must_ring() && !daemon.client_sleep().must_ring());
    let until_full = (0..).find_map(|_| daemon.completions.push(&record).err());
    assert!(matches!(until_full, Some(PushError::Broken(_))));
}

#[test]
fn segments_of_other_sizes_and_other_memory_are_refused() {
    let (daemon, fd) = DaemonEnd::create(AREA - 1).unwrap();
    assert_eq!(daemon.area().len(), AREA);
    let open = |fd: &OwnedFd, area| ClientEnd::open(fd, area).unwrap_err();
    for wrong in [0, AREA - 1, AREA + 4096, u64::MAX] {
        assert!(matches!(open(&fd, wrong), ShmError::WrongSize { .. }));
    }
    daemon.mapping.word(at::LAYOUT).store(7, Ordering::Relaxed);
    assert!(matches!(open(&fd, AREA), ShmError::NotASegment { field: "layout", found: 7, .. }));

    let (_memory, fd) = Mapping::create("test", segment_bytes(AREA), SEGMENT).unwrap();
    assert!(matches!(open(&fd, AREA), ShmError::NotASegment { field: "magic", found: 0, expected: MAGIC }));

    let refused = DaemonEnd::create(MEMORY_BYTES_MAX + 1).unwrap_err();
    assert!(matches!(refused, ShmError::TooLarge { .. }), "{refused}");
}

#[test]
fn a_segment_may_have_no_area() {
    let (daemon, fd) = DaemonEnd::create(0).unwrap();
    let client = ClientEnd::open(&fd, 0).unwrap();
    assert!(daemon.area().is_empty() && client.area().is_empty());
    assert!(client.area().bytes(Span { offset: 0, len: 1 }).is_err());
}
