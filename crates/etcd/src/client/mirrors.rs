//! The mirrors of one client, on one watch stream.
//!
//! A mirror is kept as long as it is followed, and a while longer. What happened before its watch stands is read once it
//! does. After any doubt the stream is opened anew, and all mirrors begin anew with it.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use etcd_client::{EventType, GetOptions, GetResponse, KeyValue, ResponseHeader, WatchResponse};
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::ErrorKind;
use leasehold_core::support::locked;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{interval, sleep};

use crate::client::cluster::{Cluster, oldest};
use crate::client::mirror::{Event, Mirror};
use crate::client::watch::{Broken, Range, Watch};

/// How long to wait before another stream is opened, or a read is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// How often one is read before the whole stream is in doubt, and how many are read at once.
const READS: u32 = 4;
const READING: usize = 32;
/// How often mirrors that are followed no more are given up, and how many are kept at most beside as many as are followed: each of
/// them is an event for each change, of which its client has no use unless it stands behind the same key again.
const CLEAN_UP: Duration = Duration::from_secs(10);
const SPARE: usize = 2;

/// The mirrors of prefixes and of single keys.
pub(crate) struct Mirrors<V> {
    cluster: Arc<Cluster>,
    /// What is kept of a value, in this folder of keys.
    value_of: fn(&str, &KeyValue) -> V,
    /// The one that is always kept. At first it shows only what is new; after a doubt, everything.
    pub(crate) always: Arc<SharedMirror<V>>,
    table: Mutex<Table<V>>,
    added: Notify,
    left: Notify,
    reading: Semaphore,
}

struct Table<V> {
    /// The stream has them, and their followers.
    mirrors: BTreeMap<Range, Weak<SharedMirror<V>>>,
    /// Those that are still to be watched.
    pending: Vec<Arc<SharedMirror<V>>>,
    /// With more mirrors than these, those that are followed no more are given up.
    most: usize,
}

/// A mirror that is kept.
#[derive(Debug)]
pub(crate) struct SharedMirror<V> {
    range: Range,
    mirror: Mutex<Mirror<V>>,
}

impl<V> Mirrors<V> {
    /// Nothing is watched before [`Mirrors::run`].
    pub(crate) fn new(cluster: Arc<Cluster>, value_of: fn(&str, &KeyValue) -> V, always: &str) -> Mirrors<V> {
        let always = Arc::new(SharedMirror::new(Range::Prefix(always.into()), Mirror::of_new_keys()));
        let table = Table { mirrors: BTreeMap::new(), pending: Vec::new(), most: SPARE };
        Mirrors {
            cluster,
            value_of,
            always,
            table: Mutex::new(table),
            added: Notify::new(),
            left: Notify::new(),
            reading: Semaphore::new(READING),
        }
    }

    /// The mirror of this range, which is kept at least until what this returns is dropped.
    pub(crate) fn follow(&self, range: Range) -> Arc<SharedMirror<V>> {
        let mut table = self.table();
        if let Some(known) = table.mirrors.get(&range).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(SharedMirror::new(range.clone(), Mirror::default()));
        table.mirrors.insert(range, Arc::downgrade(&new));
        table.pending.push(new.clone());
        self.added.notify_one();
        if table.mirrors.len() > table.most {
            // Not again before as many came as there are by then, or were left.
            table.most = usize::MAX;
            self.left.notify_one();
        }
        new
    }

    /// The same if there is one.
    pub(crate) fn get(&self, range: &Range) -> Option<Arc<SharedMirror<V>>> {
        self.table().mirrors.get(range)?.upgrade()
    }

    /// Keeps the mirrors until the cluster is shut, and reports the prefix or key of each that has changed.
    pub(crate) async fn run(&self, changed: impl Fn(&str)) {
        while self.cluster.open().is_ok() {
            let _ = self.stream(&changed).await;
            self.begin_anew();
            sleep(RETRY_DELAY).await;
        }
    }

    /// One stream from its opening to its end.
    async fn stream(&self, changed: impl Fn(&str)) -> Result<(), Broken> {
        let mut watch = self.cluster.watch(self.always.clone(), &self.always.range).await?;
        let (mut reads, mut clean_up) = (FuturesUnordered::new(), interval(CLEAN_UP));
        loop {
            tokio::select! {
                // First what has happened: whoever asks for more can wait for it.
                biased;
                next = watch.next() => {
                    let (mirror, message) = next?;
                    mirror.take_in(&message, self.value_of);
                    changed(mirror.range.text());
                    if message.created() && !mirror.lock().is_read() {
                        reads.push(self.read(mirror));
                    }
                }
                Some(read) = reads.next() => changed(read?.range.text()),
                () = self.added.notified() => {
                    let pending = take(&mut self.table().pending);
                    for mirror in pending {
                        let range = mirror.range.clone();
                        watch.add(mirror, &range).await?;
                    }
                }
                () = self.left.notified() => self.give_up(&mut watch).await?,
                _ = clean_up.tick() => self.give_up(&mut watch).await?,
            }
        }
    }

    /// One that fails is begun again by itself: the stream stands, and so do all other mirrors.
    async fn read(&self, mirror: Arc<SharedMirror<V>>) -> leasehold_core::Result<Arc<SharedMirror<V>>> {
        let mut left = READS;
        loop {
            let turn = self.reading.acquire().await;
            let options = match mirror.range {
                Range::Prefix(_) | Range::Turns(_) => oldest(0),
                Range::Key(_) | Range::End(_) => GetOptions::new(),
            };
            let read = self.cluster.get(&**mirror.range.text(), options).await;
            drop(turn);
            left -= 1;
            match read {
                Err(failure) if left == 0 || failure.kind != ErrorKind::Unavailable => return Err(failure.into()),
                Err(_) => sleep(RETRY_DELAY).await,
                Ok(read) => {
                    mirror.read(&read, self.value_of);
                    return Ok(mirror);
                }
            }
        }
    }

