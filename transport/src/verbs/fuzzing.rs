//! Entry points to the parsers of verbs messages, for the fuzz targets: input is parsed, then serialized again for comparison.

use super::message::{BadMessage, Writer, open};
use super::settle::Said;
use crate::wire::WireError;

/// The first word of settling upon a link that `bytes` hold: how long it is, and its bytes as this side would write them.
/// `None` if it is not all there.
///
/// # Errors
/// It is none.
pub fn settling_word(bytes: &[u8]) -> Result<Option<(usize, Vec<u8>)>, WireError> {
    Ok(Said::parse(bytes)?.map(|(said, length)| (length, said.to_bytes())))
}

/// A message, part by part, as this side would write it into `buffer`: its length there, and how many parts it has.
///
/// # Errors
/// It is none; the reason, as the link would log it.
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
