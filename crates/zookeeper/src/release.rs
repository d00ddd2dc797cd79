//! Releasing a claim: `release`, and the removal of claims that are no longer wanted.

use leasehold_core::backend::ClaimId;

use crate::claim::table::Session;
use crate::client::Node;
use crate::error::Answer;

/// Removes the entries of the claim. If that fails or is dropped, the session retries several times
/// a lease: it outlives its claims, so a forgotten entry would block its queue.
pub(crate) async fn release(session: &Session, id: ClaimId) -> Answer<()> {
    let entries = {
        let mut claims = session.handler();
        claims.abandon(id);
        claims.abandoned.get(&id).cloned().unwrap_or_default()
    };
    remove(session, id, entries).await
}

/// Removes the entries of all abandoned claims, except those that cannot be removed now.
pub(crate) async fn remove_abandoned(session: &Session) -> Answer<()> {
    let abandoned = session.handler().abandoned.clone();
    for (id, entries) in abandoned {
        let _ = remove(session, id, entries).await;
    }
    Ok(())
}

/// Removes these entries of the claim. An entry that cannot be removed does not prevent the removal
/// of the others.
async fn remove(session: &Session, id: ClaimId, entries: Vec<Node>) -> Answer<()> {
    let mut removed = Ok(());
    for entry in entries {
        let with_parent = match entry.remove(session).await {
            Ok(with_parent) => with_parent,
            // With the session all its entries are removed. The client crate does not know whether
            // the session has ended: it reports that of a request that it has not sent because it
            // could not connect for long, and the session may live on.
            Err(_) if session.has_ended() => false,
            Err(e) => {
                removed = Err(e);
                continue;
            }
        };
        session.handler().removed(id, &entry, with_parent);
    }
    removed
}
