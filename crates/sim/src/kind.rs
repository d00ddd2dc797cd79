//! The stores of which there are worlds.

/// A store, with servers in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Queues with leases, written for this: what is simulated is core.
    Simple,
    /// Redis, on one server.
    Redis,
    /// Redlock, on three servers.
    Redlock,
    /// Redlock, on five.
    Redlock5,
    /// etcd, of one member.
    Etcd,
    /// etcd, of three.
    Etcd3,
    /// ZooKeeper, one server.
    ZooKeeper,
    /// ZooKeeper, three.
    ZooKeeper3,
}

/// Faults of servers that not every store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    /// At the end of the fault the server has again what it had at its beginning.
    Restore,
    /// Its clock is ahead by so many nanoseconds from now on.
    ClockStep(i64),
    /// It knows no script any more.
    ForgetScripts,
    /// It has no room for more data.
    Full,
    /// There is none of them that leads.
    NoLeader,
    /// Another one leads, and the one of before has not heard of it.
    FormerLeader,
    /// What was before is kept no more.
    Compact,
    /// A member hears nothing of the others, nor they of it.
    Alone,
    /// A member agrees to shorter sessions, and has closed all connections.
    Shorter,
    /// A session is closed by somebody else.
    Expire,
}

impl Kind {
    /// All of them.
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

    /// Its name.
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

    /// How many servers there are.
    pub(crate) fn servers(self) -> usize {
        match self {
            Kind::Simple | Kind::Redis | Kind::Etcd | Kind::ZooKeeper => 1,
            Kind::Redlock | Kind::Etcd3 | Kind::ZooKeeper3 => 3,
            Kind::Redlock5 => 5,
        }
    }

    /// Whether there are semaphores and fair waiters.
    pub(crate) fn is_complete(self) -> bool {
        !matches!(self, Kind::Redlock | Kind::Redlock5)
    }

    /// Whether it is etcd, whose leases are whole seconds, and two at least.
    pub(crate) fn is_etcd(self) -> bool {
        matches!(self, Kind::Etcd | Kind::Etcd3)
    }

    /// Whether it is ZooKeeper, whose leases are sessions.
    pub(crate) fn is_zookeeper(self) -> bool {
        matches!(self, Kind::ZooKeeper | Kind::ZooKeeper3)
    }

    /// Whether what is promised goes by rounds of several requests, and leases by a server that is slow to end them.
    pub(crate) fn is_slow(self) -> bool {
        self.is_etcd() || self.is_zookeeper()
    }

    /// How many times as long everything takes: by its leases.
    pub(crate) fn scale(self) -> u32 {
        if self.is_slow() { 5 } else { 1 }
    }

    /// Whether leaders are observed.
    pub(crate) fn observes(self) -> bool {
        self.is_complete()
    }

    /// The faults of its servers that others do not have.
    pub(crate) fn own(self) -> &'static [Own] {
        match self {
            Kind::Simple => &[],
            Kind::Redis | Kind::Redlock | Kind::Redlock5 => {
                &[Own::Restore, Own::ClockStep(0), Own::ForgetScripts, Own::ForgetScripts, Own::Full]
            }
            Kind::Etcd => &[Own::Compact],
            Kind::Etcd3 => &[Own::NoLeader, Own::FormerLeader, Own::FormerLeader, Own::Compact],
            Kind::ZooKeeper => &[Own::Shorter, Own::Shorter, Own::Expire, Own::Restore],
            Kind::ZooKeeper3 => {
                &[Own::NoLeader, Own::Alone, Own::Alone, Own::Shorter, Own::Shorter, Own::Expire, Own::Restore]
            }
        }
    }
}
