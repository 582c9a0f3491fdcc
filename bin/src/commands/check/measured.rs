//! `sealane check --measure`: round trip and rate to every peer, measured by this host's daemon, and what limits each link. Pure,
//! except for the request to the daemon.

use std::time::{Duration, Instant};

use sealane_transport::Code;
use sealane_transport::shm::attach::{self, AttachError};
use serde::Serialize;

use super::verdict::{Finding, Remedy, advice, shown};
use crate::measurement::{Figures, Measurement, Measurements, SCHEMA, Tcp};
use crate::settings::ClientsSocket;
use crate::table::{Column, Table};

/// How long the daemon may take: it answers within ten seconds, unless its host is overloaded.
const PATIENCE: Duration = Duration::from_secs(20);

/// A link that carries this share of its interface's speed is full: the rest are headers, and other traffic.
const FULL_SHARE: f64 = 0.7;
/// Share of bytes sent again from which loss slows a connection down.
const RESENT_PERCENT: f64 = 0.05;
/// Share of the busy time from which a window or a buffer counts as the limit.
const WINDOW_PERCENT: f64 = 30.0;
/// Share of the time from which a shard counts as saturated.
const SHARD_BUSY_PERCENT: f64 = 90.0;
/// Share of the time from which TCP, and not what feeds it, is the limit.
const TCP_BUSY_PERCENT: f64 = 80.0;

/// What keeps a link from carrying more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Limit {
    /// The interface's speed.
    Link,
    /// Packets that are lost or reordered.
    Loss,
    /// The peer's receive buffer, or how fast the peer reads.
    ReceiveWindow,
    /// This host's send buffer.
    SendBuffer,
    /// The sending shard's CPU.
    Shard,
    /// TCP's congestion control.
    Congestion,
    /// CPUs and memory, which both ends share.
    SameHost,
    Unknown,
}

impl Limit {
    fn of(figures: &Figures) -> Limit {
        let is_shard = figures.shard_busy_percent >= SHARD_BUSY_PERCENT;
        let Some(tcp) = &figures.tcp else { return if is_shard { Limit::Shard } else { Limit::Unknown } };
        let is_full = |speed| figures.sent_gigabytes_per_s >= FULL_SHARE * speed;
        match tcp {
            tcp if tcp.is_same_host => Limit::SameHost,
            tcp if tcp.interface_gigabytes_per_s.is_some_and(is_full) => Limit::Link,
            tcp if tcp.resent_percent >= RESENT_PERCENT => Limit::Loss,
            tcp if tcp.receive_window_percent >= WINDOW_PERCENT => Limit::ReceiveWindow,
            tcp if tcp.send_buffer_percent >= WINDOW_PERCENT => Limit::SendBuffer,
            _ if is_shard => Limit::Shard,
            tcp if tcp.tcp_busy_percent >= TCP_BUSY_PERCENT => Limit::Congestion,
            _ => Limit::Unknown,
        }
    }

    /// Names the limit, as the end of a sentence.
    fn says(self, figures: &Figures) -> String {
        let congestion = figures.tcp.as_ref().map_or("", |tcp| &tcp.congestion);
        let resent = figures.tcp.as_ref().map_or(0.0, |tcp| tcp.resent_percent);
        match self {
            Limit::Link => "the link is the limit".to_owned(),
            Limit::Loss => format!("{resent:.2}% of the bytes were sent again: loss is the limit"),
            Limit::ReceiveWindow => "the peer's receive window is the limit".to_owned(),
            Limit::SendBuffer => "this host's send buffer is the limit".to_owned(),
            Limit::Shard => "the CPU of this host's shard is the limit".to_owned(),
            Limit::Congestion => {
                format!("TCP's congestion window ({congestion}) is the limit, probably the network's rate")
            }
            Limit::SameHost => "both ends are on this host, and its CPUs are the limit".to_owned(),
            Limit::Unknown => "the limit is unknown, probably CPU time here or at the peer".to_owned(),
        }
    }

    fn remedy(self, tcp: Option<&Tcp>) -> Option<Remedy> {
        let interface = tcp.and_then(|tcp| tcp.interface.as_deref());
        match self {
            Limit::Loss => Some(match interface {
                Some(name) => format!("ip -s link show {name}").into(),
                None => advice("look for dropped packets on both hosts' interfaces and on the switch"),
            }),
            Limit::ReceiveWindow => Some(advice(
                "run `sealane stat` there: if its shard is not busy, raise net.ipv4.tcp_rmem and \
                 transport.tcp.receive_buffer_bytes there",
            )),
            Limit::SendBuffer => {
                Some(advice("raise net.ipv4.tcp_wmem here, and transport.tcp.send_buffer_bytes if it is set"))
            }
            Limit::Link | Limit::Shard | Limit::Congestion | Limit::SameHost | Limit::Unknown => None,
        }
    }
}

/// The measurement of one peer, with its verdict.
#[derive(Debug, Serialize)]
pub(super) struct MeasuredPeer {
    transport_address: String,
    task: String,
    #[serde(flatten)]
    finding: Finding,
    /// `null` if the link was not measured.
    limit: Option<Limit>,
    #[serde(flatten)]
    figures: Option<Figures>,
}

