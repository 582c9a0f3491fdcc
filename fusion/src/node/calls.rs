//! The calls of tasks to a node, passed on to its parts.

use std::collections::HashSet;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

use sealane_runtime::Buffer;
use sealane_transport::tensor::IntoTensor;
use sealane_transport::{Destination, Error, Handle, Keys, PullBuffer, RecvOutcome, SendOutcome, Unreceived};

use super::Node;
use super::cells::{PullWaiter, RecvWaiter, SendWaiter, Ticket};
use super::context::{Context, draining};
use super::exchange::{FusedRequest, ReceivedBatch, RecvRequest, ToPost};
use super::pulls::{Producer, PullRequest, Pulls};
use super::pushes::{Load, PushRequest};
use super::row_requests::PullRowsRequest;
use crate::queue::AcceptQueue;

impl Node {
    /// Requests a tensor. Its outcome goes to the waiter, errors included; the ticket cancels.
    pub fn recv(&mut self, now: Instant, recv: RecvRequest<'_>) -> Option<Ticket> {
        let Node { exchange, context, .. } = self;
        let (local, mirror) = (context.pairs[recv.pair].local, context.pairs[recv.pair].mirror);
        let error = if let Some(error) = exchange.refusal(&recv, local, context.draining) {
            error
        } else if let Some(producer_pair) = mirror {
            return exchange.recv_here(now, recv, producer_pair, context);
        } else {
            let session = self.session_of(recv.pair);
            return self.exchange.recv_there(now, session, recv, &mut self.context);
        };
        let unreceived = Unreceived::returning(error, recv.destination);
        self.context.reporter.finish_recv(recv.waiter, Err(unreceived));
        None
    }

    /// Requests many tensors of one step at once; they do not wait for the window. Returns the batch, which the future polls and closes.
    pub fn recv_fused<'k, K, D>(&mut self, now: Instant, request: FusedRequest<K, D>) -> Handle
    where
        K: Iterator<Item = &'k str> + Clone,
        D: IntoIterator<Item = Buffer>,
    {
        let FusedRequest { pair, step, keys, destinations, deadline, waiter } = request;
        let count = keys.clone().count();
        let batch = self.context.reporter.outcomes.batches.open(count, waiter);
        let mut destinations = destinations.into_iter();
        let destinations = &mut destinations;
        let to_post = ToPost { pair, step, keys: keys.clone(), count, destinations, deadline, batch };
        let posted = self.post(now, to_post);
        if posted.as_ref().is_some_and(Vec::is_empty) {
            return batch;
        }
        let mut single = posted.map(|numbers| numbers.into_iter().peekable());
        for (index, key) in keys.enumerate() {
            let destination = match &mut single {
                None => destinations.next().map(Destination::from),
                Some(single) => match single.next_if(|(number, _)| *number == index) {
                    Some((_, destination)) => destination,
                    None => continue,
                },
            };
            let waiter = RecvWaiter::Batch { batch, index: index as u32 };
            let (fused, fail_if_gone) = (true, false);
            let request = RecvRequest { pair, step, key, deadline, destination, waiter, fused, fail_if_gone };
            let ticket = self.recv(now, request);
            self.context.reporter.outcomes.batches.set_ticket(batch, index, ticket);
        }
        batch
    }

