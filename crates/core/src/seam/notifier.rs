//! The notifications that a store sends: hints to whoever waits for, or holds, a claim.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{broadcast, watch};

use crate::seam::claim::ClaimId;
use crate::seam::grant::{Grant, Validity};
use crate::seam::loss::Loss;
use crate::seam::name::Name;
use crate::support::sync::locked;

/// Core's registry of listeners. A store owns one, gives it to core by [`Backend::notifier`](crate::seam::Backend::notifier), and
/// notifies it from its one source of events.
///
/// A notification may be false, late, doubled or missing: correctness never rests on it. One for an id without a listener is
/// dropped. Core opens the listener before it sends the claim, so none comes too early. Notifying never blocks.
#[derive(Clone)]
pub struct Notifier(Arc<Inner>);

struct Inner {
    listeners: Mutex<HashMap<ClaimId, Arc<dyn Listener>>>,
    /// How often all holds were to be renewed at once.
    renew_holds: watch::Sender<u64>,
    holder_changed: broadcast::Sender<Name>,
}

/// What a notification says.
pub(crate) enum Notification {
    ClaimAgain,
    Granted(Grant),
    Lost(Loss),
    Shortened(Validity),
}

/// Who listens for one claim.
pub(crate) trait Listener: Send + Sync {
    fn notify(&self, notification: Notification);
}

impl Notifier {
    /// A registry with no listeners.
    pub fn new() -> Notifier {
        Notifier(Arc::new(Inner {
            listeners: Mutex::default(),
            renew_holds: watch::Sender::new(0),
            holder_changed: broadcast::Sender::new(64),
        }))
    }

    /// Something changed for this claim: claim again and see.
    pub fn claim_again(&self, id: ClaimId) {
        self.notify(id, Notification::ClaimAgain);
    }

    /// This claim had its turn. The grant's validity must name its instant ([`Validity::since`](crate::seam::Validity)):
    /// the send of exactly the attempt that it grew from. A grant without one is taken as [`Notifier::claim_again`].
    pub fn granted(&self, id: ClaimId, grant: Grant) {
        self.notify(id, Notification::Granted(grant));
    }

    /// This claim's entry is surely gone, granted or waiting.
    pub fn lost(&self, id: ClaimId, loss: Loss) {
        self.notify(id, Notification::Lost(loss));
    }

    /// The server goes by other terms than it did, and this claim's hold surely lasts only so long: the one way in which what
    /// was promised gets shorter. It must name its instant, too. Holds are renewed at once.
    pub fn shortened(&self, id: ClaimId, validity: Validity) {
        self.notify(id, Notification::Shortened(validity));
        self.renew_holds();
    }

    /// The holder of this name, or its label, may have changed: observers look.
    pub fn holder_changed(&self, name: &Name) {
        let _ = self.0.holder_changed.send(name.clone());
    }

    /// Everybody claims again, and holds are renewed at once: after a reconnect, when notifications may have been missed and renewals
    /// may have gone with the old connection.
    pub fn notify_all(&self) {
        self.renew_holds();
        let listeners: Vec<_> = self.listeners().values().cloned().collect();
        listeners.iter().for_each(|listener| listener.notify(Notification::ClaimAgain));
    }

    /// The keeper renews all holds, and plans anew by when they end now.
    fn renew_holds(&self) {
        self.0.renew_holds.send_modify(|times| *times += 1);
    }

    /// Changes whenever all holds are to be renewed at once.
    pub(crate) fn renews_holds(&self) -> watch::Receiver<u64> {
        self.0.renew_holds.subscribe()
    }

    /// The names whose holders change from now on.
    pub(crate) fn holder_changes(&self) -> broadcast::Receiver<Name> {
        self.0.holder_changed.subscribe()
    }

    pub(crate) fn listen(&self, id: ClaimId, listener: Arc<dyn Listener>) {
        let before = self.listeners().insert(id, listener);
        drop(before);
    }

    pub(crate) fn unlisten(&self, id: ClaimId) {
        // Its end may run anybody's code, so it comes once the lock is free again.
        let gone = self.listeners().remove(&id);
        drop(gone);
    }

    fn notify(&self, id: ClaimId, notification: Notification) {
        let listener = self.listeners().get(&id).cloned();
        if let Some(listener) = listener {
            listener.notify(notification);
        }
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<dyn Listener>>> {
        locked(&self.0.listeners)
    }
}

/// Somebody observes a name: what [`Backend::observe`](crate::seam::Backend::observe) returns. Dropping it ends that.
#[must_use = "the subscription ends when this is dropped"]
pub struct Subscription(Option<Box<dyn Send + Sync>>);

impl Subscription {
    /// The store notifies for this name until `guard` is dropped.
    pub fn new(guard: impl Send + Sync + 'static) -> Subscription {
        Subscription(Some(Box::new(guard)))
    }

    /// The store never notifies: core asks from time to time.
    pub fn none() -> Subscription {
        Subscription(None)
    }

    pub(crate) fn is_pushed(&self) -> bool {
        self.0.is_some()
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subscription({})", if self.is_pushed() { "notified" } else { "asked from time to time" })
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
