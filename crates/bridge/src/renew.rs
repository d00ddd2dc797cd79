//! `renew`: in both stores side by side. Lost in one is lost, and a hold lasts until the earlier of its two ends.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join, join_all, select};
use leasehold_core::seam::{Claimed, LeaseRef, Moment, Renewal, Validity};
use leasehold_core::{Error, ErrorKind, Loss};

use crate::Bridge;
use crate::children::{Parent, Stays};
use crate::pair::Side;
use crate::stay::Stay;

/// So long a renewal waits for the claim of one of its waiters: others wait for its answer. The claim may be dropped at any time.
const LONGEST: Duration = Duration::from_secs(1);

/// One lease that core asks about, and what it is in the two stores.
struct Item {
    parent: Arc<Parent>,
    old: Option<LeaseRef>,
    new: Option<LeaseRef>,
    /// The earlier of the two ends before this.
    until: Option<Moment>,
}

impl Item {
    fn of(parent: Arc<Parent>, lease: &LeaseRef, now: Moment) -> Item {
        let ask = |stays: &mut Stays, side| {
            stays.on(side).as_ref().filter(|stay| stay.lost.is_none()).and_then(|stay| stay.lease(&lease.claim))
        };
        let (old, new, until) = parent.with(|stays| {
            stays.touched(now, lease.claim.ttl);
            (ask(stays, Side::Old), ask(stays, Side::New), stays.until())
        });
        Item { parent, old, new, until }
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
        let item = |lease: &LeaseRef| self.children.get(lease.claim.id).map(|parent| Item::of(parent, lease, sent));
        let items: Vec<Option<Item>> = leases.iter().map(item).collect();
        let (old, new) = join(self.renew_in(Side::Old, &items), self.renew_in(Side::New, &items)).await;
        let mut known = Vec::new();
        for ((lease, item), answers) in leases.iter().zip(&items).zip(old.into_iter().zip(new)) {
            let answer = match item {
                Some(item) => self.take_in(lease, item, answers, sent).map_err(|epoch| (&item.parent, epoch)),
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

    /// A waiter that was granted in one store is claimed: only so it is known what it is in both.
    async fn known(&self, lease: &LeaseRef, parent: &Arc<Parent>, epoch: u64) -> Renewal {
        let sent = self.clock.now();
        let claimed = pin!(self.attempt(parent, epoch, &lease.claim));
        let claimed = match select(claimed, pin!(self.clock.sleep(LONGEST))).await {
            Either::Left((claimed, _)) => claimed,
            Either::Right(_) => Err(Error::new(ErrorKind::Unavailable, "a store did not answer a claim in time")),
        };
        match claimed {
            Ok(Claimed::Granted(grant)) => Renewal::Granted(grant),
            Ok(Claimed::Waiting(_)) => {
                let ends = self
                    .children
                    .get(lease.claim.id)
                    .and_then(|parent| parent.with(|stays| stays.until().zip(stays.ttl())));
                let (until, ttl) = ends.unwrap_or((sent, lease.claim.ttl));
                Renewal::Renewed(Validity::ending(until, ttl))
            }
            Ok(Claimed::Busy(_)) => Renewal::Lost(Loss::Gone),
            Err(e) => {
                // Whoever waits may stand nowhere now.
                self.notifier.claim_again(lease.claim.id);
                Renewal::Unknown(e)
            }
        }
    }

    /// The answers of one store, for each item that has something there.
    async fn renew_in(&self, side: Side, items: &[Option<Item>]) -> Vec<Option<Renewal>> {
        let asked = || items.iter().map(|item| item.as_ref().and_then(|item| item.lease(side)));
        let leases: Vec<LeaseRef> = asked().flatten().cloned().collect();
        if leases.is_empty() {
            return asked().map(|_| None).collect();
        }
        let (mut answers, failed) = match self.pair.on(side).renew(&leases).await {
            Ok(answers) => (answers.into_iter(), Error::new(ErrorKind::Internal, "it did not answer for each lease")),
            Err(e) => (Vec::new().into_iter(), e),
        };
        let unknown = || Renewal::Unknown(side.says(Error::new(failed.kind(), failed.to_string())));
        asked().map(|lease| lease.map(|_| answers.next().unwrap_or_else(unknown))).collect()
    }

    /// Who waited and was granted in one of them has to be claimed, unless it was released more often than this.
    fn take_in(
        &self,
        lease: &LeaseRef,
        item: &Item,
        (old, new): (Option<Renewal>, Option<Renewal>),
        sent: Moment,
    ) -> Result<Renewal, u64> {
        item.parent.with(|stays| {
            let mut granted = false;
            let mut unknown = None;
            for (side, answer) in [(Side::Old, old), (Side::New, new)] {
                let (Some(asked), Some(answer)) = (item.lease(side), answer) else { continue };
                match stays.renewed((side, asked), answer, sent) {
                    Renewed::Extended => {}
                    Renewed::Granted => granted = true,
                    Renewed::Lost(loss) => return Ok(Renewal::Lost(loss)),
                    Renewed::Unknown(e) => unknown = Some(e),
                }
            }
            // What core holds is what it was told, in both stores and in no other stays.
            if lease.token.is_some() && (lease.token != stays.told || stays.both().is_none() || stays.lost().is_some())
            {
                return Ok(Renewal::Lost(stays.lost().unwrap_or(Loss::Gone)));
            }
            if lease.token.is_none() {
                let holds = |stay: &Option<Stay>| stay.as_ref().map(|stay| stay.grant.is_some());
                match (holds(stays.on(Side::Old)), holds(stays.on(Side::New))) {
                    // It stands nowhere: core claims.
                    (None, _) => return Ok(Renewal::Lost(Loss::Gone)),
                    // Also if the answer that said so was lost.
                    (Some(true), None | Some(true)) => granted = true,
                    _ => {}
                }
                if granted {
                    return Err(stays.epoch);
                }
            }
            let until = stays.until();
            Ok(match unknown {
                // As long as the end that is known does not move, core asks again soon.
                Some(e) if lease.token.is_none() || until <= item.until => Renewal::Unknown(e),
                _ => Renewal::Renewed(Validity::ending(until.unwrap_or(sent), stays.ttl().unwrap_or(lease.claim.ttl))),
            })
        })
    }
}

/// What an answer means for a stay.
enum Renewed {
    Extended,
    Granted,
    Lost(Loss),
    Unknown(Error),
}

impl Stays {
    /// An answer about a stay that has been left meanwhile means nothing.
    fn renewed(&mut self, (side, asked): (Side, &LeaseRef), answer: Renewal, sent: Moment) -> Renewed {
        let told = self.told.is_some();
        let Some(stay) = self.current(side, asked.claim.id) else { return Renewed::Extended };
        let is_later = stay.grant.map(|held| held.token) != asked.token;
        match answer {
            Renewal::Renewed(validity) => stay.extended(validity, sent),
            // Of the place, or of the token, that it had before.
            Renewal::Lost(_) if is_later => {}
            Renewal::Granted(grant) if stay.outgrew(&grant) => {}
            Renewal::Lost(loss) => {
                stay.lost = Some(loss);
                return Renewed::Lost(loss);
            }
            Renewal::Granted(grant) => {
                let other = stay.grant.is_some_and(|held| held.token != grant.token);
                stay.granted(&grant, sent);
                if told && other {
                    // Another grant than that of which core knows.
                    self.told = None;
                    return Renewed::Lost(Loss::Gone);
                }
                return if told { Renewed::Extended } else { Renewed::Granted };
            }
            Renewal::Unknown(e) => return Renewed::Unknown(side.says(e)),
        }
        Renewed::Extended
    }
}
