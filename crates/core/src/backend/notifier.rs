//! The notifications that a store sends: hints about a claim, for its waiter or holder.
//!
//! Stores differ most in how they push: a channel, a watch, a FIFO, or not at all. Core needs only
//! a hint from them, so this is the whole interface. A store that forgets to notify is slow and not
//! wrong, and the conformance suite has a case for each.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tokio::sync::{broadcast, watch};

use crate::backend::claim::ClaimId;
use crate::backend::clock::Moment;
use crate::backend::grant::{Grant, Validity};
use crate::backend::loss::Loss;
use crate::backend::name::Name;
use crate::support::locked;
use crate::support::own_keys::OwnMap;
use crate::support::sync::atomic::{AtomicU64, Ordering};
use crate::support::sync::{Mutex, MutexGuard};

/// The registry through which a store notifies core.
///
/// A store owns one, returns it from [`Backend::notifier`](crate::backend::Backend::notifier), and
/// uses it from its one source of events: a subscription, a watch.
///
/// A notification is a hint. It may be false, late, doubled or missing, and nothing is incorrect
/// then: core claims again and believes only the answer. A store therefore need not make its events
/// reliable. A notification for an id to which nothing listens is dropped. Core listens before it
/// sends the claim, so no notification comes too early. Notifying never blocks.
///
/// # Examples
///
/// A store that gets one kind of event from its server:
///
/// ```
/// use leasehold_core::Loss;
/// use leasehold_core::backend::{ClaimId, Notifier};
///
/// enum Event { Freed(ClaimId), Evicted(ClaimId), Reconnected }
///
/// fn pass_on(notifier: &Notifier, event: Event) {
///     match event {
///         Event::Freed(next) => notifier.claim_again(next),
///         Event::Evicted(holder) => notifier.lost(holder, Loss::Evicted),
///         Event::Reconnected => notifier.notify_all(), // events may have been missed
///     }
/// }
/// # pass_on(&Notifier::new(), Event::Reconnected);
/// ```
#[derive(Clone)]
pub struct Notifier(Arc<Inner>);

struct Inner {
    listeners: Mutex<OwnMap<ClaimId, Arc<dyn Listener>>>,
    /// The number of times that all holds had to be renewed at once.
    renew_holds: watch::Sender<u64>,
    /// The moment when the connection to the server last broke, in nanoseconds; 0 if it never did.
    interrupted: AtomicU64,
    holder_changed: broadcast::Sender<Name>,
    /// The notifier of the store of which this store is a part.
    upper: OnceLock<Notifier>,
}

/// A notification as a [subscriber](Notifier::subscribe) receives it. Each variant means the same
/// as the method of [`Notifier`] of that name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Notification {
    /// Something has changed.
    ClaimAgain,
    /// The claim is granted.
    Granted(Grant),
    /// The entry of the claim is gone.
    Lost(Loss),
    /// The hold lasts only so long.
    Shortened(Validity),
}

/// A listener for the notifications of one claim.
pub(crate) trait Listener: Send + Sync {
    fn notify(&self, notification: Notification);
}

impl Notifier {
    /// A registry to which nothing listens.
    pub fn new() -> Notifier {
        Notifier(Arc::new(Inner {
            listeners: Mutex::default(),
            renew_holds: watch::Sender::new(0),
            interrupted: AtomicU64::new(0),
            holder_changed: broadcast::Sender::new(64),
            upper: OnceLock::new(),
        }))
    }

    /// Something has changed for this claim: claim again.
    pub fn claim_again(&self, id: ClaimId) {
        self.notify(id, Notification::ClaimAgain);
    }

    /// This claim is granted.
    ///
    /// The validity of the grant must name its instant
    /// ([`Validity::since`](crate::backend::Validity)): the send of exactly the attempt that it
    /// goes back to. A late push must not give a grant a longer life than its request. A grant
    /// without an instant is treated as [`claim_again`](Self::claim_again).
    pub fn granted(&self, id: ClaimId, grant: Grant) {
        self.notify(id, Notification::Granted(grant));
    }

    /// The entry of this claim is surely gone, whether it held or waited.
    pub fn lost(&self, id: ClaimId, loss: Loss) {
        self.notify(id, Notification::Lost(loss));
    }

    /// The server has changed its terms, and the hold of this claim surely lasts only so long.
    ///
    /// It is the only way in which a promise gets shorter: for example when a session continues on
    /// a server with a shorter limit. The validity must name its instant. Holds are renewed at
    /// once.
    pub fn shortened(&self, id: ClaimId, validity: Validity) {
        self.notify(id, Notification::Shortened(validity));
        self.renew_holds();
    }

    /// The holder of this name, or its label, may have changed: observers read again.
    pub fn holder_changed(&self, name: &Name) {
        let _ = self.0.holder_changed.send(name.clone());
        self.tell_upper(|upper| upper.holder_changed(name));
    }

    /// All claims are claimed again, and all holds are renewed at once.
    ///
    /// For the time after a reconnect, when notifications may have been missed, and renewals may
    /// have been lost with the old connection.
    pub fn notify_all(&self) {
        self.renew_holds();
        let listeners: Vec<_> = self.listeners().values().cloned().collect();
        listeners
            .iter()
            .for_each(|listener| listener.notify(Notification::ClaimAgain));
    }

