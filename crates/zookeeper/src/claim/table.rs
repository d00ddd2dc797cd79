//! The table of the claims in one session: the entry of each claim, and the entries that are being
//! removed.

use std::collections::HashSet;
use std::num::NonZeroI64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::backend::{Claim, ClaimId, Grant, Mode, Moment, Place, Validity};
use leasehold_core::support::OwnMap;
use leasehold_core::{Contention, Loss};
use tokio::task::JoinSet;

use crate::claim::unread::Unread;
use crate::client::{self, Closed, Liveness, Node, SharedAnswers};
use crate::entry::Queue;

pub(crate) type Session = client::Session<Claims>;

/// The greatest size, in bytes, of the list of a session's nodes. When a session ends, one packet
/// names them all, and every server must be able to read it.
const ROOM: usize = 1_000_000;

/// The number of locks' nodes that are remembered.
const REMEMBERED: usize = 10_000;

/// The size of a node that is read by itself, as a multiple of its size in the list of the
/// session's nodes.
const READ_BYTES: usize = 4;

#[derive(Default)]
pub(crate) struct Claims {
    pub(crate) tracked: OwnMap<ClaimId, Box<Tracked>>,
    /// The entries that are no longer wanted, until ZooKeeper has answered that they are removed.
    pub(crate) abandoned: OwnMap<ClaimId, Vec<Node>>,
    /// The size of all these entries' paths in a packet.
    bytes: usize,
    /// The time at which the entries were last compared with the session's nodes.
    pub(crate) last_verified: Option<Moment>,
    /// After a reconnect: the queues of holds that were not read since then.
    pub(crate) unread: Option<Unread>,
    /// The locks' nodes that were there when they were last seen.
    existing: HashSet<String>,
    /// The queues that claims read at the moment.
    pub(crate) queues: Arc<SharedAnswers<Queue>>,
}

/// A claim that may have an entry in the store.
pub(crate) struct Tracked {
    /// Its place in the queue.
    pub(crate) entry: Node,
    /// The time at which it was last claimed or renewed.
    last_used: Moment,
    /// Its entry surely existed at some moment after this one: a hold is verified by its own entry,
    /// not by the session alone.
    verified: Moment,
    /// The time that it lasts without being claimed or renewed.
    lease: Duration,
    /// The mode and the label that were last stored.
    pub(crate) stored: (Mode, Arc<str>),
    /// The number of its token, if it is granted. It stays the same, whatever becomes of raises.
    pub(crate) held: Option<NonZeroI64>,
    /// For work that is done once: the version of the completion that did not count for the claim
    /// when it was granted.
    pub(crate) replaces: Option<i32>,
    /// The obstacles that it waits for.
    pub(crate) wait: Option<Box<Wait>>,
}

/// Which entries a renewal compares with the session's nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    All,
    /// The claims that hold, if they are few among many that wait.
    Holds,
    None,
}

/// The nodes that keep a claim waiting, and the hint that records their changes.
pub(crate) struct Wait {
    pub(crate) who: Contention,
    /// The nodes that are watched.
    pub(crate) watched: Vec<Arc<str>>,
    pub(crate) hint: Hint,
    /// The connection over which all this was read.
    pub(crate) connection: Closed,
    pub(crate) _watches: JoinSet<()>,
}

/// A flag for the known changes of the nodes that a claim waits for. It is set before the claim is
/// notified.
#[derive(Clone, Default, Debug)]
pub(crate) struct Hint(Arc<AtomicBool>);

