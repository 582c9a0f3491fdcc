//! Conversion of an [`Error`] to plain fields, for the ring and the attach protocol, and back, so that a client reports what an
//! embedded engine would.

use std::time::Duration;

use super::fields::{Malformed, cut};
use crate::{
    error::{Code, Error, Late, Operation, given},
    limits::REASON_BYTES_MAX,
};

/// Instead of an [`Operation`]: what was late is not a call with an operation.
const NO_OPERATION: u8 = u8::MAX;

/// The operation of [`Error::Left`], to distinguish it from another Unavailable.
const LEFT: u8 = 1;

/// The fields of all variants of [`Error`]; those that a variant does not have are zero or empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure<'a> {
    pub(super) code: u8,
    pub(super) operation: u8,
    /// It is unknown whether the tensor arrived.
    pub(super) delivery_unknown: bool,
    pub(super) step: i64,
    pub(super) waited: Duration,
    /// What it concerns: a task, peer, key or limit.
    pub(super) subject: &'a str,
    /// The reason; for a late call, what it waited for.
    pub(super) reason: &'a str,
}

impl<'a> Failure<'a> {
    /// The fields of an error, its reason cut to [`REASON_BYTES_MAX`].
    pub(super) fn of(error: &'a Error) -> Self {
        let mut failure = Self {
            code: error.code() as u8,
            operation: 0,
            delivery_unknown: false,
            step: 0,
            waited: Duration::ZERO,
            subject: "",
            reason: "",
        };
        match error {
            Error::NotFound { task: subject, reason }
            | Error::Unavailable { peer: subject, reason }
            | Error::ResourceExhausted { limit: subject, reason } => {
                (failure.subject, failure.reason) = (subject, reason);
            }
            Error::Left { task, reason } => {
                (failure.operation, failure.subject, failure.reason) = (LEFT, task, reason);
            }
            Error::DeadlineExceeded(late) => {
                failure.operation = late.operation as u8;
                (failure.step, failure.subject, failure.reason) = (late.step, &late.key, &late.awaited);
                (failure.waited, failure.delivery_unknown) = (late.waited, late.delivery_unknown);
            }
            Error::TimedOut { reason } => (failure.operation, failure.reason) = (NO_OPERATION, reason),
            Error::Aborted { step, reason } => (failure.step, failure.reason) = (*step, reason),
            Error::InvalidArgument { reason }
            | Error::PermissionDenied { reason }
            | Error::Unimplemented { reason } => failure.reason = reason,
        }
        failure.reason = cut(failure.reason, REASON_BYTES_MAX);
        failure
    }

    /// A duration from numbers that may be anything.
    pub(super) fn waited(seconds: u64, nanoseconds: u32) -> Result<Duration, Malformed> {
        if nanoseconds >= 1_000_000_000 {
            return Err(Malformed { what: "nanoseconds" });
        }
        Ok(Duration::new(seconds, nanoseconds))
    }

    pub(super) fn into_error(self) -> Result<Error, Malformed> {
        let (subject, reason, step) = (self.subject.into(), given(self.reason).into(), self.step);
        Ok(match code(self.code)? {
            Code::NotFound => Error::NotFound { task: subject, reason },
            Code::Unavailable if self.operation == LEFT => Error::Left { task: subject, reason },
            Code::Unavailable => Error::Unavailable { peer: subject, reason },
            Code::ResourceExhausted => Error::ResourceExhausted { limit: subject, reason },
            Code::DeadlineExceeded if self.operation == NO_OPERATION => Error::TimedOut { reason },
            Code::DeadlineExceeded => {
                let operation = Operation::ALL.get(usize::from(self.operation));
                let operation = *operation.ok_or(Malformed { what: "operation" })?;
                let Failure { waited, delivery_unknown, .. } = self;
                Late { operation, step, key: subject, waited, delivery_unknown, awaited: self.reason.into() }.into()
            }
            Code::Aborted => Error::Aborted { step, reason },
            Code::InvalidArgument => Error::InvalidArgument { reason },
            Code::PermissionDenied => Error::PermissionDenied { reason },
            Code::Unimplemented => Error::Unimplemented { reason },
        })
    }
}

fn code(number: u8) -> Result<Code, Malformed> {
    const CODES: [Code; 8] = [
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::Aborted,
        Code::Unimplemented,
        Code::Unavailable,
    ];
    CODES.into_iter().find(|code| *code as u8 == number).ok_or(Malformed { what: "an unknown error code" })
}
