//! The keys, with every version of each since the last compaction.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;

use tonic::Status;

use crate::etcd::messages::{
    DeleteRequest, Event, KeyValue, Order, PutRequest, RangeRequest, RangeResponse, SortBy,
};

pub(crate) const PUT: i32 = 0;
pub(crate) const DELETE: i32 = 1;

/// All keys.
pub(crate) struct Kv {
    /// The versions of each key, oldest first. An entry whose version is 0 is a deletion.
    keys: BTreeMap<Vec<u8>, Vec<KeyValue>>,
    revision: i64,
    compacted: i64,
    /// The events since the compaction.
    log: Vec<Event>,
}

impl Default for Kv {
    fn default() -> Self {
        Kv {
            keys: BTreeMap::new(),
            revision: 1,
            compacted: -1,
            log: Vec::new(),
        }
    }
}

/// Returns whether the key is in the range: `from` alone, all keys from it on, or all keys from it
/// up to `end`.
pub(crate) fn includes(from: &[u8], end: &[u8], key: &[u8]) -> bool {
    match end {
        [] => key == from,
        [0] => key >= from,
        end => key >= from && key < end,
    }
}

type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The bounds of such a range; `None` if it is empty.
fn bounds(from: &[u8], end: &[u8]) -> Option<Bounds> {
    let end = match end {
        [] => Bound::Included(from.to_vec()),
        [0] => Bound::Unbounded,
        end if end <= from => return None,
        end => Bound::Excluded(end.to_vec()),
    };
    Some((Bound::Included(from.to_vec()), end))
}

impl Kv {
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    /// The keys that exist at this revision.
    pub(crate) fn at(&self, from: &[u8], end: &[u8], revision: i64) -> Vec<&KeyValue> {
        let Some(bounds) = bounds(from, end) else {
            return Vec::new();
        };
        let at = |versions: &Vec<KeyValue>| {
            versions
                .partition_point(|it| it.modified <= revision)
                .checked_sub(1)
        };
        let there = |versions| {
            at(versions)
                .map(|at| &versions[at])
                .filter(|it| it.version > 0)
        };
        self.keys
            .range(bounds)
            .filter_map(|(_, versions)| there(versions))
            .collect()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&KeyValue> {
        self.at(key, &[], i64::MAX).pop()
    }

    /// Checks that this revision can be read; 0 is the current one.
    pub(crate) fn check(&self, revision: i64, now: i64) -> Result<(), Status> {
        match revision {
            0 => Ok(()),
            later if later > now => Err(future()),
            earlier if earlier < self.compacted => Err(compacted()),
            _ => Ok(()),
        }
    }

    /// The events from this revision on. `Err`: they are compacted, up to the returned revision.
    pub(crate) fn since(&self, revision: i64) -> Result<&[Event], i64> {
        if revision < self.compacted {
            return Err(self.compacted);
        }
        Ok(&self.log[self.log.partition_point(|event| modified(event) < revision)..])
    }

    /// Forgets all versions before this revision, except those that are still current.
    pub(crate) fn compact(&mut self, revision: i64) -> Result<(), Status> {
        if revision <= self.compacted {
            return Err(compacted());
        }
        if revision > self.revision {
            return Err(future());
        }
        self.compacted = revision;
        for versions in self.keys.values_mut() {
            let last = versions.partition_point(|it| it.modified <= revision);
            let still = last > 0 && versions[last - 1].version > 0;
            versions.drain(..last - usize::from(still));
        }
        self.keys.retain(|_, versions| !versions.is_empty());
        self.log.retain(|event| {
            modified(event) > revision || (modified(event) == revision && event.kind == PUT)
        });
        Ok(())
    }

    /// Begins changes that are made together.
    pub(crate) fn write(&mut self) -> Write<'_> {
        Write {
            kv: self,
            changes: Vec::new(),
        }
    }
}

fn modified(event: &Event) -> i64 {
    event.kv.as_ref().map_or(0, |kv| kv.modified)
}

fn compacted() -> Status {
    Status::out_of_range("etcdserver: mvcc: required revision has been compacted")
}

fn future() -> Status {
    Status::out_of_range("etcdserver: mvcc: required revision is a future revision")
}

