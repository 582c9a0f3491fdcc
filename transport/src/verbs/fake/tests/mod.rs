//! Tests of every rule of the fake devices.

mod connections;
mod contract;
mod delivery;
mod faults;
mod harness;
mod protection;
mod queues;
mod requests;
