//! The mistakes with how long something lasts: renewals, expiries, holds that lapse.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, ClaimId, Claimed, ClaimedAll, Grant, LeaseRef, Moment, Place, Renewal,
    Validity, Waiting,
};
use leasehold_core::{Contention, FencingToken, Name, Result};

use crate::broken::{Broken, id_of};
use crate::defect::Defect;

impl Broken {
    /// The server ends this at `at`, as if its lease had run out then, unless a later request than that of `sent` extends it.
    pub(crate) fn ends(&self, id: ClaimId, sent: Moment, at: Moment) {
        let world = self.world.clone();
        tokio::spawn(async move {
            tokio::time::sleep(at.since(Moment::now())).await;
            let same = |asked: &Claim, latest: Moment| (latest == sent).then(|| asked.clone());
            let asked = world
                .known()
                .iter()
                .find(|k| k.claim.id == id)
                .and_then(|k| same(&k.asked, k.sent));
            let Some(asked) = asked else { return };
            let _ = world.memory().release(&asked, None).await;
            Broken::new(world).serve(&asked.name).await;
        });
    }

    /// What a mistaken store makes of a lease that was claimed, or claimed again: `before`, it was sent then.
    pub(crate) fn claimed_for_less(
        &self,
        claim: &Claim,
        sent: Moment,
        before: Option<Moment>,
        downgrades: bool,
    ) {
        if let Some(before) = before.filter(|_| downgrades && self.is(Defect::DowngradesFromNow)) {
            self.ends(claim.id, sent, before + claim.ttl);
        }
        if self.is(Defect::ShortestOfAll) {
            let known = self.world.known();
            let queue: Vec<_> = known
                .iter()
                .filter(|k| k.claim.name == claim.name)
                .collect();
            let shortest = queue.iter().map(|k| k.claim.ttl).min().unwrap_or(claim.ttl);
            queue
                .iter()
                .for_each(|k| self.ends(k.claim.id, k.sent, k.sent + shortest));
        }
    }

    /// Several names, claimed again, as a mistaken store answers without a request.
    pub(crate) fn remembered(&self, claims: &[Claim]) -> Option<ClaimedAll> {
        if !self.is(Defect::RepeatsAllFromNow) {
            return None;
        }
        let known = self.world.known();
        let grant = |claim: &Claim| {
            let mut grant = known
                .iter()
                .find(|k| k.claim.id == claim.id)?
                .grant
                .clone()?;
            grant.validity = claim.ttl.into();
            Some(Claimed::Granted(grant))
        };
        claims
            .iter()
            .map(grant)
            .collect::<Option<Vec<_>>>()
            .map(|all| all.into_iter().collect())
    }

    /// A place in the queue that is claimed again: looked at, and not extended.
    pub(crate) async fn merely_looks(&self, claim: &Claim) -> Option<Claimed> {
        if !self.is(Defect::WaitersAreNotKept) {
            return None;
        }
        let queue = self
            .world
            .memory()
            .inspect(&self.encoded(&claim.name))
            .await
            .ok()?;
        let waits = queue
            .waiters
            .iter()
            .any(|e| e.label.as_deref().and_then(id_of) == Some(claim.id));
        let place = Place::new(claim.id.to_string());
        let retry_after = Duration::from_millis(20);
        waits.then(|| {
            Claimed::Waiting(Waiting::new(place, Contention::unknown()).retry_after(retry_after))
        })
    }

    /// Just before the holder dies of whom this newest waiter knows, it goes before all others.
    pub(crate) async fn passes_at_a_death(&self, claim: &Claim) {
        let Ok(queue) = self.world.memory().inspect(&claim.name).await else {
            return;
        };
        let holder = queue
            .holders
            .first()
            .and_then(|e| id_of(e.label.as_deref()?));
        let sent = move |world: &crate::world::World| {
            let known = world.known();
            known
                .iter()
                .find(|k| Some(k.claim.id) == holder)
                .map(|k| (k.sent, k.claim.ttl))
        };
        let (Some(now), world, claim) = (sent(&self.world), self.world.clone(), claim.clone())
        else {
            return;
        };
        tokio::spawn(async move {
            let dies = now.0 + now.1.saturating_sub(Duration::from_millis(60));
            tokio::time::sleep(dies.since(Moment::now())).await;
            let queue = world
                .memory()
                .inspect(&claim.name)
                .await
                .unwrap_or_default();
            let newest = queue
                .waiters
                .last()
                .and_then(|e| id_of(e.label.as_deref()?));
            if newest == Some(claim.id) && sent(&world) == Some(now) {
                Broken::new(world).go_before_the_others(&claim).await;
            }
        });
    }

