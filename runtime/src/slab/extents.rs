//! The bookkeeping of a piece of memory: which bytes are free, in pure code that never touches them; one owner.
//!
//! The memory is divided into *extents* of whole pages, placed by a sub-allocator (two-level bitmaps, coalescing).
//! A large block is an extent of its own. A small block (up to 64 KiB) is one of the equal parts of an extent, and a
//! bitmap beside the extent says which parts are free, so allocating and freeing touches no block memory, cannot
//! be misled by what someone wrote there, and notices a block that is freed twice.

use offset_allocator::{Allocation, Allocator};

pub(super) const PAGE: usize = 4096;
/// Smallest block, and the alignment of every block.
pub(super) const BLOCK_MIN: usize = 64;
/// Largest block that shares an extent with others.
const SMALL_MAX: usize = 64 * 1024;
const CLASSES: usize = (SMALL_MAX / BLOCK_MIN).ilog2() as usize + 1;
/// An extent of small blocks: 16 blocks, but neither less nor more than this.
const EXTENT_MIN: usize = 16 * 1024;
const EXTENT_MAX: usize = 256 * 1024;
const BITMAP_WORDS: usize = 4;
const _: () = assert!(EXTENT_MIN / BLOCK_MIN <= BITMAP_WORDS * 64);

const NONE: u32 = u32::MAX;
/// The class of an extent that consists of one large block.
const LARGE: u8 = CLASSES as u8;

/// An allocated block: its place, and the extent that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub(super) offset: usize,
    pub(super) extent: u32,
}

impl Block {
    /// Where the block begins, in bytes from the start of the memory; a multiple of 64.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

/// Tracks which bytes of a piece of memory are free: the bookkeeping behind every [`Slab`](super::Slab), also for memory that is
/// not a slab's, such as memory shared by two processes. Takes about 1 % of the memory that it tracks.
#[derive(Debug)]
pub struct Extents {
    pages: Allocator<u32>,
    table: Vec<Extent>,
    vacant: Vec<u32>,
    /// For each class, the first extent with a free block.
    with_space: [u32; CLASSES],
    /// Extents of small blocks with no block in use; they are freed when pages run out.
    idle: usize,
    in_use_bytes: usize,
    blocks_out: usize,
}

struct Extent {
    pages: Option<Allocation<u32>>,
    start: usize,
    block_bytes: usize,
    class: u8,
    blocks: u16,
    free_blocks: u16,
    free: [u64; BITMAP_WORDS],
    /// Neighbours in the list of extents of this class that have a free block.
    previous: u32,
    next: u32,
}

impl std::fmt::Debug for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{}x{}, {} free", self.start, self.blocks, self.block_bytes, self.free_blocks)
    }
}

fn class_of(len: usize) -> usize {
    len.next_power_of_two().max(BLOCK_MIN).ilog2() as usize - BLOCK_MIN.ilog2() as usize
}

impl Extents {
    /// Bookkeeping for `bytes`, rounded down to whole pages of 4 KiB; nothing is in use.
    ///
    /// # Panics
    /// With more than 2^32 pages.
    pub fn new(bytes: usize) -> Self {
        let pages = u32::try_from(bytes / PAGE).expect("no more than 2^32 pages");
        Self {
            // Every page may be an extent of its own, and the allocator keeps a node for each used and each free run.
            pages: Allocator::with_max_allocs(pages, pages.saturating_add(8).min(u32::MAX / 2)),
            table: Vec::with_capacity(pages as usize),
            vacant: Vec::with_capacity(pages as usize),
            with_space: [NONE; CLASSES],
            idle: 0,
            in_use_bytes: 0,
            blocks_out: 0,
        }
    }

    /// Bytes in allocated blocks, counted in whole blocks.
    pub fn in_use_bytes(&self) -> usize {
        self.in_use_bytes
    }

    /// Number of allocated blocks.
    pub fn blocks_out(&self) -> usize {
        self.blocks_out
    }