/// The changes of one revision.
pub(crate) struct Write<'a> {
    pub(crate) kv: &'a mut Kv,
    changes: Vec<Event>,
}

impl Write<'_> {
    /// The revision that reads see.
    pub(crate) fn revision(&self) -> i64 {
        self.kv.revision + i64::from(!self.changes.is_empty())
    }

    pub(crate) fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Status> {
        let now = self.revision();
        self.kv.check(request.revision, now)?;
        let at = if request.revision > 0 {
            request.revision
        } else {
            now
        };
        let all = self.kv.at(&request.key, &request.end, at);
        let count = i64::try_from(all.len()).unwrap_or(i64::MAX);
        if request.count_only {
            return Ok(RangeResponse {
                count,
                ..RangeResponse::default()
            });
        }
        let within = |at: i64, least: i64, most: i64| {
            (least == 0 || at >= least) && (most == 0 || at <= most)
        };
        let mut kvs: Vec<KeyValue> = all
            .into_iter()
            .filter(|kv| within(kv.modified, request.least_modified, request.most_modified))
            .filter(|kv| within(kv.created, request.least_created, request.most_created))
            .cloned()
            .collect();
        kvs.sort_by(|a, b| compared(request, a, b));
        let limit = usize::try_from(request.limit).unwrap_or_default();
        let more = limit > 0 && kvs.len() > limit;
        if more {
            kvs.truncate(limit);
        }
        if request.keys_only {
            kvs.iter_mut().for_each(|kv| kv.value.clear());
        }
        Ok(RangeResponse {
            header: None,
            kvs,
            more,
            count,
        })
    }

    /// Writes a key. Returns its state before.
    pub(crate) fn put(&mut self, request: &PutRequest) -> Option<KeyValue> {
        let before = self.kv.get(&request.key).cloned();
        let modified = self.kv.revision + 1;
        let old = before.as_ref();
        let kv = KeyValue {
            key: request.key.clone(),
            created: old.map_or(modified, |old| old.created),
            modified,
            version: old.map_or(0, |old| old.version) + 1,
            value: old
                .filter(|_| request.same_value)
                .map_or_else(|| request.value.clone(), |old| old.value.clone()),
            lease: old
                .filter(|_| request.same_lease)
                .map_or(request.lease, |old| old.lease),
        };
        self.change(PUT, kv);
        before
    }

    /// Deletes keys. Returns their states before.
    pub(crate) fn delete(&mut self, request: &DeleteRequest) -> Vec<KeyValue> {
        let gone: Vec<KeyValue> = self
            .kv
            .at(&request.key, &request.end, i64::MAX)
            .into_iter()
            .cloned()
            .collect();
        for before in &gone {
            let modified = self.kv.revision + 1;
            let kv = KeyValue {
                key: before.key.clone(),
                modified,
                ..KeyValue::default()
            };
            self.change(DELETE, kv);
        }
        gone
    }

    fn change(&mut self, kind: i32, kv: KeyValue) {
        // The state at the revision before, whatever this revision has changed already.
        let before = self.kv.at(&kv.key, &[], self.kv.revision).pop().cloned();
        let versions = self.kv.keys.entry(kv.key.clone()).or_default();
        // Within one revision only the last change of a key counts.
        if versions
            .last()
            .is_some_and(|last| last.modified == kv.modified)
        {
            versions.pop();
        }
        versions.push(kv.clone());
        self.changes.push(Event {
            kind,
            kv: Some(kv),
            before,
        });
    }

    /// Ends the transaction. Returns the changes.
    pub(crate) fn end(self) -> Vec<Event> {
        if !self.changes.is_empty() {
            self.kv.revision += 1;
            self.kv.log.extend(self.changes.iter().cloned());
        }
        self.changes
    }
}

fn compared(request: &RangeRequest, a: &KeyValue, b: &KeyValue) -> Ordering {
    let by = match request.sort_by() {
        SortBy::Key => a.key.cmp(&b.key),
        SortBy::Version => a.version.cmp(&b.version),
        SortBy::Created => a.created.cmp(&b.created),
        SortBy::Modified => a.modified.cmp(&b.modified),
        SortBy::Value => a.value.cmp(&b.value),
    };
    if request.order() == Order::Descending {
        by.reverse()
    } else {
        by
    }
}
