//! Reads credential files: secrets only if nobody but the owner can read them, others only if nobody but the owner can
//! write them. Bounded by the caller's limit; never blocks, as opening a FIFO would.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::AuthenticationError;

/// Permissions of the group and of others: all, and those to write.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;

/// Reads a file of at most `limit` bytes that belongs to root or to this process's user, and that nobody else may read or write.
pub(super) fn read(path: &Path, what: &'static str, limit: usize) -> Result<Vec<u8>, AuthenticationError> {
    read_closed(path, what, limit, OTHERS)
}

/// Reads a file that anyone may read, and that nobody but root or this process's user may write.
pub(super) fn read_public(path: &Path, what: &'static str, limit: usize) -> Result<Vec<u8>, AuthenticationError> {
    read_closed(path, what, limit, OTHERS_WRITE)
}

fn read_closed(
    path: &Path,
    what: &'static str,
    limit: usize,
    closed_to_others: u32,
) -> Result<Vec<u8>, AuthenticationError> {
    let failed =
        |error: std::io::Error| AuthenticationError::Read { what, path: path.into(), message: error.to_string() };
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    // Checks what was opened: the name may refer to another file by now.
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(std::io::Error::other("it is not a regular file")));
    }
    let not_private = |problem| AuthenticationError::NotPrivate { what, path: path.into(), problem };
    let user = nix::unistd::geteuid().as_raw();
    if metadata.uid() != user && metadata.uid() != 0 {
        return Err(not_private(format!("it belongs to user {}, and this is user {user}", metadata.uid())));
    }
    if metadata.mode() & closed_to_others != 0 {
        return Err(not_private(format!("its mode is {:o}", metadata.mode() & 0o7777)));
    }
    read_at_most(file, limit).map_err(failed)
}

fn read_at_most(file: File, limit: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than the limit distinguishes "too long" from "exactly full".
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        return Err(std::io::Error::other(format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}
