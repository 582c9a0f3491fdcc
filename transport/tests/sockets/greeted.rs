//! Both ends of a greeting over a loopback connection, with the credentials of each side.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use nix::poll::PollFlags;
use sealane_transport::Link;
use sealane_transport::authentication::Authentication;
use sealane_transport::error::LinkError;
use sealane_transport::outbox::Outbox;
use sealane_transport::tcp::{
    Answering, Call, CallError, Dial, DialError, Dialed, Progress, TcpLink, TcpSettings, listen,
};
use sealane_transport::wire::{Greeting, Hello};

use crate::sockets::ready;

/// The hello of both sides.
pub fn hello() -> Hello {
    Hello {
        features: 0,
        incarnation: 77,
        remembers: 0,
        tensor_bytes_max: 1 << 30,
        epoch: 0,
        shards: 2,
        shard: 1,
        lane: 5,
        address: "10.0.0.1:7000".into(),
        job: None,
        tasks: vec!["10.0.0.1:2222".into()],
    }
}

/// The address of the called side.
pub const CALLED: &str = "10.0.0.2:7000";

/// One side's settings.
pub struct Side<'a> {
    pub address: &'a str,
    pub settings: TcpSettings,
    pub authentication: &'a Authentication,
}

/// The results of a call: the caller's if it was welcomed, and the called side's link if it got a hello.
pub fn greet(caller: &Side<'_>, called: &Side<'_>) -> (Result<Dialed, DialError>, Result<TcpLink, CallError>) {
    let any_port: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let listener = listen(any_port, &called.settings).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let peer = caller.address.parse().unwrap();
    let dial = Dial::start(address, (&peer, hello()), &caller.settings, caller.authentication).unwrap();
    ready(&[(listener.as_fd(), PollFlags::POLLIN)]);
    let (socket, _) = listener.accept().unwrap();
    let here = called.address.parse().unwrap();
    let answering = Answering::new(socket, &here, &called.settings, called.authentication).unwrap();
    let (mut dial, mut answering) = (Some(dial), Some(answering));
    let (mut dialed, mut answered) = (None, None);
    while dial.is_some() || answering.is_some() {
        if let Some(pending) = dial.take() {
            match pending.poll() {
                Ok(Progress::Pending(pending)) => dial = Some(pending),
                Ok(Progress::Done(done)) => dialed = Some(Ok(done)),
                Err(error) => dialed = Some(Err(error)),
            }
        }
        if let Some(pending) = answering.take() {
            match pending.poll() {
                Ok(Progress::Pending(pending)) => answering = Some(pending),
                Ok(Progress::Done(call)) => answered = Some(Ok(welcome(call))),
                Err(error) => answered = Some(Err(error)),
            }
        }
        let mut watched = Vec::new();
        let flags = |wants_write| if wants_write { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
        watched.extend(dial.as_ref().map(|dial| (dial.descriptor(), flags(dial.wants_write()))));
        watched.extend(answering.as_ref().map(|answering| (answering.descriptor(), flags(answering.wants_write()))));
        if !watched.is_empty() {
            ready(&watched);
        }
    }
    (dialed.expect("it is over"), answered.expect("it is over"))
}

/// Welcomes a caller; returns its link.
fn welcome(call: Call) -> TcpLink {
    let welcome = Greeting::Welcome(call.hello.clone()).to_bytes();
    let mut link = call.accept();
    let mut outbox = Outbox::default();
    outbox.stage(|writer| writer.0.extend_from_slice(&welcome));
    while !outbox.is_empty() {
        link.transmit(&mut outbox, usize::MAX, false).unwrap_or_else(|error: LinkError| panic!("{error}"));
    }
    link
}
