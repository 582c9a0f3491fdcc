//! What the watched processes hold, seen from outside after each round: resident memory, descriptors, threads, mappings of shared
//! memory; and what the engine in a task tells of itself.

use std::fmt::Write;
use std::fs;

use super::Report;
use crate::chaos::verdict::books::Books;
use crate::traffic::ledger::Holdings;

/// Own memory that may be more: the allocator keeps what is free between blocks that are not, and tables of calls, peers and
/// keys keep the size of their greatest peak, which comes sooner or later. A leak of 16 bytes a call would be as much after ten
/// minutes.
const ANON_KIB: u64 = 6 * 1024;

/// Descriptors that may be more: connections to a daemon that was just started are made as they are needed, up to two a shard.
const DESCRIPTORS: u64 = 4;

/// A figure's name, the figure, and how much more it may be in the end.
type Figure<Of> = (&'static str, fn(&Of) -> u64, Option<u64>);

/// What a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sample {
    /// Memory of its own.
    anon_kib: u64,
    /// Memory that it shares with others, as far as it has touched it. It grows up to what arenas and areas were given.
    shared_kib: u64,
    descriptors: u64,
    threads: u64,
    /// Arenas and segments.
    mappings: u64,
}

/// One process's samples; `None` where it was not there.
struct Track {
    name: String,
    process: u32,
    samples: Vec<Option<Sample>>,
}

/// See the module.
pub(super) struct Samples(Vec<Track>);

impl Samples {
    /// Of these processes.
    pub(super) fn of(processes: Vec<(String, u32)>) -> Samples {
        let track = |(name, process)| Track { name, process, samples: Vec::new() };
        Samples(processes.into_iter().map(track).collect())
    }

    /// Looks at all of them.
    pub(super) fn look(&mut self) {
        self.0.iter_mut().for_each(|track| track.samples.push(look(track.process)));
    }

    /// The memory of each when last looked at, for a line of progress.
    pub(super) fn line(&self) -> String {
        let own = |track: &Track| track.samples.last().copied().flatten().map_or(0, |sample| sample.anon_kib);
        self.0.iter().map(|track| format!("{} {} KiB", track.name, own(track))).collect::<Vec<_>>().join(", ")
    }

    /// Compares what was held at the first look and at the last.
    pub(super) fn report(&self) -> Report {
        let mut report = Report { text: String::from("\nheld: at first, most, in the end\n"), violations: Vec::new() };
        for Track { name, samples, .. } in &self.0 {
            let there: Option<Vec<Sample>> = samples.iter().copied().collect();
            let Some(there) = there.filter(|there| !there.is_empty()) else {
                report.violations.push(format!("{name} was not there all the time"));
                continue;
            };
            let (first, last) = (there[0], there[there.len() - 1]);
            report.compare(
                name,
                [first, last],
                &there,
                &[
                    ("own memory, KiB", |sample| sample.anon_kib, Some(ANON_KIB)),
                    ("shared memory, KiB", |sample| sample.shared_kib, None),
                    ("descriptors", |sample| sample.descriptors, Some(DESCRIPTORS)),
                    ("threads", |sample| sample.threads, Some(0)),
                    ("shared mappings", |sample| sample.mappings, Some(0)),
                ],
            );
        }
        report
    }
}

impl Report {
    /// Adds somebody's figures: the first, the most of all and the last, which may be so much more than the first.
    fn compare<Of>(&mut self, name: &str, [first, last]: [Of; 2], all: &[Of], figures: &[Figure<Of>]) {
        for (what, figure, more) in figures {
            let (most, first, last) = (all.iter().map(figure).max().unwrap_or(0), figure(&first), figure(&last));
            let _ = writeln!(self.text, "  {name:8}  {what:20}  {first:8}  {most:8}  {last:8}");
            if more.is_some_and(|more| last > first + more) {
                self.violations.push(format!("{name} holds more than it did, {what}: {first}, then {last}"));
            }
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
        anon_kib: field("RssAnon")?,
        shared_kib: field("RssShmem")?,
        descriptors: fs::read_dir(format!("/proc/{process}/fd")).ok()?.count() as u64,
        threads: field("Threads")?,
        mappings: read("maps")?.lines().filter(|line| line.contains("/memfd:")).count() as u64,
    })
}

/// Compares what the engines that tell it held at two times.
pub(super) fn held(books: &Books, began: u64, ended: u64) -> Report {
    let mut report = Report { text: String::new(), violations: Vec::new() };
    for life in books.lives.iter().filter(|life| !life.holdings.is_empty()) {
        let at = |time| life.holdings.iter().rev().find(|(at, _)| *at <= time).map(|(_, holdings)| *holdings);
        let (first, last) = (at(began).unwrap_or_default(), at(ended).unwrap_or_default());
        let all: Vec<Holdings> = life.holdings.iter().map(|(_, holdings)| *holdings).collect();
        report.compare(
            &format!("task{}", life.task),
            [first, last],
            &all,
            &[
                ("slabs in use, B", |holds| holds.slab_bytes, Some(0)),
                ("deposits", |holds| holds.deposits, Some(0)),
                // One of each peer stands all the time; which of them have asked again after the last trouble varies.
                ("parked requests", |holds| holds.parked, Some(life.task as u64)),
                ("published tensors", |holds| holds.published, Some(0)),
                ("links", |holds| holds.links, Some(4)),
            ],
        );
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

    fn report(anon_kib: &[Option<u64>]) -> Report {
        let sample = |anon_kib| Sample { anon_kib, ..Sample::default() };
        let samples = anon_kib.iter().map(|anon_kib| anon_kib.map(sample)).collect();
        Samples(vec![Track { name: "daemon0".into(), process: 0, samples }]).report()
    }

    #[test]
    fn a_peak_is_no_leak() {
        let report = report(&[Some(1000), Some(900_000), Some(1000 + ANON_KIB)]);
        assert!(report.violations.is_empty(), "{:?}", report.violations);
        assert!(report.text.contains("1000    900000      7144"), "{}", report.text);
    }

    #[test]
    fn more_in_the_end_than_at_first_is_a_leak() {
        assert_eq!(report(&[Some(1000), Some(1001 + ANON_KIB)]).violations.len(), 1);
    }

    #[test]
    fn whoever_is_watched_is_there_all_the_time() {
        assert!(report(&[]).violations[0].contains("was not there"));
        assert!(report(&[Some(1000), None, Some(1000)]).violations[0].contains("was not there"));
    }
}
