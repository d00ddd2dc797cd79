//! Releasing a claim: `release`, and the removal of claims that are no longer wanted.

use leasehold_core::seam::ClaimId;
use zookeeper_client::Error as ZkError;

use crate::claim::table::Session;
use crate::client::Node;
use crate::error::Answer;

/// Removes what the claim has left. If that fails or is dropped, the session retries after each keep-alive: it outlives its
/// claims, so an entry that was forgotten would block its queue.
pub(crate) async fn release(session: &Session, id: ClaimId) -> Answer<()> {
    session.handler().abandon(id);
    remove_abandoned(session, |abandoned| abandoned == id).await
}

/// Removes the entries of these claims. One that cannot be removed does not prevent the removal of the others.
pub(crate) async fn remove_abandoned(session: &Session, whose: impl Fn(ClaimId) -> bool) -> Answer<()> {
    let entry = |(id, entry): &(ClaimId, Node)| whose(*id).then(|| entry.clone());
    let entries: Vec<Node> = session.handler().abandoned.iter().filter_map(entry).collect();
    let mut removed = Ok(());
    for entry in entries {
        match entry.remove(session).await {
            // With the session all its entries are removed.
            Ok(()) | Err(ZkError::SessionExpired | ZkError::ClientClosed) => {
                session.handler().abandoned.retain(|(_, other)| other.prefix != entry.prefix);
            }
            Err(e) => removed = Err(e),
        }
    }
    removed
}
