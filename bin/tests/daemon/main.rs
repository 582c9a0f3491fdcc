//! `sealane daemon` and `sealane drain` as processes: start, stop, hand-over, and clients that attach, behave, misbehave and die.

mod clients;
mod credentials;
mod figures;
mod fixture;
mod forward;
mod hand_over;
mod life;
mod map;
mod published;
mod pushed;
mod rings;
mod traces;
