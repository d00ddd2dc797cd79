//! Taking a place in line and keeping it: what `claim` does.

use std::sync::Arc;

use futures_util::future::join;
use leasehold_core::seam::{Claim, Claimed, Grant, Mode, Moment, Place, Queue, Validity, Waiting, same_permits};
use leasehold_core::{Contention, Error, ErrorKind, FencingToken, Result};
use tokio::time::timeout;
use zookeeper_client::{Client, CreateMode, Error as ZkError};

use crate::error::{reading, writing};
use crate::line::{self, Child};
use crate::places::Node;
use crate::session::Session;
use crate::wait::{is_awaited, obstacle};
use crate::withdraw::withdraw;
use crate::{look, names, record};

/// Where a claim's entry is, or will be.
#[derive(Clone)]
pub(crate) struct Seat {
    /// The lock's node.
    pub(crate) parent: String,
    /// How the entry's name begins.
    pub(crate) prefix: String,
}

impl Seat {
    pub(crate) fn of(session: &Session, claim: &Claim) -> Seat {
        Seat { parent: session.config.root.lock(&claim.name), prefix: names::entry(claim.id, session.id) }
    }

    pub(crate) fn path(&self, node: &str) -> String {
        format!("{}/{node}", self.parent)
    }

    /// What stands before its entry among these children.
    pub(crate) fn before(&self, children: &[String]) -> Vec<Child> {
        line::in_order(children).into_iter().take_while(|child| !child.node.starts_with(&self.prefix)).collect()
    }
}