impl MeasuredPeer {
    /// Returns the transport address, and what was found of it.
    pub(super) fn finding(&self) -> (&str, &Finding) {
        (&self.transport_address, &self.finding)
    }
}

impl From<Measurement> for MeasuredPeer {
    fn from(measurement: Measurement) -> MeasuredPeer {
        const NAME: &str = "measurement";
        let Measurement { transport_address, task, figures, problem } = measurement;
        let limit = figures.as_ref().map(Limit::of);
        let finding = match (&figures, limit) {
            (Some(figures), Some(limit)) => {
                let says = format!("{}: {}", rate(figures), limit.says(figures));
                match limit.remedy(figures.tcp.as_ref()) {
                    Some(remedy) => Finding::better(NAME, says, remedy),
                    None => Finding::ok(NAME, says),
                }
            }
            _ => Finding::ok(NAME, format!("not measured: {}", problem.unwrap_or_default())),
        };
        MeasuredPeer { transport_address, task, finding, limit, figures }
    }
}

/// `MTU 1500, 0.90 GB/s of 1.25`.
fn rate(figures: &Figures) -> String {
    let rate = format!("{} GB/s", gigabytes(figures.sent_gigabytes_per_s));
    match &figures.tcp {
        None => rate,
        Some(Tcp { mtu_bytes, interface_gigabytes_per_s: Some(speed), .. }) => {
            format!("MTU {mtu_bytes}, {rate} of {speed:.2}")
        }
        Some(Tcp { mtu_bytes, interface: Some(name), is_same_host: false, .. }) => {
            format!("MTU {mtu_bytes}, {rate} (the speed of {name} is unknown)")
        }
        Some(Tcp { mtu_bytes, .. }) => format!("MTU {mtu_bytes}, {rate}"),
    }
}

/// A number of gigabytes with two decimals, or four if it is small.
fn gigabytes(number: f64) -> String {
    let decimals = if number < 0.1 { 4 } else { 2 };
    format!("{number:.decimals$}")
}

/// Has the daemon whose clients attach at `socket` measure its links.
///
/// # Errors
/// The finding about a daemon that does not measure.
pub(super) fn measure(socket: &ClientsSocket) -> Result<Vec<MeasuredPeer>, Finding> {
    const NAME: &str = "measurement";
    let fails = |says: String, remedy: Remedy| Finding::fails(NAME, says, remedy);
    let same_release = || advice("use the same release for both; restart the daemon after an upgrade");
    let answer = attach::measure(&socket.path, Instant::now() + PATIENCE).map_err(|error| match &error {
        AttachError::Connect { source, .. } => fails(
            format!("no daemon can be reached at {socket} ({source}), and the daemon measures"),
            "sealane daemon".into(),
        ),
        AttachError::Refused(refused) if refused.code() == Code::InvalidArgument => {
            fails(format!("the daemon at {socket} cannot measure: {refused}"), same_release())
        }
        AttachError::Refused(refused) => fails(
            format!("the daemon at {socket} does not measure now: {refused}"),
            advice("try again, or run this as the daemon's user"),
        ),
        error => fails(format!("the daemon at {socket} returned no measurement: {error}"), advice("read its log")),
    })?;
    match serde_json::from_slice::<Measurements>(&answer) {
        Ok(found) if found.schema == SCHEMA => Ok(found.peers.into_iter().map(MeasuredPeer::from).collect()),
        _ => Err(fails(format!("the daemon at {socket} returned figures in another format"), same_release())),
    }
}