    /// Ends the watches of what is followed no more.
    pub(crate) fn clean_up(&self) {
        self.left.notify_one();
    }

    async fn give_up(&self, watch: &mut Watch<Arc<SharedMirror<V>>>) -> Result<(), Broken> {
        let ended = watch.retain(|mirror| self.is_followed(mirror)).await;
        let mut table = self.table();
        table.most = table.mirrors.len() * 2 + SPARE;
        ended
    }

    /// Whether it is followed: held by more than the stream. If not, it is found no more.
    fn is_followed(&self, mirror: &Arc<SharedMirror<V>>) -> bool {
        let mut table = self.table();
        let followed = Arc::strong_count(mirror) > 1;
        if !followed {
            table.mirrors.remove(&mirror.range);
        }
        followed
    }

    /// No watch stands any more: all mirrors that are followed are pending, and no others.
    fn begin_anew(&self) {
        let mut table = self.table();
        table.pending.clear();
        table.mirrors.retain(|_, mirror| mirror.strong_count() > 0);
        table.pending = table.mirrors.values().filter_map(Weak::upgrade).collect();
        table.most = table.mirrors.len() * 2 + SPARE;
        table.pending.iter().chain([&self.always]).for_each(|mirror| *mirror.lock() = Mirror::default());
        self.added.notify_one();
    }

    fn table(&self) -> MutexGuard<'_, Table<V>> {
        locked(&self.table)
    }
}

impl<V> SharedMirror<V> {
    pub(crate) fn new(range: Range, mirror: Mirror<V>) -> SharedMirror<V> {
        SharedMirror { range, mirror: Mutex::new(mirror) }
    }

    /// What it shows now; it does not change meanwhile.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Mirror<V>> {
        locked(&self.mirror)
    }

    /// What the names of its keys have in common, up to a `/`.
    fn folder(&self) -> &str {
        let text = self.range.text();
        &text[..text.rfind('/').map_or(0, |at| at + 1)]
    }

    /// Takes in all that happened at a revision before the mirror can be read.
    fn take_in(&self, message: &WatchResponse, value_of: fn(&str, &KeyValue) -> V) {
        let mut mirror = self.lock();
        for (event, kv) in message.events().iter().filter_map(|event| Some((event, event.kv()?))) {
            let put =
                (event.event_type() == EventType::Put).then(|| (kv.create_revision(), value_of(self.folder(), kv)));
            mirror.take_in(Event { revision: kv.mod_revision(), key: kv.key().to_vec(), put });
        }
    }

    fn read(&self, read: &GetResponse, value_of: fn(&str, &KeyValue) -> V) {
        let entry =
            |kv: &KeyValue| (kv.key().to_vec(), kv.create_revision(), kv.mod_revision(), value_of(self.folder(), kv));
        self.lock().read(read.header().map_or(0, ResponseHeader::revision), read.kvs().iter().map(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn mirrors() -> Mirrors<i64> {
        Mirrors::new(Cluster::new(Config::from_url("etcd://localhost").unwrap()), |_, kv| kv.version(), "always/")
    }

    fn prefix(text: &str) -> Range {
        Range::Prefix(text.into())
    }

    #[test]
    fn a_mirror_is_watched_once_and_given_up_when_it_is_followed_no_more() {
        let (mirrors, range) = (mirrors(), prefix("a/"));
        let mine = mirrors.follow(range.clone());
        assert!(Arc::ptr_eq(&mine, &mirrors.follow(range.clone())));
        assert!(mirrors.get(&Range::Key("a/".into())).is_none(), "one key is another range than all below it");
        let watched = take(&mut mirrors.table().pending);
        assert!(watched.len() == 1 && mirrors.is_followed(&watched[0]));
        drop(mine);
        let again = mirrors.follow(range.clone());
        assert!(Arc::ptr_eq(&again, &watched[0]), "the stream still has it");
        drop(again);
        assert!(!mirrors.is_followed(&watched[0]) && mirrors.get(&range).is_none());
        assert!(!Arc::ptr_eq(&mirrors.follow(range), &watched[0]), "events of the old watch meet no new mirror");
        assert!(mirrors.is_followed(&mirrors.always.clone()));
    }

    #[test]
    fn after_a_stream_all_that_is_followed_begins_anew_and_nothing_else() {
        let mirrors = mirrors();
        assert!(mirrors.always.lock().is_read(), "only new keys matter");
        let [followed, pending, watched] =
            ["followed/", "pending/", "watched/"].map(|name| mirrors.follow(prefix(name)));
        followed.lock().read(7, [(vec![1], 5, 5, 1)].into_iter());
        mirrors.table().pending.retain(|mirror| !Arc::ptr_eq(mirror, &watched));
        drop((pending, watched));
        mirrors.begin_anew();
        let pending = take(&mut mirrors.table().pending);
        assert!(pending.len() == 1 && Arc::ptr_eq(&pending[0], &followed));
        assert!(!followed.lock().is_read() && followed.lock().keys.is_empty() && !mirrors.always.lock().is_read());
        assert!(mirrors.get(&prefix("pending/")).is_none() && mirrors.get(&prefix("watched/")).is_none());
    }
}
