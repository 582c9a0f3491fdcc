//! This host's memory: whether the slabs fit, which pages they get, and on which NUMA node they are. Pure but for reading
//! `/proc` and `/sys`.

use serde::Serialize;

use super::kernel::Kernel;
use super::verdict::{Finding, advice};

/// Where the kernel lists the pools of huge pages.
const HUGE_POOLS: &str = "sys/kernel/mm/hugepages";
/// Where it says what it does with huge pages that nobody reserved.
const TRANSPARENT: &str = "sys/kernel/mm/transparent_hugepage/enabled";
const MEMINFO: &str = "proc/meminfo";

/// The memory.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Memory {
    /// What programs may still use, as the kernel estimates; `null` where it does not say.
    available_bytes: Option<u64>,
    /// What a daemon populates when it starts.
    slabs_bytes: u64,
    /// `always`, `madvise` or `never`; `null` where the kernel has none.
    transparent_huge_pages: Option<String>,
    huge_pages: Vec<Pool>,
}

/// A pool of reserved huge pages.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Pool {
    page_bytes: u64,
    total: u64,
    free: u64,
}

impl Memory {
    /// Reads it, for a daemon whose slabs have so many bytes together.
    pub(super) fn look(kernel: &Kernel, slabs_bytes: u64) -> Memory {
        let meminfo = kernel.text(MEMINFO).unwrap_or_default();
        let pool = |name: String| {
            let kibibytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let number = |file| kernel.number(format!("{HUGE_POOLS}/{name}/{file}"));
            Some(Pool { page_bytes: kibibytes * 1024, total: number("nr_hugepages")?, free: number("free_hugepages")? })
        };
        let mut huge_pages: Vec<Pool> = kernel.names(HUGE_POOLS).into_iter().filter_map(pool).collect();
        huge_pages.sort_by_key(|pool| pool.page_bytes);
        Memory {
            available_bytes: crate::host::available_in(&meminfo),
            slabs_bytes,
            transparent_huge_pages: kernel.chosen(TRANSPARENT),
            huge_pages,
        }
    }

    /// What is to be said of it.
    pub(super) fn findings(&self) -> Vec<Finding> {
        vec![self.room(), self.pages(), self.reserved()]
    }

    fn room(&self) -> Finding {
        const NAME: &str = "memory";
        let slabs = mebibytes(self.slabs_bytes);
        let Some(available) = self.available_bytes else {
            return Finding::ok(
                NAME,
                format!("slabs take {slabs}; the kernel does not report how much memory is free"),
            );
        };
        let says = format!("slabs take {slabs} of {} available", mebibytes(available));
        if self.slabs_bytes > available {
            let remedy = advice("lower runtime.shards, runtime.slab_send_bytes or runtime.slab_receive_bytes");
            return Finding::fails(NAME, format!("{says}, and are populated at startup"), remedy);
        }
        Finding::ok(NAME, says)
    }

    /// Slabs ask for huge pages by `madvise`.
    fn pages(&self) -> Finding {
        const NAME: &str = "huge pages";
        match self.transparent_huge_pages.as_deref() {
            Some("never") => Finding::better(
                NAME,
                "transparent: never, so slabs use 4 KiB pages",
                "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
            ),
            Some(choice) => Finding::ok(NAME, format!("transparent: {choice}, so slabs use them")),
            None => Finding::ok(NAME, "this kernel has no transparent ones"),
        }
    }

    /// Reserved ones are nobody's here: memory that lies in them is missing elsewhere.
    fn reserved(&self) -> Finding {
        const NAME: &str = "reserved pages";
        let used: Vec<_> = self.huge_pages.iter().filter(|pool| pool.total > 0).collect();
        if used.is_empty() {
            return Finding::ok(NAME, "no huge pages are reserved; Sealane uses transparent ones");
        }
        let shown = |pool: &&Pool| {
            let Pool { page_bytes, total, free } = pool;
            format!("{free} of {total} of {} free", mebibytes(*page_bytes))
        };
        let shown: Vec<_> = used.iter().map(shown).collect();
        Finding::ok(NAME, format!("reserved: {}; Sealane uses transparent ones", shown.join(", ")))
    }
}

/// `128 MiB`.
pub(super) fn mebibytes(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernel::laid_out;
    use super::super::verdict::Verdict;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn findings(files: &[(&str, &str)], slabs: u64) -> Vec<(Verdict, String)> {
        let (_directory, kernel) = laid_out(files);
        let findings = Memory::look(&kernel, slabs).findings();
        findings.into_iter().map(|finding| (finding.verdict, finding.says)).collect()
    }

    #[test]
    fn slabs_must_fit_and_want_huge_pages() {
        let files = [
            ("proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable: 262144 kB"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "64"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "60"),
            ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0"),
            ("sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "0"),
        ];
        let told = findings(&files, 256 * MIB);
        assert_eq!(told[0], (Verdict::Ok, "slabs take 256 MiB of 256 MiB available".to_owned()));
        assert_eq!(told[1], (Verdict::CouldBeBetter, "transparent: never, so slabs use 4 KiB pages".to_owned()));
        assert_eq!(told[2].1, "reserved: 60 of 64 of 2 MiB free; Sealane uses transparent ones");
        let told = findings(&files, 257 * MIB);
        assert_eq!(told[0].0, Verdict::WillNotWork);
    }

    #[test]
    fn a_kernel_that_says_nothing_is_no_trouble() {
        assert!(findings(&[], MIB).iter().all(|(verdict, _)| *verdict == Verdict::Ok));
        let madvise = [("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")];
        assert_eq!(findings(&madvise, MIB)[1], (Verdict::Ok, "transparent: madvise, so slabs use them".to_owned()));
    }
}
