//! Errors as Python exceptions: `sealane._errors` defines the classes, this module maps errors to them.

use pyo3::{prelude::*, sync::PyOnceLock, types::PyType};
use sealane::{Code, Error};

pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    macro_rules! class {
        ($name:literal) => {{
            static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
            CLASS.import(py, "sealane._errors", $name)
        }};
    }
    let class = match error.code() {
        Code::Unavailable if matches!(error, Error::Left { .. }) => class!("Left"),
        Code::InvalidArgument => class!("InvalidArgument"),
        Code::DeadlineExceeded => class!("DeadlineExceeded"),
        Code::NotFound => class!("NotFound"),
        Code::PermissionDenied => class!("PermissionDenied"),
        Code::ResourceExhausted => class!("ResourceExhausted"),
        Code::Aborted => class!("Aborted"),
        Code::Unimplemented => class!("Unimplemented"),
        Code::Unavailable => class!("Unavailable"),
    };
    match class {
        Ok(class) => PyErr::from_type(class.clone(), (error.to_string(),)),
        Err(broken) => broken,
    }
}

/// DeadlineExceeded with this text.
pub(crate) fn late(py: Python<'_>, reason: String) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match CLASS.import(py, "sealane._errors", "DeadlineExceeded") {
        Ok(class) => PyErr::from_type(class.clone(), (reason,)),
        Err(broken) => broken,
    }
}

/// InvalidArgument with this text.
pub(crate) fn invalid(py: Python<'_>, reason: impl Into<Box<str>>) -> PyErr {
    exception(py, &Error::invalid(reason))
}

/// Converts errors of results to exceptions.
pub(crate) trait OrRaise<T> {
    /// The value, or the exception.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T, Error> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| exception(py, &error))
    }
}
