//! Decisions drawn from a fuzz input, front to back. A used-up input gives only zeros.

/// Inputs for which [`Script::number`] gives the largest numbers, unsigned and signed, and the ones just below.
pub const LIMITS: &[&[u8]] = &[b"\xf0\x00", b"\xf4\x00", b"\xf0\x01", b"\xf4\x01"];

/// The rest of an input.
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// A script of the whole input.
    pub fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// True if no decision is left.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    /// A random yes or no.
    pub fn yes(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A number below `limit`.
    ///
    /// # Panics
    /// If `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let wide = if limit > 256 { usize::from(self.byte()) << 8 } else { 0 };
        (wide | usize::from(self.byte())) % limit
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// If there are none.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// The next eight bytes as a number.
    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number that is likely to break something: small, near a limit, or any.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=239 => u64::from(small),
            240..=243 => u64::MAX - u64::from(self.byte()),
            244..=247 => i64::MAX as u64 - u64::from(self.byte()),
            248..=251 => u64::from(self.byte()) << 12,
            _ => self.word(),
        }
    }

    /// The next bytes: a drawn count, at most `max`.
    pub fn bytes(&mut self, max: usize) -> &'a [u8] {
        let length = self.below(max + 1).min(self.0.len());
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes
    }
}
