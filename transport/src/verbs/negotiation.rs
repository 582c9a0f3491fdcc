//! A link that still negotiates its kind: verbs if both sides can, else TCP, with the reason.
//!
//! Runs over the TCP connection of the handshake, before any frame, if hello and welcome have the feature bit
//! ([`FEATURE_VERBS`](crate::wire::FEATURE_VERBS)). Each side sends an *offer* with its queue pair, or a *no* with its reason.
//! Two offers are followed by a *ready* from each side that has connected its queue pair, or a no. Frames come next, over the
//! queue pair if both were ready, else over TCP. A peer that stays silent is detected as on any link.

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Instant;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::device::Endpoint;
use super::limits::{MESSAGE_BYTES, WINDOW_MIN};
use super::link::{Connected, VerbsLink};
use super::port::Port;
use crate::arena::Handle;
use crate::error::LinkError;
use crate::limits::REASON_BYTES_MAX;
use crate::link::{Frames, Landing, Link, LinkKind, Receiver, Traits};
use crate::outbox::Outbox;
use crate::tcp::TcpLink;
use crate::wire::WireError;

const OFFER: u8 = 1;
const NO: u8 = 2;
const READY: u8 = 3;
/// The smallest limit that a side may set for messages.
const MESSAGE_BYTES_MIN: u32 = 1024;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Default)]
#[repr(C)]
struct Record {
    kind: u8,
    reads: u8,
    window: U16,
    mtu: U16,
    lid: U16,
    number: U32,
    first_packet: U32,
    gid: [u8; 16],
    message_bytes: U32,
    reason_bytes: U32,
}

const _: () = assert!(size_of::<Record>() == 40);

/// A message from one side.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Offer { endpoint: Endpoint, window: u16, message_bytes: u32 },
    No(String),
    Ready,
}

impl Said {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (record, reason) = match self {
            Said::Offer { endpoint, window, message_bytes } => {
                let record = Record {
                    kind: OFFER,
                    reads: endpoint.reads,
                    window: U16::new(*window),
                    mtu: U16::new(endpoint.mtu),
                    lid: U16::new(endpoint.lid),
                    number: U32::new(endpoint.number),
                    first_packet: U32::new(endpoint.first_packet),
                    gid: endpoint.gid,
                    message_bytes: U32::new(*message_bytes),
                    reason_bytes: U32::ZERO,
                };
                (record, "")
            }
            Said::No(reason) => {
                let cut = reason.floor_char_boundary(REASON_BYTES_MAX);
                let reason_bytes = U32::new(cut as u32);
                (Record { kind: NO, reason_bytes, ..Record::default() }, &reason[..cut])
            }
            Said::Ready => (Record { kind: READY, ..Record::default() }, ""),
        };
        [record.as_bytes(), reason.as_bytes()].concat()
    }

    /// The message at the front of `bytes` and its length; `None` if it is incomplete.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Said, usize)>, WireError> {
        let Ok((record, rest)) = Record::ref_from_prefix(bytes) else { return Ok(None) };
        let reason_bytes = record.reason_bytes.get() as usize;
        if reason_bytes > REASON_BYTES_MAX {
            let limit = REASON_BYTES_MAX as u64;
            return Err(WireError::TooLong { what: "reason for refusing verbs", found: reason_bytes as u64, limit });
        }
        let Some(reason) = rest.get(..reason_bytes) else { return Ok(None) };
        let said = match record.kind {
            OFFER => {
                let (window, message_bytes) = (record.window.get(), record.message_bytes.get());
                if u32::from(window) < WINDOW_MIN {
                    return Err(WireError::BadValue { what: "window of a verbs link", found: window.into() });
                }
                if message_bytes < MESSAGE_BYTES_MIN {
                    return Err(WireError::BadValue { what: "message of a verbs link", found: message_bytes.into() });
                }
                let endpoint = Endpoint {
                    number: record.number.get() & 0xff_ffff,
                    first_packet: record.first_packet.get() & 0xff_ffff,
                    gid: record.gid,
                    lid: record.lid.get(),
                    mtu: record.mtu.get(),
                    reads: record.reads,
                };
                Said::Offer { endpoint, window, message_bytes }
            }
            NO => Said::No(String::from_utf8_lossy(reason).into_owned()),
            READY => Said::Ready,
            other => return Err(WireError::BadValue { what: "verbs negotiation message", found: other.into() }),
        };
        Ok(Some((said, size_of::<Record>() + reason_bytes)))
    }
}

