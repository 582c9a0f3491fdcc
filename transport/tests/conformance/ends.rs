//! Pairs of connected ends for every kind of link; `seed` chooses the faults of links that have some, and 0 means no faults.

use std::net::{TcpListener, TcpStream};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use nix::poll::PollFlags;
use sealane_transport::Link;
use sealane_transport::authentication::{Authentication, Authority};
use sealane_transport::fault::{FaultLink, Faults};
use sealane_transport::loopback::loopback as loopback_pair;
use sealane_transport::tcp::{TcpLink, TcpSettings};
use socket2::Socket;

use crate::greeted::{CALLED, Side, greet};
use crate::sockets::ready;
use crate::verbs::{self, Manner};

/// Longer than any test takes.
const DAY: Duration = Duration::from_secs(86_400);

/// Two ends connected to each other.
pub type Ends = [Box<dyn Link>; 2];
/// Makes a pair of ends; called again for each new link.
pub type Make = fn(seed: u64) -> Ends;

/// Socket buffers so small that large payloads are sent in many pieces; below the size of a loopback segment, the kernel would wait for
/// delayed acknowledgements.
const NARROW_BYTES: usize = 64 * 1024;
/// A call in five moves nothing, one in five reads as little as it can.
pub const SLOW: Faults = Faults { reset: 0, delay: 200_000, blackout: 0, dribble: 200_000 };
/// A link lives for some hundred calls, and one death in four is silent.
pub const FAILING: Faults = Faults { reset: 3_000, delay: 50_000, blackout: 1_000, dribble: 50_000 };

pub fn loopback(_seed: u64) -> Ends {
    let (one, other) = loopback_pair();
    [Box::new(one), Box::new(other)]
}

pub fn tcp(_seed: u64) -> Ends {
    connected(&TcpSettings::default()).map(|end| Box::new(end) as Box<dyn Link>)
}

pub fn narrow_tcp(_seed: u64) -> Ends {
    connected(&narrow()).map(|end| Box::new(end) as Box<dyn Link>)
}

pub fn tls(_seed: u64) -> Ends {
    encrypted(&TcpSettings::default()).map(|end| Box::new(end) as Box<dyn Link>)
}

pub fn narrow_tls(_seed: u64) -> Ends {
    encrypted(&narrow()).map(|end| Box::new(end) as Box<dyn Link>)
}

// Every call moves something: a descriptor does not show that bytes already decrypted by TLS are waiting, so that a caller that was told
// "nothing" would wait forever.
pub fn slow_tls(seed: u64) -> Ends {
    faulty(encrypted(&narrow()), Faults { delay: 0, ..SLOW }, seed)
}

pub fn failing_tls(seed: u64) -> Ends {
    faulty(encrypted(&narrow()), Faults { delay: 0, ..FAILING }, seed)
}

pub fn slow_loopback(seed: u64) -> Ends {
    let (one, other) = loopback_pair();
    faulty([one, other], SLOW, seed)
}

pub fn slow_tcp(seed: u64) -> Ends {
    faulty(connected(&narrow()), SLOW, seed)
}

pub fn failing_loopback(seed: u64) -> Ends {
    let (one, other) = loopback_pair();
    faulty([one, other], FAILING, seed)
}

pub fn failing_tcp(seed: u64) -> Ends {
    faulty(connected(&narrow()), FAILING, seed)
}

pub fn verbs_write(seed: u64) -> Ends {
    verbs::boxed(verbs::pair(&Manner::default(), seed))
}

pub fn verbs_read(seed: u64) -> Ends {
    verbs::boxed(verbs::pair(&Manner::default().reading(), seed))
}

pub fn verbs_write_dynamic(seed: u64) -> Ends {
    verbs::boxed(verbs::pair(&Manner::default().registering_each(), seed))
}

pub fn verbs_read_dynamic(seed: u64) -> Ends {
    verbs::boxed(verbs::pair(&Manner::default().reading().registering_each(), seed))
}

