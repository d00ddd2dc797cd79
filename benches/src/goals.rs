//! What the rows are to show, and what one run shows of it.

use crate::metric::{Metric, digits};
use crate::report::{Report, Table};
use crate::rounds::Measured;
use crate::servers::Store;
use crate::spread::Spread;

/// How a figure is read.
#[derive(Clone, Copy)]
enum Read {
    /// As it is.
    Figure,
    /// Without what another figure counts of it, in the same round.
    Without(Metric),
    /// By that of another contender, in the same round.
    Ratio(&'static str),
    /// The other way round: by so much is the rate higher.
    Rate(&'static str),
}

/// Which values are good.
#[derive(Clone, Copy)]
enum Aim {
    AtMost(f64),
    AtLeast(f64),
    /// It is shown beside the others.
    None,
}

pub struct Goal {
    pub title: &'static str,
    pub row: &'static str,
    pub store: Store,
    metric: Metric,
    read: Read,
    /// Whose it is, if not that of the biggest of ours.
    whose: Option<&'static str>,
    aim: Aim,
}

const fn goal(
    title: &'static str,
    row: &'static str,
    store: Store,
    metric: Metric,
    read: Read,
    aim: Aim,
) -> Goal {
    Goal {
        title,
        row,
        store,
        metric,
        read,
        aim,
        whose: None,
    }
}

const fn of(whose: &'static str, goal: Goal) -> Goal {
    Goal {
        whose: Some(whose),
        ..goal
    }
}

use Aim::{AtLeast, AtMost};
use Metric as M;
use Read::{Figure, Rate, Ratio, Without};
use Store::{Etcd, Memory, Postgres, Redis, Redlock, Sqlite, ZooKeeper};

const RAW: &str = "SET, EVALSHA";
const TXN: &str = "Txn, DeleteRange";
const NODE: &str = "create, delete";
const UPDATES: &str = "two UPDATEs";

#[rustfmt::skip]
pub const GOALS: &[Goal] = &[
    goal("Redis: cycle ÷ (SET + EVALSHA), time", "alone", Redis, M::Median, Ratio(RAW), AtMost(1.15)),
    of("two empty scripts", goal("– two empty scripts", "alone", Redis, M::Median, Ratio(RAW), Aim::None)),
    goal("Redis: cycle ÷ raw, pipelined, server CPU", "names", Redis, M::ServerCpu, Ratio(RAW), AtMost(2.5)),
    of("two empty scripts", goal("– two empty scripts", "names", Redis, M::ServerCpu, Ratio(RAW), Aim::None)),
    goal("Redis: renewal of a lock, server CPU", "held", Redis, M::RenewalCpu, Figure, AtMost(4000.0)),
    goal("Redis: calls inside of scripts for a hand-over", "line", Redis, M::Calls, Without(M::Requests), AtMost(17.0)),
    goal("Redis: 1,000 names × 64 tasks, rate ÷ raw", "names", Redis, M::Time, Rate(RAW), AtLeast(0.6)),
    goal("etcd: 1,000 names × 64 tasks, rate ÷ raw", "names", Etcd, M::Time, Rate(TXN), AtLeast(0.9)),
    goal("ZooKeeper: 1,000 names × 64 tasks, rate ÷ raw", "names", ZooKeeper, M::Time, Rate(NODE), AtLeast(0.95)),
    goal("etcd: cycle ÷ (Txn + DeleteRange), time", "alone", Etcd, M::Median, Ratio(TXN), Aim::None),
    goal("ZooKeeper: cycle ÷ (create + delete), time", "alone", ZooKeeper, M::Median, Ratio(NODE), Aim::None),
    goal("PostgreSQL: cycle ÷ two plain UPDATE transactions, time", "alone", Postgres, M::Median, Ratio(UPDATES), AtMost(1.5)),
    goal("– files on a disk", "alone, on a disk", Postgres, M::Median, Ratio(UPDATES), AtMost(1.5)),
    goal("PostgreSQL: 1,000 names × 64 tasks, rate ÷ raw", "names", Postgres, M::Time, Rate(UPDATES), Aim::None),
    goal("SQLite: cycle ÷ two transactions, time", "alone", Sqlite, M::Median, Ratio("two transactions"), AtMost(2.5)),
    goal("memory: cycle, time", "alone", Memory, M::Median, Figure, AtMost(1000.0)),
    goal("memory: cycle, allocations", "alone", Memory, M::Allocations, Figure, AtMost(5.0)),
    goal("Redlock × 5: cycle ÷ raw, time", "alone", Redlock, M::Median, Ratio(RAW), AtMost(1.1)),
    goal("Redis: gap ÷ cold PING", "gap", Redis, M::Gap, Ratio("cold PING"), AtMost(2.2)),
    goal("etcd: gap ÷ hot delete", "gap", Etcd, M::Gap, Ratio("DeleteRange"), AtMost(1.8)),
    goal("– ÷ cold delete", "gap", Etcd, M::Gap, Ratio("cold DeleteRange"), Aim::None),
    goal("– ÷ hot delete, files on a disk", "gap, on a disk", Etcd, M::Gap, Ratio("DeleteRange"), AtMost(1.8)),
    goal("ZooKeeper: gap ÷ hot delete", "gap", ZooKeeper, M::Gap, Ratio("delete"), AtMost(2.1)),
    goal("– ÷ cold delete", "gap", ZooKeeper, M::Gap, Ratio("cold delete"), Aim::None),
    goal("– ÷ hot delete, files on a disk", "gap, on a disk", ZooKeeper, M::Gap, Ratio("delete"), AtMost(2.1)),
    goal("PostgreSQL: gap ÷ hot UPDATE", "gap", Postgres, M::Gap, Ratio("UPDATE"), Aim::None),
    goal("– ÷ cold UPDATE", "gap", Postgres, M::Gap, Ratio("cold UPDATE"), Aim::None),
    goal("Redis: requests of a hand-over, 64 clients", "gap", Redis, M::Requests, Figure, AtMost(2.0)),
    goal("etcd: requests of a hand-over, 64 clients", "gap", Etcd, M::Requests, Figure, AtMost(2.1)),
    goal("ZooKeeper: requests of a hand-over, 64 clients", "gap", ZooKeeper, M::Requests, Figure, AtMost(4.0)),
    goal("PostgreSQL: requests of a hand-over, 64 clients", "gap", Postgres, M::Requests, Figure, AtMost(3.1)),
    of("100 clients", goal("etcd: bytes of a hand-over, 100 clients", "clients", Etcd, M::Bytes, Figure, AtMost(1500.0))),
    of("1000 waiters", goal("ZooKeeper: bytes/s of 1,000 idle waiters", "idle", ZooKeeper, M::Bytes, Figure, AtMost(20e3))),
    goal("SQLite: locks held, client CPU in 30 s", "held", Sqlite, M::ClientCpu, Figure, AtMost(50e6)),
    goal("Redis: locks held, client CPU in 30 s", "held", Redis, M::ClientCpu, Figure, AtMost(50e6)),
    goal("etcd: locks held, client CPU in 30 s", "held", Etcd, M::ClientCpu, Figure, AtMost(50e6)),
    goal("ZooKeeper: locks held, client CPU in 30 s", "held", ZooKeeper, M::ClientCpu, Figure, AtMost(50e6)),
    goal("PostgreSQL: locks held, client CPU in 30 s", "held", Postgres, M::ClientCpu, Figure, AtMost(50e6)),
    goal("SQLite: heap for each lock that is held", "held", Sqlite, M::Heap, Figure, AtMost(1000.0)),
    goal("Redis: heap for each lock that is held", "held", Redis, M::Heap, Figure, AtMost(1000.0)),
    goal("etcd: heap for each lock that is held", "held", Etcd, M::Heap, Figure, AtMost(1000.0)),
    goal("ZooKeeper: heap for each lock that is held", "held", ZooKeeper, M::Heap, Figure, AtMost(1000.0)),
    goal("PostgreSQL: heap for each lock that is held", "held", Postgres, M::Heap, Figure, AtMost(1000.0)),
    goal("fast, 64 tasks: rate ÷ rslock", "fast", Redis, M::Time, Rate("rslock"), AtLeast(40.0)),
    goal("– of turns within the window", "fast", Redis, M::Turn, Rate("rslock"), Aim::None),
    goal("fast, 4 processes: rate ÷ rslock", "processes", Redis, M::Time, Rate("rslock"), AtLeast(30.0)),
    goal("– of turns within the window", "processes", Redis, M::Turn, Rate("rslock"), Aim::None),
    goal("– of an equal share, the least", "processes", Redis, M::LeastShare, Figure, AtLeast(0.8)),
    goal("– of an equal share, the least, on SQLite", "processes", Sqlite, M::LeastShare, Figure, AtLeast(0.8)),
    goal("– of an equal share, the least, on etcd", "processes", Etcd, M::LeastShare, Figure, AtLeast(0.8)),
    goal("– of an equal share, the least, on ZooKeeper", "processes", ZooKeeper, M::LeastShare, Figure, AtLeast(0.8)),
    goal("– of an equal share, the least, on PostgreSQL", "processes", Postgres, M::LeastShare, Figure, AtLeast(0.8)),
    goal("Redis: idle waiters, requests/s", "idle", Redis, M::Requests, Figure, Aim::None),
    goal("etcd: idle waiters, requests/s", "idle", Etcd, M::Requests, Figure, Aim::None),
    goal("ZooKeeper: idle waiters, requests/s", "idle", ZooKeeper, M::Requests, Figure, Aim::None),
    goal("PostgreSQL: idle waiters, requests/s", "idle", Postgres, M::Requests, Figure, Aim::None),
    goal("Redis: refused tries, rate ÷ SET NX", "refused", Redis, M::Time, Rate("SET NX"), Aim::None),
    goal("etcd: refused tries, rate ÷ Txn", "refused", Etcd, M::Time, Rate("Txn"), Aim::None),
    goal("ZooKeeper: refused tries, rate ÷ create", "refused", ZooKeeper, M::Time, Rate("create"), Aim::None),
    goal("PostgreSQL: refused tries, rate ÷ UPDATE", "refused", Postgres, M::Time, Rate("UPDATE"), Aim::None),
    goal("`leasehold run x -- true` ÷ `flock f true`", "command", Sqlite, M::Median, Ratio("flock"), AtMost(3.0)),
    goal("– system calls", "command", Sqlite, M::SystemCalls, Figure, AtMost(300.0)),
    goal("– size of the program", "command", Sqlite, M::FileSize, Figure, AtMost(15e6)),
    goal("Redis: keys left for each name used once", "touched", Redis, M::KeysLeft, Figure, AtMost(0.0)),
    goal("SQLite: keys left for each name used once", "touched", Sqlite, M::KeysLeft, Figure, AtMost(0.0)),
    goal("etcd: keys left for each name used once", "touched", Etcd, M::KeysLeft, Figure, AtMost(0.0)),
    goal("ZooKeeper: keys left for each name used once", "touched", ZooKeeper, M::KeysLeft, Figure, AtMost(0.0)),
];

impl Goal {
    /// What one run shows. `None`: this was not measured.
    pub fn of(&self, report: &Report) -> Option<Spread> {
        let table = report.table(self.row, self.store)?;
        let ends_so = |whose: &str| table.contenders.iter().find(|it| it.label.ends_with(whose));
        let own = self.whose.map_or_else(|| table.own(), ends_so)?;
        match self.read {
            Figure => own.figures.get(&self.metric).copied(),
            Without(part) => own.without(self.metric, part),
            Ratio(other) => ratio(table, own, other, self.metric),
            Rate(other) => ratio(table, own, other, self.metric).map(Spread::inverse),
        }
    }

    /// `None`: there is no aim.
    pub fn is_met(&self, value: f64) -> Option<bool> {
        // As it is written: a figure that reads like the limit keeps it.
        match self.aim {
            AtMost(most) => Some(value <= most * 1.005),
            AtLeast(least) => Some(value >= least * 0.995),
            Aim::None => None,
        }
    }

    /// 1 is the aim, and less is better.
    pub fn distance(&self, value: f64) -> Option<f64> {
        match self.aim {
            AtMost(most) if most > 0.0 => Some(value / most),
            AtLeast(least) => Some(least / value),
            _ => None,
        }
    }

    pub fn aim(&self) -> String {
        match self.aim {
            AtMost(most) => format!("≤ {}", self.shown(most)),
            AtLeast(least) => format!("≥ {}", self.shown(least)),
            Aim::None => String::new(),
        }
    }

    /// A value as people read it.
    pub fn shown(&self, value: f64) -> String {
        match self.read {
            Figure | Without(_) => self.metric.shown(value),
            Ratio(_) | Rate(_) => format!("{} ×", digits(value)),
        }
    }
}

/// In the same rounds. Of a run whose rounds are not known it is what was written down, which is to the first.
fn ratio(table: &Table, own: &Measured, other: &str, metric: Metric) -> Option<Spread> {
    let at = table.contenders.iter().position(|it| it.label == other)?;
    let known = own.ratio(metric, &table.contenders[at]);
    known.or_else(|| own.ratios.get(&metric).copied().filter(|_| at == 0))
}
