//! `observe`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::Name;
use leasehold_core::backend::{Notifier, Subscription};
use leasehold_core::support::{Signal, locked};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::claim::shared::Shared;
use crate::client::listener::Hearing;
use crate::client::pool::Pool;
use crate::client::request::Request;
use crate::entry::millis;

/// The time for which the server notifies an observer after its last request, and the interval in
/// which the observer repeats that request.
const OBSERVES: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// The interval in which an observer looks while notifications do not arrive.
const POLL: Duration = Duration::from_secs(1);

/// The names that a client observes.
pub(crate) struct Observers {
    pub(crate) pool: Arc<Pool>,
    pub(crate) hearing: Arc<Hearing>,
    pub(crate) notifier: Notifier,
    pub(crate) statement: Arc<str>,
    pub(crate) channel: String,
    pub(crate) all: Mutex<Vec<Arc<Observed>>>,
    pub(crate) added: Signal,
}

/// An observed name.
pub(crate) struct Observed {
    name: Name,
    ended: watch::Sender<bool>,
}

/// Dropping this value ends the observation.
struct Observation(Arc<Observers>, Arc<Observed>);

impl Shared {
    pub(crate) fn observe(&self, name: &Name) -> Subscription {
        if !self.hearing.arrive() {
            return Subscription::none();
        }
        let observed = Arc::new(Observed {
            name: name.clone(),
            ended: watch::Sender::default(),
        });
        locked(&self.observers.all).push(observed.clone());
        self.observers.added.notify();
        self.here();
        Subscription::new(Observation(self.observers.clone(), observed))
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        let Observation(observers, observed) = self;
        locked(&observers.all).retain(|other| !Arc::ptr_eq(other, observed));
        observed.ended.send_replace(true);
    }
}

impl Observers {
    /// Asks the server to notify of the observed names, for ever.
    pub(crate) async fn run(&self) {
        let mut added = self.added.listen();
        let mut known: Vec<Arc<Observed>> = Vec::new();
        let mut each = FuturesUnordered::new();
        loop {
            tokio::select! {
                changed = added.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    for observed in locked(&self.all).iter() {
                        if !known.iter().any(|known| Arc::ptr_eq(known, observed)) {
                            known.push(observed.clone());
                            each.push(self.follow(observed.clone()));
                        }
                    }
                }
                Some(ended) = each.next() => known.retain(|known| !Arc::ptr_eq(known, &ended)),
            }
        }
    }

    async fn follow(&self, observed: Arc<Observed>) -> Arc<Observed> {
        let mut ended = observed.ended.subscribe();
        let mut heard = false;
        loop {
            self.hearing.needed_for(OBSERVES.0);
            let done = self.pool.call(self.request(&observed.name, OBSERVES.0));
            let hears = done.await.is_ok() && self.hearing.arrive();
            if !(heard && hears) {
                // Changes until now were not notified.
                self.notifier.holder_changed(&observed.name);
            }
            heard = hears;
            let pause = if hears { OBSERVES.1 } else { POLL };
            if timeout(pause, ended.wait_for(|ended| *ended)).await.is_ok() {
                let end = self.request(&observed.name, Duration::ZERO);
                drop(self.pool.call(end).await);
                return observed;
            }
        }
    }

    fn request(&self, name: &Name, rest: Duration) -> Request {
        Request::new(&self.statement)
            .text(name.as_str())
            .text(&self.channel)
            .number(millis(rest))
    }
}
