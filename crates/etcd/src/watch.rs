//! The one watch stream of a client: it carries the evictions and the lines that the client waits in or observes, and rings.
//!
//! Each watch starts *now*. One that starts at a past revision is served by etcd in rounds of 100 ms. What happened before
//! is read once the watch stands. After any doubt the stream is opened anew, and everybody claims again.
//!
//! Whoever evicts a hold notes its create_revision under the holder's lease, in the same transaction: see `names`.

use std::collections::HashMap;
use std::mem::replace;
use std::sync::{Arc, Weak};
use std::time::Duration;

use etcd_client::{Client, EventType, GetOptions, GetResponse, KeyValue, WatchOptions, WatchResponse};
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::seam::Observing;
use leasehold_core::{Error, Loss, Name, Result};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{interval, sleep, timeout};

use crate::line::{Event, Line};
use crate::store::{Store, revision};
use crate::table::State;
use crate::value::mode;

/// How long to wait before another stream is opened.
const BREATH: Duration = Duration::from_millis(200);
/// How often lines are looked over. A watch ends when twice in a row nobody waits.
const TIDY: Duration = Duration::from_secs(10);
/// The number of the evictions' watch; those of lines follow.
const EVICTIONS: i64 = 1;

/// Why the stream ended, or must be opened anew.
type Broken = Box<dyn std::error::Error + Send + Sync>;

impl Store {
    /// Serves the watches until the store is shut.
    pub(crate) async fn watch(self: Arc<Self>, mut orders: UnboundedReceiver<Arc<str>>) {
        let mut again = false;
        while self.open().is_ok() {
            let _ = self.stream(&mut orders, replace(&mut again, true)).await;
            self.state().forget_lines();
            sleep(BREATH).await;
        }
    }

    /// One stream from its opening to its end. `again`: after another one broke.
    async fn stream(self: &Arc<Self>, orders: &mut UnboundedReceiver<Arc<str>>, again: bool) -> Result<(), Broken> {
        let limit = self.cluster.config.limit;
        let options = |id| Some(WatchOptions::new().with_prefix().with_watch_id(id));
        let open = |client: Client| async move {
            client.watch_client().watch(self.keys.evictions(), options(EVICTIONS)).await
        };
        let (mut sender, mut stream) = self.cluster.ask(limit, open).await.outcome.map_err(Error::from)?.split();
        let mut moved = self.cluster.moved.subscribe();
        self.open()?;
        let (mut last, mut watches) = (EVICTIONS, HashMap::new());
        let (mut reads, mut tidy) = (FuturesUnordered::new(), interval(TIDY));
        loop {
            tokio::select! {
                message = stream.message() => {
                    let message = message?.ok_or("the end")?;
                    let id = message.watch_id();
                    let line: Option<&Arc<str>> = watches.get(&id);
                    // -1 stands for a watch that could not be opened; others are the farewell of one that we closed.
                    if message.canceled() && (line.is_some() || id <= EVICTIONS) {
                        return Err("a watch was cancelled".into());
                    }
                    if let Some(line) = line {
                        self.hear(line, &message);
                        reads.extend(message.created().then(|| self.read_line(line.clone())));
                    } else if id == EVICTIONS {
                        message.events().iter().filter_map(|event| event.kv()).for_each(|note| self.evicted(note));
                        if message.created() && again {
                            self.read_evictions().await?;
                            self.bells.everyone();
                        }
                    }
                }
                order = orders.recv() => {
                    let line = order.ok_or("nobody is left")?;
                    let is_new = self.state().lines.get_mut(&line).is_some_and(|line| !replace(&mut line.sent, true));
                    if is_new {
                        last += 1;
                        watches.insert(last, line.clone());
                        timeout(limit, sender.watch(&*line, options(last))).await??;
                    }
                }
                Some(read) = reads.next() => {
                    let (name, read) = read?;
                    let mut state = self.state();
                    let entry = |kv: &KeyValue| (kv.key().to_vec(), kv.create_revision(), mode(&name, kv));
                    if let Some(line) = state.lines.get_mut(&name) {
                        line.read(revision(read.header()), read.kvs().iter().map(entry));
                    }
                    self.tell(&mut state, &name);
                }
                _ = tidy.tick() => {
                    self.state().drop_idle_lines();
                    let over = |(id, line): (&i64, &Arc<str>)| (!self.state().lines.contains_key(line)).then_some(*id);
                    for id in watches.iter().filter_map(over).collect::<Vec<i64>>() {
                        watches.remove(&id);
                        timeout(limit, sender.cancel(id)).await??;
                    }
                }
                _ = moved.changed() => return Err("another connection is in use".into()),
            }
        }
    }

