//! Small pushes made together within credit: written once, as they are sent, and kept so until the peer has taken them.
//! Before something happens to only some of them, they are [unpacked](Batch::unpack).

use sealane_runtime::Buffer;

use super::stream::{Entry, What};
use crate::payload::Meta;
use crate::wire::{PushRecords, PushRecordsBuf};

pub(super) struct Batch {
    records: PushRecordsBuf,
    count: u32,
}

impl Batch {
    pub(super) fn new(records: PushRecordsBuf, count: u32) -> Self {
        Self { records, count }
    }

    pub(super) fn records(&self) -> PushRecords<'_> {
        self.records.records()
    }

    /// The memory, for reuse.
    pub(super) fn into_memory(self) -> Vec<u8> {
        self.records.into_memory()
    }

    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The pushes as entries of their own.
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
