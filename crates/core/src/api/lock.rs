//! The exclusive lock: recipe and lock in one. Cheap to make and to clone; nothing is sent before an acquire is polled.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::coop::consume_budget;

use crate::api::acquire::Acquire;
use crate::api::guard::Guard;
use crate::api::options::{MAX_VALUE_BYTES, Options, options};
use crate::api::owner::Owner;
use crate::api::scope::Scope;
use crate::backend::claim::{Claim, Mode, WaitPolicy};
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::name::Name;
use crate::backend::queue::LockQueue;
use crate::engine::acquire::{Acquired, Taken, acquire};
use crate::engine::events;
use crate::engine::hold::{Hold, Share};
use crate::engine::local_queue::{Handoff, TurnOptions};
use crate::engine::wait::Wait;

/// The lock of one name in one store, with the options for taking it.
///
/// A `Lock` is only a description: it is cheap to make and to clone, and sends nothing before an
/// acquire is polled. Each acquire makes a new claim, so one `Lock` can be used by many tasks; they
/// exclude each other like tasks of other processes.
///
/// # Examples
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// use std::time::Duration;
///
/// let lock = store.lock("orders/42").ttl(Duration::from_secs(5)).label("billing");
/// let guard = lock.acquire().await?;
/// println!("token {}", guard.fencing_token()); // send it with each write
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    pub(crate) scope: Scope,
    name: Name,
    pub(crate) mode: Mode,
    pub(crate) options: Options,
    owner: Option<Owner>,
    /// The value of a candidate, in place of a label.
    value: Option<Arc<str>>,
}

options!(Lock, .options);

impl Lock {
    pub(crate) fn new(scope: Scope, name: Name, mode: Mode) -> Lock {
        let options = scope.defaults.clone();
        Lock {
            scope,
            name,
            mode,
            options,
            owner: None,
            value: None,
        }
    }

    /// Returns a copy of the lock with another mode.
    pub(crate) fn in_mode(&self, mode: Mode) -> Lock {
        Lock {
            mode,
            ..self.clone()
        }
    }

    /// Starts the `Debug` output of a primitive that is made of this lock, under the primitive's
    /// own name. The mode is left out, because it belongs to each acquire.
    pub(crate) fn debug_as<'a, 'b>(
        &self,
        primitive: &str,
        f: &'a mut fmt::Formatter<'b>,
    ) -> fmt::DebugStruct<'a, 'b> {
        let mut shown = f.debug_struct(primitive);
        shown
            .field("store", &self.scope)
            .field("name", &self.name)
            .field("options", &self.options);
        shown
    }

    /// Returns the lock of a candidate: its value is in the store in place of a label.
    pub(crate) fn with_value(&self, value: String) -> Lock {
        Lock {
            value: Some(value.into()),
            ..self.clone()
        }
    }

    /// Makes the lock re-entrant for this owner.
    ///
    /// If the owner already holds this name, an acquire shares that hold: it gets the same token,
    /// sends nothing, and passes the waiters. The last guard releases the hold. The options of the
    /// first entry apply to the whole hold. When that hold is lost, the next acquire takes the lock
    /// anew.
    ///
    /// Without an owner, a second acquire in the same task waits for the first one, for ever if
    /// that task holds it.
    ///
    /// # Errors
    ///
    /// An owner that holds a name as a reader and asks to write gets
    /// [`Invalid`](crate::ErrorKind::Invalid) instead of waiting for itself.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// use leasehold_core::Owner;
    ///
    /// let me = Owner::new();
    /// let lock = store.lock("orders/42").owner(&me);
    /// let outer = lock.acquire().await?;
    /// let inner = lock.acquire().await?; // at once
    /// assert_eq!(outer.fencing_token(), inner.fencing_token());
    /// # Ok(()) }
    /// ```
    pub fn owner(mut self, owner: &Owner) -> Lock {
        self.owner = Some(owner.clone());
        self
    }

