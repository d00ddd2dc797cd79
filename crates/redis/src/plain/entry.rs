//! The value of a lock as plain mode writes it, and as it reads the values of others.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, SystemTime};

use crate::link::{Fields, shortened};
use leasehold_core::backend::{ClaimId, Mode};
use leasehold_core::{Contention, FencingToken, Participant};

/// The beginning of each value. The scripts take such a value for that of another tool, so clients
/// with and without scripts exclude each other.
const MARK: &str = "leasehold-plain ";

/// A hold of a client in plain mode. The id comes last: what is shown of other tools' values are
/// their first characters, which tell that it is such a hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) token: FencingToken,
    /// The number of tokens from this one on that are the hold's.
    pub(super) turns: u32,
    /// In milliseconds of the server's clock.
    pub(super) since: u64,
    /// The client's microsecond of the request that wrote the label.
    pub(super) attempt: u64,
    /// The channel of the client.
    pub(super) channel: String,
    pub(super) label: String,
    pub(super) id: ClaimId,
}

impl Record {
    pub(super) fn text(&self) -> String {
        let Record {
            token,
            turns,
            since,
            attempt,
            channel,
            label,
            id,
        } = self;
        format!("{MARK}{token} {turns} {since} {attempt} {channel} {label} {id}")
    }

    /// Returns whether this token is one of the hold's.
    pub(super) fn has(&self, token: FencingToken) -> bool {
        let turn = token.get().checked_sub(self.token.get());
        turn.is_some_and(|turn| turn < u64::from(self.turns))
    }

    fn read(text: &str) -> Option<Record> {
        let (fields, id) = text.strip_prefix(MARK)?.rsplit_once(' ')?;
        let mut fields = Fields::of(fields);
        Some(Record {
            token: fields.token().ok()?,
            turns: fields.value().ok()?,
            since: fields.value().ok()?,
            attempt: fields.value().ok()?,
            channel: fields.word().to_owned(),
            label: fields.text().to_owned(),
            id: ClaimId::parse(id)?,
        })
    }
}

/// The holder of a lock, by the lock's value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Holder {
    /// A client in plain mode.
    Plain(Record),
    /// A client that uses scripts: its token, since when it holds, and its label.
    Scripts(FencingToken, u64, String),
    /// Several of them.
    Sharers,
    /// Another tool.
    Foreign(String),
}

impl Holder {
    /// The holder that this value tells of. Bytes that are not UTF-8 are only shown.
    pub(super) fn of(value: &[u8]) -> Holder {
        let text = String::from_utf8_lossy(value);
        if let Some(record) = Record::read(&text) {
            return Holder::Plain(record);
        }
        let is_shared = text.starts_with("=shared ") || text.starts_with("=permits ");
        match of_scripts(&text) {
            Some((token, since, label)) => Holder::Scripts(token, since, label),
            None if is_shared => Holder::Sharers,
            None => Holder::Foreign(text.into_owned()),
        }
    }

    /// The hold of this claim, if it is this holder's.
    pub(super) fn of_claim(&self, id: ClaimId) -> Option<&Record> {
        match self {
            Holder::Plain(record) if record.id == id => Some(record),
            _ => None,
        }
    }

    /// What a refused client is told, at this time of the server.
    pub(super) fn contention(&self, now: u64) -> Contention {
        let by = |token: FencingToken, since: u64, label: &String| {
            let held_for = Duration::from_millis(now.saturating_sub(since));
            Contention::by(label).token(token).held_for(held_for)
        };
        match self {
            Holder::Plain(it) => by(it.token, it.since, &it.label),
            Holder::Scripts(token, since, label) => by(*token, *since, label),
            Holder::Sharers => Contention::by(SHARERS),
            Holder::Foreign(_) => Contention::foreign(),
        }
    }

    /// The holder as `inspect` shows it. Its lease has so much left, in milliseconds; a negative
    /// number stands for a lease without an end.
    pub(super) fn shown(&self, left: i64) -> Participant {
        let of = |token: FencingToken, since: u64, label: &str| {
            let since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(since));
            let shown = Participant::new(label).token(token).mode(Mode::Exclusive);
            since.into_iter().fold(shown, Participant::since)
        };
        match self {
            Holder::Plain(it) => of(it.token, it.since, &it.label),
            Holder::Scripts(token, since, label) => of(*token, *since, label),
            Holder::Sharers => Participant::new(SHARERS).mode(Mode::Shared),
            Holder::Foreign(value) => {
                let ends_in = u64::try_from(left).map_or(Duration::MAX, Duration::from_millis);
                let mut shown = Participant::foreign().ends_in(ends_in);
                shown.label = Some(shortened(value));
                shown
            }
        }
    }
}

/// An exclusive participant, since this millisecond of the server's clock.
fn participant(since: u64, label: &str) -> Participant {
    let since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(since));
    let shown = Participant::new(label).mode(Mode::Exclusive);
    since.into_iter().fold(shown, Participant::since)
}

