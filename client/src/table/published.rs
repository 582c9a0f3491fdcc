//! A table that this task publishes, and writes while others read it. Any thread.
//!
//! Its memory stays where it is, and the engine that serves this task reads rows from there. With a new daemon, which
//! has another arena, the table moves there with all else that the task publishes again.

use std::sync::{Arc, MutexGuard};

use sealane_runtime::Buffer;
use sealane_transport::{Code, Error, Payload, Tensor, TensorMeta, limits::TABLE_KEY_BYTES_MAX, tensor::DType};

use crate::{
    Task,
    limits::TABLE_IN_PLACE_MIN,
    memory::{LOCKS_BYTES, OwnTable, TableMemory, TableState},
};

/// How a table is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableOptions {
    /// The version that it starts with. Default 0.
    pub version: i64,
    /// Readers of a row that is being written may get half of it (Hogwild), and the table may be pulled as one tensor. It saves a
    /// few nanoseconds a row on both sides. Default: rows are whole, and a pull of the whole table is an InvalidArgument if it has more
    /// than 512 bytes.
    pub torn: bool,
}

/// A table that this task publishes: others [pull](Task::pull_rows) its rows, and the task writes them. When it is dropped, the table
/// stays published as it is; when the last clone of its task is dropped, nobody reads it any more.
///
/// ```no_run
/// # use sealane::{TableOptions, Task, Tensor};
/// # let task = Task::attach("ps0.train:2222")?;
/// let rows = Tensor::from_elements(&[1000, 16], &[0.0_f32; 16_000])?;
/// let users = task.publish_table("user", rows, TableOptions::default())?;
/// users.add(&[7], &Tensor::from_elements(&[1, 16], &[0.1_f32; 16])?)?;
/// # Ok::<(), sealane::Error>(())
/// ```
pub struct Table {
    task: Task,
    meta: TensorMeta,
    rows: u64,
    row_bytes: usize,
    own: Arc<OwnTable>,
}

impl Task {
    /// Publishes a table: a tensor of one dimension or more, the first of which counts the rows. It ends when all peers can see
    /// it. Nothing is copied if the tensor is in memory of [`alloc`](Self::alloc) that nothing else shares.
    ///
    /// Memory: the table, and 16 KiB for its locks. A table of up to 512 bytes is published anew with each write.
    ///
    /// # Errors
    /// InvalidArgument if the tensor has no rows of a fixed size, or the key is longer than 512 bytes; ResourceExhausted if the arena
    /// has no room; and those of [`publish`](Self::publish).
    pub fn publish_table(&self, key: &str, table: Tensor, options: TableOptions) -> Result<Table, Error> {
        if key.len() > TABLE_KEY_BYTES_MAX {
            let reason = format!("a table's key has {} bytes, at most {TABLE_KEY_BYTES_MAX} are accepted", key.len());
            return Err(Error::invalid(reason));
        }
        let (meta, payload) = table.into_parts();
        let rows = match (meta.is_strings() || meta.is_dead(), meta.shape().first()) {
            (false, Some(&rows)) if rows > 0 && (payload.len() as u64).is_multiple_of(rows) => rows,
            _ => {
                return Err(Error::invalid(format!(
                    "'{key}' has no rows of a fixed size: its shape is {:?}",
                    meta.shape()
                )));
            }
        };
        let row_bytes = payload.len() / rows as usize;
        if row_bytes == 0 {
            return Err(Error::invalid(format!("the rows of '{key}' have no bytes")));
        }
        let in_place = payload.len() > TABLE_IN_PLACE_MIN;
        let memory = match payload {
            Payload::Owned(buffer) if self.reaches(&buffer)? => buffer,
            Payload::Owned(_) | Payload::Shared(_) | Payload::Bytes(_) => {
                let mut copy = self.alloc(payload.len())?;
                payload.read(0, copy.volatile_mut())?;
                copy
            }
        };
        let locks = match options.torn || !in_place {
            true => None,
            false => Some(self.alloc(LOCKS_BYTES)?),
        };
        let own = Arc::new(OwnTable::new(key, options.version, TableMemory::new(memory, row_bytes, locks)));
        if options.torn || !in_place {
            // The locks of a table that was published under this key before.
            self.withdraw(&own.locks_key)?;
        }
        if in_place {
            self.register(&own);
        }
        let table = Table { task: self.for_its_own(), meta, rows, row_bytes, own };
        let published = table.publish(&table.own.hold());
        published.map(|()| table)
    }