    /// The name, as it was written: without the store's namespace.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Waits until the lock is held.
    ///
    /// It waits for other holders without a limit, in the queue of the name. The place in the queue
    /// is a lease that renews itself while the future is polled or kept, so a waiter that dies does
    /// not block the others.
    ///
    /// # Errors
    ///
    /// - [`Invalid`](crate::ErrorKind::Invalid), [`Unsupported`](crate::ErrorKind::Unsupported): a
    ///   bad name or option; the number of a semaphore's permits is judged by the store, anything
    ///   else before a request is sent.
    /// - [`Denied`](crate::ErrorKind::Denied): the store refused the credentials or rights.
    /// - [`Unavailable`](crate::ErrorKind::Unavailable),
    ///   [`Ambiguous`](crate::ErrorKind::Ambiguous): the store could not be reached for one whole
    ///   lease. It is retried until then, because a short outage should not end a wait of hours.
    /// - [`Closed`](crate::ErrorKind::Closed): the store was closed.
    /// - [`NoRuntime`](crate::ErrorKind::NoRuntime): no tokio runtime is running here.
    ///
    /// It never returns `Contended` or `TimedOut`.
    ///
    /// # Cancel safety
    ///
    /// Drop the future at any time. The claim is withdrawn in the background, also if its request
    /// is still on its way; what may be left in the store ends within one TTL. The place in the
    /// queue is lost: acquiring again starts at its end.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// let guard = store.lock("orders/42").acquire().await?;
    /// // … work, and send guard.fencing_token() with each write …
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn acquire(&self) -> Acquire {
        self.start(Wait::Forever)
    }

    /// Takes the lock now, or not at all.
    ///
    /// It leaves no place in the queue. It does not pass waiters: if the lock is free but others
    /// wait for it, it is refused, except on a store that keeps no order (Redlock).
    ///
    /// "Now" means one answer of the store. A refusal of the server, whatever its reason, is
    /// the error. A server that cannot be reached is asked again for a quarter of a second, in which
    /// a connection that has just broken is made anew. A store that does not answer is waited for
    /// for two seconds, and what was sent is withdrawn in the background when it lands. Beside more than 128
    /// new claims of this client under way it waits until it can be sent.
    ///
    /// # Errors
    ///
    /// [`Contended`](crate::ErrorKind::Contended) if another client holds the lock or waits for it;
    /// the error names the holder, and [`Error::into_contention`](crate::Error::into_contention)
    /// turns it into a value. The others are as in [`acquire`](crate::Lock::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](crate::Lock::acquire).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// match store.lock("nightly").try_acquire().await {
    ///     Ok(guard) => guard.release().await?,
    ///     Err(refused) => {
    ///         let holder = refused.into_contention()?; // other errors stay errors
    ///         println!("skipped: {holder}");
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_acquire(&self) -> Acquire {
        self.start(Wait::Try)
    }

    /// Waits for the lock, at most for `wait`.
    ///
    /// Unlike a time-out around [`acquire`](crate::Lock::acquire) it asks the store once more at
    /// the end, so that a lock that became free just then is not missed. It may take up to 40 ms
    /// longer for that.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](crate::ErrorKind::TimedOut) if the lock did not become free in time; the error
    /// names the holder as the store told it last, or says that other tasks of this process were
    /// before it on the way to the store. A future that was granted the lock, and is polled only long
    /// after `wait`, ends so too. If the store could not be reached until then, or fails that last
    /// request, the error of the store. The others are as in [`acquire`](crate::Lock::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](crate::Lock::acquire).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
    /// use std::time::Duration;
    /// use leasehold_core::ErrorKind;
    ///
    /// match store.lock("orders/42").acquire_timeout(Duration::from_secs(2)).await {
    ///     Err(e) if e.kind() == ErrorKind::TimedOut => println!("busy: {e}"),
    ///     other => other?.release().await?,
    /// }
    /// # Ok(()) }
    /// ```
    pub fn acquire_timeout(&self, wait: Duration) -> Acquire {
        self.start(Wait::For(wait))
    }

    /// Shows which clients hold the lock and which wait for it.
    ///
    /// It is a snapshot, and may be outdated when it arrives. It is for people and tools; never
    /// decide by it whether to write. The name may be longer than one that is acquired: seen from
    /// outside of a namespace, it begins with that.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for a bad name; otherwise what the store reports,
    /// within a few seconds.
    ///
    /// # Cancel safety
    ///
    /// It only reads, so it can be dropped at any await.
    pub async fn inspect(&self) -> Result<LockQueue> {
        self.scope.inspect(&self.name).await
    }

    fn start(&self, wait: Wait) -> Acquire {
        let lock = self.clone();
        Acquire::new(async move {
            consume_budget().await;
            let entered = match &lock.owner {
                Some(owner) => owner.clone().enter(&lock, wait).await,
                None => lock.enter(wait).await,
            };
            entered.map_err(|e: Error| lock.with_holder(e).with_name(&lock.name))
        })
    }

