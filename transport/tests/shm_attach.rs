//! Attaching over real sockets: the sides of a daemon and a client, either of which may misbehave.

use std::{
    os::{
        fd::{AsFd, AsRawFd, OwnedFd, RawFd},
        unix::fs::{FileTypeExt, PermissionsExt},
    },
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, sendmsg, socket, socketpair,
    },
};
use sealane_transport::{
    Error, Operation,
    shm::{
        DaemonEnd, Doorbell, SharedMemory, ShmError,
        attach::{
            Attach, AttachError, Attached, Request, RequestError, ShardDescriptors, VERSION, Welcome, Welcoming,
            accept, attach, credentials, drain, draining, listen, read_request, refuse,
        },
        limits::MESSAGE_BYTES_MAX,
        segment_bytes,
    },
};

const ARENA: u64 = 64 * 1024;
const AREA: u64 = 16 * 1024;

/// A directory for the socket, and the daemon's listener in it.
struct Daemon {
    _directory: tempfile::TempDir,
    path: PathBuf,
    listener: OwnedFd,
}

impl Daemon {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sealane.sock");
        let listener = listen(&path).unwrap();
        Self { _directory: directory, path, listener }
    }

    /// Accepts a connection and reads the client's request.
    fn request(&self) -> (OwnedFd, Result<Request, RequestError>) {
        let socket = self.accepted();
        readable(&socket);
        let request = read_request(&socket).map(Option::unwrap);
        (socket, request)
    }

    fn accepted(&self) -> OwnedFd {
        readable(&self.listener);
        accept(&self.listener).unwrap().unwrap()
    }

    /// A client connection on which the test writes.
    fn stranger(&self) -> OwnedFd {
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        connect(socket.as_raw_fd(), &UnixAddr::new(&self.path).unwrap()).unwrap();
        socket
    }
}

/// A deadline that must not be reached.
fn in_a_minute() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn readable(socket: &OwnedFd) {
    await_events(socket, PollFlags::POLLIN);
}

fn await_events(socket: &OwnedFd, events: PollFlags) {
    let mut polled = [PollFd::new(socket.as_fd(), events)];
    assert_eq!(poll(&mut polled, PollTimeout::from(60_000_u16)), Ok(1), "nothing happened");
}

fn say(socket: &OwnedFd, message: &[u8], descriptors: &[RawFd]) {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &[][..] } else { &rights[..] };
    let parts = [std::io::IoSlice::new(message)];
    sendmsg::<()>(socket.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None).unwrap();
}

fn welcome(shards: u32) -> Welcome {
    Welcome {
        version: VERSION,
        shards,
        arena_bytes: ARENA,
        segment_bytes: segment_bytes(AREA),
        area_bytes: AREA,
        request_timeout_ms: 120_000,
        tensor_bytes_max: 1 << 32,
        daemon_pid: std::process::id(),
        job: None,
        neighbours: Vec::new(),
    }
}

/// Attaches to a daemon that answers as `answer` does.
fn answered(answer: impl FnOnce(OwnedFd) + Send) -> Result<Attached, AttachError> {
    let daemon = Daemon::start();
    thread::scope(|scope| {
        scope.spawn(|| answer(daemon.request().0));
        attach(&daemon.path, &Attach::new("worker:1", ARENA), false, in_a_minute())
    })
}

#[test]
fn a_welcome_that_the_socket_does_not_take_goes_on_later() {
    const SHARDS: u32 = 300;
    let (daemon, client) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)
            .unwrap();
    nix::sys::socket::setsockopt(&daemon, nix::sys::socket::sockopt::SndBuf, &4096).unwrap();
    let one = || Doorbell::create().unwrap().duplicate().unwrap();
    let shards = (0..SHARDS).map(|_| {
        let fd = one();
        ShardDescriptors { segment: fd.try_clone().unwrap(), doorbell: fd }
    });
    let mut welcoming = Welcoming::new(welcome(SHARDS), one(), shards.collect());
    let mut messages = 0;
    let mut full = 0;
    loop {
        let sent = welcoming.step(&daemon).unwrap();
        full += u32::from(!sent);
        let mut buffer = [0; 512];
        while let Ok(len) = nix::sys::socket::recv(client.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            let expected = match messages {
                0 => r#"{"answer":"welcome","#.to_owned(),
                shard => format!(r#"{{"answer":"shard","index":{}}}"#, shard - 1),
            };
            assert!(buffer[..len].starts_with(expected.as_bytes()));
            messages += 1;
        }
        if sent {
            break;
        }
    }
    assert!(full > 0);
    assert_eq!(messages, SHARDS + 1);
}

