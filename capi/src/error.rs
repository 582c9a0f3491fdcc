//! What C code is told when something fails: gRPC's canonical code, and a message.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char};

use sealane::Error;

/// gRPC's canonical codes, as far as Sealane uses them.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum sealane_code {
    /// All is well.
    Ok = 0,
    /// The call was cancelled: by sealane_call_cancel, or because what it belongs to was closed or detached.
    Cancelled = 1,
    /// The call cannot be carried out, whatever the state: what it was given is wrong.
    InvalidArgument = 3,
    /// The deadline passed first; see sealane_error_delivery_unknown.
    DeadlineExceeded = 4,
    /// The task is not in the endpoint map, or not served where the map says.
    NotFound = 5,
    /// The peer or the daemon refuses this process.
    PermissionDenied = 7,
    /// A limit was reached, which the message names.
    ResourceExhausted = 8,
    /// The step was aborted, or the engine stops.
    Aborted = 10,
    /// The peer or this build does not know the operation.
    Unimplemented = 12,
    /// A fault of the library itself.
    Internal = 13,
    /// The daemon or the peer cannot be reached, or was lost.
    Unavailable = 14,
}

/// Why something failed: a code and a message.
///
/// A function that can fail returns NULL if all is well, and else an error that the caller frees with sealane_error_free. One
/// that a callback gets is NULL or the library's, which frees it when the callback returns. May be read by any thread.
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

    /// Of what nothing else than the clock has ended.
    pub(crate) fn late() -> Self {
        Self::new(sealane_code::DeadlineExceeded, "its deadline passed")
    }

    /// True if a limit was reached.
    pub(crate) fn is_full(&self) -> bool {
        self.code == sealane_code::ResourceExhausted
    }

    /// Of a panic, which the panic hook has reported.
    pub(crate) fn internal() -> Self {
        Self::new(sealane_code::Internal, "a fault of the library itself, which its standard error tells more of")
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
        let delivery_unknown = matches!(error, Error::DeadlineExceeded { delivery_unknown: true, .. });
        Self { delivery_unknown, ..Self::new(code, error.to_string()) }
    }
}

/// The code of an error; SEALANE_CODE_OK of NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_error_code(error: *const sealane_error) -> sealane_code {
    // SAFETY: null, or an error of this library that was not freed.
    unsafe { error.as_ref() }.map_or(sealane_code::Ok, |error| error.code)
}

/// The message of an error: UTF-8, ends in NUL, valid as long as the error. Of NULL it is "".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_error_message(error: *const sealane_error) -> *const c_char {
    // SAFETY: as in `sealane_error_code`.
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |error| error.message.as_ptr())
}

/// True if a send or a push ended at its deadline while its tensor was in transit: it may or may not arrive. False for
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_error_delivery_unknown(error: *const sealane_error) -> bool {
    // SAFETY: as in `sealane_error_code`.
    unsafe { error.as_ref() }.is_some_and(|error| error.delivery_unknown)
}

/// Frees an error that a function returned; does nothing with NULL. Not for errors that a callback got.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_error_free(error: *mut sealane_error) {
    if !error.is_null() {
        // SAFETY: a function of this library made it with `Box::into_raw`, and it is freed once.
        drop(unsafe { Box::from_raw(error) });
    }
}
