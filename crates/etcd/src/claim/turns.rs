//! Hand-over in a long queue: a release writes a *turn key* that names the next entry as the
//! holder, together with the *line* of entries behind it. A hand-over costs one claim and one
//! release, in whatever order clients come.
//!
//! This is a second way beside the watch of one entry (`claim/predecessor`), kept for its figure: a
//! hand-over among 64 clients takes 2.06 requests, and four to six where each waiter watches the
//! entry before it. The user is a fleet of 20 clients or more that all queue for one lock.
//!
//! Data: each session has one folder of turn keys for each queue (see `names`). A turn key lies in
//! the folder of the session whose entry it names, under that entry's slot. Its value ([`Turn`]) is
//! the create_revision of the entry and the line: the entries directly behind it, in order. Once a
//! claim of a client has stood far back in a queue, the client watches its folder there and marks
//! its next exclusive entries with `turns` (see `entry`): such an entry *takes turns*, so a turn
//! key may name it. An entry and its turn key are deleted together.
//!
//! A release of such an entry ([`Shared::hand_on`]) goes as follows:
//! 1. If the entry was named with a line, one transaction deletes it with its turn key and writes
//!    the turn key of the next entry with the rest of the line, on the condition that both entries
//!    still exist.
//! 2. If there was no line, or the next entry has left, a transaction deletes the entry and reads
//!    the first [`LINE`] entries of the queue. A second request then names the first of them, if it
//!    takes turns; its line is the unbroken run of entries behind it that take turns.
//!
//! A waiter holds as soon as its folder has a turn key with the create_revision of its entry. Why
//! that is right, whatever request is late, lost or repeated:
//! * *The named entry is the first of its queue.* It is named by the transaction that deletes the
//!   entry directly before it, which was named too, or after a read has shown that it is the first.
//!   Both require that it still exists, and the entries before a place only become fewer.
//! * *One read has shown the line*, so its entries stand directly behind one another. Later keys
//!   have greater create_revisions, so none ever comes between them.
//! * *A turn is a key, not an event*: after a broken stream it is read like any other key. A turn
//!   key that is left over, or is written again, names no other entry, because no other entry has
//!   its create_revision.
//!
//! A waiter that came behind an entry that takes turns watches no entry. If the holder dies, is
//! evicted, lapses or is deleted by hand, no release names the waiter. It therefore claims again
//! after a while ([`patience`]), and watches the entry before it from then on. Entries that do not
//! take turns are not named; their clients watch the entries before them.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use crate::claim::own::OwnClaim;
use crate::claim::shared::Shared;
use crate::client::cluster::{oldest, put};
use crate::client::mirrors::SharedMirror;
use crate::client::watch::Range;
use crate::entry::{QueueEntry, takes_turns};
use crate::error::Failure;
use crate::names::lease_of;

/// The number of entries that a release reads if it knows no line.
const LINE: i64 = 20;
/// The time that a waiter waits to be named: this, and [`PATIENCE_EACH`] for each entry that was
/// there when it came.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_EACH: Duration = Duration::from_millis(20);

/// The time after which a waiter that came behind `others` entries claims again if it was not
/// named.
pub(crate) fn patience(others: i64) -> Duration {
    PATIENCE + PATIENCE_EACH.saturating_mul(u32::try_from(others).unwrap_or(0))
}

/// An entry that takes turns.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Next {
    /// Its key, without the prefix of the queue.
    place: String,
    created: i64,
}

impl Next {
    fn of(prefix: &str, kv: &KeyValue) -> Option<Next> {
        let place = kv.key_str().ok()?.strip_prefix(prefix)?.to_owned();
        takes_turns(prefix, kv).then(|| Next {
            place,
            created: kv.create_revision(),
        })
    }
}

/// The value of a turn key: the create_revision of the entry that it names, and the line behind
/// that.
///
/// ```text
/// <created> <common start of all places>[ <rest of a place>=<create_revision minus that of the entry before>]…
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
struct Turn {
    created: i64,
    behind: Vec<Next>,
}

/// The create_revision of the entry that is named.
fn named(text: &str) -> Option<i64> {
    text.split(' ').next()?.parse().ok()
}

impl Turn {
    fn write(&self) -> String {
        let mut places = self.behind.iter().map(|next| &*next.place);
        let first = places.next().unwrap_or_default();
        let same = places.fold(first, |same, place| {
            let alike = same
                .bytes()
                .zip(place.bytes())
                .take_while(|(a, b)| a == b)
                .count();
            &same[..alike]
        });
        let mut text = format!("{} {same}", self.created);
        let mut last = self.created;
        for Next { place, created } in &self.behind {
            text += &format!(" {}={}", &place[same.len()..], created - last);
            last = *created;
        }
        text
    }

    fn read(text: &str) -> Option<Turn> {
        let created = named(text)?;
        let mut parts = text.split(' ').skip(1);
        let same = parts.next()?;
        let mut last = created;
        let mut behind = Vec::new();
        for part in parts {
            let (rest, later) = part.split_once('=')?;
            let place = format!("{same}{rest}");
            lease_of("", place.as_bytes())?;
            last = last.checked_add(later.parse().ok().filter(|later| *later > 0)?)?;
            behind.push(Next {
                place,
                created: last,
            });
        }
        Some(Turn { created, behind })
    }
}

