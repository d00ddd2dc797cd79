//! Work that is done once: a distributed `OnceCell` whose body runs under a lock, and whose
//! completion outlives it.
//!
//! A lock alone does not do a job once. A fast job has released its lock before a late machine
//! tries, and replicas that wait for a migration's lock would run the migration one after the other.
//! Here the step that ends the hold records that the work is done, and whoever comes for the lock
//! afterwards is told so in place of a grant.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::api::held::{Held, view_methods};
use crate::api::lock::Lock;
use crate::backend::claim::{Claim, WaitPolicy};
use crate::backend::completion::{Completion, Keep, MAX_RESULT_BYTES};
use crate::backend::contention::Contention;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::name::Name;
use crate::backend::token::FencingToken;
use crate::engine::acquire::{Acquired, acquire};
use crate::engine::completing::unsupported;
use crate::engine::hold::{Hold, Share};
use crate::engine::local_once::{Leader, Stood};
use crate::engine::wait::Wait;
use crate::support::locked;
use crate::support::sync::Mutex;

/// The longest time for which a completion is kept, unless it is kept for ever: 100 years.
pub const MAX_KEEP: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Work of one name that is done once, in all processes of all machines that use the store.
///
/// [`run`](Once::run) runs a body under the lock of the name. When the body has returned `Ok`, the
/// store records in one step that the work is done, and ends the hold. Each client that comes later,
/// or that waited, is told so and runs nothing, until the record ends ([`keep`](Once::keep)) or is
/// [forgotten](Once::forget). If the body returns `Err`, panics, is dropped, or loses the lock,
/// nothing is recorded, and the next client runs its own.
///
/// # What it promises
///
/// - No two bodies of a name run at once under valid holds, as with any [`Lock`](crate::Lock).
/// - No body begins after somebody was told that the work is done, as long as the store keeps its
///   data. [`leasehold::guarantees`](https://docs.rs/leasehold/latest/leasehold/guarantees) says
///   what a record survives on each store.
/// - As long as somebody calls, the work is tried again until it is done.
///
/// **It cannot promise *exactly once*.** A process can end after its body had its effect and before
/// that is recorded; then another one runs the body again. Make the effect idempotent, fence it with
/// the token, or record it in the transaction that has the effect
/// ([`Guarantees::once_in_transaction`](crate::Guarantees::once_in_transaction)).
///
/// The name shares its queue with [`lock`](crate::Store::lock) of the same name. A lock ignores
/// records. Work that waits for itself, by `once` of its own name in its body, waits for ever.
///
/// Redlock and bridges do not have it: a record on a majority of servers is not read by one step.
/// [`Guarantees::once`](crate::Guarantees::once) says whether a store has it.
///
/// # Examples
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use leasehold_core::OnceOutcome;
///
/// let mail = store.once("welcome/4711").keep(Duration::from_secs(30 * 24 * 3600));
/// match mail.run(async |_| send("4711").await).await?? {
///     OnceOutcome::Ran(id) => println!("sent as {id}"),
///     OnceOutcome::AlreadyDone(by) => println!("was sent by {}", by.label),
/// }
/// # Ok(()) }
/// # async fn send(_: &str) -> Result<u64, std::io::Error> { Ok(7) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it is run"]
pub struct Once {
    lock: Lock,
    fire: u64,
    keep: Option<Keep>,
    wait: Wait,
    in_transaction: bool,
}

impl Once {
    pub(crate) fn new(mut lock: Lock) -> Once {
        // A hold that outlives its work would keep others from being told, and a turn that one task
        // of this process passes to the next would not read the record.
        lock.options.min_hold = None;
        lock.options.policy = None;
        Once {
            lock,
            fire: 0,
            keep: None,
            wait: Wait::Forever,
            in_transaction: false,
        }
    }

    /// The time for which the record counts, from the end of the work on, by the clock of the store.
    /// It has no default.
    ///
    /// All clients of a name use one keep: the record of a later [`fire`](Once::fire) takes the place
    /// of the one before, with its own keep.
    ///
    /// At least the TTL, because a completion whose answer was lost is repeated for that long, and
    /// at most [`MAX_KEEP`](crate::MAX_KEEP). A store may keep it longer than it counts.
    pub fn keep(mut self, keep: Duration) -> Once {
        self.keep = Some(Keep::For(keep));
        self
    }

    /// Lets the record count until it is [forgotten](Once::forget).
    pub fn keep_forever(mut self) -> Once {
        self.keep = Some(Keep::Forever);
        self
    }

