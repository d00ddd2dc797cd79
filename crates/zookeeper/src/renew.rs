//! Renewing: whether what was claimed is still there. Nothing here extends a lease: keep-alives do.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use leasehold_core::seam::{Admission, Claim, ClaimId, LeaseRef, Mode, Moment, Renewal, admit};
use leasehold_core::support::fault;
use leasehold_core::{Error, ErrorKind, Loss};
use zookeeper_client::Error as ZkError;

use crate::claim::table::{Claims, Due, Session, Tracked, lose};
use crate::client::{AT_ONCE, Client, Node, Sessions};
use crate::entry::{is_shared, loaded, modes, queue};
use crate::error::Answer;

/// See [`Backend::renew`](leasehold_core::seam::Backend::renew). One request for each session.
pub(crate) async fn renew(sessions: &Sessions<Claims>, leases: &[LeaseRef]) -> Vec<Renewal> {
    let mut live: BTreeMap<Duration, Option<Arc<Session>>> = BTreeMap::new();
    for Claim { ttl, .. } in leases.iter().map(|lease| &*lease.claim) {
        live.entry(*ttl).or_insert_with(|| sessions.live(*ttl));
    }
    // A request that fails verifies nothing, and takes nothing from what was verified before.
    let verified = live.iter().filter_map(|(ttl, session)| Some((*ttl, session.as_ref()?)));
    let verified =
        join_all(verified.map(async |(ttl, session)| (ttl, (session, verify_when_due(session).await.err()))));
    let (verified, now): (BTreeMap<Duration, _>, _) = (verified.await.into_iter().collect(), Moment::now());
    let renewal = |lease: &LeaseRef| {
        let Some((session, failed)) = verified.get(&lease.claim.ttl) else { return Renewal::Lost(Loss::Expired) };
        let mut claims = session.handler();
        let Some(tracked) = claims.mark_used(lease.claim.id, now) else { return Renewal::Lost(Loss::Gone) };
        match (tracked.entry.created(), failed) {
            (None, _) => Renewal::Unknown(Error::new(ErrorKind::Unavailable, "the entry is being created again")),
            (Some((path, _)), _) if **path != *lease.place.as_str() => Renewal::Lost(Loss::Gone),
            (Some(_), Some(e)) => Renewal::Unknown(session.config.reading(e.clone())),
            (Some(_), None) => Renewal::Renewed(tracked.validity(&session.state().liveness)),
        }
    };
    leases.iter().map(renewal).collect()
}

/// Who holds is verified at each renewal, and who only waits about once in a lease: a waiter's place that somebody has removed by hand is
/// also missed when its turn comes. An answer that names all places of the session was nearly all that idle waiters cost.
async fn verify_when_due(session: &Session) -> Answer<()> {
    let lease = session.state().liveness.timeout;
    let due = session.handler().due(lease, Moment::now());
    // Without a connection it is an error that says so.
    verify(session, if session.client().is_err() { Due::All } else { due }, Loss::Gone).await
}

/// Compares all claims' entries with the session's nodes, also if there are none.
pub(crate) async fn verify_entries(session: &Session, loss: Loss) -> Answer<()> {
    verify(session, Due::All, loss).await
}

/// Compares these claims' entries with the session's nodes, and notifies those that are gone; what of all nodes is no claim's is abandoned. One
/// request for all.
///
/// One server alone answers, which may lag behind. But it answered a keep-alive on the same connection before, and what it reads
/// after that is no older: each node in its answer existed at some moment since that keep-alive was sent.
async fn verify(session: &Session, due: Due, loss: Loss) -> Answer<()> {
    // Of a connection that is new by now, only what was read after the places counts.
    let last_answered = session.state().liveness.last_answered;
    verify_places(session).await?;
    // A path of now is only compared with itself: of an entry that is newer, the answer says nothing.
    let path = |tracked: &Tracked| tracked.entry.created().map(|(path, _)| path.clone());
    let known: Vec<(ClaimId, Arc<str>)> = {
        let claims = session.handler();
        let compared =
            claims.tracked.iter().filter(|(_, tracked)| due == Due::All || due == Due::Holds && tracked.held.is_some());
        compared.filter_map(|(id, tracked)| Some((*id, path(tracked)?))).collect()
    };
    if known.is_empty() && due != Due::All {
        return Ok(());
    }
    let asked = Moment::now();
    let mut nodes = match due {
        Due::All => session.nodes().await?,
        _ => session.nodes_at(known.iter().map(|(_, path)| &**path)).await?,
    };
    let mut missing = HashMap::new();
    let mut claims = session.handler();
    if due == Due::All {
        claims.last_verified = Some(asked);
    }
    for (id, path) in known {
        if !nodes.remove(&*path) && !fault("nodes-unseen") {
            missing.insert(id, path);
        } else if let Some(tracked) = claims.tracked.get_mut(&id)
            && tracked.entry.created().is_some_and(|(now, _)| *now == path)
        {
            tracked.verified(last_answered);
        }
    }
    claims.abandon_strays(nodes);
    drop(claims);
    if !missing.is_empty() {
        lose(session, loss, |id, tracked| {
            missing.get(id).is_some_and(|missing| path(tracked).as_ref() == Some(missing))
        });
    }
    Ok(())
}

/// After each reconnect, once: whether each hold is still where it holds in its queue. Where the server has old data again, the entry of a
/// session that had ended may be before it again, and whoever has that is granted: then the hold is lost, and its entry is removed.
pub(crate) async fn verify_places(session: &Session) -> Answer<()> {
    let Some(over) = session.handler().unread.clone() else { return Ok(()) };
    let client = session.client()?;
    if !client.closed.same_channel(&over) {
        return Err(ZkError::ConnectionLoss);
    }
    let holds: Vec<_> = {
        let claims = session.handler();
        let held = claims.tracked.iter().filter(|(_, tracked)| tracked.held.is_some());
        held.map(|(id, tracked)| (*id, tracked.entry.clone(), tracked.stored.0)).collect()
    };
    let each = holds
        .into_iter()
        .map(async |(id, entry, mode)| Ok(is_kept_out(&client, &entry, mode).await?.then_some((id, entry))));
    let read = stream::iter(each).buffer_unordered(AT_ONCE).try_collect::<Vec<Option<(ClaimId, Node)>>>();
    let mut lost: Vec<(ClaimId, Node)> = session.limited(read).await?.into_iter().flatten().collect();
    let mut claims = session.handler();
    // Unless the claim has another entry by now.
    lost.retain(|(id, entry)| claims.with_entry(*id, entry).is_some());
    lost.iter().for_each(|(id, _)| claims.abandon(*id));
    claims.unread.take_if(|unread| unread.same_channel(&over));
    drop(claims);
    lost.into_iter().for_each(|(id, _)| session.notifier.lost(id, Loss::Gone));
    Ok(())
}

/// Whether somebody is before this entry who keeps a claim of this mode out.
async fn is_kept_out(client: &Client, entry: &Node, mode: Mode) -> Answer<bool> {
    let mut before = queue(client, entry.parent()).await?;
    // What is not there is found missing elsewhere.
    before.truncate(before.iter().position(|child| entry.is(&child.node)).unwrap_or_default());
    if admit(&modes(&before), mode) == Admission::In {
        return Ok(false);
    }
    // One of them may have been downgraded, which only its data say.
    let before = loaded(client, entry.parent(), before).await?;
    let before = before.iter().map(|(child, data, _)| if is_shared(data) { Mode::Shared } else { child.mode });
    Ok(admit(&before.collect::<Vec<_>>(), mode) != Admission::In)
}
