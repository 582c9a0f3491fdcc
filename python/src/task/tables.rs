//! Tables that a task publishes, rows that it pulls and pushes, and rows that it accepts.

use std::sync::Arc;

use pyo3::prelude::*;
use sealane::{SendOptions, TableOptions};

use super::{Connected, Task};
use crate::{
    acceptor::Acceptor,
    call::{Receiving, Sending},
    errors::OrRaise,
    input::{Destination, Outgoing},
    rows::{OutgoingRows, ShardedTable, Table, WantedRows},
    wait::{blocking, timeout},
};

#[pymethods]
impl Task {
    /// Publishes a table: an array of one dimension or more, whose rows any peer may ``pull_rows`` by their numbers. Waits until all
    /// peers can see it.
    ///
    /// An array from ``empty`` is published in place, and so is any writable array with an embedded engine: do not write it from now on
    /// but through the ``Table`` that is returned. Others are copied. With ``torn=True`` whoever pulls a row while it is written may get half of
    /// it, which saves a little time on both sides, and the table may also be pulled as one array.
    #[pyo3(signature = (key, array, *, version=0, torn=false))]
    fn publish_table(
        slf: &Bound<'_, Self>,
        key: &str,
        array: &Bound<'_, PyAny>,
        version: i64,
        torn: bool,
    ) -> PyResult<Table> {
        let (py, task) = (slf.py(), slf.get());
        let options = TableOptions { version, torn };
        let memory = Destination::new(array).and_then(|memory| memory.tensor(py));
        let array = Outgoing::new(array)?;
        let publish = || {
            let connected = task.connected()?;
            let tensor = match memory {
                Ok(tensor) => tensor,
                Err(_) => connected.place(array)?,
            };
            connected.task.publish_table(key, tensor, options)
        };
        Ok(Table::new(slf, blocking(py, publish)?))
    }

