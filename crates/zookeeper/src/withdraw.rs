//! Withdrawing a claim: what `release` does, and what becomes of a claim that nobody wants any more.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use leasehold_core::seam::Claim;
use leasehold_core::{Error, ErrorKind, Result};
use tokio::time::{sleep, timeout};
use zookeeper_client::{Client, Error as ZkError};

use crate::claim::Seat;
use crate::error::writing;
use crate::session::Session;

/// How long to wait before trying again what has failed.
const BREATHE: Duration = Duration::from_millis(100);

/// Removes whatever the claim has left, and tries for as long as any request may take.
///
/// If that was not enough, or nobody waited for it, the claim is still known: it lapses when its lease ends, and then the
/// session tries again, lease after lease. A session outlives its claims, so an entry that was forgotten would block its line.
pub(crate) async fn withdraw(session: &Session, claim: &Claim) -> Result<()> {
    let Some(path) = session.places().leave(claim.id) else { return Ok(()) };
    let seat = Seat::of(session, claim);
    let removing = async {
        loop {
            // With the session all its entries are gone.
            let Some(client) = session.current() else { return Ok(()) };
            match remove(&client, &seat, path.as_deref()).await {
                Ok(()) | Err(ZkError::SessionExpired | ZkError::ClientClosed) => return Ok(()),
                Err(e @ (ZkError::NoAuth | ZkError::AuthFailed)) => return Err(writing(e)),
                Err(_) => sleep(BREATHE).await,
            }
        }
    };
    let unanswered = || Error::new(ErrorKind::Ambiguous, "ZooKeeper has not answered; the entry ends with its lease");
    timeout(session.config.timeout, removing).await.map_err(|_| unanswered())??;
    session.places().forget(claim.id);
    Ok(())
}

/// One attempt, by the path of the entry, or by its name if it is not known where, or whether, it was made.
///
/// Nothing of the claim can arrive after this: a request that was sent before on the same connection is executed before, and
/// one on an earlier connection of the session is refused by the server once the session is on another.
async fn remove(client: &Arc<Client>, seat: &Seat, path: Option<&str>) -> Result<(), ZkError> {
    if let Some(path) = path {
        return there(client.delete(path, None).await);
    }
    let (synced, listed) = join(client.sync(&seat.parent), client.list_children(&seat.parent)).await;
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
