//! Tables: `sealane.Table`, which this process publishes and writes, `sealane.ShardedTable`, which names one to pull from, and the
//! arguments and results of `Task.pull_rows` and `Task.push_rows`. Runs with the GIL, except for copying and waiting.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyList, PyTuple},
};
use sealane::{
    Accepted, DType, Element, Error, PulledRows, PullingAllRows, Pushing, RowUpdate, RowsOptions, RowsWanted,
    SendOptions, Shape, Sharding, SumRows, TableRows, TensorMeta,
};

use crate::{
    errors::{OrRaise, exception, invalid},
    fork::Generation,
    input::{Destination, Outgoing, received},
    memory::Borrowed,
    numpy::Numpy,
    task::Task,
    tensor::handed_out,
    wait::{UnderWay, blocking},
};

/// A table that one task has published, or several, each a part of it.
///
/// ``owners`` is the name of the task, or a sequence of names. ``sharding`` says who of several has which of the ``rows`` rows: with
/// ``"range"`` consecutive ones; with ``"modulo"`` row ``i`` is row ``i // n`` of owner ``i % n``; ``"hash"`` scatters them. All who
/// use the table must name the same.
#[pyclass(frozen, module = "sealane")]
pub(crate) struct ShardedTable(pub(crate) sealane::ShardedTable);

#[pymethods]
impl ShardedTable {
    #[new]
    #[pyo3(signature = (key, owners, *, rows=None, sharding="modulo"))]
    fn new(
        py: Python<'_>,
        key: &str,
        owners: &Bound<'_, PyAny>,
        rows: Option<u64>,
        sharding: &str,
    ) -> PyResult<ShardedTable> {
        let owners: Vec<String> = match owners.extract::<String>() {
            Ok(owner) => vec![owner],
            Err(_) => owners.extract()?,
        };
        let table = match (&owners[..], rows) {
            ([owner], None) => sealane::ShardedTable::of(owner, key),
            (_, None) => return Err(invalid(py, "a table with several owners needs its number of rows")),
            (_, Some(rows)) => {
                let sharding = match sharding {
                    "range" => Sharding::range(rows, owners.len()),
                    "modulo" => Sharding::modulo(rows, owners.len()),
                    "hash" => Sharding::hash(rows, owners.len()),
                    other => {
                        return Err(invalid(py, format!("sharding is 'range', 'modulo' or 'hash', not '{other}'")));
                    }
                };
                sharding.and_then(|sharding| sealane::ShardedTable::new(key, &owners, sharding))
            }
        };
        table.or_raise(py).map(ShardedTable)
    }

    /// The key under which each owner has published its part.
    #[getter]
    fn key(&self) -> &str {
        self.0.key()
    }

    /// The owners' names.
    #[getter]
    fn owners<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.owners())
    }

    /// The numbers in the whole table of the rows of an owner, by its place among the owners, in the order in which its part has them: an
    /// array of ``uint64``. ``whole[table.rows_of(0)]`` is what the first owner publishes.
    fn rows_of<'py>(&self, py: Python<'py>, owner: usize) -> PyResult<Bound<'py, PyAny>> {
        let sharding = self.0.sharding();
        if sharding.rows().is_none() || owner >= sharding.owners() {
            return Err(invalid(py, format!("owner {owner} of a table with {} owners", sharding.owners())));
        }
        let rows: Vec<u64> = (0..sharding.rows_of(owner)).map(|local| sharding.row(owner, local)).collect();
        handed_out(py, sealane::Tensor::from_elements(&[rows.len() as u64], &rows).or_raise(py)?)
    }

    fn __repr__(&self) -> String {
        format!("<sealane.ShardedTable {} of {} owners>", self.0.key(), self.0.sharding().owners())
    }
}

/// A table that this process publishes, and writes while others pull its rows. Returned by ``Task.publish_table``.
///
/// Usable from any thread. When it is dropped, the table stays published as it is.
#[pyclass(frozen, module = "sealane")]
pub(crate) struct Table {
    /// Held, since dropping it would close it before its tables.
    task: Py<Task>,
    table: sealane::Table,
    made: Generation,
}

