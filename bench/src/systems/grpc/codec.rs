//! Messages as gRPC carries them here: a tensor is plain bytes, the least work for gRPC; many tensors are encoded like `message
//! Tensors { repeated bytes tensor = 1; }` of Protocol Buffers.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::limits::REQUEST_BYTES;

/// gRPC's own header before each message: a flag and a length.
const HEADER_BYTES: usize = 5;

/// How many buffered bytes a stream passes on at once; a unary message is always passed on whole.
const YIELD_BYTES: usize = 32 << 10;

/// A stream's buffer: twice that, since what was passed on is in use until it is written.
const STREAM_BYTES: usize = 2 * YIELD_BYTES;

/// Field 1, with the wire type of values that have a length.
const TAG: u8 = 1 << 3 | 2;

/// Bits of a length in each byte; the eighth says whether another byte follows.
const LENGTH_BITS: u32 = 7;
const MORE: u8 = 1 << LENGTH_BITS;

/// The request for the tensor with a number, in this version or a later one.
pub(super) fn request_for(number: usize, version: i64) -> Message {
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&(number as u32).to_le_bytes());
    request[4..12].copy_from_slice(&version.to_le_bytes());
    Message::Bytes(Bytes::copy_from_slice(&request))
}

/// The number in a request; `None` if it has none.
pub(super) fn number_in(request: &[u8]) -> Option<usize> {
    request.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize)
}

/// The version in a request; the first version if it has none.
pub(super) fn version_in(request: &[u8]) -> i64 {
    request.get(4..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

/// A message to send; received messages are plain bytes.
#[derive(Clone, Debug)]
pub(super) enum Message {
    /// A tensor, or a request.
    Bytes(Bytes),
    Tensors(Arc<[Bytes]>),
}

impl Message {
    pub(super) fn bytes(&self) -> usize {
        let length_bytes = |bytes: usize| (usize::BITS - (bytes | 1).leading_zeros()).div_ceil(LENGTH_BITS) as usize;
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Tensors(all) => all.iter().map(|tensor| 1 + length_bytes(tensor.len()) + tensor.len()).sum(),
        }
    }
}

/// Writes messages through a buffer of that many bytes: if it has room for the largest, it is allocated once.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageCodec(usize);

impl MessageCodec {
    pub(super) const STREAM: Self = Self(STREAM_BYTES);

    pub(super) fn new(message_bytes: usize) -> Self {
        Self(HEADER_BYTES + message_bytes)
    }
}

impl Codec for MessageCodec {
    type Encode = Message;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for MessageCodec {
    type Item = Message;
    type Error = Status;

    fn encode(&mut self, message: Message, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        match message {
            Message::Bytes(bytes) => target.put(bytes),
            Message::Tensors(all) => all.iter().for_each(|tensor| put_tensor(target, tensor)),
        }
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(self.0, YIELD_BYTES)
    }
}

impl Decoder for MessageCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}

fn put_tensor(target: &mut impl BufMut, tensor: &[u8]) {
    target.put_u8(TAG);
    let mut length = tensor.len();
    while length >= usize::from(MORE) {
        target.put_u8(length as u8 | MORE);
        length >>= LENGTH_BITS;
    }
    target.put_u8(length as u8);
    target.put_slice(tensor);
}

/// Copies the tensors of a message to their places; `None` if their number or lengths differ.
pub(super) fn copy_out(mut message: &[u8], targets: &mut [Vec<u8>]) -> Option<()> {
    for target in targets {
        if message.try_get_u8().ok()? != TAG {
            return None;
        }
        let (mut length, mut shift) = (0, 0);
        loop {
            let byte = message.try_get_u8().ok()?;
            length |= usize::from(byte & !MORE).checked_shl(shift)?;
            shift += LENGTH_BITS;
            if byte & MORE == 0 {
                break;
            }
        }
        if length != target.len() {
            return None;
        }
        target.copy_from_slice(message.split_off(..length)?);
    }
    message.is_empty().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_bytes_that_protocol_buffers_give_it() {
        let mut message = Vec::new();
        put_tensor(&mut message, &[7; 300]);
        assert_eq!(message[..4], [0x0a, 0xac, 0x02, 7]);
    }
}
