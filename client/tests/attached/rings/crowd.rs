//! Many streams between two tasks, which have a limited number of rings.

use std::{
    io::{Read, Write},
    task::{Context, Waker},
    thread,
};

use sealane::Stream;
use sealane_transport::shm::limits::LANE_RINGS;

use super::{Neighbours, echo, read_all, until_direct};
use crate::fixture::bytes;

#[test]
fn streams_beyond_the_rings_go_by_the_daemon_and_all_carry_what_was_written() {
    let neighbours = Neighbours::new();
    let mut first: Vec<[Stream; 2]> = (0..LANE_RINGS).map(|_| neighbours.direct_stream()).collect();
    let mut others: Vec<[Stream; 2]> = (0..LANE_RINGS / 2).map(|_| neighbours.stream()).collect();
    for _ in 0..20 {
        for ends in &mut others {
            echo(ends, b"the rings are taken");
            ends.swap(0, 1);
        }
    }
    assert!(others.iter().flatten().all(|end| !end.is_direct()));
    thread::scope(|scope| {
        for (seed, ends) in first.iter_mut().chain(&mut others).enumerate() {
            scope.spawn(move || {
                for _ in 0..2 {
                    echo(ends, &bytes(700_000, seed as u64));
                    ends.swap(0, 1);
                }
            });
        }
    });
    // A waiting stream gets the rings of a stream that goes.
    drop(first.pop());
    until_direct(&mut others[0]);
    assert!(others[1..].iter().flatten().all(|end| !end.is_direct()));
}

/// Ends a stream in one of several ways while both of its rings still hold unread bytes.
fn end(way: u64, [one, other]: [Stream; 2], unread: &[u8]) {
    let context = &mut Context::from_waker(Waker::noop());
    let finishes = |end: &Stream| end.poll_finish(&mut Context::from_waker(Waker::noop()));
    match way {
        0 => {
            // Each end has everything, and knows that the other has too.
            thread::scope(|scope| {
                for end in [&one, &other] {
                    scope.spawn(|| end.finish().wait().unwrap());
                }
            });
            for end in [&one, &other] {
                let (came, error) = read_all(end);
                assert!(came == unread && error.is_none(), "{error:?}");
            }
        }
        1 => drop((one, other)),
        2 => drop((other, one)),
        3 => {
            one.reset("it is over");
            drop(one);
            let (came, error) = read_all(&other);
            assert!(came == unread && error.unwrap().to_string().contains("it is over"));
        }
        4 => {
            other.reset("first");
            one.reset("second");
            assert!(one.poll_write(&[1], context).is_ready() && other.poll_write(&[1], context).is_ready());
        }
        5 => {
            // Both leave bytes unread.
            let _polled = (finishes(&one), finishes(&other));
            drop((one, other));
        }
        6 => {
            one.finish().wait().unwrap();
            drop(one);
            let (came, error) = read_all(&other);
            assert!(came == unread && error.is_none(), "{error:?}");
        }
        _ => {
            // Midway through reading.
            let _polled = finishes(&other);
            (&one).read_exact(&mut vec![0; unread.len() / 2]).unwrap();
            drop(one);
        }
    }
}

#[test]
fn hundreds_of_streams_in_turn_find_the_one_ring_that_is_left_however_each_ends() {
    let neighbours = Neighbours::new();
    let mut kept: Vec<[Stream; 2]> = (1..LANE_RINGS).map(|_| neighbours.direct_stream()).collect();
    for round in 0..400 {
        let mut ends = neighbours.direct_stream();
        let unread = bytes(3000 + round as usize, round);
        ends.iter_mut().for_each(|end| end.write_all(&unread).unwrap());
        end(round % 8, ends, &unread);
    }
    for ends in &mut kept {
        assert!(ends.iter().all(Stream::is_direct));
        echo(ends, &bytes(300_000, 9));
    }
}
