//! Many callers in one thread, on plain sockets: all connect to a listener and greet it before the first welcome is waited for, and
//! stay until they part. Bounded by the plan's peers. `connect` measures one such storm each round.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::figures::{Metric, Sample};
use crate::limits::STALL_LIMIT;
use crate::peer::{PeerJob, PeerProgram};
use crate::plan::Plan;
use crate::process;
use crate::system::{Client, System};
use crate::systems::sockets;

/// Bytes of one read; a greeting is far shorter.
const READ_BYTES: usize = 4 << 10;

/// What callers send to the listener of a system, and receive from it.
#[derive(Clone, Copy)]
pub(super) struct Manners {
    /// The greeting of a caller, given its number and the number of the visit.
    pub(super) greeting: fn(usize, u64) -> Vec<u8>,
    /// The length of the welcome at the front of the received bytes, `None` if it is incomplete; or the reason if the listener
    /// refuses or its answer is not understood.
    pub(super) welcome: fn(&[u8]) -> Result<Option<usize>, String>,
}

/// Callers of one listener, all welcomed, each with the bytes received after the welcome.
pub(super) struct Crowd(Vec<(TcpStream, Vec<u8>)>);

impl Crowd {
    /// Has `peers` callers connect to the listener at `address` at once, and returns the time from the first call until the last was
    /// welcomed.
    ///
    /// # Errors
    /// [`BenchError::Failed`] if any was not welcomed; [`BenchError::Stalled`] if the listener makes no progress.
    pub(super) fn call(
        system: &'static str,
        manners: Manners,
        visit: u64,
        peers: usize,
        address: SocketAddr,
        congestion: Option<&str>,
    ) -> Result<(Self, Duration), BenchError> {
        let greetings: Vec<_> = (0..peers).map(|caller| (manners.greeting)(caller, visit)).collect();
        let called = Instant::now();
        let mut callers = Vec::with_capacity(peers);
        for greeting in greetings {
            let mut socket = sockets::connect(address, congestion)?;
            socket.set_read_timeout(Some(STALL_LIMIT)).map_err(BenchError::io("set a socket's options"))?;
            // A caller that was disconnected notices when it reads.
            let _ = socket.write_all(&greeting);
            callers.push((socket, Vec::new()));
        }
        let (mut refused, mut first) = (0, None);
        for (socket, heard) in &mut callers {
            match welcome(socket, heard, manners) {
                Ok(()) => {}
                Err(Some(reason)) => {
                    refused += 1;
                    first.get_or_insert(reason);
                }
                Err(None) => return Err(BenchError::Stalled { system, waited: STALL_LIMIT }),
            }
        }
        let took = called.elapsed();
        match first {
            Some(reason) => {
                let reason = format!("{refused} of {peers} were refused or hung up on; the first because: {reason}");
                Err(BenchError::failed(system, "welcome its peers")(reason))
            }
            None => Ok((Self(callers), took)),
        }
    }

    /// Closes all connections, and waits until the listener has done so as well: it is quiet then.
    ///
    /// # Errors
    /// [`BenchError::Io`] if the listener does not close all connections.
    pub(super) fn part(self) -> Result<(), BenchError> {
        for (socket, _) in &self.0 {
            socket.shutdown(Shutdown::Write).map_err(BenchError::io("hang up on a listener"))?;
        }
        for (mut socket, _) in self.0 {
            let gone = loop {
                match socket.read(&mut [0; READ_BYTES]) {
                    Ok(1..) => {}
                    Ok(0) => break Ok(()),
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            gone.map_err(BenchError::io("wait until a listener hangs up"))?;
        }
        Ok(())
    }

    /// The callers' sockets, for code that sends more than a caller does.
    pub(super) fn into_sockets(self) -> impl Iterator<Item = (TcpStream, Vec<u8>)> {
        self.0.into_iter()
    }

    pub(super) fn congestion(&self) -> Result<String, BenchError> {
        sockets::congestion(&self.0[0].0)
    }
}

/// Waits for a caller's welcome, and removes it from what it received; fails with a reason, or with `None` if nothing comes.
fn welcome(socket: &mut TcpStream, heard: &mut Vec<u8>, manners: Manners) -> Result<(), Option<String>> {
    let mut bytes = [0; READ_BYTES];
    loop {
        if let Some(length) = (manners.welcome)(heard)? {
            heard.drain(..length);
            return Ok(());
        }
        match socket.read(&mut bytes) {
            Ok(0) => return Err(Some("it hung up".to_owned())),
            Ok(count) => heard.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(None),
            Err(error) => return Err(Some(error.to_string())),
        }
    }
}

/// The callers of a listener that has its own process.
struct Storm {
    manners: Manners,
    system: &'static str,
    address: SocketAddr,
    visits: u64,
}

/// Starts the listener, and runs one storm that does not count.
pub(super) fn start_storm(job: &PeerJob, program: &PeerProgram, manners: Manners) -> Result<System, BenchError> {
    let (plan, system) = (&job.plan, job.system.as_str());
    process::allow_open_files("--peers", plan.peers, 1)?;
    System::with_peer(job, program, |peer| {
        let variant = format!("parking, {} peers", plan.peers);
        let mut storm = Storm { manners, system, address: peer.address(), visits: 0 };
        let (crowd, _) = storm.call(plan)?;
        let congestion = crowd.congestion()?;
        crowd.part()?;
        Ok(System::new(system, variant, plan, storm).with_congestion(congestion))
    })
}

impl Storm {
    fn call(&mut self, plan: &Plan) -> Result<(Crowd, Duration), BenchError> {
        self.visits += 1;
        let congestion = plan.congestion.as_deref();
        Crowd::call(self.system, self.manners, self.visits - 1, plan.peers, self.address, congestion)
    }
}

impl Client for Storm {
    fn round(&mut self, plan: &Plan, _length: Duration) -> Result<Sample, BenchError> {
        let (crowd, took) = self.call(plan)?;
        crowd.part()?;
        Ok(Sample::figure(Metric::ConnectAll, took.as_secs_f64() * 1_000.0))
    }
}
