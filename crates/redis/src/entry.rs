//! A claim's record as the scripts write it, and its reading for `inspect`.

use std::time::{Duration, SystemTime};

use crate::link::{Fields, granted_ttl, junk};
use leasehold_core::backend::Raises;
use leasehold_core::backend::{Claim, Mode};
use leasehold_core::{FencingToken, Participant, Result};

/// The key of the fence of all names of a database.
pub(crate) const FENCE: &str = "{}:f";
/// The shortest lease; a shorter one is extended to this.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(100);
/// The raising of tokens, except in a Cluster. Scripts count in doubles, and the limit is far below
/// the numbers that are inexact in them.
pub(crate) const RAISES: Raises = Raises::Holds(FencingToken::new(8_000_000_000_000_000));

/// The lease of a claim as the server counts it.
pub(crate) fn ttl(claim: &Claim) -> Duration {
    granted_ttl(claim.ttl, MIN_TTL)
}

/// Reads `token since kind n of label`; a waiter has token 0.
pub(crate) fn read(mut fields: Fields<'_>) -> Result<Participant> {
    let token = fields.token()?;
    let since = SystemTime::UNIX_EPOCH + fields.millis()?;
    let mode = Mode::from_parts(fields.word(), fields.value()?, fields.value()?)
        .ok_or_else(|| junk("an entry"))?;
    let entry = Participant::new(fields.text()).since(since).mode(mode);
    Ok(if token.get() == 0 {
        entry
    } else {
        entry.token(token)
    })
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn a_lease_is_never_shorter_than_was_asked_for() {
        let ms = Duration::from_millis;
        for (asked, granted) in [
            (ms(1), MIN_TTL),
            (ms(250), ms(250)),
            (ms(250) + Duration::from_nanos(1), ms(251)),
        ] {
            let claim = Claim::new(
                "a",
                Mode::Exclusive,
                leasehold_core::backend::WaitPolicy::Try,
                asked,
                "me",
            );
            assert_eq!(ttl(&claim), granted, "{asked:?}");
        }
    }

    #[test]
    fn whatever_an_entry_says_it_is_read_or_refused() {
        fuzz_text(include_str!("../corpus/entries"), |text| {
            let Ok(entry) = read(Fields::of(text)) else {
                return;
            };
            let since = entry
                .since
                .unwrap()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_millis();
            let token = entry.token.map_or(0, FencingToken::get);
            let label = entry.label.clone().unwrap_or_default();
            let (kind, n, of) = entry.mode.unwrap().parts();
            let written = format!("{token} {since} {kind} {n} {of} {label}");
            assert_eq!(read(Fields::of(&written)).unwrap(), entry);
        });
    }
}
