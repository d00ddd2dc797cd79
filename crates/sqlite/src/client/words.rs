//! The words that clients write into each other's FIFOs, one per line.

use std::fmt;

use leasehold_core::Name;
use leasehold_core::backend::ClaimId;
use leasehold_core::support::{escape, unescape};

/// A message to a client.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// The client's claim was granted.
    Granted(ClaimId),
    /// The hold of the client's claim was ended.
    Evicted(ClaimId),
    /// The client's claim is to be sent again.
    Again(ClaimId),
    /// The holder of a name that the client observes has changed, or the holder's label.
    Changed(Name),
}

impl Word {
    /// Reads a line; `None` if it is no word.
    pub(crate) fn read(line: &str) -> Option<Word> {
        let (verb, of) = line.split_once(' ')?;
        match verb {
            "granted" => ClaimId::parse(of).map(Word::Granted),
            "evicted" => ClaimId::parse(of).map(Word::Evicted),
            "again" => ClaimId::parse(of).map(Word::Again),
            "changed" => unescape(of, is_end_of_line).map(|name| Word::Changed(Name::new(name))),
            _ => None,
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word::Granted(claim) => write!(f, "granted {claim}"),
            Word::Evicted(claim) => write!(f, "evicted {claim}"),
            Word::Again(claim) => write!(f, "again {claim}"),
            Word::Changed(name) => write!(f, "changed {}", escape(name.as_str(), is_end_of_line)),
        }
    }
}

/// Returns whether a character is escaped in a name, so that the name is one line.
fn is_end_of_line(c: char) -> bool {
    matches!(c, '\n' | '\r')
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn whatever_is_heard_it_is_a_word_or_nothing_and_each_word_is_one_line() {
        fuzz_text(include_str!("../../corpus/words"), |heard| {
            let words: Vec<Word> = heard.lines().filter_map(Word::read).collect();
            for word in words.into_iter().chain([Word::Changed(Name::new(heard))]) {
                let written = format!("{word}\n");
                let lines: Vec<&str> = written.lines().collect();
                assert_eq!(lines.len(), 1, "{written:?}");
                assert!(Word::read(lines[0]) == Some(word), "{written:?}");
            }
        });
    }

    #[test]
    fn each_word_is_read_as_it_was_written() {
        let id = ClaimId::fresh();
        for (word, written) in [
            (Word::Granted(id), format!("granted {id}")),
            (Word::Evicted(id), format!("evicted {id}")),
            (Word::Again(id), format!("again {id}")),
            (Word::Changed("a/b c".into()), "changed a/b c".to_owned()),
            (Word::Changed("a\nb".into()), "changed a%0Ab".to_owned()),
        ] {
            assert_eq!(word.to_string(), written);
            assert!(Word::read(&written) == Some(word), "{written}");
        }
    }
}
