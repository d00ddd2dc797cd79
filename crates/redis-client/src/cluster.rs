//! A Redis Cluster: one connection to each primary, and each request to the node that serves its slot.
//!
//! `slots` knows keys and answers; `members` keeps the map; `shards` hears those notices that not all nodes carry. Here a request follows the
//! nodes' redirections: it was not executed where it was refused, so it is sent again as it is.

mod members;
mod shards;
mod slots;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::seam::Subscription;
use leasehold_core::support::locked;
use leasehold_core::{Error, ErrorKind, Name, Result};
use redis::{ServerErrorKind, Value};
use scopeguard::guard;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::sleep;

pub use crate::cluster::members::Reach;
use crate::cluster::members::{Members, Node, keep};
use crate::cluster::shards::Shards;
use crate::cluster::slots::redirected;
pub use crate::cluster::slots::{fence_of, slot_of};
use crate::connection::Connection;
use crate::error::again;
use crate::inbox::Inbox;
use crate::script::{Call, answers};
use crate::server::Server;

/// How often one request is sent elsewhere.
const REDIRECTIONS: u32 = 5;
/// The pause before a request is sent elsewhere again: nodes may disagree for a moment.
const PAUSE: Duration = Duration::from_millis(10);

/// A Cluster: a handle to what is known of it, and to the task that keeps that up to date.
pub struct Cluster {
    members: Arc<Members>,
    observed: Arc<Mutex<Vec<Arc<Observed>>>>,
    shards: Arc<Shards>,
    task: Mutex<AbortHandle>,
}

/// A name with an observer, and the node that tells of it.
struct Observed {
    slot: u16,
    name: Name,
    channel: String,
    by: Mutex<Option<(Arc<Node>, Subscription)>>,
}

impl Observed {
    /// Listens at the node that serves the name now.
    fn listen(&self, members: &Members) {
        let Ok(node) = members.owner(self.slot) else { return };
        let mut by = locked(&self.by);
        if by.as_ref().is_none_or(|(known, _)| !Arc::ptr_eq(known, &node)) {
            let subscription = node.connection.observe(&self.name, self.channel.clone());
            *by = Some((node, subscription));
        }
    }
}

/// Where an answer sends its request.
enum Elsewhere {
    Nowhere,
    Owner,
    Once(Arc<Node>),
}

impl Cluster {
    /// Connects to all primaries of the Cluster that these servers belong to. One that is down is tried again in the background.
    pub async fn connect(
        seeds: Vec<Server>,
        timeout: Duration,
        inbox: &Inbox,
        reach: Option<Reach>,
    ) -> Result<Cluster> {
        let members = Arc::new(Members::new(seeds, timeout, inbox, reach));
        members.refresh().await?;
        let (observed, shards) = (Arc::default(), Arc::new(Shards::new(inbox)));
        let task = Mutex::new(spawn(&Handle::current(), &members, &observed, &shards));
        Ok(Cluster { members, observed, shards, task })
    }

