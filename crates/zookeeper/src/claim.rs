//! Taking a place in line and keeping it: what `claim` does.

use futures_util::future::join;
use leasehold_core::seam::{Claim, Claimed, Mode, Moment, Place, Queue, Waiting, holding, same_permits};
use leasehold_core::{Contention, Error, ErrorKind, Result};
use zookeeper_client::{Client, CreateMode, Error as ZkError};

use crate::error::{reading, writing};
use crate::line::{Child, children, in_order, modes};
use crate::session::Session;
use crate::state::{Entry, Node};
use crate::wait::{busy, is_awaited, wait};
use crate::withdraw::withdraw;
use crate::{names, record};

/// See [`Backend::claim`](leasehold_core::seam::Backend::claim).
pub(crate) async fn claim(session: &Session, claim: &Claim) -> Result<Claimed> {
    session.limited(attempt(session, claim)).await.unwrap_or_else(|e| {
        // What is known of a claim is what may be in the store.
        let may_be_there = session.state().kept.contains_key(&claim.id);
        Err(if may_be_there { writing(e) } else { reading(e) })
    })
}

/// The outer error is ZooKeeper's, the inner one is the answer.
async fn attempt(session: &Session, claim: &Claim) -> Result<Result<Claimed>, ZkError> {
    let client = session.connected().await?;
    let parent = session.config.lock(&claim.name);
    let trying = claim.queue == Queue::Try;
    if session.state().kept.get(&claim.id).is_some_and(|kept| kept.entry.node.is_none()) {
        withdraw(session, claim.id).await?; // its answer was lost: what came of it goes first
    }
    let known = session.state().renew(claim.id, Moment::now());
    let mut line = match known.is_some() || trying {
        true => in_order(&children(&client, &parent, false).await?),
        false => Vec::new(),
    };
    let found = known.filter(|entry| line.iter().any(|child| entry.is(child)));
    let again = found.is_some();
    let entry = match found {
        Some(entry) => entry,
        None => {
            session.state().kept.remove(&claim.id); // its entry is gone
            if trying {
                if let Err(differ) = same_permits(&modes(&line), claim.mode) {
                    return Ok(Err(differ));
                }
                if let Some(who) = busy(&client, &parent, line, claim.mode).await? {
                    return Ok(Ok(Claimed::Busy(who)));
                }
            }
            let (entry, entered) = enter(session, &client, claim, &parent).await?;
            line = entered;
            entry
        }
    };
    let at = line.iter().position(|child| entry.is(child)).ok_or(ZkError::NoNode)?;
    let (own, before) = (line.remove(at), line[..at].to_vec());
    let path = format!("{parent}/{}", own.node);
    if !again && let Err(differ) = same_permits(&modes(&before), claim.mode) {
        return Ok(Err(differ));
    }
    if trying {
        if let Some(who) = busy(&client, &parent, before, own.mode).await? {
            withdraw(session, claim.id).await?;
            return Ok(Ok(Claimed::Busy(who)));
        }
    } else if let Some(holder) = wait(session, &client, &entry, before.clone(), own.mode).await? {
        let queued = line.len() - holding(&modes(&before));
        let who = match holder {
            Some(holder) => holder.waiters(queued),
            None if again => busy(&client, &parent, line, own.mode).await?.unwrap_or_default(),
            // In a long line it is not among those that are watched, and not worth a request.
            None => Contention::unknown().waiters(queued),
        };
        // A nap of one lease: no wait rests on its watches alone.
        return Ok(Ok(Claimed::Waiting(Waiting::new(Place::new(path), who).look_again(session.timeout))));
    }
    hold(session, &client, claim, &entry, &path, again && !trying && is_awaited(own.mode)).await
}

/// Makes a new entry. The list is sent right behind it: the session's order makes it show whatever is before the entry.
async fn enter(
    session: &Session,
    client: &Client,
    claim: &Claim,
    parent: &str,
) -> Result<(Entry, Vec<Child>), ZkError> {
    let mut entry = Entry::new(claim.id, parent);
    let prefix = format!("{parent}/{}{}", entry.prefix, names::ending(claim.mode));
    let data = record::encode(claim.mode, &claim.label);
    let options = session.config.make(CreateMode::EphemeralSequential);
    session.state().keep(&entry, claim, Moment::now());
    loop {
        let (created, listed) = join(client.create(&prefix, &data, &options), client.list_children(parent)).await;
        match created {
            Ok((stat, number)) => {
                entry.node = Some(Node { path: format!("{prefix}{number}").into(), czxid: stat.czxid });
                if let Some(kept) = session.state().at(&entry) {
                    kept.entry = entry.clone();
                }
                return Ok((entry, in_order(&listed?)));
            }
            // ZooKeeper removes the node of a lock that nobody has used for a minute.
            Err(ZkError::NoNode) => client.mkdir(parent, &session.config.make(CreateMode::Container)).await?,
            Err(e) => {
                if writing(e.clone()).kind() != ErrorKind::Ambiguous {
                    session.state().kept.remove(&claim.id);
                }
                return Err(e);
            }
        }
    }
}

/// It is the entry's turn. Stores what is new about it, or that it holds if others wait for that.
async fn hold(
    session: &Session,
    client: &Client,
    claim: &Claim,
    entry: &Entry,
    path: &str,
    tell: bool,
) -> Result<Result<Claimed>, ZkError> {
    let withdrawn = || Error::new(ErrorKind::Ambiguous, "the claim was withdrawn meanwhile");
    let kept = session.state().at(entry).map(|kept| (kept.held, kept.stored.clone()));
    let Some((held, stored)) = kept else { return Ok(Err(withdrawn())) };
    let downgrade = held && (stored.0, claim.mode) == (Mode::Exclusive, Mode::Shared);
    let new = (if downgrade { Mode::Shared } else { stored.0 }, claim.label.clone());
    if tell || new != stored {
        client.set_data(path, &record::encode(new.0, &new.1), None).await?;
    }
    let grant = session.state().hold(entry, new);
    Ok(grant.map(Claimed::Granted).ok_or_else(withdrawn))
}
