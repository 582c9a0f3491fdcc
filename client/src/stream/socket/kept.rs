//! Bytes that were given to a socket and that the other host's kernel may not have: if the connection breaks, they are sent another
//! way. A ring whose memory is taken as it is used.

pub(super) struct Kept {
    ring: Vec<u8>,
    most: usize,
    /// Bytes sent, and bytes released, since the connection is used.
    sent: u64,
    released: u64,
}

impl Kept {
    /// With room for so many bytes.
    pub(super) fn new(most: usize) -> Kept {
        Kept { ring: Vec::new(), most, sent: 0, released: 0 }
    }

    pub(super) fn room(&self) -> usize {
        self.most - self.len()
    }

    fn len(&self) -> usize {
        (self.sent - self.released) as usize
    }

    /// Counts sent bytes, for which there must be room: [`keep`](Self::keep) gets their contents.
    pub(super) fn note(&mut self, count: usize) {
        debug_assert!(count <= self.room());
        self.sent += count as u64;
    }

    /// Releases all but the last so many bytes.
    pub(super) fn keep_last(&mut self, count: u64) {
        self.released = self.released.max(self.sent.saturating_sub(count));
    }

    /// Keeps those of the last counted bytes that may be needed again.
    pub(super) fn keep(&mut self, last: &[u8]) {
        let bytes = &last[last.len() - last.len().min(self.len())..];
        if bytes.is_empty() {
            return;
        }
        if self.ring.is_empty() {
            // Pages that are never written take no memory.
            self.ring = vec![0; self.most];
        }
        let at = ((self.sent - bytes.len() as u64) % self.most as u64) as usize;
        let (now, later) = bytes.split_at(bytes.len().min(self.most - at));
        self.ring[at..at + now.len()].copy_from_slice(now);
        self.ring[..later.len()].copy_from_slice(later);
    }

    /// The bytes behind the first so many; `None` if not all of them are kept.
    pub(super) fn behind(&self, first: u64) -> Option<Vec<u8>> {
        if first < self.released || first > self.sent {
            return None;
        }
        let (at, len) = ((first % self.most as u64) as usize, (self.sent - first) as usize);
        let now = len.min(self.most - at);
        // If there are no bytes, there may be no memory.
        Some(if len == 0 { Vec::new() } else { [&self.ring[at..at + now], &self.ring[..len - now]].concat() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(kept: &mut Kept, bytes: &[u8]) {
        kept.note(bytes.len());
        kept.keep(bytes);
    }

    #[test]
    fn what_may_be_missing_there_is_kept_and_no_more() {
        let mut kept = Kept::new(8);
        assert_eq!((kept.room(), kept.behind(0), kept.behind(1), kept.ring.capacity()), (8, Some(Vec::new()), None, 0));
        keep(&mut kept, b"abcdef");
        assert_eq!((kept.room(), kept.behind(2)), (2, Some(b"cdef".to_vec())));
        kept.keep_last(2);
        assert_eq!((kept.room(), kept.behind(4), kept.behind(3)), (6, Some(b"ef".to_vec()), None));
        keep(&mut kept, b"ghijkl");
        assert_eq!((kept.room(), kept.behind(4), kept.behind(12)), (0, Some(b"efghijkl".to_vec()), Some(Vec::new())));
        kept.keep_last(100);
        assert_eq!(kept.room(), 0, "what was let go of is gone");
        kept.keep_last(0);
        assert_eq!((kept.room(), kept.behind(11), kept.behind(12)), (8, None, Some(Vec::new())));
    }

    #[test]
    fn what_has_arrived_before_it_is_kept_is_not_copied() {
        let mut kept = Kept::new(8);
        // One call wrote twenty bytes, of which the last three may be missing.
        for count in [8, 8, 4] {
            kept.keep_last(0);
            kept.note(count);
        }
        kept.keep_last(3);
        kept.keep(b"abcdefghijklmnopqrst");
        assert_eq!((kept.room(), kept.behind(17), kept.behind(16)), (5, Some(b"rst".to_vec()), None));
        // Together with some of an earlier call.
        kept.note(4);
        kept.keep_last(6);
        kept.keep(b"uvwx");
        assert_eq!(kept.behind(18), Some(b"stuvwx".to_vec()));
        let mut unused = Kept::new(8);
        unused.note(8);
        unused.keep_last(0);
        unused.keep(b"abcdefgh");
        assert_eq!(unused.ring.capacity(), 0);
    }

    #[test]
    fn bytes_come_back_as_they_were_however_they_went() {
        let (mut kept, all): (_, Vec<u8>) = (Kept::new(13), (0..=255).cycle().take(1000).collect());
        let (mut at, mut step) = (0, 1);
        while at < all.len() {
            let count = step.min(kept.room()).min(all.len() - at);
            keep(&mut kept, &all[at..at + count]);
            at += count;
            for first in at - kept.len()..=at {
                assert_eq!(kept.behind(first as u64).as_deref(), Some(&all[first..at]));
            }
            kept.keep_last((at % 7) as u64);
            step = step % 9 + 1;
        }
    }
}
