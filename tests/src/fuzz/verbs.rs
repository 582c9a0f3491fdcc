//! What a verbs peer says: the words by which a link settles on verbs, and the messages over it.

use sealane_transport::verbs::fuzzing;

use super::assert_says;

/// Longer than any message written from what was read of an input.
const ROOM_BYTES: usize = 64 * 1024;

/// Reads one word after the other; each is written again and must read the same.
pub(super) fn run_settling(mut input: &[u8]) {
    loop {
        match fuzzing::settling_word(input) {
            Ok(None) => return,
            Err(error) => return assert_says(&error),
            Ok(Some((length, written))) => {
                let (again, rewritten) = fuzzing::settling_word(&written).expect("its own word").expect("all of it");
                assert_eq!((again, rewritten), (written.len(), written));
                input = &input[length..];
            }
        }
    }
}

/// Reads a message; it is written again and must read the same.
pub(super) fn run_message(input: &[u8]) {
    let mut buffer = [0; ROOM_BYTES];
    match fuzzing::message(&input[..input.len().min(ROOM_BYTES / 2)], &mut buffer) {
        Err(reason) => assert_says(&reason),
        Ok((length, parts)) => {
            let mut again = [0; ROOM_BYTES];
            assert_eq!(fuzzing::message(&buffer[..length], &mut again), Ok((length, parts)));
            assert!(buffer[..length] == again[..length]);
        }
    }
}

pub(super) fn settling_seeds() -> Vec<Vec<u8>> {
    let word = |kind: u8, window: u16, message_bytes: u32, reason: &[u8]| {
        let mut record = vec![0; 40];
        record[0] = kind;
        record[1] = 16;
        record[2..4].copy_from_slice(&window.to_le_bytes());
        record[4..6].copy_from_slice(&1024_u16.to_le_bytes());
        record[8..16].copy_from_slice(&0x0012_3456_0065_4321_u64.to_le_bytes());
        record[32..36].copy_from_slice(&message_bytes.to_le_bytes());
        record[36..40].copy_from_slice(&(reason.len() as u32).to_le_bytes());
        record.extend_from_slice(reason);
        record
    };
    let (offer, ready) = (word(1, 64, 16384, b""), word(3, 0, 0, b""));
    vec![[offer.clone(), ready].concat(), word(2, 0, 0, b"no device"), [offer, word(2, 0, 0, b"")].concat()]
}

pub(super) fn message_seeds() -> Vec<Vec<u8>> {
    let part = |kind: u8, how: u8, transfer: u8, body: &[u8]| {
        let header = [kind, how, transfer, 0];
        [&header[..], &(body.len() as u32).to_le_bytes(), body].concat()
    };
    let place = |number: u64, bytes: u64| {
        [number, bytes, 0x7f00_dead_0000, 0xbeef].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()
    };
    let message = |parts: &[Vec<u8>]| [&[3, 0, 0, 0][..], &parts.concat()].concat();
    let ping = [10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    vec![
        message(&[part(1, 0, 0, &ping), part(2, 0, 1, &place(0, 99)), part(5, 0, 1, b"bytes")]),
        message(&[part(2, 1, 2, &place(0, 1 << 20)), part(3, 0, 2, &place(0, 0)), part(4, 0, 2, b"")]),
        message(&[part(2, 2, 3, &place(0, 8)), part(3, 1, 3, &place(0, 0)), part(3, 2, 4, &place(0, 0))]),
        message(&[part(6, 0, 0, &place(7, 100)), part(7, 1, 0, &place(7, 0)), part(8, 0, 0, &place(7, 0))]),
        message(&[]),
    ]
}
