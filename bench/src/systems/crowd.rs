//! Many callers in one thread, on plain non-blocking sockets in one epoll set: they call a listener at once, greet it, and
//! stay until they part. Bounded by the plan's peers. `connect` measures one such storm a round.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::epoll::EpollFlags;

use crate::error::BenchError;
use crate::limits::STALL_LIMIT;
use crate::peer::{PeerJob, PeerProgram};
use crate::plan::Plan;
use crate::process;
use crate::sample::{Metric, Sample};
use crate::system::{Rounds, System};
use crate::systems::sockets::{self, Poller, at_most};

/// Bytes of one read; a greeting is far shorter.
const READ_BYTES: usize = 4 << 10;

/// What callers say to the listener of a system, and hear from it.
pub(super) trait Manners: Copy {
    /// The first words of a caller on its `visit`th visit.
    fn greeting(self, caller: usize, visit: u64) -> Vec<u8>;

    /// The length of the welcome at the front of what was heard; `None` if it is not all there yet.
    ///
    /// # Errors
    /// The reason of a listener that says no, or is not understood.
    fn welcome(self, heard: &[u8]) -> Result<Option<usize>, String>;

    /// Answers what a welcomed caller hears, and gives the length of what was answered.
    ///
    /// # Errors
    /// The reason of a listener that says goodbye, or is not understood.
    fn answer(self, heard: &[u8], answers: &mut Vec<u8>) -> Result<usize, String>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Greeting,
    Welcomed,
    /// It has said that it goes, and waits until the listener has let it go.
    Parting,
    Gone,
}

struct Caller {
    socket: TcpStream,
    standing: Standing,
    to_say: Vec<u8>,
    heard: Vec<u8>,
}

impl Caller {
    /// Says, hears and answers as far as the socket goes.
    fn step(&mut self, manners: impl Manners) -> Result<(), String> {
        self.say()?;
        let hung_up = self.hear()?;
        if self.standing == Standing::Parting {
            self.heard.clear();
            if hung_up {
                self.standing = Standing::Gone;
            }
            return Ok(());
        }
        if self.standing == Standing::Greeting
            && let Some(length) = manners.welcome(&self.heard)?
        {
            self.heard.drain(..length);
            self.standing = Standing::Welcomed;
        }
        if self.standing == Standing::Welcomed {
            let answered = manners.answer(&self.heard, &mut self.to_say)?;
            self.heard.drain(..answered);
            self.say()?;
        }
        if hung_up { Err("it hung up".to_owned()) } else { Ok(()) }
    }

