//! The servers of each store, the promises that do not hold under a fault, and the time limits.

use std::sync::Arc;

use leasehold_chaos::{Breaks, Limits};

use crate::etcd::world::Cluster;
use crate::kind::{Kind, Own};
use crate::network::Network;
use crate::plan::{Fault, MS, Plan, Wrong};
use crate::redis::Redis;
use crate::servers::{Servers, Setting};
use crate::simple::Simple;
use crate::zookeeper::world::Servers as ZooKeeper;

impl Kind {
    /// Starts the store's servers.
    pub(crate) fn start(self, network: &Network, setting: &Setting) -> Arc<dyn Servers> {
        match self {
            Kind::Redis | Kind::Redlock | Kind::Redlock5 => {
                Arc::new(Redis::new(self, network, setting))
            }
            Kind::Simple => Arc::new(Simple::new(network.clone(), setting.polls)),
            Kind::ZooKeeper | Kind::ZooKeeper3 => Arc::new(ZooKeeper::new(self, network, setting)),
            Kind::Etcd | Kind::Etcd3 => {
                Arc::new(Cluster::new(setting.seed, self.servers(), network))
            }
        }
    }

    /// The promise that does not hold under a fault. The stores' pages say so.
    pub(crate) fn breaks(self, plan: &Plan, wrong: &Wrong) -> Breaks {
        if (self.is_etcd() || self == Kind::ZooKeeper3) && matches!(wrong, Wrong::Wipe(_)) {
            // Here the fault is a member that is away.
            return Breaks::Nothing;
        }
        // An eviction raises the tokens, far above any clock.
        let ahead =
            |what: &Wrong| matches!(what, Wrong::Own(_, Own::ClockStep(_)) | Wrong::Evict(_));
        let ahead = plan.faults.iter().any(|fault| ahead(&fault.what)) && self != Kind::Simple;
        match wrong {
            // Tokens are not below a server's clock, and may be ahead of it. ZooKeeper's tokens are
            // the numbers of its transactions.
            Wrong::Wipe(_) | Wrong::Own(_, Own::Restore)
                if ahead || !self.is_complete() || self.is_zookeeper() =>
            {
                Breaks::Order
            }
            Wrong::Wipe(_) | Wrong::Evict(_) | Wrong::Delete(_) => Breaks::Exclusion,
            Wrong::Own(_, Own::Restore | Own::ClockStep(_) | Own::Expire) => Breaks::Exclusion,
            _ => Breaks::Nothing,
        }
    }

    /// Returns whether the servers lose the identity of the store with their data. A client without
    /// an identity in its URL goes on with Redis nevertheless.
    pub(crate) fn loses_identity(self, plan: &Plan) -> bool {
        let wipes = |fault: &Fault| matches!(fault.what, Wrong::Wipe(_));
        self == Kind::ZooKeeper && plan.faults.iter().any(wipes)
    }

    /// The time limits of this store under this plan.
    pub(crate) fn limits(self, plan: &Plan) -> Limits {
        let ttl = plan.ttl.as_nanos() as u64;
        let mut limits = Limits::default();
        // If every message arrives, nothing has to wait for the end of a lease.
        let waits = if plan.faults.is_empty() { 0 } else { ttl };
        // After a fault the clients of servers are slow to connect again.
        let connects = if self == Kind::Simple || plan.faults.is_empty() {
            0
        } else {
            1_500 * MS
        };
        limits.wake = 3 * waits / 2 + 500 * MS + connects;
        // A claim that was given up while its client connects is still sent, and then withdrawn.
        let is_quick = self == Kind::Simple && plan.faults.is_empty();
        limits.settle = 2 * waits + if is_quick { 500 * MS } else { 2_000 * MS };
        // A call with a limit takes at most 40 ms beyond it for a last request. Its timer rounds up
        // to a millisecond, and a turn takes up to 5 ms. The rest is a margin.
        limits.late = 60 * MS * u64::from(self.scale());
        limits.lease = ttl + 500 * MS;
        if self.is_slow() {
            limits.wake += 500 * MS;
            limits.lease += 500 * MS;
        }
        if self.is_zookeeper() {
            // The first claim of a TTL opens a session, and the first claim of all makes the
            // folders: a dozen rounds of up to 0.3 s, most of them much shorter.
            limits.wake += 1_000 * MS;
        }
        if self.is_zookeeper() && !plan.faults.is_empty() {
            // A new leader gives each session its whole time again, and a session ends up to two
            // ticks late.
            (limits.wake, limits.settle) = (limits.wake + 2 * ttl, limits.settle + 2 * ttl);
        }
        if self.is_etcd() && !plan.faults.is_empty() {
            // A new leader adds an election to each lease, which ends half a second late. A dead
            // stream is noticed after seven seconds.
            limits.wake += 10_000 * MS;
            limits.settle += 11_500 * MS;
        }
        limits
    }
}
