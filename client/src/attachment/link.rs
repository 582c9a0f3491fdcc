//! The connection to a daemon: the rings and doorbells of every shard, the arena, the socket. Under the attachment's lock;
//! replaced after every loss.

use std::{
    collections::VecDeque,
    os::fd::AsFd,
    sync::{Arc, Weak},
};

use hashbrown::HashMap;
use sealane_runtime::{Buffer, SleepFlag};
use sealane_transport::{
    Error, lane,
    limits::NAME_BYTES_MAX,
    shm::{
        AcceptedAt, CallListBuf, ClientEar, ClientEnd, Completion, Doorbell, NO_TIMEOUT, PushError, ReceivedAt, Record,
        Submission,
        attach::Attached,
        limits::{NUMBERS_PER_RECORD, PEERS_MAX},
    },
};

use super::{
    acceptors::Acceptors,
    aftermath::Aftermath,
    backlog::{Stored, Waiting, Way},
    calls::{Arrived, Calls},
    direct::{Lanes, Sleep},
    plans::{Closing, Landed, Plans, Taken},
    views::Arenas,
};
use crate::{
    attach::Backlog,
    limits::COMPLETIONS_PER_LOOK,
    memory::{Area, Arena, ForkMark, Freed, Viewable},
};

/// An attachment to one daemon, while that lives.
pub(super) struct Link {
    /// Tells one link from the next.
    pub(super) serial: u64,
    pub(super) arena: Arc<Arena>,
    pub(super) ear: Arc<ClientEar>,
    /// The daemon is about to stop, and new calls are for the next one.
    pub(super) draining: bool,
    /// The daemon as errors name it.
    pub(super) daemon: Box<str>,
    pub(super) default_timeout_ms: u32,
    pub(super) tensor_bytes_max: u64,
    pub(super) plans: Plans,
    /// Arenas of other clients.
    pub(super) arenas: Arenas,
    /// Lanes to other clients.
    pub(super) direct: Lanes,
    /// What waits in this process.
    pub(super) waiting: Waiting,
    pub(super) segments: Vec<Segment>,
    pub(super) peers: HashMap<Box<str>, Peer>,
    /// Peers as known by shards that do not serve their pairs, by shard.
    peers_elsewhere: HashMap<(u16, Box<str>), Peer>,
    /// The peer that was named last: most tasks talk to one for a while.
    recent: Option<(String, Peer)>,
    /// Small calls to be submitted together.
    pub(super) together: CallListBuf,
    pub(super) outgoing: Record,
    pub(super) incoming: Record,
    tokens: Vec<u64>,
}

pub(super) struct Segment {
    end: ClientEnd,
    doorbell: Arc<Doorbell>,
    pub(super) area: Arc<Area>,
    /// Peers that the shard knows by number.
    peers: usize,
    /// Calls to cancel for which the ring had no room.
    cancels: Vec<u32>,
    /// Plans to be closed, likewise.
    closings: Vec<Closing>,
    /// What the open plans take.
    plans: Taken,
    /// How many queues are open.
    queues: usize,
    /// Messages about queues, in order.
    queue_chores: VecDeque<QueueChore>,
    /// The shard was told a part of a set, but not that the set is complete.
    uncommitted: bool,
    /// Records for which the ring had no room, in order.
    pub(super) waiting: VecDeque<Stored>,
    /// Something was submitted since the doorbell was last considered.
    unannounced: bool,
    /// The shard was told that this client leaves.
    said_goodbye: bool,
    /// How far the shard had read when a wait for it was in vain.
    stood_at: Option<u64>,
}

/// Credit to be granted for a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub(super) queue: u32,
    pub(super) tensors: u32,
    pub(super) bytes: u64,
}

#[derive(Debug, Clone, Copy)]
enum QueueChore {
    Grant(Grant),
    Close(u32),
}

/// A peer as its shard knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) segment: u16,
    pub(super) number: u16,
}

/// Why something was not submitted.
pub(super) enum Unsubmitted {
    /// The ring is full; the daemon has to read.
    Full,
    /// The call cannot be carried out.
    Refused(Error),
    /// The attachment cannot be used any more.
    Fault(Box<str>),
}

