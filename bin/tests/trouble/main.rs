//! What goes wrong between clients and daemons, with real processes: each of them is killed, stopped, starved, or hostile, and
//! no other process is harmed.

mod absent;
#[path = "../daemon/fixture.rs"]
#[expect(dead_code, reason = "the tests of daemons use the rest")]
mod fixture;
mod full;
mod hostile;
mod hosts;
mod idle;
mod killed;
mod left;
mod leftovers;
mod processes;
mod published;
mod pushed;
mod raw;
mod restarted;
mod roles;
mod streams;
mod stuck;
mod tensors;
mod traces;
