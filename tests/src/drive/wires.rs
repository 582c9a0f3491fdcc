//! The links between the two nodes of a drive.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use sealane_transport::error::LinkError;
use sealane_transport::link::{Frames, Landing, Receiver, Traits};
use sealane_transport::loopback::loopback;
use sealane_transport::outbox::Outbox;
use sealane_transport::provider::Told;
use sealane_transport::tcp::{TcpLink, TcpSettings};
use sealane_transport::verbs::fake::{Fabric, FakeSettings};
use sealane_transport::verbs::{Depths, NegotiatedLink, Port, VerbsSettings};
use sealane_transport::wire::WireError;
use sealane_transport::{Handle, Link, LinkKind};
use socket2::Socket;

use crate::two_nodes::Wire;

const HOSTS: [&str; 2] = ["one", "other"];
/// Most turns until two ends settle on verbs: many times what they need.
const SETTLING_TURNS: usize = 10_000;

/// A link in memory.
pub(super) struct Loop;

impl Wire for Loop {
    fn link(&self) -> (Box<dyn Link>, Box<dyn Link>) {
        let (one, other) = loopback();
        (Box::new(one), Box::new(other))
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn wait(&self) -> bool {
        false
    }
}

/// A TCP connection within this host. Written bytes can be read when the write returns, or very soon after.
pub(super) struct Tcp;

impl Wire for Tcp {
    fn link(&self) -> (Box<dyn Link>, Box<dyn Link>) {
        let [one, other] = connection().map(|link| Box::new(link) as Box<dyn Link>);
        (one, other)
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn wait(&self) -> bool {
        std::thread::yield_now();
        true
    }
}

fn connection() -> [TcpLink; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    let one = TcpStream::connect(listener.local_addr().expect("a bound socket has an address")).expect("it listens");
    let (other, _) = listener.accept().expect("it was called");
    [one, other].map(|stream| {
        let socket = Socket::from(stream);
        TcpSettings::default().apply(&socket).expect("ordinary options");
        TcpLink::new(socket, &[])
    })
}

/// RDMA devices in memory that carry out requests at once.
pub(super) struct Rdma {
    ports: [Rc<Port>; 2],
}

impl Rdma {
    pub(super) fn new() -> Rdma {
        let (fabric, settings) = (Fabric::new(0), VerbsSettings::default());
        let Depths { completions, sends } = Depths::of(&settings);
        let ports = HOSTS.map(|name| {
            let device = FakeSettings {
                name: name.into(),
                receive_depth: settings.queue_depth,
                completion_depth: completions,
                send_depth: sends,
                ..FakeSettings::default()
            };
            Port::open(Box::new(fabric.open(device)), settings.clone()).expect("deep enough")
        });
        Rdma { ports }
    }
}

impl Wire for Rdma {
    /// Links that have settled on verbs: what is said over TCP before that is not counted.
    fn link(&self) -> (Box<dyn Link>, Box<dyn Link>) {
        let [one, other] = connection();
        let [of_one, of_other] = &self.ports;
        let mut ends = [Polled::new(of_one, HOSTS[1], one), Polled::new(of_other, HOSTS[0], other)];
        for _ in 0..SETTLING_TURNS {
            for end in &mut ends {
                end.transmit(&mut Outbox::default(), usize::MAX, false).expect("both have verbs");
                end.receive(&mut Deaf, usize::MAX).expect("both have verbs");
            }
            if ends.iter().all(|end| end.traits().open) {
                let [one, other] = ends.map(|end| Box::new(end) as Box<dyn Link>);
                return (one, other);
            }
        }
        panic!("they do not settle");
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn wait(&self) -> bool {
        false
    }
}

/// A link that polls its port itself, in place of a shard that does so once a turn.
struct Polled {
    link: NegotiatedLink,
    port: Rc<Port>,
    told: Vec<Told>,
}

impl Polled {
    fn new(port: &Rc<Port>, peer: &str, tcp: TcpLink) -> Polled {
        let mut link = NegotiatedLink::new(port.clone(), peer, tcp, true);
        link.adopt(Handle::from_bits(1 << 32));
        Polled { link, port: port.clone(), told: Vec::new() }
    }
}

impl Link for Polled {
    fn kind(&self) -> LinkKind {
        self.link.kind()
    }

    fn traits(&self) -> Traits {
        self.link.traits()
    }

    fn transmit(&mut self, outbox: &mut Outbox, budget: usize, more_follows: bool) -> Result<usize, LinkError> {
        self.link.transmit(outbox, budget, more_follows)
    }

    fn receive(&mut self, receiver: &mut dyn Receiver, budget: usize) -> Result<usize, LinkError> {
        self.told.clear();
        self.port.poll(&mut self.told);
        self.link.receive(receiver, budget)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn abandon(&mut self, outbox: &mut Outbox) -> Vec<Landing> {
        self.link.abandon(outbox)
    }
}

/// Receives nothing: nothing is said before both ends are open.
struct Deaf;

impl Receiver for Deaf {
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError> {
        panic!("{} bytes of frames", bytes.len());
    }

    fn landed(&mut self, _: Landing) {
        panic!("a payload");
    }
}
