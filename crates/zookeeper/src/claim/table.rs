//! The claims that live in one session: which have an entry, and which entries are being removed.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroI64;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::seam::{Claim, ClaimId, Grant, Mode, Moment, Place, Validity};
use leasehold_core::support::OwnMap;
use leasehold_core::{Contention, Loss};
use tokio::task::JoinSet;

use crate::claim::unread::Unread;
use crate::client::{self, Closed, Liveness, Node, Shared};
use crate::entry::Queue;

pub(crate) type Session = client::Session<Claims>;

/// A session's nodes are named in one packet when it ends, which every server must be able to read: a million bytes.
const ROOM: usize = 1_000_000;

/// How many locks' nodes are remembered.
const REMEMBERED: usize = 10_000;

/// A node that is read by itself is so many times the bytes of one in the list of the session's nodes.
const READ_BYTES: usize = 4;

/// At each such look at what a waiter watches, it looks at what it follows, too.
const FULL_LOOK: u32 = 8;

#[derive(Default)]
pub(crate) struct Claims {
    pub(crate) tracked: OwnMap<ClaimId, Box<Tracked>>,
    /// What is no longer wanted, until ZooKeeper has answered that it is removed.
    pub(crate) abandoned: OwnMap<ClaimId, Vec<Node>>,
    /// What the paths of all these entries take of a packet.
    bytes: usize,
    /// When the entries were last compared with the session's nodes.
    pub(crate) last_verified: Option<Moment>,
    /// After a reconnect: the queues of holds that were not read since.
    pub(crate) unread: Option<Unread>,
    /// The entries of this session, by their paths, until it is known that they are gone. One that was granted exclusively, and that
    /// nobody follows, is not among them: nobody will.
    own: HashMap<Arc<str>, Own>,
    /// Locks' nodes that were there when last seen.
    existing: HashSet<String>,
    /// The queues that claims read at the moment.
    pub(crate) queues: Arc<Shared<Queue>>,
}

/// An entry of this session, as other claims in it see it.
#[derive(Default)]
struct Own {
    /// It was granted exclusively: nothing is before it any more.
    alone: bool,
    /// Who waits for its end, as long as they do.
    followers: Vec<(ClaimId, Weak<AtomicU8>)>,
}

/// A claim of which something may be in the store.
pub(crate) struct Tracked {
    /// Its place in the queue.
    pub(crate) entry: Node,
    /// When it was last claimed or renewed.
    last_used: Moment,
    /// At some moment after this one its entry surely existed: a hold is verified by its own entry, not by the session alone.
    verified: Moment,
    /// How long it lasts without being claimed or renewed.
    lease: Duration,
    /// The mode and the label that were last stored.
    pub(crate) stored: (Mode, Arc<str>),
    /// The number of its token, if it is granted: that stays, whatever becomes of raises.
    pub(crate) held: Option<NonZeroI64>,
    /// For what it waits.
    pub(crate) wait: Option<Box<Wait>>,
}

/// Which entries a renewal compares with the session's nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    All,
    /// Those that hold, where they are few among many that wait.
    Holds,
    None,
}

/// What keeps a claim waiting, and what tells that it has changed.
pub(crate) struct Wait {
    pub(crate) who: Contention,
    /// The nodes that are watched.
    pub(crate) watched: Vec<Arc<str>>,
    /// Those of the session's own, whose ends it learns without a watch.
    pub(crate) followed: Vec<Arc<str>>,
    /// How often the claim was claimed again since.
    pub(crate) looks: u32,
    pub(crate) hint: Hint,
    /// The connection over which all this was read.
    pub(crate) connection: Closed,
    pub(crate) _watches: JoinSet<()>,
}

/// What is known to have happened to what a claim waits for. It is set before the claim is notified.
#[derive(Clone, Default, Debug)]
pub(crate) struct Hint(Arc<AtomicU8>);

impl Hint {
    const CHANGED: u8 = 1;
    const ALL_GONE: u8 = 2;

    /// Something has changed: the queue is to be read.
    pub(crate) fn change(&self) {
        self.0.fetch_max(Hint::CHANGED, Ordering::SeqCst);
    }
}

/// What a claim knows of its place without asking.
pub(crate) enum Known {
    Held,
    /// It has heard of no change: it waits if these nodes are as they were.
    Waits(Contention, Vec<Arc<str>>),
    /// All that was before it is gone.
    First,
    /// The queue is to be read.
    Unknown,
}

impl Claims {
    /// A request that may create this entry is about to be sent. `false` if there is no room for it.
    pub(crate) fn track(&mut self, entry: &Node, claim: &Claim, lease: Duration, now: Moment) -> bool {
        let has_room = self.bytes + entry.bytes() <= ROOM;
        if has_room {
            if self.tracked.is_empty() {
                // What comes to be now needs no comparison for a lease.
                self.last_verified = Some(now);
            }
            self.bytes += entry.bytes();
            let (entry, stored) = (entry.clone(), (claim.mode, claim.label.clone()));
            let tracked = Tracked { entry, last_used: now, verified: now, lease, stored, held: None, wait: None };
            self.tracked.insert(claim.id, Box::new(tracked));
        }
        has_room
    }

