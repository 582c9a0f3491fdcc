//! How far a demo is: a bar when standard error is a terminal, a line every few steps when it is not. Drawn between
//! steps, so that it costs no transfer anything.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use super::figures::Traffic;

/// Lines of a whole demo, at most.
const LINES_MAX: u64 = 5;

/// Tells the user how far a demo is.
pub(super) struct Progress {
    steps: u64,
    /// `None` where standard error is no terminal.
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A demo of so many steps on standard error.
    pub(super) fn on_stderr(steps: u64) -> Progress {
        let bar = io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:32} step {pos}/{len} {msg}");
            ProgressBar::new(steps).with_style(style.expect("the template is a constant that is well formed"))
        });
        Progress { steps, bar }
    }

    /// Says something on a line of its own.
    pub(super) fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => write_line(line),
        }
    }

    /// Step `number`, counted from 1, moved `traffic`.
    pub(super) fn stepped(&self, number: u64, traffic: &Traffic) {
        let (pull, push) = (traffic.pull.gigabytes_per_s(), traffic.push.gigabytes_per_s());
        let rates = format!("pull {pull:.2} GB/s, push {push:.2} GB/s");
        match &self.bar {
            Some(bar) => {
                bar.set_message(rates);
                bar.set_position(number);
            }
            None if is_told(number, self.steps) => write_line(&format!("step {number} of {}: {rates}", self.steps)),
            None => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn is_told(number: u64, steps: u64) -> bool {
    number.is_multiple_of(steps.div_ceil(LINES_MAX)) || number == steps
}

/// Writes a line to standard error.
pub(super) fn write_line(line: &str) {
    // A closed standard error must not end a demo.
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_steps_are_told_and_always_the_last() {
        let told = |steps| (1..=steps).filter(|number| is_told(*number, steps)).collect::<Vec<_>>();
        assert_eq!(told(1), [1]);
        assert_eq!(told(3), [1, 2, 3]);
        assert_eq!(told(20), [4, 8, 12, 16, 20]);
        assert_eq!(told(21), [5, 10, 15, 20, 21]);
    }
}
