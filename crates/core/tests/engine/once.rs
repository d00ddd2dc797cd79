//! `once`: a body begins on the answer to its own claim, and finished work is completed whatever becomes of replies, of the
//! hold and of the caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold_core::backend::{Complete, Completed, Grant, Moment, Place, Renewal, Validity};
use leasehold_core::{Begun, ErrorKind, FencingToken, Loss, Once, OnceGuard, OnceOutcome, Store};
use tokio::sync::Notify;

use crate::script::{
    Call, Script, TTL, completion, driven, error, granted, in_time, ms, pass, renewed, settle,
    waiting,
};

const TOKEN: FencingToken = FencingToken::new(1);

fn once(store: &Store) -> Once {
    store.once("a").keep(TTL * 10)
}

/// The work of a free name.
async fn begun(store: &Store) -> OnceGuard {
    match once(store).begin().await.unwrap() {
        Begun::Attempt(guard) => guard,
        Begun::AlreadyDone(done) => panic!("{done:?}"),
    }
}

/// Each completion is recorded.
fn records(script: Script) -> Script {
    script.completes(async |(claim, asked), _| Ok(done(&claim, &asked)))
}

fn done(claim: &leasehold_core::backend::Claim, asked: &Complete) -> Completed {
    Completed::Done(completion(claim, asked.token))
}

/// One claim and one completion, and no release.
#[tokio::test]
async fn work_costs_a_claim_and_a_completion() {
    in_time(async {
        let (script, time, log) = Script::new();
        let notifier = script.notifier();
        let store = records(script).store();
        let outcome = once(&store).run(async |_| Ok::<_, ()>(7)).await.unwrap();
        assert_eq!(outcome, Ok(OnceOutcome::Ran(7)));
        let calls = log.calls();
        assert!(
            matches!(
                calls[..],
                [Call::Claim(_), Call::Answered(_), Call::Complete(_, TOKEN)]
            ),
            "{calls:?}"
        );
        assert_eq!(format!("{notifier:?}"), "Notifier(0 listeners)");
        pass(&time, TTL * 3, ms(100)).await;
        assert_eq!((log.renewals(), log.releases()), (0, 0));
    })
    .await;
}

/// A hand-over may be blind: the work may be done since. The claim is sent again, and its answer counts.
#[tokio::test]
async fn no_body_begins_on_a_notification_or_a_renewal() {
    in_time(async {
        for is_pushed in [true, false] {
            for is_done in [true, false] {
                let (script, time, log) = Script::new();
                let notifier = script.notifier();
                let grant = |at: Moment| {
                    let validity = Validity::since(at, TTL);
                    Grant::new(Place::new("at a"), TOKEN, validity)
                };
                let clock = time.clock();
                let store = records(script)
                    .claims(move |claim, n| async move {
                        Ok(match n {
                            0 => waiting(&claim),
                            _ if is_done => {
                                leasehold_core::backend::Claimed::Done(completion(&claim, TOKEN))
                            }
                            _ => granted(&claim, 1),
                        })
                    })
                    .renewals(move |all, _| {
                        let now = clock.now();
                        async move {
                            if is_pushed {
                                return Ok(renewed(&all));
                            }
                            Ok(all.iter().map(|_| Renewal::Granted(grant(now))).collect())
                        }
                    })
                    .store();
                let bodies = Arc::new(AtomicUsize::new(0));
                let running = tokio::spawn({
                    let bodies = bodies.clone();
                    let once = once(&store);
                    async move {
                        once.run(async |_| {
                            bodies.fetch_add(1, Ordering::SeqCst);
                            Ok::<_, ()>(())
                        })
                        .await
                    }
                });
                log.until_claimed(1).await;
                settle().await;
                if is_pushed {
                    notifier.granted(log.first_id(), grant(time.clock().now()));
                }
                let outcome = driven(&time, running).await.unwrap().unwrap();
                assert_eq!(log.claims(), 2, "the claim is sent again");
                let bodies = bodies.load(Ordering::SeqCst);
                match outcome {
                    Ok(OnceOutcome::Ran(())) => assert_eq!((bodies, is_done), (1, false)),
                    Ok(OnceOutcome::AlreadyDone(_)) => assert_eq!((bodies, is_done), (0, true)),
                    Err(()) => unreachable!(),
                }
            }
        }
    })
    .await;
}

