//! Notices that only the nodes of a slot carry (Redis 7): a client that waits in a slot has a channel in it, and whoever grants it the lock
//! publishes there. What is published in the client's own channel goes to every node of the Cluster.
//!
//! These channels are heard over connections of their own, one to each node with such a slot. A node that gives a slot away says so
//! unasked, which the client crate takes for the answer to a request: so such a connection is given up, and has carried nothing else.
//! A claim names the channel of its slot only while that is heard, and else the client's own. When one is not heard any more, all who wait
//! claim again, since notices may have been missed. Nothing else is sent over such a connection, so it is asked from time to time whether
//! it leads anywhere; and it is not made anew without a pause, since slots may leave one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::zip;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use leasehold_core::seam::Moment;
use leasehold_core::support::locked;
use leasehold_core::{Error, Result};
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, PushInfo, PushKind, RedisResult, ServerErrorKind, Value, cmd};
use scopeguard::guard;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::cluster::members::{Members, Node};
use crate::cluster::slots::tag_of;
use crate::error::of_request;
use crate::inbox::Inbox;

/// So many slots have a channel, the first ones in which this client waits: a node keeps a few hundred bytes for each.
const MOST: usize = 1024;
/// The shortest and the longest pause before a connection is made again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// How often a slot is tried again that its node does not serve now, and how often is looked whether the other connection to the node was
/// made anew, which takes no request.
const GLANCE: Duration = Duration::from_millis(250);
/// How often is asked whether the connection still leads to the node: nothing else may be sent over it for hours.
const SILENCE: Duration = Duration::from_secs(5);

/// The slots in which this client has waited.
pub(super) struct Shards {
    inbox: Inbox,
    slots: Mutex<Slots>,
    due: Notify,
}

#[derive(Default)]
struct Slots {
    /// The number of the connection over which each is heard.
    heard: BTreeMap<u16, Option<u64>>,
    /// How many connections there were.
    made: u64,
    /// A server knows no such channels, or this user may not have them.
    refused: bool,
}

impl Shards {
    pub(super) fn new(inbox: &Inbox) -> Shards {
        Shards { inbox: inbox.clone(), slots: Mutex::default(), due: Notify::new() }
    }

    /// The channel for claims in this slot, if it is heard.
    pub(super) fn channel(&self, slot: u16) -> Option<String> {
        let heard = locked(&self.slots).heard.get(&slot).copied().flatten();
        heard.map(|_| self.name(slot))
    }

    fn name(&self, slot: u16) -> String {
        format!("{}:{{{}}}", self.inbox.channel, tag_of(slot))
    }

    /// A claim waits in this slot: the next ones have a channel there.
    pub(super) fn want(&self, slot: u16) {
        let mut slots = locked(&self.slots);
        if !slots.refused && slots.heard.len() < MOST && !slots.heard.contains_key(&slot) {
            slots.heard.insert(slot, None);
            self.due.notify_one();
        }
    }

    /// Slots may be elsewhere.
    pub(super) fn moved(&self) {
        self.due.notify_one();
    }

    /// The number of the next connection.
    fn another(&self) -> u64 {
        let mut slots = locked(&self.slots);
        slots.made += 1;
        slots.made
    }

    /// This slot is heard over the connection of this number from now on. Whether it was heard over another one: a notice may be missed.
    fn heard(&self, slot: u16, by: u64) -> bool {
        locked(&self.slots).heard.get_mut(&slot).is_some_and(|heard| heard.replace(by).is_some())
    }

    /// This connection has ended. Whether a notice may have been missed: another one may have taken over its slots.
    fn lost(&self, by: u64) -> bool {
        let mut lost = false;
        for heard in locked(&self.slots).heard.values_mut() {
            lost |= heard.take_if(|heard| *heard == by).is_some();
        }
        lost
    }

    /// What was published may have been missed: they claim again, and name a channel that is heard.
    fn missed(&self) {
        self.inbox.notifier.notify_all();
    }

    /// For good: this client's own channel does it, too.
    fn refuse(&self) {
        *locked(&self.slots) = Slots { refused: true, ..Slots::default() };
        self.missed();
        self.due.notify_one();
    }

    /// The slots of each node.
    fn by_node(&self, members: &Members) -> Vec<(Arc<Node>, BTreeSet<u16>)> {
        let mut all: Vec<(Arc<Node>, BTreeSet<u16>)> = Vec::new();
        for slot in locked(&self.slots).heard.keys() {
            let Ok(node) = members.owner(*slot) else { continue };
            match all.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &node)) {
                Some((_, slots)) => drop(slots.insert(*slot)),
                None => all.push((node, BTreeSet::from([*slot]))),
            }
        }
        all
    }
}

/// Hears what is published for this client, for ever.
pub(super) async fn keep(members: &Members, shards: &Shards) {
    let mut listening = FuturesUnordered::new();
    let mut known: Vec<(Arc<Node>, watch::Sender<BTreeSet<u16>>)> = Vec::new();
    loop {
        tokio::select! {
            () = shards.due.notified() => {}
            Some(()) = listening.next() => {}
        }
        let mut all = shards.by_node(members);
        known.retain(|(_, slots)| !slots.is_closed());
        for (node, slots) in &known {
            let at = all.iter().position(|(owner, _)| Arc::ptr_eq(owner, node));
            let now = at.map_or_else(BTreeSet::new, |at| all.swap_remove(at).1);
            slots.send_if_modified(|slots| std::mem::replace(slots, now.clone()) != now);
        }
        for (node, slots) in all {
            let (slots, wanted) = watch::channel(slots);
            listening.push(listen(members, shards, node.clone(), wanted));
            known.push((node, slots));
        }
    }
}

