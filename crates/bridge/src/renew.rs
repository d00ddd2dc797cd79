//! `renew`: in both stores side by side. A loss in one store is a loss of the hold, and a hold
//! lasts until the earlier of its two ends.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join, join_all, select};
use leasehold_core::backend::{Claimed, LeaseRef, Moment, Renewal, Validity};
use leasehold_core::{Error, ErrorKind, Loss};

use crate::Bridge;
use crate::children::{Parent, Parts};
use crate::claim_in_store::ClaimInStore;
use crate::pair::Side;

/// The time for which a renewal waits for the claim of one of its waiters, since other leases wait
/// for the answer. The claim may be dropped at any time.
const LONGEST: Duration = Duration::from_secs(1);

/// One lease that core asks about, and the leases of its parts in the two stores.
struct Item {
    parent: Arc<Parent>,
    old: Option<LeaseRef>,
    new: Option<LeaseRef>,
    /// The earlier end of the parts before this renewal.
    until: Option<Moment>,
}

impl Item {
    fn of(parent: Arc<Parent>, lease: &LeaseRef, now: Moment) -> Item {
        let ask = |parts: &mut Parts, side| {
            parts
                .on(side)
                .as_ref()
                .filter(|part| part.lost.is_none())
                .and_then(|part| part.lease(&lease.claim))
        };
        let (old, new, until) = parent.with(|parts| {
            parts.touched(now, lease.claim.ttl);
            (ask(parts, Side::Old), ask(parts, Side::New), parts.until())
        });
        Item {
            parent,
            old,
            new,
            until,
        }
    }

    fn lease(&self, side: Side) -> Option<&LeaseRef> {
        match side {
            Side::Old => self.old.as_ref(),
            Side::New => self.new.as_ref(),
        }
    }
}

impl Bridge {
    pub(crate) async fn renew_both(&self, leases: &[LeaseRef]) -> Vec<Renewal> {
        let sent = self.clock.now();
        let item = |lease: &LeaseRef| {
            self.children
                .get(lease.claim.id)
                .map(|parent| Item::of(parent, lease, sent))
        };
        let items: Vec<Option<Item>> = leases.iter().map(item).collect();
        let (old, new) = join(
            self.renew_in(Side::Old, &items),
            self.renew_in(Side::New, &items),
        )
        .await;
        let mut known = Vec::new();
        for ((lease, item), answers) in leases.iter().zip(&items).zip(old.into_iter().zip(new)) {
            let answer = match item {
                Some(item) => self
                    .take_in(lease, item, answers, sent)
                    .map_err(|epoch| (&item.parent, epoch)),
                None => Ok(Renewal::Lost(Loss::Gone)),
            };
            known.push(async move {
                match answer {
                    Ok(answer) => answer,
                    Err((parent, epoch)) => self.known(lease, parent, epoch).await,
                }
            });
        }
        join_all(known).await
    }

    /// Claims for a waiter that was granted in one store, since only a claim shows its state in
    /// both.
    async fn known(&self, lease: &LeaseRef, parent: &Arc<Parent>, epoch: u64) -> Renewal {
        let sent = self.clock.now();
        let claimed = pin!(self.attempt(parent, epoch, &lease.claim));
        let claimed = match select(claimed, pin!(self.clock.sleep(LONGEST))).await {
            Either::Left((claimed, _)) => claimed,
            Either::Right(_) => Err(Error::new(
                ErrorKind::Unavailable,
                "a store did not answer a claim in time",
            )),
        };
        match claimed {
            Ok(Claimed::Granted(grant)) => Renewal::Granted(grant),
            Ok(Claimed::Waiting(_)) => {
                let ends = self
                    .children
                    .get(lease.claim.id)
                    .and_then(|parent| parent.with(|parts| parts.until().zip(parts.ttl())));
                let (until, ttl) = ends.unwrap_or((sent, lease.claim.ttl));
                Renewal::Renewed(Validity::ending(until, ttl))
            }
            Ok(Claimed::Busy(_) | Claimed::Done(_)) => Renewal::Lost(Loss::Gone),
            Err(e) => {
                // The waiter may have no place in any store now.
                self.notifier.claim_again(lease.claim.id);
                Renewal::Unknown(e)
            }
        }
    }

