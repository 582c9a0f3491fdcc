//! Two streams, connected by a wire on which the test can read, cut and alter.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use socket2::{Domain, Type};

use super::*;
use crate::authentication::{Authentication, Authority, Certified, Means};

const DAY: Duration = Duration::from_secs(86_400);
/// More than the sockets of a test hold.
const LARGE: usize = 3 << 20;

/// The wire between two streams.
struct Wire {
    ends: [Socket; 2],
    /// Bytes that each stream has sent, in order.
    said: [Vec<u8>; 2],
}

impl Wire {
    /// Carries what each side has sent to the other, after `alter` (which gets the sending side's number) has changed it.
    fn carry(&mut self, alter: &mut dyn FnMut(usize, &mut [u8])) {
        for side in 0..2 {
            let mut bytes = [0; 16 * 1024];
            while let Ok(count @ 1..) = (&self.ends[side]).read(&mut bytes) {
                self.said[side].extend_from_slice(&bytes[..count]);
                alter(side, &mut bytes[..count]);
                let mut rest = &bytes[..count];
                while !rest.is_empty() {
                    match (&self.ends[1 - side]).write(rest) {
                        Ok(count) => rest = &rest[count..],
                        // Nobody reads while the wire is carried: the test must leave enough room.
                        Err(error) => panic!("the wire is full: {error}"),
                    }
                }
            }
        }
    }
}

/// Two streams after their handshake.
fn pair() -> ([TlsStream; 2], Wire) {
    let authority = Authority::new().unwrap();
    let certified = authority.certify(&[], SystemTime::now() + DAY).unwrap();
    let identity = identity(&authority.certificate(), &certified);
    pair_of(&identity, &identity)
}

fn pair_of(caller_identity: &Identity, called_identity: &Identity) -> ([TlsStream; 2], Wire) {
    let socket_pair = || {
        let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        for socket in [&one, &other] {
            socket.set_nonblocking(true).unwrap();
            socket.set_send_buffer_size(4 << 20).unwrap();
        }
        (one, other)
    };
    let ((caller, caller_wire), (called, called_wire)) = (socket_pair(), socket_pair());
    let mut wire = Wire { ends: [caller_wire, called_wire], said: Default::default() };
    let mut streams =
        [TlsStream::calling(caller, caller_identity).unwrap(), TlsStream::called(called, called_identity).unwrap()];
    streams[0].speak_first().unwrap();
    let mut done = [false; 2];
    while done != [true; 2] {
        for side in 0..2 {
            wire.carry(&mut |_, _| {});
            done[side] = streams[side].handshake().unwrap();
        }
    }
    wire.said.iter_mut().for_each(Vec::clear);
    (streams, wire)
}

/// Writes `bytes` in slices of these lengths in turn, carries the wire in between, and reads into targets of other lengths.
fn pass(streams: &mut [TlsStream; 2], wire: &mut Wire, from: usize, bytes: &[u8], slices: [usize; 2]) -> Vec<u8> {
    let (mut sent, mut heard) = (0, Vec::new());
    while heard.len() < bytes.len() {
        if sent < bytes.len() {
            let rest = &bytes[sent..];
            let (one, other) = rest.split_at(rest.len().min(slices[0]));
            let other = &other[..other.len().min(slices[1])];
            sent += streams[from]
                .write(&[VolatileSlice::from(one), VolatileSlice::from(other)], false)
                .unwrap()
                .unwrap_or(0);
        }
        wire.carry(&mut |_, _| {});
        let (mut first, mut second) = (vec![0; slices[1]], vec![0; slices[0]]);
        let mut targets = [VolatileSliceMut::from(&mut first), VolatileSliceMut::from(&mut second)];
        let count = streams[1 - from].read(&mut targets).unwrap().unwrap_or(0);
        heard.extend_from_slice(&[first, second].concat()[..count]);
    }
    heard
}

/// The result of a handshake on each side.
fn shake_hands(caller: &Identity, called: &Identity) -> [Result<bool, LinkError>; 2] {
    let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    for socket in [&one, &other] {
        socket.set_nonblocking(true).unwrap();
    }
    let mut streams = [TlsStream::calling(one, caller).unwrap(), TlsStream::called(other, called).unwrap()];
    let mut came = [Ok(false), Ok(false)];
    streams[0].speak_first().unwrap();
    for side in [1, 0, 1] {
        came[side] = streams[side].handshake();
    }
    came
}

