//! Completing: the work under a hold has ended, and the store is asked to record that it is done.
//!
//! A completion that is given up too early undoes finished work: the next client does it again. So
//! it is repeated until it is answered, for one TTL beyond the end of the lease, and the keeper
//! repeats it when the caller has left. Meanwhile the hold is renewed, and no release is sent.
//!
//! An answer says what happened to this request, and not to an earlier one that stayed unanswered:
//! that one may have been executed, and its completion forgotten since. The error is then
//! [`Ambiguous`](ErrorKind::Ambiguous), never [`Lost`](ErrorKind::Lost).

use std::sync::Arc;
use std::time::Duration;

use crate::backend::claim::Claim;
use crate::backend::clock::{Clock, Moment};
use crate::backend::completion::{Complete, Completed, Completion};
use crate::backend::completions::Completions;
use crate::backend::contract::Backend;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::loss::Loss;
use crate::backend::token::FencingToken;
use crate::engine::backoff::Backoff;
use crate::engine::claim_state::ClaimState;
use crate::engine::events;

/// The time that is waited for the answer to one request before it is sent again.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The question by which work is completed.
#[derive(Clone)]
pub(crate) enum Ending {
    /// Record that the work is done.
    Complete(Arc<Complete>),
    /// Has a transaction of the program recorded it, under the hold with this token?
    Recorded(FencingToken),
}

/// A completion on its way.
#[derive(Clone)]
pub(crate) struct Completing {
    ending: Ending,
    /// The moment until which the store is asked.
    until: Moment,
}

impl Completing {
    pub(crate) fn new(ending: Ending, state: &ClaimState, now: Moment) -> Completing {
        Completing {
            ending,
            until: state.lease_until().unwrap_or(now).max(now) + state.ttl(),
        }
    }

    /// Asks the store until it answers, or until the end of the time for it.
    pub(crate) async fn ask(
        &self,
        backend: &dyn Backend,
        clock: &Clock,
        claim: &Claim,
        mut backoff: Backoff,
    ) -> Result<Completion> {
        let Some(completions) = backend.completions() else {
            return Err(unsupported());
        };
        // An earlier request stayed unanswered, or may have been executed.
        let mut doubt = false;
        let mut failed: Option<Error> = None;
        loop {
            let now = clock.now();
            let answer = tokio::select! {
                biased;
                answer = self.ending.ask(completions, claim) => answer,
                () = clock.sleep_until(self.until.min(now + ANSWER_WITHIN)) => {
                    Err(Error::new(ErrorKind::Ambiguous, "the store did not answer in time"))
                }
            };
            let e = match answer {
                Ok(Completed::Done(completion)) => return Ok(completion),
                Ok(Completed::NotHeld) if !self.ending.writes() => return Err(not_recorded()),
                Ok(Completed::NotHeld) if doubt => return Err(in_doubt(failed)),
                Ok(Completed::NotHeld) => return Err(Error::lost(Loss::Gone)),
                Err(e) => e,
            };
            // An answer that is missing says nothing about a transaction.
            doubt |= e.kind().may_have_been_executed() || !self.ending.writes();
            let is_over = clock.now() >= self.until;
            if e.kind().is_final() || is_over {
                return Err(if doubt { in_doubt(Some(e)) } else { e });
            }
            if failed.is_none() {
                events::completion_unknown(claim, &e);
            }
            failed = Some(e);
            let pause = clock.now() + backoff.next();
            clock.sleep_until(pause.min(self.until)).await;
        }
    }
}

impl Ending {
    fn writes(&self) -> bool {
        matches!(self, Ending::Complete(_))
    }

    async fn ask(&self, completions: &dyn Completions, claim: &Claim) -> Result<Completed> {
        match self {
            Ending::Complete(request) => completions.complete(claim, request).await,
            Ending::Recorded(token) => {
                let recorded = completions.recorded(claim, *token).await?;
                Ok(recorded.map_or(Completed::NotHeld, Completed::Done))
            }
        }
    }
}

fn not_recorded() -> Error {
    let why = "the work has ended, and no transaction has recorded that it is done: execute the store's statement in it, and commit it";
    Error::new(ErrorKind::Invalid, why)
}

/// The error of a store that records no completions.
pub(crate) fn unsupported() -> Error {
    let why = "this store keeps no record of work that is done, so it cannot do work once";
    Error::new(ErrorKind::Unsupported, why)
}

fn in_doubt(cause: Option<Error>) -> Error {
    let why = "the work has ended, and it is not known whether the store has recorded that";
    let e = Error::new(ErrorKind::Ambiguous, why);
    match cause {
        Some(cause) => e.with_source(cause),
        None => e,
    }
}
