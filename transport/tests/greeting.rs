//! Calling and being called over TCP: what each side says, hears, and makes of strangers.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use nix::poll::PollFlags;
use sealane_transport::authentication::Authentication;
use sealane_transport::endpoint_map::TransportAddress;
use sealane_transport::error::LinkError;
use sealane_transport::tcp::{
    Answering, Call, CallError, Dial, DialError, Dialed, Progress, TcpSettings, congestion_of, listen, resolve,
};
use sealane_transport::wire::{
    Greeting, Hello, MAGIC, PREFACE_BYTES, Reject, RejectCode, VERSION_MAX, VERSION_MIN, WireError,
};
use socket2::{Domain, Socket, Type};

mod sockets;

use sockets::ready;

fn hello(address: &str) -> Hello {
    Hello {
        features: 0,
        incarnation: 77,
        remembers: 0,
        tensor_bytes_max: 1 << 30,
        epoch: 0,
        shards: 2,
        shard: 1,
        lane: 5,
        address: address.into(),
        job: None,
        tasks: vec!["10.0.0.1:2222".into()],
    }
}

/// The transport address that is called.
fn here() -> TransportAddress {
    "10.0.0.2:7000".parse().unwrap()
}

fn settings() -> TcpSettings {
    TcpSettings::default()
}

/// A listening socket on a free port, and its address.
fn listening() -> (Socket, SocketAddr) {
    let listener = listen("127.0.0.1:0".parse().unwrap(), &settings()).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    (listener, address)
}

fn accept(listener: &Socket) -> Answering {
    ready(&[(std::os::fd::AsFd::as_fd(listener), PollFlags::POLLIN)]);
    let (socket, _) = listener.accept().unwrap();
    Answering::new(socket, &here(), &settings(), &Authentication::default()).unwrap()
}

fn answered(mut answering: Answering) -> Result<Call, CallError> {
    loop {
        match answering.poll()? {
            Progress::Done(call) => return Ok(call),
            Progress::Pending(pending) => answering = pending,
        }
        ready(&[(answering.descriptor(), PollFlags::POLLIN)]);
    }
}

fn dialed(mut dial: Dial) -> Result<Dialed, DialError> {
    loop {
        match dial.poll()? {
            Progress::Done(dialed) => return Ok(dialed),
            Progress::Pending(pending) => dial = pending,
        }
        let flags = if dial.wants_write() { PollFlags::POLLOUT } else { PollFlags::POLLIN };
        ready(&[(dial.descriptor(), flags)]);
    }
}

fn dial_to(address: SocketAddr) -> Dial {
    start(address, hello("10.0.0.1:7000")).unwrap()
}

fn start(address: SocketAddr, hello: Hello) -> Result<Dial, LinkError> {
    Dial::start(address, (&here(), hello), &settings(), &Authentication::default())
}

/// A dial that has sent its hello to a listener, and the accepted connection.
fn hello_sent(listener: &TcpListener) -> (Dial, TcpStream) {
    let mut dial = dial_to(listener.local_addr().unwrap());
    let (stream, _) = listener.accept().unwrap();
    while dial.wants_write() {
        ready(&[(dial.descriptor(), PollFlags::POLLOUT)]);
        let Progress::Pending(pending) = dial.poll().unwrap() else { panic!("nobody has answered yet") };
        dial = pending;
    }
    (dial, stream)
}

/// The error of a call to a peer that answers with these bytes and closes.
fn dial_answered_with(bytes: &[u8]) -> DialError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (dial, mut stream) = hello_sent(&listener);
    let mut heard = vec![0; Greeting::Hello(hello("10.0.0.1:7000")).to_bytes().len()];
    stream.read_exact(&mut heard).unwrap();
    stream.write_all(bytes).unwrap();
    drop(stream);
    dialed(dial).err().expect("no welcome was sent")
}

