//! The stores of a campaign, and what is different about each.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use leasehold_chaos::Limits;
use serde::{Deserialize, Serialize};

/// The numbers of naive clients, and of the faults that concern them only, begin here.
pub(crate) const NAIVE_FROM: u64 = 1_000_000;

/// How many times as long as usual leases are.
static TIMES: AtomicU32 = AtomicU32::new(1);
/// How long leases are, at least, in the last part of a long campaign.
const LONG: Duration = Duration::from_secs(8);

/// From here on leases are so many times as long. What a claim leaves behind blocks others for a lease, and shows only if that is longer
/// than a busy machine may take to serve a waiter.
pub(crate) fn lengthen(times: u32) {
    TIMES.store(times, Ordering::Relaxed);
}

pub(crate) fn times() -> u32 {
    TIMES.load(Ordering::Relaxed)
}

/// Whether a run loses data. Otherwise what there is of these is there: steps of clocks, and users. Not both: after a step back a loss takes
/// more than the store promises otherwise, and who has lost its users lets nobody in. It is by the seed, and in the part of a run that has
/// long leases the other way round.
pub(crate) fn loses_data(seed: u64) -> bool {
    seed.is_multiple_of(2) == (times() == 1)
}

/// A store, with servers of the campaign's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
    Redis,
    Redlock,
    /// The list of nodes changes again and again, and many processes go by it.
    RedlockNodes,
    Etcd,
    EtcdCluster,
    ZooKeeper,
    Ensemble,
    Sentinel,
    Cluster,
    Postgres,
    /// The same behind a pooler in transaction mode. Waiters poll.
    PgBouncer,
    /// A primary and a standby, which is promoted while the primary lives on.
    Pair,
}

