//! Does everything still work with very many waiters, clients, names, locks or cycles? A part of
//! each number is always run, a quarter of this part with `LEASEHOLD_GLANCE=1`, and all of it with
//! `LEASEHOLD_CAMPAIGN=1`. A long case is not stuck as long as it makes progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::backend::Moment;
use leasehold_core::{Error, ErrorKind, Guard, Lock, Owner, Result, Store};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::cases::protected::Protected;
use crate::context::{
    LONG, TestContext, campaign, expect_kind, give_back, is_campaign, pause, within,
};
use crate::harness::Need;

/// A lease so long that no poll and no renewal can do the work of a notification.
const MINUTE: Duration = Duration::from_secs(60);
/// The time that the next of many operations may take.
const NEXT: Duration = Duration::from_secs(30);
/// The number of tasks of a case that ask at the same time.
const AT_ONCE: usize = 64;
/// The number of tasks and entries that may be there in addition to those before: a session, a
/// heartbeat, those of a connection.
const SLACK: usize = 8;

/// Waits until `waiters` claims stand in the queue for "a", as long as more of them come. A refusal
/// gives their number without reading them. On a store without order this is skipped, because they
/// wait inside of their client, or for the next poll.
async fn all_stand(ctx: &TestContext, observer: &Store, waiters: usize, guard: &Guard) {
    if ctx.harness().capabilities().lack(&[Need::Fair]).is_some() {
        return;
    }
    let mut most = 0;
    while most < waiters {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(
            guard.is_valid(),
            "lost beside {most} waiters: {:?}",
            guard.check()
        );
        let answer = observer.lock("a").try_acquire().await;
        // Thousands of claims at the same time may keep other requests from the store for a while,
        // even for longer than a lease.
        if answer
            .as_ref()
            .is_err_and(|e| matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous))
        {
            continue;
        }
        let refused = expect_kind(answer, ErrorKind::Contended);
        let stand = refused
            .into_contention()
            .ok()
            .and_then(|who| who.waiters)
            .unwrap_or(0);
        if stand > most {
            most = stand;
            ctx.step();
        }
    }
}

