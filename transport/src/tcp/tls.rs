//! TLS over a non-blocking socket: sealed records are copies of frames and tensors; received records are opened into their
//! destinations.
//!
//! Buffers at most [`INCOMING_BYTES`] of incoming and [`SEALED_BYTES`] of outgoing data, and one decrypted record. Between
//! two reads it keeps at most one record's length of incoming data, and nothing if the handshake is over and no partial
//! record has come. Data counts as written only once the kernel has its whole record, so an empty outbox was really sent.

mod handshake;
mod records;

use std::collections::VecDeque;
use std::io::Read;

use sealane_runtime::{VolatileSlice, VolatileSliceMut};
use socket2::Socket;

use self::{
    handshake::{Handshake, Step},
    records::{Opened, PLAIN_BYTES, Records},
};
use super::stream::{got, send};
use crate::authentication::{Certificate, Identity};
use crate::error::LinkError;
use crate::spares::{self, Spares};

/// Largest record with its header and tag (RFC 8446, section 5.2).
const RECORD_BYTES: usize = 5 + 16 * 1024 + 256;
/// Largest data that a peer may send before it is authenticated: a chain of several certificates.
const HANDSHAKE_BYTES: usize = 16 * 1024;
/// Bytes read at once: fifteen whole records and a part. With less, a fast link makes more system calls than the copying
/// costs.
const INCOMING_BYTES: usize = 16 * RECORD_BYTES;
/// Bytes sealed at once, for the same reason.
const SEALED_BYTES: usize = 256 * 1024;
/// Successive reads without application data, with only TLS's own records or part of one: so a peer that sends nothing else
/// does not delay the next link. A whole record arrives in no more than this many of the smallest Ethernet segments.
const FRUITLESS_READS: usize = 16;

/// Large buffers of each kind that a thread keeps: each link in turn needs one, and keeps one longer only while its socket
/// is full.
const LARGE_BUFFERS: usize = 4;

thread_local! {
    /// For incoming data: [`INCOMING_BYTES`] long.
    static INCOMING: Spares = const { Spares::new(LARGE_BUFFERS) };
    /// For sealed data: empty, with capacity for [`SEALED_BYTES`].
    static SEALED: Spares = const { Spares::new(LARGE_BUFFERS) };
}

pub(crate) struct TlsStream {
    socket: Socket,
    stage: Stage,
    /// The peer's certificate, once it was presented.
    certificate: Option<Certificate>,
    /// Bytes from the wire: those in `start..end` are still to be opened.
    incoming: Vec<u8>,
    start: usize,
    end: usize,
    /// The length of `incoming` while something is being read.
    incoming_bytes: usize,
    /// Opened bytes for which the targets had no room; from `opened_head` on.
    opened: Vec<u8>,
    opened_head: usize,
    /// Sealed bytes; from `sealed_head` on they are still to be sent.
    sealed: Vec<u8>,
    sealed_head: usize,
    /// `owed`: bytes that were sealed or sent, and not yet reported as written. `left`: those of them that were sent.
    owed: usize,
    left: usize,
    /// Sealed records not yet sent: where each ends in `sealed`, and how many bytes of data it holds.
    leaving: VecDeque<(usize, usize)>,
}

enum Stage {
    Handshake(Box<Handshake>),
    Open(Box<Records>),
    /// It has failed, or the peer has ended it: nothing more is read or sealed.
    Over,
}

impl TlsStream {
    pub(super) fn calling(socket: Socket, identity: &Identity) -> Result<Self, LinkError> {
        Handshake::calling(identity).map(|handshake| Self::new(socket, handshake)).map_err(|error| tls(&error))
    }

    pub(super) fn called(socket: Socket, identity: &Identity) -> Result<Self, LinkError> {
        Handshake::called(identity).map(|handshake| Self::new(socket, handshake)).map_err(|error| tls(&error))
    }

    fn new(socket: Socket, handshake: Handshake) -> Self {
        Self {
            socket,
            stage: Stage::Handshake(Box::new(handshake)),
            certificate: None,
            incoming: Vec::new(),
            start: 0,
            end: 0,
            incoming_bytes: HANDSHAKE_BYTES,
            opened: Vec::new(),
            opened_head: 0,
            sealed: Vec::new(),
            sealed_head: 0,
            owed: 0,
            left: 0,
            leaving: VecDeque::new(),
        }
    }

    /// Sends the caller's first message, and reads nothing.
    pub(super) fn speak_first(&mut self) -> Result<(), LinkError> {
        while self.step(&mut [], &mut 0)? == Step::Again {}
        self.flush(false).map(|_| ())
    }

