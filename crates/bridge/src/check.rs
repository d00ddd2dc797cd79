//! The check of a pair by its servers: they have to be two stores, and each has to be able to raise
//! its tokens above those of the other.

use std::time::Duration;

use leasehold_core::backend::{Claim, ClaimId, Claimed, Mode, WaitPolicy};
use leasehold_core::{Error, ErrorKind, Result};

use crate::Bridge;
use crate::pair::Side;

/// The name of the lock that is taken in one store and looked for in the other. It is one name for
/// all bridges, which hold it together.
pub(crate) const PROBE_NAME: &str = "leasehold-bridge";
/// The shortest lease of that lock.
const PROBE_TTL: Duration = Duration::from_secs(2);

impl Bridge {
    /// Asks both stores whether they are fit for each other.
    ///
    /// It takes a shared lock in the old store, named `leasehold-bridge`, looks for it in the new
    /// one, and releases it.
    ///
    /// # Errors
    ///
    /// - [`Invalid`](ErrorKind::Invalid): they are one store.
    /// - [`Unsupported`](ErrorKind::Unsupported): the tokens of one are beyond what the other can be raised to.
    /// - The error of a store; the message says which one.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock that it may have left in the old store is gone after a
    /// few seconds.
    pub async fn check(&self) -> Result<()> {
        let old = self.pair.on(Side::Old);
        let new = self.pair.on(Side::New);
        let [old_floor, new_floor] = [self.pair.floor(Side::Old)?, self.pair.floor(Side::New)?];
        let (old_mark, new_mark) = self.both(old_floor.mark(), new_floor.mark()).await?;
        for (side, mark) in [(Side::New, old_mark), (Side::Old, new_mark)] {
            let most = self.pair.limit(side);
            if mark >= most {
                let why = format!(
                    "the {side} store raises its tokens to {most} at most, and those of the other are at {mark}"
                );
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
        }
        // The label identifies this check. If the name did, each start of a program would leave a
        // row behind in a store that has a row for each name.
        let label = format!("bridge {}", ClaimId::fresh());
        let ttl = PROBE_TTL.max(self.pair.guarantees().min_ttl());
        let probe = Claim::new(PROBE_NAME, Mode::Shared, WaitPolicy::Try, ttl, &label);
        let place = match old.claim(&probe).await.map_err(|e| Side::Old.says(e))? {
            Claimed::Granted(grant) => grant.place,
            Claimed::Waiting(_) | Claimed::Busy(_) | Claimed::Done(_) => {
                let why = format!(
                    "the old store: somebody holds {PROBE_NAME:?} for himself, which is what bridges hold together to see if both stores are one"
                );
                return Err(Error::new(ErrorKind::Unavailable, why));
            }
        };
        let seen = new.inspect(&probe.name).await;
        let released = old.release(&probe, Some(&place)).await;
        let holders = seen.map_err(|e| Side::New.says(e))?.holders;
        if holders.iter().any(|it| it.label.as_deref() == Some(&label)) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the old store and the new one are the same store",
            ));
        }
        released.map_err(|e| Side::Old.says(e))
    }
}
