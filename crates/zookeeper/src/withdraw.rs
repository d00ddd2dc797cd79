//! Withdrawing claims: what `release` does, and what becomes of a claim that nobody wants any more.

use std::sync::Arc;

use leasehold_core::seam::ClaimId;
use zookeeper_client::Error as ZkError;

use crate::line::{children, in_order};
use crate::session::Session;
use crate::state::Entry;

/// Removes whatever the claim has left. If that fails, or nobody waits for it, the session tries again after each heartbeat: it
/// outlives its claims, so an entry that was forgotten would block its line.
pub(crate) async fn withdraw(session: &Session, id: ClaimId) -> Result<(), ZkError> {
    session.state().leave(id);
    clear(session, |entry| entry.id == id).await
}

/// Removes those entries that nobody wants any more.
pub(crate) async fn clear(session: &Session, which: impl Fn(&Entry) -> bool) -> Result<(), ZkError> {
    let leaving: Vec<Entry> = session.state().leaving.iter().filter(|entry| which(entry)).cloned().collect();
    for entry in leaving {
        match remove(session, &entry).await {
            // With the session all its entries are gone.
            Ok(()) | Err(ZkError::SessionExpired | ZkError::ClientClosed) => {}
            Err(e) => return Err(e),
        }
        session.state().leaving.retain(|other| other.prefix != entry.prefix);
    }
    Ok(())
}

/// By the path of its node, or by its name if it is not known where, or whether, it was made.
///
/// Nothing of the claim can arrive after this: a request that was sent before on the same connection is executed before, and
/// one on an earlier connection of the session is refused by the server once the session is on another.
async fn remove(session: &Session, entry: &Entry) -> Result<(), ZkError> {
    let client = session.connected().await?;
    let paths: Vec<Arc<str>> = match &entry.node {
        Some(node) => vec![node.path.clone()],
        None => {
            let line = in_order(&children(&client, &entry.parent, true).await?);
            let own = line.iter().filter(|child| entry.is(child));
            own.map(|child| format!("{}/{}", entry.parent, child.node).into()).collect()
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