/// Listens to one node while it has a slot that is wanted.
async fn listen(members: &Members, shards: &Shards, node: Arc<Node>, mut wanted: watch::Receiver<BTreeSet<u16>>) {
    let mut pause = PAUSES.0;
    while !wanted.borrow_and_update().is_empty() {
        // Also where this is dropped with its task.
        let by = guard(shards.another(), |by| {
            if shards.lost(by) {
                shards.missed();
            }
        });
        let begun = Moment::now();
        let _ = hear((members, shards, &node), &mut wanted, *by).await;
        drop(by);
        // Slots that are moved one after the other each end a connection, and each new one has all claim again.
        let was_short = Moment::now().since(begun) < PAUSES.1;
        pause = if was_short { (pause * 2).min(PAUSES.1) } else { PAUSES.0 };
        sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
    }
}

/// What a node said to a subscription.
enum Said {
    Yes,
    /// It does not serve the slot now.
    Elsewhere,
    /// It knows no such channels, or this user may not have them.
    Never,
}

fn said(answer: RedisResult<Value>) -> RedisResult<Said> {
    use ServerErrorKind::{ClusterDown, Moved, NoPerm, ResponseError};
    let Err(e) = answer.and_then(Value::extract_error) else { return Ok(Said::Yes) };
    match e.kind() {
        ErrorKind::Server(Moved | ClusterDown) => Ok(Said::Elsewhere),
        ErrorKind::Server(NoPerm | ResponseError) => Ok(Said::Never),
        _ => Err(e),
    }
}

/// One connection: until it ends, or its node gives a slot away.
async fn hear(
    (members, shards, node): (&Members, &Shards, &Node),
    wanted: &mut watch::Receiver<BTreeSet<u16>>,
    by: u64,
) -> Result<()> {
    let (nth, mut heard) = (node.connection.nth()?, BTreeSet::new());
    let (connection, mut pushes) = node.connection.listener().await?;
    loop {
        let all = wanted.borrow_and_update().clone();
        if all.is_empty() {
            return Ok(());
        }
        let missing: Vec<u16> = all.difference(&heard).copied().collect();
        let asked = missing.iter().map(async |slot| {
            let mut subscribe = cmd("SSUBSCRIBE");
            connection.clone().send_packed_command(subscribe.arg(shards.name(*slot))).await
        });
        let (mut elsewhere, mut missed) = (false, false);
        for (slot, answer) in zip(&missing, join_all(asked).await) {
            match said(answer).map_err(|e| of_request(&e))? {
                Said::Yes => {
                    heard.insert(*slot);
                    missed |= shards.heard(*slot, by);
                }
                Said::Elsewhere => elsewhere = true,
                Said::Never => {
                    shards.refuse();
                    return Ok(());
                }
            }
        }
        if elsewhere {
            members.doubt();
        }
        if missed {
            shards.missed();
        }
        tokio::select! {
            biased;
            () = receive(&mut pushes, &shards.inbox) => return Ok(()),
            changed = wanted.changed() => if changed.is_err() { return Ok(()) },
            () = sleep(GLANCE), if elsewhere => {}
            () = async { while node.connection.nth().is_ok_and(|now| now == nth) { sleep(GLANCE).await } } => return Ok(()),
            e = silence(&connection) => return Err(e),
        }
    }
}

/// Returns when the connection does not answer any more, though nobody has closed it.
async fn silence(connection: &MultiplexedConnection) -> Error {
    loop {
        sleep(SILENCE).await;
        if let Err(e) = connection.clone().send_packed_command(&cmd("PING")).await {
            return of_request(&e);
        }
    }
}

/// Takes in what is published, until the connection ends or its node says that it gave a slot away.
async fn receive(pushes: &mut UnboundedReceiver<PushInfo>, inbox: &Inbox) {
    while let Some(PushInfo { kind, data }) = pushes.recv().await {
        match (kind, &data[..]) {
            (PushKind::SMessage, [Value::BulkString(_), Value::BulkString(record)]) => inbox.receive(record),
            (PushKind::SSubscribe, _) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_named_while_it_is_heard() {
        let shards = Shards::new(&Inbox::new(false));
        let named = || shards.channel(7).is_some();
        let (first, second) = (shards.another(), shards.another());
        shards.want(7);
        assert!(!named(), "nobody listens yet");
        assert!(!shards.heard(7, first) && named(), "nothing was missed");
        assert!(shards.channel(7).unwrap().starts_with(&format!("{}:{{", shards.inbox.channel)));
        assert!(!shards.lost(second) && named(), "it is not heard over that");
        assert!(shards.lost(first) && !named(), "those who wait may have missed something");
        assert!(!shards.heard(7, first) && named(), "they know");
        assert!(shards.heard(7, second) && named(), "at another node, and nobody has said that it left the first one");
        assert!(!shards.lost(first) && named(), "the other one goes on");
        shards.refuse();
        shards.want(7);
        assert!(!shards.heard(7, second) && !named(), "for good");
    }

    #[test]
    fn so_many_slots_have_a_channel() {
        let shards = Shards::new(&Inbox::new(false));
        for slot in 0..2 * MOST as u16 {
            shards.want(slot);
        }
        assert_eq!(locked(&shards.slots).heard.len(), MOST);
    }
}
