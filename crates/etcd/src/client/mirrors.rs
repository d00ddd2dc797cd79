//! The mirrors of one client, on one watch stream.
//!
//! A table maps each watched range to its mirror. A mirror is kept as long as it is followed, and a
//! while longer. Once its watch has started, the keys from before are read. After any doubt the
//! stream is opened anew, and all mirrors start empty with it.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use etcd_client::{EventType, GetOptions, GetResponse, KeyValue, ResponseHeader, WatchResponse};
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::support::{Signal, locked};
use leasehold_core::{Error, ErrorKind};
use tokio::sync::Semaphore;
use tokio::time::{interval, sleep};

use crate::client::cluster::{Cluster, oldest};
use crate::client::mirror::{Event, Mirror};
use crate::client::watch::{Broken, Range, Watch};

/// The delay before another stream is opened, or a read is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// The number of reads of one mirror before the whole stream is in doubt, and the number of mirrors
/// that are read at once.
const READS: u32 = 4;
const READING: usize = 32;
/// The interval at which mirrors without followers are given up.
const CLEAN_UP: Duration = Duration::from_secs(10);
/// The number of mirrors without followers that are kept, beyond one for each mirror that has
/// followers. Each of them costs an event for each change, which is of use only if the client waits
/// behind the same key again.
const SPARE: usize = 2;

const ANOTHER: &str = "another runtime has a stream";

/// The mirrors of prefixes and of single keys.
pub(crate) struct Mirrors<V> {
    cluster: Arc<Cluster>,
    /// Returns the part of a value to keep, given the folder of its key.
    value_of: fn(&str, &KeyValue) -> V,
    /// The mirror that is always kept. At first it shows only new keys; after a doubt, all.
    pub(crate) always: Arc<SharedMirror<V>>,
    table: Mutex<Table<V>>,
    /// The number of the latest stream. Another runtime may have an earlier one, which changes
    /// nothing any more.
    latest: AtomicU64,
    added: Signal,
    left: Signal,
    reading: Semaphore,
}

struct Table<V> {
    /// The stream and the followers own the mirrors.
    mirrors: BTreeMap<Range, Weak<SharedMirror<V>>>,
    /// The mirrors whose watches are still to be started.
    pending: Vec<Arc<SharedMirror<V>>>,
    /// With more mirrors than this, the ones without followers are given up.
    most: usize,
}

/// A mirror that the stream and its followers share.
#[derive(Debug)]
pub(crate) struct SharedMirror<V> {
    range: Range,
    mirror: Mutex<Mirror<V>>,
}

impl<V> Mirrors<V> {
    /// Creates the table. Nothing is watched before [`Mirrors::run`].
    pub(crate) fn new(
        cluster: Arc<Cluster>,
        value_of: fn(&str, &KeyValue) -> V,
        always: &str,
    ) -> Mirrors<V> {
        let always = Arc::new(SharedMirror::new(
            Range::Prefix(always.into()),
            Mirror::of_new_keys(),
        ));
        let table = Table {
            mirrors: BTreeMap::new(),
            pending: Vec::new(),
            most: SPARE,
        };
        Mirrors {
            cluster,
            value_of,
            always,
            table: Mutex::new(table),
            latest: AtomicU64::new(0),
            added: Signal::default(),
            left: Signal::default(),
            reading: Semaphore::new(READING),
        }
    }

    /// Returns the mirror of this range, which is kept at least until the returned value is
    /// dropped.
    pub(crate) fn follow(&self, range: Range) -> Arc<SharedMirror<V>> {
        let mut table = self.table();
        if let Some(known) = table.mirrors.get(&range).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(SharedMirror::new(range.clone(), Mirror::default()));
        table.mirrors.insert(range, Arc::downgrade(&new));
        table.pending.push(new.clone());
        self.added.notify();
        if table.mirrors.len() > table.most {
            // No further clean-up is asked for until [`Mirrors::give_up`] has set the limit anew,
            // to about twice the mirrors that are left.
            table.most = usize::MAX;
            self.left.notify();
        }
        new
    }

    /// Returns the mirror of this range, if there is one.
    pub(crate) fn get(&self, range: &Range) -> Option<Arc<SharedMirror<V>>> {
        self.table().mirrors.get(range)?.upgrade()
    }

    /// Keeps the mirrors until the cluster is shut, and reports the prefix or key of each mirror
    /// that has changed. `anew`: another runtime did so before.
    pub(crate) async fn run(&self, anew: bool, changed: impl Fn(&str)) {
        let mut nth = self.latest.load(SeqCst);
        if anew {
            nth = self.begin_anew();
        }
        while self.cluster.open().is_ok() {
            let _ = self.stream(nth, &changed).await;
            if !self.is_latest(nth) {
                return;
            }
            nth = self.begin_anew();
            sleep(RETRY_DELAY).await;
        }
    }

