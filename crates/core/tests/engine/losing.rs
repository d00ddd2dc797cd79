//! Loss: on time, final, and never from doubt.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use leasehold_core::backend::{Grant, Place, Renewal, Validity};
use leasehold_core::{ErrorKind, FencingToken, Loss};
use tokio::sync::Notify;

use crate::script::{
    GOOD, Script, TTL, error, granted, granted_since, in_time, ms, pass, renewed, runtime, settle,
    waiting,
};

/// P3: the end of validity is the moment of loss, not a timer's luck, whatever the renewals do.
#[tokio::test]
async fn comes_exactly_at_the_end_of_validity() {
    for hang in [false, true] {
        in_time(async {
            let (script, time, _log) = Script::new();
            let script = script.renewals(move |_, _| async move {
                if hang {
                    std::future::pending::<()>().await;
                }
                error(ErrorKind::Unavailable)
            });
            let store = script.store();
            let guard = store.lock("a").acquire().await.unwrap();
            let lost = tokio::spawn(guard.lost());
            pass(&time, GOOD - ms(1), ms(100)).await;
            assert!(guard.is_valid() && !lost.is_finished());
            assert_eq!(guard.remaining(), ms(1));
            time.advance(ms(1));
            assert!(
                !guard.is_valid(),
                "computed when asked, before any task has run"
            );
            assert_eq!(lost.await.unwrap(), Loss::Expired);
            let error = guard.release().await.unwrap_err();
            assert_eq!(
                (error.kind(), error.loss()),
                (ErrorKind::Lost, Some(Loss::Expired))
            );
        })
        .await;
    }
}

/// A process stands still in the queue: it is granted the lock, its lease ends, others are granted. When it runs again, it takes a new
/// place and renews that, and only then reads of the old grant. The answer to the renewal is about the place.
#[tokio::test]
async fn a_renewed_place_revives_no_old_grant() {
    in_time(async {
        let (script, time, log) = Script::new();
        let (notifier, began) = (script.notifier(), time.clock().now());
        let script = script.busy().renewals(move |all, _| {
            let notifier = notifier.clone();
            async move {
                assert_eq!(all[0].token, None, "a place is renewed");
                let old = Grant::new(
                    Place::new("old"),
                    FencingToken::new(7),
                    Validity::since(began, ms(600)),
                );
                notifier.granted(all[0].claim.id, old);
                Ok(renewed(&all))
            }
        });
        let store = script.store();
        let acquire = tokio::spawn(store.lock("a").acquire_timeout(TTL * 3));
        pass(&time, TTL * 4, ms(20)).await;
        assert_eq!(
            acquire.await.unwrap().map_err(|e| e.kind()).unwrap_err(),
            ErrorKind::TimedOut
        );
        assert!(log.renewals() > 3);
    })
    .await;
}

