//! Messages as gRPC carries them here: a tensor is just bytes, the least that gRPC can do to it; many tensors are what
//! Protocol Buffers make of `message Tensors { repeated bytes tensor = 1; }`.

use std::marker::PhantomData;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::limits::REQUEST_BYTES;

/// gRPC's own header before each message: a flag and a length.
const HEADER_BYTES: usize = 5;

/// How many buffered bytes a stream hands on at once; a unary message is always handed on whole.
const YIELD_BYTES: usize = 32 << 10;

/// A stream's buffer: two of those, since what was handed on is in use until it is written.
const STREAM_BYTES: usize = 2 * YIELD_BYTES;

/// Field 1, of a wire type that has a length.
const TAG: u8 = 1 << 3 | 2;

/// Bits of a length in one byte; the eighth says whether another follows.
const LENGTH_BITS: u32 = 7;
const MORE: u8 = 1 << LENGTH_BITS;

/// The request for the tensor of a number, in this version or a later one.
pub(super) fn request_for(number: usize, version: i64) -> Bytes {
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&(number as u32).to_le_bytes());
    request[4..12].copy_from_slice(&version.to_le_bytes());
    Bytes::copy_from_slice(&request)
}

/// The number in a request; `None` if it is none.
pub(super) fn number_in(request: &[u8]) -> Option<usize> {
    request.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize)
}

/// The version in a request; the first, if there is none.
pub(super) fn version_in(request: &[u8]) -> i64 {
    request.get(4..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

/// What a message is made from.
pub(super) trait Message: Send + Sync + 'static {
    /// Bytes of the message.
    fn bytes(&self) -> usize;

    /// Writes the message, which has so many.
    fn put(self, bytes: usize, target: &mut EncodeBuf<'_>);
}

impl Message for Bytes {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn put(self, _bytes: usize, target: &mut EncodeBuf<'_>) {
        BufMut::put(target, self);
    }
}

impl Message for Arc<[Bytes]> {
    fn bytes(&self) -> usize {
        let length_bytes = |bytes: usize| (usize::BITS - (bytes | 1).leading_zeros()).div_ceil(LENGTH_BITS) as usize;
        self.iter().map(|tensor| 1 + length_bytes(tensor.len()) + tensor.len()).sum()
    }

    fn put(self, bytes: usize, target: &mut EncodeBuf<'_>) {
        target.reserve(bytes);
        self.iter().for_each(|tensor| put_tensor(target, tensor));
    }
}

/// Writes such messages; what is read is just bytes.
#[derive(Debug)]
pub(super) struct MessageCodec<M> {
    /// Bytes of the message that is written.
    message_bytes: usize,
    /// Bytes of the buffer that messages are written to: with room for the largest it is allocated once.
    buffer_bytes: usize,
    written: PhantomData<fn(M)>,
}

impl<M> MessageCodec<M> {
    /// For messages of so many bytes.
    pub(super) fn new(message_bytes: usize) -> Self {
        Self { message_bytes, buffer_bytes: HEADER_BYTES + message_bytes, written: PhantomData }
    }

    /// For a stream of messages of so many bytes each.
    pub(super) fn stream(message_bytes: usize) -> Self {
        Self { buffer_bytes: STREAM_BYTES, ..Self::new(message_bytes) }
    }
}

impl<M: Message> Codec for MessageCodec<M> {
    type Encode = M;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self { ..*self }
    }

    fn decoder(&mut self) -> Self {
        Self { ..*self }
    }
}

impl<M: Message> Encoder for MessageCodec<M> {
    type Item = M;
    type Error = Status;

    fn encode(&mut self, message: M, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.put(self.message_bytes, target);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(self.buffer_bytes, YIELD_BYTES)
    }
}

impl<M: Message> Decoder for MessageCodec<M> {
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

/// Copies the tensors of a message to their places; `None` if they are others.
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