    /// Finds room for `len` bytes, at least one: a power of two from 64 bytes to 64 KiB, whole pages above that.
    pub fn allocate(&mut self, len: usize) -> Option<Block> {
        debug_assert!(len > 0);
        if len > SMALL_MAX {
            return self.allocate_large(len);
        }
        let class = class_of(len);
        let index = match self.with_space[class] {
            NONE => self.grow(class)?,
            index => index,
        };
        let extent = &mut self.table[index as usize];
        let word = extent.free.iter().position(|word| *word != 0).expect("the extent is listed as having space");
        let bit = extent.free[word].trailing_zeros() as usize;
        extent.free[word] &= !(1 << bit);
        if extent.free_blocks == extent.blocks {
            self.idle -= 1;
        }
        extent.free_blocks -= 1;
        let block = Block { offset: extent.start + (word * 64 + bit) * extent.block_bytes, extent: index };
        self.in_use_bytes += extent.block_bytes;
        self.blocks_out += 1;
        if extent.free_blocks == 0 {
            self.unlist(index);
        }
        Some(block)
    }

    /// Frees a block.
    ///
    /// # Panics
    /// If the block is not in use: it was freed twice, or its name was overwritten.
    pub fn free(&mut self, block: Block) {
        let extent = self.table.get_mut(block.extent as usize).expect("a block names its extent");
        assert!(extent.pages.is_some() && block.offset >= extent.start, "a block lies in its extent");
        let at = block.offset - extent.start;
        let number = at / extent.block_bytes;
        assert!(number < extent.blocks.into() && at.is_multiple_of(extent.block_bytes), "a block lies in its extent");
        let (word, bit) = (number / 64, number % 64);
        assert!(extent.free[word] & (1 << bit) == 0, "a block is freed once");
        extent.free[word] |= 1 << bit;
        extent.free_blocks += 1;
        self.in_use_bytes -= extent.block_bytes;
        self.blocks_out -= 1;
        let (class, free_blocks, blocks) = (extent.class, extent.free_blocks, extent.blocks);
        if class == LARGE {
            self.release(block.extent);
            return;
        }
        if free_blocks == 1 {
            self.list(block.extent);
        }
        if free_blocks == blocks {
            self.idle += 1;
            // One idle extent a class is kept, so that allocating and freeing a single block repeatedly causes no page work.
            let extent = &self.table[block.extent as usize];
            if extent.previous != NONE || extent.next != NONE {
                self.retire(block.extent);
            }
        }
    }

    fn allocate_large(&mut self, len: usize) -> Option<Block> {
        let bytes = len.checked_next_multiple_of(PAGE)?;
        let index = self.extent(bytes, bytes, LARGE)?;
        let extent = &mut self.table[index as usize];
        extent.free = [0; BITMAP_WORDS];
        extent.free_blocks = 0;
        self.in_use_bytes += bytes;
        self.blocks_out += 1;
        Some(Block { offset: extent.start, extent: index })
    }

    /// Adds an extent of small blocks to its list; one with a single block if there is no room for more.
    fn grow(&mut self, class: usize) -> Option<u32> {
        let block_bytes = BLOCK_MIN << class;
        let preferred = (block_bytes * 16).clamp(EXTENT_MIN, EXTENT_MAX);
        let least = block_bytes.max(PAGE);
        let index = self
            .extent(preferred, block_bytes, class as u8)
            .or_else(|| self.extent(least, block_bytes, class as u8))?;
        self.idle += 1;
        self.list(index);
        Some(index)
    }

    /// A new extent of `bytes` with all blocks free; frees idle extents if pages have run out.
    fn extent(&mut self, bytes: usize, block_bytes: usize, class: u8) -> Option<u32> {
        let pages = u32::try_from(bytes / PAGE).ok()?;
        let allocation = match self.pages.allocate(pages) {
            Some(allocation) => allocation,
            None if self.idle > 0 => {
                self.retire_idle();
                self.pages.allocate(pages)?
            }
            None => return None,
        };
        let blocks = bytes / block_bytes;
        let mut free = [0; BITMAP_WORDS];
        for (word, bits) in free.iter_mut().enumerate() {
            let left = blocks.saturating_sub(word * 64);
            *bits = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
        }
        let extent = Extent {
            pages: Some(allocation),
            start: allocation.offset as usize * PAGE,
            block_bytes,
            class,
            blocks: blocks as u16,
            free_blocks: blocks as u16,
            free,
            previous: NONE,
            next: NONE,
        };
        Some(match self.vacant.pop() {
            Some(index) => {
                self.table[index as usize] = extent;
                index
            }
            None => {
                self.table.push(extent);
                (self.table.len() - 1) as u32
            }
        })
    }

