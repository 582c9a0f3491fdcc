//! Errors as C code sees them: gRPC's canonical code and a message.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char};

use sealane::Error;

/// The canonical gRPC codes that Sealane uses.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum sealane_code {
    /// Success.
    Ok = 0,
    /// The call was cancelled: by sealane_call_cancel, or because its plan, acceptor or task was closed or detached.
    Cancelled = 1,
    /// An argument is invalid, whatever the state.
    InvalidArgument = 3,
    /// The deadline passed; see sealane_error_delivery_unknown.
    DeadlineExceeded = 4,
    /// The task is not in the endpoint map, or not served at its address.
    NotFound = 5,
    /// The peer or the daemon refuses this process.
    PermissionDenied = 7,
    /// A limit was reached; the message names it.
    ResourceExhausted = 8,
    /// The step was aborted, or the engine is stopping.
    Aborted = 10,
    /// The peer or this build does not support the operation.
    Unimplemented = 12,
    /// An internal error of the library.
    Internal = 13,
    /// The daemon or the peer cannot be reached, or was lost.
    Unavailable = 14,
}

/// Why something failed: a code and a message.
///
/// A function that can fail returns NULL on success, else an error that the caller frees with sealane_error_free. An error
/// passed to a callback belongs to the library, which frees it when the callback returns. Any thread may read it.
#[derive(Debug, Clone)]
pub struct sealane_error {
    code: sealane_code,
    message: CString,
    delivery_unknown: bool,
}

impl sealane_error {
    pub(crate) fn new(code: sealane_code, message: impl Into<String>) -> Self {
        let message: String = message.into();
        let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
        Self { code, message, delivery_unknown: false }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(sealane_code::InvalidArgument, message)
    }

    pub(crate) fn cancelled(message: impl Into<String>) -> Self {
        Self::new(sealane_code::Cancelled, message)
    }

    /// For a call that only its deadline has ended.
    pub(crate) fn late() -> Self {
        Self::new(sealane_code::DeadlineExceeded, "its deadline passed")
    }

    pub(crate) fn is_full(&self) -> bool {
        self.code == sealane_code::ResourceExhausted
    }

    /// For a panic, which the panic hook has reported.
    pub(crate) fn internal() -> Self {
        Self::new(sealane_code::Internal, "an internal error of the library; its standard error has details")
    }
}

impl From<Error> for sealane_error {
    fn from(error: Error) -> Self {
        use sealane::Code;
        let code = match error.code() {
            Code::InvalidArgument => sealane_code::InvalidArgument,
            Code::DeadlineExceeded => sealane_code::DeadlineExceeded,
            Code::NotFound => sealane_code::NotFound,
            Code::PermissionDenied => sealane_code::PermissionDenied,
            Code::ResourceExhausted => sealane_code::ResourceExhausted,
            Code::Aborted => sealane_code::Aborted,
            Code::Unimplemented => sealane_code::Unimplemented,
            Code::Unavailable => sealane_code::Unavailable,
        };
        let delivery_unknown = matches!(&error, Error::DeadlineExceeded(late) if late.delivery_unknown);
        Self { delivery_unknown, ..Self::new(code, error.to_string()) }
    }
}

/// The code of an error; SEALANE_CODE_OK for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_error_code(error: *const sealane_error) -> sealane_code {
    // SAFETY: null, or an error of this library that was not freed.
    unsafe { error.as_ref() }.map_or(sealane_code::Ok, |error| error.code)
}

/// The message of an error: UTF-8, NUL-terminated, valid as long as the error. "" for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_error_message(error: *const sealane_error) -> *const c_char {
    // SAFETY: as in `sealane_error_code`.
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| error.message.as_ptr())
}

/// True if a send or push ended at its deadline while its tensor was in transit, so that it may or may not arrive. False for
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_error_delivery_unknown(error: *const sealane_error) -> bool {
    // SAFETY: as in `sealane_error_code`.
    unsafe { error.as_ref() }.is_some_and(|error| error.delivery_unknown)
}

/// Frees an error returned by a function; does nothing with NULL. Not for errors passed to a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_error_free(error: *mut sealane_error) {
    if !error.is_null() {
        // SAFETY: a function of this library made it with `Box::into_raw`, and it is freed once.
        drop(unsafe { Box::from_raw(error) });
    }
}
