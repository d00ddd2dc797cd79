//! A Redis Cluster: one connection to each primary, and each request to the node that serves its slot.
//!
//! `slots` knows keys and answers, `seeds` finds nodes, `identity` recognizes the Cluster, and
//! `members` keeps the map. This module follows the nodes' redirections: a refused request was not
//! executed, so it is sent again unchanged.
//!
//! A client is subscribed to its own channel at every primary, since Redis sends a published
//! message to all nodes of a Cluster.

mod identity;
mod members;
mod seeds;
mod slots;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::backend::Subscription;
use leasehold_core::support::{Background, locked};
use leasehold_core::{Error, ErrorKind, Name, Result};
use redis::{ServerErrorKind, Value};
use scopeguard::guard;
use tokio::time::sleep;

use crate::link::cluster::members::{Members, Node, keep};
pub(crate) use crate::link::cluster::seeds::AddressMap;
use crate::link::cluster::slots::redirected;
pub(crate) use crate::link::cluster::slots::{fence_of, slot_of};
use crate::link::connection::Connection;
use crate::link::error::{again, is_elsewhere};
use crate::link::inbox::Inbox;
use crate::link::mark::StoreMark;
use crate::link::script::{Call, answers};
use crate::link::server::Server;

/// The greatest number of times that one request is sent to another node.
const REDIRECTIONS: u32 = 5;
/// The pause before a request is redirected again: nodes may disagree for a moment.
const PAUSE: Duration = Duration::from_millis(10);

/// A Cluster: a handle to the map of its nodes, and to the work that keeps the map up to date.
pub(crate) struct Cluster {
    members: Arc<Members>,
    observed: Arc<Mutex<Vec<Arc<Observed>>>>,
    /// Keeps the map up to date, in any runtime that uses the client.
    upkeep: Background,
}

/// A name with an observer, and the node that publishes its changes.
struct Observed {
    slot: u16,
    name: Name,
    channel: String,
    by: Mutex<Option<(Arc<Node>, Subscription)>>,
}

impl Observed {
    /// Listens at the node that serves the name now.
    fn listen(&self, members: &Members) {
        let Ok(node) = members.owner(self.slot) else {
            return;
        };
        let mut by = locked(&self.by);
        if by
            .as_ref()
            .is_none_or(|(known, _)| !Arc::ptr_eq(known, &node))
        {
            let subscription = node.connection.observe(&self.name, self.channel.clone());
            *by = Some((node, subscription));
        }
    }
}

/// The node to which an answer redirects its request.
enum Elsewhere {
    Nowhere,
    Owner,
    Once(Arc<Node>),
}

impl Cluster {
    /// Connects to all primaries of the Cluster to which most of these servers belong, or the one
    /// with the mark that is pinned. A connection to a primary that is down is tried again in the
    /// background. Returns also warnings for people.
    pub(crate) async fn connect(
        seeds: Vec<Server>,
        timeout: Duration,
        inbox: &Inbox,
        reach: Option<AddressMap>,
        mark: &Arc<StoreMark>,
    ) -> Result<(Cluster, Vec<String>)> {
        let members = Arc::new(Members::new(seeds, timeout, inbox, reach, mark)?);
        let warnings = members.connect().await?;
        let observed = Arc::default();
        let upkeep = upkeep(&members, &observed);
        upkeep.here();
        let cluster = Cluster {
            members,
            observed,
            upkeep,
        };
        Ok((cluster, warnings))
    }