    fn say(&mut self) -> Result<(), String> {
        while !self.to_say.is_empty() {
            match self.socket.write(&self.to_say) {
                Ok(said) => drop(self.to_say.drain(..said)),
                // Also while it is being connected; once the kernel has tried, this says what came of it.
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    /// Reads all that is there; true if nothing will follow.
    fn hear(&mut self) -> Result<bool, String> {
        let mut bytes = [0; READ_BYTES];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return Ok(true),
                Ok(count) => self.heard.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if self.standing == Standing::Parting && error.kind() == ErrorKind::ConnectionReset => {
                    return Ok(true);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// Callers of one listener, all welcomed.
pub(super) struct Crowd<M> {
    system: &'static str,
    manners: M,
    poller: Poller,
    callers: Vec<Caller>,
    /// Callers that were refused or hung up on, and the first one's reason.
    refused: usize,
    reason: String,
}

impl<M: Manners> Crowd<M> {
    /// Has `peers` callers call the listener at `port` at once, and gives the time from the first call until the last was
    /// welcomed.
    ///
    /// # Errors
    /// [`BenchError::Refused`] if any was not welcomed; [`BenchError::Stalled`] if the listener does not go on.
    pub(super) fn call(
        system: &'static str,
        manners: M,
        visit: u64,
        peers: usize,
        port: u16,
        congestion: Option<&str>,
    ) -> Result<(Self, Duration), BenchError> {
        let (poller, callers) = (Poller::new()?, Vec::with_capacity(peers));
        let mut crowd = Self { system, manners, poller, callers, refused: 0, reason: String::new() };
        let greetings: Vec<_> = (0..peers).map(|caller| manners.greeting(caller, visit)).collect();
        let called = Instant::now();
        for (place, to_say) in greetings.into_iter().enumerate() {
            let socket = sockets::begin_to_connect(port, congestion)?;
            // Edge-triggered, and so for reading and writing at once: every step goes as far as it can.
            let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
            crowd.poller.watch(&socket, place, interest)?;
            crowd.callers.push(Caller { socket, standing: Standing::Greeting, to_say, heard: Vec::new() });
        }
        crowd.until_none_is(Standing::Greeting)?;
        let took = called.elapsed();
        crowd.complete()?;
        Ok((crowd, took))
    }

    /// Answers what the listener asks, for so long.
    ///
    /// # Errors
    /// [`BenchError::Refused`] if a caller was hung up on.
    pub(super) fn attend(&mut self, length: Duration) -> Result<(), BenchError> {
        let end = Instant::now() + length;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            for number in 0..self.poller.look(at_most(left))? {
                self.step(self.poller.reported(number).0);
            }
            self.complete()?;
        }
    }

    /// Hangs up on the listener, and waits until it has done so as well: it is quiet then.
    ///
    /// # Errors
    /// [`BenchError::Stalled`] if the listener does not let all go.
    pub(super) fn part(mut self) -> Result<(), BenchError> {
        for caller in &mut self.callers {
            caller.standing = Standing::Parting;
            caller.socket.shutdown(Shutdown::Write).map_err(BenchError::io("hang up on a listener"))?;
        }
        self.until_none_is(Standing::Parting)?;
        self.complete()
    }

    /// The callers' sockets, each with what was heard behind the welcome: for those who can say more than a caller.
    pub(super) fn into_sockets(self) -> impl Iterator<Item = (TcpStream, Vec<u8>)> {
        self.callers.into_iter().map(|caller| (caller.socket, caller.heard))
    }

    /// How many they are.
    pub(super) fn count(&self) -> usize {
        self.callers.len()
    }

    /// The congestion control of a caller's socket.
    pub(super) fn congestion(&self) -> Result<String, BenchError> {
        sockets::congestion(&self.callers[0].socket)
    }

    fn until_none_is(&mut self, standing: Standing) -> Result<(), BenchError> {
        let mut left = self.callers.iter().filter(|caller| caller.standing == standing).count();
        while left > 0 {
            let reported = self.poller.look(at_most(STALL_LIMIT))?;
            if reported == 0 {
                return Err(BenchError::Stalled { system: self.system, waited: STALL_LIMIT });
            }
            for number in 0..reported {
                let (place, _) = self.poller.reported(number);
                let was = self.callers[place].standing;
                self.step(place);
                if was == standing && self.callers[place].standing != standing {
                    left -= 1;
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, place: usize) {
        let caller = &mut self.callers[place];
        if caller.standing == Standing::Gone {
            return;
        }
        if let Err(reason) = caller.step(self.manners) {
            caller.standing = Standing::Gone;
            if self.refused == 0 {
                self.reason = reason;
            }
            self.refused += 1;
        }
    }

    fn complete(&self) -> Result<(), BenchError> {
        if self.refused == 0 {
            return Ok(());
        }
        let (system, refused, peers, reason) = (self.system, self.refused, self.callers.len(), self.reason.clone());
        Err(BenchError::Refused { system, refused, peers, reason })
    }
}

/// Those who call a listener, which has a process of its own.
struct Storm<M> {
    manners: M,
    plan: Plan,
    system: &'static str,
    port: u16,
    visits: u64,
}

/// Starts the listener, which then has had one storm already that does not count.
pub(super) fn start_storm(
    job: &PeerJob,
    program: &PeerProgram,
    manners: impl Manners + 'static,
) -> Result<System, BenchError> {
    let (plan, system) = (job.plan.clone(), job.system.as_str());
    process::allow_open_files("--peers", plan.peers, 1)?;
    System::with_peer(job, program, |peer| {
        let variant = format!("parking, {} peers", plan.peers);
        let mut storm = Storm { manners, plan, system, port: peer.ready().port, visits: 0 };
        let (crowd, _) = storm.call()?;
        let congestion = crowd.congestion()?;
        crowd.part()?;
        Ok(System::new(system, variant, storm).with_congestion(congestion))
    })
}

impl<M: Manners> Storm<M> {
    fn call(&mut self) -> Result<(Crowd<M>, Duration), BenchError> {
        let (visit, congestion) = (self.visits, self.plan.congestion.as_deref());
        self.visits += 1;
        Crowd::call(self.system, self.manners, visit, self.plan.peers, self.port, congestion)
    }
}

impl<M: Manners> Rounds for Storm<M> {
    fn round(&mut self, _length: Duration) -> Result<Sample, BenchError> {
        let (crowd, took) = self.call()?;
        crowd.part()?;
        Ok(Sample::figure(Metric::ConnectAll, took.as_secs_f64() * 1_000.0))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A letter each; the listener may ask `?`, which is answered with `!`, and says no with `n`.
    #[derive(Clone, Copy)]
    struct Letters;

    impl Manners for Letters {
        fn greeting(self, caller: usize, visit: u64) -> Vec<u8> {
            vec![b'a' + caller as u8 + visit as u8]
        }
        fn welcome(self, heard: &[u8]) -> Result<Option<usize>, String> {
            match heard.first() {
                Some(b'n') => Err("it said no".to_owned()),
                first => Ok(first.map(|_| 1)),
            }
        }
        fn answer(self, heard: &[u8], answers: &mut Vec<u8>) -> Result<usize, String> {
            answers.extend(heard.iter().map(|_| b'!'));
            Ok(heard.len())
        }
    }

    /// A listener that greets each of two callers with what `words` gives for their letter, and reads what they answer.
    fn listener(words: fn(u8) -> &'static [u8]) -> (u16, thread::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let port = sockets::port(&listener).expect("bound");
        let served = thread::spawn(move || {
            let mut callers: Vec<_> = (0..2).map(|_| listener.accept().expect("called").0).collect();
            let mut heard = Vec::new();
            for caller in &mut callers {
                let mut letter = [0];
                caller.read_exact(&mut letter).expect("greeted");
                caller.write_all(words(letter[0])).expect("connected");
                heard.push(letter[0]);
            }
            for caller in &mut callers {
                caller.read_to_end(&mut heard).expect("it hangs up");
            }
            heard.sort_unstable();
            heard
        });
        (port, served)
    }

    #[test]
    fn callers_greet_answer_and_part() {
        let (port, served) = listener(|_| b"y?");
        let (mut crowd, took) = Crowd::call("raw", Letters, 2, 2, port, None).expect("welcomed");
        assert!(!took.is_zero() && !crowd.congestion().expect("connected").is_empty());
        crowd.attend(Duration::from_millis(1)).expect("nobody hung up");
        crowd.part().expect("all go");
        assert_eq!(served.join().expect("it ends with its callers"), b"!!cd");
    }

    #[test]
    fn those_who_are_refused_are_counted() {
        let (port, served) = listener(|letter| if letter == b'a' { b"n" } else { b"y" });
        let error = Crowd::call("raw", Letters, 0, 2, port, None).err().expect("one was refused");
        assert!(error.to_string().starts_with("1 of 2 peers"), "{error}");
        assert!(error.to_string().contains("it said no"), "{error}");
        assert_eq!(served.join().expect("it ends with its callers"), b"ab");
    }

    #[test]
    fn those_who_find_nobody_or_are_hung_up_on_are_counted() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let port = sockets::port(&listener).expect("bound");
        let hangs_up = thread::spawn(move || {
            let (mut caller, _) = listener.accept().expect("called");
            caller.read_exact(&mut [0]).expect("greeted");
        });
        let error = Crowd::call("raw", Letters, 0, 1, port, None).err().expect("hung up on");
        assert!(matches!(error, BenchError::Refused { refused: 1, peers: 1, .. }), "{error}");
        hangs_up.join().expect("it ends by itself");
        let error = Crowd::call("raw", Letters, 0, 1, port, None).err().expect("nobody listens");
        assert!(error.to_string().contains("refused"), "{error}");
    }

    #[test]
    fn a_caller_that_is_hung_up_on_later_ends_the_wait() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let port = sockets::port(&listener).expect("bound");
        let welcomes = thread::spawn(move || {
            let (mut caller, _) = listener.accept().expect("called");
            caller.read_exact(&mut [0]).expect("greeted");
            caller.write_all(b"y").expect("connected");
            caller
        });
        let (mut crowd, _) = Crowd::call("raw", Letters, 0, 1, port, None).expect("welcomed");
        drop(welcomes.join().expect("it ends by itself"));
        let error = crowd.attend(STALL_LIMIT).expect_err("hung up on");
        assert!(error.to_string().contains("it hung up"), "{error}");
    }
}
