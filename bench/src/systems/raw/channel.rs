//! What the raw consumer and producer need of a link, and how long they wait for it.

use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::limits::{IDLE_PASSES_A_LOOK, STALL_LIMIT};

pub(super) const NAME: &str = "raw";

/// Two streams of bytes, one each way.
pub(super) trait Channel {
    /// Takes some bytes of `source`; 0 means that there is no room now.
    fn send(&mut self, source: &[u8]) -> io::Result<usize>;

    /// Fills some bytes of `target`, 0 when nothing is there now; the end is an error.
    fn receive(&mut self, target: &mut [u8]) -> io::Result<usize>;

    /// As `send`, from several places in turn.
    fn send_vectored(&mut self, sources: &[IoSlice<'_>]) -> io::Result<usize> {
        sources.first().map_or(Ok(0), |source| self.send(source))
    }

    /// As `receive`, to several places in turn.
    fn receive_vectored(&mut self, targets: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        targets.first_mut().map_or(Ok(0), |target| self.receive(target))
    }

    /// Called when nothing moved: where both sides share a thread, the other side's turn.
    fn idle(&mut self) -> io::Result<()>;
}

/// Sends all of `source`.
pub(super) fn send_all(channel: &mut impl Channel, mut source: &[u8]) -> io::Result<()> {
    let mut patience = Patience::default();
    while !source.is_empty() {
        let sent = channel.send(source)?;
        source = &source[sent..];
        patience.passed(channel, sent)?;
    }
    Ok(())
}

/// Fills all of `target`.
pub(super) fn receive_exact(channel: &mut impl Channel, target: &mut [u8]) -> io::Result<()> {
    let mut patience = Patience::default();
    let mut filled = 0;
    while filled < target.len() {
        let received = channel.receive(&mut target[filled..])?;
        filled += received;
        patience.passed(channel, received)?;
    }
    Ok(())
}

/// Ends a spinning loop on a link that moves nothing for `STALL_LIMIT`, at next to no cost: the
/// clock is looked at once in thousands of idle passes.
#[derive(Debug, Default)]
pub(super) struct Patience {
    idle_passes: u32,
    idle_since: Option<Instant>,
}

impl Patience {
    /// Notes a pass in which `moved` bytes went either way.
    pub(super) fn passed(&mut self, channel: &mut impl Channel, moved: usize) -> io::Result<()> {
        if moved > 0 {
            *self = Self::default();
            return Ok(());
        }
        channel.idle()?;
        self.idle_pass()
    }

    /// Notes a pass in which nothing happened.
    #[inline]
    pub(super) fn idle_pass(&mut self) -> io::Result<()> {
        self.idle_passes = self.idle_passes.wrapping_add(1);
        if self.idle_passes.is_multiple_of(IDLE_PASSES_A_LOOK) && self.is_over(Instant::now()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    fn is_over(&mut self, now: Instant) -> bool {
        let idle: Duration = now - *self.idle_since.get_or_insert(now);
        idle >= STALL_LIMIT
    }
}

/// Tells a link that stands still from one that failed.
pub(super) fn explained(failure: io::Error) -> BenchError {
    match failure.kind() {
        io::ErrorKind::TimedOut => BenchError::Stalled { system: NAME, waited: STALL_LIMIT },
        _ => BenchError::io("move bytes over the raw link")(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_after_the_limit() {
        let mut patience = Patience::default();
        let now = Instant::now();
        assert!(!patience.is_over(now));
        assert!(!patience.is_over(now + STALL_LIMIT / 2));
        assert!(patience.is_over(now + STALL_LIMIT));
    }
}
