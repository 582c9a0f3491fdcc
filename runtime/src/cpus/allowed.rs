//! The CPUs that this process may use: its affinity mask, restricted by its cgroup's cpuset.

use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::Pid,
};

use super::list::parse_list;
use crate::cgroup::{ControlGroups, Version, text};
use crate::error::RuntimeError;

/// The CPUs that the calling thread may run on, in ascending order: its affinity mask, restricted to its cgroup's cpuset if
/// that can be read.
///
/// # Errors
/// [`RuntimeError::System`] if the mask cannot be read.
pub fn allowed_cpus() -> Result<Vec<usize>, RuntimeError> {
    let mask = sched_getaffinity(Pid::from_raw(0)).map_err(RuntimeError::system("reading the CPU affinity mask"))?;
    let cpus = (0..CpuSet::count()).filter(|cpu| mask.is_set(*cpu).unwrap_or(false)).collect();
    Ok(match cpuset(&ControlGroups::of_this_process()) {
        Some(set) => intersection(cpus, &set),
        None => cpus,
    })
}

/// A cpuset that shares no CPU with the mask is out of date or not ours; the mask, which the kernel enforces, wins.
fn intersection(cpus: Vec<usize>, set: &[usize]) -> Vec<usize> {
    let both: Vec<_> = cpus.iter().copied().filter(|cpu| set.contains(cpu)).collect();
    if both.is_empty() { cpus } else { both }
}

/// Returns the number of CPUs whose time this process may use: the CPUs of [`allowed_cpus`], or fewer if its control groups have a
/// quota.
///
/// # Errors
/// As [`allowed_cpus`].
pub fn usable_cpus() -> Result<usize, RuntimeError> {
    let allowed = allowed_cpus()?.len();
    Ok(ControlGroups::of_this_process().cpus().map_or(allowed, |quota| quota.min(allowed)))
}

/// Returns the cpuset of the groups, from the first file that contains one.
fn cpuset(groups: &ControlGroups) -> Option<Vec<usize>> {
    groups.directories("cpuset").into_iter().find_map(|(version, group)| {
        let file = match version {
            Version::One => "cpuset.effective_cpus",
            Version::Two => "cpuset.cpus.effective",
        };
        let cpus = parse_list(&text(&group.join(file))?)?;
        (!cpus.is_empty()).then_some(cpus)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn this_process_may_use_a_cpu() {
        let cpus = allowed_cpus().unwrap();
        assert!(!cpus.is_empty());
        assert!(cpus.is_sorted());
    }

    #[test]
    fn the_cpuset_of_either_version_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("proc/self")).unwrap();
        fs::write(root.join("proc/self/cgroup"), "4:memory:/x\n9:cpu,cpuset:/job\n0::/job/task\n").unwrap();
        let cpuset = || super::cpuset(&ControlGroups::below(root));
        assert_eq!(cpuset(), None);

        let hierarchies = root.join("sys/fs/cgroup");
        fs::create_dir_all(hierarchies.join("job/task")).unwrap();
        fs::write(hierarchies.join("job/task/cpuset.cpus.effective"), "1-2\n").unwrap();
        assert_eq!(cpuset(), Some(vec![1, 2]));

        fs::create_dir_all(hierarchies.join("cpuset/job")).unwrap();
        fs::write(hierarchies.join("cpuset/job/cpuset.effective_cpus"), "3\n").unwrap();
        assert_eq!(cpuset(), Some(vec![3]));
        assert_eq!(super::cpuset(&ControlGroups::below(root.join("nothing"))), None);
    }

    #[test]
    fn the_mask_is_narrowed_but_never_to_nothing() {
        assert_eq!(intersection(vec![0, 1, 2], &[1, 2, 3]), [1, 2]);
        assert_eq!(intersection(vec![0, 1], &[7]), [0, 1]);
    }
}
