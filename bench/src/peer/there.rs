//! A producer's process on another host, which `sealane bench serve` has started there.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use sealane_cli::machine::Machine;

use super::{Hosts, PeerJob};
use crate::error::BenchError;
use crate::hosts::{Answer, Control, Order};
use crate::limits::{BLAME_LIMIT, CONNECT_LIMIT, END_LIMIT, READY_LIMIT};
use crate::process::Counter;

/// A host on which `sealane bench serve` has accepted this process. Dropping the last reference ends all producers there.
#[derive(Debug)]
pub(crate) struct OtherHost {
    control: RefCell<Control>,
    hosts: Hosts,
    machine: Machine,
    /// The socket of this host's daemon, if it is not where clients find it.
    socket: Option<PathBuf>,
    /// The number of the next producer.
    next: Cell<u32>,
}

impl OtherHost {
    /// # Errors
    /// The other host does not describe itself.
    pub(crate) fn new(mut control: Control, socket: Option<PathBuf>) -> Result<Rc<Self>, BenchError> {
        let hosts = control.hosts()?;
        let Answer::Machine(machine) = control.ask(&Order::Machine, CONNECT_LIMIT)? else {
            return Err(control.confused());
        };
        Ok(Rc::new(Self { control: RefCell::new(control), hosts, machine, socket, next: Cell::new(0) }))
    }

    pub(crate) fn hosts(&self) -> Hosts {
        self.hosts
    }

    pub(crate) fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// All values of the store of the ranks there.
    ///
    /// # Errors
    /// The other host does not answer.
    pub(crate) fn values(&self) -> Result<Vec<(String, Vec<u8>)>, BenchError> {
        let mut control = self.control.borrow_mut();
        match control.ask(&Order::Values, CONNECT_LIMIT)? {
            Answer::Values(values) => Ok(values),
            _ => Err(control.confused()),
        }
    }

    /// Writes a value to the store of the ranks there.
    ///
    /// # Errors
    /// The other host does not accept it.
    pub(crate) fn write(&self, name: String, value: Vec<u8>) -> Result<(), BenchError> {
        self.control.borrow_mut().ask(&Order::Write { name, value }, CONNECT_LIMIT).map(drop)
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }
}

/// A producer on another host, by its number there.
#[derive(Debug)]
pub(crate) struct Number {
    host: Rc<OtherHost>,
    number: u32,
}

impl Number {
    /// Reads a counter of the process.
    ///
    /// # Errors
    /// The process has ended, or its host does not answer.
    pub(crate) fn read(&self, counter: Counter) -> Result<u64, BenchError> {
        let mut control = self.host.control.borrow_mut();
        match control.ask(&Order::Count { peer: self.number, counter }, CONNECT_LIMIT)? {
            Answer::Counted(count) => Ok(count),
            _ => Err(control.confused()),
        }
    }
}

#[derive(Debug)]
pub(super) struct RemotePeer {
    number: Rc<Number>,
    process_id: u32,
    ports: Vec<u16>,
}

impl RemotePeer {
    pub(super) fn start(host: &Rc<OtherHost>, job: &PeerJob) -> Result<Self, BenchError> {
        let number = host.next.replace(host.next.get() + 1);
        let order = Order::Start { peer: number, job: Box::new(job.clone()) };
        let mut control = host.control.borrow_mut();
        match control.ask(&order, 2 * READY_LIMIT)? {
            Answer::Started { process_id, ports } => {
                Ok(Self { number: Rc::new(Number { host: host.clone(), number }), process_id, ports })
            }
            _ => Err(control.confused()),
        }
    }

    pub(super) fn ports(&self) -> &[u16] {
        &self.ports
    }

    pub(super) fn hosts(&self) -> Hosts {
        self.number.host.hosts
    }

    pub(super) fn process_id(&self) -> u32 {
        self.process_id
    }

    pub(super) fn share(&self) -> Rc<Number> {
        self.number.clone()
    }

    pub(super) fn resume(&mut self) -> Result<(), BenchError> {
        self.order(&Order::Resume { peer: self.number.number })
    }

    pub(super) fn rest(&mut self) -> Result<(), BenchError> {
        self.order(&Order::Rest { peer: self.number.number })
    }

    /// How the producer ended, if it has.
    pub(super) fn death(&mut self) -> Option<BenchError> {
        let order = Order::Blame { peer: self.number.number };
        self.number.host.control.borrow_mut().ask(&order, CONNECT_LIMIT + BLAME_LIMIT).err()
    }

    fn order(&self, order: &Order) -> Result<(), BenchError> {
        let mut control = self.number.host.control.borrow_mut();
        match control.ask(order, END_LIMIT + CONNECT_LIMIT)? {
            Answer::Done => Ok(()),
            _ => Err(control.confused()),
        }
    }
}

impl Drop for RemotePeer {
    fn drop(&mut self) {
        // If this fails, the other host ends the producer with the connection.
        let _ = self.order(&Order::End { peer: self.number.number });
    }
}