impl Link {
    pub(super) fn new(
        serial: u64,
        attached: Attached,
        daemon: Box<str>,
        (mark, freed): (&Arc<ForkMark>, &Weak<dyn Freed>),
        backlog: Option<Backlog>,
    ) -> Link {
        let Attached { welcome, arena, shards, socket } = attached;
        let segment = |(end, doorbell): (ClientEnd, Doorbell)| {
            let area = Arc::new(Area::new(end.area().clone(), mark.clone(), freed.clone()));
            Segment {
                end,
                doorbell: Arc::new(doorbell),
                area,
                peers: 0,
                cancels: Vec::new(),
                closings: Vec::new(),
                plans: Taken::default(),
                queues: 0,
                queue_chores: VecDeque::new(),
                uncommitted: false,
                waiting: VecDeque::new(),
                unannounced: false,
                said_goodbye: false,
                stood_at: None,
            }
        };
        Link {
            serial,
            draining: false,
            arena: Arc::new(Arena::new(arena, mark.clone())),
            ear: Arc::new(ClientEar::new(socket)),
            daemon,
            default_timeout_ms: match welcome.request_timeout_ms {
                0 => NO_TIMEOUT,
                timeout_ms => u32::try_from(timeout_ms).unwrap_or(NO_TIMEOUT),
            },
            tensor_bytes_max: welcome.tensor_bytes_max,
            plans: Plans::default(),
            arenas: Arenas::default(),
            direct: Lanes::new(welcome.neighbours),
            waiting: Waiting::new(backlog),
            segments: shards.into_iter().map(segment).collect(),
            peers: HashMap::new(),
            peers_elsewhere: HashMap::new(),
            recent: None,
            together: CallListBuf::default(),
            outgoing: Record::new(),
            incoming: Record::new(),
            tokens: Vec::with_capacity(NUMBERS_PER_RECORD),
        }
    }

    pub(super) fn segments(&self) -> u16 {
        self.segments.len() as u16
    }

    /// The number of the peer that was named last, if it is this one.
    #[inline]
    pub(super) fn recent_peer(&self, name: &str) -> Option<Peer> {
        self.recent.as_ref().and_then(|(recent, peer)| (*recent == *name).then_some(*peer))
    }

    /// The number of a peer; its shard is told of it before the first use.
    pub(super) fn peer(&mut self, task: &str, name: &str) -> Result<Peer, Unsubmitted> {
        let peer = match self.peers.get(name) {
            Some(peer) => *peer,
            None => {
                let peer = self.introduce(self.serving(task, name), name)?;
                self.peers.insert(name.into(), peer);
                peer
            }
        };
        let (mut recent, _) = self.recent.take().unwrap_or((String::new(), peer));
        recent.clear();
        recent.push_str(name);
        self.recent = Some((recent, peer));
        Ok(peer)
    }

    /// The number of a peer for plans and rows, with the shard that is `stripe` places after the one that serves the pair.
    pub(super) fn pulled_peer(&mut self, task: &str, name: &str, stripe: usize) -> Result<Peer, Unsubmitted> {
        let serving = self.serving(task, name);
        let segment = ((usize::from(serving) + stripe) % self.segments.len()) as u16;
        if segment == serving {
            return self.peer(task, name);
        }
        let key = (segment, name.into());
        if let Some(peer) = self.peers_elsewhere.get(&key) {
            return Ok(*peer);
        }
        let peer = self.introduce(segment, name)?;
        self.peers_elsewhere.insert(key, peer);
        Ok(peer)
    }

    /// The shard that serves the pair with a peer.
    fn serving(&self, task: &str, name: &str) -> u16 {
        lane::shard_of(lane::lane(task, name), self.segments.len()) as u16
    }

    /// Wakes the shard that serves the pair with a peer.
    pub(super) fn doorbell(&self, task: &str, name: &str) -> Arc<Doorbell> {
        self.segments[usize::from(self.serving(task, name))].doorbell.clone()
    }

    fn introduce(&mut self, segment: u16, name: &str) -> Result<Peer, Unsubmitted> {
        if name.len() > NAME_BYTES_MAX {
            let reason = format!("a task's name has at most {NAME_BYTES_MAX} bytes, not {}", name.len());
            return Err(Unsubmitted::Refused(Error::invalid(reason)));
        }
        let known = self.segments[usize::from(segment)].peers;
        let Some(number) = u16::try_from(known).ok().filter(|_| known < PEERS_MAX) else {
            let reason = format!("one shard already knows {PEERS_MAX} peers, the maximum, and {name} is another");
            return Err(Unsubmitted::Refused(Error::full("client peers", reason)));
        };
        self.submit(segment, &Submission::Peer { number, name })?;
        self.segments[usize::from(segment)].peers += 1;
        Ok(Peer { segment, number })
    }

