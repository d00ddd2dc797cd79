//! The guard: the one value whose life is the lock's. Not `Clone`; dropping it gives the lock back.
//!
//! The type is not `Clone`, so that its drop is the release. Views can be cloned and release
//! nothing.
//!
//! Drop cannot wait, cannot fail, and may run outside of a runtime or during a panic. Therefore it
//! only queues the release for the keeper, which sends it in the background. `release` exists
//! beside it because only an explicit call can say whether the section was protected to its end.

use std::fmt;
use std::future::Future;

use crate::api::held::{Held, view_methods};
use crate::backend::claim::Mode;
use crate::backend::clock::Moment;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::loss::Lost;
use crate::engine::hold::{Hold, Share};

/// A held lock. While it lives, it renews its lease; [`release`](crate::Guard::release) or drop
/// releases the lock.
///
/// A guard is *valid* as long as this client can prove that it holds the lock: from the grant until
/// its TTL after the last successful renewal, counted from before that request was sent, less a
/// margin for the rates of both clocks. In that time no other client has a conflicting valid guard,
/// unless the store has lost data, has had its clock stepped, or an operator has evicted the hold.
/// [`leasehold::guarantees`](https://docs.rs/leasehold/latest/leasehold/guarantees) lists these
/// cases for each store.
///
/// **What a guard cannot promise**: that it is still valid when your next instruction runs. A
/// process can be paused at any point, and a packet can be late. Send
/// [`fencing_token`](crate::Guard::fencing_token) with each write, and let the resource refuse
/// smaller tokens.
///
/// # Dropping
///
/// Dropping a guard releases it in the background. The release is retried until it succeeds or the
/// lease has run out. Drop never blocks and never panics, also outside of a runtime. If no runtime
/// is left that has used the client, the lease ends the hold.
///
/// **A program that returns from `main` with a guard alive, or just after it was dropped, leaves
/// the lock taken until its TTL has passed**: the runtime ends before the background has sent
/// anything. Call `release`, or end with [`Store::close`](crate::Store::close), which waits for it.
/// The end of a runtime makes no last attempt: its connections cannot be driven any more, and
/// blocking there could hang the end of the program.
///
/// Bind a guard to a name: `let _ = lock.acquire().await?` drops it at once.
///
/// # Examples
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// let guard = store.lock("orders/42").acquire().await?;
/// tokio::select! {
///     () = work(guard.fencing_token()) => {}
///     loss = guard.lost() => println!("stopped: {loss}"),
/// }
/// guard.release().await?;
/// # Ok(()) }
/// # async fn work(_: leasehold_core::FencingToken) {}
/// ```
#[must_use = "dropping the guard releases the lock; bind it to a name, not to `_`"]
pub struct Guard(Share);

view_methods!(Guard, .0.hold);

impl Guard {
    pub(crate) fn of(share: Share) -> Guard {
        Guard(share)
    }

    pub(crate) fn share(&self) -> &Share {
        &self.0
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.0.hold
    }

    /// Asks the store, with one request, whether this client holds the lock now. A positive answer
    /// extends the lease.
    ///
    /// [`is_valid`](crate::Guard::is_valid) sends nothing, and is enough for most purposes. Use
    /// `confirm` before a step that is expensive to undo, to learn of an eviction or of lost data
    /// that no renewal has noticed yet. It says nothing about the moment after the answer.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost): this client does not hold the lock any more. Any other
    /// error, after at most five seconds: the store did not answer, and validity is what it was
    /// before.
    ///
    /// # Cancel safety
    ///
    /// It can be dropped at any await. The lease may or may not have been extended.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(guard: leasehold_core::Guard) -> leasehold_core::Result<()> {
    /// guard.confirm().await?; // one request: the hold was not evicted up to now
    /// println!("sending the letters");
    /// # Ok(()) }
    /// ```
    pub async fn confirm(&self) -> Result<()> {
        self.check()?;
        self.hold().claim_again().await
    }