impl Table {
    pub(crate) fn new(task: &Bound<'_, Task>, table: sealane::Table) -> Self {
        Self { task: task.clone().unbind(), table, made: Generation::now() }
    }

    pub(crate) fn inner(&self) -> &sealane::Table {
        &self.table
    }

    /// Writes rows, as `write` does.
    fn write(
        &self,
        py: Python<'_>,
        (ids, rows): (&Bound<'_, PyAny>, &Bound<'_, PyAny>),
        write: impl FnOnce(&sealane::Table, &[u64], &sealane::Tensor) -> Result<(), Error> + Send,
    ) -> PyResult<()> {
        self.made.check(self.task.get().name()).or_raise(py)?;
        let (ids, rows) = (Ids::new(ids)?, Outgoing::new(rows)?);
        py.detach(|| {
            let rows = ids.rows(rows.in_place()?)?;
            write(&self.table, &ids.numbers, &rows)
        })
        .or_raise(py)
    }
}

#[pymethods]
impl Table {
    /// The key.
    #[getter]
    fn key(&self) -> &str {
        self.table.key()
    }

    /// Its number of rows.
    #[getter]
    fn rows(&self) -> u64 {
        self.table.rows()
    }

    /// The version that it was last published as.
    #[getter]
    fn version(&self) -> i64 {
        self.table.version()
    }

    /// Writes ``rows`` over the rows of these numbers; of a row that is named twice, the later one. Whoever pulls a row meanwhile gets it
    /// as it was or as it is.
    fn update(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        self.write(py, (ids, rows), sealane::Table::update)
    }

    /// Adds ``rows`` to the rows of these numbers; to a row that is named twice, both. For float32, float64, int32 and int64.
    fn add(&self, py: Python<'_>, ids: &Bound<'_, PyAny>, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        self.write(py, (ids, rows), sealane::Table::add)
    }

    /// The table is of that version from now on, for those who pull with ``min_version``. Of many tables, ``Task.set_versions`` is
    /// faster.
    fn set_version(&self, py: Python<'_>, version: i64) -> PyResult<()> {
        self.made.check(self.task.get().name()).or_raise(py)?;
        blocking(py, || self.table.set_version(version))
    }

    /// Withdraws the table; pulls of it wait for the next one.
    fn withdraw(&self, py: Python<'_>) -> PyResult<()> {
        self.made.check(self.task.get().name()).or_raise(py)?;
        blocking(py, || self.table.withdraw())
    }

    fn __repr__(&self) -> String {
        format!("<sealane.Table {} of shape {:?}>", self.table.key(), self.table.meta().shape().as_slice())
    }
}

/// Row numbers, in an array of any shape.
pub(crate) struct Ids {
    pub(crate) numbers: Vec<u64>,
    shape: Shape,
}

