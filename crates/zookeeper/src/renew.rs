//! Renewing: whether what was claimed is still there. Nothing in here extends anything: heartbeats do.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::seam::{Moment, Renewal, Tenure};
use leasehold_core::{Error, ErrorKind, Loss};
use leasehold_zookeeper_client::{Answer, Sessions};

use crate::claims::{Claims, Kept, Session, lose};

/// See [`Backend::renew`](leasehold_core::seam::Backend::renew). One request for each session.
pub(crate) async fn renew(sessions: &Sessions<Claims>, tenures: &[Tenure]) -> Vec<Renewal> {
    let live = |tenure: &Tenure| Some((tenure.claim.ttl, sessions.live(tenure.claim.ttl)?));
    let live: HashMap<Duration, Arc<Session>> = tenures.iter().filter_map(live).collect();
    // An audit that fails says nothing, and takes nothing from what heartbeats have proven.
    join_all(live.values().map(|session| audit(session, Loss::Gone))).await;
    let renewal = |tenure: &Tenure| {
        let Some(session) = live.get(&tenure.claim.ttl) else { return Renewal::Lost(Loss::Expired) };
        let now = Moment::now();
        match session.tenant().renew(tenure.claim.id, now).map(|entry| entry.made) {
            Some(Some((path, _))) if *path == *tenure.place.as_str() => Renewal::Renewed(session.validity(now)),
            Some(None) => Renewal::Unknown(Error::new(ErrorKind::Unavailable, "the claim is just being made again")),
            Some(Some(_)) | None => Renewal::Lost(Loss::Gone),
        }
    };
    tenures.iter().map(renewal).collect()
}

/// Compares the claims' nodes with the session's, and rings for those that are gone. One request for all.
pub(crate) async fn audit(session: &Session, loss: Loss) -> Answer<()> {
    let path = |kept: &Kept| kept.entry.made.as_ref().map(|(path, _)| path.clone());
    let known: HashSet<Arc<str>> = session.tenant().kept.values().filter_map(path).collect();
    if !known.is_empty() {
        let alive = session.nodes().await?;
        lose(session, loss, |kept| path(kept).is_some_and(|path| known.contains(&path) && !alive.contains(&*path)));
    }
    Ok(())
}
