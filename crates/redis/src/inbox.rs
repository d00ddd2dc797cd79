//! One channel per client: what the scripts publish there becomes a ring.

use std::time::Duration;

use leasehold_core::seam::{Bells, ClaimId, Grant, Moment, Place, Validity};
use leasehold_core::{Loss, Result};

use crate::error::junk;
use crate::record::Fields;

/// What a channel begins with whose client is to claim again where others are told of their grant.
const AGAIN: &str = "leasehold:again:";

/// A channel's name that nobody else has. It holds no blank, since records carry it.
pub(crate) fn channel(again: bool) -> String {
    format!("{}{}", if again { AGAIN } else { "leasehold:" }, ClaimId::fresh())
}

/// The channel in which the scripts tell that the holder of this lock, or its label, has changed.
pub fn of_name(lock: &str) -> String {
    format!("leasehold:name:{lock}")
}

/// Rings what a push says. What cannot be read is nobody's ring.
pub(crate) fn ring(bells: &Bells, channel: &[u8], record: &[u8]) {
    let again = channel.starts_with(AGAIN.as_bytes());
    let _ = str::from_utf8(record).map(|record| understand(bells, again, record));
}

/// `granted id token turns attempt ttl lock`, `evicted id` or `again id`.
fn understand(bells: &Bells, again: bool, record: &str) -> Result<()> {
    let mut fields = Fields::of(record);
    let verb = fields.word();
    let id = ClaimId::parse(fields.word()).ok_or_else(|| junk("a push"))?;
    match verb {
        "granted" if !again => {
            let (token, turns) = (fields.token()?, fields.value()?);
            // The place's lease began when the server saw this attempt, and the grant ends with it: however late this
            // push is, counting from the attempt's send is early.
            let sent = moment(fields.value()?);
            let validity = Validity::since(sent, fields.value().map(Duration::from_millis)?);
            bells.granted(id, Grant::new(Place::new(fields.text()), token, validity).turns(turns));
        }
        "evicted" => bells.lost(id, Loss::Evicted),
        "again" | "granted" => bells.claim_again(id),
        _ => return Err(junk("a push")),
    }
    Ok(())
}

/// The number by which the server knows an attempt: the microsecond in which it was sent, exact in Lua.
pub(crate) fn attempt(sent: Moment) -> u64 {
    sent.as_nanos() / 1000
}

/// The start of the microsecond in which an attempt was sent.
fn moment(attempt: u64) -> Moment {
    Moment::from_nanos(attempt.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_comes_back_no_later_than_it_was_sent() {
        let sent = Moment::now();
        let back = moment(attempt(sent));
        assert!(back <= sent && sent.since(back) < Duration::from_micros(1));
    }

    #[test]
    fn junk_rings_nothing() {
        let bells = Bells::new();
        let id = ClaimId::fresh();
        for junk in
            ["", "granted", "granted x", &format!("granted {id} 1 1 x 1 k"), &format!("fired {id}"), "evicted me"]
        {
            assert!(understand(&bells, false, junk).is_err(), "{junk}");
        }
        assert!(understand(&bells, false, &format!("granted {id} 1 1 5 1000 a key")).is_ok());
        assert!(understand(&bells, false, &format!("evicted {id}")).is_ok());
        assert!(understand(&bells, false, &format!("again {id}")).is_ok());
    }
}
