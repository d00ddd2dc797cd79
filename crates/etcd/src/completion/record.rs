//! The value of the key of a completion.
//!
//! ```text
//! <fire> 1 <token> <claim> <at> <keep> <length> <kind>⏎<label>⏎<result>
//! ```
//!
//! `<fire>` is the number of the fire as 16 hexadecimal digits, so that a transaction can compare
//! it. `1` is the format; another one begins with the fire, too. `<claim>` is the id of the claim
//! that has completed its work, by which a repeated request knows its own completion. `<at>` is the
//! wall clock of its client, in milliseconds since 1970, because etcd keeps no time. `<keep>` is in
//! milliseconds, or `-` for ever; the lease of the key ends it, and this is for people to read.
//! `<length>` is that of the label in bytes. `<kind>` is `whole` or `cut`, or `none` without a
//! result.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_core::backend::{Claim, ClaimId, Complete};
use leasehold_core::{Completion, Error, ErrorKind, FencingToken, Keep, Result};

/// The format that this version writes.
const FORMAT: &str = "1";
/// The number of digits of a fire.
const DIGITS: usize = 16;

/// A completion as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// The claim that has completed its work.
    pub(crate) id: ClaimId,
    /// `None`: for ever.
    keep: Option<Duration>,
    completion: Completion,
}

/// The beginning of the value of a completion of this fire. All values of this fire and of later
/// ones are greater, and those of earlier ones are smaller.
pub(crate) fn fire_text(fire: u64) -> String {
    format!("{fire:016x}")
}

/// The fire of this value.
pub(crate) fn fire_of(value: &[u8]) -> Option<u64> {
    let digits = str::from_utf8(value.get(..DIGITS)?).ok()?;
    let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    digits
        .bytes()
        .all(is_digit)
        .then(|| u64::from_str_radix(digits, 16).ok())?
}

impl Record {
    /// The completion that this request of the claim asks for, at this time.
    pub(crate) fn new(claim: &Claim, request: &Complete, at: SystemTime) -> Record {
        // It is the same when it is read.
        let at = UNIX_EPOCH + Duration::from_millis(millis(at));
        let mut completion = Completion::new(request.token, claim.label.clone(), at);
        completion.fire = claim.once.unwrap_or_default();
        completion.result = request.result.clone();
        completion.is_cut = request.is_cut;
        let keep = match request.keep {
            Keep::For(keep) => Some(keep),
            Keep::Forever => None,
        };
        Record {
            id: claim.id,
            keep,
            completion,
        }
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.completion.token
    }

    /// The completion as it is at this time, by the wall clocks of this client and of the one that
    /// has written it.
    pub(crate) fn shown(mut self, now: SystemTime) -> Completion {
        self.completion.left = self.keep.map(|keep| {
            let age = now.duration_since(self.completion.at).unwrap_or_default();
            keep.saturating_sub(age)
        });
        self.completion
    }

    pub(crate) fn write(&self) -> String {
        let Record {
            id,
            keep,
            completion,
        } = self;
        let Completion {
            token, label, fire, ..
        } = completion;
        let keep = keep.map_or_else(|| "-".into(), |keep| keep.as_millis().to_string());
        let kind = match (&completion.result, completion.is_cut) {
            (None, _) => "none",
            (Some(_), false) => "whole",
            (Some(_), true) => "cut",
        };
        format!(
            "{} {FORMAT} {} {id} {} {keep} {} {kind}\n{label}\n{}",
            fire_text(*fire),
            token.get(),
            millis(completion.at),
            label.len(),
            completion.result.as_deref().unwrap_or_default(),
        )
    }

    /// Reads a value.
    ///
    /// # Errors
    ///
    /// [`Internal`](ErrorKind::Internal) for a value that this version cannot read. It shows
    /// nothing of it, because that may be the id of a claim.
    pub(crate) fn read(value: &[u8]) -> Result<Record> {
        let of = |text: &str| text.split(' ').nth(1).map(str::to_owned);
        let text = str::from_utf8(value).ok();
        if let Some(record) = text.and_then(parse) {
            return Ok(record);
        }
        let format = text.and_then(of).filter(|_| fire_of(value).is_some());
        let why = match format.filter(|format| format != FORMAT) {
            Some(_) => "a newer version has recorded that the work is done: update this client",
            None => "others wrote the record that the work is done: delete its key, under %done/",
        };
        Err(Error::new(ErrorKind::Internal, why))
    }
}

