//! Groups: processes that compute with each other's tensors, by collectives and messages, as those of MPI and `torch.distributed` do.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use sealane::{DType, Group, GroupOptions, ReduceOp, Store};
//!
//! # fn example(store: &dyn Store, rank: usize, size: usize, gradients: &mut [u8]) -> Result<(), sealane::Error> {
//! // The ranks meet by a store that they share. Nothing else is needed: no daemon, and no endpoint map.
//! let group = Group::new(store, rank, size, &GroupOptions::default())?;
//! group.all_reduce(gradients, DType::F32, ReduceOp::Sum, Some(Duration::from_secs(60)))?;
//! # Ok(())
//! # }
//! ```
//!
//! The ranks of one host are processes (or threads) of one user. Each writes its own memory and reads that of the others, where it copies
//! and reduces tensors itself: see `sealane_transport::shm::group`. Ranks of different hosts, or users, are connected by TCP: each with
//! its counterparts (`hosts`), and with others when needed.
//!
//! # Calls
//! A collective is called by all ranks, in the same order and with the same arguments; it blocks until this rank has its result. It needs
//! the thread of its caller, and no other. Tensors are contiguous bytes in host memory.
//!
//! # Failure
//! A rank notices within some 20 ms that a process it waits for has ended, also on another host, unless a forked child still holds its
//! connections. That a host answers no more it learns within half a minute while nothing is sent to it, else when the system gives up:
//! within half a minute since Linux 6.15, a quarter of an hour before. Then, and when a call times out, or ranks disagree
//! about what they call, the group ends for all: each learns the reason. A message that times out before it has begun to move, or is
//! refused, ends no group.

mod call;
mod collectives;
mod figures;
mod hosts;
mod limits;
mod mail;
mod members;
mod message;
mod reduce;
mod rounds;
mod store;
#[cfg(test)]
mod tests;

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, TryLockError},
    thread,
    time::{Duration, Instant},
};

use sealane_runtime::copy_bytes;
use sealane_transport::{
    Error,
    authentication::Authentication,
    shm::group::{Bootstrap, JoinError, Joined, Neighbour, host, random_bytes},
    tensor::DType,
};

use self::{
    call::{Call, Kind},
    figures::Counters,
    hosts::{
        Hosts,
        address::{Place, Reach, decode, encode},
        collectives::{Collectives, Wants},
        layout::Layout,
        network::{Listener, Network},
    },
    mail::deadline,
    members::Members,
    message::Post,
    reduce::Reduction,
    rounds::Rounds,
};
pub use self::{
    figures::{CallFigures, RankFigures},
    message::Message,
    reduce::ReduceOp,
    store::Store,
};
use crate::{
    group::limits::{GROUP_LOCK_LOOK, GROUP_RANKS_MAX},
    memory::ForkMark,
};

/// One rank of a group. Any thread may call it; collectives of several threads wait for each other, and must still come in the same
/// order on all ranks. Dropping it leaves the group, which ends it for ranks that still need this one.
pub struct Group {
    members: Arc<Members>,
    collectives: Mutex<Collectives>,
    post: Arc<Post>,
    counters: Counters,
}

/// How the ranks of a group meet, and how those of different hosts talk.
#[derive(Debug, Clone)]
pub struct GroupOptions {
    /// How long to wait for the other ranks. The default is 5 minutes.
    pub limit: Duration,
    /// The interface (`eth1`) or address at which ranks of other hosts reach this one. By default they try all addresses of this host but
    /// loopback's.
    pub interface: Option<String>,
    /// Names this host: two ranks with equal names share memory. By default a host is known by its boot, network namespace and user.
    pub host: Option<String>,
    /// What ranks of other hosts must present. By default a number that they find in the store, and bytes are not encrypted. With a secret
    /// all must have the same; with TLS each must have a certificate of the same authorities.
    pub authentication: Authentication,
}

impl Default for GroupOptions {
    fn default() -> Self {
        GroupOptions {
            limit: Duration::from_secs(300),
            interface: None,
            host: None,
            authentication: Authentication::default(),
        }
    }
}