    /// [`Table::set_version`] of many tables, in one round trip. After an error, each may or may not have the version, as there.
    ///
    /// # Errors
    /// The first of the errors there; InvalidArgument if a table is another task's: then none has the version.
    pub fn set_versions(&self, tables: &[&Table], version: i64) -> Result<(), Error> {
        if let Some(stray) = tables.iter().find(|table| !table.task.is(self)) {
            let reason = format!("the table '{}' is not one of {}", stray.key(), self.name());
            return Err(Error::invalid(reason));
        }
        let mut tables = tables.to_vec();
        // Each once, and in one order: two threads that do this could otherwise wait for each other.
        tables.sort_unstable_by_key(|&table| std::ptr::from_ref(table));
        tables.dedup_by_key(|&mut table| std::ptr::from_ref(table));
        let mut held: Vec<_> = tables.into_iter().map(|table| (table, table.own.hold())).collect();
        set_versions(&mut held, version)
    }

    /// True if the engine that serves this task can read that memory in place.
    fn reaches(&self, memory: &Buffer) -> Result<bool, Error> {
        let at = memory.volatile().as_ptr();
        Ok(self.arena_range()?.is_none_or(|arena| arena.contains(&at)))
    }
}

impl Table {
    /// The key.
    pub fn key(&self) -> &str {
        &self.own.key
    }

    /// Its rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The metadata of the whole table.
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// The version that it was last published as.
    pub fn version(&self) -> i64 {
        self.own.hold().version
    }

    /// Overwrites the rows of these numbers. If a row is named twice, the later one counts. A concurrent pull gets each row either
    /// old or new, and of several rows some old.
    ///
    /// # Errors
    /// InvalidArgument if there is no such row, or the rows are of another type or shape: then nothing was written. For a table of up to
    /// 512 bytes also those of [`Task::publish`]: the table has its old rows again then, but readers whom the new ones had reached may see
    /// those until the next write. A larger table is written in place, whether or not there is a daemon: the next one has all of it, once
    /// its arena has room.
    pub fn update(&self, ids: &[u64], rows: &Tensor) -> Result<(), Error> {
        let bytes = self.check(ids, rows)?;
        self.write(ids, |at, mut row| row.copy_from(&bytes[at * self.row_bytes..][..self.row_bytes]))
    }

    /// Adds rows to those of these numbers; a row that is named twice gets both. For floats and integers of 32 and 64 bits; integers
    /// wrap around.
    ///
    /// # Errors
    /// Those of [`update`](Self::update), and InvalidArgument for another type.
    pub fn add(&self, ids: &[u64], rows: &Tensor) -> Result<(), Error> {
        let bytes = self.check(ids, rows)?;
        let add: fn(&mut [u8], &[u8]) = match self.meta.dtype() {
            DType::F32 => {
                |to, more| each(to, more, |a, b| (f32::from_ne_bytes(a) + f32::from_ne_bytes(b)).to_ne_bytes())
            }
            DType::F64 => {
                |to, more| each(to, more, |a, b| (f64::from_ne_bytes(a) + f64::from_ne_bytes(b)).to_ne_bytes())
            }
            DType::I32 => |to, more| {
                each(to, more, |a, b| i32::from_ne_bytes(a).wrapping_add(i32::from_ne_bytes(b)).to_ne_bytes())
            },
            DType::I64 => |to, more| {
                each(to, more, |a, b| i64::from_ne_bytes(a).wrapping_add(i64::from_ne_bytes(b)).to_ne_bytes())
            },
            other => return Err(Error::invalid(format!("rows of {other} cannot be added to"))),
        };
        // Added up separately, so that a reader waits for the copy alone.
        let mut sum = vec![0; self.row_bytes];
        self.write(ids, |at, mut row| {
            sum.clear();
            row.as_volatile().append_to(&mut sum);
            add(&mut sum, &bytes[at * self.row_bytes..][..self.row_bytes]);
            row.copy_from(&sum);
        })
    }

    /// Sets the table's version, for those who pull with `min_version`; perhaps also after an error, unless that is
    /// InvalidArgument. For many tables, [`Task::set_versions`] is faster.
    ///
    /// # Errors
    /// Those of [`Task::publish`].
    pub fn set_version(&self, version: i64) -> Result<(), Error> {
        set_versions(&mut [(self, self.own.hold())], version)
    }

    /// Withdraws the table and its locks; pulls of it wait for the next one, or for this one to get another version.
    ///
    /// # Errors
    /// Those of [`Task::withdraw`]; even then the next daemon does not have it.
    pub fn withdraw(&self) -> Result<(), Error> {
        let mut held = self.own.hold();
        held.withdrawn = true;
        // No row is read without the locks. Both, even if a daemon cannot be told: the next one has neither.
        self.task.withdraw(&self.own.key).and(self.task.withdraw(&self.own.locks_key))
    }

