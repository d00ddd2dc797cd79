//! The exclusive lock: recipe and lock in one. Cheap to make and to clone; nothing is sent before an acquire is polled.

use std::sync::Arc;
use std::time::Duration;

use crate::api::acquire::Acquire;
use crate::api::guard::Guard;
use crate::api::options::{MAX_VALUE_BYTES, Options, options};
use crate::api::owner::Owner;
use crate::api::scope::Scope;
use crate::engine::acquire::acquire;
use crate::engine::hold::{Hold, Share};
use crate::engine::local_queue::{Handoff, TurnOptions};
use crate::engine::wait::Wait;
use crate::seam::claim::{Claim, Mode, WaitPolicy};
use crate::seam::error::{Error, ErrorKind, Result};
use crate::seam::name::Name;
use crate::seam::queue::LockQueue;

/// A lock of one name on one store, with the words by which to take it.
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// use std::time::Duration;
/// let lock = store.lock("orders/42").ttl(Duration::from_secs(5)).fair();
/// let guard = lock.acquire().await?;
/// println!("token {}", guard.fencing_token());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    scope: Scope,
    name: Name,
    mode: Mode,
    pub(crate) options: Options,
    owner: Option<Owner>,
    /// What a candidate stands for, in place of a label.
    value: Option<Arc<str>>,
}

options!(Lock, options);

impl Lock {
    pub(crate) fn new(scope: Scope, name: Name, mode: Mode) -> Lock {
        let options = scope.defaults.clone();
        Lock { scope, name, mode, options, owner: None, value: None }
    }

    /// A candidate's claim: its value stands in the store where other claims have their label.
    pub(crate) fn with_value(self, value: String) -> Lock {
        Lock { value: Some(value.into()), ..self }
    }

    /// Re-entry: whoever acquires with the same owner while the owner holds this name shares the hold, with one token; the
    /// last guard releases it. The first entry's words count. Once that hold is lost, the next acquire takes the lock anew.
    /// Without an owner, a second acquire waits like anybody else.
    pub fn owner(mut self, owner: &Owner) -> Lock {
        self.owner = Some(owner.clone());
        self
    }

    /// The name, as it was written.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Waits until the lock is held.
    ///
    /// It waits for other holders as long as it takes. A store that cannot be reached is asked again for at most one lease;
    /// then its error is returned.
    pub fn acquire(&self) -> Acquire {
        self.start(Wait::Forever)
    }

    /// Takes the lock now or not at all. Held by somebody else is an error of kind
    /// [`Contended`](crate::ErrorKind::Contended), which says who; [`Error::into_contention`] makes it a value. A store that
    /// cannot be reached is asked again for a third of a lease.
    pub fn try_acquire(&self) -> Acquire {
        self.start(Wait::Try)
    }

    /// Waits at most `wait`; then [`TimedOut`](crate::ErrorKind::TimedOut), which says who was before us, be it other tasks of
    /// this process on their way to the store, or the store's own error if that was the reason.
    ///
    /// Unlike a timeout around [`acquire`](Lock::acquire) it takes one last look, and may be longer by up to 40 ms for it.
    pub fn acquire_timeout(&self, wait: Duration) -> Acquire {
        self.start(Wait::For(wait))
    }

    /// Who holds it and who waits.
    pub async fn inspect(&self) -> Result<LockQueue> {
        self.scope.inspect(&self.name).await
    }

    fn start(&self, wait: Wait) -> Acquire {
        let lock = self.clone();
        Acquire::new(async move {
            let entered = match &lock.owner {
                Some(owner) => owner.clone().enter(&lock, wait).await,
                None => lock.enter(wait).await,
            };
            entered.map_err(|e: Error| lock.says_who(e).with_name(&lock.name))
        })
    }

    /// A refusal by the store names the first turn of a claim that tasks of this client share.
    fn says_who(&self, e: Error) -> Error {
        e.with_contention(|who| {
            let full_name = self.scope.full_name(&self.name).ok();
            let turn =
                full_name.zip(who.token).and_then(|(name, first)| self.scope.local_queues.whose_turn(&name, first));
            if let Some((label, token)) = turn {
                (who.label, who.token) = (Some(label.to_string()), Some(token));
            }
        })
    }

    /// Takes the lock without looking for an owner's hold.
    pub(crate) async fn enter(&self, wait: Wait) -> Result<Guard> {
        let full_name = self.scope.full_name(&self.name)?;
        check_mode(self.mode)?;
        let client = &self.scope.client;
        client.ready()?;
        let options = self.options.resolve(&client.guarantees)?;
        let label = self.value.clone().map_or(Ok(options.label), checked_value)?;
        let started = client.clock.now();
        // Turns among the tasks of a process are for claims that are alike and alone.
        let mut claimant = if options.policy == WaitPolicy::Fast && self.mode == Mode::Exclusive && self.value.is_none()
        {
            let (name, label) = (self.name.clone(), label.clone());
            let turn = TurnOptions { name, label, max_hold: options.max_hold, min_hold: options.min_hold };
            match self.scope.local_queues.enter(client, (full_name.clone(), self.mode, options.ttl), turn, wait).await?
            {
                Handoff::Turn(share) => return Ok(Guard::of(share)),
                Handoff::Claimant(claimant) => Some(claimant),
            }
        } else {
            None
        };
        let claim = Claim::new(full_name, self.mode, options.policy, options.ttl, &label);
        let outage_since = claimant.as_ref().and_then(|claimant| claimant.outage_since);
        let left = wait.left(client.clock.now().since(started));
        let acquired = acquire(client, claim, left, options.max_hold, outage_since).await;
        if let (Err(e), Some(claimant), Wait::Forever) = (&acquired, &mut claimant, wait)
            && matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous)
        {
            // It was retried for one lease. The next claimant tries, and does not wait for as long again.
            claimant.outage_since.get_or_insert(started);
        }
        let (state, granted) = acquired?;
        let now = client.clock.now();
        let not_before = options.min_hold.map(|min| now + min);
        let hold = Hold::new(client.clone(), state, self.name.clone(), granted.token, not_before);
        Ok(Guard::of(Share::new(match claimant {
            Some(claimant) => hold.in_turn(claimant.first_turn(&granted, label, now)),
            None => hold,
        })))
    }

    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
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
        let text = format!("a acquisition's value may have at most {MAX_VALUE_BYTES} bytes");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(value)
}
