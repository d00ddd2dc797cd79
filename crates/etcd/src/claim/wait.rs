//! The choice of a waiting claim's watch: its whole queue, if that is short or has many claims of
//! this client, and else one entry before it.

use std::sync::Arc;

use etcd_client::KeyValue;
use leasehold_core::Contention;
use leasehold_core::backend::{Admission, Claim, Mode, Moment, admit};

use crate::claim::ClaimTxnResult;
use crate::claim::own::{OwnClaim, Watched};
use crate::claim::predecessor::Predecessor;
use crate::claim::shared::Shared;
use crate::client::cluster::newest;
use crate::client::watch::Range;
use crate::entry::takes_turns;
use crate::error::Failure;
use crate::inspect::Read;

/// The greatest number of other entries in a queue, for each claim of this client in it, at which a
/// mirror costs less than two watched keys: each entry is reported when it comes and when it goes.
const NEAR: usize = 8;

impl Shared {
    /// Chooses the watch of a claim that waits. `None`: no entry is before it any more. It cannot
    /// fail: the claim has a place.
    pub(crate) async fn watch_for(
        &self,
        claim: &Claim,
        own: &OwnClaim,
        found: &ClaimTxnResult,
    ) -> Option<Watched> {
        let prefix = self.keys.prefix(&claim.name);
        let others = usize::try_from(found.read.count).unwrap_or(0);
        // The entry before it takes turns, too. A waiter that has waited in vain watches by itself.
        if found.mine.is_none()
            && found.turns
            && found
                .nearest
                .as_ref()
                .is_some_and(|kv| takes_turns(&prefix, kv))
        {
            return Some(Watched::Turn);
        }
        // Any of many entries may give back the missing permit.
        let permits = matches!(own.mode, Mode::Permits { .. });
        if !permits && found.who.is_none() && others > NEAR * self.claims().count(&claim.name) {
            let nearest = self.nearest(&prefix, own, found).await;
            if let Ok(None) = nearest {
                return None;
            }
            if let Some(before) = nearest
                .ok()
                .flatten()
                .and_then(|nearest| self.before(&prefix, own, found, &nearest))
            {
                let may_take_turns = own.mode == Mode::Exclusive && own.once.is_none();
                let _turns = may_take_turns.then(|| self.mirrors.follow(self.turns(own)));
                return Some(Watched::Predecessor { before, _turns });
            }
        }
        Some(Watched::Queue {
            _mirror: self.mirrors.follow(Range::Prefix(prefix)),
        })
    }

    /// The watch of its own key and of the nearest entry's; `None` if that lies in a folder of its
    /// own, and so was written by hand.
    fn before(
        &self,
        prefix: &str,
        own: &OwnClaim,
        found: &ClaimTxnResult,
        nearest: &KeyValue,
    ) -> Option<Predecessor> {
        let path = nearest
            .key_str()
            .ok()
            .filter(|path| !path[prefix.len()..].contains('/'))?;
        let created = nearest.create_revision();
        let first = found.read.oldest.first().map(KeyValue::create_revision) == Some(created);
        if self.mirrors.get(&Range::Prefix(prefix.into())).is_some() {
            // The queue was short.
            self.mirrors.clean_up();
        }
        // Only a claim that shares needs the event that the other entry has become shared.
        let other = if own.mode == Mode::Exclusive {
            Range::End(path.into())
        } else {
            Range::Key(path.into())
        };
        let mine = self.mirrors.follow(Range::Key(own.key.path.clone()));
        let other = self.mirrors.follow(other);
        Some(Predecessor {
            own: mine,
            other,
            created,
            first,
        })
    }

    /// The nearest entry before the claim that keeps it out.
    async fn nearest(
        &self,
        prefix: &str,
        own: &OwnClaim,
        found: &ClaimTxnResult,
    ) -> Result<Option<KeyValue>, Failure> {
        if own.mode != Mode::Exclusive {
            let Admission::Watch(those) = admit(&found.read.before(found.created), own.mode) else {
                return Ok(None);
            };
            return Ok(those.last().map(|at| found.read.oldest[*at].clone()));
        }
        if found.nearest.is_some() {
            return Ok(found.nearest.clone());
        }
        let read = self.cluster.get(prefix, newest(found.created)).await?;
        Ok(read.kvs().first().cloned())
    }

    /// Returns the contention of a long queue that is mirrored and will stay so: a claim that joins
    /// it need not read the queue.
    pub(crate) fn mirrored_queue(&self, claim: &Claim, prefix: &Arc<str>) -> Option<Contention> {
        let mirror = self.mirrors.get(&Range::Prefix(prefix.clone()))?;
        let most = NEAR * self.claims().count(&claim.name);
        let mirror = mirror.lock();
        let others = mirror.keys.len();
        let (mode, first) = mirror
            .keys
            .first()
            .filter(|_| NEAR < others && others <= most)
            .map(|key| &key.value)?;
        let who = Contention::from(first);
        Some(if *mode == Mode::Exclusive {
            who.waiters(others - 1)
        } else {
            who
        })
    }

    /// Reopens the stream if the mirror misses events: its oldest entry was already gone when a
    /// claim looked a while ago.
    pub(crate) fn look_after_mirror(&self, claim: &Claim, read: &Read) {
        let Some(oldest) = read.oldest.first().map(KeyValue::create_revision) else {
            return;
        };
        if let Some(mirror) = self
            .mirrors
            .get(&Range::Prefix(self.keys.prefix(&claim.name)))
            && mirror.lock().misses_events(oldest, Moment::now())
        {
            self.cluster.reopen();
        }
    }
}
