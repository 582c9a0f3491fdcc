//! The control groups that contain this process, in both versions of the kernel's interface, and what they limit. A limit of any
//! ancestor counts; the smallest one applies.
//!
//! Threads: any. Limits: [`FILE_BYTES_MAX`] bytes of each file, and one directory for each part of a group's path.

use std::{
    fs::File,
    io::Read,
    path::{Component, Path, PathBuf},
};

/// Bytes that are read of a file: a group's statistics have a few KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// A group's interface: the files of the first version differ from those of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Two,
}

/// The control groups of a process.
#[derive(Clone, Debug)]
pub struct ControlGroups {
    /// Where the kernel's hierarchies are mounted.
    root: PathBuf,
    /// The process's groups, as in `/proc/self/cgroup`.
    membership: String,
}

/// The memory limit of a control group, and the use that counts against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The file that holds the limit.
    pub file: PathBuf,
    pub limit_bytes: u64,
    /// Bytes that the group's processes can still use: what they do not use, and the page cache of files.
    pub available_bytes: u64,
}

impl ControlGroups {
    /// Returns the control groups of this process.
    pub fn of_this_process() -> ControlGroups {
        ControlGroups::below("/")
    }

    /// Returns the control groups of a process whose `proc/self` and `sys` lie in `root`.
    pub fn below(root: impl AsRef<Path>) -> ControlGroups {
        let root = root.as_ref();
        let membership = text(&root.join("proc/self/cgroup")).unwrap_or_default();
        ControlGroups { root: root.join("sys/fs/cgroup"), membership }
    }

    /// Returns the directories of the groups that `controller` limits, each followed by its ancestors. A directory may not exist: a
    /// container has its own group as the root of a hierarchy, but `/proc/self/cgroup` may have the group's path on the host.
    pub(crate) fn directories(&self, controller: &str) -> Vec<(Version, PathBuf)> {
        let mut directories = Vec::new();
        for line in self.membership.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let hierarchies = match controllers {
                // Next to hierarchies of the first version, the second one has a directory of its own.
                "" => vec![(Version::Two, self.root.clone()), (Version::Two, self.root.join("unified"))],
                _ if controllers.split(',').any(|one| one == controller) => {
                    vec![(Version::One, self.root.join(controller))]
                }
                _ => continue,
            };
            // A group outside this process's namespace has `..` in its path.
            let names = Path::new(path).components().filter(|part| matches!(part, Component::Normal(_)));
            let below: PathBuf = names.collect();
            for (version, hierarchy) in hierarchies {
                directories.extend(below.ancestors().map(|group| (version, hierarchy.join(group))));
            }
        }
        directories
    }

    /// Returns the memory limit that leaves the least; `None` if no group has one.
    pub fn memory(&self) -> Option<MemoryLimit> {
        let limits = self.directories("memory").into_iter().filter_map(|(version, group)| {
            let (limit, used, cached) = match version {
                Version::One => {
                    ("memory.limit_in_bytes", "memory.usage_in_bytes", ["total_inactive_file", "total_active_file"])
                }
                Version::Two => ("memory.max", "memory.current", ["inactive_file", "active_file"]),
            };
            let file = group.join(limit);
            // The word `max`, or in the first version a number near 2^63, means no limit.
            let limit_bytes = number(&file).filter(|bytes| *bytes < 1 << 62)?;
            let statistics = text(&group.join("memory.stat")).unwrap_or_default();
            let cached = cached.map(|name| field(&statistics, name).unwrap_or(0)).iter().sum();
            let used = number(&group.join(used)).unwrap_or(0).saturating_sub(cached);
            Some(MemoryLimit { file, limit_bytes, available_bytes: limit_bytes.saturating_sub(used) })
        });
        limits.min_by_key(|limit| limit.available_bytes)
    }

    /// Returns the number of CPUs whose time the groups may use, rounded up; `None` if no group has a quota.
    pub fn cpus(&self) -> Option<usize> {
        let quotas = self.directories("cpu").into_iter().filter_map(|(version, group)| {
            let (quota, period) = match version {
                Version::One => (number(&group.join("cpu.cfs_quota_us"))?, number(&group.join("cpu.cfs_period_us"))?),
                Version::Two => {
                    let both = text(&group.join("cpu.max"))?;
                    let (quota, period) = both.split_once(' ')?;
                    (quota.parse().ok()?, period.parse().ok()?)
                }
            };
            (period > 0).then(|| quota.div_ceil(period).max(1) as usize)
        });
        quotas.min()
    }
}

/// Returns the trimmed text of a file; `None` if the file cannot be read.
pub(crate) fn text(file: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(file).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

fn number(file: &Path) -> Option<u64> {
    text(file)?.parse().ok()
}

/// Returns the number after `name` in a text with one pair per line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Kernel files in a directory of their own.
    fn groups(files: &[(&str, &str)]) -> (tempfile::TempDir, ControlGroups) {
        let directory = tempfile::tempdir().unwrap();
        for (below, text) in files {
            let path = directory.path().join(below);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        let groups = ControlGroups::below(directory.path());
        (directory, groups)
    }

    #[test]
    fn smallest_limit_of_the_ancestors_applies() {
        let (_directory, groups) = groups(&[
            ("proc/self/cgroup", "0::/pod/container"),
            ("sys/fs/cgroup/pod/container/memory.max", "max"),
            ("sys/fs/cgroup/pod/container/cpu.max", "max 100000"),
            ("sys/fs/cgroup/pod/memory.max", "268435456"),
            ("sys/fs/cgroup/pod/memory.current", "134217728"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 5\ninactive_file 33554432\nactive_file 0"),
            ("sys/fs/cgroup/pod/cpu.max", "150000 100000"),
            ("sys/fs/cgroup/memory.max", "1073741824"),
            ("sys/fs/cgroup/cpu.max", "400000 100000"),
        ]);
        let memory = groups.memory().unwrap();
        assert_eq!((memory.limit_bytes, memory.available_bytes), (256 * MIB, 160 * MIB));
        assert!(memory.file.ends_with("pod/memory.max"));
        assert_eq!(groups.cpus(), Some(2));
    }

    #[test]
    fn first_version_is_read() {
        let (_directory, groups) = groups(&[
            ("proc/self/cgroup", "4:memory:/a/b\n2:cpu,cpuacct:/a\n0::/"),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "134217728"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "67108864"),
            ("sys/fs/cgroup/memory/a/memory.stat", "total_inactive_file 1048576\ntotal_active_file 1048576"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000"),
        ]);
        let memory = groups.memory().unwrap();
        assert_eq!((memory.limit_bytes, memory.available_bytes), (128 * MIB, 66 * MIB));
        assert_eq!(groups.cpus(), None);
    }

    #[test]
    fn container_reads_its_own_group_at_the_root() {
        let (_directory, groups) = groups(&[
            ("proc/self/cgroup", "4:memory:/docker/5f\n2:cpu:/docker/5f\n0::/../.."),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"),
        ]);
        assert_eq!(groups.memory().unwrap().available_bytes, MIB);
        assert_eq!(groups.cpus(), Some(1));
    }

    #[test]
    fn missing_files_set_no_limit() {
        let (_directory, groups) = groups(&[("proc/self/cgroup", "nonsense\n0::/"), ("sys/fs/cgroup/cpu.max", "1 0")]);
        assert_eq!((groups.memory(), groups.cpus()), (None, None));
    }
}
