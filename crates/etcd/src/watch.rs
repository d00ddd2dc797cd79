//! The one watch stream of a client: it carries the evictions and the lines that the client waits in, and rings.
//!
//! Each watch starts *now*. One that starts at a past revision is served by etcd in rounds of 100 ms. What happened before
//! is read once the watch stands. After any doubt the stream is opened anew, and everybody claims again.
//!
//! Whoever evicts a hold notes its create_revision under the holder's lease, in the same transaction: see `names`.

use std::collections::HashMap;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, EventType, GetOptions, GetResponse, KeyValue, WatchFilterType, WatchOptions, WatchResponse};
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::Loss;
use leasehold_core::seam::{ClaimId, Moment};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{interval, sleep, timeout};

use crate::error::Failure;
use crate::line::News;
use crate::store::{Store, revision};
use crate::table::{State, Watched};

/// How long to wait before another stream is opened.
const BREATH: Duration = Duration::from_millis(200);
/// How often lines are looked over in which nobody waits.
const TIDY: Duration = Duration::from_secs(1);
/// The number of the evictions' watch; those of lines follow.
const EVICTIONS: i64 = 1;

/// The stream ended, or must be opened anew.
struct Broken;

impl<E: std::error::Error> From<E> for Broken {
    fn from(_: E) -> Broken {
        Broken
    }
}

impl Store {
    /// Serves the watches until the task is aborted.
    pub(crate) async fn watch(self: Arc<Self>, mut orders: UnboundedReceiver<Arc<str>>) {
        let mut again = false;
        while self.stream(&mut orders, again).await.is_err() {
            again = true;
            self.state().lines.clear();
            sleep(BREATH).await;
        }
    }

    /// One stream from its opening to its end. `again`: after another one broke. `Ok` when nothing can be wanted any more.
    async fn stream(self: &Arc<Self>, orders: &mut UnboundedReceiver<Arc<str>>, again: bool) -> Result<(), Broken> {
        let limit = self.cluster.limit;
        let open = |client: Client| async move {
            let options = WatchOptions::new().with_prefix().with_filters([WatchFilterType::NoDelete]);
            client.watch_client().watch(self.keys.evictions(), Some(options.with_watch_id(EVICTIONS))).await
        };
        let opened = self.cluster.ask(limit, open).await.outcome.map_err(|_| Broken)?;
        let (mut sender, mut stream) = opened.split();
        let mut moved = self.cluster.moved.subscribe();
        let (mut last, mut watches) = (EVICTIONS, HashMap::new());
        let (mut reads, mut tidy) = (FuturesUnordered::new(), interval(TIDY));
        loop {
            tokio::select! {
                message = stream.message() => {
                    let message = message?.ok_or(Broken)?;
                    let id = message.watch_id();
                    let line: Option<&Arc<str>> = watches.get(&id);
                    // -1 stands for a watch that could not be opened; others are the farewell of one that we closed.
                    if message.canceled() && (line.is_some() || id <= EVICTIONS) {
                        return Err(Broken);
                    }
                    if let Some(line) = line {
                        self.hear(line, &message)?;
                        reads.extend(self.to_read(line));
                    } else if id == EVICTIONS {
                        message.events().iter().filter_map(|event| event.kv()).for_each(|note| self.evicted(note));
                        if message.created() && again {
                            self.read_evictions().await.map_err(|_| Broken)?;
                            self.bells.everyone();
                        }
                    }
                }
                order = orders.recv() => {
                    let Some(line) = order else { return Ok(()) };
                    let is_new = self.state().lines.get_mut(&line).is_some_and(|watched| !replace(&mut watched.sent, true));
                    if is_new {
                        last += 1;
                        watches.insert(last, line.clone());
                        let options = WatchOptions::new().with_prefix().with_prev_key().with_watch_id(last);
                        let options = options.with_filters([WatchFilterType::NoPut]);
                        timeout(limit, sender.watch(&*line, Some(options))).await??;
                    }
                    reads.extend(self.to_read(&line));
                }
                Some((line, read)) = reads.next() => {
                    let read: GetResponse = read.map_err(|_: Failure| Broken)?;
                    let mut live: Vec<i64> = read.kvs().iter().map(KeyValue::create_revision).collect();
                    live.sort_unstable();
                    self.tell(&mut self.state(), &line, |watched| {
                        watched.reading = false;
                        watched.line.read(revision(read.header()), &live)
                    });
                    reads.extend(self.to_read(&line));
                }
                _ = tidy.tick() => {
                    let idle: Vec<i64> =
                        watches.iter().filter(|(_, line)| self.state().is_idle(line)).map(|(id, _)| *id).collect();
                    for id in idle {
                        watches.remove(&id);
                        timeout(limit, sender.cancel(id)).await??;
                    }
                }
                _ = moved.changed() => return Err(Broken),
            }
        }
    }

    /// Reads this line, if that must be.
    fn to_read(
        &self,
        line: &Arc<str>,
    ) -> Option<impl Future<Output = (Arc<str>, Result<GetResponse, Failure>)> + use<'_>> {
        let mut state = self.state();
        let watched = state.lines.get_mut(line).filter(|watched| !watched.reading && watched.line.must_be_read())?;
        watched.reading = true;
        let line = line.clone();
        Some(async move {
            let read = self.get(&*line, GetOptions::new().with_prefix().with_keys_only()).await;
            (line, read)
        })
    }

    /// Takes in what a line's watch says.
    fn hear(self: &Arc<Self>, line: &Arc<str>, message: &WatchResponse) -> Result<(), Broken> {
        let mut state = self.state();
        let Some(watched) = state.lines.get_mut(line) else { return Ok(()) };
        if message.created() {
            watched.line.opened(revision(message.header()));
        }
        for event in message.events().iter().filter(|event| event.event_type() == EventType::Delete) {
            // Without its predecessor (etcd was compacted) it does not say who was deleted.
            let (event, deleted) = event.kv().zip(event.prev_kv()).ok_or(Broken)?;
            watched.line.deleted(event.mod_revision(), deleted.create_revision());
            self.bells.stirred(&watched.name);
        }
        self.tell(&mut state, line, |watched| watched.line.news());
        Ok(())
    }

    /// Tells those who are concerned what is new in the line.
    pub(crate) fn tell(
        self: &Arc<Self>,
        state: &mut State,
        line: &Arc<str>,
        look: impl FnOnce(&mut Watched) -> News<ClaimId>,
    ) {
        let Some(news) = state.lines.get_mut(line).map(look) else { return };
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

    async fn read_evictions(&self) -> Result<(), Failure> {
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
}

impl State {
    /// Says whether this line was let go because nobody has waited in it for a while.
    fn is_idle(&mut self, line: &Arc<str>) -> bool {
        let Some(watched) = self.lines.get_mut(line) else { return true };
        let now = Moment::now();
        if watched.line.is_waited_in() {
            watched.waited = now;
        }
        let idle = now.since(watched.waited) > watched.lingers;
        if idle {
            self.lines.remove(line);
        }
        idle
    }
}
