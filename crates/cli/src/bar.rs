//! A bar for work of known length.

use crate::status_line::StatusLine;

/// How wide the bar is.
const WIDTH: usize = 24;

/// A bar on a [`StatusLine`].
#[derive(Debug)]
pub(crate) struct Bar(StatusLine);

impl Bar {
    pub(crate) fn new() -> Bar {
        Bar(StatusLine::new())
    }

    /// This part of the work is done, and this goes on.
    pub(crate) fn show(&self, done: f64, what: &str) {
        self.0.show(&format!("{} {what}", drawn(done)));
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