    /// Checks rows to be written; returns their bytes.
    fn check<'a>(&self, ids: &[u64], rows: &'a Tensor) -> Result<&'a [u8], Error> {
        let key = self.key();
        if let Some(missing) = ids.iter().find(|&&id| id >= self.rows) {
            return Err(Error::invalid(format!("row {missing} of '{key}', which has {} rows", self.rows)));
        }
        let mut shape = self.meta.shape();
        shape[0] = ids.len() as u64;
        let is_plain = !rows.meta().is_strings() && !rows.meta().is_dead();
        if !is_plain || (rows.dtype(), rows.shape()) != (self.meta.dtype(), shape.clone()) {
            let (found, of, dtype) = (rows.dtype(), rows.shape(), self.meta.dtype());
            return Err(Error::invalid(format!("rows of {found} {of:?} for {dtype} {shape:?} of '{key}'")));
        }
        Ok(rows.bytes())
    }

    fn write(&self, ids: &[u64], write: impl FnMut(usize, sealane_runtime::VolatileSliceMut<'_>)) -> Result<(), Error> {
        let held = self.own.hold();
        let before = self.is_small().then(|| held.memory.copy(Buffer::of_len(held.memory.rows.len())));
        held.memory.write(ids, write);
        let Some(before) = before.filter(|_| !held.withdrawn) else { return Ok(()) };
        self.publish(&held).inspect_err(|_| {
            let rows: Vec<u64> = (0..self.rows).collect();
            held.memory.write(&rows, |at, mut row| row.copy_from(&before[at * self.row_bytes..][..self.row_bytes]));
        })
    }

    fn is_small(&self) -> bool {
        self.rows as usize * self.row_bytes <= TABLE_IN_PLACE_MIN
    }

    fn publish(&self, held: &TableState) -> Result<(), Error> {
        self.task.publish_in_place(held.version, self.tensors(held)?).wait()
    }

    /// The rows and their locks, to be published together: the locks first, since a waiting pull is answered as soon as there are rows.
    fn tensors(&self, TableState { memory, .. }: &TableState) -> Result<Vec<(String, Tensor)>, Error> {
        let rows: Payload = match self.is_small() {
            // The engine keeps what it is given, which must not change later: a copy.
            true => memory.copy(Buffer::of_len(memory.rows.len())).into(),
            false => Payload::Shared(memory.rows.clone()),
        };
        let mut tensors = Vec::new();
        if let Some(locks) = &memory.locks {
            let meta = TensorMeta::new(DType::U32, &[(LOCKS_BYTES / size_of::<u32>()) as u64])?;
            tensors.push((self.own.locks_key.to_string(), Tensor::new(meta, Payload::Shared(locks.clone()))?));
        }
        tensors.push((self.key().to_owned(), Tensor::new(self.meta.clone(), rows)?));
        Ok(tensors)
    }
}

/// Publishes tables of one task again, with this version.
fn set_versions(tables: &mut [(&Table, MutexGuard<'_, TableState>)], version: i64) -> Result<(), Error> {
    let Some(task) = tables.first().map(|(table, _)| &table.task) else { return Ok(()) };
    let mut settled = Ok(());
    for (table, held) in tables.iter_mut().filter(|(table, _)| !table.is_small()) {
        settled = settled.and_then(|()| task.settle(&table.own, held));
    }
    if settled.as_ref().is_err_and(|error| error.code() == Code::ResourceExhausted) {
        return settled;
    }
    let mut tensors = Vec::new();
    for (table, held) in tables.iter() {
        tensors.extend(table.tensors(held)?);
    }
    let before: Vec<i64> = tables.iter_mut().map(|(_, held)| std::mem::replace(&mut held.version, version)).collect();
    let published = settled.and_then(|()| task.publish_in_place(version, tensors).wait());
    if published.is_ok() {
        tables.iter_mut().for_each(|(_, held)| held.withdrawn = false);
    }
    // After any other error the daemon may have the version, or get it at its next start, and would then refuse an older one.
    if published.as_ref().is_err_and(|error| error.code() == Code::InvalidArgument) {
        tables.iter_mut().zip(before).for_each(|((_, held), before)| held.version = before);
        if tables.len() > 1 {
            // Some may have the version, and the error does not say which: each is tried alone, whatever becomes of the others.
            let each: Vec<_> = tables.chunks_mut(1).map(|table| set_versions(table, version)).collect();
            return each.into_iter().collect();
        }
    }
    published
}

/// Applies `add` to each number and the one beside it.
fn each<const N: usize>(to: &mut [u8], more: &[u8], add: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    for (to, more) in to.as_chunks_mut::<N>().0.iter_mut().zip(more.as_chunks::<N>().0) {
        *to = add(*to, *more);
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({}, {:?})", self.key(), self.meta.shape())
    }
}
