//! Several names in one transaction.

use leasehold_core::Result;
use leasehold_core::seam::{Claim, ClaimedAll};

use super::Lines;

impl Lines<'_> {
    /// Takes a place in each of these lines, if nobody is before it in any. The inner error is a claim's own fault.
    pub(crate) fn claim_all(&mut self, claims: &[Claim]) -> rusqlite::Result<Result<ClaimedAll>> {
        for (i, claim) in claims.iter().enumerate() {
            let name = claim.name.as_str();
            let head = self.settle(name)?;
            let first = head.holders.first().or(head.next.as_ref());
            if !self.grants() || first.is_some_and(|first| first.claim != claim.id) {
                return Ok(Ok(ClaimedAll::Busy(i, self.contention(&head, name, 0)?)));
            }
        }
        let answers: rusqlite::Result<Vec<_>> = claims.iter().map(|claim| self.claim(claim)).collect();
        Ok(answers?.into_iter().map(|answer| answer.map(|answer| answer.claimed)).collect())
    }
}
