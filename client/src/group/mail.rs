//! Messages between two ranks: a state machine that moves pieces whenever it is asked to. Under one lock; it never sleeps.
//!
//! On one host, each rank has a mailbox of a few pieces for each other rank, in its own memory. A message is a sequence of pieces, each
//! with its tag and its length; the receiver takes them in order. What nobody here wants stays in the mailbox, so its sender waits; it is
//! moved to memory of this process only when a recv waits for another message of that rank.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    time::{Duration, Instant},
};

use sealane_runtime::copy_bytes;
use sealane_transport::{
    Error,
    shm::group::{GroupWords, MAIL_PIECE_BYTES, MAIL_PIECES, Mailboxes, Word},
};

use self::far::Line;
use super::members::Members;
use crate::group::limits::GROUP_UNEXPECTED_BYTES_MAX;

mod far;

/// The data of a send.
pub(super) type Given = Box<dyn AsRef<[u8]> + Send>;

/// Where a message is received.
pub(super) type Room = Box<dyn AsMut<[u8]> + Send>;

/// How a message ended: the rank that it came from, or went to.
pub(super) type Outcome = Result<usize, Error>;

/// Called with an outcome.
pub(super) type Then = Box<dyn FnOnce(&Outcome) + Send>;

/// The head of each piece: tag, length of the message, and where the piece is in it.
const HEAD: usize = 24;

const PIECE: usize = MAIL_PIECE_BYTES - HEAD;

pub(super) struct Mail {
    members: Arc<Members>,
    boxes: Mailboxes,
    peers: Vec<Peer>,
    /// Recvs without a message so far, oldest first.
    wanted: VecDeque<Wanted>,
    /// Messages that were moved out of the way, oldest first, and their bytes.
    unexpected: VecDeque<Unexpected>,
    unexpected_bytes: usize,
    calls: HashMap<u64, Status>,
    next: u64,
    /// What is left to do once the lock is released.
    aftermath: Aftermath,
}

/// What runs code of the callers', and so is left to whoever releases the lock.
#[derive(Default)]
pub(super) struct Aftermath {
    /// Callbacks to be called with outcomes.
    ended: Vec<(Then, Outcome)>,
    given: Vec<Given>,
    rooms: Vec<Room>,
    /// Callbacks that nobody calls any more.
    unheard: Vec<Then>,
}

impl Aftermath {
    /// Drops what is not needed any more, and calls the callbacks. A panic in one does not affect the others.
    pub(super) fn run(self) {
        let Aftermath { ended, given, rooms, unheard } = self;
        drop((given, rooms, unheard));
        for (then, outcome) in ended {
            let _panicked = panic::catch_unwind(AssertUnwindSafe(|| then(&outcome)));
        }
    }
}

/// Another rank.
#[derive(Default)]
struct Peer {
    sends: VecDeque<Sending>,
    /// Pieces sent, pieces taken, and how often it was notified of either.
    sent: u32,
    taken: u32,
    told: u32,
    arriving: Option<Arriving>,
    /// For a rank on another host.
    line: Line,
}

struct Sending {
    id: u64,
    tag: i64,
    given: Given,
    at: usize,
    /// Some of it is encrypted to be sent, though nothing was sent yet.
    has_begun: bool,
}

struct Wanted {
    id: u64,
    from: Option<usize>,
    tag: i64,
    room: Room,
}

/// A message of which some pieces have come.
struct Arriving {
    tag: i64,
    total: usize,
    at: usize,
    into: Into,
}

enum Into {
    Wanted(u64, Room),
    /// Nobody waits for it.
    Unexpected(Vec<u8>),
    /// Its recv has failed.
    Nothing,
}

struct Unexpected {
    from: usize,
    tag: i64,
    bytes: Vec<u8>,
}

enum Status {
    UnderWay(Option<Then>),
    /// A send whose caller is gone.
    Unasked(Then),
    Ended(Outcome),
}

impl Mail {
    pub(super) fn new(members: Arc<Members>, boxes: Mailboxes) -> Mail {
        Mail {
            peers: (0..members.layout().size()).map(|_| Peer::default()).collect(),
            members,
            boxes,
            wanted: VecDeque::new(),
            unexpected: VecDeque::new(),
            unexpected_bytes: 0,
            calls: HashMap::new(),
            next: 0,
            aftermath: Aftermath::default(),
        }
    }

