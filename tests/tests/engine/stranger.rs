//! Anything else that may connect or be connected to: not Sealane, another version, a peer that lies.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sealane_fusion::{Code, Engine};
use sealane_transport::Handle;
use sealane_transport::wire::{self, Frame, FrameWriter, Greeting, Hello, Response, VERSION_MAX, VERSION_MIN};

use crate::fixture::{LONG, assert_empty, bytes, carry, hello, listener, map, port, settings, task, two};

/// A worker whose ps is the function `serve`, run on a thread with the first connection.
fn worker_with(serve: impl FnOnce(TcpStream) + Send + 'static) -> (Engine, JoinHandle<()>) {
    let (ps, own) = (listener(), listener());
    let ports = [port(&ps), port(&own)];
    let server = thread::spawn(move || {
        let (stream, _) = ps.accept().expect("the worker calls");
        // From now on the port refuses.
        drop(ps);
        stream.set_read_timeout(Some(LONG)).expect("a timeout can be set");
        serve(stream);
    });
    (Engine::start(settings(map(&ports), 1, own)).expect("an engine starts"), server)
}

fn recv_error(worker: &Engine) -> sealane_fusion::Error {
    worker.task(&task(1)).unwrap().recv(&task(0), 1, "w").wait().unwrap_err().error
}

fn read_greeting(stream: &mut TcpStream) -> Hello {
    let mut input = Vec::new();
    loop {
        if let Some((Greeting::Hello(hello), _)) = Greeting::parse(&input).expect("the engine greets correctly") {
            return hello;
        }
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("the engine greets");
        input.push(byte[0]);
    }
}

/// Welcomes the engine as a ps would.
fn welcome(stream: &mut TcpStream) {
    let hello = read_greeting(stream);
    let welcome = Hello {
        epoch: hello.epoch + 1,
        incarnation: 99,
        remembers: 0,
        shards: 1,
        shard: 0,
        address: "127.0.0.1:1".into(),
        job: None,
        tasks: vec![task(0)],
        ..hello
    };
    stream.write_all(&Greeting::Welcome(welcome).to_bytes()).expect("the engine reads");
}

/// Reads frames up to the engine's request; returns its id.
fn read_request(stream: &mut TcpStream) -> Handle {
    let mut input = Vec::new();
    loop {
        while let Some((frame, length)) = wire::parse(&input).expect("the engine's frames are correct") {
            if let Frame::Request(request) = frame {
                return request.id;
            }
            input.drain(..length);
        }
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("the engine asks");
        input.push(byte[0]);
    }
}

#[test]
fn another_version_is_named_on_both_sides() {
    let (worker, server) = worker_with(|mut stream| {
        let hello = read_greeting(&mut stream);
        let mut bytes = Greeting::Welcome(hello).to_bytes();
        bytes[10..14].copy_from_slice(&[7, 0, 9, 0]);
        let _ = stream.write_all(&bytes);
        let _ = stream.read(&mut [0; 64]);
    });
    let error = recv_error(&worker);
    let ours = format!("{VERSION_MIN} to {VERSION_MAX}");
    assert!(error.to_string().contains(&format!("wire versions 7 to 9, this side {ours}")), "{error}");
    server.join().unwrap();

    let mut caller = TcpStream::connect(worker_address(&worker)).unwrap();
    caller.set_read_timeout(Some(LONG)).unwrap();
    let hello = hello("127.0.0.1:1", Vec::new());
    let mut bytes = Greeting::Hello(hello).to_bytes();
    bytes[10..14].copy_from_slice(&[7, 0, 9, 0]);
    caller.write_all(&bytes).unwrap();
    let mut answer = Vec::new();
    caller.read_to_end(&mut answer).unwrap();
    let Ok(Some((Greeting::Reject(reject), _))) = Greeting::parse(&answer) else { panic!("{answer:?}") };
    assert!(reject.reason.contains(&format!("versions {ours}")), "{}", reject.reason);
}

fn worker_address(engine: &Engine) -> String {
    engine.addresses()[0].to_string()
}

#[test]
fn callers_that_are_not_sealane_disturb_nobody() {
    let (ps, worker) = two();
    let address = ps.addresses()[0].to_string();
    let mut strangers: Vec<_> = (0..8).map(|_| TcpStream::connect(&address).unwrap()).collect();
    for (index, stranger) in strangers.iter_mut().enumerate() {
        stranger.set_read_timeout(Some(LONG)).unwrap();
        let hello = match index {
            0 => b"GET /metrics HTTP/1.1\r\n\r\n".to_vec(),
            1 => bytes(10_000, 3),
            // The magic, followed by garbage.
            2 => [&wire::MAGIC[..], &[0xff; 100]].concat(),
            3 => {
                let versions = [VERSION_MIN, VERSION_MAX].map(u16::to_le_bytes).concat();
                [&wire::MAGIC[..], &[1, 0], &versions, &[0, 0, 0xff, 0xff, 0xff, 0x7f]].concat()
            }
            // Half a greeting, then silence or the end.
            4 | 5 => wire::MAGIC[..5].to_vec(),
            _ => Vec::new(),
        };
        let _ = stranger.write_all(&hello);
        if index % 2 == 1 {
            let _ = stranger.shutdown(Shutdown::Write);
        }
    }
    carry((&ps, 0), (&worker, 1), 1, 100_000);
    for index in [0, 1, 3] {
        // Closed or reset without an answer. Number 2 looks like another version, and is told so.
        assert_eq!(strangers[index].read(&mut [0; 8]).unwrap_or(0), 0, "stranger {index}");
    }
    assert_empty(&worker);
}

#[test]
fn a_peer_that_lies_is_dropped_and_its_callers_told() {
    type Lie = fn(Handle, &mut Vec<u8>);
    let lies: [(&str, Lie); 4] = [
        ("unknown frame", |_, frame| frame.extend_from_slice(&[200; 64])),
        ("metadata that does not fit", |id, frame| {
            let meta = [1, 8, 1, 0, 0, 1, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
            let token = Handle::from_bits(1 << 32);
            FrameWriter(frame).response(&Response { id, token, payload_bytes: 3, transfer: 0, meta: &meta });
            frame.extend_from_slice(&[1, 2, 3]);
        }),
        ("releases of the future", |_, frame| {
            FrameWriter(frame).release(1 << 40, [(Handle::from_bits(1 << 32), true)].into_iter());
        }),
        ("a request of a task that it does not have", |id, frame| {
            let if_gone = Default::default();
            let request =
                wire::Request { id, step: 0, timeout_ms: 1, consumer: 60_000, producer: 0, if_gone, key: "w" };
            FrameWriter(frame).request(&request);
        }),
    ];
    for (name, lie) in lies {
        let (worker, server) = worker_with(move |mut stream| {
            welcome(&mut stream);
            let id = read_request(&mut stream);
            let mut frame = Vec::new();
            lie(id, &mut frame);
            let _ = stream.write_all(&frame);
            // Stays until the worker hangs up or has its answer.
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let error = recv_error(&worker);
        assert_eq!(error.code(), Code::Unavailable, "{name}: {error}");
        assert_empty(&worker);
        server.join().unwrap();
    }
}

#[test]
fn a_port_in_use_is_said_with_the_address() {
    let taken: TcpListener = listener();
    let mut settings = settings(map(&[port(&taken)]), 0, listener());
    settings.listeners.clear();
    let error = Engine::start(settings).err().expect("the port is taken").to_string();
    assert!(error.contains(&format!("127.0.0.1:{}", port(&taken))) && error.contains("in use"), "{error}");
}