    /// The claim is claimed again or renewed.
    pub(crate) fn mark_used(&mut self, id: ClaimId, now: Moment) -> Option<&mut Tracked> {
        let tracked: &mut Tracked = self.tracked.get_mut(&id)?;
        tracked.last_used = now;
        Some(tracked)
    }

    /// Which entries are to be compared with the session's nodes at this renewal. There are three in a lease.
    pub(crate) fn due(&self, lease: Duration, now: Moment) -> Due {
        let holds = self.tracked.values().filter(|tracked| tracked.held.is_some()).count();
        let is_long_ago = self.last_verified.is_none_or(|last| last + lease * 5 / 6 <= now);
        if is_long_ago || holds * READ_BYTES > self.tracked.len() {
            Due::All
        } else if holds > 0 {
            Due::Holds
        } else {
            Due::None
        }
    }

    /// What is known of the claim, if it still has this entry.
    pub(crate) fn with_entry(&mut self, id: ClaimId, entry: &Node) -> Option<&mut Tracked> {
        self.tracked.get_mut(&id).map(|tracked| &mut **tracked).filter(|tracked| tracked.entry.is_same(entry))
    }

    /// The claim's entry was created.
    pub(crate) fn created(&mut self, id: ClaimId, entry: &Node) {
        if let Some(tracked) = self.with_entry(id, entry) {
            let before = std::mem::replace(&mut tracked.entry, entry.clone()).bytes();
            self.bytes = self.bytes + entry.bytes() - before;
            self.own.extend(entry.created().map(|(path, _)| (path.clone(), Own::default())));
        }
    }

    /// Whether the node of a hold with this number is at this path.
    pub(crate) fn holds(&self, place: &Place, number: i64) -> bool {
        let is_there = |tracked: &Tracked| tracked.entry.created().is_some_and(|(path, _)| **path == *place.as_str());
        self.tracked.values().any(|tracked| tracked.held.is_some_and(|held| held.get() == number) && is_there(tracked))
    }

    /// The claim with this entry holds in this mode. Returns whom that lets in beside it: those that wait for the end of an exclusive
    /// hold which is a shared one now.
    pub(crate) fn holds_as(&mut self, entry: &Node, mode: Mode, downgraded: bool) -> Vec<ClaimId> {
        let Some((path, _)) = entry.created() else { return Vec::new() };
        let Some(own) = self.own.get_mut(path) else { return Vec::new() };
        own.alone |= mode == Mode::Exclusive;
        let beside = if downgraded { std::mem::take(&mut own.followers) } else { Vec::new() };
        if own.alone && own.followers.is_empty() {
            self.own.remove(path);
        }
        hint(beside, Hint::CHANGED)
    }

    /// The path, if it is that of an entry of this session: the claim is notified when that is gone. One that was granted
    /// exclusively is not followed, because who comes so late has missed whether it was downgraded.
    pub(crate) fn follow(&mut self, path: &str, id: ClaimId, hint: &Hint) -> Option<Arc<str>> {
        let path = self.own.get_key_value(path).filter(|(_, own)| !own.alone)?.0.clone();
        let followers = &mut self.own.get_mut(&path)?.followers;
        if followers.len() == followers.capacity() {
            // It has room for as many again then, so each follower is looked at a few times at most.
            followers.retain(|(_, hint)| hint.strong_count() > 0);
            followers.reserve(followers.len());
        }
        followers.push((id, Arc::downgrade(&hint.0)));
        Some(path)
    }

    /// This entry, which is neither tracked nor abandoned any more, is gone. Returns whom to notify.
    pub(crate) fn gone(&mut self, entry: &Node) -> Vec<ClaimId> {
        self.bytes -= entry.bytes();
        let own = entry.created().and_then(|(path, _)| self.own.remove(path));
        own.map_or(Vec::new(), |own| hint(own.followers, if own.alone { Hint::ALL_GONE } else { Hint::CHANGED }))
    }

    /// The claim is no longer wanted.
    pub(crate) fn abandon(&mut self, id: ClaimId) {
        if let Some(tracked) = self.tracked.remove(&id) {
            self.abandoned.entry(id).or_default().push(tracked.entry);
        }
    }

    /// Abandons those of these nodes of the session that no claim has: the server has old data again, and in them what was removed since.
    /// A claim's entry is known here before it is sent, and no name is used again, so nobody comes to hold by such a node.
    pub(crate) fn abandon_strays(&mut self, nodes: impl IntoIterator<Item = String>) {
        let mut strays: Vec<Node> = nodes.into_iter().filter_map(|path| Node::at(&path)).collect();
        if strays.is_empty() {
            return;
        }
        let known = self.tracked.values().map(|tracked| &tracked.entry).chain(self.abandoned.values().flatten());
        let known: HashSet<&str> = known.map(Node::unique).collect();
        strays.retain(|stray| !known.contains(stray.unique()));
        if !strays.is_empty() {
            self.bytes += strays.iter().map(Node::bytes).sum::<usize>();
            self.abandoned.insert(ClaimId::fresh(), strays);
        }
    }

