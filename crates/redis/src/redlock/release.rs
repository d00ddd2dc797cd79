//! `release` and `release_after`: both are sent to every node, and the answers of a majority are
//! awaited.

use std::time::Duration;

use crate::link::{Call, granted_ttl};
use leasehold_core::Result;
use leasehold_core::backend::Claim;

use crate::redlock::Shared;
use crate::redlock::client::nodes::{await_later, each_answer};

/// The part of a claim that a release leaves. A release ends nothing that is claimed later.
#[derive(Clone, Copy)]
pub(crate) enum Leaves {
    /// No trace of the claim is left.
    Nothing = 0,
    /// The waiter is left.
    Waiter = 1,
    /// No trace of an attempt is left.
    NoAttempt = 2,
}

impl Shared {
    pub(crate) async fn release(&self, claim: &Claim) -> Result<()> {
        self.forget(claim.id);
        let call = self.call("release", claim).arg(Leaves::Nothing as u8);
        self.by_majority(call).await
    }

    pub(crate) async fn release_after(&self, claim: &Claim, rest: Duration) -> Result<()> {
        self.forget(claim.id);
        let number = self.nodes.list.number();
        let asked = self.ask_to_end(claim, rest).await;
        if asked.is_err() && self.nodes.list.number() != number {
            // The same nodes have another number now.
            return self.ask_to_end(claim, rest).await;
        }
        asked
    }

    async fn ask_to_end(&self, claim: &Claim, rest: Duration) -> Result<()> {
        let call = self
            .call("release_after", claim)
            .arg(granted_ttl(rest, Duration::from_millis(1)).as_millis());
        self.by_majority(call).await
    }

    /// Sends a call to every node, and awaits a majority that has done it.
    async fn by_majority(&self, call: Call) -> Result<()> {
        let mut requests = self.nodes.send(call);
        let mut done = 0;
        let mut failed = Vec::new();
        each_answer(&mut requests, |nth, answer| {
            match answer.and_then(|answer| self.nodes.record(nth, &answer)) {
                Ok(_) => done += 1,
                Err(e) => failed.push((nth, e)),
            }
            done >= self.nodes.majority()
        })
        .await;
        await_later(requests);
        if done >= self.nodes.majority() {
            return Ok(());
        }
        Err(self.nodes.failure(failed))
    }
}
