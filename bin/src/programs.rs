//! The programs of Sealane, which start each other: `sealane bench` runs `sealane-bench`, which starts daemons.

use std::path::PathBuf;

/// A program's path: beside this one if it is there, as after building or installing both, else its bare name, to be found in
/// `PATH`.
pub fn find(name: &str) -> PathBuf {
    let beside = std::env::current_exe().ok().map(|this| this.with_file_name(name));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(name))
}
