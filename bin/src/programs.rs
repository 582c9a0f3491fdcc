//! The programs of Sealane, which run each other: `sealane bench` runs `sealane-bench`, which starts daemons.

use std::path::PathBuf;

/// A program's path: beside this one, as where both were built or installed, else its name, which is looked for in `PATH`.
pub fn find(name: &str) -> PathBuf {
    let beside = std::env::current_exe().ok().map(|this| this.with_file_name(name));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(name))
}
