//! The data of a completion's node.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold_core::backend::{Claim, ClaimId, Complete};
use leasehold_core::{Completion, FencingToken, Keep};
use zookeeper_client::{Error as ZkError, Stat};

use crate::error::{Answer, COMPLETION};

/// The first words of the data.
const OURS: &str = "leasehold/1 done ";

/// The word for a keep without an end.
const EVER: &str = "ever";

/// A completion as it is in its node.
pub(crate) struct Record {
    /// The claim that has completed its work.
    pub(crate) claim: ClaimId,
    pub(crate) completion: Completion,
    /// The leader's time at which its keep ends, in milliseconds; `None` if it counts for ever.
    until: Option<i64>,
    /// The version of the node's data.
    pub(crate) version: i32,
    /// The transaction that wrote it.
    pub(crate) written: i64,
}

/// A line of words, and the label and the result behind it: the last word is the length of the
/// label in bytes.
pub(crate) fn encode(claim: &Claim, request: &Complete) -> Vec<u8> {
    let id = claim.id;
    let token = request.token.get();
    let fire = claim.once.unwrap_or_default();
    let keep = milliseconds(request.keep).map_or_else(|| EVER.to_owned(), |ms| ms.to_string());
    let kind = match (&request.result, request.is_cut) {
        (None, _) => "none",
        (Some(_), false) => "whole",
        (Some(_), true) => "cut",
    };
    let label = &*claim.label;
    let result = request.result.as_deref().unwrap_or_default();
    let length = label.len();
    format!("{OURS}{id} {token} {fire} {keep} {kind} {length}\n{label}{result}").into_bytes()
}

/// The keep in milliseconds, never less than was asked for.
fn milliseconds(keep: Keep) -> Option<i64> {
    match keep {
        Keep::For(keep) => {
            let ms = keep.as_nanos().div_ceil(1_000_000);
            Some(i64::try_from(ms).unwrap_or(i64::MAX))
        }
        Keep::Forever => None,
    }
}

impl Record {
    /// The record that a transaction of this time has written.
    pub(crate) fn new(claim: &Claim, request: &Complete, time: i64) -> Record {
        let mut completion = Completion::new(request.token, claim.label.clone(), at(time));
        completion.fire = claim.once.unwrap_or_default();
        completion.result = request.result.clone();
        completion.is_cut = request.is_cut;
        Record {
            claim: claim.id,
            completion,
            until: milliseconds(request.keep).map(|keep| time.saturating_add(keep)),
            version: 0,
            written: 0,
        }
    }

    /// Reads a node with these data and this stat. A newer version's cannot be read.
    pub(crate) fn read(data: &[u8], stat: &Stat) -> Answer<Record> {
        decode(data, stat).ok_or(ZkError::UnmarshalError {
            entity: COMPLETION,
            reason: &"its data are of another form",
        })
    }

    /// Returns whether its keep has passed at this time of the leader's.
    pub(crate) fn is_over(&self, now: i64) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Returns whether it counts for ever.
    pub(crate) fn lasts(&self) -> bool {
        self.until.is_none()
    }

    /// The completion as it is at this time of the leader's.
    pub(crate) fn shown(&self, now: i64) -> Completion {
        let mut shown = self.completion.clone();
        shown.left = self.until.map(|until| {
            let left = until.saturating_sub(now);
            Duration::from_millis(u64::try_from(left).unwrap_or_default())
        });
        shown
    }
}

fn decode(data: &[u8], stat: &Stat) -> Option<Record> {
    let text = std::str::from_utf8(data).ok()?.strip_prefix(OURS)?;
    let (words, texts) = text.split_once('\n')?;
    let words: Vec<&str> = words.split(' ').collect();
    let [claim, token, fire, keep, kind, length] = words[..] else {
        return None;
    };
    let (label, result) = texts.split_at_checked(length.parse().ok()?)?;
    let token: u64 = token.parse().ok()?;
    let mut completion = Completion::new(FencingToken::new(token), label, at(stat.mtime));
    completion.fire = fire.parse().ok()?;
    completion.is_cut = kind == "cut";
    completion.result = match kind {
        "none" if result.is_empty() => None,
        "whole" | "cut" => Some(Arc::from(result)),
        _ => return None,
    };
    let until = match keep {
        EVER => None,
        keep => {
            let keep: i64 = keep.parse().ok().filter(|keep| *keep >= 0)?;
            Some(stat.mtime.saturating_add(keep))
        }
    };
    Some(Record {
        claim: ClaimId::parse(claim)?,
        completion,
        until,
        version: stat.version,
        written: stat.mzxid,
    })
}

