//! How many requests does the store need? Counted by the server itself.

use std::time::Duration;

use leasehold_core::{Options, Store};

use crate::arena::{Arena, within};

/// A lease so long that no renewal falls into a measurement.
fn calm() -> Options {
    Options::default().ttl(Duration::from_secs(20))
}

async fn cycles(store: &Store, n: usize) {
    for _ in 0..n {
        store.lock("a").with(&calm()).acquire().await.unwrap().release().await.unwrap();
    }
}

/// Acquire and release while nobody else wants the lock cost exactly what the store says.
pub(crate) async fn of_an_uncontended_cycle(arena: Arena) {
    const CYCLES: usize = 200;
    let arena = arena.private().await;
    let (store, budget) = (arena.store().await, arena.harness().budget());
    cycles(&store, 3).await; // sessions, scripts and parents are made once
    let before = arena.harness().requests().await;
    cycles(&store, CYCLES).await;
    let each = (arena.harness().requests().await - before) as f64 / CYCLES as f64;
    arena.harness().tell(&format!("{each:.2} requests per uncontended cycle"));
    // A store whose server counts pings and heartbeats too has a few more.
    assert!((each - budget.cycle).abs() < 0.2, "{each} requests per cycle, and {} were promised", budget.cycle);
}

/// A hand-over costs no more behind 64 waiters than behind 4.
pub(crate) async fn of_a_hand_over(arena: Arena) {
    let budget = arena.harness().budget();
    for waiters in [4, 64] {
        const HAND_OVERS: usize = 640;
        let arena = arena.private().await;
        let mut stores = Vec::new();
        for _ in 0..4 {
            let store = arena.store().await;
            cycles(&store, 2).await;
            stores.push(store);
        }
        // The line is full before it starts to move.
        let guard = stores[0].lock("a").with(&calm()).acquire().await.unwrap();
        let before = arena.harness().requests().await;
        let tasks: Vec<_> = (0..waiters)
            .map(|i| {
                let store = stores[i % stores.len()].clone();
                tokio::spawn(async move { cycles(&store, HAND_OVERS / waiters).await })
            })
            .collect();
        drop(guard);
        for task in tasks {
            within(Duration::from_secs(60), "640 hand-overs", task).await.unwrap();
        }
        let each = (arena.harness().requests().await - before) as f64 / HAND_OVERS as f64;
        arena.harness().tell(&format!("{each:.2} requests per hand-over behind {waiters} waiters"));
        assert!(each <= budget.hand_over, "{each} requests per hand-over behind {waiters} waiters");
    }
}

/// Renewals of one client do not cost a request per lock: 100 locks, held for a lease, need no more round trips than a
/// batch each third of it, however the store counts the commands inside.
pub(crate) async fn of_renewals(arena: Arena) {
    const LOCKS: u64 = 100;
    let arena = arena.private().await;
    let store = arena.store().await;
    let mut guards = Vec::new();
    for i in 0..LOCKS {
        guards.push(store.lock(("held", i)).acquire().await.unwrap());
    }
    let before = arena.harness().requests().await;
    tokio::time::sleep(arena.ttl()).await;
    let spent = arena.harness().requests().await - before;
    // Stores that count the commands of a batch one by one: three batches, and two that may fall in early or late.
    assert!(spent <= 5 * LOCKS + 10, "{spent} requests for {LOCKS} locks in one lease");
    assert!(guards.iter().all(|guard| guard.is_valid()));
    arena.harness().tell(&format!("{spent} requests to renew {LOCKS} locks for one lease"));
}
