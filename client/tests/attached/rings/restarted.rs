//! Daemons that die: their streams end at both ends, and later ones use rings again. And lanes that end: their streams go on.

use std::{
    io::{Read, Write},
    thread,
};

use sealane_transport::shm::attach;

use super::*;

/// A stream by the current daemon, of which both tasks hear when they make a call.
fn again(streams: &Streams, peer: &str, listener: &StreamListener) -> [Stream; 2] {
    thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            loop {
                match listener.accept().wait() {
                    Err(error) => assert_eq!(error.code(), Code::Unavailable, "{error}"),
                    Ok(accepted) => {
                        let mut first = [0];
                        if (&accepted).read_exact(&mut first).is_ok() && first == *b"!" {
                            break accepted;
                        }
                    }
                }
            }
        });
        let dialed = loop {
            match streams.connect(peer, "bytes", PATIENT).wait() {
                Err(error) => assert!([Code::Unavailable, Code::NotFound].contains(&error.code()), "{error}"),
                Ok(dialed) => break dialed,
            }
        };
        (&dialed).write_all(b"!").unwrap();
        [dialed, accepting.join().unwrap()]
    })
}

#[test]
fn streams_end_with_their_daemon_and_those_of_the_next_get_rings_again() {
    let neighbours = Neighbours::new();
    // Listed so that they are dropped in reverse order.
    let Neighbours { directory, mut daemon, tasks, streams, listener } = neighbours;
    for round in 0..3 {
        let mut ends = again(&streams[0], tasks[1].name(), &listener);
        until_direct(&mut ends);
        let unread = bytes(100_000, round);
        for mut end in &ends {
            end.write_all(&unread).unwrap();
        }
        let full = fill(&ends[0], &bytes(1 << 20, round));
        let more = bytes(1, round);
        thread::scope(|scope| {
            let [one, other] = &ends;
            let writing = scope.spawn(move || {
                let mut one = one;
                one.write_all(&more).unwrap_err()
            });
            daemon.kill();
            let (came, error) = read_all(one);
            assert!(came == unread, "{} bytes came", came.len());
            assert_eq!(code(&error.unwrap()), Code::Unavailable);
            assert_eq!(code(&writing.join().unwrap()), Code::Unavailable);
            let (came, error) = read_all(other);
            assert!(came[..unread.len()] == unread && came[unread.len()..] == bytes(1 << 20, round)[..full]);
            assert_eq!(code(&error.unwrap()), Code::Unavailable);
        });
        daemon = Daemon::start(&directory, Settings::default());
    }
}

/// The two get another lane, as when one has lost its end of the first: old streams keep the first, new ones use the second.
#[test]
fn streams_outlive_their_lane() {
    let neighbours = Neighbours::new();
    let mut ends = neighbours.direct_stream();
    let Neighbours { daemon, tasks: [one, other], .. } = &neighbours;
    drop(attach::lane(&daemon.socket, other.name(), one.name(), Instant::now() + LONG).unwrap());
    daemon.until("it has ended", |_| one.direct_peers().is_empty() || other.direct_peers().is_empty());
    let bytes = bytes(3_000_000, 5);
    for _ in 0..4 {
        echo(&mut ends, &bytes);
        ends.swap(0, 1);
    }
    assert!(ends.iter().all(Stream::is_direct));
    open_lane(one, other, other.name());
    let mut next = neighbours.direct_stream();
    for _ in 0..4 {
        for ends in [&mut ends, &mut next] {
            echo(ends, &bytes);
            ends.swap(0, 1);
        }
    }
}

#[test]
fn a_listener_that_is_made_after_a_daemon_died_accepts_by_the_next() {
    let Neighbours { directory, daemon, tasks, streams, listener } = Neighbours::new();
    daemon.kill();
    assert_eq!(listener.accept().wait().unwrap_err().code(), Code::Unavailable);
    drop(listener);
    let listener = streams[1].listen("later", PATIENT).unwrap();
    let _next = Daemon::start(&directory, Settings::default());
    thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            loop {
                match listener.accept().wait() {
                    Err(error) => assert_eq!(error.code(), Code::Unavailable, "{error}"),
                    Ok(accepted) => break accepted,
                }
            }
        });
        let dialed = loop {
            match streams[0].connect(tasks[1].name(), "later", PATIENT).wait() {
                Err(error) => assert!([Code::Unavailable, Code::NotFound].contains(&error.code()), "{error}"),
                Ok(dialed) => break dialed,
            }
        };
        assert_eq!(accepting.join().unwrap().peer(), tasks[0].name());
        drop(dialed);
    });
}
