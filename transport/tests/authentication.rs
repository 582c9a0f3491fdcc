//! Who gets a link and who does not, for all combinations of credentials that the two sides require.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use nix::poll::PollFlags;
use sealane_transport::authentication::{Authentication, Authority, Certified};
use sealane_transport::endpoint_map::TaskName;
use sealane_transport::tcp::{Answering, CallError, Dial, DialError, Progress, TcpSettings, listen};
use sealane_transport::wire::{Greeting, PROOF_BYTES, Reject, RejectCode};

#[path = "sockets/greeted.rs"]
mod greeted;
mod sockets;

use greeted::{CALLED, Side, greet, hello};
use sockets::ready;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

fn open() -> Authentication {
    Authentication::default()
}

fn secret(text: &str) -> Authentication {
    Authentication::secret_bytes(text.repeat(8).as_bytes()).unwrap()
}

fn certified(authority: &Authority, task: &str, until: SystemTime) -> Certified {
    authority.certify(&[task.parse::<TaskName>().unwrap()], until).unwrap()
}

fn tomorrow() -> SystemTime {
    SystemTime::now() + DAY
}

fn tls(authority: &Authority, task: &str) -> Authentication {
    Authentication::certified(&authority.certificate(), &certified(authority, task, tomorrow())).unwrap()
}

fn side(authentication: &Authentication) -> Side<'_> {
    Side { address: CALLED, settings: TcpSettings::default(), authentication }
}

/// The errors of both sides of a call that is refused.
fn refused(caller: &Authentication, called: &Authentication) -> (DialError, CallError) {
    let (dialed, answered) = greet(&side(caller), &side(called));
    (dialed.err().expect("the caller is refused"), answered.err().expect("the called side refuses"))
}

/// The reason of a refusal for which both sides give the same reason.
fn told(caller: &Authentication, called: &Authentication) -> String {
    let (dialed, answered) = refused(caller, called);
    let DialError::Rejected(Reject { code: RejectCode::Unauthenticated, reason }) = dialed else {
        panic!("the caller was not told: {dialed}")
    };
    assert_eq!(answered, CallError::Unauthenticated(reason.clone()));
    reason
}

#[test]
fn another_secret_none_and_one_too_many_are_told_apart() {
    assert!(told(&secret("this"), &secret("that")).contains("not the same on both sides"));
    assert!(told(&open(), &secret("that")).contains("a shared secret (security.secret_file) is required"));
    assert!(told(&secret("this"), &open()).contains("the called side has none"));
}

#[test]
fn a_proof_that_was_meant_for_another_address_opens_nothing() {
    let secret = secret("four");
    let elsewhere = Side { address: "10.0.0.3:7000", ..side(&secret) };
    let (dialed, answered) = greet(&elsewhere, &side(&secret));
    assert!(dialed.is_err());
    let Err(CallError::Unauthenticated(reason)) = answered else { panic!("the proof was taken") };
    assert!(reason.contains("10.0.0.2:7000"), "{reason}");
}

#[test]
fn sides_that_are_certified_by_the_same_authority_see_each_others_names() {
    let authority = Authority::new().unwrap();
    let (dialed, answered) = greet(&side(&tls(&authority, "a:1")), &side(&tls(&authority, "b:1")));
    let certificate = dialed.unwrap().certificate.expect("TLS shows one");
    assert!(certificate.speaks_for(&"b:1".parse().unwrap()) && !certificate.speaks_for(&"a:1".parse().unwrap()));
    answered.unwrap();
}

#[test]
fn certificates_of_another_authority_and_stale_ones_are_refused_in_both_directions() {
    let (ours, theirs) = (Authority::new().unwrap(), Authority::new().unwrap());
    let good = tls(&ours, "a:1");
    // Trusts our authority, but shows a certificate signed by theirs.
    let foreign = certified(&theirs, "a:1", tomorrow());
    let foreign = Authentication::certified(&ours.certificate(), &foreign).unwrap();
    let stale =
        Authentication::certified(&ours.certificate(), &certified(&ours, "a:1", SystemTime::now() - MINUTE)).unwrap();
    for (name, bad) in [("foreign", &foreign), ("stale", &stale)] {
        let (dialed, answered) = greet(&side(bad), &side(&good));
        let Err(DialError::Unauthenticated(_)) = dialed else {
            panic!("{name}: the caller hears of it: {:?}", dialed.err())
        };
        let Err(CallError::Unauthenticated(reason)) = answered else { panic!("it was taken") };
        assert!(reason.contains("certificate"), "{reason}");

        let (dialed, answered) = greet(&side(&good), &side(bad));
        let Err(DialError::Unauthenticated(reason)) = dialed else { panic!("it was taken") };
        assert!(reason.contains("certificate"), "{reason}");
        assert!(matches!(answered, Err(CallError::Unauthenticated(_))));
    }
}

#[test]
fn a_side_without_tls_is_told_of_it_in_its_own_words() {
    let authority = Authority::new().unwrap();
    let tls = tls(&authority, "a:1");
    for without in [open(), secret("four")] {
        assert!(told(&without, &tls).contains("TLS (security.tls_certificate) is required"));
        assert!(told(&tls, &without).contains("the caller wants TLS"));
    }
}