impl Ids {
    /// # Errors
    /// InvalidArgument for anything but an array of integers, or for negative ones.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Ids> {
        let py = object.py();
        let numpy = Numpy::get(py)?;
        let borrowed = match numpy.borrow(object)? {
            Some(borrowed) => borrowed,
            None => {
                let array = py.import("numpy")?.call_method1("asarray", (object,))?;
                numpy.borrow(&array)?.ok_or_else(|| invalid(py, "numbers of rows are integers"))?
            }
        };
        let shape = Shape::from_slice(borrowed.shape());
        let numbers = match borrowed.dtype() {
            _ if borrowed.len() == 0 => Vec::new(),
            DType::I64 => numbers::<i64>(py, &borrowed)?,
            DType::U64 => numbers::<u64>(py, &borrowed)?,
            DType::I32 => numbers::<i32>(py, &borrowed)?,
            DType::U32 => numbers::<u32>(py, &borrowed)?,
            DType::I16 => numbers::<i16>(py, &borrowed)?,
            DType::U16 => numbers::<u16>(py, &borrowed)?,
            DType::I8 => numbers::<i8>(py, &borrowed)?,
            DType::U8 => numbers::<u8>(py, &borrowed)?,
            other => return Err(invalid(py, format!("numbers of rows are integers, not {other}"))),
        };
        Ok(Ids { numbers, shape })
    }

    /// Returns the rows with the dimensions of the numbers replaced by a single one.
    pub(crate) fn rows(&self, rows: sealane::Tensor) -> Result<sealane::Tensor, Error> {
        let (meta, payload) = rows.into_parts();
        sealane::Tensor::new(self.flat(&meta)?, payload)
    }

    /// Returns the metadata of rows with the dimensions of the numbers replaced by a single one.
    ///
    /// # Errors
    /// InvalidArgument if the shape does not begin with that of the numbers.
    fn flat(&self, rows: &TensorMeta) -> Result<TensorMeta, Error> {
        let shape = rows.shape();
        let Some(row) = shape.strip_prefix(&self.shape[..]) else {
            let named = self.shape.as_slice();
            return Err(Error::invalid(format!("rows of shape {:?} for numbers of shape {named:?}", shape.as_slice())));
        };
        let flat: Shape = std::iter::once(self.numbers.len() as u64).chain(row.iter().copied()).collect();
        TensorMeta::new(rows.dtype(), &flat)
    }

    /// The rows as an array: the numbers' shape, followed by a row's.
    ///
    /// # Errors
    /// As [`received`].
    fn array<'py>(
        &self,
        py: Python<'py>,
        rows: sealane::Tensor,
        destination: Option<&Destination>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (meta, payload) = rows.into_parts();
        let shape: Shape = self.shape.iter().chain(meta.shape().iter().skip(1)).copied().collect();
        let meta = TensorMeta::new(meta.dtype(), &shape).or_raise(py)?;
        received(py, sealane::Tensor::from_parts(meta, payload), destination)
    }
}

