//! Streams whose other end is killed, or whose daemon is.

use std::io::{Read, Write};

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

#[test]
fn who_waits_for_a_stream_hears_that_its_other_end_was_killed() {
    ends_die(Hosts::start(&[&[PS, WORKER]]));
}

#[test]
fn who_waits_for_a_stream_hears_that_its_other_end_was_killed_over_tcp() {
    ends_die(Hosts::start(&[&[PS], &[WORKER]]));
}
