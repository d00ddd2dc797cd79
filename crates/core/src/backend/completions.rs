//! The trait of stores that record completions, for [`Once`](crate::Once).

use async_trait::async_trait;

use crate::backend::claim::Claim;
use crate::backend::completion::{Complete, Completed, Completion};
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::name::Name;
use crate::backend::token::FencingToken;

/// A store that records completions. It returns itself from [`Backend::completions`](crate::backend::Backend::completions).
///
/// A claim with [`once`](Claim::once) asks for a lock under which work is done once. It is always
/// [`Exclusive`](crate::backend::Mode::Exclusive), and [`Fair`](crate::backend::WaitPolicy::Fair)
/// or [`Try`](crate::backend::WaitPolicy::Try). It shares the queue of its name with all other
/// claims, which ignore completions.
///
/// # Contract
///
/// **S19**, in parts. A completion *counts* for a claim whose fire is not greater than its own
/// ([`Completion::counts_for`]), until its keep has passed or it is forgotten.
///
/// - **Claims.** A [`claim`](crate::backend::Backend::claim) with `once` for which a completion counts answers
///   [`Claimed::Done`](crate::backend::Claimed::Done), and leaves no place in the queue. The
///   completion is read in the step that grants. A store in which the client decides who holds
///   reads it *after* its place is known to be the first. A claim that holds already, because a
///   release or an older client handed the lock over without a look at the completion, is answered
///   the same: its hold ends.
/// - **Hand-overs are hints.** Core begins no work on a pushed grant or on a renewal. It claims
///   again, and only the answer [`Granted`](crate::backend::Claimed::Granted) counts.
/// - **One step.** [`complete`](Completions::complete) checks the hold, writes the completion and
///   ends the hold in one step. A store without such a step writes the completion first, with the
///   hold checked in the same step. It compares the claim's id **and** the token: a hold that the
///   same claim took anew has another token.
/// - **Asked again**, it is answered by the completion itself, which has the claim's id: the same
///   answer, and nothing is extended. Another claim's completion is no answer: a hold for which one
///   counts is [`NotHeld`](Completed::NotHeld), and a completion that counts is never overwritten by
///   another claim's.
/// - **Waiters** for whom the completion counts are all notified at once
///   ([`Notifier::claim_again`](crate::backend::Notifier::claim_again)), not one after the other,
///   and each of them asks once. Their places may end with the completion. Those for whom it does
///   not count (locks, later fires) are served as after a release.
/// - **Tokens** of later grants exceed the completion's token, also after its keep (S3).
/// - **Durable as a grant.** A completion that was answered survives what a grant survives, and
///   what [`leasehold::guarantees`](https://docs.rs/leasehold/latest/leasehold/guarantees) says of
///   the store.
/// - **A late request** leaves nothing that it would not have left in time (S6): a late `complete`
///   of a hold that has ended records nothing, and a late claim after its completion leaves no
///   place.
/// - A completion that the store cannot read, or that a newer version has written, is
///   [`Internal`](ErrorKind::Internal) for a claim with `once`, and never ignored.
#[async_trait]
pub trait Completions: Send + Sync {
    /// Records that the work of this claim is done, and ends its hold.
    ///
    /// Core repeats it until it is answered, renews the hold meanwhile, and sends no release before
    /// the answer. The fire of the completion is that of the claim.
    ///
    /// # Errors
    ///
    /// S9 of [`Backend`](crate::backend::Backend): [`Unavailable`](ErrorKind::Unavailable) if surely nothing was recorded,
    /// [`Ambiguous`](ErrorKind::Ambiguous) if it may have been.
    async fn complete(&self, claim: &Claim, request: &Complete) -> Result<Completed>;

    /// Returns the completion of this name that has not ended, for whichever fire.
    async fn completion(&self, name: &Name) -> Result<Option<Completion>>;

    /// Removes the completion of this name with this token, and only that one. Returns whether
    /// there was one. The next claim begins the work anew.
    async fn forget(&self, name: &Name, token: FencingToken) -> Result<bool>;

    /// Lists completions of names under `prefix` that have not ended: in the order of the names'
    /// bytes, after `after`, at most `limit`.
    async fn list_completions(
        &self,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, Completion)>>;

    /// Returns the completion that a transaction of the program has recorded for the claim, with
    /// the token of its hold. Only for a store with
    /// [`Guarantees::once_in_transaction`](crate::Guarantees::once_in_transaction).
    ///
    /// # Contract
    ///
    /// It answers only when no transaction that has checked this hold is open any more;
    /// [`Ambiguous`](ErrorKind::Ambiguous) if one still is.
    async fn recorded(&self, _claim: &Claim, _token: FencingToken) -> Result<Option<Completion>> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "no transaction of this store can record a completion",
        ))
    }
}
