//! What a demo consists of besides its tasks, and so the way of a tensor. Plain data.

use crate::settings::Require;

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

    /// What carries a tensor from the one part's side to the other's; `network` is what joins two engines.
    pub(super) fn link(self, network: &'static str) -> &'static str {
        match self {
            Setup::Embedded | Setup::TwoDaemons => network,
            Setup::OneDaemon => "shm",
        }
    }

    /// The way of every tensor, process by process.
    pub(super) fn path(self, network: &str) -> String {
        match self {
            Setup::Embedded => format!("task --{network}--> task"),
            Setup::TwoDaemons => format!("task --shm--> daemon --{network}--> daemon --shm--> task"),
            Setup::OneDaemon => "task --shm--> daemon --shm--> task".to_owned(),
        }
    }
}

/// What will join two engines, as far as the settings say.
pub(super) fn expected_network(require: Require, verbs_built_in: bool) -> &'static str {
    match require {
        Require::Verbs => "verbs",
        Require::Auto if verbs_built_in => "verbs or tcp",
        Require::Auto | Require::Tcp => "tcp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_build_with_verbs_leaves_the_network_open() {
        assert_eq!(expected_network(Require::Auto, true), "verbs or tcp");
        assert_eq!(expected_network(Require::Auto, false), "tcp");
        assert_eq!(expected_network(Require::Tcp, true), "tcp");
        assert_eq!(expected_network(Require::Verbs, true), "verbs");
    }

    #[test]
    fn the_network_joins_engines_and_nothing_else() {
        assert_eq!(Setup::Embedded.path("verbs"), "task --verbs--> task");
        assert_eq!(Setup::TwoDaemons.path("tcp"), "task --shm--> daemon --tcp--> daemon --shm--> task");
        assert_eq!(Setup::OneDaemon.path("tcp"), "task --shm--> daemon --shm--> task");
        assert_eq!([Setup::Embedded, Setup::OneDaemon].map(|setup| setup.link("verbs")), ["verbs", "shm"]);
    }
}
