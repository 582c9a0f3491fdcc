//! The values of settings: how each kind is read from text, shown, and converted to a Rust type. Pure.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use sealane_fusion::Fuse;
use sealane_runtime::ExecutorChoice;
use sealane_transport::JobName;
use sealane_transport::limits::JOB_NAME_BYTES_MAX;
use sealane_transport::verbs::{Registration, Transfer};
use serde::{Serialize, Serializer};

use super::Require;
use super::limits::{GIB, KIB, MIB, TIB};

/// What a setting accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Number {
        unit: Unit,
        min: u64,
        max: u64,
    },
    /// A bool, written as in TensorFlow or Python.
    Bool,
    OneOf(&'static [&'static str]),
    Text,
    /// A path; empty means the working directory.
    Path,
    /// A [`JobName`].
    JobName,
    /// User ids between commas; empty means none.
    UserIds,
    /// An IP address with a port, or `off`.
    MetricsAddress,
    /// An IP address without a port; IPv6 without brackets.
    IpAddress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number of things.
    Count,
    /// Bytes, which may be given with a binary unit.
    Bytes,
    Milliseconds,
    Microseconds,
}

/// Where metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    Off,
    /// At this address; port 0 lets the system pick one.
    At(SocketAddr),
}

/// The value of a setting; in JSON a number, a bool, a text or null.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// Nothing sets it, and its default depends on the host or the endpoint map: what happens instead.
    #[serde(serialize_with = "as_null")]
    Unset(&'static str),
    /// A number, in the unit of its kind.
    Number(u64),
    Bool(bool),
    /// A text, a path or one of the choices.
    Text(Cow<'static, str>),
}

fn as_null<S: Serializer>(_: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_unit()
}

impl fmt::Display for Value {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Unset(_) => out.write_str("unset"),
            Value::Number(number) => write!(out, "{number}"),
            Value::Bool(bool) => write!(out, "{bool}"),
            Value::Text(text) => out.write_str(text),
        }
    }
}

const UNITS: [(&str, u64); 5] = [("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("B", 1)];

impl Kind {
    /// Reads a value; `None` if the kind does not accept it.
    pub fn read(&self, text: &str) -> Option<Value> {
        match *self {
            Kind::Text => Some(Value::Text(text.to_owned().into())),
            Kind::Path if text.is_empty() => Some(Value::Text(".".into())),
            Kind::Path => Some(Value::Text(text.to_owned().into())),
            Kind::JobName => text.trim().parse::<JobName>().ok().map(|name| Value::Text(String::from(name).into())),
            Kind::UserIds => read_user_ids(text).map(|_| Value::Text(text.trim().to_owned().into())),
            Kind::MetricsAddress => read_metrics_address(text).map(|_| Value::Text(text.trim().to_owned().into())),
            Kind::IpAddress => text.trim().parse().ok().map(|ip: IpAddr| Value::Text(ip.to_string().into())),
            Kind::Bool => read_bool(text.trim()).map(Value::Bool),
            Kind::OneOf(words) => {
                let text = text.trim();
                words.contains(&text).then(|| Value::Text(text.to_owned().into()))
            }
            Kind::Number { unit, min, max } => {
                let read = if unit == Unit::Bytes { read_bytes } else { read_number };
                let number = read(text.trim())?;
                (min..=max).contains(&number).then_some(Value::Number(number))
            }
        }
    }

    /// Formats a value of this kind with its unit; if nothing sets it, what happens instead.
    pub fn show(&self, value: &Value) -> String {
        match (self, value) {
            (_, Value::Unset(meaning)) => (*meaning).to_owned(),
            (_, Value::Text(text)) => format!("{text:?}"),
            (Kind::Number { unit: Unit::Bytes, .. }, Value::Number(bytes)) => show_bytes(*bytes),
            (Kind::Number { unit: Unit::Milliseconds, .. }, Value::Number(number)) => format!("{number} ms"),
            (Kind::Number { unit: Unit::Microseconds, .. }, Value::Number(number)) => format!("{number} µs"),
            (_, value) => value.to_string(),
        }
    }
}

/// Prints the accepted values, to follow "write ".
impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Number { unit, min, max } => match unit {
                Unit::Count => write!(out, "a whole number from {min} to {max}"),
                Unit::Bytes => {
                    let (min, max) = (show_bytes(*min), show_bytes(*max));
                    write!(out, "a number of bytes from {min} to {max}, plain or as in 64MiB")
                }
                Unit::Milliseconds => write!(out, "a whole number of milliseconds from {min} to {max}"),
                Unit::Microseconds => write!(out, "a whole number of microseconds from {min} to {max}"),
            },
            Kind::Bool => out.write_str("0, 1, true, false, yes or no"),
            Kind::OneOf(words) => {
                let (last, rest) = words.split_last().unwrap_or((&"", &[]));
                write!(out, "{} or {last}", rest.join(", "))
            }
            Kind::Text => out.write_str("a text"),
            Kind::Path => out.write_str("a path"),
            Kind::JobName => write!(out, "1 to {JOB_NAME_BYTES_MAX} printable ASCII characters without spaces"),
            Kind::UserIds => out.write_str("user ids between commas, as in \"1000,1001\""),
            Kind::MetricsAddress => out.write_str("an IP address with a port, as in 127.0.0.1:9490, or off"),
            Kind::IpAddress => out.write_str("an IP address, as in 10.0.0.7, fd00::7 or 0.0.0.0"),
        }
    }
}

