//! Keys of recent calls for many tensors. A step usually asks for the same keys as the step before, so a tensor that comes in their order
//! costs one comparison, and one that comes before its call is recognized as expected.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use sealane_transport::limits::KEY_BYTES_MAX;

use crate::limits::{KEY_LIST_BYTES_MAX, KEY_LISTS_MAX};

/// Of this many calls in a row with other keys, one has its keys remembered.
const UNLISTED_TRIED: u32 = 64;

/// The keys of one call, all different.
pub(super) struct KeyList {
    /// Unique among lists.
    id: u64,
    /// The ids of lists that have no key in common with this one.
    disjoint: Vec<u64>,
    text: String,
    /// Where each key ends in `text`.
    ends: Vec<usize>,
    /// The keys' indices, by key.
    index: HashTable<u32>,
}

impl KeyList {
    /// `None` if a key is repeated or too long, or if the keys are too long together.
    fn new<'k>(hasher: &DefaultHashBuilder, keys: impl Iterator<Item = &'k str>) -> Option<KeyList> {
        let (text, ends, index) = (String::new(), Vec::new(), HashTable::new());
        let mut list = KeyList { id: 0, disjoint: Vec::new(), text, ends, index };
        for (number, key) in keys.enumerate() {
            let is_long = key.len() > KEY_BYTES_MAX || list.text.len() + key.len() > KEY_LIST_BYTES_MAX;
            if is_long || list.find(hasher.hash_one(key.as_bytes()), key.as_bytes()).is_some() {
                return None;
            }
            list.text.push_str(key);
            list.ends.push(list.text.len());
            let KeyList { text, ends, index, .. } = &mut list;
            let rehash = |number: &u32| hasher.hash_one(key_of(text, ends, *number as usize).as_bytes());
            index.insert_unique(hasher.hash_one(key.as_bytes()), number as u32, rehash);
        }
        Some(list)
    }

    /// The key with this index.
    #[inline]
    pub(super) fn key(&self, number: usize) -> &str {
        key_of(&self.text, &self.ends, number)
    }

    #[inline]
    fn find(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let is_it = |number: &u32| self.key(*number as usize).as_bytes() == key;
        self.index.find(hash, is_it).map(|number| *number as usize)
    }

    /// True if the two are known to have no key in common.
    #[inline]
    pub(super) fn is_known_disjoint_from(&self, other: &KeyList) -> bool {
        self.disjoint.contains(&other.id) || other.disjoint.contains(&self.id)
    }

    /// Number of keys.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if it has exactly these `count` keys, in this order.
    fn is<'k>(&self, count: usize, mut keys: impl Iterator<Item = &'k str>) -> bool {
        self.ends.len() == count && (0..count).all(|number| keys.next() == Some(self.key(number)))
    }
}

#[inline]
fn key_of<'a>(text: &'a str, ends: &[usize], number: usize) -> &'a str {
    let start = number.checked_sub(1).map_or(0, |before| ends[before]);
    &text[start..ends[number]]
}

/// The keys of a call, and whether it read its tensors in place.
struct RecentList {
    keys: Arc<KeyList>,
    in_place: bool,
}

/// The lists of recent calls; see the module.
#[derive(Default)]
pub(super) struct KeyLists {
    hasher: DefaultHashBuilder,
    /// The latest first.
    lists: Vec<RecentList>,
    /// Number of lists made so far.
    made: u64,
    /// Calls in a row whose keys were not among the recent lists.
    unlisted: u32,
}

impl KeyLists {
    /// The list of a call's keys, which may have been made before. `in_place` says how the call reads its tensors. `None` if a key is
    /// repeated, the keys are too long, or a list is not worthwhile because each call has other keys.
    pub(super) fn list<'k>(
        &mut self,
        count: usize,
        keys: impl Iterator<Item = &'k str> + Clone,
        in_place: bool,
    ) -> Option<Arc<KeyList>> {
        if let Some(index) = self.lists.iter().position(|recent| recent.keys.is(count, keys.clone())) {
            self.lists[..=index].rotate_right(1);
            self.unlisted = 0;
            let recent = self.lists.first_mut()?;
            recent.in_place = in_place;
            return Some(recent.keys.clone());
        }
        self.unlisted = self.unlisted.wrapping_add(1);
        if self.unlisted as usize > KEY_LISTS_MAX && !self.unlisted.is_multiple_of(UNLISTED_TRIED) {
            return None;
        }
        let mut keys = KeyList::new(&self.hasher, keys)?;
        let each = (0..keys.len()).map(|number| keys.key(number).as_bytes());
        let hashed: Vec<_> = each.map(|key| (self.hasher.hash_one(key), key)).collect();
        let is_disjoint =
            |recent: &&RecentList| hashed.iter().all(|(hash, key)| recent.keys.find(*hash, key).is_none());
        let disjoint = self.lists.iter().filter(is_disjoint).map(|recent| recent.keys.id).collect();
        (keys.id, keys.disjoint, self.made) = (self.made, disjoint, self.made + 1);
        let keys = Arc::new(keys);
        self.lists.truncate(KEY_LISTS_MAX - 1);
        self.lists.insert(0, RecentList { keys: keys.clone(), in_place });
        // Guards against an iterator whose clone differs from it.
        Some(keys).filter(|keys| keys.len() == count)
    }

    /// True if a recent call has read its tensors in place, and may be repeated.
    #[inline]
    pub(super) fn reads_in_place(&self) -> bool {
        self.lists.iter().any(|recent| recent.in_place)
    }

    /// The keys of the last call that began with this key, or else of the last call that had it; `None` if that call did not read its
    /// tensors in place.
    pub(super) fn read_in_place(&self, key: &[u8]) -> Option<&Arc<KeyList>> {
        let is_first = |recent: &&RecentList| recent.keys.len() > 0 && recent.keys.key(0).as_bytes() == key;
        let recent = self.lists.iter().find(is_first).or_else(|| {
            let hash = self.hasher.hash_one(key);
            self.lists.iter().find(|recent| recent.keys.find(hash, key).is_some())
        })?;
        recent.in_place.then_some(&recent.keys)
    }

    /// The index of a key in a list.
    #[inline]
    pub(super) fn number_of(&self, keys: &KeyList, key: &[u8]) -> Option<usize> {
        keys.find(self.hasher.hash_one(key), key)
    }
}
