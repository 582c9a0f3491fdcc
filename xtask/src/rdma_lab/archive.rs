//! The file system that the guest starts with, written as the kernel reads it: a cpio archive in its "newc" form.

use std::collections::BTreeSet;
use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_000;

/// Every part of an archive begins at a multiple of this.
const ALIGNMENT: usize = 4;

/// An archive being written; a path is absolute, its folders are made as they are needed, and the first of two files of
/// one path stays.
pub(crate) struct Archive<W> {
    out: W,
    paths: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, paths: BTreeSet::new() }
    }

    pub(crate) fn contains(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    pub(crate) fn folder(&mut self, path: &str) -> io::Result<()> {
        self.add(path, DIRECTORY, b"")
    }

    /// `mode` are the permissions alone.
    pub(crate) fn file(&mut self, path: &str, mode: u32, contents: &[u8]) -> io::Result<()> {
        self.add(path, FILE | mode, contents)
    }

    /// Writes the end, and gives back what was written to.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, 0, b"")?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn add(&mut self, path: &str, mode: u32, contents: &[u8]) -> io::Result<()> {
        if self.paths.contains(path) {
            return Ok(());
        }
        if let Some((folder, _)) = path.rsplit_once('/')
            && !folder.is_empty()
        {
            self.add(folder, DIRECTORY, b"")?;
        }
        self.paths.insert(path.to_string());
        let inode = self.paths.len();
        self.entry(path.trim_start_matches('/'), inode, mode, contents)
    }

    fn entry(&mut self, name: &str, inode: usize, mode: u32, contents: &[u8]) -> io::Result<()> {
        let size = u32::try_from(contents.len()).map_err(io::Error::other)?;
        // Owner, group, time, device and checksum are 0; a name's length counts its closing 0.
        let header = format!(
            "070701{inode:08x}{mode:08x}{0:08x}{0:08x}{links:08x}{0:08x}{size:08x}{0:08x}{0:08x}{0:08x}{0:08x}{length:08x}{0:08x}",
            0,
            links = 1,
            length = name.len() + 1,
        );
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(name.as_bytes())?;
        self.out.write_all(&[0])?;
        self.pad(header.len() + name.len() + 1)?;
        self.out.write_all(contents)?;
        self.pad(contents.len())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        let padding = written.next_multiple_of(ALIGNMENT) - written;
        self.out.write_all(&[0; ALIGNMENT][..padding])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names, modes and contents of an archive, up to its trailer.
    fn entries(archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let field = |at: usize, which: usize| {
            let digits = &archive[at + 6 + which * 8..at + 6 + which * 8 + 8];
            usize::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()
        };
        let (mut found, mut at) = (Vec::new(), 0);
        loop {
            assert_eq!(&archive[at..at + 6], b"070701");
            let (mode, size, length) = (field(at, 1), field(at, 6), field(at, 11));
            let name = String::from_utf8(archive[at + 110..at + 110 + length - 1].to_vec()).unwrap();
            let contents = (at + 110 + length).next_multiple_of(4);
            at = (contents + size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                assert_eq!(at, archive.len());
                return found;
            }
            found.push((name, mode as u32, archive[contents..contents + size].to_vec()));
        }
    }

    #[test]
    fn folders_come_before_what_is_in_them_and_the_first_file_stays() {
        let mut archive = Archive::new(Vec::new());
        archive.file("/etc/lab/one", 0o644, b"first").unwrap();
        archive.file("/etc/lab/one", 0o755, b"second").unwrap();
        archive.folder("/etc/lab").unwrap();
        archive.file("/etc/two", 0o644, b"").unwrap();
        assert!(archive.contains("/etc/two") && !archive.contains("/two"));
        let expected = [
            ("etc", DIRECTORY, &b""[..]),
            ("etc/lab", DIRECTORY, b""),
            ("etc/lab/one", FILE | 0o644, b"first"),
            ("etc/two", FILE | 0o644, b""),
        ];
        let expected: Vec<_> = expected.map(|(name, mode, bytes)| (name.to_string(), mode, bytes.to_vec())).into();
        assert_eq!(entries(&archive.finish().unwrap()), expected);
    }
}
