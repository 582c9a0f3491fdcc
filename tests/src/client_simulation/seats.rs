//! Tasks, and the client processes that attach as them, one after the other.

use std::collections::BTreeSet;

use rand::Rng;
use rand::rngs::SmallRng;
use sealane::by_hand::Hands;
use sealane::{Attach, Backlog, Task};
use sealane_transport::Handle;

use super::world::World;

/// Task names, by seat.
pub(crate) const TASKS: [&str; 3] = ["a:1", "b:1", "c:1"];

/// Turns after which no link uses the memory of a client that has gone.
const TURNS_TO_LET_GO: usize = 8;

pub(super) struct Seat {
    pub(super) name: &'static str,
    pub(super) host: usize,
    /// The task's number at its node.
    place: u16,
    pub(super) arena_bytes: u64,
    area_bytes: u64,
    backlog: Option<Backlog>,
    /// The attached client; `life` counts the ones before it.
    pub(super) client: Option<Client>,
    pub(super) life: u32,
    /// Steps that it has aborted but not cleaned up.
    pub(super) aborted: BTreeSet<i64>,
    /// Upper bound of the records it has written that its shard has not read yet.
    pub(super) unread: usize,
    /// Tensors that its earlier clients received by lanes.
    pub(super) came_before: u64,
}

pub(super) struct Client {
    pub(super) task: Task,
    pub(super) hands: Hands,
    pub(super) handle: Handle,
}

impl Seat {
    pub(super) fn draw(random: &mut SmallRng, seat: usize, places: &[usize]) -> Seat {
        let host = places[seat];
        let place = places[..seat].iter().filter(|other| **other == host).count();
        let bytes = |random: &mut SmallRng| [64 << 10, 128 << 10, 1 << 20][random.random_range(0..3)];
        let backlog = match random.random_range(0..3) {
            0 => None,
            1 => Some(Backlog::default()),
            _ => Some(Backlog { calls_max: 8, bytes_max: 96 << 10 }),
        };
        Seat {
            name: TASKS[seat],
            host,
            place: place as u16,
            arena_bytes: bytes(random),
            area_bytes: bytes(random),
            backlog,
            client: None,
            life: 0,
            aborted: BTreeSet::new(),
            unread: 0,
            came_before: 0,
        }
    }
}

impl World {
    /// Attaches a new process as a task.
    pub(super) fn attach(&mut self, seat: usize) -> Result<(), String> {
        let Seat { name, host, place, arena_bytes, area_bytes, backlog, .. } = self.seats[seat];
        let attached = self.hosts[host].clients.attach(place, arena_bytes, area_bytes);
        let (handle, mut attached) = attached.map_err(|error| error.to_string())?;
        let neighbours = self.seats.iter().filter(|other| other.host == host && other.name != name);
        attached.welcome.neighbours = neighbours.map(|other| other.name.to_owned()).collect();
        let attach = Attach::new(name);
        let attach = if let Some(backlog) = backlog { attach.backlog(backlog) } else { attach };
        let (task, hands) = attach.attach_by_hand(attached).map_err(|error| error.to_string())?;
        self.seats[seat].client = Some(Client { task, hands, handle });
        self.note(format_args!("{name} attaches, arena {arena_bytes}, area {area_bytes}, backlog {backlog:?}"));
        Ok(())
    }

    /// Kills a task's process. Nobody sees what the library still does here when its `Task` is dropped: the others hear of the death from
    /// their daemon and in their lanes.
    pub(super) fn die(&mut self, seat: usize) -> Result<(), String> {
        let Some(client) = self.seats[seat].client.take() else { return Ok(()) };
        let (name, host) = (self.seats[seat].name, self.seats[seat].host);
        self.note(format_args!("{name} dies"));
        self.seats[seat].came_before += client.hands.came_by_lanes();
        self.hosts[host].clients.dismiss(client.handle, "its process is gone");
        for _ in 0..TURNS_TO_LET_GO {
            (0..self.hosts.len()).try_for_each(|host| self.turn(host))?;
        }
        if self.hosts[host].clients.leaving() > 0 {
            return Err(format!("{name} is gone, and its memory is still used"));
        }
        client.hands.hang_up();
        drop(client.task);
        self.lanes.end_of(seat);
        let now = self.instant();
        self.hosts[host].clients.end_lanes(client.handle, now);
        self.seats[seat].life += 1;
        self.seats[seat].aborted.clear();
        self.ledger.has_died(seat);
        self.report.deaths += 1;
        self.look(Some(seat))?;
        match self.ledger.open_of(seat) {
            None => Ok(()),
            Some(call) => Err(format!("{name} is gone, and its {call} goes on")),
        }
    }

    /// Runs a client's driver as if it had been woken.
    pub(super) fn drive(&mut self, seat: usize) -> Result<(), String> {
        let Some(Client { hands, handle, .. }) = &self.seats[seat].client else { return Ok(()) };
        hands.turn();
        let Seat { name, host, .. } = self.seats[seat];
        if !hands.is_up() || self.hosts[host].clients.is_closed(*handle) {
            return Err(format!("{name} and its daemon have parted: one of them broke the rules"));
        }
        Ok(())
    }
}
