//! Verbs as an engine uses them: settings, the device of each shard, and the links that negotiate them.

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use sealane_runtime::RuntimeError;
use zerocopy::{FromBytes, IntoBytes};

use super::device::{Attributes, Device, VerbsError};
use super::{NegotiatedLink, Port, PortCounters, VerbsSettings};
use crate::limits::FIGURES_MAX;
use crate::link::{Link, LinkKind};
use crate::provider::{Figure, LinkInterface, LinkProvider, OpenOn, Opened, Told};
use crate::shm::SharedMemory;
use crate::tcp::TcpLink;
use crate::wire::FEATURE_VERBS;

/// A queue pair of an RDMA device.
pub const KIND: LinkKind = LinkKind::new("verbs");

/// Why links use TCP under TLS.
pub const PLAINTEXT_REFUSED: &str =
    "TLS is set, and RDMA would carry tensors in plain text; security.plaintext_rdma = true allows that";

/// The numbers of the watched descriptors.
const COMPLETIONS: u64 = 0;
const EVENTS: u64 = 1;

/// Opens a device whose queues fit the settings.
type OpenDevice = dyn Fn(&VerbsSettings) -> Result<Box<dyn Device>, VerbsError> + Send + Sync;

/// How an engine uses RDMA verbs.
#[derive(Clone)]
pub struct Verbs {
    /// The device, its queue pairs, and how tensors move.
    pub settings: VerbsSettings,
    /// Links that cannot be verbs are errors, and so is a start without a device; otherwise they are TCP, with the reason.
    pub is_required: bool,
    /// Under TLS, let tensors travel by RDMA anyway, which encrypts nothing. Default `false`: then links are TCP.
    pub plaintext: bool,
    /// Opens the device, once for each shard; [`open`](super::open) does so with the system's library.
    pub open: Arc<OpenDevice>,
}

impl Verbs {
    /// Verbs where available, with the system's library.
    pub fn new(settings: VerbsSettings) -> Self {
        Self { settings, is_required: false, plaintext: false, open: Arc::new(super::open) }
    }

    /// True if links do not use verbs, because of [`PLAINTEXT_REFUSED`], whatever device there is.
    pub fn declines(&self, is_encrypted: bool) -> bool {
        is_encrypted && !self.plaintext
    }

    fn open_port(&self, shard: &OpenOn<'_>) -> Result<Rc<Port>, VerbsError> {
        let settings = self.settings.clone().reached_at(shard.addresses);
        let port = Port::open((self.open)(&settings)?, settings)?;
        shard.slabs.into_iter().try_for_each(|slab| port.add_slab(slab))?;
        Ok(port)
    }
}

impl std::fmt::Debug for Verbs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verbs")
            .field("settings", &self.settings)
            .field("is_required", &self.is_required)
            .field("plaintext", &self.plaintext)
            .finish_non_exhaustive()
    }
}

impl LinkProvider for Verbs {
    fn kind(&self) -> LinkKind {
        KIND
    }

    fn figures(&self) -> &'static [Figure] {
        PortCounters::FIGURES
    }

    fn is_required(&self) -> bool {
        self.is_required
    }

    fn locked_bytes(&self, shards: usize, slab_bytes: [usize; 2], is_encrypted: bool) -> u64 {
        if self.declines(is_encrypted) { 0 } else { self.settings.registered_bytes(shards, slab_bytes) }
    }

    fn check(&self, is_encrypted: bool) -> Result<(), String> {
        if self.is_required && self.declines(is_encrypted) {
            return Err("verbs are required (transport.require), and so is TLS, which RDMA does not support: set \
                        security.plaintext_rdma = true to let tensors travel in plain text, or transport.require = tcp"
                .into());
        }
        Ok(())
    }

    fn open(&self, on: &OpenOn<'_>) -> Result<Opened, String> {
        let opened = |port, otherwise| Opened {
            interface: Some(Box::new(Interface { port, is_required: self.is_required })),
            otherwise,
        };
        let shard = on.shard;
        if self.declines(on.is_encrypted) {
            let error = PLAINTEXT_REFUSED;
            tracing::warn!(shard, error, "no verbs on this shard: its links use TCP");
            return Ok(opened(None, error.into()));
        }
        match self.open_port(on) {
            Ok(port) => {
                let Attributes { device, port: number, gid_index, chosen, .. } = port.attributes();
                tracing::info!(shard, device, port = number, gid_index, reason = chosen, "verbs are ready");
                if on.is_encrypted {
                    tracing::warn!(shard, "security.plaintext_rdma: RDMA traffic is in plain text");
                }
                Ok(opened(Some(port), "the peer offers no verbs".into()))
            }
            Err(error) if self.is_required => Err(format!("verbs are required (transport.require), but {error}")),
            Err(error) => {
                tracing::warn!(shard, %error, "no verbs on this shard: its links use TCP");
                Ok(Opened { interface: None, otherwise: format!("no verbs here: {error}") })
            }
        }
    }
}

/// A shard's verbs.
struct Interface {
    /// `None` on a side that declines: it says so, with the reason, if a peer offers verbs.
    port: Option<Rc<Port>>,
    is_required: bool,
}

