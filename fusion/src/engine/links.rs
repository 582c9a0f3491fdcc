//! The source that drives the node's links: polled every turn, watched by epoll while the shard sleeps.

use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::time::Instant;

use sealane_runtime::{Interest, Readiness, Shard, Source};
use sealane_transport::Handle;
use sealane_transport::provider::{DESCRIPTORS_MAX, Told};

use super::shard::{ShardEngine, Vital};
use crate::limits::{LINK_KINDS_MAX, REPLACE_EVERY, REPLACE_LOOK};

pub(super) struct Links {
    engine: Vital,
    /// New links to watch; kept to reuse its memory.
    new_links: Vec<Handle>,
    /// Links that take nothing, to be watched for writability; kept to reuse its memory.
    stuck: Vec<Handle>,
    /// Links watched for writing too, while the shard sleeps.
    watched_for_room: Vec<Handle>,
    /// Links that their interface has reported; kept to reuse its memory.
    told: Vec<Told>,
    /// When links that fell back are checked next.
    replace_at: Instant,
    /// There may be links that fell back.
    has_fallbacks: bool,
}

/// The tokens of the interfaces' descriptors begin here, by their numbers; no link's handle is that large.
const DESCRIPTORS: u64 = u64::MAX - LINK_KINDS_MAX as u64 * DESCRIPTORS_MAX;

impl Links {
    pub(super) fn start(engine: &Rc<ShardEngine>) {
        let links = Links {
            engine: Vital::new(engine),
            new_links: Vec::new(),
            stuck: Vec::new(),
            watched_for_room: Vec::new(),
            told: Vec::new(),
            replace_at: engine.shard.now(),
            has_fallbacks: false,
        };
        let source = engine.shard.add_source(links);
        engine.links_source.set(Some(source));
        for (place, interface) in engine.interfaces().enumerate() {
            interface.watch(&mut |number, descriptor| {
                debug_assert!(number < DESCRIPTORS_MAX, "it would be taken for another interface's");
                let token = DESCRIPTORS + place as u64 * DESCRIPTORS_MAX + number;
                engine.shard.watch(source, descriptor, token, Interest::READ)
            });
        }
    }

    /// The descriptor of an interface is readable.
    #[cold]
    fn interface_ready(&mut self, number: u64) {
        let interface = self.engine.interfaces().nth((number / DESCRIPTORS_MAX) as usize);
        if interface.is_some_and(|interface| interface.descriptor_ready(number % DESCRIPTORS_MAX, &mut self.told)) {
            self.replace_at = self.replace_at.min(self.engine.shard.now());
        }
        self.pass_on();
    }

    /// Passes on to the node what interfaces have reported of their links.
    fn pass_on(&mut self) {
        if !self.told.is_empty() {
            let told = &mut self.told;
            self.engine.borrow_node(|node| {
                told.drain(..).for_each(|Told { link, has_room }| node.link_told(link, has_room));
            });
        }
    }

    /// Drops a link that fell back, if the next one to its peer would not.
    #[cold]
    fn replace_fallback(&mut self, now: Instant) {
        let replaced = self.engine.borrow_node(|node| node.replace_fallback(now));
        self.has_fallbacks = replaced.is_some();
        let spread = f64::from(RandomState::new().hash_one(0) as u32) / f64::from(u32::MAX);
        self.replace_at = now + if replaced == Some(true) { REPLACE_EVERY.mul_f64(0.5 + spread) } else { REPLACE_LOOK };
    }

    fn watch(&self, handle: Handle, interest: Interest, fresh: bool) {
        let id = self.engine.links_source.get().expect("set at start");
        self.engine.borrow_node(|node| {
            let Some(descriptor) = node.link(handle).and_then(|link| link.descriptor()) else { return };
            let shard = &self.engine.shard;
            let token = handle.to_bits();
            let watched = if fresh {
                shard.watch(id, descriptor, token, interest)
            } else {
                shard.rewatch(id, descriptor, token, interest)
            };
            if let Err(error) = watched {
                // The link is still read while it is hot; its requests end at their deadlines at the latest.
                tracing::error!(%error, "a link cannot be watched");
            }
        });
    }
}

impl Source for Links {
    fn poll(&mut self, shard: &Shard, _budget: usize) -> usize {
        let now = shard.now();
        self.engine.interfaces().for_each(|interface| interface.poll(&mut self.told));
        self.pass_on();
        if self.replace_at <= now && self.engine.interfaces().next().is_some() {
            self.replace_fallback(now);
        }
        // The node bounds its turn in bytes, which the shard's budget cannot.
        let work = self.engine.borrow_node(|node| {
            let work = node.turn(now);
            node.take_new_links(&mut self.new_links);
            node.take_stuck(&mut self.stuck);
            work
        });
        while let Some(handle) = self.stuck.pop() {
            self.watch(handle, Interest::READ_WRITE, false);
        }
        while let Some(handle) = self.new_links.pop() {
            self.watch(handle, Interest::READ, true);
            // It may have fallen back, if another kind of link is possible.
            self.has_fallbacks |= self.engine.interfaces().next().is_some();
        }
        self.engine.show_if_due(now);
        work
    }

    fn ready(&mut self, token: u64, readiness: Readiness) {
        if token >= DESCRIPTORS {
            return self.interface_ready(token - DESCRIPTORS);
        }
        let handle = Handle::from_bits(token);
        let has_room = self.engine.borrow_node(|node| {
            // Readable or broken: the next turn's read finds out which.
            node.link_readable(handle);
            readiness.writable && node.has_room(handle)
        });
        if has_room {
            self.watch(handle, Interest::READ, false);
        }
    }

    fn has_work(&self) -> bool {
        self.engine.borrow_node(|node| node.has_work())
    }

    fn peek(&self) -> Option<bool> {
        self.engine.interfaces().filter_map(|interface| interface.peek()).reduce(|one, other| one | other)
    }

    fn try_sleep(&mut self) -> bool {
        if self.has_work() {
            return false;
        }
        if !self.engine.interfaces().all(|interface| interface.arm(&mut self.told)) {
            self.pass_on();
            return false;
        }
        self.engine.show();
        self.engine.borrow_node(|node| self.watched_for_room.extend_from_slice(node.blocked()));
        for &handle in &self.watched_for_room {
            self.watch(handle, Interest::READ_WRITE, false);
        }
        true
    }

    fn wake(&mut self) {
        for handle in std::mem::take(&mut self.watched_for_room) {
            self.watch(handle, Interest::READ, false);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let node = self.engine.borrow_node(|node| node.next_timeout());
        let interfaces = self.engine.interfaces().filter_map(|interface| interface.next_timeout());
        let replace = self.has_fallbacks.then_some(self.replace_at);
        interfaces.chain(node).chain(replace).min()
    }

    fn name(&self) -> &'static str {
        "links"
    }
}
