//! Tensors that one call has received, read in place in the frames that brought them: all that came together cost one copy, and none of
//! them has memory or a tensor object of its own.

use sealane_transport::session::ahead_cost;
use sealane_transport::tensor::{TensorMeta, TensorView};
use sealane_transport::wire::AheadRecords;
use sealane_transport::{Error, RecvOutcome};
use smallvec::SmallVec;

#[derive(Debug)]
struct Frame {
    bytes: Box<[u8]>,
    /// Its metadata; each entry differs from the one before.
    metas: SmallVec<[TensorMeta; 1]>,
}

#[derive(Debug)]
enum Place {
    Waits,
    /// In a frame.
    Lies {
        frame: u32,
        start: u32,
        len: u32,
        meta: u32,
    },
    /// On its own: it came out of order, late, or large, or failed.
    Own(Box<RecvOutcome>),
}

/// The first tensors of a frame, as far as they were taken.
pub(in crate::node) struct Brought {
    pub(in crate::node) count: usize,
    /// Bytes of all of them.
    pub(in crate::node) bytes: usize,
    /// What they cost of their session's credit.
    pub(in crate::node) cost: usize,
    /// The frame has no others.
    pub(in crate::node) is_all: bool,
}

/// The outcomes of many recvs, in the order of their keys; see the module.
#[derive(Debug, Default)]
pub struct ReceivedBatch {
    frames: Vec<Frame>,
    places: Vec<Place>,
}

impl ReceivedBatch {
    /// Memory of a frame, besides what its tensors cost.
    pub(super) const FRAME_BYTES: usize = size_of::<Frame>();

    /// A batch of `count` recvs, none of which has ended.
    pub(super) fn waiting(count: usize) -> Self {
        Self { frames: Vec::new(), places: std::iter::repeat_with(|| Place::Waits).take(count).collect() }
    }

    /// Number of recvs.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True if there are no recvs.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The tensor with this index.
    ///
    /// # Errors
    /// The error of this recv, if its tensor did not come.
    ///
    /// # Panics
    /// If the index is out of range.
    #[inline]
    pub fn get(&self, index: usize) -> Result<TensorView<'_>, &Error> {
        match &self.places[index] {
            Place::Lies { frame, start, len, meta } => {
                let Frame { bytes, metas } = &self.frames[*frame as usize];
                let bytes = &bytes[*start as usize..][..*len as usize];
                Ok(TensorView { meta: &metas[*meta as usize], bytes })
            }
            Place::Own(outcome) => match &**outcome {
                Ok(tensor) => Ok(TensorView { meta: tensor.meta(), bytes: tensor.bytes() }),
                Err(unreceived) => Err(&unreceived.error),
            },
            Place::Waits => unreachable!("it is given out when all have ended"),
        }
    }

    /// The outcomes, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Result<TensorView<'_>, &Error>> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// A recv has ended on its own.
    pub(super) fn end(&mut self, index: usize, outcome: RecvOutcome) {
        debug_assert!(self.waits(index), "a recv would end twice, and another never");
        self.places[index] = Place::Own(Box::new(outcome));
    }

    /// True if all recvs have ended.
    pub(super) fn is_complete(&self) -> bool {
        !self.places.iter().any(|place| matches!(place, Place::Waits))
    }

    /// True if this recv has not ended.
    pub(super) fn waits(&self, index: usize) -> bool {
        matches!(self.places[index], Place::Waits)
    }

    /// Takes the first tensors of a frame, as long as `expects` gives the index of a waiting recv for the key; `None` if there is none.
    /// Stops at an invalid tensor, which whoever takes the tensors one by one will report.
    pub(super) fn take(
        &mut self,
        records: AheadRecords<'_>,
        mut expects: impl FnMut(&[u8]) -> Option<usize>,
    ) -> Option<Brought> {
        let (mut metas, mut wire_meta, mut checked): (SmallVec<[TensorMeta; 1]>, &[u8], _) =
            (SmallVec::new(), &[], usize::MAX);
        let (frame, mut end) = (self.frames.len() as u32, 0);
        let mut brought = Brought { count: 0, bytes: 0, cost: 0, is_all: true };
        for record in records.iter() {
            let taken = record.ok().and_then(|record| {
                if let Some(meta) = record.meta {
                    metas.push(TensorMeta::from_wire(meta).ok()?);
                    (wire_meta, checked) = (meta, usize::MAX);
                }
                let len = record.payload.len();
                if checked != len {
                    metas.last()?.check_bytes(len as u64).ok()?;
                    checked = len;
                }
                let number = expects(record.key).filter(|number| self.waits(*number))?;
                brought.cost += ahead_cost(record.key, wire_meta, record.payload);
                Some((number, records.place_of(record.payload), len))
            });
            let Some((number, start, len)) = taken else {
                brought.is_all = false;
                break;
            };
            let meta = metas.len() as u32 - 1;
            self.places[number] = Place::Lies { frame, start: start as u32, len: len as u32, meta };
            (brought.count, brought.bytes, end) = (brought.count + 1, brought.bytes + len, start + len);
        }
        if brought.count == 0 {
            return None;
        }
        self.frames.push(Frame { bytes: records.as_bytes()[..end].into(), metas });
        Some(brought)
    }

    /// The records that lie in each frame.
    pub(super) fn frames(&self) -> impl ExactSizeIterator<Item = AheadRecords<'_>> {
        self.frames.iter().map(|Frame { bytes, metas }| AheadRecords::of(bytes, metas.first().map(TensorMeta::as_wire)))
    }

    /// Memory of the places.
    pub(super) fn memory(&self) -> usize {
        self.places.len() * size_of::<Place>()
    }

    /// The number of frames, and of tensors in them.
    #[cfg(test)]
    pub(in crate::node) fn in_frames(&self) -> (usize, usize) {
        let lie = self.places.iter().filter(|place| matches!(place, Place::Lies { .. })).count();
        (self.frames.len(), lie)
    }
}
