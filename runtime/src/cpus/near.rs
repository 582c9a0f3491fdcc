//! The CPUs that are as near to memory as a given one: those of its NUMA node.

use std::{fs, path::Path};

use super::list::parse_list;

/// The CPUs of `allowed` that share a NUMA node with `cpu`; all of `allowed` where the kernel does not tell.
pub(crate) fn near_cpus(cpu: usize, allowed: &[usize]) -> Vec<usize> {
    let near = of_node(Path::new("/sys/devices/system/cpu"), cpu).unwrap_or_default();
    let both: Vec<usize> = allowed.iter().copied().filter(|cpu| near.contains(cpu)).collect();
    if both.is_empty() { allowed.to_vec() } else { both }
}

/// The CPUs of the NUMA node that the CPU's directory links to.
fn of_node(root: &Path, cpu: usize) -> Option<Vec<usize>> {
    let entries = fs::read_dir(root.join(format!("cpu{cpu}"))).ok()?;
    let is_node = |name: &str| name.strip_prefix("node").is_some_and(|number| number.parse::<usize>().is_ok());
    let node = entries.flatten().find(|entry| entry.file_name().to_str().is_some_and(is_node))?;
    parse_list(&fs::read_to_string(node.path().join("cpulist")).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpus_of_a_node_are_near_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for (cpu, node, cpus) in [(0, "node0", "0-1"), (2, "node1", "2-3")] {
            let node = root.join(format!("cpu{cpu}")).join(node);
            fs::create_dir_all(&node).unwrap();
            fs::write(node.join("cpulist"), format!("{cpus}\n")).unwrap();
        }
        assert_eq!(of_node(root, 2), Some(vec![2, 3]));
        assert_eq!(of_node(root, 1), None);
    }

    #[test]
    fn a_cpu_is_near_itself_and_where_nothing_is_known_all_are() {
        assert!(near_cpus(0, &[0, 1 << 15]).contains(&0));
        assert_eq!(near_cpus(1 << 15, &[3, 4]), [3, 4]);
    }
}
