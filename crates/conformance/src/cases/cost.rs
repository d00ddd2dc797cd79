//! How many requests does the store need? The server itself counts them.

use std::time::Duration;

use leasehold_core::backend::Moment;
use leasehold_core::{Lock, Store};

use crate::context::{LONG, TestContext, give_back, is_glance, within};

/// Makes the lock by which a task takes the name in its nth turn.
type Take = fn(&Store, usize) -> Lock;

async fn cycles(store: &Store, take: Take, n: usize) {
    for i in 0..n {
        give_back(take(store, i).ttl(LONG).acquire().await.unwrap()).await;
    }
}

fn lock(store: &Store, _: usize) -> Lock {
    store.lock("a")
}

/// Returns the number of requests for each of the `n` operations that `work` does.
async fn each(ctx: &TestContext, n: usize, work: impl Future<Output = ()>) -> f64 {
    let before = ctx.harness().requests().await;
    work.await;
    (ctx.harness().requests().await - before) as f64 / n as f64
}

/// Acquire and release while no other client wants the lock cost exactly as many requests as the
/// store says.
pub(crate) async fn of_an_uncontended_cycle(ctx: TestContext) {
    const CYCLES: usize = 200;
    let ctx = ctx.private().await;
    let store = ctx.store().await;
    let budget = ctx.harness().budget();
    cycles(&store, lock, 3).await; // sessions, scripts and parents are made once
    let each = each(&ctx, CYCLES, cycles(&store, lock, CYCLES)).await;
    ctx.harness()
        .tell(&format!("{each:.2} requests per uncontended cycle"));
    // A store whose server counts pings and heartbeats too has a few more.
    assert!(
        (each - budget.cycle).abs() < 0.2,
        "{each} requests per cycle, and {} were promised",
        budget.cycle
    );
}

/// Returns the number of requests for each hold while `waiters` tasks of four clients wait for one
/// another.
async fn of_each_behind(ctx: &TestContext, waiters: usize, what: &str, take: Take) -> f64 {
    let holds = if is_glance() { 256 } else { 640 };
    let ctx = ctx.private().await;
    let mut stores = Vec::new();
    for _ in 0..4 {
        let store = ctx.store().await;
        cycles(&store, lock, 2).await;
        stores.push(store);
    }
    // The queue is full before it starts to move.
    let guard = stores[0].lock("a").ttl(LONG).acquire().await.unwrap();
    let began = Moment::now();
    let before = ctx.harness().requests().await;
    let tasks: Vec<_> = (0..waiters)
        .map(|i| {
            let store = stores[i % stores.len()].clone();
            tokio::spawn(async move { cycles(&store, take, holds / waiters).await })
        })
        .collect();
    drop(guard);
    for task in tasks {
        within(Duration::from_secs(60), "the hand-overs", task)
            .await
            .unwrap();
    }
    let sent = ctx.harness().requests().await - before;
    // On a busy machine this takes longer, and the idle requests go on meanwhile.
    let idle = ctx.harness().budget().idle
        * stores.len() as f64
        * Moment::now().since(began).as_secs_f64();
    let each = (sent as f64 - idle) / holds as f64;
    ctx.harness().tell(&format!(
        "{each:.2} requests per {what} behind {waiters} waiters"
    ));
    each
}

/// Fails if a hold costs more than `most` requests behind 4 waiters or behind 64.
async fn costs_at_most(ctx: &TestContext, most: f64, what: &str, take: Take) {
    for waiters in [4, 64] {
        let each = of_each_behind(ctx, waiters, what, take).await;
        assert!(
            each <= most,
            "{each} requests per {what} behind {waiters} waiters, and {most} were promised"
        );
    }
}

/// A hand-over costs no more behind 64 waiters than behind 4.
pub(crate) async fn of_a_hand_over(ctx: TestContext) {
    costs_at_most(&ctx, ctx.harness().budget().hand_over, "hand-over", lock).await;
}

/// Readers and writers in turn: a hand-over costs no more behind 64 waiters than behind 4.
pub(crate) async fn of_readers_and_writers(ctx: TestContext) {
    let budget = ctx.harness().budget();
    costs_at_most(
        &ctx,
        budget.hand_over * 1.05,
        "reader or writer",
        |store, i| {
            if i % 2 == 0 {
                store.rw_lock("a").read()
            } else {
                store.rw_lock("a").write()
            }
        },
    )
    .await;
}

/// One and two permits of three in turn: a hand-over costs no more behind 64 waiters than behind 4.
pub(crate) async fn of_permits(ctx: TestContext) {
    let budget = ctx.harness().budget();
    costs_at_most(&ctx, budget.permits, "claim of permits", |store, i| {
        store.semaphore("a", 3).permits(1 + (i % 2) as u32)
    })
    .await;
}

/// Several names are taken with one request, and refused with one.
pub(crate) async fn of_several_names(ctx: TestContext) {
    const NAMES: u64 = 8;
    const CYCLES: usize = 50;
    let ctx = ctx.private().await;
    let store = ctx.store().await;
    let several = store
        .multi_lock((0..NAMES).map(|i| ("several", i)))
        .ttl(LONG);
    several.acquire().await.unwrap().release().await.unwrap(); // sessions, scripts and parents are made once
    let cycle = each(&ctx, CYCLES, async {
        for _ in 0..CYCLES {
            several.acquire().await.unwrap().release().await.unwrap();
        }
    });
    let cycle = cycle.await;
    let _held = store
        .lock(("several", NAMES - 1))
        .ttl(LONG)
        .acquire()
        .await
        .unwrap();
    let refusal = each(&ctx, CYCLES, async {
        for _ in 0..CYCLES {
            several.try_acquire().await.unwrap_err();
        }
    });
    let refusal = refusal.await;
    ctx.harness().tell(&format!(
        "{cycle:.2} requests to take and give back {NAMES} names, {refusal:.2} to be refused them"
    ));
    let release = ctx.harness().budget().cycle - 1.0;
    assert!(
        (cycle - 1.0 - release * NAMES as f64).abs() < 0.2,
        "{cycle} requests for {NAMES} names"
    );
    assert!(
        (refusal - 1.0).abs() < 0.2,
        "{refusal} requests for a refusal"
    );
}

/// Renewals of one client do not cost a request per lock: 100 locks, held for a lease, need no more round trips than a
/// batch each third of it, however the store counts the commands inside.
pub(crate) async fn of_renewals(ctx: TestContext) {
    const LOCKS: u64 = 100;
    let ctx = ctx.private().await;
    let store = ctx.store().await;
    let mut guards = Vec::new();
    for i in 0..LOCKS {
        guards.push(store.lock(("held", i)).acquire().await.unwrap());
    }
    let spent = each(&ctx, 1, tokio::time::sleep(ctx.ttl())).await;
    // Stores that count the commands of a batch one by one: three batches, and two that may fall in early or late.
    let most = (5 * LOCKS + 10) * ctx.harness().servers();
    assert!(
        spent <= most as f64,
        "{spent} requests for {LOCKS} locks in one lease"
    );
    assert!(guards.iter().all(|guard| guard.is_valid()));
    ctx.harness().tell(&format!(
        "{spent} requests to renew {LOCKS} locks for one lease"
    ));
}
