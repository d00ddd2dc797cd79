//! Waiting in line: watches on the two entries that matter, and a line that is read again before its last event.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::seam::{Claim, ClaimId, Mode};
use leasehold_core::{Contention, Loss, Name};
use zookeeper_client::{Client, Error as ZkError, EventType, StateWatcher};

use crate::claim::{self, Seat};
use crate::line::{self, Child};
use crate::look;
use crate::session::Session;

/// One claim's wait.
///
/// Nothing can get in before an entry that is in line, so what stood before it when the line was read only gets shorter. It is
/// its turn when all of it is known to be gone. The nearest before it is watched, and the next (`line::to_watch`): when that
/// one goes, the line is read again, so that the nearest's own end, heard in one message, says everything.
pub(crate) struct Wait {
    session: Arc<Session>,
    seat: Seat,
    id: ClaimId,
    name: Name,
    mode: Mode,
    /// Its own node, without the parent's path.
    node: String,
    before: Vec<Child>,
    /// Nothing has gone since `before` was read.
    fresh: bool,
    watched: HashSet<String>,
    events: FuturesUnordered<BoxFuture<'static, (String, EventType)>>,
    /// Says whether the connection was lost since the wait began: the order of events across connections means nothing.
    states: StateWatcher,
    /// Who holds, if it was among those watched.
    pub(crate) holder: Option<Contention>,
}

/// What a look at the line has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    Now,
    Later,
    /// The entry is not in the line.
    Gone,
}

impl Wait {
    pub(crate) fn new(
        session: &Arc<Session>,
        client: &Client,
        claim: &Claim,
        seat: Seat,
        node: String,
        before: Vec<Child>,
    ) -> Wait {
        Wait {
            session: session.clone(),
            seat,
            id: claim.id,
            name: claim.name.clone(),
            mode: claim.mode,
            node,
            before,
            fresh: true,
            watched: HashSet::new(),
            events: FuturesUnordered::new(),
            states: client.state_watcher(),
            holder: None,
        }
    }

    /// Finds out whether it is its turn, and watches what must be watched if not.
    pub(crate) async fn settle(&mut self, client: &Client) -> Result<Turn, ZkError> {
        loop {
            let Some(mut wanted) = line::to_watch(&self.before, self.mode) else { return Ok(Turn::Now) };
            wanted.retain(|node| !self.watched.contains(node));
            if wanted.is_empty() {
                return Ok(Turn::Later);
            }
            if !self.fresh {
                // What is left may have gone unseen.
                let children = self.session.limited(client.list_children(&self.seat.parent)).await;
                let children = if children == Err(ZkError::NoNode) { Vec::new() } else { children? };
                let Some(before) = line::before(&line::in_order(&children), &self.node) else { return Ok(Turn::Gone) };
                self.before = before;
                self.fresh = true;
                continue;
            }
            // By getData: on a node that is gone it leaves no watch behind.
            let paths: Vec<String> = wanted.iter().map(|node| self.seat.path(node)).collect();
            let all = join_all(paths.iter().map(|path| client.get_and_watch_data(path)));
            let answers = self.session.limited(all.map(Ok)).await?;
            for (node, answer) in wanted.into_iter().zip(answers) {
                match answer {
                    Ok((data, stat, watcher)) => {
                        if self.before.first().is_some_and(|head| head.node == node) {
                            self.holder = Some(look::contention(&data, &stat));
                        }
                        self.watched.insert(node.clone());
                        self.events.push(async move { (node, watcher.changed().await.event_type) }.boxed());
                    }
                    Err(ZkError::NoNode) => self.gone(&node),
                    Err(e) => return Err(e),
                }
            }
        }
    }

    /// Waits until it is its turn, and rings.
    pub(crate) async fn run(mut self) {
        let bells = self.session.bells.clone();
        while let Some((node, event)) = self.events.next().await {
            self.watched.remove(&node);
            match event {
                EventType::Session => return, // the session's end rings for all
                EventType::NodeDeleted => self.gone(&node),
                _ => {} // another label; it is watched again
            }
            let turn = match self.session.current() {
                Some(client) if !self.reconnected() => self.settle(&client).await,
                _ => return bells.claim_again(self.id),
            };
            match turn {
                Ok(Turn::Later) => {}
                Ok(Turn::Now) if !self.reconnected() => return self.granted(),
                Ok(Turn::Now) | Err(_) => return bells.claim_again(self.id),
                Ok(Turn::Gone) => {
                    self.session.places().forget(self.id);
                    return bells.lost(self.id, Loss::Gone);
                }
            }
        }
    }

    fn granted(&self) {
        match claim::hold(&self.session, self.id, &self.name, &self.seat.path(&self.node)) {
            Ok(grant) => self.session.bells.granted(self.id, grant),
            Err(_) => self.session.bells.claim_again(self.id),
        }
    }

    fn gone(&mut self, node: &str) {
        self.before.retain(|child| child.node != node);
        self.fresh = false;
    }

    fn reconnected(&mut self) -> bool {
        self.states.changed().now_or_never().is_some()
    }
}
