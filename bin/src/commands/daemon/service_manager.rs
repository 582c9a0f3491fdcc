//! What the service manager is told, where there is one (`NOTIFY_SOCKET`): ready, reloading, stopping, and a line of
//! status. Nothing depends on its hearing it.

use std::io;

use sd_notify::NotifyState;

/// The daemon serves.
pub(super) fn ready(status: &str) {
    tell(Ok(&[NotifyState::Ready, NotifyState::Status(status)]));
}

/// The daemon reads its endpoint map again; [`ready`] follows.
pub(super) fn reloading() {
    // A service manager compares the time with that of its own wish to reload.
    let now = NotifyState::monotonic_usec_now();
    tell(now.map(|now| [NotifyState::Reloading, now]).as_ref().map(<[_; 2]>::as_slice));
}

/// The daemon finishes.
pub(super) fn stopping(status: &str) {
    tell(Ok(&[NotifyState::Stopping, NotifyState::Status(status)]));
}

/// What the daemon is about.
pub(super) fn status(status: &str) {
    tell(Ok(&[NotifyState::Status(status)]));
}

fn tell(states: Result<&[NotifyState<'_>], &io::Error>) {
    let told = match states {
        Ok(states) => sd_notify::notify(states).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = told {
        tracing::warn!(error, "the service manager cannot be told; is NOTIFY_SOCKET right?");
    }
}
