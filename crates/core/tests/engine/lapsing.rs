//! A lock that is given back within its `min_hold`, on a store that can let it end by itself.

use leasehold_core::{ErrorKind, Loss, Owner};

use crate::script::{Call, Script, TTL, driven, error, in_time, ms, pass, runtime, settle};

/// One request with the rest of `min_hold`; from then on nobody renews it, releases it, or listens for it.
#[tokio::test]
async fn the_store_is_asked_once_and_left_alone() {
    in_time(async {
        for by_drop in [false, true] {
            let (script, time, log) = Script::new();
            let notifier = script.notifier();
            let store = script.lapses(async |_, _| Ok(())).store();
            let guard = store.lock("a").min_hold(TTL * 3).acquire().await.unwrap();
            pass(&time, TTL, ms(100)).await;
            let renewals = log.renewals();
            if by_drop {
                drop(guard);
                settle().await;
            } else {
                guard.release().await.unwrap();
            }
            assert_eq!(log.lapses(), [TTL * 2 + ms(122)], "by drop: {by_drop}");
            assert_eq!(format!("{notifier:?}"), "Notifier(0 listeners)");
            pass(&time, TTL * 4, ms(100)).await;
            assert_eq!(
                (log.renewals(), log.releases(), log.lapses().len()),
                (renewals, 0, 1)
            );
            drop(store);
            log.until(1, |call| *call == Call::Dropped).await;
        }
    })
    .await;
}

/// The store's clock may run faster than ours: it is asked for 1 % and two milliseconds more than what is left, and for a second at most.
#[tokio::test]
async fn it_ends_no_sooner_by_a_faster_clock() {
    in_time(async {
        for (min, more) in [
            (ms(10), ms(2)),
            (TTL, ms(62)),
            (TTL * 16, ms(962)),
            (TTL * 1000, ms(1000)),
        ] {
            let (script, _, log) = Script::new();
            let store = script.lapses(async |_, _| Ok(())).store();
            store
                .lock("a")
                .min_hold(min)
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
            let asked = log.lapses()[0];
            assert!(
                asked >= min + more && asked < min + more + ms(1),
                "{min:?}: {asked:?}"
            );
        }
    })
    .await;
}

/// After `min_hold`, and for a hold that was lost, it is a release as any.
#[tokio::test]
async fn only_within_min_hold_and_only_what_is_ours() {
    in_time(async {
        let (script, time, log) = Script::new();
        let notifier = script.notifier();
        let store = script.lapses(async |_, _| Ok(())).store();
        let guard = store.lock("a").min_hold(TTL).acquire().await.unwrap();
        pass(&time, TTL, ms(100)).await;
        guard.release().await.unwrap();
        let guard = store.lock("b").min_hold(TTL).acquire().await.unwrap();
        let Some(Call::Claim(id)) = log
            .calls()
            .into_iter()
            .rfind(|call| matches!(call, Call::Claim(_)))
        else {
            panic!()
        };
        notifier.lost(id, Loss::Evicted);
        assert_eq!(
            guard.release().await.unwrap_err().loss(),
            Some(Loss::Evicted)
        );
        log.until_released(2).await;
        assert!(log.lapses().is_empty());
    })
    .await;
}

/// Unanswered, it is asked again with what is left by then. It is renewed only when it would end before.
#[tokio::test]
async fn it_is_asked_until_it_answers() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .lapses(async |_, n| {
                if n < 3 {
                    error(ErrorKind::Ambiguous)
                } else {
                    Ok(())
                }
            })
            .store();
        let guard = store.lock("a").min_hold(TTL * 2).acquire().await.unwrap();
        driven(&time, guard.release()).await.unwrap();
        pass(&time, TTL * 4, ms(10)).await;
        let rests = log.lapses();
        assert_eq!(rests.len(), 4, "{rests:?}");
        assert!(
            rests.windows(2).all(|pair| pair[1] < pair[0]) && rests[3] > TTL * 2 - ms(500),
            "{rests:?}"
        );
        assert_eq!((log.renewals(), log.releases()), (0, 0));
    })
    .await;
}

/// A store that never answers, or says that it cannot after all: renewed until the end, and released then.
#[tokio::test]
async fn without_an_answer_it_is_renewed_until_then() {
    in_time(async {
        for kind in [
            None,
            Some(ErrorKind::Unavailable),
            Some(ErrorKind::Unsupported),
        ] {
            let (script, time, log) = Script::new();
            let store = script
                .lapses(move |_, _| async move {
                    match kind {
                        Some(kind) => error(kind),
                        None => std::future::pending().await,
                    }
                })
                .store();
            let start = time.clock().now();
            drop(store.lock("a").min_hold(TTL * 3).acquire().await.unwrap());
            driven(&time, log.until_released(1)).await;
            let took = time.clock().now().since(start);
            assert!(
                took >= TTL * 3 && took < TTL * 3 + ms(100),
                "{kind:?}: {took:?}"
            );
            let mut last = start;
            for (at, _) in log.batches() {
                assert!(at.since(last) < TTL, "{kind:?}: it would have ended before");
                last = at;
            }
            assert!(time.clock().now().since(last) < TTL, "{kind:?}");
            drop(store);
            driven(&time, log.until(1, |call| *call == Call::Dropped)).await;
        }
    })
    .await;
}

