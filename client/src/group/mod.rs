//! Groups: processes that compute with each other's tensors, by collectives and messages, as those of MPI and `torch.distributed` do.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use sealane::{DType, Group, ReduceOp, Store};
//!
//! # fn example(store: &dyn Store, rank: usize, size: usize, gradients: &mut [u8]) -> Result<(), sealane::Error> {
//! // The ranks meet by a store that they share. Nothing else is needed: no daemon, and no endpoint map.
//! let group = Group::new(store, rank, size, Duration::from_secs(60))?;
//! group.all_reduce(gradients, DType::F32, ReduceOp::Sum, Some(Duration::from_secs(60)))?;
//! # Ok(())
//! # }
//! ```
//!
//! All ranks of a group are on one host, and are processes (or threads) of one user. Each writes memory of its own and reads that of the
//! others, where it copies and reduces tensors itself: see `sealane_transport::shm::group`.
//!
//! # Calls
//! A collective is called by all ranks, in the same order and with the same arguments; it blocks until this rank has its result. It needs
//! the thread of its caller, and no other. Tensors are contiguous bytes in host memory.
//!
//! # Failure
//! Each rank notices within some 20 ms if a process has ended that it waits for. Then, and when a call's time is over, or ranks disagree
//! about what they call, the group is over for all: each hears of the reason. Messages that end in time, or are refused, end no group.

mod call;
mod collectives;
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

use sealane_transport::{
    Error,
    shm::group::{Bootstrap, JoinError},
    tensor::DType,
};

use self::{
    call::{Call, Kind},
    mail::deadline,
    members::Members,
    message::Post,
    reduce::Reduction,
    rounds::Rounds,
};
pub use self::{message::Message, reduce::ReduceOp, store::Store};
use crate::{limits::GROUP_LOCK_LOOK, memory::ForkMark};

/// One rank of a group. Any thread may call it; collectives of several threads wait for each other, and must come in the same order on
/// all ranks all the same. Dropping it leaves the group, which ends it for ranks that still need this one.
pub struct Group {
    members: Arc<Members>,
    rounds: Mutex<Rounds>,
    post: Arc<Post>,
}

/// The calls of collectives: with a `timeout`, they end by [`Error::TimedOut`] when it has passed, and the group with them.
impl Group {
    /// Meets the other ranks of a group of `size`, which know each other by `store`; what they put there begins with `sealane/`. Each group
    /// needs a store of its own, or a prefix of its own in one.
    ///
    /// Memory: 1 MiB and 128 KiB for each rank, as far as they are used.
    ///
    /// # Errors
    /// Unimplemented if ranks are on different hosts, in different network namespaces, or of different users. Unavailable, naming a rank
    /// that does not come within `limit`, has another version, or goes meanwhile; or what this process is short of. As the store fails.
    pub fn new(store: &dyn Store, rank: usize, size: usize, limit: Duration) -> Result<Group, Error> {
        let began = Instant::now();
        let mark =
            ForkMark::new().map_err(|error| Error::unavailable("a page that forks are known by", error.to_string()))?;
        let seat = Bootstrap::new(rank, size).map_err(join_error)?;
        store.set(&format!("sealane/{rank}"), seat.address().as_bytes())?;
        let address = |rank: usize| store.get(&format!("sealane/{rank}"), limit.saturating_sub(began.elapsed()));
        let addresses = (0..size).map(address).collect::<Result<Vec<_>, _>>()?;
        let joined = seat.join(&addresses, limit.saturating_sub(began.elapsed())).map_err(join_error)?;
        let (members, slots, boxes) = Members::new(rank, joined, mark);
        let members = Arc::new(members);
        let rounds = Mutex::new(Rounds::new(members.clone(), slots));
        Ok(Group { rounds, post: Post::new(members.clone(), boxes), members })
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.members.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.members.size()
    }

    /// Why the group is over, if it is.
    pub fn error(&self) -> Option<Error> {
        self.members.check().err()
    }