impl Kind {
    pub(crate) const ALL: [Kind; 14] = [
        Kind::Memory,
        Kind::Sqlite,
        Kind::Redis,
        Kind::Redlock,
        Kind::RedlockNodes,
        Kind::Etcd,
        Kind::EtcdCluster,
        Kind::ZooKeeper,
        Kind::Ensemble,
        Kind::Sentinel,
        Kind::Cluster,
        Kind::Postgres,
        Kind::PgBouncer,
        Kind::Pair,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Sqlite => "sqlite",
            Kind::Redis => "redis",
            Kind::Redlock => "redlock",
            Kind::RedlockNodes => "redlock-nodes",
            Kind::Etcd => "etcd",
            Kind::EtcdCluster => "etcd-3",
            Kind::ZooKeeper => "zookeeper",
            Kind::Ensemble => "zookeeper-3",
            Kind::Sentinel => "sentinel",
            Kind::Cluster => "cluster",
            Kind::Postgres => "postgres",
            Kind::PgBouncer => "pgbouncer",
            Kind::Pair => "postgres-2",
        }
    }

    /// Short, so that much happens; not much longer than the shortest that the store takes.
    pub(crate) fn ttl(self) -> Duration {
        times() * self.shortest()
    }

    fn shortest(self) -> Duration {
        Duration::from_millis(match self {
            Kind::Memory => 300,
            Kind::Sqlite => 400,
            Kind::Redis => 500,
            Kind::Redlock | Kind::RedlockNodes => 700,
            Kind::Etcd | Kind::EtcdCluster => 2000,
            Kind::ZooKeeper | Kind::Ensemble => 1200,
            Kind::Sentinel | Kind::Cluster => 1000,
            Kind::Postgres | Kind::PgBouncer | Kind::Pair => 1000,
        })
    }

    /// How many times as long leases must be so that what is left behind shows.
    pub(crate) fn many(self) -> u32 {
        LONG.div_duration_f64(self.shortest()).ceil() as u32
    }

    /// How long after a death, or after the end of a fault, the store may keep what a client has left: twice the lease,
    /// and the time in which clients notice that connections are dead and make new ones.
    pub(crate) fn settle(self) -> Duration {
        2 * self.ttl() + Duration::from_secs(5)
    }

    /// How many milliseconds beyond its lease a dead client may be in the way, as the store says; nothing, if its death is seen at once.
    pub(crate) fn recovery(self) -> Option<u64> {
        match self {
            Kind::Sqlite => None,
            Kind::Memory => Some(5),
            Kind::Redis | Kind::Sentinel | Kind::Cluster => Some(200),
            Kind::Postgres | Kind::PgBouncer | Kind::Pair => Some(250),
            Kind::Redlock | Kind::RedlockNodes => Some(500),
            Kind::Etcd | Kind::EtcdCluster => Some(2000),
            Kind::ZooKeeper | Kind::Ensemble => Some(4000),
        }
    }

    /// For how long a dead client may be in the way.
    pub(crate) fn in_the_way(self) -> Duration {
        self.recovery().map_or(Duration::ZERO, |beyond| {
            self.ttl() + Duration::from_millis(beyond)
        })
    }

    /// How late things may be while the machine is busy with other things, too. Stalls of a client's process do not count.
    pub(crate) fn limits(self) -> Limits {
        let mut limits = Limits::default();
        limits.settle = nanos(self.settle());
        limits.wake = nanos(Duration::from_secs(3));
        limits.late = nanos(Duration::from_millis(300));
        limits.lease = nanos(self.ttl() + Duration::from_secs(1));
        limits
    }

    /// Whether there are semaphores and fair waiters.
    pub(crate) fn is_complete(self) -> bool {
        !matches!(self, Kind::Redlock | Kind::RedlockNodes)
    }

    /// How many client processes there are: what is in memory has one.
    pub(crate) fn clients(self, seed: u64) -> u64 {
        if self == Kind::Memory {
            1
        } else {
            3 + u64::from(self.has_foreign(seed))
        }
    }

    /// How many further client processes there are, each with one task.
    pub(crate) fn further(self) -> u64 {
        if self == Kind::RedlockNodes { 17 } else { 0 }
    }

    /// How many tasks each of the first clients has.
    pub(crate) fn tasks(self) -> u64 {
        if self == Kind::RedlockNodes { 2 } else { 8 }
    }

    /// Whether the command runs programs: not where the store is in one process, or where all clients are started anew with another list of
    /// nodes, which programs that the command runs would outlive, and not where a program that is started while it reaches only a former primary
    /// cannot know that.
    pub(crate) fn runs_commands(self) -> bool {
        !matches!(self, Kind::Memory | Kind::RedlockNodes | Kind::Pair)
    }

    /// Whether the URL has to name the identity of the store: a running client does not recognize another one without it.
    pub(crate) fn needs_pin(self) -> bool {
        self == Kind::Redis
    }

    /// Whether a client of another library is beside ours, the last of them. Where a clock is stepped back, what it leaves behind on Redis
    /// stays for as long as that was.
    pub(crate) fn has_foreign(self, seed: u64) -> bool {
        match self {
            Kind::Redis => loses_data(seed),
            Kind::Etcd | Kind::EtcdCluster | Kind::ZooKeeper | Kind::Ensemble => true,
            _ => false,
        }
    }

    /// How many faults are made at a time, in different processes.
    pub(crate) fn at_once(self) -> usize {
        match self {
            Kind::Memory => 1,
            Kind::EtcdCluster | Kind::Ensemble => 5,
            _ => 4,
        }
    }

    /// Whether several servers are one store, of which most must be there.
    pub(crate) fn is_several(self) -> bool {
        matches!(self, Kind::EtcdCluster | Kind::Ensemble)
    }

    /// Whether some seconds show something: more is too long for each test.
    pub(crate) fn is_quick(self) -> bool {
        matches!(
            self,
            Kind::Memory | Kind::Sqlite | Kind::Redis | Kind::Redlock | Kind::Postgres
        )
    }

    /// Whether the locks are in a database, where transactions of programs are.
    pub(crate) fn is_database(self) -> bool {
        matches!(self, Kind::Postgres | Kind::PgBouncer)
    }

    /// Whether leases go by the wall clock of their server, which is the machine's.
    pub(crate) fn is_by_wall_clock(self) -> bool {
        use Kind::{Cluster, Pair, PgBouncer, Postgres, Redis, Redlock, RedlockNodes, Sentinel};
        matches!(
            self,
            Redis | Redlock | RedlockNodes | Sentinel | Cluster | Postgres | PgBouncer | Pair
        )
    }

    /// How long a client's session may outlive it beside its leases: in it ZooKeeper's clients ask what no lease depends on.
    pub(crate) fn leaves(self) -> Duration {
        match self {
            Kind::ZooKeeper | Kind::Ensemble => Duration::from_secs(12),
            _ => Duration::ZERO,
        }
    }
}

pub(crate) fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}
