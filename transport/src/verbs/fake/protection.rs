//! One device's regions and windows: what its own requests and those of its peers may access.
//!
//! A region or window has an index that is unique in the fabric; its keys are the index above a byte. So a key of another
//! device, or of another time, is never found.

use std::collections::HashMap;

use super::memory::{Memory, Part};
use crate::verbs::device::{Access, Grant, Piece, Region, Remote, Status, Window};

/// The low byte of local keys and of regions' remote keys: different, so that a mix-up is detected.
const LOCAL: u32 = 0x4c;
const REMOTE: u32 = 0x72;

struct Registered {
    memory: Memory,
    access: Access,
}

enum Binding {
    /// It can be bound.
    Free,
    /// It gives the peer of this queue pair access to these bytes.
    Bound { queue_pair: u32, region: u32, address: u64, bytes: u64, grant: Grant },
    /// Its queue pair or its region is gone: it can only be freed.
    Orphaned,
}

struct Allocated {
    rkey: u32,
    binding: Binding,
}

#[derive(Default)]
pub(super) struct Protection {
    regions: HashMap<u32, Registered>,
    windows: HashMap<u32, Allocated>,
}

impl Protection {
    pub(super) fn register(&mut self, index: u32, memory: Memory, access: Access) -> Region {
        self.regions.insert(index, Registered { memory, access });
        Region { id: index, lkey: lkey(index), rkey: index << 8 | REMOTE }
    }

    /// Removes a region; returns its bytes, or `None` if there is no such region.
    pub(super) fn deregister(&mut self, region: u32) -> Option<u64> {
        self.regions.remove(&region).map(|region| region.memory.bytes())
    }

    pub(super) fn allocate(&mut self, index: u32) -> Window {
        let rkey = index << 8;
        self.windows.insert(index, Allocated { rkey, binding: Binding::Free });
        Window { id: index, rkey }
    }

    /// Removes a window; false if there is no such window.
    pub(super) fn free(&mut self, window: u32) -> bool {
        self.windows.remove(&window).is_some()
    }

    /// Number of regions and windows that exist.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.regions.len() as u64, self.windows.len() as u64)
    }

    /// The bytes that a request of this device names. An empty piece is always allowed.
    pub(super) fn local(&self, piece: Piece) -> Result<Part<'_>, Status> {
        if piece.bytes == 0 {
            return Ok(Part::EMPTY);
        }
        let region = self.regions.get(&(piece.lkey >> 8)).filter(|_| piece.lkey & 0xff == LOCAL);
        let part = region.and_then(|region| region.memory.part(piece.address, u64::from(piece.bytes)));
        part.ok_or(Status::LOCAL_PROTECTION)
    }

    /// The bytes that the peer of `queue_pair` names.
    pub(super) fn remote(&self, queue_pair: u32, at: Remote, bytes: u32, wanted: Grant) -> Result<Part<'_>, Status> {
        if bytes == 0 {
            return Ok(Part::EMPTY);
        }
        let (index, bytes) = (at.rkey >> 8, u64::from(bytes));
        let part = match (self.regions.get(&index), self.windows.get(&index)) {
            (Some(region), _) if at.rkey & 0xff == REMOTE && region.access == Access::Peers => {
                region.memory.part(at.address, bytes)
            }
            (_, Some(window)) if window.rkey == at.rkey => match window.binding {
                Binding::Bound { queue_pair: through, region, address: start, bytes: length, grant }
                    if through == queue_pair && grant == wanted && lies_within(at.address, bytes, start, length) =>
                {
                    self.regions.get(&region).and_then(|region| region.memory.part(at.address, bytes))
                }
                _ => None,
            },
            _ => None,
        };
        part.ok_or(Status::REMOTE_ACCESS)
    }

    /// Opens part of a region to the peer of `queue_pair`.
    pub(super) fn bind(
        &mut self,
        queue_pair: u32,
        window: Window,
        rkey: u32,
        (region, address, bytes): (u32, u64, u64),
        grant: Grant,
    ) -> Result<(), Status> {
        let backing = self.regions.get(&region).filter(|region| region.access == Access::Windows);
        let is_within = bytes > 0 && backing.is_some_and(|region| region.memory.part(address, bytes).is_some());
        match self.windows.get_mut(&window.id) {
            Some(found)
                if is_within
                    && matches!(found.binding, Binding::Free)
                    && found.rkey == window.rkey
                    && rkey == window.next_key() =>
            {
                *found = Allocated { rkey, binding: Binding::Bound { queue_pair, region, address, bytes, grant } };
                Ok(())
            }
            _ => Err(Status::WINDOW_BIND),
        }
    }

    /// Closes what was bound through `queue_pair` under this key.
    pub(super) fn invalidate(&mut self, queue_pair: u32, rkey: u32) -> Result<(), Status> {
        let found = self.windows.get_mut(&(rkey >> 8)).filter(|window| {
            let is_ours = matches!(window.binding, Binding::Bound { queue_pair: through, .. } if through == queue_pair);
            window.rkey == rkey && is_ours
        });
        found.ok_or(Status::LOCAL_OPERATION)?.binding = Binding::Free;
        Ok(())
    }

    /// A queue pair is gone: closes what was bound through it. Returns the number of windows.
    pub(super) fn orphan_of_queue_pair(&mut self, number: u32) -> u64 {
        self.orphan(|through, _| through == number)
    }

    /// A region is gone: closes what was bound to it. Returns the number of windows.
    pub(super) fn orphan_of_region(&mut self, id: u32) -> u64 {
        self.orphan(|_, region| region == id)
    }

    fn orphan(&mut self, is_gone: impl Fn(u32, u32) -> bool) -> u64 {
        let mut orphans = 0;
        for window in self.windows.values_mut() {
            if let Binding::Bound { queue_pair, region, .. } = window.binding
                && is_gone(queue_pair, region)
            {
                window.binding = Binding::Orphaned;
                orphans += 1;
            }
        }
        orphans
    }
}

/// The local key of the region with this index.
pub(super) fn lkey(index: u32) -> u32 {
    index << 8 | LOCAL
}

fn lies_within(address: u64, bytes: u64, start: u64, length: u64) -> bool {
    address >= start && bytes <= length && address - start <= length - bytes
}
