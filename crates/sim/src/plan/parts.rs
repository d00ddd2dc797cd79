//! The parts of a plan: steps and faults.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_chaos::{Mode, Policy};

use crate::kind::Own;

pub(crate) const MS: u64 = 1_000_000;

/// The locks: two whose names begin alike, one of each other primitive, and one that tasks of a process pass on.
pub(crate) const LOCKS: [&str; 6] = ["orders", "orders/1", "catalog", "slots", LEADER, "counter"];
pub(crate) const LEADER: &str = "leader";

/// The latency of the network.
#[derive(Clone, Debug)]
pub(crate) struct Air {
    /// The least time on the way, and the usual span above it, in nanoseconds.
    pub(super) least: u64,
    pub(super) more: u64,
}

impl Air {
    /// The latency between near servers, where messages hardly overtake each other.
    pub(crate) fn calm() -> Air {
        Air {
            least: MS,
            more: MS / 4,
        }
    }

    pub(crate) fn latency(&self, random: &mut fastrand::Rng) -> u64 {
        // A few messages take long.
        let long = if random.u8(..16) == 0 { 8 } else { 1 };
        self.least + random.u64(0..=self.more * long)
    }
}

/// The next action of a task.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) nth: usize,
    pub(crate) process: usize,
    pub(crate) task: usize,
    pub(crate) pause: Duration,
    /// The pause ends earlier if the task is told that its lock was released.
    pub(crate) is_told: bool,
    pub(crate) what: Do,
}

impl Step {
    /// The time for which the step holds what it is granted.
    pub(super) fn holds(&self) -> Duration {
        match &self.what {
            Do::Lock(ask) => ask.holds,
            Do::Once(work) => work.takes,
            Do::Both(_, holds) => *holds,
            Do::Look(_) => Duration::ZERO,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Do {
    Lock(Ask),
    /// Work that is done once.
    Once(Work),
    /// Two locks at once: the time limit of the wait (`None` if it only tries), and the time for
    /// which they are held.
    Both(Option<Duration>, Duration),
    /// Reads the queue of a lock.
    Look(&'static str),
}

/// An acquisition, and the further course of its hold.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) lock: &'static str,
    pub(crate) mode: Mode,
    pub(crate) policy: Policy,
    /// The time that the library may wait.
    pub(crate) limit: Option<Duration>,
    /// The time after which the caller leaves.
    pub(crate) leaves: Option<Duration>,
    pub(crate) owned: bool,
    pub(crate) holds: Duration,
    pub(crate) writes: bool,
    pub(crate) confirms: bool,
    pub(crate) downgrades: bool,
    /// The longest hold that the lock allows.
    pub(crate) most: Option<Duration>,
    pub(crate) drops: bool,
}

/// Work that is done once, and the way in which it ends.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) lock: &'static str,
    pub(crate) fire: u64,
    pub(crate) keep: Duration,
    pub(crate) tries: bool,
    /// The time that the library may wait.
    pub(crate) limit: Option<Duration>,
    /// The time after which the caller leaves, before the work begins.
    pub(crate) leaves: Option<Duration>,
    pub(crate) takes: Duration,
    pub(crate) ends: Ends,
}

/// The end of work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ends {
    Done,
    /// It is done, and its caller leaves so long after it has asked for the completion.
    Left(Duration),
    /// It fails, and is released.
    Failed,
    /// It fails, and its guard is dropped.
    Dropped,
    /// It is done, and what was recorded of it is forgotten afterwards.
    Forgotten,
}

/// Something that goes wrong for a while.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) nth: usize,
    /// The time of the fault, or the time from which its moment may come.
    pub(crate) at: u64,
    pub(crate) lasts: u64,
    pub(crate) moment: Option<Moment>,
    pub(crate) what: Wrong,
}

/// A message of a process: the process, the subject, and the direction.
pub(crate) type Message = (usize, Request, Way);

/// The moment of a fault: just after such a message was sent, before it arrives, or `later`
/// nanoseconds after that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) message: Message,
    pub(crate) later: u64,
    /// The latest time of the fault.
    pub(crate) by: u64,
}

impl Fault {
    /// Tells the fault which messages were sent just now.
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
    /// The process, or one of its runtimes, stands still.
    Pause(usize, Option<usize>),
    Kill(usize),
    /// A runtime of the process ends.
    EndRuntime(usize, usize),
    /// Messages in this direction do not pass between the process and this server (`None`: all
    /// servers). The last field is true if that is noticed.
    Cut(usize, Option<usize>, Way, bool),
    Slow(usize, Option<usize>, u64),
    /// The next of these messages is lost (`None`), or late by this many nanoseconds.
    Aim(usize, Option<usize>, Request, Way, Option<u64>),
    /// Each of these messages is lost or late, for as long as the fault lasts.
    Each(usize, Option<usize>, Request, Way, Option<u64>),
    /// This number of ten thousand messages is lost, on all links.
    Lossy(u32),
    /// The connection is closed, and made again.
    Close(usize, Option<usize>),
    PauseServer(usize),
    /// All connections of the server are closed.
    RestartServer(usize),
    /// All data of the server are gone.
    Wipe(usize),
    /// The holders of a lock are evicted.
    Evict(&'static str),
    /// All records of a lock are deleted, and nobody is told.
    Delete(&'static str),
    /// A fault that only servers of this kind have.
    Own(usize, Own),
}

/// The direction of a message.
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

/// The subject of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Request {
    Claim,
    Renew,
    Release,
    Look,
    Push,
    Write,
}