    /// Writes one submission into a segment's ring; false if there is no room, or something else waits for it.
    #[inline]
    pub(super) fn try_submit(&mut self, segment: u16, submission: &Submission<'_>) -> Result<bool, Unsubmitted> {
        submission.encode(&mut self.outgoing).map_err(refused)?;
        let at = &mut self.segments[usize::from(segment)];
        // Nothing overtakes what waits.
        Ok(at.waiting.is_empty() && at.push(&self.outgoing).map_err(Unsubmitted::Fault)?)
    }

    /// Writes one submission into a segment's ring, or queues it if there is no room. [`ring`](Self::ring) tells the shard.
    ///
    /// # Errors
    /// `Full` where nothing waits in this process.
    #[inline]
    pub(super) fn submit(&mut self, segment: u16, submission: &Submission<'_>) -> Result<Way, Unsubmitted> {
        if self.try_submit(segment, submission)? {
            return Ok(Way::Ring);
        }
        self.postpone(segment, submission)
    }

    /// [`submit`](Self::submit) for what may overtake waiting records, since it does not concern them.
    pub(super) fn submit_ahead(&mut self, segment: u16, submission: &Submission<'_>) -> Result<(), Unsubmitted> {
        submission.encode(&mut self.outgoing).map_err(refused)?;
        match self.segments[usize::from(segment)].push(&self.outgoing).map_err(Unsubmitted::Fault)? {
            true => Ok(()),
            false => Err(Unsubmitted::Full),
        }
    }

    /// Wakes sleeping shards that were written to.
    #[inline]
    pub(super) fn ring(&mut self) {
        self.ring_shards();
    }

    /// True if a shard was written to and not rung for, or something waits to be written.
    #[inline]
    pub(super) fn is_for_shards(&self) -> bool {
        !self.waiting.is_empty() || self.segments.iter().any(|segment| segment.unannounced || segment.has_chores())
    }

    #[inline]
    pub(super) fn ring_shards(&mut self) {
        for segment in &mut self.segments {
            if std::mem::take(&mut segment.unannounced) && segment.end.daemon_sleep().must_ring() {
                segment.doorbell.ring();
            }
        }
    }

    /// Cancels a call; if there is no room now, later.
    pub(super) fn cancel(&mut self, segment: u16, call: u32) -> Result<(), Box<str>> {
        self.segments[usize::from(segment)].cancels.push(call);
        self.flush()
    }

    /// Closes a plan, like [`cancel`](Self::cancel).
    pub(super) fn close(&mut self, segment: u16, closing: Closing) -> Result<(), Box<str>> {
        self.segments[usize::from(segment)].closings.push(closing);
        self.flush()
    }

    /// Notes that a wait for a shard was in vain.
    pub(super) fn note_vain_wait(&mut self, segment: u16) {
        let segment = &mut self.segments[usize::from(segment)];
        segment.stood_at = segment.end.submissions.behind();
    }

    /// True if a wait for a shard was in vain, and it has read nothing since.
    pub(super) fn stands_still(&self, segment: u16) -> bool {
        let segment = &self.segments[usize::from(segment)];
        segment.stood_at.is_some() && segment.stood_at == segment.end.submissions.behind()
    }

    /// What the plans take that are open with a shard.
    pub(super) fn plans_of(&mut self, segment: u16) -> &mut Taken {
        &mut self.segments[usize::from(segment)].plans
    }

    /// Queues that are open with a shard.
    pub(super) fn queues_of(&mut self, segment: u16) -> &mut usize {
        &mut self.segments[usize::from(segment)].queues
    }

    /// Grants a shard more of a queue, with the next [`flush`](Self::flush).
    pub(super) fn grant(&mut self, segment: u16, grant: Grant) {
        self.segments[usize::from(segment)].queue_chores.push_back(QueueChore::Grant(grant));
    }

    /// Closes a queue, likewise.
    pub(super) fn close_queue(&mut self, segment: u16, queue: u32) {
        self.segments[usize::from(segment)].queue_chores.push_back(QueueChore::Close(queue));
    }

    /// Tells a shard that a set is complete, likewise.
    pub(super) fn commit(&mut self, segment: u16) {
        self.segments[usize::from(segment)].uncommitted = true;
    }

    /// True if that was not told yet; then the end of the next set tells it.
    pub(super) fn take_uncommitted(&mut self, segment: u16) -> bool {
        std::mem::take(&mut self.segments[usize::from(segment)].uncommitted)
    }

    /// Size of a shard's receive area.
    pub(super) fn area_bytes(&self, segment: u16) -> u64 {
        self.segments[usize::from(segment)].area.len()
    }

    /// True if something waits to be submitted for which no caller waits.
    pub(super) fn has_chores(&self) -> bool {
        self.segments.iter().any(Segment::has_chores)
    }

