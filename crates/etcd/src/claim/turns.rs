//! A release in a long queue names its successor, and tells it who stands behind. So a hand-over is a claim and a release, in whatever
//! order clients come.
//!
//! A client that stood far back watches a folder of its own there, and its next entry says that it *takes turns* (see `entry`). Each such
//! entry may get a second key in that folder, which names it: by its create_revision, and with the line of those behind it. Both keys are
//! deleted together. Why one that is named holds, whatever is late, lost or repeated:
//! * *it is the first of its queue.* It is named by the transaction that deletes the entry directly before it, which was named, too; or
//!   after a read has shown that it is the first. Both only if it is still there. And what is before a place only gets less;
//! * *one read has shown the line*: these stand directly behind one another. Later keys have greater create_revisions, so none
//!   ever comes between. If the next one has left, or nobody was told, the entry is deleted by a transaction that reads who is the
//!   first, and another request names that one;
//! * *it is a key, and no event*: after a stream that broke it is read like any other. A key that was left over, or is used again,
//!   names nobody: no other entry has that create_revision.
//!
//! A waiter behind such an entry watches no entry. Nobody names it if the holder dies, is evicted, lapses, or is deleted by hand. So it
//! claims again after a while ([`patience`]), and watches the entry before it from then on. Entries that take no turns are not
//! named: they watch what is before them.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetResponse, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};

use crate::claim::own::OwnClaim;
use crate::claim::shared::Shared;
use crate::client::cluster::{oldest, put};
use crate::client::mirrors::SharedMirror;
use crate::client::watch::Range;
use crate::entry::{Seen, takes_turns};
use crate::error::Failure;
use crate::names::lease_of;

/// How many a release reads that was told of nobody.
const LINE: i64 = 20;
/// How long a waiter waits to be named: so long, and more for each that was there when it came.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_EACH: Duration = Duration::from_millis(20);

/// When a waiter that came behind so many claims again if it was not named.
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
        takes_turns(prefix, kv).then(|| Next { place, created: kv.create_revision() })
    }
}

/// What the key that names an entry says: its create_revision, and the line behind it.
///
/// ```text
/// <created> <what all places begin with>[ <the rest of a place>=<how much later it was created than the one before>]…
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
            let alike = same.bytes().zip(place.bytes()).take_while(|(a, b)| a == b).count();
            &same[..alike]
        });
        let (mut text, mut last) = (format!("{} {same}", self.created), self.created);
        for Next { place, created } in &self.behind {
            text += &format!(" {}={}", &place[same.len()..], created - last);
            last = *created;
        }
        text
    }

    fn read(text: &str) -> Option<Turn> {
        let created = named(text)?;
        let mut parts = text.split(' ').skip(1);
        let (same, mut last, mut behind) = (parts.next()?, created, Vec::new());
        for part in parts {
            let (rest, later) = part.split_once('=')?;
            let place = format!("{same}{rest}");
            lease_of("", place.as_bytes())?;
            last = last.checked_add(later.parse().ok().filter(|later| *later > 0)?)?;
            behind.push(Next { place, created: last });
        }
        Some(Turn { created, behind })
    }
}

/// What is kept of the keys of such a folder is their text.
fn texts(turns: &SharedMirror<Seen>) -> Vec<String> {
    turns.lock().keys.iter().filter_map(|key| key.value.1.label.clone()).collect()
}

impl OwnClaim {
    /// Whether it was named.
    pub(crate) fn is_named(&self) -> bool {
        let Some(turns) = self.turns.as_ref().filter(|_| self.created != 0) else { return false };
        turns.lock().keys.iter().any(|key| key.value.1.label.as_deref().and_then(named) == Some(self.created))
    }

    /// Who stand behind it, as it was told when it was named.
    fn line(&self) -> Vec<Next> {
        let told = self.turns.iter().flat_map(|turns| texts(turns)).filter_map(|text| Turn::read(&text));
        told.filter(|turn| turn.created == self.created).flat_map(|turn| turn.behind).collect()
    }

    /// Its key is deleted, which the watch of that folder does not report.
    fn forget_turn(&self) {
        let Some(turns) = &self.turns else { return };
        let other = |text: Option<&str>| text.and_then(named) != Some(self.created);
        turns.lock().keys.retain(|key| other(key.value.1.label.as_deref()));
    }
}

impl Shared {
    /// Where the claim is named.
    pub(crate) fn turns(&self, own: &OwnClaim) -> Range {
        let place = &own.key.path;
        Range::Turns(self.keys.turn(&place[..=place.rfind('-').unwrap_or(0)]).into())
    }

    /// Whether the claim takes turns: one of this client stood far back in its queue not long ago, and it hears if it is named.
    pub(crate) fn may_take_turns(&self, own: &OwnClaim) -> bool {
        self.mirrors.get(&self.turns(own)).is_some_and(|turns| turns.lock().is_read())
    }

    /// Removes a place that takes turns, and is in no doubt. Names the first one behind it.
    pub(crate) async fn hand_on(self: &Arc<Self>, own: &OwnClaim) -> Result<(), Failure> {
        let prefix = &own.key.path[..=own.key.path.rfind('/').unwrap_or(0)];
        let is_there = own.key.was_created(own.created);
        let mut both = vec![own.key.delete(), TxnOp::delete(self.keys.turn(&own.key.path), None)];
        if let Some((next, behind)) = own.line().split_first() {
            let (still, names) = self.names(prefix, next, behind);
            both.push(names);
            let named = self.cluster.txn(Txn::new().when([is_there.clone(), still]).and_then(both.clone())).await;
            if named.outcome?.succeeded() {
                own.forget_turn();
                return Ok(());
            }
            both.pop();
        }
        let alone = TxnOp::txn(Txn::new().when([is_there]).and_then(both));
        let read = TxnOp::get(prefix, Some(oldest(LINE)));
        let answer = self.cluster.txn(Txn::new().and_then([alone, read])).await.outcome?;
        own.forget_turn();
        self.name_first(prefix, own.created, &answer);
        Ok(())
    }

    /// If this one is still there, it may be named by this.
    fn names(&self, prefix: &str, next: &Next, behind: &[Next]) -> (Compare, TxnOp) {
        let (key, turn) = (format!("{prefix}{}", next.place), Turn { created: next.created, behind: behind.to_vec() });
        let lease = lease_of(prefix, key.as_bytes()).unwrap_or_default();
        let still = Compare::create_revision(&*key, CompareOp::Equal, next.created);
        (still, put(lease, &self.keys.turn(&key), turn.write()))
    }

    /// Names the first of the queue, as this answer has read it, if an entry of `created` may have been before it until then.
    fn name_first(self: &Arc<Self>, prefix: &str, created: i64, answer: &TxnResponse) {
        let read = |op| if let TxnOpResponse::Get(read) = op { Some(read) } else { None };
        let read: Option<GetResponse> = answer.op_responses().into_iter().find_map(read);
        let read = read.as_ref().map_or(&[][..], GetResponse::kvs);
        let line: Vec<Next> = read.iter().map_while(|kv| Next::of(prefix, kv)).collect();
        let Some((first, behind)) = line.split_first().filter(|(first, _)| first.created > created) else { return };
        let (still, names) = self.names(prefix, first, behind);
        let shared = self.clone();
        // Nobody waits for this: whom it does not reach claims again.
        tokio::spawn(async move { shared.cluster.change(still, vec![names]).await });
    }
}

#[cfg(test)]
mod tests;
