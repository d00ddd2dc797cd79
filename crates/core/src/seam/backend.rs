//! THE SEAM: what a store must do, as numbered clauses. Core drives; a store answers.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

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
/// | S1 | `claim` is one step and **idempotent per [`ClaimId`](crate::seam::ClaimId)**: a lost reply, a retry and a re-check are all *claim again*. Claiming again while granted answers the same grant (same token) and stores the new label. |
/// | S2 | A grant's `since` lies before the send of a request that surely extended the lease. A repeat that did not extend counts from the attempt that did; a session's grant counts from its last proven renewal. |
/// | S3 | For one name, the token of a later conflicting grant is strictly greater; equal within one hold, however often it is claimed again. |
/// | S4 | A waiting place is a lease: it, and a grant that grows from it, end TTL after the last renewal that the store saw; a repeated claim counts as one where the place has a lease of its own, and need not where a session carries it. A dead waiter is skipped. |
/// | S5 | `Fair` places are granted in the order in which the store took them. `Fast` never passes a live `Fair` place. `Try` leaves nothing behind. |
/// | S6 | After `release` no trace of the id is left, granted or waiting, and a late request of the same id (of which an attempt stayed unanswered) leaves nothing that outlives one TTL. It is idempotent and frees nobody else. The next waiter is notified. |
/// | S7 | `renew` extends exactly what is still there. A missing answer is `Unknown`, never `Lost`; `Lost` is said only when the store says so. |
/// | S8 | Names are encoded injectively: two names never interact. |
/// | S9 | Errors are honest: not executed = `Unavailable`, perhaps executed = `Ambiguous`, and neither a credential nor a claim's id is shown. Each call ends in bounded time (a few seconds). |
/// | S10 | One line per name for all modes: a claim holds as [`admit`](crate::seam::admit) decides. One whose count of permits differs from the line's is refused as [`same_permits`](crate::seam::same_permits) says; core withdraws what it left. |
/// | S11 | A granted `Exclusive` claimed again as `Shared` becomes `Shared` in place: same token, and whoever that admits is notified. No other claim changes a mode: an `Exclusive` that comes late leaves it `Shared`. |
/// | S12 | `claim_all` is **one step**: either every claim is granted, or the request changes nothing, so that nobody ever sees a part of them. It passes nobody: a name in whose line anybody stands before it, holder or live waiter, is busy. It is idempotent per ids: granted and sent again, it answers the same grants. S2, S3 and S6 hold for each of its claims; after a refusal core withdraws what an earlier attempt of theirs may have left. |
/// | S13 | A lease **never gets shorter** by an older, late or repeated request: the server keeps the latest end, and what was answered stays true. Only `release_after` shortens one. |
/// | S14 | `renew` **answers for the hold's own entry**, not for the session, lease or file that carries it: one that was deleted, restored from a backup or evicted at any moment is `Lost` at the next renewal. It carries the claim as it is now (mode, label), so an entry that is put back is put back like that. A proof counts only if it came from who may still decide: not from a former leader, nor under another server's session limit. |
/// | S15 | After `release_after` nothing renews the hold: it ends that long from now, neither sooner nor later than the store's granularity, also if this client has gone. `release` ends it before. |
#[async_trait]
pub trait Backend: Send + Sync + Debug + 'static {
    /// Takes or keeps a place, in one step (S1–S5). Never waits for another holder.
    async fn claim(&self, claim: &Claim) -> Result<Claimed>;

    /// Takes all of these, in one step, or none (S12). Core calls it only for as many claims as
    /// [`Guarantees::atomic_multi`] says, and for no fewer than two: all [`Exclusive`](crate::seam::Mode) and
    /// [`Try`](crate::seam::WaitPolicy), with one TTL and label, of different names in their order. A store without such a step leaves it out.
    async fn claim_all(&self, _claims: &[Claim]) -> Result<ClaimedAll> {
        Err(Error::new(ErrorKind::Unsupported, "this store takes several names one after the other"))
    }

    /// Renews granted and waiting places alike (S7), in as few requests as the store allows. Answers in the same order and
    /// number. `Err` means that all are unknown. Core has several of these under way side by side, each of at most
    /// [`renew_batch`](Backend::renew_batch) leases, those that end first before others. It asks again for what stays
    /// unanswered, and takes in a late answer all the same, for as long as a lease.
    async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>>;

    /// How many leases one [`renew`](Backend::renew) may bring: so few that it is answered soon, also when all of a client's
    /// are due. `usize::MAX` for a store that renews a session, whose requests do not grow with the number of its leases.
    fn renew_batch(&self) -> usize {
        256
    }

    /// Withdraws a claim (S6). `place` is what the store last answered, `None` if it never did.
    async fn release(&self, claim: &Claim, place: Option<&Place>) -> Result<()>;

    /// Lets a hold lapse `rest` from now without this client's help (S15): a lock that is given back within its `min_hold`.
    /// Idempotent. Core calls it only if [`Guarantees::min_hold_outlives_process`] says so; a store that cannot leaves it out,
    /// and core renews the hold until then instead.
    async fn release_after(&self, _claim: &Claim, _place: Option<&Place>, _rest: Duration) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "a hold of this store ends with its client"))
    }

    /// Who holds and who waits.
    async fn inspect(&self, name: &Name) -> Result<LockQueue>;

    /// Names under `prefix` that are held or waited for, in byte order, after `after`, at most `limit`.
    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>>;

    /// Ends the hold with this token (any of its turns), and only that one; says whether there was one. The evicted holder
    /// is notified by `lost` with [`Loss::Evicted`](crate::Loss::Evicted) where the store can. Token 0 is no hold's of ours: it ends what
    /// another tool holds, where the store can tell that.
    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool>;

    /// What this store, configured like this, really gives.
    fn guarantees(&self) -> Guarantees;

    /// The registry that this store notifies. Without one, core asks again by itself.
    fn notifier(&self) -> Option<&Notifier> {
        None
    }

    /// While what it returns lives, [`Notifier::holder_changed`] is called for this name: once as soon as the store listens, and then
    /// whenever its holder, or the holder's label, may have changed. A hint: core looks from time to time all the same.
    fn observe(&self, _name: &Name) -> Subscription {
        Subscription::none()
    }

    /// The clock that this store's leases are compared with.
    fn clock(&self) -> Clock {
        Clock::boot()
    }

    /// Ends the client: sessions are closed, so whatever is still held is free.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

