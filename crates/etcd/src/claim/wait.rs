//! What is watched for a claim that waits: its queue if that is short, or if many claims of this client are in it; and else one
//! entry before it.

use std::sync::Arc;

use etcd_client::KeyValue;
use leasehold_core::Contention;
use leasehold_core::seam::{Admission, Claim, Mode, Moment, admit};

use crate::claim::Found;
use crate::claim::before::Before;
use crate::claim::own::{OwnClaim, Watched};
use crate::claim::shared::Shared;
use crate::client::cluster::newest;
use crate::client::watch::Range;
use crate::entry::takes_turns;
use crate::error::Failure;
use crate::inspect::Read;

/// How many others a queue may have for each claim of this client in it, so that a mirror costs less than two keys: each is
/// reported when it comes and when it goes.
const NEAR: usize = 8;

impl Shared {
    /// What to watch for a claim that waits. `None`: nothing is before it any more. It cannot fail: the claim has a place.
    pub(crate) async fn watch_for(&self, claim: &Claim, own: &OwnClaim, found: &Found) -> Option<Watched> {
        let prefix = self.keys.prefix(&claim.name);
        let others = usize::try_from(found.read.count).unwrap_or(0);
        // It came behind one that takes turns, too. Once it has waited, it watches by itself.
        if found.mine.is_none() && found.turns && found.nearest.as_ref().is_some_and(|kv| takes_turns(&prefix, kv)) {
            return Some(Watched::Turn);
        }
        // Any of many may give back the permit that is missing.
        let permits = matches!(own.mode, Mode::Permits { .. });
        if !permits && found.who.is_none() && others > NEAR * self.claims().count(&claim.name) {
            let nearest = self.nearest(&prefix, own, found).await;
            if let Ok(None) = nearest {
                return None;
            }
            if let Some(before) = nearest.ok().flatten().and_then(|nearest| self.before(&prefix, own, found, &nearest))
            {
                let _turns = (own.mode == Mode::Exclusive).then(|| self.mirrors.follow(self.turns(own)));
                return Some(Watched::Before { before, _turns });
            }
        }
        Some(Watched::Queue { _mirror: self.mirrors.follow(Range::Prefix(prefix)) })
    }

    /// Its own key and this one, unless that is in a folder of its own: then it was written by hand.
    fn before(&self, prefix: &str, own: &OwnClaim, found: &Found, nearest: &KeyValue) -> Option<Before> {
        let path = nearest.key_str().ok().filter(|path| !path[prefix.len()..].contains('/'))?;
        let created = nearest.create_revision();
        let first = found.read.oldest.first().map(KeyValue::create_revision) == Some(created);
        if self.mirrors.get(&Range::Prefix(prefix.into())).is_some() {
            // The queue was short.
            self.mirrors.clean_up();
        }
        // Only a reader has to hear that the other has become one.
        let other = if own.mode == Mode::Exclusive { Range::End(path.into()) } else { Range::Key(path.into()) };
        let (mine, other) = (self.mirrors.follow(Range::Key(own.key.path.clone())), self.mirrors.follow(other));
        Some(Before { own: mine, other, created, first })
    }

    /// The nearest entry before the claim that keeps it out.
    async fn nearest(&self, prefix: &str, own: &OwnClaim, found: &Found) -> Result<Option<KeyValue>, Failure> {
        if own.mode != Mode::Exclusive {
            let Admission::Watch(those) = admit(&found.read.before(found.created), own.mode) else { return Ok(None) };
            return Ok(those.last().map(|at| found.read.oldest[*at].clone()));
        }
        if found.nearest.is_some() {
            return Ok(found.nearest.clone());
        }
        let read = self.cluster.get(prefix, newest(found.created)).await?;
        Ok(read.kvs().first().cloned())
    }

    /// Who is in the way, if a long queue is mirrored and will be: nothing of it has to be read for a claim that joins it.
    pub(crate) fn mirrored_queue(&self, claim: &Claim, prefix: &Arc<str>) -> Option<Contention> {
        let mirror = self.mirrors.get(&Range::Prefix(prefix.clone()))?;
        let most = NEAR * self.claims().count(&claim.name);
        let mirror = mirror.lock();
        let others = mirror.keys.len();
        let (mode, first) = mirror.keys.first().filter(|_| NEAR < others && others <= most).map(|key| &key.value)?;
        let who = Contention::from(first);
        Some(if *mode == Mode::Exclusive { who.waiters(others - 1) } else { who })
    }

    /// A mirror whose oldest entry was gone already when a claim looked a while ago misses events.
    pub(crate) fn look_after_mirror(&self, claim: &Claim, read: &Read) {
        let Some(oldest) = read.oldest.first().map(KeyValue::create_revision) else { return };
        if let Some(mirror) = self.mirrors.get(&Range::Prefix(self.keys.prefix(&claim.name)))
            && mirror.lock().misses_events(oldest, Moment::now())
        {
            self.cluster.reopen();
        }
    }
}
