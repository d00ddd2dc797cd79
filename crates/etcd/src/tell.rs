//! What the mirrors say, told to those whom it concerns: of the lines in which this client waits or that it observes, and of
//! the evictions.
//!
//! Whoever evicts a hold notes it under the holder's lease, in the same transaction: see `names`.

use std::collections::HashSet;
use std::sync::Arc;

use etcd_client::GetOptions;
use leasehold_core::seam::Subscription;
use leasehold_core::{Loss, Name};

use crate::line::{Own, news};
use crate::lines::Lines;
use crate::store::Store;

impl Store {
    /// Tells all until the store is shut.
    pub(crate) async fn listen(self: Arc<Self>) {
        let changed = |prefix: &str| match self.keys.name_of(prefix) {
            Some(name) => self.tell(&mut self.lines(), &name),
            None => self.tell_evicted(),
        };
        self.mirrors.run(changed).await;
    }

    /// Tells what is new in the line, if it is followed.
    pub(crate) fn tell(self: &Arc<Self>, lines: &mut Lines, name: &Name) {
        let Some(mirror) = self.mirrors.get(&self.keys.line(name)) else { return };
        let news = news(lines.line(name), &mut mirror.look());
        if news.wrong {
            self.cluster.reopen();
        }
        if news.stirred {
            self.notifier.holder_changed(name);
        }
        for (id, grant) in news.granted {
            self.notifier.granted(id, grant);
        }
        for own in news.gone {
            if own.granted {
                tokio::spawn(self.clone().condemn(own));
            } else {
                self.notifier.claim_again(own.id);
            }
        }
    }

    /// A hold was deleted: by an eviction, or else by hand.
    async fn condemn(self: Arc<Self>, own: Own) {
        let note = self.cluster.get(self.note(&own), GetOptions::new()).await;
        let evicted = note.is_ok_and(|note| note.count() > 0);
        self.notifier.lost(own.id, if evicted { Loss::Evicted } else { Loss::Gone });
    }

    /// Tells whose places were evicted: they are no more.
    fn tell_evicted(&self) {
        let (mut lines, evictions) = (self.lines(), self.mirrors.always.look());
        let notes: HashSet<&[u8]> = evictions.entries().iter().map(|entry| &*entry.key).collect();
        for (_, own) in lines.all() {
            if own.created != 0 && notes.contains(self.note(own).as_bytes()) {
                own.stands_at(0);
                self.notifier.lost(own.id, Loss::Evicted);
            }
        }
    }

    /// Whether we have heard that the place was evicted.
    pub(crate) fn was_evicted(&self, own: &Own) -> bool {
        let note = self.note(own);
        self.mirrors.always.look().entries().iter().any(|entry| entry.key == note.as_bytes())
    }

    /// What is noted if the place is evicted.
    fn note(&self, own: &Own) -> String {
        self.keys.eviction(own.created, &own.key.path)
    }

    /// From now on until what it returns is dropped, changes of this name's holder are rung.
    pub(crate) fn observe(&self, name: &Name) -> Subscription {
        let mirror = self.mirrors.follow(&self.keys.line(name));
        self.notifier.holder_changed(name);
        Subscription::new(mirror)
    }
}
