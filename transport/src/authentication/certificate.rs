//! A peer's certificate, whose chain was checked, and the tasks that it speaks for.

use rustls::pki_types::{CertificateDer, IpAddr, ServerName};
use webpki::EndEntityCert;

use crate::endpoint_map::{Host, TaskName};

/// What a URI among the names of a certificate begins with that names one task: `sealane://ps0.example:2222`.
const TASK_SCHEME: &str = "sealane://";

/// See the module.
#[derive(Debug, Clone)]
pub struct Certificate(CertificateDer<'static>);

impl Certificate {
    pub(crate) fn new(certificate: CertificateDer<'static>) -> Self {
        Self(certificate)
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

    /// For errors and logs: the DNS names and URIs that it has.
    pub fn names(&self) -> String {
        let Ok(certificate) = EndEntityCert::try_from(&self.0) else { return String::new() };
        let names: Vec<&str> = certificate.valid_dns_names().chain(certificate.valid_uri_names()).collect();
        if names.is_empty() { "no DNS name or URI".into() } else { names.join(", ") }
    }
}
