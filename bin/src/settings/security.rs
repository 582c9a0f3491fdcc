//! `[security]`: what peers of other hosts must show before they may talk.

use std::path::{Path, PathBuf};

use sealane_transport::authentication::TlsFiles;

use super::effective::Effective;
use super::{Require, SettingsError, Sourced};

/// `[security]`
#[derive(Clone, Debug)]
pub struct Security {
    /// What peers must show.
    pub peers: Peers,
    /// Without either, listen where other hosts reach it all the same.
    pub insecure: Sourced<bool>,
    /// Under TLS, use RDMA all the same, which encrypts nothing.
    pub plaintext_rdma: Sourced<bool>,
}

/// What peers must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Nothing.
    Anyone,
    /// That they have the secret of this file.
    Secret(PathBuf),
    /// A certificate for their tasks.
    Tls(TlsFiles),
}

impl Peers {
    /// The files that say who may talk.
    pub fn files(&self) -> Vec<&Path> {
        match self {
            Peers::Anyone => Vec::new(),
            Peers::Secret(file) => vec![file],
            Peers::Tls(TlsFiles { certificate, key, authorities }) => vec![certificate, key, authorities],
        }
    }
}

impl Security {
    /// True if links must not be RDMA, which would carry in plain text what TLS is to encrypt.
    pub fn rules_out_verbs(&self) -> bool {
        matches!(self.peers, Peers::Tls(_)) && !self.plaintext_rdma.value
    }

    pub(super) fn of(from: &Effective) -> Result<Security, SettingsError> {
        const FILES: [&str; 3] = ["security.tls_certificate", "security.tls_key", "security.tls_authorities"];
        let secret: Sourced<Option<PathBuf>> = from.get("security.secret_file");
        let files: [Sourced<Option<PathBuf>>; 3] = FILES.map(|name| from.get(name));
        let given = files.iter().position(|file| file.value.is_some());
        let peers = match (secret.value, given, files.map(|file| file.value)) {
            (None, None, _) => Peers::Anyone,
            (Some(file), None, _) => Peers::Secret(file),
            (None, Some(_), [Some(certificate), Some(key), Some(authorities)]) => {
                Peers::Tls(TlsFiles { certificate, key, authorities })
            }
            (Some(_), Some(given), _) => {
                return Err(SettingsError::Contradiction {
                    first: Box::new(from.given("security.secret_file")),
                    second: Box::new(from.given(FILES[given])),
                    fix: "give a shared secret or TLS's files, not both",
                });
            }
            (None, Some(given), files) => {
                let missing = files.iter().position(Option::is_none).expect("not all three are there");
                return Err(SettingsError::TlsIncomplete { given: from.given(FILES[given]), missing: FILES[missing] });
            }
        };
        let insecure: Sourced<bool> = from.get("security.insecure");
        if insecure.value && peers != Peers::Anyone {
            let shown = given.map_or("security.secret_file", |given| FILES[given]);
            return Err(SettingsError::Contradiction {
                first: Box::new(from.given("security.insecure")),
                second: Box::new(from.given(shown)),
                fix: "omit security.insecure: authentication is configured",
            });
        }
        let security = Security { peers, insecure, plaintext_rdma: from.get("security.plaintext_rdma") };
        let require: Sourced<Require> = from.get("transport.require");
        if require.value == Require::Verbs && security.rules_out_verbs() {
            return Err(SettingsError::Contradiction {
                first: Box::new(from.given("transport.require")),
                second: Box::new(from.given("security.tls_certificate")),
                fix: "RDMA encrypts nothing: set security.plaintext_rdma = true to let tensors travel in plain text, or \
                      transport.require = tcp",
            });
        }
        Ok(security)
    }
}
