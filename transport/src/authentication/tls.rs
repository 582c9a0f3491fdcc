//! Mutual TLS 1.3: this side's certificate and key, and the requirements on the other side's.
//!
//! Chains are checked against the given authorities, in both directions. The engine checks names afterwards, against the
//! tasks that a peer claims to serve: names say what it may speak for, not where it was reached.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption, UnbufferedClientConnection, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{
    NoServerSessionStorage, ParsedCertificate, ServerConfig, UnbufferedServerConnection, WebPkiClientVerifier,
};
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme, version};

use super::certificate::not_after;
use super::secret::sha256;
use super::{AuthenticationError, private_file};

/// Longest PEM file, in bytes: a bundle of some hundred authorities.
const PEM_BYTES_MAX: usize = 1 << 20;
/// The protocol that both sides name, so that a certificate's other uses cannot be confused with this one (RFC 7301).
pub(crate) const PROTOCOL: &[u8] = b"sealane/1";
/// The server name that a caller asks for: none, since names are checked against tasks.
const SERVER_NAME: &str = "sealane.invalid";

/// The files of a side of mutual TLS, all PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// This side's certificate, and intermediate certificates.
    pub certificate: PathBuf,
    /// Its key, readable only by its owner.
    pub key: PathBuf,
    /// The trusted authorities.
    pub authorities: PathBuf,
}

/// What one side of TLS needs, for calls in both directions.
pub(crate) struct Identity {
    caller: Arc<ClientConfig>,
    called: Arc<ServerConfig>,
    /// When its certificate expires, or an intermediate certificate or the authority if that is sooner.
    pub(super) ends: Option<SystemTime>,
    /// A digest of the three files, to detect changes.
    pub(super) digest: [u8; 32],
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity")
    }
}

impl Identity {
    pub(super) fn load(files: &TlsFiles) -> Result<Self, AuthenticationError> {
        let certificate = private_file::read_public(&files.certificate, "the certificate", PEM_BYTES_MAX)?;
        let key = private_file::read(&files.key, "the certificate's key", PEM_BYTES_MAX)?;
        let authorities = private_file::read_public(&files.authorities, "the authorities", PEM_BYTES_MAX)?;
        let identity =
            Self::of((&files.certificate, &certificate), (&files.key, &key), (&files.authorities, &authorities))?;
        // No peer would accept it.
        if identity.ends.is_some_and(|ends| ends <= SystemTime::now()) {
            let problem = "it or its authority has expired; create new ones, for example with `sealane keys tls`";
            return Err(AuthenticationError::content(&files.certificate, problem));
        }
        Ok(identity)
    }

