//! What the scripts write of a claim, and how `inspect` reads it.

use std::time::{Duration, SystemTime};

use leasehold_core::seam::{Claim, Mode};
use leasehold_core::{Participant, Result};
use leasehold_redis_client::{Fields, granted_ttl};

use crate::MIN_TTL;

/// The lease of a claim as the server counts it.
pub(crate) fn ttl(claim: &Claim) -> Duration {
    granted_ttl(claim.ttl, MIN_TTL)
}

/// A mode as permits, `kind n of`: claims of one kind share the permits, and kinds exclude each other.
pub(crate) fn permits(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive 1 1".into(),
        Mode::Shared => format!("shared 1 {}", u32::MAX),
        Mode::Permits { n, of } => format!("permits {n} {of}"),
    }
}

/// Reads `token since kind n of label`; a waiter has token 0.
pub(crate) fn read(mut fields: Fields<'_>) -> Result<Participant> {
    let (token, since) = (fields.token()?, SystemTime::UNIX_EPOCH + fields.millis()?);
    let (kind, n, of) = (fields.word(), fields.value()?, fields.value()?);
    let mode = match kind {
        "shared" => Mode::Shared,
        "permits" => Mode::Permits { n, of },
        _ => Mode::Exclusive,
    };
    let entry = Participant::new(fields.text()).since(since).mode(mode);
    Ok(if token.get() == 0 { entry } else { entry.token(token) })
}