pub fn crowded_verbs(seed: u64) -> Ends {
    verbs::boxed(verbs::pair(&Manner::default().crowded(), seed))
}

pub fn verbs_write_without_windows(seed: u64) -> Ends {
    verbs::boxed(verbs::pair(&Manner::default().without_windows(), seed))
}

pub fn verbs_read_without_windows(seed: u64) -> Ends {
    verbs::boxed(verbs::pair(&Manner::default().reading().without_windows(), seed))
}

pub fn tiny_verbs_write(seed: u64) -> Ends {
    verbs::boxed(verbs::pair(&Manner::default().tiny(), seed))
}

pub fn tiny_verbs_read(seed: u64) -> Ends {
    verbs::boxed(verbs::pair(&Manner::default().reading().tiny(), seed))
}

pub fn slow_verbs_write(seed: u64) -> Ends {
    verbs::faulty(verbs::pair(&Manner::default().slow(), seed), false, seed)
}

pub fn slow_verbs_read(seed: u64) -> Ends {
    verbs::faulty(verbs::pair(&Manner::default().reading().slow(), seed), false, seed)
}

pub fn failing_verbs_write(seed: u64) -> Ends {
    verbs::boxed(verbs::pair(&Manner::default().failing(), seed))
}

pub fn failing_verbs_read(seed: u64) -> Ends {
    verbs::boxed(verbs::pair(&Manner::default().reading().failing(), seed))
}

pub fn failing_tiny_verbs(seed: u64) -> Ends {
    verbs::faulty(verbs::pair(&Manner::default().tiny().failing(), seed), true, seed)
}

pub fn failing_verbs_without_windows(seed: u64) -> Ends {
    verbs::faulty(verbs::pair(&Manner::default().without_windows().failing(), seed), true, seed)
}

fn narrow() -> TcpSettings {
    TcpSettings { send_buffer_bytes: NARROW_BYTES, receive_buffer_bytes: NARROW_BYTES, ..TcpSettings::default() }
}

fn faulty<L: Link + 'static>(ends: [L; 2], faults: Faults, seed: u64) -> Ends {
    let faults = if seed == 0 { Faults::default() } else { faults };
    let mut seed = seed;
    ends.map(|end| {
        seed = seed.wrapping_add(1);
        Box::new(FaultLink::new(Box::new(end), faults, seed)) as Box<dyn Link>
    })
}

pub fn connected(settings: &TcpSettings) -> [TcpLink; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let one = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    let (other, _) = listener.accept().expect("accept");
    [one, other].map(|stream| {
        let socket = Socket::from(stream);
        settings.apply(&socket).expect("ordinary options");
        TcpLink::new(socket, &[])
    })
}

/// Two ends whose bytes are encrypted.
fn encrypted(settings: &TcpSettings) -> [TcpLink; 2] {
    static IDENTITY: LazyLock<Authentication> = LazyLock::new(|| {
        let authority = Authority::new().expect("random numbers");
        let certified = authority.certify(&[], SystemTime::now() + DAY).expect("random numbers");
        Authentication::certified(&authority.certificate(), &certified).expect("they fit")
    });
    let side = Side { address: CALLED, settings: settings.clone(), authentication: &IDENTITY };
    let (dialed, answered) = greet(&side, &side);
    [dialed.unwrap_or_else(|error| panic!("{error}")).link, answered.unwrap_or_else(|error| panic!("{error}"))]
}

/// Waits until one of the links has bytes or, if its flag is `true`, room for some. A loopback is not waited for, and an RDMA device only
/// for a moment.
pub fn wait(links: &[(&dyn Link, bool)]) {
    let mut watched = Vec::new();
    for (link, writing) in links {
        let flags = if *writing { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
        watched.extend(link.descriptor().map(|descriptor| (descriptor, flags)));
    }
    let descriptors: Vec<_> = watched.iter().map(|(descriptor, _)| *descriptor).collect();
    if !verbs::wait(&descriptors) && !watched.is_empty() {
        ready(&watched);
    }
}
