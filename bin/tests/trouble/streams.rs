//! Streams whose other end is killed, or whose daemon is.

use std::io::{Read, Write};
use std::process::Command;
use std::thread;

use sealane::{Code, StreamOptions, Streams};

use crate::fixture::{PS, WORKER};
use crate::hosts::Hosts;
use crate::processes::Process;
use crate::roles::LISTENER;

fn ends_die(mut hosts: Hosts) {
    let worker = hosts.attach(WORKER);
    let streams = Streams::of(&worker);
    let beside = usize::from(hosts.socket(PS) == hosts.socket(WORKER));
    for _ in 0..3 {
        let mut echo = Process::start(&format!("echo {PS}"), &hosts.socket(PS));
        echo.hear("listens");
        let mut stream = streams.connect(PS, LISTENER, StreamOptions::default()).wait().unwrap();
        let idle = streams.connect(PS, LISTENER, StreamOptions::default()).wait().unwrap();
        let mut came = [0; 5];
        stream.write_all(b"hello").unwrap();
        stream.read_exact(&mut came).unwrap();
        assert_eq!(&came, b"hello");
        echo.kill();
        for mut stream in [stream, idle] {
            let error = stream.read(&mut came).unwrap_err();
            let error = error.get_ref().and_then(|error| error.downcast_ref::<sealane::Error>()).unwrap();
            assert_eq!(error.code(), Code::Unavailable, "{error}");
            assert!(stream.write(b"more").is_err());
        }
        hosts.until_clients(PS, beside);
    }
    drop((streams, worker));
    hosts.drain();
}

/// More than the windows of a stream hold.
const LONG: usize = 40 << 20;
const PIECE: usize = 4 << 20;

/// Ends the connections to or from a port; false where the kernel or its tool cannot, or this user may not.
fn sever(port: &str) -> bool {
    let filter = ["-K", "-H", "-t", "state", "established", "sport", "=", port, "or", "dport", "=", port];
    Command::new("ss").args(filter).output().is_ok_and(|output| !output.stdout.is_empty())
}

#[test]
fn a_link_that_is_lost_costs_a_stream_no_byte() {
    let hosts = Hosts::start(&[&[PS], &[WORKER]]);
    let mut echo = Process::start(&format!("echo {PS}"), &hosts.socket(PS));
    echo.hear("listens");
    let worker = hosts.attach(WORKER);
    let stream = Streams::of(&worker).connect(PS, LISTENER, StreamOptions::default()).wait().unwrap();
    // The worker's daemon has connected to that of the ps, or the other way round.
    let ports = [PS, WORKER].map(|task| hosts.place(task).address.rsplit_once(':').unwrap().1.to_owned());
    let sent: Vec<u8> = (0..LONG).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();
    let mut severed = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            (&stream).write_all(&sent).unwrap();
            stream.finish().wait().unwrap();
        });
        let mut came = vec![0; PIECE];
        for piece in sent.chunks(PIECE) {
            (&stream).read_exact(&mut came).unwrap();
            assert!(came == piece);
            severed += ports.iter().filter(|port| sever(port)).count();
        }
        assert_eq!((&stream).read(&mut came).unwrap(), 0);
    });
    if severed == 0 {
        println!("no link was lost: this user may not end connections here, or `ss -K` cannot");
    }
    echo.kill();
    drop((stream, worker));
    hosts.drain();
}

#[test]
fn who_waits_for_a_stream_hears_that_its_other_end_was_killed() {
    ends_die(Hosts::start(&[&[PS, WORKER]]));
}

#[test]
fn who_waits_for_a_stream_hears_that_its_other_end_was_killed_over_tcp() {
    ends_die(Hosts::start(&[&[PS], &[WORKER]]));
}
