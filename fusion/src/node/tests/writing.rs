//! How much is sent at once.

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use sealane_transport::LinkKind;
use sealane_transport::error::LinkError;
use sealane_transport::outbox::Outbox;

use super::*;
use crate::limits::TRANSMIT_BUDGET_BYTES;

/// A link that takes everything it may, like a fast network with a fast reader.
struct FastLink {
    link: LoopbackLink,
    /// Once set, nobody reads what it takes.
    fast: Rc<Cell<bool>>,
    /// What each call since then took.
    taken: Rc<RefCell<Vec<usize>>>,
}

impl Link for FastLink {
    fn kind(&self) -> LinkKind {
        self.link.kind()
    }

    fn transmit(&mut self, outbox: &mut Outbox, budget: usize, more_follows: bool) -> Result<usize, LinkError> {
        if !self.fast.get() {
            return self.link.transmit(outbox, budget, more_follows);
        }
        let count = outbox.pending_bytes().min(budget);
        outbox.advance(count);
        self.taken.borrow_mut().push(count);
        Ok(count)
    }

    fn receive(&mut self, receiver: &mut dyn Receiver, budget: usize) -> Result<usize, LinkError> {
        self.link.receive(receiver, budget)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn abandon(&mut self, outbox: &mut Outbox) -> Vec<Landing> {
        self.link.abandon(outbox)
    }
}

#[test]
fn a_link_that_takes_everything_gets_its_share_a_turn_and_is_not_waited_for() {
    let mut net = Net::pair();
    let tensor = 2 * TRANSMIT_BUDGET_BYTES + 1000;
    let _sent = net.send((0, "ps:1"), "worker:1", "w", &vec![1; tensor]);
    let _asked = net.recv((1, "worker:1"), "ps:1", "w");
    let (calling, hello) = net.dialing(1);
    let Answer::Welcome { peer } = net.nodes[0].called(net.now, 0, &hello) else { panic!("a caller is welcome") };
    let (mut mine, link) = loopback();
    let (fast, taken) = (Rc::<Cell<bool>>::default(), Rc::<RefCell<Vec<usize>>>::default());
    let theirs = FastLink { link, fast: fast.clone(), taken: taken.clone() };
    net.nodes[0].accepted(net.now, peer, Box::new(theirs), &hello);
    net.nodes[0].turn(net.now);
    let mut ear = Ear(None);
    mine.receive(&mut ear, usize::MAX).unwrap();
    let Some(Greeting::Welcome(welcome)) = ear.0 else { panic!("the welcome comes first") };
    net.nodes[1].dialed(net.now, calling, Box::new(mine), &welcome);
    net.nodes[1].turn(net.now);

    fast.set(true);
    let taken_in_turn = |net: &mut Net| {
        net.nodes[0].turn(net.now);
        taken.borrow_mut().drain(..).sum::<usize>()
    };
    for _ in 1..=2 {
        assert_eq!(taken_in_turn(&mut net), TRANSMIT_BUDGET_BYTES);
        assert!(net.nodes[0].blocked().is_empty(), "there is no need to wait until it is writable");
        assert!(net.nodes[0].has_work(), "the rest leaves in the next turn");
    }
    let last = taken_in_turn(&mut net);
    assert!((1000..2000).contains(&last), "{last} bytes are the rest of the tensor and the headers");
    assert!(!net.nodes[0].has_work());
}

/// A link that takes nothing.
struct FullLink(LoopbackLink);

impl Link for FullLink {
    fn kind(&self) -> LinkKind {
        self.0.kind()
    }

    fn transmit(&mut self, _: &mut Outbox, _: usize, _: bool) -> Result<usize, LinkError> {
        Ok(0)
    }

    fn receive(&mut self, receiver: &mut dyn Receiver, budget: usize) -> Result<usize, LinkError> {
        self.0.receive(receiver, budget)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn abandon(&mut self, outbox: &mut Outbox) -> Vec<Landing> {
        self.0.abandon(outbox)
    }
}

#[test]
fn a_link_that_takes_nothing_is_tried_once_a_turn_also_where_the_one_before_took_nothing() {
    let mut net = Net::pair();
    let _asked = net.recv((1, "worker:1"), "ps:1", "w");
    let (_, hello) = net.dialing(1);
    for epoch in [hello.epoch, hello.epoch + 100] {
        let hello = Hello { epoch, ..hello.clone() };
        let Answer::Welcome { peer } = net.nodes[0].called(net.now, 0, &hello) else { panic!("a caller is welcome") };
        net.nodes[0].accepted(net.now, peer, Box::new(FullLink(loopback().0)), &hello);
        net.nodes[0].turn(net.now);
        assert_eq!(net.nodes[0].blocked(), [peer]);
        net.nodes[0].check_invariants();
    }
}
