//! The corpora that are part of the sources: of all inputs that runs have found, as few as reach the same code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sealane_tests::fuzz::Target;

use super::hunt::command;
use super::places::Places;

/// Inputs that are kept of one target at most, and their bytes: the sources are not to be drowned in them.
const INPUTS_MAX: usize = 150;
const BYTES_MAX: u64 = 64 * 1024;
/// What once broke a promise is called so, and stays.
const FOUND_PREFIX: &str = "found-";

/// Makes the target's corpus in the sources anew; how many inputs it has, and their bytes.
///
/// # Errors
/// libFuzzer fails, or files cannot be written.
pub(super) fn merge(places: &Places, target: &'static Target) -> Result<String, String> {
    let kept = target.corpus_directory();
    let merged = places.merged(target)?;
    let mut merging = command(places, target)?;
    // By edges alone: how often one is passed makes corpora many times as large.
    merging.args(["-merge=1", "-use_counters=0"]).arg(&merged);
    merging.arg(&kept).arg(places.corpus(target)?).arg(places.seeds(target)?);
    let done = merging.stderr(Stdio::piped()).output().map_err(|error| format!("cannot run it: {error}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(format!("the corpora of {} cannot be merged:\n{said}", target.name));
    }
    for (path, _) in inputs(&kept)?.iter().filter(|(path, _)| !is_found(path)) {
        fs::remove_file(path).map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
    }
    let found = inputs(&kept)?.len();
    let (mut count, mut bytes) = (0, 0);
    let mut candidates = inputs(&merged)?;
    // The largest reach the most.
    candidates.sort_by_key(|(_, length)| std::cmp::Reverse(*length));
    for (path, length) in candidates {
        if count + found >= INPUTS_MAX || bytes + length > BYTES_MAX {
            continue;
        }
        let name = path.file_name().expect("libFuzzer names what it writes");
        fs::copy(&path, kept.join(name)).map_err(|error| format!("cannot copy {}: {error}", path.display()))?;
        (count, bytes) = (count + 1, bytes + length);
    }
    Ok(format!("keeps {count} inputs of {bytes} bytes, and {found} that once broke something"))
}

fn is_found(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FOUND_PREFIX))
}

/// The files in a folder, with their lengths.
fn inputs(folder: &Path) -> Result<Vec<(PathBuf, u64)>, String> {
    let unreadable = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
    let mut inputs = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        inputs.push((entry.path(), entry.metadata().map_err(unreadable)?.len()));
    }
    inputs.sort_unstable();
    Ok(inputs)
}
