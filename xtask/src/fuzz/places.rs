//! Where fuzzing keeps its files: all below `target/fuzz`, but for the corpora that are part of the sources.

use std::fs;
use std::path::{Path, PathBuf};

use sealane_tests::fuzz::Target;

pub(super) struct Places {
    /// The program with all targets.
    pub(super) program: PathBuf,
    /// `target/fuzz`.
    pub(super) folder: PathBuf,
}

impl Places {
    /// Inputs that former runs found to reach something; runs add to it.
    pub(super) fn corpus(&self, target: &Target) -> Result<PathBuf, String> {
        made(self.folder.join("corpus").join(target.name))
    }

    /// Inputs that break a promise.
    pub(super) fn findings(&self, target: &Target) -> Result<PathBuf, String> {
        made(self.folder.join("findings").join(target.name))
    }

    /// The target's seeds, written anew.
    pub(super) fn seeds(&self, target: &Target) -> Result<PathBuf, String> {
        let folder = emptied(self.folder.join("seeds").join(target.name))?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            write(&folder.join(format!("seed-{number:02}")), seed)?;
        }
        Ok(folder)
    }

    /// The target's corpus of the sources, unpacked anew.
    pub(super) fn kept(&self, target: &Target) -> Result<PathBuf, String> {
        let folder = emptied(self.folder.join("kept").join(target.name))?;
        let inputs = target.corpus().map_err(|error| format!("cannot read the corpus of {}: {error}", target.name))?;
        inputs.iter().try_for_each(|(name, input)| write(&folder.join(name), input))?;
        Ok(folder)
    }

    /// The target's words, as libFuzzer reads them; `None` if it has none.
    pub(super) fn words(&self, target: &Target) -> Result<Option<PathBuf>, String> {
        if target.words.is_empty() {
            return Ok(None);
        }
        let path = made(self.folder.join("words"))?.join(target.name);
        let lines: String = target.words.iter().map(|word| format!("\"{}\"\n", escaped(word))).collect();
        write(&path, lines.as_bytes())?;
        Ok(Some(path))
    }

    /// An empty folder for what is merged.
    pub(super) fn merged(&self, target: &Target) -> Result<PathBuf, String> {
        emptied(self.folder.join("merged").join(target.name))
    }
}

/// A word between quotes: bytes that are not plain in two digits each.
fn escaped(word: &[u8]) -> String {
    let escaped = |byte: &u8| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(*byte)),
        b' '..=b'~' => char::from(*byte).to_string(),
        other => format!("\\x{other:02x}"),
    };
    word.iter().map(escaped).collect()
}

fn made(folder: PathBuf) -> Result<PathBuf, String> {
    fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    Ok(folder)
}

fn emptied(folder: PathBuf) -> Result<PathBuf, String> {
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("cannot empty {}: {error}", folder.display()))?;
    }
    made(folder)
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_written_as_they_are_read() {
        assert_eq!(escaped(b"a \"b\\"), r#"a \"b\\"#);
        assert_eq!(escaped(b"\x93NUMPY\n"), "\\x93NUMPY\\x0a");
    }
}
