//! What a demo consists of besides its tasks, and so the way of a tensor. Plain data.

/// Where the engines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    /// In every task's process.
    Embedded,
    /// In two daemons: one for all ps, one for all workers.
    TwoDaemons,
    /// In one daemon for all tasks.
    OneDaemon,
}

impl Setup {
    /// `daemons` or `embedded`.
    pub(super) fn mode(self) -> &'static str {
        match self {
            Setup::Embedded => "embedded",
            Setup::TwoDaemons | Setup::OneDaemon => "daemons",
        }
    }

    /// What carries a tensor from the one part's side to the other's.
    pub(super) fn link(self) -> &'static str {
        match self {
            Setup::Embedded | Setup::TwoDaemons => "tcp",
            Setup::OneDaemon => "shm",
        }
    }

    /// The way of every tensor, process by process.
    pub(super) fn path(self) -> &'static str {
        match self {
            Setup::Embedded => "task --tcp--> task",
            Setup::TwoDaemons => "task --shm--> daemon --tcp--> daemon --shm--> task",
            Setup::OneDaemon => "task --shm--> daemon --shm--> task",
        }
    }
}
