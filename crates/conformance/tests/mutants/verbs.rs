//! The verbs of a client that makes one mistake.

use leasehold_core::backend::{Raises, TokenFloor};
use std::sync::atomic::Ordering;
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, Claimed, ClaimedAll, Completions, Grant, LeaseRef, Mode, Moment, Notifier,
    Place, Renewal, Subscription, async_trait,
};
use leasehold_core::{Fencing, FencingToken, Guarantees, LockQueue, Loss, Name, Result, StoreId};

use crate::broken::{Broken, without_id};
use crate::defect::Defect;
use crate::leases::lease;
use crate::world::Known;

const HOURS: Duration = Duration::from_secs(7200);

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Broken {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.at_home().await?;
        self.keep_alive(Defect::WaitsForTheDead).await;
        if let Some(answer) = self.unasked(claim).await {
            return Ok(answer);
        }
        if let Some(answer) = self.undone(claim) {
            return Ok(answer);
        }
        if let Some(answer) = self.merely_looks(claim).await {
            return Ok(answer);
        }
        let sent = Moment::now();
        let asked = self.asked_once(self.asked(claim, sent));
        let downgrades = self.downgrades(claim);
        let before = self.with(claim.id, |mine| mine.sent);
        if downgrades && self.is(Defect::DowngradeQueuesAgain) {
            self.world.memory().release(&asked, None).await?;
            self.serve(&claim.name).await;
        }
        let is_new = self.remember(claim, &asked, sent);
        let answer = self
            .world
            .memory()
            .claim(&asked)
            .await
            .inspect_err(|_| drop(self.forget(claim.id)))?;
        if downgrades && !self.is(Defect::DowngradeNotifiesNoWaiter) {
            self.serve(&claim.name).await;
        }
        self.claimed_for_less(claim, sent, before, downgrades);
        if self.is(Defect::ForgetsEarlyEvictions) {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        Ok(match answer {
            Claimed::Granted(grant) => self.granted(claim, grant, sent),
            Claimed::Waiting(waiting) => self.waiting(claim, waiting, is_new).await,
            Claimed::Done(completion) => {
                self.forget(claim.id);
                Claimed::Done(self.recorded_as(completion))
            }
            Claimed::Busy(mut who) => {
                self.forget(claim.id);
                self.unlabel(&mut who);
                Claimed::Busy(who)
            }
        })
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        self.keep_alive(Defect::WaitsForTheDead).await;
        self.take_all(claims).await
    }

    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        self.at_home().await?;
        self.keep_alive(Defect::WaitsForTheDead).await;
        self.keep_alive(Defect::RenewsTheForgotten).await;
        if self.is(Defect::PretendsToRenew) {
            return Ok(leases
                .iter()
                .map(|t| Renewal::Renewed(t.claim.ttl.into()))
                .collect());
        }
        let sent = Moment::now();
        let mut asked = Vec::new();
        for t in leases {
            let undone = self.is(Defect::RenewalUndoesDowngrade) && t.claim.mode == Mode::Shared;
            let claim = self.with(t.claim.id, |mine| {
                mine.undone |= undone && mine.claim.mode == Mode::Exclusive;
                mine.asked.clone()
            });
            let token = t.token.map(|token| self.counted(token));
            asked.push(lease(&claim.unwrap_or_else(|| (*t.claim).clone()), token));
        }
        let mut answers = Vec::new();
        let nth = self.world.answers.fetch_add(1, Ordering::Relaxed);
        let late = self.dawdles().await;
        for (t, answer) in leases.iter().zip(self.renew_some(leases, &asked).await?) {
            if let Renewal::Renewed(_) = answer {
                self.with(t.claim.id, |mine| mine.sent = sent);
                self.renewed_for_less(t, sent, late);
            }
            answers.push(self.renewed(t, answer, nth % 2 == 1).await);
        }
        Ok(answers)
    }

    fn renew_batch(&self) -> usize {
        self.world.memory().renew_batch()
    }

    async fn release(&self, claim: &Claim, place: Option<&Place>) -> Result<()> {
        self.keep_alive(Defect::WaitsForTheDead).await;
        if self.is(Defect::ReleasesOnlyWithAPlace) && place.is_none() {
            return Ok(());
        }
        if self.is(Defect::ReleasesByName) {
            self.evict_all_holders(&claim.name).await?;
        }
        let known = self.forget(claim.id);
        if self.is(Defect::ForgetsToWithdraw) && known.as_ref().is_some_and(|k| k.waits) {
            return Ok(());
        }
        let asked = known.map_or_else(|| self.asked(claim, Moment::now()), |k| k.asked);
        self.world.memory().release(&asked, None).await?;
        if self.is(Defect::KeepsATraceOfEachName) {
            let mut trace = claim.clone();
            (trace.name, trace.ttl) = (format!("trace of {}", claim.name).into(), HOURS);
            self.world.memory().claim(&trace).await?;
        }
        self.serve(&claim.name).await;
        Ok(())
    }

    async fn release_after(
        &self,
        claim: &Claim,
        place: Option<&Place>,
        rest: Duration,
    ) -> Result<()> {
        self.lapse(claim, place, rest).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        let mut queue = self.world.memory().inspect(&self.encoded(name)).await?;
        for entry in queue.holders.iter_mut().chain(&mut queue.waiters) {
            entry.label = entry.label.take().map(|label| without_id(&label));
            entry.token = entry.token.map(|token| self.shown(token));
        }
        Ok(queue)
    }

    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        let mut names = self.world.memory().list(prefix, after, limit).await?;
        if self.is(Defect::ListsBackwards) {
            names.reverse();
        }
        Ok(names)
    }

    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let evicted = if self.evicts_all_holders(name, token).await {
            self.evict_all_holders(name).await?
        } else {
            let counted = self.counted(token);
            let name = self.encoded(name);
            self.knows(&name, counted).await && self.world.memory().evict(&name, counted).await?
        };
        if evicted && self.is(Defect::ForgetsEarlyEvictions) {
            let unaware = |k: &&mut Known| k.claim.name == *name && k.grant.is_none();
            self.world
                .known()
                .iter_mut()
                .filter(unaware)
                .for_each(|k| k.untold = true);
        }
        let owns = |grant: &Grant| {
            (grant.token.get()..grant.token.get() + u64::from(grant.turns)).contains(&token.get())
        };
        let holds = |k: &&Known| k.claim.name == *name && k.grant.as_ref().is_some_and(owns);
        if evicted && !self.is(Defect::NeverSaysLost) {
            self.world
                .known()
                .iter()
                .filter(holds)
                .for_each(|k| k.notifier.lost(k.claim.id, Loss::Evicted));
        }
        self.serve(name).await;
        Ok(evicted)
    }

    fn guarantees(&self) -> Guarantees {
        self.world
            .memory()
            .guarantees()
            .with_fencing(Fencing::SurvivesDataLoss)
    }

    fn identity(&self) -> Option<StoreId> {
        if self.is(Defect::NamesItselfAnew) {
            return Some(StoreId::of("broken", format_args!("{self:p}")));
        }
        self.world.memory().identity()
    }

    fn completions(&self) -> Option<&dyn Completions> {
        Some(self)
    }

    fn token_floor(&self) -> Option<&dyn TokenFloor> {
        Some(self)
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(&self.notifier)
    }

    fn observe(&self, _name: &Name) -> Subscription {
        Subscription::none()
    }

    fn clock(&self) -> leasehold_core::backend::Clock {
        self.world.memory().clock()
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl TokenFloor for Broken {
    fn raises(&self) -> Raises {
        self.world.memory().raises()
    }

    async fn mark(&self) -> Result<FencingToken> {
        self.mark_of_it().await
    }

    async fn raise(&self, number: FencingToken) -> Result<()> {
        self.raise_it(number).await
    }
}