/// The calls of collectives: with a `timeout`, they end by [`Error::TimedOut`] when it has passed, and the group with them.
impl Group {
    /// Joins the other ranks of a group of `size`, which find each other through `store`; their keys there begin with `sealane/`. Each
    /// group needs a store of its own, or a prefix of its own in one.
    ///
    /// Memory: 1 MiB and 128 KiB for each rank of this host, as far as they are used, and up to 4 MiB of unsent bytes for each of another.
    /// With several hosts, each rank listens on a port that the system picks, and has two connections with each of its
    /// counterparts, more with ranks that it gives something by gather, scatter, all_to_all or messages.
    ///
    /// # Errors
    /// InvalidArgument if there is no such rank or interface, or no group has as many ranks. Unavailable, naming a rank that does not come
    /// in time, is not reached, has another version, or leaves meanwhile; or what this process lacks. The errors of the store.
    pub fn new(store: &dyn Store, rank: usize, size: usize, options: &GroupOptions) -> Result<Group, Error> {
        if rank >= size || size > GROUP_RANKS_MAX {
            let reason = format!("a group has 1 to {GROUP_RANKS_MAX} ranks, and this is rank {rank} of {size}");
            return Err(Error::invalid(reason));
        }
        let began = Instant::now();
        let left = || options.limit.saturating_sub(began.elapsed());
        let mark =
            ForkMark::new().map_err(|error| Error::unavailable("a page that forks are known by", error.to_string()))?;
        let bootstrap = Bootstrap::new().map_err(join_error)?;
        let place = Place::new(options.host.clone().unwrap_or_else(host), bootstrap.name().to_owned());
        store.set(&format!("sealane/{rank}"), &encode(&place))?;
        let place_of = |rank: usize| decode::<Place>(rank, &store.get(&format!("sealane/{rank}"), left())?);
        let places = (0..size).map(place_of).collect::<Result<Vec<_>, _>>()?;
        let layout = Layout::new(rank, &places.iter().map(|place| &place.host).collect::<Vec<_>>());
        let neighbour = |rank: &usize| Neighbour { rank: *rank, name: places[*rank].name.clone() };
        let neighbours: Vec<Neighbour> = layout.neighbours().iter().map(neighbour).collect();
        // Before the ranks meet, so that nobody waits for a rank that lacks the memory.
        let counters = Counters::new(&places[0].name, &layout).map_err(|error| join_error(error.into()))?;
        let joined = bootstrap.join(layout.own_index(), &neighbours, left()).map_err(join_error)?;
        if layout.hosts() == 1 {
            return Ok(Group::of(layout, joined, None, (mark, counters)));
        }
        let network = match Group::reach(store, &layout, options) {
            Ok(network) => Arc::new(network),
            Err(error) => {
                // The ranks of this host have already met this one.
                joined.segment.words.fail(&error.to_string());
                return Err(error);
            }
        };
        let group = Group::of(layout, joined, Some(network.clone()), (mark, counters));
        network.meet(left(), || group.members.check_all()).map_err(|error| group.members.fail(error))?;
        let hosts = Hosts::new(network, group.members.clone());
        group.lock_collectives(None)?.add_hosts(hosts);
        Ok(group)
    }

    /// Tells the ranks of other hosts how to reach this one, and learns how to reach them.
    fn reach(store: &dyn Store, layout: &Layout, options: &GroupOptions) -> Result<Network, Error> {
        let began = Instant::now();
        let token = random_bytes().map_err(|error| Error::unavailable("the group", error.to_string()))?;
        let listener = Listener::new(options.interface.as_deref(), u128::from_ne_bytes(token))?;
        let key = |rank: usize| format!("sealane/{rank}/tcp");
        store.set(&key(layout.rank()), &encode(&listener.reach))?;
        let left = || options.limit.saturating_sub(began.elapsed());
        let reach_of = |rank: usize| decode::<Reach>(rank, &store.get(&key(rank), left())?);
        let reaches = (0..layout.size()).map(reach_of).collect::<Result<Vec<_>, _>>()?;
        Network::new(layout.clone(), listener, reaches, options.authentication.clone())
    }

