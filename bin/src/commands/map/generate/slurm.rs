//! The tasks of a Slurm job, from the variables that Slurm sets in it. Pure except for reading those.

use sealane_transport::endpoint_map::Host;

use super::host_list::{HOSTS_MAX, expand};
use super::job::Job;
use super::{Args, not_set};
use crate::settings::{Environment, read_number};
use crate::{Context, Failure};

/// Variables with the hosts, of which the first that is set counts: the second is the name in old versions.
const NODELIST: [&str; 2] = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"];
/// Variables with the tasks per host, of which the first that is set counts: the allocated number, then the requested one.
const TASKS: [&str; 2] = ["SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"];

pub(super) fn generate(args: &Args, context: &Context) -> Result<String, Failure> {
    let environment = context.environment();
    let list = given(args.nodelist.as_deref(), "--nodelist", NODELIST, environment)?;
    let counts = given(args.tasks_per_node.as_deref(), "--tasks-per-node", TASKS, environment)?;
    let hosts = hosts(list, counts)?;
    Job::place(&hosts, args.ps_count()?, args.first_task_port())?.map(&args.made_by(), args.ports())
}

/// The name of a variable or flag, and its text.
type Given<'a> = (&'static str, &'a str);

fn given<'a>(
    flag: Option<&'a str>,
    flag_name: &'static str,
    variables: [&'static str; 2],
    environment: &'a Environment,
) -> Result<Given<'a>, Failure> {
    if let Some(text) = flag {
        return Ok((flag_name, text));
    }
    for variable in variables {
        if let Some(text) = environment.get(variable)?.filter(|text| !text.trim().is_empty()) {
            return Ok((variable, text));
        }
    }
    Err(not_set(variables[0], "Slurm", flag_name))
}

/// The hosts with the number of tasks of each.
fn hosts((origin, list): Given<'_>, counts: Given<'_>) -> Result<Vec<(Host, usize)>, Failure> {
    let wrong = |problem: String| {
        Failure::input(format!("{origin}={list:?}: {problem}; write hosts as Slurm does, as in node[01-03,07],login1"))
    };
    let names = expand(list).map_err(wrong)?;
    let counts = task_counts(counts, names.len())?;
    let mut hosts: Vec<(Host, usize)> = Vec::new();
    for (name, count) in names.iter().zip(counts) {
        let host = Host::parse(name).map_err(|problem| wrong(format!("the host {problem}")))?;
        hosts.push((host, count));
    }
    Ok(hosts)
}

/// Reads the number of tasks of each host, as in `2(x3),1`. A single number without `(x` applies to every host, as in
/// SLURM_NTASKS_PER_NODE.
fn task_counts((origin, text): Given<'_>, hosts: usize) -> Result<Vec<usize>, Failure> {
    let wrong = || {
        Failure::input(format!("{origin}={text:?} cannot be read; write numbers of tasks as Slurm does, as in 2(x3),1"))
    };
    // Slurm allocates no host without a task.
    let number = |text: &str| read_number(text).filter(|number: &usize| *number > 0);
    if let Some(count) = number(text.trim()) {
        return Ok(vec![count; hosts]);
    }
    let mut counts = Vec::new();
    for term in text.split(',').map(str::trim) {
        let (count, repeats) = match term.split_once("(x") {
            None => (number(term), Some(1)),
            Some((count, repeats)) => (number(count), repeats.strip_suffix(')').and_then(number)),
        };
        let (Some(count), Some(repeats)) = (count, repeats) else {
            return Err(wrong());
        };
        if repeats > HOSTS_MAX - counts.len() {
            return Err(wrong());
        }
        counts.resize(counts.len() + repeats, count);
    }
    if counts.len() != hosts {
        let counted = counts.len();
        return Err(Failure::input(format!(
            "{origin}={text:?} gives tasks for {counted} hosts, but there are {hosts}; give one number for each"
        )));
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counted(list: &str, counts: &str) -> Result<Vec<(String, usize)>, String> {
        let hosts = hosts(("SLURM_JOB_NODELIST", list), ("SLURM_TASKS_PER_NODE", counts));
        let hosts = hosts.map_err(|error| error.to_string())?;
        Ok(hosts.into_iter().map(|(host, count)| (host.to_string(), count)).collect())
    }

    #[test]
    fn every_host_has_its_tasks() {
        let of = |list: &str, counts: &str| -> Vec<usize> {
            counted(list, counts).unwrap().into_iter().map(|(_, count)| count).collect()
        };
        assert_eq!(of("node64-[17-20]", "2(x3),1"), [2, 2, 2, 1]);
        assert_eq!(of("a,b", "2,3"), [2, 3]);
        assert_eq!(of("gnode[10,20,25,37]", "1(x4)"), [1; 4]);
        assert_eq!(of("a[1-5]", "2(x2),1(x3)"), [2, 2, 1, 1, 1]);
        // The format of SLURM_NTASKS_PER_NODE.
        assert_eq!(of("a,b,c", "4"), [4; 3]);
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        for counts in ["", "0", "x", "2(x)", "2(x3", "2(x0)", "2,,1", "-1", "1(x99999999)", "99999999999999999999999"] {
            let error = counted("a,b", counts).unwrap_err();
            let expected =
                format!("SLURM_TASKS_PER_NODE={counts:?} cannot be read; write numbers of tasks as Slurm does");
            assert!(error.starts_with(&expected), "{error}");
        }
        assert_eq!(
            counted("a,b", "2(x3),1").unwrap_err(),
            "SLURM_TASKS_PER_NODE=\"2(x3),1\" gives tasks for 4 hosts, but there are 2; give one number for each"
        );
        assert_eq!(
            counted("a[1", "1").unwrap_err(),
            "SLURM_JOB_NODELIST=\"a[1\": there is no `]` after a `[`; write hosts as Slurm does, as in \
             node[01-03,07],login1"
        );
        assert!(counted("-a", "1").unwrap_err().contains("the host \"-a\" is not a host name"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(list in "[a0-9\\[\\],-]{0,12}", counts in "[0-9(x),]{0,12}") {
            let _ = counted(&list, &counts);
        }
    }
}
