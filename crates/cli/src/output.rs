//! What is written to standard output and error: whole, with nothing from others that moves the cursor, in colour only for
//! people who want it.

use std::env;
use std::io::{self, IsTerminal, Write, stdout};

/// Writes it to standard output. Whoever closes the pipe has read enough.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|e| io::Error::new(e.kind(), format!("standard output: {e}"))),
    }
}

/// Text that does not move the cursor.
pub(crate) fn plain(text: &str) -> String {
    let plain = |c: char| match c {
        '\n' | '\r' | '\t' => ' ',
        c if c.is_control() => '\u{FFFD}',
        c => c,
    };
    text.chars().map(plain).collect()
}

/// Whether somebody watches this stream who can see a line change.
pub(crate) fn is_watched(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Whether this stream is written in colour.
pub(crate) fn has_colours(stream: &impl IsTerminal) -> bool {
    is_watched(stream) && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn nothing_moves_the_cursor() {
        assert_eq!(plain("\x1b[2Ja\u{9b}b\r\n"), "\u{FFFD}[2Ja\u{FFFD}b  ");
        assert_eq!(plain("é\u{1F512}"), "é\u{1F512}");
    }
}