    /// Submits what no caller waits for: cancels, closed plans, credit, blocks of the receive areas. What finds no
    /// room stays queued.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<(), Box<str>> {
        for index in 0..self.segments() {
            if self.segments[usize::from(index)].has_chores() {
                match self.flush_segment(index) {
                    Ok(()) | Err(Unsubmitted::Full | Unsubmitted::Refused(_)) => {}
                    Err(Unsubmitted::Fault(fault)) => return Err(fault),
                }
            }
        }
        Ok(())
    }

    pub(super) fn flush_segment(&mut self, index: u16) -> Result<(), Unsubmitted> {
        let at = usize::from(index);
        if self.segments[at].uncommitted {
            self.submit(index, &Submission::Commit)?;
            self.segments[at].uncommitted = false;
        }
        while self.segments[at].area.has_piled() {
            let mut tokens = std::mem::take(&mut self.tokens);
            tokens.clear();
            self.segments[at].area.take_piled(NUMBERS_PER_RECORD, &mut tokens);
            let submitted = self.submit_ahead(index, &Submission::Free { tokens: &tokens });
            if submitted.is_err() {
                self.segments[at].area.pile_again(&tokens);
            }
            self.tokens = tokens;
            submitted?;
        }
        while let Some(&call) = self.segments[at].cancels.last() {
            self.submit_ahead(index, &Submission::Cancel { call })?;
            self.segments[at].cancels.pop();
        }
        while let Some(&Closing { plan, taken }) = self.segments[at].closings.last() {
            self.submit(index, &Submission::ClosePlan { plan })?;
            self.segments[at].closings.pop();
            self.segments[at].plans.give_back(taken);
        }
        while let Some(&chore) = self.segments[at].queue_chores.front() {
            let submission = match chore {
                QueueChore::Grant(Grant { queue, tensors, bytes }) => Submission::Grant { queue, tensors, bytes },
                QueueChore::Close(queue) => Submission::CloseQueue { queue },
            };
            self.submit(index, &submission)?;
            self.segments[at].queue_chores.pop_front();
            self.segments[at].queues -= usize::from(matches!(chore, QueueChore::Close(_)));
        }
        Ok(())
    }

    /// Takes in the shards' answers.
    ///
    /// # Errors
    /// What the daemon did that no correct daemon does.
    #[inline]
    pub(super) fn drain(
        &mut self,
        calls: &mut Calls,
        acceptors: &mut Acceptors,
        after: &mut Aftermath,
    ) -> Result<(), Box<str>> {
        let Link { serial, draining, plans, arenas, .. } = self;
        let mut told = Told { serial: *serial, draining, plans, arenas, calls, acceptors };
        for (index, segment) in self.segments.iter_mut().enumerate() {
            if segment.end.completions.is_empty() {
                continue;
            }
            for _ in 0..COMPLETIONS_PER_LOOK {
                match segment.end.completions.pop(&mut self.incoming) {
                    Ok(true) => told.settle(index as u16, &segment.area, &self.incoming, after)?,
                    Ok(false) => break,
                    Err(broken) => return Err(broken.to_string().into()),
                }
            }
            segment.end.completions.publish();
        }
        Ok(())
    }

    /// True if no answer of the daemon waits to be [taken in](Self::drain).
    pub(super) fn has_taken_answers(&self) -> bool {
        self.segments.iter().all(|segment| segment.end.completions.is_empty())
    }

    /// Announces that this side sleeps, and looks once more; false if there is something to do after all.
    /// Unless it sleeps lightly, it is not woken for released sends and known publications.
    pub(super) fn may_sleep(&mut self, sleep: Sleep) -> bool {
        let sleeps = self.segments.iter().map(|segment| segment.end.own_sleep());
        match sleep {
            Sleep::Light => sleeps.for_each(SleepFlag::announce),
            Sleep::Deep | Sleep::Idle => sleeps.for_each(SleepFlag::announce_deep),
        }
        self.direct.announce(sleep);
        let quiet = self.has_taken_answers() && self.direct.is_quiet(sleep);
        if !quiet {
            self.awake();
        }
        quiet
    }

    pub(super) fn awake(&self) {
        self.segments.iter().for_each(|segment| segment.end.own_sleep().awake());
        self.direct.awake();
    }

    /// Says goodbye to the shards that have not heard it, if there is room for it.
    pub(super) fn detach(&mut self) {
        for segment in 0..self.segments() {
            if !self.segments[usize::from(segment)].said_goodbye {
                // A daemon that does not read learns it from the socket, which closes next.
                let said = self.submit_ahead(segment, &Submission::Detach).is_ok();
                self.segments[usize::from(segment)].said_goodbye = said;
            }
        }
        self.ring();
    }
}

