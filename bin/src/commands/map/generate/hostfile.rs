//! The tasks of a host file, as Open MPI (`host slots=2 max_slots=4`), MPICH (`host:2`) and DeepSpeed (`host slots=2`) read it, or
//! with just a host on each line. Pure except for reading the file; bounded by `SOURCE_BYTES_MAX`.

use std::collections::HashMap;

use sealane_transport::endpoint_map::Host;

use super::job::Job;
use super::{Args, no_tasks, read};
use crate::Failure;
use crate::settings::read_number;

/// Keys for the number of tasks of a host: Open MPI takes all of these as the same.
const COUNT_KEYS: [&str; 3] = ["slots", "count", "cpu"];
/// Other keys in such files, which say nothing about tasks: limits, user names, interfaces, bindings.
const OTHER_KEYS: [&str; 7] = ["max_slots", "max-slots", "maxslots", "username", "user", "ifname", "binding"];

pub(super) fn generate(args: &Args) -> Result<String, Failure> {
    let path = args.hostfile.as_deref().ok_or_else(|| args.needs("--hostfile FILE"))?;
    let hosts = hosts(&read(path)?, &path.display().to_string())?;
    Job::place(&hosts, args.ps_count()?, args.first_task_port())?.map(&args.made_by(), args.ports())
}

/// The hosts with the number of tasks of each, in the order in which they are first named. The numbers of a host that is named
/// again add up, as in MPI.
fn hosts(text: &str, file: &str) -> Result<Vec<(Host, usize)>, Failure> {
    let mut hosts: Vec<(Host, usize)> = Vec::new();
    let mut places: HashMap<Host, usize> = HashMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split_once('#').map_or(line, |(line, _)| line).trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |problem: String| {
            Failure::input(format!(
                "{file}:{number}: {problem}; write a host and its tasks, as in `node1 slots=2`, `node1:2` or `node1`"
            ))
        };
        let (host, count) = host(line).map_err(wrong)?;
        match places.get(&host) {
            Some(&place) => hosts[place].1 = hosts[place].1.saturating_add(count),
            None => {
                places.insert(host.clone(), hosts.len());
                hosts.push((host, count));
            }
        }
    }
    if hosts.is_empty() { Err(no_tasks(file)) } else { Ok(hosts) }
}

/// Reads one line, without its comment.
fn host(line: &str) -> Result<(Host, usize), String> {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap_or_default();
    // Open MPI allows `user@host`.
    let name = name.split_once('@').map_or(name, |(_, host)| host);
    let (name, mut count) = match name.rsplit_once(':') {
        // An IPv6 address has its colons in brackets.
        Some((name, count)) if !count.ends_with(']') => (name, Some(number(count)?)),
        _ => (name, None),
    };
    let host = Host::parse(name).map_err(|problem| problem.to_string())?;
    // `slots = 2` is the same as `slots=2`.
    let settings = words.collect::<Vec<_>>().join(" ").replace(" =", "=").replace("= ", "=");
    for setting in settings.split_whitespace() {
        let (key, value) = setting.split_once('=').ok_or_else(|| format!("{setting:?} is not a setting of a host"))?;
        let key = key.to_ascii_lowercase();
        if COUNT_KEYS.contains(&key.as_str()) {
            let number = number(value)?;
            if count.replace(number).is_some() {
                return Err("the tasks of the host are given twice".to_owned());
            }
        } else if !OTHER_KEYS.contains(&key.as_str()) {
            return Err(format!("{key:?} is not a setting of a host"));
        }
    }
    Ok((host, count.unwrap_or(1)))
}

fn number(text: &str) -> Result<usize, String> {
    match read_number(text) {
        Some(0) => Err("a host has 0 tasks".to_owned()),
        number => number.ok_or_else(|| format!("{text:?} is not a number of tasks")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_hosts(text: &str) -> Result<Vec<(String, usize)>, String> {
        let hosts = hosts(text, "hosts").map_err(|error| error.to_string())?;
        Ok(hosts.into_iter().map(|(host, count)| (host.to_string(), count)).collect())
    }

    #[test]
    fn every_programs_form_is_read() {
        for (line, host, count) in [
            ("node1", "node1", 1),
            ("node1 slots=4", "node1", 4),
            ("node1 slots = 4 max_slots=8", "node1", 4),
            ("node1 slots=4 max-slots=8 # four", "node1", 4),
            ("node1 cpu=2", "node1", 2),
            ("alice@node1 count=3", "node1", 3),
            ("node1:2", "node1", 2),
            ("node1:2 ifname=ib0 binding=user:0,1", "node1", 2),
            ("  10.0.0.7:2\t", "10.0.0.7", 2),
            ("[fd00::1]", "[fd00::1]", 1),
            ("[fd00::1]:3", "[fd00::1]", 3),
            ("[fd00::1] slots=3", "[fd00::1]", 3),
        ] {
            assert_eq!(read_hosts(line).unwrap(), [(host.to_owned(), count)], "{line}");
        }
    }

    #[test]
    fn a_host_that_is_named_again_has_more_tasks_where_it_first_stood() {
        let hosts = read_hosts("# a comment\r\n\nb slots=2\na\r\nB\n").unwrap();
        assert_eq!(hosts, [("b".to_owned(), 3), ("a".to_owned(), 1)]);
    }

    #[test]
    fn what_cannot_be_read_is_said_with_its_line() {
        for (line, says) in [
            ("a slots=x", "\"x\" is not a number of tasks"),
            ("a slots=+1", "\"+1\" is not a number of tasks"),
            ("a slots=", "\"\" is not a number of tasks"),
            ("a:0", "a host has 0 tasks"),
            ("a:", "\"\" is not a number of tasks"),
            ("a:2 slots=2", "given twice"),
            ("a slot=2", "\"slot\" is not a setting of a host"),
            ("a 2", "\"2\" is not a setting of a host"),
            ("+n0 slots=2", "\"+n0\" is not a host name"),
            ("::1", "is not a host name"),
            ("a slots=99999999999999999999", "is not a number of tasks"),
        ] {
            let error = read_hosts(&format!("\n{line}\n")).unwrap_err();
            assert!(error.starts_with("hosts:2: ") && error.contains(says), "{line}: {error}");
            assert!(error.ends_with("as in `node1 slots=2`, `node1:2` or `node1`"), "{error}");
        }
        assert_eq!(read_hosts("# none\n").unwrap_err(), "hosts names no task; write at least one");
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "[a0-9:=@#\\[\\]. \t\r\nslot-]{0,80}") {
            let _ = read_hosts(&text);
        }
    }
}
