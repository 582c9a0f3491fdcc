//! The corpora: inputs that are kept because they reach something, or once broke something. One directory a target.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::Target;

impl Target {
    /// Where its corpus is kept: in the sources, so that one that is found is there for everyone from then on.
    pub fn corpus_directory(&self) -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "corpora", self.name].iter().collect()
    }

    /// The inputs of its corpus, each with the name of its file, by name.
    ///
    /// # Errors
    /// The directory, or a file in it, cannot be read.
    pub fn corpus(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut inputs = Vec::new();
        for entry in fs::read_dir(self.corpus_directory())? {
            let entry = entry?;
            inputs.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
        }
        inputs.sort_unstable();
        Ok(inputs)
    }
}
