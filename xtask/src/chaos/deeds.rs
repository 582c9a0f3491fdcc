//! Faults that are injected into hosts and tasks, and how they are undone.

use std::fmt;

use nix::sys::signal::Signal;

use crate::hosts::{Cut, Hosts};
use crate::traffic::Order;

/// The target of a fault; each has at most one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Victim {
    Daemon(usize),
    Task(usize),
    /// The cable of this host.
    Cable(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// `kill -9`; at the end another process is started, as for the next two.
    Kill,
    /// A daemon gets SIGTERM, so that it drains for a while.
    Drain,
    /// A task's process is told to end its calls, and to detach.
    Leave,
    /// SIGSTOP; at the end SIGCONT.
    Stop,
    Cut(Cut),
    /// A task is told to cause trouble: to send tensors that nobody receives, or to accept nothing for a while.
    Order(Order),
}

/// A fault and its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deed {
    pub(crate) harm: Harm,
    pub(crate) victim: Victim,
}

impl Deed {
    pub(crate) fn cut(host: usize, cut: Cut) -> Deed {
        Deed { harm: Harm::Cut(cut), victim: Victim::Cable(host) }
    }

    /// True if the target loses its state.
    pub(crate) fn kills(self) -> bool {
        matches!(self.harm, Harm::Kill | Harm::Drain | Harm::Leave)
    }

    /// True if the target does nothing meanwhile.
    pub(crate) fn stops(self) -> bool {
        self.harm == Harm::Stop
    }

    pub(crate) fn begin(self, hosts: &mut Hosts) -> Result<(), String> {
        let Some(slot) = hosts.slot(self.victim) else { return self.cable(hosts, true) };
        match self.harm {
            Harm::Kill => slot.kill(),
            Harm::Drain => slot.signal(Signal::SIGTERM),
            Harm::Leave => slot.order(Order::Finish { at_us: 0 }),
            Harm::Stop => slot.signal(Signal::SIGSTOP),
            Harm::Order(order) => slot.order(order),
            Harm::Cut(_) => {}
        }
        Ok(())
    }

    pub(crate) fn end(self, hosts: &mut Hosts) -> Result<(), String> {
        if self.kills() {
            return hosts.start_process(self.victim);
        }
        match hosts.slot(self.victim) {
            Some(slot) if self.stops() => slot.signal(Signal::SIGCONT),
            Some(_) => {}
            None => self.cable(hosts, false)?,
        }
        Ok(())
    }

    fn cable(self, hosts: &Hosts, fails: bool) -> Result<(), String> {
        match (self.harm, self.victim) {
            (Harm::Cut(cut), Victim::Cable(host)) => hosts.network.set(host, cut, fails),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Victim {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Victim::Daemon(host) => write!(out, "daemon{host}"),
            Victim::Task(task) => write!(out, "task{task}"),
            Victim::Cable(host) => write!(out, "cable{host}"),
        }
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {:?}", self.victim, self.harm)
    }
}