/// The error of a call that begins with these bytes and ends there, and what the caller is told.
fn call_beginning_with(bytes: &[u8]) -> (LinkError, Vec<u8>) {
    let (listener, address) = listening();
    let mut caller = TcpStream::connect(address).unwrap();
    caller.write_all(bytes).unwrap();
    caller.shutdown(Shutdown::Write).unwrap();
    let Some(CallError::Link(error)) = answered(accept(&listener)).err() else { panic!("not a whole hello") };
    let mut told = Vec::new();
    caller.read_to_end(&mut told).unwrap();
    (error, told)
}

#[test]
fn strangers_are_named_by_what_they_said_first() {
    let (error, told) = call_beginning_with(b"GET / HTTP/1.1\r\nHost: ps\r\n\r\n");
    let stranger = LinkError::Protocol(WireError::NotSealane("GET / HTTP/1.1\r\n".into()));
    assert_eq!((error, told), (stranger, vec![]));
    let (error, _) = call_beginning_with(b"SEALANE?");
    assert!(matches!(error, LinkError::Protocol(WireError::NotSealane(_))), "{error}");
    let error = dial_answered_with(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let text = "the peer broke the protocol: not a Sealane peer: it began with \"HTTP/1.1 400 Bad\"";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_caller_that_closes_within_its_hello_is_gone() {
    let bytes = Greeting::Hello(hello("10.0.0.1:7000")).to_bytes();
    for said in [0, 1, PREFACE_BYTES, bytes.len() - 1] {
        assert_eq!(call_beginning_with(&bytes[..said]), (LinkError::Closed, vec![]), "after {said} bytes");
    }
    let welcome = Greeting::Welcome(hello("10.0.0.2:7000")).to_bytes();
    for said in [0, 1, PREFACE_BYTES, welcome.len() - 1] {
        assert_eq!(dial_answered_with(&welcome[..said]), DialError::Link(LinkError::Closed), "after {said} bytes");
    }
}

#[test]
fn a_caller_of_another_version_is_told_ours() {
    let mut bytes = Greeting::Hello(hello("10.0.0.1:7000")).to_bytes();
    let next = VERSION_MAX + 1;
    bytes[10..12].copy_from_slice(&next.to_le_bytes());
    bytes[12..14].copy_from_slice(&(next + 2).to_le_bytes());
    let (error, told) = call_beginning_with(&bytes);
    assert_eq!(error, LinkError::Protocol(WireError::Version { theirs_min: next, theirs_max: next + 2 }));
    let Ok(Some((Greeting::Reject(reject), length))) = Greeting::parse(&told) else { panic!("no reject: {told:?}") };
    assert_eq!((reject.code, length), (RejectCode::Version, told.len()));
    let ours = format!("wire versions {VERSION_MIN} to {VERSION_MAX}");
    assert!(reject.reason.contains(&ours), "{}", reject.reason);
}

#[test]
fn a_reject_reaches_the_caller_whatever_its_version() {
    let (listener, address) = listening();
    let dial = dial_to(address);
    let answering = accept(&listener);
    let Progress::Pending(dial) = dial.poll().unwrap() else { panic!("nobody has answered yet") };
    answered(answering).unwrap().reject(RejectCode::Full, "transport.links_max: 4096 links are open");
    let reason = "transport.links_max: 4096 links are open".to_owned();
    assert_eq!(dialed(dial).err(), Some(DialError::Rejected(Reject { code: RejectCode::Full, reason })));

    let mut newer = Greeting::Reject(Reject { code: RejectCode::Version, reason: "9 only".into() }).to_bytes();
    newer[10..14].copy_from_slice(&[9, 0, 9, 0]);
    let error = dial_answered_with(&newer);
    assert_eq!(error.to_string(), "the peer refused: 9 only");
}

#[test]
fn greetings_in_the_wrong_direction_break_the_protocol() {
    let (error, _) = call_beginning_with(&Greeting::Welcome(hello("10.0.0.2:7000")).to_bytes());
    assert!(
        matches!(error, LinkError::Protocol(WireError::BadValue { what: "handshake message kind", .. })),
        "{error}"
    );
    let error = dial_answered_with(&Greeting::Hello(hello("10.0.0.2:7000")).to_bytes());
    assert!(matches!(error, DialError::Link(LinkError::Protocol(WireError::BadValue { .. }))), "{error}");
    let mut unknown = MAGIC.to_vec();
    unknown.extend_from_slice(&[7, 0]);
    unknown.extend([VERSION_MIN, VERSION_MAX].map(u16::to_le_bytes).concat());
    unknown.extend_from_slice(&[0; 6]);
    let (error, _) = call_beginning_with(&unknown);
    assert!(matches!(error, LinkError::Protocol(WireError::BadValue { found: 7, .. })), "{error}");
}

#[test]
fn a_hello_that_announces_too_much_is_refused_before_it_comes() {
    let mut bytes = Greeting::Hello(hello("10.0.0.1:7000")).to_bytes();
    bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    let (error, _) = call_beginning_with(&bytes[..PREFACE_BYTES]);
    assert!(matches!(error, LinkError::Protocol(WireError::TooLong { what: "greeting", .. })), "{error}");
}

#[test]
fn a_port_where_nobody_listens_is_told_as_refused() {
    // Bound, so that nobody else listens there.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let gone = socket.local_addr().unwrap().as_socket().unwrap();
    // The system may refuse at once, or when the socket is polled.
    let error = match start(gone, hello("10.0.0.1:7000")) {
        Ok(dial) => match dialed(dial) {
            Err(DialError::Link(error)) => error,
            _ => panic!("nobody listens there"),
        },
        Err(error) => error,
    };
    assert!(matches!(error, LinkError::Io { operation: "connect", kind: ErrorKind::ConnectionRefused, .. }), "{error}");
}

#[test]
fn settings_reach_the_socket_or_are_refused_by_name() {
    let large = TcpSettings { send_buffer_bytes: 100_000, receive_buffer_bytes: 50_000, ..settings() };
    let socket = listen("127.0.0.1:0".parse().unwrap(), &large).unwrap();
    assert!(socket.send_buffer_size().unwrap() >= 100_000 && socket.recv_buffer_size().unwrap() >= 50_000);
    let available = congestion_of(&socket);
    assert!(!available.is_empty());
    let same = TcpSettings { congestion: available.clone(), ..settings() };
    assert_eq!(congestion_of(&listen("127.0.0.1:0".parse().unwrap(), &same).unwrap()), available);
    let unknown = TcpSettings { congestion: "no-such-control".into(), ..settings() };
    let error = listen("127.0.0.1:0".parse().unwrap(), &unknown).unwrap_err();
    assert!(error.to_string().contains("transport.tcp.congestion"), "{error}");
}

#[test]
fn addresses_resolve_without_a_resolver_where_they_are_literal() {
    let resolved = |text: &str| resolve(&text.parse().unwrap()).unwrap();
    assert_eq!(resolved("127.0.0.1:80"), ["127.0.0.1:80".parse().unwrap()]);
    assert_eq!(resolved("[::1]:80"), ["[::1]:80".parse().unwrap()]);
}

#[test]
fn a_long_list_of_tasks_arrives_in_several_reads() {
    let (listener, address) = listening();
    let tasks: Vec<String> = (0..4000).map(|task| format!("worker-{task}.training.example:2222")).collect();
    let long = Hello { tasks, ..hello("10.0.0.1:7000") };
    let bytes = Greeting::Hello(long.clone()).to_bytes();
    assert!(bytes.len() > 100_000);
    let mut dial = start(address, long.clone()).unwrap();
    let mut answering = accept(&listener);
    let call = loop {
        let Progress::Pending(still) = dial.poll().unwrap() else { panic!("nobody has answered yet") };
        dial = still;
        match answering.poll().unwrap() {
            Progress::Done(call) => break call,
            Progress::Pending(pending) => answering = pending,
        }
        let writing = if dial.wants_write() { PollFlags::POLLOUT } else { PollFlags::empty() };
        ready(&[(dial.descriptor(), writing), (answering.descriptor(), PollFlags::POLLIN)]);
    };
    assert_eq!(call.hello, long);
}
