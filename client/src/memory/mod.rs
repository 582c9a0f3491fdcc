//! The memory that this process shares with the daemon, as buffers: the arena, from which this side allocates, and the
//! receive areas, from which the daemon does. Any thread.

mod area;
mod arena;
mod fork;
mod rows;
mod view;

pub(crate) use area::{Area, Freed};
pub(crate) use arena::Arena;
pub(crate) use fork::ForkMark;
pub(crate) use rows::{LOCKS_BYTES, OwnTable, TableMemory, TableState};
pub(crate) use view::Viewable;
