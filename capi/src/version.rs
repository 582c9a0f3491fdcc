//! Versions of the interface and the library.
#![allow(unsafe_code)]

use std::ffi::c_char;

/// The version of this interface. It is incremented when programs compiled with an older header would no longer work; additions
/// do not change it.
pub const SEALANE_ABI_VERSION: u32 = 1;

/// The library's interface version; compare it with SEALANE_ABI_VERSION of the header.
#[unsafe(no_mangle)]
pub extern "C" fn sealane_abi_version() -> u32 {
    SEALANE_ABI_VERSION
}

/// The release of the library, such as "0.2.0". Valid as long as the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn sealane_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
