//! Every event for `tracing`, in one place: target `leasehold`, with the lock's name and never a secret.
//!
//! Each event has the target `leasehold` and, where there is one, the name of the lock. No event has an id of a claim,
//! which on Redis would be enough to release it, or a credential. All of them are in one file, so
//! that this can be reviewed.
//!
//! Level `WARN` is for what costs locks or may soon: a loss, an outage in which renewals stay
//! unanswered, renewals that come late, a release that was given up, a grant that was not taken.
//! Level `DEBUG` is for the normal life of a lock. Each end of a hold is one event with its reason,
//! emitted by the first party that sees it. An outage is two events, one when it begins and one
//! with a count when it ends: a line for each failed request would hide everything else.

use std::time::Duration;

use crate::backend::claim::Claim;
use crate::backend::contract::Backend;
use crate::backend::error::Error;
use crate::backend::grant::Waiting;
use crate::backend::loss::Loss;
use crate::backend::token::FencingToken;

pub(crate) fn store_warns(store: &dyn Backend, warning: &str) {
    tracing::warn!(target: "leasehold", ?store, "{warning}");
}

/// The store is away while a program connects, which waits for it.
pub(crate) fn store_away(error: &Error) {
    tracing::warn!(target: "leasehold", %error, "the store is not available, connecting will be repeated");
}

/// The store has come, after so many attempts to connect.
pub(crate) fn store_there(failures: usize, lasted: Duration) {
    tracing::warn!(target: "leasehold", failures, ?lasted, "the store is available now");
}

pub(crate) fn waiting(claim: &Claim, at: &Waiting) {
    tracing::debug!(target: "leasehold", lock = %claim.name, behind = %at.who, "waiting");
}

pub(crate) fn acquired(claim: &Claim, token: FencingToken, waited: Duration) {
    tracing::debug!(target: "leasehold", lock = %claim.name, %token, ?waited, "acquired");
}

/// The first failure of several.
pub(crate) fn claim_failed(claim: &Claim, error: &Error) {
    tracing::debug!(target: "leasehold", lock = %claim.name, %error, "claim failed, will be repeated");
}

/// The claim was answered after `failures` failures, of which only the first was reported.
pub(crate) fn claim_answered(claim: &Claim, failures: u32, lasted: Duration) {
    tracing::debug!(target: "leasehold", lock = %claim.name, failures, ?lasted, "claim answered after failures");
}

/// An outage begins: the renewals of `claims` claims are unanswered. Further unanswered requests
/// are only counted until it ends.
pub(crate) fn renewals_unanswered(claim: &Claim, claims: usize, error: &Error) {
    tracing::warn!(target: "leasehold", lock = %claim.name, claims, %error, "renewal unanswered, will be repeated");
}

pub(crate) fn renewals_answered(claim: &Claim, requests: usize, lasted: Duration) {
    tracing::warn!(
        target: "leasehold", lock = %claim.name, requests, ?lasted,
        "renewals are answered again"
    );
}

/// Another task of this process continues under the same claim.
pub(crate) fn passed(claim: &Claim, token: FencingToken) {
    tracing::debug!(target: "leasehold", lock = %claim.name, %token, "released, and passed to another task of this process");
}

/// The ceiling is near: with more holds, or a slower store, the next events are losses.
pub(crate) fn renewals_slow(claim: &Claim, holds: usize, took: Duration, ttl: Duration) {
    tracing::warn!(
        target: "leasehold", lock = %claim.name, holds, ?took, ?ttl,
        "a renewal took longer than a third of its lease: too many holds, a slow store or a busy runtime"
    );
}

pub(crate) fn lapses(claim: &Claim) {
    tracing::debug!(target: "leasehold", lock = %claim.name, "released, with effect at the end of its min_hold");
}

/// `cause` is the error of the failed renewal, if it is known.
pub(crate) fn lost(claim: &Claim, loss: Loss, cause: Option<&Error>) {
    let cause = cause.map(tracing::field::display);
    tracing::warn!(target: "leasehold", lock = %claim.name, reason = %loss, cause, "lock lost");
}

/// The acquire was not polled, and others were kept out for nothing.
pub(crate) fn given_back(claim: &Claim) {
    tracing::warn!(
        target: "leasehold", lock = %claim.name,
        "granted, and given back: the acquire was neither polled nor dropped"
    );
}

pub(crate) fn released(claim: &Claim) {
    tracing::debug!(target: "leasehold", lock = %claim.name, "released");
}

pub(crate) fn release_unknown(claim: &Claim, error: &Error) {
    tracing::debug!(target: "leasehold", lock = %claim.name, %error, "release unanswered, will be repeated");
}

pub(crate) fn release_given_up(claim: &Claim) {
    tracing::warn!(target: "leasehold", lock = %claim.name, "release unanswered until its lease had run out");
}

pub(crate) fn release_refused(claim: &Claim, error: &Error) {
    tracing::warn!(target: "leasehold", lock = %claim.name, %error, "release refused, the lease will run out");
}

pub(crate) fn completed(claim: &Claim, token: FencingToken) {
    tracing::debug!(target: "leasehold", lock = %claim.name, %token, "completed");
}

pub(crate) fn completion_unknown(claim: &Claim, error: &Error) {
    tracing::warn!(target: "leasehold", lock = %claim.name, %error, "completion unanswered, will be repeated");
}

pub(crate) fn completion_given_up(claim: &Claim, error: &Error) {
    tracing::warn!(target: "leasehold", lock = %claim.name, %error, "the work has ended, and its completion is not known to be recorded");
}
