//! Tests of the link on fake devices: two sessions over two ports, or one against a peer that says anything.

mod credit;
mod direct;
mod failures;
mod harness;
mod hostile;
mod many;
mod payloads;
mod places;
mod registration;
mod stage;
mod waking;
