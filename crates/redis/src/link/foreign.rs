//! Holds of other tools: strings that we did not write. They have no token, so a hold is identified
//! by its value.

use std::fmt;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, FencingToken, LockQueue, Participant, Result};

use crate::link::error::junk;
use crate::link::record::Fields;

/// The number of characters of the value that are shown. The whole of a long value may be the
/// secret by which its owner frees the lock.
const SHOWN: usize = 16;
/// The number of hexadecimal digits of the value's hash in the number that stands for the value.
const DIGITS: usize = 10;
const HASHES: u64 = 1 << (4 * DIGITS);
/// The offset of these numbers: no token is as great, and all of them are exact in a double, as
/// programs read numbers in JSON.
const ABOVE_TOKENS: u64 = 9_000_000_000_000_000;

/// The start of the hash of a value that was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ValueHash(u64);

impl ValueHash {
    /// The value that this number stands for, if it is such a number.
    pub(crate) fn by(number: FencingToken) -> Option<ValueHash> {
        let hash = number.get().checked_sub(ABOVE_TOKENS);
        hash.filter(|hash| *hash < HASHES).map(ValueHash)
    }

    /// The value with this hash.
    fn of(hash: &str) -> Option<ValueHash> {
        u64::from_str_radix(hash.get(..DIGITS)?, 16)
            .ok()
            .map(ValueHash)
    }

    /// The number that stands for the value.
    fn number(self) -> FencingToken {
        FencingToken::new(ABOVE_TOKENS + self.0)
    }

    /// Refuses to end the hold of another tool for a caller that has not looked at it. Otherwise
    /// returns `false`.
    pub(crate) fn refuse_if_foreign(queue: &LockQueue) -> Result<bool> {
        let foreign = queue.holders.iter().find_map(|holder| holder.evict_by);
        let what = |number| {
            format!(
                "what another tool holds is ended by the number that stands for its value, as `inspect` shows it: now {number}"
            )
        };
        foreign.map_or(Ok(false), |number| {
            Err(Error::new(ErrorKind::Invalid, what(number)))
        })
    }
}

impl fmt::Display for ValueHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0DIGITS$x}", self.0)
    }
}

/// The hold of another tool, whose value has this hash. Reads `left value`: `left` is in
/// milliseconds, or -1 if the hold has no end.
pub(crate) fn foreign(hash: &str, mut fields: Fields<'_>) -> Result<Participant> {
    let seen = ValueHash::of(hash).ok_or_else(|| junk("an entry"))?;
    let left: i64 = fields.value()?;
    let ends_in = u64::try_from(left).map_or(Duration::MAX, Duration::from_millis);
    let mut entry = Participant::foreign()
        .evict_by(seen.number())
        .ends_in(ends_in);
    entry.label = Some(shortened(fields.text()));
    Ok(entry)
}

/// The beginning of a value.
pub(crate) fn shortened(value: &str) -> String {
    match value.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", &value[..at]),
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn a_value_is_known_by_its_hash_and_shown_in_part() {
        let read = |hash, text| foreign(hash, Fields::of(text)).unwrap();
        let one = read("0123456789abcdef0123456789abcdef01234567", "1500 web 1");
        assert_eq!(
            (one.label.as_deref(), one.ends_in, one.foreign),
            (Some("web 1"), Some(Duration::from_millis(1500)), true)
        );
        let number = one.evict_by.unwrap();
        assert_eq!(ValueHash::by(number).unwrap().to_string(), "0123456789");
        let long = read("ffffffffffffffff", "-1 5f2b1c0e9d8a7b6c5f2b1c0e9d8a7b6c");
        assert_eq!(
            (long.label.as_deref(), long.ends_in),
            (Some("5f2b1c0e9d8a7b6c…"), Some(Duration::MAX))
        );
        assert!(long.evict_by > Some(number));
        for token in [0, ABOVE_TOKENS - 1, ABOVE_TOKENS + HASHES, u64::MAX] {
            assert_eq!(ValueHash::by(FencingToken::new(token)), None, "{token}");
        }
        const { assert!(ABOVE_TOKENS + HASHES < 1 << 53) };
        for (hash, junk) in [
            ("", "1 x"),
            ("0123", "1 x"),
            ("012345678x", "1 x"),
            ("0123456789", "x x"),
        ] {
            assert!(foreign(hash, Fields::of(junk)).is_err(), "{hash} {junk}");
        }
    }

    #[test]
    fn whatever_a_record_says_it_is_read_or_refused() {
        fuzz_text(include_str!("../../corpus/records"), |text| {
            let mut fields = Fields::of(text);
            if let Ok(entry) = foreign(fields.word(), fields) {
                let seen = ValueHash::by(entry.evict_by.unwrap()).unwrap();
                assert_eq!(ValueHash::of(&seen.to_string()), Some(seen));
                assert!(entry.label.unwrap().chars().count() <= SHOWN + 1);
            }
        });
    }
}
