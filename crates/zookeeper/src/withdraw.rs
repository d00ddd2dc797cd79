//! Withdrawing claims: what `release` does, and what becomes of a claim that nobody wants any more.

use leasehold_core::seam::ClaimId;
use zookeeper_client::{Client, Error as ZkError};

use crate::line::children;
use crate::places::Entry;
use crate::session::Session;

/// Removes whatever the claim has left. If that fails, or nobody waits for it, the session tries again after each heartbeat: it
/// outlives its claims, so an entry that was forgotten would block its line.
pub(crate) async fn withdraw(session: &Session, id: ClaimId) -> Result<(), ZkError> {
    session.state().places.leave(id);
    clear(session, |entry| entry.id == id).await
}

/// Removes those entries that nobody wants any more.
pub(crate) async fn clear(session: &Session, which: impl Fn(&Entry) -> bool) -> Result<(), ZkError> {
    let leaving: Vec<Entry> = session.state().places.leaving.iter().filter(|entry| which(entry)).cloned().collect();
    for entry in leaving {
        let removed = match session.connected().await {
            Ok(client) => remove(&client, &entry).await,
            Err(e) => Err(e),
        };
        match removed {
            // With the session all its entries are gone.
            Ok(()) | Err(ZkError::SessionExpired | ZkError::ClientClosed) => {}
            Err(e) => return Err(e),
        }
        session.state().places.leaving.retain(|other| other.prefix != entry.prefix);
    }
    Ok(())
}

/// By the path of its node, or by its name if it is not known where, or whether, it was made.
///
/// Nothing of the claim can arrive after this: a request that was sent before on the same connection is executed before, and
/// one on an earlier connection of the session is refused by the server once the session is on another.
async fn remove(client: &Client, entry: &Entry) -> Result<(), ZkError> {
    let paths = match &entry.node {
        Some(node) => vec![node.path.to_string()],
        None => {
            let nodes = children(client, &entry.parent, true).await?;
            nodes
                .iter()
                .filter(|node| node.starts_with(&*entry.prefix))
                .map(|node| format!("{}/{node}", entry.parent))
                .collect()
        }
    };
    for path in paths {
        match client.delete(&path, None).await {
            Ok(()) | Err(ZkError::NoNode) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
