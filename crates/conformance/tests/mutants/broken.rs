//! A client that makes one mistake, between the suite and a sound store in memory. With no mistake it is a sound store of its
//! own: it has a notifier of its own.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::seam::{
    Backend, Claim, ClaimId, Claimed, ClaimedAll, Grant, LeaseRef, Moment, Notifier, Place, Renewal, Subscription,
    Validity, WaitPolicy, Waiting, async_trait,
};
use leasehold_core::{Contention, Fencing, FencingToken, Guarantees, LockQueue, Loss, Name, Result};

use crate::defect::Defect;
use crate::leases::{as_said, lease};
use crate::world::{Known, World};

pub(crate) struct Broken {
    pub(crate) world: Arc<World>,
    notifier: Notifier,
    session: OnceLock<Moment>,
}

impl Broken {
    pub(crate) fn new(world: Arc<World>) -> Broken {
        Broken { world, notifier: Notifier::new(), session: OnceLock::new() }
    }

    pub(crate) fn is(&self, defect: Defect) -> bool {
        self.world.is(defect)
    }

    pub(crate) fn encoded(&self, name: &Name) -> Name {
        match self.world.defect {
            Some(Defect::FoldsNames) => name.as_str().to_lowercase().into(),
            Some(Defect::CutsNames) => name.as_str().chars().take(300).collect::<String>().into(),
            _ => name.clone(),
        }
    }

    /// The claim as it goes to the store: its id leads the label, so that a look at the line says whose turn it is.
    pub(crate) fn asked(&self, claim: &Claim, sent: Moment) -> Claim {
        let mut asked = claim.clone().with_label(&format!("{} {}", claim.id, claim.label));
        asked.name = self.encoded(&claim.name);
        match self.world.defect {
            Some(Defect::GrantsLessThanItSays) => asked.ttl = claim.ttl * 3 / 5,
            Some(Defect::CountsFromTheClaim) => {
                asked.ttl -= sent.since(*self.session.get_or_init(|| sent)).min(claim.ttl / 2);
            }
            Some(Defect::TryLeavesAPlace) => asked.policy = WaitPolicy::Fair,
            Some(
                Defect::ReadersExclude | Defect::ManyCountAsOne | Defect::CountsMayDiffer | Defect::CountsOfHoldersOnly,
            ) => {
                asked.mode = self.mistaken(&asked.name, claim.mode);
            }
            Some(Defect::CutsValues) => asked.label = self.cut(&asked.label),
            Some(Defect::NewIdEachTime) => asked.id = ClaimId::fresh(),
            Some(Defect::LosesTheLabel) => {
                let first = self.world.known().iter().find(|k| k.claim.id == claim.id).map(|k| k.asked.label.clone());
                asked.label = first.unwrap_or(asked.label);
            }
            _ => {}
        }
        asked
    }

    /// Answers without asking the store, as some mistakes do.
    async fn unasked(&self, claim: &Claim) -> Option<Claimed> {
        let (grant, behind) = {
            let known = self.world.known();
            let mine = known.iter().find(|k| k.claim.id == claim.id)?;
            (mine.grant.clone(), mine.behind)
        };
        if self.is(Defect::CountsFromTheRepeat) {
            let mut grant = grant?;
            grant.validity = claim.ttl.into();
            return Some(Claimed::Granted(grant));
        }
        if self.is(Defect::GrantsToTheDead) && behind.is_some() {
            let line = self.world.memory().inspect(&claim.name).await.ok()?;
            if line.holders.first().and_then(|e| e.token).map(FencingToken::get) != behind {
                let token = FencingToken::new(behind? + 1);
                return Some(Claimed::Granted(Grant::new(Place::new(claim.id.to_string()), token, claim.ttl)));
            }
        }
        None
    }

    pub(crate) fn remember(&self, claim: &Claim, asked: &Claim, sent: Moment) -> bool {
        let mut known = self.world.known();
        if let Some(mine) = known.iter_mut().find(|k| k.claim.id == claim.id) {
            (mine.sent, mine.asked) = (sent, asked.clone());
            return false;
        }
        let (claim, asked, notifier) = (claim.clone(), asked.clone(), self.notifier.clone());
        let (grant, undone, behind, untold) = (None, false, None, false);
        known.push(Known { claim, asked, notifier, sent, waits: true, grant, undone, behind, untold });
        true
    }

    fn with<T>(&self, id: ClaimId, work: impl FnOnce(&mut Known) -> T) -> Option<T> {
        self.world.known().iter_mut().find(|k| k.claim.id == id).map(work)
    }

    pub(crate) fn forget(&self, id: ClaimId) -> Option<Known> {
        let mut known = self.world.known();
        known.iter().position(|k| k.claim.id == id).map(|at| known.remove(at))
    }