#[test]
fn a_refusal_reaches_the_client_as_it_is() {
    for error in [
        Error::PermissionDenied { reason: "user 7 may not attach".into() },
        Error::NotFound { task: "worker:1".into(), reason: "not in the map".into() },
        Error::late(Operation::Recv, -1, "w", Duration::new(1, 5), "ps:1: not connected"),
        Error::full("shm.clients_max", "64 are attached"),
    ] {
        match answered(|socket| refuse(&socket, &error).unwrap()) {
            Err(AttachError::Refused(told)) => assert_eq!(told, error),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn drain_is_asked_for_and_answered() {
    let ask = |answer: fn(&OwnedFd)| {
        let daemon = Daemon::start();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (socket, request) = daemon.request();
                assert_eq!(request.unwrap(), Request::Drain { version: VERSION });
                answer(&socket);
            });
            drain(&daemon.path, in_a_minute())
        })
    };
    ask(|socket| draining(socket).unwrap()).unwrap();
    let no = ask(|socket| refuse(socket, &Error::invalid("not now")).unwrap());
    assert!(matches!(no, Err(AttachError::Refused(Error::InvalidArgument { .. }))));
    let odd = ask(|socket| say(socket, br#"{"answer":"shard","index":0}"#, &[]));
    assert!(matches!(odd, Err(AttachError::Answer(_))));
}

#[test]
fn nobody_there_or_no_answer_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let wish = Attach::new("worker:1", ARENA);
    let nowhere = attach(&directory.path().join("none"), &wish, false, in_a_minute()).unwrap_err();
    assert!(matches!(nowhere, AttachError::Connect { .. }) && nowhere.to_string().contains("none"), "{nowhere}");
    let long = directory.path().join("x".repeat(200));
    assert!(matches!(attach(&long, &wish, false, in_a_minute()), Err(AttachError::Connect { .. })));
    assert!(matches!(listen(&long), Err(ShmError::System { .. })));

    let daemon = Daemon::start();
    assert!(matches!(attach(&daemon.path, &wish, false, Instant::now()), Err(AttachError::TimedOut)));
    assert!(matches!(answered(drop), Err(AttachError::HungUp)));
}