fn identity(authorities: &str, certified: &Certified) -> Arc<Identity> {
    let authentication = Authentication::certified(authorities, certified).unwrap();
    let Means::Tls(identity) = authentication.0 else { unreachable!("it is TLS") };
    identity
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31) >> 3) as u8).collect()
}

#[test]
fn large_payloads_pass_both_ways_and_nobody_between_reads_them() {
    let (mut streams, mut wire) = pair();
    let bytes = pattern(LARGE);
    for from in [0, 1] {
        assert_eq!(pass(&mut streams, &mut wire, from, &bytes, [100_000, 1_000_000]), bytes);
        let on_the_wire = &wire.said[from];
        assert!(on_the_wire.len() > LARGE);
        assert!(!on_the_wire.windows(16).any(|window| window == &bytes[..16]), "it is sealed");
    }
}

#[test]
fn a_side_that_does_not_name_the_protocol_is_of_another() {
    let authority = Authority::new().unwrap();
    let certified = authority.certify(&[], SystemTime::now() + DAY).unwrap();
    let ours = identity(&authority.certificate(), &certified);
    assert_eq!(shake_hands(&ours, &ours), [Ok(true), Ok(true)]);
    let other = ours.without_protocol();
    for (came, side) in [(shake_hands(&ours, &other), 0), (shake_hands(&other, &ours), 1)] {
        let Err(LinkError::Tls(reason)) = &came[side] else { panic!("{came:?}") };
        assert!(reason.contains("ALPN"), "{reason}");
    }
}

