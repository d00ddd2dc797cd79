//! Withdrawing claims: what `release` does, and what becomes of a claim that nobody wants any more.

use leasehold_core::seam::ClaimId;
use leasehold_zookeeper_client::{children, remove};
use zookeeper_client::Error as ZkError;

use crate::claims::Session;
use crate::table::Entry;

/// Removes whatever the claim has left. If that fails, or nobody waits for it, the session tries again after each heartbeat: it
/// outlives its claims, so an entry that was forgotten would block its line.
pub(crate) async fn withdraw(session: &Session, id: ClaimId) -> Result<(), ZkError> {
    session.tenant.table().leave(id);
    clear(session, |entry| entry.id == id).await
}

/// Removes those entries that nobody wants any more.
pub(crate) async fn clear(session: &Session, which: impl Fn(&Entry) -> bool) -> Result<(), ZkError> {
    let leaving: Vec<Entry> = session.tenant.table().leaving.iter().filter(|entry| which(entry)).cloned().collect();
    for entry in leaving {
        match erase(session, &entry).await {
            // With the session all its entries are gone.
            Ok(()) | Err(ZkError::SessionExpired | ZkError::ClientClosed) => {}
            Err(e) => return Err(e),
        }
        session.tenant.table().leaving.retain(|other| other.prefix != entry.prefix);
    }
    Ok(())
}

/// By the path of its node, or by its name if it is not known where, or whether, it was made.
///
/// Nothing of the claim can arrive after this: a request that was sent before on the same connection is executed before, and
/// one on an earlier connection of the session is refused by the server once the session is on another.
async fn erase(session: &Session, entry: &Entry) -> Result<(), ZkError> {
    let client = session.connected().await?;
    if let Some(node) = &entry.node {
        return remove(&client, &node.path).await.map(drop);
    }
    client.sync(&entry.parent).await?;
    for node in children(&client, &entry.parent).await?.iter().filter(|node| entry.is(node)) {
        remove(&client, &format!("{}/{node}", entry.parent)).await?;
    }
    Ok(())
}
