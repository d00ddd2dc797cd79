//! The contract of a store: a trait, with numbered clauses. Core calls, a store answers.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use auto_impl::auto_impl;

use crate::backend::claim::{Claim, LeaseRef, Place};
use crate::backend::clock::Clock;
use crate::backend::completions::Completions;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::grant::{Claimed, ClaimedAll, Renewal};
use crate::backend::guarantees::Guarantees;
use crate::backend::identity::StoreId;
use crate::backend::name::Name;
use crate::backend::notifier::{Notifier, Subscription};
use crate::backend::queue::LockQueue;
use crate::backend::token::FencingToken;
use crate::backend::token_floor::TokenFloor;

/// A store of leases. Three verbs that never wait for another client, notifications that only hint,
/// and one honest description.
///
/// A store knows only its server. Waiting, deadlines, retries, renewal cadence, validity, loss,
/// cancellation and re-entry are core's. Core bounds each call and may **drop a call's future at
/// any await**: the request may then still arrive, and clause S6 holds all the same.
///
/// # Contract
///
/// The clauses have numbers, by which the cases of the conformance suite name them. Each is stated
/// in full at the method that it binds. Two bind every method:
///
/// - **S8**: Names are encoded injectively: two names never interact.
/// - **S9**: Errors are honest: not executed is [`Unavailable`](ErrorKind::Unavailable), perhaps
///   executed is [`Ambiguous`](ErrorKind::Ambiguous), and neither a credential nor a claim's id is
///   shown. Each call ends in bounded time (a few seconds).
///
/// | # | Clause | Method |
/// |---|---|---|
/// | S1 | one step, idempotent per [`ClaimId`](crate::backend::ClaimId) | [`claim`](Backend::claim) |
/// | S2 | validity counts from before a send that surely extended | [`claim`](Backend::claim), [`renew`](Backend::renew) |
/// | S3 | tokens rise from grant to grant | [`claim`](Backend::claim) |
/// | S4 | a waiting place is a lease | [`claim`](Backend::claim), [`renew`](Backend::renew) |
/// | S5 | the order of waiters | [`claim`](Backend::claim) |
/// | S6 | no trace is left of a released claim | [`release`](Backend::release) |
/// | S7 | a missing answer is no loss | [`renew`](Backend::renew) |
/// | S8 | two names never interact | all |
/// | S9 | errors are honest, and calls end soon | all |
/// | S10 | one queue per name for all modes | [`claim`](Backend::claim) |
/// | S11 | an exclusive hold becomes shared in place | [`claim`](Backend::claim) |
/// | S12 | several claims in one step, or none | [`claim_all`](Backend::claim_all) |
/// | S13 | no late request shortens a lease | [`claim`](Backend::claim), [`renew`](Backend::renew) |
/// | S14 | a renewal answers for the hold's own entry | [`renew`](Backend::renew), [`evict`](Backend::evict) |
/// | S15 | a hold ends later, without its client | [`release_after`](Backend::release_after) |
/// | S16, S17 | tokens go on above those of another store | [`TokenFloor`], for stores under a bridge |
/// | S18 | a server of another store is not used | [`identity`](Backend::identity) |
/// | S19 | work is done once | [`Completions`], for stores that record completions |
#[async_trait]
#[auto_impl(Arc, Box)]
pub trait Backend: Send + Sync + Debug + 'static {
    /// Takes or keeps a place in the queue, in one step. It never waits for another holder.
    ///
    /// Core calls it for each attempt, each retry, each re-check of a waiter, each downgrade and
    /// each proclamation, always with the same id. A lost answer therefore needs no special
    /// treatment: the next claim finds what the lost one did.
    ///
    /// # Contract
    ///
    /// - **S1**: It is one step and **idempotent per [`ClaimId`](crate::backend::ClaimId)**: a lost
    ///   reply, a retry and a re-check are all *claim again*. Claiming again while granted answers
    ///   the same grant (same token) and stores the new label. Core sends another label only for a
    ///   granted claim, so the label of a waiting place never has to change.
    /// - **S2**: A grant's `since` lies before the send of a request that surely extended the
    ///   lease. A repeat that did not extend counts from the attempt that did; a session's grant
    ///   counts from its last proven renewal.
    /// - **S3**: For one name, the token of a later conflicting grant is strictly greater. It is
    ///   equal within one hold, however often it is claimed again.
    /// - **S4**: A waiting place is a lease: it, and a grant that grows from it, end one TTL after
    ///   the last renewal that the store saw. A repeated claim counts as one where the place has a
    ///   lease of its own, and need not where a session carries it. A dead waiter is skipped.
    /// - **S5**: `Fair` places are granted in the order in which the store took them. `Fast` never
    ///   passes a live `Fair` place. `Try` leaves nothing behind.
    /// - **S10**: There is one queue per name for all modes: a claim holds as
    ///   [`admit`](crate::backend::admit) decides. One whose count of permits differs from the
    ///   queue's is refused as [`same_permits`](crate::backend::same_permits) says; core withdraws
    ///   what it left.
    /// - **S11**: A granted `Exclusive` claimed again as `Shared` becomes `Shared` in place, with
    ///   the same token, and the readers that this admits are notified. No other claim changes a
    ///   mode: an `Exclusive` that comes late leaves it `Shared`.
    /// - **S13**: A lease **never gets shorter** by an older, late or repeated request: the server
    ///   keeps the latest end, and what was answered stays true. Only
    ///   [`release_after`](Backend::release_after) shortens one.
    async fn claim(&self, claim: &Claim) -> Result<Claimed>;

    /// Takes all of these claims in one step, or none.
    ///
    /// Core calls it for at least two and at most
    /// [`Guarantees::atomic_multi`](crate::Guarantees::atomic_multi) claims: all of them
    /// [`Exclusive`](crate::backend::Mode) tries with one TTL and label, of different names, in the
    /// order of their names. A store without such a step leaves it out; then core takes the names
    /// one after the other.
    ///
    /// # Contract
    ///
    /// - **S12**: It is **one step**: either every claim is granted, or the request changes
    ///   nothing, so that no client ever sees a part of them. It passes no other claim: a name in
    ///   whose queue a holder or a live waiter is before it is busy. It is idempotent per ids:
    ///   granted and sent again, it answers the same grants. S2, S3 and S6 hold for each of its
    ///   claims; after a refusal core withdraws what an earlier attempt of theirs may have left.
    async fn claim_all(&self, _claims: &[Claim]) -> Result<ClaimedAll> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "this store takes several names one after the other",
        ))
    }

    /// Renews places of holders and of waiters, in as few requests as the store allows.
    ///
    /// The answer has the same order and number as the question. `Err` means that nothing is known
    /// about any of them. Core has several of these calls under way side by side, each with at most
    /// [`renew_batch`](crate::backend::Backend::renew_batch) leases, those that end first before
    /// others. It asks again for what stays unanswered, and accepts a late answer all the same, for
    /// as long as a lease: one slow request must not end the leases that wait behind it.
    ///
    /// # Contract
    ///
    /// S2, S4 and S13 of [`claim`](Backend::claim) bind a renewal, too.
    ///
    /// - **S7**: It extends exactly what is still there. A missing answer is
    ///   [`Unknown`](Renewal::Unknown), never [`Lost`](Renewal::Lost); `Lost` is said only when the
    ///   store says so.
    /// - **S14**: It **answers for the hold's own entry**, not for the session, lease or file that
    ///   carries it: one that was deleted, restored from a backup or evicted at any moment is
    ///   `Lost` at the next renewal (or, where one of several servers has not heard of it yet, the
    ///   answer counts from before), also if a late request of its claim waits in its place. Each
    ///   lease carries the mode and the label that its claim has now: a store that writes a missing
    ///   entry again writes these, and another store may ignore them. A proof counts only if it
    ///   came from a server that may still decide: not from a former leader, nor under another
    ///   server's session limit.
    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>>;

    /// The greatest number of leases that core passes to one
    /// [`renew`](crate::backend::Backend::renew): small enough that the store answers soon, also
    /// when all leases of a client are due. `usize::MAX` for a store that renews a session, whose
    /// requests do not grow with the number of its leases.
    fn renew_batch(&self) -> usize {
        256
    }

    /// Withdraws a claim, whether it holds or waits.
    ///
    /// `place` is what the store answered last; `None` if it never did, because an answer was lost.
    /// Then the store finds the claim by its id.
    ///
    /// # Contract
    ///
    /// - **S6**: Afterwards no trace of the id is left, granted or waiting, and a late request of
    ///   the same id (of which an attempt stayed unanswered) leaves nothing that outlives one TTL.
    ///   It is idempotent and frees no other claim. The next waiter is notified.
    async fn release(&self, claim: &Claim, place: Option<&Place>) -> Result<()>;

    /// Lets a hold end `rest` from now without the help of this client: for a lock that is released
    /// within its `min_hold`. `rest` has a margin for the rates of both clocks.
    ///
    /// Core calls it only if
    /// [`Guarantees::min_hold_outlives_process`](crate::Guarantees::min_hold_outlives_process) is
    /// true. A store that cannot do it leaves it out, and core renews the hold until then instead.
    ///
    /// # Contract
    ///
    /// - **S15**: It is idempotent. Afterwards nothing renews the hold: it ends `rest` from now,
    ///   neither sooner nor later than the store's granularity, also if this client has gone.
    ///   [`release`](Backend::release) ends it before.
    async fn release_after(
        &self,
        _claim: &Claim,
        _place: Option<&Place>,
        _rest: Duration,
    ) -> Result<()> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "a hold of this store ends with its client",
        ))
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
    /// where the store can do it. The hold of another tool has no token. A store that can end it
    /// gives it a number in [`inspect`](Backend::inspect)
    /// ([`Participant::evict_by`](crate::Participant::evict_by)), so that exactly the hold that was
    /// seen is ended.
    ///
    /// # Contract
    ///
    /// The next renewal of the hold answers that it is lost, also if the eviction came before the
    /// answer to its claim (S14).
    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool>;

    /// Returns the guarantees of this store, as it is configured. Core asks once, when the store is
    /// made.
    fn guarantees(&self) -> Guarantees;

    /// The identity of the store that the servers belong to; `None` if it is not known, or if there
    /// can be no other store. See [`Identity`](crate::backend::Identity).
    ///
    /// # Contract
    ///
    /// It does not change once it is known, unless the store may lose it with all its data. A
    /// server with another identity grants, renews and ends nothing: requests to it fail with
    /// [`OtherStore`](crate::ErrorKind::OtherStore), and no hold is lost by its answers (S18).
    fn identity(&self) -> Option<StoreId> {
        None
    }

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
    /// another clock than the machine's.
    fn clock(&self) -> Clock {
        Clock::boot()
    }

    /// The store as one whose tokens can be raised above those of another store, for a bridge;
    /// `None` if they cannot. Core never asks. See [`TokenFloor`].
    fn token_floor(&self) -> Option<&dyn TokenFloor> {
        None
    }

    /// The store as one that records completions, for [`Once`](crate::Once); `None` if it does not.
    /// Its [`Guarantees::once`](crate::Guarantees::once) says the same. See [`Completions`].
    fn completions(&self) -> Option<&dyn Completions> {
        None
    }

    /// Ends the client: its sessions are closed, so locks that it still holds become free.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::claim::{Mode, WaitPolicy};

    /// A store with only the methods that every store must have.
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
        let claim = Claim::new(
            "a",
            Mode::Exclusive,
            WaitPolicy::Fair,
            Duration::from_secs(1),
            "me",
        );
        let refused = [
            Least.claim_all(std::slice::from_ref(&claim)).await.err(),
            Least
                .release_after(&claim, None, Duration::ZERO)
                .await
                .err(),
        ];
        for e in refused {
            assert_eq!(e.map(|e| e.kind()), Some(ErrorKind::Unsupported));
        }
        assert!(Least.token_floor().is_none() && Least.completions().is_none());
        assert!(Least.notifier().is_none() && !Least.observe(&Name::new("a")).is_pushed());
        assert!(Least.clock().is_same(&Clock::boot()) && Least.renew_batch() > 1);
        Least.close().await.unwrap();
    }
}