/// What the store may have let lapse, though its answer was lost, is not released before its time because it is gone then.
#[tokio::test]
async fn what_has_lapsed_unheard_is_not_released() {
    in_time(async {
        let (script, time, log) = Script::new();
        let script = script
            .lapses(async |_, _| std::future::pending().await)
            .renewals(async |all, _| {
                Ok(all
                    .iter()
                    .map(|_| leasehold_core::backend::Renewal::Lost(Loss::Gone))
                    .collect())
            });
        let store = script.store();
        drop(store.lock("a").min_hold(TTL * 3).acquire().await.unwrap());
        pass(&time, TTL * 4, ms(100)).await;
        assert_eq!((log.lapses().len(), log.releases()), (1, 0));
        drop(store);
        driven(&time, log.until(1, |call| *call == Call::Dropped)).await;
    })
    .await;
}

/// A renewal that is due while the store is asked waits: it could come after the answer.
#[tokio::test]
async fn nothing_is_renewed_that_is_to_lapse() {
    in_time(async {
        let (script, time, log) = Script::new();
        let clock = time.clock();
        let script = script.lapses(move |_, _| {
            let clock = clock.clone();
            async move {
                clock.sleep(TTL / 2).await;
                Ok(())
            }
        });
        let store = script.store();
        let other = store.lock("b").acquire().await.unwrap();
        drop(store.lock("a").min_hold(TTL * 3).acquire().await.unwrap());
        pass(&time, TTL * 2, ms(100)).await;
        assert!(
            log.renewals() > 3 && log.batches().iter().all(|(_, ids)| ids.len() == 1),
            "{:?}",
            log.batches()
        );
        assert!(other.is_valid());
    })
    .await;
}

/// A task that waits for a turn of it goes to the store and waits there, and so does its owner.
#[tokio::test]
async fn no_task_of_this_client_gets_it_sooner() {
    in_time(async {
        let (script, _time, log) = Script::new();
        let store = script.lapses(async |_, _| Ok(())).store();
        let lock = store.lock("a").fast();
        let first = lock.clone().min_hold(TTL).acquire().await.unwrap();
        let second = tokio::spawn(lock.acquire());
        settle().await;
        first.release().await.unwrap();
        drop(second.await.unwrap().unwrap());
        log.until_released(1).await;
        assert_eq!((log.claims(), log.lapses().len()), (2, 1));

        let owned = store.lock("b").min_hold(TTL).owner(&Owner::new());
        let (outer, inner) = (
            owned.acquire().await.unwrap(),
            owned.acquire().await.unwrap(),
        );
        outer.release().await.unwrap();
        assert_eq!(log.lapses().len(), 1, "another guard holds it");
        drop(inner);
        drop(owned.acquire().await.unwrap());
        settle().await;
        assert_eq!((log.claims(), log.lapses().len()), (4, 3));
    })
    .await;
}

/// `close` waits for the store's answer, not for `min_hold`; and if that does not come, it does not end it before.
#[tokio::test]
async fn close_waits_for_the_word() {
    in_time(async {
        for answers in [true, false] {
            let (script, time, log) = Script::new();
            let script = script.lapses(move |_, _| async move {
                if answers {
                    Ok(())
                } else {
                    std::future::pending().await
                }
            });
            let store = script.store();
            let start = time.clock().now();
            drop(store.lock("a").min_hold(TTL * 9).acquire().await.unwrap());
            let closed = driven(&time, store.close(TTL)).await;
            assert_eq!(
                closed.map_err(|e| e.kind()),
                if answers {
                    Ok(())
                } else {
                    Err(ErrorKind::Ambiguous)
                }
            );
            assert!(
                time.clock().now().since(start) <= if answers { ms(100) } else { TTL + ms(100) }
            );
            settle().await;
            assert_eq!(log.releases(), 0);
        }
    })
    .await;
}

/// The runtime ends while the store is asked: another one asks again, and if there is none the lease ends it.
#[test]
fn a_runtime_ends_while_the_store_is_asked() {
    for dropped in [false, true] {
        let (script, time, log) = Script::new();
        let script = script.lapses(async |_, n| {
            if n == 0 {
                std::future::pending().await
            } else {
                Ok(())
            }
        });
        let store = script.store();
        let (first, second) = (runtime(), runtime());
        second.block_on(store.list("", None, 1)).unwrap();
        let guard = first
            .block_on(store.lock("a").min_hold(TTL * 3).acquire())
            .unwrap();
        if dropped {
            first.block_on(async {
                drop(guard);
                settle().await;
            });
        } else {
            let releasing = first.spawn(guard.release());
            first.block_on(settle());
            assert!(!releasing.is_finished());
        }
        assert_eq!(log.lapses().len(), 1);
        drop(store);
        drop(first);
        second.block_on(in_time(async {
            driven(&time, log.until(1, |call| *call == Call::Dropped)).await;
        }));
        assert_eq!(
            (log.lapses().len(), log.releases()),
            (2, 0),
            "dropped: {dropped}"
        );
    }
}

/// One that cannot after all: the release has succeeded, and the hold is renewed as any other until its `min_hold` is over.
#[tokio::test]
async fn a_store_that_cannot_has_no_reason_to_fail_a_release() {
    in_time(async {
        let (script, time, log) = Script::new();
        let store = script
            .lapses(async |_, _| error(ErrorKind::Unsupported))
            .store();
        store
            .lock("a")
            .min_hold(TTL * 2)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        pass(&time, TTL - ms(100), ms(100)).await;
        assert_eq!(
            (log.renewals(), log.releases(), log.lapses().len()),
            (2, 0, 1)
        );
        driven(&time, log.until_released(1)).await;
    })
    .await;
}
