//! Taking a place in the queue and keeping it: `claim`.

pub(crate) mod handler;
pub(crate) mod table;
mod wait;

use futures_util::future::join;
use leasehold_core::seam::{
    Admission, Claim, Claimed, Mode, Moment, Place, WaitPolicy, Waiting, admit, holding, same_permits,
};
use leasehold_core::{Contention, Error, ErrorKind, Result};
use zookeeper_client::Error as ZkError;

use crate::claim::table::Session;
use crate::claim::wait::is_awaited;
use crate::client::{Client, Node, exists, found};
use crate::entry::{self, Child, in_order, modes, queue};
use crate::error::{Answer, reading, writing};
use crate::names;
use crate::release::release;

/// See [`Backend::claim`](leasehold_core::seam::Backend::claim).
pub(crate) async fn claim(session: &Session, claim: &Claim) -> Result<Claimed> {
    let attempted = async {
        let (client, parent) = (session.connected().await?, names::node(&session.config.root, &claim.name));
        Attempt { session, client, claim, parent }.run().await
    };
    session.limited(attempted).await.unwrap_or_else(|e| {
        // A claim of which something may be in the store is tracked.
        let may_be_there = session.handler().tracked.contains_key(&claim.id);
        Err(if may_be_there { writing(e) } else { reading(e) })
    })
}

/// One attempt at a claim.
struct Attempt<'a> {
    session: &'a Session,
    client: Client,
    claim: &'a Claim,
    /// The lock's node.
    parent: String,
}

impl Attempt<'_> {
    /// The outer error is ZooKeeper's, the inner one is the answer.
    async fn run(&self) -> Answer<Result<Claimed>> {
        let (session, claim) = (self.session, self.claim);
        let trying = claim.policy == WaitPolicy::Try;
        if session.handler().tracked.get(&claim.id).is_some_and(|tracked| tracked.entry.created.is_none()) {
            release(session, claim.id).await?; // the creation of its entry was not answered
        }
        let known = session.handler().mark_used(claim.id, Moment::now()).map(|it| (it.entry.clone(), it.held));
        if let Some((entry, true)) = &known
            && let Some(held) = found(self.hold(entry, false).await)?
        {
            return Ok(held);
        }
        let last_answered = session.state().liveness.last_answered;
        let waiting = match known {
            Some((entry, false)) => Some((queue(&self.client, &self.parent).await?, entry)),
            _ => None,
        };
        let waiting = waiting.filter(|(queue, entry)| queue.iter().any(|child| entry.is(&child.node)));
        let again = waiting.is_some();
        let (entry, mut queue) = match waiting {
            Some((queue, entry)) => {
                session.handler().with_entry(claim.id, &entry).into_iter().for_each(|it| it.verified(last_answered));
                (entry, queue)
            }
            None => {
                session.handler().tracked.remove(&claim.id); // its entry is gone
                if trying && let Some(refused) = self.refused().await? {
                    return Ok(refused);
                }
                self.enter().await?
            }
        };
        let at = queue.iter().position(|child| entry.is(&child.node)).ok_or(ZkError::NoNode)?;
        let (own, before) = (queue.remove(at), queue[..at].to_vec());
        let path = self.path(&own.node);
        if !again && let Err(differ) = same_permits(&modes(&before), claim.mode) {
            return Ok(Err(differ));
        }
        if trying {
            if let Some(who) = self.contention(before, own.mode).await? {
                release(session, claim.id).await?;
                return Ok(Ok(Claimed::Busy(who)));
            }
        } else if let Some(holder) = self.wait(&entry, before.clone(), own.mode).await? {
            let queued = queue.len() - holding(&modes(&before));
            let who = match holder {
                Some(holder) => holder.waiters(queued),
                None if again => self.contention(queue, own.mode).await?.unwrap_or_default(),
                // In a long queue the holder is not among the watched nodes, and not worth a request.
                None => Contention::unknown().waiters(queued),
            };
            // After a lease it claims again in any case: no wait depends on its watches alone.
            return Ok(Ok(Claimed::Waiting(
                Waiting::new(Place::new(path), who).retry_after(session.state().liveness.timeout),
            )));
        }
        self.hold(&entry, again && !trying && is_awaited(own.mode)).await
    }

    /// The answer to a try that needs no entry. The server that is asked may lag behind a release that was answered before, so
    /// this refuses only after that server has caught up with its leader.
    async fn refused(&self) -> Answer<Option<Result<Claimed>>> {
        let (client, parent, mode) = (&self.client, &self.parent, self.claim.mode);
        let first = modes(&queue(client, parent).await?);
        if same_permits(&first, mode).is_ok() && admit(&first, mode) == Admission::In {
            return Ok(None);
        }
        let (synced, queue) = join(client.sync(parent), queue(client, parent)).await;
        let queue = synced.and(queue)?;
        match same_permits(&modes(&queue), mode) {
            Ok(()) => Ok(self.contention(queue, mode).await?.map(|who| Ok(Claimed::Busy(who)))),
            Err(differ) => Ok(Some(Err(differ))),
        }
    }

    /// Creates a new entry. Returns the queue with it.
    async fn enter(&self) -> Answer<(Node, Vec<Child>)> {
        let (session, claim) = (self.session, self.claim);
        let mut entry = Node::new(&self.parent);
        session.handler().track(&entry, claim, claim.ttl.max(session.state().liveness.timeout), Moment::now());
        let data = entry::encode(claim.mode, &claim.label);
        let listed = entry.create(session, &names::ending(claim.mode), &data).await;
        // Refused, and so not created: nothing of it can be there.
        let refused = |e: &ZkError| writing(e.clone()).kind() != ErrorKind::Ambiguous;
        if entry.created.is_none() && listed.as_ref().is_err_and(refused) {
            session.handler().tracked.remove(&claim.id);
        } else if let Some(tracked) = session.handler().with_entry(claim.id, &entry) {
            tracked.entry = entry.clone();
        }
        let queue = in_order(&self.client, &self.parent, &listed?).await?;
        Ok((entry, queue))
    }

    /// The entry holds. Stores what is new about it, or only writes if others wait for that. For an earlier hold, the leader and a
    /// quorum are asked whether its entry still exists.
    async fn hold(&self, entry: &Node, awaited: bool) -> Answer<Result<Claimed>> {
        let (session, claim) = (self.session, self.claim);
        let withdrawn = || Error::new(ErrorKind::Ambiguous, "the claim was withdrawn meanwhile");
        let known = session.handler().with_entry(claim.id, entry).map(|tracked| (tracked.held, tracked.stored.clone()));
        let (Some((held, stored)), Some((path, _))) = (known, &entry.created) else { return Ok(Err(withdrawn())) };
        let downgrade = held && (stored.0, claim.mode) == (Mode::Exclusive, Mode::Shared);
        let new = (if downgrade { Mode::Shared } else { stored.0 }, claim.label.clone());
        let asked = Moment::now();
        if awaited || new != stored {
            self.client.set_data(path, &entry::encode(new.0, &new.1), None).await?;
        } else if held {
            exists(&self.client, path).await?;
        }
        let grant = session.handler().with_entry(claim.id, entry).and_then(|tracked| {
            if held {
                tracked.verified(asked);
            }
            (tracked.held, tracked.stored) = (true, new);
            tracked.grant(session)
        });
        Ok(grant.map(Claimed::Granted).ok_or_else(withdrawn))
    }

    /// The path of a child of the lock's node.
    fn path(&self, node: &str) -> String {
        format!("{}/{node}", self.parent)
    }
}
