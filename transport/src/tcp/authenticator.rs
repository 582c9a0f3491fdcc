//! Authentication of a new connection, before the hello: none, the shared secret, or TLS. The same for both sides.
//!
//! Bounded: a side that requires a proof reads only challenges, proofs and rejects until it has one.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use nix::sys::socket::{MsgFlags, recv};
use socket2::Socket;

use super::stream::{Stream, got};
use super::tls::TlsStream;
use crate::authentication::{Authentication, Call, Means, Nonce, Secret, Speaker};
use crate::error::LinkError;
use crate::wire::{Greeting, Reject, RejectCode, WireError};

/// Bytes read at once during the handshake; bytes after the welcome are passed to the link.
const READ_BYTES: usize = 16 * 1024;
/// First byte of a TLS connection: a handshake record (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 22;
const TLS_ALERT: u8 = 21;

/// A connection whose handshake is in progress.
pub(super) struct Authenticator {
    pub(super) stream: Stream,
    speaker: Speaker,
    /// The called transport address.
    address: String,
    state: HandshakeState,
    is_authenticated: bool,
    /// Bytes to send; `written` of them were sent.
    words: Vec<u8>,
    written: usize,
    /// Received handshake bytes that were not consumed.
    pub(super) input: Vec<u8>,
}

enum HandshakeState {
    /// The required proof was given, or none is required.
    Open,
    /// TLS is required, and nothing has come yet.
    TlsSilent,
    Tls,
    /// The shared secret is required. This side has sent its challenge.
    Challenged {
        secret: Arc<Secret>,
        mine: Nonce,
    },
    /// Both challenges are known, and the other side's proof is yet to come.
    Unproven {
        secret: Arc<Secret>,
        call: Call,
    },
}

/// Why a connection failed before the handshake.
pub(super) enum Turned {
    /// It ended, or the peer is not Sealane.
    Link(LinkError),
    Rejected(Reject),
    Unauthenticated(String),
}

impl From<LinkError> for Turned {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Tls(reason) => Turned::Unauthenticated(format!("TLS: {reason}")),
            other => Turned::Link(other),
        }
    }
}

impl From<WireError> for Turned {
    fn from(error: WireError) -> Self {
        Turned::Link(error.into())
    }
}

impl Authenticator {
    /// A connection to the transport address `address`, on which this side is `speaker`.
    pub(super) fn new(
        socket: Socket,
        (speaker, address): (Speaker, &str),
        authentication: &Authentication,
    ) -> Result<Self, LinkError> {
        let mut words = Vec::new();
        let (stream, state) = match &authentication.0 {
            Means::Open => (Stream::Plain(socket), HandshakeState::Open),
            Means::Secret(secret) => {
                let mine = secret.nonce().map_err(|error| LinkError::io("getrandom", &error))?;
                if speaker == Speaker::Caller {
                    words = Greeting::Challenge(mine).to_bytes();
                }
                (Stream::Plain(socket), HandshakeState::Challenged { secret: secret.clone(), mine })
            }
            Means::Tls(identity) => {
                let stream = match speaker {
                    Speaker::Caller => TlsStream::calling(socket, identity)?,
                    Speaker::Called => TlsStream::called(socket, identity)?,
                };
                (Stream::Tls(Box::new(stream)), HandshakeState::TlsSilent)
            }
        };
        Ok(Self {
            stream,
            speaker,
            address: address.into(),
            state,
            is_authenticated: false,
            words,
            written: 0,
            input: Vec::new(),
        })
    }

    /// Sends a greeting once authentication has succeeded.
    pub(super) fn say(&mut self, greeting: &[u8]) {
        self.words.extend_from_slice(greeting);
    }

    /// True while the next step needs a writable socket.
    pub(super) fn wants_write(&self) -> bool {
        let tls = match (&self.stream, &self.state) {
            (Stream::Tls(stream), HandshakeState::TlsSilent | HandshakeState::Tls) => stream.wants_write(),
            _ => false,
        };
        tls || self.written < self.words.len()
    }

    /// Continues until everything is sent and nothing more has come; true once the peer is authenticated.
    pub(super) fn authenticate(&mut self) -> Result<bool, Turned> {
        loop {
            match &self.state {
                HandshakeState::Open => {
                    self.is_authenticated = true;
                    return Ok(true);
                }
                HandshakeState::TlsSilent => match self.first_byte()? {
                    Some(TLS_HANDSHAKE | TLS_ALERT) => self.state = HandshakeState::Tls,
                    Some(_) => return Err(self.heard_no_tls()),
                    None => {
                        if let (Speaker::Caller, Stream::Tls(stream)) = (self.speaker, &mut self.stream) {
                            stream.speak_first()?;
                        }
                        return Ok(false);
                    }
                },
                HandshakeState::Tls => {
                    if !self.shake_hands()? {
                        return Ok(false);
                    }
                    self.state = HandshakeState::Open;
                }
                HandshakeState::Challenged { .. } | HandshakeState::Unproven { .. } => {
                    if !self.flush()? {
                        return Ok(false);
                    }
                    match self.hear()? {
                        Some(greeting) => self.take(greeting)?,
                        None => return Ok(false),
                    }
                }
            }
        }
    }

    pub(super) fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Sends what is queued; true if all of it was sent.
    pub(super) fn flush(&mut self) -> Result<bool, Turned> {
        while self.written < self.words.len() {
            let slice = [self.words[self.written..].into()];
            let Some(count) = self.stream.write(&slice, false)? else { return Ok(false) };
            self.written += count;
        }
        self.words.clear();
        self.written = 0;
        Ok(true)
    }

