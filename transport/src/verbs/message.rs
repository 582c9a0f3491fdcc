//! The format of messages of the verbs link. No I/O; every length is checked before use.
//!
//! A message begins with 4 bytes: the receive buffers that its sender returns to the peer (2), and zeros (2). Parts follow:
//! each a header of 8 bytes and its contents.

use sealane_runtime::{VolatileSlice, VolatileSliceMut};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::device::Remote;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct MessageHeader {
    credits: U16,
    reserved: U16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct PartHeader {
    kind: u8,
    how: u8,
    transfer: U16,
    bytes: U32,
}

/// A place in memory and its key, and a number whose meaning depends on the part.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Default)]
#[repr(C)]
struct Place {
    number: U64,
    bytes: U64,
    address: U64,
    rkey: U32,
    reserved: U32,
}

pub(super) const HEADER_BYTES: usize = size_of::<MessageHeader>();
/// Bytes of a part's header.
pub(super) const PART_BYTES: usize = size_of::<PartHeader>();
/// Bytes of the longest part, apart from frames and streamed bytes.
pub(super) const PLACE_PART_BYTES: usize = PART_BYTES + size_of::<Place>();

const _: () = {
    assert!(HEADER_BYTES == 4 && PART_BYTES == 8 && size_of::<Place>() == 32);
};

/// How a payload is transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Written to the place that was announced with its request.
    Announced,
    /// Written once the consumer has said where.
    Asked,
    /// Read by the consumer.
    Offered(Remote),
    /// In messages, by copy.
    Streamed,
}

