//! What a step costs on a simulated network without faults: messages, writes, bytes on the wire and virtual time, as a committed table, so
//! that review shows when the protocol's cost changes.
//!
//! One ps and one worker, one thread, no clock: the same code gives the same table on every machine.

mod line;
mod load;
mod step;

use std::fmt::Write;

use line::{Carried, KILOBYTE_NS, LATENCY, MESSAGE, WRITE};
use load::loads;
use step::{Cost, Way, second_step};

use crate::two_nodes::SLAB_BYTES;

/// The table of the standard loads, each moved in every way.
///
/// # Errors
/// A tensor did not come, which should not happen.
pub fn table() -> Result<String, String> {
    let mut table = String::new();
    let gigabits = 8_000 / KILOBYTE_NS;
    let mut line = |text: std::fmt::Arguments<'_>| writeln!(table, "{text}").expect("a string takes all");
    line(format_args!(
        "One step of one worker that receives from one ps, or is pushed to, on a simulated line of {gigabits} Gb/s: {LATENCY:?} one way,"
    ));
    line(format_args!(
        "{WRITE:?} a write, {MESSAGE:?} a message. Messages, writes and bytes are those of both directions."
    ));
    line(format_args!("Renew with: UPDATE_SNAPSHOTS=1 cargo test -p sealane-tests throughput"));
    line(format_args!(""));
    line(format_args!(
        "{:<14} {:>7} {:>11}  {:<8} {:>8} {:>7} {:>11} {:>12}",
        "load", "tensors", "bytes", "way", "messages", "writes", "wire bytes", "step us"
    ));
    for load in loads() {
        for way in Way::ALL {
            // Tensors that nobody asked for land in the receiver's slab and wait there.
            if way == Way::Push && load.bytes() > SLAB_BYTES {
                continue;
            }
            let Cost { messages, carried: Carried { writes, bytes }, time } =
                second_step(&load, way).map_err(|what| format!("{} {}: {what}", load.name, way.name()))?;
            let (tensors, payload, time) = (load.tensors.len(), load.bytes(), time.as_secs_f64() * 1e6);
            line(format_args!(
                "{:<14} {tensors:>7} {payload:>11}  {:<8} {messages:>8} {writes:>7} {bytes:>11} {time:>12.1}",
                load.name,
                way.name()
            ));
        }
    }
    Ok(table)
}