    fn of(
        layout: Layout,
        joined: Joined,
        network: Option<Arc<Network>>,
        (mark, counters): (ForkMark, Counters),
    ) -> Group {
        let (members, slots, boxes) = Members::new(layout, joined, network, mark);
        let members = Arc::new(members);
        let collectives = Mutex::new(Collectives::new(Rounds::new(members.clone(), slots)));
        Group { collectives, post: Post::new(members.clone(), boxes), members, counters }
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.members.number()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.members.layout().size()
    }

    /// How many hosts they are on.
    pub fn hosts(&self) -> usize {
        self.members.layout().hosts()
    }

    /// What the ranks on this host have done, in all groups of this user's processes; for root, of all users'.
    ///
    /// # Errors
    /// Unavailable if the processes cannot be listed.
    pub fn ranks_here() -> Result<Vec<RankFigures>, Error> {
        figures::ranks_here()
    }

    /// Why the group is over, if it is.
    pub fn error(&self) -> Option<Error> {
        self.members.check().err()
    }

    /// Ends the group for all ranks, including calls that wait at this moment.
    pub fn abort(&self, reason: &str) {
        if !self.members.is_forked() {
            self.post.close(&self.members.fail(Error::unavailable("the group", format!("it was aborted: {reason}"))));
        }
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// The error that ends the group.
    pub fn barrier(&self, timeout: Option<Duration>) -> Result<(), Error> {
        self.call(Kind::Barrier, None, 0, None, timeout, Collectives::barrier)
    }

    /// Gives all ranks the `data` of one.
    ///
    /// # Errors
    /// InvalidArgument if there is no rank `root`; the error that ends the group.
    pub fn broadcast(&self, data: &mut [u8], root: usize, timeout: Option<Duration>) -> Result<(), Error> {
        self.call(Kind::Broadcast, None, data.len(), Some(root), timeout, |all| all.broadcast(data, root))
    }

    /// Reduces the `data` of all ranks, for all: each has the same bytes afterwards.
    ///
    /// # Errors
    /// InvalidArgument if such elements cannot be reduced so, or `data` has a part of one; the error that ends the group.
    pub fn all_reduce(
        &self,
        data: &mut [u8],
        dtype: DType,
        op: ReduceOp,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let (reduction, element) = self.arithmetic(data.len(), dtype, op)?;
        self.call(Kind::AllReduce, Some((dtype, op)), data.len(), None, timeout, |all| {
            all.all_reduce(data, element, &reduction, Wants::Result)
        })
    }

    /// [`all_reduce`](Self::all_reduce) for rank `root` alone; the others' data stays as it is.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and InvalidArgument if there is no such rank.
    pub fn reduce(
        &self,
        data: &mut [u8],
        dtype: DType,
        op: ReduceOp,
        root: usize,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let (reduction, element) = self.arithmetic(data.len(), dtype, op)?;
        let wants = if root == self.rank() { Wants::Result } else { Wants::Nothing };
        self.call(Kind::Reduce, Some((dtype, op)), data.len(), Some(root), timeout, |all| {
            all.all_reduce(data, element, &reduction, wants)
        })
    }

    /// Reduces the parts of `from`, one for each rank, and gives each rank its own in `to`.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce), and InvalidArgument unless `from` is as long as `to` for each rank.
    pub fn reduce_scatter(
        &self,
        from: &[u8],
        to: &mut [u8],
        dtype: DType,
        op: ReduceOp,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let (reduction, _) = self.arithmetic(to.len(), dtype, op)?;
        self.check_parts(from.len(), to.len())?;
        self.call(Kind::ReduceScatter, Some((dtype, op)), to.len(), None, timeout, |all| {
            all.reduce_scatter(from, to, &reduction)
        })
    }

    /// Gathers the parts of all ranks, for all: `whole` has one part for each rank, and the caller has put its own at its place.
    ///
    /// # Errors
    /// InvalidArgument if `whole` has no equal parts; the error that ends the group.
    pub fn all_gather(&self, whole: &mut [u8], timeout: Option<Duration>) -> Result<(), Error> {
        let part = whole.len() / self.size();
        self.check_parts(whole.len(), part)?;
        self.call(Kind::AllGather, None, part, None, timeout, |all| all.all_gather(whole))
    }

    /// Gathers the parts of all ranks at rank `root`, in `whole`, which it alone passes.
    ///
    /// # Errors
    /// InvalidArgument if `whole` has no room for as many parts, is missing, or is passed by another rank; if there is no such rank; the
    /// error that ends the group.
    pub fn gather(
        &self,
        part: &[u8],
        mut whole: Option<&mut [u8]>,
        root: usize,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        self.check_whole(whole.as_ref().map(|whole| whole.len()), part.len(), root)?;
        if let Some(whole) = &mut whole {
            copy_bytes(&mut whole[root * part.len()..][..part.len()], part);
        }
        self.call(Kind::Gather, None, part.len(), Some(root), timeout, |all| all.gather(part, whole, root))
    }

    /// Gives each rank its `part` of `whole`, which rank `root` alone passes.
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    pub fn scatter(
        &self,
        whole: Option<&[u8]>,
        part: &mut [u8],
        root: usize,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        self.check_whole(whole.map(<[u8]>::len), part.len(), root)?;
        self.call(Kind::Scatter, None, part.len(), Some(root), timeout, |all| all.scatter(whole, part, root))
    }

    /// Sends each rank its part of `from`, and receives one of each rank in `to`, all of one length.
    ///
    /// # Errors
    /// InvalidArgument unless both have as many bytes, in equal parts; the error that ends the group.
    pub fn all_to_all(&self, from: &[u8], to: &mut [u8], timeout: Option<Duration>) -> Result<(), Error> {
        let part = from.len() / self.size();
        self.check_parts(from.len(), part)?;
        self.check_parts(to.len(), part)?;
        self.call(Kind::AllToAll, None, part, None, timeout, |all| all.all_to_all(from, to))
    }

    /// [`all_to_all`](Self::all_to_all) with parts of any length: `given` are their places in `from`, `wanted` those in `to`, by rank.
    ///
    /// # Errors
    /// InvalidArgument if a place is out of bounds, or another rank gives more or less than is wanted, which ends the group; the error
    /// that ends the group.
    pub fn all_to_all_uneven(
        &self,
        from: &[u8],
        given: &[Range<usize>],
        to: &mut [u8],
        wanted: &[Range<usize>],
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let fit = |parts: &[Range<usize>], len: usize| {
            parts.len() == self.size() && parts.iter().all(|part| part.start <= part.end && part.end <= len)
        };
        let own = self.rank();
        if !fit(given, from.len()) || !fit(wanted, to.len()) || given[own].len() != wanted[own].len() {
            let reason =
                "an all_to_all has a part for each rank, within its memory, and gives itself as much as it wants";
            return Err(Error::invalid(reason));
        }
        // Ranks may give different numbers of bytes, so they are not compared.
        let (began, call) =
            (Instant::now(), Call { kind: Kind::AllToAllUneven, arithmetic: None, bytes: 0, root: None });
        self.run(&call, deadline(timeout), |all| all.all_to_all_uneven(from, to, (given, wanted)))?;
        self.counters.collective(Kind::AllToAllUneven, from.len(), began.elapsed());
        Ok(())
    }

    /// Sends a message to a rank, which receives it under the same `tag`. Messages of one tag arrive in order. A message to this rank
    /// itself is copied at once.
    ///
    /// # Errors
    /// InvalidArgument if there is no such rank; the error that has ended the group.
    pub fn send(&self, data: impl AsRef<[u8]> + Send + 'static, to: usize, tag: i64) -> Result<Message, Error> {
        let bytes = data.as_ref().len();
        let message = self.post.send(Box::new(data), to, tag)?;
        self.counters.send(bytes);
        Ok(message)
    }

    /// Receives a message of a tag, from one rank or any, into memory of exactly its size. It waits behind messages of other tags that
    /// nobody receives once these exceed 1 GiB together.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn recv(
        &self,
        mut into: impl AsMut<[u8]> + Send + 'static,
        from: Option<usize>,
        tag: i64,
    ) -> Result<Message, Error> {
        let bytes = into.as_mut().len();
        let message = self.post.recv(Box::new(into), from, tag)?;
        self.counters.recv(bytes);
        Ok(message)
    }

