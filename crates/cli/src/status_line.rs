//! One line on standard error for people who watch. It is shown again and again in its place, and
//! removed when it is dropped.

use std::cell::Cell;
use std::io::stderr;

use indicatif::{ProgressBar, ProgressStyle};
use rustix::termios::tcgetpgrp;

use crate::output;
use crate::processes::{self, Kin};

/// The number of parts in which a bar's work is counted.
const PARTS: u64 = 1000;

/// The line. It is not shown if standard error is no terminal, or while another job has the terminal.
#[derive(Debug)]
pub(crate) struct StatusLine {
    line: ProgressBar,
    watched: bool,
    shown: Cell<bool>,
}

impl StatusLine {
    /// A bar, for work of known length.
    #[cfg(feature = "lab")]
    pub(crate) fn bar() -> StatusLine {
        StatusLine::new(
            ProgressBar::new(PARTS),
            "[{bar:24}] {percent:>3} % {wide_msg}",
        )
    }

    /// A spinner, for a wait.
    pub(crate) fn spinner() -> StatusLine {
        StatusLine::new(ProgressBar::new_spinner(), "{spinner} {wide_msg}")
    }

    fn new(line: ProgressBar, template: &str) -> StatusLine {
        if let Ok(style) = ProgressStyle::with_template(template) {
            line.set_style(style.progress_chars("#..").tick_chars("|/-\\ "));
        }
        StatusLine {
            line,
            watched: output::is_watched(&stderr()),
            shown: Cell::new(false),
        }
    }

    /// Returns whether there is a terminal for the line.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched
    }

    /// Shows the text and, on a bar, that this part of the work is done.
    pub(crate) fn show(&self, done: f64, text: &str) {
        if self.watched && is_in_foreground() {
            self.shown.set(true);
            self.line.set_position((done * PARTS as f64) as u64);
            self.line.set_message(output::plain(text));
            self.line.tick();
        }
    }
}

/// Returns whether this process may write to the terminal; true if that is not known.
fn is_in_foreground() -> bool {
    tcgetpgrp(stderr()).map_or(true, |group| {
        Kin::of(processes::own_pid()).is_none_or(|kin| kin.group == group.as_raw_nonzero().get())
    })
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        if self.shown.get() {
            self.line.finish_and_clear();
        }
    }
}