/// Waits until each of these guards was renewed `times` times, as its end shows. None may be lost
/// meanwhile.
async fn are_renewed(ctx: &TestContext, guards: &[Guard], lease: Duration, times: usize) {
    let end = |guard: &Guard| Moment::now() + guard.remaining();
    let mut seen: Vec<(Moment, usize)> = guards.iter().map(|guard| (end(guard), 0)).collect();
    while seen.iter().any(|(_, renewals)| *renewals < times) {
        tokio::time::sleep(lease / 30).await;
        let lost: Vec<&Guard> = guards.iter().filter(|guard| !guard.is_valid()).collect();
        assert!(
            lost.is_empty(),
            "{} of {} were lost, the first {:?}",
            lost.len(),
            guards.len(),
            lost[0]
        );
        for ((before, renewals), guard) in seen.iter_mut().zip(guards) {
            let now = end(guard);
            // A renewal moves the end by a third of a lease; the inaccuracy of this computation is
            // smaller.
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
    let store = ctx.store().await;
    let observer = ctx.store().await;
    // The lease is short compared with the waiters' leases.
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
        within(NEXT, &what, waiting.join_next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        ctx.step();
    }
    store.close(MINUTE).await.unwrap();
}

/// Thousands of tasks of one client wait, and nothing happens: the store is asked for their renewals, and for nothing else.
pub(crate) async fn idle_waiters_of_one_client(ctx: TestContext) {
    // The case waits for a third of a lease.
    let waiters = if is_campaign() { 10_000 } else { 500 };
    let lease = Duration::from_secs(if is_campaign() { 60 } else { 12 });
    let ctx = ctx.private_and_short().await;
    let store = ctx.store().await.ttl(lease);
    let observer = ctx.store().await;
    let guard = store.lock("a").acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..waiters {
        waiting.spawn(store.lock("a").acquire().into_future());
    }
    all_stand(&ctx, &observer, waiters, &guard).await;
    observer.close(NEXT).await.unwrap();
    let began = Moment::now();
    let before = ctx.harness().requests().await;
    tokio::time::sleep(lease / 3).await;
    let sent = ctx.harness().requests().await - before;
    // On a busy machine this takes longer, and due renewals go on meanwhile.
    let spent = Moment::now().since(began);
    let harness = ctx.harness();
    let renewals = harness.renewals_of_a_waiter() * waiters as f64 * spent.as_secs_f64()
        / (lease.as_secs_f64() / 3.0);
    let idle = harness.budget().idle * spent.as_secs_f64();
    harness.tell(&format!(
        "{sent} requests while {waiters} waiters waited for {spent:?}, a third of their lease"
    ));
    let most = renewals + idle + SLACK as f64 * harness.servers() as f64;
    assert!(
        sent as f64 <= most,
        "{sent} requests in {spent:?}, and {most:.0} are enough"
    );
    assert!(guard.is_valid() && waiting.try_join_next().is_none());
    // The cost of all of them leaving at once is not measured here.
    drop((waiting, store));
    give_back(guard).await;
}

/// Dozens of clients wait for one name: each gets it once, alone, with a token of its own, and can give it back.
pub(crate) async fn clients_of_one_name(ctx: TestContext) {
    let clients = campaign(50, 500);
    let ctx = ctx.private().await;
    let first = ctx.store().await;
    let observer = ctx.store().await;
    let protected = Arc::new(Protected::default());
    let guard = first.lock("a").ttl(MINUTE).acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    let mut stores = Vec::new();
    for _ in 0..clients {
        let store = ctx.store().await;
        let protected = protected.clone();
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
        within(NEXT, &what, waiting.join_next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        ctx.step();
    }
    assert_eq!(protected.writes(), clients as u64, "a write is lost");
    for store in stores {
        store.close(NEXT).await.unwrap();
        ctx.step();
    }
    ctx.becomes_empty("a").await;
}

/// Runs all of these futures, a limited number at the same time.
async fn in_parallel<F>(ctx: &TestContext, each: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let mut under_way = JoinSet::new();
    let mut done = Vec::new();
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

/// Acquires and releases. The release may end in the background, because an answer may be late
/// among thousands of others.
async fn cycle(lock: Lock) -> Result<()> {
    give_back(lock.acquire().await?).await;
    Ok(())
}

/// Thousands of names are locked once: soon the store has no more entries than before, including
/// those that end by themselves. Such an entry may also be a hold at one server that was too busy
/// to answer the release while the others did: it ends with its lease.
pub(crate) async fn names_used_once(ctx: TestContext) {
    let names = campaign(5_000, 100_000);
    let ctx = ctx.private().await;
    let store = ctx.store().await.ttl(LONG);
    cycle(store.lock("first")).await.unwrap();
    let before = ctx.harness().contents().await;
    let cycles = (0..names).map(|i| cycle(store.lock(("once", i as u64))));
    in_parallel(&ctx, cycles)
        .await
        .into_iter()
        .for_each(|cycle| cycle.unwrap());
    let mut least = ctx.harness().contents().await;
    ctx.harness().tell(&format!(
        "{before} entries before {names} names, {least} after"
    ));
    let limit =
        ctx.harness().forgets_within(names) + LONG + ctx.recovery().await + Duration::from_secs(5);
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

/// The processor time that this process has used.
fn cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// One client takes thousands of locks, loses none of them, and needs no more tasks for them than
/// for one. If it cannot keep that many, an acquire fails before any lock is lost: with an error of
/// the store, or because renewals are late.
pub(crate) async fn locks_of_one_client(ctx: TestContext) {
    const LEAST: usize = 2_000;
    let locks = campaign(LEAST, 100_000);
    let least = locks.min(LEAST);
    let lease = Duration::from_secs(if is_campaign() { 30 } else { 10 });
    let ctx = ctx.private_and_short().await;
    let store = ctx.store().await.ttl(lease);
    // The tasks that a client starts only once exist from here on.
    let first = store.lock("first").acquire().await.unwrap();
    let before = tasks();
    let began = Moment::now();
    // Each refusal takes a lease of retries, so the first one ends the attempts.
    let full = Arc::new(AtomicBool::new(false));
    let locked = (0..locks).map(|i| {
        let taking = store.lock(("held", i as u64)).acquire();
        let full = full.clone();
        async move {
            if full.load(Ordering::Relaxed) {
                return None;
            }
            let taken = taking.await;
            full.fetch_or(taken.is_err(), Ordering::Relaxed);
            Some(taken)
        }
    });
    let mut guards = vec![first];
    let mut refused = Vec::new();
    for taken in in_parallel(&ctx, locked).await.into_iter().flatten() {
        taken.map_or_else(|e| refused.push(e), |guard| guards.push(guard));
    }
    for e in &refused {
        assert!(
            matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::Unavailable),
            "{e:?}"
        );
    }
    let held = guards.len() - 1;
    let took = Moment::now().since(began);
    let beyond = refused
        .first()
        .map(|e| format!("; beyond: {e}"))
        .unwrap_or_default();
    ctx.harness().tell(&format!(
        "one client holds {held} of {locks} locks after {took:.1?}{beyond}"
    ));
    assert!(
        held >= least,
        "{held} are held, and then: {:?}",
        refused.first()
    );
    let began = Moment::now();
    let spent = cpu_time();
    are_renewed(&ctx, &guards, lease, 2).await;
    let took = Moment::now().since(began);
    let spent = cpu_time() - spent;
    ctx.harness().tell(&format!(
        "{held} locks were renewed twice in {took:.1?}, with {spent:.1?} of CPU"
    ));
    let after = tasks();
    assert!(
        after <= before + SLACK,
        "{after} tasks for {locks} locks, {before} for one"
    );
    in_parallel(&ctx, guards.into_iter().map(give_back)).await;
    store.close(MINUTE).await.unwrap();
}

/// Returns the heap once hardly more tasks are left than before. On a busy machine a node may be
/// thousands of answers late, and each of them takes memory until it has come or is given up.
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
    // With fewer of them the growth is as great as its error.
    let cycles = match is_campaign() {
        true => ctx.harness().cycles(),
        false => 1_800,
    };
    let window = cycles / WINDOWS;
    let ctx = ctx.private().await;
    let store = ctx.store().await.ttl(MINUTE);
    let shares = ctx.harness().capabilities().lack(&[Need::Shared]).is_none();
    let owner = Owner::new();
    let kept = store.lock("kept").fast();
    let guard = kept.acquire().await.unwrap();
    let before = tasks();
    let mut sizes = Vec::new();
    let mut nth = 0;
    for _ in 0..WINDOWS {
        for _ in 0..window {
            nth += 1;
            let name = ("cycle", nth as u64);
            match nth % 6 {
                0 if shares => cycle(store.rw_lock(name).read()).await.unwrap(),
                1 => cycle(store.lock(name).fast()).await.unwrap(),
                2 => cycle(store.lock(name).owner(&owner)).await.unwrap(),
                3 => drop(expect_kind(
                    kept.acquire_timeout(Duration::ZERO).await,
                    ErrorKind::TimedOut,
                )),
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
    // Tables and buffers grow and shrink in some windows; memory that is kept of each cycle grows
    // in all of them.
    let mut growths: Vec<i64> = sizes
        .windows(2)
        .map(|pair| pair[1] as i64 - pair[0] as i64)
        .collect();
    growths.sort_unstable();
    let each = growths[growths.len() / 4] as f64 / window as f64;
    ctx.harness().tell(&format!(
        "{each:.1} bytes more for each of {cycles} cycles; in {} bytes",
        sizes[WINDOWS - 1]
    ));
    assert!(each < 8.0, "{each} bytes more for each cycle: {growths:?}");
    give_back(guard).await;
    // An answer that no task needs may still be on its way.
    let ended = async {
        while tasks() > before + SLACK {
            pause().await;
        }
    };
    within(NEXT, "as few tasks as before the cycles", ended).await;
    store.close(NEXT).await.unwrap();
}
