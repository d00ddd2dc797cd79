//! `claim`: takes a place in the queue and keeps it.

pub(crate) mod handler;
pub(crate) mod table;
pub(crate) mod unread;
mod wait;

use std::num::NonZeroI64;
use std::sync::Arc;

use futures_util::future::join;
use leasehold_core::backend::{
    Admission, Claim, Claimed, Mode, Moment, Place, WaitPolicy, Waiting, admit, holding,
    same_permits,
};
use leasehold_core::support::fault;
use leasehold_core::{Completion, Contention, Error, ErrorKind, Result};
use zookeeper_client::{Error as ZkError, MultiReadResult, MultiReader};

use crate::claim::table::{Known, Session};
use crate::claim::wait::is_awaited;
use crate::client::{Client, First, Node, exists, found, mkdir, read};
use crate::completion::{Looked, Work, done};
use crate::entry::{self, Queue, is_shared, modes, queue};
use crate::error::Answer;
use crate::fence::raise::RAISES;
use crate::names;
use crate::release::release;
use crate::renew::verify_places;

/// The number of leases after which a waiter claims again at the latest.
const RARELY: u32 = 8;

/// See [`Backend::claim`](leasehold_core::backend::Backend::claim).
pub(crate) async fn claim(session: &Session, claim: &Claim) -> Result<Claimed> {
    RAISES.check(claim.floor)?;
    let attempted = async {
        let client = session.connected().await?;
        let parent = names::node(&session.config.root, &claim.name);
        Attempt {
            session,
            client,
            claim,
            parent,
        }
        .run()
        .await
    };
    session.limited(attempted).await.unwrap_or_else(|e| {
        // A claim that may have an entry in the store is tracked.
        let may_be_there = session.handler().tracked.contains_key(&claim.id);
        Err(if may_be_there {
            session.config.writing(e)
        } else {
            session.config.reading(e)
        })
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

/// A claim's entry, and the queue that was read last, with its place there.
struct PlaceInQueue {
    entry: Node,
    queue: Arc<Queue>,
    at: usize,
    /// It is the first, and no completion was recorded between the last look and its creation.
    is_open: bool,
}

impl Attempt<'_> {
    /// The outer error is ZooKeeper's, the inner one is the answer.
    async fn run(&self) -> Answer<Result<Claimed>> {
        let session = self.session;
        let claim = self.claim;
        let trying = claim.policy == WaitPolicy::Try;
        if session
            .handler()
            .tracked
            .get(&claim.id)
            .is_some_and(|tracked| tracked.entry.created().is_none())
        {
            release(session, claim.id).await?; // the creation of its entry was not answered
        }
        if session
            .handler()
            .tracked
            .get(&claim.id)
            .is_some_and(|tracked| tracked.held.is_some())
        {
            verify_places(session).await?;
        }
        // The place of a hold was the first already when this is read.
        let looked = match self.work().await? {
            Some(Work::Done(completion)) => {
                return self.done(completion).await.map(Ok);
            }
            Some(Work::Open(looked)) => Some(looked),
            None => None,
        };
        let known = session
            .handler()
            .mark_used(claim.id, Moment::now())
            .map(|it| (it.entry.clone(), it.known()));
        let seen = match known {
            None => None,
            Some((entry, Known::Waits(waits))) if !trying && !is_awaited(claim.mode) => {
                let (as_they_were, holder) = tokio::try_join!(
                    self.are_as_they_were(&waits.watched),
                    self.last_holder(&entry)
                )?;
                if as_they_were {
                    return Ok(Ok(self.waits(&entry, holder.unwrap_or(waits.who))));
                }
                self.see(entry).await?
            }
            Some((entry, Known::Held)) => {
                if let Some(held) = found(self.hold(&entry, None).await)? {
                    return Ok(held);
                }
                None
            }
            Some((entry, _)) => self.see(entry).await?,
        };
        let again = seen.is_some();
        let seen = match seen {
            Some(seen) => seen,
            None => {
                session.handler().forget(claim.id); // its entry is gone
                if trying && let Some(refused) = self.refused().await? {
                    return Ok(refused);
                }
                match self.enter(looked.as_ref()).await? {
                    Ok(seen) => seen,
                    Err(e) => return Ok(Err(e)),
                }
            }
        };
        self.decide(&seen, again, trying, looked).await
    }

    /// The state of the work that the claim asks for; `None` for a lock.
    async fn work(&self) -> Answer<Option<Work>> {
        let Some(fire) = self.claim.once else {
            return Ok(None);
        };
        done(self.session, &self.client, &self.claim.name, fire)
            .await
            .map(Some)
    }

    /// The answer to a claim of work that is done. It leaves no entry.
    async fn done(&self, completion: Completion) -> Answer<Claimed> {
        release(self.session, self.claim.id).await?;
        Ok(Claimed::Done(completion))
    }

    /// Returns the answer that follows from the queue as it was seen.
    async fn decide(
        &self,
        seen: &PlaceInQueue,
        again: bool,
        trying: bool,
        mut looked: Option<Looked>,
    ) -> Answer<Result<Claimed>> {
        let entry = &seen.entry;
        let children = &seen.queue.children;
        let before = &children[..seen.at];
        let own = &children[seen.at];
        let behind = &children[seen.at + 1..];
        if !again
            && let Err(differ) =
                same_permits(before.iter().map(|child| &child.mode), self.claim.mode)
        {
            return Ok(Err(differ));
        }
        if !again && seen.queue.is_too_long() {
            release(self.session, self.claim.id).await?;
            let text = "the names of those that hold this lock or wait for it fill a packet of ZooKeeper (jute.maxbuffer)";
            return Ok(Err(Error::new(ErrorKind::Unsupported, text)));
        }
        if trying {
            if let Some(who) = self.contention(before.to_vec(), own.mode).await? {
                if let Some(Work::Done(completion)) = self.work().await? {
                    return self.done(completion).await.map(Ok);
                }
                release(self.session, self.claim.id).await?;
                return Ok(Ok(Claimed::Busy(who)));
            }
        } else if let Some((mut wait, holder)) =
            self.wait(entry, before, own.mode, looked.as_ref()).await?
        {
            let queued =
                before.len() + behind.len() - holding(before.iter().map(|child| &child.mode));
            wait.who = match holder {
                Some(holder) => holder.waiters(queued),
                None if again || self.claim.is_last => {
                    let others = before.iter().chain(behind).cloned().collect();
                    self.contention(others, own.mode).await?.unwrap_or_default()
                }
                // In a long queue the holder is not among the watched nodes, and not worth a
                // request.
                None => Contention::unknown().waiters(queued),
            };
            let who = wait.who.clone();
            if let Some(tracked) = self.session.handler().with_entry(self.claim.id, entry) {
                tracked.wait = Some(Box::new(wait));
            }
            return Ok(Ok(self.waits(entry, who)));
        }
        if !seen.is_open && !fault("once-looks-before") {
            // Its place was not known to be the first when the completion was read.
            match self.work().await? {
                Some(Work::Done(completion)) => return self.done(completion).await.map(Ok),
                Some(Work::Open(now)) => looked = Some(now),
                None => {}
            }
        }
        if let Some(looked) = looked
            && let Some(tracked) = self.session.handler().with_entry(self.claim.id, entry)
        {
            tracked.replaces = looked.version();
        }
        self.hold(entry, Some(again && !trying && is_awaited(own.mode)))
            .await
    }

    /// The answer to a claim that waits. It claims again in any case, because no wait depends on
    /// notifications alone: after a lease, or after up to [`RARELY`] leases if its session has many
    /// claims, because idle waiters cost no requests beside their renewals (P7).
    fn waits(&self, entry: &Node, who: Contention) -> Claimed {
        let place = entry
            .created()
            .map_or_else(|| self.parent.clone().into(), |(path, _)| path.clone());
        let claims = self.session.handler().tracked.len();
        let leases = u32::try_from(claims).map_or(RARELY, |claims| claims.clamp(1, RARELY));
        let retry_after = self.session.state().liveness.timeout * leases;
        Claimed::Waiting(Waiting::new(Place::new(place), who).retry_after(retry_after))
    }

    /// Returns whether the watched nodes are still there and in the way. An entry has no children,
    /// so the answer of that request is short; its data show a downgrade.
    async fn are_as_they_were(&self, watched: &[Arc<str>]) -> Answer<bool> {
        let shares = self.claim.mode == Mode::Shared;
        let what = if shares {
            MultiReader::add_get_data
        } else {
            MultiReader::add_get_children
        };
        let answers = read(&self.client, watched, what).await?;
        Ok(answers.iter().all(|answer| match answer {
            MultiReadResult::Data { data, .. } => !is_shared(data),
            answer => matches!(answer, MultiReadResult::Children { .. }),
        }))
    }

    /// Finds this entry in the current queue; `None` if it is gone.
    async fn see(&self, entry: Node) -> Answer<Option<PlaceInQueue>> {
        let last_answered = self.session.state().liveness.last_answered;
        let queue = self.queue().await?;
        let Some(at) = place(&queue, &entry) else {
            return Ok(None);
        };
        if let Some(tracked) = self.session.handler().with_entry(self.claim.id, &entry) {
            tracked.verified(last_answered);
        }
        Ok(Some(PlaceInQueue {
            entry,
            queue,
            at,
            is_open: false,
        }))
    }

    /// Returns the holder for the last look of a waiter, whose error names it. Others may have held
    /// since the waiter read the queue, and it watches only the next entry before it.
    async fn last_holder(&self, entry: &Node) -> Answer<Option<Contention>> {
        if !self.claim.is_last {
            return Ok(None);
        }
        let Some(PlaceInQueue { queue, at, .. }) = self.see(entry.clone()).await? else {
            return Ok(None);
        };
        let mut others = queue.children.clone();
        let own = others.remove(at);
        self.contention(others, own.mode).await
    }

    /// The queue, as it was after this call began. Claims that need it at the same time share one
    /// request.
    async fn queue(&self) -> Answer<Arc<Queue>> {
        let queues = self.session.handler().queues.clone();
        let age = self.session.config.timeout;
        queues
            .get(&self.client, &self.parent, age, async || {
                Queue::read(&self.client, &self.parent).await
            })
            .await
    }

    /// The answer to a try that needs no entry. The server that is asked may lag behind a release
    /// that was answered before, so this refuses only after that server has caught up with its
    /// leader.
    async fn refused(&self) -> Answer<Option<Result<Claimed>>> {
        let client = &self.client;
        let parent = &self.parent;
        let mode = self.claim.mode;
        let first = modes(&queue(client, parent).await?);
        if same_permits(&first, mode).is_ok() && admit(&first, mode) == Admission::In {
            return Ok(None);
        }
        self.session.handler().seen(parent, true);
        let synced = async {
            if fault("Z4") {
                Ok(())
            } else {
                client.sync(parent).await
            }
        };
        let (synced, queue) = join(synced, queue(client, parent)).await;
        let queue = synced.and(queue)?;
        if let Some(Work::Done(completion)) = self.work().await? {
            return Ok(Some(Ok(Claimed::Done(completion))));
        }
        match same_permits(&modes(&queue), mode) {
            Ok(()) => Ok(self
                .contention(queue, mode)
                .await?
                .map(|who| Ok(Claimed::Busy(who)))),
            Err(differ) => Ok(Some(Err(differ))),
        }
    }

    /// Creates a new entry. The inner error means that there is no room for it.
    async fn enter(&self, looked: Option<&Looked>) -> Answer<Result<PlaceInQueue>> {
        let session = self.session;
        let claim = self.claim;
        let mut entry = Node::new(&self.parent, &names::ending(claim.mode));
        let lease = claim.ttl.max(session.state().liveness.timeout);
        if !session.handler().track(&entry, claim, lease, Moment::now()) {
            let text = "a session of ZooKeeper cannot end with more entries than this client has: use another client, or another TTL";
            return Ok(Err(Error::new(ErrorKind::Unsupported, text)));
        }
        let created = self.create(&mut entry, looked).await;
        // A refused request has created no entry.
        let refused =
            |e: &ZkError| session.config.writing(e.clone()).kind() != ErrorKind::Ambiguous;
        if entry.created().is_none() && created.as_ref().is_err_and(refused) {
            let mut claims = session.handler();
            if claims.with_entry(claim.id, &entry).is_some() {
                claims.forget(claim.id);
            }
        }
        let (queue, is_open) = created?;
        let at = place(&queue, &entry).ok_or(ZkError::NoNode)?;
        Ok(Ok(PlaceInQueue {
            entry,
            queue,
            at,
            is_open,
        }))
    }

    /// Creates this entry, and its lock's node with it if that is not known to be there. An entry
    /// that is created with its lock's node is the only one: the answer says whether the completion
    /// was surely the same as before, too.
    async fn create(
        &self,
        entry: &mut Node,
        looked: Option<&Looked>,
    ) -> Answer<(Arc<Queue>, bool)> {
        let session = self.session;
        let claim = self.claim;
        let client = &self.client;
        let data = entry::encode(claim.mode, &claim.label);
        let mut is_there = session.handler().exists(&self.parent);
        let mut condition = looked.map(|looked| &looked.folder);
        loop {
            let sent = Moment::now();
            if !is_there {
                let first = entry.create_first(client, &session.config, &data, condition);
                match first.await? {
                    First::Created => {
                        session.handler().created(claim.id, entry);
                        session.written(client, sent);
                        let queue = Arc::new(Queue::of_first(entry.name()));
                        return Ok((queue, condition.is_some()));
                    }
                    First::Refused => {}
                    First::Changed => {
                        condition = None;
                        continue;
                    }
                }
            }
            let sent = Moment::now();
            // A session's requests are executed in order, so a list after it has every node that is
            // before it.
            let (created, queue) = join(self.create_there(entry, &data), self.queue()).await;
            let created = created?;
            session.handler().seen(&self.parent, created);
            if created {
                session.written(client, sent);
                return queue.map(|queue| (queue, false));
            }
            match is_there {
                // ZooKeeper removes a lock's node about a minute after its last use; its first user
                // removes it sooner.
                true => is_there = false,
                false => mkdir(client, &session.config, &self.parent).await?,
            }
        }
    }

    /// Creates this entry; `false` if its lock's node is not there. Its path is recorded as soon as
    /// it is answered, whatever becomes of the claim.
    async fn create_there(&self, entry: &mut Node, data: &[u8]) -> Answer<bool> {
        let created = entry
            .create(&self.client, &self.session.config, data)
            .await?;
        self.session.handler().created(self.claim.id, entry);
        Ok(created)
    }

    /// Grants the claim, whose entry holds. Stores its new mode or label, or only writes if others
    /// wait for that (`awaited`). For an earlier hold, and for an entry that was last verified too
    /// long ago, the leader and a quorum are asked whether it still exists; if the queue was not
    /// read (`None`), the server is asked.
    async fn hold(&self, entry: &Node, awaited: Option<bool>) -> Answer<Result<Claimed>> {
        let session = self.session;
        let claim = self.claim;
        let withdrawn = || Error::new(ErrorKind::Ambiguous, "the claim was withdrawn meanwhile");
        let known = session
            .handler()
            .with_entry(claim.id, entry)
            .map(|tracked| {
                (
                    tracked.held,
                    tracked.held.is_some() || tracked.is_stale(session),
                    tracked.stored.clone(),
                )
            });
        let (Some((held, verify, stored)), Some((path, czxid))) = (known, entry.created()) else {
            return Ok(Err(withdrawn()));
        };
        let downgrade = held.is_some() && (stored.0, claim.mode) == (Mode::Exclusive, Mode::Shared);
        let new = (
            if downgrade { Mode::Shared } else { stored.0 },
            claim.label.clone(),
        );
        let store = awaited == Some(true) || new != stored;
        let asked = Moment::now();
        if store {
            self.client
                .set_data(path, &entry::encode(new.0, &new.1), None)
                .await?;
        } else if verify {
            exists(&self.client, path).await?;
        } else if awaited.is_none() {
            self.client.check_stat(path).await?.ok_or(ZkError::NoNode)?;
        }
        if store || verify {
            session.written(&self.client, asked);
        }
        session.learn_base(&self.client).await?;
        let mut claims = session.handler();
        let grant = claims.with_entry(claim.id, entry).and_then(|tracked| {
            if store || verify {
                tracked.verified(asked);
            }
            // No transaction has the number 0.
            let number = held.or_else(|| NonZeroI64::new(session.number(czxid)));
            (tracked.held, tracked.stored, tracked.wait) = (number, new, None);
            tracked.grant(session)
        });
        Ok(grant.map(Claimed::Granted).ok_or_else(withdrawn))
    }

    /// The path of a child of the lock's node.
    fn path(&self, node: &str) -> String {
        format!("{}/{node}", self.parent)
    }
}

/// The index of this entry in the queue. Most entries are near its end.
fn place(queue: &Queue, entry: &Node) -> Option<usize> {
    queue
        .children
        .iter()
        .rposition(|child| entry.is(&child.node))
}