    fn call(
        &self,
        kind: Kind,
        arithmetic: Option<(DType, ReduceOp)>,
        bytes: usize,
        root: Option<usize>,
        timeout: Option<Duration>,
        run: impl FnOnce(&mut Collectives) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Some(root) = root.filter(|root| *root >= self.size()) {
            return Err(Error::invalid(format!("there is no rank {root} in a group of {}", self.size())));
        }
        let began = Instant::now();
        self.run(&Call { kind, arithmetic, bytes, root }, deadline(timeout), run)?;
        self.counters.collective(kind, bytes, began.elapsed());
        Ok(())
    }

    fn run(
        &self,
        call: &Call,
        until: Option<Instant>,
        run: impl FnOnce(&mut Collectives) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.members.check()?;
        let mut collectives = self.lock_collectives(until)?;
        let _in_progress = self.counters.begin(call.kind);
        collectives.begin(call, until)?;
        run(&mut collectives)
    }

    /// Waits until no other thread is in a collective.
    fn lock_collectives(&self, until: Option<Instant>) -> Result<MutexGuard<'_, Collectives>, Error> {
        loop {
            match self.collectives.try_lock() {
                Ok(collectives) => return Ok(collectives),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if until.is_some_and(|until| until <= Instant::now()) => {
                    let reason = "the call has Timed out waiting for a collective that another thread has called";
                    // Other ranks may already be in this call, and the next collective would meet them there.
                    return Err(self.members.fail(Error::TimedOut { reason: reason.into() }));
                }
                Err(TryLockError::WouldBlock) => {
                    self.members.check_interrupt()?;
                    thread::sleep(GROUP_LOCK_LOOK);
                }
            }
        }
    }

    /// The reduction of `bytes` bytes of such elements, and the size of one element.
    fn arithmetic(&self, bytes: usize, dtype: DType, op: ReduceOp) -> Result<(Reduction, usize), Error> {
        let (reduction, element) = (Reduction::new(dtype, op, self.size())?, dtype.element_bits() as usize / 8);
        if !bytes.is_multiple_of(element) {
            return Err(Error::invalid(format!("{bytes} bytes are no whole elements of type {dtype}")));
        }
        Ok((reduction, element))
    }

    fn check_parts(&self, whole: usize, part: usize) -> Result<(), Error> {
        if Some(whole) == part.checked_mul(self.size()) {
            return Ok(());
        }
        let reason = format!("{whole} bytes are not a part of {part} bytes for each of {} ranks", self.size());
        Err(Error::invalid(reason))
    }

    fn check_whole(&self, whole: Option<usize>, part: usize, root: usize) -> Result<(), Error> {
        match whole {
            Some(whole) if self.rank() == root => self.check_parts(whole, part),
            None if self.rank() != root => Ok(()),
            _ => Err(Error::invalid(format!("rank {root}, and no other, has the tensors of all ranks"))),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.members.is_forked() {
            return;
        }
        self.counters.close();
        // Closed first: nothing may be sent once this rank is known to have left.
        self.post.close(&Error::invalid("this rank has left the group"));
        self.members.leave();
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("rank", &self.rank()).field("size", &self.size()).finish_non_exhaustive()
    }
}

fn join_error(error: JoinError) -> Error {
    match error {
        JoinError::Crowded(_) => Error::invalid(error.to_string()),
        JoinError::System(error) => Error::unavailable("memory of a group", error.to_string()),
        _ => Error::unavailable("the group", error.to_string()),
    }
}
