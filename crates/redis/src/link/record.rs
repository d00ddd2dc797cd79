//! The notation that all scripts share: fields separated by single blanks, the free text last.

use std::str::FromStr;
use std::time::Duration;

use leasehold_core::{Contention, FencingToken, Result};
use redis::Value;

use crate::link::error::junk;

/// The record in an answer. Bytes that are not UTF-8 were written by others, and are only shown.
pub(crate) fn record(answer: &Value) -> Result<String> {
    match answer {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        _ => Err(junk("an answer")),
    }
}

/// Reads one record from left to right.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    whole: &'a str,
    rest: &'a str,
}

impl<'a> Fields<'a> {
    /// Begins at the start of the record.
    pub(crate) fn of(record: &'a str) -> Fields<'a> {
        Fields {
            whole: record,
            rest: record,
        }
    }

    /// The next word.
    pub(crate) fn word(&mut self) -> &'a str {
        let (word, rest) = self.rest.split_once(' ').unwrap_or((self.rest, ""));
        self.rest = rest;
        word
    }

    /// The next word, parsed.
    pub(crate) fn value<T: FromStr>(&mut self) -> Result<T> {
        // The record may hold an id, so only its first word is shown.
        let kind = self.whole.split(' ').next().unwrap_or_default();
        self.word().parse().map_err(|_| junk(kind))
    }

    /// The next word as a token.
    pub(crate) fn token(&mut self) -> Result<FencingToken> {
        self.value()
    }

    /// The next word as milliseconds.
    pub(crate) fn millis(&mut self) -> Result<Duration> {
        self.value().map(Duration::from_millis)
    }

    /// The rest of the record.
    pub(crate) fn text(self) -> &'a str {
        self.rest
    }
}

/// The claims ahead of one that was not granted.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// The holder, or the waiter that goes first.
    pub(crate) who: Contention,
    /// The time for which the holder, or that waiter, stays without a renewal or a release; `None`
    /// if it has no end.
    pub(crate) left: Option<Duration>,
    /// The number of waiters before the claim.
    pub(crate) rank: u32,
}

impl Ahead {
    /// Reads `kind token held_for others left rank label`. A kind is `ours`, `next` (has its turn, and no token yet) or `foreign`.
    pub(crate) fn of(mut fields: Fields<'_>) -> Result<Ahead> {
        let kind = fields.word();
        let token = fields.token()?;
        let held = fields.millis()?;
        let (others, left): (usize, i64) = (fields.value()?, fields.value()?);
        let rank = fields.value()?;
        let who = match kind {
            "ours" => Contention::by(fields.text()).token(token).held_for(held),
            "next" => Contention::by(fields.text()),
            "foreign" => Contention::foreign(),
            _ => return Err(junk("the answer to a claim")),
        };
        let left = u64::try_from(left).ok().map(Duration::from_millis);
        Ok(Ahead {
            who: who.waiters(others),
            left,
            rank,
        })
    }
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::{fuzz, fuzz_text};

    use super::*;
    use crate::link::error::{of_plain_connect, of_request, of_sentinel};
    use crate::link::inbox::Inbox;

    #[test]
    fn reads_words_and_keeps_the_text_whole() {
        let mut record = Fields::of("granted 17 250 a label  with blanks\n");
        assert_eq!(record.word(), "granted");
        assert_eq!(record.token().unwrap().get(), 17);
        assert_eq!(record.millis().unwrap(), Duration::from_millis(250));
        assert_eq!(record.text(), "a label  with blanks\n");
        assert_eq!(Fields::of("").word(), "");
        assert!(Fields::of("x").token().is_err());
    }

    #[test]
    fn an_answer_is_text_of_any_kind() {
        assert_eq!(
            record(&Value::BulkString(b"granted 17".to_vec())).unwrap(),
            "granted 17"
        );
        assert_eq!(
            record(&Value::BulkString(b"\xff".to_vec())).unwrap(),
            "\u{fffd}"
        );
        assert!(record(&Value::Nil).is_err() && record(&Value::Int(1)).is_err());
    }

    #[test]
    fn an_answer_says_who_is_ahead() {
        let ours = Ahead::of(Fields::of("ours 77 1500 3 8000 2 web 1")).unwrap();
        let held = Duration::from_millis(1500);
        assert_eq!(
            ours.who,
            Contention::by("web 1")
                .token(FencingToken::new(77))
                .held_for(held)
                .waiters(3)
        );
        assert_eq!((ours.left, ours.rank), (Some(Duration::from_secs(8)), 2));
        let foreign = Ahead::of(Fields::of("foreign 0 0 0 -1 0 ")).unwrap();
        assert_eq!(
            (foreign.who, foreign.left),
            (Contention::foreign().waiters(0), None)
        );
        let next = Ahead::of(Fields::of("next 0 0 1 40 0 web 2")).unwrap();
        assert_eq!(next.who, Contention::by("web 2").waiters(1));
        for junk in ["ours 77 1500", "mine 1 1 1 1 1 x", ""] {
            assert!(Ahead::of(Fields::of(junk)).is_err(), "{junk}");
        }
    }

    #[test]
    fn whatever_a_record_says_it_is_read_or_refused() {
        fuzz_text(include_str!("../../corpus/records"), |text| {
            let mut fields = Fields::of(text);
            let kind = fields.word();
            let _ = (fields.token(), fields.millis(), fields.value::<u32>());
            assert!(text.ends_with(fields.text()) && text.starts_with(kind));
            let Ok(Ahead { who, left, rank }) = Ahead::of(Fields::of(text)) else {
                return;
            };
            assert!(!who.to_string().is_empty());
            let [token, held] = [
                who.token.map_or(0, FencingToken::get),
                who.held_for.map_or(0, |d| d.as_millis() as u64),
            ];
            let others = who.waiters.unwrap_or_default();
            let label = who.label.as_deref().unwrap_or_default();
            let left = left.map_or(-1, |left| left.as_millis() as i64);
            let kind = if who.foreign {
                "foreign"
            } else if who.token.is_some() {
                "ours"
            } else {
                "next"
            };
            let written = format!("{kind} {token} {held} {others} {left} {rank} {label}");
            let again = Ahead::of(Fields::of(&written)).unwrap();
            assert_eq!((again.who, again.rank), (who, rank));
        });
    }

    #[test]
    fn whatever_a_server_answers_it_is_read_or_refused_and_not_repeated() {
        let inbox = Inbox::new(false);
        fuzz(include_str!("../../corpus/answers"), |bytes| {
            let Ok(answer) = redis::parse_redis_value(bytes) else {
                return;
            };
            let _ = record(&answer)
                .map(|record| Ahead::of(Fields::of(&record)).map(|ahead| ahead.rank));
            if let Err(e) = answer.extract_error() {
                for error in [of_request(&e), of_sentinel(&e), of_plain_connect(&e)] {
                    assert!(!format!("{error} {error:?}").contains("S3CRET"), "{error}");
                }
            }
        });
        fuzz(include_str!("../../corpus/records"), |bytes| {
            inbox.receive(bytes);
            let place = leasehold_core::backend::Place::new(&*String::from_utf8_lossy(bytes));
            assert_eq!(inbox.id_at(&place, "a key"), None);
        });
    }
}
