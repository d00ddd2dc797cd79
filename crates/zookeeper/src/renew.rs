//! Renewing: whether what was claimed is still there. Nothing in here extends anything: heartbeats do.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::seam::{LeaseRef, Moment, Renewal};
use leasehold_core::{Error, ErrorKind, Loss};
use zookeeper_client::Error as ZkError;

use crate::claim::table::{Claims, Kept, Session, lose};
use crate::client::Sessions;
use crate::error::{Answer, reading};

/// See [`Backend::renew`](leasehold_core::seam::Backend::renew). One request for each session.
pub(crate) async fn renew(sessions: &Sessions<Claims>, leases: &[LeaseRef]) -> Vec<Renewal> {
    let live = |lease: &LeaseRef| Some((lease.claim.ttl, sessions.live(lease.claim.ttl)?));
    let live: HashMap<Duration, Arc<Session>> = leases.iter().filter_map(live).collect();
    let audited = join_all(live.iter().map(async |(ttl, session)| (*ttl, audit(session, Loss::Gone).await))).await;
    // An audit that fails says nothing, and takes nothing from what was proven before.
    let failed: HashMap<Duration, ZkError> = audited.into_iter().filter_map(|(ttl, e)| Some((ttl, e.err()?))).collect();
    let renewal = |lease: &LeaseRef| {
        let Some(session) = live.get(&lease.claim.ttl) else { return Renewal::Lost(Loss::Expired) };
        let mut claims = session.tenant();
        let Some(kept) = claims.renew(lease.claim.id, Moment::now()) else { return Renewal::Lost(Loss::Gone) };
        match (&kept.entry.made, failed.get(&lease.claim.ttl)) {
            (None, _) => Renewal::Unknown(Error::new(ErrorKind::Unavailable, "the claim is just being made again")),
            (Some((path, _)), _) if **path != *lease.place.as_str() => Renewal::Lost(Loss::Gone),
            (Some(_), Some(e)) => Renewal::Unknown(reading(e.clone())),
            (Some(_), None) => Renewal::Renewed(kept.validity(session)),
        }
    };
    leases.iter().map(renewal).collect()
}

/// Compares the claims' nodes with the session's, and rings for those that are gone. One request for all.
///
/// It is answered by one server alone, which may lag behind. But the same connection had a heartbeat answered before, and what
/// it reads after that is no older: each node that it shows was there at some moment since that heartbeat was sent.
pub(crate) async fn audit(session: &Session, loss: Loss) -> Answer<()> {
    let path = |kept: &Kept| kept.entry.made.as_ref().map(|(path, _)| path.clone());
    let known: HashSet<Arc<str>> = session.tenant().kept.values().filter_map(path).collect();
    if known.is_empty() {
        return Ok(());
    }
    let fresh = session.fresh();
    let alive = session.nodes().await?;
    lose(session, loss, |kept| path(kept).is_some_and(|path| known.contains(&path) && !alive.contains(&*path)));
    let there = |kept: &&mut Kept| path(kept).is_some_and(|path| alive.contains(&*path));
    session.tenant().kept.values_mut().filter(there).for_each(|kept| kept.seen(fresh));
    Ok(())
}