/// The milliseconds from 1970 until this time.
fn millis(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn parse(text: &str) -> Option<Record> {
    let (head, rest) = text.split_once('\n')?;
    let mut head = head.split(' ');
    let fire = fire_of(head.next()?.as_bytes())?;
    head.next().filter(|format| *format == FORMAT)?;
    let token = FencingToken::new(head.next()?.parse().ok()?);
    let id = ClaimId::parse(head.next()?)?;
    let duration = |text: &str| text.parse().ok().map(Duration::from_millis);
    let at = UNIX_EPOCH.checked_add(duration(head.next()?)?)?;
    let keep = match head.next()? {
        "-" => None,
        keep => Some(duration(keep)?),
    };
    let length: usize = head.next()?.parse().ok()?;
    let kind = head.next()?;
    let label = rest.get(..length)?;
    let result = rest[length..].strip_prefix('\n')?;
    let mut completion = Completion::new(token, label, at);
    completion.fire = fire;
    (completion.result, completion.is_cut) = match kind {
        "none" => (None, false),
        "whole" => (Some(Arc::from(result)), false),
        "cut" => (Some(Arc::from(result)), true),
        _ => return None,
    };
    head.next().is_none().then_some(Record {
        id,
        keep,
        completion,
    })
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz;

    use super::*;

    fn record(label: &str, result: Option<&str>, keep: Option<Duration>, fire: u64) -> Record {
        let at = UNIX_EPOCH + Duration::from_millis(1_795_983_344_938);
        let mut completion = Completion::new(FencingToken::new(512), label, at);
        completion.fire = fire;
        completion.is_cut = result.is_some_and(|result| result.len() > 3);
        completion.result = result.map(Arc::from);
        let id = ClaimId::parse("0123456789abcdef0123456789abcdef").unwrap();
        Record {
            id,
            keep,
            completion,
        }
    }

    #[test]
    fn a_completion_is_read_as_it_was_written() {
        for label in ["web-1", "", "two\nlines", "é", "a\n5 none"] {
            for result in [None, Some(""), Some("ok"), Some("漢\n\u{1F512} \n")] {
                for keep in [
                    None,
                    Some(Duration::from_millis(1)),
                    Some(Duration::from_secs(9)),
                ] {
                    for fire in [0, 42, u64::MAX] {
                        let record = record(label, result, keep, fire);
                        let written = record.write();
                        assert_eq!(Record::read(written.as_bytes()).unwrap(), record);
                        assert_eq!(fire_of(written.as_bytes()), Some(fire));
                    }
                }
            }
        }
        assert_eq!(
            record("report-a", Some("ok"), Some(Duration::from_secs(60)), 42).write(),
            "000000000000002a 1 512 0123456789abcdef0123456789abcdef 1795983344938 60000 8 whole\nreport-a\nok"
        );
    }

    /// A transaction compares values as text.
    #[test]
    fn a_value_is_greater_than_the_text_of_each_fire_for_which_it_counts() {
        let fires = [0, 1, 9, 10, 15, 16, 255, 1 << 40, u64::MAX - 1, u64::MAX];
        for of in fires {
            let value = record("x", None, None, of).write();
            for fire in fires {
                assert_eq!(value > fire_text(fire), of >= fire, "{of} {fire}");
            }
        }
    }

    #[test]
    fn the_rest_of_a_keep_is_never_more_than_the_keep() {
        let keep = Duration::from_secs(60);
        let at = record("x", None, None, 0).completion.at;
        for (now, left) in [
            (at, 60),
            (at + Duration::from_secs(20), 40),
            (at + Duration::from_secs(70), 0),
            // The clock of this client is behind.
            (at - Duration::from_secs(70), 60),
        ] {
            let shown = record("x", None, Some(keep), 0).shown(now);
            assert_eq!(shown.left, Some(Duration::from_secs(left)));
        }
        assert_eq!(record("x", None, None, 0).shown(at).left, None);
    }

    #[test]
    fn what_cannot_be_read_is_refused_and_shows_no_id() {
        let good = record("x", Some("ok"), None, 7).write();
        let newer = good.replacen(" 1 ", " 2 ", 1);
        let refused = Record::read(newer.as_bytes()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Internal);
        assert!(refused.to_string().contains("a newer version"), "{refused}");
        for bad in [
            "",
            "x",
            "0000000000000007",
            &good[..20],
            &good.replacen(" 512 ", " -1 ", 1),
            &good.replacen("whole", "half", 1),
            &good.replacen("whole", "whole ", 1),
            &good.replacen(" 1 whole", " 99 whole", 1),
            &good.replacen("0123", "012g", 1),
            &good.to_uppercase(),
        ] {
            let refused = Record::read(bad.as_bytes()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Internal, "{bad:?}");
            assert!(!format!("{refused} {refused:?}").contains("89abcdef"));
        }
    }

    #[test]
    fn whatever_a_value_says_it_is_read_or_refused() {
        fuzz(include_str!("../../corpus/completions"), |value| {
            if let Ok(read) = Record::read(value) {
                assert_eq!(Record::read(read.write().as_bytes()).unwrap(), read);
                assert_eq!(fire_of(value), Some(read.completion.fire));
            }
        });
    }
}