    /// The number of this occurrence of work that is done again and again, a *fire*: rising numbers,
    /// such as the number of the day. The work of a fire is done if a record of this fire, or of a
    /// later one, is there. Default: 0.
    ///
    /// One name then serves for all fires, so that a fire that takes longer than expected never runs
    /// beside the next one, and one record is kept in place of many.
    pub fn fire(mut self, fire: u64) -> Once {
        self.fire = fire;
        self
    }

    /// The time to live of the lease while the body runs: [`Lock::ttl`](crate::Lock::ttl).
    pub fn ttl(mut self, ttl: Duration) -> Once {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// The longest time that the body may take: [`Lock::max_hold`](crate::Lock::max_hold).
    pub fn max_hold(mut self, max_hold: Duration) -> Once {
        self.lock = self.lock.max_hold(max_hold);
        self
    }

    /// A text for people, stored with the hold and with the record:
    /// [`Lock::label`](crate::Lock::label).
    pub fn label(mut self, label: impl Into<String>) -> Once {
        self.lock = self.lock.label(label);
        self
    }

    /// The longest wait for another client's body. Default: for ever.
    pub fn wait(mut self, wait: Duration) -> Once {
        self.wait = Wait::For(wait);
        self
    }

    /// Leaves it to a transaction of the body to record that the work is done, so that the record
    /// and the work are committed together, or neither is.
    ///
    /// The body executes a statement of the store in its transaction, and commits that. When the
    /// body has ended, however it ended, the store is asked whether it is recorded, and nothing
    /// else counts: a body that returns `Ok` without a record is an error
    /// ([`Invalid`](crate::ErrorKind::Invalid)), and one whose commit was executed has done the
    /// work, also if it returned `Err` ([`AlreadyDone`](crate::OnceOutcome::AlreadyDone)). The keep
    /// and the result are those of the statement.
    ///
    /// A store without [`Guarantees::once_in_transaction`](crate::Guarantees::once_in_transaction)
    /// refuses it as [`Unsupported`](crate::ErrorKind::Unsupported).
    pub fn in_transaction(mut self) -> Once {
        self.in_transaction = true;
        self
    }

    /// The name, without the namespace of the store.
    pub fn name(&self) -> &Name {
        self.lock.name()
    }

    /// Runs `body`, unless the work is done; waits while another client does it.
    ///
    /// The result of `body` is inside of this one: use `??`.
    ///
    /// # Errors
    ///
    /// - The errors of [`Lock::acquire`](crate::Lock::acquire), before the body began.
    /// - [`Invalid`](crate::ErrorKind::Invalid): no keep, or a bad one. Nothing was sent.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): the store does not have it.
    /// - [`Lost`](crate::ErrorKind::Lost): the lock was lost before the work was recorded. The body
    ///   was dropped, or it had ended; the next client runs its own. The body may have had effects:
    ///   fence them with the token.
    /// - [`Ambiguous`](crate::ErrorKind::Ambiguous): the body ended with `Ok`, and it is not known
    ///   whether the store has recorded it.
    /// - [`Unavailable`](crate::ErrorKind::Unavailable), when the body had ended: the store could
    ///   not record it. The next client runs its own.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while the body runs, the body is dropped and nothing is recorded. If
    /// it is dropped after the body has ended, the record is written in the background.
    pub fn run<T, E, F, B>(
        &self,
        body: B,
    ) -> impl Future<Output = Result<Result<OnceOutcome<T>, E>>> + use<T, E, F, B>
    where
        B: FnOnce(Attempt) -> F,
        F: Future<Output = Result<T, E>>,
    {
        let once = self.clone();
        async move {
            let wait = once.wait;
            match once.enter(wait).await? {
                Begun::AlreadyDone(done) => Ok(Ok(OnceOutcome::AlreadyDone(done))),
                Begun::Attempt(guard) => {
                    let ran = guard.work(body).await?;
                    Ok(ran.map(Worked::outcome))
                }
            }
        }
    }

    /// Runs `body`, unless the work is done or another client holds the lock or waits for it.
    ///
    /// # Errors
    ///
    /// As [`run`](Once::run), but a lock that another client holds is no error: it is
    /// [`TryOnceOutcome::Running`](crate::TryOnceOutcome::Running).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Once::run).
    pub fn try_run<T, E, F, B>(
        &self,
        body: B,
    ) -> impl Future<Output = Result<Result<TryOnceOutcome<T>, E>>> + use<T, E, F, B>
    where
        B: FnOnce(Attempt) -> F,
        F: Future<Output = Result<T, E>>,
    {
        let once = self.clone();
        async move {
            match once.enter(Wait::Try).await {
                Ok(Begun::AlreadyDone(done)) => Ok(Ok(TryOnceOutcome::AlreadyDone(done))),
                Ok(Begun::Attempt(guard)) => {
                    let ran = guard.work(body).await?;
                    Ok(ran.map(|worked| worked.outcome().into()))
                }
                Err(e) => Ok(Ok(TryOnceOutcome::Running(e.into_contention()?))),
            }
        }
    }

    /// Waits for the right to do the work, as [`run`](Once::run) does, and returns it as a guard:
    /// for work that is no future, such as a program that is started or a thread.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Once::run) before the body begins.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// use leasehold_core::Begun;
    ///
    /// if let Begun::Attempt(guard) = store.once("setup").keep_forever().begin().await? {
    ///     // … work; a drop of the guard would leave it to the next client …
    ///     guard.complete().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn begin(&self) -> impl Future<Output = Result<Begun>> + Send + use<> {
        let once = self.clone();
        let wait = self.wait;
        async move { once.enter(wait).await }
    }

