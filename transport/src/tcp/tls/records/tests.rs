//! Records between two sides of ours, one of which may say anything, and between a side of ours and rustls itself.

use std::io::{Cursor, Read, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ClientConnection;

use super::super::handshake::{Handshake, Step};
use super::*;
use crate::authentication::{Authentication, Authority, Identity, Means};

fn identity() -> Arc<Identity> {
    let authority = Authority::new().unwrap();
    let certified = authority.certify(&[], SystemTime::now() + Duration::from_secs(86_400)).unwrap();
    let authentication = Authentication::certified(&authority.certificate(), &certified).unwrap();
    let Means::Tls(identity) = authentication.0 else { unreachable!("it is TLS") };
    identity
}

/// Lets one side of a handshake handle what it has received; removes that from `heard`. True if its handshake is done.
fn look(side: &mut Handshake, heard: &mut Vec<u8>, says: &mut Vec<u8>) -> bool {
    loop {
        let (discard, step) = side.step(heard, &mut Vec::new(), says);
        heard.drain(..discard);
        match step.unwrap() {
            Step::Again => {}
            step => return step == Step::Done,
        }
    }
}

/// The two sides of a connection, after the handshake: the caller's records, then the called side's.
fn pair() -> [Records; 2] {
    let identity = identity();
    let mut sides = [Handshake::calling(&identity).unwrap(), Handshake::called(&identity).unwrap()];
    let (mut said, mut done) = ([Vec::new(), Vec::new()], [false; 2]);
    while done != [true; 2] {
        for at in 0..2 {
            let mut heard = std::mem::take(&mut said[1 - at]);
            done[at] = look(&mut sides[at], &mut heard, &mut said[at]);
            assert!(heard.is_empty());
        }
    }
    sides.map(|side| side.end().unwrap().0)
}

/// Opens everything that a side has received; returns the bytes, and the fault that stopped it, if any.
fn open(side: &mut Records, mut heard: Vec<u8>) -> (Vec<u8>, Option<Fault>) {
    let mut bytes = Vec::new();
    loop {
        let consumed = match side.open(&mut heard) {
            Ok((_, Opened::Part | Opened::Over)) => return (bytes, None),
            Ok((consumed, Opened::Data(data))) => {
                bytes.extend_from_slice(data);
                consumed
            }
            Ok((consumed, Opened::Own)) => consumed,
            Err(fault) => return (bytes, Some(fault)),
        };
        heard.drain(..consumed);
    }
}

fn sealed(side: &mut Records, kind: ContentType, bytes: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    side.seal_as(kind, &mut sealed, |sealed| sealed.extend_from_slice(bytes)).unwrap();
    sealed
}

/// The alert with which the called side answers these records.
fn alert_at(records: &[(ContentType, &[u8])]) -> Option<AlertDescription> {
    let [mut caller, mut called] = pair();
    let said = records.iter().flat_map(|(kind, bytes)| sealed(&mut caller, *kind, bytes)).collect();
    open(&mut called, said).1.expect("it is refused").alert
}

#[test]
fn keys_change_after_so_many_records_and_when_the_peer_asks() {
    let [mut one, mut other] = pair();
    one.records_per_key = 3;
    let mut said = Vec::new();
    (0..10).for_each(|byte| one.seal(&mut said, |sealed| sealed.push(byte)).unwrap());
    let (bytes, fault) = open(&mut other, said);
    assert!(fault.is_none() && bytes == (0..10).collect::<Vec<_>>());
    assert!(one.sending.records < 3, "it has changed its key");
    // The other side is asked twice for a new key before it can send anything: it changes its key once.
    for _ in 0..2 {
        let mut asked = Vec::new();
        one.ask_for_key(&mut asked).unwrap();
        assert!(open(&mut other, asked).1.is_none());
    }
    let mut answer = Vec::new();
    assert!(other.answer(&mut answer).unwrap() && !other.answer(&mut answer).unwrap());
    other.seal(&mut answer, |sealed| sealed.extend_from_slice(b"with the next key")).unwrap();
    let (bytes, fault) = open(&mut one, answer);
    assert!(fault.is_none() && bytes == b"with the next key");
}

#[test]
fn what_is_sealed_may_be_padded_and_come_in_parts() {
    let [mut one, mut other] = pair();
    let mut padded = Vec::new();
    let padding = [&b"word"[..], &[ContentType::ApplicationData.into()], &[0; 40]].concat();
    // The record's real kind follows the bytes in `padding`; the kind that `seal_as` adds is zero, and so part of the padding.
    one.seal_as(ContentType::Unknown(0), &mut padded, |sealed| sealed.extend_from_slice(&padding)).unwrap();
    for part in 0..padded.len() {
        assert!(matches!(other.open(&mut padded.clone()[..part]), Ok((0, Opened::Part))));
    }
    assert_eq!(open(&mut other, padded).0, b"word");
    // A ticket split over two records, which the caller ignores.
    let ticket = [&[HandshakeType::NewSessionTicket.into(), 0, 0, 9], &[7; 9][..]].concat();
    let (first, second) = ticket.split_at(6);
    let said = [first, second].map(|part| sealed(&mut other, ContentType::Handshake, part)).concat();
    assert!(open(&mut one, said).1.is_none());
}

#[test]
fn what_breaks_the_rules_is_refused_and_the_peer_told_why() {
    use AlertDescription as Alert;
    use ContentType::{Alert as Word, ApplicationData, Handshake};
    let key_update = |ask: u8| [HandshakeType::KeyUpdate.into(), 0, 0, 1, ask];
    let part = &key_update(0)[..3];
    let with_more = [key_update(0), key_update(0)].concat();
    assert_eq!(alert_at(&[(Handshake, &key_update(2))]), Some(Alert::IllegalParameter));
    assert_eq!(alert_at(&[(Handshake, &with_more)]), Some(Alert::UnexpectedMessage));
    assert_eq!(alert_at(&[(Handshake, part), (ApplicationData, b"x")]), Some(Alert::UnexpectedMessage));
    assert_eq!(alert_at(&[(Handshake, &[])]), Some(Alert::UnexpectedMessage));
    assert_eq!(alert_at(&[(Handshake, &[HandshakeType::ClientHello.into(), 0, 0, 0])]), Some(Alert::UnexpectedMessage));
    // Only the called side may send tickets.
    assert_eq!(
        alert_at(&[(Handshake, &[HandshakeType::NewSessionTicket.into(), 0, 0, 0])]),
        Some(Alert::UnexpectedMessage)
    );
    let endless = [&[HandshakeType::NewSessionTicket.into(), 255, 255, 255], &[0; 8000][..]].concat();
    assert_eq!(
        alert_at(&[(Handshake, &endless), (Handshake, &endless), (Handshake, &endless)]),
        Some(Alert::UnexpectedMessage)
    );
    assert_eq!(alert_at(&[(Word, &[2])]), Some(Alert::DecodeError));
    assert_eq!(alert_at(&[(ContentType::ChangeCipherSpec, &[1])]), Some(Alert::UnexpectedMessage));
    assert_eq!(alert_at(&[(ContentType::Unknown(0), &[0; 9])]), Some(Alert::UnexpectedMessage));
    assert_eq!(alert_at(&[(ApplicationData, &[1; PLAIN_BYTES + 1])]), Some(Alert::RecordOverflow));
    // An alert is not answered.
    assert_eq!(alert_at(&[(Word, &[2, Alert::BadCertificate.into()])]), None);
    let fault = |bytes: &[u8]| pair()[1].open(&mut bytes.to_vec()).err().expect("it is refused").alert;
    assert_eq!(fault(&[22, 3, 3, 0, 1, 0]), Some(Alert::UnexpectedMessage));
    assert_eq!(fault(&[23, 3, 3, 255, 255]), Some(Alert::RecordOverflow));
    assert_eq!(fault(&[23, 3, 3, 0, 0]), Some(Alert::BadRecordMac));
}

#[test]
fn records_that_bring_nothing_are_taken_a_bounded_number_of_times() {
    for kind in [ContentType::ApplicationData, ContentType::Alert, ContentType::Handshake] {
        let [mut caller, mut called] = pair();
        let mut say = |kind: ContentType| match kind {
            ContentType::Handshake => {
                let mut said = Vec::new();
                caller.change_key(&mut said).unwrap();
                said
            }
            ContentType::Alert => sealed(&mut caller, kind, &[1, AlertDescription::UserCanceled.into()]),
            _ => sealed(&mut caller, kind, &[]),
        };
        for _ in 0..FRUITLESS_RECORDS {
            assert!(open(&mut called, say(kind)).1.is_none());
        }
        let fault = open(&mut called, say(kind)).1.expect("one too many");
        assert_eq!(fault.alert, Some(AlertDescription::UnexpectedMessage));
    }
}

/// Passes everything rustls has to say to our side, which appends its answers to `said`; returns the bytes that our side has received.
fn converse(theirs: &mut ClientConnection, ours: &mut Records, said: &mut Vec<u8>) -> Vec<u8> {
    let mut heard = Vec::new();
    while theirs.wants_write() {
        theirs.write_tls(&mut heard).unwrap();
    }
    let (bytes, fault) = open(ours, heard);
    assert!(fault.is_none(), "{fault:?}");
    ours.answer(said).unwrap();
    let mut said = Cursor::new(std::mem::take(said));
    while said.position() < said.get_ref().len() as u64 {
        theirs.read_tls(&mut said).unwrap();
        theirs.process_new_packets().unwrap();
    }
    bytes
}

#[test]
fn rustls_understands_our_records_and_we_its_own_whatever_the_keys() {
    let identity = identity();
    let (mut theirs, mut ours) = (identity.other_caller(), Handshake::called(&identity).unwrap());
    let (mut said, mut is_done) = (Vec::new(), false);
    while theirs.is_handshaking() || !is_done {
        let mut heard = Vec::new();
        while theirs.wants_write() {
            theirs.write_tls(&mut heard).unwrap();
        }
        is_done = look(&mut ours, &mut heard, &mut said);
        let mut words = Cursor::new(std::mem::take(&mut said));
        theirs.read_tls(&mut words).unwrap();
        theirs.process_new_packets().unwrap();
    }
    let mut ours = ours.end().unwrap().0;
    ours.records_per_key = 4;
    for round in 0..20_u8 {
        let text = vec![round; 1000 * usize::from(round)];
        theirs.writer().write_all(&text).unwrap();
        if round % 3 == 0 {
            theirs.refresh_traffic_keys().unwrap();
        }
        ours.seal(&mut said, |sealed| sealed.extend_from_slice(&text[..text.len().min(PLAIN_BYTES)])).unwrap();
        assert!(converse(&mut theirs, &mut ours, &mut said) == text);
        let mut heard = vec![0; text.len().min(PLAIN_BYTES)];
        theirs.reader().read_exact(&mut heard).unwrap();
        assert!(heard == text[..heard.len()]);
    }
}
