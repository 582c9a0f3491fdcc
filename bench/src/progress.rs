//! How far a run is: a bar when standard error is a terminal, a line a measurement when it is not.
//! Drawn only between rounds, so that it costs the measured systems nothing.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use crate::sample::Sample;

/// Tells the user how far a run is.
#[derive(Debug)]
pub struct Progress {
    display: Display,
    rounds: u32,
}

#[derive(Debug)]
enum Display {
    Silent,
    Bar(ProgressBar),
    Lines,
}

impl Progress {
    /// Says nothing.
    pub fn silent() -> Self {
        Self { display: Display::Silent, rounds: 0 }
    }

    /// A bar on standard error if that is a terminal, else plain lines there.
    pub fn on_stderr() -> Self {
        let display = if io::stderr().is_terminal() { Display::Bar(ProgressBar::hidden()) } else { Display::Lines };
        Self { display, rounds: 0 }
    }

    pub(crate) fn begin(&mut self, rounds: u32, systems: usize) {
        self.rounds = rounds;
        if let Display::Bar(bar) = &mut self.display {
            let style = ProgressStyle::with_template("{bar:32} {pos}/{len} {msg}")
                .expect("the template is a constant that is well formed");
            *bar = ProgressBar::new(u64::from(rounds) * systems as u64).with_style(style);
        }
    }

    pub(crate) fn measured(&mut self, round: u32, system: &str, sample: &Sample) {
        let headline = headline(sample);
        match &self.display {
            Display::Silent => {}
            Display::Bar(bar) => {
                bar.set_message(format!("{system}: {headline}"));
                bar.inc(1);
            }
            Display::Lines => {
                // A closed standard error must not end a measurement.
                let _ = writeln!(io::stderr(), "round {}/{} {system}: {headline}", round + 1, self.rounds);
            }
        }
    }

    pub(crate) fn end(&mut self) {
        if let Display::Bar(bar) = &self.display {
            bar.finish_and_clear();
        }
    }
}

/// Figures that a headline has room for: the first are what a measurement is about.
const HEADLINE_FIGURES: usize = 4;

fn headline(sample: &Sample) -> String {
    let median = sample
        .round_trips
        .iter()
        .map(|histogram| format!("p50 {:.2} µs", histogram.value_at_quantile(0.5) as f64 / 1_000.0));
    let figures = sample.figures.iter().map(|(metric, value)| format!("{value:.2} {}", metric.label()));
    median.chain(figures).take(HEADLINE_FIGURES).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Metric, round_trip_histogram};

    #[test]
    fn a_headline_says_the_median_and_the_first_figures() {
        let mut histogram = round_trip_histogram();
        histogram.saturating_record(6_400);
        let mut sample = Sample::round_trips(histogram);
        sample.figures.push((Metric::GigabytesPerSecond, 8.125));
        assert_eq!(headline(&sample), "p50 6.40 µs, 8.12 GB/s");
        sample.figures.extend([(Metric::StepTime, 1.0); 5]);
        assert_eq!(headline(&sample).matches("step, ms").count(), 2);
        assert_eq!(headline(&Sample::default()), "");
    }
}