    fn is_latest(&self, nth: u64) -> bool {
        self.latest.load(SeqCst) == nth
    }

    /// One stream from its opening to its end.
    async fn stream(&self, nth: u64, changed: impl Fn(&str)) -> Result<(), Broken> {
        let mut watch = self
            .cluster
            .watch(self.always.clone(), &self.always.range)
            .await?;
        let mut reads = FuturesUnordered::new();
        let mut clean_up = interval(CLEAN_UP);
        let (mut added, mut left) = (self.added.listen(), self.left.listen());
        loop {
            tokio::select! {
                // Events come first: a caller that asks for more can wait for it.
                biased;
                next = watch.next() => {
                    let (mirror, message) = next?;
                    self.change(nth, &mirror, |of| take_in(of, mirror.folder(), &message, self.value_of))?;
                    changed(mirror.range.text());
                    if message.created() && !mirror.lock().is_read() {
                        reads.push(self.read(nth, mirror));
                    }
                }
                Some(read) = reads.next() => changed(read?.range.text()),
                _ = added.changed() => {
                    let pending = {
                        let mut table = self.table();
                        if !self.is_latest(nth) {
                            return Err(ANOTHER.into());
                        }
                        take(&mut table.pending)
                    };
                    for mirror in pending {
                        let range = mirror.range.clone();
                        watch.add(mirror, &range).await?;
                    }
                }
                _ = left.changed() => self.give_up(&mut watch).await?,
                _ = clean_up.tick() => self.give_up(&mut watch).await?,
            }
        }
    }

    /// Reads one mirror. A read that fails is repeated by itself, without harm to the stream and
    /// the other mirrors.
    async fn read(
        &self,
        nth: u64,
        mirror: Arc<SharedMirror<V>>,
    ) -> Result<Arc<SharedMirror<V>>, Broken> {
        let mut left = READS;
        loop {
            let turn = self.reading.acquire().await;
            let options = match mirror.range {
                Range::Prefix(_) | Range::TurnKeys(_) => oldest(0),
                Range::Key(_) | Range::End(_) => GetOptions::new(),
            };
            let read = self.cluster.get(&**mirror.range.text(), options).await;
            drop(turn);
            left -= 1;
            match read {
                Err(failure) if left == 0 || failure.kind != ErrorKind::Unavailable => {
                    return Err(Error::from(failure).into());
                }
                Err(_) => sleep(RETRY_DELAY).await,
                Ok(read) => {
                    self.change(nth, &mirror, |of| {
                        read_in(of, mirror.folder(), &read, self.value_of);
                    })?;
                    return Ok(mirror);
                }
            }
        }
    }

    /// Ends the watches of mirrors that have no followers any more.
    pub(crate) fn clean_up(&self) {
        self.left.notify();
    }

    async fn give_up(&self, watch: &mut Watch<Arc<SharedMirror<V>>>) -> Result<(), Broken> {
        let ended = watch.retain(|mirror| self.is_followed(mirror)).await;
        let mut table = self.table();
        table.most = table.mirrors.len() * 2 + SPARE;
        ended
    }

    /// Returns whether it has followers beside the stream. If not, it is removed from the table.
    fn is_followed(&self, mirror: &Arc<SharedMirror<V>>) -> bool {
        let mut table = self.table();
        let followed = Arc::strong_count(mirror) > 1;
        if !followed {
            table.mirrors.remove(&mirror.range);
        }
        followed
    }

    /// Changes a mirror on behalf of this stream, if it is the latest one.
    fn change(
        &self,
        nth: u64,
        mirror: &SharedMirror<V>,
        change: impl FnOnce(&mut Mirror<V>),
    ) -> Result<(), Broken> {
        // The mirrors are emptied after the number of the next stream is set.
        let mut mirror = mirror.lock();
        if !self.is_latest(nth) {
            return Err(ANOTHER.into());
        }
        change(&mut mirror);
        Ok(())
    }

    /// Before the next stream: all mirrors with followers become empty and pending, and the others
    /// are removed. Returns the number of that stream.
    fn begin_anew(&self) -> u64 {
        let mut table = self.table();
        let nth = self.latest.fetch_add(1, SeqCst) + 1;
        table.pending.clear();
        table.mirrors.retain(|_, mirror| mirror.strong_count() > 0);
        table.pending = table.mirrors.values().filter_map(Weak::upgrade).collect();
        table.most = table.mirrors.len() * 2 + SPARE;
        table
            .pending
            .iter()
            .chain([&self.always])
            .for_each(|mirror| *mirror.lock() = Mirror::default());
        self.added.notify();
        nth
    }