    /// Enters a send and returns its number. A send to this very rank is copied at once.
    pub(super) fn send(&mut self, given: Given, to: usize, tag: i64) -> u64 {
        let id = self.enter();
        if to == self.members.number() {
            let outcome = self.send_to_self((*given).as_ref(), tag);
            self.aftermath.given.push(given);
            self.end(id, outcome.map(|()| to));
        } else {
            self.peers[to].sends.push_back(Sending { id, tag, given, at: 0, has_begun: false });
        }
        id
    }

    fn send_to_self(&mut self, bytes: &[u8], tag: i64) -> Result<(), Error> {
        let from = self.members.number();
        match self.meet(from, tag, bytes.len()) {
            Some(Into::Wanted(id, mut room)) => {
                copy_bytes((*room).as_mut(), bytes);
                self.aftermath.rooms.push(room);
                self.end(id, Ok(from));
            }
            Some(Into::Nothing) => {}
            // It may also wait for a later recv.
            Some(Into::Unexpected(_)) | None if self.has_room_for(bytes.len()) => {
                self.unexpected_bytes += bytes.len() + HEAD;
                self.unexpected.push_back(Unexpected { from, tag, bytes: bytes.into() });
            }
            Some(Into::Unexpected(_)) | None => {
                let reason = format!("{} bytes of messages wait for their recvs here", self.unexpected_bytes);
                return Err(Error::full("messages to this rank itself", reason));
            }
        }
        Ok(())
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        let with_head = bytes.checked_add(HEAD).and_then(|bytes| bytes.checked_add(self.unexpected_bytes));
        with_head.is_some_and(|bytes| bytes <= GROUP_UNEXPECTED_BYTES_MAX)
    }

    /// Enters a recv from a rank, or from any, and returns its number.
    pub(super) fn recv(&mut self, room: Room, from: Option<usize>, tag: i64) -> u64 {
        let id = self.enter();
        let is_it = |message: &Unexpected| message.tag == tag && from.is_none_or(|from| from == message.from);
        match self.unexpected.iter().position(is_it).and_then(|index| self.unexpected.remove(index)) {
            Some(message) => self.hand_over(message, id, room),
            None => self.wanted.push_back(Wanted { id, from, tag, room }),
        }
        id
    }

    /// Gives a message that was moved out of the way to a recv.
    fn hand_over(&mut self, Unexpected { from, bytes, .. }: Unexpected, id: u64, mut room: Room) {
        self.unexpected_bytes -= bytes.len() + HEAD;
        let outcome = check_length(from, bytes.len(), (*room).as_mut().len());
        if outcome.is_ok() {
            copy_bytes((*room).as_mut(), &bytes);
        }
        self.aftermath.rooms.push(room);
        self.end(id, outcome.map(|()| from));
    }

    /// Takes the first recv that matches a message which is here or begins to arrive.
    fn take_wanted(&mut self, from: usize, tag: i64) -> Option<Wanted> {
        let is_for = |wanted: &Wanted| wanted.tag == tag && wanted.from.is_none_or(|wanted| wanted == from);
        let index = self.wanted.iter().position(is_for)?;
        self.wanted.remove(index)
    }

    fn enter(&mut self) -> u64 {
        self.next += 1;
        self.calls.insert(self.next, Status::UnderWay(None));
        self.next
    }

    fn end(&mut self, id: u64, outcome: Outcome) {
        match self.calls.remove(&id) {
            Some(Status::UnderWay(then)) => {
                self.aftermath.ended.extend(then.map(|then| (then, outcome.clone())));
                self.calls.insert(id, Status::Ended(outcome));
            }
            Some(Status::Unasked(then)) => self.aftermath.ended.push((then, outcome)),
            // Nobody asks any more.
            Some(Status::Ended(_)) | None => {}
        }
    }

    /// A call's outcome; can be taken once.
    pub(super) fn take(&mut self, id: u64) -> Option<Outcome> {
        let outcome = self.look(id)?.clone();
        self.calls.remove(&id);
        Some(outcome)
    }

    /// A call's outcome, if it has ended.
    pub(super) fn look(&self, id: u64) -> Option<&Outcome> {
        match self.calls.get(&id)? {
            Status::UnderWay(_) | Status::Unasked(_) => None,
            Status::Ended(outcome) => Some(outcome),
        }
    }

