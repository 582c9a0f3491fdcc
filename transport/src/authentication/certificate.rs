//! A peer's certificate, whose chain was verified, and the tasks that it covers.

use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, IpAddr, ServerName, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

use crate::endpoint_map::{Host, TaskName};

/// Scheme of a URI among a certificate's names that names one task: `sealane://ps0.example:2222`.
const TASK_SCHEME: &str = "sealane://";

/// When a certificate expires; `None` if it cannot be read.
pub(super) fn not_after(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    // webpki gives this time only in its error for an expired certificate, which it checks first; at the end of time all are
    // expired.
    let never = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    match certificate.verify_for_usage(&[], &[], &[], never, KeyUsage::client_auth(), None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => {
            SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(not_after.as_secs()))
        }
        _ => None,
    }
}

/// A peer's certificate, whose chain was verified.
#[derive(Debug, Clone)]
pub struct Certificate(CertificateDer<'static>);

impl Certificate {
    pub(crate) fn new(certificate: CertificateDer<'static>) -> Self {
        Self(certificate)
    }

    /// The first certificate in a PEM text, unless it has expired.
    pub fn in_force(pem: &str) -> Option<Self> {
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        not_after(&certificate).is_some_and(|ends| ends > SystemTime::now()).then_some(Self(certificate))
    }

    /// True if one of its subject alternative names is the task's host, by DNS name (with `*` for a first label) or IP
    /// address, or the URI `sealane://` and the task's name.
    pub fn speaks_for(&self, task: &TaskName) -> bool {
        let Ok(certificate) = EndEntityCert::try_from(&self.0) else { return false };
        let names_task = |uri: &str| uri.strip_prefix(TASK_SCHEME).is_some_and(|name| name == task.as_str());
        if certificate.valid_uri_names().any(names_task) {
            return true;
        }
        let host = match task.host() {
            Host::V4(address) => ServerName::IpAddress(IpAddr::from(std::net::IpAddr::from(address))),
            Host::V6(address) => ServerName::IpAddress(IpAddr::from(std::net::IpAddr::from(address))),
            Host::Name(name) => match ServerName::try_from(name.to_string()) {
                Ok(name) => name,
                Err(_) => return false,
            },
        };
        certificate.verify_is_valid_for_subject_name(&host).is_ok()
    }

    /// The tasks that it names individually.
    pub fn tasks(&self) -> Vec<String> {
        let Ok(certificate) = EndEntityCert::try_from(&self.0) else { return Vec::new() };
        let names = certificate.valid_uri_names().filter_map(|uri| uri.strip_prefix(TASK_SCHEME));
        names.map(str::to_owned).collect()
    }

    /// Its DNS names and URIs, for errors and logs.
    pub fn names(&self) -> String {
        let Ok(certificate) = EndEntityCert::try_from(&self.0) else { return String::new() };
        let names: Vec<&str> = certificate.valid_dns_names().chain(certificate.valid_uri_names()).collect();
        if names.is_empty() { "no DNS name or URI".into() } else { names.join(", ") }
    }
}
