//! Bells over a socket pair and an epoll set, as daemon and client use them.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
    socket::{AddressFamily, SockFlag, SockType, socketpair},
};

use super::{ClientBell, ClientEar, Doorbell, Woken};

/// A wait that must end by itself; not reached.
const LONG: Option<Duration> = Some(Duration::from_secs(60));

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
}

#[test]
fn an_edge_triggered_doorbell_rings_each_time_without_being_read() {
    let doorbell = Doorbell::create().unwrap();
    let client = Doorbell::from(doorbell.duplicate().unwrap());
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    epoll.add(&doorbell, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 5)).unwrap();
    let mut events = [EpollEvent::empty(); 2];
    let mut rung = || epoll.wait(&mut events, EpollTimeout::ZERO).unwrap();
    assert_eq!(rung(), 0);
    for _ in 0..3 {
        client.ring();
        client.ring();
        assert_eq!((rung(), rung()), (1, 0));
    }
}

#[test]
fn a_doorbell_at_its_limit_does_not_block() {
    let doorbell = Doorbell::create().unwrap();
    nix::unistd::write(&doorbell.0, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    doorbell.ring();
}

#[test]
fn a_client_is_woken_once_for_all_that_was_rung() {
    let (daemon, client) = pair();
    let (bell, ear) = (ClientBell::new(Arc::new(daemon)), ClientEar::new(client));
    assert_eq!(ear.wait(Some(Duration::ZERO)).unwrap(), Woken::TimedOut);
    for _ in 0..3 {
        bell.ring();
        bell.clone().ring();
        assert_eq!(ear.wait(LONG).unwrap(), Woken::Rung);
        assert_eq!(ear.wait(Some(Duration::from_nanos(1))).unwrap(), Woken::TimedOut);
    }
    drop(bell);
    assert_eq!(ear.wait(None).unwrap(), Woken::HungUp);
}

#[test]
fn the_last_ring_is_not_lost_when_the_daemon_hangs_up() {
    let (daemon, client) = pair();
    let (bell, ear) = (ClientBell::new(Arc::new(daemon)), ClientEar::new(client));
    bell.ring();
    drop(bell);
    assert_eq!(ear.wait(Some(Duration::MAX)).unwrap(), Woken::HungUp);
    assert_eq!(ear.wait(LONG).unwrap(), Woken::HungUp);
}

#[test]
fn a_client_that_does_not_listen_or_is_gone_does_not_block_the_daemon() {
    let (daemon, client) = pair();
    let bell = ClientBell::new(Arc::new(daemon));
    for _ in 0..10_000 {
        bell.ring();
    }
    let ear = ClientEar::new(client);
    assert_eq!(ear.wait(LONG).unwrap(), Woken::Rung);
    drop(ear);
    bell.ring();
}

#[test]
fn a_client_that_sends_nothing_to_anothers_ear_does_not_close_it_for_all() {
    let (bell, ear) = ClientBell::between_clients().unwrap();
    nix::sys::socket::send(std::os::fd::AsRawFd::as_raw_fd(&*bell.0), &[], nix::sys::socket::MsgFlags::empty())
        .unwrap();
    assert_eq!(ear.wait(LONG).unwrap(), Woken::Rung);
    bell.ring();
    assert_eq!(ear.wait(LONG).unwrap(), Woken::Rung);
    assert_eq!(ear.wait(Some(Duration::ZERO)).unwrap(), Woken::TimedOut);
}

#[test]
fn client_learns_who_has_replaced_it_before_the_daemon_hangs_up() {
    let (daemon, client) = pair();
    let (bell, ear) = (ClientBell::new(Arc::new(daemon)), ClientEar::new(client));
    bell.ring();
    bell.announce_successor(77);
    bell.ring();
    assert_eq!(ear.wait(LONG).unwrap(), Woken::HungUp);
    assert_eq!(ear.successor(), Some(77));
    // A thread that sees only the socket's end finds the announcement too.
    let (daemon, client) = pair();
    let (bell, ear) = (ClientBell::new(Arc::new(daemon)), ClientEar::new(client));
    bell.announce_successor(-1);
    drop(bell);
    assert!(ear.wait_for_end(Duration::from_secs(60)));
    assert_eq!(ear.successor(), Some(-1));
    let (_bell, ear) = pair();
    assert_eq!(ClientEar::new(ear).successor(), None);
}

#[test]
fn other_clients_cannot_announce_a_successor() {
    let (bell, ear) = ClientBell::between_clients().unwrap();
    bell.announce_successor(77);
    assert_eq!(ear.wait(LONG).unwrap(), Woken::Rung);
    assert_eq!(ear.successor(), None);
}
