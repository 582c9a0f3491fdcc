//! Entry points to the parsers of verbs messages, for the fuzz targets: input is parsed, then serialized again for comparison.

use super::message::{BadMessage, Writer, open};
use super::negotiation::Said;
use crate::wire::WireError;

/// The first negotiation message in `bytes`: its length, and its bytes as this side would write them. `None` if it is
/// incomplete.
///
/// # Errors
/// It is not a valid message.
pub fn settling_word(bytes: &[u8]) -> Result<Option<(usize, Vec<u8>)>, WireError> {
    Ok(Said::parse(bytes)?.map(|(said, length)| (length, said.to_bytes())))
}

/// A message, written part by part into `buffer` as this side would; returns its length and its number of parts.
///
/// # Errors
/// It is not a valid message; the reason, as the link would log it.
///
/// # Panics
/// If `buffer` is shorter than the message.
pub fn message(bytes: &[u8], buffer: &mut [u8]) -> Result<(usize, usize), String> {
    let told = |bad: BadMessage| bad.to_string();
    let (credits, mut parts) = open(bytes).map_err(told)?;
    let mut writer = Writer::new(buffer);
    let mut count = 0;
    while let Some(part) = parts.next().map_err(told)? {
        writer.push(part);
        count += 1;
    }
    Ok((writer.finish(credits), count))
}