    /// Ends the group for all ranks, also for calls that wait at this moment.
    pub fn abort(&self, reason: &str) {
        if !self.members.is_forked() {
            self.post.close(&self.members.fail(Error::unavailable("the group", format!("it was aborted: {reason}"))));
        }
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// As the group ends.
    pub fn barrier(&self, timeout: Option<Duration>) -> Result<(), Error> {
        self.call(Kind::Barrier, None, 0, None, timeout, Rounds::barrier)
    }

    /// Gives all ranks the `data` of one.
    ///
    /// # Errors
    /// InvalidArgument if there is no rank `root`; as the group ends.
    pub fn broadcast(&self, data: &mut [u8], root: usize, timeout: Option<Duration>) -> Result<(), Error> {
        self.call(Kind::Broadcast, None, data.len(), Some(root), timeout, |rounds| rounds.broadcast(data, root))
    }

    /// Reduces the `data` of all ranks, for all: each has the same bytes afterwards.
    ///
    /// # Errors
    /// InvalidArgument if such elements are not reduced so, or `data` has a part of one; as the group ends.
    pub fn all_reduce(
        &self,
        data: &mut [u8],
        dtype: DType,
        op: ReduceOp,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let (reduction, element) = arithmetic(data.len(), dtype, op)?;
        self.call(Kind::AllReduce, Some((dtype, op)), data.len(), None, timeout, |rounds| {
            rounds.all_reduce(data, element, &reduction, None)
        })
    }

    /// The same for rank `root` alone; the others' data stays as it is.
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
        let (reduction, element) = arithmetic(data.len(), dtype, op)?;
        self.call(Kind::Reduce, Some((dtype, op)), data.len(), Some(root), timeout, |rounds| {
            rounds.all_reduce(data, element, &reduction, Some(root))
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
        let (reduction, _) = arithmetic(to.len(), dtype, op)?;
        self.check_parts(from.len(), to.len())?;
        self.call(Kind::ReduceScatter, Some((dtype, op)), to.len(), None, timeout, |rounds| {
            rounds.reduce_scatter(from, to, &reduction)
        })
    }

    /// Gives all ranks the parts of all, in `whole`, where each has put its own at its place.
    ///
    /// # Errors
    /// InvalidArgument if `whole` has no equal parts; as the group ends.
    pub fn all_gather(&self, whole: &mut [u8], timeout: Option<Duration>) -> Result<(), Error> {
        let part = whole.len() / self.size();
        self.check_parts(whole.len(), part)?;
        self.call(Kind::AllGather, None, part, None, timeout, |rounds| rounds.all_gather(whole))
    }

    /// Gives rank `root` the parts of all, in `whole`, which it alone has.
    ///
    /// # Errors
    /// InvalidArgument if `whole` has no room for as many parts, is missing, or is given by another rank; if there is no such rank; as the
    /// group ends.
    pub fn gather(
        &self,
        part: &[u8],
        mut whole: Option<&mut [u8]>,
        root: usize,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        self.check_whole(whole.as_ref().map(|whole| whole.len()), part.len(), root)?;
        if let Some(whole) = &mut whole {
            whole[root * part.len()..][..part.len()].copy_from_slice(part);
        }
        self.call(Kind::Gather, None, part.len(), Some(root), timeout, |rounds| rounds.gather(part, whole))
    }

    /// Gives each rank its `part` of `whole`, which rank `root` alone has.
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
        self.call(Kind::Scatter, None, part.len(), Some(root), timeout, |rounds| rounds.scatter(whole, part, root))
    }

    /// Gives each rank its part of `from`, and gets one of each rank in `to`, all of one length.
    ///
    /// # Errors
    /// InvalidArgument unless both have as many bytes, in equal parts; as the group ends.
    pub fn all_to_all(&self, from: &[u8], to: &mut [u8], timeout: Option<Duration>) -> Result<(), Error> {
        let part = from.len() / self.size();
        self.check_parts(from.len(), part)?;
        self.check_parts(to.len(), part)?;
        self.call(Kind::AllToAll, None, part, None, timeout, |rounds| rounds.all_to_all(from, to))
    }

    /// The same with parts of any length, of which `given` are places in `from`, and `wanted` in `to`, by rank.
    ///
    /// # Errors
    /// InvalidArgument if a place is not there, or another rank gives more or less than is wanted, in which case the group is over; as the
    /// group ends.
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
        self.call(Kind::AllToAllUneven, None, 0, None, timeout, |rounds| {
            rounds.all_to_all_uneven(from, to, (given, wanted))
        })
    }