/// The texts of the turn keys in such a folder; its mirror keeps the text of each key as a label.
fn texts(turns: &SharedMirror<QueueEntry>) -> Vec<String> {
    turns
        .lock()
        .keys
        .iter()
        .filter_map(|key| key.value.1.label.clone())
        .collect()
}

impl OwnClaim {
    /// Returns whether a turn key names it.
    pub(crate) fn is_named(&self) -> bool {
        let Some(turns) = self.turns.as_ref().filter(|_| self.created != 0) else {
            return false;
        };
        turns
            .lock()
            .keys
            .iter()
            .any(|key| key.value.1.label.as_deref().and_then(named) == Some(self.created))
    }

    /// The line behind it, from the turn key that names it.
    fn line(&self) -> Vec<Next> {
        let told = self
            .turns
            .iter()
            .flat_map(|turns| texts(turns))
            .filter_map(|text| Turn::read(&text));
        told.filter(|turn| turn.created == self.created)
            .flat_map(|turn| turn.behind)
            .collect()
    }

    /// Removes its turn key from the mirror: the watch of that folder does not report deletions.
    fn forget_turn(&self) {
        let Some(turns) = &self.turns else { return };
        let other = |text: Option<&str>| text.and_then(named) != Some(self.created);
        turns
            .lock()
            .keys
            .retain(|key| other(key.value.1.label.as_deref()));
    }
}

impl Shared {
    /// The folder in which a turn key may name this claim.
    pub(crate) fn turns(&self, own: &OwnClaim) -> Range {
        let place = &own.key.path;
        Range::TurnKeys(
            self.keys
                .turn(&place[..=place.rfind('-').unwrap_or(0)])
                .into(),
        )
    }

    /// Returns whether the claim takes turns: a claim of this client stood far back in its queue
    /// not long ago, and the folder of turn keys is watched and was read.
    pub(crate) fn may_take_turns(&self, own: &OwnClaim) -> bool {
        self.mirrors
            .get(&self.turns(own))
            .is_some_and(|turns| turns.lock().is_read())
    }

    /// Deletes a place that takes turns and is in no doubt, and names the first entry behind it.
    pub(crate) async fn hand_on(self: &Arc<Self>, own: &OwnClaim) -> Result<(), Failure> {
        let prefix = &own.key.path[..=own.key.path.rfind('/').unwrap_or(0)];
        let is_there = own.key.was_created(own.created);
        let mut both = vec![
            own.key.delete(),
            TxnOp::delete(self.keys.turn(&own.key.path), None),
        ];
        if let Some((next, behind)) = own.line().split_first() {
            let (still, names) = self.names(prefix, next, behind);
            both.push(names);
            let named = self
                .cluster
                .txn(
                    Txn::new()
                        .when([is_there.clone(), still])
                        .and_then(both.clone()),
                )
                .await;
            if named.outcome?.succeeded() {
                own.forget_turn();
                return Ok(());
            }
            both.pop();
        }
        let alone = TxnOp::txn(Txn::new().when([is_there]).and_then(both));
        let read = TxnOp::get(prefix, Some(oldest(LINE)));
        let answer = self
            .cluster
            .txn(Txn::new().and_then([alone, read]))
            .await
            .outcome?;
        own.forget_turn();
        self.name_first(prefix, own.created, &answer);
        Ok(())
    }

    /// The condition that this entry still exists, and the operation that writes its turn key.
    fn names(&self, prefix: &str, next: &Next, behind: &[Next]) -> (Compare, TxnOp) {
        let key = format!("{prefix}{}", next.place);
        let turn = Turn {
            created: next.created,
            behind: behind.to_vec(),
        };
        let lease = lease_of(prefix, key.as_bytes()).unwrap_or_default();
        let still = Compare::create_revision(&*key, CompareOp::Equal, next.created);
        (still, put(lease, &self.keys.turn(&key), turn.write()))
    }

    /// Names the first entry of the queue as this answer has read it, if it came after `created`,
    /// the entry that was deleted.
    fn name_first(self: &Arc<Self>, prefix: &str, created: i64, answer: &TxnResponse) {
        let read = |op| {
            if let TxnOpResponse::Get(read) = op {
                Some(read)
            } else {
                None
            }
        };
        let read: Option<GetResponse> = answer.op_responses().into_iter().find_map(read);
        let read = read.as_ref().map_or(&[][..], GetResponse::kvs);
        let line: Vec<Next> = read.iter().map_while(|kv| Next::of(prefix, kv)).collect();
        let Some((first, behind)) = line
            .split_first()
            .filter(|(first, _)| first.created > created)
        else {
            return;
        };
        let (still, names) = self.names(prefix, first, behind);
        let shared = self.clone();
        // The release does not wait for this request. A waiter that is not named claims again.
        tokio::spawn(async move { shared.cluster.change(still, vec![names]).await });
    }
}

#[cfg(test)]
mod tests;
