//! Every event for `tracing`, in one place: target `leasehold`, with the lock's name and never a secret.
//!
//! Each event has the target `leasehold` and the name of the lock. No event has an id of a claim,
//! which on Redis would be enough to release it, or a credential. All of them are in one file, so
//! that this can be reviewed.
//!
//! Level `WARN` is for what costs locks or may soon: a loss, a renewal without an answer, renewals
//! that come late, a release that was given up. Level `DEBUG` is for the normal life of a lock.

use std::time::Duration;

use crate::seam::backend::Backend;
use crate::seam::claim::Claim;
use crate::seam::error::Error;
use crate::seam::grant::Waiting;
use crate::seam::loss::Loss;
use crate::seam::token::FencingToken;

pub(crate) fn store_warns(store: &dyn Backend, warning: &str) {
    tracing::warn!(target: "leasehold", ?store, "{warning}");
}

pub(crate) fn waiting(claim: &Claim, at: &Waiting) {
    tracing::debug!(target: "leasehold", lock = %claim.name, behind = %at.who, "waiting");
}

pub(crate) fn acquired(claim: &Claim, token: FencingToken, waited: Duration) {
    tracing::debug!(target: "leasehold", lock = %claim.name, %token, ?waited, "acquired");
}

pub(crate) fn claim_failed(claim: &Claim, error: &Error) {
    tracing::debug!(target: "leasehold", lock = %claim.name, %error, "claim failed, will be repeated");
}

pub(crate) fn renewal_unknown(claim: &Claim, error: &Error) {
    tracing::warn!(target: "leasehold", lock = %claim.name, %error, "renewal unanswered, will be repeated");
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

pub(crate) fn lost(claim: &Claim, loss: Loss) {
    tracing::warn!(target: "leasehold", lock = %claim.name, reason = %loss, "lock lost");
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
