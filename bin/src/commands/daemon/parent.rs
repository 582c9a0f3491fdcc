//! A daemon that another command of this program starts: it gets its listening socket from there, since a port that is
//! merely named could be another program's by then, and it does not outlive it.

use std::io::stdin;
use std::net::TcpListener;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, raise};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{Pid, getppid};

use crate::Failure;

/// What such a command says, beside the flags of everybody.
#[derive(Debug, clap::Args)]
pub(super) struct Parent {
    /// Take the listening socket that is standard input for the one transport address of the tasks, as inetd's servers do
    #[arg(long, hide = true)]
    listener_on_stdin: bool,

    /// End once that process, which started this one, has ended
    #[arg(long, hide = true, value_name = "PID")]
    end_with: Option<i32>,
}

impl Parent {
    /// The listening sockets; none if the transport addresses are to be bound.
    ///
    /// # Errors
    /// Standard input is no listening socket.
    pub(super) fn listeners(&self) -> Result<Vec<TcpListener>, Failure> {
        if !self.listener_on_stdin {
            return Ok(Vec::new());
        }
        let stdin = stdin();
        match getsockopt(&stdin, sockopt::AcceptConn) {
            Ok(true) => {}
            Ok(false) | Err(_) => return Err(Failure::input("standard input is not a listening socket")),
        }
        let listener = stdin.as_fd().try_clone_to_owned();
        listener.map(|listener| vec![listener.into()]).map_err(Failure::work)
    }

    /// From now on, the parent's end is a signal like a service manager's.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn end_with_it(&self) -> Result<(), Failure> {
        let Some(parent) = self.end_with else { return Ok(()) };
        let refused = |error: Errno| Failure::work(format!("process {parent} cannot be watched ({error})"));
        set_pdeathsig(Signal::SIGTERM).map_err(refused)?;
        // It may have ended before.
        if getppid() == Pid::from_raw(parent) { Ok(()) } else { raise(Signal::SIGTERM).map_err(refused) }
    }
}
