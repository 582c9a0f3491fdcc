//! How far long work is, on standard error: a bar where that is a terminal, plain lines where it is not.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

/// A bar, which is gone when it is dropped; nothing where standard error is no terminal.
#[derive(Debug)]
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// A bar of that length; the template says what stands beside it.
    ///
    /// # Panics
    /// The template is malformed.
    pub fn on_stderr(length: u64, template: &'static str) -> Bar {
        Bar(io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(template).expect("templates are constants that are well formed");
            ProgressBar::new(length).with_style(style)
        }))
    }

    /// So much is done; false if there is no bar to show it.
    pub fn at(&self, position: u64, message: &str) -> bool {
        if let Some(bar) = &self.0 {
            bar.set_message(message.to_owned());
            bar.set_position(position);
        }
        self.0.is_some()
    }

    /// Says something on a line of its own.
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

/// Writes a line to standard error.
pub(crate) fn write_line(line: &str) {
    // With standard error gone, there is nobody to read it.
    let _ = writeln!(io::stderr(), "{line}");
}
