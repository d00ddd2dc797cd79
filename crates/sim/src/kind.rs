//! The stores that have worlds.

/// A store with servers in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Queues with leases, written for the simulation: the code under test is core.
    Simple,
    /// Redis, on one server.
    Redis,
    /// Redlock, on three servers.
    Redlock,
    /// Redlock, on five servers.
    Redlock5,
    /// etcd, of one member.
    Etcd,
    /// etcd, of three members.
    Etcd3,
    /// ZooKeeper, on one server.
    ZooKeeper,
    /// ZooKeeper, on three servers.
    ZooKeeper3,
}

/// Faults of servers that not every store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    /// At the end of the fault, the server has the data again that it had at the beginning.
    Restore,
    /// The server's clock steps by this many nanoseconds.
    ClockStep(i64),
    /// The server knows no script any more.
    ForgetScripts,
    /// The server has no room for more data.
    Full,
    /// No member leads.
    NoLeader,
    /// Another member leads, and the former leader has not heard of it.
    FormerLeader,
    /// Everything before the current revision is compacted.
    Compact,
    /// A member hears nothing of the others, and they hear nothing of it.
    Alone,
    /// A member agrees only to shorter sessions, and has closed all connections.
    Shorter,
    /// Somebody else closes a session.
    Expire,
}

impl Kind {
    /// All stores.
    pub const ALL: [Kind; 8] = [
        Kind::Simple,
        Kind::Redis,
        Kind::Redlock,
        Kind::Redlock5,
        Kind::Etcd,
        Kind::Etcd3,
        Kind::ZooKeeper,
        Kind::ZooKeeper3,
    ];

    /// The store's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Simple => "simple",
            Kind::Redis => "redis",
            Kind::Redlock => "redlock",
            Kind::Redlock5 => "redlock-5",
            Kind::Etcd => "etcd",
            Kind::Etcd3 => "etcd-3",
            Kind::ZooKeeper => "zookeeper",
            Kind::ZooKeeper3 => "zookeeper-3",
        }
    }

    /// The store of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|store| store.name() == name)
    }

    /// The number of servers.
    pub(crate) fn servers(self) -> usize {
        match self {
            Kind::Simple | Kind::Redis | Kind::Etcd | Kind::ZooKeeper => 1,
            Kind::Redlock | Kind::Etcd3 | Kind::ZooKeeper3 => 3,
            Kind::Redlock5 => 5,
        }
    }

    /// Returns whether the store has semaphores and fair waiters.
    pub(crate) fn is_complete(self) -> bool {
        !matches!(self, Kind::Redlock | Kind::Redlock5)
    }

    /// Returns whether its worlds have work that is done once.
    pub(crate) fn does_once(self) -> bool {
        matches!(self, Kind::Simple | Kind::ZooKeeper | Kind::ZooKeeper3)
    }

    /// Returns whether it is etcd, whose leases are whole seconds, and two at least.
    pub(crate) fn is_etcd(self) -> bool {
        matches!(self, Kind::Etcd | Kind::Etcd3)
    }

    /// Returns whether it is ZooKeeper, whose leases are sessions.
    pub(crate) fn is_zookeeper(self) -> bool {
        matches!(self, Kind::ZooKeeper | Kind::ZooKeeper3)
    }

    /// Returns whether the store keeps its promises by rounds of several requests, with a server
    /// that is slow to end leases.
    pub(crate) fn is_slow(self) -> bool {
        self.is_etcd() || self.is_zookeeper()
    }

    /// The factor for all durations, which follows from the store's leases.
    pub(crate) fn scale(self) -> u32 {
        if self.is_slow() { 5 } else { 1 }
    }

    /// Returns whether leaders are observed.
    pub(crate) fn observes(self) -> bool {
        self.is_complete()
    }

    /// The faults that only this store's servers have.
    pub(crate) fn own(self) -> &'static [Own] {
        match self {
            Kind::Simple => &[],
            Kind::Redis | Kind::Redlock | Kind::Redlock5 => &[
                Own::Restore,
                Own::ClockStep(0),
                Own::ForgetScripts,
                Own::ForgetScripts,
                Own::Full,
            ],
            Kind::Etcd => &[Own::Compact],
            Kind::Etcd3 => &[
                Own::NoLeader,
                Own::FormerLeader,
                Own::FormerLeader,
                Own::Compact,
            ],
            Kind::ZooKeeper => &[Own::Shorter, Own::Shorter, Own::Expire, Own::Restore],
            Kind::ZooKeeper3 => &[
                Own::NoLeader,
                Own::Alone,
                Own::Alone,
                Own::Shorter,
                Own::Shorter,
                Own::Expire,
                Own::Restore,
            ],
        }
    }
}