/// Sends `bytes` to a called side and closes; returns its error and what it answered.
fn call_with(authentication: &Authentication, bytes: &[u8]) -> (CallError, Vec<u8>) {
    let settings = TcpSettings::default();
    let listener = listen("127.0.0.1:0".parse().unwrap(), &settings).unwrap();
    let mut caller = TcpStream::connect(listener.local_addr().unwrap().as_socket().unwrap()).unwrap();
    caller.write_all(bytes).unwrap();
    caller.shutdown(Shutdown::Write).unwrap();
    ready(&[(listener.as_fd(), PollFlags::POLLIN)]);
    let (socket, _) = listener.accept().unwrap();
    let mut answering = Answering::new(socket, &CALLED.parse().unwrap(), &settings, authentication).unwrap();
    let error = loop {
        match answering.poll() {
            Ok(Progress::Pending(pending)) => answering = pending,
            Ok(Progress::Done(_)) => panic!("that was no hello"),
            Err(error) => break error,
        }
        ready(&[(answering.descriptor(), PollFlags::POLLIN)]);
    };
    let mut told = Vec::new();
    // The called side may have closed with bytes unread, which resets the connection.
    let _ = caller.read_to_end(&mut told);
    (error, told)
}

#[test]
fn whoever_has_proved_nothing_is_read_no_further() {
    let secret = secret("four");
    // A hello whose body never comes is refused once its first bytes have.
    let hello = Greeting::Hello(hello()).to_bytes();
    let (error, told) = call_with(&secret, &hello[..20]);
    assert!(matches!(error, CallError::Unauthenticated(_)), "{error}");
    let Ok(Some((Greeting::Reject(reject), _))) = Greeting::parse(&told) else { panic!("not told: {told:?}") };
    assert_eq!(reject.code, RejectCode::Unauthenticated);
    let mut long = Greeting::Challenge([0; PROOF_BYTES]).to_bytes();
    long[16..20].copy_from_slice(&(PROOF_BYTES as u32 + 1).to_le_bytes());
    let (error, _) = call_with(&secret, &long);
    assert!(error.to_string().contains("at most 32"), "{error}");
}

#[test]
fn a_proof_before_a_challenge_a_second_challenge_and_guesses_open_nothing() {
    let secret = secret("four");
    let (challenge, guess) = (Greeting::Challenge([1; PROOF_BYTES]), Greeting::Proof([2; PROOF_BYTES]));
    for words in [vec![&guess], vec![&challenge, &challenge]] {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_bytes()).collect();
        let (error, _) = call_with(&secret, &bytes);
        let CallError::Unauthenticated(reason) = error else { panic!("it counts as no failure: {error}") };
        assert!(reason.contains("before the proof"), "{reason}");
    }
    let (error, told) = call_with(&secret, &[challenge.to_bytes(), guess.to_bytes()].concat());
    assert!(matches!(error, CallError::Unauthenticated(_)), "{error}");
    let Ok(Some((Greeting::Challenge(_), length))) = Greeting::parse(&told) else { panic!("{told:?}") };
    let Ok(Some((Greeting::Reject(_), _))) = Greeting::parse(&told[length..]) else { panic!("a proof was given away") };
}

#[test]
fn a_called_side_proves_itself_too() {
    let (secret, settings) = (secret("four"), TcpSettings::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = CALLED.parse().unwrap();
    let address = listener.local_addr().unwrap();
    // An impostor that sends the caller's own words back to it.
    let mut dial = Dial::start(address, (&peer, hello()), &settings, &secret).unwrap();
    let (mut impostor, _) = listener.accept().unwrap();
    impostor.set_nonblocking(true).unwrap();
    let error = loop {
        match dial.poll() {
            Ok(Progress::Pending(pending)) => dial = pending,
            Ok(Progress::Done(_)) => panic!("the impostor was believed"),
            Err(error) => break error,
        }
        let flags = if dial.wants_write() { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
        ready(&[(dial.descriptor(), flags), (impostor.as_fd(), PollFlags::POLLIN)]);
        let mut words = [0; 1024];
        if let Ok(count) = impostor.read(&mut words) {
            impostor.write_all(&words[..count]).unwrap();
        }
    };
    assert!(matches!(error, DialError::Unauthenticated(_)), "{error}");
}

#[test]
fn rubbish_instead_of_tls_ends_the_call() {
    let authority = Authority::new().unwrap();
    let tls = tls(&authority, "a:1");
    let (error, _) = call_with(&tls, b"GET / HTTP/1.1\r\n\r\n");
    assert!(matches!(error, CallError::Unauthenticated(_)), "{error}");
    let (error, told) = call_with(&tls, &[22, 3, 1, 0, 4, 0xff, 0, 0, 0]);
    assert!(matches!(error, CallError::Unauthenticated(_)), "{error}");
    assert_eq!(told.first(), Some(&21), "an alert");
    // A handshake message without an end is not read beyond its limit.
    let record = [&[22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff][..], &[0; 0x4000 - 4]].concat();
    let (error, _) = call_with(&tls, &record.repeat(4));
    assert!(matches!(error, CallError::Unauthenticated(_)), "{error}");
}
