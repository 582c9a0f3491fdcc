//! TLS over a non-blocking socket: records sealed from a copy of frames and tensors, and opened into where they go.
//!
//! Buffers at most [`INCOMING_BYTES`] of incoming and [`SEALED_BYTES`] of outgoing data, and one decrypted record; nothing once its
//! handshake is over and while it holds no part of a record. Data counts as written only when the kernel has all of its records, so
//! an empty outbox has really been sent.

use std::io::Read;

use rustls::CommonState;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use sealane_runtime::{VolatileSlice, VolatileSliceMut};
use socket2::Socket;

use super::stream::{got, send};
use crate::authentication::{Certificate, Identity, PROTOCOL};
use crate::error::LinkError;
use crate::spares::{self, Spares};

/// Largest record with its header and tag (RFC 8446, section 5.2).
const RECORD_BYTES: usize = 5 + 16 * 1024 + 256;
/// What a peer may send before it has shown who it is: a chain of several certificates.
const HANDSHAKE_BYTES: usize = 16 * 1024;
/// What is read at once: three whole records and a part.
const INCOMING_BYTES: usize = 4 * RECORD_BYTES;
/// What goes into one record.
const PLAIN_BYTES: usize = 16 * 1024;
/// What is sealed at once.
const SEALED_BYTES: usize = 64 * 1024;
/// What a record of 16 KiB takes besides, and more than that.
const RECORD_OVERHEAD: usize = 64;
/// Reads in a row that bring nothing of what a peer says, only records of TLS's own or a part of one: a peer that sends no
/// others keeps nobody from the next link. A whole record comes in no more of the smallest segments of an Ethernet.
const FRUITLESS_READS: usize = 16;
/// Steps that an alert may take to be made.
const LAST_WORDS: usize = 4;

thread_local! {
    /// Buffers for what comes, of [`INCOMING_BYTES`] but for those of handshakes.
    static RECORDS: Spares = const { Spares::new() };
}

/// See the module.
pub(crate) struct TlsStream {
    socket: Socket,
    side: Side,
    /// Bytes of the wire: those of `start..end` are still to be opened.
    incoming: Vec<u8>,
    start: usize,
    end: usize,
    /// How long that buffer is. Once the handshake is over there is none while nothing is to be opened.
    incoming_bytes: usize,
    /// What was opened and had no room: from `opened_head` on.
    opened: Vec<u8>,
    opened_head: usize,
    /// What is sealed: from `sealed_head` on it is still to leave.
    sealed: Vec<u8>,
    sealed_head: usize,
    /// Bytes that are sealed, or have left, and were not yet told as written.
    owed: usize,
    /// It has failed: nothing more is read or written.
    is_over: bool,
}

enum Side {
    Caller(UnbufferedClientConnection),
    Called(UnbufferedServerConnection),
}

/// What came of a look at the incoming bytes.
enum Step {
    /// Something; look again.
    Again,
    /// More bytes are needed.
    Blocked,
    /// The peer has said that nothing follows.
    Over,
}

impl TlsStream {
    pub(super) fn calling(socket: Socket, identity: &Identity) -> Result<Self, LinkError> {
        let connection = identity.calling().map_err(|error| tls(&error))?;
        Ok(Self::new(socket, Side::Caller(connection)))
    }

    pub(super) fn called(socket: Socket, identity: &Identity) -> Result<Self, LinkError> {
        let connection = identity.called().map_err(|error| tls(&error))?;
        Ok(Self::new(socket, Side::Called(connection)))
    }

    fn new(socket: Socket, side: Side) -> Self {
        Self {
            socket,
            side,
            incoming: Vec::new(),
            start: 0,
            end: 0,
            incoming_bytes: HANDSHAKE_BYTES,
            opened: Vec::new(),
            opened_head: 0,
            sealed: Vec::new(),
            sealed_head: 0,
            owed: 0,
            is_over: false,
        }
    }

    /// Says what the caller says first, and reads nothing.
    pub(super) fn speak_first(&mut self) -> Result<(), LinkError> {
        while matches!(self.step(&mut [], &mut 0)?, Step::Again) {}
        self.flush(false).map(|_| ())
    }

