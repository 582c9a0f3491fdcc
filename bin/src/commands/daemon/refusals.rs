//! What the log says of local processes whose requests are refused: they choose how often, and part of the words. Pure.

use std::time::{Duration, Instant};

/// Most refusals that are logged in [`LOGGED_EVERY`]; the others are counted.
const LOGGED_MAX: u32 = 30;
const LOGGED_EVERY: Duration = Duration::from_secs(60);
/// Characters of an error in the log.
const LOGGED_CHARS_MAX: usize = 400;

/// The refusals of the current minute.
#[derive(Default)]
pub(super) struct Refusals {
    since: Option<Instant>,
    logged: u32,
    /// Not logged since the last that was.
    unlogged: u64,
}

impl Refusals {
    /// Counts one. If it is to be logged: its error in one short line, and how many were not logged before it.
    pub(super) fn add(&mut self, now: Instant, error: &str) -> Option<(String, u64)> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= LOGGED_EVERY) {
            (self.since, self.logged) = (Some(now), 0);
        }
        if self.logged >= LOGGED_MAX {
            self.unlogged += 1;
            return None;
        }
        self.logged += 1;
        Some((line(error), std::mem::take(&mut self.unlogged)))
    }
}

/// The error without what could be taken for lines of the log, and not longer than one.
fn line(error: &str) -> String {
    let mut shown = error.chars().map(|shown| if shown.is_control() { ' ' } else { shown });
    let mut line: String = shown.by_ref().take(LOGGED_CHARS_MAX).collect();
    if shown.next().is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_asks_again_and_again_does_not_fill_the_log() {
        let (mut refusals, began, error) = (Refusals::default(), Instant::now(), "no");
        let logged =
            |refusals: &mut Refusals, at| (0..1000).filter_map(|_| refusals.add(at, error)).collect::<Vec<_>>();
        let first = logged(&mut refusals, began);
        assert!(first.len() == LOGGED_MAX as usize && first.iter().all(|(_, before)| *before == 0));
        let next = logged(&mut refusals, began + LOGGED_EVERY);
        assert_eq!((next.len(), next[0].1, next[1].1), (LOGGED_MAX as usize, 1000 - u64::from(LOGGED_MAX), 0));
    }

    #[test]
    fn what_a_process_says_is_one_short_line() {
        let name = format!("a\nb{}", "c".repeat(60_000));
        let (line, _) = Refusals::default().add(Instant::now(), &name).unwrap();
        assert!(
            line.contains("a bcc") && line.chars().count() == LOGGED_CHARS_MAX + 1 && line.ends_with("c…"),
            "{line}"
        );
    }
}