#[test]
fn both_sides_say_whose_certificate_is_not_believed_and_why() {
    let (authority, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    let of = |authority: &Authority, until| identity(&authority.certificate(), &authority.certify(&[], until).unwrap());
    let now = SystemTime::now();
    let good = of(&authority, now + DAY);
    for (bad, here, there) in [
        (
            of(&authority, now - DAY / 48),
            "the peer's certificate, or its authority's, expired 30 minutes ago",
            "has expired",
        ),
        (
            of(&other, now + DAY),
            "of no authority in security.tls_authorities here",
            "not in security.tls_authorities there",
        ),
    ] {
        // On the called side: the caller notices it, and tells the other side.
        let [caller, called] = shake_hands(&good, &bad).map(|came| came.map_err(|error| error.to_string()));
        assert!(caller.as_ref().unwrap_err().contains(here), "{caller:?}");
        let told = called.unwrap_err();
        assert!(told.contains("the peer rejects this side's certificate") && told.contains(there), "{told}");
    }
    assert_eq!([119 * 60, 120 * 60, 48 * 3600].map(span), ["119 minutes", "2 hours", "2 days"]);
}

#[test]
fn a_bundle_of_some_hundred_authorities_makes_no_handshake_too_long() {
    let authority = Authority::new().unwrap();
    let certified = authority.certify(&[], SystemTime::now() + DAY).unwrap();
    let others: String = (0..600).map(|_| Authority::new().unwrap().certificate()).collect();
    let ours = identity(&(authority.certificate() + &others), &certified);
    assert_eq!(shake_hands(&ours, &ours), [Ok(true), Ok(true)]);
}

#[test]
fn records_of_tls_alone_are_read_a_bounded_number_of_times() {
    let authority = Authority::new().unwrap();
    let certified = authority.certify(&[], SystemTime::now() + DAY).unwrap();
    let ours = identity(&authority.certificate(), &certified);
    let (mut streams, mut wire) = pair_of(&ours, &ours.with_tickets(1000));
    streams[1].write(&[VolatileSlice::from(b"and this")], false).unwrap();
    wire.carry(&mut |_, _| {});
    // Small reads: the socket holds more than one of them takes.
    streams[0].incoming_bytes = streams[0].end + 1024;
    let mut target = [0; 8];
    let mut read = || streams[0].read(&mut [VolatileSliceMut::from(&mut target)]).unwrap();
    assert_eq!(read(), None, "it is somebody else's turn");
    let mut turns = 1;
    while read().is_none() {
        turns += 1;
    }
    assert!(turns > 1);
    assert_eq!(&target, b"and this");
}

#[test]
fn one_altered_bit_ends_the_stream() {
    let (mut streams, mut wire) = pair();
    let bytes = pattern(5000);
    streams[0].write(&[VolatileSlice::from(&bytes)], false).unwrap();
    let mut altered = false;
    wire.carry(&mut |side, bytes| {
        if side == 0 && !altered {
            bytes[1000] ^= 1;
            altered = true;
        }
    });
    let mut target = vec![0; bytes.len()];
    let error = streams[1].read(&mut [VolatileSliceMut::from(&mut target)]).unwrap_err();
    assert!(matches!(error, LinkError::Tls(_)), "{error}");
    assert!(target.iter().all(|&byte| byte == 0), "nothing of it was believed");
    // The other side is told, too.
    wire.carry(&mut |_, _| {});
    let error = streams[0].read(&mut [VolatileSliceMut::from(&mut target)]).unwrap_err();
    assert!(matches!(error, LinkError::Tls(_)), "{error}");
}

#[test]
fn a_record_that_is_played_again_ends_the_stream() {
    let (mut streams, mut wire) = pair();
    streams[0].write(&[VolatileSlice::from(b"pay once")], false).unwrap();
    wire.carry(&mut |_, _| {});
    let mut target = [0; 8];
    assert_eq!(streams[1].read(&mut [VolatileSliceMut::from(&mut target)]).unwrap(), Some(8));
    let again = wire.said[0].clone();
    (&wire.ends[1]).write_all(&again).unwrap();
    let error = streams[1].read(&mut [VolatileSliceMut::from(&mut target)]).unwrap_err();
    assert!(matches!(error, LinkError::Tls(_)), "{error}");
}

#[test]
fn what_the_socket_does_not_take_is_told_as_written_only_when_it_has() {
    let (mut streams, mut wire) = pair();
    streams[0].socket.set_send_buffer_size(4096).unwrap();
    let bytes = pattern(200_000);
    // Nobody reads, so that the socket fills up; bytes that are sealed but not sent are not counted as written.
    let mut sent = 0;
    while let Some(count) = streams[0].write(&[VolatileSlice::from(&bytes[sent..])], false).unwrap() {
        sent += count;
    }
    assert!(streams[0].wants_write() && sent < bytes.len());
    let mut heard = Vec::new();
    let mut target = vec![0; 50_000];
    while heard.len() < bytes.len() {
        wire.carry(&mut |_, _| {});
        // A smaller budget than what is sealed: it is counted in parts.
        let offered = &bytes[sent..bytes.len().min(sent + 1000)];
        if !offered.is_empty() {
            let taken = streams[0].write(&[VolatileSlice::from(offered)], false).unwrap().unwrap_or(0);
            assert!(taken <= offered.len());
            sent += taken;
        }
        wire.carry(&mut |_, _| {});
        let count = streams[1].read(&mut [VolatileSliceMut::from(&mut target)]).unwrap().unwrap_or(0);
        heard.extend_from_slice(&target[..count]);
    }
    assert!(heard == bytes);
}

/// Lets the test send something with a stream's records.
fn say(stream: &mut TlsStream, say: impl FnOnce(&mut Records, &mut Vec<u8>)) {
    let Stage::Open(records) = &mut stream.stage else { unreachable!("they have shaken hands") };
    say(records, &mut stream.sealed);
    assert!(stream.flush(false).unwrap());
}

#[test]
fn a_change_of_keys_that_was_asked_for_comes_before_the_next_bytes() {
    let (mut streams, mut wire) = pair();
    // Together with bytes, so that the read returns something.
    say(&mut streams[0], |records, sealed| {
        records.seal(sealed, |sealed| sealed.extend_from_slice(b"bytes")).unwrap();
        records.ask_for_key(sealed).unwrap();
    });
    wire.carry(&mut |_, _| {});
    let mut target = [0; 5];
    assert_eq!(streams[1].read(&mut [VolatileSliceMut::from(&mut target)]), Ok(Some(5)));
    // This is not read: the stream writes first.
    say(&mut streams[0], |records, sealed| records.seal(sealed, |sealed| sealed.push(7)).unwrap());
    wire.carry(&mut |_, _| {});
    assert_eq!(streams[1].step(&mut [], &mut 0), Ok(Step::Again));
    streams[1].write(&[VolatileSlice::from(b"answer")], false).unwrap();
    wire.carry(&mut |_, _| {});
    let Stage::Open(records) = &mut streams[0].stage else { unreachable!("they have shaken hands") };
    let first = records.open(&mut wire.said[1]).unwrap().1;
    assert!(matches!(first, Opened::Own), "bytes came first");
}

#[test]
fn what_follows_a_peers_last_word_is_nobodys() {
    let (mut streams, mut wire) = pair();
    say(&mut streams[0], |records, sealed| {
        records.seal(sealed, |sealed| sealed.extend_from_slice(b"last")).unwrap();
        records.seal_alert(rustls::AlertDescription::CloseNotify, sealed).unwrap();
        records.seal(sealed, |sealed| sealed.extend_from_slice(b"more")).unwrap();
    });
    wire.carry(&mut |_, _| {});
    let mut target = [0; 8];
    assert_eq!(streams[1].read(&mut [VolatileSliceMut::from(&mut target)]), Ok(Some(4)));
    let after = streams[1].read(&mut [VolatileSliceMut::from(&mut target)]);
    assert_eq!((after, &target), (Err(LinkError::Closed), b"last\0\0\0\0"));
}

#[test]
fn a_last_word_is_heard_though_nothing_can_be_answered() {
    let (mut streams, wire) = pair();
    streams[0].socket.set_send_buffer_size(4096).unwrap();
    let bytes = pattern(200_000);
    while streams[0].write(&[VolatileSlice::from(&bytes)], false).unwrap().is_some() {}
    streams[1].write(&[VolatileSlice::from(b"farewell")], false).unwrap();
    let mut word = [0; 256];
    let count = (&wire.ends[1]).read(&mut word).unwrap();
    (&wire.ends[0]).write_all(&word[..count]).unwrap();
    drop(wire);
    let mut target = [0; 8];
    assert_eq!(streams[0].read(&mut [VolatileSliceMut::from(&mut target)]), Ok(Some(8)));
    assert_eq!(&target, b"farewell");
    assert!(streams[0].read(&mut [VolatileSliceMut::from(&mut target)]).is_err());
}

/// The memory of a connection: many connections are idle, and a peer may stop in the middle of a record.
#[test]
fn between_two_reads_a_part_of_a_record_is_all_that_is_kept() {
    let (mut streams, mut wire) = pair();
    let kept = |stream: &TlsStream| [stream.incoming.capacity(), stream.sealed.capacity(), stream.opened.capacity()];
    say(&mut streams[0], |records, sealed| {
        records.seal(sealed, |sealed| sealed.extend_from_slice(&[7; PLAIN_BYTES])).unwrap();
    });
    let mut sealed = vec![0; RECORD_BYTES];
    let len = (&wire.ends[0]).read(&mut sealed).unwrap();
    let mut target = vec![0; 2 * PLAIN_BYTES];
    for part in [&sealed[..3], &sealed[3..len - 1]] {
        (&wire.ends[1]).write_all(part).unwrap();
        assert_eq!(streams[1].read(&mut [VolatileSliceMut::from(&mut target)]), Ok(None));
        assert!(kept(&streams[1])[0] <= RECORD_BYTES, "{:?}", kept(&streams[1]));
    }
    (&wire.ends[1]).write_all(&sealed[len - 1..len]).unwrap();
    assert_eq!(streams[1].read(&mut [VolatileSliceMut::from(&mut target)]), Ok(Some(PLAIN_BYTES)));
    assert_eq!(pass(&mut streams, &mut wire, 0, &pattern(LARGE), [100_000, 1_000_000]), pattern(LARGE));
    assert_eq!([kept(&streams[0]), kept(&streams[1])], [[0; 3]; 2]);
    // Nor does the thread keep one buffer per link.
    let buffers: Vec<Vec<u8>> =
        std::iter::repeat_with(|| INCOMING.with(Spares::take)).take(LARGE_BUFFERS + 3).collect();
    for mut buffer in buffers {
        buffer.reserve(INCOMING_BYTES);
        INCOMING.with(|large| large.give_back(&mut buffer));
    }
    let kept = std::iter::repeat_with(|| INCOMING.with(Spares::take)).take_while(|buffer| buffer.capacity() > 0);
    assert_eq!(kept.count(), LARGE_BUFFERS);
}
