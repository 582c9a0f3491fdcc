//! Streams of bytes. Unlike other calls they block, like those of a socket, and no callback ends them.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use sealane::{Error, Stream, StreamListener, StreamOptions, Waiter};

use crate::{
    error::sealane_error,
    fork::Process,
    guard::{Outcome, check, close, entry, given},
    input::{array, sealane_text, text, timeout},
    task::{place, sealane_task, task},
};

/// Most bytes of one read; they are cleared first, since C code's memory may be uninitialised.
const READ_BYTES_MAX: usize = 64 << 10;

/// A stream of bytes to and from another task: ordered, reliable, flow-controlled. One thread may read while another writes.
/// Its process being lost is SEALANE_CODE_UNAVAILABLE. Close it with sealane_stream_close, even if its task was detached, which stays
/// attached as long as it has streams.
pub struct sealane_stream(End<Stream>);

/// Accepts streams by a name. Usable from any thread. Close it with sealane_stream_listener_close.
pub struct sealane_stream_listener(End<StreamListener>);

struct End<T> {
    inner: T,
    waiter: Waiter,
    process: Process,
}

impl<T> End<T> {
    /// Blocks until `V` is ready.
    ///
    /// # Errors
    /// Those of the call; DeadlineExceeded; InvalidArgument in a forked child.
    fn block<V>(
        &self,
        timeout: Option<Duration>,
        mut poll: impl FnMut(&T, &mut Context<'_>) -> Poll<Result<V, Error>>,
    ) -> Outcome<V> {
        self.process.check()?;
        block(&self.waiter, timeout, |context| poll(&self.inner, context))
    }
}

fn block<V>(
    waiter: &Waiter,
    timeout: Option<Duration>,
    poll: impl FnMut(&mut Context<'_>) -> Poll<Result<V, Error>>,
) -> Outcome<V> {
    let timeout = timeout.unwrap_or(Duration::MAX);
    let late =
        || Err(Error::TimedOut { reason: format!("the other end of the stream did nothing for {timeout:?}").into() });
    Ok(waiter.block_on(poll_fn(poll), timeout).unwrap_or_else(late)?)
}

fn options(window_bytes: u64) -> StreamOptions {
    let default = StreamOptions::default();
    StreamOptions { window_bytes: if window_bytes == 0 { default.window_bytes } else { window_bytes }, ..default }
}

/// Dials the listener of that name at the task `to`, and blocks until that has the stream. Fails with SEALANE_CODE_NOT_FOUND if nobody
/// listens there.
///
/// `window_bytes` may come before they are read: 0 is 1 MiB. `timeout_ms` says how long to wait: 0 and SEALANE_NO_TIMEOUT mean one to
/// two request timeouts of the daemon.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_stream_dial(
    task: *mut sealane_task,
    to: sealane_text,
    name: sealane_text,
    window_bytes: u64,
    timeout_ms: i64,
    stream: *mut *mut sealane_stream,
) -> *mut sealane_error {
    entry(|| {
        let (place, timeout) = (place(stream, "stream")?, timeout(timeout_ms)?);
        // SAFETY: as the header asks of C code.
        unsafe {
            let task = self::task(task)?;
            let mut dialing = task.streams().connect(text(to, "to")?, text(name, "name")?, options(window_bytes));
            let waiter = task.task.waiter();
            let inner = block(&waiter, timeout, |context| Future::poll(std::pin::Pin::new(&mut dialing), context))?;
            let end = End { inner, waiter, process: task.process };
            place.write(Box::into_raw(Box::new(sealane_stream(end))));
        }
        Ok(())
    })
}

/// Listens for streams that peers dial by this name. `window_bytes` is as for sealane_stream_dial.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_stream_listen(
    task: *mut sealane_task,
    name: sealane_text,
    window_bytes: u64,
    listener: *mut *mut sealane_stream_listener,
) -> *mut sealane_error {
    entry(|| {
        let place = place(listener, "listener")?;
        // SAFETY: as the header asks of C code.
        unsafe {
            let task = self::task(task)?;
            let inner = task.streams().listen(text(name, "name")?, options(window_bytes))?;
            let end = End { inner, waiter: task.task.waiter(), process: task.process };
            place.write(Box::into_raw(Box::new(sealane_stream_listener(end))));
        }
        Ok(())
    })
}

/// Blocks until there is a stream to accept. `timeout_ms` says how long: 0 and SEALANE_NO_TIMEOUT mean no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_stream_accept(
    listener: *mut sealane_stream_listener,
    timeout_ms: i64,
    stream: *mut *mut sealane_stream,
) -> *mut sealane_error {
    entry(|| {
        let (place, timeout) = (place(stream, "stream")?, timeout(timeout_ms)?);
        // SAFETY: as the header asks of C code.
        let sealane_stream_listener(end) = unsafe { given(listener, "listener") }?;
        let inner = end.block(timeout, StreamListener::poll_accept)?;
        let end = End { inner, waiter: end.waiter.clone(), process: end.process };
        // SAFETY: the place was checked.
        unsafe { place.write(Box::into_raw(Box::new(sealane_stream(end)))) };
        Ok(())
    })
}