/// A completion that is not answered is asked for again, for a TTL beyond the lease; the hold is renewed, and not released.
#[tokio::test]
async fn a_completion_is_repeated_until_it_is_answered() {
    in_time(async {
        for kind in [ErrorKind::Ambiguous, ErrorKind::Unavailable] {
            let (script, time, log) = Script::new();
            let store = script
                .completes(move |(claim, asked), n| async move {
                    if n < 12 {
                        error(kind)
                    } else {
                        Ok(done(&claim, &asked))
                    }
                })
                .store();
            let guard = begun(&store).await;
            let completed = driven(&time, guard.complete()).await.unwrap();
            assert_eq!(completed.token, TOKEN);
            assert_eq!(log.completions(), 13);
            assert!(log.renewals() > 0, "the hold is renewed meanwhile");
            assert_eq!(log.releases(), 0);
        }
    })
    .await;
}

/// A store that never answers: after a TTL beyond the lease the caller is told that nobody knows; one that surely recorded
/// nothing is told apart. Only then the claim is withdrawn.
#[tokio::test]
async fn a_completion_ends_a_ttl_after_its_lease() {
    in_time(async {
        for (kind, told) in [
            (ErrorKind::Ambiguous, ErrorKind::Ambiguous),
            (ErrorKind::Unavailable, ErrorKind::Unavailable),
        ] {
            let (script, time, log) = Script::new();
            let store = script
                .completes(move |_, _| async move { error(kind) })
                .store();
            let guard = begun(&store).await;
            let from = time.clock().now();
            let refused = driven(&time, guard.complete()).await.unwrap_err();
            assert_eq!(refused.kind(), told, "{refused:?}");
            let took = time.clock().now().since(from);
            assert!(
                took > TTL * 2 - ms(100) && took < TTL * 2 + ms(100),
                "{took:?}"
            );
            log.until_released(1).await;
            let calls = log.calls();
            let released = calls
                .iter()
                .position(|call| matches!(call, Call::Release(..)));
            let last = calls
                .iter()
                .rposition(|call| matches!(call, Call::Complete(..)));
            assert!(last < released, "{calls:?}");
        }
    })
    .await;
}

/// A request that hangs is not waited for beyond its limit: it is sent again.
#[tokio::test]
async fn a_completion_that_hangs_is_sent_again() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .completes(async |(claim, asked), n| match n {
                0 => std::future::pending().await,
                _ => Ok(done(&claim, &asked)),
            })
            .store();
        let guard = begun(&store).await;
        driven(&time, guard.complete()).await.unwrap();
        assert_eq!(log.completions(), 2);
    })
    .await;
}

/// `NotHeld` means that nothing was recorded only if each request before it was answered.
#[tokio::test]
async fn not_held_is_a_loss_only_without_doubt() {
    in_time(async {
        for (before, told) in [
            (None, ErrorKind::Lost),
            (Some(ErrorKind::Unavailable), ErrorKind::Lost),
            (Some(ErrorKind::Ambiguous), ErrorKind::Ambiguous),
        ] {
            let (script, time, log) = Script::new();
            let store = script
                .completes(move |_, n| async move {
                    match before {
                        Some(kind) if n == 0 => error(kind),
                        _ => Ok(Completed::NotHeld),
                    }
                })
                .store();
            let guard = begun(&store).await;
            let refused = driven(&time, guard.complete()).await.unwrap_err();
            assert_eq!(refused.kind(), told, "{before:?}: {refused:?}");
            log.until_released(1).await;
        }
    })
    .await;
}

/// Once the store is asked to complete, a renewal that finds nothing decides nothing: the completion may have ended the hold.
#[tokio::test]
async fn a_renewal_that_finds_nothing_is_no_loss_of_completed_work() {
    in_time(async {
        let (script, time, log) = Script::new();
        let landing = Arc::new(Notify::new());
        let notifier = script.notifier();
        let land = landing.clone();
        let store = script
            .completes(move |(claim, asked), _| {
                let land = land.clone();
                async move {
                    land.notified().await;
                    Ok(done(&claim, &asked))
                }
            })
            .renewals(async |all, _| Ok(all.iter().map(|_| Renewal::Lost(Loss::Gone)).collect()))
            .store();
        let guard = begun(&store).await;
        let held = guard.view();
        let completing = tokio::spawn(guard.complete());
        log.until(1, |call| matches!(call, Call::Complete(..)))
            .await;
        pass(&time, TTL / 2, ms(100)).await;
        assert!(log.renewals() > 0);
        notifier.lost(log.first_id(), Loss::Evicted);
        settle().await;
        assert!(!completing.is_finished());
        landing.notify_one();
        assert_eq!(completing.await.unwrap().unwrap().token, TOKEN);
        assert_eq!(log.releases(), 0, "a release would overtake the completion");
        assert_eq!(held.lost().await, Loss::Released);
    })
    .await;
}

