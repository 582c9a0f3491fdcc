//! What daemons and embedded engines show each other, made by `sealane keys` for one run.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::run;

/// What peers show each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Shown {
    /// That they have the run's secret.
    Secret,
    /// Certificates for their tasks; all is encrypted.
    Tls,
    /// Nothing: everybody who reaches a host may talk.
    Nothing,
}

/// Makes secret and certificates for the endpoint map of a run, in its folder.
pub(super) fn make(program: &Path, folder: &Path) -> Result<(), String> {
    run(Command::new(program).args(["keys", "secret"]).arg(secret(folder)))?;
    let map = folder.join("endpoint_map");
    run(Command::new(program).args(["keys", "tls"]).arg(folder.join("keys")).arg("--endpoint-map").arg(map))?;
    Ok(())
}

/// The settings of a daemon at that address, or of an engine, by name.
pub(super) fn settings(shown: Shown, folder: &Path, address: SocketAddr) -> Vec<(&'static str, String)> {
    let path = |path: PathBuf| path.display().to_string();
    let keys = folder.join("keys");
    let own = keys.join(address.to_string().replace(':', "_"));
    match shown {
        Shown::Secret => vec![("security.secret_file", path(secret(folder)))],
        Shown::Tls => vec![
            ("security.tls_certificate", path(own.join("certificate.pem"))),
            ("security.tls_key", path(own.join("key.pem"))),
            ("security.tls_authorities", path(keys.join("authorities.pem"))),
        ],
        Shown::Nothing => vec![("security.insecure", "true".to_owned())],
    }
}

fn secret(folder: &Path) -> PathBuf {
    folder.join("secret")
}
