//! The end of what a child process wrote to standard error, read by a thread of its own that
//! sleeps unless something is written. Bounded by `STDERR_BYTES_KEPT`.

use std::collections::VecDeque;
use std::io::Read;
use std::process::ChildStderr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::limits::STDERR_BYTES_KEPT;

/// Follows a child's standard error until the child ends.
#[derive(Debug)]
pub(super) struct StderrTail {
    kept: Arc<Mutex<VecDeque<u8>>>,
    /// Never gets a message: its other end goes away when the stream has ended.
    ended: Receiver<()>,
}

impl StderrTail {
    pub(super) fn follow(mut stream: ChildStderr) -> Self {
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let (guard, ended) = mpsc::sync_channel(0);
        let tail = Arc::clone(&kept);
        thread::spawn(move || {
            let _guard = guard;
            let mut chunk = [0; 1024];
            while let Ok(count @ 1..) = stream.read(&mut chunk) {
                keep(&mut tail.lock().unwrap_or_else(PoisonError::into_inner), &chunk[..count]);
            }
        });
        Self { kept, ended }
    }

    /// What was written last, or that nothing was.
    pub(super) fn text(&self) -> String {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(kept.make_contiguous()).trim().to_owned();
        if text.is_empty() { "nothing".to_owned() } else { text }
    }

    /// Whether the stream, and so the child, ended before `limit` passed.
    pub(super) fn ended_within(&self, limit: Duration) -> bool {
        matches!(self.ended.recv_timeout(limit), Err(RecvTimeoutError::Disconnected))
    }
}

fn keep(kept: &mut VecDeque<u8>, chunk: &[u8]) {
    kept.extend(chunk);
    let excess = kept.len().saturating_sub(STDERR_BYTES_KEPT);
    kept.drain(..excess);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_is_kept() {
        let mut kept = VecDeque::new();
        for _ in 0..100 {
            keep(&mut kept, &[b'a'; 1000]);
        }
        keep(&mut kept, b"the end");
        assert_eq!(kept.len(), STDERR_BYTES_KEPT);
        assert!(kept.make_contiguous().ends_with(b"the end"));
    }
}