    /// Has `then` called with the outcome; at once if the call has ended.
    pub(super) fn then(&mut self, id: u64, then: Then) {
        match self.calls.get_mut(&id) {
            Some(Status::UnderWay(waits)) => self.aftermath.unheard.extend(waits.replace(then)),
            Some(Status::Ended(outcome)) => self.aftermath.ended.push((then, outcome.clone())),
            Some(Status::Unasked(_)) | None => self.aftermath.unheard.push(then),
        }
    }

    pub(super) fn take_aftermath(&mut self) -> Aftermath {
        mem::take(&mut self.aftermath)
    }

    /// The caller of a call is gone: a send goes on, and its callback is called; a recv is withdrawn, and what arrives for it is nobody's.
    pub(super) fn forget(&mut self, id: u64) {
        let Some(Status::UnderWay(then)) = self.calls.remove(&id) else { return };
        if let Some(index) = self.wanted.iter().position(|wanted| wanted.id == id) {
            self.aftermath.rooms.extend(self.wanted.remove(index).map(|wanted| wanted.room));
        }
        for arriving in self.peers.iter_mut().filter_map(|peer| peer.arriving.as_mut()) {
            if matches!(&arriving.into, Into::Wanted(wanted, _) if *wanted == id)
                && let Into::Wanted(_, room) = mem::replace(&mut arriving.into, Into::Nothing)
            {
                self.aftermath.rooms.push(room);
            }
        }
        let is_send = self.peers.iter().any(|peer| peer.sends.iter().any(|sending| sending.id == id));
        match then {
            Some(then) if is_send => drop(self.calls.insert(id, Status::Unasked(then))),
            then => self.aftermath.unheard.extend(then),
        }
    }

    /// True while something is to be sent or received.
    pub(super) fn is_busy(&self) -> bool {
        !self.wanted.is_empty() || self.peers.iter().any(|peer| !peer.sends.is_empty() || peer.arriving.is_some())
    }

    /// Moves what can be moved. True if anything was.
    pub(super) fn advance(&mut self) -> bool {
        if !self.is_busy() {
            return false;
        }
        let mut moved = false;
        let own = self.members.number();
        self.accept_awaited();
        for rank in (0..self.peers.len()).filter(|rank| *rank != own) {
            let Some(place) = self.members.layout().local(rank) else {
                moved |= self.advance_far(rank);
                continue;
            };
            let told = self.advance_sends(rank, place) | self.advance_recvs(rank, place);
            if told {
                self.tell(rank, place);
            }
            moved |= told;
        }
        moved
    }

    /// Sends to a rank of this host, by its place.
    fn advance_sends(&mut self, to: usize, place: usize) -> bool {
        let Mail { members, boxes, peers, .. } = self;
        let (Peer { sends, sent, .. }, theirs) = (&mut peers[to], &members.other(place).words);
        let mut over = Vec::new();
        let before = *sent;
        // At most what fits at once, so that the lock is held only for a moment.
        while sent.wrapping_sub(before) < MAIL_PIECES as u32
            && let Some(sending) = sends.front_mut()
            && sent.wrapping_sub(theirs.load(Word::Taken(members.rank))) < MAIL_PIECES as u32
        {
            let bytes = (*sending.given).as_ref();
            let piece = boxes.piece(place, *sent);
            let part = &bytes[sending.at..bytes.len().min(sending.at + PIECE)];
            piece[..8].copy_from_slice(&sending.tag.to_ne_bytes());
            piece[8..16].copy_from_slice(&(bytes.len() as u64).to_ne_bytes());
            piece[16..HEAD].copy_from_slice(&(sending.at as u64).to_ne_bytes());
            copy_bytes(&mut piece[HEAD..][..part.len()], part);
            sending.at += part.len();
            *sent = sent.wrapping_add(1);
            members.own().store(Word::Sent(place), *sent);
            if sending.at == bytes.len() {
                over.extend(sends.pop_front());
            }
        }
        let moved = *sent != before;
        for Sending { id, given, .. } in over {
            self.aftermath.given.push(given);
            self.end(id, Ok(to));
        }
        moved
    }

