//! Authentication of peers over TCP: none, a shared secret, or a certificate for the tasks that the peer names.
//!
//! Values here are immutable: an engine given a new one uses it for new links. Links authenticate before the handshake
//! ([`tcp`](crate::tcp)).

#[cfg(feature = "authority")]
mod authority;
mod certificate;
mod private_file;
mod secret;
mod tls;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

#[cfg(feature = "authority")]
pub use authority::{Authority, AuthorityError, Certified};
pub use certificate::Certificate;
pub(crate) use secret::{Call, Nonce, Secret, Speaker};
pub use secret::{SECRET_BYTES_MAX, SECRET_BYTES_MIN, SECRETS_MAX, random_secret};
pub use tls::TlsFiles;
pub(crate) use tls::{Identity, PROTOCOL};

/// How peers authenticate to each other. Cloning counts a reference.
///
/// - [`Authentication::default`]: none. Anyone who can connect is accepted.
/// - [`Authentication::secret`]: by a secret that all engines of a job share: mutual challenge and response with HMAC-SHA-256.
///   Later traffic is neither encrypted nor protected against alteration, and anyone with the secret may speak for any task.
/// - [`Authentication::tls`]: by mutual TLS 1.3, which encrypts all later traffic on TCP. A peer speaks only for tasks that its
///   certificate covers.
#[derive(Debug, Clone, Default)]
pub struct Authentication(pub(crate) Means);

/// What peers must prove themselves with.
#[derive(Debug, Clone, Default)]
pub(crate) enum Means {
    #[default]
    Open,
    Secret(Arc<Secret>),
    Tls(Arc<Identity>),
}

impl Authentication {
    /// The shared secret in a file that only its owner may read. A second line may hold another secret, which callers may also
    /// use while the hosts of a job are updated one by one.
    ///
    /// # Errors
    /// The file cannot be read, others may read it, a secret is too short, or there are too many.
    pub fn secret(path: &Path) -> Result<Self, AuthenticationError> {
        let bytes = private_file::read(path, "the shared secret", SECRET_BYTES_MAX)?;
        let secret = Secret::new(&bytes).map_err(|problem| AuthenticationError::content(path, problem))?;
        Ok(Self(Means::Secret(Arc::new(secret))))
    }

    /// A certificate, its key, and the trusted authorities.
    ///
    /// # Errors
    /// A file cannot be read or has the wrong contents, others may read the key, the key does not match, or the certificate has
    /// expired.
    pub fn tls(files: &TlsFiles) -> Result<Self, AuthenticationError> {
        Ok(Self(Means::Tls(Arc::new(Identity::load(files)?))))
    }

    /// Like [`tls`](Self::tls), for a certificate issued by an [`Authority`], whose own certificate is given as PEM.
    ///
    /// # Errors
    /// The key does not match the certificate.
    #[cfg(feature = "authority")]
    pub fn certified(authority: &str, certified: &Certified) -> Result<Self, AuthenticationError> {
        let identity = Identity::of(
            (Path::new("certificate"), certified.certificate.as_bytes()),
            (Path::new("key"), certified.key.as_bytes()),
            (Path::new("authority"), authority.as_bytes()),
        )?;
        Ok(Self(Means::Tls(Arc::new(identity))))
    }

    /// Like [`secret`](Self::secret), for a secret, or two on separate lines, that are not in a file.
    ///
    /// # Errors
    /// As [`Authentication::secret`].
    pub fn secret_bytes(bytes: &[u8]) -> Result<Self, AuthenticationError> {
        let secret =
            Secret::new(bytes).map_err(|problem| AuthenticationError::content(Path::new("secret"), problem))?;
        Ok(Self(Means::Secret(Arc::new(secret))))
    }

    /// True if anyone who can connect is accepted.
    pub fn is_open(&self) -> bool {
        matches!(self.0, Means::Open)
    }

    /// True if traffic over TCP is encrypted.
    pub fn is_encrypted(&self) -> bool {
        matches!(self.0, Means::Tls(_))
    }

    /// When this side's certificate expires, or its authority's if that is sooner. `None` if there is none.
    pub fn ends(&self) -> Option<SystemTime> {
        match &self.0 {
            Means::Tls(identity) => identity.ends,
            Means::Open | Means::Secret(_) => None,
        }
    }

    /// True if both have the same contents.
    pub fn is_same(&self, other: &Authentication) -> bool {
        match (&self.0, &other.0) {
            (Means::Open, Means::Open) => true,
            (Means::Secret(one), Means::Secret(other)) => one.digest == other.digest,
            (Means::Tls(one), Means::Tls(other)) => one.digest == other.digest,
            _ => false,
        }
    }

    /// The required authentication, for logs.
    pub fn name(&self) -> &'static str {
        match self.0 {
            Means::Open => "none",
            Means::Secret(_) => "shared secret",
            Means::Tls(_) => "TLS 1.3",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticationError {
    #[error("{what} cannot be read from {}: {message}", path.display())]
    Read {
        /// What it should hold.
        what: &'static str,
        path: PathBuf,
        message: String,
    },
    /// Others than its owner may read a secret, or write a file that says who is trusted; or someone else owns it.
    #[error("{what} in {} is accessible to others: {problem}; chown it to the user that runs this and chmod 600 \
             it", path.display())]
    NotPrivate {
        /// What it holds.
        what: &'static str,
        path: PathBuf,
        /// The file's owner, or its mode.
        problem: String,
    },
    /// A file has the wrong contents.
    #[error("{}: {problem}", path.display())]
    Content {
        path: PathBuf,
        /// What is wrong, and what is accepted.
        problem: String,
    },
}

impl AuthenticationError {
    fn content(path: &Path, problem: impl Into<String>) -> Self {
        Self::Content { path: path.to_owned(), problem: problem.into() }
    }
}

#[cfg(test)]
mod tests;