    /// Abandons what was not claimed or renewed for a whole lease.
    pub(crate) fn abandon_unused(&mut self, now: Moment) {
        for (id, tracked) in self.tracked.extract_if(|_, tracked| tracked.last_used + tracked.lease <= now) {
            self.abandoned.entry(id).or_default().push(tracked.entry);
        }
    }

    /// This abandoned entry is there no more, nor its lock's node if that went with it. Returns whom to notify.
    pub(crate) fn removed(&mut self, id: ClaimId, entry: &Node, with_parent: bool) -> Vec<ClaimId> {
        if with_parent {
            self.seen(entry.parent(), false);
        }
        let Some(left) = self.abandoned.get_mut(&id) else { return Vec::new() };
        let removed: Vec<Node> = left.extract_if(.., |left| left.is_same(entry)).collect();
        if left.is_empty() {
            self.abandoned.remove(&id);
        }
        removed.iter().flat_map(|entry| self.gone(entry)).collect()
    }

    /// Whether the lock's node was there when it was last seen.
    pub(crate) fn exists(&self, parent: &str) -> bool {
        self.existing.contains(parent)
    }

    /// The lock's node was seen, or found missing.
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

/// Sets the hints of those that still wait. Returns who they are.
fn hint(followers: Vec<(ClaimId, Weak<AtomicU8>)>, what: u8) -> Vec<ClaimId> {
    let set = |(id, hint): (ClaimId, Weak<AtomicU8>)| {
        hint.upgrade()?.fetch_max(what, Ordering::SeqCst);
        Some(id)
    };
    followers.into_iter().filter_map(set).collect()
}

impl Tracked {
    /// What is known of it without asking.
    pub(crate) fn known(&mut self) -> Known {
        let Some(wait) = &mut self.wait else { return if self.held.is_some() { Known::Held } else { Known::Unknown } };
        let alone = matches!(self.stored.0, Mode::Exclusive | Mode::Shared);
        match wait.hint.0.load(Ordering::SeqCst) {
            _ if !matches!(wait.connection.has_changed(), Ok(false)) => Known::Unknown,
            0 => {
                wait.looks = wait.looks.wrapping_add(1);
                let followed = wait.followed.iter().filter(|_| wait.looks.is_multiple_of(FULL_LOOK));
                Known::Waits(wait.who.clone(), wait.watched.iter().chain(followed).cloned().collect())
            }
            Hint::ALL_GONE if alone => Known::First,
            _ => Known::Unknown,
        }
    }

    /// Its entry was found by a request that was sent at `asked`, and that no server answers from an older state.
    pub(crate) fn verified(&mut self, asked: Moment) {
        self.verified = self.verified.max(asked);
    }

    /// Whether a grant of now would have lost half of its time already.
    pub(crate) fn is_stale(&self, session: &Session) -> bool {
        session.state().liveness.is_stale(self.verified, Moment::now())
    }

    /// How long it lasts, as is verified now. Who does not renew it is not told of more: it is [abandoned](Claims::abandon_unused) then.
    pub(crate) fn validity(&self, liveness: &Liveness) -> Validity {
        liveness.validity(self.verified.min(self.last_used))
    }

    /// Its grant if it holds, as is verified now.
    pub(crate) fn grant(&self, session: &Session) -> Option<Grant> {
        let ((path, _), number) = (self.entry.created()?, self.held?);
        Some(Grant::of_place(Place::new(path.clone()), number.get(), self.validity(&session.state().liveness)))
    }
}

/// The grants of all holds, as is verified now.
pub(crate) fn grants(session: &Session) -> Vec<(ClaimId, Grant)> {
    session.handler().tracked.iter().filter_map(|(id, tracked)| Some((*id, tracked.grant(session)?))).collect()
}

/// These claims have nothing in the store any more. Notifies them and those that waited for them, and returns how many there were.
pub(crate) fn lose(session: &Session, loss: Loss, which: impl Fn(&ClaimId, &Tracked) -> bool) -> usize {
    let mut claims = session.handler();
    let lost: Vec<(ClaimId, Box<Tracked>)> = claims.tracked.extract_if(|id, tracked| which(id, tracked)).collect();
    let next: Vec<ClaimId> = lost.iter().flat_map(|(_, tracked)| claims.gone(&tracked.entry)).collect();
    drop(claims);
    lost.iter().for_each(|(id, _)| session.notifier.lost(*id, loss));
    next.into_iter().for_each(|id| session.notifier.claim_again(id));
    lost.len()
}

#[cfg(test)]
mod tests;
