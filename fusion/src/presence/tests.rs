//! Both halves of the protocol against each other, in every order: a task comes and goes, a request is made, frames arrive, and links are
//! lost, each a few times.

use std::collections::{HashSet, VecDeque};

use super::*;

const TASK: u16 = 0;
/// How often a task attaches, a link is lost, and the daemon drains.
const COMES: u32 = 3;
const LOSSES: u8 = 2;
const DRAINS: u8 = 1;

/// The request's state at the consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Request {
    Unborn,
    /// Waiting to be sent on the link.
    Queued,
    Sent,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Word {
    Parked(u32),
    Failure,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    presence: Presence,
    /// The number of the current attachment.
    here: Option<u32>,
    comes: u32,
    /// Whether a process has left that was not expected back, and (`has_moved`) whether one was lost in a drain.
    has_left: bool,
    has_moved: bool,
    linked: bool,
    losses: u8,
    drains: u8,
    /// Requests and (`said`) answers on their way.
    asked: VecDeque<IfGone>,
    said: VecDeque<Word>,
    is_parked: bool,
    request: Request,
    if_gone: IfGone,
}

impl World {
    fn new(if_gone: IfGone) -> World {
        World {
            presence: Presence::default(),
            here: None,
            comes: 0,
            has_left: false,
            has_moved: false,
            linked: true,
            losses: 0,
            drains: 0,
            asked: VecDeque::new(),
            said: VecDeque::new(),
            is_parked: false,
            request: Request::Unborn,
            if_gone,
        }
    }

    /// All worlds that may follow.
    fn next(&self) -> Vec<World> {
        let steps: [fn(&mut World) -> bool; 9] = [
            World::make_request,
            World::send,
            World::hear_request,
            World::hear_word,
            World::come,
            World::leave,
            World::drain,
            World::lose_link,
            World::link,
        ];
        let step = |step: &fn(&mut World) -> bool| {
            let mut next = self.clone();
            step(&mut next).then_some(next)
        };
        steps.iter().filter_map(step).collect()
    }

    fn make_request(&mut self) -> bool {
        let is_first = self.request == Request::Unborn;
        if is_first {
            self.request = Request::Queued;
        }
        is_first
    }

    fn send(&mut self) -> bool {
        let sends = self.linked && self.request == Request::Queued;
        if sends {
            self.request = Request::Sent;
            self.asked.push_back(self.if_gone);
        }
        sends
    }

    fn hear_request(&mut self) -> bool {
        let Some(if_gone) = self.asked.pop_front() else { return false };
        match self.presence.admit(TASK, if_gone) {
            Ok(attachment) => {
                self.is_parked = true;
                self.said.push_back(Word::Parked(attachment));
            }
            Err(_) => {
                // Nobody is told that a process has gone that is still there.
                let waited = if_gone.attachment();
                assert!(self.here.is_none() || (waited != 0 && self.here != Some(waited)), "{self:?}");
                self.said.push_back(Word::Failure);
            }
        }
        true
    }

    fn hear_word(&mut self) -> bool {
        let Some(word) = self.said.pop_front() else { return false };
        match word {
            Word::Parked(attachment) => self.if_gone.told(attachment),
            Word::Failure => self.request = Request::Failed,
        }
        true
    }

    fn come(&mut self) -> bool {
        if self.here.is_some() || self.comes == COMES {
            return false;
        }
        self.comes += 1;
        let number = self.presence.came(TASK);
        assert_eq!(number, self.comes);
        self.here = Some(number);
        if self.is_parked && self.if_gone.fails() {
            self.said.push_back(Word::Parked(number));
        }
        true
    }

    fn leave(&mut self) -> bool {
        if self.here.take().is_none() {
            return false;
        }
        let was_moving = self.presence.seats[0].state == State::Moving;
        (self.has_left, self.has_moved) = (self.has_left || !was_moving, self.has_moved || was_moving);
        self.presence.left(TASK, "it was killed");
        if std::mem::take(&mut self.is_parked) {
            self.said.push_back(Word::Failure);
        }
        true
    }

    /// The daemon drains, then serves again. Waiting requests are refused.
    fn drain(&mut self) -> bool {
        if self.drains == DRAINS || self.is_parked || !self.asked.is_empty() {
            return false;
        }
        self.drains += 1;
        self.presence.expect_all_again();
        true
    }

    fn lose_link(&mut self) -> bool {
        if !self.linked || self.losses == LOSSES {
            return false;
        }
        (self.linked, self.is_parked, self.losses) = (false, false, self.losses + 1);
        (self.asked, self.said) = (VecDeque::new(), VecDeque::new());
        if self.request == Request::Sent {
            self.request = Request::Queued;
        }
        true
    }

    fn link(&mut self) -> bool {
        !std::mem::replace(&mut self.linked, true)
    }

    fn check(&self) {
        if self.request == Request::Failed {
            assert!(self.has_left || self.has_moved, "failed for a task that never left: {self:?}");
            let waited = self.if_gone.attachment();
            assert!(waited == 0 || self.here != Some(waited), "its own process is there: {self:?}");
        }
        let at_rest = self.linked && self.request == Request::Sent && self.asked.is_empty() && self.said.is_empty();
        if at_rest && self.if_gone.fails() {
            // It waits for the process that is there, or for the first that comes; never for the successor of one that was there.
            assert!(self.is_parked, "nobody would end it: {self:?}");
            assert_eq!(self.if_gone.attachment(), self.here.unwrap_or(0), "{self:?}");
            assert!(self.here.is_some() || !self.has_left || self.has_moved, "it waits for who has left: {self:?}");
        }
    }
}

/// All reachable worlds.
fn explore(if_gone: IfGone) -> HashSet<World> {
    let mut seen = HashSet::new();
    let mut open = vec![World::new(if_gone)];
    while let Some(world) = open.pop() {
        if seen.contains(&world) {
            continue;
        }
        world.check();
        open.extend(world.next());
        seen.insert(world);
    }
    seen
}

#[test]
fn in_every_order_a_request_ends_with_its_task_and_never_without() {
    let worlds = explore(IfGone::new(true));
    let is_there = |pick: &dyn Fn(&World) -> bool| assert!(worlds.iter().any(pick), "{} worlds", worlds.len());
    is_there(&|world| world.request == Request::Failed && world.here.is_none());
    // The consumer knew its process, which went and came back while a link was lost.
    is_there(&|world| world.request == Request::Failed && world.here.is_some() && world.losses > 0);
    is_there(&|world| world.is_parked && world.here.is_some() && world.has_left);
    is_there(&|world| world.is_parked && world.here.is_none() && world.has_moved);
}

#[test]
fn a_plain_request_ends_only_with_a_task_that_leaves_while_it_waits() {
    let worlds = explore(IfGone::Waits);
    assert!(worlds.iter().any(|world| world.is_parked && world.has_left && world.here.is_none()));
}

#[test]
fn a_task_of_which_nothing_is_known_is_waited_for() {
    let mut presence = Presence::default();
    presence.came(3);
    assert_eq!(presence.admit(7, IfGone::new(true)), Ok(0), "no place in the table");
    assert_eq!(presence.admit(2, IfGone::new(true)), Ok(0), "a place, and nobody yet");
    assert_eq!(presence.admit(2, IfGone::Fails { attachment: 1 }), Err("its daemon was drained"));
    presence.left(3, &"x".repeat(10_000));
    let reason = presence.admit(3, IfGone::new(true)).unwrap_err();
    assert_eq!(reason.len(), crate::limits::ENDED_REASON_BYTES);
}
