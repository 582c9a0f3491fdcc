//! Task names and transport addresses: checked values of the form `host:port`. Plain data for any thread; a host name is
//! bounded by `HOST_NAME_BYTES_MAX`.

use std::borrow::Borrow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use super::diagnostic::{AddressProblem, ProblemAt};

/// Longest host name, in bytes (RFC 1035, section 2.3.4).
pub const HOST_NAME_BYTES_MAX: usize = 253;

/// Longest part of a host name between two dots, in bytes (RFC 1035, section 2.3.4).
const HOST_LABEL_BYTES_MAX: usize = 63;

/// The host half of an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    V4(Ipv4Addr),
    /// An IPv6 address, written in brackets.
    V6(Ipv6Addr),
    /// A host name in lower case, resolved on every connect.
    Name(Arc<str>),
}

impl Host {
    /// Parses an IPv4 address, an IPv6 address in brackets, or a host name.
    ///
    /// # Errors
    ///
    /// What is wrong with the text, and how to write it.
    pub fn parse(text: &str) -> Result<Host, AddressProblem> {
        host(text).map_err(|at| at.problem)
    }

    /// Returns whether every host means itself by this one: a loopback address, or `localhost`.
    pub fn is_loopback(&self) -> bool {
        match self {
            Host::V4(ip) => ip.is_loopback(),
            Host::V6(ip) => ip.to_canonical().is_loopback(),
            Host::Name(name) => is_localhost(name),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::V4(address) => write!(out, "{address}"),
            Host::V6(address) => write!(out, "[{address}]"),
            Host::Name(name) => out.write_str(name),
        }
    }
}

/// The address at which Sealane reaches a task: the right side of an endpoint map line.
///
/// Two spellings of one address (`[0::1]:7`, `[::1]:7`; `HOST:7`, `host:7`) are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransportAddress {
    pub host: Host,
    /// The TCP port, 1 to 65535.
    pub port: u16,
}

impl fmt::Display for TransportAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.host, self.port)
    }
}

impl FromStr for TransportAddress {
    type Err = AddressProblem;

    fn from_str(text: &str) -> Result<TransportAddress, AddressProblem> {
        TransportAddress::parse_at(text).map_err(|at| at.problem)
    }
}

impl TransportAddress {
    pub(super) fn parse_at(text: &str) -> Result<TransportAddress, ProblemAt> {
        let address = host_and_port(text)?;
        match address.ip().map(|ip| ip.to_canonical()) {
            Some(ip) if ip.is_unspecified() || ip.is_multicast() || ip == Ipv4Addr::BROADCAST => {
                Err(AddressProblem::NotOneHost(ip).at(0))
            }
            _ => Ok(address),
        }
    }

    /// Returns the IP address, unless the host is a name that must be looked up.
    fn ip(&self) -> Option<IpAddr> {
        match &self.host {
            Host::V4(ip) => Some((*ip).into()),
            Host::V6(ip) => Some((*ip).into()),
            Host::Name(name) => is_localhost(name).then_some(Ipv4Addr::LOCALHOST.into()),
        }
    }

    /// Returns the one form that all spellings of the address share, without a name server: `localhost` is 127.0.0.1, an IPv4 address
    /// written as IPv6 is IPv4, and a name has no dot at its end.
    pub(super) fn canonical(&self) -> TransportAddress {
        let host = match (self.ip().map(|ip| ip.to_canonical()), &self.host) {
            (Some(IpAddr::V4(ip)), _) => Host::V4(ip),
            (Some(IpAddr::V6(ip)), _) => Host::V6(ip),
            (None, Host::Name(name)) => Host::Name(name.trim_end_matches('.').into()),
            (None, host) => host.clone(),
        };
        TransportAddress { host, port: self.port }
    }
}

/// Returns whether `name` means the host itself on every host (RFC 6761).
fn is_localhost(name: &str) -> bool {
    name.trim_end_matches('.') == "localhost"
}

/// Names a training process by its gRPC address `host:port`: the left side of an endpoint map line.
///
/// The text is kept as written, because the training framework looks it up by exactly that text.
/// Cloning counts a reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskName(Arc<str>);