    fn table(&self) -> MutexGuard<'_, Table<V>> {
        locked(&self.table)
    }
}

impl<V> SharedMirror<V> {
    pub(crate) fn new(range: Range, mirror: Mirror<V>) -> SharedMirror<V> {
        SharedMirror {
            range,
            mirror: Mutex::new(mirror),
        }
    }

    /// Locks the mirror: its keys do not change while the guard lives.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Mirror<V>> {
        locked(&self.mirror)
    }

    /// The common start of the names of its keys, up to a `/`.
    fn folder(&self) -> &str {
        let text = self.range.text();
        &text[..text.rfind('/').map_or(0, |at| at + 1)]
    }
}

/// Takes the events of a message into a mirror that is locked, so that all changes of a revision
/// become visible at once.
fn take_in<V>(
    mirror: &mut Mirror<V>,
    folder: &str,
    message: &WatchResponse,
    value_of: fn(&str, &KeyValue) -> V,
) {
    for (event, kv) in message
        .events()
        .iter()
        .filter_map(|event| Some((event, event.kv()?)))
    {
        let put = (event.event_type() == EventType::Put)
            .then(|| (kv.create_revision(), value_of(folder, kv)));
        mirror.take_in(Event {
            revision: kv.mod_revision(),
            key: kv.key().to_vec(),
            put,
        });
    }
}

fn read_in<V>(
    mirror: &mut Mirror<V>,
    folder: &str,
    read: &GetResponse,
    value_of: fn(&str, &KeyValue) -> V,
) {
    let entry = |kv: &KeyValue| {
        (
            kv.key().to_vec(),
            kv.create_revision(),
            kv.mod_revision(),
            value_of(folder, kv),
        )
    };
    mirror.read(
        read.header().map_or(0, ResponseHeader::revision),
        read.kvs().iter().map(entry),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn mirrors() -> Mirrors<i64> {
        Mirrors::new(
            Cluster::new(Config::from_url("etcd://localhost").unwrap()),
            |_, kv| kv.version(),
            "always/",
        )
    }

    fn prefix(text: &str) -> Range {
        Range::Prefix(text.into())
    }

    #[test]
    fn a_mirror_is_watched_once_and_given_up_when_it_is_followed_no_more() {
        let mirrors = mirrors();
        let range = prefix("a/");
        let mine = mirrors.follow(range.clone());
        assert!(Arc::ptr_eq(&mine, &mirrors.follow(range.clone())));
        assert!(
            mirrors.get(&Range::Key("a/".into())).is_none(),
            "one key is another range than all below it"
        );
        let watched = take(&mut mirrors.table().pending);
        assert!(watched.len() == 1 && mirrors.is_followed(&watched[0]));
        drop(mine);
        let again = mirrors.follow(range.clone());
        assert!(Arc::ptr_eq(&again, &watched[0]), "the stream still has it");
        drop(again);
        assert!(!mirrors.is_followed(&watched[0]) && mirrors.get(&range).is_none());
        assert!(
            !Arc::ptr_eq(&mirrors.follow(range), &watched[0]),
            "events of the old watch meet no new mirror"
        );
        assert!(mirrors.is_followed(&mirrors.always.clone()));
    }

    #[test]
    fn after_a_stream_all_that_is_followed_begins_anew_and_nothing_else() {
        let mirrors = mirrors();
        assert!(mirrors.always.lock().is_read(), "only new keys matter");
        let [followed, pending, watched] =
            ["followed/", "pending/", "watched/"].map(|name| mirrors.follow(prefix(name)));
        followed.lock().read(7, [(vec![1], 5, 5, 1)].into_iter());
        mirrors
            .table()
            .pending
            .retain(|mirror| !Arc::ptr_eq(mirror, &watched));
        drop((pending, watched));
        mirrors.begin_anew();
        let pending = take(&mut mirrors.table().pending);
        assert!(pending.len() == 1 && Arc::ptr_eq(&pending[0], &followed));
        assert!(
            !followed.lock().is_read()
                && followed.lock().keys.is_empty()
                && !mirrors.always.lock().is_read()
        );
        assert!(
            mirrors.get(&prefix("pending/")).is_none()
                && mirrors.get(&prefix("watched/")).is_none()
        );
    }
}
