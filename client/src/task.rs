//! A task: the identity under which a training process sends and receives, with the engine in the daemon or in this process.

use std::{
    ops::Range,
    os::fd::OwnedFd,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use sealane_runtime::{Buffer, MemoryKind};
use sealane_transport::{
    Error, Keys, Payload, PullOptions, RecvOptions, SendOptions, Slicing, Tensor, Unreceived, named_rows::NamedRowsBuf,
};

use crate::{
    Attach,
    acceptor::{AcceptOptions, Acceptor},
    attached_acceptor::AttachedAcceptor,
    attached_plan::AttachedPlan,
    attachment::{Attachment, Begun, Lying, Purpose, RingPlace, RingReader, RingWriter, Streamed, To, With, together},
    in_process::InProcess,
    memory::{OwnTable, TableState},
    plan::{Plan, Pulling, PullingMany, Pulls},
    publishing::Publishing,
    pushing::Pushing,
    sliced_plan::{Puller, SliceVersions, SlicedPlan},
    under_way::{Handle, Handles, Receiving, Sending},
    waiter::Waiter,
};

/// A task of this process, usable from any thread. Cheap to clone; when the last clone is dropped, the process detaches, and
/// calls still in progress end with Unavailable.
///
/// ```no_run
/// use sealane::{Task, Tensor};
///
/// let task = Task::attach("worker0.train:2222")?;
/// let weights = task.recv("ps0.train:2222", 7, "dense/kernel").wait()?;
/// let gradient = Tensor::from_elements(&[3], &[0.1_f32, 0.2, 0.3])?;
/// task.send("ps0.train:2222", 7, "dense/kernel:gradient", gradient).wait()?;
/// # Ok::<(), sealane::Error>(())
/// ```
#[derive(Clone)]
pub struct Task(Engine);

/// The direction of a tensor, as a task sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the task to its peer.
    Sent,
    /// From the peer to the task.
    Received,
}

/// Lets [`Bytes`] own a shared buffer.
struct Shared(Arc<Buffer>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The payload as [`Bytes`], without a copy.
pub(crate) fn bytes_of(payload: Payload) -> Bytes {
    match payload {
        Payload::Owned(buffer) => Bytes::from_owner(buffer),
        Payload::Shared(buffer) => Bytes::from_owner(Shared(buffer)),
        Payload::Bytes(bytes) => bytes,
    }
}

#[derive(Clone)]
enum Engine {
    Daemon(Arc<Attached>),
    #[cfg_attr(not(feature = "embedded"), expect(dead_code, reason = "nothing makes one"))]
    InProcess(Arc<dyn InProcess>),
}

/// Says goodbye when the last clone is gone. Calls and the driver hold the attachment itself.
struct Attached(Arc<Attachment>, Goodbye);

/// Whether dropping the holder closes the attachment.
#[derive(PartialEq)]
enum Goodbye {
    Said,
    /// Another `Task` of the attachment closes it.
    Left,
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.1 == Goodbye::Said {
            self.0.close();
        }
    }
}

type Opener = Box<dyn FnOnce(&str, Option<u64>) -> Result<(u64, OwnedFd), Error>>;

impl Task {
    pub(crate) fn of(attachment: Arc<Attachment>) -> Task {
        Task(Engine::Daemon(Arc::new(Attached(attachment, Goodbye::Said))))
    }

    #[cfg(feature = "embedded")]
    pub(crate) fn in_process(task: Arc<dyn InProcess>) -> Task {
        Task(Engine::InProcess(task))
    }

    /// The same task for objects that belong to it: they do not keep the process attached.
    pub(crate) fn for_its_own(&self) -> Task {
        match &self.0 {
            Engine::Daemon(attached) => Task(Engine::Daemon(Arc::new(Attached(attached.0.clone(), Goodbye::Left)))),
            Engine::InProcess(task) => Task(Engine::InProcess(task.clone())),
        }
    }

    /// True if both are the same task of one attachment, or of one engine.
    pub(crate) fn is(&self, other: &Task) -> bool {
        match (&self.0, &other.0) {
            (Engine::Daemon(one), Engine::Daemon(other)) => Arc::ptr_eq(&one.0, &other.0),
            // Handles of one embedded task share its name.
            (Engine::InProcess(one), Engine::InProcess(other)) => std::ptr::eq(one.name(), other.name()),
            _ => false,
        }
    }

    /// Attaches to the host's daemon at the [default socket](crate::default_socket). See [`Attach`] for options.
    ///
    /// After a daemon died, the first call that finds the next one attaches to it; calls that were in progress end with
    /// Unavailable. A daemon that drains finishes outstanding work; calls made in the meantime wait in their thread for the
    /// next one ([`Attach::restart_timeout`]), and pulls and accepts that the drain ended are repeated automatically.
    ///
    /// # Errors
    /// As [`Attach::attach`] says.
    pub fn attach(task: &str) -> Result<Task, Error> {
        Attach::new(task).attach()
    }

