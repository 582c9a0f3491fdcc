//! Tables: `sealane.Table`, which this process publishes and writes, `sealane.ShardedTable`, which names one to pull from, and the
//! arguments and results of `Task.pull_rows` and `Task.push_rows`. Runs with the GIL, except for copying and waiting.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyList, PyTuple},
};
use sealane::{
    Accepted, DType, Element, Error, PulledRows, PullingRows, Pushing, RowUpdate, RowsOptions, SendOptions, Shape,
    Sharding, SumRows, TableRows, TensorMeta,
};

use crate::{
    errors::{OrRaise, exception, invalid},
    fork::Generation,
    input::{Destination, Outgoing, received},
    memory::Borrowed,
    numpy::Numpy,
    task::Task,
    tensor::handed_out,
    wait::{All, UnderWay},
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
    /// Which is not closed by being dropped before its tables.
    task: Py<Task>,
    table: sealane::Table,
    made: Generation,
}

impl Table {
    pub(crate) fn new(task: &Bound<'_, Task>, table: sealane::Table) -> Self {
        Self { task: task.clone().unbind(), table, made: Generation::now() }
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

    /// The table is of that version from now on, for those who pull with ``min_version``.
    fn set_version(&self, py: Python<'_>, version: i64) -> PyResult<()> {
        self.made.check(self.task.get().name()).or_raise(py)?;
        py.detach(|| self.table.set_version(version)).or_raise(py)
    }

    /// Withdraws the table; pulls of it wait for the next one.
    fn withdraw(&self, py: Python<'_>) -> PyResult<()> {
        self.made.check(self.task.get().name()).or_raise(py)?;
        py.detach(|| self.table.withdraw()).or_raise(py)
    }

    fn __repr__(&self) -> String {
        format!("<sealane.Table {} of shape {:?}>", self.table.key(), self.table.meta().shape().as_slice())
    }
}

/// Numbers of rows, in an array of any shape.
pub(crate) struct Ids {
    pub(crate) numbers: Vec<u64>,
    shape: Shape,
}

impl Ids {
    /// # Errors
    /// InvalidArgument for what is no array of integers, or of negative ones.
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

    /// Rows with one dimension for their numbers, in place of those that the numbers have.
    pub(crate) fn rows(&self, rows: sealane::Tensor) -> Result<sealane::Tensor, Error> {
        let (meta, payload) = rows.into_parts();
        let shape = meta.shape();
        let Some(row) = shape.strip_prefix(&self.shape[..]) else {
            let named = self.shape.as_slice();
            return Err(Error::invalid(format!("rows of shape {:?} for numbers of shape {named:?}", shape.as_slice())));
        };
        let flat: Shape = std::iter::once(self.numbers.len() as u64).chain(row.iter().copied()).collect();
        sealane::Tensor::new(TensorMeta::new(meta.dtype(), &flat)?, payload)
    }

    /// The rows as an array of the numbers' shape, and each row's.
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

/// What a pull of rows is to become.
pub(crate) struct WantedRows {
    pub(crate) ids: Ids,
    destination: Option<Destination>,
    partial: bool,
}

impl WantedRows {
    /// # Errors
    /// As [`Ids::new`] and [`Destination::new`].
    pub(crate) fn new(ids: &Bound<'_, PyAny>, out: Option<&Bound<'_, PyAny>>, partial: bool) -> PyResult<Self> {
        Ok(Self { ids: Ids::new(ids)?, destination: out.map(Destination::new).transpose()?, partial })
    }

    /// # Errors
    /// InvalidArgument for a timeout that is none.
    pub(crate) fn options(
        &self,
        py: Python<'_>,
        min_version: Option<i64>,
        timeout: Option<f64>,
    ) -> PyResult<RowsOptions> {
        let timeout = crate::wait::timeout(timeout).or_raise(py)?;
        let out = self.destination.as_ref().map(|destination| destination.tensor(py)).transpose()?;
        let out = out.map(sealane::Tensor::into_buffer);
        Ok(RowsOptions { min_version: min_version.unwrap_or(i64::MIN), timeout, out, partial: self.partial })
    }

