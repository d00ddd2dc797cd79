//! What the scripts write of a claim, and how `inspect` reads it.

use std::time::{Duration, SystemTime};

use leasehold_core::seam::{Claim, Mode};
use leasehold_core::{FencingToken, Participant, Raises, Result};
use leasehold_redis_client::{Fields, granted_ttl, junk};

/// The shortest lease; a shorter one is granted as this.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(100);
/// How tokens are raised, but in a Cluster: scripts count in doubles, and the limit is far from where those are not exact.
pub(crate) const RAISES: Raises = Raises::Holds(FencingToken::new(8_000_000_000_000_000));

/// The lease of a claim as the server counts it.
pub(crate) fn ttl(claim: &Claim) -> Duration {
    granted_ttl(claim.ttl, MIN_TTL)
}

/// Reads `token since kind n of label`; a waiter has token 0.
pub(crate) fn read(mut fields: Fields<'_>) -> Result<Participant> {
    let (token, since) = (fields.token()?, SystemTime::UNIX_EPOCH + fields.millis()?);
    let mode = Mode::from_parts(fields.word(), fields.value()?, fields.value()?).ok_or_else(|| junk("an entry"))?;
    let entry = Participant::new(fields.text()).since(since).mode(mode);
    Ok(if token.get() == 0 { entry } else { entry.token(token) })
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn a_lease_is_never_shorter_than_was_asked_for() {
        let ms = Duration::from_millis;
        for (asked, granted) in [(ms(1), MIN_TTL), (ms(250), ms(250)), (ms(250) + Duration::from_nanos(1), ms(251))] {
            let claim = Claim::new("a", Mode::Exclusive, leasehold_core::seam::WaitPolicy::Try, asked, "me");
            assert_eq!(ttl(&claim), granted, "{asked:?}");
        }
    }

    #[test]
    fn whatever_an_entry_says_it_is_read_or_refused() {
        fuzz_text(include_str!("../corpus/entries"), |text| {
            let Ok(entry) = read(Fields::of(text)) else { return };
            let since = entry.since.unwrap().duration_since(UNIX_EPOCH).unwrap().as_millis();
            let (token, label) = (entry.token.map_or(0, FencingToken::get), entry.label.clone().unwrap_or_default());
            let (kind, n, of) = entry.mode.unwrap().parts();
            let written = format!("{token} {since} {kind} {n} {of} {label}");
            assert_eq!(read(Fields::of(&written)).unwrap(), entry);
        });
    }
}
