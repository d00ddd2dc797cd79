//! The value of a place's key: the label, and a last line with the time at which the place was
//! taken, and the mode.
//!
//! ```text
//! <label>⏎<since>              exclusive
//! <label>⏎<since> turns        exclusive, and takes turns: see `claim/turns`
//! <label>⏎<since> shared       shared; an exclusive place becomes one by another value
//! <label>⏎<since> <n>/<of>     n of so many permits
//! ```
//!
//! If tokens are raised, ` +<by>` follows: the place's number is greater than its create_revision
//! by that (see `fence/raise`).
//!
//! etcd keeps no time, so `since` is the wall clock of the client that joined the queue, in
//! milliseconds since 1970. Only people read it. Values are never compared: a holder may change its
//! label, and other tools write any text. A value without a known mode is exclusive, and so are the
//! values of other tools.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use etcd_client::KeyValue;
use leasehold_core::Participant;
use leasehold_core::backend::{Mode, token_of_place};

use crate::completion::record::fire_of;
use crate::names;

/// The parsed value of a place's key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) label: String,
    pub(crate) since: Option<SystemTime>,
    pub(crate) mode: Mode,
    /// It takes turns.
    pub(crate) turns: bool,
    /// The difference between its number and its create_revision.
    pub(crate) base: i64,
}

impl Entry {
    pub(crate) fn now(label: &str, mode: Mode) -> Entry {
        Entry {
            label: label.to_owned(),
            since: Some(SystemTime::now()),
            mode,
            turns: false,
            base: 0,
        }
    }

    pub(crate) fn write(&self) -> String {
        let since = self
            .since
            .and_then(|since| since.duration_since(UNIX_EPOCH).ok())
            .unwrap_or_default()
            .as_millis();
        let label = &self.label;
        let mut value = match self.mode {
            Mode::Exclusive if self.turns => format!("{label}\n{since} {TURNS}"),
            Mode::Exclusive => format!("{label}\n{since}"),
            Mode::Shared => format!("{label}\n{since} shared"),
            Mode::Permits { n, of } => format!("{label}\n{since} {n}/{of}"),
        };
        if self.base > 0 {
            value += &format!("{BASE}{}", self.base);
        }
        value
    }

    pub(crate) fn read(value: &[u8]) -> Entry {
        let text = String::from_utf8_lossy(value);
        let (label, said) = text.rsplit_once('\n').unwrap_or((&text, ""));
        let raised = said
            .rsplit_once(BASE)
            .and_then(|(said, by)| Some((said, by.parse().ok().filter(|by| *by >= 0)?)));
        let (said, base) = raised.unwrap_or((said, 0));
        let (since, mode) = said.split_once(' ').unwrap_or((said, ""));
        let since = since
            .parse()
            .ok()
            .and_then(|since| UNIX_EPOCH.checked_add(Duration::from_millis(since)));
        let turns = mode == TURNS;
        let mode = if mode == "shared" {
            Mode::Shared
        } else {
            permits(mode)
        };
        Entry {
            label: label.to_owned(),
            since,
            mode,
            turns,
            base,
        }
    }
}

/// The mark of an entry that takes turns, in the last line of its value.
const TURNS: &str = "turns";
/// The text before the number by which a place is raised.
const BASE: &str = " +";

fn permits(text: &str) -> Mode {
    let numbers = text
        .split_once('/')
        .and_then(|(n, of)| Some((n.parse().ok()?, of.parse().ok()?)));
    numbers
        .and_then(|(n, of)| Mode::from_parts("permits", n, of))
        .unwrap_or(Mode::Exclusive)
}

/// The part of an entry that a mirror keeps.
pub(crate) type QueueEntry = (Mode, Participant);

/// The mode of an entry under this prefix, and its participant with the token that it has if it
/// holds.
pub(crate) fn participant(prefix: &str, kv: &KeyValue) -> QueueEntry {
    let token = |base: i64| token_of_place(base.saturating_add(kv.create_revision()));
    if names::lease_of(prefix, kv.key()).is_none() {
        return (Mode::Exclusive, Participant::foreign().token(token(0)));
    }
    let Entry {
        label,
        since,
        mode,
        base,
        ..
    } = Entry::read(kv.value());
    let token = token(base);
    (
        mode,
        since
            .into_iter()
            .fold(Participant::new(label).token(token), Participant::since),
    )
}

/// The part of the value of a key in this folder that a mirror keeps. Of a completion it keeps the
/// number of the fire, as the label.
pub(crate) fn mirrored(folder: &str, kv: &KeyValue) -> QueueEntry {
    if names::has_completions(folder) {
        let fire = fire_of(kv.value()).unwrap_or(u64::MAX);
        return (Mode::Exclusive, Participant::new(fire.to_string()));
    }
    participant(folder, kv)
}

/// Returns whether it is an entry of this library that takes turns.
pub(crate) fn takes_turns(prefix: &str, kv: &KeyValue) -> bool {
    names::lease_of(prefix, kv.key()).is_some() && Entry::read(kv.value()).turns
}

pub(crate) fn mode(prefix: &str, kv: &KeyValue) -> Mode {
    participant(prefix, kv).0
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz;

    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let since = Some(UNIX_EPOCH + Duration::from_millis(1_234_567));
        for label in ["web-1", "", "two\nlines", "é", "a\n5 shared"] {
            let permits = Mode::Permits { n: 2, of: u32::MAX };
            for (mode, turns) in [
                (Mode::Exclusive, false),
                (Mode::Exclusive, true),
                (Mode::Shared, false),
                (permits, false),
            ] {
                for base in [0, 7, i64::MAX] {
                    let value = Entry {
                        label: label.to_owned(),
                        since,
                        mode,
                        turns,
                        base,
                    };
                    assert_eq!(Entry::read(value.write().as_bytes()), value);
                }
            }
        }
    }

    #[test]
    fn what_others_wrote_is_exclusive() {
        for odd in [
            "other",
            "x\n99999999999999999999",
            "x\n5 Shared",
            "x\n5 0/3",
            "x\n5 9/3",
            "x\n5 1/",
            "x\n5 1/4294967296",
            "x\n5 shared +-7",
            "x\n5 shared +9223372036854775808",
            "\n ",
        ] {
            assert_eq!(Entry::read(odd.as_bytes()).mode, Mode::Exclusive, "{odd:?}");
        }
        assert_eq!(
            (
                Entry::read(b"other").label.as_str(),
                Entry::read(b"x\n1e5").since
            ),
            ("other", None)
        );
        assert_eq!(Entry::read(&[0xff]).label, "\u{fffd}");
    }

    #[test]
    fn whatever_a_value_says_it_is_read() {
        fuzz(include_str!("../corpus/values"), |value| {
            let read = Entry::read(value);
            assert_eq!(Entry::read(read.write().as_bytes()).mode, read.mode);
            if read.since.is_some() {
                assert_eq!(Entry::read(read.write().as_bytes()), read);
            }
            let (kind, n, of) = read.mode.parts();
            assert_eq!(
                Mode::from_parts(kind, n, of),
                Some(read.mode),
                "no such mode is ever claimed"
            );
            let label = Entry {
                label: String::from_utf8_lossy(value).into_owned(),
                since: Some(UNIX_EPOCH),
                mode: Mode::Shared,
                turns: false,
                base: 7,
            };
            assert_eq!(Entry::read(label.write().as_bytes()), label);
        });
    }
}
