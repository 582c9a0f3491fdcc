//! Where the daemon's socket is when no setting says so.

use std::path::{Path, PathBuf};

use super::{Environment, SettingsError};

/// Where clients of `environment` look for it.
pub(super) fn socket(environment: &Environment) -> Result<PathBuf, SettingsError> {
    Ok(sealane::socket_in(environment.get("XDG_RUNTIME_DIR")?.map(Path::new)))
}
