//! What happened: as a hash to compare replays, and as the last lines to read.

use std::collections::VecDeque;
use std::time::Duration;

pub(crate) struct Trace {
    hash: u64,
    recent: VecDeque<String>,
    lines: usize,
}

impl Trace {
    pub(crate) fn new(lines: usize) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, recent: VecDeque::new(), lines }
    }

    pub(crate) fn note(&mut self, at: Duration, what: std::fmt::Arguments<'_>) {
        let mut line = if self.recent.len() < self.lines { None } else { self.recent.pop_front() }.unwrap_or_default();
        line.clear();
        std::fmt::write(&mut line, format_args!("{:>10.3} ms  {what}", at.as_secs_f64() * 1e3))
            .expect("a string takes all");
        // FNV-1a (Fowler, Noll, Vo).
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.recent.push_back(line);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn recent(&self) -> Vec<String> {
        self.recent.iter().cloned().collect()
    }
}