/// The key in which the waiters of this lock say that they wait: a hash that only `inspect` reads.
pub(super) fn waiters_of(lock: &str) -> String {
    format!("{{{lock}}}:p")
}

/// The field with the time since which this claim waits.
pub(super) fn since_of(id: impl Display) -> String {
    format!("s:{id}")
}

/// The waiters in such a hash at this time of the server, the oldest first: each has a field with its
/// deadline and its label, and another one with the time since which it waits.
pub(super) fn waiters(fields: &BTreeMap<String, String>, now: u64) -> Vec<Participant> {
    let mut all = Vec::new();
    for (id, value) in fields.iter().filter(|(id, _)| !id.starts_with("s:")) {
        let mut value = Fields::of(value);
        let is_alive = value.value::<u64>().is_ok_and(|deadline| deadline > now);
        let since = fields
            .get(&since_of(id))
            .and_then(|since| since.parse().ok());
        if is_alive {
            all.push((since.unwrap_or(now), value.text()));
        }
    }
    all.sort_unstable();
    let each = all.into_iter();
    each.map(|(since, label)| participant(since, label))
        .collect()
}

/// What is shown in place of the labels of several holders, which are in keys that only scripts
/// read.
const SHARERS: &str = "several clients that use scripts";

/// Reads what the scripts write for an exclusive holder: flag and id, token kind n of ttl turns
/// attempt since channel label.
fn of_scripts(text: &str) -> Option<(FencingToken, u64, String)> {
    let mut fields = Fields::of(text.strip_prefix(['-', '+', '*', '.'])?);
    ClaimId::parse(fields.word())?;
    let token = fields.token().ok()?;
    // Kind, n, of, ttl, turns and attempt.
    for _ in 0..6 {
        fields.word();
    }
    let since = fields.value().ok()?;
    fields.word();
    Some((token, since, fields.text().to_owned()))
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz;

    use super::*;

    fn record(label: &str) -> Record {
        Record {
            token: FencingToken::new(1_795_983_320_458_776),
            turns: 64,
            since: 1_795_983_320_458,
            attempt: 17,
            channel: "leasehold:x".into(),
            label: label.into(),
            id: ClaimId::fresh(),
        }
    }

    #[test]
    fn a_record_comes_back_with_any_label() {
        for label in [
            "",
            " ",
            "web 1",
            "a  b ",
            "leasehold-plain 1",
            "\u{1F512}\n",
        ] {
            let record = record(label);
            let read = Holder::of(record.text().as_bytes());
            assert_eq!(read.of_claim(record.id), Some(&record), "{label:?}");
            assert_eq!(read.of_claim(ClaimId::fresh()), None);
        }
    }

    #[test]
    fn each_turn_of_a_hold_is_its_own() {
        let record = record("");
        let token = record.token.get();
        for (turn, is_its) in [
            (token - 1, false),
            (token, true),
            (token + 63, true),
            (token + 64, false),
        ] {
            assert_eq!(record.has(FencingToken::new(turn)), is_its, "{turn}");
        }
    }

    #[test]
    fn waiters_are_those_whose_time_is_not_over() {
        let fields = [
            ("a", "200 late"),
            ("s:a", "50"),
            ("b", "200 soon"),
            ("s:b", "40"),
            ("c", "100 gone"),
            ("d", "junk"),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let waiting = waiters(&BTreeMap::from(fields), 100);
        let labels: Vec<_> = waiting.into_iter().filter_map(|it| it.label).collect();
        assert_eq!(labels, ["soon", "late"]);
    }

    #[test]
    fn no_part_of_an_id_is_shown_where_the_value_is_another_tools() {
        assert_eq!(shortened(&record("").text()), format!("{MARK}…"));
    }

    #[test]
    fn holders_with_scripts_and_other_tools_are_told_apart() {
        let id = ClaimId::fresh();
        for flag in ['-', '+', '*', '.'] {
            let text = format!("{flag}{id} 77 exclusive 1 1 60000 1 5 1234 leasehold:x web 1");
            let expected = Holder::Scripts(FencingToken::new(77), 1234, "web 1".into());
            assert_eq!(Holder::of(text.as_bytes()), expected);
        }
        assert_eq!(Holder::of(b"=shared 2 4294967295"), Holder::Sharers);
        for other in [
            "",
            "-",
            "5f2b1c0e",
            "leasehold-plain ",
            "leasehold-plain 1 2 3 x 4",
        ] {
            assert_eq!(Holder::of(other.as_bytes()), Holder::Foreign(other.into()));
        }
    }

    #[test]
    fn whatever_a_value_is_it_has_a_holder() {
        fuzz(include_str!("../../corpus/records"), |bytes| {
            let holder = Holder::of(bytes);
            assert!(!holder.contention(0).to_string().is_empty());
            holder.shown(-1);
        });
    }
}
