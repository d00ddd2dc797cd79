//! In which order do waiters get the lock?

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, Claimed, Grant, LeaseRef, Moment, Renewal, WaitPolicy,
};
use leasehold_core::{Error, Store};
use tokio::task::JoinHandle;

use crate::context::{LONG, TestContext, given_back, granted, renewed, taken, waiting, within};

/// P6: fair waiters are served in the order in which their places were taken, over several clients.
pub(crate) async fn is_in_order(ctx: TestContext) {
    let stores = [ctx.store().await, ctx.store().await, ctx.store().await];
    let guard = stores[0].lock("a").acquire().await.unwrap();
    let line = Line::of(&ctx, &stores, 9).await;
    guard.release().await.unwrap();
    line.served_in_order(Duration::from_secs(30)).await;
}

/// Tasks that wait for one lock, one behind the other.
struct Line {
    tasks: Vec<JoinHandle<()>>,
    served: Arc<Mutex<Vec<usize>>>,
}

impl Line {
    async fn of(ctx: &TestContext, stores: &[Store], length: usize) -> Line {
        let mut tasks = Vec::new();
        let served = Arc::new(Mutex::new(Vec::new()));
        for i in 0..length {
            let lock = stores[i % stores.len()].lock("a").fair();
            let served = served.clone();
            tasks.push(tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                served.lock().unwrap().push(i);
                guard.release().await.unwrap();
            }));
            ctx.queue_reaches(&stores[0], "a", i + 1).await;
        }
        Line { tasks, served }
    }

    async fn served_in_order(self, limit: Duration) {
        let length = self.tasks.len();
        for task in self.tasks {
            within(limit, "the queue to be served", task).await.unwrap();
        }
        assert_eq!(
            *self.served.lock().unwrap(),
            (0..length).collect::<Vec<_>>()
        );
    }
}

/// A fast claim at the very moment of a release does not pass a live fair place.
pub(crate) async fn fast_never_passes_fair(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let three = ctx.backend().await;
    let fair = ctx.claim("a", WaitPolicy::Fair);
    let fast = ctx.claim("a", WaitPolicy::Fast);
    let holder = taken(&*one, ctx.claim("a", WaitPolicy::Fair)).await;
    waiting(two.claim(&fair).await);
    waiting(three.claim(&fast).await);
    given_back(&*one, &holder).await;
    let answer = three.claim(&fast).await;
    assert!(
        matches!(answer, Ok(Claimed::Waiting(_))),
        "a fast claim passed a fair place: {answer:?}"
    );
    let turn = taken(&*two, fair).await;
    given_back(&*two, &turn).await;
    three.release(&fast, None).await.unwrap();
}

/// Fast tasks of one client hand the lock to each other without the network, each turn with its own token, and a fair
/// waiter of another client is still served in between (lock cohorting is bounded).
pub(crate) async fn turns_do_not_starve_others(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let stop = Arc::new(AtomicBool::new(false));
    let last = Arc::new(Mutex::new(0));
    let mut busy = Vec::new();
    for _ in 0..4 {
        let lock = one.lock("a").fast();
        let stop = stop.clone();
        let last = last.clone();
        busy.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let guard = lock.acquire().await.unwrap();
                let token = guard.fencing_token().get();
                assert!(
                    token > std::mem::replace(&mut *last.lock().unwrap(), token),
                    "tokens rise over turns"
                );
                drop(guard.release().await);
            }
        }));
    }
    for _ in 0..3 {
        let guard = within(
            ctx.ttl() * 4,
            "a fair waiter behind busy turns",
            two.lock("a").acquire(),
        )
        .await
        .unwrap();
        let token = guard.fencing_token().get();
        assert!(token > std::mem::replace(&mut *last.lock().unwrap(), token));
        guard.release().await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for task in busy {
        within(ctx.ttl() * 4, "the busy tasks to end", task)
            .await
            .unwrap();
    }
    ctx.becomes_empty("a").await;
}

/// S4: a place is kept for longer than its lease by renewals alone, and by repeated claims alone,
/// and stays before one that was taken later.
pub(crate) async fn keeps_its_place(ctx: TestContext) {
    tokio::join!(
        is_kept(&ctx, "by renewing", true),
        is_kept(&ctx, "by claiming again", false)
    );
}

/// Claims again. A store that a busy machine could not reach in time is asked again soon.
async fn still_waits(client: &dyn Backend, claim: &Claim) {
    let answer = client.claim(claim).await;
    if !answer.as_ref().is_err_and(Error::is_retryable) {
        waiting(answer);
    }
}

