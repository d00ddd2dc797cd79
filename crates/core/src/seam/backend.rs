//! THE SEAM: what a store must do, as numbered clauses. Core drives; a store answers.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use auto_impl::auto_impl;

use crate::seam::claim::{Claim, LeaseRef, Place};
use crate::seam::clock::Clock;
use crate::seam::error::{Error, ErrorKind, Result};
use crate::seam::grant::{Claimed, ClaimedAll, Renewal};
use crate::seam::guarantees::Guarantees;
use crate::seam::name::Name;
use crate::seam::notifier::{Notifier, Subscription};
use crate::seam::queue::LockQueue;
use crate::seam::token::FencingToken;

/// A store of leases. Three verbs that never wait for another client, notifications that only hint, one honest description.
///
/// A store knows only its server. Waiting, deadlines, retries, renewal cadence, validity, loss, cancellation and re-entry
/// are core's. Core bounds each call and may **drop a call's future at any await**: the request may then still arrive, and
/// clause S6 holds all the same.
///
/// | # | Clause |
/// |---|---|
/// | S1 | `claim` is one step and **idempotent per [`ClaimId`](crate::seam::ClaimId)**: a lost reply, a retry and a re-check are all *claim again*. Claiming again while granted answers the same grant (same token) and stores the new label. Core changes the label of a granted claim only: a waiting place may keep the label of its first request. |
/// | S2 | A grant's `since` lies before the send of a request that surely extended the lease. A repeat that did not extend counts from the attempt that did; a session's grant counts from its last proven renewal. |
/// | S3 | For one name, the token of a later conflicting grant is strictly greater; equal within one hold, however often it is claimed again. |
/// | S4 | A waiting place is a lease: it, and a grant that grows from it, end TTL after the last renewal that the store saw; a repeated claim counts as one where the place has a lease of its own, and need not where a session carries it. A dead waiter is skipped. |
/// | S5 | `Fair` places are granted in the order in which the store took them. `Fast` never passes a live `Fair` place. `Try` leaves nothing behind. |
/// | S6 | After `release` no trace of the id is left, granted or waiting, and a late request of the same id (of which an attempt stayed unanswered) leaves nothing that outlives one TTL. It is idempotent and frees no other claim. The next waiter is notified. |
/// | S7 | `renew` extends exactly what is still there. A missing answer is `Unknown`, never `Lost`; `Lost` is said only when the store says so. |
/// | S8 | Names are encoded injectively: two names never interact. |
/// | S9 | Errors are honest: not executed = `Unavailable`, perhaps executed = `Ambiguous`, and neither a credential nor a claim's id is shown. Each call ends in bounded time (a few seconds). |
/// | S10 | One queue per name for all modes: a claim holds as [`admit`](crate::seam::admit) decides. One whose count of permits differs from the queue's is refused as [`same_permits`](crate::seam::same_permits) says; core withdraws what it left. |
/// | S11 | A granted `Exclusive` claimed again as `Shared` becomes `Shared` in place: same token, and the readers that this admits are notified. No other claim changes a mode: an `Exclusive` that comes late leaves it `Shared`. |
/// | S12 | `claim_all` is **one step**: either every claim is granted, or the request changes nothing, so that no client ever sees a part of them. It passes no other claim: a name in whose queue a holder or a live waiter is before it is busy. It is idempotent per ids: granted and sent again, it answers the same grants. S2, S3 and S6 hold for each of its claims; after a refusal core withdraws what an earlier attempt of theirs may have left. |
/// | S13 | A lease **never gets shorter** by an older, late or repeated request: the server keeps the latest end, and what was answered stays true. Only `release_after` shortens one. |
/// | S14 | `renew` **answers for the hold's own entry**, not for the session, lease or file that carries it: one that was deleted, restored from a backup or evicted at any moment is `Lost` at the next renewal (or, where one of several servers has not heard of it yet, the answer counts from before), also if a late request of its claim waits in its place. Each lease carries the mode and the label that its claim has now: a store that writes a missing entry again writes these, and another store may ignore them. A proof counts only if it came from a server that may still decide: not from a former leader, nor under another server's session limit. |
/// | S15 | After `release_after` nothing renews the hold: it ends that long from now, neither sooner nor later than the store's granularity, also if this client has gone. `release` ends it before. |
/// | S16 | A grant to a claim with a [`floor`](crate::seam::Claim) has at least that token, and each later conflicting one is greater than all of its turns. A hold that has a smaller one is **raised**, never lowered, and the answer says what it is now; a hold that excludes all others is raised to the floor itself. Until the hold ends, `evict` and a fence know it by that token. A waiter keeps the greatest floor of its requests. Where [`raises`](crate::Guarantees::raises) is `Places`, the token of a place stays as it is, and a smaller one is answered; where it is `No`, a floor changes nothing. One beyond the store's limit is `Invalid`, and changes nothing. |
/// | S17 | After `raise(number)` was answered, each place of any name that is taken from then on is granted with a token greater than `number`; where `raises` is `Holds`, so is each waiter that is granted from then on. It lowers nothing, also if it comes late or again, and lives as long as the order of tokens does. `mark` is at least as great as every token, of all turns of all names, that was granted before it was asked for. |
#[async_trait]
#[auto_impl(Arc, Box)]
pub trait Backend: Send + Sync + Debug + 'static {
    /// Takes or keeps a place in the queue, in one step (S1–S5). It never waits for another holder.
    ///
    /// Core calls it for each attempt, each retry, each re-check of a waiter, each downgrade and
    /// each proclamation, always with the same id. So a lost answer needs no special treatment: the
    /// next claim finds what the lost one did.
    async fn claim(&self, claim: &Claim) -> Result<Claimed>;

    /// Takes all of these claims in one step, or none (S12).
    ///
    /// Core calls it for at least two and at most
    /// [`Guarantees::atomic_multi`](crate::Guarantees::atomic_multi) claims: all of them
    /// [`Exclusive`](crate::seam::Mode) tries with one TTL and label, of different names, in the
    /// order of their names. A store without such a step leaves it out; then core takes the names
    /// one after the other.
    async fn claim_all(&self, _claims: &[Claim]) -> Result<ClaimedAll> {
        Err(Error::new(ErrorKind::Unsupported, "this store takes several names one after the other"))
    }

    /// Renews places of holders and of waiters (S7), in as few requests as the store allows.
    ///
    /// The answer has the same order and number as the question. `Err` means that nothing is known
    /// about any of them. Core has several of these calls under way side by side, each with at most
    /// [`renew_batch`](crate::seam::Backend::renew_batch) leases, those that end first before
    /// others. It asks again for what stays unanswered, and accepts a late answer all the same, for
    /// as long as a lease: one slow request must not end the leases that wait behind it.
    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>>;

    /// How many leases one [`renew`](crate::seam::Backend::renew) may bring: so few that it is
    /// answered soon, also when all leases of a client are due. `usize::MAX` for a store that
    /// renews a session, whose requests do not grow with the number of its leases.
    fn renew_batch(&self) -> usize {
        256
    }

    /// Withdraws a claim (S6), whether it holds or waits.
    ///
    /// `place` is what the store answered last; `None` if it never did, because an answer was lost.
    /// Then the store finds the claim by its id.
    async fn release(&self, claim: &Claim, place: Option<&Place>) -> Result<()>;

    /// Lets a hold end `rest` from now without the help of this client (S15): for a lock that is
    /// released within its `min_hold`. `rest` has a margin for the rates of both clocks.
    ///
    /// It is idempotent. Core calls it only if
    /// [`Guarantees::min_hold_outlives_process`](crate::Guarantees::min_hold_outlives_process) is
    /// true. A store that cannot do it leaves it out, and core renews the hold until then instead.
    async fn release_after(&self, _claim: &Claim, _place: Option<&Place>, _rest: Duration) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "a hold of this store ends with its client"))
    }

    /// Reads the queue of one name.
    async fn inspect(&self, name: &Name) -> Result<LockQueue>;

    /// Lists the names under `prefix` that are held or waited for: in the order of their bytes,
    /// after `after`, at most `limit`.
    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>>;

    /// Ends the hold with this token (of any of its turns), and only that one. Returns whether
    /// there was one.
    ///
    /// The evicted holder is notified of the loss, with [`Loss::Evicted`](crate::Loss::Evicted),
    /// where the store can do it. Token 0 belongs to no hold of Leasehold: it ends what another
    /// tool holds, where the store can tell that.
    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool>;

    /// A number that no token exceeds which this store has granted so far, of whatever name (S17).
    ///
    /// Core never asks. It is for those who move from this store to another one.
    async fn mark(&self) -> Result<FencingToken> {
        Err(Error::new(ErrorKind::Unsupported, "this store does not say how far its tokens are"))
    }

    /// From now on tokens are greater than `number`, of all names (S17).
    ///
    /// Core never asks. It is for those who move to this store from another one, whose
    /// [`mark`](crate::seam::Backend::mark) it is. A number above the limit of
    /// [`raises`](crate::Guarantees::raises) is [`Invalid`](ErrorKind::Invalid).
    async fn raise(&self, _number: FencingToken) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "the tokens of this store cannot be raised"))
    }

    /// What this store gives, as it is configured. Core asks once, when the store is made.
    fn guarantees(&self) -> Guarantees;

    /// The registry through which this store notifies core. Without one, core polls.
    fn notifier(&self) -> Option<&Notifier> {
        None
    }

    /// Watches a name for observers, as long as the returned value lives.
    ///
    /// The store notifies of the name once as soon as it listens, and then whenever its holder, or
    /// the holder's label, may have changed. It is a hint: core also reads from time to time.
    fn observe(&self, _name: &Name) -> Subscription {
        Subscription::none()
    }

    /// The clock with which the leases of this store are compared. Only a store for tests returns
    /// another one than the machine's.
    fn clock(&self) -> Clock {
        Clock::boot()
    }

    /// Ends the client: its sessions are closed, so what is still held is free.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seam::claim::{Mode, WaitPolicy};

    /// A store that only has what every store must have.
    #[derive(Debug)]
    struct Least;

    #[async_trait]
    impl Backend for Least {
        async fn claim(&self, _: &Claim) -> Result<Claimed> {
            Err(Error::closed())
        }
        async fn renew(&self, _: &[LeaseRef]) -> Result<Vec<Renewal>> {
            Err(Error::closed())
        }
        async fn release(&self, _: &Claim, _: Option<&Place>) -> Result<()> {
            Err(Error::closed())
        }
        async fn inspect(&self, _: &Name) -> Result<LockQueue> {
            Err(Error::closed())
        }
        async fn list(&self, _: &str, _: Option<&Name>, _: usize) -> Result<Vec<Name>> {
            Err(Error::closed())
        }
        async fn evict(&self, _: &Name, _: FencingToken) -> Result<bool> {
            Err(Error::closed())
        }
        fn guarantees(&self) -> Guarantees {
            Guarantees::none("least")
        }
    }

    #[tokio::test]
    async fn what_a_store_leaves_out_is_refused_and_polled_for() {
        let claim = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, Duration::from_secs(1), "me");
        let refused = [
            Least.claim_all(std::slice::from_ref(&claim)).await.err(),
            Least.release_after(&claim, None, Duration::ZERO).await.err(),
            Least.mark().await.err(),
            Least.raise(FencingToken::new(1)).await.err(),
        ];
        for e in refused {
            assert_eq!(e.map(|e| e.kind()), Some(ErrorKind::Unsupported));
        }
        assert!(Least.notifier().is_none() && !Least.observe(&Name::new("a")).is_pushed());
        assert!(Least.clock().is_same(&Clock::boot()) && Least.renew_batch() > 1);
        Least.close().await.unwrap();
    }
}
