//! Settings that are one of a few words, which flags, reports and texts spell alike.

use std::fmt;
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use sealane_runtime::ExecutorChoice;
use sealane_transport::authentication::{Authentication, Authority, Certified, random_secret};
use sealane_transport::endpoint_map::TaskName;
use sealane_transport::verbs;
use serde::{Deserialize, Serialize};

use super::{Bench, Link, Mode};
use crate::error::BenchError;

macro_rules! written_as_in_json {
    ($($name:ty),+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        }
    )+};
}

written_as_in_json!(Bench, Executor, Fuse, Link, Mode, Registration, Security, SystemName, Transfer);

/// What Sealane's shards run on and sleep in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Executor {
    /// What they run on unless told otherwise.
    #[default]
    Auto,
    /// io_uring.
    IoUring,
    /// epoll.
    Epoll,
}

impl From<Executor> for ExecutorChoice {
    fn from(executor: Executor) -> Self {
        match executor {
            Executor::Auto => Self::Auto,
            Executor::IoUring => Self::IoUring,
            Executor::Epoll => Self::Epoll,
        }
    }
}

/// How much is made one: nothing, what leaves in a turn, or what is asked for in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fuse {
    /// One write a message, on both sides.
    Off,
    /// What a turn queued leaves as one write.
    #[default]
    Turn,
    /// What a turn queued leaves as one write, and one request asks for all tensors of a step.
    Receive,
    /// The same, and nothing goes on before the slowest of a step's tensors is there.
    ReceiveWaitAll,
    /// What a turn queued leaves as one write, and the tensors of a step are agreed on once and then asked for by number.
    Plan,
    /// Nobody asks: tensors are pushed one way into a queue, and accepted from it.
    Push,
}

impl Fuse {
    /// Whether one request asks for many tensors.
    pub fn is_of_many(self) -> bool {
        matches!(self, Self::Receive | Self::ReceiveWaitAll | Self::Plan)
    }
}

/// A system's name, as flags and reports spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SystemName {
    /// Sealane itself: always measured, and so never a baseline.
    #[value(skip)]
    Sealane,
    /// The bare operation of the kernel, or of memory where the link is in memory.
    Raw,
    /// gRPC, through tonic, by unary calls.
    Grpc,
    /// The same by one bidirectional stream.
    GrpcStream,
    /// The same unary calls, by connections that tonic's channel and server make of Sealane's streams.
    GrpcConnector,
    /// Sealane between two clients of one daemon, past that.
    Direct,
    /// Sealane's streams of bytes.
    Stream,
    /// Sealane that pulls the tables of which rows are wanted as a whole.
    Whole,
    /// PyTorch's collectives on CPUs.
    Gloo,
    /// Sealane whose two sides show each other nothing, beside Sealane with [`Security`](super::Security).
    Open,
}

impl SystemName {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sealane => "sealane",
            Self::Raw => "raw",
            Self::Grpc => "grpc",
            Self::GrpcStream => "grpc-stream",
            Self::GrpcConnector => "grpc-connector",
            Self::Direct => "direct",
            Self::Stream => "stream",
            Self::Whole => "whole",
            Self::Gloo => "gloo",
            Self::Open => "open",
        }
    }
}

/// How large tensors move over verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transfer {
    /// The producer writes into the consumer's memory.
    #[default]
    Write,
    /// The consumer reads out of the producer's.
    Read,
}

impl From<Transfer> for verbs::Transfer {
    fn from(transfer: Transfer) -> Self {
        match transfer {
            Transfer::Write => Self::Write,
            Transfer::Read => Self::Read,
        }
    }
}

/// When memory is registered with the RDMA device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Registration {
    /// Once, at start.
    #[default]
    Static,
    /// For each transfer.
    Dynamic,
}

impl From<Registration> for verbs::Registration {
    fn from(registration: Registration) -> Self {
        match registration {
            Registration::Static => Self::Static,
            Registration::Dynamic => Self::Dynamic,
        }
    }
}

/// Validity of the keys: longer than any run.
const KEYS_LIFE: Duration = Duration::from_secs(7 * 86_400);

/// What the two sides of a link show each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
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
    Secret(String),
    /// One certificate for both sides.
    Tls {
        /// The certificate, as PEM.
        certificate: String,
        key: String,
        authority: String,
    },
}

impl Keys {
    /// New keys for these tasks; `None` without security.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every word that a flag accepts is written the same way in a report.
    fn assert_spelt_alike<T: ValueEnum + fmt::Display>() {
        let words = T::value_variants().iter().filter_map(|word| Some((word, word.to_possible_value()?)));
        words.for_each(|(word, flag)| assert_eq!(word.to_string(), flag.get_name()));
    }

    #[test]
    fn settings_are_spelt_alike_wherever_they_stand() {
        assert_spelt_alike::<Executor>();
        assert_spelt_alike::<Fuse>();
        assert_spelt_alike::<Link>();
        assert_spelt_alike::<Mode>();
        assert_spelt_alike::<Registration>();
        assert_spelt_alike::<Security>();
        assert_spelt_alike::<SystemName>();
        assert_spelt_alike::<Transfer>();
        assert_eq!(Bench::FanIn.to_string(), "fanin");
        assert!(SystemName::from_str("sealane", false).is_err(), "it is always measured, and so never a baseline");
    }
}
