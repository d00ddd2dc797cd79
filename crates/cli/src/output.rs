//! Writes to standard output and error. Text is written as a whole, without characters from others
//! that move the cursor, and in colour only for people who want it.

use std::env;
use std::io::{self, IsTerminal, Write, stdout};

/// Writes the text to standard output. It is no error if the reader has closed the pipe.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|e| io::Error::new(e.kind(), format!("standard output: {e}"))),
    }
}

/// Returns the text in one line that neither moves the cursor nor changes the direction of the text
/// after it.
pub(crate) fn plain(text: &str) -> String {
    let plain = |c: char| match c {
        '\n' | '\r' | '\t' => ' ',
        c if acts(c) => '\u{FFFD}',
        c => c,
    };
    text.chars().map(plain).collect()
}

/// Returns text of many lines, each as [`plain`] returns it.
pub(crate) fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// Returns JSON in which every control or invisible character is an escape. Such characters occur
/// in strings only.
pub(crate) fn safe_json(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c >= '\u{7f}' && acts(c) {
            let mut units = [0; 2];
            c.encode_utf16(&mut units)
                .iter()
                .for_each(|unit| safe.push_str(&format!("\\u{unit:04x}")));
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Returns whether a character has an effect and no shape: controls, direction marks, breaks, and
/// invisible characters.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns whether this stream is a terminal that can change a line.
pub(crate) fn is_watched(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Returns whether this stream is written in colour.
pub(crate) fn has_colours(stream: &impl IsTerminal) -> bool {
    is_watched(stream) && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn nothing_moves_the_cursor() {
        assert_eq!(plain("\x1b[2Ja\u{9b}b\r\n"), "\u{FFFD}[2Ja\u{FFFD}b  ");
        assert_eq!(plain("é\u{1F512}"), "é\u{1F512}");
        assert_eq!(plain("a\u{202e}b\u{2066}"), "a\u{FFFD}b\u{FFFD}");
        assert_eq!(plain_lines("a\n\u{7f}\n"), "a\n\u{FFFD}\n");
    }

    #[test]
    fn json_stays_the_same_and_is_safe_to_show() {
        let value = serde_json::json!({ "a\u{9b}": ["\u{202e}\u{e0041}\u{7f}é\n"] });
        let shown = safe_json(&format!("{value:#}"));
        assert!(
            shown.contains("\\u009b") && shown.contains("\\u202e\\udb40\\udc41\\u007fé\\n"),
            "{shown}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).unwrap(),
            value
        );
    }

    #[test]
    fn whatever_is_shown_it_does_nothing() {
        fuzz_text(include_str!("../corpus/texts"), |text| {
            assert!(
                !plain(text).contains(acts) && plain(text).chars().count() == text.chars().count()
            );
            assert!(!plain_lines(text).contains(|c| c != '\n' && acts(c)));
            let value = serde_json::json!({ "label": text, text: [text] });
            let shown = safe_json(&format!("{value:#}\n"));
            assert!(!shown.contains(|c| c != '\n' && acts(c)), "{shown:?}");
            assert_eq!(
                serde_json::from_str::<serde_json::Value>(&shown).unwrap(),
                value
            );
        });
    }
}