    /// The array; with `partial` and what is missing.
    ///
    /// # Errors
    /// As [`received`].
    pub(crate) fn made<'py>(&self, py: Python<'py>, pulled: PulledRows) -> PyResult<Bound<'py, PyAny>> {
        let PulledRows { rows, missing, .. } = pulled;
        let array = self.ids.array(py, rows, self.destination.as_ref())?;
        if !self.partial {
            return Ok(array);
        }
        let all = PyList::empty(py);
        for missing in missing {
            all.append((&*missing.owner, missing.places, exception(py, &missing.error).into_value(py)))?;
        }
        Ok((array, all).into_pyobject(py)?.into_any())
    }
}

/// What pulls of many tables are to become.
pub(crate) struct WantedTables(Vec<(sealane::ShardedTable, WantedRows)>);

impl WantedTables {
    /// # Errors
    /// As [`WantedRows::new`]; InvalidArgument if there are not as many of each.
    pub(crate) fn new(
        tables: Vec<PyRef<'_, ShardedTable>>,
        ids: Vec<Bound<'_, PyAny>>,
        out: Option<Vec<Bound<'_, PyAny>>>,
        partial: bool,
        py: Python<'_>,
    ) -> PyResult<Self> {
        as_many(py, "ids", ids.len(), tables.len())?;
        as_many(py, "out", out.as_ref().map_or(ids.len(), Vec::len), tables.len())?;
        let mut out = out.into_iter().flatten();
        let each = tables.iter().zip(&ids);
        let wanted =
            each.map(|(table, ids)| Ok((table.0.clone(), WantedRows::new(ids, out.next().as_ref(), partial)?)));
        wanted.collect::<PyResult<_>>().map(Self)
    }

    /// # Errors
    /// As [`WantedRows::options`].
    pub(crate) fn options(
        &self,
        py: Python<'_>,
        min_version: Option<i64>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<RowsOptions>> {
        self.0.iter().map(|(_, wanted)| wanted.options(py, min_version, timeout)).collect()
    }

    /// Asks for all. Without the interpreter's lock.
    pub(crate) fn begin(&self, task: &sealane::Task, options: Vec<RowsOptions>) -> All<Rows> {
        let pull = |((table, wanted), options): (&(_, WantedRows), _)| {
            Rows(task.pull_rows(table, &wanted.ids.numbers, options))
        };
        All::new(self.0.iter().zip(options).map(pull).collect())
    }

    /// A list of what [`WantedRows::made`] gives.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn made<'py>(&self, py: Python<'py>, pulled: Vec<PulledRows>) -> PyResult<Bound<'py, PyAny>> {
        let made = self.0.iter().zip(pulled).map(|((_, wanted), pulled)| wanted.made(py, pulled));
        Ok(PyList::new(py, made.collect::<PyResult<Vec<_>>>()?)?.into_any())
    }
}

/// Rows of one table that are to be pushed.
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

    /// Of many tables.
    ///
    /// # Errors
    /// As [`new`](Self::new); InvalidArgument if there are not as many of each.
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

    /// Pushes them, in order. Without the interpreter's lock.
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
/// InvalidArgument if there are not as many as tables.
fn as_many(py: Python<'_>, what: &str, given: usize, tables: usize) -> PyResult<()> {
    match given == tables {
        true => Ok(()),
        false => Err(invalid(py, format!("{what} has {given} elements, for {tables} tables"))),
    }
}

/// A pull of rows, whose memory is of no use when it fails.
pub(crate) struct Rows(pub(crate) PullingRows);

impl UnderWay for Rows {
    type Value = PulledRows;

    fn look(&mut self) -> Option<Result<PulledRows, Error>> {
        self.0.try_outcome().map(|outcome| outcome.map_err(Error::from))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<PulledRows, Error>> {
        Future::poll(Pin::new(&mut self.0), context).map_err(Error::from)
    }
}

/// A ``sealane.AcceptedRows``.
///
/// # Errors
/// InvalidArgument if something else was pushed; as [`handed_out`].
pub(crate) fn accepted_rows(py: Python<'_>, accepted: Accepted) -> PyResult<Bound<'_, PyAny>> {
    let from: Arc<str> = accepted.from.clone();
    let RowUpdate { table, ids, rows } = RowUpdate::of(accepted).or_raise(py)?;
    let ids = sealane::Tensor::from_elements(&[ids.len() as u64], &ids).or_raise(py)?;
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS.import(py, "sealane._accepted", "AcceptedRows")?.call1((
        &*from,
        &*table,
        handed_out(py, ids)?,
        handed_out(py, rows)?,
    ))
}
