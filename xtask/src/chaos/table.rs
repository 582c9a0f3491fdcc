//! What is printed in the end.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::history::History;
use super::verdict::books::Books;
use super::verdict::{Verdict, outcomes};

pub(crate) fn table(books: &Books, history: &History, verdict: &Verdict) -> String {
    let mut text = String::from("\ndeeds\n");
    let mut deeds: BTreeMap<String, usize> = BTreeMap::new();
    for done in &history.done {
        // Without the numbers of hosts and tasks, sizes and rates.
        let name = done.deed.to_string();
        let kind: String = name.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        *deeds.entry(kind).or_default() += 1;
    }
    for (kind, count) in deeds {
        let _ = writeln!(text, "  {count:6}  {kind}");
    }
    text += "calls\n";
    for (kind, ends) in outcomes(books) {
        let ends: Vec<String> = ends.iter().map(|(end, count)| format!("{count} {end}")).collect();
        let _ = writeln!(text, "  {kind:15}  {}", ends.join(", "));
    }
    text += "times (ms: count, median, most)\n";
    for (what, times) in &verdict.times {
        let mut sorted = times.clone();
        sorted.sort_unstable();
        if let [.., most] = sorted[..] {
            let (count, median) = (sorted.len(), sorted[sorted.len() / 2] / 1000);
            let _ = writeln!(text, "  {what:52}  {count}, {median}, {}", most / 1000);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::Patience;

    #[test]
    fn times_are_told_by_their_median_and_their_most() {
        let verdict =
            Verdict { times: [("what", vec![9000, 1000, 2000]), ("none", vec![])].into(), ..Verdict::default() };
        let history = History::new(Patience::Short, 0);
        let text = table(&Books::default(), &history, &verdict);
        assert!(text.ends_with(&format!("  {:52}  3, 2, 9\n", "what")) && !text.contains("none"), "{text}");
    }
}
