//! `sealane daemon` and `sealane drain` as processes: start, stop, hand-over, and clients that attach, behave, misbehave and die.

mod clients;
mod credentials;
mod figures;
mod fixture;
mod forward;
mod hand_over;
mod jobs;
mod life;
mod map;
mod measured;
mod pushed;
#[path = "../trouble/raw.rs"]
#[expect(dead_code, reason = "the tests of what goes wrong use the rest")]
mod raw;
mod rings;
mod traces;
