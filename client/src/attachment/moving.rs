//! Moves what is published from a former daemon's arena into that of the next one. On the republisher's thread,
//! and for tables also on those of their owners.
//!
//! A tensor is copied. A table, which its owner writes in place, moves: whoever holds it copies it and makes the copy the table, so that
//! no row is copied while it is written, nothing is written where nobody reads it, and one arena never has two copies of it.

use std::sync::Arc;

use sealane_runtime::Buffer;
use sealane_transport::{Error, Payload};

use super::{Attachment, State, memory::Memory, no_room};
use crate::{
    clock::Tick,
    memory::{Arena, OwnTable, TableState},
};

impl Attachment {
    /// Registers a table that this task publishes and writes in place, as long as its owner has it.
    pub(crate) fn register(&self, table: &Arc<OwnTable>) {
        self.lock().published.register(table);
    }

    /// Makes sure that a table lies in the current daemon's arena. Its owner holds it.
    ///
    /// # Errors
    /// ResourceExhausted if there is no room, and as attaching again fails.
    pub(crate) fn settle(&self, table: &OwnTable, held: &mut TableState) -> Result<(), Error> {
        let arena = self.arena(Tick::now(), None)?;
        match self.move_table(&arena, table, held) {
            Some(_) => Ok(()),
            None => Err(no_room(&arena, held.memory.rows.len())),
        }
    }

    /// Brings what is published under a key into an arena; returns how many bytes were copied, or `None` without room.
    pub(super) fn bring(&self, arena: &Arc<Arena>, key: &str, payload: &Payload) -> Option<u64> {
        let table = self.lock().published.table(key);
        if let Some(table) = table {
            let mut held = table.hold();
            if held.memory.is_at(payload) {
                return self.move_table(arena, &table, &mut held);
            }
        }
        let mut copy = self.room_in(arena, payload.len())?;
        copy.volatile_mut().copy_from(payload.volatile());
        self.replace(key, (payload, Payload::from(copy).into_shared()), i64::MIN);
        Some(payload.len() as u64)
    }

    fn move_table(&self, arena: &Arc<Arena>, table: &OwnTable, held: &mut TableState) -> Option<u64> {
        let TableState { memory, version, .. } = held;
        if arena.span_of(&memory.rows).is_some() {
            return Some(0);
        }
        let rows = self.room_in(arena, memory.rows.len())?;
        let locks = match &memory.locks {
            Some(locks) => Some(self.room_in(arena, locks.len())?),
            None => None,
        };
        let moved = memory.moved(rows, locks);
        let shared = |part: &Arc<Buffer>| Payload::Shared(part.clone());
        let mut bytes = moved.rows.len() as u64;
        // The version too, of which the former daemon may not have heard.
        self.replace(&table.key, (&shared(&memory.rows), shared(&moved.rows)), *version);
        if let (Some(before), Some(after)) = (&memory.locks, &moved.locks) {
            self.replace(&table.locks_key, (&shared(before), shared(after)), *version);
            bytes += after.len() as u64;
        }
        *memory = moved;
        Some(bytes)
    }

    /// Notes that what is published under a key lies elsewhere now, unless the program has published something else meanwhile.
    fn replace(&self, key: &str, (before, after): (&Payload, Payload), version: i64) {
        let mut held = self.lock();
        let State { published, aftermath, .. } = &mut *held;
        let spare = published.replace(key, (before, after), version);
        aftermath.spent.push(Memory::Source(spare));
    }

    fn room_in(&self, arena: &Arc<Arena>, len: usize) -> Option<Buffer> {
        arena.allocate(len).or_else(|| {
            // Answers that free memory may still be waiting in the rings.
            self.lock().pump();
            arena.allocate(len)
        })
    }
}