/// A hold that was lost before the work ended completes nothing.
#[tokio::test]
async fn nothing_is_completed_after_a_loss() {
    in_time(async {
        let (script, time, log) = Script::new();
        let notifier = script.notifier();
        let store = records(script)
            .renewals(async |_, _| error(ErrorKind::Unavailable))
            .store();
        let evicted = begun(&store).await;
        notifier.lost(log.first_id(), Loss::Evicted);
        let refused = evicted.complete().await.unwrap_err();
        assert_eq!(refused.loss(), Some(Loss::Evicted));
        let expired = begun(&store).await;
        pass(&time, TTL, ms(100)).await;
        let refused = expired.complete().await.unwrap_err();
        assert_eq!(refused.loss(), Some(Loss::Expired));
        log.until_released(2).await;
        assert_eq!(log.completions(), 0);
    })
    .await;
}

/// The body is dropped at the loss, and nothing is completed.
#[tokio::test]
async fn a_body_is_dropped_when_its_hold_is_lost() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let notifier = script.notifier();
        let store = records(script).store();
        let once = once(&store);
        let running = tokio::spawn(async move {
            once.run(async |_| std::future::pending::<Result<(), ()>>().await)
                .await
        });
        log.until_claimed(1).await;
        settle().await;
        notifier.lost(log.first_id(), Loss::Evicted);
        let refused = running.await.unwrap().unwrap_err();
        assert_eq!(refused.loss(), Some(Loss::Evicted));
        log.until_released(1).await;
        assert_eq!(log.completions(), 0);
    })
    .await;
}

/// The caller leaves while its work is being completed: the keeper completes it, and `close` waits for that.
#[tokio::test]
async fn a_caller_that_leaves_does_not_undo_finished_work() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .completes(async |(claim, asked), n| match n {
                0 => std::future::pending().await,
                1..5 => error(ErrorKind::Ambiguous),
                _ => Ok(done(&claim, &asked)),
            })
            .store();
        let guard = begun(&store).await;
        let completing = tokio::spawn(guard.complete());
        log.until(1, |call| matches!(call, Call::Complete(..)))
            .await;
        completing.abort();
        assert!(completing.await.is_err());
        driven(&time, store.close(TTL * 4)).await.unwrap();
        assert_eq!(log.completions(), 6);
        assert_eq!(log.releases(), 0);
        assert_eq!(log.calls().last(), Some(&Call::Close));
    })
    .await;
}

/// Tasks of one client stand behind one claim. The first that works to an end tells all, and a caller that leaves passes the
/// lead on.
#[tokio::test]
async fn tasks_of_one_client_share_a_claim() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let store = records(script).store();
        let first = begun(&store).await;
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let once = once(&store);
                tokio::spawn(async move { once.run(async |_| Ok::<_, ()>(())).await })
            })
            .collect();
        settle().await;
        assert_eq!(log.claims(), 1, "the others wait for the first");
        drop(first);
        let mut ran = 0;
        for task in tasks {
            ran += usize::from(task.await.unwrap().unwrap() == Ok(OnceOutcome::Ran(())));
        }
        assert_eq!((ran, log.claims()), (1, 2));
        // Nothing is remembered: the next task asks the store.
        let outcome = once(&store).run(async |_| Ok::<_, ()>(())).await;
        assert_eq!(outcome.unwrap(), Ok(OnceOutcome::Ran(())));
        assert_eq!(log.claims(), 3);
    })
    .await;
}

/// A later fire than the one that was done is not told, and leads.
#[tokio::test]
async fn a_task_of_a_later_fire_works_itself() {
    in_time(async {
        let (script, _time, _log) = Script::new();
        let store = records(script).store();
        let first = begun(&store).await;
        let later = once(&store).fire(1);
        let same = once(&store);
        let later = tokio::spawn(async move { later.run(async |_| Ok::<_, ()>(())).await });
        settle().await;
        let same = tokio::spawn(async move { same.run(async |_| Ok::<_, ()>(())).await });
        settle().await;
        first.complete().await.unwrap();
        let same = same.await.unwrap().unwrap();
        assert!(matches!(same, Ok(OnceOutcome::AlreadyDone(_))), "{same:?}");
        let later = later.await.unwrap().unwrap();
        assert_eq!(later, Ok(OnceOutcome::Ran(())));
    })
    .await;
}

/// A leader that waits in the store and is not polled keeps nobody from claiming.
#[tokio::test]
async fn a_task_does_not_wait_for_a_leader_that_is_not_polled() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = records(script)
            .claims(async |claim, n| {
                Ok(if n == 0 {
                    waiting(&claim)
                } else {
                    granted(&claim, 1)
                })
            })
            .store();
        let mut leader = Box::pin(once(&store).begin());
        assert!(futures_util::poll!(&mut leader).is_pending());
        settle().await;
        assert_eq!(log.claims(), 1);
        let other = once(&store);
        let outcome = driven(&time, other.run(async |_| Ok::<_, ()>(()))).await;
        assert_eq!(outcome.unwrap(), Ok(OnceOutcome::Ran(())));
    })
    .await;
}

