//! One line of a history: what a process saw or did, and when.

use serde::{Deserialize, Serialize};

/// An event that one process saw or caused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// When, in nanoseconds of the clock that all processes share.
    pub t: u64,
    /// Which process. A process that is started again has another number.
    pub p: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

impl Event {
    /// An event of the process `p` at `t`.
    #[must_use]
    pub fn new(t: u64, p: u64, what: What) -> Event {
        Event { t, p, what }
    }

    /// The order of events: at one instant, an end comes before a beginning.
    pub(crate) fn order(&self) -> (u64, bool) {
        use What::{Killed, Lost, Release, Released};
        (
            self.t,
            !matches!(
                self.what,
                Release { .. } | Released { .. } | Lost { .. } | Killed { .. }
            ),
        )
    }
}

/// The kinds of events. An `op` is the number of one acquisition, unique in the whole history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ev", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum What {
    /// The history begins: which store, which seed, and how late things may be.
    Begin {
        /// The store's name.
        store: String,
        /// The seed of the run.
        seed: u64,
        /// The greatest delays that are allowed.
        limits: Limits,
    },
    /// An acquire is about to be called.
    Invoke {
        /// The acquisition.
        op: u64,
        /// The lock's name.
        lock: String,
        /// The mode that is asked for.
        mode: Mode,
        /// The way in which it waits.
        policy: Policy,
        /// Until when it must have returned, if it was given a limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<u64>,
        /// The owner, which may re-enter a hold of its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<u64>,
    },
    /// The acquisition is for work that is done once.
    Once {
        /// The acquisition.
        op: u64,
        /// The number of the fire.
        fire: u64,
    },
    /// The caller was told that the work of this lock is done.
    Done {
        /// The acquisition, which has ended with that, or before.
        op: u64,
        /// The lock's name.
        lock: String,
        /// The token of the record.
        tok: u64,
        /// The fire that is done, and with it all that are smaller.
        fire: u64,
        /// An instant before the request that was answered so.
        since: u64,
        /// Until when the record counts, at least.
        until: u64,
    },
    /// The record with this token, that the work of a lock is done, is about to be forgotten.
    Forget {
        /// The lock's name.
        lock: String,
        /// The token of the record.
        tok: u64,
    },
    /// The acquisition was seen in the lock's queue.
    Queued {
        /// The acquisition.
        op: u64,
    },
    /// The acquire is about to return, and goes by the claim of this number in the store: a turn
    /// that a task of the same process had before, or a hold that is re-entered, goes by the same
    /// one.
    Under {
        /// The acquisition.
        op: u64,
        /// The claim, unique in the whole history.
        claim: u64,
    },
    /// The acquire has returned a guard.
    Ok {
        /// The acquisition.
        op: u64,
        /// Its fencing token; 0 if its client has none.
        tok: u64,
        /// Until when the guard says that it is valid.
        valid: u64,
    },
    /// The store keeps the lock up to then, also from whoever waits when the process of the guard
    /// has died: it has a shortest time.
    Least {
        /// The acquisition.
        op: u64,
        /// Until when, at the latest.
        until: u64,
    },
    /// The acquire has returned without a guard, and certainly took nothing: the lock was busy, or
    /// did not become free in time.
    Fail {
        /// The acquisition.
        op: u64,
        /// The refusal gives another holder or waiter as its reason.
        busy: bool,
    },
    /// The acquire has returned with an unknown result, or its caller has left: it may still take
    /// the lock for a while.
    Info {
        /// The acquisition.
        op: u64,
    },
    /// The guard says that it is valid.
    Use {
        /// The acquisition.
        op: u64,
        /// Until when, if nothing is renewed any more.
        valid: u64,
    },
    /// An exclusive hold is about to be made a shared one.
    Downgrade {
        /// The acquisition.
        op: u64,
    },
    /// A guard is about to be released, or dropped.
    Release {
        /// The acquisition.
        op: u64,
        /// The guard was dropped, so no task waits for the release.
        dropped: bool,
    },
    /// The store has confirmed the release.
    Released {
        /// The acquisition.
        op: u64,
    },
    /// The release has returned without a confirmation.
    Unreleased {
        /// The acquisition.
        op: u64,
    },
    /// The guard was reported lost. The client's own release is no loss.
    Lost {
        /// The acquisition.
        op: u64,
        /// The reason given.
        why: String,
        /// A thread beside the working one heard of it. It continues while the working one is
        /// blocked.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        aside: bool,
    },
    /// The resource has accepted a write.
    Accept {
        /// The acquisition.
        op: u64,
        /// The lock that protects the resource.
        lock: String,
        /// The token that came with the write.
        tok: u64,
    },
    /// The resource has refused a write because of its token.
    Reject {
        /// The acquisition.
        op: u64,
        /// The lock that protects the resource.
        lock: String,
        /// The token that came with the write.
        tok: u64,
    },
    /// An observer of an election has seen a leader.
    Observed {
        /// The observer's number.
        op: u64,
        /// The election's name.
        lock: String,
        /// The leader's token.
        tok: u64,
    },
    /// A fault begins.
    Fault {
        /// Its number.
        id: u64,
        /// Its kind.
        kind: String,
        /// The promise that does not hold under it.
        breaks: Breaks,
        /// The lock that it concerns, if it is one only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lock: Option<String>,
    },
    /// A fault has ended.
    Healed {
        /// Its number.
        id: u64,
    },
    /// A process was killed.
    Killed {
        /// Its number.
        target: u64,
    },
    /// This process did not run, or its runtime was blocked, for so long up to now.
    Stall {
        /// Nanoseconds.
        ns: u64,
        /// It was the thread beside the one that works that did not run.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        aside: bool,
    },
    /// The amount of a resource that this process uses.
    Gauge {
        /// Of what.
        name: String,
        /// How much.
        value: u64,
        /// It is the baseline, with which later values are compared.
        baseline: bool,
    },
    /// The number of records that the store still has after all clients have ended and all leases
    /// have run out.
    Kv {
        /// The kind of record: keys, leases, nodes.
        name: String,
        /// How many.
        left: u64,
        /// The number that is allowed.
        allowed: u64,
    },
    /// The history is complete.
    End,
}

