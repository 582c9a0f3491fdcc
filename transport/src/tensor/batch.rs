//! Small tensors that came together, in the memory of their frame: read in place, or taken out one by one.

use sealane_runtime::Buffer;
use smallvec::SmallVec;

use super::{Tensor, TensorMeta};
use crate::wire::{PushRecords, WireError};

/// Small tensors that came together. Tensors taken out are no longer part of it.
#[derive(Debug)]
pub struct TensorBatch {
    bytes: Box<[u8]>,
    /// The distinct metadata of the tensors, in order.
    metas: SmallVec<[TensorMeta; 1]>,
    next: Place,
    payload_bytes: usize,
    /// Bytes of the last tensor.
    last_bytes: usize,
}

/// Position of an iteration over the tensors.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Where the next tensor begins.
    at: usize,
    /// Number of metadata passed.
    metas: usize,
    /// Number of tensors from there on.
    left: usize,
}

/// A tensor of a [`TensorBatch`], in place.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    pub meta: &'a TensorMeta,
    /// The bytes, possibly unaligned.
    pub bytes: &'a [u8],
}

impl TensorView<'_> {
    /// A tensor with a copy of the bytes.
    pub fn to_tensor(&self) -> Tensor {
        Tensor::from_parts(self.meta.clone(), Buffer::copy_of(self.bytes))
    }
}

impl TensorBatch {
    /// A copy of the records, without the first `passed`.
    ///
    /// # Errors
    /// The records are invalid: a wrong length, or metadata that does not match its bytes.
    pub(crate) fn copy_of(records: PushRecords<'_>, passed: u64) -> Result<TensorBatch, WireError> {
        let bad = |bytes: usize| WireError::BadValue { what: "metadata of a push, for a length", found: bytes as u64 };
        let (mut metas, mut checked) = (SmallVec::<[TensorMeta; 1]>::new(), usize::MAX);
        let (mut rest, mut next) = (records, Place { at: 0, metas: 0, left: 0 });
        let (mut count, mut payload_bytes, mut last_bytes) = (0, 0, 0);
        while let Some((meta, payload)) = rest.next(count == 0)? {
            if let Some(meta) = meta {
                metas.push(TensorMeta::from_wire(meta).map_err(|_| bad(meta.len()))?);
                checked = usize::MAX;
            }
            if checked != payload.len() {
                let meta = metas.last().expect("the first has metadata");
                meta.check_bytes(payload.len() as u64).map_err(|_| bad(payload.len()))?;
                checked = payload.len();
            }
            (count, last_bytes) = (count + 1, payload.len());
            if count <= passed {
                next = Place { at: records.as_bytes().len() - rest.as_bytes().len(), metas: metas.len(), left: 0 };
            } else {
                payload_bytes += payload.len();
            }
        }
        next.left = count.saturating_sub(passed) as usize;
        Ok(TensorBatch { bytes: records.as_bytes().into(), metas, next, payload_bytes, last_bytes })
    }

    pub fn len(&self) -> usize {
        self.next.left
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Total bytes of their payloads.
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// Total bytes of all but the last.
    pub(crate) fn bytes_before_last(&self) -> usize {
        self.payload_bytes.saturating_sub(self.last_bytes)
    }

    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = TensorView<'_>> {
        let mut place = self.next;
        std::iter::from_fn(move || self.view(&mut place))
    }

    /// Removes and returns the next tensor, with a copy of its bytes.
    pub fn pop(&mut self) -> Option<Tensor> {
        let mut next = self.next;
        let tensor = self.view(&mut next)?.to_tensor();
        self.payload_bytes -= tensor.len();
        self.next = next;
        Some(tensor)
    }

    #[inline]
    fn view(&self, place: &mut Place) -> Option<TensorView<'_>> {
        place.left = place.left.checked_sub(1)?;
        let mut rest = PushRecords::of(&self.bytes[place.at..]);
        let (meta, bytes) = rest.next(false).ok().flatten().expect("read when it came");
        place.metas += usize::from(meta.is_some());
        place.at = self.bytes.len() - rest.as_bytes().len();
        Some(TensorView { meta: &self.metas[place.metas - 1], bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;
    use crate::wire::PushRecordsBuf;

    #[test]
    fn what_came_is_looked_at_and_taken_out_but_for_what_is_passed_over() {
        let metas = [2, 3].map(|elements| TensorMeta::new(DType::U8, &[elements]).unwrap());
        let tensors: [(usize, &[u8]); 4] = [(0, b"aa"), (0, b"bb"), (1, b"ccc"), (0, b"dd")];
        let mut written = PushRecordsBuf::default();
        tensors.iter().for_each(|&(meta, bytes)| written.push(metas[meta].as_wire(), bytes.into()));
        for passed in 0..=5 {
            let mut batch = TensorBatch::copy_of(written.records(), passed as u64).unwrap();
            let expected = &tensors[passed.min(4)..];
            let bytes = expected.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
            assert_eq!((batch.len(), batch.payload_bytes()), (expected.len(), bytes));
            for taken in 0..expected.len() {
                let views: Vec<_> = batch.iter().map(|view| (view.meta.clone(), view.bytes.to_vec())).collect();
                let rest = expected[taken..].iter().map(|&(meta, bytes)| (metas[meta].clone(), bytes.to_vec()));
                assert!(views.into_iter().eq(rest), "{passed} passed over, {taken} taken");
                assert_eq!(batch.pop().unwrap().bytes(), expected[taken].1);
            }
            assert!(batch.is_empty() && batch.pop().is_none() && batch.payload_bytes() == 0);
        }
    }

    #[test]
    fn metadata_that_does_not_match_its_bytes_is_refused() {
        let meta = TensorMeta::new(DType::F32, &[1]).unwrap();
        for bytes in [&b"1234567"[..], b""] {
            let mut written = PushRecordsBuf::default();
            written.push(meta.as_wire(), b"1234".into());
            written.push(meta.as_wire(), bytes.into());
            assert!(TensorBatch::copy_of(written.records(), 0).is_err());
        }
        assert!(TensorBatch::copy_of(PushRecords::of(&[0, 0, 0xff, 0xff]), 0).is_err(), "no metadata to share");
    }
}
