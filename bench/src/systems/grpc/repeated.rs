//! One message with many tensors: what Protocol Buffers make of `message Tensors { repeated bytes tensor = 1; }`.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::codec::{BytesCodec, HEADER_BYTES, YIELD_BYTES};

/// Field 1, of a wire type that has a length.
const TAG: u8 = 1 << 3 | 2;

/// Bits of a length in one byte; the eighth says whether another follows.
const LENGTH_BITS: u32 = 7;
const MORE: u8 = 1 << LENGTH_BITS;

/// Bytes of the message.
pub(super) fn message_bytes(tensors: &[Bytes]) -> usize {
    let length_bytes = |bytes: usize| (usize::BITS - (bytes | 1).leading_zeros()).div_ceil(LENGTH_BITS) as usize;
    tensors.iter().map(|tensor| 1 + length_bytes(tensor.len()) + tensor.len()).sum()
}

/// Writes such messages; requests are just bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RepeatedCodec {
    pub(super) message_bytes: usize,
}

impl Codec for RepeatedCodec {
    type Encode = Arc<[Bytes]>;
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

impl Encoder for RepeatedCodec {
    type Item = Arc<[Bytes]>;
    type Error = Status;

    fn encode(&mut self, tensors: Arc<[Bytes]>, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        target.reserve(self.message_bytes);
        for tensor in tensors.iter() {
            put(target, tensor);
        }
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(HEADER_BYTES + self.message_bytes, YIELD_BYTES)
    }
}

impl Decoder for RepeatedCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        BytesCodec { message_bytes: self.message_bytes }.decode(source)
    }
}

fn put(target: &mut impl BufMut, tensor: &[u8]) {
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
        put(&mut message, &[7; 300]);
        assert_eq!(message[..4], [0x0a, 0xac, 0x02, 7]);
    }

    #[test]
    fn every_tensor_comes_back_to_its_place() {
        let tensors: Vec<Bytes> = [0, 1, 127, 128, 16_383, 16_384].map(|bytes| Bytes::from(vec![5; bytes])).to_vec();
        let mut message = Vec::new();
        tensors.iter().for_each(|tensor| put(&mut message, tensor));
        assert_eq!(message.len(), message_bytes(&tensors));
        let mut targets: Vec<_> = tensors.iter().map(|tensor| vec![0; tensor.len()]).collect();
        copy_out(&message, &mut targets).expect("they fit");
        assert_eq!(targets, tensors);
    }

    #[test]
    fn a_message_of_other_tensors_is_refused() {
        let mut message = Vec::new();
        put(&mut message, &[1, 2]);
        for (bytes, lengths) in [(4, &[3][..]), (4, &[2, 0]), (4, &[]), (3, &[2]), (1, &[2]), (0, &[2])] {
            let mut targets: Vec<_> = lengths.iter().map(|length| vec![0; *length]).collect();
            assert_eq!(copy_out(&message[..bytes], &mut targets), None, "{bytes} {lengths:?}");
        }
        assert_eq!(copy_out(&[0x12, 0], &mut [vec![]]), None, "another field");
        assert_eq!(copy_out(&[TAG, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], &mut [vec![]]), None);
    }
}