    /// The next handshake message; `None` if it is incomplete.
    pub(super) fn hear(&mut self) -> Result<Option<Greeting>, Turned> {
        let mut bytes = [0; READ_BYTES];
        loop {
            if !matches!(self.state, HandshakeState::Open) && Greeting::is_introduction(&self.input) {
                return Err(self.heard_no_proof());
            }
            match Greeting::parse(&self.input) {
                Ok(None) => {}
                Ok(Some((greeting, length))) => {
                    self.input.drain(..length);
                    return Ok(Some(greeting));
                }
                Err(WireError::NotSealane(_))
                    if self.speaker == Speaker::Called && self.input.first() == Some(&TLS_HANDSHAKE) =>
                {
                    let reason = "the caller wants TLS (security.tls_certificate), and the called side has none";
                    return Err(Turned::Unauthenticated(reason.into()));
                }
                Err(error) => return Err(error.into()),
            }
            let Some(count) = self.stream.read(&mut [(&mut bytes).into()])? else { return Ok(None) };
            self.input.extend_from_slice(&bytes[..count]);
        }
    }

    /// Refuses the peer, as far as the connection accepts the bytes at once: a fresh one accepts all of them. If TLS has
    /// failed, its alert has already said so.
    pub(super) fn reject(&mut self, code: RejectCode, reason: impl Into<String>) {
        let has_failed =
            matches!((&self.stream, &self.state), (Stream::Tls(_), HandshakeState::TlsSilent | HandshakeState::Tls));
        self.say(&Greeting::Reject(Reject { code, reason: reason.into() }).to_bytes());
        if has_failed || self.flush().is_err() {
            tracing::debug!("a caller disconnected before it was rejected");
        }
    }

    fn shake_hands(&mut self) -> Result<bool, LinkError> {
        match &mut self.stream {
            Stream::Tls(stream) => stream.handshake(),
            Stream::Plain(_) => Ok(true),
        }
    }

    /// Handles one message of the exchange about the shared secret.
    fn take(&mut self, greeting: Greeting) -> Result<(), Turned> {
        let state = std::mem::replace(&mut self.state, HandshakeState::Open);
        let address = self.address.clone();
        self.state = match (self.speaker, state, greeting) {
            (_, _, Greeting::Reject(reject)) => return Err(Turned::Rejected(reject)),
            (Speaker::Called, HandshakeState::Challenged { secret, mine }, Greeting::Challenge(caller)) => {
                self.say(&Greeting::Challenge(mine).to_bytes());
                HandshakeState::Unproven { secret, call: Call { caller, called: mine, address } }
            }
            (Speaker::Caller, HandshakeState::Challenged { secret, mine }, Greeting::Challenge(called)) => {
                let call = Call { caller: mine, called, address };
                self.say(&Greeting::Proof(secret.proof(&call)).to_bytes());
                HandshakeState::Unproven { secret, call }
            }
            (speaker, HandshakeState::Unproven { secret, call }, Greeting::Proof(proof)) => {
                let answer = (speaker == Speaker::Called).then(|| secret.answer(&proof, &call));
                let is_right = match &answer {
                    Some(answer) => answer.is_some(),
                    None => secret.is_answer(&proof, &call),
                };
                if !is_right {
                    let reason = "the shared secret (security.secret_file) is not the same on both sides";
                    // Without a map, no name of the called side is known.
                    let or_map = match &address[..] {
                        "" => String::new(),
                        here => format!(", or their endpoint maps name the called side differently (here: {here})"),
                    };
                    return Err(Turned::Unauthenticated(format!("{reason}{or_map}")));
                }
                // The caller proves itself first: a caller that only wants to obtain a proof learns nothing from a called side.
                if let Some(answer) = answer.flatten() {
                    self.say(&Greeting::Proof(answer).to_bytes());
                }
                HandshakeState::Open
            }
            (_, _, other) => {
                let found = other.kind().into();
                return Err(WireError::BadValue { what: "handshake message kind before the proof", found }.into());
            }
        };
        Ok(())
    }

    /// The first byte that has come, without consuming it; `None` if there is none.
    fn first_byte(&self) -> Result<Option<u8>, LinkError> {
        let mut byte = [0];
        let looked = recv(self.stream.socket().as_raw_fd(), &mut byte, MsgFlags::MSG_PEEK);
        let looked = got(looked.map_err(std::io::Error::from))?;
        Ok(looked.map(|_| byte[0]))
    }

    /// How to treat a peer that does not speak TLS although this side does.
    fn heard_no_tls(&mut self) -> Turned {
        match self.stream.socket().try_clone() {
            // It may have said why in plain text, and can be told so in plain text.
            Ok(socket) => self.stream = Stream::Plain(socket),
            Err(error) => return LinkError::io("dup", &error).into(),
        }
        self.state = HandshakeState::Open;
        match self.hear() {
            Ok(Some(Greeting::Reject(reject))) => Turned::Rejected(reject),
            Ok(_) if self.speaker == Speaker::Caller => Turned::Unauthenticated(
                "TLS (security.tls_certificate) is required, and the called side has none".into(),
            ),
            Ok(_) => Turned::Unauthenticated(
                "TLS (security.tls_certificate) is required, and the caller does not speak it".into(),
            ),
            Err(turned) => turned,
        }
    }

    /// How to treat a peer that sends its hello or welcome without having proved anything.
    fn heard_no_proof(&self) -> Turned {
        let who = if self.speaker == Speaker::Caller {
            "called side did not request"
        } else {
            "caller did not \
             present"
        };
        Turned::Unauthenticated(format!("a shared secret (security.secret_file) is required, but the {who} one"))
    }
}
