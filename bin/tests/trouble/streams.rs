//! Streams whose other end is killed, or whose daemon is.

use std::io::{Read, Write};
use std::process::Command;
use std::thread;

use nix::sys::signal::Signal;
use sealane::{Code, Stream, StreamOptions, Streams};

use crate::fixture::{PS, STUCK, WORKER};
use crate::hosts::{Hosts, NEAR_AND_FAR};
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

/// Cuts the connections from and to a port; false if the kernel or its tool cannot, or this user may not.
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
    // Either daemon may have made the connection.
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
    NEAR_AND_FAR.into_iter().map(Hosts::start).for_each(ends_die);
}

/// A daemon that gives up a silent peer after some seconds.
const IMPATIENT: [&str; 6] = [
    "--set",
    "transport.heartbeat_ms=1000",
    "--set",
    "transport.peer_timeout_ms=5000",
    "--set",
    "transport.connect_timeout_ms=5000",
];

/// The library's error code behind a failed call of `std::io`.
fn code(error: &std::io::Error) -> Code {
    error.get_ref().and_then(|error| error.downcast_ref::<sealane::Error>()).unwrap().code()
}

/// The daemon of the ps is stopped for longer than the worker's daemon waits, and then continues. What the worker's end of a
/// stream was told, the other end must hear too, whatever it does: `outlive` gets that other end.
fn an_outage_is_survived(outlive: impl FnOnce(&Stream)) {
    let mut hosts = Hosts::start_with(&[&[PS], &[WORKER]], &[&[], &IMPATIENT]);
    let (ps, worker) = (hosts.attach(PS), hosts.attach(WORKER));
    let options = StreamOptions { timeout: Some(STUCK), ..StreamOptions::default() };
    let (listening, dialing) = (Streams::of(&ps), Streams::of(&worker));
    let listener = listening.listen(LISTENER, options).unwrap();
    let mut dialed = dialing.connect(PS, LISTENER, options).wait().unwrap();
    let mut accepted = listener.accept().wait().unwrap();
    accepted.write_all(b"hello").unwrap();
    dialed.read_exact(&mut [0; 5]).unwrap();
    hosts.daemon(PS).signal(Signal::SIGSTOP);
    assert_eq!(code(&dialed.read(&mut [0]).unwrap_err()), Code::Unavailable);
    hosts.daemon(PS).signal(Signal::SIGCONT);
    outlive(&accepted);
    // The two tasks are unaffected.
    let again = dialing.connect(PS, LISTENER, options).wait().unwrap();
    (&again).write_all(b"again").unwrap();
    again.finish().wait().unwrap();
    let mut came = String::new();
    listener.accept().wait().unwrap().read_to_string(&mut came).unwrap();
    assert_eq!(came, "again");
}

#[test]
fn who_reads_hears_of_an_outage_that_the_other_end_gave_up_in() {
    an_outage_is_survived(|mut stream| assert_eq!(code(&stream.read(&mut [0]).unwrap_err()), Code::Unavailable));
}

#[test]
fn who_writes_hears_of_an_outage_that_the_other_end_gave_up_in() {
    an_outage_is_survived(|mut stream| {
        let written = stream.write_all(&vec![7; 1 << 19]).map_err(|error| code(&error));
        let finished = stream.finish().wait().map_err(|error| error.code());
        assert_eq!(written.and(finished), Err(Code::Unavailable));
    });
}

#[test]
fn who_finishes_hears_of_an_outage_that_the_other_end_gave_up_in() {
    an_outage_is_survived(|stream| {
        assert_eq!(stream.finish().wait().map_err(|error| error.code()), Err(Code::Unavailable));
    });
}
