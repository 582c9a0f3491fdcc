//! Hosts as Slurm writes them: `node[01-03,07],gpu-[1,3]x`. Pure; bounded by [`HOSTS_MAX`], which is checked before anything is
//! expanded.

use sealane_transport::endpoint_map::{ENTRIES_MAX, HOST_NAME_BYTES_MAX};

use crate::settings::read_number;

/// Most hosts that a list may name: a map cannot have more tasks.
pub(super) const HOSTS_MAX: usize = ENTRIES_MAX;

/// Every host of the list, in its order.
///
/// # Errors
///
/// What is wrong with the list.
pub(super) fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for term in terms(list)? {
        let too_many = |wanted: usize| match wanted > HOSTS_MAX - hosts.len() {
            true => Err(format!("it names more than {HOSTS_MAX} hosts")),
            false => Ok(()),
        };
        let (mut names, mut rest) = (vec![String::new()], term);
        while let Some((before, after)) = rest.split_once('[') {
            let (inside, after) = after.split_once(']').ok_or("there is no `]` after a `[`")?;
            let ranges = inside.split(',').map(range).collect::<Result<Vec<_>, _>>()?;
            let choices = ranges.iter().fold(0, |sum: usize, range| sum.saturating_add(range.count()));
            too_many(names.len().saturating_mul(choices))?;
            let numbers: Vec<String> = ranges.iter().flat_map(Range::numbers).collect();
            names = names
                .iter()
                .flat_map(|name| numbers.iter().map(move |number| format!("{name}{before}{number}")))
                .collect();
            rest = after;
        }
        too_many(names.len())?;
        names.iter_mut().for_each(|name| name.push_str(rest));
        if let Some(name) = names.iter().find(|name| name.len() > HOST_NAME_BYTES_MAX) {
            return Err(format!("the host {name:?} is longer than {HOST_NAME_BYTES_MAX} bytes"));
        }
        hosts.append(&mut names);
    }
    Ok(hosts)
}

/// The terms between the commas that are outside brackets.
fn terms(list: &str) -> Result<Vec<&str>, String> {
    let (mut terms, mut begin, mut is_inside) = (Vec::new(), 0, false);
    for (at, character) in list.char_indices() {
        match (character, is_inside) {
            ('[', false) => is_inside = true,
            (']', true) => is_inside = false,
            ('[', true) => return Err("there is a second `[` before a `]`".to_owned()),
            (']', false) => return Err("there is a `]` without a `[`".to_owned()),
            (',', false) => {
                terms.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if is_inside {
        return Err("there is no `]` after a `[`".to_owned());
    }
    terms.push(&list[begin..]);
    let terms: Vec<&str> = terms.into_iter().map(str::trim).collect();
    match terms.iter().any(|term| term.is_empty()) {
        true => Err("a host is missing before, between or after the commas".to_owned()),
        false => Ok(terms),
    }
}

/// Numbers from `first` to `last`, written with at least `width` digits.
#[derive(Debug)]
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

impl Range {
    fn count(&self) -> usize {
        usize::try_from(self.last - self.first).map_or(usize::MAX, |steps| steps.saturating_add(1))
    }

    fn numbers(&self) -> impl Iterator<Item = String> {
        (self.first..=self.last).map(|number| format!("{number:0width$}", width = self.width))
    }
}

fn range(text: &str) -> Result<Range, String> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let (Some(first), Some(last)) = (read_number::<u64>(low), read_number::<u64>(high)) else {
        return Err(format!("{text:?} between brackets is neither a number nor a range"));
    };
    if last < first {
        return Err(format!("the range {text:?} ends before it begins"));
    }
    // Slurm pads all numbers of a range like the first. No host name has room for a longer one.
    let width = low.len();
    if width > HOST_NAME_BYTES_MAX {
        return Err(format!("a number between brackets is longer than {HOST_NAME_BYTES_MAX} digits"));
    }
    Ok(Range { first, last, width })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_expanded_as_slurm_does() {
        for (list, hosts) in [
            ("localhost", &["localhost"][..]),
            ("node1,node2", &["node1", "node2"]),
            ("gnode[10,20,25,37]", &["gnode10", "gnode20", "gnode25", "gnode37"]),
            ("node64-[17-20]", &["node64-17", "node64-18", "node64-19", "node64-20"]),
            ("node[01-03,07],gpu-[1,3]x", &["node01", "node02", "node03", "node07", "gpu-1x", "gpu-3x"]),
            ("n[098-101]", &["n098", "n099", "n100", "n101"]),
            ("n[8-10]", &["n8", "n9", "n10"]),
            ("r[1-2]n[01-02].hpc", &["r1n01.hpc", "r1n02.hpc", "r2n01.hpc", "r2n02.hpc"]),
            ("master, tux[2]", &["master", "tux2"]),
        ] {
            assert_eq!(expand(list).unwrap(), hosts, "{list}");
        }
    }

    #[test]
    fn what_cannot_be_expanded_is_said() {
        for (list, says) in [
            ("", "a host is missing"),
            ("a,,b", "a host is missing"),
            ("a[1", "no `]`"),
            ("a1]", "without a `[`"),
            ("a[[1]]", "second `[`"),
            ("a[]", "\"\" between brackets is neither"),
            ("a[1-]", "\"1-\" between brackets is neither"),
            ("a[x]", "\"x\" between brackets is neither"),
            ("a[+1]", "neither"),
            ("a[1-2-3]", "neither"),
            ("a[3-1]", "ends before it begins"),
            ("a[0-65536]", "more than 65536 hosts"),
            ("a[0-18446744073709551615]", "more than 65536 hosts"),
            ("a[0-999][0-999]", "more than 65536 hosts"),
            ("a[0-65535],b", "more than 65536 hosts"),
            ("a[99999999999999999999]", "neither"),
        ] {
            let error = expand(list).unwrap_err();
            assert!(error.contains(says), "{list}: {error}");
        }
        assert_eq!(expand("a[0-65535]").unwrap().len(), HOSTS_MAX);
        assert!(expand(&format!("a[{}1]", "0".repeat(300))).unwrap_err().contains("longer than 253 digits"));
        assert!(expand(&format!("{}[1-2]", "a".repeat(253))).unwrap_err().contains("longer than 253 bytes"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(list in "[a0-9\\[\\],x \\-]{0,40}") {
            if let Ok(hosts) = expand(&list) {
                prop_assert!(hosts.len() <= HOSTS_MAX && !hosts.is_empty());
            }
        }

        #[test]
        fn a_range_names_each_of_its_hosts(first in 0u64..10_000, count in 1u64..50) {
            let last = first + count - 1;
            let hosts = expand(&format!("n[{first}-{last}]x")).unwrap();
            let expected: Vec<_> = (first..=last).map(|number| format!("n{number}x")).collect();
            prop_assert_eq!(hosts, expected);
        }
    }
}