    fn shown(&self, token: FencingToken) -> FencingToken {
        let nth = self.world.answers.fetch_add(1, Ordering::Relaxed);
        match self.world.defect {
            Some(Defect::OneTokenForAll) => FencingToken::new(7),
            Some(Defect::NewTokenEachTime) => FencingToken::new(token.get() * 1000 + nth % 1000),
            _ => FencingToken::new(token.get() + self.world.floor()),
        }
    }

    pub(crate) fn granted(&self, claim: &Claim, mut grant: Grant, sent: Moment) -> Claimed {
        grant.token = self.mistaken_token(claim, self.shown(grant.token));
        if self.is(Defect::GrantsLessThanItSays) || self.is(Defect::CountsFromTheClaim) {
            grant = as_said(grant, sent, claim.ttl);
        }
        if self.is(Defect::DowngradesFromNow) || self.is(Defect::ShortestOfAll) {
            grant = as_said(grant, sent, claim.ttl);
        }
        if self.is(Defect::SaysMoreTurns) {
            grant.turns += 5;
        }
        self.with(claim.id, |mine| (mine.waits, mine.grant) = (false, Some(grant.clone())));
        Claimed::Granted(grant)
    }

    async fn waiting(&self, claim: &Claim, mut waiting: Waiting, is_new: bool) -> Claimed {
        let token = waiting.who.token.map(FencingToken::get);
        self.with(claim.id, |mine| mine.behind = mine.behind.or(token));
        self.unlabel(&mut waiting.who);
        if self.is(Defect::TryLeavesAPlace) && claim.policy == WaitPolicy::Try {
            return Claimed::Busy(waiting.who);
        }
        if self.is(Defect::RestsOnItsNotifications) {
            waiting.retry_after = Some(Duration::from_secs(3600));
        }
        if is_new
            && (self.is(Defect::ServesTheLastFirst)
                || self.is(Defect::FastPassesFair) && claim.policy == WaitPolicy::Fast
                || self.slips_in(claim).await)
        {
            self.go_before_the_others(claim).await;
        }
        if is_new && self.is(Defect::LastFirstAfterADeath) {
            self.passes_at_a_death(claim).await;
        }
        Claimed::Waiting(waiting)
    }

    /// All who wait leave the line and join it again, behind `claim`.
    pub(crate) async fn go_before_the_others(&self, claim: &Claim) {
        let memory = self.world.memory();
        let line = memory.inspect(&claim.name).await.unwrap_or_default();
        for id in line.waiters.iter().filter_map(|e| id_of(e.label.as_deref()?)).filter(|id| *id != claim.id) {
            if let Some(asked) = self.with(id, |other| other.asked.clone()) {
                let _ = memory.release(&asked, None).await;
                let _ = memory.claim(&asked).await;
            }
        }
    }

    pub(crate) fn unlabel(&self, who: &mut Contention) {
        who.label = who.label.take().map(|label| without_id(&label));
        who.token = who.token.map(|token| self.shown(token));
    }

    /// Notifies the waiters that are granted.
    pub(crate) async fn serve(&self, name: &Name) {
        if self.is(Defect::SwallowsItsNotifications) || self.is(Defect::RestsOnItsNotifications) {
            return;
        }
        let Ok(line) = self.world.memory().inspect(&self.encoded(name)).await else { return };
        for holder in line.holders {
            let (Some(id), Some(token)) = (holder.label.as_deref().and_then(id_of), holder.token) else { continue };
            for known in self.world.known().iter_mut().filter(|k| k.waits && k.claim.name == *name) {
                if known.claim.id != id && !self.is(Defect::EverybodyWatchesTheHead) {
                    continue;
                }
                let since = if self.is(Defect::PushCountsFromNow) { Moment::now() } else { known.sent };
                let validity = Validity::since(since, known.claim.ttl);
                let grant = Grant::new(Place::new(known.claim.id.to_string()), self.shown(token), validity);
                (known.waits, known.grant) = (false, Some(grant.clone()));
                known.notifier.granted(known.claim.id, grant);
            }
        }
    }

    async fn keep_alive(&self, defect: Defect) {
        if self.is(defect) {
            let all: Vec<LeaseRef> = self.world.known().iter().map(|k| lease(&k.asked, None)).collect();
            let _ = self.world.memory().renew(&all).await;
        }
    }

    pub(crate) async fn evict_everybody(&self, name: &Name) -> Result<bool> {
        let memory = self.world.memory();
        let mut any = false;
        for token in memory.inspect(name).await?.holders.iter().filter_map(|e| e.token) {
            any |= memory.evict(name, token).await?;
        }
        Ok(any)
    }