    async fn read_line(&self, line: Arc<str>) -> Result<(Arc<str>, GetResponse)> {
        let read = self.get(&*line, GetOptions::new().with_prefix()).await?;
        Ok((line, read))
    }

    /// Takes in what a line's watch says.
    fn hear(self: &Arc<Self>, name: &Arc<str>, message: &WatchResponse) {
        let mut state = self.state();
        let Some(line) = state.lines.get_mut(name) else { return };
        for (event, kv) in message.events().iter().filter_map(|event| Some((event, event.kv()?))) {
            let put = (event.event_type() == EventType::Put).then(|| (kv.create_revision(), mode(name, kv)));
            line.hear(Event { revision: kv.mod_revision(), key: kv.key().to_vec(), put });
        }
        self.tell(&mut state, name);
    }

    /// Tells those who are concerned what is new in the line.
    pub(crate) fn tell(self: &Arc<Self>, state: &mut State, line: &Arc<str>) {
        let Some(news) = state.lines.get_mut(line).map(Line::news) else { return };
        if news.wrong {
            self.cluster.moved.send_replace(());
        }
        if news.stirred && state.observed.contains_key(line) {
            self.keys.name_of(line).iter().for_each(|name| self.bells.stirred(name));
        }
        for (id, created) in news.granted {
            if let Some(entry) = state.claims.get_mut(&id).filter(|entry| entry.created == created) {
                entry.granted = true;
                self.bells.granted(id, entry.grant());
            }
        }
        for (id, created) in news.gone {
            if state.claims.get(&id).is_some_and(|entry| entry.granted) {
                tokio::spawn(self.clone().condemn(created));
            } else {
                self.bells.claim_again(id);
            }
        }
    }

    /// A hold was deleted: by an eviction, or else by hand.
    async fn condemn(self: Arc<Self>, created: i64) {
        let _ = self.read_evictions().await;
        self.end(created, Loss::Gone);
    }

    async fn read_evictions(&self) -> Result<()> {
        let notes = self.get(self.keys.evictions(), GetOptions::new().with_prefix().with_keys_only()).await?;
        notes.kvs().iter().for_each(|note| self.evicted(note));
        Ok(())
    }

    fn evicted(&self, note: &KeyValue) {
        let number = note.key_str().ok().and_then(|key| key.rsplit('/').next()?.parse().ok());
        number.into_iter().for_each(|created| self.end(created, Loss::Evicted));
    }

    /// The place with this number is no more.
    fn end(&self, created: i64, loss: Loss) {
        let mut state = self.state();
        let id = state.claims.iter().find(|(_, entry)| entry.created == created).map(|(id, _)| *id);
        if let Some(id) = id {
            state.vanished(id);
            self.bells.lost(id, loss);
        }
    }

    /// From now on until what it returns is dropped, changes of this name's holder are rung.
    pub(crate) fn observe(&self, name: &Name) -> Observing {
        let line = self.keys.line(name);
        let mut state = self.state();
        let observers = state.observed.get(&line).and_then(Weak::upgrade).unwrap_or_default();
        state.observed.insert(line.clone(), Arc::downgrade(&observers));
        state.watched(&line);
        self.bells.stirred(name);
        Observing::new(observers)
    }
}
