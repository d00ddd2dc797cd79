//! A client that makes one mistake, between the suite and a sound store in memory. With no mistake it is a sound store of its
//! own: it has a notifier of its own.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, ClaimId, Claimed, Grant, LeaseRef, Moment, Notifier, Place, Renewal, Validity,
    WaitPolicy, Waiting,
};
use leasehold_core::{Contention, Error, ErrorKind, FencingToken, Loss, Name, Result};
use tokio::runtime::Handle;

use crate::defect::Defect;
use crate::leases::{as_said, lease};
use crate::world::{Known, World};

pub(crate) struct Broken {
    pub(crate) world: Arc<World>,
    pub(crate) notifier: Notifier,
    pub(crate) session: OnceLock<Moment>,
    /// The runtime in which it was connected.
    runtime: Handle,
}

impl Broken {
    pub(crate) fn new(world: Arc<World>) -> Broken {
        Broken {
            world,
            notifier: Notifier::new(),
            session: OnceLock::new(),
            runtime: Handle::current(),
        }
    }

    /// Returns once its own runtime has done something.
    pub(crate) async fn at_home(&self) -> Result<()> {
        if !self.is(Defect::StaysInItsRuntime) {
            return Ok(());
        }
        let gone = |_| Error::new(ErrorKind::Ambiguous, "its runtime has ended");
        self.runtime.spawn(async {}).await.map_err(gone)
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

    /// The claim as it goes to the store: its id leads the label, so that a look at the queue says whose turn it is.
    pub(crate) fn asked(&self, claim: &Claim, sent: Moment) -> Claim {
        let mut asked = claim
            .clone()
            .with_label(&format!("{} {}", claim.id, claim.label));
        asked.name = self.encoded(&claim.name);
        asked.floor = self.believed_floor(claim).map(|floor| self.counted(floor));
        match self.world.defect {
            Some(Defect::GrantsLessThanItSays) => asked.ttl = claim.ttl * 3 / 5,
            Some(Defect::CountsFromTheClaim) => {
                asked.ttl -= sent
                    .since(*self.session.get_or_init(|| sent))
                    .min(claim.ttl / 2);
            }
            Some(Defect::TryLeavesAPlace) => asked.policy = WaitPolicy::Fair,
            Some(
                Defect::ReadersExclude
                | Defect::ManyCountAsOne
                | Defect::CountsMayDiffer
                | Defect::CountsOfHoldersOnly,
            ) => {
                asked.mode = self.mistaken(&asked.name, claim.mode);
            }
            Some(Defect::CutsValues) => asked.label = self.cut(&asked.label),
            Some(Defect::NewIdEachTime) => asked.id = ClaimId::fresh(),
            Some(Defect::LosesTheLabel) => {
                let first = self
                    .world
                    .known()
                    .iter()
                    .find(|k| k.claim.id == claim.id)
                    .map(|k| k.asked.label.clone());
                asked.label = first.unwrap_or(asked.label);
            }
            _ => {}
        }
        asked
    }

    /// Answers without asking the store, as some mistakes do.
    pub(crate) async fn unasked(&self, claim: &Claim) -> Option<Claimed> {
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
            let queue = self.world.memory().inspect(&claim.name).await.ok()?;
            if queue
                .holders
                .first()
                .and_then(|e| e.token)
                .map(FencingToken::get)
                != behind
            {
                let token = FencingToken::new(behind? + 1);
                return Some(Claimed::Granted(Grant::new(
                    Place::new(claim.id.to_string()),
                    token,
                    claim.ttl,
                )));
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
        known.push(Known {
            claim,
            asked,
            notifier,
            sent,
            waits: true,
            grant,
            undone,
            behind,
            who: None,
            untold,
        });
        true
    }

    pub(crate) fn with<T>(&self, id: ClaimId, work: impl FnOnce(&mut Known) -> T) -> Option<T> {
        self.world
            .known()
            .iter_mut()
            .find(|k| k.claim.id == id)
            .map(work)
    }

    pub(crate) fn forget(&self, id: ClaimId) -> Option<Known> {
        let mut known = self.world.known();
        known
            .iter()
            .position(|k| k.claim.id == id)
            .map(|at| known.remove(at))
    }

    /// What the memory store counts, which is shown as this.
    pub(crate) fn counted(&self, token: FencingToken) -> FencingToken {
        FencingToken::new(token.get().saturating_sub(self.world.floor()))
    }

    pub(crate) fn shown(&self, token: FencingToken) -> FencingToken {
        let nth = self.world.answers.fetch_add(1, Ordering::Relaxed);
        match self.world.defect {
            Some(Defect::OneTokenForAll) => FencingToken::new(7),
            Some(Defect::NewTokenEachTime) => FencingToken::new(token.get() * 1000 + nth % 1000),
            _ => FencingToken::new(token.get() + self.world.floor()),
        }
    }

    pub(crate) fn granted(&self, claim: &Claim, mut grant: Grant, sent: Moment) -> Claimed {
        grant.token =
            self.mistaken_floor(claim, self.mistaken_token(claim, self.shown(grant.token)));
        if self.is(Defect::GrantsLessThanItSays) || self.is(Defect::CountsFromTheClaim) {
            grant = as_said(grant, sent, claim.ttl);
        }
        if self.is(Defect::DowngradesFromNow) || self.is(Defect::ShortestOfAll) {
            grant = as_said(grant, sent, claim.ttl);
        }
        if self.is(Defect::SaysMoreTurns) {
            grant.turns += 5;
        }
        self.with(claim.id, |mine| {
            (mine.waits, mine.grant) = (false, Some(grant.clone()));
        });
        Claimed::Granted(grant)
    }

    pub(crate) async fn waiting(
        &self,
        claim: &Claim,
        mut waiting: Waiting,
        is_new: bool,
    ) -> Claimed {
        let token = waiting.who.token.map(FencingToken::get);
        self.with(claim.id, |mine| mine.behind = mine.behind.or(token));
        self.unlabel(&mut waiting.who);
        if self.is(Defect::TellsWhoWasThere) {
            let now = waiting.who.clone();
            let then = self.with(claim.id, |mine| mine.who.get_or_insert(now).clone());
            waiting.who = then.unwrap_or(waiting.who);
        }
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

    /// All who wait leave the queue and join it again, behind `claim`.
    pub(crate) async fn go_before_the_others(&self, claim: &Claim) {
        let memory = self.world.memory();
        let queue = memory.inspect(&claim.name).await.unwrap_or_default();
        for id in queue
            .waiters
            .iter()
            .filter_map(|e| id_of(e.label.as_deref()?))
            .filter(|id| *id != claim.id)
        {
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
        let Ok(queue) = self.world.memory().inspect(&self.encoded(name)).await else {
            return;
        };
        for holder in queue.holders {
            let (Some(id), Some(token)) = (holder.label.as_deref().and_then(id_of), holder.token)
            else {
                continue;
            };
            for known in self
                .world
                .known()
                .iter_mut()
                .filter(|k| k.waits && k.claim.name == *name)
            {
                if known.claim.id != id && !self.is(Defect::AllWatchTheHead) {
                    continue;
                }
                let since = if self.is(Defect::PushCountsFromNow) {
                    Moment::now()
                } else {
                    known.sent
                };
                let validity = Validity::since(since, known.claim.ttl);
                let grant = Grant::new(
                    Place::new(known.claim.id.to_string()),
                    self.shown(token),
                    validity,
                );
                (known.waits, known.grant) = (false, Some(grant.clone()));
                known.notifier.granted(known.claim.id, grant);
            }
        }
    }

    pub(crate) async fn keep_alive(&self, defect: Defect) {
        if self.is(defect) {
            let all: Vec<LeaseRef> = self
                .world
                .known()
                .iter()
                .map(|k| lease(&k.asked, None))
                .collect();
            let _ = self.world.memory().renew(&all).await;
        }
    }

    pub(crate) async fn evict_all_holders(&self, name: &Name) -> Result<bool> {
        let memory = self.world.memory();
        let mut any = false;
        for token in memory
            .inspect(name)
            .await?
            .holders
            .iter()
            .filter_map(|e| e.token)
        {
            any |= memory.evict(name, token).await?;
        }
        Ok(any)
    }

    pub(crate) async fn renewed(&self, lease: &LeaseRef, answer: Renewal, odd: bool) -> Renewal {
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

pub(crate) fn without_id(label: &str) -> String {
    label.get(33..).unwrap_or_default().to_owned()
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Broken({:?})", self.world.defect)
    }
}
