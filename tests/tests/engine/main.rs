//! Running engines: real shards, real sockets on loopback, free ports.

mod delayed;
mod device;
mod dropped;
mod exchange;
mod figures;
mod hand_over;
mod limits;
mod peers;
mod probe;
mod pushed;
mod real_device;
mod security;
mod shards;
mod stranger;
mod trouble;
mod verbs;

use sealane_tests::fixture;
