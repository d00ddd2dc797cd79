//! Completions of a client that makes one mistake.

use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, Claimed, Complete, Completed, Completions, Mode, WaitPolicy, async_trait,
};
use leasehold_core::{Completion, Error, ErrorKind, FencingToken, Keep, Name, Result};

use crate::broken::{Broken, without_id};
use crate::defect::Defect;

impl Broken {
    /// The completion as the suite sees it.
    pub(crate) fn recorded_as(&self, mut completion: Completion) -> Completion {
        completion.label = without_id(&completion.label).into();
        completion.token = self.shown(completion.token);
        completion
    }

    /// The claim, of which some mistakes forget a part.
    pub(crate) fn asked_once(&self, mut claim: Claim) -> Claim {
        match self.world.defect {
            Some(Defect::GrantsWhatIsDone) => claim.once = None,
            Some(Defect::TellsLocks) => claim.once = claim.once.or(Some(0)),
            Some(Defect::IgnoresFires) => claim.once = claim.once.map(|_| 0),
            _ => {}
        }
        claim
    }

    /// Notifies all waiters of this name for which the completion counts.
    fn tell_done(&self, name: &Name, completion: &Completion) {
        if self.is(Defect::TellsNoWaiter) {
            return;
        }
        let counts = |once: Option<u64>| once.is_some_and(|fire| completion.counts_for(fire));
        self.world
            .known()
            .iter()
            .filter(|known| known.waits && known.claim.name == *name && counts(known.claim.once))
            .for_each(|known| known.notifier.claim_again(known.claim.id));
    }

    /// Writes a completion for a claim that does not hold.
    async fn forge(&self, claim: &Claim, request: &Complete) -> Result<Completed> {
        let memory = self.world.memory();
        let mut forger = Claim::new(
            self.encoded(&claim.name),
            Mode::Exclusive,
            WaitPolicy::Try,
            claim.ttl,
            &claim.label,
        );
        forger.once = Some(claim.once.unwrap_or_default());
        match memory.claim(&forger).await? {
            Claimed::Granted(grant) => {
                let mut request = request.clone();
                request.token = grant.token;
                memory.complete(&forger, &request).await
            }
            _ => Ok(Completed::NotHeld),
        }
    }
}

#[async_trait]
impl Completions for Broken {
    async fn complete(&self, claim: &Claim, request: &Complete) -> Result<Completed> {
        let memory = self.world.memory();
        let asked = self.with(claim.id, |mine| mine.asked.clone());
        let mut asked = asked.unwrap_or_else(|| self.asked(claim, memory.clock().now()));
        asked = self.asked_once(asked);
        asked.once = asked.once.or(Some(0));
        let mut request = request.clone();
        request.token = self.counted(request.token);
        let before = memory.completion(&asked.name).await?;
        if let (true, Some(before)) = (self.is(Defect::AnswersAnyRecord), &before) {
            return Ok(Completed::Done(self.recorded_as(before.clone())));
        }
        match self.world.defect {
            Some(Defect::ComparesNoToken) => {
                let queue = memory.inspect(&asked.name).await?;
                let now = queue.holders.first().and_then(|holder| holder.token);
                request.token = now.unwrap_or(request.token);
            }
            Some(Defect::CutsTheKeep) => {
                if let Keep::For(keep) = request.keep {
                    request.keep = Keep::For(keep / 10);
                }
            }
            Some(Defect::RefusesLongResults)
                if request.result.as_ref().is_some_and(|it| it.len() > 1000) =>
            {
                return Err(Error::new(ErrorKind::Invalid, "the result is too long"));
            }
            _ => {}
        }
        let mut answer = memory.complete(&asked, &request).await?;
        let is_repeat = before.is_some() && matches!(answer, Completed::Done(_));
        if is_repeat && self.is(Defect::ForgetsWhoCompleted) {
            return Ok(Completed::NotHeld);
        }
        if matches!(answer, Completed::NotHeld) && self.is(Defect::RecordsWithoutAHold) {
            answer = self.forge(claim, &request).await?;
        }
        let Completed::Done(mut completion) = answer else {
            return Ok(answer);
        };
        if is_repeat && self.is(Defect::RepeatExtends) {
            completion.left = completion.left.map(|left| left + Duration::from_secs(60));
        }
        Broken::forget(self, claim.id);
        self.tell_done(&claim.name, &completion);
        self.serve(&claim.name).await;
        Ok(Completed::Done(self.recorded_as(completion)))
    }

    async fn completion(&self, name: &Name) -> Result<Option<Completion>> {
        let completion = self.world.memory().completion(&self.encoded(name)).await?;
        Ok(completion.map(|it| self.recorded_as(it)))
    }

    async fn forget(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let memory = self.world.memory();
        let name = self.encoded(name);
        let mut token = self.counted(token);
        if self.is(Defect::ForgetsByName)
            && let Some(completion) = memory.completion(&name).await?
        {
            token = completion.token;
        }
        memory.forget(&name, token).await
    }

    async fn list_completions(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Completion)>> {
        let memory = self.world.memory();
        let all = memory.list_completions(prefix, after, limit).await?;
        let shown = |(name, it)| (name, self.recorded_as(it));
        Ok(all.into_iter().map(shown).collect())
    }
}