    /// Takes the right to do the work now, or not at all.
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Once::begin); [`Contended`](crate::ErrorKind::Contended) if another client
    /// holds the lock or waits for it.
    ///
    /// # Cancel safety
    ///
    /// As [`begin`](Once::begin).
    pub fn try_begin(&self) -> impl Future<Output = Result<Begun>> + Send + use<> {
        let once = self.clone();
        async move { once.enter(Wait::Try).await }
    }

    /// Returns the record that the work of this fire, or of a later one, is done; `None` if it is
    /// not.
    ///
    /// `None` says nothing about the next moment: never decide by it whether to work.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for a bad name;
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the store does not have it; otherwise what
    /// the store reports, within a few seconds.
    ///
    /// # Cancel safety
    ///
    /// It only reads, so it can be dropped at any await.
    pub async fn done(&self) -> Result<Option<Completion>> {
        let done = self.lock.scope.completion(self.name()).await?;
        Ok(done.filter(|done| done.counts_for(self.fire)))
    }

    /// Removes the record with this token, and only that one, whichever its fire. Returns whether
    /// there was one. The next client runs its body.
    ///
    /// # Errors
    ///
    /// Those of [`done`](Once::done).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the record may or may not be removed. It is safe to call it again.
    pub async fn forget(&self, token: FencingToken) -> Result<bool> {
        self.lock.scope.forget(self.name(), token).await
    }

    async fn enter(self, wait: Wait) -> Result<Begun> {
        let name = self.name().clone();
        Box::pin(self.begin_within(wait))
            .await
            .map_err(|e| e.with_name(&name))
    }

    async fn begin_within(self, wait: Wait) -> Result<Begun> {
        let Once {
            lock,
            fire,
            keep,
            in_transaction,
            ..
        } = self;
        let scope = &lock.scope;
        let client = &scope.client;
        let full_name = scope.full_name(lock.name())?;
        client.ready()?;
        if !client.guarantees.once() || client.backend.completions().is_none() {
            return Err(unsupported());
        }
        if in_transaction && !client.guarantees.once_in_transaction() {
            let why = "no transaction of this store can record that work is done";
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        let options = lock.options.resolve(&client.guarantees)?;
        let keep = match keep {
            // The statement of the transaction says it.
            None if in_transaction => Keep::Forever,
            keep => checked_keep(keep, options.ttl)?,
        };
        let started = client.clock.now();
        let leader = match wait {
            // A try says what the store says.
            Wait::Try => None,
            _ => {
                let me = (&full_name, fire, &options.label);
                match scope
                    .local_once
                    .stand(client, me, options.ttl, wait)
                    .await?
                {
                    Stood::Lead(leader) => Some(leader),
                    Stood::Alone => None,
                    Stood::Done(completion) => return Ok(Begun::AlreadyDone(completion)),
                }
            }
        };
        // The task may have waited in another runtime.
        client.ready()?;
        let now = client.clock.now();
        let mut claim = Claim::new(
            full_name,
            lock.mode,
            WaitPolicy::Fair,
            options.ttl,
            &options.label,
        )
        .once(fire);
        claim.id = client.claim_id(now)?;
        let left = wait.left(now.since(started));
        let acquiring = acquire(client, claim, now, left, options.max_hold, None);
        let acquired = match &leader {
            Some(leader) => leader.goes(acquiring).await,
            None => acquiring.await,
        };
        match acquired? {
            Acquired::Done(completion) => {
                if let Some(leader) = leader {
                    leader.tells(&completion);
                }
                Ok(Begun::AlreadyDone(completion))
            }
            Acquired::Hold(taken) => {
                if let Some(leader) = &leader {
                    leader.holds();
                }
                let hold = Hold {
                    client: client.clone(),
                    state: taken.state,
                    name: lock.name().clone(),
                    token: taken.granted.token,
                };
                Ok(Begun::Attempt(OnceGuard {
                    share: Share::new(hold, None, None),
                    leader,
                    keep,
                    result: Arc::default(),
                    in_transaction,
                }))
            }
        }
    }
}