    fn advance_recvs(&mut self, from: usize, place: usize) -> bool {
        let members = self.members.clone();
        let theirs = members.other(place);
        let before = self.peers[from].taken;
        let sent = theirs.words.load(Word::Sent(members.rank));
        if sent.wrapping_sub(before) > MAIL_PIECES as u32 {
            members.fail(Error::unavailable(
                &format!("rank {from}"),
                "it says that it has sent more than there is room for",
            ));
            return false;
        }
        while self.peers[from].taken != sent {
            let taken = self.peers[from].taken;
            let piece = theirs.piece(members.rank, taken);
            let word = |at: usize| u64::from_ne_bytes(piece[at..at + 8].try_into().expect("eight bytes"));
            // Each word is read once, before it is checked.
            let (tag, total, at) = (word(0) as i64, word(8), word(16));
            let total = usize::try_from(total).unwrap_or(usize::MAX);
            if self.peers[from].arriving.is_none() && !self.begin_arriving(from, tag, total) {
                break;
            }
            let Some(arriving) = &mut self.peers[from].arriving else { break };
            if (arriving.tag, arriving.total, arriving.at as u64) != (tag, total, at) {
                let error = Error::unavailable(
                    &format!("rank {from}"),
                    "it sends pieces of messages that do not belong together",
                );
                members.fail(error);
                break;
            }
            let part = &piece[HEAD..][..PIECE.min(arriving.total - arriving.at)];
            match &mut arriving.into {
                Into::Wanted(_, room) => copy_bytes(&mut (**room).as_mut()[arriving.at..][..part.len()], part),
                Into::Unexpected(bytes) => bytes.extend_from_slice(part),
                Into::Nothing => {}
            }
            arriving.at += part.len();
            let is_whole = arriving.at == arriving.total;
            let taken = taken.wrapping_add(1);
            self.peers[from].taken = taken;
            members.own().store(Word::Taken(place), taken);
            if is_whole {
                self.arrived(from);
            }
        }
        self.peers[from].taken != before
    }

    /// Begins to receive a message; false if it stays where it is.
    fn begin_arriving(&mut self, from: usize, tag: i64, total: usize) -> bool {
        let Some(into) = self.meet(from, tag, total) else { return false };
        if matches!(into, Into::Unexpected(_)) {
            self.unexpected_bytes += total + HEAD;
        }
        self.peers[from].arriving = Some(Arriving { tag, total, at: 0, into });
        true
    }

    /// Handles a message that has come whole.
    fn arrived(&mut self, from: usize) {
        let Some(Arriving { tag, into, .. }) = self.peers[from].arriving.take() else { return };
        match into {
            Into::Wanted(id, room) => {
                self.aftermath.rooms.push(room);
                self.end(id, Ok(from));
            }
            Into::Unexpected(bytes) => {
                let message = Unexpected { from, tag, bytes };
                // A recv for it may have come while it arrived.
                match self.take_wanted(from, tag) {
                    Some(Wanted { id, room, .. }) => self.hand_over(message, id, room),
                    None => self.unexpected.push_back(message),
                }
            }
            Into::Nothing => {}
        }
    }

    /// Where a message goes that begins to arrive; `None` if it stays in the mailbox.
    fn meet(&mut self, from: usize, tag: i64, total: usize) -> Option<Into> {
        if let Some(Wanted { id, mut room, .. }) = self.take_wanted(from, tag) {
            return Some(match check_length(from, total, (*room).as_mut().len()) {
                Ok(()) => Into::Wanted(id, room),
                Err(error) => {
                    self.aftermath.rooms.push(room);
                    self.end(id, Err(error));
                    Into::Nothing
                }
            });
        }
        let waits_for = |wanted: &Wanted| wanted.from.is_none_or(|wanted| wanted == from);
        (self.wanted.iter().any(waits_for) && self.has_room_for(total)).then(|| Into::Unexpected(Vec::new()))
    }

    fn tell(&mut self, rank: usize, place: usize) {
        let peer = &mut self.peers[rank];
        peer.told = peer.told.wrapping_add(1);
        self.members.own().store(Word::Told(place), peer.told);
        // SLEEP: see `Members::tell`.
        fence(Ordering::SeqCst);
        if self.members.other(place).words.load(Word::Listens) != 0 {
            self.members.own().wake(Word::Told(place));
        }
    }

    /// The notification counters of others of this host, to sleep by.
    pub(super) fn told(&self) -> Vec<(GroupWords, Word, u32)> {
        let word = Word::Told(self.members.rank);
        let words = |rank: usize| {
            let words = self.members.other(rank).words.clone();
            let seen = words.load(word);
            (words, word, seen)
        };
        self.members.others().map(words).collect()
    }

