//! The corpora that are part of the sources: of all inputs that runs have found, as few as reach the same code.

use std::fs;
use std::process::Stdio;

use sealane_tests::fuzz::Target;
use sealane_tests::fuzz::corpus::{Inputs, pack};

use super::hunt::command;
use super::places::Places;

/// Inputs that are kept of one target at most, and their bytes: the sources are not to be drowned in them.
const INPUTS_MAX: usize = 150;
const BYTES_MAX: usize = 64 * 1024;

/// Packs the target's archive in the sources anew; how many inputs it has, and their bytes. What once broke a promise stays
/// beside it as it is.
///
/// # Errors
/// libFuzzer fails, or files cannot be written.
pub(super) fn merge(places: &Places, target: &'static Target) -> Result<String, String> {
    let merged = places.merged(target)?;
    let mut merging = command(places, target)?;
    // By edges alone: how often one is passed makes corpora many times as large.
    merging.args(["-merge=1", "-use_counters=0"]).arg(&merged);
    merging.arg(places.kept(target)?).arg(places.corpus(target)?).arg(places.seeds(target)?);
    let done = merging.stderr(Stdio::piped()).output().map_err(|error| format!("cannot run it: {error}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(format!("the corpora of {} cannot be merged:\n{said}", target.name));
    }
    let unreadable = |error| format!("cannot read {}: {error}", merged.display());
    let mut candidates = Inputs::new();
    for entry in fs::read_dir(&merged).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        candidates
            .push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).map_err(unreadable)?));
    }
    let found = target.found().map_err(|error| format!("cannot read what was found of {}: {error}", target.name))?;
    candidates.retain(|(_, input)| found.iter().all(|(_, known)| known != input));
    // The largest reach the most.
    candidates.sort_by_key(|(_, input)| std::cmp::Reverse(input.len()));
    let (mut inputs, mut bytes) = (Inputs::new(), 0);
    for (name, input) in candidates {
        if inputs.len() + found.len() < INPUTS_MAX && bytes + input.len() <= BYTES_MAX {
            bytes += input.len();
            inputs.push((name, input));
        }
    }
    inputs.sort_unstable();
    let archive = target.corpus_archive();
    pack(&archive, &inputs).map_err(|error| format!("cannot write {}: {error}", archive.display()))?;
    Ok(format!("keeps {} inputs of {bytes} bytes, and {} that once broke something", inputs.len(), found.len()))
}
