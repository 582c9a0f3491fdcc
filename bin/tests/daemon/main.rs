//! `sealane daemon` and `sealane drain` as processes: start, stop, clients that attach, behave, misbehave and die.

mod clients;
mod credentials;
mod figures;
mod fixture;
mod life;
mod map;
mod published;
mod pushed;
mod rings;
mod traces;