    /// Ends calls that cannot complete: all if the group has ended, else those that need a rank that is gone.
    pub(super) fn look_around(&mut self) {
        let checked = self.members.check().and_then(|()| self.members.check_others());
        if let Err(error) = checked.and_then(|()| self.members.check_far()) {
            return self.end_all(&error);
        }
        if let Some(network) = self.members.network() {
            network.accept();
        }
        if !self.is_busy() {
            return;
        }
        if self.members.network().is_some() {
            // What has come tells whether more is to come.
            self.advance();
            self.end_sends_to_gone();
        }
        let own = self.members.number();
        let has_gone = |rank: usize| match self.members.layout().local(rank) {
            Some(place) => self.members.has_gone(place),
            None => self.has_gone_far(rank),
        };
        let others = (0..self.peers.len()).filter(|rank| *rank != own);
        let gone: HashMap<usize, Error> = others.filter_map(|rank| Some((rank, has_gone(rank)?))).collect();
        if gone.is_empty() {
            return;
        }
        // What they sent before they went counts.
        self.advance();
        for (rank, error) in &gone {
            self.end_peer(*rank, error);
        }
        let others = self.peers.len() - 1;
        for wanted in mem::take(&mut self.wanted) {
            let error = match wanted.from {
                Some(from) => gone.get(&from),
                None => gone.values().next().filter(|_| gone.len() == others),
            };
            match error {
                Some(error) => {
                    self.aftermath.rooms.push(wanted.room);
                    self.end(wanted.id, Err(error.clone()));
                }
                None => self.wanted.push_back(wanted),
            }
        }
    }

    /// Ends everything in progress to and from a rank.
    fn end_peer(&mut self, rank: usize, error: &Error) {
        for Sending { id, given, .. } in mem::take(&mut self.peers[rank].sends) {
            self.aftermath.given.push(given);
            self.end(id, Err(error.clone()));
        }
        match self.peers[rank].arriving.take() {
            Some(Arriving { into: Into::Wanted(id, room), .. }) => {
                self.aftermath.rooms.push(room);
                self.end(id, Err(error.clone()));
            }
            Some(Arriving { into: Into::Unexpected(_), total, .. }) => self.unexpected_bytes -= total + HEAD,
            Some(Arriving { into: Into::Nothing, .. }) | None => {}
        }
    }

    /// Ends everything in progress.
    pub(super) fn end_all(&mut self, error: &Error) {
        (0..self.peers.len()).for_each(|rank| self.end_peer(rank, error));
        self.peers.iter_mut().for_each(|peer| peer.line.close());
        for Wanted { id, room, .. } in mem::take(&mut self.wanted) {
            self.aftermath.rooms.push(room);
            self.end(id, Err(error.clone()));
        }
    }

    /// A call has timed out. A message that has begun to move cannot be taken back: then the group ends.
    pub(super) fn give_up(&mut self, id: u64, after: Duration) {
        let Some(Status::UnderWay(_)) = self.calls.get(&id) else { return };
        let mut reason = format!("the message has Timed out after {after:?}");
        if let Some(index) = self.wanted.iter().position(|wanted| wanted.id == id) {
            let wanted = self.wanted.remove(index);
            let from = wanted.as_ref().and_then(|wanted| wanted.from);
            self.aftermath.rooms.extend(wanted.map(|wanted| wanted.room));
            reason += &match from {
                Some(from) => format!(": rank {from} has sent nothing of that tag"),
                None => ": no rank has sent anything of that tag".into(),
            };
            return self.end(id, Err(Error::TimedOut { reason: reason.into() }));
        }
        let untouched = self.peers.iter_mut().enumerate().find_map(|(rank, peer)| {
            let index =
                peer.sends.iter().position(|sending| sending.id == id && sending.at == 0 && !sending.has_begun)?;
            peer.sends.remove(index).map(|sending| (rank, sending.given))
        });
        match untouched {
            Some((rank, given)) => {
                self.aftermath.given.push(given);
                reason += &format!(": rank {rank} does not receive");
                self.end(id, Err(Error::TimedOut { reason: reason.into() }));
            }
            None => {
                reason += " in the middle of a message, which ends the group";
                let error = self.members.fail(Error::TimedOut { reason: reason.into() });
                self.end_all(&error);
            }
        }
    }
}

fn check_length(from: usize, given: usize, room: usize) -> Result<(), Error> {
    if given == room {
        return Ok(());
    }
    Err(Error::invalid(format!("rank {from} has sent {given} bytes to a recv of {room}: both must be of one size")))
}

/// The deadline of a call that begins now.
pub(super) fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    // A time that the clock cannot hold counts as none.
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}
