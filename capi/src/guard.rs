//! The FFI boundary: catches panics, and checks pointers to the library's objects.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{error::sealane_error, fork::Process};

pub(crate) type Outcome<T = ()> = Result<T, sealane_error>;

/// Runs the body of a function; returns its error, or null.
pub(crate) fn entry(call: impl FnOnce() -> Outcome) -> *mut sealane_error {
    match unpanicked(call) {
        Ok(()) => std::ptr::null_mut(),
        Err(error) => Box::into_raw(Box::new(error)),
    }
}

/// The result of `call`; Internal if it panics.
pub(crate) fn unpanicked<T>(call: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        // Dropping the panic payload might panic.
        std::mem::forget(panic);
        Err(sealane_error::internal())
    })
}

/// Frees an object that C code was given before; does nothing with null. In a child of the process that made it, it belongs to the
/// parent and stays.
///
/// # Safety
/// It is null, or came from `Box::into_raw`, and nobody uses it any more.
pub(crate) unsafe fn close<T>(pointer: *mut T, process: impl FnOnce(&T) -> Process, end: impl FnOnce(Box<T>)) {
    let unpanicked = unpanicked(|| {
        // SAFETY: as this function's caller promises.
        if let Some(given) = unsafe { pointer.as_ref() }
            && !process(given).is_over()
        {
            // SAFETY: as above.
            end(unsafe { Box::from_raw(pointer) });
        }
        Ok(())
    });
    // An error cannot be reported.
    drop(unpanicked);
}

/// The object behind a pointer that C code was given before.
///
/// # Errors
/// InvalidArgument if it is null.
///
/// # Safety
/// It is null, or points to a value that lives unchanged for as long as the reference is used.
pub(crate) unsafe fn given<'a, T>(pointer: *const T, what: &str) -> Outcome<&'a T> {
    check(pointer, what)?;
    // SAFETY: it is not null, and the rest is the caller's promise.
    Ok(unsafe { &*pointer })
}

/// # Errors
/// InvalidArgument if a pointer is null, or not aligned for what it points to.
pub(crate) fn check<T>(pointer: *const T, what: &str) -> Outcome {
    match pointer.is_null() || !pointer.is_aligned() {
        true => Err(sealane_error::invalid(format!("{what}: the pointer is null or not aligned"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{sealane_code, sealane_error_code, sealane_error_free};

    #[test]
    fn no_panic_crosses_the_border() {
        struct Loud;

        impl Drop for Loud {
            fn drop(&mut self) {
                panic!("while it is dropped");
            }
        }

        assert!(entry(|| Ok(())).is_null());
        let panics: [fn() -> Outcome; 2] = [|| panic!("on purpose"), || std::panic::panic_any(Loud)];
        for panic in panics {
            let error = entry(panic);
            // SAFETY: the error is new, and freed once.
            unsafe {
                assert_eq!(sealane_error_code(error), sealane_code::Internal);
                sealane_error_free(error);
            }
        }
    }
}
