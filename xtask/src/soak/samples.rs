//! What the watched processes hold, seen from outside: resident memory, descriptors, threads, mappings of shared memory; and
//! what the engine in a task tells of itself. A thread of its own looks once a second.

use std::fmt::Write;
use std::fs;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Report;
use crate::chaos::verdict::books::Books;
use crate::traffic::ledger::Holdings;
use crate::traffic::now_us;

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Own memory that may be more: the allocator keeps what is free between blocks that are not, and tables of calls, peers and
/// keys keep the size of their greatest peak, which comes sooner or later. A leak of 16 bytes a call would be as much after ten
/// minutes.
const ANON_KIB: u64 = 6 * 1024;

/// Descriptors that may be more: connections to a daemon that was just started are made as they are needed, up to two a shard.
const DESCRIPTORS: u64 = 4;

/// What a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sample {
    at: u64,
    /// Memory of its own.
    anon_kib: u64,
    /// Memory that it shares with others, as far as it has touched it. It grows up to what arenas and areas were given.
    shared_kib: u64,
    descriptors: u64,
    threads: u64,
    /// Arenas and segments.
    mappings: u64,
}

/// One process's samples.
struct Track {
    name: String,
    process: u32,
    samples: Vec<Sample>,
}

/// See the module.
pub(super) struct Samples {
    tracks: Arc<Mutex<Vec<Track>>>,
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Samples {
    /// Watches these processes from now on.
    pub(super) fn begin(processes: Vec<(String, u32)>) -> Samples {
        let track = |(name, process)| Track { name, process, samples: Vec::new() };
        let tracks = Arc::new(Mutex::new(processes.into_iter().map(track).collect::<Vec<_>>()));
        let (stop, stopped) = channel();
        let shared = tracks.clone();
        let thread = thread::spawn(move || {
            loop {
                for track in shared.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
                    track.samples.extend(look(track.process));
                }
                if stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        Samples { tracks, stop, thread: Some(thread) }
    }

    /// The present memory of each, for a line of progress.
    pub(super) fn line(&self) -> String {
        let tracks = self.tracks.lock().unwrap_or_else(PoisonError::into_inner);
        let own = |track: &Track| track.samples.last().map_or(0, |sample| sample.anon_kib);
        tracks.iter().map(|track| format!("{} {} KiB", track.name, own(track))).collect::<Vec<_>>().join(", ")
    }

    /// Ends the watch.
    pub(super) fn end(mut self) -> Samples {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self
    }

    /// Compares what was held at two times.
    pub(super) fn report(&self, began: u64, ended: u64) -> Report {
        let mut report = Report { text: String::from("\nheld: at first, most, in the end\n"), violations: Vec::new() };
        for track in self.tracks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let at = |time| track.samples.iter().rev().find(|sample| sample.at <= time).copied();
            let (Some(first), Some(last)) = (at(began), at(ended)) else {
                report.violations.push(format!("{} was not there all the time", track.name));
                continue;
            };
            let of = |figure: fn(&Sample) -> u64| {
                let most = track.samples.iter().map(figure).max().unwrap_or(0);
                [figure(&first), most, figure(&last)]
            };
            let rows = [
                ("own memory, KiB", of(|sample| sample.anon_kib), Some(ANON_KIB)),
                ("shared memory, KiB", of(|sample| sample.shared_kib), None),
                ("descriptors", of(|sample| sample.descriptors), Some(DESCRIPTORS)),
                ("threads", of(|sample| sample.threads), Some(0)),
                ("shared mappings", of(|sample| sample.mappings), Some(0)),
            ];
            for (what, figures, more) in rows {
                report.compare(&track.name, what, figures, more);
            }
        }
        report
    }
}

impl Report {
    /// Adds a figure of somebody's: the first, the most and the last, which may be so much more than the first.
    fn compare(&mut self, name: &str, what: &str, [first, most, last]: [u64; 3], more: Option<u64>) {
        let _ = writeln!(self.text, "  {name:8}  {what:20}  {first:8}  {most:8}  {last:8}");
        if more.is_some_and(|more| last > first + more) {
            self.violations.push(format!("{name} holds more than it did, {what}: {first}, then {last}"));
        }
    }
}

fn look(process: u32) -> Option<Sample> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{process}/{file}")).ok();
    let status = read("status")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some(Sample {
        at: now_us(),
        anon_kib: field("RssAnon")?,
        shared_kib: field("RssShmem")?,
        descriptors: fs::read_dir(format!("/proc/{process}/fd")).ok()?.count() as u64,
        threads: field("Threads")?,
        mappings: read("maps")?.lines().filter(|line| line.contains("/memfd:")).count() as u64,
    })
}

/// A figure's name, the figure, and how much more it may be in the end.
type Figure = (&'static str, fn(&Holdings) -> u64, u64);

/// Compares what the engines that tell it held at two times.
pub(super) fn held(books: &Books, began: u64, ended: u64) -> Report {
    let mut report = Report { text: String::new(), violations: Vec::new() };
    for life in books.lives.iter().filter(|life| !life.holdings.is_empty()) {
        let at = |time| life.holdings.iter().rev().find(|(at, _)| *at <= time).map(|(_, holdings)| *holdings);
        let (first, last) = (at(began).unwrap_or_default(), at(ended).unwrap_or_default());
        let name = format!("task{}", life.task);
        let rows: [Figure; 5] = [
            ("slabs in use, B", |holds| holds.slab_bytes, 0),
            ("deposits", |holds| holds.deposits, 0),
            // One of each peer stands all the time; which of them have asked again after the last trouble varies.
            ("parked requests", |holds| holds.parked, life.task as u64),
            ("published tensors", |holds| holds.published, 0),
            ("links", |holds| holds.links, 4),
        ];
        for (what, figure, more) in rows {
            let most = life.holdings.iter().map(|(_, holdings)| figure(holdings)).max().unwrap_or(0);
            report.compare(&name, what, [figure(&first), most, figure(&last)], Some(more));
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_something() {
        let sample = look(std::process::id()).unwrap();
        assert!(sample.anon_kib > 0 && sample.descriptors > 2 && sample.threads > 0, "{sample:?}");
        assert_eq!(look(u32::MAX), None);
    }

    fn samples(anon_kib: &[u64]) -> Samples {
        let sample = |(at, &anon_kib): (usize, &u64)| Sample { at: at as u64, anon_kib, ..Sample::default() };
        let samples = anon_kib.iter().enumerate().map(sample).collect();
        let track = Track { name: "daemon0".into(), process: 0, samples };
        Samples { tracks: Arc::new(Mutex::new(vec![track])), stop: channel().0, thread: None }
    }

    #[test]
    fn a_peak_is_no_leak() {
        let report = samples(&[0, 1000, 900_000, 1000 + ANON_KIB]).report(1, 3);
        assert!(report.violations.is_empty(), "{:?}", report.violations);
        assert!(report.text.contains("1000    900000      7144"), "{}", report.text);
    }

    #[test]
    fn more_in_the_end_than_at_first_is_a_leak() {
        assert_eq!(samples(&[0, 1000, 1001 + ANON_KIB]).report(1, 2).violations.len(), 1);
        assert_eq!(samples(&[]).report(1, 2).violations.len(), 1);
    }
}
