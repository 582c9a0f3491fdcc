//! What is done to hosts and tasks, and how it is undone.

use std::fmt;

use nix::sys::signal::Signal;

use crate::hosts::{Cut, Hosts};
use crate::traffic::Order;

/// A deed, each with whom it is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// `kill -9`; in the end another is started.
    KillDaemon(usize),
    KillTask(usize),
    /// SIGTERM, which lets it finish what is in flight for a while; in the end another is started.
    DrainDaemon(usize),
    /// A task's process is told to end what it has begun, and to detach; in the end another is started.
    Leave(usize),
    /// SIGSTOP; in the end SIGCONT.
    StopDaemon(usize),
    StopTask(usize),
    Cut(usize, Cut),
    /// A task sends so many tensors of so many bytes that nobody takes.
    Burst {
        task: usize,
        bytes: usize,
        count: usize,
    },
    /// A task takes nothing of what is pushed to it.
    Deafen {
        task: usize,
        millis: u64,
    },
}

/// Who is harmed by a deed; one deed at a time is done to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Victim {
    Daemon(usize),
    Task(usize),
    Cable(usize),
}

impl Deed {
    pub(crate) fn victim(self) -> Victim {
        match self {
            Deed::KillDaemon(host) | Deed::DrainDaemon(host) | Deed::StopDaemon(host) => Victim::Daemon(host),
            Deed::KillTask(task) | Deed::Leave(task) | Deed::StopTask(task) => Victim::Task(task),
            Deed::Burst { task, .. } | Deed::Deafen { task, .. } => Victim::Task(task),
            Deed::Cut(host, _) => Victim::Cable(host),
        }
    }

    /// True if whoever it is done to forgets everything.
    pub(crate) fn kills(self) -> bool {
        matches!(self, Deed::KillDaemon(_) | Deed::KillTask(_) | Deed::DrainDaemon(_) | Deed::Leave(_))
    }

    /// True if whoever it is done to does nothing meanwhile.
    pub(crate) fn stops(self) -> bool {
        matches!(self, Deed::StopDaemon(_) | Deed::StopTask(_))
    }

    pub(crate) fn begin(self, hosts: &mut Hosts) -> Result<(), String> {
        match self {
            Deed::KillDaemon(host) => hosts.daemons[host].process = None,
            Deed::KillTask(task) => hosts.tasks[task].process = None,
            Deed::Leave(task) => hosts.tasks[task].order(Order::Finish { at_us: 0 }),
            Deed::DrainDaemon(_) => self.signal(hosts, Signal::SIGTERM),
            Deed::StopDaemon(_) | Deed::StopTask(_) => self.signal(hosts, Signal::SIGSTOP),
            Deed::Cut(host, cut) => hosts.network.set(host, cut, true)?,
            Deed::Burst { task, bytes, count } => hosts.tasks[task].order(Order::Burst { bytes, count }),
            Deed::Deafen { task, millis } => hosts.tasks[task].order(Order::Deaf { millis }),
        }
        Ok(())
    }

    pub(crate) fn end(self, hosts: &mut Hosts) -> Result<(), String> {
        match self {
            Deed::KillDaemon(host) | Deed::DrainDaemon(host) => hosts.start_daemon(host),
            Deed::KillTask(task) | Deed::Leave(task) => hosts.start_task(task),
            Deed::Cut(host, cut) => hosts.network.set(host, cut, false),
            Deed::StopDaemon(_) | Deed::StopTask(_) => {
                self.signal(hosts, Signal::SIGCONT);
                Ok(())
            }
            Deed::Burst { .. } | Deed::Deafen { .. } => Ok(()),
        }
    }

    fn signal(self, hosts: &mut Hosts, signal: Signal) {
        let process = match self.victim() {
            Victim::Daemon(host) => &hosts.daemons[host].process,
            Victim::Task(task) => &hosts.tasks[task].process,
            Victim::Cable(_) => &None,
        };
        if let Some(process) = process {
            process.signal(signal);
        }
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Deed::KillDaemon(host) => write!(out, "kill daemon{host}"),
            Deed::DrainDaemon(host) => write!(out, "drain daemon{host}"),
            Deed::KillTask(task) => write!(out, "kill task{task}"),
            Deed::Leave(task) => write!(out, "task{task} leaves"),
            Deed::StopDaemon(host) => write!(out, "stop daemon{host}"),
            Deed::StopTask(task) => write!(out, "stop task{task}"),
            Deed::Cut(host, Cut::Pulled) => write!(out, "pull the cable of host{host}"),
            Deed::Cut(host, Cut::Silent) => write!(out, "cut the cable of host{host} silently"),
            Deed::Cut(host, Cut::OneWay) => write!(out, "host{host} hears nothing"),
            Deed::Cut(host, Cut::Throttled(rate)) => write!(out, "throttle host{host} to {rate} Mbit/s"),
            Deed::Burst { task, bytes, count } => write!(out, "burst of {count} x {bytes} B from task{task}"),
            Deed::Deafen { task, .. } => write!(out, "task{task} accepts nothing"),
        }
    }
}
