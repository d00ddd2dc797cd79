//! Turns of a `fast` lock among the tasks of one client: nobody waits behind a hold that has gone.

use std::future::{IntoFuture as _, ready};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::Claimed;
use leasehold_core::{Contention, ErrorKind, Fenced, FencingToken, LockQueue, Loss, Participant};

use crate::runtimes::pass;
use crate::script::{
    Call, Script, TTL, driven, error, granted, in_time, ms, runtime, settle, turns, within_a_minute,
};

/// A notification says that the hold is gone. The next task of this process goes to the store at once, not when the keeper
/// next plans, and not when the lost guard is dropped.
#[tokio::test]
async fn a_task_behind_an_evicted_hold_goes_to_the_store() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let notifier = script.notifier();
        let store = script.claims(async |claim, n| Ok(turns(&claim, n))).store();
        let lock = store.lock("a").fast();
        let first = lock.acquire().await.unwrap();
        let second = tokio::spawn(lock.acquire());
        settle().await;
        let id = log.first_id();
        notifier.lost(id, Loss::Evicted);
        let second = second.await.unwrap().unwrap();
        assert_eq!((second.fencing_token().get(), log.claims()), (65, 2));
        assert_eq!(
            first.release().await.unwrap_err().loss(),
            Some(Loss::Evicted)
        );
    })
    .await;
}

/// The same when the holder learns it by asking, and the question took the lock anew.
#[tokio::test]
async fn a_task_behind_a_hold_that_was_gone_goes_to_the_store() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let store = script.claims(async |claim, n| Ok(turns(&claim, n))).store();
        let lock = store.lock("a").fast();
        let first = lock.acquire().await.unwrap();
        let second = tokio::spawn(lock.acquire());
        settle().await;
        assert_eq!(first.confirm().await.unwrap_err().kind(), ErrorKind::Lost);
        let second = second.await.unwrap().unwrap();
        assert_eq!((second.fencing_token().get(), log.claims()), (129, 3));
        drop(first);
    })
    .await;
}

/// A store that cannot be reached is asked again for one lease, not for another lease for each task in the local queue.
#[tokio::test]
async fn an_outage_is_retried_for_one_lease_by_all_tasks_together() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .claims(async |_, _| error(ErrorKind::Unavailable))
            .store();
        let lock = store.lock("a").fast();
        let start = time.clock().now();
        let tasks: Vec<_> = (0..5).map(|_| tokio::spawn(lock.acquire())).collect();
        for task in tasks {
            let outcome = driven(&time, task).await.unwrap();
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        let took = time.clock().now().since(start);
        assert!(took >= TTL && took < TTL + ms(1100), "{took:?}");
        // Each of them has asked, and one that comes later has its whole retry budget.
        let claims = log.claims();
        let start = time.clock().now();
        driven(&time, lock.acquire()).await.unwrap_err();
        assert!(time.clock().now().since(start) >= TTL && log.claims() > claims + 3);
    })
    .await;
}

/// A turn that is over cannot be evicted: the hold is another task's by now. The turn that is, can, and passes to nobody.
#[tokio::test]
async fn only_the_turn_that_is_can_be_evicted() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let notifier = script.notifier();
        let script = script.claims(async |claim, n| Ok(turns(&claim, n)));
        let script = script.inspects(async |_, _| {
            Ok(LockQueue::new(
                vec![Participant::new("task 1").token(FencingToken::new(1))],
                Vec::new(),
            ))
        });
        let store = script.store();
        let lock = |task: usize| store.lock("a").fast().label(format!("task {task}"));
        let first = lock(1).acquire().await.unwrap();
        let second = tokio::spawn(lock(2).acquire());
        settle().await;
        let old = first.fencing_token();
        first.release().await.unwrap();
        let second = second.await.unwrap().unwrap();
        assert_eq!((second.fencing_token().get(), log.claims()), (2, 1));
        assert!(!store.evict("a", old).await.unwrap());
        assert!(
            !store.evict("a", FencingToken::new(3)).await.unwrap(),
            "a turn that nobody has had"
        );
        assert_eq!(log.count(|call| matches!(call, Call::Evict(_))), 0);

        // `inspect` through this client shows whose turn it is.
        let queue = lock(9).inspect().await.unwrap();
        let seen = (queue.holders[0].label.as_deref(), queue.holders[0].token);
        assert_eq!(seen, (Some("task 2"), Some(second.fencing_token())));

        let third = tokio::spawn(lock(3).acquire());
        settle().await;
        assert!(store.evict("a", second.fencing_token()).await.unwrap());
        assert!(
            store.evict("b", old).await.unwrap(),
            "that name is not ours to judge"
        );
        assert!(
            store.evict("a", FencingToken::new(500)).await.unwrap(),
            "nor is a hold of another client"
        );
        assert_eq!(log.count(|call| matches!(call, Call::Evict(_))), 3);
        // Before the news of it has come, nobody else gets a turn of what was evicted.
        second.release().await.unwrap();
        let third = third.await.unwrap().unwrap();
        assert_eq!((third.fencing_token().get(), log.claims()), (65, 2));
        let id = log.first_id();
        notifier.lost(id, Loss::Evicted);
        assert!(third.is_valid());
    })
    .await;
}

