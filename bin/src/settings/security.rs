//! `[security]`: what peers of other hosts must show before they may talk.

use std::path::{Path, PathBuf};

use sealane_transport::authentication::TlsFiles;

use super::effective::Effective;
use super::{Require, Sourced};
use crate::Failure;

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

    pub(super) fn of(from: &Effective) -> Result<Security, Failure> {
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
                let fix = "give a shared secret or TLS's files, not both";
                return Err(from.contradiction("security.secret_file", FILES[given], fix));
            }
            (None, Some(given), files) => {
                let missing = files.iter().position(Option::is_none).expect("not all three are there");
                let (given, missing) = (from.given(FILES[given]), FILES[missing]);
                return Err(Failure::input(format!(
                    "{given} asks for TLS, which needs {missing} too; set it, or unset the others"
                )));
            }
        };
        let insecure: Sourced<bool> = from.get("security.insecure");
        if insecure.value && peers != Peers::Anyone {
            let shown = given.map_or("security.secret_file", |given| FILES[given]);
            let fix = "omit security.insecure: authentication is configured";
            return Err(from.contradiction("security.insecure", shown, fix));
        }
        let security = Security { peers, insecure, plaintext_rdma: from.get("security.plaintext_rdma") };
        let require: Sourced<Require> = from.get("transport.require");
        if require.value == Require::Verbs && security.rules_out_verbs() {
            let fix = "RDMA encrypts nothing: set security.plaintext_rdma = true to let tensors travel in plain text, or \
                       transport.require = tcp";
            return Err(from.contradiction("transport.require", "security.tls_certificate", fix));
        }
        Ok(security)
    }
}
