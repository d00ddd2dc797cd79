//! What only the servers can tell of a pair: whether they are two, and whether the tokens of one still fit the other.

use std::time::Duration;

use leasehold_core::seam::{Claim, ClaimId, Claimed, Mode, WaitPolicy};
use leasehold_core::{Error, ErrorKind, Result};

use crate::Bridge;
use crate::pair::Side;

/// The least lease of what is claimed to see if the other store has it, too.
const PROBE: Duration = Duration::from_secs(2);

impl Bridge {
    /// Asks both stores whether they are fit for each other.
    ///
    /// It takes a lock in the old store, of a name that nobody else has, looks for it in the new one, and gives it back.
    ///
    /// # Errors
    ///
    /// - [`Invalid`](ErrorKind::Invalid): they are one store.
    /// - [`Unsupported`](ErrorKind::Unsupported): the tokens of one are beyond what the other can be raised to.
    /// - What a store fails with; the message says which of them.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it has left in the old store is gone after a few seconds.
    pub async fn check(&self) -> Result<()> {
        let (old, new) = (self.pair.on(Side::Old), self.pair.on(Side::New));
        let (old_mark, new_mark) = self.both(old.mark(), new.mark()).await?;
        for (side, mark) in [(Side::New, old_mark), (Side::Old, new_mark)] {
            let most = self.pair.limit(side);
            if mark >= most {
                let why = format!(
                    "the {side} store raises its tokens to {most} at most, and those of the other are at {mark}"
                );
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
        }
        let name = format!("leasehold-bridge/{}", ClaimId::fresh());
        let ttl = PROBE.max(self.pair.guarantees().min_ttl);
        let probe = Claim::new(name, Mode::Exclusive, WaitPolicy::Try, ttl, "bridge");
        let place = match old.claim(&probe).await.map_err(|e| Side::Old.says(e))? {
            Claimed::Granted(grant) => Some(grant.place),
            _ => None,
        };
        let seen = new.inspect(&probe.name).await;
        let released = old.release(&probe, place.as_ref()).await;
        if !seen.map_err(|e| Side::New.says(e))?.holders.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "the old store and the new one are the same store"));
        }
        released.map_err(|e| Side::Old.says(e))
    }
}
