//! Groups whose ranks are on several simulated hosts: they share no memory, and connect over loopback.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Barrier,
    thread,
    time::Duration,
};

use sealane_transport::{
    Error,
    authentication::{Authentication, Authority},
};

use super::{InMemory, LIMIT, Shared, bytes, collective, on, ranks_by, ranks_on, ranks_with, receive};
use crate::group::{
    Group, GroupOptions, Store,
    hosts::address::{Reach, decode, encode},
};

#[test]
fn messages_move_while_nobody_waits_and_collectives_go_on() {
    ranks_on(&[0, 1], |group| {
        let shared = Shared::new(4 << 20);
        let pending = match group.rank() {
            0 => group.send(bytes(4 << 20, 0, 0), 1, 3).unwrap(),
            _ => group.recv(super::Room(shared.clone(), vec![0; 4 << 20]), Some(0), 3).unwrap(),
        };
        (0..50).for_each(|_| group.barrier(LIMIT).unwrap());
        while pending.outcome().is_none() {
            thread::yield_now();
        }
        pending.wait(LIMIT).unwrap();
        assert!(group.rank() == 0 || shared.bytes() == bytes(4 << 20, 0, 0));
        group.barrier(LIMIT).unwrap();
    });
}

#[test]
fn what_a_rank_has_sent_before_it_left_arrives() {
    ranks_on(&[0, 1], |group| {
        if group.rank() == 0 {
            // More than any system buffer holds: sent once the other side has most of it.
            group.send(bytes(8 << 20, 0, 0), 1, 3).unwrap().wait(LIMIT).unwrap();
        } else {
            assert_eq!(receive(&group, 8 << 20, Some(0), 3).1, bytes(8 << 20, 0, 0));
            let error = group.recv(vec![0; 8], Some(0), 4).unwrap().wait(LIMIT).unwrap_err();
            assert!(error.to_string().contains("rank 0 has left"), "{error}");
        }
    });
    ranks_on(&[0, 1, 1], |group| {
        let mut data = bytes(3 << 20, group.rank(), 0);
        group.broadcast(&mut data, 0, LIMIT).unwrap();
        assert_eq!(data, bytes(3 << 20, 0, 0));
    });
}

#[test]
fn ranks_that_leave_after_their_last_call_disturb_nobody() {
    for hosts in [&[0, 1][..], &[0, 0, 1, 1], &[0, 1, 1, 1]] {
        for round in 0..30 {
            ranks_on(hosts, |group| match round % 3 {
                // Leaves at once: the others may still be meeting.
                0 => {}
                1 => collective(&group, 6, 300_000),
                _ => collective(&group, 7 + 9 * (round % hosts.len()), 300_000),
            });
        }
    }
}

#[test]
fn hosts_of_which_none_reads_another_hear_at_their_next_call_that_they_differ() {
    let errors = ranks_on(&[0, 1], |group| {
        group.broadcast(&mut [0; 64], group.rank(), LIMIT).unwrap();
        group.barrier(LIMIT).unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("must make the same calls in the same order"), "{error}");
    }
}

#[test]
fn a_send_ends_though_a_message_of_the_rank_that_left_is_still_there() {
    let left = Barrier::new(2);
    ranks_on(&[0, 1], |group| {
        if group.rank() == 1 {
            // The second fits into the system's buffers, so it is sent although nobody receives it.
            group.send(vec![7; 8], 0, 2).unwrap().wait(LIMIT).unwrap();
            group.send(vec![7; 8], 0, 1).unwrap().wait(LIMIT).unwrap();
            drop(group);
            left.wait();
            return;
        }
        receive(&group, 8, Some(1), 2);
        left.wait();
        let error = group.send(vec![0; 8 << 20], 1, 1).unwrap().wait(LIMIT).unwrap_err();
        assert!(error.to_string().contains("rank 1 has left"), "{error}");
    });
}

#[test]
fn a_recv_hears_that_a_rank_left_which_it_has_no_other_connection_with() {
    // Ranks 1 and 2 are not counterparts.
    ranks_on(&[0, 0, 1], |group| {
        group.barrier(LIMIT).unwrap();
        if group.rank() == 1 {
            let error = group.recv(vec![0; 8], Some(2), 4).unwrap().wait(LIMIT).unwrap_err();
            assert!(error.to_string().contains("rank 2 has left"), "{error}");
        }
    });
}

fn secret(text: &str) -> Authentication {
    Authentication::secret_bytes(text.as_bytes()).unwrap()
}