async fn is_kept(ctx: &TestContext, name: &str, renews: bool) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let three = ctx.backend().await;
    let early = ctx.claim(name, WaitPolicy::Fair);
    let late = ctx.claim(name, WaitPolicy::Fair);
    let held = taken(&*one, ctx.claim(name, WaitPolicy::Fair)).await;
    // Sessions live by renewals too, of anything: each client has something else to renew.
    let second = taken(&*two, ctx.claim(&format!("{name}, two"), WaitPolicy::Fair)).await;
    let third = taken(
        &*three,
        ctx.claim(&format!("{name}, three"), WaitPolicy::Fair),
    )
    .await;
    let place = waiting(two.claim(&early).await).place;
    let early_place = LeaseRef::new(Arc::new(early.clone()), place, None);
    let until = Moment::now() + ctx.ttl() * 3 / 2 + one.guarantees().recovery();
    while Moment::now() < until {
        for (client, kept) in [(&one, &held), (&two, &second), (&three, &third)] {
            is_renewed(&**client, kept, name).await;
        }
        still_waits(&*three, &late).await;
        if renews {
            is_renewed(&*two, &early_place, name).await;
        } else {
            still_waits(&*two, &early).await;
        }
        tokio::time::sleep(ctx.ttl() / 10).await;
    }
    given_back(&*one, &held).await;
    let turn = comes_first(ctx, (&*two, &early), (&*three, &late), name).await;
    two.release(&early, Some(&turn.place)).await.unwrap();
    three.release(&late, None).await.unwrap();
    given_back(&*two, &second).await;
    given_back(&*three, &third).await;
}

async fn is_renewed(client: &dyn Backend, kept: &LeaseRef, how: &str) {
    let answer = renewed(client, kept).await.unwrap();
    assert!(matches!(answer, Renewal::Renewed(_)), "{how}: {answer:?}");
}

/// Claims for both until the first one is granted; fails if the second one is granted before. A
/// client may hear of its turn a moment late.
async fn comes_first(
    ctx: &TestContext,
    (first, early): (&dyn Backend, &Claim),
    (second, late): (&dyn Backend, &Claim),
    name: &str,
) -> Grant {
    within(
        ctx.ttl() * 4 + Duration::from_secs(10),
        &format!("a place that was kept {name}"),
        async {
            loop {
                if let Ok(Claimed::Granted(grant)) = first.claim(early).await {
                    return grant;
                }
                let passed = second.claim(late).await;
                assert!(
                    !matches!(passed, Ok(Claimed::Granted(_))),
                    "a place that was kept {name} is passed"
                );
            }
        },
    )
    .await
}

/// P6, S4: the holder dies; the waiters are served in the order in which they came, as after a
/// release.
pub(crate) async fn is_in_order_after_a_death(ctx: TestContext) {
    let dead = ctx.backend().await;
    let stores = [ctx.store().await, ctx.store().await];
    granted(dead.claim(&ctx.claim("a", WaitPolicy::Fair)).await);
    let line = Line::of(&ctx, &stores, 4).await;
    line.served_in_order(ctx.ttl() * 2 + Duration::from_secs(30))
        .await;
}

/// P5: tasks that try in a loop, and are refused each time, leave the others of their runtime room to run. Some are refused by
/// the store, some by a task of their own process.
pub(crate) async fn is_not_starved_by_refused_tries(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let holder = one.lock("a").ttl(LONG).fast().acquire().await.unwrap();
    // Dropped when the case ends, also by a failure.
    let judge = Arc::new(());
    let (tell, told) = tokio::sync::oneshot::channel();
    let tries = [one.lock("a").ttl(LONG).fast(), two.lock("a").ttl(LONG)];
    let judged = Arc::downgrade(&judge);
    // The tries have a runtime of their own: if they block its threads, the judge still runs.
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        for lock in [&tries, &tries].into_iter().flatten() {
            let lock = lock.clone();
            let judged = judged.clone();
            runtime.spawn(async move {
                while judged.strong_count() > 0 {
                    let refused = lock.try_acquire().await;
                    assert!(refused.is_err_and(|e| e.is_retryable()), "it is held");
                }
            });
        }
        let fifth = runtime.spawn(async move {
            for _ in 0..5 {
                two.lock("b")
                    .ttl(LONG)
                    .acquire()
                    .await
                    .unwrap()
                    .release()
                    .await
                    .unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let _ = tell.send(runtime.block_on(fifth));
        // The tasks of that runtime stop before the lock becomes free, so that it is not granted to
        // them.
        runtime.shutdown_timeout(Duration::from_secs(10));
    });
    within(Duration::from_secs(60), "a task beside refused tries", told)
        .await
        .unwrap()
        .unwrap();
    drop(judge);
    tokio::task::spawn_blocking(move || thread.join().unwrap())
        .await
        .unwrap();
    holder.release().await.unwrap();
}
