//! `release` and `release_after`: in new, then in old. They also withdraw what earlier parts may
//! have left.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join, join_all, select};
use leasehold_core::backend::Claim;
use leasehold_core::{Error, Result};

use crate::Bridge;
use crate::children::Parent;
use crate::claim_in_store::Former;
use crate::pair::Side;

/// The time for which the release in old waits for the answer of new: the client that is granted
/// old next then finds new free, and needs one request less. It is not longer, so that a new store
/// that is away does not keep old taken.
const HEAD_START: Duration = Duration::from_millis(100);

impl Bridge {
    pub(crate) async fn release_both(&self, claim: &Claim) -> Result<()> {
        let Some(parent) = self.children.get(claim.id) else {
            return Ok(());
        };
        let now = self.clock.now();
        let left = parent.with(|parts| {
            parts.touched(now, claim.ttl);
            parts.release(now)
        });
        drop(left);
        let (new, old) = {
            let mut new = pin!(self.withdraw(&parent, Side::New));
            match select(&mut new, pin!(self.clock.sleep(HEAD_START))).await {
                Either::Left((answer, _)) => (answer, self.withdraw(&parent, Side::Old).await),
                Either::Right(_) => join(new, self.withdraw(&parent, Side::Old)).await,
            }
        };
        self.children.forget_if_gone(&parent);
        new.map_err(|e| Side::New.says(e))
            .and(old.map_err(|e| Side::Old.says(e)))
    }

    /// Withdraws the former parts in this store, all at once. Those without a confirmation remain on
    /// the list.
    pub(crate) async fn withdraw(&self, parent: &Arc<Parent>, side: Side) -> Result<()> {
        let now = self.clock.now();
        let former: Vec<Former> = parent.with(|parts| {
            parts.former.retain(|former| former.give_up_at > now);
            parts
                .former
                .iter()
                .filter(|former| former.side == side)
                .cloned()
                .collect()
        });
        let store = self.pair.on(side);
        let each = former.iter().map(|former| async move {
            store.release(&former.claim, former.place.as_ref()).await?;
            parent.with(|parts| {
                parts
                    .former
                    .retain(|other| other.claim.id != former.claim.id);
            });
            Ok(())
        });
        let answers: Vec<Result<(), Error>> = join_all(each).await;
        answers.into_iter().collect()
    }

    /// Lets the hold end in both stores after `rest`, without this client.
    pub(crate) async fn release_both_after(&self, claim: &Claim, rest: Duration) -> Result<()> {
        let Some(parent) = self.children.get(claim.id) else {
            return Ok(());
        };
        let now = self.clock.now();
        let mut first_error = None;
        let end = now + rest;
        for side in [Side::New, Side::Old] {
            let part = parent.with(|parts| {
                parts.touched(now, rest.max(claim.ttl));
                parts
                    .on(side)
                    .as_ref()
                    .map(|part| (part.claim.clone(), part.place.clone()))
            });
            let released = match part {
                Some((claim, place)) => {
                    let rest = end.since(self.clock.now());
                    self.pair
                        .on(side)
                        .release_after(&claim, place.as_ref(), rest)
                        .await
                }
                None => Ok(()),
            };
            let left = self.withdraw(&parent, side).await;
            first_error = first_error.or(released.and(left).err().map(|e| side.says(e)));
        }
        first_error.map_or(Ok(()), Err)
    }
}
