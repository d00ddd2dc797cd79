//! A bar on standard error, if that is a terminal, for work of known length.

use std::io::{IsTerminal, Write, stderr};

/// How wide the bar is.
const WIDTH: usize = 24;

/// A bar that is shown again and again in one line, and is gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Bar {
    shown: bool,
}

impl Bar {
    pub(crate) fn new() -> Bar {
        Bar { shown: stderr().is_terminal() }
    }

    /// This part of the work is done, and this goes on.
    pub(crate) fn show(&self, done: f64, what: &str) {
        if self.shown {
            // The line is cleared and kept short, so that it never wraps.
            let what: String = what.chars().filter(|c| !c.is_control()).take(44).collect();
            let _ = write!(stderr(), "\r\x1b[K{} {what}", drawn(done));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

fn drawn(done: f64) -> String {
    let done = done.clamp(0.0, 1.0);
    let full = (done * WIDTH as f64).round() as usize;
    format!("[{}{}] {:3.0} %", "#".repeat(full), ".".repeat(WIDTH - full), done * 100.0)
}

#[cfg(test)]
mod tests {
    use super::drawn;

    #[test]
    fn a_bar_fills_up_and_never_over() {
        assert_eq!(drawn(0.0), format!("[{}]   0 %", ".".repeat(24)));
        assert_eq!(drawn(0.5), format!("[{}{}]  50 %", "#".repeat(12), ".".repeat(12)));
        assert_eq!(drawn(7.0), format!("[{}] 100 %", "#".repeat(24)));
    }
}