    /// Corrects the holder in a refusal: the store names the first turn of a claim that tasks of
    /// this client share.
    fn with_holder(&self, e: Error) -> Error {
        let Ok(full_name) = self.scope.full_name(&self.name) else {
            return e;
        };
        e.with_contention(|by| {
            self.scope
                .local_queues
                .correct(&full_name, &mut by.label, &mut by.token);
        })
    }

    /// Takes the lock without looking for an owner's hold.
    pub(crate) async fn enter(&self, wait: Wait) -> Result<Guard> {
        let full_name = self.scope.full_name(&self.name)?;
        check_mode(self.mode)?;
        let client = &self.scope.client;
        client.ready()?;
        let options = self.options.resolve(&client.guarantees)?;
        let label = self
            .value
            .clone()
            .map_or(Ok(options.label), checked_value)?;
        let started = client.clock.now();
        let mut claimant = None;
        let mut now = started;
        // Only exclusive claims without a value take turns among the tasks of a process.
        if options.policy == WaitPolicy::Fast
            && self.mode == Mode::Exclusive
            && self.value.is_none()
        {
            let name = self.name.clone();
            let label = label.clone();
            let turn = TurnOptions {
                name,
                label,
                max_hold: options.max_hold,
                min_hold: options.min_hold,
                deadline: wait.ends_at(started),
            };
            match self
                .scope
                .local_queues
                .enter(client, (full_name.clone(), options.ttl), turn, wait)
                .await?
            {
                Handoff::Turn(share) => {
                    let Hold { state, token, .. } = &share.hold;
                    let waited = client.clock.now().since(started);
                    events::acquired(&state.claim, *token, waited);
                    return Ok(Guard::of(share));
                }
                Handoff::Claimant(right) => {
                    // The task may have waited in another runtime.
                    client.ready()?;
                    (claimant, now) = (Some(right), client.clock.now());
                }
            }
        }
        let id = client.claim_id(now)?;
        let mode = self.mode;
        let policy = options.policy;
        // A claim without turns reserves no tokens for them.
        let turns = claimant.as_ref().map_or(1, |claimant| claimant.turns);
        let ttl = options.ttl;
        let text = label.clone();
        let claim = Claim {
            name: full_name,
            id,
            mode,
            policy,
            ttl,
            label: text,
            floor: None,
            is_part: false,
            is_last: false,
            once: None,
            turns,
        };
        let outage_since = claimant.as_ref().and_then(|claimant| claimant.outage_since);
        let left = wait.left(now.since(started));
        let mut acquiring = pin!(acquire(
            client,
            claim,
            now,
            left,
            options.max_hold,
            outage_since
        ));
        let acquired = poll_fn(|context| {
            if let Some(claimant) = &claimant {
                claimant.goes_on(context);
            }
            acquiring.as_mut().poll(context)
        })
        .await;
        if let (Err(e), Some(claimant), Wait::Forever) = (&acquired, &mut claimant, wait)
            && e.kind().is_outage()
        {
            // The claim was retried for one lease. The next claimant tries, but does not wait for
            // that long again.
            claimant.outage_since.get_or_insert(started);
        }
        let Acquired::Hold(Taken { state, granted, at }) = acquired? else {
            let why = "the store answers that the work of a lock is done";
            return Err(Error::new(ErrorKind::Internal, why));
        };
        let hold = Hold {
            client: client.clone(),
            state,
            name: self.name.clone(),
            token: granted.token,
        };
        let turn = claimant.map(|claimant| claimant.first_turn(&granted, label, at));
        Ok(Guard::of(Share::new(
            hold,
            options.min_hold.map(|min| at + min),
            turn,
        )))
    }
}

/// Refuses what no store could grant.
fn check_mode(mode: Mode) -> Result<()> {
    let text = match mode {
        Mode::Permits { of: 0, .. } => "a semaphore has at least one permit".into(),
        Mode::Permits { n: 0, .. } => "nobody needs zero permits".into(),
        Mode::Permits { n, of } if n > of => format!("{n} of {of} permits will never be free"),
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Invalid, text))
}

pub(crate) fn checked_value(value: Arc<str>) -> Result<Arc<str>> {
    if value.len() > MAX_VALUE_BYTES {
        let text = format!("a candidate's value may have at most {MAX_VALUE_BYTES} bytes");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(value)
}