macro_rules! forward {
    ($pointer:ty) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<B: Backend + ?Sized> Backend for $pointer {
            async fn claim(&self, claim: &Claim) -> Result<Claimed> {
                (**self).claim(claim).await
            }
            async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
                (**self).claim_all(claims).await
            }
            async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
                (**self).renew(leases).await
            }
            fn renew_batch(&self) -> usize {
                (**self).renew_batch()
            }
            async fn release(&self, claim: &Claim, place: Option<&Place>) -> Result<()> {
                (**self).release(claim, place).await
            }
            async fn release_after(&self, claim: &Claim, place: Option<&Place>, rest: Duration) -> Result<()> {
                (**self).release_after(claim, place, rest).await
            }
            async fn inspect(&self, name: &Name) -> Result<LockQueue> {
                (**self).inspect(name).await
            }
            async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
                (**self).list(prefix, after, limit).await
            }
            async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
                (**self).evict(name, token).await
            }
            fn guarantees(&self) -> Guarantees {
                (**self).guarantees()
            }
            fn notifier(&self) -> Option<&Notifier> {
                (**self).notifier()
            }
            fn observe(&self, name: &Name) -> Subscription {
                (**self).observe(name)
            }
            fn clock(&self) -> Clock {
                (**self).clock()
            }
            async fn close(&self) -> Result<()> {
                (**self).close().await
            }
        }
    };
}

forward!(Arc<B>);
forward!(Box<B>);
