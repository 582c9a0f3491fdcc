//! A forked child of a process whose streams use rings.

use std::{
    io::{Read, Write},
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll, Waker},
    thread,
};

use nix::unistd::alarm;
use sealane::{Code, Error, Stream};

use super::{Neighbours, PATIENT, echo, read_all, until_direct};
use crate::{fixture::bytes, fork::in_a_child};

/// Kills a hanging child, which fails the test.
const CHILD_SECONDS: u32 = 10;

fn told<T>(outcome: Poll<Result<T, Error>>) -> bool {
    matches!(outcome, Poll::Ready(Err(error)) if error.code() == Code::InvalidArgument)
}

#[test]
fn a_child_is_told_and_what_it_drops_stays_in_the_rings_of_its_parent() {
    let neighbours = Neighbours::new();
    let mut ends = neighbours.direct_stream();
    let sent = [1, 2].map(|seed| bytes(100_000, seed));
    ends.iter_mut().zip(&sent).for_each(|(end, sent)| end.write_all(sent).unwrap());
    // Listed so that they are dropped in reverse order.
    let Neighbours { directory: _directory, daemon: _daemon, tasks, streams, listener } = neighbours;
    let mut inherited = Some((ends, listener, streams, tasks));
    for is_finished in [false, true] {
        assert!(in_a_child(|| {
            alarm::set(CHILD_SECONDS);
            let (ends, listener, streams, tasks) = inherited.take().unwrap();
            let context = &mut Context::from_waker(Waker::noop());
            let is_told = ends.iter().all(|end| {
                end.reset("in the child");
                told(end.poll_read(&mut [0; 10], context))
                    && told(end.poll_write(&[1; 10], context))
                    && told(end.poll_finish(context))
                    && told(end.poll_flush(context))
            });
            is_told && {
                drop((ends, listener, streams, tasks));
                true
            }
        }));
        if !is_finished {
            let (ends, ..) = inherited.as_ref().unwrap();
            ends.iter().for_each(|end| end.finish().wait().unwrap());
        }
    }
    let ([one, other], listener, streams, tasks) = inherited.unwrap();
    // For other streams the rings are still in use, though the child seemed to leave them.
    for seed in 0..20 {
        let dialed = streams[0].connect(tasks[1].name(), "bytes", PATIENT).wait().unwrap();
        let mut more = [dialed, listener.accept().wait().unwrap()];
        until_direct(&mut more);
        echo(&mut more, &bytes(100_000, seed));
    }
    for (end, sent) in [(&one, &sent[1]), (&other, &sent[0])] {
        let (came, error) = read_all(end);
        assert!(came == *sent && error.is_none(), "{} bytes came, then {error:?}", came.len());
    }
}

/// Runs children while a thread of the parent uses both ends of a ring nearly all the time; true if each returned true.
fn beside_a_busy_thread(child: impl Fn(&[Stream; 2]) -> bool) -> bool {
    let neighbours = Neighbours::new();
    let ends = neighbours.direct_stream();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let sent = bytes(60_000, 1);
            while !is_over.load(Ordering::Relaxed) {
                (&ends[0]).write_all(&sent).unwrap();
            }
            ends[0].finish().wait().unwrap();
        });
        scope.spawn(|| {
            let (sent, mut came) = (bytes(60_000, 1), vec![0; 60_000]);
            while let Ok(()) = (&ends[1]).read_exact(&mut came) {
                assert!(came == sent);
            }
        });
        let all = (0..50).all(|_| {
            in_a_child(|| {
                alarm::set(CHILD_SECONDS);
                child(&ends)
            })
        });
        is_over.store(true, Ordering::Relaxed);
        all
    })
}

#[test]
fn a_child_does_not_wait_for_a_thread_of_its_parent_that_used_a_ring() {
    assert!(beside_a_busy_thread(|[one, other]| {
        let context = &mut Context::from_waker(Waker::noop());
        told(one.poll_write(&[1], context)) && told(other.poll_read(&mut [0], context))
    }));
}

#[test]
fn a_child_may_ask_whether_a_stream_of_its_parent_goes_by_a_ring() {
    assert!(beside_a_busy_thread(|ends| {
        let _whatever = ends.each_ref().map(Stream::is_direct);
        true
    }));
}
