//! Tensor files: reads and writes `.npy` and `.safetensors`. Runs on the calling thread; a file is read as a whole, and what it
//! claims is checked before it is used.

mod npy;
mod safetensors;

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use nix::unistd::{AccessFlags, access};
use sealane_fusion::{DType, Tensor};

use crate::Failure;

/// Largest file that is read: it must fit into memory, and a larger one is hardly a file of tensors.
const FILE_BYTES_MAX: u64 = 1 << 40;

/// Write buffer: headers and small tensors are written together, large ones bypass it.
const WRITE_BUFFER_BYTES: usize = 64 * 1024;

/// Permissions of a new file, before the process's umask is applied.
const FILE_MODE: u32 = 0o666;

/// The format of a tensor file, known by its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// numpy's: one tensor without a name.
    Npy,
    /// Many tensors, each with its name.
    Safetensors,
}

pub type NamedTensor = (String, Tensor);

impl Format {
    /// The format of a file of that name.
    ///
    /// # Errors
    /// No known format has its extension.
    pub fn of(path: &Path) -> Result<Format, Failure> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("npy") => Ok(Format::Npy),
            Some("safetensors") => Ok(Format::Safetensors),
            _ => {
                let problem = "the name ends in neither .npy nor .safetensors; give it the extension of its format";
                Err(Failure::file(path, problem))
            }
        }
    }
}

/// Reads all tensors of a file. The one in an `.npy` file gets `key`, or else the file's name without extension, as its key; those
/// in a `.safetensors` file have keys, and `key` selects one.
///
/// # Errors
/// The file cannot be read, is not of its format, or holds what cannot be sent.
pub fn read(path: &Path, key: Option<&str>) -> Result<Vec<NamedTensor>, Failure> {
    Format::of(path)?;
    decode(path, read_bytes(path)?, key)
}

/// Like [`read`], for a file whose bytes are already here; the extension of `path` tells its format.
///
/// # Errors
/// As for [`read`], except those of reading.
pub fn decode(path: &Path, bytes: Vec<u8>, key: Option<&str>) -> Result<Vec<NamedTensor>, Failure> {
    let tensors = match Format::of(path)? {
        Format::Npy => {
            let stem = || path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
            let key = key.map_or_else(stem, str::to_owned);
            npy::decode(bytes).map(|tensor| vec![(key, tensor)])
        }
        Format::Safetensors => safetensors::decode(bytes, key),
    };
    tensors.map_err(|problem| Failure::file(path, problem))
}

/// Writes tensors to a file that exists completely or not at all. An `.npy` file takes only the first, and cannot store its key.
///
/// # Errors
/// The file cannot be written, or its format cannot hold a tensor.
///
/// # Panics
/// There is no tensor.
pub fn write(path: &Path, tensors: &[NamedTensor]) -> Result<(), Failure> {
    let parts = parts(path, tensors)?;
    replace(path, parts.iter().map(|part| &**part)).map_err(|error| {
        let remedy = "name a file in a directory that exists and has free space";
        Failure::file(path, format!("cannot be written ({error}); {remedy}"))
    })
}

/// The bytes of the file that [`write()`] makes.
///
/// # Errors
/// Its format cannot hold a tensor.
///
/// # Panics
/// There is no tensor.
pub fn encode(path: &Path, tensors: &[NamedTensor]) -> Result<Vec<u8>, Failure> {
    Ok(parts(path, tensors)?.concat())
}

/// The start of a file, followed by the bytes of its tensors.
fn parts<'a>(path: &Path, tensors: &'a [NamedTensor]) -> Result<Vec<Cow<'a, [u8]>>, Failure> {
    let layout = match Format::of(path)? {
        Format::Npy => npy::header(&tensors[0]).map(|header| (header, vec![0])),
        Format::Safetensors => safetensors::header(tensors),
    };
    let (header, order) = layout.map_err(|problem| Failure::file(path, problem))?;
    let bytes = order.into_iter().map(|index| Cow::Borrowed(tensors[index].1.bytes()));
    Ok(std::iter::once(Cow::Owned(header)).chain(bytes).collect())
}

/// The message that a format cannot hold a tensor.
fn unfit(format: &str, (key, tensor): &NamedTensor, remedy: &str) -> String {
    let what = if tensor.meta().is_dead() { "dead".to_owned() } else { format!("{:?}", tensor.meta()) };
    format!("{format} cannot hold {key}, which is {what}; {remedy}")
}

/// The type of a tensor of plain numbers; `None` for strings and dead tensors, which no file format supports.
fn plain_dtype(tensor: &Tensor) -> Option<DType> {
    let meta = tensor.meta();
    (!meta.is_strings() && !meta.is_dead()).then(|| meta.dtype())
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    let failed = |error: io::Error| Failure::file(path, format!("cannot be read ({error}); name a readable file"));
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    let too_large = || {
        Failure::file(
            path,
            format!("{bytes} bytes do not fit into memory (at most {FILE_BYTES_MAX} are read); split the file"),
        )
    };
    if bytes > FILE_BYTES_MAX {
        return Err(too_large());
    }
    let mut read = Vec::new();
    read.try_reserve_exact(bytes as usize).map_err(|_| too_large())?;
    // If a file grows while it is read, only its first length is read.
    file.take(bytes).read_to_end(&mut read).map_err(failed)?;
    Ok(read)
}

