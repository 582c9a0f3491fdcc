//! What is printed in the end.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::history::History;
use super::verdict::books::Books;
use super::verdict::{Durations, Verdict, outcomes};

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
    let rows = [
        ("a cable is back until the first tensor", &verdict.reconnected),
        ("a daemon is killed until its peers' waiters are told", &verdict.closed_told),
        ("a client is killed until those are told", &verdict.client_told),
        ("a peer is silent until those are told", &verdict.silent_told),
        ("calls that ended after their deadline: how much", &verdict.late),
    ];
    for (what, times) in rows {
        let _ = writeln!(text, "  {what:52}  {}", summary(times));
    }
    text
}

fn summary(times: &Durations) -> String {
    let mut sorted = times.clone();
    sorted.sort_unstable();
    match sorted[..] {
        [] => "none".into(),
        [.., most] => format!("{}, {}, {}", sorted.len(), sorted[sorted.len() / 2] / 1000, most / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_by_their_median_and_their_most() {
        assert_eq!(summary(&vec![]), "none");
        assert_eq!(summary(&vec![9000, 1000, 2000]), "3, 2, 9");
    }
}