fn checked_keep(keep: Option<Keep>, ttl: Duration) -> Result<Keep> {
    let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
    match keep {
        None => invalid("say for how long the work counts as done: keep or keep_forever".into()),
        Some(Keep::For(keep)) if keep < ttl => invalid(format!(
            "a keep of {keep:?} is shorter than the ttl of {ttl:?}"
        )),
        Some(Keep::For(keep)) if keep > MAX_KEEP => invalid(format!(
            "a keep of {keep:?} is longer than 100 years: use keep_forever"
        )),
        Some(keep) => Ok(keep),
    }
}

/// The outcome of [`Once::run`](crate::Once::run).
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "work that was done before is easily mistaken for work that ran now"]
pub enum OnceOutcome<T> {
    /// The body ran to its end, and the store has recorded it.
    Ran(T),
    /// The work is done, and the body did not run.
    AlreadyDone(Completion),
}

/// The outcome of [`Once::try_run`](crate::Once::try_run).
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a skipped body is easily mistaken for one that ran"]
pub enum TryOnceOutcome<T> {
    /// The body ran to its end, and the store has recorded it.
    Ran(T),
    /// The work is done, and the body did not run.
    AlreadyDone(Completion),
    /// The body did not run: this client holds the lock.
    Running(Contention),
}

/// The outcome of [`Once::begin`](crate::Once::begin).
#[derive(Debug)]
#[must_use = "dropping the guard leaves the work to the next client"]
pub enum Begun {
    /// This client does the work.
    Attempt(OnceGuard),
    /// The work is done.
    AlreadyDone(Completion),
}

/// A view of the hold under which work is done once: the body of [`Once::run`](crate::Once::run)
/// gets one.
///
/// It is a [`Held`](crate::Held), with the token and the checks, and takes the result of the work.
#[derive(Clone)]
pub struct Attempt {
    held: Held,
    result: Arc<Mutex<Option<String>>>,
}

impl Attempt {
    /// Leaves a result, which is recorded with the completion and which each client reads that is
    /// told of it. A later call replaces it.
    ///
    /// Everybody who can read the store can read it: no secrets. Text beyond
    /// [`MAX_RESULT_BYTES`](crate::MAX_RESULT_BYTES) is cut, and the record says so; NUL is replaced
    /// by U+FFFD.
    pub fn result(&self, text: impl Into<String>) {
        let before = locked(&self.result).replace(text.into());
        drop(before);
    }
}

impl Deref for Attempt {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attempt").field(&self.held).finish()
    }
}

/// The right to do work once: [`complete`](OnceGuard::complete) records that it is done. A drop
/// releases the lock and leaves the work to the next client.
///
/// Made by [`Once::begin`](crate::Once::begin). It renews itself as a [`Guard`](crate::Guard) does.
#[must_use = "dropping the guard leaves the work to the next client"]
pub struct OnceGuard {
    // The hold is given back before the next task of this client claims.
    share: Share,
    leader: Option<Leader>,
    keep: Keep,
    result: Arc<Mutex<Option<String>>>,
    in_transaction: bool,
}

view_methods!(OnceGuard, .share.hold);

impl OnceGuard {
    /// A view for the code that does the work.
    pub fn attempt(&self) -> Attempt {
        Attempt {
            held: self.view(),
            result: self.result.clone(),
        }
    }

    /// Records that the work is done, ends the hold, and returns the record. With
    /// [`in_transaction`](Once::in_transaction) it asks whether it is recorded, and ends the hold.
    ///
    /// A request that stays unanswered is repeated until the end of the lease and for one TTL more.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::ErrorKind::Lost): the lock was lost before, and nothing was recorded.
    /// - [`Ambiguous`](crate::ErrorKind::Ambiguous): it is not known whether it was recorded.
    /// - Any other error: the store could not record it. The next client does the work.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the completion goes on in the background.
    pub async fn complete(self) -> Result<Completion> {
        let OnceGuard {
            share,
            leader,
            keep,
            result,
            in_transaction,
        } = self;
        let completion = if in_transaction {
            share.recorded().await?
        } else {
            let result = locked(&result).take();
            share.complete(keep, limited(result)).await?
        };
        if let Some(leader) = leader {
            leader.tells(&completion);
        }
        Ok(completion)
    }

