//! The kernel's notation for sets of CPUs, and of ports: `0-3,8,10-11`; no I/O.

/// The numbers of a list of CPUs or ports, `0-3,8,10-11`, in ascending order; none where the list cannot be read.
pub fn parse_list(text: &str) -> Option<Vec<usize>> {
    /// More than any kernel supports, and more than there are ports; keeps a broken file from filling the memory.
    const NUMBER_MAX: usize = 1 << 16;
    let mut numbers = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last > NUMBER_MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::parse_list;

    #[test]
    fn lists_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        assert_eq!(parse_list("2,1,2"), Some(vec![1, 2]));
        assert_eq!(parse_list("\n"), Some(vec![]));
    }

    #[test]
    fn what_is_no_list_is_none() {
        for text in ["a", "1-", "3-1", "0-99999999", "-1"] {
            assert_eq!(parse_list(text), None, "{text}");
        }
    }
}
