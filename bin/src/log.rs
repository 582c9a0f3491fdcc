//! Lines for standard error that never block for long: a reader that does not read, as of a full pipe, loses lines instead of
//! stopping the threads that log.
//!
//! Threads: any; lines of different threads are not mixed. Limits: [`READER_TIME`] per piece of a line, and none after a lost line
//! until the reader reads again.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How long a line waits for room: a reader that is only slow makes room within this time.
const READER_TIME: Duration = Duration::from_millis(100);

/// Bytes that can be written without waiting once a pipe or socket is writable (`PIPE_BUF`).
const PIECE_BYTES: usize = 4096;

/// Lines that standard error did not take, and how many of them have been reported.
static LOST: Mutex<Lost> = Mutex::new(Lost { lines: 0, reported: 0, is_blocked: false });

#[derive(Debug, Default)]
struct Lost {
    lines: u64,
    reported: u64,
    /// True from a lost line until the next line that is written.
    is_blocked: bool,
}

impl Lost {
    /// Writes a line, or counts it as lost. A line that is cut off counts as lost, too.
    fn write(&mut self, out: &mut (impl Write + AsFd), line: &[u8]) {
        let is_whole = line.chunks(PIECE_BYTES).all(|piece| {
            let patience = if self.is_blocked { Duration::ZERO } else { READER_TIME };
            self.is_blocked = !has_room(out, patience);
            // Without standard error nobody could read it.
            !self.is_blocked && out.write_all(piece).is_ok()
        });
        self.lines += u64::from(!is_whole);
    }

    /// Returns the number of lost lines that were not reported yet, if a report can be written.
    fn unreported(&mut self, out: &impl AsFd) -> Option<u64> {
        let unreported = self.lines - self.reported;
        if unreported == 0 || !has_room(out, Duration::ZERO) {
            return None;
        }
        self.reported = self.lines;
        Some(unreported)
    }
}

fn has_room(out: &impl AsFd, patience: Duration) -> bool {
    let mut polled = [PollFd::new(out.as_fd(), PollFlags::POLLOUT)];
    let patience = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    // A reader that is gone counts as room: the write fails at once.
    poll(&mut polled, patience) != Ok(0)
}

fn lost() -> std::sync::MutexGuard<'static, Lost> {
    LOST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a line to standard error.
pub(crate) fn write_line(line: &str) {
    lost().write(&mut io::stderr().lock(), format!("{line}\n").as_bytes());
}

/// Logs how many lines were lost since the last report, once standard error takes lines again.
pub(crate) fn report_lost() {
    let unreported = lost().unreported(&io::stderr());
    if let Some(lines) = unreported {
        tracing::warn!(lines, "lines of the log were lost because standard error was not read");
    }
}

/// The writer of the log: one call per line.
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        lost().write(&mut io::stderr().lock(), line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use nix::fcntl::{FcntlArg, fcntl};
    use nix::unistd::pipe;

    use super::*;

    #[test]
    fn full_pipe_loses_lines_and_blocks_no_writer() {
        let (reader, writer) = pipe().unwrap();
        let (mut reader, mut writer) = (File::from(reader), File::from(writer));
        let room = fcntl(&writer, FcntlArg::F_GETPIPE_SZ).unwrap() as usize;
        writer.write_all(&vec![b'.'; room]).unwrap();
        let mut lost = Lost::default();
        let long = [b'a'; 3 * PIECE_BYTES];
        for line in [&b"first\n"[..], b"second\n", &long] {
            lost.write(&mut writer, line);
        }
        assert_eq!((lost.lines, lost.unreported(&writer)), (3, None));
        reader.read_exact(&mut vec![0; room]).unwrap();
        assert_eq!((lost.unreported(&writer), lost.unreported(&writer)), (Some(3), None));
        lost.write(&mut writer, b"third\n");
        assert!(!lost.is_blocked && lost.lines == 3);
        drop(writer);
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        assert_eq!(read, "third\n");
    }
}
