//! Whether what arrived is what was sent: looked at once a round, outside the time that is measured.

use crate::error::BenchError;
use crate::limits::FILL;

/// Looks at the memory that the last step of a round has filled, and that was empty before its first.
pub(super) fn check<'t>(system: &'static str, tensors: impl Iterator<Item = &'t [u8]>) -> Result<(), BenchError> {
    let wrong = tensors.enumerate().find(|(_, bytes)| bytes.iter().any(|byte| *byte != FILL));
    wrong.map_or(Ok(()), |(tensor, _)| Err(BenchError::WrongBytes { system, tensor }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_not_filled_is_named() {
        let (full, short) = ([FILL; 3], [FILL, FILL, 0]);
        check("raw", [&full[..], &[]].into_iter()).expect("all of it is");
        let error = check("raw", [&full[..], &short].into_iter()).expect_err("the last byte is missing");
        assert!(error.to_string().starts_with("raw delivered tensor 1"), "{error}");
    }
}
