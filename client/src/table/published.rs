//! A table that this task publishes, and writes while others read it. Any thread.
//!
//! Its memory stays where it is, and whoever serves this task reads rows from there. If the daemon is another one than before, which
//! has another arena, the table moves there with the next write; until then, the daemon has the copy that was made when the task
//! published again what it had published.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sealane_runtime::Buffer;
use sealane_transport::{
    Code, Error, Payload, Tensor, TensorMeta,
    limits::{LOCKS_SUFFIX, TABLE_KEY_BYTES_MAX},
    tensor::DType,
};

use crate::{
    Task,
    limits::TABLE_IN_PLACE_MIN,
    memory::{LOCKS_BYTES, TableMemory},
};

/// How a table is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableOptions {
    /// The version that it has first. Default 0.
    pub version: i64,
    /// Whoever reads a row that is written meanwhile may get half of it (Hogwild). It saves a few nanoseconds a row on both sides.
    /// Default: rows are whole.
    pub torn: bool,
}

/// A table that this task publishes: others [pull](Task::pull_rows) its rows, and the task writes them. When it is dropped, the table
/// stays published as it is; when the last clone of its task is, nobody reads it any more.
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
    key: Box<str>,
    meta: TensorMeta,
    rows: u64,
    row_bytes: usize,
    /// Held by whoever writes.
    state: Mutex<State>,
}

struct State {
    version: i64,
    memory: TableMemory,
}

impl Task {
    /// Publishes a table: a tensor of one dimension or more, whose rows are what the first one counts. It ends when all peers can see
    /// it. Nothing is copied if the tensor is in memory of [`alloc`](Self::alloc) that it alone has.
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
            false => Some(self.locks()?),
        };
        let memory = TableMemory::new(memory, row_bytes, locks);
        let state = Mutex::new(State { version: options.version, memory });
        let table = Table { task: self.for_its_own(), key: key.into(), meta, rows, row_bytes, state };
        if options.torn || !in_place {
            // Of a table that was published under this key before.
            self.withdraw(&table.locks_key())?;
        }
        table.publish(&table.lock())?;
        Ok(table)
    }

    /// [`Table::set_version`] of many tables, in one round trip. After an error, each may have the version or not, as there.
    ///
    /// # Errors
    /// As there, the first of them; InvalidArgument if a table is another task's: then none has it.
    pub fn set_versions(&self, tables: &[&Table], version: i64) -> Result<(), Error> {
        if let Some(stray) = tables.iter().find(|table| !table.task.is(self)) {
            let reason = format!("the table '{}' is not one of {}", stray.key, self.name());
            return Err(Error::invalid(reason));
        }
        let mut tables = tables.to_vec();
        // Each once, and in one order: whoever does the same meanwhile would else wait for this one, and this one for them.
        tables.sort_unstable_by_key(|&table| std::ptr::from_ref(table));
        tables.dedup_by_key(|&mut table| std::ptr::from_ref(table));
        let mut locked: Vec<_> = tables.into_iter().map(|table| (table, table.lock())).collect();
        set_versions(&mut locked, version)
    }

    fn locks(&self) -> Result<Buffer, Error> {
        let mut locks = self.alloc(LOCKS_BYTES)?;
        locks.fill(0);
        Ok(locks)
    }

    /// Whoever serves this task can read that memory where it lies.
    fn reaches(&self, memory: &Buffer) -> Result<bool, Error> {
        let at = memory.volatile().as_ptr();
        Ok(self.arena_range()?.is_none_or(|arena| arena.contains(&at)))
    }
}

impl Table {
    /// The key.
    pub fn key(&self) -> &str {
        &self.key
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
        self.lock().version
    }

    /// Writes rows over those of these numbers. A row that is named twice is the later one then. Whoever pulls a row meanwhile gets it
    /// as it was or as it is, but of several rows some as they were.
    ///
    /// # Errors
    /// InvalidArgument if there is no such row, or the rows are of another type or shape: nothing was written. ResourceExhausted if the
    /// daemon was restarted and its arena has no room: the rows are written, and published when the table next can be.
    pub fn update(&self, ids: &[u64], rows: &Tensor) -> Result<(), Error> {
        let bytes = self.check(ids, rows)?;
        self.write(ids, |at, mut row| row.copy_from(&bytes[at * self.row_bytes..][..self.row_bytes]))
    }

