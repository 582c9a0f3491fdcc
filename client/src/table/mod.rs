//! Tables: tensors whose rows tasks pull by number, from the tasks that have them. Runs on the callers' threads; pure, except for the
//! calls that it makes of a task.

mod asking;
mod places;
mod published;
mod pulling;
mod pushed;
mod sharding;
mod shares;
mod updates;
mod viewing;

pub use self::{
    published::{Table, TableOptions},
    pulling::{MissingRows, PulledRows, PullingAllRows, PullingRows, RowsOptions, RowsWanted, UnpulledRows},
    pushed::{SumRows, TableRows},
    sharding::{ShardedTable, Sharding},
    updates::RowUpdate,
};
