//! How many peers have answered: a bar while standard error is a terminal, nothing where it is not.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// Gone when dropped.
pub(super) struct Bar(Option<ProgressBar>);

impl Bar {
    /// So many peers are called.
    pub(super) fn on_stderr(peers: usize) -> Bar {
        Bar(io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:32} {pos} of {len} peers");
            ProgressBar::new(peers as u64).with_style(style.expect("the template is a constant that is well formed"))
        }))
    }

    /// So many calls are over.
    pub(super) fn at(&self, over: usize) {
        if let Some(bar) = &self.0 {
            bar.set_position(over as u64);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