    /// Returns the answers of one store, for each item that has something there.
    async fn renew_in(&self, side: Side, items: &[Option<Item>]) -> Vec<Option<Renewal>> {
        let asked = || {
            items
                .iter()
                .map(|item| item.as_ref().and_then(|item| item.lease(side)))
        };
        let leases: Vec<LeaseRef> = asked().flatten().cloned().collect();
        if leases.is_empty() {
            return asked().map(|_| None).collect();
        }
        let (mut answers, failed) = match self.pair.on(side).renew(&leases).await {
            Ok(answers) => (
                answers.into_iter(),
                Error::new(ErrorKind::Internal, "it did not answer for each lease"),
            ),
            Err(e) => (Vec::new().into_iter(), e),
        };
        let unknown = || Renewal::Unknown(side.says(Error::new(failed.kind(), failed.to_string())));
        asked()
            .map(|lease| lease.map(|_| answers.next().unwrap_or_else(unknown)))
            .collect()
    }

    /// Records the answers of both stores, and combines them. The error is the parent's epoch: a
    /// waiter was granted in a store, and has to be claimed, unless it was released since that
    /// epoch.
    fn take_in(
        &self,
        lease: &LeaseRef,
        item: &Item,
        (old, new): (Option<Renewal>, Option<Renewal>),
        sent: Moment,
    ) -> Result<Renewal, u64> {
        item.parent.with(|parts| {
            let mut granted = false;
            let mut unknown = None;
            for (side, answer) in [(Side::Old, old), (Side::New, new)] {
                let (Some(asked), Some(answer)) = (item.lease(side), answer) else {
                    continue;
                };
                match parts.renewed((side, asked), answer, sent) {
                    Renewed::Extended => {}
                    Renewed::Granted => granted = true,
                    Renewed::Lost(loss) => return Ok(Renewal::Lost(loss)),
                    Renewed::Unknown(e) => unknown = Some(e),
                }
            }
            // Core holds the grant that it was told of, with a part in each store that is not lost,
            // and nothing else.
            if lease.token.is_some()
                && (lease.token != parts.told || parts.both().is_none() || parts.lost().is_some())
            {
                return Ok(Renewal::Lost(parts.lost().unwrap_or(Loss::Gone)));
            }
            if lease.token.is_none() {
                let holds =
                    |part: &Option<ClaimInStore>| part.as_ref().map(|part| part.grant.is_some());
                match (holds(parts.on(Side::Old)), holds(parts.on(Side::New))) {
                    // The claim has no place in old: core claims again.
                    (None, _) => return Ok(Renewal::Lost(Loss::Gone)),
                    // The claim was granted, even if the answer with that grant was lost.
                    (Some(true), None | Some(true)) => granted = true,
                    _ => {}
                }
                if granted {
                    return Err(parts.epoch);
                }
            }
            let until = parts.until();
            Ok(match unknown {
                // As long as the known end does not move, core asks again soon.
                Some(e) if lease.token.is_none() || until <= item.until => Renewal::Unknown(e),
                _ => Renewal::Renewed(Validity::ending(
                    until.unwrap_or(sent),
                    parts.ttl().unwrap_or(lease.claim.ttl),
                )),
            })
        })
    }
}

/// The effect of an answer on a part.
enum Renewed {
    Extended,
    Granted,
    Lost(Loss),
    Unknown(Error),
}

impl Parts {
    /// Records an answer for its part. An answer about a part that has been left meanwhile has no
    /// effect.
    fn renewed(
        &mut self,
        (side, asked): (Side, &LeaseRef),
        answer: Renewal,
        sent: Moment,
    ) -> Renewed {
        let told = self.told.is_some();
        let Some(part) = self.current(side, asked.claim.id) else {
            return Renewed::Extended;
        };
        let is_later = part.grant.map(|held| held.token) != asked.token;
        match answer {
            Renewal::Renewed(validity) => part.extended(validity, sent),
            // The answer is about the place, or the token, that the part had before.
            Renewal::Lost(_) if is_later => {}
            Renewal::Granted(grant) if part.outgrew(&grant) => {}
            Renewal::Lost(loss) => {
                part.lost = Some(loss);
                return Renewed::Lost(loss);
            }
            Renewal::Granted(grant) => {
                let other = part.grant.is_some_and(|held| held.token != grant.token);
                part.granted(&grant, sent);
                if told && other {
                    // This is not the grant that core knows of.
                    self.told = None;
                    return Renewed::Lost(Loss::Gone);
                }
                return if told {
                    Renewed::Extended
                } else {
                    Renewed::Granted
                };
            }
            Renewal::Unknown(e) => return Renewed::Unknown(side.says(e)),
        }
        Renewed::Extended
    }
}