/// The measurements for people: a table, and a verdict for each peer.
pub(super) fn text(measured: &[MeasuredPeer]) -> String {
    let of = |figures: &Figures, shown: &dyn Fn(&Tcp) -> String| figures.tcp.as_ref().map_or_else(|| "-".into(), shown);
    let row = |peer: &MeasuredPeer| {
        let figures = peer.figures.as_ref()?;
        let speed = |tcp: &Tcp| tcp.interface_gigabytes_per_s.map_or_else(|| "?".into(), |speed| format!("{speed:.2}"));
        Some(vec![
            format!("  {}", peer.transport_address),
            figures.link.clone(),
            format!("{:.0}", figures.rtt_p50_us),
            format!("{:.0}", figures.rtt_p99_us),
            gigabytes(figures.sent_gigabytes_per_s),
            of(figures, &speed),
            of(figures, &|tcp| tcp.mtu_bytes.to_string()),
            of(figures, &|tcp| tcp.congestion.clone()),
            of(figures, &|tcp| format!("{:.2}%", tcp.resent_percent)),
        ])
    };
    let columns = [
        Column::text("  peer"),
        Column::text("link"),
        Column::number("p50 µs"),
        Column::number("p99 µs"),
        Column::number("GB/s"),
        Column::number("of"),
        Column::number("MTU"),
        Column::text("control"),
        Column::number("resent"),
    ];
    let table = Table::new(columns, measured.iter().filter_map(row)).to_text();
    let verdicts: String = measured.iter().map(|peer| shown(&peer.transport_address, &peer.finding)).collect();
    match measured.is_empty() {
        true => "  the endpoint map has no transport address of another host\n".to_owned(),
        false => table + &verdicts,
    }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::Verdict;
    use super::*;

    /// A link of 10 Gbit/s that is half full, on which nothing stands out.
    fn figures(change: impl FnOnce(&mut Figures, &mut Tcp)) -> Figures {
        let mut tcp = Tcp {
            mtu_bytes: 1500,
            congestion: "cubic".into(),
            tcp_busy_percent: 50.0,
            receive_window_percent: 0.0,
            send_buffer_percent: 0.0,
            resent_percent: 0.0,
            interface: Some("eth0".into()),
            interface_gigabytes_per_s: Some(1.25),
            is_same_host: false,
        };
        let mut figures = Figures {
            link: "tcp".into(),
            rtt_p50_us: 50.4,
            rtt_p99_us: 99.6,
            round_trips: 200,
            sent_gigabytes_per_s: 0.6,
            bursts: 9,
            shard_busy_percent: 40.0,
            tcp: None,
        };
        change(&mut figures, &mut tcp);
        Figures { tcp: Some(tcp), ..figures }
    }

    fn peer(figures: Option<Figures>, problem: Option<&str>) -> MeasuredPeer {
        let problem = problem.map(str::to_owned);
        Measurement { transport_address: "b:7000".into(), task: "ps0:2222".into(), figures, problem }.into()
    }

    #[test]
    fn every_limit_has_its_verdict_and_remedy() {
        type Change = fn(&mut Figures, &mut Tcp);
        let cases: [(Change, Limit, &str, &str); 9] = [
            (|f, _| f.sent_gigabytes_per_s = 0.9, Limit::Link, "MTU 1500, 0.90 GB/s of 1.25: the link is", ""),
            (
                |_, tcp| tcp.resent_percent = 0.1,
                Limit::Loss,
                "0.10% of the bytes were sent again",
                "ip -s link show eth0",
            ),
            (
                |_, tcp| tcp.receive_window_percent = 30.0,
                Limit::ReceiveWindow,
                "receive window",
                "run `sealane stat` there",
            ),
            (|_, tcp| tcp.send_buffer_percent = 30.0, Limit::SendBuffer, "send buffer", "raise net.ipv4.tcp_wmem"),
            (|f, _| f.shard_busy_percent = 95.0, Limit::Shard, "0.60 GB/s of 1.25: the CPU of this host's shard", ""),
            (|_, tcp| tcp.tcp_busy_percent = 99.0, Limit::Congestion, "congestion window (cubic)", ""),
            (|_, tcp| tcp.is_same_host = true, Limit::SameHost, "both ends are on this host", ""),
            (|_, _| (), Limit::Unknown, "the limit is unknown", ""),
            (
                |_, tcp| (tcp.interface_gigabytes_per_s, tcp.tcp_busy_percent) = (None, 99.0),
                Limit::Congestion,
                "MTU 1500, 0.60 GB/s (the speed of eth0 is unknown): TCP's",
                "",
            ),
        ];
        for (change, limit, says, remedy) in cases {
            let peer = peer(Some(figures(change)), None);
            assert_eq!(peer.limit, Some(limit));
            assert!(peer.finding.says.contains(says), "{}", peer.finding.says);
            assert!(peer.finding.remedy().starts_with(remedy), "{limit:?}");
            let verdict = if remedy.is_empty() { Verdict::Ok } else { Verdict::CouldBeBetter };
            assert_eq!(peer.finding.verdict, verdict, "{limit:?}");
        }
    }

    #[test]
    fn full_link_is_the_limit_although_bytes_are_resent() {
        let full = figures(|figures, tcp| {
            figures.sent_gigabytes_per_s = 0.9;
            (tcp.resent_percent, tcp.receive_window_percent) = (1.0, 50.0);
        });
        assert_eq!(Limit::of(&full), Limit::Link);
    }

    #[test]
    fn link_without_tcp_is_limited_by_its_shard() {
        let verbs = |busy| Figures { tcp: None, shard_busy_percent: busy, ..figures(|_, _| ()) };
        assert_eq!((Limit::of(&verbs(95.0)), Limit::of(&verbs(10.0))), (Limit::Shard, Limit::Unknown));
        assert!(peer(Some(verbs(95.0)), None).finding.says.starts_with("0.60 GB/s: the CPU"));
        let slow = Figures { sent_gigabytes_per_s: 0.00123, ..verbs(95.0) };
        assert!(peer(Some(slow), None).finding.says.starts_with("0.0012 GB/s: "));
    }

    #[test]
    fn peer_that_does_not_answer_is_no_failure() {
        let old = peer(None, Some("its release is older"));
        assert_eq!((old.finding.verdict, old.limit), (Verdict::Ok, None));
        let text = text(&[peer(Some(figures(|_, _| ())), None), old]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  peer    link  p50 µs  p99 µs  GB/s    of   MTU  control  resent");
        assert_eq!(lines[1], "  b:7000  tcp       50     100  0.60  1.25  1500  cubic     0.00%");
        assert!(text.contains("not measured: its release is older"), "{text}");
    }
}
