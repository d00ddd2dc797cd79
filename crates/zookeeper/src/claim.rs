//! Taking a place in line and keeping it: what `claim` does.

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
use crate::entry::{self, Child, in_order, line, modes};
use crate::error::{Answer, reading, writing};
use crate::names;
use crate::release::withdraw;

/// See [`Backend::claim`](leasehold_core::seam::Backend::claim).
pub(crate) async fn claim(session: &Session, claim: &Claim) -> Result<Claimed> {
    let attempted = async {
        let (client, parent) = (session.connected().await?, names::node(session.root(), &claim.name));
        Attempt { session, client, claim, parent }.run().await
    };
    session.limited(attempted).await.unwrap_or_else(|e| {
        // What is known of a claim is what may be in the store.
        let may_be_there = session.tenant().kept.contains_key(&claim.id);
        Err(if may_be_there { writing(e) } else { reading(e) })
    })
}

/// One attempt at a claim.
pub(crate) struct Attempt<'a> {
    pub(crate) session: &'a Session,
    pub(crate) client: Client,
    pub(crate) claim: &'a Claim,
    /// The lock's node.
    pub(crate) parent: String,
}

impl Attempt<'_> {
    /// The outer error is ZooKeeper's, the inner one is the answer.
    async fn run(&self) -> Answer<Result<Claimed>> {
        let (session, claim) = (self.session, self.claim);
        let trying = claim.policy == WaitPolicy::Try;
        if session.tenant().kept.get(&claim.id).is_some_and(|kept| kept.entry.made.is_none()) {
            withdraw(session, claim.id).await?; // its answer was lost: what came of it goes first
        }
        let known = session.tenant().renew(claim.id, Moment::now()).map(|kept| (kept.entry.clone(), kept.held));
        if let Some((entry, true)) = &known
            && let Some(held) = found(self.hold(entry, false).await)?
        {
            return Ok(held);
        }
        let fresh = session.fresh();
        let waiting = match known {
            Some((entry, false)) => Some((line(&self.client, &self.parent).await?, entry)),
            _ => None,
        };
        let waiting = waiting.filter(|(line, entry)| line.iter().any(|child| entry.is(&child.node)));
        let again = waiting.is_some();
        let (entry, mut line) = match waiting {
            Some((line, entry)) => {
                session.tenant().at(claim.id, &entry).into_iter().for_each(|kept| kept.seen(fresh));
                (entry, line)
            }
            None => {
                session.tenant().kept.remove(&claim.id); // its entry is gone
                if trying && let Some(refused) = self.refused().await? {
                    return Ok(refused);
                }
                self.enter().await?
            }
        };
        let at = line.iter().position(|child| entry.is(&child.node)).ok_or(ZkError::NoNode)?;
        let (own, before) = (line.remove(at), line[..at].to_vec());
        let path = self.path(&own.node);
        if !again && let Err(differ) = same_permits(&modes(&before), claim.mode) {
            return Ok(Err(differ));
        }
        if trying {
            if let Some(who) = self.busy(before, own.mode).await? {
                withdraw(session, claim.id).await?;
                return Ok(Ok(Claimed::Busy(who)));
            }
        } else if let Some(holder) = self.wait(&entry, before.clone(), own.mode).await? {
            let queued = line.len() - holding(&modes(&before));
            let who = match holder {
                Some(holder) => holder.waiters(queued),
                None if again => self.busy(line, own.mode).await?.unwrap_or_default(),
                // In a long line it is not among those that are watched, and not worth a request.
                None => Contention::unknown().waiters(queued),
            };
            // A nap of one lease: no wait rests on its watches alone.
            return Ok(Ok(Claimed::Waiting(Waiting::new(Place::new(path), who).retry_after(session.timeout()))));
        }
        self.hold(&entry, again && !trying && is_awaited(own.mode)).await
    }

    /// Whether a try need not even make an entry. The server that is asked may lag behind a release that was answered long ago,
    /// so it says no only after it has caught up with its leader.
    async fn refused(&self) -> Answer<Option<Result<Claimed>>> {
        let (client, parent, mode) = (&self.client, &self.parent, self.claim.mode);
        let first = modes(&line(client, parent).await?);
        if same_permits(&first, mode).is_ok() && admit(&first, mode) == Admission::In {
            return Ok(None);
        }
        let (synced, line) = join(client.sync(parent), line(client, parent)).await;
        let line = synced.and(line)?;
        match same_permits(&modes(&line), mode) {
            Ok(()) => Ok(self.busy(line, mode).await?.map(|who| Ok(Claimed::Busy(who)))),
            Err(differ) => Ok(Some(Err(differ))),
        }
    }

    /// Makes a new entry. Answers the line with it.
    async fn enter(&self) -> Answer<(Node, Vec<Child>)> {
        let (session, claim) = (self.session, self.claim);
        let mut entry = Node::new(&self.parent);
        session.tenant().keep(&entry, claim, claim.ttl.max(session.timeout()), Moment::now());
        let data = entry::encode(claim.mode, &claim.label);
        let listed = entry.make(session, &names::ending(claim.mode), &data).await;
        // Refused, and so not made: nothing of it can be there.
        let refused = |e: &ZkError| writing(e.clone()).kind() != ErrorKind::Ambiguous;
        if entry.made.is_none() && listed.as_ref().is_err_and(refused) {
            session.tenant().kept.remove(&claim.id);
        } else if let Some(kept) = session.tenant().at(claim.id, &entry) {
            kept.entry = entry.clone();
        }
        let line = in_order(&self.client, &self.parent, &listed?).await?;
        Ok((entry, line))
    }

    /// It is the entry's turn, or was. Stores what is new about it, or that it holds if others wait for that. A hold of before is
    /// asked for where deletions are decided, by the leader and a quorum.
    async fn hold(&self, entry: &Node, tell: bool) -> Answer<Result<Claimed>> {
        let (session, claim) = (self.session, self.claim);
        let withdrawn = || Error::new(ErrorKind::Ambiguous, "the claim was withdrawn meanwhile");
        let known = session.tenant().at(claim.id, entry).map(|kept| (kept.held, kept.stored.clone()));
        let (Some((held, stored)), Some((path, _))) = (known, &entry.made) else { return Ok(Err(withdrawn())) };
        let downgrade = held && (stored.0, claim.mode) == (Mode::Exclusive, Mode::Shared);
        let new = (if downgrade { Mode::Shared } else { stored.0 }, claim.label.clone());
        let asked = Moment::now();
        if tell || new != stored {
            self.client.set_data(path, &entry::encode(new.0, &new.1), None).await?;
        } else if held {
            exists(&self.client, path).await?;
        }
        let grant = session.tenant().at(claim.id, entry).and_then(|kept| {
            if held {
                kept.seen(asked);
            }
            (kept.held, kept.stored) = (true, new);
            kept.grant(session)
        });
        Ok(grant.map(Claimed::Granted).ok_or_else(withdrawn))
    }

    /// The path of a child of the lock's node.
    pub(crate) fn path(&self, node: &str) -> String {
        format!("{}/{node}", self.parent)
    }
}
