//! Messages that are just bytes: the least that gRPC can do to a tensor.

use bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::limits::REQUEST_BYTES;

/// gRPC's own header before each message: a flag and a length.
pub(super) const HEADER_BYTES: usize = 5;

/// How many buffered bytes a stream hands on at once; a unary message is always handed on whole.
pub(super) const YIELD_BYTES: usize = 32 << 10;

/// The request for the tensor of a number.
pub(super) fn request_for(number: usize) -> Bytes {
    request_of(number, 0)
}

/// The request for a version of a tensor, or a later one.
pub(super) fn request_of(number: usize, version: i64) -> Bytes {
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

/// Passes bytes through as they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct BytesCodec {
    /// Bytes of the message that is sent, so that its buffer is allocated once.
    pub(super) message_bytes: usize,
}

impl Codec for BytesCodec {
    type Encode = Bytes;
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

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        target.put(item);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(HEADER_BYTES + self.message_bytes, YIELD_BYTES)
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}
