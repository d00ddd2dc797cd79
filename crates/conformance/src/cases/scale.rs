//! Does it stay as it is with very many: waiters, clients, names, locks, cycles? A part of each number always, all of it with
//! `LEASEHOLD_CAMPAIGN=1`. What takes long is not stuck as long as it goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::seam::Moment;
use leasehold_core::{Error, ErrorKind, Guard, Lock, Owner, Result, Store};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::cases::protected::Protected;
use crate::context::{LONG, TestContext, campaign, expect_kind, give_back, pause, within};
use crate::harness::Need;

/// A lease so long that no poll and no renewal can do the work of a notification.
const MINUTE: Duration = Duration::from_secs(60);
/// How long the next of many may take.
const NEXT: Duration = Duration::from_secs(30);
/// How many tasks of a case ask at the same time.
const AT_ONCE: usize = 64;
/// Tasks and entries that may be there beside those that were there before: a session, a heartbeat, a connection's own.
const SLACK: usize = 8;

/// Waits until so many stand in the queue for "a", as long as more of them come: a refusal counts them, and reads none. Where a store
/// keeps no order, they wait inside of their client, or for the next poll.
async fn all_stand(ctx: &TestContext, observer: &Store, waiters: usize, guard: &Guard) {
    if ctx.harness().capabilities().lack(&[Need::Fair]).is_some() {
        return;
    }
    let mut most = 0;
    while most < waiters {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(guard.is_valid(), "lost beside {most} waiters: {:?}", guard.check());
        let answer = observer.lock("a").try_acquire().await;
        // Thousands who come at the same time may keep others from the store for a while, longer than its lease, too.
        if answer.as_ref().is_err_and(|e| matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous)) {
            continue;
        }
        let refused = expect_kind(answer, ErrorKind::Contended);
        let stand = refused.into_contention().ok().and_then(|who| who.waiters).unwrap_or(0);
        if stand > most {
            most = stand;
            ctx.step();
        }
    }
}

/// Waits until each of these was renewed so often: its end has moved. None may be lost meanwhile.
async fn are_renewed(ctx: &TestContext, guards: &[Guard], lease: Duration, times: usize) {
    let end = |guard: &Guard| Moment::now() + guard.remaining();
    let mut seen: Vec<(Moment, usize)> = guards.iter().map(|guard| (end(guard), 0)).collect();
    while seen.iter().any(|(_, renewals)| *renewals < times) {
        tokio::time::sleep(lease / 30).await;
        let lost: Vec<&Guard> = guards.iter().filter(|guard| !guard.is_valid()).collect();
        assert!(lost.is_empty(), "{} of {} were lost, the first {:?}", lost.len(), guards.len(), lost[0]);
        for ((before, renewals), guard) in seen.iter_mut().zip(guards) {
            let now = end(guard);
            // A third of a lease after the last one; what this computation itself takes is less.
            if now > *before + lease / 8 {
                (*before, *renewals) = (now, *renewals + 1);
                ctx.step();
            }
        }
    }
}

/// Thousands of tasks of one client wait for one name. Its holder, of the same client and with a short lease, is renewed beside
/// them, and gives it back to one of them; each gets its turn, and can give it back.
pub(crate) async fn waiters_of_one_client(ctx: TestContext) {
    let waiters = campaign(1_000, 10_000);
    let ctx = ctx.private_and_short().await;
    let (store, observer) = (ctx.store().await, ctx.store().await);
    // Short beside the waiters' leases.
    let short = ctx.ttl() * 3;
    let guard = store.lock("a").ttl(short).acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..waiters {
        waiting.spawn(cycle(store.lock("a").ttl(MINUTE)));
    }
    all_stand(&ctx, &observer, waiters, &guard).await;
    are_renewed(&ctx, std::slice::from_ref(&guard), short, 2).await;
    give_back(guard).await;
    for served in 0..waiters {
        let what = format!("the next of {waiters} waiters, after {served}");
        within(NEXT, &what, waiting.join_next()).await.unwrap().unwrap().unwrap();
        ctx.step();
    }
    store.close(MINUTE).await.unwrap();
}