    async fn renewed(&self, lease: &LeaseRef, answer: Renewal, odd: bool) -> Renewal {
        let good = Renewal::Renewed(lease.claim.ttl.into());
        match answer {
            Renewal::Lost(_) if self.is(Defect::NeverSaysLost) => good,
            Renewal::Lost(_) if self.is(Defect::RevivesTheLost) => {
                let _ = self.claim(&lease.claim).await;
                good
            }
            Renewal::Renewed(_) if self.is(Defect::CriesWolf) && odd => Renewal::Lost(Loss::Gone),
            Renewal::Granted(_) if self.is(Defect::RestsOnItsNotifications) => good,
            Renewal::Granted(grant) => match self.granted(&lease.claim, grant, Moment::now()) {
                Claimed::Granted(grant) => Renewal::Granted(grant),
                _ => good,
            },
            other => other,
        }
    }
}

pub(crate) fn id_of(label: &str) -> Option<ClaimId> {
    ClaimId::parse(label.get(..32)?)
}

fn without_id(label: &str) -> String {
    label.get(33..).unwrap_or_default().to_owned()
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Broken({:?})", self.world.defect)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Broken {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
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
        let asked = self.asked(claim, sent);
        let downgrades = self.downgrades(claim);
        let before = self.with(claim.id, |mine| mine.sent);
        if downgrades && self.is(Defect::DowngradeQueuesAgain) {
            self.world.memory().release(&asked, None).await?;
            self.serve(&claim.name).await;
        }
        let is_new = self.remember(claim, &asked, sent);
        let answer = self.world.memory().claim(&asked).await.inspect_err(|_| drop(self.forget(claim.id)))?;
        if downgrades && !self.is(Defect::DowngradeWakesNobody) {
            self.serve(&claim.name).await;
        }
        self.claimed_for_less(claim, sent, before, downgrades);
        if self.is(Defect::ForgetsEarlyEvictions) {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        Ok(match answer {
            Claimed::Granted(grant) => self.granted(claim, grant, sent),
            Claimed::Waiting(waiting) => self.waiting(claim, waiting, is_new).await,
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
        self.keep_alive(Defect::WaitsForTheDead).await;
        self.keep_alive(Defect::RenewsTheForgotten).await;
        if self.is(Defect::PretendsToRenew) {
            return Ok(leases.iter().map(|t| Renewal::Renewed(t.claim.ttl.into())).collect());
        }
        let sent = Moment::now();
        let mut asked = Vec::new();
        for t in leases {
            let claim = self.with(t.claim.id, |mine| mine.asked.clone());
            let token = t.token.map(|token| FencingToken::new(token.get().saturating_sub(self.world.floor())));
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
            self.evict_everybody(&claim.name).await?;
        }
        let known = self.forget(claim.id);
        if self.is(Defect::ForgetsToWithdraw) && known.as_ref().is_some_and(|k| k.waits) {
            return Ok(());
        }
        let asked = known.map_or_else(|| self.asked(claim, Moment::now()), |k| k.asked);
        self.world.memory().release(&asked, None).await?;
        self.serve(&claim.name).await;
        Ok(())
    }

    async fn release_after(&self, claim: &Claim, place: Option<&Place>, rest: Duration) -> Result<()> {
        self.lapse(claim, place, rest).await
    }

    async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        let mut line = self.world.memory().inspect(&self.encoded(name)).await?;
        for entry in line.holders.iter_mut().chain(&mut line.waiters) {
            entry.label = entry.label.take().map(|label| without_id(&label));
            entry.token = entry.token.map(|token| self.shown(token));
        }
        Ok(line)
    }

    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        let mut names = self.world.memory().list(prefix, after, limit).await?;
        if self.is(Defect::ListsBackwards) {
            names.reverse();
        }
        Ok(names)
    }

    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let evicted = if self.evicts_everybody(name, token).await {
            self.evict_everybody(name).await?
        } else {
            let counted = FencingToken::new(token.get().saturating_sub(self.world.floor()));
            let name = self.encoded(name);
            self.knows(&name, counted).await && self.world.memory().evict(&name, counted).await?
        };
        if evicted && self.is(Defect::ForgetsEarlyEvictions) {
            let unaware = |k: &&mut Known| k.claim.name == *name && k.grant.is_none();
            self.world.known().iter_mut().filter(unaware).for_each(|k| k.untold = true);
        }
        let owns =
            |grant: &Grant| (grant.token.get()..grant.token.get() + u64::from(grant.turns)).contains(&token.get());
        let holds = |k: &&Known| k.claim.name == *name && k.grant.as_ref().is_some_and(owns);
        if evicted && !self.is(Defect::NeverSaysLost) {
            self.world.known().iter().filter(holds).for_each(|k| k.notifier.lost(k.claim.id, Loss::Evicted));
        }
        self.serve(name).await;
        Ok(evicted)
    }

    fn guarantees(&self) -> Guarantees {
        self.world.memory().guarantees().fencing(Fencing::SurvivesDataLoss)
    }

    fn notifier(&self) -> Option<&Notifier> {
        Some(&self.notifier)
    }

    fn observe(&self, _name: &Name) -> Subscription {
        Subscription::none()
    }

    fn clock(&self) -> leasehold_core::seam::Clock {
        self.world.memory().clock()
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