    /// From three PEM texts, each with its origin.
    pub(super) fn of(
        certificate: (&Path, &[u8]),
        (key_path, key): (&Path, &[u8]),
        authorities: (&Path, &[u8]),
    ) -> Result<Self, AuthenticationError> {
        let digest = sha256(&[certificate.1, key, authorities.1]);
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| AuthenticationError::content(key_path, format!("no private key in PEM: {error}")))?;
        let mut roots = RootCertStore::empty();
        let believed = certificates(authorities)?;
        for authority in &believed {
            let unfit = |error: rustls::Error| AuthenticationError::content(authorities.0, error.to_string());
            roots.add(authority.clone()).map_err(unfit)?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(provider()));
        let ends = ends(&chain, &believed, &provider);
        let unfit = |error: rustls::Error| {
            let problem = format!("it does not match the key in {}: {error}", key_path.display());
            AuthenticationError::content(certificate.0, problem)
        };
        let believed = Arc::new(ChainVerifier { roots: roots.clone(), provider: provider.clone() });
        let mut caller = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&version::TLS13])
            .expect("the provider has suites of TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(believed)
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(unfit)?;
        caller.resumption = Resumption::disabled();
        caller.enable_sni = false;
        // The links seal and open records themselves.
        caller.enable_secret_extraction = true;
        caller.alpn_protocols = vec![PROTOCOL.to_vec()];
        let callers = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            // A side has one certificate, and nothing to choose by these names: the names of some hundred authorities are
            // longer than a handshake may be.
            .clear_root_hint_subjects()
            .build()
            .map_err(|error| AuthenticationError::content(authorities.0, error.to_string()))?;
        let mut called = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])
            .expect("the provider has suites of TLS 1.3")
            .with_client_cert_verifier(callers)
            .with_single_cert(chain, key)
            .map_err(unfit)?;
        // Only what the links send may follow the handshake: a link over verbs only watches its socket for the end.
        called.send_tls13_tickets = 0;
        called.enable_secret_extraction = true;
        called.session_storage = Arc::new(NoServerSessionStorage {});
        called.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self { caller: Arc::new(caller), called: Arc::new(called), ends, digest })
    }

    /// This identity for a side that names no protocol.
    #[cfg(test)]
    pub(crate) fn without_protocol(&self) -> Self {
        let (mut caller, mut called) = (ClientConfig::clone(&self.caller), ServerConfig::clone(&self.called));
        caller.alpn_protocols.clear();
        called.alpn_protocols.clear();
        Self { caller: Arc::new(caller), called: Arc::new(called), ..*self }
    }

    /// This identity for a side that gives each caller `tickets` session tickets, each in a record of its own.
    #[cfg(test)]
    pub(crate) fn with_tickets(&self, tickets: usize) -> Self {
        /// With its header, its nonce and its session's number of 32 bytes each.
        const TICKET_BYTES: usize = 4 + 4 + 4 + 1 + 32 + 2 + 32 + 2;
        let mut called = ServerConfig::clone(&self.called);
        called.send_tls13_tickets = tickets;
        called.session_storage = rustls::server::ServerSessionMemoryCache::new(1);
        called.max_fragment_size = Some(TICKET_BYTES + 5);
        Self { caller: self.caller.clone(), called: Arc::new(called), ..*self }
    }

    /// A caller that also uses rustls for its records.
    #[cfg(test)]
    pub(crate) fn other_caller(&self) -> rustls::ClientConnection {
        let name = ServerName::try_from(SERVER_NAME).expect("a DNS name");
        rustls::ClientConnection::new(self.caller.clone(), name).expect("its configuration is complete")
    }

    pub(crate) fn calling(&self) -> Result<UnbufferedClientConnection, rustls::Error> {
        let name = ServerName::try_from(SERVER_NAME).expect("a DNS name");
        UnbufferedClientConnection::new(self.caller.clone(), name)
    }

    pub(crate) fn called(&self) -> Result<UnbufferedServerConnection, rustls::Error> {
        UnbufferedServerConnection::new(self.called.clone())
    }
}

/// AES-128 first: with the AES instructions that any server has it is the fastest, and strong enough (RFC 8446, appendix
/// B.4).
fn provider() -> CryptoProvider {
    use ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256};
    let cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    CryptoProvider { cipher_suites, ..ring::default_provider() }
}

/// When a chain expires: the earliest of its own certificates and the authority that vouches for them, if that is trusted.
fn ends(
    chain: &[CertificateDer<'static>],
    believed: &[CertificateDer<'static>],
    provider: &CryptoProvider,
) -> Option<SystemTime> {
    let (now, algorithms) = (UnixTime::now(), provider.signature_verification_algorithms.all);
    let vouches = |authority: &&CertificateDer<'static>| {
        let mut root = RootCertStore::empty();
        root.add((*authority).clone()).is_ok_and(|()| {
            ParsedCertificate::try_from(&chain[0]).is_ok_and(|own| {
                verify_server_cert_signed_by_trust_anchor(&own, &root, &chain[1..], now, algorithms).is_ok()
            })
        })
    };
    let authority = believed.iter().filter(vouches).filter_map(not_after).max();
    // If an authority vouches for the chain, an expired certificate is not one that the chain depends on.
    let counts = |end: &SystemTime| authority.is_none() || *end > SystemTime::now();
    chain.iter().filter_map(not_after).filter(counts).chain(authority).min()
}

fn certificates((path, pem): (&Path, &[u8])) -> Result<Vec<CertificateDer<'static>>, AuthenticationError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| AuthenticationError::content(path, format!("not PEM: {error}")))?;
    if found.is_empty() {
        let problem = "there is no certificate in it (PEM: -----BEGIN CERTIFICATE-----)";
        return Err(AuthenticationError::content(path, problem));
    }
    Ok(found)
}

/// Checks the chain of a called side's certificate, whatever its names.
#[derive(Debug)]
struct ChainVerifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ChainVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, between, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
