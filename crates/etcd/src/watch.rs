//! The one watch stream of a client: it carries the lines that the client waits in and its sessions' keys, and rings.
//!
//! Each watch starts *now*. One that starts at a past revision is served by etcd in rounds of 100 ms. What happened before
//! is read once the watch stands; only then is a count believed.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use etcd_client::{EventType, GetOptions, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse};
use leasehold_core::Loss;
use leasehold_core::seam::{ClaimId, Grant};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::claim::READ;
use crate::session::Session;
use crate::store::{BREATH, Store, by_age, revision};
use crate::table::{Entry, State, Wanted};

/// How long the watcher waits for word of an eviction before it calls a deletion one.
const VERDICT: Duration = Duration::from_millis(20);
/// How often lines are looked over in which nobody waits.
const TIDY: Duration = Duration::from_secs(1);

/// What is rung once the table is unlocked.
pub(crate) enum Ring {
    Granted(ClaimId, Grant),
    Lost(ClaimId, Loss),
}

/// The stream ended, or must be opened anew.
struct Broken;

impl<E: std::error::Error> From<E> for Broken {
    fn from(_: E) -> Broken {
        Broken
    }
}

impl Store {
    /// Serves the watches until the task is aborted.
    pub(crate) async fn watch(self: Arc<Self>, mut orders: UnboundedReceiver<i64>) {
        let mut again = false;
        loop {
            while self.state().wanted.is_empty() {
                again = false;
                if orders.recv().await.is_none() {
                    return;
                }
            }
            let _ = self.stream(&mut orders, again).await;
            again = true;
            self.state().lines.values_mut().for_each(|watched| watched.line.closed());
            sleep(BREATH).await;
        }
    }

    /// One stream from its opening to its end. `reopened`: after another one broke.
    async fn stream(self: &Arc<Self>, orders: &mut UnboundedReceiver<i64>, reopened: bool) -> Result<(), Broken> {
        let mut again = reopened;
        let mut first: Vec<i64> = self.state().wanted.keys().copied().collect();
        let Some((key, options)) = first.first().and_then(|watch| self.request(*watch)) else { return Ok(()) };
        let open = |client: etcd_client::Client| async move { client.watch_client().watch(key, Some(options)).await };
        let (mut sender, mut stream) = self.cluster.open(open).await.ok_or(Broken)?.split();
        let mut moved = self.cluster.moved();
        let mut sent = HashSet::from([first.swap_remove(0)]);
        let mut standing = HashSet::new();
        for watch in first {
            self.send(&mut sender, watch, &mut sent).await?;
        }
        let mut deleted: Vec<(ClaimId, i64)> = Vec::new();
        let (mut verdict, mut tidy) = (Instant::now(), Instant::now() + TIDY);
        loop {
            tokio::select! {
                message = stream.message() => {
                    let message = message?.ok_or(Broken)?;
                    if message.created() && !message.canceled() {
                        standing.insert(message.watch_id());
                        if again && sent.is_subset(&standing) {
                            again = false;
                            self.bells.everyone();
                        }
                    }
                    let more = self.hear(&message, reopened)?;
                    if !more.is_empty() {
                        verdict = Instant::now() + VERDICT;
                        deleted.extend(more);
                    }
                }
                order = orders.recv() => {
                    let watch = order.ok_or(Broken)?;
                    self.send(&mut sender, watch, &mut sent).await?;
                }
                () = sleep_until(verdict), if !deleted.is_empty() => self.condemn(&mut deleted),
                () = sleep_until(tidy) => {
                    tidy = Instant::now() + TIDY;
                    self.state().tidy();
                }
                _ = moved.changed() => return Err(Broken),
            }
        }
    }

    /// Opens a watch that is wanted, closes one that is not.
    async fn send(&self, sender: &mut WatchRequestSender, watch: i64, sent: &mut HashSet<i64>) -> Result<(), Broken> {
        let limit = self.cluster.limit;
        match self.request(watch) {
            Some((key, options)) if sent.insert(watch) => timeout(limit, sender.watch(key, Some(options))).await??,
            None if sent.remove(&watch) => timeout(limit, sender.cancel(watch)).await??,
            _ => {}
        }
        Ok(())
    }

    fn request(&self, watch: i64) -> Option<(Vec<u8>, WatchOptions)> {
        let options = WatchOptions::new().with_watch_id(watch);
        Some(match self.state().wanted.get(&watch)? {
            Wanted::Line(line) => {
                let options = options.with_prefix().with_prev_key().with_filters([WatchFilterType::NoPut]);
                (line.as_bytes().to_vec(), options)
            }
            Wanted::Session(session) => {
                (session.key.clone().into_bytes(), options.with_filters([WatchFilterType::NoDelete]))
            }
        })
    }

