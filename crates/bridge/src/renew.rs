//! `renew`: in both stores side by side. Lost in one is lost, and a hold lasts until the earlier of its two ends.

use std::sync::Arc;

use futures_util::future::{join, join_all};
use leasehold_core::seam::{Backend, ClaimId, Claimed, LeaseRef, Moment, Renewal, Validity};
use leasehold_core::{Error, ErrorKind, Loss};

use crate::Bridge;
use crate::children::{Parent, Stays};
use crate::pair::Side;

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
        let mut answers = old.into_iter().zip(new);
        let answer = |(lease, item): (&LeaseRef, &Option<Item>)| {
            let answers = answers.next().unwrap_or_default();
            match item {
                Some(item) => self.take_in(lease, item, answers, sent),
                None => Some(Renewal::Lost(Loss::Gone)),
            }
        };
        let answers: Vec<Option<Renewal>> = leases.iter().zip(&items).map(answer).collect();
        join_all(leases.iter().zip(answers).map(|(lease, answer)| self.known(lease, answer))).await
    }

    /// A waiter that was granted in one store is claimed: only so it is known what it is in both.
    async fn known(&self, lease: &LeaseRef, answer: Option<Renewal>) -> Renewal {
        if let Some(answer) = answer {
            return answer;
        }
        let sent = self.clock.now();
        match self.claim(&lease.claim).await {
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
            Err(e) => Renewal::Unknown(e),
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

    /// `None`: it waited, and was granted in one of them.
    fn take_in(
        &self,
        lease: &LeaseRef,
        item: &Item,
        (old, new): (Option<Renewal>, Option<Renewal>),
        sent: Moment,
    ) -> Option<Renewal> {
        let mut granted = false;
        let answer = item.parent.with(|stays| {
            let mut unknown = None;
            for (side, answer) in [(Side::Old, old), (Side::New, new)] {
                let (Some(asked), Some(answer)) = (item.lease(side), answer) else { continue };
                match stays.renewed((side, asked.claim.id), answer, sent) {
                    Renewed::Extended => {}
                    Renewed::Granted => granted = true,
                    Renewed::Lost(loss) => return Renewal::Lost(loss),
                    Renewed::Unknown(e) => unknown = Some(e),
                }
            }
            // What core holds is what it was told, in both stores and in no other stays.
            if lease.token.is_some() && (lease.token != stays.told || stays.both().is_none() || stays.lost().is_some())
            {
                return Renewal::Lost(stays.lost().unwrap_or(Loss::Gone));
            }
            let until = stays.until();
            match unknown {
                // As long as the end that is known does not move, core asks again soon.
                Some(e) if lease.token.is_none() || until <= item.until => Renewal::Unknown(e),
                _ => Renewal::Renewed(Validity::ending(until.unwrap_or(sent), stays.ttl().unwrap_or(lease.claim.ttl))),
            }
        });
        (!granted || lease.token.is_some()).then_some(answer)
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
    fn renewed(&mut self, (side, id): (Side, ClaimId), answer: Renewal, sent: Moment) -> Renewed {
        let told = self.told.is_some();
        let Some(stay) = self.current(side, id) else { return Renewed::Extended };
        match answer {
            Renewal::Renewed(validity) => stay.extended(validity, sent),
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
