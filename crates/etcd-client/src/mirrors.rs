//! The mirrors of one client, on one watch stream.
//!
//! A mirror is kept as long as somebody has it, and a while longer. What happened before its watch stands is read once it
//! does. After any doubt the stream is opened anew, and all mirrors begin anew with it.

use std::collections::HashMap;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use etcd_client::{EventType, GetResponse, KeyValue, ResponseHeader, WatchResponse};
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::ErrorKind;
use leasehold_core::seam::locked;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{interval, sleep};

use crate::cluster::{Cluster, oldest};
use crate::mirror::{Event, Mirror};
use crate::watch::Broken;

/// How long to wait before another stream is opened.
const BREATH: Duration = Duration::from_millis(200);
/// How often a prefix is read before the whole stream is in doubt, and how many are read at once.
const READS: u32 = 4;
const READING: usize = 32;
/// How often mirrors that nobody has are given up.
const TIDY: Duration = Duration::from_secs(10);

/// The mirrors of prefixes.
#[derive(Debug)]
pub struct Mirrors<V> {
    cluster: Arc<Cluster>,
    /// What is kept of a value under this prefix.
    keep: fn(&str, &KeyValue) -> V,
    /// The one that is always kept. At first it shows only what has come since; after a doubt, everything.
    pub always: Arc<Mirrored<V>>,
    table: Mutex<Table<V>>,
    ordered: Notify,
    reading: Semaphore,
}

#[derive(Debug)]
struct Table<V> {
    /// By prefix. The stream has them, and who follows.
    mirrors: HashMap<Arc<str>, Weak<Mirrored<V>>>,
    /// These are to be watched.
    orders: Vec<Arc<Mirrored<V>>>,
}

/// A mirror that is kept.
#[derive(Debug)]
pub struct Mirrored<V> {
    prefix: Arc<str>,
    mirror: Mutex<Mirror<V>>,
}

impl<V> Mirrors<V> {
    /// Nothing is watched before [`Mirrors::run`].
    pub fn new(cluster: Arc<Cluster>, keep: fn(&str, &KeyValue) -> V, always: &str) -> Mirrors<V> {
        let always = Arc::new(Mirrored { prefix: always.into(), mirror: Mutex::new(Mirror::of_what_comes()) });
        let table = Table { mirrors: HashMap::new(), orders: Vec::new() };
        Mirrors {
            cluster,
            keep,
            always,
            table: Mutex::new(table),
            ordered: Notify::new(),
            reading: Semaphore::new(READING),
        }
    }

    /// The mirror of this prefix, which is kept at least until what this returns is dropped.
    pub fn follow(&self, prefix: &Arc<str>) -> Arc<Mirrored<V>> {
        let mut table = self.table();
        if let Some(known) = table.mirrors.get(prefix).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(Mirrored { prefix: prefix.clone(), mirror: Mutex::default() });
        table.mirrors.insert(prefix.clone(), Arc::downgrade(&new));
        table.orders.push(new.clone());
        self.ordered.notify_one();
        new
    }

    /// The same if there is one.
    pub fn get(&self, prefix: &str) -> Option<Arc<Mirrored<V>>> {
        self.table().mirrors.get(prefix)?.upgrade()
    }

    /// Keeps the mirrors until the cluster is shut, and tells the prefix of each that has changed.
    pub async fn run(&self, changed: impl Fn(&str)) {
        while self.cluster.open().is_ok() {
            let _ = self.stream(&changed).await;
            self.begin_anew();
            sleep(BREATH).await;
        }
    }

    /// One stream from its opening to its end.
    async fn stream(&self, changed: impl Fn(&str)) -> Result<(), Broken> {
        let mut watch = self.cluster.watch(self.always.clone(), &self.always.prefix).await?;
        let (mut reads, mut tidy) = (FuturesUnordered::new(), interval(TIDY));
        loop {
            tokio::select! {
                said = watch.next() => {
                    let (mirror, message) = said?;
                    mirror.hear(&message, self.keep);
                    changed(&mirror.prefix);
                    if message.created() && !mirror.look().is_read() {
                        reads.push(self.read(mirror));
                    }
                }
                Some(read) = reads.next() => changed(&read?.prefix),
                () = self.ordered.notified() => {
                    let orders = take(&mut self.table().orders);
                    for mirror in orders {
                        let prefix = mirror.prefix.clone();
                        watch.add(mirror, &prefix).await?;
                    }
                }
                _ = tidy.tick() => watch.retain(|mirror| self.is_wanted(mirror)).await?,
            }
        }
    }

