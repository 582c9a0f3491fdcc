//! The values of the settings as Rust's types.

use std::path::PathBuf;
use std::time::Duration;

use sealane_fusion::Fuse;
use sealane_runtime::ExecutorChoice;
use sealane_transport::verbs::{Registration, Transfer};

use super::Require;
use super::value::{Kind, MetricsAddress, Value, read_metrics_address, read_user_ids};

/// What the value of a setting can be read as.
pub(super) trait Typed: Sized {
    /// The value of a setting of that kind; `None` if it is of another type.
    fn read(value: &Value, kind: &Kind) -> Option<Self>;
}

/// What nothing gives has no value.
impl<T: Typed> Typed for Option<T> {
    fn read(value: &Value, kind: &Kind) -> Option<Self> {
        match value {
            Value::Unset => Some(None),
            value => T::read(value, kind).map(Some),
        }
    }
}

/// Types of numbers, which a choice among words may be as well.
macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Typed for $number {
            fn read(value: &Value, _: &Kind) -> Option<$number> {
                match value {
                    Value::Number(number) => <$number>::try_from(*number).ok(),
                    Value::Text(word) => word.parse().ok(),
                    Value::Unset | Value::Bool(_) => None,
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
            (Kind::Milliseconds { .. }, Value::Number(number)) => Some(Duration::from_millis(*number)),
            (Kind::Microseconds { .. }, Value::Number(number)) => Some(Duration::from_micros(*number)),
            _ => None,
        }
    }
}

impl Typed for String {
    fn read(value: &Value, _: &Kind) -> Option<String> {
        if let Value::Text(text) = value { Some(text.clone()) } else { None }
    }
}

impl Typed for PathBuf {
    fn read(value: &Value, kind: &Kind) -> Option<PathBuf> {
        String::read(value, kind).map(PathBuf::from)
    }
}

/// User ids; none where nothing gives some.
impl Typed for Vec<u32> {
    fn read(value: &Value, kind: &Kind) -> Option<Vec<u32>> {
        read_user_ids(&Option::<String>::read(value, kind)?.unwrap_or_default())
    }
}

impl Typed for MetricsAddress {
    fn read(value: &Value, kind: &Kind) -> Option<MetricsAddress> {
        read_metrics_address(&String::read(value, kind)?)
    }
}
