//! Checks that `WIRE.md` agrees with the code: its example, byte for byte, its limits, and its lane.

use std::time::{Duration, Instant};

use sealane_runtime::{Slab, SlabSettings};
use sealane_transport::lane::lane;
use sealane_transport::limits::*;
use sealane_transport::link::Receiver;
use sealane_transport::session::{AheadParams, Event, RequestParams, Roster, Session};
use sealane_transport::wire::{Greeting, Hello};
use sealane_transport::{Meta, SessionLimits};

const DOCUMENT: &str = include_str!("../WIRE.md");
const TENSOR_BYTES_MAX: u64 = 1 << 30;

/// The bytes of the example's block with that name; anything after a semicolon is a comment.
fn example(name: &str) -> Vec<u8> {
    let begin = format!("```hex {name}\n");
    let (_, block) = DOCUMENT.split_once(&begin).unwrap_or_else(|| panic!("WIRE.md has no block {name}"));
    let (block, _) = block.split_once("```").expect("the block ends");
    let line_bytes = |line: &str| -> Vec<u8> {
        let digits = line.split(';').next().unwrap_or_default();
        digits.split_whitespace().map(|pair| u8::from_str_radix(pair, 16).expect("two hex digits")).collect()
    };
    block.lines().flat_map(line_bytes).collect()
}

fn assert_says(name: &str, bytes: &[u8]) {
    assert!(example(name) == bytes, "the example's {name} is in truth\n{}", hex(bytes));
}

fn hex(bytes: &[u8]) -> String {
    let row = |row: &[u8]| row.iter().map(|byte| format!("{byte:02x} ")).collect::<String>();
    bytes.chunks(8).map(|bytes| row(bytes).trim_end().to_owned() + "\n").collect()
}

struct Side {
    session: Session<(), ()>,
    slab: Slab,
    hello: Hello,
}

impl Side {
    fn new(incarnation: u64, host: &str, peer: &str) -> Self {
        let hello = Hello {
            features: 0,
            incarnation,
            remembers: 0,
            tensor_bytes_max: TENSOR_BYTES_MAX,
            epoch: 0,
            shards: 1,
            shard: 0,
            lane: lane("10.0.0.1:2222", "10.0.0.2:2222"),
            address: format!("{host}:7000"),
            job: None,
            tasks: vec![format!("{host}:2222")],
        };
        let slab = Slab::new(SlabSettings { name: "receive", bytes: 4096, populate: false }).unwrap();
        Self { session: Session::new(peer, 1, SessionLimits::default()), slab, hello }
    }

    fn attach(&mut self, now: Instant, epoch: u32) {
        self.session.attach(now, epoch, Roster { numbers: vec![0] }, TENSOR_BYTES_MAX);
    }

    fn says(&mut self, now: Instant) -> Vec<u8> {
        self.session.fill(now, false);
        let outbox = self.session.outbox();
        let mut slices = [sealane_runtime::VolatileSlice::empty()];
        assert_eq!(outbox.gather(&mut slices), 1, "small things lie together");
        let bytes = slices[0].to_vec();
        outbox.advance(bytes.len());
        bytes
    }

    fn hears(&mut self, now: Instant, bytes: &[u8]) -> Option<Event<(), ()>> {
        let frames = self.session.inbound(now, &self.slab).frames(bytes).unwrap();
        assert_eq!(frames.consumed, bytes.len());
        self.session.poll_event()
    }
}