    /// A [`Waiter`], with which a thread blocks on futures of this task's calls, for a limited time.
    pub fn waiter(&self) -> Waiter {
        match &self.0 {
            Engine::Daemon(attached) => Waiter::of(&attached.0),
            Engine::InProcess(_) => Waiter::learning(),
        }
    }

    /// The attachment, if the engine is a daemon.
    pub(crate) fn attachment(&self) -> Option<&Arc<Attachment>> {
        match &self.0 {
            Engine::Daemon(attached) => Some(&attached.0),
            Engine::InProcess(_) => None,
        }
    }

    /// The task's name.
    pub fn name(&self) -> &str {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.task(),
            Engine::InProcess(task) => task.name(),
        }
    }

    /// Memory that a tensor can be sent from and received into without a copy: from the arena that is shared with the daemon,
    /// aligned to 64 bytes, or from the heap with an embedded engine. Its contents are undefined.
    ///
    /// ```no_run
    /// # use sealane::{DType, Task, Tensor, TensorMeta};
    /// # let task = Task::attach("worker0.train:2222")?;
    /// let mut memory = task.alloc(4 * 1024)?;
    /// memory.fill(0);
    /// let tensor = Tensor::new(TensorMeta::new(DType::F32, &[1024])?, memory)?;
    /// let memory = task.recv_into("ps0.train:2222", 7, "bias", tensor.into_buffer()).wait()?.into_buffer();
    /// # Ok::<(), sealane::Error>(())
    /// ```
    ///
    /// # Errors
    /// ResourceExhausted if the arena has no room; see [`Attach::arena_bytes`].
    pub fn alloc(&self, bytes: usize) -> Result<Buffer, Error> {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.allocate(bytes),
            Engine::InProcess(_) => Ok(Buffer::from_vec(vec![0; bytes])),
        }
    }

    /// Drives this task's futures on a tokio runtime for as long as it exists: futures awaited there then wake no other thread in between.
    /// Without it, a thread of Sealane's drives all futures. One call is enough, also after a restart of the daemon; another runtime may be
    /// given when the first is gone. Not needed with an embedded engine.
    ///
    /// The runtime needs its I/O and time drivers (`enable_all`), and must not be blocked: while it is, or is not run, futures of other
    /// executors may wait for up to a second. [`Streams::connector`](crate::Streams::connector) and
    /// [`StreamListener::incoming`](crate::StreamListener::incoming) do this for their runtime themselves.
    #[cfg(feature = "tokio")]
    pub fn drive_on(&self, runtime: &tokio::runtime::Handle) {
        if let Engine::Daemon(attached) = &self.0 {
            attached.0.drive_on(runtime);
        }
    }

    /// True while a runtime waits for the daemon's answers; for tests.
    #[cfg(all(feature = "tokio", feature = "fuzzing"))]
    pub fn is_heard_in_runtime(&self) -> bool {
        matches!(&self.0, Engine::Daemon(attached) if attached.0.is_heard_in_runtime())
    }

    /// Ready unless the daemon is being restarted; then the waker is woken once calls need not wait any more.
    pub(crate) fn poll_daemon(&self, context: &Context<'_>) -> Poll<()> {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.poll_daemon(context.waker()),
            Engine::InProcess(_) => Poll::Ready(()),
        }
    }

    /// A ring to a peer, over a direct lane, if there is one; so many bytes are to be sent now.
    pub(crate) fn ring_to(&self, peer: &str, bytes: usize) -> Option<RingWriter> {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.ring_to(peer, bytes),
            Engine::InProcess(_) => None,
        }
    }

    /// True if streams with this peer may use memory shared with it.
    pub(crate) fn is_neighbour(&self, peer: &str) -> bool {
        matches!(&self.0, Engine::Daemon(attached) if attached.0.is_neighbour(peer))
    }

    /// Notes that bytes of a stream came through the daemon.
    pub(crate) fn came_by_daemon(&self, peer: &str, bytes: usize) {
        if let Engine::Daemon(attached) = &self.0 {
            attached.0.came_by_daemon(peer, bytes);
        }
    }

    /// The reading end of a ring that the peer has begun to use, if it exists.
    pub(crate) fn ring_from(&self, peer: &str, place: RingPlace) -> Option<RingReader> {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.ring_from(peer, place),
            Engine::InProcess(_) => None,
        }
    }

    /// Counts the stream bytes exchanged with a peer past the daemon, which are reported to it.
    pub(crate) fn streamed(&self, peer: &str) -> Arc<Streamed> {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.streamed(peer),
            Engine::InProcess(_) => Arc::default(),
        }
    }

    /// A function that blocks until it has a connection for a stream with a peer: a new one, or that of a number, which the peer has. It
    /// does not keep the task attached. PermissionDenied where streams with that peer go through the daemon; else it fails as a dial does.
    pub(crate) fn opener(&self) -> Opener {
        match &self.0 {
            Engine::Daemon(attached) => {
                let attachment = attached.0.clone();
                Box::new(move |peer, number| attachment.stream_connection(peer, number))
            }
            Engine::InProcess(task) => {
                let task = task.clone();
                Box::new(move |peer, number| task.stream_connection(peer, number))
            }
        }
    }

    /// # Errors
    /// InvalidArgument in a forked child of the process that has attached.
    pub(crate) fn check_fork(&self) -> Result<(), Error> {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.check_fork(),
            Engine::InProcess(_) => Ok(()),
        }
    }

    /// Restarts of the daemon so far, for [`ended_by_restart`](Self::ended_by_restart).
    pub(crate) fn restarts(&self) -> u64 {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.restarts(),
            Engine::InProcess(_) => 0,
        }
    }

    /// True if the daemon is being restarted, or was since `restarts` was read: calls ended by that may be made again.
    pub(crate) fn ended_by_restart(&self, restarts: u64) -> bool {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.ended_by_restart(restarts),
            Engine::InProcess(_) => false,
        }
    }

    /// True if the engine is a daemon.
    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.0, Engine::Daemon(_))
    }

    /// The address range of the shared memory of [`alloc`](Self::alloc), for allocators that keep their own records; `None`
    /// with an embedded engine. A task that attaches again, to a new daemon, has a new arena.
    ///
    /// # Errors
    /// Unavailable if the daemon is gone.
    pub fn arena_range(&self) -> Result<Option<Range<*const u8>>, Error> {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.arena_range().map(Some),
            Engine::InProcess(_) => Ok(None),
        }
    }

    /// Bytes of one shard's receive area, of an embedded engine too; 0 while there is no daemon.
    pub(crate) fn area_bytes(&self) -> u64 {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.area_bytes().unwrap_or_default(),
            Engine::InProcess(task) => task.receive_bytes() as u64,
        }
    }

    /// Checks whether this many calls may be started now. Calls that wait in this process ([`Attach::backlog`]) may exceed its limits; the
    /// calls would report that one by one, this reports it before anything is handed over. It only checks a flag while nothing waits.
    /// If needed, `bytes` is called for the number of bytes that would have to wait; it gets the arena's address range, whose bytes do not
    /// count. A limit that is reached in between is reported by the calls.
    ///
    /// # Errors
    /// ResourceExhausted with the limit's name, Unavailable if there is no daemon. None if calls wait in their threads, or with an
    /// embedded engine.
    pub fn room_for(
        &self,
        calls: usize,
        timeout: Option<Duration>,
        bytes: impl FnOnce(Range<*const u8>) -> u64,
    ) -> Result<(), Error> {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.room_for(calls, timeout, bytes),
            Engine::InProcess(_) => Ok(()),
        }
    }

    /// Sends a tensor to `to`, which may request it before or after. The returned future (or [`wait`](Sending::wait)) completes
    /// when the consumer has the tensor; if it is dropped, the send continues unobserved.
    ///
    /// Up to 512 bytes travel in the ring. Larger tensors are sent in place if they are in memory of [`alloc`](Self::alloc);
    /// others are copied there first.
    pub fn send(&self, to: &str, step: i64, key: &str, tensor: Tensor) -> Sending {
        self.send_with(to, step, key, tensor, SendOptions::default())
    }

    /// [`send`](Self::send) with options.
    pub fn send_with(&self, to: &str, step: i64, key: &str, tensor: Tensor, options: SendOptions) -> Sending {
        match &self.0 {
            Engine::Daemon(attached) => {
                let sent = attached.0.send(To { peer: to, purpose: Purpose::Send { step } }, key, tensor, &options);
                Sending::of(&attached.0, sent)
            }
            Engine::InProcess(task) => task.send(to, step, key, tensor, options).into(),
        }
    }

    /// [`send`](Self::send) for many tensors, at a fraction of the cost each: one lock and one doorbell for all.
    ///
    /// One shard of a daemon takes 16,384 calls of a task at a time. A list that would exceed this is refused as a whole: each of its sends
    /// ends with ResourceExhausted, and no tensor is sent.
    pub fn send_all<K: AsRef<str>>(
        &self,
        to: &str,
        step: i64,
        tensors: impl IntoIterator<Item = (K, Tensor)>,
    ) -> Vec<Sending> {
        self.send_all_with(to, step, tensors, SendOptions::default())
    }

    /// [`send_all`](Self::send_all) with options.
    pub fn send_all_with<K: AsRef<str>>(
        &self,
        to: &str,
        step: i64,
        tensors: impl IntoIterator<Item = (K, Tensor)>,
        options: SendOptions,
    ) -> Vec<Sending> {
        match &self.0 {
            Engine::Daemon(attached) => {
                let tensors = tensors.into_iter();
                let mut sendings = Handles::new(&attached.0, tensors.size_hint().0);
                let to = To { peer: to, purpose: Purpose::Send { step } };
                attached.0.send_all(to, tensors, &options, |sent| sendings.add_begun(sent));
                sendings.into_vec()
            }
            Engine::InProcess(task) => {
                let send = |(key, tensor): (K, Tensor)| {
                    task.send(to, step, key.as_ref(), tensor, SendOptions { timeout: options.timeout }).into()
                };
                // The iterator is the caller's code, and runs before anything is sent.
                let tensors: Vec<(K, Tensor)> = tensors.into_iter().collect();
                tensors.into_iter().map(send).collect()
            }
        }
    }

    /// Requests a tensor from `from`, which may be sent before or after. The returned future (or [`wait`](Receiving::wait))
    /// completes with the tensor or an error; dropping it cancels the recv.
    pub fn recv(&self, from: &str, step: i64, key: &str) -> Receiving {
        self.recv_with(from, step, key, RecvOptions::default())
    }

    /// [`recv`](Self::recv) into the caller's own memory, which is returned with the outcome: in the tensor, or in the error.
    /// Memory of [`alloc`](Self::alloc) is written in place, other memory by a copy. A tensor that needs more memory is refused with
    /// InvalidArgument and stays for the next recv; so does one of another type or shape with [`Destination::of`](crate::Destination::of).
    pub fn recv_into(&self, from: &str, step: i64, key: &str, destination: Buffer) -> Receiving {
        self.recv_with(from, step, key, RecvOptions { destination: Some(destination.into()), ..RecvOptions::default() })
    }

    /// [`recv`](Self::recv) with options.
    pub fn recv_with(&self, from: &str, step: i64, key: &str, options: RecvOptions) -> Receiving {
        match &self.0 {
            Engine::Daemon(attached) => {
                let asked = attached.0.recv(With { peer: from, step }, key, options);
                Receiving::of(&attached.0, asked)
            }
            Engine::InProcess(task) => task.recv(from, step, key, options).into(),
        }
    }

    /// [`recv_with`](Self::recv_with) for many tensors, at a fraction of the cost each: one lock and one doorbell for all.
    /// Tensors that the peer has not sent ahead within 1 ms are requested by the daemon together: in few messages, and without waiting
    /// for the window. A list that is too long is refused as a whole, as by [`send_all`](Self::send_all).
    ///
    /// ```no_run
    /// # use sealane::{RecvOptions, Task};
    /// # let task = Task::attach("worker0.train:2222")?;
    /// let keys = ["dense/kernel", "dense/bias"];
    /// for receiving in task.recv_all("ps0.train:2222", 7, keys.map(|key| (key, RecvOptions::default()))) {
    ///     println!("{:?}", receiving.wait()?.shape());
    /// }
    /// # Ok::<(), sealane::Error>(())
    /// ```
    pub fn recv_all<K: AsRef<str>>(
        &self,
        from: &str,
        step: i64,
        wanted: impl IntoIterator<Item = (K, RecvOptions)>,
    ) -> Vec<Receiving> {
        // The iterator is the caller's code, and runs before anything is locked.
        let wanted: Vec<(K, RecvOptions)> = wanted.into_iter().collect();
        match &self.0 {
            Engine::Daemon(attached) => {
                let mut receivings = Handles::new(&attached.0, wanted.len());
                attached.0.recv_all(With { peer: from, step }, wanted, |asked| receivings.add_begun(asked));
                receivings.into_vec()
            }
            Engine::InProcess(task) => {
                let (keys, options): (Vec<K>, Vec<RecvOptions>) = wanted.into_iter().unzip();
                let calls = task.recv_all(from, step, &mut keys.iter().map(K::as_ref).zip(options));
                calls.into_iter().map(Receiving::from).collect()
            }
        }
    }

    /// Publishes a tensor: any peer may [pull](Self::pull) it, as often as it likes, until a newer one replaces it, it is
    /// [withdrawn](Self::withdraw), or this task ends. The returned future (or [`wait`](Publishing::wait)) completes when all
    /// peers can see it; if it is dropped, the publication continues. `version` is chosen by the caller, such as the step
    /// number; it may not decrease.
    ///
    /// Up to 512 bytes travel in the ring and are kept by the daemon. Larger tensors stay in place if they are in memory of
    /// [`alloc`](Self::alloc); others are copied there first. That memory is free again once a newer version has replaced it
    /// and nobody reads it any more. When the daemon is restarted, or another one takes over, the newest version of each key is
    /// published again automatically, even if its publication ended with Unavailable when the daemon was lost.
    pub fn publish(&self, key: &str, version: i64, tensor: Tensor) -> Publishing {
        self.publish_many(version, [(key, tensor)])
    }

    /// [`publish`](Self::publish) for many tensors of one version, at a fraction of the cost each. A pull finds either all or none of
    /// the new tensors that one shard serves (for an attached task, in groups of 4,096).
    pub fn publish_many<K: AsRef<str>>(
        &self,
        version: i64,
        tensors: impl IntoIterator<Item = (K, Tensor)>,
    ) -> Publishing {
        // The iterator is the caller's code, and runs before anything is locked.
        self.publish_lying(version, tensors.into_iter().collect(), Lying::Anywhere)
    }

    /// [`publish_many`](Self::publish_many) for tensors that are written in place. Unavailable if they lie in an earlier daemon's arena.
    pub(crate) fn publish_in_place(&self, version: i64, tensors: Vec<(String, Tensor)>) -> Publishing {
        self.publish_lying(version, tensors, Lying::InArena)
    }

    fn publish_lying<K: AsRef<str>>(&self, version: i64, tensors: Vec<(K, Tensor)>, lying: Lying) -> Publishing {
        match &self.0 {
            Engine::Daemon(attached) => {
                let mut tellings = Handles::new(&attached.0, tensors.len());
                attached.0.publish_all(version, (tensors, lying), |told| tellings.add(told));
                Publishing::of(tellings.into_vec())
            }
            Engine::InProcess(task) => {
                let owned = tensors.into_iter().map(|(key, tensor)| (key.as_ref().to_owned(), tensor));
                Publishing::of(vec![task.publish_many(version, owned.collect()).into()])
            }
        }
    }

    /// Registers a table that this task writes in place: it moves when another daemon takes over.
    pub(crate) fn register(&self, table: &Arc<OwnTable>) {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.register(table),
            Engine::InProcess(_) => {}
        }
    }

    /// Makes sure that a registered table, whose state the caller holds, lies where the daemon reads it.
    ///
    /// # Errors
    /// ResourceExhausted if there is no room, Unavailable if there is no daemon.
    pub(crate) fn settle(&self, table: &OwnTable, held: &mut TableState) -> Result<(), Error> {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.settle(table, held),
            Engine::InProcess(_) => Ok(()),
        }
    }

    /// [Publishes](Self::publish) this task's slices of a tensor cut by `slicing`, each under its own key. `tensor` is the whole tensor, or
    /// just this task's rows, contiguous; nothing is copied if it is in memory of [`alloc`](Self::alloc). A
    /// [sliced plan](Self::sliced_plan) with the same slicing gathers the slices of all owners.
    ///
    /// A tensor that is cut differently is another tensor: withdraw the [former slices](Self::withdraw_slices) when the owners change.
    ///
    /// # Errors
    /// InvalidArgument if the slicing gives this task no rows, or does not fit the tensor. The future reports all other errors.
    pub fn publish_slices(
        &self,
        key: &str,
        version: i64,
        slicing: &Slicing,
        tensor: Tensor,
    ) -> Result<Publishing, Error> {
        if let MemoryKind::Device(_) = tensor.memory() {
            return Err(Error::Unimplemented {
                reason: "slices are cut from host memory: copy the tensor there first".into(),
            });
        }
        let cut = slicing.cut(self.name(), tensor.meta())?;
        let bytes = bytes_of(tensor.into_parts().1);
        let slice =
            |(index, range)| Ok((slicing.key(key, index), Tensor::new(slicing.meta_of(index), bytes.slice(range))?));
        let slices = cut.into_iter().map(slice).collect::<Result<Vec<_>, Error>>()?;
        Ok(self.publish_many(version, slices))
    }

    /// Withdraws all of this task's slices of a tensor, even after an error.
    ///
    /// # Errors
    /// The first error of [`withdraw`](Self::withdraw).
    pub fn withdraw_slices(&self, key: &str, slicing: &Slicing) -> Result<(), Error> {
        let each = slicing.of_owner(self.name()).map(|index| self.withdraw(&slicing.key(key, index)));
        together(|| each.fold(Ok(()), Result::and))
    }

    /// Withdraws a published tensor; pulls of it wait for the next one. A table has [`Table::withdraw`](crate::Table::withdraw).
    ///
    /// Returns when the shards' rings have the order: a pull that another task asks for a moment later may still get the tensor.
    /// What this task publishes next is seen only after the withdrawal.
    ///
    /// # Errors
    /// ResourceExhausted if a shard accepts no more, Unavailable if the daemon or the engine is gone.
    pub fn withdraw(&self, key: &str) -> Result<(), Error> {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.withdraw(key),
            Engine::InProcess(task) => task.withdraw(key),
        }
    }

    /// Pulls a tensor that `from` publishes, at `min_version` or newer, and waits for it if necessary. To pull the same keys
    /// repeatedly, a [plan](Self::plan) is cheaper.
    ///
    /// ```no_run
    /// # use sealane::Task;
    /// # let task = Task::attach("worker0.train:2222")?;
    /// let pulled = task.pull("ps0.train:2222", "dense/kernel", 7).wait()?;
    /// println!("version {} of shape {:?}", pulled.version, pulled.tensor.shape());
    /// # Ok::<(), sealane::Error>(())
    /// ```
    pub fn pull(&self, from: &str, key: &str, min_version: i64) -> Pulling {
        Pulling::of(Keys::new([key]).map(|keys| self.pull_many(from, keys, min_version)))
    }

    /// Pulls many tensors together, each at `min_version` or newer. The outcomes are in the order of the keys.
    pub fn pull_many(&self, from: &str, keys: Keys, min_version: i64) -> PullingMany {
        self.pull_many_within(from, keys, min_version, None)
    }

    /// [`pull_many`](Self::pull_many) with a timeout: by default the daemon's or the engine's `request_timeout`.
    pub fn pull_many_within(&self, from: &str, keys: Keys, min_version: i64, timeout: Option<Duration>) -> PullingMany {
        self.pull_many_with(from, keys, min_version, PullOptions { timeout, ..PullOptions::default() })
    }

    /// [`pull_many`](Self::pull_many) with options.
    pub fn pull_many_with(&self, from: &str, keys: Keys, min_version: i64, options: PullOptions) -> PullingMany {
        begun(self.pulls(from, keys, false), min_version, options)
    }

    fn pulls(&self, from: &str, keys: Keys, views: bool) -> Box<dyn Pulls> {
        match &self.0 {
            Engine::Daemon(attached) if views => Box::new(AttachedPlan::new(&attached.0, from, keys).viewing()),
            Engine::Daemon(attached) => Box::new(AttachedPlan::new(&attached.0, from, keys)),
            Engine::InProcess(task) => task.plan(from, 0, keys),
        }
    }

    /// Asks an owner for rows of its tables, with one request for each of `wanted`; `of` is ((owner, stripe), minimal version). The first
    /// request goes to the shard `stripe` places after the one that serves the pair, each further request to the next shard.
    pub(crate) fn ask_rows(
        &self,
        of: ((&str, usize), i64),
        options: PullOptions,
        wanted: Vec<NamedRowsBuf>,
    ) -> Vec<Receiving> {
        match &self.0 {
            Engine::Daemon(attached) => {
                let mut receivings = Handles::new(&attached.0, wanted.len());
                let each = |asked: Result<u32, Error>| receivings.add(asked.map_err(Unreceived::from));
                attached.0.pull_rows((of, false), options, &wanted, each);
                receivings.into_vec()
            }
            Engine::InProcess(task) => {
                let (from, min_version) = of;
                task.pull_rows(from, min_version, options, wanted).into_iter().map(Receiving::from).collect()
            }
        }
    }

    /// Asks an owner where its tables lie, if this process may read them there; `of` is (owner, minimal version). `None` with an
    /// embedded engine.
    pub(crate) fn ask_places(&self, of: (&str, i64), options: PullOptions, tables: NamedRowsBuf) -> Option<Receiving> {
        let attachment = self.attachment()?;
        let mut receiving = None;
        let (owner, min_version) = of;
        attachment.pull_rows((((owner, 0), min_version), true), options, &[tables], |asked| {
            receiving = Some(Receiving::of(attachment, asked.map(Begun::AtDaemon).map_err(Unreceived::from)));
        });
        receiving
    }

    /// A plan: keys that `from` publishes, pulled together. The keys are sent once; after that a pull is one small message, and
    /// tensors are received into the plan's own memory, the same each time.
    pub fn plan(&self, from: &str, keys: Keys) -> Plan {
        Plan::of(self.pulls(from, keys, false))
    }

    /// [`pull`](Self::pull) without a copy: a tensor of 64 KiB or more, published by a task that a process of the same user has attached to
    /// the same daemon, is viewed in that process's memory. Its bytes are read-only ([`Payload::Bytes`]).
    ///
    /// The publisher's memory is not free again until the view is dropped, even if a newer version is published: drop views soon, and
    /// give publishers an arena with room for what is viewed. A view stays readable when its publisher goes, and when this task is
    /// dropped, which copies what is still viewed. It relies on the publisher not to change what it has published.
    ///
    /// All else is copied, as by `pull`: tensors that are small, come from another host, or were published by an embedded engine; and every
    /// tensor if `daemon.views` is off, the publisher is another user's, 4,096 views are held, or the arenas of 64 publishers are mapped.
    /// The daemon counts both (`views_refused`, `tensors_viewed`). The first view of a publisher asks the daemon for its memory, which
    /// may block for a second at most.
    pub fn view(&self, from: &str, key: &str, min_version: i64) -> Pulling {
        Pulling::of(Keys::new([key]).map(|keys| self.view_many(from, keys, min_version, None)))
    }

    /// [`view`](Self::view) for many tensors together, with a timeout as in [`pull_many_within`](Self::pull_many_within).
    pub fn view_many(&self, from: &str, keys: Keys, min_version: i64, timeout: Option<Duration>) -> PullingMany {
        self.view_many_with(from, keys, min_version, PullOptions { timeout, ..PullOptions::default() })
    }

    /// [`view`](Self::view) for many tensors together, with options.
    pub fn view_many_with(&self, from: &str, keys: Keys, min_version: i64, options: PullOptions) -> PullingMany {
        begun(self.pulls(from, keys, true), min_version, options)
    }

    /// A [plan](Self::plan) whose large tensors are [viewed](Self::view); a view lasts until the next pull, which finds them elsewhere.
    pub fn viewing_plan(&self, from: &str, keys: Keys) -> Plan {
        Plan::of(self.pulls(from, keys, true))
    }

    /// A plan of tensors that are published in slices, by any number of tasks: each is pulled from all of its owners at once, into
    /// one array, every slice at its place. The array is memory of [`alloc`](Self::alloc), the same for each complete pull. Its slices are
    /// of one version, unless `versions` says otherwise.
    ///
    /// One owner's slices of 64 KiB or more of a tensor are pulled over several shards in turn, where this task's engine or daemon has more
    /// than one.
    ///
    /// ```no_run
    /// # use sealane::{DType, SliceVersions, Slicing, Task, TensorMeta};
    /// # let task = Task::attach("worker0.train:2222")?;
    /// let slicing = Slicing::even(TensorMeta::new(DType::F32, &[1_000_000, 16])?, ["ps0.train:2222", "ps1.train:2222"])?;
    /// let mut plan = task.sliced_plan([("embedding", slicing)], SliceVersions::Same)?;
    /// for step in 0..100 {
    ///     plan.pull(step).wait()?;
    ///     println!("{:?} of version {}", plan.get(0)?.shape(), plan.version(0));
    /// }
    /// # Ok::<(), sealane::Error>(())
    /// ```
    ///
    /// # Errors
    /// InvalidArgument for too many keys, or one that is too long.
    pub fn sliced_plan<K: AsRef<str>>(
        &self,
        wanted: impl IntoIterator<Item = (K, Slicing)>,
        versions: SliceVersions,
    ) -> Result<Plan, Error> {
        let puller = match &self.0 {
            Engine::Daemon(attached) => Puller::Daemon(attached.0.clone()),
            Engine::InProcess(task) => Puller::InProcess(task.clone()),
        };
        let wanted = wanted.into_iter().map(|(key, slicing)| (key.as_ref().into(), slicing)).collect();
        Ok(Plan::of(Box::new(SlicedPlan::new(puller, wanted, versions)?)))
    }

    /// Pushes a tensor into a queue of `to`. The returned future (or [`wait`](Sending::wait)) completes when the queue has taken
    /// it: while the queue is full, or nobody [accepts](Self::acceptor) from it, the push waits. If the future is dropped, the
    /// push continues. The pushes of one task into one queue stay in order.
    ///
    /// It fails with DeadlineExceeded if it was not taken in time, though it may still arrive; with ResourceExhausted if too
    /// many pushes wait, or the acceptor's host has no memory for it; with Unavailable if the peer or its acceptor disappeared
    /// while the tensor was in transit.
    ///
    /// ```no_run
    /// # use sealane::{Task, Tensor};
    /// # let task = Task::attach("worker0.train:2222")?;
    /// let gradient = Tensor::from_elements(&[3], &[0.1_f32, 0.2, 0.3])?;
    /// task.push("ps0.train:2222", "gradients", gradient).wait()?;
    /// # Ok::<(), sealane::Error>(())
    /// ```
    pub fn push(&self, to: &str, queue: &str, tensor: Tensor) -> Sending {
        self.push_with(to, queue, tensor, SendOptions::default())
    }

    /// [`push`](Self::push) with options.
    pub fn push_with(&self, to: &str, queue: &str, tensor: Tensor, options: SendOptions) -> Sending {
        match &self.0 {
            Engine::Daemon(attached) => {
                let pushed = attached.0.send(To { peer: to, purpose: Purpose::Push }, queue, tensor, &options);
                Sending::of(&attached.0, pushed)
            }
            Engine::InProcess(task) => task.push_many(to, queue, vec![tensor], &options).into(),
        }
    }

    /// [`push`](Self::push) for many tensors, in order, at a fraction of the cost each. It ends when the queue has taken all
    /// of them, with the first error if there was any. A list that is too long is refused as a whole, as by [`send_all`](Self::send_all).
    pub fn push_all(&self, to: &str, queue: &str, tensors: impl IntoIterator<Item = Tensor>) -> Pushing {
        self.push_all_with(to, queue, tensors, SendOptions::default())
    }

    /// [`push_all`](Self::push_all) with options.
    pub fn push_all_with(
        &self,
        to: &str,
        queue: &str,
        tensors: impl IntoIterator<Item = Tensor>,
        options: SendOptions,
    ) -> Pushing {
        let mut pushes = Vec::new();
        self.push_each(to, queue, tensors, &options, &mut pushes);
        Pushing::of(pushes)
    }

    /// Pushes tensors, in order, in one batch; adds the pushes in progress to `pushes`.
    pub(crate) fn push_each(
        &self,
        to: &str,
        queue: &str,
        tensors: impl IntoIterator<Item = Tensor>,
        options: &SendOptions,
        pushes: &mut Vec<Sending>,
    ) {
        match &self.0 {
            Engine::Daemon(attached) => {
                let tensors = tensors.into_iter().map(|tensor| (queue, tensor));
                let mut more = Handles::new(&attached.0, tensors.size_hint().0);
                let to = To { peer: to, purpose: Purpose::Push };
                attached.0.send_all(to, tensors, options, |sent| more.add_begun(sent));
                pushes.append(&mut more.into_vec());
            }
            Engine::InProcess(task) => {
                let tensors = tensors.into_iter().collect();
                pushes.push(task.push_many(to, queue, tensors, options).into());
            }
        }
    }

    /// Accepts tensors that any peer pushes into `queue` of this task, until the acceptor is dropped. A queue has one acceptor
    /// at a time; every accept of a second one fails with InvalidArgument.
    pub fn acceptor(&self, queue: &str, options: AcceptOptions) -> Acceptor {
        let accepts = match &self.0 {
            Engine::Daemon(attached) => Box::new(AttachedAcceptor::new(&attached.0, queue, options)),
            Engine::InProcess(task) => task.acceptor(queue, options),
        };
        Acceptor::of(self, accepts)
    }

    /// Records that this many tensors went to `peer`, or came from it, over another transport such as gRPC. They are reported to the
    /// daemon at most once a second, at the task's next calls or when it ends; the daemon shows them next to those that Sealane carried
    /// (`sealane stat`, metrics), separately for up to 1,024 peers and together beyond that. Never waits. Ignored with an embedded engine.
    pub fn note_elsewhere(&self, peer: &str, direction: Direction, tensors: u64, bytes: u64) {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.note_elsewhere(peer, direction, tensors, bytes),
            Engine::InProcess(_) => {}
        }
    }

    /// Opens an end of a direct lane that the caller has made in place of a daemon; for the tests in `tests/` that stand in for one.
    #[cfg(feature = "fuzzing")]
    #[doc(hidden)]
    pub fn open_lane(&self, peer: &str, given: sealane_transport::shm::attach::GivenLane) {
        if let Engine::Daemon(attached) = &self.0 {
            attached.0.open_lane(peer, given);
        }
    }

    /// Takes in what has arrived over direct lanes, as the driver does.
    #[cfg(feature = "fuzzing")]
    #[doc(hidden)]
    pub fn look_at_lanes(&self) {
        if let Engine::Daemon(attached) = &self.0 {
            attached.0.drive_once();
        }
    }

    /// Tasks with which this one has a direct lane now: their processes run on this host under this user, and small tensors that they
    /// [send](Self::send) each other bypass the daemon, which is told their number once a second. A lane opens by itself after some calls;
    /// it loses and reorders nothing. Empty with an embedded engine, in a forked child, and where `daemon.direct_lanes` is off.
    pub fn direct_peers(&self) -> Vec<String> {
        match &self.0 {
            Engine::Daemon(attached) if attached.0.check_fork().is_ok() => attached.0.direct_peers(),
            _ => Vec::new(),
        }
    }

    /// Ends `step` of this task, here and at its peers: every waiting recv of it ends with Aborted and `reason`,
    /// waiting tensors are freed, and later calls get the same error until [`cleanup`](Self::cleanup).
    ///
    /// # Errors
    /// ResourceExhausted if a shard accepts no more, Unavailable if the daemon or the engine is gone.
    pub fn abort(&self, step: i64, reason: &str) -> Result<(), Error> {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.abort(step, reason),
            Engine::InProcess(task) => task.abort(step, reason),
        }
    }

    /// Frees everything left of `step` of this task: waiting tensors, waiting requests, and the record of an abort. The step's number may
    /// be used again. A small tensor of it may have been sent already: a recv that the peer makes before it learns of the cleanup gets it.
    ///
    /// # Errors
    /// ResourceExhausted if a shard accepts no more, Unavailable if the daemon or the engine is gone.
    pub fn cleanup(&self, step: i64) -> Result<(), Error> {
        match &self.0 {
            Engine::Daemon(attached) => attached.0.cleanup(step),
            Engine::InProcess(task) => task.cleanup(step),
        }
    }
}

fn begun(mut plan: Box<dyn Pulls>, min_version: i64, options: PullOptions) -> PullingMany {
    plan.begin(min_version, options);
    PullingMany::of(plan)
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Task({})", self.name())
    }
}
