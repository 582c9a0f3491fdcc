//! The device's memory windows, and the queue pair through which each was last bound. A window ends with that queue pair,
//! because a queue pair must not end while a window is bound through it (Soft-RoCE's driver keeps a reference from the
//! window to it, waits for it in vain, and then uses it after it was freed), and because only the device knows whether an
//! invalidation that was posted before the queue pair failed was carried out.

use hashbrown::HashMap;

use super::owned::MemoryWindow;
use super::slots::Slots;
use crate::verbs::device::{Post, VerbsError, Window, Work};

/// The low byte of a window's key changes with each bind; the rest identifies the window.
const KEY_BITS: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Never,
    /// Bound through this queue pair.
    Through(u64),
    /// Bound through this queue pair, and its invalidation is posted.
    Closing(u64),
}

struct Entry {
    /// `None` after the end of the queue pair through which it was bound.
    window: Option<MemoryWindow>,
    key: u32,
    bound: Bound,
}

pub(super) struct Windows {
    entries: Slots<Entry>,
    by_key: HashMap<u32, u32>,
}

impl Windows {
    pub(super) fn new() -> Self {
        Self { entries: Slots::new(), by_key: HashMap::new() }
    }

    pub(super) fn insert(&mut self, window: MemoryWindow) -> Window {
        let rkey = window.key();
        let key = rkey >> KEY_BITS;
        let id = self.entries.insert(Entry { window: Some(window), key, bound: Bound::Never });
        self.by_key.insert(key, id);
        Window { id, rkey }
    }

    pub(super) fn get(&self, id: u32) -> Option<&MemoryWindow> {
        self.entries.get(id)?.window.as_ref()
    }

    pub(super) fn remove(&mut self, id: u32) {
        if let Some(entry) = self.entries.remove(id)
            && self.by_key.get(&entry.key) == Some(&id)
        {
            self.by_key.remove(&entry.key);
        }
    }

    /// Records what a request that is about to be posted does to windows.
    ///
    /// # Errors
    /// It closes what is not open. This check is not left to the device: Soft-RoCE's driver crashes on it, and the kernel with
    /// it.
    pub(super) fn note(&mut self, queue_pair: u64, post: &Post) -> Result<(), VerbsError> {
        match post.work {
            Work::Bind { window, .. } => {
                if let Some(entry) = self.entries.get_mut(window.id) {
                    entry.bound = Bound::Through(queue_pair);
                }
            }
            Work::Invalidate { rkey } => {
                let id = self.by_key.get(&(rkey >> KEY_BITS));
                match id.and_then(|id| self.entries.get_mut(*id)) {
                    Some(entry) if entry.bound == Bound::Through(queue_pair) => {
                        entry.bound = Bound::Closing(queue_pair)
                    }
                    _ => return Err(VerbsError::new("memory window invalidate", "no window is open under this key")),
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends the windows that were last bound through a queue pair that is about to end: what is left of them must only be
    /// freed.
    pub(super) fn end(&mut self, queue_pair: u64) {
        for entry in self.entries.iter_mut() {
            if let Bound::Through(through) | Bound::Closing(through) = entry.bound
                && through == queue_pair
            {
                entry.window = None;
                // From now on the device may give the key to a new window.
                self.by_key.remove(&entry.key);
                entry.bound = Bound::Never;
            }
        }
    }
}
