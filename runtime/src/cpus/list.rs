//! The kernel's notation for sets of CPUs, `0-3,8,10-11`; no I/O.

/// The CPUs of a list in ascending order; none where the list cannot be read.
pub(super) fn parse(text: &str) -> Option<Vec<usize>> {
    /// More than any kernel supports; keeps a broken file from filling the memory.
    const CPU_MAX: usize = 1 << 16;
    let mut cpus = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last > CPU_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn lists_as_the_kernel_writes_them() {
        assert_eq!(parse("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse("5"), Some(vec![5]));
        assert_eq!(parse("2,1,2"), Some(vec![1, 2]));
        assert_eq!(parse("\n"), Some(vec![]));
    }

    #[test]
    fn what_is_no_list_is_none() {
        for text in ["a", "1-", "3-1", "0-99999999", "-1"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
