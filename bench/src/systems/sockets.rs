//! TCP sockets as every system of a run gets them: no Nagle, the run's congestion control.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use nix::errno::Errno;
use socket2::{Domain, SockRef, Socket, Type};

use crate::error::BenchError;
use crate::limits::CONNECT_LIMIT;

/// One consumer connects to a producer; more would be a mistake.
const BACKLOG: i32 = 1;

/// Callers that the kernel keeps until they are accepted, where there are many: as an engine's listener.
const BACKLOG_FOR_MANY: i32 = 4_096;

/// A listener on a port that the system chooses; what it accepts inherits the congestion control.
pub(super) fn listen(congestion: Option<&str>) -> Result<TcpListener, BenchError> {
    listen_for(BACKLOG, congestion)
}

/// The same for as many callers as a run may have.
pub(super) fn listen_for_many(congestion: Option<&str>) -> Result<TcpListener, BenchError> {
    listen_for(BACKLOG_FOR_MANY, congestion)
}

fn listen_for(backlog: i32, congestion: Option<&str>) -> Result<TcpListener, BenchError> {
    let socket = socket(congestion)?;
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    socket
        .bind(&any_port.into())
        .and_then(|()| socket.listen(backlog))
        .map_err(BenchError::io("listen on the loopback interface"))?;
    Ok(socket.into())
}

/// The port that a listener listens on.
pub(super) fn port(listener: &TcpListener) -> Result<u16, BenchError> {
    let address = listener.local_addr().map_err(BenchError::io("ask for a listener's port"))?;
    Ok(address.port())
}

/// Waits for the consumer; ended with the process when the parent goes away.
pub(super) fn accept(listener: &TcpListener) -> Result<TcpStream, BenchError> {
    let (stream, _) = listener.accept().map_err(BenchError::io("accept the consumer"))?;
    stream.set_nodelay(true).map_err(BenchError::io("set TCP_NODELAY"))?;
    Ok(stream)
}

/// Connects to a producer on this host.
pub(super) fn connect(port: u16, congestion: Option<&str>) -> Result<TcpStream, BenchError> {
    let socket = socket(congestion)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    socket
        .connect_timeout(&address.into(), CONNECT_LIMIT)
        .map_err(BenchError::io(format!("connect to the producer at {address}")))?;
    socket.set_tcp_nodelay(true).map_err(BenchError::io("set TCP_NODELAY"))?;
    Ok(socket.into())
}

/// A non-blocking socket that is being connected to a listener on this host.
pub(super) fn begin_to_connect(port: u16, congestion: Option<&str>) -> Result<TcpStream, BenchError> {
    let socket = socket(congestion)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    socket
        .set_nonblocking(true)
        .and_then(|()| socket.set_tcp_nodelay(true))
        .map_err(BenchError::io("set a socket's options"))?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::EINPROGRESS as i32) => {
            Err(BenchError::io(format!("begin to connect to {address}"))(error))
        }
        _ => Ok(socket.into()),
    }
}

/// Makes sure that the kernel offers a congestion control, before any system is set up with it.
pub(super) fn check_congestion(name: &str) -> Result<(), BenchError> {
    socket(Some(name)).map(drop)
}

/// The congestion control that a socket really has.
pub(super) fn congestion(stream: &TcpStream) -> Result<String, BenchError> {
    let name =
        SockRef::from(stream).tcp_congestion().map_err(BenchError::io("ask for a socket's congestion control"))?;
    // The kernel pads the name with zeros.
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..length]).into_owned())
}

fn socket(congestion: Option<&str>) -> Result<Socket, BenchError> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).map_err(BenchError::io("open a TCP socket"))?;
    if let Some(name) = congestion {
        socket
            .set_tcp_congestion(name.as_bytes())
            .map_err(|source: io::Error| BenchError::Congestion { name: name.to_owned(), source })?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_have_the_congestion_control_that_was_asked_for() {
        // `reno` is built into every kernel and may be chosen without privilege.
        let listener = listen(Some("reno")).expect("a port is free");
        let near = connect(port(&listener).expect("bound"), Some("reno")).expect("listening");
        let far = accept(&listener).expect("connected");
        for stream in [&near, &far] {
            assert_eq!(congestion(stream).expect("linux tells"), "reno");
            assert!(stream.nodelay().expect("linux tells"));
        }
    }

    #[test]
    fn without_a_wish_the_kernel_chooses() {
        let listener = listen(None).expect("a port is free");
        let near = connect(port(&listener).expect("bound"), None).expect("listening");
        assert!(!congestion(&near).expect("linux tells").is_empty());
    }

    #[test]
    fn an_unknown_congestion_control_is_named() {
        let error = listen(Some("tin-can")).expect_err("no kernel has it");
        assert!(error.is_usage());
        assert!(error.to_string().contains("tin-can"), "{error}");
    }

    #[test]
    fn nobody_listening_is_an_error() {
        let unused = port(&listen(None).expect("a port is free")).expect("bound");
        let error = connect(unused, None).expect_err("the listener is gone");
        assert!(error.to_string().contains(&unused.to_string()), "{error}");
    }
}