/// See [`Backend::claim`](leasehold_core::seam::Backend::claim).
pub(crate) async fn claim(session: &Arc<Session>, claim: &Claim) -> Result<Claimed> {
    let client = session.connected().await?;
    let seat = Seat::of(session, claim);
    let trying = claim.queue == Queue::Try;
    if session.places().leaves(claim.id) {
        withdraw(session, claim).await?; // it would take the new entry along
    }
    let known = session.places().renew(claim.id, Moment::now());
    let mut found = None;
    if known.is_some() || trying {
        let seen = session.connection();
        let sync = known.as_ref().is_some_and(|node| node.as_ref().is_none_or(|node| node.seen != seen));
        let line = line::in_order(&session.children(&client, &seat.parent, sync).await?);
        if let Some(node) = known {
            found = find(session, &client, claim, &seat, node, line.clone(), seen).await?;
        }
        if found.is_none() && trying {
            session.places().forget(claim.id);
            same_permits(&line::modes(&line), claim.mode)?;
            let blocked = obstacle(session, &client, &seat, line.clone(), claim.mode, None).await;
            if blocked.map_err(reading)?.is_some() {
                return Ok(Claimed::Busy(look::who(session, &client, &seat, &line).await));
            }
        }
    }
    let again = found.is_some();
    let (node, mut line) = match found {
        Some(found) => found,
        None => take(session, &client, claim, &seat).await?,
    };
    if !session.places().holds(claim.id) {
        let missing = || Error::new(ErrorKind::Ambiguous, "somebody removed the entry while it was made");
        let at = line.iter().position(|child| seat.path(&child.node) == *node.path).ok_or_else(missing)?;
        let (own, before) = (line.remove(at), line[..at].to_vec());
        let place = Place::new(node.path.clone());
        let queued = line.len() - line::holding(&before);
        let waiter = (!trying).then_some(claim.id);
        let blocked = obstacle(session, &client, &seat, before, own.mode, waiter).await.map_err(writing)?;
        if blocked.is_some() && trying {
            withdraw(session, claim).await?;
            return Ok(Claimed::Busy(look::who(session, &client, &seat, &line).await));
        }
        if let Some(holder) = blocked {
            let who = match holder {
                None if again => look::who(session, &client, &seat, &line).await,
                // In a long line it is not among those that are watched, and not worth a request.
                holder => holder.unwrap_or_else(Contention::unknown).waiters(queued),
            };
            // A nap of one lease: no wait rests on its watches alone.
            return Ok(Claimed::Waiting(Waiting::new(place, who).look_again(session.timeout)));
        }
        if again && is_awaited(own.mode) {
            let data = record::encode(node.mode, &node.label);
            let written = session.limited(client.set_data(&node.path, &data, None)).await;
            written.map_err(|e| if e == ZkError::NoNode { missing() } else { writing(e) })?;
        }
    }
    let removed = || Error::new(ErrorKind::Ambiguous, "the claim was withdrawn meanwhile");
    let unproven = || Error::new(ErrorKind::Ambiguous, "ZooKeeper has not answered the session's heartbeats lately");
    let (node, asked) = session.places().hold(claim.id, &node.path).ok_or_else(removed)?;
    Ok(Claimed::Granted(grant(&node, session.validity(asked).ok_or_else(unproven)?)))
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
async fn take(session: &Session, client: &Client, claim: &Claim, seat: &Seat) -> Result<(Node, Vec<Child>)> {
    let prefix = seat.path(&seat.prefix) + &names::ending(claim.mode);
    let data = record::encode(claim.mode, &claim.label);
    let options = session.config.make(CreateMode::EphemeralSequential);
    for _ in 0..3 {
        let seen = session.connection();
        session.places().unsure(claim, session.lease(claim), Moment::now());
        let both = join(client.create(&prefix, &data, &options), client.list_children(&seat.parent));
        let both = timeout(session.config.timeout, both).await;
        match both.unwrap_or((Err(ZkError::ConnectionLoss), Ok(Vec::new()))) {
            (Ok((stat, number)), listed) => {
                let path: Arc<str> = format!("{prefix}{number}").into();
                let node = Node { path, czxid: stat.czxid, mode: claim.mode, label: claim.label.clone(), seen };
                session.places().found(claim.id, node.clone());
                let line = line::in_order(&listed.map_err(writing)?);
                let before = line.iter().take_while(|child| seat.path(&child.node) != *node.path);
                same_permits(&before.map(|child| child.mode).collect::<Vec<Mode>>(), claim.mode)?;
                return Ok((node, line));
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

/// Looks for the claim's entry in the line: at the node that is known, or by its name if an earlier answer was lost. Stores
/// what is new about it.
async fn find(
    session: &Session,
    client: &Client,
    claim: &Claim,
    seat: &Seat,
    known: Option<Node>,
    mut line: Vec<Child>,
    seen: u64,
) -> Result<Option<(Node, Vec<Child>)>> {
    let is_mine = |child: &Child| match &known {
        Some(node) => *node.path == seat.path(&child.node),
        None => child.node.starts_with(&seat.prefix),
    };
    let (mine, others): (Vec<Child>, Vec<Child>) = line.iter().cloned().partition(is_mine);
    let Some((own, twins)) = mine.split_first() else { return Ok(None) };
    for twin in twins {
        // Two attempts have both arrived: the older one counts.
        let gone = session.limited(client.delete(&seat.path(&twin.node), None)).await;
        gone.or_else(|e| if e == ZkError::NoNode { Ok(()) } else { Err(writing(e)) })?;
    }
    line.retain(|child| child == own || others.contains(child));
    let held = session.places().holds(claim.id);
    let mode = match &known {
        Some(node) if held && (node.mode, claim.mode) == (Mode::Exclusive, Mode::Shared) => Mode::Shared,
        Some(node) => node.mode,
        None => own.mode,
    };
    let path: Arc<str> = seat.path(&own.node).into();
    let czxid = match &known {
        Some(node) if (node.mode, &node.label) == (mode, &claim.label) => node.czxid,
        _ => {
            let data = record::encode(mode, &claim.label);
            match session.limited(client.set_data(&path, &data, None)).await {
                Ok(stat) if stat.ephemeral_owner == session.id => stat.czxid,
                Ok(_) | Err(ZkError::NoNode) => return Ok(None),
                Err(e) => return Err(writing(e)),
            }
        }
    };
    let node = Node { path, czxid, mode, label: claim.label.clone(), seen };
    session.places().found(claim.id, node.clone());
    Ok(Some((node, line)))
}