/// The renewal that hung is answered after all, and so is a confirmation: the loss stands.
#[tokio::test]
async fn is_terminal() {
    in_time(async {
        let (script, time, log) = Script::new();
        let script = script.renewals(async |_, _| error(ErrorKind::Unavailable));
        let store = script.store();
        let guard = store.lock("a").acquire().await.unwrap();
        time.advance(GOOD);
        assert_eq!(guard.lost().await, Loss::Expired);
        let claims = log.claims();
        assert_eq!(guard.confirm().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(log.claims(), claims, "a lost guard asks for nothing");
        assert_eq!(guard.remaining(), Duration::ZERO);
    })
    .await;
}

/// A long pause of the whole process: the first call afterwards reports the loss, although no task could run before.
#[tokio::test]
async fn is_seen_after_a_pause_without_any_timer() {
    in_time(async {
        let (script, time, _log) = Script::new();
        let store = script.store();
        let guard = store.lock("a").acquire().await.unwrap();
        time.advance(TTL * 10);
        assert_eq!(
            (guard.is_valid(), guard.remaining()),
            (false, Duration::ZERO)
        );
        assert_eq!(guard.view().lost().now_or_never(), Some(Loss::Expired));
        assert!(guard.check().is_err());
    })
    .await;
}

/// P1: validity counts from the send, not from the reply.
#[tokio::test]
async fn counts_from_the_send() {
    in_time(async {
        let (script, time, log) = Script::new();
        let clock = time.clock();
        let script = script.claims(move |claim, n| {
            let clock = clock.clone();
            async move {
                clock.sleep(TTL / 2).await;
                Ok(granted_since(&claim, n as u64 + 1, clock.now()))
            }
        });
        let store = script.store();
        let acquire = tokio::spawn(store.lock("a").acquire());
        log.until_claimed(1).await;
        time.advance(TTL / 2);
        let guard = acquire.await.unwrap().unwrap();
        assert_eq!(guard.remaining(), GOOD - TTL / 2);
    })
    .await;
}

/// The same for renewals.
#[tokio::test]
async fn a_slow_renewal_counts_from_its_send() {
    in_time(async {
        let (script, time, log) = Script::new();
        let clock = time.clock();
        let script = script.renewals(move |all, _| {
            let clock = clock.clone();
            async move {
                clock.sleep(TTL / 12).await;
                Ok(renewed(&all))
            }
        });
        let store = script.store();
        let guard = store.lock("a").acquire().await.unwrap();
        pass(&time, TTL / 3 + TTL / 12, ms(100)).await;
        assert_eq!(log.renewals(), 1);
        assert_eq!(guard.remaining(), GOOD - TTL / 12);
    })
    .await;
}

/// A push that comes when the place that it grew from is over is no grant; the next claim decides.
#[tokio::test]
async fn a_stale_push_is_not_believed() {
    in_time(async {
        let (script, time, log) = Script::new();
        let notifier = script.notifier();
        let script = script.busy();
        let store = script.store();
        let sent = time.clock().now();
        let acquire = tokio::spawn(store.lock("a").acquire());
        log.until_claimed(1).await;
        let id = log.first_id();
        pass(&time, TTL * 2, ms(100)).await;
        let claims = log.claims();
        notifier.granted(
            id,
            Grant::new(
                Place::new("p"),
                FencingToken::new(1),
                Validity::since(sent, TTL),
            ),
        );
        settle().await;
        assert!(!acquire.is_finished());
        assert!(log.claims() > claims, "the push is at least a notification");
        // One that grew from a living attempt is believed, and counts from that attempt.
        let recent = time.clock().now();
        time.advance(ms(500));
        notifier.granted(
            id,
            Grant::new(
                Place::new("p"),
                FencingToken::new(2),
                Validity::since(recent, TTL),
            ),
        );
        let guard = acquire.await.unwrap().unwrap();
        assert_eq!(
            (guard.fencing_token().get(), guard.remaining()),
            (2, GOOD - ms(500))
        );
        // And an older or doubled one changes nothing any more.
        notifier.granted(
            id,
            Grant::new(
                Place::new("p"),
                FencingToken::new(2),
                Validity::since(sent, TTL),
            ),
        );
        assert_eq!(
            (guard.fencing_token().get(), guard.remaining()),
            (2, GOOD - ms(500))
        );
    })
    .await;
}

/// A place in the queue was gone, so the store says when asked to renew it. The answer comes when the claim has been granted again:
/// it says nothing about the grant.
#[tokio::test]
async fn an_answer_about_a_place_is_none_about_the_grant() {
    in_time(async {
        let (script, time, log) = Script::new();
        let (notifier, answer) = (script.notifier(), Arc::new(Notify::new()));
        let script = script
            .claims(async |claim, n| {
                Ok(if n == 0 {
                    waiting(&claim)
                } else {
                    granted(&claim, n as u64)
                })
            })
            .renewals({
                let answer = answer.clone();
                move |all, n| {
                    let answer = answer.clone();
                    async move {
                        if n > 0 {
                            return Ok(renewed(&all));
                        }
                        answer.notified().await;
                        Ok(vec![Renewal::Lost(Loss::Gone)])
                    }
                }
            });
        let store = script.store();
        let acquire = tokio::spawn(store.lock("a").acquire());
        log.until_claimed(1).await;
        pass(&time, TTL / 2, ms(100)).await;
        assert_eq!(log.renewals(), 1);
        notifier.notify_all();
        let guard = acquire.await.unwrap().unwrap();
        answer.notify_one();
        settle().await;
        assert!(guard.is_valid(), "{:?}", guard.check());
        pass(&time, TTL * 2, ms(100)).await;
        assert!(guard.is_valid(), "{:?}", guard.check());
    })
    .await;
}

/// The notification says that it is gone: at once, and the claim is withdrawn without a call of the user.
#[tokio::test]
async fn a_notification_ends_a_hold() {
    in_time(async {
        let (script, time, log) = Script::new();
        let notifier = script.notifier();
        let store = script.store();
        let guard = store.lock("a").acquire().await.unwrap();
        let id = log.first_id();
        notifier.lost(id, Loss::Evicted);
        assert_eq!(guard.lost().now_or_never(), Some(Loss::Evicted));
        pass(&time, TTL, ms(100)).await;
        assert!(log.releases() >= 1);
        assert_eq!(log.renewals(), 0);
    })
    .await;
}

/// Nor is the end that the store shortened noticed later than it is, though no wake-up was planned for it.
#[tokio::test]
async fn comes_at_an_end_that_was_shortened() {
    in_time(async {
        let (script, time, log) = Script::new();
        let notifier = script.notifier();
        let began = time.clock().now();
        let store = script
            .renewals(async |_, _| std::future::pending().await)
            .store();
        let guard = store.lock("a").acquire().await.unwrap();
        let id = log.first_id();
        let lost = tokio::spawn(guard.lost());
        settle().await;
        notifier.shortened(id, Validity::since(began, TTL / 10));
        pass(&time, TTL / 10, ms(10)).await;
        assert_eq!(lost.now_or_never().map(Result::unwrap), Some(Loss::Expired));
        assert!(
            log.renewals() >= 1,
            "and what is left was asked for at once"
        );
    })
    .await;
}

/// P3 for a hold whose runtime is gone while the process lives on: a listener elsewhere is told of the loss.
#[test]
fn is_heard_in_another_runtime() {
    let (script, time, _log) = Script::new();
    let store = script.store();
    let (first, second) = (runtime(), runtime());
    let guard = first.block_on(store.lock("a").acquire()).unwrap();
    drop(first);
    second.block_on(in_time(async {
        let lost = tokio::spawn(guard.lost());
        settle().await;
        time.advance(TTL * 2);
        assert_eq!(lost.await.unwrap(), Loss::Expired);
    }));
}

/// And if the runtime goes away while somebody already listens elsewhere.
#[test]
fn is_heard_although_the_keeper_dies_meanwhile() {
    let (script, time, _log) = Script::new();
    let store = script.store();
    let (first, second) = (runtime(), runtime());
    let guard = first.block_on(store.lock("a").acquire()).unwrap();
    second.block_on(in_time(async {
        let lost = tokio::spawn(guard.lost());
        settle().await;
        tokio::task::spawn_blocking(move || drop(first))
            .await
            .unwrap();
        settle().await;
        time.advance(TTL * 2);
        assert_eq!(lost.await.unwrap(), Loss::Expired);
    }));
}
