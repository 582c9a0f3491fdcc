//! How the two processes introduce their queue pairs to each other: a line of JSON each way over a TCP connection, which is
//! not used again. The producer answers when it can be sent to.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use sealane_transport::verbs::device::{Endpoint, Remote};
use serde::{Deserialize, Serialize};

use super::end::End;
use crate::limits::{CONNECT_LIMIT, READY_LINE_BYTES_MAX};

/// A queue pair, and the memory that its peer may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Card {
    number: u32,
    first_packet: u32,
    gid: [u8; 16],
    lid: u16,
    mtu: u16,
    reads: u8,
    address: u64,
    rkey: u32,
}

impl Card {
    fn of(end: &End) -> Self {
        let Endpoint { number, first_packet, gid, lid, mtu, reads } = end.endpoint();
        let Remote { address, rkey } = end.place();
        Self { number, first_packet, gid, lid, mtu, reads, address, rkey }
    }

    fn endpoint(&self) -> Endpoint {
        let Self { number, first_packet, gid, lid, mtu, reads, .. } = *self;
        Endpoint { number, first_packet, gid, lid, mtu, reads }
    }

    fn place(&self) -> Remote {
        Remote { address: self.address, rkey: self.rkey }
    }
}

/// The consumer's part; where the producer's bytes are.
pub(super) fn call(stream: &mut TcpStream, end: &mut End) -> io::Result<Remote> {
    say(stream, &Card::of(end))?;
    let theirs = hear(stream)?;
    end.connect(&theirs.endpoint())?;
    Ok(theirs.place())
}

/// The producer's part; where the consumer's bytes are.
pub(super) fn answer(stream: &mut TcpStream, end: &mut End) -> io::Result<Remote> {
    let theirs = hear(stream)?;
    end.connect(&theirs.endpoint())?;
    say(stream, &Card::of(end))?;
    Ok(theirs.place())
}

fn say(stream: &mut TcpStream, card: &Card) -> io::Result<()> {
    let mut line = serde_json::to_vec(card)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn hear(stream: &mut TcpStream) -> io::Result<Card> {
    stream.set_read_timeout(Some(CONNECT_LIMIT))?;
    let mut line = String::new();
    BufReader::new(stream.take(READY_LINE_BYTES_MAX)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems::sockets;

    #[test]
    fn a_card_is_heard_as_it_was_said_and_nonsense_is_refused() {
        let listener = sockets::listen(None).expect("a port is free");
        let port = sockets::port(&listener).expect("bound");
        let said =
            Card { number: 17, first_packet: 5, gid: [7; 16], lid: 0, mtu: 1024, reads: 16, address: 1 << 47, rkey: 9 };
        let mut near = sockets::connect(port, None).expect("listening");
        let mut far = sockets::accept(&listener).expect("connected");
        say(&mut near, &said).expect("connected");
        let heard = hear(&mut far).expect("connected");
        assert_eq!(heard, said);
        assert_eq!((heard.endpoint().number, heard.place()), (17, Remote { address: 1 << 47, rkey: 9 }));
        near.write_all(b"hello\n").expect("connected");
        assert_eq!(hear(&mut far).expect_err("no card").kind(), io::ErrorKind::InvalidData);
        drop(near);
        assert_eq!(hear(&mut far).expect_err("nobody").kind(), io::ErrorKind::UnexpectedEof);
    }
}
