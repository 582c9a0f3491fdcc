//! Numbers with their nouns, as people write them.

/// `1 task`, `2 tasks`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
