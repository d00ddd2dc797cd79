//! `release` and `release_after`: new, then old, and whatever an earlier stay may have left.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join, join_all, select};
use leasehold_core::seam::Claim;
use leasehold_core::{Error, Result};

use crate::Bridge;
use crate::children::Parent;
use crate::pair::Side;
use crate::stay::Former;

/// For so long old waits until new has answered: who is granted old next finds new free, and needs one request less. It waits no
/// longer, so that a new store that is away does not keep old taken.
const HEAD_START: Duration = Duration::from_millis(100);

impl Bridge {
    pub(crate) async fn release_both(&self, claim: &Claim) -> Result<()> {
        let Some(parent) = self.children.get(claim.id) else { return Ok(()) };
        let now = self.clock.now();
        let left = parent.with(|stays| {
            stays.touched(now, claim.ttl);
            stays.release(now)
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
        new.map_err(|e| Side::New.says(e)).and(old.map_err(|e| Side::Old.says(e)))
    }

    /// Withdraws what was left in this store, all at once. What is not confirmed stays on the list.
    pub(crate) async fn withdraw(&self, parent: &Arc<Parent>, side: Side) -> Result<()> {
        let now = self.clock.now();
        let former: Vec<Former> = parent.with(|stays| {
            stays.former.retain(|former| former.give_up_at > now);
            stays.former.iter().filter(|former| former.side == side).cloned().collect()
        });
        let store = self.pair.on(side);
        let each = former.iter().map(|former| async move {
            store.release(&former.claim, former.place.as_ref()).await?;
            parent.with(|stays| stays.former.retain(|other| other.claim.id != former.claim.id));
            Ok(())
        });
        let answers: Vec<Result<(), Error>> = join_all(each).await;
        answers.into_iter().collect()
    }

    /// Its hold ends then in both, without this client.
    pub(crate) async fn release_both_after(&self, claim: &Claim, rest: Duration) -> Result<()> {
        let Some(parent) = self.children.get(claim.id) else { return Ok(()) };
        let (now, mut first_error) = (self.clock.now(), None);
        let end = now + rest;
        for side in [Side::New, Side::Old] {
            let stay = parent.with(|stays| {
                stays.touched(now, rest.max(claim.ttl));
                stays.on(side).as_ref().map(|stay| (stay.claim.clone(), stay.place.clone()))
            });
            let released = match stay {
                Some((claim, place)) => {
                    let rest = end.since(self.clock.now());
                    self.pair.on(side).release_after(&claim, place.as_ref(), rest).await
                }
                None => Ok(()),
            };
            let left = self.withdraw(&parent, side).await;
            first_error = first_error.or(released.and(left).err().map(|e| side.says(e)));
        }
        first_error.map_or(Ok(()), Err)
    }
}
