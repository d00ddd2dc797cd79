//! The matrix of the fence: the ways in which a hold ends, beside the states of the transaction that
//! depends on it. It is the table of `docs/transactions.md`; each store judges its cells with real
//! transactions of its own.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests are tests"
)]

use std::fmt::Write as _;
use std::time::Duration;

use leasehold_core::{Guard, MultiGuard, Owner, Result, Store};

/// How the hold ends while the transaction depends on it.
#[allow(missing_docs, reason = "each is named after what happens")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Release,
    Drop,
    Downgrade,
    Evict,
    Expiry,
    MinHold,
    MultiLock,
    Owner,
    FastTurn,
}

/// What becomes of the transaction.
#[allow(missing_docs, reason = "each is named after what happens")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transaction {
    Open,
    Committing,
    RolledBack,
    Stopped,
    TwoHolds,
}

/// The rows.
pub const EVENTS: [Event; 9] = [
    Event::Release,
    Event::Drop,
    Event::Downgrade,
    Event::Evict,
    Event::Expiry,
    Event::MinHold,
    Event::MultiLock,
    Event::Owner,
    Event::FastTurn,
];

/// The columns.
pub const TRANSACTIONS: [Transaction; 5] = [
    Transaction::Open,
    Transaction::Committing,
    Transaction::RolledBack,
    Transaction::Stopped,
    Transaction::TwoHolds,
];

/// The guards of the hold.
#[derive(Debug)]
pub enum Holds {
    /// The only guard.
    One(Guard),
    /// The guards of an owner that has entered twice.
    Entered(Guard, Guard),
    /// The guards of several names.
    Several(MultiGuard),
}

impl Holds {
    /// Takes this lock as the event needs it.
    pub async fn take(
        store: &Store,
        event: Event,
        name: &str,
        ttl: Duration,
        min_hold: Duration,
        me: &Owner,
    ) -> Holds {
        let lock = store.lock(name).ttl(ttl);
        let lock = match event {
            Event::Downgrade => store.rw_lock(name).ttl(ttl).write(),
            Event::MinHold => lock.min_hold(min_hold),
            Event::MultiLock => {
                let names = [name.to_owned(), format!("{name}, another")];
                let lock = store.multi_lock(names).ttl(ttl);
                return Holds::Several(lock.acquire().await.unwrap());
            }
            Event::Owner => {
                let lock = lock.owner(me);
                let outer = lock.acquire().await.unwrap();
                return Holds::Entered(outer, lock.acquire().await.unwrap());
            }
            Event::FastTurn => lock.fast(),
            _ => lock,
        };
        Holds::One(lock.acquire().await.unwrap())
    }

    /// The guard of this name that goes last.
    pub fn guard(&self, name: &str) -> &Guard {
        match self {
            Holds::One(guard) | Holds::Entered(_, guard) => guard,
            Holds::Several(guards) => guards.get(name).unwrap(),
        }
    }
}

/// Takes the lock for whoever comes next: another client, or another task of the same owner.
pub async fn next(
    event: Event,
    name: &str,
    [first, second]: [&Store; 2],
    me: &Owner,
) -> Result<Guard> {
    match event {
        Event::Downgrade => second.rw_lock(name).read().acquire().await,
        Event::Owner => first.lock(name).owner(me).acquire().await,
        _ => second.lock(name).acquire().await,
    }
}

/// The table of these cells, by row.
pub fn table(cells: &[Vec<&str>]) -> String {
    let mut table = format!("{:12}", "");
    for transaction in TRANSACTIONS {
        write!(table, "{:12}", format!("{transaction:?}")).unwrap();
    }
    for (event, row) in EVENTS.iter().zip(cells) {
        write!(table, "\n{:12}", format!("{event:?}")).unwrap();
        for cell in row {
            write!(table, "{cell:12}").unwrap();
        }
    }
    table
}