#[test]
fn ranks_with_one_secret_meet_and_others_do_not() {
    let same = "the same secret of the whole job, long enough";
    let with = |_, options| GroupOptions { authentication: secret(same), ..options };
    for outcome in ranks_with(&[0, 1, 1], with, |group| collective(&group, 2, 300_000)) {
        outcome.unwrap();
    }
    // A wrong secret is retried until the limit; a limit too short for a loaded machine gives a different error.
    let mut limit = Duration::from_millis(250);
    loop {
        let with = |rank, options: GroupOptions| GroupOptions {
            limit,
            authentication: if rank == 0 { secret(same) } else { secret("another secret, as long as that one") },
            ..options
        };
        let errors: Vec<String> =
            ranks_with(&[0, 1], with, |_| ()).into_iter().map(|end| end.unwrap_err().to_string()).collect();
        let is_said = |(rank, error): (usize, &String)| {
            error.contains(&format!("rank {} ", 1 - rank)) && error.contains("secret")
        };
        if errors.iter().enumerate().all(is_said) {
            break;
        }
        assert!(limit < LIMIT.unwrap(), "{errors:?}");
        limit *= 2;
    }
}

#[test]
fn with_certificates_of_one_authority_every_collective_gives_what_it_should() {
    let certificate = |authority: &Authority| {
        let until = std::time::SystemTime::now() + Duration::from_secs(3600);
        let certified = authority.certify(&["rank:1".parse().unwrap()], until).unwrap();
        Authentication::certified(&authority.certificate(), &certified).unwrap()
    };
    let authority = Authority::new().unwrap();
    let with = |_, options| GroupOptions { authentication: certificate(&authority), ..options };
    // No piece leaves at once, so each waits for data that another has not sent yet.
    for hosts in [&[0, 0, 1, 1][..], &[0, 1, 1]] {
        let all = ranks_with(hosts, with, |group| {
            for (index, len) in super::SIZES.into_iter().enumerate() {
                (0..9).for_each(|number| collective(&group, 9 * (index + number % 5) + number, len));
                let len = 4 * len;
                collective(&group, 9 * index + 4, len);
            }
            let next = (group.rank() + 1) % group.size();
            let send = group.send(bytes(3 << 20, group.rank(), 0), next, 1).unwrap();
            let (from, came) = receive(&group, 3 << 20, None, 1);
            assert_eq!(came, bytes(3 << 20, from, 0));
            send.wait(LIMIT).unwrap();
            group.barrier(LIMIT).unwrap();
        });
        all.into_iter().for_each(Result::unwrap);
    }
    let other = Authority::new().unwrap();
    let with = |rank, options: GroupOptions| GroupOptions {
        limit: Duration::from_millis(500),
        authentication: certificate(if rank == 0 { &authority } else { &other }),
        ..options
    };
    for outcome in ranks_with(&[0, 1], with, |_| ()) {
        outcome.unwrap_err();
    }
}

/// A store that adds other sockets in front of a rank's own.
struct Elsewhere(InMemory, Vec<std::net::SocketAddr>);

impl Store for Elsewhere {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        match decode::<Reach>(0, value) {
            Ok(reach) => {
                let sockets = self.1.iter().chain(&reach.sockets).copied().collect();
                self.0.set(key, &encode(&Reach::new(reach.token, sockets)))
            }
            Err(_) => self.0.set(key, value),
        }
    }

    fn get(&self, key: &str, limit: Duration) -> Result<Vec<u8>, Error> {
        self.0.get(key, limit)
    }
}

/// Forwards a new address to `to`, in small parts and through small buffers: senders often find no room.
fn narrow(to: std::net::SocketAddr) -> std::net::SocketAddr {
    fn pass_on(mut from: TcpStream, mut to: TcpStream) {
        let mut part = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut part)
            && to.write_all(&part[..count]).is_ok()
        {}
        let _ = to.shutdown(std::net::Shutdown::Write);
    }
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.set_recv_buffer_size(4096).unwrap();
    listener.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    listener.listen(16).unwrap();
    let listener = std::net::TcpListener::from(listener);
    let address = listener.local_addr().unwrap();
    // Ends with the test process.
    thread::spawn(move || {
        while let Ok((from, _)) = listener.accept() {
            let there = TcpStream::connect(to).unwrap();
            let (back_from, back_to) = (there.try_clone().unwrap(), from.try_clone().unwrap());
            thread::spawn(move || pass_on(from, there));
            thread::spawn(move || pass_on(back_from, back_to));
        }
    });
    address
}

/// A store in which ranks are reached through narrow connections.
struct Narrow(InMemory);

