//! The device's memory windows, and through which queue pair each was bound last: a window ends with that, because a queue
//! pair must not end under a window (Soft-RoCE's driver keeps a reference from the one to the other, waits for it in vain,
//! and then uses it after it was freed), and because only the device knows whether an invalidation that was posted before
//! the queue pair failed was carried out.

use hashbrown::HashMap;

use super::owned::MemoryWindow;
use super::slots::Slots;
use crate::verbs::device::{Post, VerbsError, Window, Work};

/// The low byte of a window's key changes with each bind; the rest names the window.
const KEY_BITS: u32 = 8;

/// What is known of a window's binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Never,
    /// Through this queue pair.
    Through(u64),
    /// So it was, and its invalidation is posted.
    Closing(u64),
}

struct Entry {
    /// `None` after the end of the queue pair through which it was bound.
    window: Option<MemoryWindow>,
    key: u32,
    bound: Bound,
}

/// The windows of a device.
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

    /// Notes what a request that is about to be posted does to windows.
    ///
    /// # Errors
    /// It closes what is not open. That is not left to the device: Soft-RoCE's driver fails over it, and the kernel with it.
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

    /// Ends the windows that were bound last through a queue pair which is about to end: what is left of them is to be
    /// freed.
    pub(super) fn end(&mut self, queue_pair: u64) {
        for entry in self.entries.iter_mut() {
            if let Bound::Through(through) | Bound::Closing(through) = entry.bound
                && through == queue_pair
            {
                entry.window = None;
                // The device may give the key to a new window from now on.
                self.by_key.remove(&entry.key);
                entry.bound = Bound::Never;
            }
        }
    }
}