    /// Continues the handshake; true once both sides are authenticated.
    pub(super) fn handshake(&mut self) -> Result<bool, LinkError> {
        loop {
            let step = self.step(&mut [], &mut 0)?;
            let has_left = self.flush(false)?;
            match step {
                Step::Again => continue,
                Step::Over => return Err(LinkError::Closed),
                Step::Done if has_left => return self.open().map(|()| true),
                Step::Blocked | Step::Done => {}
            }
            if step == Step::Done || !has_left || !self.fill()? {
                return Ok(false);
            }
        }
    }

    /// The handshake is done, and everything was sent.
    fn open(&mut self) -> Result<(), LinkError> {
        let Stage::Handshake(handshake) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return Err(LinkError::Closed);
        };
        if !handshake.names_protocol() {
            return Err(LinkError::Tls("the peer does not name Sealane's protocol (ALPN)".into()));
        }
        let (records, certificate) = handshake.end().map_err(|error| tls(&error))?;
        (self.stage, self.certificate) = (Stage::Open(Box::new(records)), certificate.map(Certificate::new));
        self.incoming_bytes = INCOMING_BYTES;
        self.put_away();
        Ok(())
    }

    /// True while the handshake has something to send.
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
                    Step::Blocked | Step::Done => break,
                    Step::Over if taken == 0 => return Err(LinkError::Closed),
                    Step::Over => return Ok(Some(taken)),
                }
            }
            if taken > 0 {
                return Ok(Some(taken));
            }
            // A key update that the peer has requested; if it cannot be sent now, it is sent before the next record. If the
            // peer is gone, its last messages are read first.
            let flushed = self.flush(false);
            // What was not read stays in the socket, which reports it again.
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
        let is_all = self.flush(more_follows)?;
        while let Some((_, bytes)) = self.leaving.pop_front_if(|(end, _)| *end <= self.sealed_head) {
            self.left += bytes;
        }
        let offered = slices.iter().map(|slice| slice.len()).sum();
        let taken = self.left.min(offered);
        (self.left, self.owed) = (self.left - taken, self.owed - taken);
        Ok((taken > 0 || is_all).then_some(taken))
    }

    /// True if sealed data was not reported as written yet.
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
        self.certificate.clone()
    }

    /// Moves bytes that were opened earlier into the targets.
    fn hand_over(&mut self, targets: &mut [VolatileSliceMut<'_>], taken: &mut usize) {
        self.opened_head += scatter(&self.opened[self.opened_head..], targets, taken);
        if self.opened_head == self.opened.len() {
            spares::give_back(&mut self.opened);
            self.opened_head = 0;
        }
    }

    /// Returns the large buffer for incoming data: what is still to be opened moves to a small one, unless it is too much.
    fn put_away(&mut self) {
        let rest = self.end - self.start;
        let is_large = self.incoming.len() > RECORD_BYTES;
        if rest == 0 || (is_large && rest <= RECORD_BYTES) {
            let small = self.incoming[self.start..self.end].to_vec();
            (self.start, self.end) = (0, rest);
            let mut buffer = std::mem::replace(&mut self.incoming, small);
            if is_large {
                INCOMING.with(|large| large.give_back(&mut buffer));
            }
        }
    }

    /// Handles received data. Opened bytes go into the targets behind the first `taken` bytes; what does not fit is kept.
    fn step(&mut self, targets: &mut [VolatileSliceMut<'_>], taken: &mut usize) -> Result<Step, LinkError> {
        let incoming = &mut self.incoming[self.start..self.end];
        let (record, step) = match &mut self.stage {
            Stage::Over => return Err(LinkError::Closed),
            Stage::Handshake(handshake) => {
                let (discard, step) = handshake.step(incoming, &mut self.opened, &mut self.sealed);
                (discard, step.map_err(|error| (error, None)))
            }
            Stage::Open(records) => match records.open(incoming) {
                Ok((record, Opened::Data(bytes))) => {
                    let count = if self.opened.is_empty() { scatter(bytes, targets, taken) } else { 0 };
                    keep(&mut self.opened, &bytes[count..]);
                    (record, Ok(Step::Again))
                }
                Ok((record, Opened::Own)) => (record, Ok(Step::Again)),
                Ok((record, Opened::Part)) => (record, Ok(Step::Blocked)),
                Ok((record, Opened::Over)) => {
                    // Data after the end is ignored (RFC 8446, section 6.1).
                    self.stage = Stage::Over;
                    (record, Ok(Step::Over))
                }
                Err(fault) => (0, Err((fault.error, fault.alert))),
            },
        };
        self.discard(record);
        step.map_err(|(error, alert)| {
            self.fail(alert);
            tls(&error)
        })
    }

    /// Seals as much of the slices as can be sent at once. It seals a copy, since others may write to a tensor's memory
    /// meanwhile.
    fn seal(&mut self, slices: &[VolatileSlice<'_>]) -> Result<(), LinkError> {
        let Stage::Open(records) = &mut self.stage else { return Err(LinkError::Closed) };
        if self.sealed.capacity() == 0 {
            let is_much = slices.iter().map(|slice| slice.len()).sum::<usize>() > PLAIN_BYTES;
            self.sealed = if is_much { SEALED.with(Spares::take) } else { spares::take() };
            if is_much && self.sealed.capacity() == 0 {
                self.sealed.reserve_exact(INCOMING_BYTES);
            }
        }
        if let Err(error) = records.answer(&mut self.sealed) {
            self.fail(None);
            return Err(tls(&error));
        }
        let (mut slices, mut rest) = (slices.iter(), VolatileSlice::from(&[][..]));
        while self.owed < SEALED_BYTES {
            let (before, room) = (self.owed, PLAIN_BYTES.min(SEALED_BYTES - self.owed));
            while rest.is_empty() {
                let Some(next) = slices.next() else { return Ok(()) };
                rest = *next;
            }
            // Short slices share a record.
            let fill = |sealed: &mut Vec<u8>| {
                while self.owed - before < room {
                    let part = rest.first(room - (self.owed - before));
                    part.append_to(sealed);
                    self.owed += part.len();
                    rest = rest.range(part.len()..rest.len());
                    if rest.is_empty() {
                        match slices.next() {
                            Some(next) => rest = *next,
                            None => break,
                        }
                    }
                }
            };
            if let Err(error) = records.seal(&mut self.sealed, fill) {
                self.fail(None);
                return Err(tls(&error));
            }
            self.leaving.push_back((self.sealed.len(), self.owed - before));
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
        if self.incoming.len() < self.incoming_bytes {
            let is_large = self.incoming_bytes > HANDSHAKE_BYTES;
            let mut longer = if is_large { INCOMING.with(Spares::take) } else { Vec::new() };
            longer.resize(self.incoming_bytes, 0);
            longer[..self.end].copy_from_slice(&self.incoming[..self.end]);
            self.incoming = longer;
        }
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

    /// Sends sealed data; true if all of it was sent, including a key update that the peer requested.
    fn flush(&mut self, more_follows: bool) -> Result<bool, LinkError> {
        loop {
            while self.wants_write() {
                let slice = [self.sealed[self.sealed_head..].into()];
                let Some(count) = send(&self.socket, &slice, more_follows)? else { return Ok(false) };
                self.sealed_head += count;
            }
            self.sealed.clear();
            if self.sealed.capacity() < INCOMING_BYTES {
                spares::give_back(&mut self.sealed);
            } else {
                SEALED.with(|large| large.give_back(&mut self.sealed));
            }
            self.sealed_head = 0;
            self.leaving.clear();
            self.left = self.owed;
            let Stage::Open(records) = &mut self.stage else { return Ok(true) };
            match records.answer(&mut self.sealed) {
                Ok(true) => {}
                Ok(false) => return Ok(true),
                Err(error) => {
                    self.stage = Stage::Over;
                    return Err(tls(&error));
                }
            }
        }
    }

    /// The connection has failed and is not used again, except for a last alert that tells the peer why.
    fn fail(&mut self, alert: Option<rustls::AlertDescription>) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Handshake(mut handshake) => {
                handshake.last_words(&mut self.incoming[self.start..self.end], &mut self.sealed);
            }
            Stage::Open(mut records) => {
                if let Some(alert) = alert {
                    // What cannot be sealed is not sent.
                    let _ = records.seal_alert(alert, &mut self.sealed);
                }
            }
            Stage::Over => {}
        }
        // It is over whether the peer learns of it or not.
        let _ = self.flush(false);
    }
}

/// Appends bytes for which there is no room elsewhere.
fn keep(opened: &mut Vec<u8>, bytes: &[u8]) {
    if opened.capacity() == 0 && !bytes.is_empty() {
        *opened = spares::take();
    }
    opened.extend_from_slice(bytes);
}

/// Copies `bytes` into the targets behind the first `taken` bytes, as far as there is room; returns how many.
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

/// The error with a message that names the side whose certificate is at fault.
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
        // All authorities from `sealane keys tls` have the same name, so another one is recognized only by a wrong signature.
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

/// A number of seconds in a human-readable unit.
fn span(seconds: u64) -> String {
    match seconds / 60 {
        minutes @ ..120 => format!("{minutes} minutes"),
        minutes @ ..2880 => format!("{} hours", minutes / 60),
        minutes => format!("{} days", minutes / 1440),
    }
}

#[cfg(test)]
mod tests;
