//! What a connection exchanges up to its greeting, on both sides: either bytes of the input alone, or what an honest side says, altered and
//! cut by the input on its way.

use std::io::Read;
use std::net::Shutdown;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use sealane_transport::authentication::{Authentication, Authority};
use sealane_transport::limits::HELLO_BYTES_MAX;
use sealane_transport::tcp::{Answering, Dial, Progress};
use sealane_transport::wire::{Greeting, Hello, PREFACE_BYTES, PROOF_BYTES};
use socket2::{Domain, Socket, Type};

use super::assert_says;

const DAY: Duration = Duration::from_secs(86_400);
/// What a side reads at once, and may hold in addition to what it waits for.
const READ_BYTES: usize = 16 * 1024;
/// How often a side may be polled once nothing more can come.
const LAST_POLLS: usize = 4;

/// Bits of an input's first byte: the kind of authentication, which side there is, and how the rest is used.
const MEANS: u8 = 3;
const CALLER: u8 = 4;
const BENT: u8 = 8;

/// Credentials: none, a secret, and a certificate.
static SHOWN: LazyLock<[Authentication; 3]> = LazyLock::new(|| {
    let authority = Authority::new().expect("random numbers");
    let certified = authority.certify(&[], SystemTime::now() + DAY).expect("random numbers");
    [
        Authentication::default(),
        Authentication::secret_bytes(&[7; 32]).expect("long enough"),
        Authentication::certified(&authority.certificate(), &certified).expect("of one authority"),
    ]
});

/// Script bytes below this leave a byte as it is, which is most of them.
const ALTERS: u8 = 0xe0;

/// One side of a greeting.
enum Side {
    Called(Answering),
    Caller(Dial),
    Over,
}

impl Side {
    fn new(socket: Socket, is_caller: bool, shown: &Authentication) -> Self {
        let address = "10.0.0.2:7000".parse().expect("an address");
        match is_caller {
            true => Side::Caller(Dial::over(socket, (&address, hello()), shown).expect("random numbers")),
            false => Side::Called(Answering::over(socket, &address, shown).expect("random numbers")),
        }
    }

    /// Makes as much progress as it can.
    fn poll(&mut self, held_max: usize) {
        *self = match std::mem::replace(self, Side::Over) {
            Side::Called(answering) => match answering.poll() {
                Ok(Progress::Pending(answering)) => {
                    let held = answering.held_bytes();
                    assert!(held <= held_max, "{held} bytes are held");
                    Side::Called(answering)
                }
                Ok(Progress::Done(_)) => Side::Over,
                Err(error) => {
                    assert_says(&error);
                    Side::Over
                }
            },
            Side::Caller(dial) => match dial.poll() {
                Ok(Progress::Pending(dial)) => Side::Caller(dial),
                Ok(Progress::Done(_)) => Side::Over,
                Err(error) => {
                    assert_says(&error);
                    Side::Over
                }
            },
            Side::Over => Side::Over,
        };
    }

    fn is_over(&self) -> bool {
        matches!(self, Side::Over)
    }

    /// Nothing more comes: the side must end.
    fn end(&mut self, held_max: usize) {
        for _ in 0..LAST_POLLS {
            self.poll(held_max);
        }
        assert!(self.is_over(), "it waits for what cannot come");
    }
}

/// Runs an input. Its first byte says which sides there are, the second how the bytes are cut; see [`alone`] and [`bent`] for the rest.
pub(super) fn run(input: &[u8]) {
    let [kind, cut, rest @ ..] = input else { return };
    let shown = &SHOWN[usize::from(kind & MEANS) % SHOWN.len()];
    let cut = usize::from(*cut) * 8 + 1;
    match kind & BENT == 0 {
        true => alone(kind & CALLER != 0, shown, cut, rest),
        false => bent(shown, cut, rest),
    }
}

/// Sends `bytes` to one side.
fn alone(is_caller: bool, shown: &Authentication, cut: usize, bytes: &[u8]) {
    let (socket, wire) = pair();
    let mut side = Side::new(socket, is_caller, shown);
    // No input guesses the secret or has a certificate.
    let held_max = if shown.is_open() { PREFACE_BYTES + HELLO_BYTES_MAX } else { PREFACE_BYTES + PROOF_BYTES };
    let held_max = held_max + READ_BYTES;
    side.poll(held_max);
    for part in bytes.chunks(cut) {
        if side.is_over() || !say(&wire, part) {
            return;
        }
        side.poll(held_max);
    }
    if side.is_over() || wire.shutdown(Shutdown::Write).is_err() {
        return;
    }
    side.end(held_max);
}

/// Carries what two honest sides say, cut into parts. Each byte has a byte of `script`; one of [`ALTERS`] or more alters it.
fn bent(shown: &Authentication, cut: usize, script: &[u8]) {
    let ((caller, caller_wire), (called, called_wire)) = (pair(), pair());
    let mut sides = [Side::new(caller, true, shown), Side::new(called, false, shown)];
    let wires = [caller_wire, called_wire];
    let held_max = PREFACE_BYTES + HELLO_BYTES_MAX + READ_BYTES;
    let mut script = script.iter();
    let mut moved = true;
    while moved {
        moved = false;
        for from in [0, 1] {
            sides[from].poll(held_max);
            let mut bytes = vec![0; cut];
            let Ok(count @ 1..) = (&wires[from]).read(&mut bytes) else { continue };
            for byte in bytes[..count].iter_mut() {
                if let Some(by) = script.next().filter(|&&by| by >= ALTERS) {
                    *byte ^= by - ALTERS + 1;
                }
            }
            moved |= say(&wires[1 - from], &bytes[..count]);
        }
    }
    drop(wires);
    sides.iter_mut().for_each(|side| side.end(held_max));
}

/// Sends all of `bytes`; false if the other side has closed. Without the signal (SIGPIPE) that such a write would raise.
fn say(wire: &Socket, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match wire.send_with_flags(bytes, libc::MSG_NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
            Err(_) => return false,
        }
    }
    true
}

fn pair() -> (Socket, Socket) {
    let (socket, wire) = Socket::pair(Domain::UNIX, Type::STREAM, None).expect("a pair of sockets");
    for socket in [&socket, &wire] {
        socket.set_nonblocking(true).expect("an option");
    }
    (socket, wire)
}

fn hello() -> Hello {
    Hello {
        features: 0,
        incarnation: 77,
        remembers: 0,
        tensor_bytes_max: 1 << 30,
        epoch: 0,
        shards: 1,
        shard: 0,
        lane: 5,
        address: "10.0.0.1:7000".into(),
        job: None,
        tasks: vec!["10.0.0.1:2222".into()],
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let words = [
        Greeting::Hello(hello()).to_bytes(),
        Greeting::Challenge([1; PROOF_BYTES]).to_bytes(),
        [Greeting::Challenge([1; PROOF_BYTES]).to_bytes(), Greeting::Proof([2; PROOF_BYTES]).to_bytes()].concat(),
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03".to_vec(),
        b"\x15\x03\x03\x00\x02\x02\x28".to_vec(),
    ];
    let kinds = (0..SHOWN.len() as u8).flat_map(|means| [means, means | CALLER]);
    let mut seeds: Vec<Vec<u8>> =
        kinds.flat_map(|kind| words.iter().map(move |words| [&[kind, 255][..], words].concat())).collect();
    for means in 0..SHOWN.len() as u8 {
        seeds.push(vec![means | BENT, 1, 0]);
        seeds.push([&[means | BENT, 255][..], &[0; 90], &[0xff], &[0; 60]].concat());
    }
    seeds
}
