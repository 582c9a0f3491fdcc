//! What has passed the loopback interface, as the kernel counts it: the same way for every system, with all headers.

use std::fs;
use std::io;

use crate::error::BenchError;

const TABLE: &str = "/proc/self/net/dev";

/// Bytes that have passed this network namespace's loopback interface since it came up, whoever sent them.
///
/// # Errors
/// [`BenchError::Io`] when the kernel does not tell.
pub(crate) fn bytes_moved() -> Result<u64, BenchError> {
    let failed = BenchError::io(format!("read what the loopback interface has moved in {TABLE}"));
    match fs::read_to_string(TABLE) {
        Ok(text) => moved_in(&text).ok_or_else(|| failed(io::ErrorKind::InvalidData.into())),
        Err(error) => Err(failed(error)),
    }
}

/// The first number of its line: what was received is what was sent.
fn moved_in(table: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix("lo:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_loopback_interface_is_read() {
        let table = "Inter-| Receive | Transmit\n face |bytes packets|bytes\n  eth0: 77 1 2\n    lo: 4096 3 0 4096 3\n";
        assert_eq!(moved_in(table), Some(4_096));
        assert_eq!(moved_in("eth0: 1\n"), None);
        bytes_moved().expect("linux tells");
    }
}
