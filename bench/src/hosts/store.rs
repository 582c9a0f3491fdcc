//! Where the ranks of a group find each other: a directory on each host, and what keeps both directories equal until all have met.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use sealane::{Error, Store};

use crate::error::BenchError;
use crate::limits::{STORED_BYTES_MAX, STORED_KEYS_MAX};
use crate::peer::OtherHost;

/// Time between two checks for keys.
const LOOK: Duration = Duration::from_millis(1);

/// The beginning of the name of a file, so that no key is another path.
const KEY: &str = "key-";

/// A store with a file for each key.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    fn file(&self, key: &str) -> PathBuf {
        self.0.join(format!("{KEY}{}", key.replace('/', "-")))
    }

    /// The names of all files, each with its value.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(super) fn values(&self) -> Result<Vec<(String, Vec<u8>)>, BenchError> {
        let failed = || BenchError::io("read the directory of the ranks");
        let mut values = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name().to_string_lossy().into_owned();
            if name.starts_with(KEY) {
                values.push((name.clone(), fs::read(self.0.join(name)).map_err(failed())?));
            }
        }
        Ok(values)
    }

    /// Writes a file that another host has.
    ///
    /// # Errors
    /// The name is no file of a store, there are too many, or the file cannot be written.
    pub(super) fn write(&self, name: &str, value: &[u8]) -> Result<(), BenchError> {
        let is_file = name.starts_with(KEY) && !name.contains('/') && value.len() <= STORED_BYTES_MAX;
        if !is_file || self.values()?.len() >= STORED_KEYS_MAX {
            return Err(BenchError::failed("the ranks", "share their store")(format!("{name:?} is not accepted")));
        }
        self.rename(&self.0.join(name), value).map_err(BenchError::io("write to the directory of the ranks"))
    }

    /// Renamed when complete, so that nobody reads half of a file.
    fn rename(&self, file: &Path, value: &[u8]) -> std::io::Result<()> {
        let part = tempfile::NamedTempFile::new_in(&self.0)?;
        fs::write(part.path(), value)?;
        part.persist(file)?;
        Ok(())
    }
}

impl Store for Directory {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        let written = self.rename(&self.file(key), value);
        written.map_err(|error| Error::unavailable("the ranks' directory", error.to_string()))
    }

    fn get(&self, key: &str, limit: Duration) -> Result<Vec<u8>, Error> {
        let until = Instant::now() + limit;
        loop {
            match fs::read(self.file(key)) {
                Ok(value) => return Ok(value),
                Err(error) if Instant::now() >= until => {
                    return Err(Error::unavailable("the ranks' directory", error.to_string()));
                }
                Err(_) => thread::sleep(LOOK),
            }
        }
    }
}

/// Copies keys between the directory and that of the other host, until `is_over`.
///
/// # Errors
/// One of them cannot be reached.
pub(crate) fn mirror(here: &Directory, there: &OtherHost, is_over: impl Fn() -> bool) -> Result<(), BenchError> {
    let mut copied = BTreeSet::new();
    while !is_over() {
        for (name, value) in there.values()? {
            if copied.insert(name.clone()) {
                here.write(&name, &value)?;
            }
        }
        for (name, value) in here.values()? {
            if copied.insert(name.clone()) {
                there.write(name, value)?;
            }
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_accepts_only_names_of_keys() {
        let place = tempfile::tempdir().unwrap();
        let store = Directory::at(place.path());
        store.set("a/b", b"1").unwrap();
        assert_eq!(store.get("a/b", Duration::ZERO).unwrap(), b"1");
        assert_eq!(store.values().unwrap(), [("key-a-b".to_owned(), b"1".to_vec())]);
        store.write("key-c", b"2").unwrap();
        assert_eq!(store.get("c", Duration::ZERO).unwrap(), b"2");
        let long = vec![0; STORED_BYTES_MAX + 1];
        for (name, value) in [("other", &b""[..]), ("../key-c", b""), ("key-/../../c", b""), ("key-d", &long)] {
            assert!(store.write(name, value).is_err(), "{name}");
        }
        assert!(store.get("d", Duration::ZERO).is_err());
    }
}