/// Thousands of tasks of one client wait, and nothing happens: the store is asked for their renewals, and for nothing else.
pub(crate) async fn idle_waiters_of_one_client(ctx: TestContext) {
    // A third of a lease is what the case waits for.
    let (waiters, lease) = (campaign(500, 10_000), Duration::from_secs(campaign(12, 60) as u64));
    let ctx = ctx.private_and_short().await;
    let (store, observer) = (ctx.store().await.ttl(lease), ctx.store().await);
    let guard = store.lock("a").acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..waiters {
        waiting.spawn(store.lock("a").acquire().into_future());
    }
    all_stand(&ctx, &observer, waiters, &guard).await;
    observer.close(NEXT).await.unwrap();
    let (began, before) = (Moment::now(), ctx.harness().requests().await);
    tokio::time::sleep(lease / 3).await;
    let sent = ctx.harness().requests().await - before;
    // A busy machine takes its time, and whatever is due goes on meanwhile.
    let (spent, harness) = (Moment::now().since(began), ctx.harness());
    let renewals = harness.renewals_of_a_waiter() * waiters as f64 * spent.as_secs_f64() / (lease.as_secs_f64() / 3.0);
    let idle = harness.budget().idle * spent.as_secs_f64();
    harness.tell(&format!("{sent} requests while {waiters} waiters waited for {spent:?}, a third of their lease"));
    let most = renewals + idle + SLACK as f64 * harness.servers() as f64;
    assert!(sent as f64 <= most, "{sent} requests in {spent:?}, and {most:.0} are enough");
    assert!(guard.is_valid() && waiting.try_join_next().is_none());
    // What it takes that all of them leave at once is another question.
    drop((waiting, store));
    give_back(guard).await;
}

/// Dozens of clients wait for one name: each gets it once, alone, with a token of its own, and can give it back.
pub(crate) async fn clients_of_one_name(ctx: TestContext) {
    let clients = campaign(50, 500);
    let ctx = ctx.private().await;
    let (first, observer) = (ctx.store().await, ctx.store().await);
    let protected = Arc::new(Protected::default());
    let guard = first.lock("a").ttl(MINUTE).acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    let mut stores = Vec::new();
    for _ in 0..clients {
        let (store, protected) = (ctx.store().await, protected.clone());
        let lock = store.lock("a").ttl(MINUTE);
        stores.push(store);
        waiting.spawn(async move {
            let guard = lock.acquire().await?;
            protected.write(guard.fencing_token().get()).await;
            give_back(guard).await;
            Ok::<_, Error>(())
        });
    }
    all_stand(&ctx, &observer, clients, &guard).await;
    give_back(guard).await;
    for served in 0..clients {
        let what = format!("the next of {clients} clients, after {served}");
        within(NEXT, &what, waiting.join_next()).await.unwrap().unwrap().unwrap();
        ctx.step();
    }
    assert_eq!(protected.writes(), clients as u64, "a write is lost");
    for store in stores {
        store.close(NEXT).await.unwrap();
        ctx.step();
    }
    ctx.becomes_empty("a").await;
}

/// Does so many of these, some at the same time.
async fn in_parallel<F>(ctx: &TestContext, each: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let (mut under_way, mut done) = (JoinSet::new(), Vec::new());
    for one in each {
        if under_way.len() >= AT_ONCE {
            done.extend(under_way.join_next().await.map(|one| one.unwrap()));
            ctx.step();
        }
        under_way.spawn(one);
    }
    done.extend(under_way.join_all().await);
    done
}

/// Acquires and releases, be it in the background: beside thousands of others an answer may be late.
async fn cycle(lock: Lock) -> Result<()> {
    give_back(lock.acquire().await?).await;
    Ok(())
}

/// Thousands of names are locked once: soon the store has no more than before, whatever ends by itself included. That is also a hold at
/// a server that was too busy to answer the release, while the others did: it ends with its lease.
pub(crate) async fn names_used_once(ctx: TestContext) {
    let names = campaign(5_000, 100_000);
    let ctx = ctx.private().await;
    let store = ctx.store().await.ttl(LONG);
    cycle(store.lock("first")).await.unwrap();
    let before = ctx.harness().contents().await;
    let cycles = (0..names).map(|i| cycle(store.lock(("once", i as u64))));
    in_parallel(&ctx, cycles).await.into_iter().for_each(|cycle| cycle.unwrap());
    let mut least = ctx.harness().contents().await;
    ctx.harness().tell(&format!("{before} entries before {names} names, {least} after"));
    let limit = ctx.harness().forgets_within(names) + LONG + ctx.recovery().await + Duration::from_secs(5);
    let what = format!("{names} names to leave no more than {before} entries and {SLACK}");
    within(limit, &what, async {
        while least > before + SLACK as u64 {
            pause().await;
            let now = ctx.harness().contents().await;
            if now < least {
                least = now;
                ctx.step();
            }
        }
    })
    .await;
    store.close(NEXT).await.unwrap();
}

