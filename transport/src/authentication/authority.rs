//! A certificate authority for a job: certifies tasks, for users without an authority, and for tests and benchmarks.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::certificate::not_after;
use crate::endpoint_map::TaskName;

/// How much the clocks of a cluster's hosts may differ.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);
/// How long an authority is valid: it renews certificates that expire earlier.
const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Signs certificates. They stay valid without its key.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
    /// No certificate outlives this.
    ends: Option<SystemTime>,
}

/// A certificate and its key, as PEM.
pub struct Certified {
    /// The certificate, for anyone.
    pub certificate: String,
    /// Its key, only for its owner.
    pub key: String,
}

/// Why signing failed.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("no certificate could be made: {0}")]
    Make(#[from] rcgen::Error),
    /// The files belong to two different authorities.
    #[error("it is not the key of the authority")]
    OtherKey,
}

impl Authority {
    /// A new authority with a new key (ECDSA on P-256), valid for ten years.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new() -> Result<Self, AuthorityError> {
        let (mut params, key) = (params(), KeyPair::generate()?);
        live(&mut params, SystemTime::now() + AUTHORITY_LIFE);
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { certificate, issuer: Issuer::new(params, key), ends: None })
    }

    /// The authority with this certificate and this key, both PEM, which [`new`](Self::new) has created.
    ///
    /// # Errors
    /// They cannot be read, or belong to two different authorities.
    pub fn of(certificate: &str, key: &str) -> Result<Self, AuthorityError> {
        let key = KeyPair::from_pem(key)?;
        let own = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|_| AuthorityError::OtherKey)?;
        let public = key.public_key_raw();
        if !own.windows(public.len()).any(|bytes| bytes == public) {
            return Err(AuthorityError::OtherKey);
        }
        Ok(Self { certificate: certificate.to_owned(), issuer: Issuer::new(params(), key), ends: not_after(&own) })
    }

    /// The authority's certificate, as PEM, which every side must trust.
    pub fn certificate(&self) -> String {
        self.certificate.clone()
    }

    /// Its key, as PEM: whoever has it may speak for any task.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// A certificate for exactly these tasks, as client and server, valid until `until`; and a new key.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn certify(&self, tasks: &[TaskName], until: SystemTime) -> Result<Certified, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        let name = tasks.first().map_or("no task", TaskName::as_str);
        params.distinguished_name.push(DnType::CommonName, name);
        let uri = |task: &TaskName| Ok(SanType::URI(format!("sealane://{task}").try_into()?));
        params.subject_alt_names = tasks.iter().map(uri).collect::<Result<_, rcgen::Error>>()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        live(&mut params, self.ends.map_or(until, |ends| until.min(ends)));
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Certified { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// The name and permissions of every authority.
fn params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "Sealane authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// Sets the validity from an hour ago to `until`.
fn live(params: &mut CertificateParams, until: SystemTime) {
    let epoch = date_time_ymd(1970, 1, 1);
    let since_epoch = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    params.not_before = epoch + since_epoch(SystemTime::now() - CLOCK_SKEW);
    params.not_after = epoch + since_epoch(until);
}