/// Short turns are many under one claim: it reserves twice as many as the last one has used. Long ones are as few as ever, so that
/// other clients do not wait for longer.
#[tokio::test]
async fn short_turns_are_many_and_long_ones_are_not() {
    for (each, reserved) in [
        (Duration::ZERO, [64, 128, 256, 512, 1024, 1024]),
        // A hundred go before five milliseconds are over.
        (Duration::from_micros(50), [64, 128, 200, 200, 200, 200]),
        (ms(1), [64, 128, 128, 128, 128, 128]),
    ] {
        let (script, time, _log) = Script::new();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (claims, last) = (asked.clone(), Mutex::new(0));
        let script = script.claims(move |claim, _| {
            claims.lock().unwrap().push(claim.turns());
            let mut last = last.lock().unwrap();
            let Claimed::Granted(grant) = granted(&claim, *last + 1) else {
                unreachable!()
            };
            *last += u64::from(claim.turns());
            ready(Ok(Claimed::Granted(grant.turns(claim.turns()))))
        });
        let lock = script.store().lock("a").fast();
        let seen = Arc::new(Mutex::new(FencingToken::new(0)));
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let (lock, time, asked, seen) =
                    (lock.clone(), time.clone(), asked.clone(), seen.clone());
                tokio::spawn(async move {
                    while asked.lock().unwrap().len() < reserved.len() {
                        let guard = lock.acquire().await.unwrap();
                        let before =
                            std::mem::replace(&mut *seen.lock().unwrap(), guard.fencing_token());
                        assert!(before < guard.fencing_token(), "{before} was used before");
                        // The others come to wait for it.
                        tokio::task::yield_now().await;
                        time.advance(each);
                        guard.release().await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            in_time(task).await.unwrap();
        }
        assert_eq!(
            asked.lock().unwrap()[..reserved.len()],
            reserved,
            "turns of {each:?}"
        );
    }
}

/// A refusal by the store of another claim of this process names whose turn it is.
#[tokio::test]
async fn a_refusal_names_whose_turn_it_is() {
    in_time(async {
        let (script, _time, _log) = Script::new();
        let script = script.claims(async |claim, n| {
            Ok(if n == 0 {
                turns(&claim, 0)
            } else {
                Claimed::Busy(
                    Contention::by("task 1")
                        .token(FencingToken::new(1))
                        .waiters(7),
                )
            })
        });
        let store = script.store();
        let first = store
            .lock("a")
            .fast()
            .label("task 1")
            .acquire()
            .await
            .unwrap();
        let second = tokio::spawn(store.lock("a").fast().label("task 2").acquire());
        settle().await;
        drop(first);
        let second = second.await.unwrap().unwrap();
        let who = store
            .lock("a")
            .fair()
            .try_acquire()
            .await
            .unwrap_err()
            .into_contention()
            .unwrap();
        assert_eq!(
            who,
            Contention::by("task 2")
                .token(second.fencing_token())
                .waiters(7)
        );
    })
    .await;
}

/// Tasks that try in a loop, and are refused without any request, let others run.
#[test]
fn a_loop_of_refused_tries_starves_no_other_task() {
    within_a_minute(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (script, _time, _log) = Script::new();
            let store = script.claims(async |claim, n| Ok(turns(&claim, n))).store();
            let lock = store.lock("a").fast();
            let guard = tokio::spawn(lock.acquire()).await.unwrap().unwrap();
            let tries: Vec<_> = (0..4)
                .map(|_| {
                    let lock = lock.clone();
                    tokio::spawn(async move {
                        loop {
                            if let Ok(guard) = lock.try_acquire().await {
                                return guard.fencing_token();
                            }
                        }
                    })
                })
                .collect();
            // It is given back by a task that must get its turn among them.
            tokio::spawn(async move {
                settle().await;
                guard.release().await
            })
            .await
            .unwrap()
            .unwrap();
            for one in tries {
                one.await.unwrap();
            }
        });
        runtime.shutdown_background();
    });
}

/// A task that waited for its turn in one runtime may claim in another, and hold there when the first has ended.
#[test]
fn a_claimant_that_has_moved_holds_where_it_is() {
    let (script, time, log) = Script::new();
    let store = script.store();
    let (first, second) = (runtime(), runtime());
    let lock = store.lock("a").fast();
    let holder = first.block_on(lock.acquire()).unwrap();
    let mut next = Box::pin(lock.acquire().into_future());
    first.block_on(async {
        assert!(futures_util::poll!(&mut next).is_pending());
        holder.release().await.unwrap();
        settle().await;
    });
    let guard = second.block_on(next).unwrap();
    drop(first);
    pass(&time, &[Some(second)], TTL * 2);
    assert!(
        guard.is_valid(),
        "{:?} after {} renewals",
        guard.check(),
        log.renewals()
    );
}

