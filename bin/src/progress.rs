//! Progress of long work on standard error: a bar on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

/// A bar that vanishes when dropped; empty if standard error is no terminal.
#[derive(Debug)]
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// A bar of that length; the template describes its line.
    ///
    /// # Panics
    /// The template is malformed.
    pub fn on_stderr(length: u64, template: &'static str) -> Bar {
        Bar(io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(template).expect("templates are constants that are well formed");
            ProgressBar::new(length).with_style(style)
        }))
    }

    /// Shows the position; false if there is no bar.
    pub fn at(&self, position: u64, message: &str) -> bool {
        if let Some(bar) = &self.0 {
            bar.set_message(message.to_owned());
            bar.set_position(position);
        }
        self.0.is_some()
    }

    /// Prints a line of its own.
    pub fn say(&self, line: &str) {
        match &self.0 {
            Some(bar) => bar.println(line),
            None => write_line(line),
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

pub(crate) fn write_line(line: &str) {
    // Without standard error nobody could read it.
    let _ = writeln!(io::stderr(), "{line}");
}
