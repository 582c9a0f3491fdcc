//! Bytes that were given to a socket, as far as the other host's kernel may not have them: should the connection break, they leave another
//! way. A ring whose memory is taken with the first byte.

/// See the module.
pub(super) struct Kept {
    ring: Vec<u8>,
    most: usize,
    /// Bytes that were put in and that were let go of, since the connection is used.
    kept: u64,
    released: u64,
}

impl Kept {
    /// Room for so many.
    pub(super) fn new(most: usize) -> Kept {
        Kept { ring: Vec::new(), most, kept: 0, released: 0 }
    }

    pub(super) fn room(&self) -> usize {
        self.most - self.len()
    }

    fn len(&self) -> usize {
        (self.kept - self.released) as usize
    }

    /// Keeps bytes, for which there must be room.
    pub(super) fn keep(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= self.room());
        self.ring.resize(self.most, 0);
        let at = (self.kept % self.most as u64) as usize;
        let (now, later) = bytes.split_at(bytes.len().min(self.most - at));
        self.ring[at..at + now.len()].copy_from_slice(now);
        self.ring[..later.len()].copy_from_slice(later);
        self.kept += bytes.len() as u64;
    }

    /// Only the last so many may be wanted again.
    pub(super) fn keep_last(&mut self, count: u64) {
        self.released = self.released.max(self.kept.saturating_sub(count));
    }

    /// The bytes behind the first so many; `None` if not all of them are here.
    pub(super) fn behind(&self, first: u64) -> Option<Vec<u8>> {
        if first < self.released || first > self.kept {
            return None;
        }
        let (at, len) = ((first % self.most as u64) as usize, (self.kept - first) as usize);
        let now = len.min(self.most - at);
        // Without a byte there is no memory.
        Some(if len == 0 { Vec::new() } else { [&self.ring[at..at + now], &self.ring[..len - now]].concat() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_missing_there_is_kept_and_no_more() {
        let mut kept = Kept::new(8);
        assert_eq!((kept.room(), kept.behind(0), kept.behind(1), kept.ring.capacity()), (8, Some(Vec::new()), None, 0));
        kept.keep(b"abcdef");
        assert_eq!((kept.room(), kept.behind(2)), (2, Some(b"cdef".to_vec())));
        kept.keep_last(2);
        assert_eq!((kept.room(), kept.behind(4), kept.behind(3)), (6, Some(b"ef".to_vec()), None));
        kept.keep(b"ghijkl");
        assert_eq!((kept.room(), kept.behind(4), kept.behind(12)), (0, Some(b"efghijkl".to_vec()), Some(Vec::new())));
        kept.keep_last(100);
        assert_eq!(kept.room(), 0, "what was let go of is gone");
        kept.keep_last(0);
        assert_eq!((kept.room(), kept.behind(11), kept.behind(12)), (8, None, Some(Vec::new())));
    }

    #[test]
    fn bytes_come_back_as_they_were_however_they_went() {
        let (mut kept, all): (_, Vec<u8>) = (Kept::new(13), (0..=255).cycle().take(1000).collect());
        let (mut at, mut step) = (0, 1);
        while at < all.len() {
            let count = step.min(kept.room()).min(all.len() - at);
            kept.keep(&all[at..at + count]);
            at += count;
            for first in at - kept.len()..=at {
                assert_eq!(kept.behind(first as u64).as_deref(), Some(&all[first..at]));
            }
            kept.keep_last((at % 7) as u64);
            step = step % 9 + 1;
        }
    }
}
