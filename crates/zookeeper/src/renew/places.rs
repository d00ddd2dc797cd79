//! Verifies, once after each reconnect, that no hold of this session is kept out by an entry before
//! it: it reads each queue in which the session holds.
//!
//! Data: [`Unread`](crate::claim::unread::Unread) has the set of queues that were read over this
//! connection; it is removed when all are read.
//!
//! Algorithm ([`verify_places`]):
//! 1. One task takes the turn; other callers wait for its result.
//! 2. The session's nodes are listed. Nodes that belong to no claim are abandoned: the server has
//!    old data again, and the session had removed them before.
//! 3. The queues with holds that were not read yet are read: many by one request, several requests
//!    at a time. Each queue is recorded as read.
//! 4. The session's own abandoned entries are left out of each queue. A hold that the entries
//!    before it keep out then is lost: its claim is notified, and its entry is removed.
//!
//! A server that has old data again may have the entry of an ended session before a hold, and the
//! client of that entry is granted. The later hold is therefore the one that is lost.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use leasehold_core::Loss;
use leasehold_core::backend::{ClaimId, Mode, holding};
use zookeeper_client::{Error as ZkError, MultiReadResult, MultiReader};

use crate::claim::table::Session;
use crate::client::{AT_ONCE, Client, Node, found, read};
use crate::entry::{in_order, is_shared, modes};
use crate::error::Answer;

/// The number of requests that are under way at once, each for many queues.
const REQUESTS: usize = 8;

/// A claim that is granted, with the entry by which it holds.
type Hold = (ClaimId, Node);

/// The session's own entries in one queue: its holds, and the entries that it is about to remove.
#[derive(Default)]
struct OwnEntries {
    holds: Vec<Hold>,
    abandoned: Vec<Node>,
}

/// Reads each queue once, by one task for all callers. If the task gives up, the queues that it has
/// read stay recorded, and the next call reads the others.
pub(crate) async fn verify_places(session: &Session) -> Answer<()> {
    let Some(turns) = session
        .handler()
        .unread
        .as_ref()
        .map(|unread| unread.turns.clone())
    else {
        return Ok(());
    };
    let done = || match &session.handler().unread {
        Some(unread) if Arc::ptr_eq(&unread.turns, &turns) => None,
        Some(_) => Some(Err(ZkError::ConnectionLoss)),
        None => Some(Ok(())),
    };
    let _turn = match turns.unless(session.config.timeout * 2, done).await {
        Ok(done) => return done,
        Err(turn) => turn,
    };
    let client = session.client()?;
    if session
        .handler()
        .unread
        .as_ref()
        .is_some_and(|unread| !unread.is_over(&client))
    {
        return Err(ZkError::ConnectionLoss);
    }
    // Entries come first that are there again although this session had removed them: no claim
    // comes to hold by them.
    let nodes = session.nodes().await?;
    session.handler().abandon_strays(nodes);
    let own = unread(session);
    let each = stream::iter(own.chunks(AT_ONCE)).map(Ok);
    let all =
        each.try_for_each_concurrent(REQUESTS, async |own| verify_in(session, &client, own).await);
    session.limited(all).await?;
    session
        .handler()
        .unread
        .take_if(|unread| unread.is_over(&client));
    Ok(())
}

/// The queues that were not read yet, by the paths of their locks' nodes.
fn unread(session: &Session) -> Vec<(String, OwnEntries)> {
    let claims = session.handler();
    let is_read = |parent: &str| {
        claims
            .unread
            .as_ref()
            .is_none_or(|unread| unread.read.contains(parent))
    };
    let mut queues: BTreeMap<&str, OwnEntries> = BTreeMap::new();
    for (id, tracked) in claims
        .tracked
        .iter()
        .filter(|(_, tracked)| tracked.held.is_some())
    {
        let parent = tracked.entry.parent();
        if !is_read(parent) {
            queues
                .entry(parent)
                .or_default()
                .holds
                .push((*id, tracked.entry.clone()));
        }
    }
    for entry in claims.abandoned.values().flatten() {
        if let Some(own) = queues.get_mut(entry.parent()) {
            own.abandoned.push(entry.clone());
        }
    }
    queues
        .into_iter()
        .map(|(parent, own)| (parent.to_owned(), own))
        .collect()
}

/// Reads these queues by one request. Holds that are kept out there are lost.
async fn verify_in(
    session: &Session,
    client: &Client,
    queues: &[(String, OwnEntries)],
) -> Answer<()> {
    let parents: Vec<&String> = queues.iter().map(|(parent, _)| parent).collect();
    let answers = read(client, &parents, MultiReader::add_get_children).await?;
    for ((parent, own), answer) in queues.iter().zip(answers) {
        let children = match answer {
            MultiReadResult::Children { children } => children,
            // Missing entries of holds are found by the comparison in `renew`.
            MultiReadResult::Error {
                err: ZkError::NoNode,
            } => Vec::new(),
            MultiReadResult::Error { err } => return Err(err),
            _ => {
                return Err(ZkError::UnexpectedError(
                    "another read was answered".to_owned(),
                ));
            }
        };
        let mut lost = kept_out(client, parent, &children, own).await?;
        let mut claims = session.handler();
        // A claim that has another entry by now is left alone.
        lost.retain(|(id, entry)| claims.with_entry(*id, entry).is_some());
        lost.iter().for_each(|(id, _)| claims.abandon(*id));
        if let Some(unread) = claims
            .unread
            .as_mut()
            .filter(|unread| unread.is_over(client))
        {
            unread.read.insert(parent.clone());
        }
        drop(claims);
        lost.into_iter()
            .for_each(|(id, _)| session.notifier.lost(id, Loss::Gone));
    }
    Ok(())
}

/// The holds of this session that an entry before them keeps out.
async fn kept_out(
    client: &Client,
    parent: &str,
    children: &[String],
    own: &OwnEntries,
) -> Answer<Vec<Hold>> {
    let holds: HashMap<&str, &Hold> = own.holds.iter().map(|hold| (hold.1.name(), hold)).collect();
    let mut queue = in_order(client, parent, children).await?;
    queue.retain(|child| !own.abandoned.iter().any(|entry| entry.is(&child.node)));
    let behind = holding(&modes(&queue));
    if !queue
        .iter()
        .skip(behind)
        .any(|child| holds.contains_key(&*child.node))
    {
        return Ok(Vec::new());
    }
    // The first entry may have been downgraded, which only its data show.
    match found(
        client
            .get_data(&format!("{parent}/{}", queue[0].node))
            .await,
    )? {
        Some((data, _)) if is_shared(&data) => queue[0].mode = Mode::Shared,
        Some(_) => {}
        None => drop(queue.remove(0)),
    }
    let behind = queue.iter().skip(holding(&modes(&queue)));
    Ok(behind
        .filter_map(|child| holds.get(&*child.node).map(|hold| (*hold).clone()))
        .collect())
}