    /// Which of a batch go to the store: how many of its first ones, and whether places in line do.
    pub(crate) async fn renew_some(
        &self,
        leases: &[LeaseRef],
        asked: &[LeaseRef],
    ) -> Result<Vec<Renewal>> {
        let memory = self.world.memory();
        let good = |lease: &LeaseRef| Renewal::Renewed(lease.claim.ttl.into());
        let mut answers = Vec::new();
        let mut lost = false;
        for (lease, asked) in leases.iter().zip(asked) {
            let waits = lease.token.is_none() && self.is(Defect::WaitersAreNotRenewed);
            let was_a_writer =
                self.is(Defect::DowngradeEndsRenewal) && self.was_downgraded(lease.claim.id);
            let mut answer = match waits || was_a_writer || lost && self.is(Defect::StopsAtTheLost)
            {
                true => Some(good(lease)),
                false => memory.renew(std::slice::from_ref(asked)).await?.pop(),
            };
            lost |= matches!(answer, Some(Renewal::Lost(_)));
            let untold = self
                .world
                .known()
                .iter()
                .any(|k| k.claim.id == lease.claim.id && k.untold);
            if matches!(answer, Some(Renewal::Lost(_)))
                && (untold || self.is(Defect::ProvesTheSession))
            {
                answer = Some(good(lease));
            }
            answers.extend(answer);
        }
        Ok(answers)
    }

    /// A renewal that takes its time, and is taken for as old as it is. One at a time.
    pub(crate) async fn dawdles(&self) -> bool {
        let first =
            self.is(Defect::OlderShortens) && !self.world.dawdling.swap(true, Ordering::Relaxed);
        if first {
            let _awake = Awake(&self.world.dawdling);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        first
    }

    /// What a mistaken store makes of a renewal that it has answered.
    pub(crate) fn renewed_for_less(&self, lease: &LeaseRef, sent: Moment, late: bool) {
        let (id, ttl) = (lease.claim.id, lease.claim.ttl);
        if self.is(Defect::RenewsForLess) {
            self.ends(id, sent, sent + ttl * 7 / 10);
        }
        if late {
            self.ends(id, sent, sent + ttl);
        }
    }

    pub(crate) async fn lapse(
        &self,
        claim: &Claim,
        place: Option<&Place>,
        rest: Duration,
    ) -> Result<()> {
        if self.is(Defect::LapsesWithItsLease) {
            return Ok(());
        }
        let known = self
            .world
            .known()
            .iter()
            .find(|k| k.claim.id == claim.id)
            .map(|k| (k.asked.clone(), k.sent));
        let Some((asked, sent)) = known else {
            return Ok(());
        };
        if self.is(Defect::RenewsWhatLapses) {
            self.ends(claim.id, sent, Moment::now() + rest);
            return Ok(());
        }
        self.world
            .memory()
            .release_after(&asked, place, rest)
            .await?;
        if !self.is(Defect::LapsesSilently) {
            let waiting = |k: &&crate::world::Known| k.waits && k.claim.name == claim.name;
            self.world
                .known()
                .iter()
                .filter(waiting)
                .for_each(|k| k.notifier.claim_again(k.claim.id));
        }
        Ok(())
    }

    /// Whether this store knows the hold with this token.
    pub(crate) async fn knows(&self, name: &Name, token: FencingToken) -> bool {
        let queue = self.world.memory().inspect(name).await.unwrap_or_default();
        !self.is(Defect::EvictsByTheFirstToken)
            || queue.holders.iter().any(|e| e.token == Some(token))
    }
}

/// No renewal dawdles any more, also if it was given up.
struct Awake<'a>(&'a AtomicBool);

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// What a mistaken grant looks like that was sent for at `sent`.
pub(crate) fn as_said(mut grant: Grant, sent: Moment, ttl: Duration) -> Grant {
    grant.validity = Validity::since(sent, ttl);
    grant
}

/// A lease of the claim as the store has it.
pub(crate) fn lease(asked: &Claim, token: Option<FencingToken>) -> LeaseRef {
    LeaseRef::new(
        Arc::new(asked.clone()),
        Place::new(asked.id.to_string()),
        token,
    )
}