    /// Takes in one message. Answers which holds were deleted: (claim, create_revision).
    fn hear(self: &Arc<Self>, message: &WatchResponse, reopened: bool) -> Result<Vec<(ClaimId, i64)>, Broken> {
        let mut rings = Vec::new();
        let mut holds = Vec::new();
        {
            let mut state = self.state();
            let Some(wanted) = state.wanted.get(&message.watch_id()).cloned() else {
                // The farewell of a watch that we closed; -1 stands for one that could not be opened.
                return if message.watch_id() < 0 && message.canceled() { Err(Broken) } else { Ok(holds) };
            };
            if message.canceled() {
                return Err(Broken);
            }
            match wanted {
                Wanted::Session(session) => {
                    if message.created() && reopened {
                        tokio::spawn(self.clone().catch_up(session.clone()));
                    }
                    for event in message.events().iter().filter_map(etcd_client::Event::kv) {
                        session.epoch.fetch_max(event.version(), SeqCst);
                        session.heard.fetch_max(event.version(), SeqCst);
                        let evicted = event.value_str().ok().and_then(|value| value.parse::<i64>().ok());
                        let of = |entry: &Entry| entry.session.lease == session.lease && Some(entry.created) == evicted;
                        let id = state.claims.iter().find(|(_, entry)| of(entry)).map(|(id, _)| *id);
                        if let Some(id) = id {
                            state.vanished(id);
                            rings.push(Ring::Lost(id, Loss::Evicted));
                        }
                    }
                }
                Wanted::Line(key) => {
                    let Some(watched) = state.lines.get_mut(&key) else { return Ok(holds) };
                    if message.created() {
                        watched.line.opened(revision(message.header()));
                    }
                    let mut events = message.events().iter().filter(|e| e.event_type() == EventType::Delete).peekable();
                    if events.peek().is_some() {
                        self.bells.stirred(&watched.name);
                    }
                    // The deletions of one revision count together.
                    while let Some(at) =
                        events.peek().and_then(|event| event.kv()).map(etcd_client::KeyValue::mod_revision)
                    {
                        let Some(watched) = state.lines.get_mut(&key) else { break };
                        while let Some(event) = events.next_if(|e| e.kv().is_some_and(|kv| kv.mod_revision() == at)) {
                            watched.line.deleted(at, event.prev_kv().map(etcd_client::KeyValue::create_revision));
                        }
                        rings.extend(self.take_stock(&mut state, &key, &mut holds));
                    }
                    rings.extend(self.take_stock(&mut state, &key, &mut holds));
                }
            }
        }
        self.ring(rings);
        Ok(holds)
    }

    /// Looks whether there was an eviction while this session's key was not watched, and who was evicted.
    async fn catch_up(self: Arc<Self>, session: Arc<Session>) {
        let Ok(current) = self.get(&*session.key, GetOptions::new()).await else { return };
        let Some(current) = current.kvs().first() else { return };
        if session.heard.fetch_max(current.version(), SeqCst) >= current.version() {
            return;
        }
        let holds = self.state().holds(&session);
        for (id, entry) in holds {
            let Ok(read) = self.get(&*entry.key, GetOptions::new().with_keys_only()).await else { continue };
            if read.kvs().first().is_none_or(|key| key.create_revision() != entry.created) {
                self.condemn(&mut vec![(id, entry.created)]);
            }
        }
    }

    /// No word of an eviction came: somebody deleted these holds by hand.
    fn condemn(&self, deleted: &mut Vec<(ClaimId, i64)>) {
        let mut lost = Vec::new();
        {
            let mut state = self.state();
            for (id, created) in deleted.drain(..) {
                if state.claims.get(&id).is_some_and(|entry| entry.created == created) {
                    state.vanished(id);
                    lost.push(Ring::Lost(id, Loss::Gone));
                }
            }
        }
        self.ring(lost);
    }

    /// What a look at this line brings.
    pub(crate) fn news(self: &Arc<Self>, state: &mut State, key: &Arc<str>) -> Vec<Ring> {
        self.take_stock(state, key, &mut Vec::new())
    }

    fn take_stock(self: &Arc<Self>, state: &mut State, key: &Arc<str>, holds: &mut Vec<(ClaimId, i64)>) -> Vec<Ring> {
        let Some(watched) = state.lines.get_mut(key) else { return vec![] };
        let news = watched.line.news();
        if news.read && !watched.reading {
            watched.reading = true;
            tokio::spawn(self.clone().settle(key.clone()));
        }
        let mut rings = Vec::new();
        for (id, created) in news.granted {
            if let Some(entry) = state.claims.get_mut(&id).filter(|entry| entry.created == created) {
                entry.granted = true;
                rings.push(Ring::Granted(id, entry.grant()));
            }
        }
        for id in news.gone {
            state.vanished(id);
            rings.push(Ring::Lost(id, Loss::Gone));
        }
        holds.extend(news.deleted);
        rings
    }

    /// Reads a line until all who wait in it are settled.
    async fn settle(self: Arc<Self>, key: Arc<str>) {
        while self.open().is_ok() {
            let Some(youngest) = self.state().lines.get(&key).and_then(|watched| watched.line.youngest()) else {
                break;
            };
            let options = by_age(READ).with_keys_only().with_max_create_revision(youngest);
            let read = self.get(&*key, options).await;
            let Ok(read) = read else {
                sleep(BREATH).await;
                continue;
            };
            let oldest: Vec<i64> = read.kvs().iter().map(etcd_client::KeyValue::create_revision).collect();
            let mut rings = Vec::new();
            {
                let mut state = self.state();
                let Some(watched) = state.lines.get_mut(&key) else { return };
                for id in watched.line.read(revision(read.header()), youngest, &oldest, !read.more()) {
                    state.vanished(id);
                    rings.push(Ring::Lost(id, Loss::Gone));
                }
                if let Some(watched) = state.lines.get_mut(&key) {
                    watched.reading = false;
                }
                rings.extend(self.take_stock(&mut state, &key, &mut Vec::new()));
            }
            self.ring(rings);
            return;
        }
        if let Some(watched) = self.state().lines.get_mut(&key) {
            watched.reading = false;
        }
    }

    pub(crate) fn ring(&self, rings: Vec<Ring>) {
        for ring in rings {
            match ring {
                Ring::Granted(id, grant) => self.bells.granted(id, grant),
                Ring::Lost(id, loss) => self.bells.lost(id, loss),
            }
        }
    }
}
