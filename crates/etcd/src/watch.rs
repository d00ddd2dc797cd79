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
use leasehold_core::seam::ClaimId;
use leasehold_core::{Error, Loss, Result};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{interval, sleep, timeout};

use crate::line::{Line, News};
use crate::store::{Store, revision};
use crate::table::State;

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
            self.state().lines.clear();
            sleep(BREATH).await;
        }
    }

    /// One stream from its opening to its end. `again`: after another one broke.
    async fn stream(self: &Arc<Self>, orders: &mut UnboundedReceiver<Arc<str>>, again: bool) -> Result<(), Broken> {
        let limit = self.cluster.limit;
        let options = |id, nothing| WatchOptions::new().with_prefix().with_watch_id(id).with_filters([nothing]);
        let open = |client: Client| async move {
            let options = options(EVICTIONS, WatchFilterType::NoDelete);
            client.watch_client().watch(self.keys.evictions(), Some(options)).await
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
                        self.hear(line, &message)?;
                        reads.extend(self.to_read(line));
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
                        let options = options(last, WatchFilterType::NoPut).with_prev_key();
                        timeout(limit, sender.watch(&*line, Some(options))).await??;
                    }
                    reads.extend(self.to_read(&line));
                }
                Some(read) = reads.next() => {
                    let (line, read) = read?;
                    let mut live: Vec<i64> = read.kvs().iter().map(KeyValue::create_revision).collect();
                    live.sort_unstable();
                    self.tell(&mut self.state(), &line, |line| line.read(revision(read.header()), &live));
                    reads.extend(self.to_read(&line));
                }
                _ = tidy.tick() => {
                    self.state().lines.retain(|_, line| !line.is_over());
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

    /// Reads this line, if that must be.
    fn to_read(&self, line: &Arc<str>) -> Option<impl Future<Output = Result<(Arc<str>, GetResponse)>> + use<'_>> {
        let mut state = self.state();
        state.lines.get_mut(line).filter(|line| line.must_be_read())?.reading = true;
        let line = line.clone();
        Some(async move {
            let read = self.get(&*line, GetOptions::new().with_prefix().with_keys_only()).await?;
            Ok((line, read))
        })
    }

    /// Takes in what a line's watch says.
    fn hear(self: &Arc<Self>, line: &Arc<str>, message: &WatchResponse) -> Result<(), Broken> {
        let mut state = self.state();
        let Some(known) = state.lines.get_mut(line) else { return Ok(()) };
        if message.created() {
            known.opened(revision(message.header()));
        }
        for event in message.events().iter().filter(|event| event.event_type() == EventType::Delete) {
            // Without its predecessor (etcd was compacted) it does not say who was deleted.
            let (event, deleted) = event.kv().zip(event.prev_kv()).ok_or("nobody is named")?;
            known.deleted(event.mod_revision(), deleted.create_revision());
            self.stirred(line);
        }
        self.tell(&mut state, line, Line::news);
        Ok(())
    }

    /// Tells those who are concerned what is new in the line.
    pub(crate) fn tell(
        self: &Arc<Self>,
        state: &mut State,
        line: &Arc<str>,
        look: impl FnOnce(&mut Line<ClaimId>) -> News<ClaimId>,
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
}
