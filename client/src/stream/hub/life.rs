//! How a hub learns that a peer is gone: a recv that is never answered, and ends when the peer's process does, or when it can
//! no longer be reached. The other end may not notice: it is told.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use sealane_transport::{Code, Error, RecvOptions};

use super::{Hub, NEVER, QUEUE, State};
use crate::{Receiving, limits::STREAM_RETRY_MAX};

/// The recv, while there are streams.
#[derive(Default)]
pub(super) struct Life {
    recv: Option<Receiving>,
    /// When it was begun, and since when each has soon ended for lack of something.
    begun: Option<Instant>,
    starved: Option<Instant>,
}

impl Hub {
    /// From now on, the end of the peer ends its streams.
    pub(super) fn watch(&self, state: &mut State, name: &Arc<str>) {
        let peer = self.meet(state, name);
        if peer.life.recv.is_none() {
            // Also if the peer has left before.
            let options = RecvOptions { fail_if_gone: true, ..RecvOptions::default() };
            peer.life.recv = Some(self.task.recv_with(name, NEVER, QUEUE, options));
            peer.life.begun = Some(Instant::now());
            peer.bell.wake_by_ref();
        }
    }

    /// Ends the streams of a peer that is gone.
    pub(super) fn look_at_life(&self, state: &mut State, name: &Arc<str>, context: &mut Context<'_>) {
        let mut has_waited = false;
        while let Some(peer) = state.peers.get_mut(name)
            && let Some(recv) = &mut peer.life.recv
            && let Poll::Ready(ended) = std::pin::pin!(recv).poll(context)
        {
            let is_brief = peer.life.begun.take().is_some_and(|begun| begun.elapsed() < STREAM_RETRY_MAX);
            peer.life.recv = None;
            let error = match ended {
                Err(unreceived) => unreceived.error,
                // Such a peer does not follow the protocol; it must not keep this thread busy.
                Ok(_) => Error::unavailable(name, "it has answered what is never answered"),
            };
            let since = peer.life.starved.take().filter(|_| is_brief);
            match error.code() {
                Code::DeadlineExceeded => has_waited = true,
                // The peer is there; some limit was reached, here or there.
                Code::ResourceExhausted if since.is_none_or(|since| since.elapsed() < STREAM_RETRY_MAX) => {
                    peer.life.starved = since.or_else(|| Some(Instant::now()));
                    self.pausing(state, name).is_unwatched = true;
                    return;
                }
                _ => return self.lose(state, name, &error),
            }
            self.watch(state, name);
        }
        if has_waited {
            self.give_up_late(state, name);
            let of_peer = state.connections.keys().filter(|key| key.peer == *name).cloned().collect();
            self.meet(state, name).asked = of_peer;
        }
    }
}