/// Accepts what TensorFlow accepts for a bool (0, 1, true, false in any case), and common spellings.
fn read_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" => Some(true),
        "0" | "false" | "no" => Some(false),
        _ => None,
    }
}

/// Accepts only digits: no sign, no space, nothing after.
pub(crate) fn read_number<N: FromStr>(text: &str) -> Option<N> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// The user ids in a value of [`Kind::UserIds`].
fn read_user_ids(text: &str) -> Option<Vec<u32>> {
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    text.split(',').map(|id| read_number(id.trim())).collect()
}

/// The address in a value of [`Kind::MetricsAddress`].
fn read_metrics_address(text: &str) -> Option<MetricsAddress> {
    match text.trim() {
        "off" => Some(MetricsAddress::Off),
        address => address.parse().ok().map(MetricsAddress::At),
    }
}

fn read_bytes(text: &str) -> Option<u64> {
    for (unit, bytes) in UNITS {
        if let Some(number) = text.strip_suffix(unit) {
            return read_number::<u64>(number.trim_end())?.checked_mul(bytes);
        }
    }
    read_number(text)
}

/// A number of bytes in the largest binary unit that divides it: `64 B`, `4 MiB`.
pub fn show_bytes(bytes: u64) -> String {
    let divides = |unit: &&(&str, u64)| bytes > 0 && bytes.is_multiple_of(unit.1);
    let (name, unit) = UNITS.iter().find(divides).unwrap_or(&("B", 1));
    format!("{} {name}", bytes / unit)
}

/// A type that the value of a setting can be converted to.
pub(super) trait Typed: Sized {
    /// The value of a setting of that kind; `None` if it has another type.
    fn read(value: &Value, kind: &Kind) -> Option<Self>;
}

/// `None` if nothing sets it.
impl<T: Typed> Typed for Option<T> {
    fn read(value: &Value, kind: &Kind) -> Option<Self> {
        match value {
            Value::Unset(_) => Some(None),
            value => T::read(value, kind).map(Some),
        }
    }
}