    /// Adds rows to those of these numbers: to a row that is named twice both. For floats and integers of 32 and 64 bits; integers
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
        // Added up apart, so that a reader waits for the copy alone.
        let mut sum = vec![0; self.row_bytes];
        self.write(ids, |at, mut row| {
            sum.clear();
            row.as_volatile().append_to(&mut sum);
            add(&mut sum, &bytes[at * self.row_bytes..][..self.row_bytes]);
            row.copy_from(&sum);
        })
    }

    /// The table is of that version from now on, for those who pull with `min_version`; perhaps also after an error, unless that is
    /// InvalidArgument. Of many tables, [`Task::set_versions`] is faster.
    ///
    /// # Errors
    /// Those of [`Task::publish`].
    pub fn set_version(&self, version: i64) -> Result<(), Error> {
        set_versions(&mut [(self, self.lock())], version)
    }

    /// Withdraws the table and its locks; pulls of it wait for the next one.
    ///
    /// # Errors
    /// Those of [`Task::withdraw`].
    pub fn withdraw(&self) -> Result<(), Error> {
        // No row is read without the locks.
        self.task.withdraw(&self.key)?;
        self.task.withdraw(&self.locks_key())
    }

    fn locks_key(&self) -> String {
        format!("{}{LOCKS_SUFFIX}", self.key)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of rows that are to be written.
    fn check<'a>(&self, ids: &[u64], rows: &'a Tensor) -> Result<&'a [u8], Error> {
        let key = &self.key;
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
        let mut state = self.lock();
        state.memory.write(ids, write);
        if self.is_small() {
            return self.publish(&state);
        }
        // After the write: a daemon that comes later gets a copy with it. Without one, there is nobody to tell.
        match self.task.reaches(&state.memory.rows) {
            Ok(true) | Err(_) => Ok(()),
            Ok(false) => self.move_over(&mut state),
        }
    }

    fn is_small(&self) -> bool {
        self.rows as usize * self.row_bytes <= TABLE_IN_PLACE_MIN
    }

    /// The daemon is another one, with another arena: the table moves there.
    #[cold]
    fn move_over(&self, state: &mut State) -> Result<(), Error> {
        let rows = state.memory.copy(self.task.alloc(state.memory.rows.len())?);
        let locks = state.memory.locks.as_ref().map(|_| self.task.locks()).transpose()?;
        let before = std::mem::replace(&mut state.memory, TableMemory::new(rows, self.row_bytes, locks));
        let published = self.publish(state);
        if published.is_err() {
            // The next write tries again.
            state.memory = before;
        }
        published
    }

    fn publish(&self, state: &State) -> Result<(), Error> {
        self.task.publish_many(state.version, self.tensors(state)?).wait()
    }

    /// The rows and their locks, to be published together: the locks first, for a pull that waits is answered as soon as there are rows.
    fn tensors(&self, State { memory, .. }: &State) -> Result<Vec<(String, Tensor)>, Error> {
        let rows: Payload = match self.is_small() {
            // Whoever has it keeps a copy, and it must not change under its hands.
            true => memory.copy(Buffer::from_vec(vec![0; memory.rows.len()])).into(),
            false => Payload::Shared(memory.rows.clone()),
        };
        let mut tensors = Vec::new();
        if let Some(locks) = &memory.locks {
            let meta = TensorMeta::new(DType::U32, &[(LOCKS_BYTES / size_of::<u32>()) as u64])?;
            tensors.push((self.locks_key(), Tensor::new(meta, Payload::Shared(locks.clone()))?));
        }
        tensors.push((self.key.to_string(), Tensor::new(self.meta.clone(), rows)?));
        Ok(tensors)
    }
}

/// Publishes tables of one task anew, as this version.
fn set_versions(tables: &mut [(&Table, MutexGuard<'_, State>)], version: i64) -> Result<(), Error> {
    let Some(task) = tables.first().map(|(table, _)| &table.task) else { return Ok(()) };
    let mut tensors = Vec::new();
    for (table, state) in tables.iter() {
        tensors.extend(table.tensors(state)?);
    }
    let before: Vec<i64> = tables.iter_mut().map(|(_, state)| std::mem::replace(&mut state.version, version)).collect();
    let published = task.publish_many(version, tensors).wait();
    // Any other error may hide that the daemon has it, or will have it from its next start on: an older one would be refused then.
    if published.as_ref().is_err_and(|error| error.code() == Code::InvalidArgument) {
        tables.iter_mut().zip(before).for_each(|((_, state), before)| state.version = before);
        if tables.len() > 1 {
            // Some may have it, and the error says not which: each is asked, whatever becomes of the others.
            let each: Vec<_> = tables.chunks_mut(1).map(|table| set_versions(table, version)).collect();
            return each.into_iter().collect();
        }
    }
    published
}

/// Changes each number by the one beside it.
fn each<const N: usize>(to: &mut [u8], more: &[u8], add: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    for (to, more) in to.as_chunks_mut::<N>().0.iter_mut().zip(more.as_chunks::<N>().0) {
        *to = add(*to, *more);
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({}, {:?})", self.key, self.meta.shape())
    }
}
