//! What callers wait for: a stream to accept, a dialed stream, bytes, and room for bytes. Each leaves its waker if it is not ready.

use std::{
    sync::atomic::Ordering,
    task::{Context, Poll},
};

use sealane_transport::Error;

use super::{
    super::{
        direct::{Waits, Written},
        socket::Came,
    },
    Connection, Hub, Key, Kind, connection_of,
};

impl Hub {
    pub(in crate::stream) fn poll_accept(&self, name: &str, context: &Context<'_>) -> Poll<Result<Key, Error>> {
        self.poll_with(|state| {
            // Callers are told only once that a daemon has gone.
            let Some(listener) = state.listeners.get_mut(name) else {
                return Poll::Ready(Err(Error::invalid(format!("the listener of '{name}' was closed"))));
            };
            if let Some(key) = listener.waiting.pop_front() {
                let window = listener.options.window_bytes;
                let connection = connection_of(state, &key);
                if connection.error.is_none()
                    && let Some(allowed) = connection.incoming.widen(window)
                {
                    self.push(state, &key, Kind::Window(allowed), &[]);
                }
                return Poll::Ready(Ok(key));
            }
            if let Some(error) = listener.error.take() {
                // The next daemon may be there.
                self.has_news.store(true, Ordering::SeqCst);
                return Poll::Ready(Err(error));
            }
            if state.is_down {
                // Likewise for a listener that is newer than the loss.
                self.has_news.store(true, Ordering::SeqCst);
            }
            listener.wake_too(context.waker(), &mut state.wakers);
            Poll::Pending
        })
    }

    pub(in crate::stream) fn poll_open(&self, key: &Key, context: &Context<'_>) -> Poll<Result<(), Error>> {
        self.poll(key, |connection| match &connection.error {
            // It may have ended since: what came before can still be read.
            _ if connection.end.is_open() => Poll::Ready(Ok(())),
            Some(error) => Poll::Ready(Err(error.clone())),
            None => {
                connection.writer = Some(context.waker().clone());
                Poll::Pending
            }
        })
    }

    pub(in crate::stream) fn poll_read(
        &self,
        key: &Key,
        into: &mut [u8],
        context: &Context<'_>,
        waits: Waits,
    ) -> Poll<Result<usize, Error>> {
        self.poll_with(|state| {
            loop {
                let connection = connection_of(state, key);
                let count = match connection.incoming.read(into) {
                    Ok(count) => count,
                    Err(reason) => {
                        self.fail(state, key, &Error::unavailable(&key.peer, reason));
                        0
                    }
                };
                let connection = connection_of(state, key);
                if count > 0 || into.is_empty() {
                    if connection.error.is_none()
                        && let Some(allowed) = connection.incoming.news()
                    {
                        self.push(state, key, Kind::Window(allowed), &[]);
                    }
                    return Poll::Ready(Ok(count));
                }
                // Everything that was pushed has been read.
                let has_all = connection.end.has_all();
                match connection.direct.read_or_wait(into, context.waker(), waits) {
                    Ok(Came::Bytes(count)) => return Poll::Ready(Ok(count)),
                    Ok(Came::Broken) if self.lose_socket(state, key) => continue,
                    Ok(Came::Broken | Came::End | Came::Nothing) => self.look_for_finish(state, key),
                    Err(error) if !has_all => self.fail(state, key, &error),
                    Err(_) => {}
                }
                let connection = connection_of(state, key);
                return match &connection.error {
                    _ if connection.end.has_all() => Poll::Ready(Ok(0)),
                    // The frame that says that the other end has closed it may have overtaken its last bytes.
                    Some(error) if !connection.is_arriving() => Poll::Ready(Err(error.clone())),
                    _ => {
                        connection.reader = Some(context.waker().clone());
                        Poll::Pending
                    }
                };
            }
        })
    }

    pub(in crate::stream) fn poll_write(
        &self,
        key: &Key,
        bytes: &[u8],
        context: &Context<'_>,
        waits: Waits,
    ) -> Poll<Result<usize, Error>> {
        self.poll_with(|state| {
            let connection = connection_of(state, key);
            if let Some(error) = &connection.error {
                return Poll::Ready(Err(error.clone()));
            }
            if connection.end.is_finished() {
                return Poll::Ready(Err(Error::invalid("the stream was finished, and is written to")));
            }
            if !bytes.is_empty() {
                self.write_by_ring(state, key, bytes.len());
                self.write_by_socket(state, key);
            }
            let direct = &connection_of(state, key).direct;
            let count = match direct.are_written() {
                true => match direct.write_or_wait(bytes, context.waker(), waits) {
                    Ok(Written::Bytes(count)) => count,
                    Ok(Written::Nothing) => 0,
                    Ok(Written::Broken(number)) => {
                        self.push(state, key, Kind::Broken(number), &[]);
                        0
                    }
                    Err(error) => {
                        self.fail(state, key, &error);
                        return Poll::Ready(Err(error));
                    }
                },
                false => self.write(state, key, bytes),
            };
            if count == 0 && !bytes.is_empty() {
                connection_of(state, key).writer = Some(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(Ok(count))
        })
    }

    pub(in crate::stream) fn poll_flush(&self, key: &Key, context: &Context<'_>) -> Poll<Result<(), Error>> {
        self.poll(key, |connection| match &connection.error {
            Some(error) => Poll::Ready(Err(error.clone())),
            None if connection.outgoing.waiting.is_empty() && !connection.refused.holds() => Poll::Ready(Ok(())),
            None => {
                connection.writer = Some(context.waker().clone());
                Poll::Pending
            }
        })
    }

    pub(in crate::stream) fn poll_finish(&self, key: &Key, context: &Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_with(|state| {
            let connection = connection_of(state, key);
            connection.end.finish();
            connection.direct.stop();
            self.send_waiting(state, key);
            let connection = connection_of(state, key);
            match &connection.error {
                _ if connection.end.is_delivered() => Poll::Ready(Ok(())),
                Some(error) => Poll::Ready(Err(error.clone())),
                None => {
                    connection.writer = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
    }

    fn poll<T>(
        &self,
        key: &Key,
        poll: impl FnOnce(&mut Connection) -> Poll<Result<T, Error>>,
    ) -> Poll<Result<T, Error>> {
        self.poll_with(|state| poll(connection_of(state, key)))
    }
}
