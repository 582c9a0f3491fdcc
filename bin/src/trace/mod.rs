//! A trace file: every call of an engine and its outcome, as a timeline that <https://ui.perfetto.dev> opens. Written on its own
//! thread; bounded by [`TRACE_BYTES_MAX`] and by what `timeline.rs` keeps of open calls.

mod timeline;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use sealane_transport::trace::{TraceReceiver, TraceSender, trace};

use crate::Failure;
use timeline::Timeline;

/// Longest file: a browser cannot show more.
const TRACE_BYTES_MAX: u64 = 1 << 30;
/// How often new events are written, and the end is checked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the end of a trace may take to be written: a file system may not answer.
const END_TIME: Duration = Duration::from_secs(5);

/// How the files that this program writes begin and end.
const BEGINNING: &str = "[\n";
const END: &str = "\n]\n";
/// A trace being written; it is complete when this is finished or dropped.
pub(crate) struct TraceFile {
    over: Arc<AtomicBool>,
    /// Disconnected when the thread has written the end.
    ended: Receiver<()>,
    shown: PathBuf,
}

impl TraceFile {
    /// Begins a trace of this process, named `who`, in a new file.
    ///
    /// # Errors
    /// The file cannot be made, or the system has no thread for it.
    pub(crate) fn begin(path: &Path, who: &str) -> Result<(TraceSender, TraceFile), Failure> {
        let failed = |error: std::io::Error| {
            Failure::input(format!("the trace {} cannot be written ({error}); name a file that can", path.display()))
        };
        let file = BufWriter::new(File::create(path).map_err(failed)?);
        let mut writer =
            Writer { file, written: 0, shown: path.to_owned(), timeline: Timeline::new(who), is_over: false };
        writer.write(BEGINNING);
        let (sender, receiver) = trace();
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        let (ends, ended) = channel();
        let run = move || {
            let _ends: Sender<()> = ends;
            writer.run(&receiver, &seen);
        };
        std::thread::Builder::new().name("sealane-trace".into()).spawn(run).map_err(failed)?;
        Ok((sender, TraceFile { over, ended, shown: path.to_owned() }))
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if self.ended.recv_timeout(END_TIME) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(trace = %self.shown.display(), after = ?END_TIME, "the end of the trace is not written; does its file system respond?");
        }
    }
}

struct Writer {
    file: BufWriter<File>,
    written: u64,
    shown: PathBuf,
    timeline: Timeline,
    /// True if nothing more is written: the file is full, or cannot be written.
    is_over: bool,
}

impl Writer {
    fn run(mut self, receiver: &TraceReceiver, over: &AtomicBool) {
        loop {
            // Read first, so that everything sent before the end is received below.
            let is_last = over.load(Ordering::Acquire);
            match receiver.batches.recv_timeout(if is_last { Duration::ZERO } else { LOOK_EVERY }) {
                Ok(batch) => {
                    let text = self.timeline.tell(batch);
                    self.write(&text);
                }
                Err(RecvTimeoutError::Timeout) if !is_last => self.flush(),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let end = self.timeline.end(receiver.dropped());
        self.write(&end);
        self.write(END);
        self.flush();
        if receiver.dropped() > 0 {
            tracing::warn!(dropped = receiver.dropped(), trace = %self.shown.display(), "the trace has gaps: its writer fell behind");
        }
    }

    fn write(&mut self, text: &str) {
        if self.is_over {
            return;
        }
        self.written += text.len() as u64;
        if self.written > TRACE_BYTES_MAX {
            self.is_over = true;
            tracing::warn!(trace = %self.shown.display(), bytes = TRACE_BYTES_MAX, "the trace is full and ends here");
        } else if let Err(error) = self.file.write_all(text.as_bytes()) {
            self.give_up(&error);
        }
    }

    fn flush(&mut self) {
        if let Err(error) = self.file.flush()
            && !self.is_over
        {
            self.give_up(&error);
        }
    }

    fn give_up(&mut self, error: &std::io::Error) {
        self.is_over = true;
        tracing::warn!(%error, trace = %self.shown.display(), "the trace cannot be written and ends here");
    }
}