    /// Turns an exclusive hold into a shared one without releasing it.
    ///
    /// The guard and its token stay the same. Readers that wait directly behind it are admitted;
    /// writers go on waiting, and no writer was in between. Use it to write first, and then to read
    /// on what was written together with other readers.
    ///
    /// There is no upgrade: two readers that wanted to write would wait for each other.
    ///
    /// # Errors
    ///
    /// - [`Invalid`](crate::ErrorKind::Invalid): the guard is a semaphore's, or other guards of its
    ///   owner share the hold and rely on its being exclusive.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): this store cannot do it.
    /// - [`Lost`](crate::ErrorKind::Lost): the lock was lost before.
    /// - Any other error: the store did not answer. Ask again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the downgrade may or may not have happened. It is safe to call it
    /// again.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// let guard = store.rw_lock("catalog").write().acquire().await?;
    /// // … write …
    /// guard.downgrade().await?;
    /// // … read, together with other readers …
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn downgrade(&self) -> Result<()> {
        let Hold { state, name, .. } = self.hold();
        let _one_at_a_time = state.downgrading.lock().await;
        self.check()?;
        let invalid = |text: &str| Err(Error::new(ErrorKind::Invalid, text).with_name(name));
        let before = state.mode();
        if matches!(before, Mode::Permits { .. }) {
            return invalid("a semaphore's permits cannot be shared");
        }
        // From now on no task of this owner can enter to write; tasks that entered before are
        // counted below.
        state.count_as_shared(true);
        if before == Mode::Exclusive && state.guards() > 1 {
            state.count_as_shared(false);
            return invalid("other guards of this owner count on an exclusive hold");
        }
        // No other task of this process can take an exclusive turn of the claim either.
        drop(self.0.take_turn());
        let done = self.hold().claim_again().await;
        if done
            .as_ref()
            .is_err_and(|e| !e.kind().may_have_been_executed())
        {
            state.count_as_shared(before == Mode::Shared);
        }
        done
    }

    /// Releases the lock, and waits for the answer of the store, at most two seconds.
    ///
    /// The result says whether the section was protected to its end, which drop cannot say. The
    /// next waiter gets the lock at once. A request that fails is repeated for two seconds, as long
    /// as the lease is good: a connection that breaks just then is no error. A store that does not
    /// answer is waited for for two seconds.
    ///
    /// The release of a re-entered hold that other guards share takes effect with the last of them.
    /// The release of a hold within its [`min_hold`](crate::Lock::min_hold) takes effect when that
    /// is over. If the lock is [`fast`](crate::Lock::fast), another task of this process may get
    /// the turn without a request.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::ErrorKind::Lost): the lock was lost before, so another client may have
    ///   been inside the section.
    /// - Any other error: the lock was held up to now, but the store did not confirm the release in
    ///   that time. It is retried in the background until the lease has run out.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// let guard = store.lock("orders/42").acquire().await?;
    /// match guard.release().await {
    ///     Err(e) if e.loss().is_some() => println!("not protected to the end: {e}"),
    ///     Err(e) => println!("was protected; the release is retried: {e}"),
    ///     Ok(()) => {}
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn release(self) -> Result<()> {
        let again_until = self.hold().client.release_again_until();
        self.release_until(again_until).await
    }

    pub(crate) async fn release_until(self, again_until: Moment) -> Result<()> {
        self.0.release(again_until).await
    }

    /// Runs `body` while the lock is held, and releases it afterwards.
    ///
    /// `body` gets a [`Held`](crate::Held), a view of the hold with the token. If the lock is lost,
    /// `body` is dropped at its current await.
    ///
    /// It cannot stop blocking calls, detached tasks, or code that does not reach an await. Let
    /// those check [`Held::is_valid`](crate::Held::is_valid) between steps, and send the token with
    /// each write.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lock was lost before `body` had ended, also if
    /// `body` ended just then. A release that fails after `body` has succeeded is no error: it is
    /// retried in the background.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, `body` is dropped first, and then the lock is released in the
    /// background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// let guard = store.lock("orders/42").acquire().await?;
    /// let token = guard.run(async |held| held.fencing_token()).await?;
    /// println!("ran with {token}");
    /// # Ok(()) }
    /// ```
    pub async fn run<T, F: Future<Output = T>>(self, body: impl FnOnce(Held) -> F) -> Result<T> {
        let held = self.view();
        let name = self.name().clone();
        let lost = self.lost();
        let ran = run(lost, body(held.clone()), self.release()).await;
        ran.map_err(|e| match e.loss() {
            Some(loss) => held.0.lost(loss),
            None => e.with_name(&name),
        })
    }
}

/// Runs a body until it ends or the hold is lost; on a loss the body is dropped at its current
/// await. A loss is an error; any other failure of the release is not.
pub(crate) async fn run<T>(
    lost: Lost,
    body: impl Future<Output = T>,
    release: impl Future<Output = Result<()>>,
) -> Result<T> {
    let done = {
        tokio::pin!(body);
        tokio::select! {
            biased;
            loss = lost => return Err(Error::lost(loss)),
            done = body => done,
        }
    };
    match release.await {
        Err(e) if e.loss().is_some() => Err(e),
        _ => Ok(done),
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({:?})", self.view())
    }
}
