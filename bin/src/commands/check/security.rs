//! Who may talk to the tasks of this host, and whether a daemon would start so.

use serde::Serialize;

use super::ips_of;
use super::verdict::{Finding, advice};
use crate::engine_settings::authentication;
use crate::figures::days_left;
use crate::settings::{Peers, Settings};
use sealane_transport::endpoint_map::TransportAddress;

/// A certificate that ends sooner is to be renewed.
const WARNING_DAYS: f64 = 7.0;

/// What peers of other hosts must show.
#[derive(Debug, Serialize)]
pub(super) struct Security {
    /// `none`, `shared secret` or `TLS 1.3`.
    peers: &'static str,
    insecure: bool,
    plaintext_rdma: bool,
    /// Days until the certificate ends, or sooner its authority's.
    days_left: Option<f64>,
    /// Why a daemon would not start.
    error: Option<String>,
}

impl Security {
    /// What the settings say, for a daemon that listens on these addresses.
    pub(super) fn look<'a>(settings: &Settings, ours: impl IntoIterator<Item = &'a TransportAddress>) -> Security {
        let (insecure, plaintext_rdma) = (settings.security.insecure.value, settings.security.plaintext_rdma.value);
        let (peers, days_left, error) = match authentication(&settings.security) {
            Ok(authentication) => (authentication.name(), authentication.ends().map(days_left), None),
            Err(failure) => (name(&settings.security.peers), None, Some(failure.to_string())),
        };
        let exposed = || {
            let address = ours.into_iter().find(|address| is_exposed(address))?;
            Some(format!(
                "{address} can be reached from other hosts: set security.secret_file or security.tls_certificate \
                 (`sealane keys --help` creates what they need), or security.insecure = true"
            ))
        };
        let is_open = settings.security.peers == Peers::Anyone && !insecure;
        Security {
            peers,
            insecure,
            plaintext_rdma,
            days_left,
            error: error.or_else(|| if is_open { exposed() } else { None }),
        }
    }
}

fn name(peers: &Peers) -> &'static str {
    match peers {
        Peers::Anyone => "none",
        Peers::Secret(_) => "shared secret",
        Peers::Tls(_) => "TLS 1.3",
    }
}

/// True if other hosts reach the address; one that cannot be looked up is reached by nobody.
fn is_exposed(address: &TransportAddress) -> bool {
    ips_of(address).iter().any(|ip| !ip.to_canonical().is_loopback())
}

impl Security {
    /// What is to be said of it.
    pub(super) fn finding(&self) -> Finding {
        const NAME: &str = "who may talk";
        let who = match (self.peers, self.insecure) {
            ("none", true) => "anyone who can connect (security.insecure)",
            ("none", false) => "anyone, but only this host can connect",
            ("shared secret", _) => "holders of the shared secret; not encrypted",
            _ if self.plaintext_rdma => {
                "holders of a certificate for their tasks; encrypted by TLS 1.3, except RDMA (security.plaintext_rdma)"
            }
            _ => "holders of a certificate for their tasks; encrypted by TLS 1.3, without RDMA",
        };
        let Some(error) = &self.error else {
            return match self.days_left {
                None => Finding::ok(NAME, who),
                Some(days) if days > WARNING_DAYS => {
                    Finding::ok(NAME, format!("{who}; the certificate is valid for {days:.0} days"))
                }
                Some(days) => Finding::better(
                    NAME,
                    format!("{who}; the certificate or its authority expires in {days:.1} days"),
                    advice("replace its files; a running daemon reloads them (sealane keys --help)"),
                ),
            };
        };
        // Each of these says what was wrong, and then what to do.
        let (wrong, remedy) = error.split_once(": set ").or_else(|| error.split_once("; ")).unwrap_or((error, ""));
        let remedy = match remedy {
            "" => "sealane keys --help".into(),
            _ if error.contains(": set ") => advice(format!("set {remedy}")),
            remedy => advice(remedy),
        };
        Finding::fails(NAME, format!("a daemon would not start: {wrong}"), remedy)
    }
}