/// # Errors
/// InvalidArgument for a negative number.
fn numbers<T>(py: Python<'_>, borrowed: &Borrowed) -> PyResult<Vec<u64>>
where
    T: Element + Copy + TryInto<u64> + std::fmt::Display,
{
    let mut bytes = sealane::Buffer::from_vec(vec![0; borrowed.len()]);
    borrowed.copy_to(&mut bytes);
    let count = (borrowed.len() / size_of::<T>()) as u64;
    let meta = TensorMeta::new(borrowed.dtype(), &[count]).or_raise(py)?;
    let tensor = sealane::Tensor::new(meta, bytes).or_raise(py)?;
    let number = |&number: &T| number.try_into().map_err(|_| invalid(py, format!("there is no row {number}")));
    tensor.elements::<T>().or_raise(py)?.iter().map(number).collect()
}

struct OfTable {
    table: sealane::ShardedTable,
    ids: Ids,
    destination: Option<Destination>,
}

impl OfTable {
    /// # Errors
    /// As [`Ids::new`] and [`Destination::new`].
    fn new(table: &ShardedTable, ids: &Bound<'_, PyAny>, out: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Self { table: table.0.clone(), ids: Ids::new(ids)?, destination: out.map(Destination::new).transpose()? })
    }

    /// Returns the memory of `out`, if there is one, for rows of its type and shape only.
    fn memory(&self, py: Python<'_>) -> PyResult<Option<sealane::Destination>> {
        let Some(destination) = &self.destination else { return Ok(None) };
        let out = destination.tensor(py)?;
        let meta = self.ids.flat(out.meta()).or_raise(py)?;
        Ok(Some(sealane::Destination::of(meta, out.into_buffer())))
    }
}

/// A pull of rows of tables that is about to begin.
pub(crate) struct WantedRows {
    tables: Vec<OfTable>,
    options: RowsOptions,
}

impl WantedRows {
    /// For one table.
    ///
    /// # Errors
    /// InvalidArgument for invalid numbers, memory or options.
    pub(crate) fn one(
        table: &ShardedTable,
        ids: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        options: (Option<i64>, Option<f64>, bool, bool),
    ) -> PyResult<Self> {
        Ok(Self { tables: vec![OfTable::new(table, ids, out)?], options: rows_options(ids.py(), options)? })
    }

    /// For many tables.
    ///
    /// # Errors
    /// As for [`one`](Self::one); InvalidArgument if the counts differ.
    pub(crate) fn all(
        py: Python<'_>,
        tables: Vec<PyRef<'_, ShardedTable>>,
        ids: Vec<Bound<'_, PyAny>>,
        out: Option<Vec<Bound<'_, PyAny>>>,
        options: (Option<i64>, Option<f64>, bool, bool),
    ) -> PyResult<Self> {
        as_many(py, "ids", ids.len(), tables.len())?;
        as_many(py, "out", out.as_ref().map_or(ids.len(), Vec::len), tables.len())?;
        let mut out = out.into_iter().flatten();
        let each = tables.iter().zip(&ids).map(|(table, ids)| OfTable::new(table, ids, out.next().as_ref()));
        Ok(Self { tables: each.collect::<PyResult<_>>()?, options: rows_options(py, options)? })
    }

    /// The memory that the rows of each table go to.
    ///
    /// # Errors
    /// As [`Destination::tensor`].
    pub(crate) fn memory(&self, py: Python<'_>) -> PyResult<Vec<Option<sealane::Destination>>> {
        self.tables.iter().map(|table| table.memory(py)).collect()
    }

    /// Requests all rows. Without the GIL.
    pub(crate) fn begin(&self, task: &sealane::Task, memory: Vec<Option<sealane::Destination>>) -> Rows {
        let each = self.tables.iter().zip(memory);
        let wanted = each.map(|(OfTable { table, ids, .. }, out)| RowsWanted { table, ids: &ids.numbers, out });
        Rows(task.pull_all_rows(wanted, &self.options))
    }

    /// A list with the array of each table; with `partial`, each with what is missing.
    ///
    /// # Errors
    /// As [`received`].
    pub(crate) fn made<'py>(&self, py: Python<'py>, pulled: Vec<PulledRows>) -> PyResult<Bound<'py, PyAny>> {
        let made = self.tables.iter().zip(pulled).map(|(table, pulled)| self.made_of(py, table, pulled));
        Ok(PyList::new(py, made.collect::<PyResult<Vec<_>>>()?)?.into_any())
    }

    /// The only element of the list that [`made`](Self::made) returns.
    ///
    /// # Errors
    /// As for [`made`](Self::made).
    pub(crate) fn made_one<'py>(&self, py: Python<'py>, mut pulled: Vec<PulledRows>) -> PyResult<Bound<'py, PyAny>> {
        self.made_of(py, &self.tables[0], pulled.remove(0))
    }

    fn made_of<'py>(
        &self,
        py: Python<'py>,
        OfTable { ids, destination, .. }: &OfTable,
        PulledRows { rows, missing, .. }: PulledRows,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = ids.array(py, rows, destination.as_ref())?;
        if !self.options.partial {
            return Ok(array);
        }
        let all = PyList::empty(py);
        for missing in missing {
            all.append((&*missing.owner, missing.places, exception(py, &missing.error).into_value(py)))?;
        }
        Ok((array, all).into_pyobject(py)?.into_any())
    }
}

/// # Errors
/// InvalidArgument for an invalid timeout.
fn rows_options(
    py: Python<'_>,
    (min_version, timeout, partial, fail_if_gone): (Option<i64>, Option<f64>, bool, bool),
) -> PyResult<RowsOptions> {
    let timeout = crate::wait::timeout(timeout).or_raise(py)?;
    Ok(RowsOptions { min_version: min_version.unwrap_or(i64::MIN), timeout, partial, fail_if_gone })
}

/// Rows to push to one table.
pub(crate) struct OutgoingRows {
    table: sealane::ShardedTable,
    ids: Ids,
    rows: Outgoing,
}

impl OutgoingRows {
    /// # Errors
    /// As [`Ids::new`] and [`Outgoing::new`].
    pub(crate) fn new(table: &ShardedTable, ids: &Bound<'_, PyAny>, rows: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { table: table.0.clone(), ids: Ids::new(ids)?, rows: Outgoing::new(rows)? })
    }

