//! Streams of bytes.

use std::ptr::null_mut;
use std::thread;

use sealane_c::*;

use crate::fixture::*;

/// A stream, closed when dropped.
struct Held(*mut sealane_stream);

// SAFETY: streams are for any thread.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

impl Held {
    fn write(&self, bytes: &[u8]) -> *mut sealane_error {
        // SAFETY: the stream is open, the bytes live.
        unsafe { sealane_stream_write(self.0, bytes.as_ptr().cast(), bytes.len(), 0) }
    }

    /// The bytes of one read.
    fn read(&self, most: usize, timeout_ms: i64) -> Result<Vec<u8>, *mut sealane_error> {
        let (mut into, mut count) = (vec![7; most], usize::MAX);
        // SAFETY: the stream is open, the memory lives.
        let error = unsafe { sealane_stream_read(self.0, into.as_mut_ptr().cast(), most, timeout_ms, &mut count) };
        if !error.is_null() {
            return Err(error);
        }
        into.truncate(count);
        Ok(into)
    }

    fn finish(&self) {
        // SAFETY: the stream is open.
        ok(unsafe { sealane_stream_finish(self.0, 0) });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { sealane_stream_close(self.0) };
    }
}

fn listen(task: &Task) -> *mut sealane_stream_listener {
    let mut listener = null_mut();
    // SAFETY: everything lives until the function returns.
    ok(unsafe { sealane_stream_listen(task.0, text("bytes"), 1000, &mut listener) });
    listener
}

/// The dialer's end and the listener's end of a stream.
fn stream(worker: &Task, listener: *mut sealane_stream_listener) -> [Held; 2] {
    let (mut dialed, mut accepted) = (null_mut(), null_mut());
    // SAFETY: everything lives until the functions return.
    unsafe {
        ok(sealane_stream_dial(worker.0, text(PS), text("bytes"), 0, 0, &mut dialed));
        ok(sealane_stream_accept(listener, 0, &mut accepted));
    }
    [Held(dialed), Held(accepted)]
}

#[test]
fn bytes_pass_both_ways_and_end() {
    let World { ps, worker, .. } = &world();
    let listener = listen(ps);
    let [dialed, accepted] = stream(worker, listener);
    let mut peer = text("");
    // SAFETY: the stream is open.
    ok(unsafe { sealane_stream_peer(accepted.0, &mut peer) });
    // SAFETY: the name lives as long as the stream.
    assert_eq!(unsafe { std::slice::from_raw_parts(peer.start.cast::<u8>(), peer.bytes) }, WORKER.as_bytes());
    let sent: Vec<u8> = (0..100_000_u32).map(|at| (at ^ (at >> 8)) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                match accepted.read(3000, 0).unwrap() {
                    came if came.is_empty() => break,
                    came => ok(accepted.write(&came)),
                }
            }
            accepted.finish();
        });
        scope.spawn(|| {
            ok(dialed.write(&sent));
            dialed.finish();
        });
        let mut came = Vec::new();
        while let Some(some) = Some(dialed.read(70_000, 0).unwrap()).filter(|some| !some.is_empty()) {
            came.extend(some);
        }
        assert!(came == sent);
    });
    refused(dialed.write(b"more"), sealane_code::InvalidArgument);
    // SAFETY: nobody uses it any more.
    unsafe { sealane_stream_listener_close(listener) };
}

#[test]
fn what_blocks_ends_in_time_and_with_the_other_end() {
    let World { ps, worker, .. } = &world();
    let listener = listen(ps);
    let mut nothing = null_mut();
    // SAFETY: everything lives until the functions return.
    unsafe {
        refused(sealane_stream_accept(listener, 1, &mut nothing), sealane_code::DeadlineExceeded);
        let unheard = sealane_stream_dial(worker.0, text(PS), text("nothing"), 0, 0, &mut nothing);
        refused(unheard, sealane_code::NotFound);
    }
    let [dialed, accepted] = stream(worker, listener);
    refused(dialed.read(1, 1).unwrap_err(), sealane_code::DeadlineExceeded);
    assert!(dialed.read(0, 1).unwrap().is_empty());
    // SAFETY: the stream is open.
    ok(unsafe { sealane_stream_reset(accepted.0, text("enough")) });
    assert!(refused(dialed.read(1, 0).unwrap_err(), sealane_code::Unavailable).contains("enough"));
    drop(dialed);
    let [dialed, accepted] = stream(worker, listener);
    drop(accepted);
    refused(dialed.read(1, 0).unwrap_err(), sealane_code::Unavailable);
    // SAFETY: nobody uses it any more; nothing happens with null.
    unsafe {
        sealane_stream_listener_close(listener);
        sealane_stream_listener_close(null_mut());
        sealane_stream_close(null_mut());
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let World { ps, worker, .. } = &world();
    let listener = listen(ps);
    let [dialed, accepted] = stream(worker, listener);
    let (mut none, mut count) = (null_mut(), 0);
    let no_text = sealane_text { start: std::ptr::null(), bytes: 1 };
    let (to, name) = (text(PS), text("bytes"));
    // SAFETY: what is no null lives until each function returns.
    let cases = unsafe {
        [
            ("task", sealane_stream_dial(null_mut(), to, name, 0, 0, &mut none)),
            ("to", sealane_stream_dial(worker.0, no_text, name, 0, 0, &mut none)),
            ("name", sealane_stream_dial(worker.0, to, no_text, 0, 0, &mut none)),
            ("window", sealane_stream_dial(worker.0, to, name, u64::MAX, 0, &mut none)),
            ("timeout", sealane_stream_dial(worker.0, to, name, 0, -2, &mut none)),
            ("stream", sealane_stream_dial(worker.0, to, name, 0, 0, null_mut())),
            ("listener", sealane_stream_listen(ps.0, name, 0, null_mut())),
            ("already", sealane_stream_listen(ps.0, name, 0, &mut null_mut())),
            ("listener", sealane_stream_accept(null_mut(), 0, &mut none)),
            ("stream", sealane_stream_accept(listener, 0, null_mut())),
            ("peer", sealane_stream_peer(dialed.0, null_mut())),
            ("into", sealane_stream_read(dialed.0, null_mut(), 1, 0, &mut count)),
            ("count", sealane_stream_read(dialed.0, null_mut(), 0, 0, null_mut())),
            ("stream", sealane_stream_read(null_mut(), null_mut(), 0, 0, &mut count)),
            ("from", sealane_stream_write(dialed.0, std::ptr::null(), 1, 0)),
            ("stream", sealane_stream_finish(null_mut(), 0)),
            ("reason", sealane_stream_reset(dialed.0, no_text)),
        ]
    };
    for (expected, error) in cases {
        let message = refused(error, sealane_code::InvalidArgument);
        assert!(message.contains(expected), "{message} should speak of {expected}");
    }
    assert!(none.is_null());
    // None of these calls has damaged the stream.
    ok(dialed.write(b"a"));
    assert_eq!(accepted.read(9, 0).unwrap(), b"a");
    // SAFETY: nobody uses it any more.
    unsafe { sealane_stream_listener_close(listener) };
}