    /// Goes on with the handshake; true once both sides have shown who they are.
    pub(super) fn handshake(&mut self) -> Result<bool, LinkError> {
        loop {
            let step = self.step(&mut [], &mut 0)?;
            let has_left = self.flush(false)?;
            match step {
                Step::Again => continue,
                Step::Over => return Err(LinkError::Closed),
                Step::Blocked if !self.common().is_handshaking() => {
                    // A side that names no protocol is one of another.
                    if self.common().alpn_protocol() != Some(PROTOCOL) {
                        return Err(LinkError::Tls("the peer does not name Sealane's protocol (ALPN)".into()));
                    }
                    if has_left {
                        self.incoming_bytes = INCOMING_BYTES;
                        self.put_away();
                    }
                    return Ok(has_left);
                }
                Step::Blocked => {}
            }
            if !has_left || !self.fill()? {
                return Ok(false);
            }
        }
    }

    /// True while the handshake has something to write.
    pub(super) fn wants_write(&self) -> bool {
        self.sealed_head < self.sealed.len()
    }

    pub(super) fn read(&mut self, targets: &mut [VolatileSliceMut<'_>]) -> Result<Option<usize>, LinkError> {
        let result = self.read_records(targets);
        self.put_away();
        result
    }

    fn read_records(&mut self, targets: &mut [VolatileSliceMut<'_>]) -> Result<Option<usize>, LinkError> {
        let mut taken = 0;
        let room: usize = targets.iter().map(|target| target.len()).sum();
        self.hand_over(targets, &mut taken);
        let mut reads = 0;
        loop {
            while taken < room {
                match self.step(targets, &mut taken)? {
                    Step::Again => {}
                    Step::Blocked => break,
                    Step::Over if taken == 0 => return Err(LinkError::Closed),
                    Step::Over => return Ok(Some(taken)),
                }
            }
            if taken > 0 {
                return Ok(Some(taken));
            }
            // What the peer's keys want answered; if it cannot leave now it does so before the next record. That it cannot is told
            // behind the last word of a peer that has gone.
            let flushed = self.flush(false);
            // What is left is in the socket, which says so again.
            if room == 0 || reads == FRUITLESS_READS || !self.fill()? {
                return flushed.map(|_| None);
            }
            reads += 1;
        }
    }

    pub(super) fn write(
        &mut self,
        slices: &[VolatileSlice<'_>],
        more_follows: bool,
    ) -> Result<Option<usize>, LinkError> {
        if self.owed == 0 {
            self.seal(slices)?;
        }
        if !self.flush(more_follows)? {
            return Ok(None);
        }
        let offered = slices.iter().map(|slice| slice.len()).sum();
        let taken = self.owed.min(offered);
        self.owed -= taken;
        Ok(Some(taken))
    }

    /// True if something is under seal that was not told as written.
    pub(super) fn owes(&self) -> bool {
        self.owed > 0
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn into_socket(self) -> Result<Socket, LinkError> {
        if self.start < self.end || self.opened_head < self.opened.len() {
            return Err(LinkError::Tls("data came after the last message on TCP".into()));
        }
        Ok(self.socket)
    }

    pub(super) fn certificate(&self) -> Option<Certificate> {
        let first = self.common().peer_certificates()?.first()?;
        Some(Certificate::new(first.clone().into_owned()))
    }

    fn common(&self) -> &CommonState {
        match &self.side {
            Side::Caller(connection) => connection,
            Side::Called(connection) => connection,
        }
    }

    /// Moves what was opened before into the targets.
    fn hand_over(&mut self, targets: &mut [VolatileSliceMut<'_>], taken: &mut usize) {
        self.opened_head += scatter(&self.opened[self.opened_head..], targets, taken);
        if self.opened_head == self.opened.len() {
            spares::give_back(&mut self.opened);
            self.opened_head = 0;
        }
    }

    /// Gives back the buffer of what comes, unless there is something left to be opened.
    fn put_away(&mut self) {
        if self.start == self.end {
            RECORDS.with(|records| records.give_back(&mut self.incoming));
        }
    }

    /// Looks at what has come. Opened bytes go into the targets behind the `taken` that are there, and what has no room
    /// waits.
    fn step(&mut self, targets: &mut [VolatileSliceMut<'_>], taken: &mut usize) -> Result<Step, LinkError> {
        if self.is_over {
            return Err(LinkError::Closed);
        }
        let (opened, sealed) = (&mut self.opened, &mut self.sealed);
        let mut open = |bytes: &[u8]| {
            let count = if opened.is_empty() { scatter(bytes, targets, taken) } else { 0 };
            keep(opened, &bytes[count..]);
        };
        let incoming = &mut self.incoming[self.start..self.end];
        let (discard, step) = match &mut self.side {
            Side::Caller(connection) => act(connection.process_tls_records(incoming), &mut open, sealed, &[]),
            Side::Called(connection) => act(connection.process_tls_records(incoming), &mut open, sealed, &[]),
        };
        self.discard(discard);
        step.inspect_err(|_| self.fail())
    }

    /// Seals as much of the slices as leaves at once.
    fn seal(&mut self, slices: &[VolatileSlice<'_>]) -> Result<(), LinkError> {
        if self.is_over {
            return Err(LinkError::Closed);
        }
        if self.sealed.capacity() == 0 {
            self.sealed = spares::take();
        }
        let mut plain = spares::take();
        let result = self.seal_through(&mut plain, slices);
        spares::give_back(&mut plain);
        result
    }

    /// Seals by way of `plain`, a copy of what is sealed next: tensors may lie in memory that others write to.
    fn seal_through(&mut self, plain: &mut Vec<u8>, slices: &[VolatileSlice<'_>]) -> Result<(), LinkError> {
        for slice in slices {
            let mut rest = *slice;
            while !rest.is_empty() {
                let room = SEALED_BYTES.saturating_sub(self.owed);
                if room == 0 {
                    return Ok(());
                }
                plain.clear();
                rest.first(room.min(PLAIN_BYTES)).append_to(plain);
                let (opened, sealed, bytes) = (&mut self.opened, &mut self.sealed, &plain[..]);
                let mut open = |bytes: &[u8]| keep(opened, bytes);
                let before = self.start;
                let incoming = &mut self.incoming[before..self.end];
                let (discard, step) = match &mut self.side {
                    Side::Caller(connection) => act(connection.process_tls_records(incoming), &mut open, sealed, bytes),
                    Side::Called(connection) => act(connection.process_tls_records(incoming), &mut open, sealed, bytes),
                };
                self.discard(discard);
                match step.inspect_err(|_| self.fail())? {
                    // Something else came first: a record to open, or an answer to seal.
                    Step::Again => continue,
                    Step::Over => return Err(LinkError::Closed),
                    Step::Blocked => {}
                }
                self.owed += plain.len();
                rest = rest.range(plain.len()..rest.len());
            }
        }
        Ok(())
    }

    fn discard(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads from the socket; false if nothing was there.
    fn fill(&mut self) -> Result<bool, LinkError> {
        if self.incoming.is_empty() {
            self.incoming = RECORDS.with(Spares::take);
        }
        // The handshake's is shorter; one that was given back most often is as long as it is to be.
        self.incoming.resize(self.incoming_bytes, 0);
        if self.incoming.len() - self.end < RECORD_BYTES && self.start > 0 {
            self.incoming.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.incoming.len() {
            return Err(LinkError::Tls(format!("the handshake is longer than {HANDSHAKE_BYTES} bytes")));
        }
        let Some(count) = got((&self.socket).read(&mut self.incoming[self.end..]))? else { return Ok(false) };
        self.end += count;
        Ok(true)
    }

    /// Writes what is sealed; true if all of it has left.
    fn flush(&mut self, more_follows: bool) -> Result<bool, LinkError> {
        while self.wants_write() {
            let slice = [self.sealed[self.sealed_head..].into()];
            let Some(count) = send(&self.socket, &slice, more_follows)? else { return Ok(false) };
            self.sealed_head += count;
        }
        spares::give_back(&mut self.sealed);
        self.sealed_head = 0;
        Ok(true)
    }

    /// The connection has failed, and is not asked again but for its last words: the alert that tells the peer why.
    fn fail(&mut self) {
        self.is_over = true;
        for _ in 0..LAST_WORDS {
            // Parts of a handshake lie where they came: the connection is never shown less than it has seen. The alert comes
            // before another look at them, which would fail again.
            let before = self.sealed.len();
            let (sealed, incoming) = (&mut self.sealed, &mut self.incoming[self.start..self.end]);
            let (discard, step) = match &mut self.side {
                Side::Caller(connection) => act(connection.process_tls_records(incoming), &mut |_| {}, sealed, &[]),
                Side::Called(connection) => act(connection.process_tls_records(incoming), &mut |_| {}, sealed, &[]),
            };
            let has_spoken = self.sealed.len() > before;
            self.discard(discard);
            if has_spoken || !matches!(step, Ok(Step::Again)) {
                break;
            }
        }
        // It is over whether the peer hears of it or not.
        let _ = self.flush(false);
    }
}

/// Carries out one state of the connection: how many incoming bytes it is done with, and what came of it.
/// `Blocked` says that `bytes` were sealed, if there are any.
fn act<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    open: &mut dyn FnMut(&[u8]),
    sealed: &mut Vec<u8>,
    bytes: &[u8],
) -> (usize, Result<Step, LinkError>) {
    let UnbufferedStatus { mut discard, state } = status;
    let step = match state {
        Err(error) => Err(tls(&error)),
        Ok(ConnectionState::ReadTraffic(mut records)) => {
            let mut step = Ok(Step::Again);
            while let Some(record) = records.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        open(record.payload);
                    }
                    Err(error) => {
                        step = Err(tls(&error));
                        break;
                    }
                }
            }
            step
        }
        Ok(ConnectionState::EncodeTlsData(mut words)) => {
            let needed = match words.encode(&mut []) {
                Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => required_size,
                _ => 0,
            };
            let at = sealed.len();
            sealed.resize(at + needed, 0);
            match words.encode(&mut sealed[at..]) {
                Ok(count) => {
                    sealed.truncate(at + count);
                    Ok(Step::Again)
                }
                Err(error) => Err(LinkError::Tls(error.to_string())),
            }
        }
        Ok(ConnectionState::TransmitTlsData(words)) => {
            // They leave with what is sealed, in order.
            words.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::BlockedHandshake) if bytes.is_empty() => Ok(Step::Blocked),
        Ok(ConnectionState::BlockedHandshake) => Err(LinkError::Tls("data cannot be sent before the handshake".into())),
        Ok(ConnectionState::WriteTraffic(_)) if bytes.is_empty() => Ok(Step::Blocked),
        Ok(ConnectionState::WriteTraffic(mut traffic)) => {
            let at = sealed.len();
            let records = bytes.len().div_ceil(16 * 1024);
            sealed.resize(at + bytes.len() + records * RECORD_OVERHEAD, 0);
            match traffic.encrypt(bytes, &mut sealed[at..]) {
                Ok(count) => {
                    sealed.truncate(at + count);
                    Ok(Step::Blocked)
                }
                Err(error) => Err(LinkError::Tls(error.to_string())),
            }
        }
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::Over),
        Ok(other) => Err(LinkError::Tls(format!("unexpected state {other:?}"))),
    };
    (discard, step)
}

/// Appends what has no room elsewhere.
fn keep(opened: &mut Vec<u8>, bytes: &[u8]) {
    if opened.capacity() == 0 && !bytes.is_empty() {
        *opened = spares::take();
    }
    opened.extend_from_slice(bytes);
}

/// Copies `bytes` into the targets behind the first `taken`, as far as they have room; how many.
fn scatter(mut bytes: &[u8], targets: &mut [VolatileSliceMut<'_>], taken: &mut usize) -> usize {
    let (mut skip, before) = (*taken, *taken);
    for target in targets {
        if skip >= target.len() {
            skip -= target.len();
            continue;
        }
        let count = bytes.len().min(target.len() - skip);
        target.reborrow().range(skip..skip + count).copy_from(&bytes[..count]);
        (bytes, skip) = (&bytes[count..], 0);
        *taken += count;
        if bytes.is_empty() {
            break;
        }
    }
    *taken - before
}

/// What went wrong, in words that name the side whose certificate it is.
fn tls(error: &rustls::Error) -> LinkError {
    use rustls::{AlertDescription as Alert, CertificateError as Bad, Error};
    LinkError::Tls(match error {
        Error::InvalidCertificate(Bad::ExpiredContext { time, not_after }) => {
            let since = time.as_secs().saturating_sub(not_after.as_secs());
            format!("the peer's certificate, or its authority's, expired {} ago", span(since))
        }
        Error::InvalidCertificate(Bad::NotValidYetContext { time, not_before }) => {
            let until = not_before.as_secs().saturating_sub(time.as_secs());
            format!("the peer's certificate is valid only in {}: is a clock wrong?", span(until))
        }
        // All authorities of `sealane keys tls` have one name: another one's signature is wrong.
        Error::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            "the peer's certificate is of no authority in security.tls_authorities here".into()
        }
        Error::AlertReceived(Alert::CertificateExpired) => {
            "the peer rejects this side's certificate: it, or its authority's, has expired".into()
        }
        Error::AlertReceived(Alert::UnknownCA | Alert::DecryptError) => {
            "the peer rejects this side's certificate: its authority is not in security.tls_authorities there".into()
        }
        other => other.to_string(),
    })
}

/// A number of seconds in a unit that people count in.
fn span(seconds: u64) -> String {
    match seconds / 60 {
        minutes @ ..120 => format!("{minutes} minutes"),
        minutes @ ..2880 => format!("{} hours", minutes / 60),
        minutes => format!("{} days", minutes / 1440),
    }
}

#[cfg(test)]
mod tests;
