//! Withdrawing a claim: what `release` does, carried through whatever becomes of its caller.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::seam::{Claim, ClaimId};
use leasehold_core::{Error, ErrorKind, Result};
use tokio::time::timeout;
use zookeeper_client::{Client, Error as ZkError};

use crate::claim::Seat;
use crate::error::writing;
use crate::places::{Leaving, Withdrawn};
use crate::session::Session;

/// How long to wait before trying again what has failed.
const BREATHE: Duration = Duration::from_millis(100);

/// Removes whatever the claim has left, and waits for it as long as for any request.
pub(crate) async fn withdraw(session: &Arc<Session>, claim: &Claim) -> Result<()> {
    let Some(leaving) = start(session, claim) else { return Ok(()) };
    let unanswered =
        || Error::new(ErrorKind::Ambiguous, "ZooKeeper has not answered yet; the release goes on by itself");
    timeout(session.config.timeout, leaving).await.map_err(|_| unanswered())?.map_err(writing)
}

/// Begins to remove whatever the claim has left; `None` if that is nothing.
///
/// A session outlives its claims, so an entry that was forgotten would block its line for as long as the session lives: the
/// withdrawal goes on in the background until it is done or the session has ended.
pub(crate) fn start(session: &Arc<Session>, claim: &Claim) -> Option<Leaving> {
    session.places().leave(claim.id, |kept| {
        let path = kept.path().map(str::to_owned);
        let task = tokio::spawn(carry_through(session.clone(), claim.id, Seat::of(session, claim), path));
        task.map(|done| done.unwrap_or(Err(ZkError::ClientClosed))).boxed().shared()
    })
}

async fn carry_through(session: Arc<Session>, id: ClaimId, seat: Seat, path: Option<String>) -> Withdrawn {
    let outcome = loop {
        // With the session all its entries are gone.
        let Some(client) = session.current() else { break Ok(()) };
        match remove(&client, &seat, path.as_deref()).await {
            Ok(()) | Err(ZkError::SessionExpired | ZkError::ClientClosed) => break Ok(()),
            Err(e @ (ZkError::NoAuth | ZkError::AuthFailed)) => break Err(e),
            Err(_) => {
                drop(client);
                tokio::time::sleep(BREATHE).await;
            }
        }
    };
    session.places().left(id);
    outcome
}

/// One attempt, by the path of the entry, or by its name if it is not known where, or whether, it was made.
///
/// Nothing of the claim can arrive after this: a request that was sent before on the same connection is executed before, and
/// one on an earlier connection of the session is refused by the server once the session is on another.
async fn remove(client: &Client, seat: &Seat, path: Option<&str>) -> Result<(), ZkError> {
    if let Some(path) = path {
        return there(client.delete(path, None).await);
    }
    let synced = client.sync(&seat.parent);
    let listed = client.list_children(&seat.parent);
    let (synced, listed) = futures_util::future::join(synced, listed).await;
    there(synced)?;
    let children = if listed == Err(ZkError::NoNode) { Vec::new() } else { listed? };
    for node in children.iter().filter(|node| node.starts_with(&seat.prefix)) {
        there(client.delete(&seat.path(node), None).await)?;
    }
    Ok(())
}

/// Not to be there is what was wanted.
fn there(answer: Result<(), ZkError>) -> Result<(), ZkError> {
    answer.or_else(|e| if e == ZkError::NoNode { Ok(()) } else { Err(e) })
}
