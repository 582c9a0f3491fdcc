//! Text of records, which the other side has written.

/// Number of bytes that the standard library checks for being ASCII at once.
const ASCII_BYTES: usize = 2 * size_of::<u64>();

/// The first `len` bytes as text, if they are one; faster if zeros are behind them.
///
/// # Panics
/// If there are fewer.
#[inline]
pub(super) fn padded_text(bytes: &[u8], len: usize) -> Option<&str> {
    // Byte by byte, checking a key takes a hundred instructions; with the zeros behind it, twenty.
    let padded = bytes.get(..len.next_multiple_of(ASCII_BYTES)).and_then(|padded| std::str::from_utf8(padded).ok());
    match padded.and_then(|padded| padded.get(..len)) {
        Some(text) => Some(text),
        None => std::str::from_utf8(&bytes[..len]).ok(),
    }
}
