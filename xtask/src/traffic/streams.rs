//! Streams of bytes: each process numbers those that it dials, writes one to its end, reads an answer, and waits until the other
//! process has read everything. The other process answers the first bytes with an answer, and reads to the end, or learns that
//! there is none. Some are written slowly, and connections of their own are broken meanwhile, which no stream may notice.

use std::io::{ErrorKind, Read, Write};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use sealane::{Code, Error, Stream, StreamOptions, Streams};

use super::ledger::{Kind, Outcome, What, now_us};
use super::tensors::{Label, mix};
use super::{Actor, name, number};

const LISTENER: &str = "bytes";

/// Time limit of one call of a stream: an accept, or a part of a longer wait.
const CALL: StreamOptions =
    StreamOptions { window_bytes: 128 << 10, timeout: Some(Duration::from_secs(1)), polling: None };
const LOOK: StreamOptions = StreamOptions { timeout: Some(Duration::from_millis(400)), ..CALL };

/// How long bytes are written if they are read slowly, at least and at most; and the limit of all that, including a dial that is
/// retried, and calls in progress by then.
const WRITES: Duration = Duration::from_secs(2);
const WRITES_MAX: Duration = Duration::from_secs(3);
const STREAM_TIMEOUT: Duration = Duration::from_secs(9);

/// Far longer than a dialer needs, than any fault lasts, and than it takes to learn that it has gone.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Pieces of a stream that is written slowly, so that faults happen meanwhile, and the time between two.
const PIECES: usize = 20;
const PIECE_PAUSE: Duration = Duration::from_millis(50);
/// After this many pieces, and as many more, the stream's own connection is broken, if it has one.
const BREAK_PIECES: usize = 6;

/// Bytes of an answer: no first piece is shorter.
const ANSWER: usize = 1;

/// Time between two streams, and between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the last streams are accepted.
const AFTERWARDS: Duration = Duration::from_secs(8);

fn bytes_of(number: u64) -> usize {
    match mix(number, 11) % 8 {
        0..4 => 50,
        4..7 => 20_000,
        _ => 400_000,
    }
}

/// The library's error inside one of `std::io`.
fn told(error: std::io::Error) -> Error {
    let within = error.get_ref().and_then(|error| error.downcast_ref::<Error>()).cloned();
    within.unwrap_or_else(|| Error::invalid(error.to_string()))
}

/// Dials one stream after the other.
pub(super) fn dial(actor: &Actor, streams: &Streams, to: usize) {
    actor.again(PAUSE, |times| {
        // Streams to each peer are numbered separately.
        let number = (to as u64) << 32 | times;
        actor.ledger.call(What::new(Kind::Stream, &[to], number as i64), STREAM_TIMEOUT, || {
            let label = Label { life: actor.life, ..Label::of(Kind::Stream, actor.me, number, to as u32) };
            carry(streams, to, &label.bytes(bytes_of(number)), mix(number, 12).is_multiple_of(2))
        });
    });
}

fn carry(streams: &Streams, to: usize, bytes: &[u8], slowly: bool) -> Outcome {
    let begun = Instant::now();
    let stream = loop {
        match streams.connect(&name(to), LISTENER, CALL).wait() {
            // Its process has begun, but does not listen yet.
            Err(error) if error.code() == Code::NotFound && begun.elapsed() < WRITES => thread::sleep(PAUSE),
            Err(error) => return Outcome::failed(&error),
            Ok(dialed) => break dialed,
        }
    };
    let begun = Instant::now();
    let is_early = |error: &std::io::Error| error.kind() == ErrorKind::TimedOut && begun.elapsed() < WRITES;
    for (number, mut rest) in bytes.chunks(if slowly { bytes.len().div_ceil(PIECES) } else { bytes.len() }).enumerate()
    {
        while !rest.is_empty() {
            if begun.elapsed() > WRITES_MAX {
                return Outcome::Failed(
                    format!("{:?}", Code::DeadlineExceeded),
                    "its pieces were taken too slowly".into(),
                );
            }
            match (&stream).write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if is_early(&error) => {}
                Err(error) => return Outcome::failed(&told(error)),
            }
        }
        if slowly && begun.elapsed() < WRITES {
            thread::sleep(PIECE_PAUSE);
        }
        if (number + 1).is_multiple_of(BREAK_PIECES) {
            stream.break_off();
        }
    }
    let mut answer = [0; ANSWER];
    loop {
        match (&stream).read(&mut answer) {
            Ok(ANSWER) if bytes.starts_with(&answer) => return Outcome::from(stream.finish().wait()),
            Ok(count) => return Outcome::Wrong(format!("{:?} answer {:?}", &answer[..count], &bytes[..ANSWER])),
            Err(error) if is_early(&error) => {}
            Err(error) => return Outcome::failed(&told(error)),
        }
    }
}

/// Reads streams that others dial.
pub(super) fn serve<'scope>(actor: &'scope Actor, streams: &Streams, scope: &'scope Scope<'scope, '_>) {
    let listener = streams.listen(LISTENER, LOOK).expect("nobody else listens");
    while !actor.orders.is_over(now_us().saturating_sub(AFTERWARDS.as_micros() as u64)) {
        match listener.accept().wait() {
            Ok(stream) => _ = scope.spawn(move || read(actor, &stream)),
            Err(error) if error.code() == Code::DeadlineExceeded => {}
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

fn read(actor: &Actor, stream: &Stream) {
    let Some(from) = number(stream.peer()) else { return };
    let (begun, mut came, mut piece) = (Instant::now(), Vec::new(), vec![0; 64 << 10]);
    actor.ledger.call(What::new(Kind::Read, &[from], 0), READ_TIMEOUT, || {
        loop {
            match (&*stream).read(&mut piece) {
                Ok(0) => {
                    let noted = actor.note_arrival(Kind::Stream, stream.peer(), &came, bytes_of);
                    return noted.map_or_else(Outcome::Wrong, |()| Outcome::Ok);
                }
                Ok(count) => {
                    if came.is_empty() {
                        // The dialer records whether the answer has arrived.
                        let _ = (&*stream).write(&piece[..ANSWER]);
                    }
                    came.extend_from_slice(&piece[..count]);
                }
                Err(error) if error.kind() == ErrorKind::TimedOut && begun.elapsed() < READ_TIMEOUT => {}
                Err(error) => return Outcome::failed(&told(error)),
            }
        }
    });
}
