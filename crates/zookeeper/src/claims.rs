//! The claims that live in one session: what the session's life means for them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::seam::{Bells, ClaimId, Grant, Moment, Renewal, Tenure};
use leasehold_core::{Error, ErrorKind, Loss};
use leasehold_zookeeper_client::Tenant;
use zookeeper_client::Error as ZkError;

use crate::table::{Kept, Table};
use crate::withdraw;

pub(crate) type Session = leasehold_zookeeper_client::Session<Claims>;

pub(crate) struct Claims {
    pub(crate) bells: Bells,
    table: Mutex<Table>,
}

impl Claims {
    pub(crate) fn new(bells: Bells) -> Claims {
        Claims { bells, table: Mutex::default() }
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenant for Claims {
    fn connected(&self) {
        self.bells.everyone();
    }

    /// What that adds to all that is held is said at once, because the next renewal may fail. What nobody wants any more is
    /// removed, by a connection that is known to work.
    async fn proven(session: &Session) {
        let claims = &session.tenant;
        let grants: Vec<(ClaimId, Grant)> = {
            let mut table = claims.table();
            table.lapse(Moment::now());
            let grant = |kept: &Kept| Some((kept.entry.id, kept.grant(|asked| session.validity(asked))?));
            table.kept.values().filter_map(grant).collect()
        };
        grants.into_iter().for_each(|(id, grant)| claims.bells.granted(id, grant));
        let _ = session.limited(withdraw::clear(session, |_| true)).await;
    }

    async fn rung(session: &Session) -> Result<(), ZkError> {
        audit(session, Loss::Evicted).await
    }

    fn is_idle(&self) -> bool {
        let table = self.table();
        table.kept.is_empty() && table.leaving.is_empty()
    }

    fn ended(&self, loss: Loss) {
        let all = self.table().forget(|_| true);
        if !all.is_empty() {
            tracing::warn!(claims = all.len(), ?loss, "the session with ZooKeeper has ended");
        }
        all.into_iter().for_each(|id| self.bells.lost(id, loss));
    }
}

/// Compares the claims' nodes with the session's, and rings for those that are gone. One request for all.
pub(crate) async fn audit(session: &Session, loss: Loss) -> Result<(), ZkError> {
    let claims = &session.tenant;
    let known: HashSet<Arc<str>> = claims.table().kept.values().filter_map(Kept::path).cloned().collect();
    if known.is_empty() {
        return Ok(());
    }
    let alive = session.nodes().await?;
    let is_gone = |path: &Arc<str>| known.contains(path) && !alive.contains(&**path);
    let gone = claims.table().forget(|kept| kept.path().is_some_and(is_gone));
    gone.into_iter().for_each(|id| claims.bells.lost(id, loss));
    Ok(())
}

/// Extends nothing by itself: heartbeats do.
pub(crate) fn renew(session: &Session, tenure: &Tenure) -> Renewal {
    let now = Moment::now();
    match session.tenant.table().renew(tenure.claim.id, now).map(|entry| entry.node) {
        Some(Some(node)) if *node.path == *tenure.place.as_str() => Renewal::Renewed(session.validity(now)),
        Some(None) => Renewal::Unknown(Error::new(ErrorKind::Unavailable, "the claim is just being made again")),
        Some(Some(_)) | None => Renewal::Lost(Loss::Gone),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_core::seam::{Claim, Mode, Queue};

    use super::*;
    use crate::table::Entry;

    #[test]
    fn a_session_is_needed_until_nothing_of_its_claims_can_be_left() {
        let claims = Claims::new(Bells::new());
        assert!(claims.is_idle());
        let claim = Claim::new("a", Mode::Exclusive, Queue::Fair, Duration::from_secs(60), "");
        let entry = Entry::new(claim.id, "/a");
        claims.table().keep(&entry, &claim, claim.ttl, Moment::now());
        assert!(!claims.is_idle());
        claims.table().leave(claim.id);
        assert!(!claims.is_idle());
        claims.table().leaving.clear();
        assert!(claims.is_idle());
    }
}
