//! A certificate authority for a job: certifies tasks, for users without an authority, tests and benchmarks.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};

use crate::endpoint_map::TaskName;

/// Clocks of a cluster's hosts may differ by so much.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);
/// How long an authority is valid: it signs anew what ends before.
const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Signs certificates. Its key exists only here; signed certificates stay valid without it.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
pub struct Certified {
    /// The certificate, for anyone.
    pub certificate: String,
    /// Its key, only for its owner.
    pub key: String,
}

/// Why signing failed.
#[derive(Debug, thiserror::Error)]
#[error("no certificate could be made: {0}")]
pub struct AuthorityError(#[from] rcgen::Error);

impl Authority {
    /// A new authority with a new key (ECDSA on P-256), valid for ten years.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn new() -> Result<Self, AuthorityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Sealane authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        live(&mut params, SystemTime::now() + AUTHORITY_LIFE);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// The authority's certificate, as PEM, which every side must trust.
    pub fn certificate(&self) -> String {
        self.0.pem()
    }

    /// A certificate for exactly these tasks, as client and server, valid until then; and a new key.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn certify(&self, tasks: &[TaskName], until: SystemTime) -> Result<Certified, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        let name = tasks.first().map_or("no task", TaskName::as_str);
        params.distinguished_name.push(DnType::CommonName, name);
        let uri = |task: &TaskName| Ok(SanType::URI(format!("sealane://{task}").try_into()?));
        params.subject_alt_names = tasks.iter().map(uri).collect::<Result<_, rcgen::Error>>()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        live(&mut params, until);
        let certificate = params.signed_by(&key, &self.0)?;
        Ok(Certified { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// From an hour ago until then.
fn live(params: &mut CertificateParams, until: SystemTime) {
    let epoch = date_time_ymd(1970, 1, 1);
    let since_epoch = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    params.not_before = epoch + since_epoch(SystemTime::now() - CLOCK_SKEW);
    params.not_after = epoch + since_epoch(until);
}
