//! The mistakes with floors and marks.

use leasehold_core::backend::TokenFloor;
use std::sync::atomic::Ordering;

use leasehold_core::backend::Claim;
use leasehold_core::{FencingToken, Result};

use crate::broken::Broken;
use crate::defect::Defect;

impl Broken {
    /// The floor that the store is told of.
    pub(crate) fn believed_floor(&self, claim: &Claim) -> Option<FencingToken> {
        let known = self.world.known();
        let first = known.iter().find(|k| k.claim.id == claim.id);
        match self.world.defect {
            Some(Defect::IgnoresFloors | Defect::ForgetsFloors) => None,
            Some(Defect::WaiterForgetsItsFloor) => {
                first.map_or(claim.floor, |first| first.claim.floor)
            }
            Some(Defect::RaisesAnyHoldAlike) if first.is_some() => None,
            _ => claim.floor,
        }
    }

    /// What a mistaken store says of a hold.
    pub(crate) fn mistaken_floor(&self, claim: &Claim, token: FencingToken) -> FencingToken {
        let waited = self.world.raised_past.lock().unwrap().contains(&claim.id);
        match (self.world.defect, claim.floor) {
            (Some(Defect::ForgetsFloors), Some(floor)) => token.max(floor),
            (Some(Defect::RaisesAnyHoldAlike), Some(floor)) => {
                let before = self
                    .with(claim.id, |mine| {
                        mine.grant.as_ref().map(|grant| grant.token)
                    })
                    .flatten();
                token.max(floor).max(before.unwrap_or(floor))
            }
            (Some(Defect::LateRequestLowers), Some(floor)) => floor,
            (Some(Defect::RaiseForgetsThoseWhoWait), _) if waited => {
                FencingToken::new(token.get() - self.world.raised.load(Ordering::Relaxed))
            }
            _ => token,
        }
    }

    pub(crate) async fn mark_of_it(&self) -> Result<FencingToken> {
        let mark = self.world.memory().mark().await?.get() + self.world.floor();
        let first = self
            .world
            .known()
            .iter()
            .filter_map(|k| k.grant.as_ref())
            .map(|grant| grant.token.get())
            .max();
        Ok(FencingToken::new(match self.world.defect {
            Some(Defect::MarksTheFirstTurn) => first.unwrap_or(mark),
            Some(Defect::RaiseLowers) => mark - self.world.lowered.load(Ordering::Relaxed),
            _ => mark,
        }))
    }

    pub(crate) async fn raise_it(&self, number: FencingToken) -> Result<()> {
        let before = self.world.raised.swap(number.get(), Ordering::Relaxed);
        self.world
            .lowered
            .fetch_add(before.saturating_sub(number.get()), Ordering::Relaxed);
        let waits = self
            .world
            .known()
            .iter()
            .filter(|k| k.waits)
            .map(|k| k.claim.id)
            .collect();
        *self.world.raised_past.lock().unwrap() = waits;
        self.world.memory().raise(self.counted(number)).await
    }
}