impl TaskName {
    /// The name as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn host(&self) -> Host {
        host_and_port(&self.0).expect("checked when it was made").host
    }

    pub(super) fn parse_at(text: &str) -> Result<TaskName, ProblemAt> {
        host_and_port(text).map(|_| TaskName(text.into()))
    }
}

impl FromStr for TaskName {
    type Err = AddressProblem;

    fn from_str(text: &str) -> Result<TaskName, AddressProblem> {
        TaskName::parse_at(text).map_err(|at| at.problem)
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Allows a lookup by `&str` in a map keyed by `TaskName`.
impl Borrow<str> for TaskName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for TaskName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Parses `host:port`; a problem comes with its byte offset in `text`.
pub(super) fn host_and_port(text: &str) -> Result<TransportAddress, ProblemAt> {
    if text.is_empty() {
        return Err(AddressProblem::Empty.at(0));
    }
    if let Some((offset, character)) = text.char_indices().find(|(_, c)| !belongs(*c)) {
        return Err(AddressProblem::Character(character).at(offset));
    }
    let colon = match text.strip_prefix('[') {
        // The relevant colon is the one after the bracket.
        Some(inner) => {
            let end = inner.find(']').ok_or(AddressProblem::OpenBracket.at(0))? + 2;
            match text[end..].chars().next() {
                Some(':') => end,
                Some(_) => return Err(AddressProblem::AfterBracket.at(end)),
                None => return Err(AddressProblem::NoPort.at(end)),
            }
        }
        None => {
            let colon = text.find(':').ok_or(AddressProblem::NoPort.at(text.len()))?;
            if text[colon + 1..].contains(':') {
                return Err(AddressProblem::BareIpv6(text.into()).at(0));
            }
            colon
        }
    };
    let host = host(&text[..colon])?;
    let port = port(&text[colon + 1..]).map_err(|problem| problem.at(colon + 1))?;
    Ok(TransportAddress { host, port })
}

/// True for characters that may occur anywhere in an address.
fn belongs(character: char) -> bool {
    character.is_ascii_alphanumeric() || "._-:[]%".contains(character)
}

fn host(text: &str) -> Result<Host, ProblemAt> {
    if text.is_empty() {
        return Err(AddressProblem::NoHost.at(0));
    }
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.strip_suffix(']').unwrap_or(inner);
        return match inner.parse() {
            Ok(address) => Ok(Host::V6(address)),
            Err(_) if inner.contains('%') => Err(AddressProblem::Zone(inner.into()).at(1)),
            Err(_) => Err(AddressProblem::Ipv6(inner.into()).at(1)),
        };
    }
    // A resolver would interpret "10.0.0" or "10.0.0.256" in surprising ways, so digits and dots alone must form a complete
    // IPv4 address.
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return match text.parse() {
            Ok(address) => Ok(Host::V4(address)),
            Err(_) => Err(AddressProblem::Ipv4(text.into()).at(0)),
        };
    }
    if is_host_name(text) {
        Ok(Host::Name(text.to_ascii_lowercase().into()))
    } else {
        Err(AddressProblem::HostName(text.into()).at(0))
    }
}

/// Letters, digits, `-` and, as used by container networks, `_`; one dot may end the name.
fn is_host_name(text: &str) -> bool {
    let labels = text.strip_suffix('.').unwrap_or(text);
    labels.len() <= HOST_NAME_BYTES_MAX
        && labels.split('.').all(|label| {
            (1..=HOST_LABEL_BYTES_MAX).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        })
}