    fn retire_idle(&mut self) {
        for index in 0..self.table.len() {
            let extent = &self.table[index];
            if extent.pages.is_some() && extent.class != LARGE && extent.free_blocks == extent.blocks {
                self.retire(index as u32);
            }
        }
        debug_assert_eq!(self.idle, 0);
    }

    /// Frees an idle extent of small blocks.
    fn retire(&mut self, index: u32) {
        self.unlist(index);
        self.idle -= 1;
        self.release(index);
    }

    fn release(&mut self, index: u32) {
        let allocation = self.table[index as usize].pages.take().expect("an extent is released once");
        self.pages.free(allocation);
        self.vacant.push(index);
    }

    fn list(&mut self, index: u32) {
        let extent = &mut self.table[index as usize];
        let head = &mut self.with_space[usize::from(extent.class)];
        extent.previous = NONE;
        extent.next = *head;
        let next = std::mem::replace(head, index);
        if next != NONE {
            self.table[next as usize].previous = index;
        }
    }

    fn unlist(&mut self, index: u32) {
        let extent = &mut self.table[index as usize];
        let previous = std::mem::replace(&mut extent.previous, NONE);
        let next = std::mem::replace(&mut extent.next, NONE);
        let class = usize::from(extent.class);
        match previous {
            NONE => self.with_space[class] = next,
            previous => self.table[previous as usize].next = next,
        }
        if next != NONE {
            self.table[next as usize].previous = previous;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn classes_are_powers_of_two_from_64_bytes() {
        assert_eq!([1, 64, 65, 128, 129, SMALL_MAX].map(class_of), [0, 0, 1, 1, 2, CLASSES - 1]);
    }

    #[test]
    fn a_slab_of_one_class_gives_out_every_byte() {
        for len in [64, 4096, 64 * 1024] {
            let mut extents = Extents::new(MIB);
            let blocks: Vec<_> = std::iter::from_fn(|| extents.allocate(len)).collect();
            assert_eq!(blocks.len() * len, MIB);
            assert_eq!(extents.in_use_bytes(), MIB);
            for block in blocks {
                extents.free(block);
            }
            assert_eq!((extents.in_use_bytes(), extents.blocks_out()), (0, 0));
        }
    }

    #[test]
    fn small_blocks_leave_room_for_a_large_one_once_they_are_back() {
        let mut extents = Extents::new(MIB);
        let small: Vec<_> = (0..1000).map(|number| extents.allocate(64 << (number % 4)).unwrap()).collect();
        assert!(extents.allocate(MIB).is_none());
        for block in small {
            extents.free(block);
        }
        let whole = extents.allocate(MIB).expect("idle extents are given back for it");
        assert!(extents.allocate(1).is_none());
        extents.free(whole);
        assert!(extents.allocate(1).is_some());
    }

    #[test]
    fn one_block_going_out_and_in_keeps_its_place() {
        let mut extents = Extents::new(MIB);
        let first = extents.allocate(100).unwrap();
        extents.free(first);
        for _ in 0..100 {
            let again = extents.allocate(100).unwrap();
            assert_eq!(again, first);
            extents.free(again);
        }
    }

    #[test]
    #[should_panic(expected = "freed once")]
    fn a_block_freed_twice_is_noticed() {
        let mut extents = Extents::new(MIB);
        let _other = extents.allocate(64).unwrap();
        let block = extents.allocate(64).unwrap();
        extents.free(block);
        extents.free(block);
    }

    #[test]
    #[should_panic(expected = "lies in its extent")]
    fn an_overwritten_name_is_noticed() {
        let mut extents = Extents::new(MIB);
        let block = extents.allocate(128).unwrap();
        extents.free(Block { offset: block.offset + 64, ..block });
    }
}