#[test]
fn the_example_is_what_is_said() {
    let now = Instant::now();
    let mut worker = Side::new(17, "10.0.0.1", "10.0.0.2:7000");
    let mut server = Side::new(34, "10.0.0.2", "10.0.0.1:7000");
    assert_says("hello", &Greeting::Hello(worker.hello.clone()).to_bytes());

    server.attach(now, 1);
    let mut welcome = Greeting::Welcome(Hello { epoch: 1, ..server.hello.clone() }).to_bytes();
    let greeting = welcome.len();
    welcome.extend(server.says(now));
    assert_says("welcome", &welcome);
    worker.attach(now, 1);
    assert!(worker.hears(now, &welcome[greeting..]).is_none());

    let deadline = now + Duration::from_secs(60);
    let params = RequestParams { consumer: 0, producer: 0, step: 3, key: "w", deadline, destination: None, waiter: () };
    worker.session.request(now, params).unwrap();
    let request = worker.says(now);
    assert_says("request", &request);
    let Some(Event::Requested(asked)) = server.hears(now, &request) else { panic!("not asked") };
    assert_eq!((server.session.key(&asked), asked.step), ("w", 3));

    server.session.park(asked.id);
    let parked = server.says(now);
    assert_says("parked", &parked);
    assert!(worker.hears(now, &parked).is_none());

    server.session.unpark();
    let meta = Meta::from_slice(&[2, 32, 1, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    let payload = [1.0_f32, 2.0].map(f32::to_le_bytes).concat();
    server.session.respond(asked.id, meta.clone(), payload.clone().into(), ()).unwrap();
    let response = server.says(now);
    assert_says("response", &response);
    let Some(Event::RequestEnded { outcome, .. }) = worker.hears(now, &response) else { panic!("no answer") };
    let arrived = outcome.expect("a tensor");
    assert_eq!((arrived.meta, &arrived.buffer[..]), (meta, &payload[..]));

    let release = worker.says(now);
    assert_says("release", &release);
    assert!(matches!(server.hears(now, &release), Some(Event::Released { taken: true, .. })));

    for side in [&mut worker, &mut server] {
        side.session.detach(None);
        side.attach(now, 2);
    }
    let again = worker.says(now);
    assert_says("release-again", &again);
    assert!(server.hears(now, &again).is_none(), "counted once");
    let released = server.says(now);
    assert_says("released", &released);
    assert!(worker.hears(now, &released).is_none());
    assert!(!worker.session.has_output() && !worker.session.wants_link());

    let (meta, payload) = ([2, 32, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], 3.0_f32.to_le_bytes());
    let params = AheadParams { key: "b", meta: &meta, payload: (&payload[..]).into(), pending: () };
    server.session.send_ahead((0, 0), 3, false).unwrap().add(params);
    let ahead = server.says(now);
    assert_says("ahead", &ahead);
    assert!(worker.hears(now, &ahead).is_none());
    let back = worker.says(now);
    assert_says("ahead-release", &back);
    let Some(Event::BackFromAhead(back)) = server.hears(now, &back) else { panic!("not returned") };
    assert_eq!((&*back.key, &back.buffer[..]), ("b", &3.0_f32.to_le_bytes()[..]));
}

#[test]
fn the_limits_are_those_of_the_code() {
    let limits = [
        ("body of a handshake message", HELLO_BYTES_MAX, " bytes"),
        ("tasks in a handshake message", TASKS_PER_HELLO, ""),
        ("name or address in a handshake message", NAME_BYTES_MAX, " bytes"),
        ("name of a job", JOB_NAME_BYTES_MAX, " bytes"),
        ("body of a frame", FRAME_BODY_BYTES_MAX, " bytes"),
        ("key", KEY_BYTES_MAX, " bytes"),
        ("metadata", META_BYTES_MAX, " bytes"),
        ("entries in a release", RELEASES_PER_FRAME, ""),
        ("entries in an ahead release", AHEAD_RELEASES_PER_FRAME, ""),
        ("a tensor that is sent ahead", AHEAD_TENSOR_BYTES, " bytes"),
        ("tensors sent ahead and not released", AHEAD_BYTES_MAX, " bytes"),
        ("reason", REASON_BYTES_MAX, " bytes"),
        ("entries in the release log", RELEASE_LOG_MAX, ""),
        ("releases before an acknowledgement", RELEASE_ACK_EVERY as usize, ""),
        ("short frames waiting to be sent", CONTROL_QUEUE_MAX, ""),
        ("payloads in chunks at the same time, in each direction", TRANSFERS_MAX, ""),
        ("tables in a request for rows", NAMED_TABLES_MAX, ""),
        ("their keys and ids in it", NAMED_ROWS_BYTES_MAX, " bytes"),
        ("rows of one table in it", ROW_IDS_MAX, ""),
        ("form and ids of these", ROW_IDS_BYTES_MAX, " bytes"),
        ("key of a table", TABLE_KEY_BYTES_MAX, " bytes"),
        ("keys in a set", SET_KEYS_MAX, ""),
        ("keys in all sets of a peer", PEER_SET_KEYS_MAX, ""),
        ("bytes of these keys and of its queues' names", PEER_NAME_BYTES_MAX, " bytes"),
        (
            "sets, and streams, of a session to its peer, and of a peer over all its sessions with a shard",
            SETS_MAX.max(STREAMS_MAX),
            "",
        ),
        ("a payload within a frame", INLINE_PAYLOAD_BYTES, " bytes"),
    ];
    for (what, value, unit) in limits {
        let row = format!("| {what} | {value}{unit} |");
        assert!(DOCUMENT.contains(&row), "WIRE.md lacks the row {row}");
    }
    let prose = DOCUMENT.split_whitespace().collect::<Vec<_>>().join(" ");
    let ahead =
        format!("{AHEAD_BYTES_MAX} bytes on their way, of which each tensor takes its key, metadata and payload and");
    assert!(prose.contains(&format!("{ahead} {AHEAD_RECORD_BYTES} bytes more")));
    let defaults = SessionLimits::default();
    assert!(prose.contains(&format!("payloads of more than {} bytes (its setting)", defaults.chunk_bytes)));
    let (answers, pushes) = (ANSWER_TRANSFERS_MAX, TRANSFERS_MAX - ANSWER_TRANSFERS_MAX);
    assert!(prose.contains(&format!("at most {answers} responses and {pushes} pushes in transit in chunks")));
    assert!(prose.contains(&format!("a number from 1 to {TRANSFERS_MAX} that")));
    assert!(prose.contains(&format!("is at most its window ({} unless", defaults.window)));
    assert!(prose.contains(&format!("heard nothing for {} s", defaults.heartbeat.as_secs())));
    let (after_ping, silence) = (defaults.peer_timeout - defaults.heartbeat, defaults.peer_timeout);
    let ends = format!("within {} s after a ping, {} s (its setting)", after_ping.as_secs(), silence.as_secs());
    assert!(prose.contains(&ends), "WIRE.md lacks '{ends}'");
}

#[test]
fn the_lane_is_the_one_that_is_written() {
    assert!(DOCUMENT.contains(&format!("in either order, is {}.", lane("b:2", "a:1"))));
    assert!(DOCUMENT.contains(&format!("; lane {}\n", lane("10.0.0.1:2222", "10.0.0.2:2222"))));
}
