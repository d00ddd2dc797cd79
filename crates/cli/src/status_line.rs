//! One line on standard error for people who watch: shown again and again in its place, and gone when it is dropped.

use std::cell::Cell;
use std::io::{Write, stderr};

use rustix::process::getpgrp;
use rustix::termios::{tcgetpgrp, tcgetwinsize};

use crate::output;

/// How wide a terminal is that does not say.
const USUAL_WIDTH: u16 = 80;

/// The line. Nobody sees it if standard error is no terminal, or while another job has the terminal.
#[derive(Debug)]
pub(crate) struct StatusLine {
    watched: bool,
    shown: Cell<bool>,
}

impl StatusLine {
    pub(crate) fn new() -> StatusLine {
        StatusLine { watched: output::is_watched(&stderr()), shown: Cell::new(false) }
    }

    /// Whether there is a terminal to show it on.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched
    }

    pub(crate) fn show(&self, text: &str) {
        if self.watched && tcgetpgrp(stderr()).map_or(true, |group| group == getpgrp()) {
            let _ = write!(stderr(), "\r\x1b[2K{}", cut(text, width()));
            self.shown.set(true);
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        if self.shown.get() {
            let _ = write!(stderr(), "\r\x1b[2K");
        }
    }
}

fn width() -> u16 {
    tcgetwinsize(stderr()).map(|size| size.ws_col).ok().filter(|width| *width > 0).unwrap_or(USUAL_WIDTH)
}

/// So that it never wraps: what has wrapped could not be wiped.
fn cut(text: &str, width: u16) -> String {
    output::plain(text).chars().take(usize::from(width).saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn a_line_stays_one_line() {
        assert_eq!(cut("waiting", 5), "wait");
        assert_eq!(cut("waiting\nfor", 80), "waiting for");
        assert_eq!(cut("waiting", 0), "");
    }
}
