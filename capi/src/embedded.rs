//! An engine in this process.
#![allow(unsafe_code)]

use std::ffi::c_char;

use crate::{
    error::sealane_error,
    guard::entry,
    input::{Options, options, path, terminated},
    task::{place, sealane_task},
};

/// Options for starting an engine. Set `size` to the struct's `sizeof`; fields that are 0 take their defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_embedded_options {
    /// sizeof(sealane_embedded_options), so that later headers can add fields.
    pub size: usize,
    /// Number of the engine's threads. Default 1.
    pub shards: u64,
    /// How many microseconds an idle thread spins before it sleeps, SEALANE_NEVER_SLEEP or
    /// SEALANE_SLEEP_AT_ONCE. Default 200.
    pub idle_spin_us: i64,
    /// Default timeout of calls in milliseconds, or SEALANE_NO_TIMEOUT. Default 600000.
    pub request_timeout_ms: i64,
    /// A file with the secret that peers share. Default: none.
    pub secret_file: *const c_char,
    /// A file with this side's certificate in PEM; requires tls_key and tls_authorities, and excludes secret_file. Default:
    /// none.
    pub tls_certificate: *const c_char,
    /// The file with its key.
    pub tls_key: *const c_char,
    /// The file with the trusted authorities.
    pub tls_authorities: *const c_char,
    /// Not 0: listen on addresses that other hosts can reach even without a secret or certificates. Default 0: without them,
    /// only on loopback addresses.
    pub insecure: u64,
}

// SAFETY: plain numbers and pointers of 8 bytes each, the size first.
unsafe impl Options for sealane_embedded_options {}

/// Starts an engine in this process for one task of the endpoint map, and listens on that task's transport address. The task's
/// name and the map's path are NUL-terminated. If options is NULL, all options have their defaults.
///
/// Fails with SEALANE_CODE_UNAVAILABLE if the address cannot be listened on, SEALANE_CODE_UNIMPLEMENTED if the library was built
/// without engines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_embedded(
    endpoint_map: *const c_char,
    task: *const c_char,
    options: *const sealane_embedded_options,
    embedded: *mut *mut sealane_task,
) -> *mut sealane_error {
    entry(|| {
        let embedded = place(embedded, "embedded")?;
        // SAFETY: as the header asks of C code.
        let (name, options) = unsafe { (terminated(task, "task")?, self::options(options)?) };
        // SAFETY: as the header asks of C code.
        let map = unsafe { path(endpoint_map) }.ok_or_else(|| sealane_error::invalid("endpoint_map: it is null"))?;
        // SAFETY: as the header asks of C code.
        let files = unsafe {
            [
                path(options.secret_file),
                path(options.tls_certificate),
                path(options.tls_key),
                path(options.tls_authorities),
            ]
        };
        let task = start(name, map, &options, files)?;
        // SAFETY: the place was checked.
        unsafe { task.hand_out(embedded) };
        Ok(())
    })
}

#[cfg(feature = "embedded")]
fn start(
    name: &str,
    map: std::path::PathBuf,
    options: &sealane_embedded_options,
    files: [Option<std::path::PathBuf>; 4],
) -> crate::guard::Outcome<sealane_task> {
    use sealane::{Authentication, EndpointMap, Engine, EngineSettings, Error, Polling, StartError, TlsFiles};

    use crate::{attach::idle_spin, input::timeout, task::Own};

    let invalid = |error: &dyn std::fmt::Display| sealane_error::invalid(error.to_string());
    let map = EndpointMap::load(map).map_err(|error| invalid(&error))?;
    let mut settings = EngineSettings::new(map, &[name])?;
    if options.shards > 0 {
        settings.runtime.shards = options.shards.try_into().unwrap_or(usize::MAX);
    }
    settings.runtime.polling = match idle_spin(options.idle_spin_us)? {
        None => settings.runtime.polling,
        Some(idle_spin) => Polling::idle(idle_spin),
    };
    if let Some(timeout) = timeout(options.request_timeout_ms)? {
        settings.request_timeout = timeout;
    }
    settings.authentication = match files {
        [None, None, None, None] => Authentication::default(),
        [Some(secret), None, None, None] => Authentication::secret(&secret).map_err(|error| invalid(&error))?,
        [None, Some(certificate), Some(key), Some(authorities)] => {
            Authentication::tls(&TlsFiles { certificate, key, authorities }).map_err(|error| invalid(&error))?
        }
        _ => return Err(invalid(&"give secret_file alone, or all of tls_certificate, tls_key and tls_authorities")),
    };
    settings.insecure = options.insecure != 0;
    let map = settings.map.clone();
    let engine = Engine::start(settings).map_err(|error| match error {
        StartError::Settings(reason) => Error::invalid(reason),
        insecure @ StartError::Insecure { .. } => Error::invalid(insecure.to_string()),
        other => Error::unavailable("the engine", other.to_string()),
    })?;
    let task = engine.task(name)?;
    Ok(sealane_task::new(task.into()).with_engine(Own { engine, map }))
}

#[cfg(not(feature = "embedded"))]
fn start(
    _name: &str,
    _map: std::path::PathBuf,
    _options: &sealane_embedded_options,
    _files: [Option<std::path::PathBuf>; 4],
) -> crate::guard::Outcome<sealane_task> {
    let reason = "this library was built without the feature embedded: attach to the host's daemon";
    Err(sealane_error::new(crate::error::sealane_code::Unimplemented, reason))
}