    /// Sends a message to a rank, which receives it by the same `tag`. Messages of one tag arrive in order. One to this rank itself is copied
    /// at once.
    ///
    /// # Errors
    /// InvalidArgument if there is no such rank; as the group has ended.
    pub fn send(&self, data: impl AsRef<[u8]> + Send + 'static, to: usize, tag: i64) -> Result<Message, Error> {
        self.post.send(Box::new(data), to, tag)
    }

    /// Receives a message of a tag, from a rank or from any, into memory of exactly its size. It waits behind messages of other tags that
    /// nobody receives once these have more than 1 GiB together.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn recv(
        &self,
        into: impl AsMut<[u8]> + Send + 'static,
        from: Option<usize>,
        tag: i64,
    ) -> Result<Message, Error> {
        self.post.recv(Box::new(into), from, tag)
    }

    fn call(
        &self,
        kind: Kind,
        arithmetic: Option<(DType, ReduceOp)>,
        bytes: usize,
        root: Option<usize>,
        timeout: Option<Duration>,
        run: impl FnOnce(&mut Rounds) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Some(root) = root.filter(|root| *root >= self.size()) {
            return Err(Error::invalid(format!("there is no rank {root} in a group of {}", self.size())));
        }
        self.members.check()?;
        let until = deadline(timeout);
        let mut rounds = self.lock_rounds(until)?;
        rounds.begin(&Call { kind, arithmetic, bytes, root }, until)?;
        run(&mut rounds)
    }

    /// Waits until no other thread is in a collective.
    fn lock_rounds(&self, until: Option<Instant>) -> Result<MutexGuard<'_, Rounds>, Error> {
        loop {
            match self.rounds.try_lock() {
                Ok(rounds) => return Ok(rounds),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if until.is_some_and(|until| until <= Instant::now()) => {
                    let reason = "the call has Timed out waiting for a collective that another thread has called";
                    // The other ranks may be in this call: the next one would meet them in it.
                    return Err(self.members.fail(Error::TimedOut { reason: reason.into() }));
                }
                Err(TryLockError::WouldBlock) => thread::sleep(GROUP_LOCK_LOOK),
            }
        }
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
        // Nothing more is sent once it is said that this rank has left.
        self.post.close(&Error::invalid("this rank has left the group"));
        self.members.leave();
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("rank", &self.rank()).field("size", &self.size()).finish_non_exhaustive()
    }
}

/// What reduces so many bytes of elements, and the size of one.
fn arithmetic(bytes: usize, dtype: DType, op: ReduceOp) -> Result<(Reduction, usize), Error> {
    let (reduction, element) = (Reduction::new(dtype, op)?, dtype.element_bits() as usize / 8);
    if !bytes.is_multiple_of(element) {
        return Err(Error::invalid(format!("{bytes} bytes are no whole elements of type {dtype}")));
    }
    Ok((reduction, element))
}

fn join_error(error: JoinError) -> Error {
    match error {
        JoinError::Elsewhere { .. } => Error::Unimplemented { reason: error.to_string().into() },
        JoinError::Size { .. } => Error::invalid(error.to_string()),
        JoinError::System(error) => Error::unavailable("memory of a group", error.to_string()),
        _ => Error::unavailable("the group", error.to_string()),
    }
}
