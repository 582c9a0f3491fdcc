//! One record in private memory, to be written into a ring or copied out of it. Allocates once, when created.

use super::limits::RECORD_WORDS_MAX;

/// The content of one ring record, in memory that the other side cannot change; 7 KiB, allocated once and reused.
///
/// It has a kind and up to [`RECORD_WORDS_MAX`] words, which `Submission` and `Completion` interpret.
#[derive(Clone)]
pub struct Record {
    pub(super) kind: u8,
    pub(super) len: usize,
    /// The content, followed by a word of zeros.
    pub(super) words: Box<[u64; RECORD_WORDS_MAX + 1]>,
}

impl Record {
    pub fn new() -> Self {
        Self { kind: 0, len: 0, words: Box::new([0; RECORD_WORDS_MAX + 1]) }
    }

    #[inline]
    pub fn kind(&self) -> u8 {
        self.kind
    }

    #[inline]
    pub fn content(&self) -> &[u64] {
        &self.words[..self.len]
    }

    /// Sets kind and content without any checks of their meaning.
    ///
    /// # Panics
    /// With more than [`RECORD_WORDS_MAX`] words.
    pub fn set(&mut self, kind: u8, content: &[u64]) {
        assert!(content.len() <= RECORD_WORDS_MAX, "a record of {} words", content.len());
        self.words[..content.len()].copy_from_slice(content);
        self.become_record(kind, content.len());
    }

    /// Makes the first `len` words the content of a record.
    #[inline]
    pub(super) fn become_record(&mut self, kind: u8, len: usize) {
        self.words[len] = 0;
        (self.kind, self.len) = (kind, len);
    }
}

#[cfg(all(test, not(loom)))]
impl Record {
    /// The kind and every byte of content as they are in memory.
    pub(super) fn hex(&self) -> String {
        let content = self.content().iter().flat_map(|word| word.to_ne_bytes()).map(|byte| format!("{byte:02x}"));
        format!("{} {}", self.kind, content.collect::<String>())
    }
}

impl Default for Record {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Record").field("kind", &self.kind).field("words", &self.len).finish_non_exhaustive()
    }
}
