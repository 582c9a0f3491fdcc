//! The corpora: inputs that are kept because they reach new code (`corpora/TARGET.tar`), or because they once broke a promise
//! (`corpora/found/TARGET/NAME`, one file each).

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::Target;

/// Names of inputs and their bytes.
pub type Inputs = Vec<(String, Vec<u8>)>;

impl Target {
    /// The archive of its corpus; it is among the sources, so that everyone has what one search has found.
    pub fn corpus_archive(&self) -> PathBuf {
        corpora().join(self.name).with_extension("tar")
    }

    /// The inputs in its archive, which a new target does not have.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub fn archived(&self) -> io::Result<Inputs> {
        let mut inputs = Inputs::new();
        let archive = match File::open(self.corpus_archive()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(inputs),
            archive => archive?,
        };
        for entry in tar::Archive::new(archive).entries()? {
            let mut entry = entry?;
            let mut input = Vec::new();
            entry.read_to_end(&mut input)?;
            inputs.push((entry.path()?.to_string_lossy().into_owned(), input));
        }
        Ok(inputs)
    }

    /// Inputs that once broke one of its promises.
    ///
    /// # Errors
    /// The directory, or a file in it, cannot be read.
    pub fn found(&self) -> io::Result<Inputs> {
        let directory = corpora().join("found").join(self.name);
        if !directory.exists() {
            return Ok(Inputs::new());
        }
        let mut inputs = Inputs::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            inputs.push((format!("found-{}", entry.file_name().to_string_lossy()), fs::read(entry.path())?));
        }
        inputs.sort_unstable();
        Ok(inputs)
    }

    /// All inputs kept for it.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn corpus(&self) -> io::Result<Inputs> {
        Ok([self.found()?, self.archived()?].concat())
    }
}

/// The directory of the corpora.
pub fn corpora() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "corpora"].iter().collect()
}

/// Writes an archive of these inputs; the same inputs always give the same bytes.
///
/// # Errors
/// It cannot be written.
pub fn pack(archive: &Path, inputs: &Inputs) -> io::Result<()> {
    let mut builder = tar::Builder::new(File::create(archive)?);
    for (name, input) in inputs {
        let mut header = tar::Header::new_ustar();
        header.set_size(input.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        builder.append_data(&mut header, name, &input[..])?;
    }
    builder.finish()
}
