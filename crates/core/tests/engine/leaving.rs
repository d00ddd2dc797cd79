//! Is everything gone when everybody has gone? No task, no backend, no listener may stay behind.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use leasehold_core::backend::VirtualClock;
use leasehold_core::{Loss, Owner, Store};

use crate::script::{
    Call, Log, Script, TTL, driven, error, granted, in_time, ms, pass, runtime, settle, turns,
    waiting,
};

/// What one scenario gets.
struct Scene {
    store: Store,
    time: VirtualClock,
    log: Log,
    notifier: leasehold_core::backend::Notifier,
}

/// Plays a scenario and checks what is left: at most one lease later the backend is dropped, and no listener is open.
async fn leaves_nothing<F: Future<Output = ()>>(
    script: impl Fn(Script) -> Script,
    scenario: impl FnOnce(Scene) -> F,
) {
    in_time(async {
        let (raw, time, log) = Script::new();
        let notifier = raw.notifier();
        let store = script(raw).store();
        scenario(Scene {
            store,
            time: time.clone(),
            log: log.clone(),
            notifier: notifier.clone(),
        })
        .await;
        driven(&time, log.until(1, |call| *call == Call::Dropped)).await;
        settle().await;
        assert_eq!(format!("{notifier:?}"), "Notifier(0 listeners)");
    })
    .await;
}

fn as_it_is(script: Script) -> Script {
    script
}

#[tokio::test]
async fn nothing_of_a_store_that_was_never_used() {
    leaves_nothing(as_it_is, async |scene| drop(scene.store)).await;
}

#[tokio::test]
async fn nothing_of_a_release_or_a_drop() {
    leaves_nothing(as_it_is, async |scene| {
        for i in 0..20 {
            let guard = scene.store.lock(("a", i)).acquire().await.unwrap();
            if i % 2 == 0 {
                guard.release().await.unwrap();
            } else {
                drop(guard);
            }
        }
    })
    .await;
}

/// The guard, a view of it and its loss signal each keep the client, and only as long as they live.
#[tokio::test]
async fn a_view_keeps_the_client_and_no_longer() {
    leaves_nothing(as_it_is, async |scene| {
        let guard = scene.store.lock("a").acquire().await.unwrap();
        let (view, lost) = (guard.view(), guard.lost());
        drop(scene.store);
        drop(guard);
        assert_eq!(lost.await, Loss::Released);
        settle().await;
        assert_eq!(scene.log.dropped(), 0);
        assert!(!view.is_valid());
    })
    .await;
}

/// Polls so many times, and leaves.
struct Leaving<F>(Option<Pin<Box<F>>>, usize);

