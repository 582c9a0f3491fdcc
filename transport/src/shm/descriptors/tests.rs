//! Descriptors over a socket pair: expected ones arrive, others are closed.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{AddressFamily, SockFlag, SockType, socketpair},
    unistd::pipe,
};

use super::{DESCRIPTORS_MAX, receive, send};

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
}

/// True if all writing ends of the pipe are closed.
fn hung_up(reader: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(reader.as_fd(), PollFlags::empty())];
    poll(&mut polled, PollTimeout::ZERO).unwrap();
    polled[0].revents().unwrap().contains(PollFlags::POLLHUP)
}

#[test]
fn descriptors_arrive_and_are_closed_by_exec() {
    let (here, there) = pair();
    let (reader, writer) = pipe().unwrap();
    assert_eq!(receive(&there, &mut [0; 8]).unwrap_err(), Errno::EAGAIN);
    send(&here, b"two", &[writer.as_raw_fd(), reader.as_raw_fd()]).unwrap();
    send(&here, b"none", &[]).unwrap();
    drop(writer);

    let mut buffer = [0; 8];
    let message = receive(&there, &mut buffer).unwrap();
    assert_eq!((message.len, message.cut, &buffer[..3]), (3, false, &b"two"[..]));
    assert_eq!(message.descriptors.len(), 2);
    for fd in &message.descriptors {
        let flags = FdFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFD).unwrap());
        assert!(flags.contains(FdFlag::FD_CLOEXEC));
    }
    assert!(!hung_up(&reader));
    drop(message);
    assert!(hung_up(&reader));

    let message = receive(&there, &mut buffer).unwrap();
    assert_eq!((message.len, message.cut, message.descriptors.len()), (4, false, 0));
    drop(here);
    assert_eq!(receive(&there, &mut buffer).unwrap().len, 0);
}

#[test]
fn too_many_descriptors_are_noticed_and_closed() {
    let (here, there) = pair();
    let (reader, writer) = pipe().unwrap();
    for count in [DESCRIPTORS_MAX + 1, 200] {
        send(&here, b"x", &vec![writer.as_raw_fd(); count]).unwrap();
        let message = receive(&there, &mut [0; 8]).unwrap();
        assert!(message.cut && message.descriptors.len() <= DESCRIPTORS_MAX);
    }
    drop(writer);
    assert!(hung_up(&reader));
}

#[test]
fn a_message_that_does_not_fit_is_noticed() {
    let (here, there) = pair();
    send(&here, &[1; 9], &[]).unwrap();
    let message = receive(&there, &mut [0; 8]).unwrap();
    assert!(message.cut && message.len == 8);
}

#[test]
fn a_closed_socket_is_an_error_and_no_signal() {
    let (here, there) = pair();
    drop(there);
    assert_eq!(send(&here, b"x", &[]), Err(Errno::EPIPE));
}