/// State of the negotiation.
enum TalkState {
    /// Neither side has made its offer, or only the peer has not.
    Offers,
    /// Both have offered; the peer has yet to say that it is ready.
    Ready,
    /// Over: TCP, with the reason.
    Tcp(String),
    /// Over: verbs.
    Verbs,
}

/// A queue pair that ends when this is dropped, unless a link takes it.
struct Held {
    port: Rc<Port>,
    connected: Option<Connected>,
}

impl Held {
    fn get(&mut self) -> &mut Connected {
        self.connected.as_mut().expect("taken at the end alone")
    }

    fn take(mut self) -> Connected {
        self.connected.take().expect("taken once")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(Connected { link, queue_pair, credits }) = self.connected.take() {
            self.port.state().end_link(link, &queue_pair, &credits, 0);
        }
    }
}

/// A link whose kind is still negotiated.
struct Negotiating {
    tcp: TcpLink,
    talk: Talk,
}

/// The negotiation, and what this side holds for it.
struct Talk {
    /// `None` on a side that declines.
    port: Option<Rc<Port>>,
    peer: Box<str>,
    /// This side's queue pair, until it is known not to be used.
    mine: Option<Held>,
    /// Why this side cannot use verbs.
    why_not: String,
    first_packet: u32,
    message_bytes: u32,
    state: TalkState,
    /// What this side has yet to send: its offer, and whether it is ready.
    to_say: Vec<Said>,
    /// Everything that this side had to send was sent.
    is_written: bool,
    is_required: bool,
}

impl Talk {
    fn new(port: Rc<Port>, peer: &str, is_required: bool) -> Self {
        let begun = match port.why_not(peer, Instant::now()) {
            Some(reason) => Err(reason),
            None => {
                let state = &mut *port.state();
                state.begin_link().map_err(|error| {
                    // So that it is not tried again and again.
                    state.failures.note(peer, Instant::now(), &error.to_string());
                    error.to_string()
                })
            }
        };
        let mut why_not = String::new();
        let (mine, first_packet, offer) = match begun {
            Ok((link, queue_pair, endpoint, credits)) => {
                let (window, message_bytes) = (credits.window() as u16, MESSAGE_BYTES as u32);
                let first_packet = endpoint.first_packet;
                let offer = Said::Offer { endpoint, window, message_bytes };
                let held = Held { port: port.clone(), connected: Some(Connected { link, queue_pair, credits }) };
                (Some(held), first_packet, offer)
            }
            Err(reason) => {
                why_not.clone_from(&reason);
                (None, 0, Said::No(reason))
            }
        };
        Self {
            port: Some(port),
            peer: peer.into(),
            mine,
            why_not,
            first_packet,
            message_bytes: MESSAGE_BYTES as u32,
            state: TalkState::Offers,
            to_say: vec![offer],
            is_written: false,
            is_required,
        }
    }

    /// For a side that does not want verbs, though the peer may.
    fn declining(reason: &str, peer: &str) -> Self {
        Self {
            port: None,
            peer: peer.into(),
            mine: None,
            why_not: reason.into(),
            first_packet: 0,
            message_bytes: MESSAGE_BYTES as u32,
            state: TalkState::Offers,
            to_say: vec![Said::No(reason.into())],
            is_written: false,
            is_required: false,
        }
    }

    /// True if the negotiation is over on both sides.
    fn is_over(&self) -> bool {
        self.is_written && matches!(self.state, TalkState::Tcp(_) | TalkState::Verbs)
    }

