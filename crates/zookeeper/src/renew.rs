//! Renewing: whether what was claimed is still there. Nothing here extends a lease: keep-alives do.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::seam::{LeaseRef, Moment, Renewal};
use leasehold_core::{Error, ErrorKind, Loss};
use zookeeper_client::Error as ZkError;

use crate::claim::table::{Claims, Session, Tracked, lose};
use crate::client::Sessions;
use crate::error::{Answer, reading};

/// See [`Backend::renew`](leasehold_core::seam::Backend::renew). One request for each session.
pub(crate) async fn renew(sessions: &Sessions<Claims>, leases: &[LeaseRef]) -> Vec<Renewal> {
    let live = |lease: &LeaseRef| Some((lease.claim.ttl, sessions.live(lease.claim.ttl)?));
    let live: HashMap<Duration, Arc<Session>> = leases.iter().filter_map(live).collect();
    let verified = live.iter().map(async |(ttl, session)| (*ttl, verify_entries(session, Loss::Gone).await));
    // A request that fails verifies nothing, and takes nothing from what was verified before.
    let verified = join_all(verified).await.into_iter();
    let failed: HashMap<Duration, ZkError> = verified.filter_map(|(ttl, answer)| Some((ttl, answer.err()?))).collect();
    let renewal = |lease: &LeaseRef| {
        let Some(session) = live.get(&lease.claim.ttl) else { return Renewal::Lost(Loss::Expired) };
        let mut claims = session.handler();
        let Some(tracked) = claims.mark_used(lease.claim.id, Moment::now()) else { return Renewal::Lost(Loss::Gone) };
        match (&tracked.entry.created, failed.get(&lease.claim.ttl)) {
            (None, _) => Renewal::Unknown(Error::new(ErrorKind::Unavailable, "the entry is being created again")),
            (Some((path, _)), _) if **path != *lease.place.as_str() => Renewal::Lost(Loss::Gone),
            (Some(_), Some(e)) => Renewal::Unknown(reading(e.clone())),
            (Some(_), None) => Renewal::Renewed(tracked.validity(session)),
        }
    };
    leases.iter().map(renewal).collect()
}

/// Compares the claims' entries with the session's nodes, and notifies those that are gone. One request for all.
///
/// One server alone answers, which may lag behind. But it answered a keep-alive on the same connection before, and what it reads
/// after that is no older: each node in its answer existed at some moment since that keep-alive was sent.
pub(crate) async fn verify_entries(session: &Session, loss: Loss) -> Answer<()> {
    let path = |tracked: &Tracked| tracked.entry.created.as_ref().map(|(path, _)| path.clone());
    let known: HashSet<Arc<str>> = session.handler().tracked.values().filter_map(path).collect();
    if known.is_empty() {
        return Ok(());
    }
    let last_answered = session.state().liveness.last_answered;
    let nodes = session.nodes().await?;
    lose(session, loss, |tracked| path(tracked).is_some_and(|path| known.contains(&path) && !nodes.contains(&*path)));
    let exists = |tracked: &&mut Tracked| path(tracked).is_some_and(|path| nodes.contains(&*path));
    session.handler().tracked.values_mut().filter(exists).for_each(|tracked| tracked.verified(last_answered));
    Ok(())
}
