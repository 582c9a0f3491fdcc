//! Counters that one process writes and others read without asking it: a page of memory, which they find by name among its
//! open files. It is gone once the process and its forks are gone, and needs no daemon.

use std::{
    collections::HashSet,
    fs::{self, OpenOptions},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    },
    path::Path,
    sync::{Arc, atomic::AtomicU64},
};

use crate::shm::{
    error::ShmError,
    mapping::{ARENA, Mapping, PAGE, seal_for_readers},
};

/// Number of counters in a page.
pub const COUNTERS: usize = PAGE as usize / 8;

/// A page of counters. Any thread.
#[derive(Debug)]
pub struct CounterPage {
    mapping: Arc<Mapping>,
    /// Others find the page by it.
    _descriptor: OwnedFd,
}

/// The page of some process as it was read; it may hold anything.
#[derive(Debug, Clone)]
pub struct FoundPage {
    /// The process that has it open, by its number as seen from here; after a fork, the one with the lowest number.
    pub process: u32,
    pub counters: [u64; COUNTERS],
}

/// A device and an inode number, which together identify a file.
type Inode = (u64, u64);

impl CounterPage {
    /// A zeroed page with this name, which only this process can write.
    ///
    /// # Errors
    /// [`ShmError::System`] if no descriptor or memory is left.
    pub fn create(name: &str) -> Result<CounterPage, ShmError> {
        let (mapping, descriptor) = Mapping::create(name, PAGE, ARENA)?;
        seal_for_readers(&descriptor)?;
        Ok(CounterPage { mapping, _descriptor: descriptor })
    }

    /// The counter with this number.
    ///
    /// # Panics
    /// If it is not below [`COUNTERS`].
    #[inline]
    pub fn counter(&self, number: usize) -> &AtomicU64 {
        self.mapping.word(number as u64 * 8)
    }

    /// The pages with this name of all processes on this host whose files this one may see: those of its user, or all for root.
    ///
    /// # Errors
    /// The list of processes cannot be read.
    pub fn find(name: &str) -> io::Result<Vec<FoundPage>> {
        let target = format!("/memfd:{name} (deleted)");
        let of_process = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        let mut processes: Vec<u32> = fs::read_dir("/proc")?.filter_map(of_process).collect();
        processes.sort_unstable();
        let (mut seen, mut found) = (HashSet::new(), Vec::new());
        for process in processes {
            // A process of another user shows none, and any process may end meanwhile.
            let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
            let is_page = |path: &Path| fs::read_link(path).is_ok_and(|to| to.as_os_str() == target.as_str());
            for path in files.map(|file| file.path()).filter(|path| is_page(path)) {
                if let Ok((inode, counters)) = read(&path)
                    && seen.insert(inode)
                {
                    found.push(FoundPage { process, counters });
                }
            }
        }
        Ok(found)
    }
}

fn read(path: &Path) -> io::Result<(Inode, [u64; COUNTERS])> {
    // The path may be a pipe by now, and opening it must not block.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let about = file.metadata()?;
    let mut bytes = [0; PAGE as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(((about.dev(), about.ino()), std::array::from_fn(|number| u64::from_ne_bytes(words[number]))))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_page_is_found_by_its_name_while_it_is_there() {
        let name = format!("sealane-test-{}", std::process::id());
        let pages = [3, 4].map(|value| {
            let page = CounterPage::create(&name).unwrap();
            page.counter(COUNTERS - 1).store(value, Ordering::Relaxed);
            page
        });
        let found = || {
            let pages = CounterPage::find(&name).unwrap().into_iter();
            let mut found: Vec<_> = pages.map(|page| (page.process, page.counters[COUNTERS - 1])).collect();
            found.sort_unstable();
            found
        };
        assert_eq!(found(), [(std::process::id(), 3), (std::process::id(), 4)]);
        drop(pages);
        assert_eq!(found(), []);
    }
}