    /// One that fails is begun again by itself: the stream stands, and so do all other mirrors.
    async fn read(&self, mirror: Arc<Mirrored<V>>) -> leasehold_core::Result<Arc<Mirrored<V>>> {
        let mut left = READS;
        loop {
            let turn = self.reading.acquire().await;
            let read = self.cluster.get(&*mirror.prefix, oldest(0)).await;
            drop(turn);
            left -= 1;
            match read {
                Err(failure) if left == 0 || !failure.is(ErrorKind::Unavailable) => return Err(failure.into()),
                Err(_) => sleep(BREATH).await,
                Ok(read) => {
                    mirror.read(&read, self.keep);
                    return Ok(mirror);
                }
            }
        }
    }

    /// Whether anybody but the stream has it. If not, nobody gets it any more.
    fn is_wanted(&self, mirror: &Arc<Mirrored<V>>) -> bool {
        let mut table = self.table();
        let wanted = Arc::strong_count(mirror) > 1;
        if !wanted {
            table.mirrors.remove(&mirror.prefix);
        }
        wanted
    }

    /// No watch stands any more: all mirrors that anybody has are ordered, and no other order is left.
    fn begin_anew(&self) {
        let mut table = self.table();
        table.orders.clear();
        table.mirrors.retain(|_, mirror| mirror.strong_count() > 0);
        table.orders = table.mirrors.values().filter_map(Weak::upgrade).collect();
        table.orders.iter().chain([&self.always]).for_each(|mirror| *mirror.look() = Mirror::default());
        self.ordered.notify_one();
    }

    fn table(&self) -> MutexGuard<'_, Table<V>> {
        locked(&self.table)
    }
}

impl<V> Mirrored<V> {
    /// What it shows now.
    pub fn look(&self) -> MutexGuard<'_, Mirror<V>> {
        locked(&self.mirror)
    }

    /// Takes in all that happened at a revision before anybody looks.
    fn hear(&self, message: &WatchResponse, keep: fn(&str, &KeyValue) -> V) {
        let mut mirror = self.look();
        for (event, kv) in message.events().iter().filter_map(|event| Some((event, event.kv()?))) {
            let put = (event.event_type() == EventType::Put).then(|| (kv.create_revision(), keep(&self.prefix, kv)));
            mirror.hear(Event { revision: kv.mod_revision(), key: kv.key().to_vec(), put });
        }
    }

    fn read(&self, read: &GetResponse, keep: fn(&str, &KeyValue) -> V) {
        let entry =
            |kv: &KeyValue| (kv.key().to_vec(), kv.create_revision(), kv.mod_revision(), keep(&self.prefix, kv));
        self.look().read(read.header().map_or(0, ResponseHeader::revision), read.kvs().iter().map(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn mirrors() -> Mirrors<i64> {
        Mirrors::new(Cluster::new(Config::parse("etcd://localhost").unwrap()), |_, kv| kv.version(), "always/")
    }

    #[test]
    fn a_mirror_is_ordered_once_and_given_up_when_nobody_has_it() {
        let (mirrors, prefix) = (mirrors(), Arc::from("a/"));
        let mine = mirrors.follow(&prefix);
        assert!(Arc::ptr_eq(&mine, &mirrors.follow(&prefix)));
        let watched = take(&mut mirrors.table().orders);
        assert!(watched.len() == 1 && mirrors.is_wanted(&watched[0]));
        drop(mine);
        let again = mirrors.follow(&prefix);
        assert!(Arc::ptr_eq(&again, &watched[0]), "the stream still has it");
        drop(again);
        assert!(!mirrors.is_wanted(&watched[0]) && mirrors.get("a/").is_none());
        assert!(!Arc::ptr_eq(&mirrors.follow(&prefix), &watched[0]), "what the old watch says meets no new mirror");
        assert!(mirrors.is_wanted(&mirrors.always.clone()));
    }

    #[test]
    fn after_a_stream_all_that_somebody_has_begins_anew_and_nothing_else() {
        let mirrors = mirrors();
        assert!(mirrors.always.look().is_read(), "only what comes matters");
        let [wanted, ordered, watched] =
            ["wanted/", "ordered/", "watched/"].map(|prefix| mirrors.follow(&prefix.into()));
        wanted.look().read(7, [(vec![1], 5, 5, 1)].into_iter());
        mirrors.table().orders.retain(|mirror| !Arc::ptr_eq(mirror, &watched));
        drop((ordered, watched));
        mirrors.begin_anew();
        let orders = take(&mut mirrors.table().orders);
        assert!(orders.len() == 1 && Arc::ptr_eq(&orders[0], &wanted));
        assert!(!wanted.look().is_read() && wanted.look().entries().is_empty() && !mirrors.always.look().is_read());
        assert!(mirrors.get("ordered/").is_none() && mirrors.get("watched/").is_none());
    }
}