    /// The connections to all primaries.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        self.members
            .nodes()
            .iter()
            .map(|node| node.connection.clone())
            .collect()
    }

    /// The number of slots that no node serves.
    pub(crate) fn unserved(&self) -> usize {
        self.members.unserved()
    }

    /// Has the node of this slot prove that it belongs to the Cluster, since it knows less than it
    /// did.
    pub(crate) fn suspect(&self, slot: u16) {
        if let Ok(node) = self.members.owner(slot) {
            self.members.suspect(&node);
        }
    }

    /// The server that serves this slot now, as [`Connection::server`] tells it.
    pub(crate) fn server(&self, slot: u16) -> Result<Arc<str>> {
        self.members.owner(slot)?.connection.server()
    }

    /// Runs a script at the node that serves this slot. `call` builds the call for each connection
    /// over which it is tried.
    pub(crate) async fn run(
        &self,
        slot: u16,
        mut call: impl FnMut(&Connection) -> Result<Call>,
    ) -> Result<Value> {
        let mut once = None;
        for nth in 0..=REDIRECTIONS {
            if nth > 1 {
                sleep(PAUSE * nth).await;
            }
            let asking = once.is_some();
            let node = once.take().map_or_else(|| self.owner(slot), Ok)?;
            let call = call(&node.connection).inspect_err(|_| self.doubt())?;
            let answer = call.answer(&node.connection, asking).await;
            // The node may be down for good, with its replica promoted.
            let answer = answer.inspect_err(|_| self.doubt())?;
            match self.elsewhere(slot, &node, &answer).await? {
                Elsewhere::Nowhere => return call.refusal(&node.connection, answer).await,
                Elsewhere::Owner => {}
                Elsewhere::Once(node) => once = Some(node),
            }
        }
        let what = format!("the nodes of the Redis Cluster disagree about who serves slot {slot}");
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    /// Runs these calls of one script, each at the node that serves its slot: many in one flight,
    /// and all nodes side by side.
    pub(crate) async fn run_all(&self, calls: &[(u16, Call)]) -> Vec<Result<Value>> {
        let mut flights: Vec<(Arc<Node>, Vec<usize>)> = Vec::new();
        let mut done: Vec<Option<Result<Value>>> = calls.iter().map(|_| None).collect();
        for (i, (slot, _)) in calls.iter().enumerate() {
            match self.owner(*slot) {
                Err(e) => done[i] = Some(Err(e)),
                Ok(node) => match flights
                    .iter_mut()
                    .find(|(known, _)| Arc::ptr_eq(known, &node))
                {
                    Some((_, flight)) => flight.push(i),
                    None => flights.push((node, vec![i])),
                },
            }
        }
        let answered = flights.iter().map(async |(node, flight)| {
            let some: Vec<&Call> = flight.iter().map(|i| &calls[*i].1).collect();
            let answers = answers(&node.connection, &some).await;
            join_all(flight.iter().zip(answers).map(async |(i, answer)| {
                let (slot, call) = &calls[*i];
                let answer = match answer {
                    Ok(Value::ServerError(e)) if is_elsewhere(&e.clone().into()) => {
                        self.run(*slot, |_| Ok(call.clone())).await
                    }
                    Ok(answer) => node.connection.refusal(answer),
                    Err(e) => Err(again(&e)).inspect_err(|_: &Error| self.doubt()),
                };
                (*i, answer)
            }))
            .await
        });
        for (i, answer) in join_all(answered).await.into_iter().flatten() {
            done[i] = Some(answer);
        }
        let unknown = || {
            Err(Error::new(
                ErrorKind::Internal,
                "a call of many was not sent",
            ))
        };
        done.into_iter()
            .map(|answer| answer.unwrap_or_else(unknown))
            .collect()
    }

    /// Returns the redirection in the answer once the node that it names can be reached.
    async fn elsewhere(&self, slot: u16, node: &Arc<Node>, answer: &Value) -> Result<Elsewhere> {
        let Value::ServerError(e) = answer else {
            return Ok(Elsewhere::Nowhere);
        };
        let to = e
            .details()
            .and_then(|details| redirected(details, &node.host));
        match (e.kind(), to) {
            (Some(ServerErrorKind::Moved), Some(to)) => self
                .members
                .moved(slot, &to)
                .await
                .map(|()| Elsewhere::Owner),
            (Some(ServerErrorKind::Ask), Some(to)) => {
                self.members.at(&to).await.map(Elsewhere::Once)
            }
            (
                Some(ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::ClusterDown),
                _,
            ) => {
                // It says so too while it is set up anew.
                self.members.suspect(node);
                let what = format!(
                    "{}: this node of the Redis Cluster cannot serve slot {slot} now",
                    node.connection.address()
                );
                Err(Error::new(ErrorKind::Unavailable, what))
            }
            _ => Ok(Elsewhere::Nowhere),
        }
    }

    /// Returns whether this name is observed.
    pub(crate) fn observes(&self, name: &Name) -> bool {
        locked(&self.observed)
            .iter()
            .any(|observed| observed.name == *name)
    }

    /// Notifies of this name whenever something is published in this channel, until the subscription is dropped.
    pub(crate) fn observe(&self, slot: u16, name: &Name, channel: String) -> Subscription {
        let observed = Arc::new(Observed {
            slot,
            name: name.clone(),
            channel,
            by: Mutex::default(),
        });
        observed.listen(&self.members);
        locked(&self.observed).push(observed.clone());
        let all = self.observed.clone();
        Subscription::new(guard((), move |()| {
            locked(&all).retain(|other| !Arc::ptr_eq(other, &observed));
        }))
    }

    /// Ends all connections for good.
    pub(crate) fn close(&self) {
        self.upkeep.end();
        self.members.close();
    }

    fn owner(&self, slot: u16) -> Result<Arc<Node>> {
        self.upkeep.here();
        self.members.owner(slot).inspect_err(|_| self.doubt())
    }

    /// Has the slots asked for soon.
    fn doubt(&self) {
        self.members.doubt();
    }
}

/// The work that keeps the map up to date.
fn upkeep(members: &Arc<Members>, observed: &Arc<Mutex<Vec<Arc<Observed>>>>) -> Background {
    let members = members.clone();
    let observed = observed.clone();
    Background::new(move |anew| {
        let members = members.clone();
        let observed = observed.clone();
        async move {
            if anew {
                members.doubt();
            }
            let moved = || {
                locked(&observed)
                    .iter()
                    .for_each(|observed| observed.listen(&members));
            };
            keep(members.clone(), moved).await;
        }
    })
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.members.nodes();
        f.debug_list()
            .entries(nodes.iter().map(|node| &node.connection))
            .finish()
    }
}
