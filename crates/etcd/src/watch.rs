//! The one watch stream of a client: it carries the evictions and the lines that the client waits in or observes, and rings.
//!
//! Each watch starts *now*. One that starts at a past revision is served by etcd in rounds of 100 ms. What happened before
//! is read once the watch stands. After any doubt the stream is opened anew, and all of its lines are read again.
//!
//! Whoever evicts a hold notes it under the holder's lease, in the same transaction: see `names`.

use std::collections::HashMap;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, EventType, GetOptions, GetResponse, KeyValue, ResponseHeader, WatchOptions, WatchResponse};
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::seam::Observing;
use leasehold_core::{Error, Loss, Name, Result};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{interval, sleep, timeout};

use crate::line::{Event, Line, Own};
use crate::store::{State, Store, by_age};
use crate::value::mode;

/// How long to wait before another stream is opened.
const BREATH: Duration = Duration::from_millis(200);
/// How often lines are looked over, and given up if nobody waits.
const TIDY: Duration = Duration::from_secs(10);
/// The number of the evictions' watch; those of lines follow.
const EVICTIONS: i64 = 1;

/// Why the stream ended, or must be opened anew.
type Broken = Box<dyn std::error::Error + Send + Sync>;

impl Store {
    /// Serves the watches until the store is shut.
    pub(crate) async fn watch(self: Arc<Self>, mut orders: UnboundedReceiver<Name>) {
        let mut again = false;
        while self.open().is_ok() {
            let _ = self.stream(&mut orders, replace(&mut again, true)).await;
            for (name, line) in &mut self.state().lines {
                if line.copy.take().is_some() {
                    self.follow(name, line);
                }
            }
            sleep(BREATH).await;
        }
    }

    /// From now on the line is watched, until nobody waits in it or observes it.
    pub(crate) fn follow(&self, name: &Name, line: &mut Line) {
        line.copy.get_or_insert_with(|| {
            // Fails only after the watcher has ended with the store.
            let _ = self.orders.send(name.clone());
            Box::default()
        });
    }

    /// One stream from its opening to its end. `again`: after another one broke.
    async fn stream(self: &Arc<Self>, orders: &mut UnboundedReceiver<Name>, again: bool) -> Result<(), Broken> {
        let limit = self.cluster.config.limit;
        let options = |id| Some(WatchOptions::new().with_prefix().with_watch_id(id));
        let open = |client: Client| async move {
            client.watch_client().watch(self.keys.evictions(), options(EVICTIONS)).await
        };
        let (mut sender, mut stream) = self.cluster.ask(limit, open).await.outcome.map_err(Error::from)?.split();
        let mut moved = self.cluster.moved.subscribe();
        self.open()?;
        let (mut last, mut watched) = (EVICTIONS, HashMap::new());
        let (mut reads, mut tidy) = (FuturesUnordered::new(), interval(TIDY));
        loop {
            tokio::select! {
                message = stream.message() => {
                    let message = message?.ok_or("the end")?;
                    let id = message.watch_id();
                    let name: Option<&Name> = watched.get(&id);
                    // -1 stands for a watch that could not be opened; others are the farewell of one that we closed.
                    if message.canceled() && (name.is_some() || id <= EVICTIONS) {
                        return Err("a watch was cancelled".into());
                    }
                    if let Some(name) = name {
                        self.hear(name, &message);
                        reads.extend(message.created().then(|| self.read_line(name.clone())));
                    } else if id == EVICTIONS {
                        message.events().iter().filter_map(|event| event.kv()?.key_str().ok()).for_each(|note| self.evicted(note));
                        if message.created() && again {
                            self.evictions().await?.iter().for_each(|note| self.evicted(note));
                        }
                    }
                }
                Some(name) = orders.recv() => {
                    let is_new = self.state().copy(&name).is_some_and(|copy| !replace(&mut copy.ordered, true));
                    if is_new {
                        last += 1;
                        watched.insert(last, name.clone());
                        timeout(limit, sender.watch(&*self.keys.line(&name), options(last))).await??;
                    }
                }
                Some(read) = reads.next() => {
                    let (name, line, read) = read?;
                    let entry = |kv: &KeyValue| (kv.key().to_vec(), kv.create_revision(), kv.mod_revision(), mode(&line, kv));
                    let mut state = self.state();
                    if let Some(copy) = state.copy(&name) {
                        copy.read(read.header().map_or(0, ResponseHeader::revision), read.kvs().iter().map(entry));
                    }
                    self.tell(&mut state, &name);
                }
                _ = tidy.tick() => {
                    let over: Vec<i64> = {
                        let mut state = self.state();
                        state.unfollow();
                        watched.extract_if(|_, name| state.copy(name).is_none()).map(|(id, _)| id).collect()
                    };
                    for id in over {
                        timeout(limit, sender.cancel(id)).await??;
                    }
                }
                _ = moved.changed() => return Err("another connection is in use".into()),
            }
        }
    }

    async fn read_line(&self, name: Name) -> Result<(Name, Arc<str>, GetResponse)> {
        let line = self.keys.line(&name);
        let read = self.get(&*line, by_age(0)).await?;
        Ok((name, line, read))
    }

    /// Takes in what a line's watch says.
    fn hear(self: &Arc<Self>, name: &Name, message: &WatchResponse) {
        let (line, mut state) = (self.keys.line(name), self.state());
        let Some(copy) = state.copy(name) else { return };
        for (event, kv) in message.events().iter().filter_map(|event| Some((event, event.kv()?))) {
            let put = (event.event_type() == EventType::Put).then(|| (kv.create_revision(), mode(&line, kv)));
            copy.hear(Event { revision: kv.mod_revision(), key: kv.key().to_vec(), put });
        }
        self.tell(&mut state, name);
    }

    /// Tells those who are concerned what is new in the line.
    pub(crate) fn tell(self: &Arc<Self>, state: &mut State, name: &Name) {
        let Some(line) = state.lines.get_mut(name) else { return };
        let news = line.news();
        if news.wrong {
            self.cluster.moved.send_replace(());
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
        let notes = self.get(self.keys.evictions(), GetOptions::new().with_prefix().with_keys_only()).await?;
        Ok(notes.kvs().iter().filter_map(|note| note.key_str().ok().map(str::to_owned)).collect())
    }

    /// What is noted if the place is evicted.
    fn note(&self, own: &Own) -> String {
        self.keys.eviction(own.created, &own.key)
    }

    /// The place of which this is noted is no more.
    fn evicted(&self, note: &str) {
        if let Some((_, own)) = self.state().all().find(|(_, own)| own.created != 0 && self.note(own) == note) {
            own.stands_at(0);
            self.bells.lost(own.id, Loss::Evicted);
        }
    }

    /// From now on until what it returns is dropped, changes of this name's holder are rung.
    pub(crate) fn observe(&self, name: &Name) -> Observing {
        let mut state = self.state();
        let line = state.lines.entry(name.clone()).or_default();
        let observers = line.observers.upgrade().unwrap_or_default();
        line.observers = Arc::downgrade(&observers);
        self.follow(name, line);
        self.bells.stirred(name);
        Observing::new(observers)
    }
}