    /// Lets those recvs wait together that can: see `remote_recvs::posted`.
    fn post<'k, K, D>(&mut self, now: Instant, to_post: ToPost<'_, K, D>) -> Option<Vec<(usize, Option<Destination>)>>
    where
        K: Iterator<Item = &'k str> + Clone,
        D: Iterator<Item = Buffer>,
    {
        let pair = &self.context.pairs[to_post.pair];
        if pair.mirror.is_some() || self.exchange.has_ended(pair.local, to_post.pair, to_post.step) {
            return None;
        }
        let session = self.session_of(to_post.pair).ok()?;
        self.exchange.remote().post(now, session, to_post, &mut self.context)
    }

    /// All outcomes, in the order of the keys, once all have come; this closes the batch.
    pub fn poll_batch(&mut self, handle: Handle, waker: &Waker) -> Poll<Vec<RecvOutcome>> {
        self.context.reporter.outcomes.batches.poll(handle, waker)
    }

    /// Like [`poll_batch`](Self::poll_batch), for a batch that is read by views.
    pub fn poll_views(&mut self, handle: Handle, waker: &Waker) -> Poll<ReceivedBatch> {
        self.context.reporter.outcomes.batches.poll_views(handle, waker)
    }

    /// The next outcome that has come, with its index; `None` when all were taken.
    pub fn poll_next_of(&mut self, handle: Handle, waker: &Waker) -> Poll<Option<(usize, RecvOutcome)>> {
        self.context.reporter.outcomes.batches.poll_next(handle, waker)
    }

    /// The batch's future is dropped: its outstanding recvs are cancelled.
    pub fn close_batch(&mut self, handle: Handle) {
        self.exchange.remote().close_posted(handle);
        for ticket in self.context.reporter.outcomes.batches.close(handle) {
            self.cancel(ticket);
        }
    }

    /// Cancels a recv, whose waiter then hears nothing; false if it has ended, and its waiter was told or soon will be.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        match self.exchange.follow(ticket) {
            Ticket::Rows(request) => self.row_requests.cancel(request),
            _ => self.exchange.cancel(ticket, &mut self.context),
        }
    }

    /// Requests rows of tables that the pair's peer has published or will publish. They come as one
    /// [tensor](sealane_transport::gathered_rows), each table's rows in the order in which they are named; the ticket cancels.
    pub fn pull_rows(&mut self, now: Instant, rows: PullRowsRequest<'_>) -> Option<Ticket> {
        let pair = &self.context.pairs[rows.pair];
        let (consumer, mirror) = (pair.local, pair.mirror);
        let error = if self.context.draining && matches!(rows.waiter, RecvWaiter::Client(_)) {
            draining()
        } else if let Some(mirror) = mirror {
            let ends = (consumer, self.context.pairs[mirror].local);
            let Node { row_requests, pulls, context, .. } = self;
            return row_requests.request_here(now, rows, ends, pulls, context).map(Ticket::Rows);
        } else if rows.views {
            Error::Unimplemented {
                reason: "tables of a task of another engine lie where nobody here can read them".into(),
            }
        } else {
            match self.session_of(rows.pair) {
                Ok(session) => return self.exchange.rows_there(now, session, rows, &mut self.context),
                Err(error) => error,
            }
        };
        self.context.reporter.finish_recv(rows.waiter, Err(Unreceived::from(error)));
        None
    }

    /// Keeps a tensor, or answers the request that waits for it. The waiter hears how it ended: released by its consumer, or an error:
    /// ResourceExhausted if the table is full, InvalidArgument if a tensor waits there already, DeadlineExceeded if nobody requested it in
    /// time, Aborted if the step was. A small tensor may be passed by reference: usually it is copied as it leaves.
    pub fn send(
        &mut self,
        pair: u32,
        step: i64,
        key: &str,
        tensor: impl IntoTensor,
        deadline: Instant,
        waiter: SendWaiter,
    ) {
        self.exchange.send((pair, step), std::iter::once((key, tensor)), deadline, waiter, &mut self.context);
    }

    /// Like [`send`](Self::send), for many tensors of a step, by key. The waiter, which must not be a client, hears the first error, if
    /// any, once all have ended.
    pub fn send_many<K: AsRef<str>, T: IntoTensor>(
        &mut self,
        (pair, step): (u32, i64),
        tensors: impl ExactSizeIterator<Item = (K, T)>,
        deadline: Instant,
        waiter: SendWaiter,
    ) {
        let Node { exchange, context, .. } = self;
        match tensors.len() {
            0 => context.reporter.finish_send(waiter, Ok(())),
            count => {
                let each = context.reporter.outcomes.group(count, waiter);
                exchange.send((pair, step), tensors, deadline, each, context);
            }
        }
    }

    /// Ends a step of a local task, here and at its peers: every waiting recv of it ends with `reason`, tensors that wait are freed, and
    /// later calls get the same error until [`cleanup`](Self::cleanup).
    pub fn abort(&mut self, local: u16, step: i64, reason: &str) {
        if !self.exchange.abort(local, step, reason, &mut self.context) {
            return;
        }
        let error = Error::Aborted { step, reason: reason.into() };
        let Context { pairs, peers, .. } = &self.context;
        // Peers that this task has never dealt with need not be told.
        let met = pairs.of_task(local).iter().map(|&pair| pairs[pair].peer);
        let addresses: HashSet<_> = met.map(|peer| pairs.peer_address(peer)).collect();
        for handle in peers.select(|peer| addresses.contains(&peer.address)) {
            let session = self.context.peers.session_mut(handle).expect("just selected");
            session.end_requests(step, local, None, &error);
            session.abort(step, local, reason);
            self.handle_events(handle);
            self.context.peers.mark_dirty(handle);
        }
        let Node { exchange, context, .. } = self;
        for &pair in context.pairs.of_task(local) {
            exchange.end_here_of(pair, step, &error, &mut context.reporter);
        }
        for pair in context.pairs.of_task(local).to_vec() {
            exchange.end_there_of(pair, step, &error, context);
        }
        if let Some(number) = context.pairs.number_of_local(local) {
            exchange.aborted(None, (step, number), reason, context);
        }
    }

    /// Frees what is left of a step of a local task: tensors that wait end with Aborted at their senders, parked requests at their
    /// consumers. The step may be used again.
    pub fn cleanup(&mut self, local: u16, step: i64) {
        self.exchange.cleanup(local, step, &mut self.context);
    }

    /// Publishes a tensor of a local task, for any peer to read, replacing the previous version. A small one is copied, and may be passed
    /// by reference.
    ///
    /// # Errors
    /// InvalidArgument if a newer version is published, ResourceExhausted if too many are.
    pub fn publish(&mut self, local: u16, key: &str, version: i64, tensor: impl IntoTensor) -> Result<(), Error> {
        self.publish_all(local, version, [(key, tensor)])
    }

    /// Like [`publish`](Self::publish), for many tensors, by key. Fastest in the order in which they were first published.
    ///
    /// # Errors
    /// Those of [`publish`](Self::publish): the first. The other tensors are published.
    pub fn publish_all<K: AsRef<str>, T: IntoTensor>(
        &mut self,
        local: u16,
        version: i64,
        tensors: impl IntoIterator<Item = (K, T)>,
    ) -> Result<(), Error> {
        let Node { row_requests, pulls, context, .. } = self;
        if !row_requests.awaits_tables() {
            return pulls.publish(local, version, tensors.into_iter(), context);
        }
        let publish = |(key, tensor): (K, T)| {
            pulls.publish(local, version, std::iter::once((key.as_ref(), tensor)), context)?;
            row_requests.published(local, key.as_ref(), pulls, context);
            Ok(())
        };
        tensors.into_iter().map(publish).fold(Ok(()), Result::and)
    }

    /// Withdraws a published tensor of a local task; false if there was none. Pulls of it wait.
    pub fn withdraw(&mut self, local: u16, key: &str) -> bool {
        self.pulls.withdraw(local, key)
    }

    /// Opens a plan: the keys that a pair's consumer pulls together from now on. The producer learns of it with the first pull.
    pub fn open_plan(&mut self, pair: u32, keys: Arc<Keys>) -> Handle {
        self.pulls.open_plan(pair, keys)
    }

    /// Closes a plan; a pull of it in progress is cancelled.
    pub fn close_plan(&mut self, plan: Handle) {
        self.pulls.close_plan(plan, &mut self.context);
    }

    /// Pulls a plan's tensors. The pull buffer goes back to the waiter when each place is filled or failed; the handle cancels.
    pub fn pull(&mut self, now: Instant, mut request: PullRequest) -> Option<Handle> {
        request.pull_buffer.begin();
        let agreed = match self.pulls.check(&request, self.context.draining) {
            // A plan without keys is complete at once.
            Ok(()) if request.pull_buffer.is_empty() => {
                self.context.reporter.finish_pull(request.waiter, request.pull_buffer);
                return None;
            }
            Ok(()) => self.agree(request.plan),
            Err(error) => Err(error),
        };
        match agreed {
            Ok(()) => self.pulls.begin(now, request, &mut self.context),
            Err(error) => {
                Pulls::refuse(request, &error, &mut self.context.reporter);
                None
            }
        }
    }

    /// Tells the producer of a plan, wherever it is now, the plan's keys.
    pub(super) fn agree(&mut self, plan: Handle) -> Result<(), Error> {
        let pair = self.pulls.pair_of(plan);
        let producer = match self.context.pairs[pair].mirror {
            Some(mirror) => Producer::Here(self.context.pairs[mirror].local),
            None => Producer::Session(self.session_of(pair)?),
        };
        self.pulls.agree(plan, producer, &mut self.context)
    }

    /// Cancels a pull, whose waiter then hears nothing; returns its pull buffer, or `None` if it has ended.
    pub fn cancel_pull(&mut self, handle: Handle) -> Option<PullBuffer> {
        self.pulls.cancel(handle, &mut self.context.peers)
    }

    /// Pushes tensors into a queue of the pair's peer. The waiter hears when the queue has taken all of them.
    pub fn push<T: ExactSizeIterator<Item: IntoTensor>>(&mut self, now: Instant, push: PushRequest<'_, T>) {
        let PushRequest { pair, queue, tensors, deadline, waiter } = push;
        let Context { pairs, reporter, draining: is_draining, .. } = &mut self.context;
        if *is_draining && matches!(waiter, SendWaiter::Client(_)) {
            return reporter.finish_send(waiter, Err(draining()));
        }
        let count = tensors.len();
        if count == 0 {
            return reporter.finish_send(waiter, Ok(()));
        }
        let group = self.pushes.begin(now, (queue, count), waiter, reporter);
        let load = Load { pair, queue, tensors, deadline, group };
        if let Some(mirror) = pairs[pair].mirror {
            let acceptor = pairs[mirror].local;
            return self.pushes.push_here(now, acceptor, load, &mut self.context);
        }
        match self.session_of(pair) {
            Ok(session) => self.pushes.push_there(now, session, load, &mut self.context),
            Err(error) => self.pushes.ended(group, count as u32, Err(error), &mut self.context.reporter),
        }
    }

    /// Tensors pushed into a queue of a local task go to `shared` from now on, first those that an earlier queue had taken and nobody
    /// accepted.
    ///
    /// # Errors
    /// InvalidArgument if someone accepts from it already.
    pub fn open_queue(&mut self, task: u16, name: &str, shared: Arc<AcceptQueue>) -> Result<(), Error> {
        self.pushes.open_queue(task, name, shared, &mut self.context)
    }

    /// Nobody accepts from `shared` any more: pushers wait for the next acceptor. Tensors that its owner does not take out of it go to that
    /// acceptor, too.
    pub fn close_queue(&mut self, task: u16, name: &str, shared: &Arc<AcceptQueue>) {
        self.pushes.close_queue(task, name, shared, &mut self.context);
    }

    /// There is room again in the queue of that name.
    pub fn replenish_named(&mut self, task: u16, name: &str) {
        self.pushes.replenish_named(task, name, &mut self.context);
    }

    /// Opens the cell of a future that waits for a tensor.
    pub fn open_recv(&mut self) -> Handle {
        self.context.reporter.outcomes.recv_cells.open()
    }

    /// Opens the cell of a future that waits for a release.
    pub fn open_send(&mut self) -> Handle {
        self.context.reporter.outcomes.send_cells.open()
    }

    /// Opens the cell of a future that waits for a pull.
    pub fn open_pull(&mut self) -> Handle {
        self.context.reporter.outcomes.pull_cells.open()
    }

    /// Polls for the tensor that a future waits for.
    pub fn poll_recv(&mut self, cell: Handle, waker: &Waker) -> Poll<RecvOutcome> {
        self.context.reporter.outcomes.recv_cells.poll(cell, waker)
    }

    /// Polls for the release that a future waits for.
    pub fn poll_send(&mut self, cell: Handle, waker: &Waker) -> Poll<SendOutcome> {
        self.context.reporter.outcomes.send_cells.poll(cell, waker)
    }

    /// Polls for the pull buffer that a future waits for.
    pub fn poll_pull(&mut self, cell: Handle, waker: &Waker) -> Poll<PullBuffer> {
        self.context.reporter.outcomes.pull_cells.poll(cell, waker)
    }

    /// The future is dropped: the recv is cancelled, and its outcome discarded.
    pub fn close_recv(&mut self, cell: Handle, ticket: Option<Ticket>) {
        self.context.reporter.outcomes.recv_cells.close(cell);
        if let Some(ticket) = ticket {
            self.cancel(ticket);
        }
    }

    /// The future is dropped: the send goes on, nobody hears its outcome.
    pub fn close_send(&mut self, cell: Handle) {
        self.context.reporter.outcomes.send_cells.close(cell);
    }

    /// The future is dropped: the pull is cancelled. Returns its pull buffer, unless a tensor is arriving in it at this moment.
    pub fn close_pull(&mut self, cell: Handle, pull: Option<Handle>) -> Option<PullBuffer> {
        let done = self.context.reporter.outcomes.pull_cells.take(cell);
        done.or_else(|| self.cancel_pull(pull?))
    }

    /// Tells a waiter how its recv ended.
    pub fn finish_recv(&mut self, waiter: RecvWaiter, outcome: RecvOutcome) {
        self.context.reporter.finish_recv(waiter, outcome);
    }

    /// Tells a waiter how its send ended.
    pub fn finish_send(&mut self, waiter: SendWaiter, outcome: SendOutcome) {
        self.context.reporter.finish_send(waiter, outcome);
    }

    /// Gives a waiter the pull buffer of its pull.
    pub fn finish_pull(&mut self, waiter: PullWaiter, pull_buffer: PullBuffer) {
        self.context.reporter.finish_pull(waiter, pull_buffer);
    }
}
