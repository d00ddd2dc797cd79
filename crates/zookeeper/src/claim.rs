//! Taking a place in line and keeping it: what `claim` does.

use std::sync::Arc;

use futures_util::future::join;
use leasehold_core::seam::{Claim, ClaimId, Claimed, Grant, Moment, Place, Queue, Validity, Waiting};
use leasehold_core::{Contention, Error, ErrorKind, FencingToken, Name, Result};
use tokio::time::timeout;
use zookeeper_client::{Client, CreateMode, Error as ZkError};

use crate::error::{reading, unavailable, writing};
use crate::line::{self, Child};
use crate::places::Node;
use crate::session::Session;
use crate::wait::{Turn, Wait};
use crate::withdraw::withdraw;
use crate::{look, names, record};

/// Where a claim's entry is, or will be.
#[derive(Clone)]
pub(crate) struct Seat {
    /// The lock's node.
    pub(crate) parent: String,
    /// The entry's name up to its number.
    pub(crate) prefix: String,
}

impl Seat {
    pub(crate) fn of(session: &Session, claim: &Claim) -> Seat {
        let parent = session.config.root.lock(&claim.name);
        Seat { parent, prefix: names::entry(claim.id, session.id, claim.mode) }
    }

    pub(crate) fn path(&self, node: &str) -> String {
        format!("{}/{node}", self.parent)
    }
}

/// A place in line, as it was just seen.
struct Spot {
    own: Child,
    node: Node,
    line: Vec<Child>,
}

/// See [`Backend::claim`](leasehold_core::seam::Backend::claim).
pub(crate) async fn claim(session: &Arc<Session>, claim: &Claim) -> Result<Claimed> {
    let client = session.connected().await?;
    let seat = Seat::of(session, claim);
    let trying = claim.queue == Queue::Try;
    let leaving = session.places().leaving(claim.id);
    if let Some(leaving) = leaving {
        // It would take the new entry along.
        let left = timeout(session.config.timeout, leaving).await;
        left.map_err(|_| unavailable("an earlier withdrawal of the claim is still under way"))?.map_err(reading)?;
    }
    let known = {
        let mut places = session.places();
        places.renew(claim.id, Moment::now());
        places.find(claim.id)
    };
    let mut found = None;
    if known.is_some() || trying {
        let seen = session.connection();
        let sync = known.as_ref().is_some_and(|node| node.as_ref().is_none_or(|node| node.seen != seen));
        let line = line::in_order(&session.children(&client, &seat.parent, sync).await?);
        if let Some(node) = known {
            found = find(session, &client, claim, &seat, node, &line, seen).await?;
        }
        if found.is_none() && trying && line::to_watch(&line, claim.mode).is_some() {
            session.places().forget(claim.id);
            return Ok(Claimed::Busy(look::who(session, &client, &seat, &line).await));
        }
    }
    let spot = match found {
        Some(spot) => spot,
        None => take(session, &client, claim, &seat).await?,
    };
    let before = line::before(&spot.line, &spot.own.node).unwrap_or_default();
    let must_wait = line::to_watch(&before, claim.mode).is_some();
    let others = || spot.line.iter().filter(|child| **child != spot.own).cloned().collect::<Vec<Child>>();
    let place = Place::new(spot.node.path.clone());
    if must_wait && trying {
        withdraw(session, claim, Some(&place)).await?;
        return Ok(Claimed::Busy(look::who(session, &client, &seat, &others()).await));
    }
    // A nap of one lease: no wait rests on its watches alone.
    let waiting = |who| Ok(Claimed::Waiting(Waiting::new(place.clone(), who).look_again(session.timeout)));
    if must_wait && session.places().is_waiting(claim.id) {
        return waiting(look::who(session, &client, &seat, &others()).await);
    }
    let mut wait = Wait::new(session, &client, claim, seat, spot.own.node.clone(), before);
    match wait.settle(&client).await.map_err(writing)? {
        Turn::Now => hold(session, claim.id, &claim.name, &spot.node.path).map(Claimed::Granted),
        Turn::Gone => {
            session.places().forget(claim.id);
            Err(Error::new(ErrorKind::Ambiguous, "somebody removed the entry while it was made"))
        }
        Turn::Later => {
            let others = others();
            let queued = others.len() - line::holding(&others);
            let who = wait.holder.take().unwrap_or_else(Contention::unknown).waiters(queued);
            let waiter = tokio::spawn(wait.run()).abort_handle();
            session.places().wait(claim.id, waiter);
            waiting(who)
        }
    }
}