/// The error for a field that is too long.
#[cold]
fn refused(field: impl std::fmt::Display) -> Unsubmitted {
    Unsubmitted::Refused(Error::invalid(field.to_string()))
}

impl Segment {
    /// Writes a record into the ring; false if there is no room.
    ///
    /// # Errors
    /// What the daemon did that no correct daemon does.
    #[inline]
    pub(super) fn push(&mut self, record: &Record) -> Result<bool, Box<str>> {
        match self.end.submissions.push(record) {
            Ok(()) => {
                self.unannounced = true;
                Ok(true)
            }
            Err(PushError::Full) => Ok(false),
            Err(PushError::Broken(broken)) => Err(broken.to_string().into()),
        }
    }

    #[inline]
    fn has_chores(&self) -> bool {
        self.uncommitted
            || self.area.has_piled()
            || !self.cancels.is_empty()
            || !self.closings.is_empty()
            || !self.queue_chores.is_empty()
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({}, {:?})", self.daemon, self.ear.as_fd())
    }
}

/// The tables that completions are entered into.
struct Told<'a> {
    serial: u64,
    draining: &'a mut bool,
    plans: &'a mut Plans,
    arenas: &'a mut Arenas,
    calls: &'a mut Calls,
    acceptors: &'a mut Acceptors,
}

impl Told<'_> {
    /// Enters one completion.
    #[inline]
    fn settle(
        &mut self,
        segment: u16,
        area: &Arc<Area>,
        record: &Record,
        after: &mut Aftermath,
    ) -> Result<(), Box<str>> {
        let Told { serial, draining, plans, arenas, calls, acceptors } = self;
        match Completion::decode(record).map_err(|malformed| malformed.to_string())? {
            Completion::Sent { calls: sent } => {
                calls.all_sent(segment, sent, after)?;
            }
            Completion::ArrivedAlone { call, meta, bytes } => {
                calls.received(segment, call, meta, Arrived::Inline(bytes), after)?;
            }
            Completion::Arrived { calls: arrived } => {
                calls.all_received(segment, arrived, after)?;
            }
            Completion::Received { call, meta, payload } => {
                let arrived = match payload {
                    ReceivedAt::Destination { len } => Arrived::Destination(len),
                    ReceivedAt::Area { span, token } => Arrived::Area(area.lend(span, token)?),
                    ReceivedAt::Lending { span, token } => Arrived::Area(area.lend_awaited(span, token)?),
                };
                calls.received(segment, call, meta, arrived, after)?;
            }
            Completion::Accepted { queue, from, meta, payload } => {
                let memory = match payload {
                    AcceptedAt::Inline(bytes) => Buffer::copy_of(bytes),
                    AcceptedAt::Area { span, token } => area.lend(span, token)?,
                };
                acceptors.accepted((*serial, segment, queue), from, (meta, memory), calls, after)?;
            }
            Completion::QueueClosed { queue } => acceptors.closed(*serial, segment, queue)?,
            Completion::Unopened { queue, error } => acceptors.unopened(*serial, queue, error, calls, after),
            Completion::Failed { call, memory_back, error } => {
                calls.failed(segment, call, memory_back, error, after)?;
            }
            Completion::Returned { calls: returned } => {
                returned.iter().try_for_each(|call| calls.returned(segment, *call, after))?;
            }
            Completion::Published { calls: published } => {
                published.iter().try_for_each(|call| calls.published(segment, *call, after))?;
            }
            Completion::Pulled { call } => calls.pulled(segment, call, after)?,
            Completion::Board { plan, span, token } => {
                plans.board(segment, plan, area.lend(span, token)?, after)?;
            }
            Completion::Placed { plan, index, meta, span, token } => {
                let landed = Landed::Here(area.lend(span, token)?);
                plans.placed(segment, plan, index, meta, Some(landed), after)?;
            }
            Completion::Viewed { plan, index, meta, arena, span, token } => {
                let landed = Landed::Elsewhere(Viewable::new(area, arena, span, token));
                plans.placed(segment, plan, index, meta, Some(landed), after)?;
            }
            Completion::ArenaGone { arena } => arenas.gone(arena, after),
            Completion::Reshaped { plan, index, meta } => plans.placed(segment, plan, index, meta, None, after)?,
            Completion::Missed { plan, index, error } => plans.missed(segment, plan, index, error)?,
            Completion::Draining => **draining = true,
        }
        Ok(())
    }
}
