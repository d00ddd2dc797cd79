//! The mistakes with several names at once.

use leasehold_core::Result;
use leasehold_core::backend::{Backend, Claim, Claimed, ClaimedAll, Moment};

use crate::broken::Broken;
use crate::defect::Defect;

impl Broken {
    pub(crate) async fn take_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        if self.is(Defect::GrantsAPart) || self.is(Defect::TakesOneByOne) {
            return self.take_one_by_one(claims).await;
        }
        if let Some(all) = self.remembered(claims) {
            return Ok(all);
        }
        let again = claims.iter().all(|claim| {
            self.world
                .known()
                .iter()
                .any(|known| known.claim.id == claim.id)
        });
        let sent = Moment::now();
        let asked: Vec<Claim> = claims.iter().map(|claim| self.asked(claim, sent)).collect();
        for (claim, asked) in claims.iter().zip(&asked) {
            self.remember(claim, asked, sent);
        }
        match self.world.memory().claim_all(&asked).await? {
            ClaimedAll::Granted(_) if again && self.is(Defect::RefusesItself) => {
                Ok(ClaimedAll::Busy(0, leasehold_core::Contention::unknown()))
            }
            ClaimedAll::Granted(grants) => Ok(claims
                .iter()
                .zip(grants)
                .map(|(claim, grant)| self.granted(claim, grant, sent))
                .collect()),
            ClaimedAll::Busy(at, mut who) => {
                claims.iter().for_each(|claim| drop(self.forget(claim.id)));
                self.unlabel(&mut who);
                Ok(ClaimedAll::Busy(
                    if self.is(Defect::NamesTheFirst) {
                        0
                    } else {
                        at
                    },
                    who,
                ))
            }
        }
    }

    async fn take_one_by_one(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        let mut answers = Vec::new();
        for claim in claims {
            answers.push(self.claim(claim).await?);
            tokio::task::yield_now().await;
        }
        let refused = answers
            .iter()
            .any(|answer| !matches!(answer, Claimed::Granted(_)));
        if refused && self.is(Defect::TakesOneByOne) {
            for claim in claims {
                self.release(claim, None).await?;
            }
        }
        Ok(answers.into_iter().collect())
    }
}