impl<F: Future> Future for Leaving<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let done = self.1 == 0
            || self
                .0
                .as_mut()
                .is_none_or(|work| work.as_mut().poll(cx).is_ready());
        self.1 = self.1.saturating_sub(1);
        if done {
            self.0 = None;
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[tokio::test]
async fn nothing_of_an_acquire_that_left_at_any_poll() {
    let slow = |script: Script| {
        script.claims(async |claim, n| {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            Ok(if n == 0 {
                waiting(&claim)
            } else {
                granted(&claim, n as u64)
            })
        })
    };
    for polls in 0..12 {
        for fast in [false, true] {
            let play = async |scene: Scene| {
                let lock = scene.store.lock("a");
                let lock = if fast { lock.fast() } else { lock };
                let acquire = async { drop(lock.acquire().await) };
                Leaving(Some(Box::pin(acquire)), polls).await;
                settle().await;
                if let Some(Call::Claim(_)) = scene.log.calls().first() {
                    driven(&scene.time, scene.log.until_released(1)).await;
                }
            };
            leaves_nothing(slow, play).await;
            leaves_nothing(Script::busy, play).await;
        }
    }
}

#[tokio::test]
async fn nothing_of_a_loss() {
    let failing = |script: Script| {
        script.renewals(async |_, _| error(leasehold_core::ErrorKind::Unavailable))
    };
    leaves_nothing(failing, async |scene| {
        let guard = scene.store.lock("a").acquire().await.unwrap();
        pass(&scene.time, TTL, ms(100)).await;
        assert_eq!(guard.lost().await, Loss::Expired);
    })
    .await;
    leaves_nothing(as_it_is, async |scene| {
        let guard = scene.store.lock("a").acquire().await.unwrap();
        let id = scene.log.first_id();
        scene.notifier.lost(id, Loss::Gone);
        assert_eq!(guard.lost().await, Loss::Gone);
    })
    .await;
}

#[tokio::test]
async fn nothing_of_max_hold() {
    leaves_nothing(as_it_is, async |scene| {
        let guard = scene
            .store
            .lock("a")
            .max_hold(TTL * 2)
            .acquire()
            .await
            .unwrap();
        let start = scene.time.clock().now();
        assert_eq!(driven(&scene.time, guard.lost()).await, Loss::MaxHold);
        assert_eq!(scene.time.clock().now().since(start), TTL * 2);
        driven(&scene.time, scene.log.until_released(1)).await;
    })
    .await;
}

/// The guard has gone long before the hold ends, and the store's last clone with it: the hold is still kept for its time, and
/// given back.
#[tokio::test]
async fn nothing_of_min_hold() {
    for drop_store in [false, true] {
        leaves_nothing(as_it_is, async |scene| {
            let start = scene.time.clock().now();
            let guard = scene
                .store
                .lock("a")
                .min_hold(TTL * 2)
                .acquire()
                .await
                .unwrap();
            guard.release().await.unwrap();
            let kept = (!drop_store).then_some(scene.store);
            driven(&scene.time, scene.log.until_released(1)).await;
            assert_eq!(scene.time.clock().now().since(start), TTL * 2);
            assert!(scene.log.renewals() >= 5);
            settle().await;
            if kept.is_some() {
                assert_eq!(format!("{:?}", scene.notifier), "Notifier(0 listeners)");
            }
        })
        .await;
    }
}

#[tokio::test]
async fn nothing_of_re_entry() {
    leaves_nothing(as_it_is, async |scene| {
        let owner = Owner::new();
        let lock = scene.store.lock("a").owner(&owner);
        let (outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
        outer.release().await.unwrap();
        assert!(inner.is_valid());
        assert_eq!(scene.log.releases(), 0);
        drop(inner);
        scene.log.until_released(1).await;
        assert_eq!((scene.log.claims(), scene.log.releases()), (1, 1));
    })
    .await;
}

#[tokio::test]
async fn nothing_of_confirm_and_run() {
    let steady = |script: Script| script.claims(async |claim, _| Ok(granted(&claim, 1)));
    leaves_nothing(steady, async |scene| {
        let guard = scene.store.lock("a").acquire().await.unwrap();
        guard.confirm().await.unwrap();
        Leaving(Some(Box::pin(async { guard.confirm().await })), 0).await;
        assert_eq!(
            guard.run(|held| async move { held.is_valid() }).await.ok(),
            Some(true)
        );
        let body = scene.store.lock("b").run(|_| std::future::pending::<()>());
        Leaving(Some(Box::pin(body)), 5).await;
    })
    .await;
}

#[tokio::test]
async fn nothing_of_a_closed_store() {
    leaves_nothing(as_it_is, async |scene| {
        let guard = scene.store.lock("a").acquire().await.unwrap();
        drop(scene.store.lock("b").acquire().await.unwrap());
        scene.store.close(TTL).await.unwrap();
        assert_eq!(
            scene.log.releases(),
            2,
            "the dropped one, and the one that is given up"
        );
        drop(guard);
    })
    .await;
    leaves_nothing(Script::busy, async |scene| {
        let waiter = tokio::spawn(scene.store.lock("a").acquire());
        scene.log.until_claimed(1).await;
        scene.store.close(TTL).await.unwrap();
        waiter.abort();
    })
    .await;
}

/// Turns of a `fast` lock among tasks: a task in the local queue leaves nothing either.
#[tokio::test]
async fn nothing_of_turns() {
    let turns = |script: Script| script.claims(async |claim, n| Ok(turns(&claim, n)));
    leaves_nothing(turns, async |scene| {
        let lock = scene.store.lock("a").fast();
        let first = lock.acquire().await.unwrap();
        let tasks: Vec<_> = (0..5).map(|_| tokio::spawn(lock.acquire())).collect();
        settle().await;
        tasks[1].abort();
        first.release().await.unwrap();
        let mut tokens = Vec::new();
        for (i, task) in tasks.into_iter().enumerate().filter(|(i, _)| *i != 1) {
            let guard = task.await.unwrap().unwrap();
            tokens.push(guard.fencing_token().get());
            if i % 2 == 0 {
                guard.release().await.unwrap();
            } else {
                drop(guard);
            }
        }
        assert_eq!(tokens, [2, 3, 4, 5]);
        assert_eq!(scene.log.claims(), 1);
    })
    .await;
}

/// `max_hold` is an option of the turn, not of the claim: a later turn's is as punctual as the first's.
#[tokio::test]
async fn a_turns_max_hold_is_punctual() {
    let turns = |script: Script| script.claims(async |claim, n| Ok(turns(&claim, n)));
    leaves_nothing(turns, async |scene| {
        let lock = scene.store.lock("a").fast();
        let first = lock.acquire().await.unwrap();
        let second = tokio::spawn(lock.max_hold(ms(100)).acquire());
        settle().await;
        first.release().await.unwrap();
        let second = second.await.unwrap().unwrap();
        let lost = tokio::spawn(second.lost());
        settle().await;
        scene.time.advance(ms(100));
        settle().await;
        assert!(
            lost.is_finished(),
            "still not told {:?} after the end",
            second.check()
        );
        assert_eq!(lost.await.unwrap(), Loss::MaxHold);
    })
    .await;
}

/// The runtime ends while a release hangs; the store lives on in another one, and ends there as it should.
#[test]
fn nothing_of_a_release_whose_runtime_ended() {
    let (script, time, log) = Script::new();
    let store = script
        .releases(async |_, n| {
            if n == 0 {
                std::future::pending().await
            } else {
                Ok(())
            }
        })
        .store();
    let (first, second) = (runtime(), runtime());
    first.block_on(in_time(async {
        drop(store.lock("a").acquire().await.unwrap());
        log.until_released(1).await;
    }));
    drop(first);
    second.block_on(in_time(async {
        store
            .lock("b")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        drop(store.lock("c").acquire().await.unwrap());
        store.close(TTL).await.unwrap();
        drop(store);
        driven(&time, log.until(1, |call| *call == Call::Dropped)).await;
    }));
}
