//! Re-entry by an explicit owner: stores never hear of it.
//!
//! Re-entry is known in this process only. A store sees one claim, however often the owner enters.
//! Re-entry therefore works the same on every store, and costs no request.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::api::guard::Guard;
use crate::api::lock::Lock;
use crate::backend::claim::Mode;
use crate::backend::contention::Contention;
use crate::backend::error::{Error, ErrorKind, Result};
use crate::backend::name::Name;
use crate::engine::hold::{Share, WeakShare};
use crate::engine::wait::Wait;
use crate::support::locked;
use crate::support::sync::Mutex;

/// The identity by which a hold is re-entered.
///
/// Tasks have no identity that survives a `spawn`, and threads say nothing in async code, so
/// re-entry goes by an explicit value. Clones are the same owner. Two tasks with one owner do not
/// exclude each other: they share the hold.
///
/// An owner lives in this process: the store does not know it, so another process cannot re-enter
/// with it.
///
/// # Examples
///
/// ```no_run
/// # async fn example(store: leasehold_core::Store) -> leasehold_core::Result<()> {
/// use leasehold_core::Owner;
///
/// async fn inner(store: &leasehold_core::Store, me: &Owner) -> leasehold_core::Result<()> {
///     store.lock("orders/42").owner(me).acquire().await?.release().await
/// }
///
/// let me = Owner::new();
/// let guard = store.lock("orders/42").owner(&me).acquire().await?;
/// inner(&store, &me).await?; // does not wait for itself
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Owner(Arc<Mutex<HashMap<Key, Entry>>>);

/// A name on a store's client.
type Key = (usize, Name);
/// The hold that the owner has there, if any; locked while a task enters.
type Entry = Arc<tokio::sync::Mutex<Option<WeakShare>>>;

impl Owner {
    /// Makes an owner that differs from every other one.
    pub fn new() -> Owner {
        Owner::default()
    }

    pub(crate) async fn enter(self, lock: &Lock, wait: Wait) -> Result<Guard> {
        let client = &lock.scope.client;
        client.ready()?;
        let entry = self.entry((
            Arc::as_ptr(client) as usize,
            lock.scope.full_name(lock.name())?,
        ));
        let started = client.clock.now();
        let another_task = || Contention::by("another task of the same owner");
        let mut hold = match wait {
            Wait::Forever => entry.lock().await,
            Wait::Try => entry
                .try_lock()
                .map_err(|_| Error::contended(another_task()))?,
            Wait::For(d) => client
                .within(d, entry.lock())
                .await
                .ok_or_else(|| Error::timed_out(another_task()))?,
        };
        let left = || wait.left(client.clock.now().since(started));
        if let Some(share) = settled(lock, hold.as_ref(), left()).await? {
            let held = share.hold.state.mode();
            if held != lock.mode && held != Mode::Exclusive {
                let text = format!(
                    "this owner holds it as {held:?} and cannot enter as {:?}",
                    lock.mode
                );
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            return Ok(Guard::of(share));
        }
        let guard = lock.enter(left()).await?;
        *hold = Some(guard.share().downgrade());
        Ok(guard)
    }

    fn entry(&self, key: Key) -> Entry {
        let mut entries = locked(&self.0);
        let is_held = |e: &Entry| {
            e.try_lock()
                .is_ok_and(|hold| hold.as_ref().is_some_and(WeakShare::is_held))
        };
        let in_use = |e: &Entry| Arc::strong_count(e) > 1 || is_held(e);
        if entries.len() == entries.capacity() {
            entries.retain(|_, e| in_use(e));
            // Room for as many again is reserved, so that not each new entry walks through all
            // others if most of them are in use.
            let len = entries.len();
            entries.reserve(len);
        }
        entries.entry(key).or_default().clone()
    }
}

/// Returns a share of the hold if it is valid. A hold that the store may have forgotten is
/// confirmed first, because another client may have the lock.
async fn settled(lock: &Lock, hold: Option<&WeakShare>, wait: Wait) -> Result<Option<Share>> {
    let client = &lock.scope.client;
    let Some(share) = hold.and_then(|hold| hold.upgrade(client, lock.name())) else {
        return Ok(None);
    };
    if share.hold.is_in_doubt() {
        match wait {
            Wait::Try => share
                .hold
                .claim_again()
                .await
                .or_else(|e| e.loss().map(|_| ()).ok_or(e))?,
            Wait::Forever => share.hold.settle().await,
            Wait::For(d) => client.within(d, share.hold.settle()).await.ok_or_else(|| {
                Error::timed_out(Contention::by(
                    "a hold of the same owner, which the store has not confirmed",
                ))
            })?,
        }
    }
    Ok(share.hold.loss().is_none().then_some(share))
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:p})", Arc::as_ptr(&self.0))
    }
}
