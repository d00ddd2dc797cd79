//! What a scripted store may answer.

use std::time::SystemTime;

use leasehold_core::backend::{
    Claim, Claimed, ClaimedAll, Grant, LeaseRef, Moment, Place, Renewal, Validity, Waiting,
};
use leasehold_core::{Completion, Contention, Error, ErrorKind, FencingToken, Result};

fn place(claim: &Claim) -> Place {
    Place::new(format!("at {}", claim.name))
}

pub(crate) fn granted(claim: &Claim, token: u64) -> Claimed {
    Claimed::Granted(Grant::new(
        place(claim),
        FencingToken::new(token),
        claim.ttl,
    ))
}

/// All of them, from this token on.
pub(crate) fn all_granted(claims: &[Claim], first: u64) -> ClaimedAll {
    claims
        .iter()
        .zip(first..)
        .map(|(claim, token)| granted(claim, token))
        .collect()
}

pub(crate) fn granted_since(claim: &Claim, token: u64, since: Moment) -> Claimed {
    let validity = Validity::since(since, claim.ttl);
    Claimed::Granted(Grant::new(place(claim), FencingToken::new(token), validity))
}

pub(crate) fn waiting(claim: &Claim) -> Claimed {
    Claimed::Waiting(Waiting::new(place(claim), Contention::by("the holder")))
}

/// The nth claim's grant for a `fast` lock: sixty-four turns, none of which an earlier one had.
pub(crate) fn turns(claim: &Claim, n: usize) -> Claimed {
    let Claimed::Granted(grant) = granted(claim, 1 + 64 * n as u64) else {
        unreachable!()
    };
    Claimed::Granted(grant.turns(64))
}

/// All of them are renewed.
pub(crate) fn renewed(all: &[LeaseRef]) -> Vec<Renewal> {
    all.iter()
        .map(|lease| Renewal::Renewed(lease.claim.ttl.into()))
        .collect()
}

/// The completion of this token's work, by this claim.
pub(crate) fn completion(claim: &Claim, token: FencingToken) -> Completion {
    let mut completion = Completion::new(token, claim.label.clone(), SystemTime::UNIX_EPOCH);
    completion.fire = claim.once.unwrap();
    completion
}

pub(crate) fn error<T>(kind: ErrorKind) -> Result<T> {
    Err(Error::new(kind, "says the script"))
}
