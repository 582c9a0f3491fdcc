//! Tensors that one call has received, read where the frames that brought them lie: as many as came together cost one copy, and each of
//! them neither memory nor a tensor of its own.

use sealane_transport::tensor::{TensorMeta, TensorView};
use sealane_transport::wire::AheadRecords;
use sealane_transport::{Error, RecvOutcome};
use smallvec::SmallVec;

/// What a frame brought.
#[derive(Debug)]
struct Frame {
    bytes: Box<[u8]>,
    /// Each metadata that differs from the one before.
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
    /// By itself: it came in another order, late, or large, or did not come.
    Own(Box<RecvOutcome>),
}

/// The outcomes of many recvs, in the order of their keys; see the module.
#[derive(Debug, Default)]
pub struct ReceivedBatch {
    frames: Vec<Frame>,
    places: Vec<Place>,
}

impl ReceivedBatch {
    /// So many that have not come.
    pub(super) fn waiting(count: usize) -> Self {
        Self { frames: Vec::new(), places: std::iter::repeat_with(|| Place::Waits).take(count).collect() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The tensor of that number.
    ///
    /// # Errors
    /// Why it has not come: as of a recv of its own.
    ///
    /// # Panics
    /// If there are not so many, or it lies in a device's memory, which only a task of this engine can have sent.
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

    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Result<TensorView<'_>, &Error>> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// One has ended by itself.
    pub(super) fn end(&mut self, index: usize, outcome: RecvOutcome) {
        debug_assert!(self.waits(index), "a recv would end twice, and another never");
        self.places[index] = Place::Own(Box::new(outcome));
    }

    /// True if it has not ended.
    pub(super) fn waits(&self, index: usize) -> bool {
        matches!(self.places[index], Place::Waits)
    }

    /// Takes a frame in that has the tensors from `first` on, one after the other, as `is` says of their numbers and keys; how many, and
    /// their bytes. `None` if it has others, or what is no tensor, and nothing was taken.
    pub(super) fn take(
        &mut self,
        first: usize,
        records: AheadRecords<'_>,
        is: impl Fn(usize, &[u8]) -> bool,
    ) -> Option<(usize, usize)> {
        let (mut metas, mut checked, mut bytes) = (SmallVec::<[TensorMeta; 1]>::new(), usize::MAX, 0);
        let (frame, mut count) = (self.frames.len() as u32, 0);
        for record in records.iter() {
            let taken = record.ok().filter(|record| is(first + count, record.key)).and_then(|record| {
                if let Some(meta) = record.meta {
                    metas.push(TensorMeta::from_wire(meta).ok()?);
                    checked = usize::MAX;
                }
                let len = record.payload.len();
                if checked != len {
                    metas.last()?.check_bytes(len as u64).ok()?;
                    checked = len;
                }
                let start = records.place_of(record.payload);
                Some(Place::Lies { frame, start: start as u32, len: len as u32, meta: metas.len() as u32 - 1 })
            });
            let Some(place) = taken else {
                self.places[first..first + count].fill_with(|| Place::Waits);
                return None;
            };
            if let Place::Lies { len, .. } = place {
                bytes += len as usize;
            }
            self.places[first + count] = place;
            count += 1;
        }
        if count == 0 {
            return None;
        }
        self.frames.push(Frame { bytes: records.as_bytes().into(), metas });
        Some((count, bytes))
    }
}
