//! The one watch stream of a client: it carries the evictions and the lines that the client waits in or observes, and rings.
//!
//! What happened before a watch stands is read once it does. After any doubt the stream is opened anew, and all of its lines
//! are read again.
//!
//! Whoever evicts a hold notes it under the holder's lease, in the same transaction: see `names`.

use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{EventType, GetResponse, KeyValue, ResponseHeader, WatchResponse};
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::seam::Observing;
use leasehold_core::{Loss, Name, Result};
use leasehold_etcd_client::{Broken, oldest};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{interval, sleep};

use crate::line::{Event, Own};
use crate::lines::Lines;
use crate::store::Store;
use crate::value::mode;

/// How long to wait before another stream is opened.
const BREATH: Duration = Duration::from_millis(200);
/// How often lines are looked over, and given up if nobody waits.
const TIDY: Duration = Duration::from_secs(10);

impl Store {
    /// Serves the watches until the store is shut.
    pub(crate) async fn watch(self: Arc<Self>, mut orders: UnboundedReceiver<Name>) {
        let mut again = false;
        while self.cluster.open().is_ok() {
            let _ = self.stream(&mut orders, replace(&mut again, true)).await;
            self.lines().follow_anew(&mut orders);
            sleep(BREATH).await;
        }
    }

    /// One stream from its opening to its end. `again`: after another one broke.
    async fn stream(self: &Arc<Self>, orders: &mut UnboundedReceiver<Name>, again: bool) -> Result<(), Broken> {
        // That of no line is the evictions'.
        let mut watch = self.cluster.watch(None, &self.keys.evictions()).await?;
        let (mut reads, mut tidy) = (FuturesUnordered::new(), interval(TIDY));
        loop {
            tokio::select! {
                said = watch.next() => match said? {
                    (Some(name), message) => {
                        self.hear(&name, &message);
                        reads.extend(message.created().then(|| self.read_line(name)));
                    }
                    (None, message) => {
                        message.events().iter().filter_map(|event| event.kv()?.key_str().ok()).for_each(|note| self.evicted(note));
                        if message.created() && again {
                            self.evictions().await?.iter().for_each(|note| self.evicted(note));
                        }
                    }
                },
                Some(name) = orders.recv() => {
                    let line = self.keys.line(&name);
                    watch.add(Some(name), &line).await?;
                }
                Some(read) = reads.next() => {
                    let (name, line, read) = read?;
                    let entry = |kv: &KeyValue| (kv.key().to_vec(), kv.create_revision(), kv.mod_revision(), mode(&line, kv));
                    let mut lines = self.lines();
                    if let Some(copy) = lines.copy(&name) {
                        copy.read(read.header().map_or(0, ResponseHeader::revision), read.kvs().iter().map(entry));
                    }
                    self.tell(&mut lines, &name);
                }
                _ = tidy.tick() => {
                    let over = self.lines().unfollow();
                    watch.retain(|name| name.as_ref().is_none_or(|name| !over.contains(name))).await?;
                }
            }
        }
    }

    async fn read_line(&self, name: Name) -> Result<(Name, Arc<str>, GetResponse)> {
        let line = self.keys.line(&name);
        let read = self.cluster.get(&*line, oldest(0)).await?;
        Ok((name, line, read))
    }

    /// Takes in what a line's watch says.
    fn hear(self: &Arc<Self>, name: &Name, message: &WatchResponse) {
        let (line, mut lines) = (self.keys.line(name), self.lines());
        let Some(copy) = lines.copy(name) else { return };
        for (event, kv) in message.events().iter().filter_map(|event| Some((event, event.kv()?))) {
            let put = (event.event_type() == EventType::Put).then(|| (kv.create_revision(), mode(&line, kv)));
            copy.hear(Event { revision: kv.mod_revision(), key: kv.key().to_vec(), put });
        }
        self.tell(&mut lines, name);
    }

    /// Tells those who are concerned what is new in the line.
    pub(crate) fn tell(self: &Arc<Self>, lines: &mut Lines, name: &Name) {
        let Some(line) = lines.line(name) else { return };
        let news = line.news();
        if news.wrong {
            self.cluster.reopen();
        }
        if news.stirred && line.observers.strong_count() > 0 {
            self.bells.stirred(name);
        }
        for (id, grant) in news.granted {
            self.bells.granted(id, grant);
        }
        for own in news.gone {
            if own.granted {
                tokio::spawn(self.clone().condemn(own));
            } else {
                self.bells.claim_again(own.id);
            }
        }
    }

    /// A hold was deleted: by an eviction, or else by hand.
    async fn condemn(self: Arc<Self>, own: Own) {
        let evicted = self.evictions().await.is_ok_and(|all| all.contains(&self.note(&own)));
        self.bells.lost(own.id, if evicted { Loss::Evicted } else { Loss::Gone });
    }

    /// The notes of all places that were evicted and whose sessions live on.
    async fn evictions(&self) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        self.cluster.keys(&self.keys.evictions(), |note| notes.push(note.to_owned())).await?;
        Ok(notes)
    }

    /// What is noted if the place is evicted.
    fn note(&self, own: &Own) -> String {
        self.keys.eviction(own.created, &own.key.path)
    }

    /// The place of which this is noted is no more.
    fn evicted(&self, note: &str) {
        if let Some((_, own)) = self.lines().all().find(|(_, own)| own.created != 0 && self.note(own) == note) {
            own.stands_at(0);
            self.bells.lost(own.id, Loss::Evicted);
        }
    }

    /// From now on until what it returns is dropped, changes of this name's holder are rung.
    pub(crate) fn observe(&self, name: &Name) -> Observing {
        let mut lines = self.lines();
        let line = lines.follow(name);
        let observers = line.observers.upgrade().unwrap_or_default();
        line.observers = Arc::downgrade(&observers);
        self.bells.stirred(name);
        Observing::new(observers)
    }
}
