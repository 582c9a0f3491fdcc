//! Settings that are one of a few words. Flags, reports and texts spell them as serde does, so each is spelt in one place.

use std::fmt;
use std::str::FromStr;

use serde::de::value::Error;
use serde::de::{Deserialize, IntoDeserializer};
use serde::ser::Serialize;

use super::{Bench, Executor, Fuse, Link, Mode, Registration, Security, SystemName, Transfer};
use crate::error::BenchError;

/// The value that a word names.
///
/// # Errors
/// [`BenchError::Setting`] for any other word, with those that are accepted.
pub(super) fn read<'t, T: Deserialize<'t>>(
    setting: &'static str,
    text: &'t str,
    accepted: &str,
) -> Result<T, BenchError> {
    T::deserialize(IntoDeserializer::<Error>::into_deserializer(text))
        .map_err(|_| BenchError::setting(setting, text, accepted))
}

macro_rules! written_as_in_json {
    ($($name:ty),+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        }
    )+};
}

macro_rules! read_as_in_json {
    ($($name:ty: $setting:literal, $accepted:literal;)+) => {$(
        impl FromStr for $name {
            type Err = BenchError;

            fn from_str(text: &str) -> Result<Self, BenchError> {
                read($setting, text, $accepted)
            }
        }
    )+};
}

written_as_in_json!(Bench, Executor, Fuse, Link, Mode, Registration, Security, SystemName, Transfer);

read_as_in_json! {
    Executor: "--executor", "auto, io_uring or epoll";
    Fuse: "--fuse", "off, turn, receive, receive-wait-all, plan or push";
    Mode: "--mode", "async or sync";
    Registration: "--registration", "static or dynamic";
    Security: "--security", "none, secret or tls";
    Transfer: "--transfer", "write or read";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every word that a refusal names is one that is read, and is written again as it was read.
    fn assert_spelt_alike<T: FromStr<Err = BenchError> + fmt::Display>() {
        let refused = "carrier-pigeon".parse::<T>().err().expect("an unknown word");
        assert!(refused.is_usage());
        let BenchError::Setting { accepted, .. } = refused else { panic!("{refused}") };
        for word in accepted.replace(" or ", ", ").split(", ") {
            match word.parse::<T>() {
                Ok(value) => assert_eq!(value.to_string(), word),
                Err(error) => assert!(word == "verbs" && error.to_string().contains("--features verbs"), "{error}"),
            }
        }
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
        assert!("wire".parse::<Fuse>().unwrap_err().to_string().starts_with("--fuse is wire; give off, turn, receive"));
        assert_eq!(Bench::FanIn.to_string(), "fanin");
        assert!("sealane".parse::<SystemName>().is_err(), "it is always measured, and so never a baseline");
    }
}
