//! Reports the changes of the mirrors: those of names for which a claim of this client waits or
//! that it observes, and evictions.
//!
//! An eviction leaves a note under the holder's lease, in the same transaction: see `names`.

mod changes;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::GetOptions;
use leasehold_core::backend::{ClaimId, Subscription};
use leasehold_core::{Loss, Name};
use tokio::time::sleep;

use crate::claim::own::OwnClaim;
use crate::claim::own_claims::OwnClaims;
use crate::claim::shared::Shared;
use crate::client::watch::Range;
use crate::observe::changes::{Changes, changes};

/// The time that a waiter waits for its turn key after the mirror has shown the end of the entry
/// before it.
const PATIENCE: Duration = Duration::from_millis(20);

impl Shared {
    /// Reports all changes until the client is shut. `anew`: another runtime did so before.
    pub(crate) async fn watch(self: Arc<Self>, anew: bool) {
        if anew {
            self.notifier.notify_all();
        }
        let changed = |key: &str| match self.keys.name_of(key) {
            Some(name) if key.ends_with('/') => self.report_queue(&mut self.claims(), &name, None),
            Some(name) => self.report_before(&mut self.claims(), &name, |_| true),
            None => {
                if let Some(name) = self.keys.name_of_turn(key) {
                    self.report_turns(&mut self.claims(), &name);
                } else if let Some(name) = self.keys.name_of_completion(key) {
                    self.report_completion(&mut self.claims(), &name);
                } else {
                    self.report_evictions();
                }
            }
        };
        self.mirrors.run(anew, changed).await;
    }

    /// Reports the changes of the watched entries before these claims.
    pub(crate) fn report_before(
        self: &Arc<Self>,
        claims: &mut OwnClaims,
        name: &Name,
        of: impl Fn(&&mut OwnClaim) -> bool,
    ) {
        self.report(name, Changes::of_before(claims.of(name).filter(of), true));
    }

    /// Reports the claims of the name that a turn key names.
    pub(crate) fn report_turns(self: &Arc<Self>, claims: &mut OwnClaims, name: &Name) {
        self.report(name, Changes::of_turns(claims.of(name)));
    }

    /// Tells the claims of the name that wait to ask, if the mirror of its completion shows one that
    /// counts for them.
    pub(crate) fn report_completion(&self, claims: &mut OwnClaims, name: &Name) {
        let range = Range::Key(self.keys.completion(name));
        let Some(mirror) = self.mirrors.get(&range) else {
            return;
        };
        let done = mirror
            .lock()
            .keys
            .first()
            .and_then(|key| key.value.1.label.as_deref()?.parse().ok());
        let waits = |own: &&mut OwnClaim| {
            let fire = own.once.as_ref().map(|once| once.fire);
            !own.granted
                && !own.releasing
                && fire.zip(done).is_some_and(|(fire, done)| fire <= done)
        };
        claims
            .of(name)
            .filter(waits)
            .for_each(|own| self.notifier.claim_again(own.id));
    }

    /// Reports the changes of the name if its queue is mirrored. `stood`: the claim whose answer
    /// has come.
    pub(crate) fn report_queue(
        self: &Arc<Self>,
        claims: &mut OwnClaims,
        name: &Name,
        stood: Option<ClaimId>,
    ) {
        if let Some(mirror) = self.mirrors.get(&Range::Prefix(self.keys.prefix(name))) {
            self.report(name, changes(claims.of(name), &mut mirror.lock(), stood));
        }
    }

    fn report(self: &Arc<Self>, name: &Name, changes: Changes) {
        if changes.wrong {
            self.cluster.reopen();
        }
        if changes.holder_changed {
            self.notifier.holder_changed(name);
        }
        for (id, grant) in changes.granted {
            self.notifier.granted(id, grant);
        }
        for id in changes.soon {
            let shared = self.clone();
            let name = name.clone();
            tokio::spawn(async move {
                sleep(PATIENCE).await;
                let changes =
                    Changes::of_before(shared.claims().of(&name).filter(|own| own.id == id), false);
                shared.report(&name, changes);
            });
        }
        changes
            .again
            .into_iter()
            .for_each(|id| self.notifier.claim_again(id));
        for own in changes.gone {
            if own.granted {
                tokio::spawn(self.clone().report_deleted(own));
            } else {
                self.notifier.claim_again(own.id);
            }
        }
    }

    /// Reports a hold that was deleted, by an eviction or else by hand.
    async fn report_deleted(self: Arc<Self>, own: OwnClaim) {
        let note = self
            .cluster
            .get(self.eviction_note(&own), GetOptions::new())
            .await;
        let evicted = note.is_ok_and(|note| note.count() > 0);
        self.notifier
            .lost(own.id, if evicted { Loss::Evicted } else { Loss::Gone });
    }

    /// Reports the places that were evicted: they have ended.
    fn report_evictions(&self) {
        let mut claims = self.claims();
        let evictions = self.mirrors.always.lock();
        let notes: HashSet<&[u8]> = evictions.keys.iter().map(|key| &*key.name).collect();
        for (_, own) in claims.all() {
            if own.created != 0 && notes.contains(self.eviction_note(own).as_bytes()) {
                own.set_created(0);
                self.notifier.lost(own.id, Loss::Evicted);
            }
        }
    }

    /// Returns whether the mirror has a note that the place was evicted.
    pub(crate) fn was_evicted(&self, own: &OwnClaim) -> bool {
        let note = self.eviction_note(own);
        self.mirrors
            .always
            .lock()
            .keys
            .iter()
            .any(|key| key.name == note.as_bytes())
    }

    /// The key of the note that the place was evicted.
    fn eviction_note(&self, own: &OwnClaim) -> String {
        self.keys.eviction(own.created, &own.key.path)
    }

    /// Reports changes of this name's holder from now on, until the returned value is dropped.
    pub(crate) fn observe(&self, name: &Name) -> Subscription {
        let mirror = self.mirrors.follow(Range::Prefix(self.keys.prefix(name)));
        self.notifier.holder_changed(name);
        Subscription::new(mirror)
    }
}
