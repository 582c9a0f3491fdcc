//! The CPUs that this process may use: its affinity mask, restricted by its cgroup's cpuset.

use std::{
    fs,
    path::{Path, PathBuf},
};

use nix::{
    sched::{CpuSet, sched_getaffinity},
    unistd::Pid,
};

use super::list::parse_list;
use crate::error::RuntimeError;

/// The CPUs that the calling thread may run on, in ascending order: its affinity mask, restricted to its cgroup's cpuset if
/// that can be read.
///
/// # Errors
/// [`RuntimeError::System`] if the mask cannot be read.
pub fn allowed_cpus() -> Result<Vec<usize>, RuntimeError> {
    let mask = sched_getaffinity(Pid::from_raw(0)).map_err(RuntimeError::system("reading the CPU affinity mask"))?;
    let cpus = (0..CpuSet::count()).filter(|cpu| mask.is_set(*cpu).unwrap_or(false)).collect();
    Ok(match cpuset(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup")) {
        Some(set) => intersection(cpus, &set),
        None => cpus,
    })
}

/// A cpuset that shares no CPU with the mask is out of date or not ours; the mask, which the kernel enforces, wins.
fn intersection(cpus: Vec<usize>, set: &[usize]) -> Vec<usize> {
    let both: Vec<_> = cpus.iter().copied().filter(|cpu| set.contains(cpu)).collect();
    if both.is_empty() { cpus } else { both }
}

/// The cpuset of the control group that `membership` names, from the first file that contains one.
fn cpuset(membership: &Path, root: &Path) -> Option<Vec<usize>> {
    let membership = fs::read_to_string(membership).ok()?;
    files(&membership, root).iter().find_map(|file| {
        let cpus = parse_list(&fs::read_to_string(file).ok()?)?;
        (!cpus.is_empty()).then_some(cpus)
    })
}

/// Files that may contain the cpuset, in both versions of control groups. A container sees its own group as the root.
fn files(membership: &str, root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let path = path.trim_start_matches('/');
        let (root, name) = match controllers {
            "" => (root.to_path_buf(), "cpuset.cpus.effective"),
            _ if controllers.split(',').any(|controller| controller == "cpuset") => {
                (root.join("cpuset"), "cpuset.effective_cpus")
            }
            _ => continue,
        };
        files.push(root.join(path).join(name));
        files.push(root.join(name));
    }
    files
}

#[cfg(test)]
mod tests {
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
        let membership = root.join("membership");
        fs::write(&membership, "4:memory:/x\n9:cpu,cpuset:/job\n0::/job/task\n").unwrap();
        assert_eq!(cpuset(&membership, root), None);

        fs::create_dir_all(root.join("job/task")).unwrap();
        fs::write(root.join("job/task/cpuset.cpus.effective"), "1-2\n").unwrap();
        assert_eq!(cpuset(&membership, root), Some(vec![1, 2]));

        fs::create_dir_all(root.join("cpuset/job")).unwrap();
        fs::write(root.join("cpuset/job/cpuset.effective_cpus"), "3\n").unwrap();
        assert_eq!(cpuset(&membership, root), Some(vec![3]));
        assert_eq!(cpuset(&root.join("nothing"), root), None);
    }

    #[test]
    fn the_mask_is_narrowed_but_never_to_nothing() {
        assert_eq!(intersection(vec![0, 1, 2], &[1, 2, 3]), [1, 2]);
        assert_eq!(intersection(vec![0, 1], &[7]), [0, 1]);
    }
}
