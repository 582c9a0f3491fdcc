//! What peers are called, and what those over TCP say: the wire's own greeting and answers to pings, and nothing else.

use sealane_transport::lane::lane;
use sealane_transport::wire::{Frame, FrameWriter, Greeting, Hello, parse};

use super::super::names::PS;
use crate::systems::crowd::Manners;

/// Peer number 0 has this port in its transport address, at which nobody listens: peers call, and are not called. All
/// ports have as many digits, so that all greetings have as many bytes.
const FIRST_PORT: usize = 20_000;

/// The task of a peer.
pub(in crate::systems::sealane) fn task(peer: usize) -> String {
    format!("worker{peer:04}:1")
}

fn address(peer: usize) -> String {
    format!("127.0.1.1:{}", FIRST_PORT + peer)
}

/// Where the engine's tasks and every peer are: each at a transport address of its own.
pub(in crate::systems::sealane) fn map<'t>(tasks: impl Iterator<Item = (&'t str, u16)>, peers: usize) -> String {
    let served = tasks.map(|(task, port)| format!("{task}=127.0.0.1:{port}\n"));
    served.chain((0..peers).map(|peer| format!("{}={}\n", task(peer), address(peer)))).collect()
}

fn hello(peer: usize, visit: u64) -> Hello {
    let task = task(peer);
    Hello {
        features: 0,
        // Another one each time, and far from the last: a process that was started anew.
        incarnation: (visit + 1) << 32,
        remembers: 0,
        tensor_bytes_max: 1 << 30,
        epoch: 0,
        shards: 1,
        shard: 0,
        lane: lane(&task, PS),
        address: address(peer),
        tasks: vec![task],
    }
}

/// Bytes of a peer's hello and of the engine's welcome.
pub(in crate::systems) fn greeting_bytes() -> (usize, usize) {
    let hello = hello(0, 0);
    let address = format!("127.0.0.1:{FIRST_PORT}");
    let welcome = Hello { address, tasks: vec![PS.to_owned()], ..hello.clone() };
    (Greeting::Hello(hello).to_bytes().len(), Greeting::Welcome(welcome).to_bytes().len())
}

/// Peers that greet, answer pings, and stay.
#[derive(Clone, Copy, Debug)]
pub(in crate::systems) struct Workers;

/// The same peers, of which something else than the crowd takes care once they are welcomed.
#[derive(Clone, Copy, Debug)]
pub(in crate::systems::sealane) struct Silent;

impl Manners for Silent {
    fn greeting(self, caller: usize, visit: u64) -> Vec<u8> {
        Workers.greeting(caller, visit)
    }

    fn welcome(self, heard: &[u8]) -> Result<Option<usize>, String> {
        Workers.welcome(heard)
    }

    fn answer(self, _heard: &[u8], _answers: &mut Vec<u8>) -> Result<usize, String> {
        Ok(0)
    }
}

impl Manners for Workers {
    fn greeting(self, caller: usize, visit: u64) -> Vec<u8> {
        Greeting::Hello(hello(caller, visit)).to_bytes()
    }

    fn welcome(self, heard: &[u8]) -> Result<Option<usize>, String> {
        match Greeting::parse(heard).map_err(|error| error.to_string())? {
            None => Ok(None),
            Some((Greeting::Welcome(_), length)) => Ok(Some(length)),
            Some((Greeting::Reject(no), _)) => Err(no.reason),
            Some((other, _)) => Err(format!("it answered a hello with a greeting of kind {}", other.kind())),
        }
    }

    fn answer(self, heard: &[u8], answers: &mut Vec<u8>) -> Result<usize, String> {
        let mut answered = 0;
        while let Some((frame, length)) = parse(&heard[answered..]).map_err(|error| error.to_string())? {
            answered += length;
            match frame {
                Frame::Ping { nonce } => FrameWriter(answers).pong(nonce),
                Frame::GoAway(away) => return Err(away.reason.to_owned()),
                Frame::Resumed => {}
                other => return Err(format!("it sent {other:?} to a peer that asks for nothing")),
            }
        }
        Ok(answered)
    }
}

#[cfg(test)]
mod tests {
    use sealane_transport::wire::{Reject, RejectCode};

    use super::*;
    use crate::limits::PEERS_MAX;

    #[test]
    fn all_greetings_have_as_many_bytes() {
        let (hello_bytes, _) = greeting_bytes();
        for (peer, visit) in [(0, 0), (PEERS_MAX - 1, 7)] {
            assert_eq!(Workers.greeting(peer, visit).len(), hello_bytes);
        }
    }

    #[test]
    fn a_welcome_is_told_from_a_no() {
        let welcome = Greeting::Welcome(hello(0, 0)).to_bytes();
        assert_eq!(Workers.welcome(&welcome), Ok(Some(welcome.len())));
        assert_eq!(Workers.welcome(&welcome[1..]).map_err(|_| ()), Err(()));
        assert_eq!(Workers.welcome(&welcome[..20]), Ok(None));
        let no = Greeting::Reject(Reject { code: RejectCode::Full, reason: "no room".to_owned() }).to_bytes();
        assert_eq!(Workers.welcome(&no), Err("no room".to_owned()));
        assert!(Workers.welcome(&Workers.greeting(0, 0)).is_err());
    }

    #[test]
    fn pings_are_answered_and_anything_else_is_an_end() {
        let (mut heard, mut pongs, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        FrameWriter(&mut heard).resumed();
        FrameWriter(&mut heard).ping(7);
        let whole = heard.len();
        FrameWriter(&mut heard).ping(8);
        heard.pop();
        FrameWriter(&mut pongs).pong(7);
        assert_eq!((Workers.answer(&heard, &mut answers), answers), (Ok(whole), pongs));
        for end in [|w: &mut FrameWriter<'_>| w.go_away("the engine stops"), |w: &mut FrameWriter<'_>| w.released(1)] {
            let mut heard = Vec::new();
            end(&mut FrameWriter(&mut heard));
            assert!(Workers.answer(&heard, &mut Vec::new()).is_err());
        }
        assert!(Workers.answer(&[77; 32], &mut Vec::new()).is_err());
    }
}