/// The text of a file of at most `bytes_max` bytes.
///
/// # Errors
/// The file cannot be read, is larger, or is not UTF-8.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    // One byte more than the limit tells "too large" from "exactly full".
    File::open(path)?.take(bytes_max + 1).read_to_string(&mut text)?;
    match text.len() as u64 > bytes_max {
        true => Err(io::Error::other(format!("it is larger than {bytes_max} bytes"))),
        false => Ok(text),
    }
}

pub(crate) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Checks whether a file can be made in a directory. Tried with an unnamed file, so that nothing is left whatever happens next.
pub(crate) fn may_create_in(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let tried = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(directory);
    match tried.map_err(|error| (error.raw_os_error(), error)) {
        // The file system does not support unnamed files.
        Err((Some(libc::EOPNOTSUPP | libc::EISDIR), _)) => {
            Ok(access(directory, AccessFlags::W_OK | AccessFlags::X_OK)?)
        }
        Err((_, error)) => Err(error),
        Ok(_) => Ok(()),
    }
}

/// Replaces a file as a whole, or leaves the old contents.
pub(crate) fn replace<'a>(path: &Path, parts: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
    replace_as(path, FILE_MODE, parts)
}

/// Like [`replace`]; `mode` is the file's, less the umask.
pub(crate) fn replace_as<'a>(path: &Path, mode: u32, parts: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".sealane-").permissions(std::fs::Permissions::from_mode(mode));
    let file = builder.tempfile_in(directory_of(path))?;
    let mut out = BufWriter::with_capacity(WRITE_BUFFER_BYTES, &file);
    for part in parts {
        out.write_all(part)?;
    }
    out.flush()?;
    drop(out);
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(elements: &[f32]) -> Tensor {
        Tensor::from_elements(&[elements.len() as u64], elements).unwrap()
    }

    #[test]
    fn the_extension_tells_the_format() {
        assert_eq!(Format::of(Path::new("a/b.npy")).unwrap(), Format::Npy);
        assert_eq!(Format::of(Path::new("b.safetensors")).unwrap(), Format::Safetensors);
        for name in ["b", "b.npz", "npy", "b.npy.gz"] {
            let error = Format::of(Path::new(name)).unwrap_err().to_string();
            assert!(error.contains("neither .npy nor .safetensors"), "{error}");
        }
    }

    #[test]
    fn a_file_comes_back_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let tensors = [("b".to_owned(), tensor(&[1.0])), ("a/x".to_owned(), tensor(&[2.0, 3.0]))];
        for (name, keys) in [("w.npy", &["w"][..]), ("w.safetensors", &["a/x", "b"])] {
            let path = directory.path().join(name);
            write(&path, &tensors).unwrap();
            let mut read = read(&path, None).unwrap();
            read.sort_by(|(one, _), (other, _)| one.cmp(other));
            assert_eq!(read.iter().map(|(key, _)| key).collect::<Vec<_>>(), keys);
            let (_, last) = read.last().unwrap();
            assert_eq!(last.elements::<f32>().unwrap(), [1.0]);
        }
        let chosen = read(&directory.path().join("w.npy"), Some("k")).unwrap();
        assert_eq!(chosen[0].0, "k");
        let left: Vec<_> = std::fs::read_dir(&directory).unwrap().collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let error = read(&path("none.npy"), None).unwrap_err().to_string();
        assert!(error.contains("none.npy: cannot be read ("), "{error}");
        std::fs::write(path("short.npy"), b"x").unwrap();
        let error = read(&path("short.npy"), None).unwrap_err().to_string();
        assert!(error.starts_with(path("short.npy").to_str().unwrap()), "{error}");
        let error = write(&path("none/w.npy"), &[("w".to_owned(), tensor(&[]))]).unwrap_err().to_string();
        assert!(error.contains("none/w.npy: cannot be written ("), "{error}");
        File::create(path("large.npy")).unwrap().set_len(FILE_BYTES_MAX + 1).ok();
        if path("large.npy").metadata().unwrap().len() > FILE_BYTES_MAX {
            let error = read(&path("large.npy"), None).unwrap_err().to_string();
            assert!(error.contains("bytes do not fit into memory"), "{error}");
        }
    }

    #[test]
    fn strings_and_dead_tensors_fit_no_format() {
        let directory = tempfile::tempdir().unwrap();
        let strings = Tensor::from_strings(&[1], &["x"]).unwrap();
        let dead = Tensor::dead(DType::F32);
        for (tensor, what) in [(strings, "strings[1]"), (dead, "dead")] {
            let tensors = [("k".to_owned(), tensor)];
            for name in ["w.npy", "w.safetensors"] {
                let error = write(&directory.path().join(name), &tensors).unwrap_err().to_string();
                assert!(error.contains(&format!("cannot hold k, which is {what}; ")), "{error}");
            }
        }
    }
}