/// Tasks of this process that have not ended.
fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// What this process has used of all processors.
fn cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// One client takes thousands of locks, loses none of them, and needs no more tasks for them than for one. If they are more than it
/// can keep, it hears of that before it loses anything: as an error of the store, or because renewals are late.
pub(crate) async fn locks_of_one_client(ctx: TestContext) {
    const LEAST: usize = 2_000;
    let locks = campaign(LEAST, 100_000);
    let lease = Duration::from_secs(campaign(10, 30) as u64);
    let ctx = ctx.private_and_short().await;
    let store = ctx.store().await.ttl(lease);
    // What a client makes once is there.
    let first = store.lock("first").acquire().await.unwrap();
    let (before, began) = (tasks(), Moment::now());
    // Each refusal takes a lease of retries, so the first of them says that there are enough.
    let full = Arc::new(AtomicBool::new(false));
    let locked = (0..locks).map(|i| {
        let (taking, full) = (store.lock(("held", i as u64)).acquire(), full.clone());
        async move {
            if full.load(Ordering::Relaxed) {
                return None;
            }
            let taken = taking.await;
            full.fetch_or(taken.is_err(), Ordering::Relaxed);
            Some(taken)
        }
    });
    let (mut guards, mut refused) = (vec![first], Vec::new());
    for taken in in_parallel(&ctx, locked).await.into_iter().flatten() {
        taken.map_or_else(|e| refused.push(e), |guard| guards.push(guard));
    }
    for e in &refused {
        assert!(matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::Unavailable), "{e:?}");
    }
    let (held, took) = (guards.len() - 1, Moment::now().since(began));
    let beyond = refused.first().map(|e| format!("; beyond: {e}")).unwrap_or_default();
    ctx.harness().tell(&format!("one client holds {held} of {locks} locks after {took:.1?}{beyond}"));
    assert!(held >= LEAST, "{held} are held, and then: {:?}", refused.first());
    let (began, spent) = (Moment::now(), cpu_time());
    are_renewed(&ctx, &guards, lease, 2).await;
    let (took, spent) = (Moment::now().since(began), cpu_time() - spent);
    ctx.harness().tell(&format!("{held} locks were renewed twice in {took:.1?}, with {spent:.1?} of CPU"));
    let after = tasks();
    assert!(after <= before + SLACK, "{after} tasks for {locks} locks, {before} for one");
    in_parallel(&ctx, guards.into_iter().map(give_back)).await;
    store.close(MINUTE).await.unwrap();
}

/// The heap once no more tasks are left than before, or nearly so: on a busy machine a node may be thousands of answers late, and
/// each of them is memory until it has come or is given up.
async fn heap_at_rest(ctx: &TestContext, before: usize) -> usize {
    let mut least = ctx.harness().heap();
    for _ in 0..400 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        least = least.min(ctx.harness().heap());
        if tasks() <= before {
            break;
        }
    }
    least
}

/// A client's memory does not grow with what it has done: with cycles of names that are never used again, in turn fair, by turns,
/// shared, of an owner, beside a refused try; and with waits for a local turn that are given up.
pub(crate) async fn memory_of_many_cycles(ctx: TestContext) {
    const WINDOWS: usize = 9;
    let cycles = campaign(1_800, ctx.harness().cycles());
    let window = cycles / WINDOWS;
    let ctx = ctx.private().await;
    let store = ctx.store().await.ttl(MINUTE);
    let shares = ctx.harness().capabilities().lack(&[Need::Shared]).is_none();
    let (owner, kept) = (Owner::new(), store.lock("kept").fast());
    let guard = kept.acquire().await.unwrap();
    let before = tasks();
    let (mut sizes, mut nth) = (Vec::new(), 0);
    for _ in 0..WINDOWS {
        for _ in 0..window {
            nth += 1;
            let name = ("cycle", nth as u64);
            match nth % 6 {
                0 if shares => cycle(store.rw_lock(name).read()).await.unwrap(),
                1 => cycle(store.lock(name).fast()).await.unwrap(),
                2 => cycle(store.lock(name).owner(&owner)).await.unwrap(),
                3 => drop(expect_kind(kept.acquire_timeout(Duration::ZERO).await, ErrorKind::TimedOut)),
                4 => {
                    let guard = store.lock(name).acquire().await.unwrap();
                    expect_kind(store.lock(name).try_acquire().await, ErrorKind::Contended);
                    give_back(guard).await;
                }
                _ => cycle(store.lock(name)).await.unwrap(),
            }
            ctx.step();
        }
        sizes.push(heap_at_rest(&ctx, before).await);
    }
    // Tables and buffers grow and shrink in some windows; what is kept of each cycle is in all of them.
    let mut growths: Vec<i64> = sizes.windows(2).map(|pair| pair[1] as i64 - pair[0] as i64).collect();
    growths.sort_unstable();
    let each = growths[growths.len() / 4] as f64 / window as f64;
    ctx.harness().tell(&format!("{each:.1} bytes more for each of {cycles} cycles; in {} bytes", sizes[WINDOWS - 1]));
    assert!(each < 8.0, "{each} bytes more for each cycle: {growths:?}");
    give_back(guard).await;
    // An answer that nobody needed may still be on its way.
    let ended = async {
        while tasks() > before + SLACK {
            pause().await;
        }
    };
    within(NEXT, "as few tasks as before the cycles", ended).await;
    store.close(NEXT).await.unwrap();
}