/// Accepts no more; does nothing with NULL. Streams that wait to be accepted are reset. No other function may be using the listener,
/// now or afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_stream_listener_close(listener: *mut sealane_stream_listener) {
    // SAFETY: null, or made by `sealane_stream_listen` and closed once.
    unsafe { close(listener, |listener| listener.0.process, drop) };
}

/// The name of the task at the other end, into `peer`: valid until the stream is closed, and not NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_stream_peer(
    stream: *const sealane_stream,
    peer: *mut sealane_text,
) -> *mut sealane_error {
    entry(|| {
        let place = place(peer, "peer")?;
        // SAFETY: as the header asks of C code.
        let name = unsafe { given(stream, "stream") }?.0.inner.peer();
        // SAFETY: the place was checked.
        unsafe { place.write(sealane_text { start: name.as_ptr().cast(), bytes: name.len() }) };
        Ok(())
    })
}

/// Blocks until bytes have come, at most `bytes` of which go to `into`, and their number to `count`: 0 when the other end has finished.
/// `timeout_ms` says how long: 0 and SEALANE_NO_TIMEOUT mean no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_stream_read(
    stream: *mut sealane_stream,
    into: *mut c_void,
    bytes: usize,
    timeout_ms: i64,
    count: *mut usize,
) -> *mut sealane_error {
    entry(|| {
        let (place, timeout) = (place(count, "count")?, timeout(timeout_ms)?);
        let (into, bytes) = (into.cast::<u8>(), bytes.min(READ_BYTES_MAX));
        if bytes > 0 {
            check(into, "into")?;
        }
        let into = match bytes {
            0 => &mut [][..],
            // SAFETY: as the header asks of C code, that many bytes may be written there, and nobody else uses them until this
            // returns.
            _ => unsafe {
                into.write_bytes(0, bytes);
                std::slice::from_raw_parts_mut(into, bytes)
            },
        };
        // SAFETY: as the header asks of C code.
        let sealane_stream(end) = unsafe { given(stream, "stream") }?;
        let read = end.block(timeout, |stream, context| stream.poll_read(into, context))?;
        // SAFETY: the place was checked.
        unsafe { place.write(read) };
        Ok(())
    })
}

/// Blocks until all of `bytes` bytes have been taken over to be sent. `timeout_ms` says how long: 0 and SEALANE_NO_TIMEOUT mean no limit;
/// after SEALANE_CODE_DEADLINE_EXCEEDED nobody knows how many were.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_stream_write(
    stream: *mut sealane_stream,
    from: *const c_void,
    bytes: usize,
    timeout_ms: i64,
) -> *mut sealane_error {
    entry(|| {
        let timeout = timeout(timeout_ms)?;
        // SAFETY: as the header asks of C code.
        let (end, mut rest) = unsafe { (&given(stream, "stream")?.0, array(from.cast::<u8>(), bytes, "from")?) };
        end.block(timeout, |stream, context| {
            while !rest.is_empty() {
                let written = std::task::ready!(stream.poll_write(rest, context))?;
                rest = &rest[written..];
            }
            Poll::Ready(Ok(()))
        })
    })
}

/// Says that nothing more is written, and blocks until the other process says that it has taken all that was. The other end may still write.
/// `timeout_ms` says how long: 0 and SEALANE_NO_TIMEOUT mean no limit; it may be called again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_stream_finish(stream: *mut sealane_stream, timeout_ms: i64) -> *mut sealane_error {
    entry(|| {
        let timeout = timeout(timeout_ms)?;
        // SAFETY: as the header asks of C code.
        let sealane_stream(end) = unsafe { given(stream, "stream") }?;
        end.block(timeout, Stream::poll_finish)
    })
}

/// Ends the stream at both ends at once, for a reason that the other end is told. It is still to be closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_stream_reset(stream: *mut sealane_stream, reason: sealane_text) -> *mut sealane_error {
    entry(|| {
        // SAFETY: as the header asks of C code.
        let (sealane_stream(end), reason) = unsafe { (given(stream, "stream")?, text(reason, "reason")?) };
        end.process.check()?;
        end.inner.reset(reason);
        Ok(())
    })
}

/// Lets go of a stream; does nothing with NULL. If it was not finished, it is reset: the other end does not take a part for all. No other
/// function may be using it, now or afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_stream_close(stream: *mut sealane_stream) {
    // SAFETY: null, or made by `sealane_stream_dial` or `sealane_stream_accept` and closed once.
    unsafe { close(stream, |stream| stream.0.process, drop) };
}