impl Hint {
    /// Something has changed: the queue is to be read.
    pub(crate) fn change(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn has_changed(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// The state of a claim's place as it is known without a request.
pub(crate) enum Known {
    Held,
    /// No change is known.
    Waits(Waits),
    /// The queue is to be read.
    Unknown,
}

/// A claim that still waits if the nodes that it watches are unchanged.
pub(crate) struct Waits {
    /// The holder at the time when it looked.
    pub(crate) who: Contention,
    pub(crate) watched: Vec<Arc<str>>,
}

impl Claims {
    /// Adds a claim before a request is sent that may create this entry. `false` if there is no
    /// room for it.
    pub(crate) fn track(
        &mut self,
        entry: &Node,
        claim: &Claim,
        lease: Duration,
        now: Moment,
    ) -> bool {
        let has_room = self.bytes + entry.bytes() <= ROOM;
        if has_room {
            if self.tracked.is_empty() {
                // The entries that are created now need no comparison for a lease.
                self.last_verified = Some(now);
            }
            self.bytes += entry.bytes();
            let entry = entry.clone();
            let stored = (claim.mode, claim.label.clone());
            let tracked = Tracked {
                entry,
                last_used: now,
                verified: now,
                lease,
                stored,
                held: None,
                replaces: None,
                wait: None,
            };
            self.tracked.insert(claim.id, Box::new(tracked));
        }
        has_room
    }

    /// Records that the claim is claimed again or renewed.
    pub(crate) fn mark_used(&mut self, id: ClaimId, now: Moment) -> Option<&mut Tracked> {
        let tracked: &mut Tracked = self.tracked.get_mut(&id)?;
        tracked.last_used = now;
        Some(tracked)
    }

    /// The entries to compare with the session's nodes at this renewal. A lease has three renewals.
    pub(crate) fn due(&self, lease: Duration, now: Moment) -> Due {
        let holds = self
            .tracked
            .values()
            .filter(|tracked| tracked.held.is_some())
            .count();
        let is_long_ago = self
            .last_verified
            .is_none_or(|last| last + lease * 5 / 6 <= now);
        if is_long_ago || holds * READ_BYTES > self.tracked.len() {
            Due::All
        } else if holds > 0 {
            Due::Holds
        } else {
            Due::None
        }
    }

    /// The record of the claim, if it still has this entry.
    pub(crate) fn with_entry(&mut self, id: ClaimId, entry: &Node) -> Option<&mut Tracked> {
        self.tracked
            .get_mut(&id)
            .map(|tracked| &mut **tracked)
            .filter(|tracked| tracked.entry.is_same(entry))
    }

    /// Records that the claim's entry was created.
    pub(crate) fn created(&mut self, id: ClaimId, entry: &Node) {
        if let Some(tracked) = self.with_entry(id, entry) {
            let before = std::mem::replace(&mut tracked.entry, entry.clone()).bytes();
            self.bytes = self.bytes + entry.bytes() - before;
        }
    }

    /// Returns whether a hold with this number has its node at this path.
    pub(crate) fn holds(&self, place: &Place, number: i64) -> bool {
        let is_there = |tracked: &Tracked| {
            tracked
                .entry
                .created()
                .is_some_and(|(path, _)| **path == *place.as_str())
        };
        self.tracked.values().any(|tracked| {
            tracked.held.is_some_and(|held| held.get() == number) && is_there(tracked)
        })
    }

    /// Forgets the claim, whose entry is gone.
    pub(crate) fn forget(&mut self, id: ClaimId) {
        if let Some(tracked) = self.tracked.remove(&id) {
            self.bytes -= tracked.entry.bytes();
        }
    }

    /// Moves the claim's entry to the entries that are to be removed.
    pub(crate) fn abandon(&mut self, id: ClaimId) {
        if let Some(tracked) = self.tracked.remove(&id) {
            self.abandoned.entry(id).or_default().push(tracked.entry);
        }
    }

    /// Abandons the nodes of the session that belong to no claim: the server has old data again,
    /// and in them nodes that were removed since. A claim's entry is known here before it is sent,
    /// and no name is used again, so no claim comes to hold by such a node.
    pub(crate) fn abandon_strays(&mut self, nodes: impl IntoIterator<Item = String>) {
        let mut strays: Vec<Node> = nodes
            .into_iter()
            .filter_map(|path| Node::at(&path))
            .collect();
        if strays.is_empty() {
            return;
        }
        let known = self
            .tracked
            .values()
            .map(|tracked| &tracked.entry)
            .chain(self.abandoned.values().flatten());
        let known: HashSet<&str> = known.map(Node::unique).collect();
        strays.retain(|stray| !known.contains(stray.unique()));
        if !strays.is_empty() {
            self.bytes += strays.iter().map(Node::bytes).sum::<usize>();
            self.abandoned.insert(ClaimId::fresh(), strays);
        }
    }

    /// Abandons the claims that were not claimed or renewed for a whole lease.
    pub(crate) fn abandon_unused(&mut self, now: Moment) {
        for (id, tracked) in self
            .tracked
            .extract_if(|_, tracked| tracked.last_used + tracked.lease <= now)
        {
            self.abandoned.entry(id).or_default().push(tracked.entry);
        }
    }

    /// Records that this abandoned entry is gone, and with it its lock's node if `with_parent`.
    pub(crate) fn removed(&mut self, id: ClaimId, entry: &Node, with_parent: bool) {
        if with_parent {
            self.seen(entry.parent(), false);
        }
        let Some(left) = self.abandoned.get_mut(&id) else {
            return;
        };
        for removed in left.extract_if(.., |left| left.is_same(entry)) {
            self.bytes -= removed.bytes();
        }
        if left.is_empty() {
            self.abandoned.remove(&id);
        }
    }

    /// Returns whether the lock's node was there when it was last seen.
    pub(crate) fn exists(&self, parent: &str) -> bool {
        self.existing.contains(parent)
    }

    /// Records whether the lock's node was seen or found missing.
    pub(crate) fn seen(&mut self, parent: &str, exists: bool) {
        if !exists {
            self.existing.remove(parent);
        } else if !self.exists(parent) {
            if self.existing.len() >= REMEMBERED {
                self.existing.clear();
            }
            self.existing.insert(parent.to_owned());
        }
    }
}

impl Tracked {
    /// The state of its place as it is known without a request.
    pub(crate) fn known(&self) -> Known {
        let Some(wait) = &self.wait else {
            return if self.held.is_some() {
                Known::Held
            } else {
                Known::Unknown
            };
        };
        if wait.hint.has_changed() || !matches!(wait.connection.has_changed(), Ok(false)) {
            return Known::Unknown;
        }
        Known::Waits(Waits {
            who: wait.who.clone(),
            watched: wait.watched.clone(),
        })
    }

    /// Records that its entry was found by a request that was sent at `asked` and that no server
    /// answers from an older state.
    pub(crate) fn verified(&mut self, asked: Moment) {
        self.verified = self.verified.max(asked);
    }

    /// Returns whether a grant at this time would have lost half of its time already.
    pub(crate) fn is_stale(&self, session: &Session) -> bool {
        session
            .state()
            .liveness
            .is_stale(self.verified, Moment::now())
    }

    /// Its validity, as is verified now. It does not exceed a lease after the last renewal, because
    /// the claim is [abandoned](Claims::abandon_unused) then.
    pub(crate) fn validity(&self, liveness: &Liveness) -> Validity {
        liveness.validity(self.verified.min(self.last_used))
    }

    /// Its grant if it holds, as is verified now.
    pub(crate) fn grant(&self, session: &Session) -> Option<Grant> {
        let ((path, _), number) = (self.entry.created()?, self.held?);
        Some(Grant::of_place(
            Place::new(path.clone()),
            number.get(),
            self.validity(&session.state().liveness),
        ))
    }
}

/// The grants of all holds, as is verified now.
pub(crate) fn grants(session: &Session) -> Vec<(ClaimId, Grant)> {
    session
        .handler()
        .tracked
        .iter()
        .filter_map(|(id, tracked)| Some((*id, tracked.grant(session)?)))
        .collect()
}

/// Removes claims that have nothing in the store any more, and notifies them. Returns their number.
pub(crate) fn lose(
    session: &Session,
    loss: Loss,
    which: impl Fn(&ClaimId, &Tracked) -> bool,
) -> usize {
    let mut claims = session.handler();
    let lost: Vec<ClaimId> = claims
        .tracked
        .iter()
        .filter(|(id, tracked)| which(id, tracked))
        .map(|(id, _)| *id)
        .collect();
    lost.iter().for_each(|id| claims.forget(*id));
    drop(claims);
    lost.iter().for_each(|id| session.notifier.lost(*id, loss));
    lost.len()
}

#[cfg(test)]
mod tests;
