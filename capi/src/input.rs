//! Arguments from C: texts, arrays, timeouts, extensible options. Checked here, before use.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_char, c_void},
    path::PathBuf,
    slice,
    time::Duration,
};

use crate::{
    error::sealane_error,
    guard::{Outcome, check},
};

/// Value of sealane_text's bytes: the text is NUL-terminated. Repeated in cbindgen.toml, which cannot refer to it.
/// cbindgen:ignore
pub const SEALANE_NUL_TERMINATED: usize = usize::MAX;

/// Value of a call's timeout: no limit.
pub const SEALANE_NO_TIMEOUT: i64 = -1;

/// UTF-8 text: the name of a task, a key, a queue's name. Need not be NUL-terminated. Read before the function returns.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_text {
    /// The first byte. May be NULL if there are none.
    pub start: *const c_char,
    /// Length in bytes, or SEALANE_NUL_TERMINATED.
    pub bytes: usize,
}

/// The pointer that a callback was registered with, passed on unchanged.
#[derive(Clone, Copy)]
pub(crate) struct Context(*mut c_void);

// SAFETY: it is passed back and never used; the header says that this may happen on any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn new(context: *mut c_void) -> Self {
        Self(context)
    }

    pub(crate) fn get(self) -> *mut c_void {
        self.0
    }
}

/// A text.
///
/// # Errors
/// InvalidArgument if it is not UTF-8, or null.
///
/// # Safety
/// As `sealane_text` says; the bytes stay unchanged for as long as the result is used.
pub(crate) unsafe fn text<'a>(text: sealane_text, what: &str) -> Outcome<&'a str> {
    let bytes = if text.bytes == SEALANE_NUL_TERMINATED {
        check(text.start, what)?;
        // SAFETY: it ends in NUL, as its caller says.
        unsafe { CStr::from_ptr(text.start) }.to_bytes()
    } else {
        // SAFETY: there are that many bytes, as its caller says.
        unsafe { array(text.start.cast::<u8>(), text.bytes, what) }?
    };
    str::from_utf8(bytes).map_err(|error| sealane_error::invalid(format!("{what}: {error}")))
}

/// A text that ends in NUL.
///
/// # Errors
/// As [`text`].
///
/// # Safety
/// It is null, or ends in NUL and stays unchanged for as long as the result is used.
pub(crate) unsafe fn terminated<'a>(start: *const c_char, what: &str) -> Outcome<&'a str> {
    // SAFETY: as this function's caller promises.
    unsafe { text(sealane_text { start, bytes: SEALANE_NUL_TERMINATED }, what) }
}

/// A file's path; `None` for null.
///
/// # Safety
/// As for [`terminated`].
pub(crate) unsafe fn path(start: *const c_char) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: as this function's caller promises.
    let bytes = (!start.is_null()).then(|| unsafe { CStr::from_ptr(start) }.to_bytes())?;
    Some(std::ffi::OsStr::from_bytes(bytes).into())
}

/// An array; null stands for one without elements.
///
/// # Errors
/// InvalidArgument if it has elements and is null or misaligned, or is longer than memory.
///
/// # Safety
/// `count` elements lie there, and stay unchanged for as long as the result is used.
pub(crate) unsafe fn array<'a, T>(start: *const T, count: usize, what: &str) -> Outcome<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check(start, what)?;
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        return Err(sealane_error::invalid(format!("{what}: {count} elements are too many")));
    }
    // SAFETY: neither null nor longer than memory; the rest is the caller's promise.
    Ok(unsafe { slice::from_raw_parts(start, count) })
}

/// A timeout: 0 means the engine's default, SEALANE_NO_TIMEOUT no limit.
pub(crate) fn timeout(milliseconds: i64) -> Outcome<Option<Duration>> {
    match milliseconds {
        0 => Ok(None),
        SEALANE_NO_TIMEOUT => Ok(Some(Duration::MAX)),
        1.. => Ok(Some(Duration::from_millis(milliseconds.unsigned_abs()))),
        _ => Err(sealane_error::invalid(format!("a timeout is 0, SEALANE_NO_TIMEOUT or more, not {milliseconds} ms"))),
    }
}

/// A structure of plain numbers and pointers that begins with its own size, and in which zeros mean defaults.
///
/// # Safety
/// It is `repr(C)`, its first field is a `usize`, it has no padding, and any bytes are a legal value.
pub(crate) unsafe trait Options: Copy {}

/// Options of a program compiled with this header, an older or a newer one; the defaults for null.
///
/// # Errors
/// InvalidArgument if the size makes no sense, or an option that this library does not know is set.
///
/// # Safety
/// Null, or as many readable bytes as the structure's first field says.
pub(crate) unsafe fn options<T: Options>(given: *const T) -> Outcome<T> {
    // SAFETY: all zeros are legal, as the trait demands.
    let mut options: T = unsafe { std::mem::zeroed() };
    if given.is_null() {
        return Ok(options);
    }
    check(given, "options")?;
    // SAFETY: a size comes first, as the trait demands.
    let size = unsafe { given.cast::<usize>().read() };
    // Several times what any program of today could know: a larger size was never set.
    if size < size_of::<usize>() || size > 4096 {
        return Err(sealane_error::invalid(format!(
            "options: their size is {size}; set it to the size of the structure"
        )));
    }
    // SAFETY: that many bytes are there, as their caller says.
    let bytes = unsafe { slice::from_raw_parts(given.cast::<u8>(), size) };
    let known = size.min(size_of::<T>());
    if bytes[known..].iter().any(|byte| *byte != 0) {
        return Err(sealane_error::invalid("options: something is set that this version of the library does not know"));
    }
    // SAFETY: `known` bytes lie within both; any bytes are legal, as the trait demands.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(&mut options).cast::<u8>(), known) };
    Ok(options)
}
