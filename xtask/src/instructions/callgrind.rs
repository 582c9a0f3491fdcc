//! What callgrind writes, as far as it is needed: each function's own costs. The format is in valgrind's manual, "Callgrind format
//! specification"; strings and positions are not compressed.

use std::collections::BTreeMap;

/// The costs of a run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Profile {
    pub(super) instructions: u64,
    pub(super) system_calls: u64,
    /// Instructions, by function.
    pub(super) functions: BTreeMap<String, u64>,
}

/// Reads a profile whose events are Ir, sysCount and sysTime.
///
/// # Errors
/// It is none.
pub(super) fn read(text: &str) -> Result<Profile, String> {
    let mut profile = Profile::default();
    let (mut function, mut is_call) = ("", false);
    for line in text.lines() {
        if let Some(events) = line.strip_prefix("events: ") {
            if !events.starts_with("Ir sysCount") {
                return Err(format!("callgrind has counted {events}, not Ir and sysCount"));
            }
        } else if let Some(name) = line.strip_prefix("fn=") {
            function = without_hash(name);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            // What a call has cost is its function's own, too.
            if std::mem::take(&mut is_call) {
                continue;
            }
            let mut costs = line.split(' ').skip(1);
            let mut cost = || costs.next().map_or(Ok(0), |cost| cost.parse().map_err(|_| format!("no costs: {line}")));
            let (instructions, system_calls): (u64, u64) = (cost()?, cost()?);
            profile.instructions += instructions;
            profile.system_calls += system_calls;
            match profile.functions.get_mut(function) {
                Some(count) => *count += instructions,
                None => drop(profile.functions.insert(function.to_owned(), instructions)),
            }
        }
    }
    if profile.instructions == 0 {
        return Err("callgrind has counted nothing".into());
    }
    Ok(profile)
}

/// A function's path without the hash that each build has anew.
fn without_hash(name: &str) -> &str {
    let path = name.split('\'').next().unwrap_or(name);
    match path.rfind("::h") {
        Some(at) if path.len() - at == 19 => &path[..at],
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# callgrind format
events: Ir sysCount sysTime
summary: 112 1 3

fl=???
fn=sealane::turn::h0123456789abcdef
12 5
13 7
cfn=write
calls=1 0
13 100 1 3
14 0 0
fn=write
0 100 1 3
fn=sealane::turn::h0123456789abcdef
fi=/inlined.rs
20 3
";

    #[test]
    fn each_functions_own_costs_are_summed() {
        let profile = read(TEXT).unwrap();
        assert_eq!((profile.instructions, profile.system_calls), (115, 1));
        let functions = BTreeMap::from([("sealane::turn".to_owned(), 15), ("write".to_owned(), 100)]);
        assert_eq!(profile.functions, functions);
    }

    #[test]
    fn what_is_no_profile_is_refused() {
        assert!(read("").is_err());
        assert!(read("events: Cycles\nfn=a\n1 2").is_err());
        assert!(read("events: Ir sysCount\nfn=a\n1 x").is_err());
    }
}