/// The time of a server that counts in milliseconds.
fn at(time: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(time).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use leasehold_core::backend::{Mode, Place, WaitPolicy};
    use leasehold_fuzz::fuzz;

    use super::*;

    fn stat(mtime: i64) -> Stat {
        Stat {
            czxid: 0,
            mzxid: 9,
            pzxid: 0,
            ctime: 0,
            mtime,
            version: 3,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: 0,
        }
    }

    fn claim(label: &str) -> Claim {
        let ttl = Duration::from_secs(4);
        Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, ttl, label).once(7)
    }

    fn request(keep: Keep, result: Option<&str>) -> Complete {
        let mut request = Complete::new(FencingToken::new(1792), Place::new("x"), keep);
        request.result = result.map(Arc::from);
        request
    }

    #[test]
    fn a_record_comes_back_with_any_text() {
        let keep = Keep::For(Duration::from_millis(50));
        for result in [None, Some(""), Some("42\n é"), Some("none")] {
            for label in ["", "web-1\nx 7 é", "leasehold/1 done "] {
                let claim = claim(label);
                let request = request(keep, result);
                let data = encode(&claim, &request);
                let read = Record::read(&data, &stat(1000)).unwrap();
                let written = Record::new(&claim, &request, 1000);
                assert_eq!((read.version, read.written), (3, 9));
                assert_eq!(read.claim, claim.id);
                assert_eq!(read.shown(1010), written.shown(1010));
                assert_eq!(read.shown(1010).left, Some(Duration::from_millis(40)));
            }
        }
    }

    #[test]
    fn a_keep_is_never_shorter_than_was_asked_for() {
        let ends = |keep| {
            let data = encode(&claim(""), &request(keep, None));
            Record::read(&data, &stat(1000)).unwrap().until
        };
        assert_eq!(ends(Keep::Forever), None);
        for (keep, until) in [
            (Duration::ZERO, 1000),
            (Duration::from_nanos(1), 1001),
            (Duration::from_millis(3), 1003),
            (Duration::from_micros(3001), 1004),
            (Duration::MAX, i64::MAX),
        ] {
            assert_eq!(ends(Keep::For(keep)), Some(until), "{keep:?}");
        }
        let record = Record::new(
            &claim(""),
            &request(Keep::For(Duration::from_secs(1)), None),
            5,
        );
        assert!(!record.is_over(1004) && record.is_over(1005));
    }

    #[test]
    fn whatever_a_node_contains_it_is_a_record_or_none() {
        let id = ClaimId::fresh();
        for other in [
            String::new(),
            "leasehold/1 exclusive\nweb-1".to_owned(),
            format!("leasehold/2 done {id} 1 0 5 none 0\n"),
            format!("leasehold/1 done {id} 1 0 5 none 0"),
            format!("leasehold/1 done {id} 1 0 -5 none 0\n"),
            format!("leasehold/1 done {id} 1 0 5 none 0\nresult"),
            format!("leasehold/1 done {id} 1 0 5 else 0\n"),
            format!("leasehold/1 done {id} 1 0 5 whole 9\nlabel"),
            format!("leasehold/1 done {id} 1 0 5 whole 1\né"),
            format!("leasehold/1 done {id} 1 0 5 none 0 new\n"),
            "leasehold/1 done 7 1 0 5 none 0\n".to_owned(),
        ] {
            assert!(Record::read(other.as_bytes(), &stat(0)).is_err(), "{other}");
        }
        fuzz(include_str!("../../corpus/completions"), |data| {
            if let Ok(record) = Record::read(data, &stat(5)) {
                let shown = record.shown(5);
                assert!(shown.token.as_i64() >= 0 && !record.is_over(4));
            }
        });
    }
}
