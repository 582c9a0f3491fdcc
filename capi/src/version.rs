//! Which interface this is.
#![allow(unsafe_code)]

use std::ffi::c_char;

/// The version of this interface. It goes up when a program that was compiled with an older header would not work any more;
/// what is only added leaves it as it is.
pub const SEALANE_ABI_VERSION: u32 = 1;

/// The version of the interface that the library has, to be compared with SEALANE_ABI_VERSION of the header.
#[unsafe(no_mangle)]
pub extern "C" fn sealane_abi_version() -> u32 {
    SEALANE_ABI_VERSION
}

/// The release of the library, "0.1.0" for example. Valid as long as the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn sealane_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
