//! A hold that the store may have forgotten: it is confirmed before more of this process comes to rely on it.

use leasehold_core::backend::{Claimed, Notifier, VirtualClock};
use leasehold_core::{Contention, ErrorKind, Loss, Owner};

use crate::script::{Call, Script, TTL, driven, error, granted, in_time, ms, settle, turns};

/// The connection broke just now; then some time passes.
fn interrupt(notifier: &Notifier, time: &VirtualClock) {
    notifier.interrupted(time.clock().now());
    time.advance(ms(1));
}

#[tokio::test]
async fn an_owner_enters_again_once_the_store_has_confirmed() {
    let (script, time, log) = Script::new();
    let notifier = script.notifier();
    let lock = script
        .claims(async |claim, _| Ok(granted(&claim, 1)))
        .store()
        .lock("a")
        .owner(&Owner::new());
    let first = lock.acquire().await.unwrap();
    drop(lock.acquire().await.unwrap());
    assert_eq!(log.claims(), 1, "nothing is in doubt");
    interrupt(&notifier, &time);
    for acquire in [
        lock.acquire(),
        lock.try_acquire(),
        lock.acquire_timeout(TTL),
    ] {
        assert_eq!(
            in_time(acquire).await.unwrap().fencing_token(),
            first.fencing_token()
        );
        assert_eq!(log.claims(), 2, "it is confirmed once");
    }
    interrupt(&notifier, &time);
    drop(in_time(lock.try_acquire()).await.unwrap());
    assert_eq!(log.claims(), 3);
}

/// A store that does not answer is asked thirty times in a lease.
#[tokio::test]
async fn an_owner_asks_until_the_store_answers() {
    in_time(async {
        let (script, time, log) = Script::new();
        let notifier = script.notifier();
        let script = script.claims(async |claim, n| match n {
            1..=3 => error(ErrorKind::Unavailable),
            _ => Ok(granted(&claim, 1)),
        });
        let lock = script.store().lock("a").owner(&Owner::new());
        let first = lock.acquire().await.unwrap();
        interrupt(&notifier, &time);
        let again = driven(&time, lock.acquire()).await.unwrap();
        assert_eq!(again.fencing_token(), first.fencing_token());
        let asked = log.instants(|call| matches!(call, Call::Claim(_)));
        let pauses: Vec<_> = asked[1..]
            .windows(2)
            .map(|two| two[1].since(two[0]))
            .collect();
        assert_eq!(pauses.len(), 3);
        assert!(
            pauses
                .iter()
                .all(|pause| *pause >= TTL / 30 && *pause < TTL / 30 + ms(20)),
            "{pauses:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_hold_that_was_forgotten_is_taken_anew() {
    in_time(async {
        let (script, time, _log) = Script::new();
        let notifier = script.notifier();
        let script = script.claims(async |claim, n| match n {
            1 => Ok(Claimed::Busy(Contention::by("another"))),
            _ => Ok(granted(&claim, n as u64 + 1)),
        });
        let lock = script.store().lock("a").owner(&Owner::new());
        let first = lock.acquire().await.unwrap();
        interrupt(&notifier, &time);
        let anew = driven(&time, lock.acquire()).await.unwrap();
        assert_eq!(
            (first.fencing_token().get(), anew.fencing_token().get()),
            (1, 3)
        );
        assert_eq!(first.release().await.unwrap_err().loss(), Some(Loss::Gone));
        assert!(anew.is_valid());
    })
    .await;
}

/// No task of this process gets the next turn of it: it is given back, and the next one claims in the store.
#[tokio::test]
async fn a_turn_is_not_passed_on_in_doubt() {
    in_time(async {
        let (script, time, log) = Script::new();
        let notifier = script.notifier();
        let lock = script
            .claims(async |claim, n| Ok(turns(&claim, n)))
            .store()
            .lock("a")
            .fast();
        for (doubt, claims) in [(false, 1), (true, 2)] {
            let first = lock.acquire().await.unwrap();
            let before = log.claims();
            let second = tokio::spawn(lock.acquire());
            settle().await;
            if doubt {
                interrupt(&notifier, &time);
            }
            first.release().await.unwrap();
            drop(second.await.unwrap().unwrap());
            assert_eq!(log.claims() + 1 - before, claims, "in doubt: {doubt}");
            settle().await;
        }
    })
    .await;
}

/// Two guards share a hold. The one that goes first says what the other says: that it was lost before.
#[tokio::test]
async fn each_guard_of_a_lost_hold_says_so() {
    let (script, _time, log) = Script::new();
    let notifier = script.notifier();
    let lock = script.store().lock("a").owner(&Owner::new());
    for lost in [false, true] {
        let guards = [lock.acquire().await.unwrap(), lock.acquire().await.unwrap()];
        let Some(Call::Claim(id)) = log
            .calls()
            .into_iter()
            .rfind(|call| matches!(call, Call::Claim(_)))
        else {
            panic!("{:?}", log.calls())
        };
        if lost {
            notifier.lost(id, Loss::Evicted);
        }
        for guard in guards {
            let loss = guard.release().await.err().and_then(|e| e.loss());
            assert_eq!(loss, lost.then_some(Loss::Evicted));
        }
    }
}
