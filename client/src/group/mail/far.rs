//! Messages between ranks of different hosts: over a connection for each direction, made on first use. A message is a head and its
//! bytes, which are written from and read to their final places. What nobody here wants stays in the connection, so its
//! sender waits, as with a mailbox.

use sealane_transport::{Error, LinkError};

use super::{Arriving, Into, Mail, Sending};
use crate::{
    group::hosts::network::{Connection, Purpose, Shared, lock},
    group::limits::GROUP_FAR_STEP_BYTES,
};

/// Tag and length of a message.
const HEAD: usize = 16;

/// Connections with a rank of another host.
#[derive(Default)]
pub(super) struct Line {
    outgoing: Option<Connection>,
    incoming: Option<Shared>,
    /// The head of the next message, as far as received.
    head: [u8; HEAD],
    heard: usize,
    has_ended: HasEnded,
}

/// Which directions have ended.
#[derive(Clone, Copy, Default)]
struct HasEnded {
    outgoing: bool,
    incoming: bool,
}

impl Line {
    /// True if nothing can arrive any more.
    pub(super) fn is_drained(&self) -> bool {
        self.incoming.is_none() || self.has_ended.incoming
    }

    /// This rank sends nothing more: the other sees the end of the connection.
    pub(super) fn close(&mut self) {
        self.outgoing = None;
        self.has_ended.outgoing = true;
    }
}

impl Mail {
    /// True while messages with ranks of other hosts are in progress.
    pub(in crate::group) fn is_busy_far(&self) -> bool {
        let layout = self.members.layout();
        let is_far = |rank: usize| layout.local(rank).is_none();
        let is_wanted = |from: Option<usize>| from.is_none_or(is_far);
        self.members.network().is_some()
            && (self.wanted.iter().any(|wanted| is_wanted(wanted.from))
                || layout.far().any(|rank| !self.peers[rank].sends.is_empty() || self.peers[rank].arriving.is_some()))
    }

    /// True while messages with ranks of this host are in progress.
    pub(in crate::group) fn is_busy_here(&self) -> bool {
        let layout = self.members.layout();
        let is_wanted = |from: Option<usize>| from.is_none_or(|rank| layout.local(rank).is_some());
        let here = |rank: &&usize| !self.peers[**rank].sends.is_empty() || self.peers[**rank].arriving.is_some();
        self.wanted.iter().any(|wanted| is_wanted(wanted.from)) || layout.neighbours().iter().any(|rank| here(&rank))
    }

    /// Accepts callers, if a rank is awaited that has not called yet.
    pub(super) fn accept_awaited(&self) {
        let Some(network) = self.members.network() else { return };
        let has_not_called = |wanted: &super::Wanted| match wanted.from {
            Some(from) => self.members.layout().local(from).is_none() && self.peers[from].line.incoming.is_none(),
            None => true,
        };
        if self.wanted.iter().any(has_not_called) {
            network.accept();
        }
    }

    /// Moves what can be moved to and from a rank of another host. True if anything moved.
    pub(super) fn advance_far(&mut self, rank: usize) -> bool {
        let HasEnded { outgoing, incoming } = self.peers[rank].line.has_ended;
        let sent = if outgoing { Ok(false) } else { self.send_far(rank) };
        let received = if incoming { Ok(false) } else { self.recv_far(rank) };
        let ended = &mut self.peers[rank].line.has_ended;
        (ended.outgoing, ended.incoming) = (outgoing || sent.is_err(), incoming || received.is_err());
        let mut moved = false;
        for outcome in [sent, received] {
            match (outcome, self.members.network()) {
                (Ok(some), _) => moved |= some,
                (Err(error), Some(network)) => network.has_ended(rank, &error),
                (Err(_), None) => {}
            }
        }
        moved
    }