fn port(text: &str) -> Result<u16, AddressProblem> {
    if text.is_empty() {
        return Err(AddressProblem::NoPort);
    }
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(AddressProblem::Port(text.into()));
    }
    match text.parse::<u16>() {
        Ok(0) => Err(AddressProblem::PortZero),
        // A second spelling of a port would give a task a second name.
        Ok(port) if text.starts_with('0') => Err(AddressProblem::LeadingZero(port)),
        Ok(port) => Ok(port),
        Err(_) => Err(AddressProblem::Port(text.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> (usize, String) {
        let at = host_and_port(text).unwrap_err();
        (at.offset, at.problem.to_string())
    }

    #[test]
    fn reads_every_kind_of_host() {
        for (text, printed) in [
            ("10.0.0.7:1", "10.0.0.7:1"),
            ("PS0.Train:65535", "ps0.train:65535"),
            ("ps_0-a.train.:80", "ps_0-a.train.:80"),
            ("[0:0::1]:7", "[::1]:7"),
            ("7a:1", "7a:1"),
        ] {
            let address: TransportAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), printed);
        }
    }

    #[test]
    fn transport_address_is_an_address_of_one_host() {
        for text in [
            "0.0.0.0:7",
            "[::]:7",
            "[::ffff:0.0.0.0]:7",
            "224.0.0.1:7",
            "239.1.2.3:7",
            "[ff02::1]:7",
            "255.255.255.255:7",
        ] {
            let problem = text.parse::<TransportAddress>().unwrap_err();
            assert!(matches!(problem, AddressProblem::NotOneHost(_)), "{text}: {problem}");
            assert!(problem.to_string().contains("write the name or address"), "{problem}");
            // A task may be named so: frameworks listen there.
            text.parse::<TaskName>().unwrap();
        }
        for text in ["10.0.0.255:7", "127.0.0.1:7", "[::1]:7", "[fe80::1]:7"] {
            text.parse::<TransportAddress>().unwrap();
        }
    }

    #[test]
    fn spellings_of_an_address_have_one_canonical_form() {
        let canonical = |text: &str| text.parse::<TransportAddress>().unwrap().canonical().to_string();
        for (text, form) in [
            ("localhost:7", "127.0.0.1:7"),
            ("LocalHost.:7", "127.0.0.1:7"),
            ("[::ffff:10.0.0.7]:7", "10.0.0.7:7"),
            ("[0::1]:7", "[::1]:7"),
            ("Host.:7", "host:7"),
            ("127.0.0.2:7", "127.0.0.2:7"),
        ] {
            assert_eq!(canonical(text), form, "{text}");
        }
    }

    #[test]
    fn a_task_name_keeps_its_spelling() {
        let task: TaskName = "PS0:2222".parse().unwrap();
        assert_eq!(task.to_string(), "PS0:2222");
        assert_eq!(task.as_ref(), "PS0:2222");
        assert_eq!("ps 0:1".parse::<TaskName>().unwrap_err(), AddressProblem::Character(' '));
    }

    #[test]
    fn every_problem_says_where_it_is_and_what_to_write() {
        let label = "a".repeat(64);
        for (text, offset, says) in [
            ("", 0, "write host:port"),
            ("ps 0:1", 2, "`' '` is not allowed"),
            ("ps\u{a0}0:1", 2, "`'\\u{a0}'` is not allowed"),
            ("[::1:7", 0, "no `]`"),
            ("[::1]7", 5, "write `]:`"),
            ("[::1]", 5, "no port"),
            ("[::1]:", 6, "no port"),
            ("ps0", 3, "no port"),
            ("ps0:", 4, "no port"),
            ("::1:2222", 0, "brackets"),
            (":80", 0, "no host"),
            ("[fe80::1%eth0]:7", 1, "zone"),
            ("[::g]:7", 1, "not an IPv6 address"),
            ("[]:7", 1, "not an IPv6 address"),
            ("10.0.0.256:7", 0, "not an IPv4 address"),
            ("10.0.0:7", 0, "not an IPv4 address"),
            ("-ps:7", 0, "not a host name"),
            ("a..b:7", 0, "not a host name"),
            ("a]:7", 0, "not a host name"),
            (&format!("{label}:7"), 0, "not a host name"),
            ("ps0:0", 4, "the port is 0"),
            ("ps0:65536", 4, "write a port from 1 to 65535"),
            ("ps0:7x", 4, "write a port from 1 to 65535"),
            ("ps0:080", 4, "write 80"),
        ] {
            let (found, message) = problem(text);
            assert_eq!(found, offset, "{text}: {message}");
            assert!(message.contains(says), "{text}: {message}");
        }
        let long = format!("{}b", "a.".repeat(127));
        assert_eq!(Host::parse(&long), Err(AddressProblem::HostName(long.as_str().into())));
    }
}
