//! Small pushes that were made together and have credit: written once, as they leave, and kept so until the peer has taken them. What happens
//! to some of them alone has them [unpacked](Batch::unpack) first.

use sealane_runtime::Buffer;

use super::stream::{Entry, What};
use crate::payload::Meta;
use crate::wire::{PushRecords, PushRecordsBuf};

/// See the module.
pub(super) struct Batch {
    records: PushRecordsBuf,
    count: u32,
}

impl Batch {
    /// What was written, and how many there are.
    pub(super) fn new(records: PushRecordsBuf, count: u32) -> Self {
        Self { records, count }
    }

    /// As they leave.
    pub(super) fn records(&self) -> PushRecords<'_> {
        self.records.records()
    }

    /// The memory, to be used again.
    pub(super) fn into_memory(self) -> Vec<u8> {
        self.records.into_memory()
    }

    /// How many there are.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Each by itself.
    pub(super) fn unpack<D: Clone>(&self, of: &Entry<D>) -> impl Iterator<Item = Entry<D>> {
        let mut last: &[u8] = &[];
        self.records().iter().map(move |record| {
            let (meta, payload) = record.expect("written here");
            last = meta.unwrap_or(last);
            Entry {
                number: u64::MAX,
                what: What::One(Meta::from_slice(last), Some(Buffer::copy_of(payload).into())),
                bytes: payload.len() as u64,
                since: of.since,
                deadline: of.deadline,
                pending: of.pending.clone(),
            }
        })
    }
}
