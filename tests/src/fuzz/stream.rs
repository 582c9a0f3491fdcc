//! What peers push into the queue of a task's streams: an input is a window, then frames mixed with reads.

use sealane::far_end::{FarEnd, frame};

/// An empty frame stands for a read of this many bytes times the byte that follows.
const READ_UNIT: usize = 16;

/// Gives the frames to one end of a stream until one ends it. Reads must return what came, in order.
pub(super) fn run(input: &[u8]) {
    let Some((window, mut script)) = input.split_first() else { return };
    let window = u64::from(*window) * 16 + 1;
    let (mut end, mut expected) = (FarEnd::new(window), Vec::new());
    while let Some((length, rest)) = script.split_first() {
        if *length == 0 {
            let Some((units, rest)) = rest.split_first() else { return };
            let mut into = vec![0; usize::from(*units) * READ_UNIT];
            let count = end.read(&mut into);
            assert_eq!(into[..count], expected[..count]);
            assert!(count == into.len() || count == expected.len());
            expected.drain(..count);
            script = rest;
        } else {
            let Some((pushed, rest)) = rest.split_at_checked(usize::from(*length)) else { return };
            match end.take(pushed) {
                None => {}
                Some(Ok(came)) => expected.extend_from_slice(&pushed[pushed.len() - came..]),
                Some(Err(reason)) => return super::assert_says(reason),
            }
            script = rest;
        }
        let (unread, _) = end.counts();
        assert!(unread <= window && unread == expected.len() as u64);
    }
}

/// A script: a window, frames, and a read.
fn script(window: u8, frames: &[Vec<u8>], read: u8) -> Vec<u8> {
    let mut input = vec![window];
    for frame in frames {
        input.push(frame.len() as u8);
        input.extend(frame);
        input.extend([0, read]);
    }
    input
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let (open, accept, data, allow, finish, reset, taken) = (0, 1, 2, 3, 4, 5, 6);
    vec![
        script(4, &[frame(open, true, 7, 64, b"name"), frame(data, true, 7, 0, b"abc")], 1),
        script(4, &[frame(accept, false, 7, 64, b""), frame(data, false, 7, 0, &[1; 40])], 0),
        script(
            9,
            &[frame(data, true, 7, 0, &[1; 40]), frame(data, true, 7, 40, &[2; 40]), frame(finish, true, 7, 80, b"")],
            2,
        ),
        script(1, &[frame(allow, true, 7, u64::MAX, b""), frame(reset, true, 7, 14, b"\x09\0\0\0\0\0\0\0reason")], 1),
        script(1, &[frame(data, true, 7, 0, b"abc"), frame(taken, true, 7, 3, b"")], 1),
        script(1, &[frame(data, true, 7, u64::MAX, &[3; 9]), frame(finish, true, 7, 1, b"")], 1),
    ]
}