/// The consumer's answer to a payload that asked where to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// Write it to this place.
    Write(Remote),
    /// Send it in messages.
    Stream,
    /// Nobody wants it.
    Drop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// The next bytes of the stream of frames.
    Frames(&'a [u8]),
    /// The payload of the last frame comes outside the stream of frames.
    Payload { transfer: u16, bytes: u64, how: How },
    /// The answer to a payload.
    Clear { transfer: u16, answer: Answer },
    /// A payload was read.
    Done { transfer: u16 },
    /// Bytes of a payload that comes in messages.
    Bytes { transfer: u16, bytes: &'a [u8] },
    /// Where the answer to a request should be written.
    Place { request: u64, bytes: u64, place: Remote },
    /// The place is revoked; `reply`: confirm once nothing is on its way there.
    Revoke { request: u64, reply: bool },
    /// Nothing is on its way to the revoked place.
    Revoked { request: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message's {what} cannot be {found}")]
pub(super) struct BadMessage {
    pub(super) what: &'static str,
    pub(super) found: u64,
}

impl BadMessage {
    pub(super) fn new(what: &'static str, found: u64) -> Self {
        Self { what, found }
    }
}

const FRAMES: u8 = 1;
const PAYLOAD: u8 = 2;
const CLEAR: u8 = 3;
const DONE: u8 = 4;
const BYTES: u8 = 5;
const PLACE: u8 = 6;
const REVOKE: u8 = 7;
const REVOKED: u8 = 8;

/// Writes one message into a buffer.
pub(super) struct Writer<'a> {
    buffer: &'a mut [u8],
    length: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, length: HEADER_BYTES }
    }

    /// Bytes left for parts.
    pub(super) fn room(&self) -> usize {
        self.buffer.len() - self.length
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == HEADER_BYTES
    }

    /// Ends the message; returns its length.
    pub(super) fn finish(self, credits: u16) -> usize {
        let header = MessageHeader { credits: U16::new(credits), reserved: U16::ZERO };
        self.buffer[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        self.length
    }

    fn put(&mut self, bytes: &[u8]) {
        self.buffer[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    fn header(&mut self, kind: u8, how: u8, transfer: u16, bytes: usize) {
        let header = PartHeader { kind, how, transfer: U16::new(transfer), bytes: U32::new(bytes as u32) };
        self.put(header.as_bytes());
    }

    fn place(&mut self, number: u64, bytes: u64, place: Remote) {
        let place = Place {
            number: U64::new(number),
            bytes: U64::new(bytes),
            address: U64::new(place.address),
            rkey: U32::new(place.rkey),
            reserved: U32::ZERO,
        };
        self.put(place.as_bytes());
    }

    /// Appends a part with bytes that others may write to at any time.
    ///
    /// # Panics
    /// If there is no room for it.
    pub(super) fn push_bytes(&mut self, transfer: u16, bytes: VolatileSlice<'_>) {
        self.header(BYTES, 0, transfer, bytes.len());
        VolatileSliceMut::from(&mut self.buffer[self.length..][..bytes.len()]).copy_from(bytes);
        self.length += bytes.len();
    }

    /// Appends a part.
    ///
    /// # Panics
    /// If there is no room for it.
    pub(super) fn push(&mut self, part: Part<'_>) {
        const NOWHERE: Remote = Remote { address: 0, rkey: 0 };
        match part {
            Part::Frames(bytes) => {
                self.header(FRAMES, 0, 0, bytes.len());
                self.put(bytes);
            }
            Part::Bytes { transfer, bytes } => self.push_bytes(transfer, bytes.into()),
            Part::Payload { transfer, bytes, how } => {
                let (code, place) = match how {
                    How::Announced => (0, NOWHERE),
                    How::Asked => (1, NOWHERE),
                    How::Offered(place) => (2, place),
                    How::Streamed => (3, NOWHERE),
                };
                self.header(PAYLOAD, code, transfer, size_of::<Place>());
                self.place(0, bytes, place);
            }
            Part::Clear { transfer, answer } => {
                let (code, place) = match answer {
                    Answer::Write(place) => (0, place),
                    Answer::Stream => (1, NOWHERE),
                    Answer::Drop => (2, NOWHERE),
                };
                self.header(CLEAR, code, transfer, size_of::<Place>());
                self.place(0, 0, place);
            }
            Part::Done { transfer } => self.header(DONE, 0, transfer, 0),
            Part::Place { request, bytes, place } => {
                self.header(PLACE, 0, 0, size_of::<Place>());
                self.place(request, bytes, place);
            }
            Part::Revoke { request, reply } => {
                self.header(REVOKE, u8::from(reply), 0, size_of::<Place>());
                self.place(request, 0, NOWHERE);
            }
            Part::Revoked { request } => {
                self.header(REVOKED, 0, 0, size_of::<Place>());
                self.place(request, 0, NOWHERE);
            }
        }
    }
}

/// The credits of a message; 0 if it is too short to be one.
#[inline]
pub(super) fn credits(message: &[u8]) -> u16 {
    MessageHeader::ref_from_prefix(message).map_or(0, |(header, _)| header.credits.get())
}

/// The credits of a message, and its parts.
///
/// # Errors
/// It is shorter than its header.
pub(super) fn open(message: &[u8]) -> Result<(u16, Parts<'_>), BadMessage> {
    let (header, rest) =
        MessageHeader::ref_from_prefix(message).map_err(|_| BadMessage::new("length", message.len() as u64))?;
    Ok((header.credits.get(), Parts(rest)))
}

/// The parts of a message not read yet.
pub(super) struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    /// The next part.
    ///
    /// # Errors
    /// It reaches past the end, or is of no known kind.
    pub(super) fn next(&mut self) -> Result<Option<Part<'a>>, BadMessage> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (header, rest) =
            PartHeader::ref_from_prefix(self.0).map_err(|_| BadMessage::new("last part", self.0.len() as u64))?;
        let bytes = header.bytes.get() as usize;
        let Some((body, rest)) = rest.split_at_checked(bytes) else {
            return Err(BadMessage::new("part's length", bytes as u64));
        };
        self.0 = rest;
        let transfer = header.transfer.get();
        let place = || Place::read_from_bytes(body).map_err(|_| BadMessage::new("place's length", body.len() as u64));
        let remote = |place: &Place| Remote { address: place.address.get(), rkey: place.rkey.get() };
        Ok(Some(match header.kind {
            FRAMES => Part::Frames(body),
            BYTES => Part::Bytes { transfer, bytes: body },
            DONE => Part::Done { transfer },
            PAYLOAD => {
                let place = place()?;
                let how = match header.how {
                    0 => How::Announced,
                    1 => How::Asked,
                    2 => How::Offered(remote(&place)),
                    3 => How::Streamed,
                    other => return Err(BadMessage::new("way of a payload", u64::from(other))),
                };
                Part::Payload { transfer, bytes: place.bytes.get(), how }
            }
            CLEAR => {
                let place = place()?;
                let answer = match header.how {
                    0 => Answer::Write(remote(&place)),
                    1 => Answer::Stream,
                    2 => Answer::Drop,
                    other => return Err(BadMessage::new("answer to a payload", u64::from(other))),
                };
                Part::Clear { transfer, answer }
            }
            PLACE => {
                let place = place()?;
                Part::Place { request: place.number.get(), bytes: place.bytes.get(), place: remote(&place) }
            }
            REVOKE => Part::Revoke { request: place()?.number.get(), reply: header.how != 0 },
            REVOKED => Part::Revoked { request: place()?.number.get() },
            other => return Err(BadMessage::new("part", u64::from(other))),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: Remote = Remote { address: 0x1234_5678_9abc, rkey: 0xdead_beef };

    fn all() -> Vec<Part<'static>> {
        let payload = |how| Part::Payload { transfer: 3, bytes: 1 << 40, how };
        let clear = |answer| Part::Clear { transfer: 63, answer };
        vec![
            Part::Frames(b"frames"),
            payload(How::Announced),
            payload(How::Asked),
            payload(How::Offered(REMOTE)),
            payload(How::Streamed),
            clear(Answer::Write(REMOTE)),
            clear(Answer::Stream),
            clear(Answer::Drop),
            Part::Done { transfer: 9 },
            Part::Bytes { transfer: 1, bytes: b"" },
            Part::Place { request: 7, bytes: 100, place: REMOTE },
            Part::Revoke { request: 8, reply: true },
            Part::Revoke { request: 9, reply: false },
            Part::Revoked { request: 10 },
        ]
    }

    #[test]
    fn every_part_is_read_as_it_was_written() {
        let mut buffer = [0; 1024];
        let mut writer = Writer::new(&mut buffer);
        assert!(writer.is_empty());
        for part in all() {
            let before = writer.room();
            writer.push(part);
            let most = PLACE_PART_BYTES.max(PART_BYTES + 6);
            assert!(before - writer.room() <= most);
        }
        let length = writer.finish(77);
        let (credits, mut parts) = open(&buffer[..length]).unwrap();
        assert_eq!(credits, 77);
        for part in all() {
            assert_eq!(parts.next(), Ok(Some(part)));
        }
        assert_eq!(parts.next(), Ok(None));
    }

    #[test]
    fn messages_that_end_early_or_make_no_sense_are_refused() {
        for part in all() {
            let mut buffer = [0; 128];
            let mut writer = Writer::new(&mut buffer);
            writer.push(part);
            let length = writer.finish(0);
            for cut in HEADER_BYTES + 1..length {
                let (_, mut parts) = open(&buffer[..cut]).unwrap();
                assert!(parts.next().is_err(), "{part:?} cut at {cut}");
            }
        }
        assert!(open(&[0; HEADER_BYTES - 1]).is_err());
        for (kind, how, bytes) in
            [(0, 0, 0), (9, 0, 0), (PAYLOAD, 4, 32), (CLEAR, 3, 32), (PLACE, 0, 31), (PLACE, 0, 0)]
        {
            let mut message = vec![0; HEADER_BYTES];
            message.extend([kind, how, 0, 0, bytes, 0, 0, 0]);
            message.extend(vec![0; usize::from(bytes)]);
            let (_, mut parts) = open(&message).unwrap();
            assert!(parts.next().is_err(), "kind {kind}, how {how}, {bytes} bytes");
        }
    }
}