/// The mode of an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Nobody else.
    Exclusive,
    /// Exclusive, and observers are told of the holder.
    Leader,
    /// Other readers.
    Shared,
    /// `n` of `of` permits.
    Permits {
        /// How many.
        n: u32,
        /// The number of all permits.
        of: u32,
    },
}

impl Mode {
    /// Returns whether no other client may hold beside it.
    #[must_use]
    pub fn is_exclusive(self) -> bool {
        matches!(self, Mode::Exclusive | Mode::Leader)
    }

    /// Returns whether these two never hold at once. Permits are counted instead.
    pub(crate) fn excludes(self, other: Mode) -> bool {
        use Mode::{Permits, Shared};
        !matches!(
            (self, other),
            (Shared, Shared) | (Permits { .. }, Permits { .. })
        )
    }
}

/// The way in which an acquisition waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Not at all. With a deadline: until then, but with no place in the queue by which anybody
    /// could expect it to be served, as it takes this lock with another.
    Try,
    /// In the order of the queue.
    Fair,
    /// Tasks of one process may pass the lock on among themselves.
    Fast,
}

/// The promise that does not hold under a fault, and for locks that were acquired before the fault
/// had ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Breaks {
    /// Everything is promised, except that somebody is served soon.
    #[default]
    Nothing,
    /// Two holders are possible, until the guards of before have run out; tokens still rise.
    Exclusion,
    /// Two holders are possible, and tokens may begin anew.
    Order,
}

/// The greatest delays that are allowed, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Limits {
    /// The longest time that a free lock may have a waiter.
    pub wake: u64,
    /// The longest time that the store may keep the lock of a dead or silent client.
    pub settle: u64,
    /// The greatest delay of a call after its deadline, and of the report of a loss, in a process
    /// that runs.
    pub late: u64,
    /// The longest time that a guard may still claim validity after its hold was ended in the
    /// store, by hand or by a loss of data.
    #[serde(default)]
    pub lease: u64,
}

impl Default for Limits {
    /// 250 ms to wake a waiter, 12 s to settle, 50 ms late, leases of 10 s.
    fn default() -> Limits {
        Limits {
            wake: 250_000_000,
            settle: 12_000_000_000,
            late: 50_000_000,
            lease: 10_000_000_000,
        }
    }
}
