//! What the two sides of a link show each other, as flags spell it; and throwaway keys for it.

use std::time::{Duration, SystemTime};

use sealane_transport::authentication::{Authentication, Authority, Certified, random_secret};
use sealane_transport::endpoint_map::TaskName;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// Longer than any run.
const KEYS_LIFE: Duration = Duration::from_secs(7 * 86_400);

/// What the two sides of a link show each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Security {
    /// Nothing.
    #[default]
    None,
    /// That they have the same secret; what follows is as without.
    Secret,
    /// Certificates; what follows is encrypted.
    Tls,
}

/// What both processes of a run show each other: made for it, and good for nothing else.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Keys {
    /// A shared secret.
    Secret(String),
    /// One certificate for both sides.
    Tls {
        /// The certificate, as PEM.
        certificate: String,
        /// Its key.
        key: String,
        /// The authority's certificate.
        authority: String,
    },
}

impl Keys {
    /// New keys for these tasks, if there is to be any security.
    pub(crate) fn make(security: Security, tasks: &[&str]) -> Result<Option<Self>, BenchError> {
        match security {
            Security::None => Ok(None),
            Security::Secret => {
                let secret = random_secret().map_err(BenchError::sealane("make keys"))?;
                Ok(Some(Self::Secret(secret)))
            }
            Security::Tls => {
                let tasks: Vec<TaskName> = tasks.iter().map(|task| task.parse().expect("a task's name")).collect();
                let made = Authority::new().and_then(|authority| {
                    let certified = authority.certify(&tasks, SystemTime::now() + KEYS_LIFE)?;
                    Ok((authority.certificate(), certified))
                });
                let (authority, Certified { certificate, key }) = made.map_err(BenchError::sealane("make keys"))?;
                Ok(Some(Self::Tls { certificate, key, authority }))
            }
        }
    }

    /// As an engine takes it.
    pub(crate) fn authentication(&self) -> Result<Authentication, BenchError> {
        let authentication = match self {
            Self::Secret(secret) => Authentication::secret_bytes(secret.as_bytes()),
            Self::Tls { certificate, key, authority } => {
                let certified = Certified { certificate: certificate.clone(), key: key.clone() };
                Authentication::certified(authority, &certified)
            }
        };
        authentication.map_err(BenchError::sealane("read keys"))
    }
}