    fn hear(&mut self, said: Said) -> Result<(), WireError> {
        self.state = match (&self.state, said) {
            (TalkState::Offers, Said::Offer { endpoint, window, message_bytes }) => {
                self.message_bytes = message_bytes.min(MESSAGE_BYTES as u32);
                match &mut self.mine {
                    Some(mine) => {
                        let port = mine.port.clone();
                        let mine = mine.get();
                        mine.credits.set_peer_window(window.into());
                        let queue_pair = mine.queue_pair.id;
                        let connected = port.state().device.connect(queue_pair, self.first_packet, &endpoint);
                        self.is_written = false;
                        self.to_say.push(match connected {
                            Ok(()) => Said::Ready,
                            Err(error) => {
                                self.why_not = format!("{}: {error}", port.state().device.attributes().device);
                                port.state().failures.note(&self.peer, Instant::now(), &self.why_not);
                                self.mine = None;
                                Said::No(self.why_not.clone())
                            }
                        });
                        TalkState::Ready
                    }
                    // This side's no is on its way, and is the last message.
                    None => TalkState::Tcp(format!("this side cannot: {}", self.why_not)),
                }
            }
            // Neither side can: each knows its own reason.
            (TalkState::Offers, Said::No(_)) if self.mine.is_none() => {
                TalkState::Tcp(format!("this side cannot: {}", self.why_not))
            }
            (TalkState::Offers, Said::No(reason)) => TalkState::Tcp(format!("the peer cannot: {reason}")),
            (TalkState::Ready, Said::Ready) if self.mine.is_some() => TalkState::Verbs,
            (TalkState::Ready, Said::Ready) => TalkState::Tcp(format!("this side cannot: {}", self.why_not)),
            (TalkState::Ready, Said::No(reason)) => TalkState::Tcp(format!("the peer cannot: {reason}")),
            (_, Said::Offer { .. }) => {
                return Err(WireError::BadValue { what: "verbs negotiation message", found: OFFER.into() });
            }
            (_, Said::No(_)) => {
                return Err(WireError::BadValue { what: "verbs negotiation message", found: NO.into() });
            }
            (_, Said::Ready) => {
                return Err(WireError::BadValue { what: "verbs negotiation message", found: READY.into() });
            }
        };
        Ok(())
    }
}

impl Receiver for Talk {
    /// Takes messages until the negotiation is over; what follows is not part of the negotiation.
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError> {
        let mut consumed = 0;
        while !matches!(self.state, TalkState::Tcp(_) | TalkState::Verbs)
            && let Some((said, length)) = Said::parse(&bytes[consumed..])?
        {
            consumed += length;
            self.hear(said)?;
        }
        Ok(Frames { consumed, landing: None })
    }

    fn landed(&mut self, _landing: Landing) {
        unreachable!("no word has a payload")
    }
}

/// A link over verbs or TCP, whichever both sides agree on.
pub struct NegotiatedLink {
    state: State,
    /// Why it became what it is.
    reason: String,
    /// If it is TCP because of this side: the port, which may do better later, and the peer.
    fallback: Option<(Rc<Port>, Box<str>)>,
}

enum State {
    Negotiating(Box<Negotiating>),
    Verbs(Box<VerbsLink>),
    Tcp(Box<TcpLink>),
    /// It has ended.
    Over,
}

impl NegotiatedLink {
    /// A link to the peer at transport address `peer`, for which to try verbs. `tcp` is the connection on which both greetings
    /// were sent, or the welcome is about to be. With `is_required` it never becomes TCP.
    pub fn new(port: Rc<Port>, peer: &str, tcp: TcpLink, is_required: bool) -> Self {
        let talk = Talk::new(port, peer, is_required);
        Self { state: State::Negotiating(Box::new(Negotiating { tcp, talk })), reason: String::new(), fallback: None }
    }

    /// A link of a side that declines verbs, to a peer that may want them: the peer is told the reason, and the link is TCP.
    pub fn declining(reason: &str, peer: &str, tcp: TcpLink) -> Self {
        let talk = Talk::declining(reason, peer);
        Self { state: State::Negotiating(Box::new(Negotiating { tcp, talk })), reason: String::new(), fallback: None }
    }

    /// Becomes what was negotiated, once that is over.
    fn conclude(&mut self) -> Result<(), LinkError> {
        if !matches!(&self.state, State::Negotiating(negotiating) if negotiating.talk.is_over()) {
            return Ok(());
        }
        let State::Negotiating(negotiating) = std::mem::replace(&mut self.state, State::Over) else { return Ok(()) };
        let Negotiating { tcp, talk: Talk { port, peer, mine, message_bytes, state, is_required, .. } } = *negotiating;
        match (state, mine) {
            (TalkState::Verbs, Some(mine)) => {
                let port = mine.port.clone();
                let attributes = port.attributes();
                tracing::info!(
                    peer = &*peer,
                    link = "verbs",
                    device = attributes.device,
                    port = attributes.port,
                    gid_index = attributes.gid_index,
                    reason = attributes.chosen,
                    "link up"
                );
                let (device, port_number) = (&attributes.device, attributes.port);
                self.reason =
                    format!("{device} port {port_number} GID {}: {}", attributes.gid_index, attributes.chosen);
                if let Err(reason) = &attributes.direct {
                    self.reason += &format!("; devices' memory is copied through the host's: {reason}");
                }
                if tcp.is_encrypted() {
                    self.reason += "; TLS is set, but this travels in plain text (security.plaintext_rdma)";
                }
                let socket = tcp.into_socket()?;
                port.state().counters.links_begun += 1;
                self.state =
                    State::Verbs(Box::new(VerbsLink::new(port, peer, socket, mine.take(), message_bytes as usize)));
            }
            (TalkState::Tcp(reason), mine) => {
                if let Some(port) = &port {
                    port.state().counters.links_refused += 1;
                }
                if is_required {
                    return Err(LinkError::VerbsRequired(reason));
                }
                tracing::warn!(peer = &*peer, link = "tcp", reason, "link up, but not over verbs");
                // The peer knows better when it can use verbs again, and gives the link up then.
                self.fallback = port.filter(|_| mine.is_none()).map(|port| (port, peer));
                (self.state, self.reason) = (State::Tcp(Box::new(tcp)), reason);
            }
            (TalkState::Offers | TalkState::Ready | TalkState::Verbs, _) => unreachable!("it is over"),
        }
        Ok(())
    }

