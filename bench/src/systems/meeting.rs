//! Where the two processes of a system meet that has no port: a path in a directory of their own, which is gone as soon
//! as they have met.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::error::BenchError;

/// Short, since the path of a Unix socket has at most 107 bytes.
const SOCKET_NAME: &str = "s";

/// A path for a Unix socket. Dropping this removes the socket; what is connected stays so.
#[derive(Debug)]
pub(super) struct Meeting(TempDir);

impl Meeting {
    /// A directory that only this user may enter.
    pub(super) fn arrange() -> Result<Self, BenchError> {
        let directory = tempfile::Builder::new().prefix("sealane-bench-").tempdir();
        directory.map(Self).map_err(BenchError::io("make a directory for a socket"))
    }

    /// Where the producer listens.
    pub(super) fn socket(&self) -> PathBuf {
        self.0.path().join(SOCKET_NAME)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn those_who_have_met_do_not_need_the_place() {
        let meeting = Meeting::arrange().expect("a temporary directory");
        let path = meeting.socket();
        let listener = UnixListener::bind(&path).expect("a new directory");
        let mut near = UnixStream::connect(&path).expect("listening");
        let (mut far, _) = listener.accept().expect("connected");
        drop((meeting, listener));
        assert!(!path.exists() && !path.parent().expect("a directory").exists());
        near.write_all(b"met").expect("connected");
        let mut heard = [0; 3];
        far.read_exact(&mut heard).expect("connected");
        assert_eq!(&heard, b"met");
    }
}
