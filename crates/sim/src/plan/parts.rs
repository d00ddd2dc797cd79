//! What a plan is made of: steps, and faults.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_chaos::{Mode, Policy};

use crate::kind::Own;

pub(crate) const MS: u64 = 1_000_000;

/// The locks: two whose names begin alike, one of each other primitive, and one that tasks of a process pass on.
pub(crate) const LOCKS: [&str; 6] = ["orders", "orders/1", "catalog", "slots", LEADER, "counter"];
pub(crate) const LEADER: &str = "leader";

/// What the network is like.
#[derive(Clone, Debug)]
pub(crate) struct Air {
    /// The least time on the way, and how much more it usually is.
    pub(super) least: u64,
    pub(super) more: u64,
}

impl Air {
    /// That of servers that are near, in which nothing overtakes much.
    pub(crate) fn calm() -> Air {
        Air { least: MS, more: MS / 4 }
    }

    pub(crate) fn latency(&self, random: &mut fastrand::Rng) -> u64 {
        // Few take long.
        let long = if random.u8(..16) == 0 { 8 } else { 1 };
        self.least + random.u64(0..=self.more * long)
    }
}

/// What a task does next.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) nth: usize,
    pub(crate) process: usize,
    pub(crate) task: usize,
    pub(crate) pause: Duration,
    /// It does not wait so long if it is told before that its lock was released.
    pub(crate) is_told: bool,
    pub(crate) what: Do,
}

impl Step {
    /// How long it holds what it is granted.
    pub(super) fn holds(&self) -> Duration {
        match &self.what {
            Do::Lock(ask) => ask.holds,
            Do::Both(_, holds) => *holds,
            Do::Look(_) => Duration::ZERO,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Do {
    Lock(Ask),
    /// Two locks at once: for how long it waits, unless it only tries, and how long it holds them.
    Both(Option<Duration>, Duration),
    /// Reads the queue of a lock.
    Look(&'static str),
}

/// An acquisition, and what becomes of it.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) lock: &'static str,
    pub(crate) mode: Mode,
    pub(crate) policy: Policy,
    /// How long the library may wait.
    pub(crate) limit: Option<Duration>,
    /// After how long the caller leaves.
    pub(crate) leaves: Option<Duration>,
    pub(crate) owned: bool,
    pub(crate) holds: Duration,
    pub(crate) writes: bool,
    pub(crate) confirms: bool,
    pub(crate) downgrades: bool,
    /// The longest that it may hold.
    pub(crate) most: Option<Duration>,
    pub(crate) drops: bool,
}

/// Something that goes wrong for a while.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) nth: usize,
    /// When, or from when on its moment may come.
    pub(crate) at: u64,
    pub(crate) lasts: u64,
    pub(crate) moment: Option<Moment>,
    pub(crate) what: Wrong,
}

/// A message of a process: what it is about, and which way.
pub(crate) type Message = (usize, Request, Way);

/// A fault is made when such a message was sent, before it arrives, or so much later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) message: Message,
    pub(crate) later: u64,
    /// At the latest.
    pub(crate) by: u64,
}

impl Fault {
    /// These were sent just now.
    pub(crate) fn notice(&mut self, sent: &BTreeSet<Message>, now: u64) {
        if let Some(moment) = self.moment.filter(|_| self.at <= now) {
            if sent.contains(&moment.message) {
                (self.at, self.moment) = (now + moment.later, None);
            } else if moment.by <= now {
                (self.at, self.moment) = (now, None);
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Wrong {
    /// The process does not run; or one of its runtimes.
    Pause(usize, Option<usize>),
    Kill(usize),
    /// A runtime of the process ends.
    EndRuntime(usize, usize),
    /// What does not pass to this server (`None`: to all) or back, and whether that is noticed.
    Cut(usize, Option<usize>, Way, bool),
    Slow(usize, Option<usize>, u64),
    /// The next of these messages is lost, or late by so much.
    Aim(usize, Option<usize>, Request, Way, Option<u64>),
    /// Each of these messages, for as long as the fault lasts.
    Each(usize, Option<usize>, Request, Way, Option<u64>),
    /// So many of ten thousand messages of all are lost.
    Lossy(u32),
    /// The connection is closed, and made again.
    Close(usize, Option<usize>),
    PauseServer(usize),
    /// All connections are closed.
    RestartServer(usize),
    /// All data of a server are gone.
    Wipe(usize),
    /// The holders of a lock are evicted.
    Evict(&'static str),
    /// What there is of a lock is deleted, and nobody is told.
    Delete(&'static str),
    /// What only servers of this kind have.
    Own(usize, Own),
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    There,
    Back,
    Both,
}

impl Way {
    pub(crate) fn includes(self, other: Way) -> bool {
        self == Way::Both || self == other
    }
}

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Request {
    Claim,
    Renew,
    Release,
    Look,
    Push,
    Write,
}
