//! What daemons and embedded engines show each other, made by `sealane keys` for one run.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use sealane::{Authentication, TlsFiles};

use crate::command::run;

/// What peers show each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
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

/// The settings of a daemon at that address.
pub(super) fn settings(shown: Shown, folder: &Path, address: SocketAddr) -> Vec<String> {
    let set = |name: &str, path: PathBuf| format!("security.{name}={}", path.display());
    match shown {
        Shown::Secret => vec![set("secret_file", secret(folder))],
        Shown::Tls => {
            let TlsFiles { certificate, key, authorities } = files(folder, address);
            vec![set("tls_certificate", certificate), set("tls_key", key), set("tls_authorities", authorities)]
        }
        Shown::Nothing => vec!["security.insecure=true".to_owned()],
    }
}

/// The same for an engine that is embedded.
pub(crate) fn authentication(shown: Shown, folder: &Path, address: SocketAddr) -> Result<Authentication, String> {
    let read = match shown {
        Shown::Secret => Authentication::secret(&secret(folder)),
        Shown::Tls => Authentication::tls(&files(folder, address)),
        Shown::Nothing => Ok(Authentication::default()),
    };
    read.map_err(|error| error.to_string())
}

fn secret(folder: &Path) -> PathBuf {
    folder.join("secret")
}

fn files(folder: &Path, address: SocketAddr) -> TlsFiles {
    let keys = folder.join("keys");
    let own = keys.join(address.to_string().replace(':', "_"));
    TlsFiles {
        certificate: own.join("certificate.pem"),
        key: own.join("key.pem"),
        authorities: keys.join("authorities.pem"),
    }
}
