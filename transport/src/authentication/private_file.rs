//! Reading files that hold secrets: only those that nobody but their owner can read. Bounded by the caller's limit.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::AuthenticationError;

/// Permissions of the group and of others.
const OTHERS: u32 = 0o077;

/// Reads a file of at most `limit` bytes that belongs to root or to this process's user, and that nobody else may read or write.
pub(super) fn read(path: &Path, what: &'static str, limit: usize) -> Result<Vec<u8>, AuthenticationError> {
    let failed =
        |error: std::io::Error| AuthenticationError::Read { what, path: path.into(), message: error.to_string() };
    let file = File::open(path).map_err(failed)?;
    // Of what was opened: the name may mean another file by now.
    let metadata = file.metadata().map_err(failed)?;
    let not_private = |problem| AuthenticationError::NotPrivate { what, path: path.into(), problem };
    let user = nix::unistd::geteuid().as_raw();
    if metadata.uid() != user && metadata.uid() != 0 {
        return Err(not_private(format!("it belongs to user {}, and this is user {user}", metadata.uid())));
    }
    if metadata.mode() & OTHERS != 0 {
        return Err(not_private(format!("its mode is {:o}", metadata.mode() & 0o7777)));
    }
    read_at_most(file, limit).map_err(failed)
}

/// Reads a file that anyone may read, of at most `limit` bytes.
pub(super) fn read_public(path: &Path, what: &'static str, limit: usize) -> Result<Vec<u8>, AuthenticationError> {
    let read = File::open(path).and_then(|file| read_at_most(file, limit));
    read.map_err(|error| AuthenticationError::Read { what, path: path.into(), message: error.to_string() })
}

fn read_at_most(file: File, limit: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than the limit tells "too long" from "exactly full".
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        return Err(std::io::Error::other(format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}