    fn inner(&self) -> Option<&dyn Link> {
        match &self.state {
            State::Negotiating(_) | State::Over => None,
            State::Verbs(link) => Some(&**link),
            State::Tcp(link) => Some(&**link),
        }
    }
}

impl Link for NegotiatedLink {
    fn kind(&self) -> LinkKind {
        self.inner().map_or(LinkKind::TCP, Link::kind)
    }

    fn reason(&self) -> Option<&str> {
        Some(&self.reason)
    }

    fn fell_back(&self) -> bool {
        matches!(self.state, State::Tcp(_))
    }

    fn can_do_better(&self, now: Instant) -> Option<bool> {
        self.fallback.as_ref().map(|(port, peer)| port.why_not_again(peer, now).is_none())
    }

    fn traits(&self) -> Traits {
        self.inner().map_or(Traits { open: false, ..Traits::STREAM }, Link::traits)
    }

    fn adopt(&mut self, name: Handle) {
        match &mut self.state {
            State::Negotiating(negotiating) => {
                if let Some(mine) = &mut negotiating.talk.mine {
                    let link = mine.get().link;
                    mine.port.state().adopt(link, name);
                }
            }
            State::Verbs(link) => link.adopt(name),
            State::Tcp(_) | State::Over => {}
        }
    }

    fn descriptor_ready(&mut self) {
        if let State::Verbs(link) = &mut self.state {
            link.descriptor_ready();
        }
    }

    fn transmit(&mut self, outbox: &mut Outbox, budget: usize, more_follows: bool) -> Result<usize, LinkError> {
        match &mut self.state {
            State::Verbs(link) => link.transmit(outbox, budget, more_follows),
            State::Tcp(link) => link.transmit(outbox, budget, more_follows),
            State::Over => Err(LinkError::Closed),
            State::Negotiating(negotiating) => {
                // Behind the welcome, if this is the called side.
                for said in negotiating.talk.to_say.drain(..) {
                    outbox.stage(|writer| writer.0.extend_from_slice(&said.to_bytes()));
                }
                let written = negotiating.tcp.transmit(outbox, budget, false)?;
                negotiating.talk.is_written = outbox.is_empty();
                self.conclude()?;
                Ok(written)
            }
        }
    }

    fn receive(&mut self, receiver: &mut dyn Receiver, budget: usize) -> Result<usize, LinkError> {
        match &mut self.state {
            State::Verbs(link) => link.receive(receiver, budget),
            State::Tcp(link) => link.receive(receiver, budget),
            State::Over => Err(LinkError::Closed),
            State::Negotiating(negotiating) => {
                let Negotiating { tcp, talk } = &mut **negotiating;
                let read = tcp.receive(talk, budget)?;
                self.conclude()?;
                Ok(read)
            }
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Negotiating(negotiating) => negotiating.tcp.descriptor(),
            State::Verbs(link) => link.descriptor(),
            State::Tcp(link) => link.descriptor(),
            State::Over => None,
        }
    }

    fn abandon(&mut self, outbox: &mut Outbox) -> Vec<Landing> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Negotiating(negotiating) => {
                // A peer with which negotiation never completes is reached over TCP, like one whose links fail.
                let Talk { peer, mine, .. } = &negotiating.talk;
                if let Some(mine) = mine {
                    mine.port.state().failures.note(
                        peer,
                        Instant::now(),
                        "the link ended before both sides had agreed on verbs",
                    );
                }
                Vec::new()
            }
            State::Over => Vec::new(),
            State::Verbs(mut link) => link.abandon(outbox),
            State::Tcp(mut link) => link.abandon(outbox),
        }
    }
}

#[cfg(test)]
mod tests;
