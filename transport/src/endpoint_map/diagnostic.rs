//! Diagnostics of an endpoint map: location, problem and fix in one sentence. Plain data for any thread.

use std::io;
use std::net::IpAddr;

use thiserror::Error;

use super::{ENTRIES_MAX, FILE_BYTES_MAX, TaskName, TransportAddress};

/// Whether the map can still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The map is refused.
    Error,
    /// The map works, but the line has no effect or a misleading one.
    Warning,
}

/// One thing to fix in an endpoint map's text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{line}:{column}: {problem}")]
pub struct Diagnostic {
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    pub problem: Problem,
}

impl Diagnostic {
    pub fn severity(&self) -> Severity {
        match self.problem {
            Problem::Repeated { .. } => Severity::Warning,
            _ => Severity::Error,
        }
    }
}

/// What is wrong with a line of an endpoint map.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Problem {
    /// No line names a task: the file was truncated, or is still being written.
    #[error("there is no task; write {EXAMPLE}, one line per task")]
    NoTask,
    #[error("there is no `=` between a task and its transport address; write {EXAMPLE}")]
    NoEquals,
    #[error("there is a second `=`; write one task and one transport address a line: {EXAMPLE}")]
    SecondEquals,
    /// One side of the line is not an address.
    #[error("{0}")]
    Address(AddressProblem),
    /// An earlier line gives the task another transport address.
    #[error(
        "task {task} is given at {second} here and at {first} in line {first_line}; \
         delete one of the two lines"
    )]
    Conflict {
        /// The task that is given twice.
        task: TaskName,
        /// Its transport address in the earlier line.
        first: TransportAddress,
        /// The earlier line, counted from 1.
        first_line: usize,
        /// Its transport address in this line.
        second: TransportAddress,
    },
    /// An earlier line says the same.
    #[error("task {task} is given the same way in line {first_line}; delete one of the two lines")]
    Repeated {
        /// The task that is given twice.
        task: TaskName,
        /// The earlier line, counted from 1.
        first_line: usize,
    },
    /// An earlier line spells the transport address in another way: a daemon would listen there twice.
    #[error("{second} is the same address as {first} in line {first_line}; write it the same way in both lines")]
    OtherSpelling {
        /// The spelling in the earlier line.
        first: TransportAddress,
        /// The earlier line, counted from 1.
        first_line: usize,
        /// The spelling in this line.
        second: TransportAddress,
    },
    /// The file has more tasks than [`ENTRIES_MAX`].
    #[error("this is task number {}; write at most {ENTRIES_MAX} tasks in a map", ENTRIES_MAX + 1)]
    TooManyEntries,
    #[error("this is not UTF-8 text; save the file as UTF-8 or plain ASCII")]
    NotUtf8,
}

const EXAMPLE: &str = "`host:port=transport_host:port`";

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AddressProblem {
    #[error("there is no address; write host:port")]
    Empty,
    /// A character that no address has.
    #[error(
        "`{0:?}` is not allowed in an address; \
         write host:port with letters, digits, `.`, `-`, `_`, and IPv6 in brackets"
    )]
    Character(char),
    #[error("there is no host; write it before the `:`, as in host:port")]
    NoHost,
    #[error("there is no port; write it after the host, as in host:2222")]
    NoPort,
    #[error("there is no `]` after `[`; write an IPv6 address as in [fd00::7]:2222")]
    OpenBracket,
    /// Something other than a port follows a bracket.
    #[error("the port does not follow the bracket; write `]:` and a port, as in [fd00::7]:2222")]
    AfterBracket,
    /// An IPv6 address without brackets.
    #[error("{0:?} has more than one `:`; write an IPv6 address in brackets, as in [fd00::7]:2222")]
    BareIpv6(Box<str>),
    /// An IPv6 address with a zone, which is only meaningful on one host.
    #[error("{0:?} has a zone; write an IPv6 address without `%`, or a host name")]
    Zone(Box<str>),
    /// Not an IPv6 address, although in brackets.
    #[error("{0:?} is not an IPv6 address; write one between the brackets, as in [fd00::7]:2222")]
    Ipv6(Box<str>),
    /// Not an IPv4 address, although all digits and dots.
    #[error("{0:?} is not an IPv4 address; write four numbers from 0 to 255, as in 10.0.0.7")]
    Ipv4(Box<str>),
    /// Not a host name.
    #[error(
        "{0:?} is not a host name; \
         write letters, digits, `-` and `_` between dots, at most 63 in a row and 253 in all"
    )]
    HostName(Box<str>),
    /// An address that no peer can call, or that several hosts have: unspecified, multicast or broadcast.
    #[error(
        "{0} is not the address of one host; write the name or address at which other hosts reach it \
         (transport.listen sets where its daemon listens)"
    )]
    NotOneHost(IpAddr),
    #[error("the port is 0; write a port from 1 to 65535")]
    PortZero,
    #[error("the port has a leading zero; write {0}")]
    LeadingZero(u16),
    /// Not a port.
    #[error("{0:?} is not a port; write a port from 1 to 65535")]
    Port(Box<str>),
}

impl AddressProblem {
    /// Adds the byte offset in the address's text.
    pub(super) fn at(self, offset: usize) -> ProblemAt {
        ProblemAt { offset, problem: self }
    }
}

/// A problem and its byte offset in the text of the address.
#[derive(Debug)]
pub(super) struct ProblemAt {
    pub(super) offset: usize,
    pub(super) problem: AddressProblem,
}

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EndpointMapError {
    #[error("{file}: no such file; write it with one line {EXAMPLE} per task, or name another file")]
    Missing { file: String },
    #[error("{file}: cannot be read ({error}); make it a readable file, or name another one")]
    Read { file: String, error: io::Error },
    /// The file is larger than [`FILE_BYTES_MAX`].
    #[error("{file}: larger than {FILE_BYTES_MAX} bytes; name a file that is an endpoint map")]
    TooLarge { file: String },
    #[error("{file}:{diagnostic}")]
    Line {
        file: String,
        /// Where, what, and the fix.
        diagnostic: Box<Diagnostic>,
    },
    /// A pair of [`super::EndpointMap::from_entries`] contradicts an earlier one.
    #[error("task {task} is given at {first} and at {second}; give it one transport address")]
    Conflict {
        /// The task that is given twice.
        task: TaskName,
        /// Its transport address in the earlier pair.
        first: TransportAddress,
        /// Its transport address in the later pair.
        second: TransportAddress,
    },
    /// More pairs than [`ENTRIES_MAX`].
    #[error("there are more than {ENTRIES_MAX} tasks; give at most that many")]
    TooManyEntries,
}
