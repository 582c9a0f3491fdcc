//! Publications and pulls.

use std::collections::{HashMap, HashSet};

use super::books::Books;
use super::{Verdict, unprovoked};
use crate::chaos::history::History;
use crate::traffic::ledger::{Outcome, What};

pub(super) fn judge(books: &Books, history: &History, verdict: &mut Verdict) {
    let published: HashSet<(usize, i64)> = books
        .calls()
        .filter_map(|call| match call.what {
            What::Publish { version } => Some((call.task, version)),
            _ => None,
        })
        .collect();
    // By consumer, producer and key.
    let mut newest: HashMap<(usize, usize, usize), i64> = HashMap::new();
    for call in books.calls() {
        match call.what {
            What::Publish { .. } => verdict.violations.extend(unprovoked(call, &[call.task], history)),
            What::Pull { from, min } => {
                verdict.violations.extend(unprovoked(call, &[from, call.task], history));
                let Some(Outcome::Pulled(versions)) = call.outcome() else { continue };
                let mut blame = |what: &str| verdict.violations.push(format!("{what} {call}"));
                let is_calm = || history.is_calm(&[from, call.task], call.began, call.over());
                if versions.iter().any(Option::is_none) && call.began >= history.start && is_calm() {
                    blame("nothing was done to those two, and not all came");
                }
                for (key, version) in versions.iter().enumerate() {
                    let Some(version) = *version else { continue };
                    if version < min {
                        blame("older than it was asked for");
                    }
                    if !published.contains(&(from, version)) {
                        blame("a version that was never published");
                    }
                    let newest = newest.entry((call.task, from, key)).or_insert(version);
                    if version < *newest {
                        blame("a version went back");
                    }
                    *newest = version.max(*newest);
                }
            }
            _ => {}
        }
    }
}