    /// Releases the lock without a record, and waits for the answer of the store:
    /// [`Guard::release`](crate::Guard::release), which has the errors too. The next client does
    /// the work.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    pub async fn release(self) -> Result<()> {
        let again_until = self.share.hold.client.release_again_until();
        self.share.release(again_until).await
    }

    /// Runs a body that is dropped when the hold is lost, and completes the work if it returns `Ok`.
    async fn work<T, E, F>(self, body: impl FnOnce(Attempt) -> F) -> Result<Result<Worked<T>, E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        let ended = {
            let lost = self.lost();
            let mut body = pin!(body(self.attempt()));
            tokio::select! {
                biased;
                loss = lost => Err(loss),
                ended = &mut body => Ok(ended),
            }
        };
        let hold = self.share.hold.clone();
        match ended {
            Ok(Ok(value)) => {
                self.complete().await?;
                Ok(Ok(Worked::Ran(value)))
            }
            // What the body has committed counts, and not how it has ended.
            Ok(Err(e)) if self.in_transaction => match self.complete().await {
                Ok(completion) => Ok(Ok(Worked::Recorded(completion))),
                Err(asked) if asked.kind() == ErrorKind::Ambiguous => Err(asked),
                Err(_) => Ok(Err(e)),
            },
            Err(loss) if self.in_transaction => match self.complete().await {
                Ok(completion) => Ok(Ok(Worked::Recorded(completion))),
                Err(asked) if asked.kind() == ErrorKind::Ambiguous => Err(asked),
                Err(_) => Err(hold.lost(loss)),
            },
            Ok(Err(e)) => {
                // A release that fails is repeated in the background.
                drop(self.release().await);
                Ok(Err(e))
            }
            Err(loss) => Err(hold.lost(loss)),
        }
    }
}

/// Work that is done.
enum Worked<T> {
    Ran(T),
    /// The body did not return a value, and its transaction has recorded that the work is done.
    Recorded(Completion),
}

impl<T> Worked<T> {
    fn outcome(self) -> OnceOutcome<T> {
        match self {
            Worked::Ran(value) => OnceOutcome::Ran(value),
            Worked::Recorded(completion) => OnceOutcome::AlreadyDone(completion),
        }
    }
}

impl<T> From<OnceOutcome<T>> for TryOnceOutcome<T> {
    fn from(outcome: OnceOutcome<T>) -> TryOnceOutcome<T> {
        match outcome {
            OnceOutcome::Ran(value) => TryOnceOutcome::Ran(value),
            OnceOutcome::AlreadyDone(completion) => TryOnceOutcome::AlreadyDone(completion),
        }
    }
}

impl fmt::Debug for OnceGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OnceGuard({:?})", self.view())
    }
}

/// The result as it is recorded, and whether it was cut.
fn limited(result: Option<String>) -> (Option<Arc<str>>, bool) {
    let Some(text) = result else {
        return (None, false);
    };
    let text = text.replace('\0', "\u{fffd}");
    let ends = text.char_indices().map(|(at, char)| at + char.len_utf8());
    let end = ends.take_while(|end| *end <= MAX_RESULT_BYTES).last();
    let kept = &text[..end.unwrap_or(0)];
    (Some(kept.into()), kept.len() < text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_cut_between_two_characters_and_without_nul() {
        assert_eq!(limited(None), (None, false));
        assert_eq!(
            limited(Some("a\0b".into())),
            (Some("a\u{fffd}b".into()), false)
        );
        let exact = "x".repeat(MAX_RESULT_BYTES);
        assert_eq!(limited(Some(exact.clone())), (Some(exact.into()), false));
        let (cut, is_cut) = limited(Some(format!("x{}", "é".repeat(MAX_RESULT_BYTES))));
        assert_eq!(cut.unwrap().len(), MAX_RESULT_BYTES - 1);
        assert!(is_cut);
    }

    #[test]
    fn a_keep_is_at_least_the_ttl_and_at_most_a_century() {
        let ttl = Duration::from_secs(10);
        for bad in [
            None,
            Some(Keep::For(Duration::ZERO)),
            Some(Keep::For(ttl - Duration::from_nanos(1))),
            Some(Keep::For(MAX_KEEP + Duration::from_nanos(1))),
        ] {
            let refused = checked_keep(bad, ttl).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{bad:?}");
        }
        for good in [Keep::For(ttl), Keep::For(MAX_KEEP), Keep::Forever] {
            assert_eq!(checked_keep(Some(good), ttl).ok(), Some(good));
        }
    }
}