impl Store for Narrow {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        match decode::<Reach>(0, value) {
            Ok(reach) => self.0.set(key, &encode(&Reach::new(reach.token, vec![narrow(reach.sockets[0])]))),
            Err(_) => self.0.set(key, value),
        }
    }

    fn get(&self, key: &str, limit: Duration) -> Result<Vec<u8>, Error> {
        self.0.get(key, limit)
    }
}

#[test]
fn what_has_no_room_to_leave_leaves_while_its_rank_waits_for_others() {
    let store = Narrow(InMemory::default());
    let all = ranks_by(
        &store,
        &[0, 0, 1, 1],
        |_, options| options,
        |group| {
            for number in 0..9 {
                collective(&group, number, 1 << 20);
            }
            (0..3).for_each(|_| collective(&group, 4, 1 << 20));
            (0..3).for_each(|_| collective(&group, 2, 3 << 20));
        },
    );
    all.into_iter().for_each(Result::unwrap);
}

#[test]
fn addresses_at_which_nobody_or_somebody_else_answers_are_passed_over() {
    // One answers something else, and one is gone.
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let sockets = vec![nobody.local_addr().unwrap(), stranger.local_addr().unwrap()];
    drop(nobody);
    let answers = thread::spawn(move || {
        for _ in 0..2 {
            let (mut socket, _) = stranger.accept().unwrap();
            let mut opening = [0; 64];
            socket.read_exact(&mut opening).unwrap();
            socket.write_all(&[7; 64]).unwrap();
        }
    });
    let store = Elsewhere(InMemory::default(), sockets);
    for outcome in ranks_by(&store, &[0, 1], |_, options| options, |group| collective(&group, 2, 1000)) {
        outcome.unwrap();
    }
    answers.join().unwrap();
}

#[test]
fn strangers_that_call_are_sent_away_and_disturb_nobody() {
    let store = InMemory::default();
    let met = Barrier::new(3);
    thread::scope(|scope| {
        scope.spawn(|| {
            met.wait();
            let Reach { sockets, .. } = decode(0, &store.get("sealane/0/tcp", LIMIT.unwrap()).unwrap()).unwrap();
            let mut silent = TcpStream::connect(sockets[0]).unwrap();
            let mut opening = [0; 64];
            opening[..8].copy_from_slice(b"SEALANEG");
            opening[8] = 1;
            for call in [&[0xFF; 64][..], &opening, &[1; 10]] {
                let mut stranger = TcpStream::connect(sockets[0]).unwrap();
                stranger.write_all(call).unwrap();
                if call.len() == 64 {
                    let mut answer = Vec::new();
                    // The end of the connection, or a reset.
                    let _ = stranger.read_to_end(&mut answer);
                    assert!(answer.is_empty(), "{answer:?}");
                }
            }
            silent.write_all(&[1]).unwrap();
            met.wait();
        });
        let ranks = ranks_by(
            &store,
            &[0, 1],
            |_, options| options,
            |group| {
                met.wait();
                // Calls can be made while ranks wait for a message that has not arrived.
                let wanted = (group.rank() == 0).then(|| group.recv(vec![0; 8], Some(1), 3).unwrap());
                met.wait();
                if group.rank() == 1 {
                    group.send(vec![0; 8], 0, 3).unwrap().wait(LIMIT).unwrap();
                }
                wanted.map(|recv| recv.wait(LIMIT).unwrap());
                collective(&group, 2, 1000);
            },
        );
        ranks.into_iter().for_each(|outcome| outcome.unwrap());
    });
}

#[test]
fn who_does_not_come_is_named_and_an_interface_that_is_not_there_too() {
    let store = InMemory::default();
    let short = GroupOptions { limit: Duration::from_millis(100), ..on(0) };
    let other = GroupOptions { limit: Duration::from_millis(100), ..on(1) };
    let other = GroupOptions { interface: Some("nothing0".into()), ..other };
    let errors = thread::scope(|scope| {
        let first = scope.spawn(|| Group::new(&store, 0, 2, &short).unwrap_err().to_string());
        let second = scope.spawn(|| Group::new(&store, 1, 2, &other).unwrap_err().to_string());
        [first.join().unwrap(), second.join().unwrap()]
    });
    assert!(errors[0].contains("nobody has set the key"), "{}", errors[0]);
    assert!(errors[1].contains("no interface nothing0"), "{}", errors[1]);
}

#[test]
fn groups_of_several_hosts_leave_nothing_behind() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // Other tests open descriptors at the same time, but a leak here would leave thousands.
    for _ in 0..200 {
        ranks_on(&[0, 1], |group| group.barrier(LIMIT).unwrap());
    }
    assert!(open() < 1000, "{} descriptors are open", open());
}