    /// The connection broke at this moment of the store's clock, and the server may have lost its
    /// data meanwhile.
    ///
    /// A hold stays valid as it was promised. But until an answer to a later request has confirmed
    /// it, it is not shared any further inside this process: no task gets the next turn of a
    /// [`fast`](crate::Lock::fast) lock under it, and its [`Owner`](crate::Owner) does not enter it
    /// again. Another client may have been granted the lock, with a greater token.
    pub fn interrupted(&self, at: Moment) {
        self.0
            .interrupted
            .fetch_max(at.as_nanos(), Ordering::AcqRel);
        self.tell_upper(|upper| upper.interrupted(at));
    }

    /// Makes this store a part of a store over other stores, whose notifier is `upper`.
    /// Notifications that concern no single claim go to `upper` too: a holder has changed, all
    /// holds are to be renewed, the connection broke. Only the first call counts, and no store is a
    /// part of itself.
    pub fn is_part_of(&self, upper: &Notifier) {
        let _ = self.0.upper.set(upper.clone());
    }

    /// Calls `listener` with each notification for the claim `id` until the subscription is
    /// dropped. It is for a store over other stores. The listener must not block, and it is called
    /// on the thread on which the store notifies.
    pub fn subscribe(
        &self,
        id: ClaimId,
        listener: impl Fn(Notification) + Send + Sync + 'static,
    ) -> Subscription {
        self.listen(id, Arc::new(Function(listener)));
        Subscription::new(Unlisten(self.clone(), id))
    }

    fn tell_upper(&self, tell: impl FnOnce(&Notifier)) {
        if let Some(upper) = self.0.upper.get() {
            tell(upper);
        }
    }

    /// Returns whether a request that was sent at this moment is later than the last interruption,
    /// so that its answer confirms the hold.
    pub(crate) fn is_uninterrupted(&self, asked: Moment) -> bool {
        let last = self.0.interrupted.load(Ordering::Acquire);
        last == 0 || asked.as_nanos() > last
    }

    /// Makes the keeper renew all holds, and plan anew by their present ends.
    fn renew_holds(&self) {
        self.0.renew_holds.send_modify(|times| *times += 1);
        self.tell_upper(Notifier::renew_holds);
    }

    /// Changes whenever all holds are to be renewed at once.
    pub(crate) fn renews_holds(&self) -> watch::Receiver<u64> {
        self.0.renew_holds.subscribe()
    }

    /// A receiver of the names whose holders change from now on.
    pub(crate) fn holder_changes(&self) -> broadcast::Receiver<Name> {
        self.0.holder_changed.subscribe()
    }

    pub(crate) fn listen(&self, id: ClaimId, listener: Arc<dyn Listener>) {
        let before = self.listeners().insert(id, listener);
        drop(before);
    }

    pub(crate) fn unlisten(&self, id: ClaimId) {
        // The drop of the listener may run code of other authors, so it happens after the mutex is
        // unlocked.
        let gone = self.listeners().remove(&id);
        drop(gone);
    }

    fn notify(&self, id: ClaimId, notification: Notification) {
        let listener = self.listeners().get(&id).cloned();
        if let Some(listener) = listener {
            listener.notify(notification);
        }
    }

    fn listeners(&self) -> MutexGuard<'_, OwnMap<ClaimId, Arc<dyn Listener>>> {
        locked(&self.0.listeners)
    }
}

/// A function that listens.
struct Function<F>(F);

impl<F: Fn(Notification) + Send + Sync> Listener for Function<F> {
    fn notify(&self, notification: Notification) {
        (self.0)(notification);
    }
}

/// Ends a subscription to a claim.
struct Unlisten(Notifier, ClaimId);

impl Drop for Unlisten {
    fn drop(&mut self) {
        self.0.unlisten(self.1);
    }
}

/// The subscription to a name, from [`Backend::observe`](crate::backend::Backend::observe), or to a
/// claim, from [`Notifier::subscribe`]. Dropping it ends the subscription.
#[must_use = "the subscription ends when this is dropped"]
pub struct Subscription(Option<Box<dyn Send + Sync>>);

impl Subscription {
    /// The store notifies of this name until `guard` is dropped.
    pub fn new(guard: impl Send + Sync + 'static) -> Subscription {
        Subscription(Some(Box::new(guard)))
    }

    /// The store never notifies: core polls.
    pub fn none() -> Subscription {
        Subscription(None)
    }

    /// Joins two subscriptions, for a store over other stores. If one of them never notifies, the
    /// result does not either, and core polls.
    pub fn and(self, other: Subscription) -> Subscription {
        Subscription(
            self.0
                .zip(other.0)
                .map(|both| Box::new(both) as Box<dyn Send + Sync>),
        )
    }

    pub(crate) fn is_pushed(&self) -> bool {
        self.0.is_some()
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Subscription({})",
            if self.is_pushed() {
                "notified"
            } else {
                "asked from time to time"
            }
        )
    }
}

impl Default for Notifier {
    fn default() -> Notifier {
        Notifier::new()
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Notifier({} listeners)", self.listeners().len())
    }
}

#[cfg(test)]
mod tests;