/// A try behind a task of this process names it, and says how many wait, without those that have gone.
#[tokio::test]
async fn a_try_names_the_task_that_is_before_it() {
    for waiters in [0, 2, 300] {
        let (script, _time, log) = Script::new();
        let lock = script
            .claims(async |claim, n| Ok(turns(&claim, n)))
            .store()
            .lock("a")
            .fast();
        let guard = lock.clone().label("first").acquire().await.unwrap();
        let tasks: Vec<_> = (0..=waiters)
            .map(|_| tokio::spawn(lock.acquire()))
            .collect();
        settle().await;
        tasks[0].abort();
        settle().await;
        let refused = lock.try_acquire().await.unwrap_err();
        let who = refused.contention().unwrap();
        assert_eq!(
            (who.label.as_deref(), who.token),
            (Some("first"), Some(guard.fencing_token()))
        );
        // In a long queue those that have gone are counted, too.
        assert_eq!(
            who.waiters,
            Some(if waiters > 256 { waiters + 1 } else { waiters })
        );
        assert_eq!(log.claims(), 1);
        tasks.iter().for_each(|task| task.abort());
    }
}

/// The error at a deadline counts the other waiters, not the task that it is for.
#[tokio::test]
async fn a_task_that_waited_in_vain_does_not_count_itself() {
    in_time(async {
        for wait in [ms(0), ms(500)] {
            let (script, time, _log) = Script::new();
            let lock = script
                .claims(async |claim, n| Ok(turns(&claim, n)))
                .store()
                .lock("a")
                .fast();
            let _held = lock.acquire().await.unwrap();
            let other = tokio::spawn(lock.acquire().into_future());
            settle().await;
            let late = driven(&time, lock.acquire_timeout(wait)).await.unwrap_err();
            assert_eq!(late.contention().unwrap().waiters, Some(1));
            other.abort();
        }
    })
    .await;
}

/// An eviction that is refused here changes nothing: the turn goes on to the next task.
#[tokio::test]
async fn an_eviction_of_a_turn_that_nobody_has_ends_none() {
    let (script, _time, log) = Script::new();
    let store = script.claims(async |claim, n| Ok(turns(&claim, n))).store();
    let lock = store.lock("a").fast();
    let first = lock.acquire().await.unwrap();
    let second = tokio::spawn(lock.acquire());
    settle().await;
    assert!(!store.evict("a", FencingToken::new(3)).await.unwrap());
    first.release().await.unwrap();
    let second = in_time(second).await.unwrap().unwrap();
    assert_eq!((second.fencing_token().get(), log.claims()), (2, 1));
}

/// A store may reserve fewer tokens than were asked for. The next task behind the last of them claims in the store.
#[tokio::test]
async fn no_turn_has_a_token_that_was_not_reserved() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let store = script.claims(async |claim, n| match granted(&claim, 1 + 100 * n as u64) {
            Claimed::Granted(grant) => Ok(Claimed::Granted(grant.turns(2))),
            other => Ok(other),
        });
        let lock = store.store().lock("a").fast();
        let first = lock.acquire().await.unwrap();
        let others: Vec<_> = (0..3).map(|_| tokio::spawn(lock.acquire())).collect();
        settle().await;
        first.release().await.unwrap();
        let mut tokens = Vec::new();
        for task in others {
            let guard = task.await.unwrap().unwrap();
            tokens.push(guard.fencing_token().get());
            guard.release().await.unwrap();
        }
        assert_eq!((tokens, log.claims()), (vec![2, 101, 102], 2));
    })
    .await;
}

/// A condition for a transaction covers a hold that ends in the store alone: not one that the next task of this process may have before
/// the store has heard of it. What takes no turns reserves no tokens for them, however it waits.
#[tokio::test]
async fn a_hold_that_tasks_pass_on_is_no_condition() {
    in_time(async {
        let (script, _time, _log) = Script::new();
        let store = script.claims(async |claim, n| Ok(turns(&claim, n))).store();
        let readers = store.rw_lock("readers").fair();
        for (lock, covered) in [
            (store.lock("fair").fair(), true),
            (store.lock("fast").fast(), false),
            (readers.read().fast(), true),
            (readers.write().fast(), false),
        ] {
            let guard = lock.acquire().await.unwrap();
            let answer = guard.check_condition().map_err(|e| e.kind());
            assert_eq!(answer.is_ok(), covered);
            assert_eq!(answer.err(), (!covered).then_some(ErrorKind::Unsupported));
            assert_eq!(guard.view().check_condition().is_ok(), covered);
            guard.release().await.unwrap();
        }
    })
    .await;
}