    fn send_far(&mut self, to: usize) -> Result<bool, LinkError> {
        let Some(network) = self.members.network().cloned() else { return Ok(false) };
        let waits = |wanted: &super::Wanted| wanted.from.is_none_or(|from| from == to);
        let peer = &mut self.peers[to];
        // A rank that waits for another connects to it, too, so that it notices if that goes.
        if peer.line.outgoing.is_none() && peer.sends.is_empty() && !self.wanted.iter().any(waits) {
            return Ok(false);
        }
        let begin = || Connection::begin(&network, to, Purpose::Messages);
        let Some(pipe) = peer.line.outgoing.get_or_insert_with(begin).open(&network)? else { return Ok(false) };
        let (mut sent, mut over) = (0, Vec::new());
        // Bounded, so that the lock is held only for a moment.
        while sent < GROUP_FAR_STEP_BYTES
            && let Some(sending) = peer.sends.front_mut()
        {
            let bytes = (*sending.given).as_ref();
            let mut head = [0; HEAD];
            head[..8].copy_from_slice(&sending.tag.to_le_bytes());
            head[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
            let parts = [&head[sending.at.min(HEAD)..], &bytes[sending.at.saturating_sub(HEAD)..]];
            let mut pipe = lock(&pipe);
            let count = pipe.write(parts)?;
            sending.has_begun = pipe.has_begun();
            drop(pipe);
            if count == 0 {
                break;
            }
            sending.at += count;
            sent += count;
            if sending.at == HEAD + bytes.len() {
                over.extend(peer.sends.pop_front());
            }
        }
        for Sending { id, given, .. } in over {
            self.aftermath.given.push(given);
            self.end(id, Ok(to));
        }
        Ok(sent > 0)
    }

    fn recv_far(&mut self, from: usize) -> Result<bool, LinkError> {
        let Some(network) = self.members.network().cloned() else { return Ok(false) };
        let line = &mut self.peers[from].line;
        if line.incoming.is_none() {
            line.incoming = network.incoming(from, Purpose::Messages);
        }
        let Some(pipe) = line.incoming.clone() else { return Ok(false) };
        let mut read = 0;
        while read < GROUP_FAR_STEP_BYTES {
            if self.peers[from].arriving.is_none() {
                let line = &mut self.peers[from].line;
                while line.heard < HEAD {
                    let count = lock(&pipe).read(&mut line.head[line.heard..])?;
                    if count == 0 {
                        return Ok(read > 0);
                    }
                    line.heard += count;
                    read += count;
                }
                let word = |at: usize| u64::from_le_bytes(line.head[at..at + 8].try_into().expect("eight bytes"));
                let (tag, total) = (word(0) as i64, usize::try_from(word(8)).unwrap_or(usize::MAX));
                if !self.begin_arriving(from, tag, total) {
                    return Ok(read > 0);
                }
                self.peers[from].line.heard = 0;
            }
            let Some(Arriving { total, at, into, .. }) = &mut self.peers[from].arriving else { break };
            let left = *total - *at;
            if left > 0 {
                let count = read_into(&mut lock(&pipe), into, (*at, left))?;
                if count == 0 {
                    return Ok(read > 0);
                }
                *at += count;
                read += count;
            }
            if at == total {
                self.arrived(from);
                read = read.max(1);
            }
        }
        Ok(true)
    }

    /// Ends sends to ranks of other hosts that are gone, whatever may still arrive from them.
    pub(super) fn end_sends_to_gone(&mut self) {
        let Some(network) = self.members.network().cloned() else { return };
        let waits = |rank: &usize| !self.peers[*rank].sends.is_empty();
        let far: Vec<usize> = self.members.layout().far().filter(waits).collect();
        for rank in far {
            let Some(error) = network.has_gone(rank) else { continue };
            for Sending { id, given, .. } in std::mem::take(&mut self.peers[rank].sends) {
                self.aftermath.given.push(given);
                self.end(id, Err(error.clone()));
            }
        }
    }

    /// The error of a call that needs a rank of another host which is gone. What it sent before counts.
    pub(super) fn has_gone_far(&self, rank: usize) -> Option<Error> {
        self.members.network()?.has_gone(rank).filter(|_| self.peers[rank].line.is_drained())
    }
}

/// Reads bytes of a message to their places, from `at` on; `left` are still to come.
fn read_into(
    pipe: &mut sealane_transport::tcp::Pipe,
    into: &mut Into,
    (at, left): (usize, usize),
) -> Result<usize, LinkError> {
    /// Most bytes read at once of a message that has no place yet.
    const STEP: usize = 64 << 10;
    match into {
        Into::Wanted(_, room) => pipe.read(&mut (**room).as_mut()[at..at + left]),
        Into::Unexpected(bytes) => {
            bytes.resize(at + left.min(STEP), 0);
            let count = pipe.read(&mut bytes[at..]);
            bytes.truncate(at + count.as_ref().copied().unwrap_or(0));
            count
        }
        Into::Nothing => pipe.read(&mut vec![0; left.min(STEP)]),
    }
}