/// Number types; a choice among words may also be a number.
macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Typed for $number {
            fn read(value: &Value, _: &Kind) -> Option<$number> {
                match value {
                    Value::Number(number) => <$number>::try_from(*number).ok(),
                    Value::Text(word) => word.parse().ok(),
                    Value::Unset(_) | Value::Bool(_) => None,
                }
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, usize);

/// Enums, each with the words of its variants.
macro_rules! choices {
    ($($choice:ident { $($word:literal => $variant:ident),* })*) => {$(
        impl Typed for $choice {
            fn read(value: &Value, kind: &Kind) -> Option<$choice> {
                match String::read(value, kind)?.as_str() {
                    $($word => Some($choice::$variant),)*
                    _ => None,
                }
            }
        }
    )*};
}

choices! {
    ExecutorChoice { "auto" => Auto, "io_uring" => IoUring, "epoll" => Epoll }
    Fuse { "off" => Off, "turn" => Turn }
    Registration { "static" => Static, "dynamic" => Dynamic }
    Require { "auto" => Auto, "tcp" => Tcp, "verbs" => Verbs }
    Transfer { "write" => Write, "read" => Read }
}

impl Typed for bool {
    fn read(value: &Value, _: &Kind) -> Option<bool> {
        if let Value::Bool(bool) = value { Some(*bool) } else { None }
    }
}

impl Typed for Duration {
    fn read(value: &Value, kind: &Kind) -> Option<Duration> {
        match (kind, value) {
            (Kind::Number { unit: Unit::Milliseconds, .. }, Value::Number(number)) => {
                Some(Duration::from_millis(*number))
            }
            (Kind::Number { unit: Unit::Microseconds, .. }, Value::Number(number)) => {
                Some(Duration::from_micros(*number))
            }
            _ => None,
        }
    }
}

impl Typed for String {
    fn read(value: &Value, _: &Kind) -> Option<String> {
        if let Value::Text(text) = value { Some(text.to_string()) } else { None }
    }
}

impl Typed for PathBuf {
    fn read(value: &Value, kind: &Kind) -> Option<PathBuf> {
        String::read(value, kind).map(PathBuf::from)
    }
}

/// User ids; empty if nothing sets them.
impl Typed for Vec<u32> {
    fn read(value: &Value, kind: &Kind) -> Option<Vec<u32>> {
        read_user_ids(&Option::<String>::read(value, kind)?.unwrap_or_default())
    }
}

impl Typed for JobName {
    fn read(value: &Value, kind: &Kind) -> Option<JobName> {
        match (kind, value) {
            (Kind::JobName, Value::Text(text)) => text.parse().ok(),
            _ => None,
        }
    }
}

impl Typed for IpAddr {
    fn read(value: &Value, kind: &Kind) -> Option<IpAddr> {
        String::read(value, kind)?.parse().ok()
    }
}

impl Typed for MetricsAddress {
    fn read(value: &Value, kind: &Kind) -> Option<MetricsAddress> {
        read_metrics_address(&String::read(value, kind)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_bools_as_tensorflow_and_python_write_them() {
        for text in ["1", "true", "True", "TRUE", "yes", "Yes", " true "] {
            assert_eq!(Kind::Bool.read(text), Some(Value::Bool(true)), "{text:?}");
        }
        for text in ["0", "false", "False", "FALSE", "no", "NO"] {
            assert_eq!(Kind::Bool.read(text), Some(Value::Bool(false)), "{text:?}");
        }
        for text in ["", " ", "2", "on", "t", "maybe", "truee", "-1"] {
            assert_eq!(Kind::Bool.read(text), None, "{text:?}");
        }
    }

    #[test]
    fn reads_numbers_within_their_range() {
        let kind = Kind::Number { unit: Unit::Count, min: 1, max: 1024 };
        for (text, number) in [("1", 1), (" 8 ", 8), ("1024", 1024), ("007", 7)] {
            assert_eq!(kind.read(text), Some(Value::Number(number)), "{text:?}");
        }
        for text in ["", "0", "1025", "-1", "+1", "8x", "8 8", "1e3", "99999999999999999999"] {
            assert_eq!(kind.read(text), None, "{text:?}");
        }
    }

    #[test]
    fn reads_bytes_with_and_without_unit() {
        let kind = Kind::Number { unit: Unit::Bytes, min: 1, max: u64::MAX };
        for (text, number) in [
            ("65536", 65536),
            ("64MiB", 64 * MIB),
            ("64 MiB", 64 * MIB),
            ("4GiB", 4 * GIB),
            ("1TiB", TIB),
            ("3KiB", 3 * KIB),
            ("12B", 12),
        ] {
            assert_eq!(kind.read(text), Some(Value::Number(number)), "{text:?}");
        }
        for text in ["", "MiB", "64M", "64MB", "1.5GiB", "-1KiB", "99999999999TiB"] {
            assert_eq!(kind.read(text), None, "{text:?}");
        }
    }

    #[test]
    fn shows_values_and_what_is_accepted() {
        let bytes = Kind::Number { unit: Unit::Bytes, min: 0, max: TIB };
        assert_eq!(bytes.show(&Value::Number(64 * MIB)), "64 MiB");
        assert_eq!(bytes.show(&Value::Number(1500)), "1500 B");
        assert_eq!(bytes.show(&Value::Number(0)), "0 B");
        assert_eq!(bytes.show(&Value::Unset("as many as fit")), "as many as fit");
        let time = Kind::Number { unit: Unit::Milliseconds, min: 1, max: 9 };
        assert_eq!(time.show(&Value::Number(5)), "5 ms");
        assert_eq!(time.to_string(), "a whole number of milliseconds from 1 to 9");
        let spin = Kind::Number { unit: Unit::Microseconds, min: 0, max: 9 };
        assert_eq!(spin.show(&Value::Number(5)), "5 µs");
        assert_eq!(Kind::OneOf(&["auto", "tcp"]).to_string(), "auto or tcp");
        assert_eq!(bytes.to_string(), "a number of bytes from 0 B to 1 TiB, plain or as in 64MiB");
    }
}
