//! Which shard of a peer serves which pair: known once the peer has announced its number of shards, and updated when it restarts with a
//! different number. Requests for another shard move, and their tickets follow them.

use std::time::Instant;

use sealane_transport::endpoint_map::TransportAddress;
use sealane_transport::error::LinkError;
use sealane_transport::lane::shard_of;
use sealane_transport::named_rows::NamedRowsBuf;
use sealane_transport::session::{RequestOptions, RequestParams};
use sealane_transport::wire::Hello;
use sealane_transport::{Destination, Error, Handle};

use super::Node;
use super::cells::{RecvWaiter, Ticket};
use super::context::Context;
use super::exchange::RecvRequest;
use super::pairs::Pair;
use super::peers::Peer;
use super::pulls::MovedPull;
use super::pushes::MovedPush;
use super::row_requests::PullRowsRequest;

/// A request moving from one session to another: it was never sent on any link.
struct UnsentRequest {
    ticket: Ticket,
    consumer: u16,
    producer: u32,
    step: i64,
    key: String,
    deadline: Instant,
    destination: Option<Destination>,
    waiter: RecvWaiter,
    options: RequestOptions,
    /// The rows that it requests, unless it requests a tensor.
    rows: Option<NamedRowsBuf>,
}

/// What waits for a session and was not sent, to be moved to another session.
#[derive(Default)]
struct Misplaced {
    requests: Vec<UnsentRequest>,
    pulls: Vec<MovedPull>,
    pushes: Vec<MovedPush>,
}

impl Misplaced {
    /// Takes what `pick` chooses by the pair of tasks (local, peer).
    fn take(&mut self, peer: &mut Peer, handle: Handle, pick: impl Fn(u16, u32) -> bool) {
        peer.session.take_requests(&pick, |request, params, options, rows| {
            let ticket = Ticket::Peer { session: handle, request };
            let RequestParams { consumer, producer, step, key, deadline, destination, waiter } = params;
            let key = key.to_owned();
            let to =
                UnsentRequest { ticket, consumer, producer, step, key, deadline, destination, waiter, options, rows };
            self.requests.push(to);
        });
        peer.session.take_pulls(&pick, |pull| self.pulls.push(pull));
        peer.session.take_pushes(&pick, |(from, to, queue), meta, payload, deadline, group| {
            self.pushes.push(MovedPush { from, to, queue: queue.into(), meta, payload, deadline, group });
        });
    }
}

impl Node {
    /// A caller says how many shards its side has: a session that was meant for whichever shard serves its lane now knows which one that
    /// is.
    pub(super) fn place_provisional(&mut self, now: Instant, provisional: Handle, hello: &Hello) {
        let lane = self.context.peers.get(provisional).map_or(0, |peer| peer.lane());
        let called = Hello { shard: shard_of(lane, usize::from(hello.shards)) as u16, ..hello.clone() };
        self.place(now, provisional, &called);
    }

    /// Records which shard of the peer a session is with. Requests of pairs that another of its shards serves move to that shard's session.
    /// False if the peer answers from the wrong shard.
    pub(super) fn place(&mut self, now: Instant, handle: Handle, hello: &Hello) -> bool {
        self.exchange.forget_ended_moves(&self.context.peers);
        let Context { peers, pairs, .. } = &mut self.context;
        let peer = peers.get(handle).expect("the caller looked it up");
        if let Some(shard) = peer.shard {
            return shard == hello.shard;
        }
        let (address, shards) = (peer.address.clone(), usize::from(hello.shards));
        peers.set_shards_at(&address, hello.shards);
        peers.set_shard(handle, hello.shard);
        let is_elsewhere = |pair: &Pair| shard_of(pair.lane, shards) != usize::from(hello.shard);
        let mut misplaced = Misplaced::default();
        let peer = peers.get_mut(handle).expect("just looked at");
        misplaced.take(peer, handle, |local, peer| pairs.known(local, peer).is_some_and(is_elsewhere));
        pairs.leave(handle, is_elsewhere);
        self.request_elsewhere(now, misplaced);
        true
    }

    /// The peer at `address` has a different number of shards than before: it restarted. Its sessions end with the requests sent on them;
    /// requests not sent yet go to the shards that it has now.
    pub(super) fn renumber(&mut self, now: Instant, address: &TransportAddress, shards: u16) {
        self.exchange.forget_ended_moves(&self.context.peers);
        let mut misplaced = Misplaced::default();
        for handle in self.context.peers.select(|peer| peer.address == *address) {
            self.drop_link(now, handle, &LinkError::Closed);
            self.give_up(
                handle,
                "it restarted with a different number of cores, and its outstanding requests are lost",
            );
            let mut peer = self.context.peers.remove(handle).expect("just selected");
            misplaced.take(&mut peer, handle, |_, _| true);
        }
        self.context.peers.set_shards_at(address, shards);
        self.request_elsewhere(now, misplaced);
    }

    /// Gives up a session without a link if the map has moved all tasks away from its address: nobody may ever be there again. Requests not
    /// sent yet go to the tasks' new addresses.
    pub(super) fn leave_behind(&mut self, now: Instant, handle: Handle) {
        let Context { peers, pairs, .. } = &self.context;
        if peers.get(handle).is_none_or(|peer| pairs.map().tasks_at(&peer.address).next().is_some()) {
            return;
        }
        let reason = "the endpoint map has no task any more at its address";
        self.give_up(handle, reason);
        self.exchange.forget_ended_moves(&self.context.peers);
        let Context { peers, pairs, .. } = &mut self.context;
        let peer = peers.get_mut(handle).expect("just looked at");
        let (address, mut misplaced) = (peer.address.clone(), Misplaced::default());
        misplaced.take(peer, handle, |_, task| *pairs.peer_address(task) != address);
        let error = Error::unavailable(peer.session.peer(), reason);
        peer.session.end_all_requests(&error);
        self.handle_events(handle);
        self.request_elsewhere(now, misplaced);
    }

    fn request_elsewhere(&mut self, now: Instant, misplaced: Misplaced) {
        for UnsentRequest { ticket, consumer, producer, step, key, deadline, destination, waiter, options, rows } in
            misplaced.requests
        {
            let (pair, key) = (self.context.pairs.pair_of(consumer, producer), &*key);
            if let RecvWaiter::Remote(recv) = waiter {
                self.exchange.forget_request(recv, destination);
                self.send_request_for(now, recv, pair);
                continue;
            }
            let RequestOptions { fused, fail_if_gone } = options;
            let moved = if let Some(rows) = rows {
                let (rows, min_version) = (rows.as_rows(), step);
                let views = false;
                self.pull_rows(now, PullRowsRequest { pair, rows, min_version, deadline, views, fail_if_gone, waiter })
            } else {
                self.recv(now, RecvRequest { pair, step, key, deadline, destination, waiter, fused, fail_if_gone })
            };
            if let Some(moved) = moved {
                self.exchange.moved(ticket, moved);
            }
        }
        for moved in misplaced.pulls {
            let Some(plan) = self.pulls.plan_of(&moved) else { continue };
            let agreed = self.agree(plan);
            self.pulls.pull_moved(now, moved, agreed, &mut self.context);
        }
        for moved in misplaced.pushes {
            let pair = self.context.pairs.pair_of(moved.from, moved.to);
            match self.session_of(pair) {
                Ok(session) => self.pushes.push_moved(now, session, moved, &mut self.context),
                Err(error) => self.pushes.ended(moved.group, 1, Err(error), &mut self.context.reporter),
            }
        }
    }
}
