//! The bells that a store rings: hints to whoever waits for, or holds, a claim.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{broadcast, watch};

use crate::claim::ClaimId;
use crate::grant::{Grant, Validity};
use crate::loss::Loss;
use crate::name::Name;
use crate::sync::locked;

/// Core's registry of ears. A store owns one, gives it to core by [`Backend::bells`](crate::seam::Backend::bells), and
/// rings it from its one source of events.
///
/// A ring may be false, late, doubled or missing: correctness never rests on it. A ring for an id that nobody listens to is
/// dropped. Core opens the ear before it sends the claim, so no ring comes too early. Ringing never blocks.
#[derive(Clone)]
pub struct Bells(Arc<Inner>);

struct Inner {
    ears: Mutex<HashMap<ClaimId, Arc<dyn Ear>>>,
    /// How often all holds were to be renewed at once.
    renew_holds: watch::Sender<u64>,
    stirred: broadcast::Sender<Name>,
}

/// What a bell says.
pub(crate) enum Ring {
    ClaimAgain,
    Granted(Grant),
    Lost(Loss),
    Shortened(Validity),
}

/// Who listens for one claim.
pub(crate) trait Ear: Send + Sync {
    fn hear(&self, ring: Ring);
}

impl Bells {
    /// A registry with no ears.
    pub fn new() -> Bells {
        Bells(Arc::new(Inner {
            ears: Mutex::default(),
            renew_holds: watch::Sender::new(0),
            stirred: broadcast::Sender::new(64),
        }))
    }

    /// Something changed for this claim: claim again and see.
    pub fn claim_again(&self, id: ClaimId) {
        self.ring(id, Ring::ClaimAgain);
    }

    /// This claim had its turn. The grant's validity must name its instant ([`Validity::since`](crate::seam::Validity)):
    /// the send of exactly the attempt that it grew from. A grant without one is taken as [`Bells::claim_again`].
    pub fn granted(&self, id: ClaimId, grant: Grant) {
        self.ring(id, Ring::Granted(grant));
    }

    /// This claim's entry is surely gone, granted or waiting.
    pub fn lost(&self, id: ClaimId, loss: Loss) {
        self.ring(id, Ring::Lost(loss));
    }

    /// The server goes by other terms than it did, and this claim's hold surely lasts only so long: the one way in which what
    /// was promised gets shorter. It must name its instant, too. Holds are renewed at once.
    pub fn shortened(&self, id: ClaimId, validity: Validity) {
        self.ring(id, Ring::Shortened(validity));
        self.renew_holds();
    }

    /// The holder of this name, or its label, may have changed: observers look.
    pub fn stirred(&self, name: &Name) {
        let _ = self.0.stirred.send(name.clone());
    }

    /// Everybody claims again, and holds are renewed at once: after a reconnect, when rings may have been missed and renewals
    /// may have gone with the old connection.
    pub fn everyone(&self) {
        self.renew_holds();
        let ears: Vec<_> = self.ears().values().cloned().collect();
        ears.iter().for_each(|ear| ear.hear(Ring::ClaimAgain));
    }

    /// The keeper renews all holds, and plans anew by when they end now.
    fn renew_holds(&self) {
        self.0.renew_holds.send_modify(|times| *times += 1);
    }

    /// Changes whenever all holds are to be renewed at once.
    pub(crate) fn renews_holds(&self) -> watch::Receiver<u64> {
        self.0.renew_holds.subscribe()
    }

    /// The names that are stirred from now on.
    pub(crate) fn stirring(&self) -> broadcast::Receiver<Name> {
        self.0.stirred.subscribe()
    }

    pub(crate) fn listen(&self, id: ClaimId, ear: Arc<dyn Ear>) {
        let before = self.ears().insert(id, ear);
        drop(before);
    }

    pub(crate) fn unlisten(&self, id: ClaimId) {
        // Its end may run anybody's code, so it comes once the lock is free again.
        let gone = self.ears().remove(&id);
        drop(gone);
    }

    fn ring(&self, id: ClaimId, ring: Ring) {
        let ear = self.ears().get(&id).cloned();
        if let Some(ear) = ear {
            ear.hear(ring);
        }
    }

    fn ears(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<dyn Ear>>> {
        locked(&self.0.ears)
    }
}

/// Somebody observes a name: what [`Backend::observe`](crate::seam::Backend::observe) returns. Dropping it ends that.
#[must_use = "observing ends when this is dropped"]
pub struct Observing(Option<Box<dyn Send + Sync>>);

impl Observing {
    /// The store rings for this name until `guard` is dropped.
    pub fn new(guard: impl Send + Sync + 'static) -> Observing {
        Observing(Some(Box::new(guard)))
    }

    /// The store never rings: core asks from time to time.
    pub fn none() -> Observing {
        Observing(None)
    }

    pub(crate) fn is_rung(&self) -> bool {
        self.0.is_some()
    }
}

impl fmt::Debug for Observing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Observing({})", if self.is_rung() { "rung" } else { "asked from time to time" })
    }
}

impl Default for Bells {
    fn default() -> Bells {
        Bells::new()
    }
}

impl fmt::Debug for Bells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bells({} ears)", self.ears().len())
    }
}
