//! What the kernel reports in `/sys` and `/proc`, below a root that a test may set up itself. Each file is read up to
//! [`FILE_BYTES_MAX`]; one that is missing, unreadable or malformed is `None`.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use sealane_runtime::parse_list;

/// Most bytes that are read from a file: the longest CPU lists of the largest machines.
const FILE_BYTES_MAX: u64 = 64 * 1024;

#[derive(Clone, Debug)]
pub(super) struct Kernel {
    root: PathBuf,
}

impl Kernel {
    /// The kernel whose `sys` and `proc` lie in `root`; `/` for this host.
    pub(super) fn at(root: impl Into<PathBuf>) -> Kernel {
        Kernel { root: root.into() }
    }

    /// The path of a file or directory, given relative to the root.
    pub(super) fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.root.join(below)
    }

    /// The trimmed text of a file.
    pub(super) fn text(&self, below: impl AsRef<Path>) -> Option<String> {
        let mut text = String::new();
        File::open(self.path(below)).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned())
    }

    pub(super) fn number<N: std::str::FromStr>(&self, below: impl AsRef<Path>) -> Option<N> {
        self.text(below)?.parse().ok()
    }

    /// The numbers in a file, separated by spaces or tabs.
    pub(super) fn numbers(&self, below: impl AsRef<Path>) -> Option<Vec<u64>> {
        self.text(below)?.split_whitespace().map(|word| word.parse().ok()).collect()
    }

    /// The CPUs or ports that a file lists, such as `0-3,8`, in ascending order.
    pub(super) fn listed(&self, below: impl AsRef<Path>) -> Option<Vec<usize>> {
        parse_list(&self.text(below)?)
    }

    /// The word in brackets, the selected one, of a file that lists all choices: `always [madvise] never`.
    pub(super) fn chosen(&self, below: impl AsRef<Path>) -> Option<String> {
        let text = self.text(below)?;
        let (chosen, _) = text.split_once('[')?.1.split_once(']')?;
        Some(chosen.to_owned())
    }

    /// The names in a directory, in order.
    pub(super) fn names(&self, below: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(below)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

/// Formats ranges as the kernel does: `0-3,8`.
pub(super) fn list(cpus: &[usize]) -> String {
    let runs = cpus.chunk_by(|one, next| one + 1 == *next);
    let runs = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        run => run.iter().map(ToString::to_string).collect(),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// Creates the given kernel files in a directory of their own.
#[cfg(test)]
pub(super) fn laid_out(files: &[(&str, &str)]) -> (tempfile::TempDir, Kernel) {
    let directory = tempfile::tempdir().unwrap();
    for (below, text) in files {
        let path = directory.path().join(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    let kernel = Kernel::at(directory.path());
    (directory, kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_in_the_kernels_forms() {
        let (_directory, kernel) = laid_out(&[
            ("a/number", "42"),
            ("a/negative", "-1"),
            ("a/numbers", "4096\t131072\t6291456"),
            ("a/cpus", "2-3,0,8"),
            ("a/none", ""),
            ("a/choice", "always [madvise] never"),
            ("huge", "0-99999999"),
        ]);
        assert_eq!(kernel.number("a/number"), Some(42u64));
        assert_eq!(kernel.number("a/negative"), Some(-1i32));
        assert_eq!(kernel.numbers("a/numbers"), Some(vec![4096, 131_072, 6_291_456]));
        assert_eq!(kernel.listed("a/cpus"), Some(vec![0, 2, 3, 8]));
        assert_eq!(kernel.listed("a/none"), Some(vec![]));
        assert_eq!(kernel.chosen("a/choice").as_deref(), Some("madvise"));
        assert_eq!(kernel.names("a").len(), 6);
        // A missing or unreadable value is `None`.
        assert_eq!((kernel.text("b"), kernel.number::<u64>("a/cpus"), kernel.numbers("a/choice")), (None, None, None));
        assert_eq!((kernel.listed("huge"), kernel.listed("a/choice"), kernel.chosen("a/cpus")), (None, None, None));
        assert!(kernel.names("b").is_empty());
    }

    #[test]
    fn lists_runs() {
        assert_eq!(list(&[]), "");
        assert_eq!(list(&[0]), "0");
        assert_eq!(list(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