    /// The connections to all primaries.
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        self.members.nodes().iter().map(|node| node.connection.clone()).collect()
    }

    /// How many slots nobody serves.
    pub fn unserved(&self) -> usize {
        self.members.unserved()
    }

    /// Which server serves this slot now.
    pub fn server(&self, slot: u16) -> Result<Arc<str>> {
        self.members.owner(slot)?.connection.server()
    }

    /// Runs a script where this slot is served. `call` makes it for each connection that it is tried over.
    pub async fn run(&self, slot: u16, mut call: impl FnMut(&Connection) -> Result<Call>) -> Result<Value> {
        let mut once = None;
        for nth in 0..=REDIRECTIONS {
            if nth > 1 {
                sleep(PAUSE * nth).await;
            }
            let asking = once.is_some();
            let node = once.take().map_or_else(|| self.owner(slot), Ok)?;
            let answer = match call(&node.connection) {
                Ok(call) => call.answer(&node.connection, asking).await,
                Err(e) => Err(e),
            };
            // It may be down for good, and its replica in its place.
            let answer = answer.inspect_err(|_| self.doubt())?;
            match self.elsewhere(slot, &node, &answer).await? {
                Elsewhere::Nowhere => return node.connection.refusal(answer),
                Elsewhere::Owner => {}
                Elsewhere::Once(node) => once = Some(node),
            }
        }
        let what = format!("the nodes of the Redis Cluster disagree about who serves slot {slot}");
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    /// Runs these calls of one script, each where its slot is served: many in one flight, and all nodes side by side.
    pub async fn run_all(&self, calls: &[(u16, Call)]) -> Vec<Result<Value>> {
        let mut flights: Vec<(Arc<Node>, Vec<usize>)> = Vec::new();
        let mut done: Vec<Option<Result<Value>>> = calls.iter().map(|_| None).collect();
        for (i, (slot, _)) in calls.iter().enumerate() {
            match self.owner(*slot) {
                Err(e) => done[i] = Some(Err(e)),
                Ok(node) => match flights.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &node)) {
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
                    Ok(answer) if is_elsewhere(&answer) => self.run(*slot, |_| Ok(call.clone())).await,
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
        let unknown = || Err(Error::new(ErrorKind::Internal, "a call of many was not sent"));
        done.into_iter().map(|answer| answer.unwrap_or_else(unknown)).collect()
    }

    /// Where the answer sends its request, once that can be reached.
    async fn elsewhere(&self, slot: u16, node: &Node, answer: &Value) -> Result<Elsewhere> {
        let Value::ServerError(e) = answer else { return Ok(Elsewhere::Nowhere) };
        let to = e.details().and_then(|details| redirected(details, &node.host));
        match (e.kind(), to) {
            (Some(ServerErrorKind::Moved), Some(to)) => self.members.moved(slot, &to).await.map(|()| Elsewhere::Owner),
            (Some(ServerErrorKind::Ask), Some(to)) => self.members.at(&to).await.map(Elsewhere::Once),
            (Some(ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::ClusterDown), _) => {
                self.doubt();
                let what = format!(
                    "{}: this node of the Redis Cluster cannot serve slot {slot} now",
                    node.connection.address()
                );
                Err(Error::new(ErrorKind::Unavailable, what))
            }
            _ => Ok(Elsewhere::Nowhere),
        }
    }

    /// The channel for notices to claims in this slot, if not all nodes have to carry them.
    pub fn channel(&self, slot: u16) -> Option<String> {
        self.shards.channel(slot)
    }

    /// A claim waits in this slot.
    pub fn waits(&self, slot: u16) {
        self.shards.want(slot);
    }

    /// Whether this name is observed.
    pub fn observes(&self, name: &Name) -> bool {
        locked(&self.observed).iter().any(|observed| observed.name == *name)
    }

    /// Notifies of this name whenever something is published in this channel, until the subscription is dropped.
    pub fn observe(&self, slot: u16, name: &Name, channel: String) -> Subscription {
        let observed = Arc::new(Observed { slot, name: name.clone(), channel, by: Mutex::default() });
        observed.listen(&self.members);
        locked(&self.observed).push(observed.clone());
        let all = self.observed.clone();
        Subscription::new(guard((), move |()| locked(&all).retain(|other| !Arc::ptr_eq(other, &observed))))
    }

    /// Ends all connections for good.
    pub fn close(&self) {
        locked(&self.task).abort();
        self.members.close();
    }

    fn owner(&self, slot: u16) -> Result<Arc<Node>> {
        self.members.owner(slot).inspect_err(|_| self.doubt())
    }

    /// Has the slots asked for soon. Where the runtime of the task has ended, the caller's takes over.
    fn doubt(&self) {
        let mut task = locked(&self.task);
        if task.is_finished()
            && !self.members.is_closed()
            && let Ok(runtime) = Handle::try_current()
        {
            *task = spawn(&runtime, &self.members, &self.observed, &self.shards);
        }
        self.members.doubt();
    }
}

/// The task that keeps the map, and hears notices.
fn spawn(
    runtime: &Handle,
    members: &Arc<Members>,
    observed: &Arc<Mutex<Vec<Arc<Observed>>>>,
    shards: &Arc<Shards>,
) -> AbortHandle {
    let (members, observed, shards) = (members.clone(), observed.clone(), shards.clone());
    let both = async move {
        let moved = || {
            locked(&observed).iter().for_each(|observed| observed.listen(&members));
            shards.moved();
        };
        tokio::join!(keep(members.clone(), moved), shards::keep(&members, &shards));
    };
    runtime.spawn(both).abort_handle()
}

fn is_elsewhere(answer: &Value) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, Moved};
    matches!(answer, Value::ServerError(e) if matches!(e.kind(), Some(Moved | Ask | ClusterDown)))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.members.nodes();
        f.debug_list().entries(nodes.iter().map(|node| &node.connection)).finish()
    }
}