/// Says that the claim holds, for as long as the session surely lives.
pub(crate) fn hold(session: &Session, id: ClaimId, name: &Name, path: &str) -> Result<Grant> {
    let unproven = || Error::new(ErrorKind::Ambiguous, "ZooKeeper has not answered the session's heartbeats lately");
    let removed = || Error::new(ErrorKind::Ambiguous, "the claim was withdrawn meanwhile");
    let (node, asked, news) = session.places().hold(id, path).ok_or_else(removed)?;
    if news {
        session.bells.stirred(name);
    }
    Ok(grant(&node, session.validity(asked).ok_or_else(unproven)?))
}

/// The number of the transaction that made the entry, with room for 256 turns: places get it when they are taken, so what is
/// numbered later, at a turn, must fit in between.
pub(crate) fn token(czxid: i64) -> FencingToken {
    FencingToken::new((czxid as u64) << 8)
}

/// The grant of the entry at this node.
pub(crate) fn grant(node: &Node, validity: Validity) -> Grant {
    Grant::new(Place::new(node.path.clone()), token(node.czxid), validity).turns(256)
}

/// Makes a new entry. The list is sent right behind it: the session's order makes it show whatever is before the entry.
async fn take(session: &Session, client: &Client, claim: &Claim, seat: &Seat) -> Result<Spot> {
    let prefix = seat.path(&seat.prefix);
    let data = record::encode(claim.mode, &claim.label);
    let options = session.config.make(CreateMode::EphemeralSequential);
    for _ in 0..3 {
        let seen = session.connection();
        session.places().unsure(claim, session.lease(claim), Moment::now());
        let both = join(client.create(&prefix, &data, &options), client.list_children(&seat.parent));
        let both = timeout(session.config.timeout, both).await;
        match both.unwrap_or((Err(ZkError::ConnectionLoss), Ok(Vec::new()))) {
            (Ok((stat, number)), listed) => {
                let own = format!("{}{number}", seat.prefix);
                let path = seat.path(&own).into();
                let node = Node { path, czxid: stat.czxid, label: claim.label.clone(), seen };
                session.places().found(claim.id, node.clone());
                let line = line::in_order(&listed.map_err(writing)?);
                let missing = || Error::new(ErrorKind::Ambiguous, "somebody removed the entry while it was made");
                let own = line.iter().find(|child| child.node == own).cloned().ok_or_else(missing)?;
                return Ok(Spot { own, node, line });
            }
            (Err(ZkError::NoNode), _) => {
                session.places().forget(claim.id);
                // ZooKeeper removes the node of a lock that nobody has used for a minute.
                session.make_folder(&seat.parent).await.map_err(reading)?;
            }
            (Err(e), _) => {
                let e = writing(e);
                if e.kind() != ErrorKind::Ambiguous {
                    session.places().forget(claim.id);
                }
                return Err(e);
            }
        }
    }
    Err(Error::new(ErrorKind::Unavailable, "the lock's node was removed again and again"))
}

/// Looks for the claim's entry in the line: at the node that is known, or by its name if an earlier answer was lost.
async fn find(
    session: &Session,
    client: &Client,
    claim: &Claim,
    seat: &Seat,
    known: Option<Node>,
    line: &[Child],
    seen: u64,
) -> Result<Option<Spot>> {
    let mut mine = line.iter().filter(|child| match &known {
        Some(node) => *node.path == seat.path(&child.node),
        None => child.node.starts_with(&seat.prefix),
    });
    let Some(own) = mine.next().cloned() else { return Ok(None) };
    let mut line = line.to_vec();
    for twin in mine {
        // Two attempts have both arrived: the older one counts.
        let gone = session.limited(client.delete(&seat.path(&twin.node), None)).await;
        gone.or_else(|e| if e == ZkError::NoNode { Ok(()) } else { Err(writing(e)) })?;
        line.retain(|child| child != twin);
    }
    let path = seat.path(&own.node);
    let stored = match &known {
        Some(node) if node.label == claim.label => Ok(node.czxid),
        Some(_) | None => {
            let data = record::encode(claim.mode, &claim.label);
            let written = session.limited(client.set_data(&path, &data, None)).await;
            written.map(|stat| if stat.ephemeral_owner == session.id { stat.czxid } else { 0 })
        }
    };
    let czxid = match stored {
        Ok(0) | Err(ZkError::NoNode) => return Ok(None),
        stored => stored.map_err(writing)?,
    };
    let node = Node { path: path.into(), czxid, label: claim.label.clone(), seen };
    let relabelled = known.is_some_and(|known| known.label != node.label);
    session.places().found(claim.id, node.clone());
    if relabelled {
        session.bells.stirred(&claim.name);
    }
    Ok(Some(Spot { own, node, line }))
}
