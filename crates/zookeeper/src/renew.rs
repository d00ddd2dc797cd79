//! Renewals: they verify that claimed entries are still there. They do not extend a lease:
//! keep-alives do.

mod places;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::backend::{Claim, ClaimId, LeaseRef, Moment, Renewal};
use leasehold_core::support::fault;
use leasehold_core::{Error, ErrorKind, Loss};

use crate::claim::table::{Claims, Due, Session, Tracked, lose};
use crate::client::Sessions;
use crate::error::Answer;
pub(crate) use crate::renew::places::verify_places;

/// See [`Backend::renew`](leasehold_core::backend::Backend::renew). One request for each session.
pub(crate) async fn renew(sessions: &Sessions<Claims>, leases: &[LeaseRef]) -> Vec<Renewal> {
    let mut live: BTreeMap<Duration, Option<Arc<Session>>> = BTreeMap::new();
    for Claim { ttl, .. } in leases.iter().map(|lease| &*lease.claim) {
        live.entry(*ttl).or_insert_with(|| sessions.live(*ttl));
    }
    // A failed request verifies nothing, and takes nothing from earlier verifications.
    let verified = live
        .iter()
        .filter_map(|(ttl, session)| Some((*ttl, session.as_ref()?)));
    let verified = join_all(
        verified.map(async |(ttl, session)| (ttl, (session, verify_when_due(session).await.err()))),
    );
    let (verified, now): (BTreeMap<Duration, _>, _) =
        (verified.await.into_iter().collect(), Moment::now());
    let renewal = |lease: &LeaseRef| {
        let Some((session, failed)) = verified.get(&lease.claim.ttl) else {
            return Renewal::Lost(Loss::Expired);
        };
        let mut claims = session.handler();
        let Some(tracked) = claims.mark_used(lease.claim.id, now) else {
            return Renewal::Lost(Loss::Gone);
        };
        match (tracked.entry.created(), failed) {
            (None, _) => Renewal::Unknown(Error::new(
                ErrorKind::Unavailable,
                "the entry is being created again",
            )),
            (Some((path, _)), _) if **path != *lease.place.as_str() => Renewal::Lost(Loss::Gone),
            (Some(_), Some(e)) => Renewal::Unknown(session.config.reading(e.clone())),
            (Some(_), None) => Renewal::Renewed(tracked.validity(&session.state().liveness)),
        }
    };
    leases.iter().map(renewal).collect()
}

/// Verifies holders at each renewal, and waiters about once in a lease: a waiter's place that was
/// removed by hand is also missed when its turn comes. Otherwise answers that name all places of
/// the session would be nearly all of the cost of idle waiters.
async fn verify_when_due(session: &Session) -> Answer<()> {
    let lease = session.state().liveness.timeout;
    let due = session.handler().due(lease, Moment::now());
    // Without a connection this fails, and reports that.
    verify(
        session,
        if session.client().is_err() {
            Due::All
        } else {
            due
        },
        Loss::Gone,
    )
    .await
}

/// Compares all claims' entries with the session's nodes, even if there are no claims.
pub(crate) async fn verify_entries(session: &Session, loss: Loss) -> Answer<()> {
    verify(session, Due::All, loss).await
}

/// Compares these claims' entries with the session's nodes and notifies the claims whose entries
/// are gone. Nodes that belong to no claim are abandoned. One request for all.
///
/// Only one server answers, and it may lag behind. But it answered a keep-alive on the same
/// connection before, and reads after that are no older: each node in its answer existed at some
/// moment since that keep-alive was sent.
async fn verify(session: &Session, due: Due, loss: Loss) -> Answer<()> {
    // If the connection is new by now, only reads after the places were verified count.
    let last_answered = session.state().liveness.last_answered;
    verify_places(session).await?;
    // The known path is only compared with itself: the answer says nothing about a newer entry.
    let path = |tracked: &Tracked| tracked.entry.created().map(|(path, _)| path.clone());
    let known: Vec<(ClaimId, Arc<str>)> = {
        let claims = session.handler();
        let compared = claims
            .tracked
            .iter()
            .filter(|(_, tracked)| due == Due::All || due == Due::Holds && tracked.held.is_some());
        compared
            .filter_map(|(id, tracked)| Some((*id, path(tracked)?)))
            .collect()
    };
    if known.is_empty() && due != Due::All {
        return Ok(());
    }
    let asked = Moment::now();
    let mut nodes = match due {
        Due::All => session.nodes().await?,
        _ => {
            session
                .nodes_at(known.iter().map(|(_, path)| &**path))
                .await?
        }
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
            missing
                .get(id)
                .is_some_and(|missing| path(tracked).as_ref() == Some(missing))
        });
    }
    Ok(())
}