#[test]
fn answers_that_make_no_sense_are_refused() {
    let text = |welcome: &Welcome| {
        let json = serde_json::to_string(welcome).unwrap();
        format!(r#"{{"answer":"welcome",{}"#, &json[1..])
    };
    let arena = |bytes| SharedMemory::create("arena", bytes).unwrap().1;
    let right = welcome(1);
    let mut wrong: Vec<(String, Vec<OwnedFd>)> = vec![
        ("{".into(), vec![]),
        (r#"{"answer":"draining"}"#.into(), vec![]),
        (r#"{"answer":"refused","code":99,"subject":"","reason":"","step":0,"operation":0,"waited_s":0,"waited_ns":0}"#.into(), vec![]),
        (text(&right), vec![]),
        (text(&right), vec![arena(ARENA), arena(ARENA)]),
        (text(&right), vec![arena(ARENA), arena(ARENA), arena(ARENA)]),
    ];
    let changes: [fn(&mut Welcome); 6] = [
        |welcome| welcome.version += 1,
        |welcome| welcome.shards = 0,
        |welcome| welcome.shards = u32::MAX,
        |welcome| welcome.arena_bytes = u64::MAX,
        |welcome| welcome.area_bytes = u64::MAX,
        |welcome| welcome.segment_bytes += 1,
    ];
    for change in changes {
        let mut changed = right.clone();
        change(&mut changed);
        wrong.push((text(&changed), vec![arena(ARENA)]));
    }
    for (message, descriptors) in wrong {
        let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let answer = answered(|socket| say(&socket, message.as_bytes(), &numbers));
        assert!(matches!(answer, Err(AttachError::Answer(_))), "{message}: {answer:?}");
    }
    // The right number of descriptors, but the wrong memory.
    let message = text(&right);
    let small = arena(ARENA / 2);
    let answer = answered(|socket| say(&socket, message.as_bytes(), &[small.as_raw_fd()]));
    assert!(matches!(answer, Err(AttachError::Shm(ShmError::WrongSize { .. }))), "{answer:?}");
    // A shard missing, a shard with the wrong number, a shard without its doorbell.
    let arena = arena(ARENA);
    let segment = DaemonEnd::create(AREA).unwrap().1;
    let follow = |shard: Option<(&str, &[RawFd])>| {
        answered(|socket| {
            say(&socket, message.as_bytes(), &[arena.as_raw_fd()]);
            if let Some((shard, descriptors)) = shard {
                say(&socket, shard.as_bytes(), descriptors);
            }
        })
    };
    assert!(matches!(follow(None), Err(AttachError::HungUp)));
    let both = [segment.as_raw_fd(), segment.as_raw_fd()];
    assert!(matches!(follow(Some((r#"{"answer":"shard","index":1}"#, &both))), Err(AttachError::Answer(_))));
    assert!(matches!(follow(Some((r#"{"answer":"shard","index":0}"#, &both[1..]))), Err(AttachError::Answer(_))));
    assert!(follow(Some((r#"{"answer":"shard","index":0}"#, &both))).is_ok());
}

#[test]
fn requests_that_make_no_sense_are_told_apart() {
    let daemon = Daemon::start();
    let asked = |message: &[u8]| {
        let stranger = daemon.stranger();
        say(&stranger, message, &[]);
        daemon.request().1.unwrap_err()
    };
    for message in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"{}",
        format!(r#"{{"version":{VERSION}}}"#).as_bytes(),
        format!(r#"{{"request":"attach","version":{VERSION},"task":5,"arena_bytes":1}}"#).as_bytes(),
        format!(r#"{{"request":"attach","version":{VERSION},"task":"w:1","arena_bytes":-1}}"#).as_bytes(),
        format!(r#"{{"request":"mount","version":{VERSION}}}"#).as_bytes(),
        b"\xff\xfe",
        "[".repeat(60_000).as_bytes(),
    ] {
        let refused = asked(message);
        assert!(matches!(refused, RequestError::Malformed(_)), "{refused}");
    }
    let next = VERSION + 1;
    let refused = asked(format!(r#"{{"request":"levitate","version":{next},"height":3}}"#).as_bytes());
    assert!(matches!(refused, RequestError::Version { theirs } if theirs == next), "{refused}");
    assert!(refused.to_string().contains(&format!("version {next}")), "{refused}");
    assert!(
        matches!(asked(&[b' '; MESSAGE_BYTES_MAX + 1]), RequestError::TooLong { bytes } if bytes == MESSAGE_BYTES_MAX + 1)
    );

    drop(daemon.stranger());
    assert!(matches!(daemon.request().1, Err(RequestError::HungUp)));
    // A client that says nothing makes nobody wait.
    let silent = daemon.stranger();
    let socket = daemon.accepted();
    assert!(matches!(read_request(&socket), Ok(None)));
    assert!(matches!(accept(&daemon.listener), Ok(None)));
    drop(silent);
    assert!(refuse(&socket, &Error::invalid("too late")).is_err());
    let (_, fd) = SharedMemory::create("arena", ARENA).unwrap();
    assert!(Welcoming::new(welcome(0), fd, Vec::new()).step(&socket).is_err());
}

#[test]
fn descriptors_in_a_request_are_not_kept() {
    let daemon = Daemon::start();
    let stranger = daemon.stranger();
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let request = format!(r#"{{"request":"drain","version":{VERSION}}}"#);
    say(&stranger, request.as_bytes(), &[writer.as_raw_fd(); 100]);
    drop(writer);
    let (_socket, request) = daemon.request();
    assert_eq!(request.unwrap(), Request::Drain { version: VERSION });
    await_events(&reader, PollFlags::empty());
}

#[test]
fn the_socket_is_its_owners_alone_and_a_path_is_used_once() {
    let daemon = Daemon::start();
    let known = std::fs::metadata(&daemon.path).unwrap();
    assert!(known.file_type().is_socket());
    assert_eq!(known.permissions().mode() & 0o777, 0o600);
    let again = listen(&daemon.path).unwrap_err();
    assert!(matches!(again, ShmError::InUse { .. }) && again.to_string().contains("exists already"), "{again}");
    let (pipe, _writer) = nix::unistd::pipe().unwrap();
    assert!(credentials(&pipe).is_err() && accept(&pipe).is_err());
    assert!(matches!(read_request(&pipe), Err(RequestError::Shm(ShmError::System { .. }))));
}