/// One that waits no longer than it may is refused, and names the leader.
#[tokio::test]
async fn a_wait_in_the_line_ends_at_its_deadline() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = records(script).store();
        let _first = begun(&store).await;
        let late = once(&store).wait(ms(50));
        let refused = driven(&time, late.run(async |_| Ok::<_, ()>(())))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TimedOut);
        assert!(refused.contention().is_some_and(|by| by.label.is_some()));
        assert_eq!(log.claims(), 1);
    })
    .await;
}

/// A store without completions is asked for nothing.
#[tokio::test]
async fn a_store_that_cannot_is_not_asked() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let store = script.store();
        let refused = once(&store)
            .run(async |_| Ok::<_, ()>(()))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert_eq!(log.calls().len(), 0);
    })
    .await;
}

/// A script in which a transaction has recorded the work, or none has.
fn in_transaction(script: Script, recorded: bool) -> Script {
    records(script).records(move |(claim, token), _| {
        let answer = recorded.then(|| completion(&claim, token));
        async move { Ok(answer) }
    })
}

/// With a transaction of the program only its record counts, however the body has ended. Nothing else completes the work.
#[tokio::test]
async fn the_record_of_a_transaction_alone_counts() {
    in_time(async {
        for recorded in [true, false] {
            for fails in [true, false] {
                let (script, _time, log) = Script::new();
                let store = in_transaction(script, recorded).store();
                let once = store.once("a").in_transaction();
                let ended = if fails { Err("no") } else { Ok(7) };
                let outcome = once.run(async |_| ended).await;
                match (recorded, fails) {
                    (true, false) => assert_eq!(outcome.unwrap(), Ok(OnceOutcome::Ran(7))),
                    (true, true) => assert!(matches!(
                        outcome.unwrap(),
                        Ok(OnceOutcome::AlreadyDone(done)) if done.token == TOKEN
                    )),
                    (false, true) => assert_eq!(outcome.unwrap(), Err("no")),
                    (false, false) => {
                        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Invalid);
                    }
                }
                assert_eq!(log.completions(), 0);
                let calls = log.calls();
                assert!(matches!(calls[2], Call::Recorded(_, TOKEN)), "{calls:?}");
            }
        }
    })
    .await;
}

/// A hold that was lost may have been committed before.
#[tokio::test]
async fn a_transaction_may_have_recorded_work_whose_hold_was_lost() {
    in_time(async {
        for recorded in [true, false] {
            let (script, _time, log) = Script::new();
            let notifier = script.notifier();
            let store = in_transaction(script, recorded).store();
            let once = store.once("a").in_transaction();
            let running = tokio::spawn(async move {
                once.run(async |_| std::future::pending::<Result<(), ()>>().await)
                    .await
            });
            log.until_claimed(1).await;
            settle().await;
            notifier.lost(log.first_id(), Loss::Evicted);
            let outcome = running.await.unwrap();
            if recorded {
                let outcome = outcome.unwrap();
                assert!(
                    matches!(outcome, Ok(OnceOutcome::AlreadyDone(_))),
                    "{outcome:?}"
                );
            } else {
                assert_eq!(outcome.unwrap_err().loss(), Some(Loss::Evicted));
            }
            assert_eq!(log.completions(), 0);
        }
    })
    .await;
}

/// A transaction that does not end leaves it open what has happened.
#[tokio::test]
async fn a_transaction_that_stays_open_is_waited_for() {
    in_time(async {
        for ends in [true, false] {
            let (script, time, log) = Script::new();
            let store = records(script)
                .records(move |(claim, token), n| async move {
                    match n {
                        5.. if ends => Ok(Some(completion(&claim, token))),
                        _ => error(ErrorKind::Ambiguous),
                    }
                })
                .store();
            let once = store.once("a").in_transaction();
            let outcome = driven(&time, once.run(async |_| Ok::<_, ()>(()))).await;
            if ends {
                assert_eq!(outcome.unwrap(), Ok(OnceOutcome::Ran(())));
                assert_eq!(log.releases(), 0);
            } else {
                assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Ambiguous);
            }
        }
    })
    .await;
}

/// A store whose transactions cannot record it is asked for nothing.
#[tokio::test]
async fn a_store_without_such_transactions_is_not_asked() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let store = records(script).store();
        let once = store.once("a").in_transaction();
        let refused = once.run(async |_| Ok::<_, ()>(())).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert_eq!(log.calls().len(), 0);
    })
    .await;
}
