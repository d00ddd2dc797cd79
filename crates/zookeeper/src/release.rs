//! Withdrawing claims: what `release` does, and what becomes of a claim that nobody wants any more.

use leasehold_core::seam::ClaimId;
use zookeeper_client::Error as ZkError;

use crate::claim::table::Session;
use crate::client::Node;
use crate::error::Answer;

/// Removes whatever the claim has left. If that fails, or nobody waits for it, the session tries again after each heartbeat: it
/// outlives its claims, so an entry that was forgotten would block its line.
pub(crate) async fn withdraw(session: &Session, id: ClaimId) -> Answer<()> {
    session.tenant().leave(id);
    clear(session, |left| left == id).await
}

/// Removes what those claims have left: one that resists keeps nobody from the others.
pub(crate) async fn clear(session: &Session, whose: impl Fn(ClaimId) -> bool) -> Answer<()> {
    let leaving: Vec<(ClaimId, Node)> = session.tenant().leaving.iter().filter(|(id, _)| whose(*id)).cloned().collect();
    let mut cleared = Ok(());
    for (_, entry) in leaving {
        match entry.remove(session).await {
            // With the session all its entries are gone.
            Ok(()) | Err(ZkError::SessionExpired | ZkError::ClientClosed) => {
                session.tenant().leaving.retain(|(_, other)| other.prefix != entry.prefix);
            }
            Err(e) => cleared = Err(e),
        }
    }
    cleared
}