impl LinkInterface for Interface {
    fn feature(&self) -> u64 {
        FEATURE_VERBS
    }

    fn link(&self, tcp: TcpLink, peer: &str) -> Box<dyn Link> {
        Box::new(match &self.port {
            Some(port) => NegotiatedLink::new(port.clone(), peer, tcp, self.is_required),
            None => NegotiatedLink::declining(PLAINTEXT_REFUSED, peer, tcp),
        })
    }

    fn poll(&self, into: &mut Vec<Told>) {
        if let Some(port) = &self.port {
            port.poll(into);
        }
    }

    fn peek(&self) -> Option<bool> {
        self.port.as_ref().map(|port| port.peek())
    }

    fn arm(&self, into: &mut Vec<Told>) -> bool {
        self.port.as_ref().is_none_or(|port| port.arm(into))
    }

    fn watch(&self, watch: &mut dyn FnMut(u64, BorrowedFd<'_>) -> Result<(), RuntimeError>) {
        let Some(port) = &self.port else { return };
        port.with_descriptors(|descriptors| {
            for (descriptor, number) in descriptors.into_iter().zip([COMPLETIONS, EVENTS]) {
                if let Err(error) = watch(number, descriptor) {
                    // Completions are polled while the shard is awake; a sleeping shard would miss them.
                    tracing::error!(%error, "the RDMA device cannot be watched");
                }
            }
        });
    }

    fn descriptor_ready(&self, number: u64, into: &mut Vec<Told>) -> bool {
        let Some(port) = &self.port else { return false };
        if number == COMPLETIONS {
            port.disarm();
            return false;
        }
        port.handle_events(into);
        // The port may have come up.
        true
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.port.as_ref()?.next_timeout()
    }

    fn add_client(&self, pid: i32, memories: &[&SharedMemory]) {
        let Some(port) = &self.port else { return };
        let mut left = port.client_pinned_bytes_max();
        for memory in memories {
            let may_pin = memory.len() <= left;
            if may_pin {
                left -= memory.len();
            } else {
                tracing::warn!(
                    client.pid = pid,
                    bytes = memory.len(),
                    "a client's memory exceeds what may be pinned for it (verbs.client_pinned_bytes_max): its tensors are \
                     copied"
                );
            }
            port.add_shared(memory, may_pin);
        }
    }

    fn remove_client(&self, memories: &[&SharedMemory]) {
        if let Some(port) = &self.port {
            memories.iter().for_each(|memory| port.remove_shared(memory));
        }
    }

    fn pinned_bytes(&self, memory: &SharedMemory) -> u64 {
        self.port.as_ref().map_or(0, |port| port.pinned_bytes(memory))
    }

    fn figures(&self) -> [u64; FIGURES_MAX] {
        self.port.as_ref().map(|port| port.counters()).unwrap_or_default().to_figures()
    }
}

impl PortCounters {
    /// Their descriptions, in the order of the fields.
    #[rustfmt::skip]
    pub const FIGURES: &[Figure] = &[
        figure("links_begun", true, "RDMA links opened."),
        figure("links_failed", true, "RDMA links that failed with an error of the device or of the peer's queue pair."),
        figure("links_refused", true, "Links that fell back from RDMA to TCP."),
        figure("registrations", true, "Memory registrations for one transfer."),
        Figure { metric: Some("placed_bytes"), ..figure("bytes_placed", true, "Bytes that peers wrote into this host's memory, or that were read from theirs.") },
        figure("payloads_streamed", true, "Payloads that were copied because their memory was not registered."),
        Figure { metric: None, ..figure("links", false, "RDMA links that stand.") },
        figure("regions", false, "Registered memory regions."),
        figure("receives_promised", false, "Receive buffers promised to peers."),
        figure("works", false, "Work requests not yet completed."),
        figure("send_buffers", false, "Message send buffers in use."),
        figure("draining", false, "Queue pairs of closed links that may still hold receive buffers."),
        figure("undrained", true, "Queue pairs destroyed before the device confirmed that they held no receive buffer."),
        figure("direct_regions", false, "Registered regions of devices' memory (dma-buf), which RDMA reaches directly."),
        figure("direct_refused", true, "Regions of devices' memory that could not be registered: their tensors are copied through host memory."),
    ];

    /// The counters as the figures of an interface.
    fn to_figures(self) -> [u64; FIGURES_MAX] {
        let mut figures = [0; FIGURES_MAX];
        figures.as_mut_bytes()[..size_of::<Self>()].copy_from_slice(self.as_bytes());
        figures
    }

    /// The counters from the figures of an interface.
    pub fn of_figures(figures: &[u64; FIGURES_MAX]) -> Self {
        Self::read_from_prefix(figures.as_bytes()).expect("asserted to fit").0
    }
}

const fn figure(name: &'static str, grows: bool, help: &'static str) -> Figure {
    Figure { name, metric: Some(name), help, grows }
}

const _: () = assert!(PortCounters::FIGURES.len() * size_of::<u64>() == size_of::<PortCounters>());
const _: () = assert!(PortCounters::FIGURES.len() <= FIGURES_MAX);