    /// ``Table.set_version`` of many tables of this task, in one round trip. After an error, each may have the version or not.
    fn set_versions<'py>(&self, py: Python<'py>, tables: Vec<PyRef<'py, Table>>, version: i64) -> PyResult<()> {
        let tables: Vec<&sealane::Table> = tables.iter().map(|table| table.inner()).collect();
        blocking(py, || self.connected()?.task.set_versions(&tables, version))
    }

    /// ``pull_rows`` that does not wait: ``await`` the returned object, or call its ``result``.
    ///
    /// Pulls rows of a table by their numbers, each to its place: an array of the shape of ``ids`` with that of a row behind it.
    /// A table that is not published yet, or older than ``min_version``, is waited for.
    ///
    /// ``ids`` are integers, an array of any shape or anything that ``numpy.asarray`` takes, in any order; a row that is named twice is
    /// fetched once. ``out`` and ``timeout`` are as for ``recv``. If one row cannot be had, the error is raised; with ``partial=True`` a
    /// tuple is returned: the array, and for rows that the table does not have, or whose owner is gone or late, a list of (owner, places
    /// in ``ids``, error). An owner that has left is not waited for, unless ``fail_if_gone=False``.
    #[pyo3(signature = (table, ids, *, out=None, min_version=None, timeout=None, partial=false, fail_if_gone=true))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn pull_rows_async(
        &self,
        py: Python<'_>,
        table: &ShardedTable,
        ids: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        min_version: Option<i64>,
        timeout: Option<f64>,
        partial: bool,
        fail_if_gone: bool,
    ) -> PyResult<Receiving> {
        let wanted = WantedRows::one(table, ids, out, (min_version, timeout, partial, fail_if_gone))?;
        self.pull_wanted(py, wanted, WantedRows::made_one)
    }

    /// ``pull_all_rows`` that does not wait: ``await`` the returned object, or call its ``result``.
    ///
    /// ``pull_rows`` from many tables at once: ``ids`` has those of each table, ``out``, if it is given, an
    /// array for each, and a list is returned, in the order of the tables. If one fails, its error is raised.
    #[pyo3(signature = (tables, ids, *, out=None, min_version=None, timeout=None, partial=false, fail_if_gone=true))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn pull_all_rows_async<'py>(
        &self,
        py: Python<'py>,
        tables: Vec<PyRef<'py, ShardedTable>>,
        ids: Vec<Bound<'py, PyAny>>,
        out: Option<Vec<Bound<'py, PyAny>>>,
        min_version: Option<i64>,
        timeout: Option<f64>,
        partial: bool,
        fail_if_gone: bool,
    ) -> PyResult<Receiving> {
        let wanted = WantedRows::all(py, tables, ids, out, (min_version, timeout, partial, fail_if_gone))?;
        self.pull_wanted(py, wanted, WantedRows::made)
    }

    /// ``push_rows`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and the push continues.
    ///
    /// Pushes rows to the owners of a table, into the queue ``queue`` of each, from which they take them with ``accept_rows``. Waits until
    /// all have taken theirs.
    ///
    /// ``rows`` has the shape of ``ids`` with that of a row behind it. With ``sum=True`` rows of the same number are added up and
    /// pushed once, for float32 and float64. ``timeout`` is as for ``push``.
    #[pyo3(signature = (table, queue, ids, rows, *, sum=false, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn push_rows_async(
        &self,
        py: Python<'_>,
        table: &ShardedTable,
        queue: &str,
        ids: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
        sum: bool,
        timeout: Option<f64>,
    ) -> PyResult<Sending> {
        let rows = vec![OutgoingRows::new(table, ids, rows)?];
        let options = SendOptions { timeout: self::timeout(timeout).or_raise(py)? };
        self.sending(py, |connected| OutgoingRows::push(rows, &connected.task, queue, sum, &options))
    }

    /// ``push_all_rows`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and the pushes continue.
    ///
    /// ``push_rows`` to many tables at once: ``ids`` and ``rows`` have those of each table. What goes to one owner travels together, and
    /// is accepted table by table, in order, each with its key.
    #[pyo3(signature = (tables, queue, ids, rows, *, sum=false, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn push_all_rows_async<'py>(
        &self,
        py: Python<'py>,
        tables: Vec<PyRef<'py, ShardedTable>>,
        queue: &str,
        ids: Vec<Bound<'py, PyAny>>,
        rows: Vec<Bound<'py, PyAny>>,
        sum: bool,
        timeout: Option<f64>,
    ) -> PyResult<Sending> {
        let rows = OutgoingRows::all(py, tables, ids, rows)?;
        let options = SendOptions { timeout: self::timeout(timeout).or_raise(py)? };
        self.sending(py, |connected| OutgoingRows::push(rows, &connected.task, queue, sum, &options))
    }

    /// Opens a queue of this task into which peers ``push_rows``: an ``Acceptor`` of ``AcceptedRows``, which are the name of the task that
    /// pushed them, the table's key, the numbers of the rows in this task's part of the table, and the rows. What is no rows raises
    /// ``InvalidArgument``. Tables that were pushed together come one after the other, from this acceptor, even after it was closed.
    #[pyo3(signature = (queue, *, tensors_max=4096, bytes_max=268_435_456))]
    fn accept_rows(slf: &Bound<'_, Self>, queue: &str, tensors_max: usize, bytes_max: usize) -> PyResult<Acceptor> {
        Ok(Self::acceptor(slf, queue, tensors_max, bytes_max)?.of_rows())
    }
}

/// Makes the Python object for pulled rows.
type Make = for<'py> fn(&WantedRows, Python<'py>, Vec<sealane::PulledRows>) -> PyResult<Bound<'py, PyAny>>;

impl Task {
    fn pull_wanted(&self, py: Python<'_>, wanted: WantedRows, make: Make) -> PyResult<Receiving> {
        let (memory, wanted) = (wanted.memory(py)?, Arc::new(wanted));
        let asked = wanted.clone();
        let ask = move |connected: Connected| Ok(asked.begin(&connected.task, memory));
        self.receiving(py, ask, move |py, pulled| make(&wanted, py, pulled).map(Bound::unbind))
    }
}