    /// For many tables.
    ///
    /// # Errors
    /// As for [`new`](Self::new); InvalidArgument if the counts differ.
    pub(crate) fn all(
        py: Python<'_>,
        tables: Vec<PyRef<'_, ShardedTable>>,
        ids: Vec<Bound<'_, PyAny>>,
        rows: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Self>> {
        as_many(py, "ids", ids.len(), tables.len())?;
        as_many(py, "rows", rows.len(), tables.len())?;
        tables.iter().zip(ids.iter().zip(&rows)).map(|(table, (ids, rows))| Self::new(table, ids, rows)).collect()
    }

    /// Pushes them, in order. Without the GIL.
    ///
    /// # Errors
    /// Those of [`sealane::Task::push_all_rows`].
    pub(crate) fn push(
        all: Vec<Self>,
        task: &sealane::Task,
        queue: &str,
        sum: bool,
        options: &SendOptions,
    ) -> Result<Pushing, Error> {
        let flat = |Self { table, ids, rows }| Ok((table, ids.rows(rows.in_place()?)?, ids.numbers));
        let all = all.into_iter().map(flat).collect::<Result<Vec<_>, Error>>()?;
        let rows: Vec<_> = all.iter().map(|(table, rows, ids)| TableRows { table, ids, rows }).collect();
        task.push_all_rows(queue, &rows, if sum { SumRows::Yes } else { SumRows::No }, options)
    }
}

/// # Errors
/// InvalidArgument if their number differs from that of the tables.
fn as_many(py: Python<'_>, what: &str, given: usize, tables: usize) -> PyResult<()> {
    match given == tables {
        true => Ok(()),
        false => Err(invalid(py, format!("{what} has {given} elements, for {tables} tables"))),
    }
}

/// A pull of rows, whose memory is not returned if it fails.
pub(crate) struct Rows(PullingAllRows);

impl UnderWay for Rows {
    type Value = Vec<PulledRows>;

    fn look(&mut self) -> Option<Result<Vec<PulledRows>, Error>> {
        self.0.try_outcome().map(|outcome| outcome.map_err(Error::from))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<PulledRows>, Error>> {
        Future::poll(Pin::new(&mut self.0), context).map_err(Error::from)
    }
}

/// Pushed rows: the task that pushed them, and the update with its table.
pub(crate) type PushedRows = (Arc<str>, RowUpdate);

/// Accepted rows that are not handed out yet: a tensor contains those of several tables, and may not be rows at all. Bounded by the
/// tensors that one accept takes.
#[derive(Default)]
pub(crate) struct WaitingRows(Mutex<VecDeque<Result<PushedRows, Error>>>);

impl WaitingRows {
    /// Appends what was accepted to what waits, and hands out the first, those of at most `most` tables.
    ///
    /// # Errors
    /// InvalidArgument if the first is not rows; the others still wait.
    pub(crate) fn take(&self, accepted: Vec<Accepted>, most: usize) -> Result<Vec<PushedRows>, Error> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for accepted in accepted {
            let from = accepted.from.clone();
            match RowUpdate::all_of(accepted) {
                Ok(updates) => waiting.extend(updates.into_iter().map(|update| Ok((from.clone(), update)))),
                Err(error) => waiting.push_back(Err(error)),
            }
        }
        let good = waiting.iter().take(most).take_while(|each| each.is_ok()).count();
        let count = good.max(1).min(most).min(waiting.len());
        waiting.drain(..count).collect()
    }
}

/// A ``sealane.AcceptedRows``.
///
/// # Errors
/// As [`handed_out`].
pub(crate) fn accepted_rows(py: Python<'_>, (from, update): PushedRows) -> PyResult<Bound<'_, PyAny>> {
    let RowUpdate { table, ids, rows } = update;
    let ids = sealane::Tensor::from_elements(&[ids.len() as u64], &ids).or_raise(py)?;
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS.import(py, "sealane._accepted", "AcceptedRows")?.call1((
        &*from,
        &*table,
        handed_out(py, ids)?,
        handed_out(py, rows)?,
    ))
}
