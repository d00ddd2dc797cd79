//! What a holder may make of its claim: a reader's, or one with another value; and what a question about it may leave.

use leasehold_core::backend::{Claim, Mode, WaitPolicy};
use leasehold_core::{ErrorKind, Owner};
use std::sync::{Arc, Mutex};

use crate::script::{Log, Script, TTL, error, granted, in_time};

/// A script that grants, and keeps what it was asked; from the second claim on, `answer` may say something else.
fn asked(
    answer: impl Fn(usize) -> Option<ErrorKind> + Send + Sync + 'static,
) -> (
    Script,
    leasehold_core::backend::VirtualClock,
    Log,
    Arc<Mutex<Vec<Claim>>>,
) {
    let (script, time, log) = Script::new();
    let all = Arc::new(Mutex::new(Vec::new()));
    let kept = all.clone();
    let script = script.claims(move |claim, n| {
        let answer = answer(n).map_or_else(|| Ok(granted(&claim, 1)), error);
        kept.lock().unwrap().push(claim);
        async move { answer }
    });
    (script, time, log, all)
}

#[tokio::test]
async fn a_downgrade_is_the_same_claim_as_a_reader_and_stays_one() {
    let (script, _time, log, all) = asked(|_| None);
    let guard = script.store().rw_lock("a").write().acquire().await.unwrap();
    guard.downgrade().await.unwrap();
    guard.downgrade().await.unwrap();
    guard.confirm().await.unwrap();
    let all = all.lock().unwrap().clone();
    assert!(all.iter().all(|claim| claim.id == all[0].id));
    let modes: Vec<_> = all.iter().map(|claim| (claim.mode, claim.policy)).collect();
    let reader = (Mode::Shared, WaitPolicy::Try);
    assert_eq!(
        modes,
        [(Mode::Exclusive, WaitPolicy::Fair), reader, reader, reader]
    );
    assert_eq!(log.releases(), 0);
}

#[tokio::test]
async fn a_downgrade_of_which_nothing_is_known_counts_for_the_owner() {
    let (script, _time, _log, all) = asked(|n| (n == 1).then_some(ErrorKind::Ambiguous));
    let lock = script.store().rw_lock("a").owner(&Owner::new());
    let guard = lock.write().acquire().await.unwrap();
    assert_eq!(
        guard.downgrade().await.unwrap_err().kind(),
        ErrorKind::Ambiguous
    );
    // It may be shared by now: nobody enters to write.
    assert_eq!(
        lock.write().acquire().await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
    guard.confirm().await.unwrap();
    assert_eq!(all.lock().unwrap().last().unwrap().mode, Mode::Shared);
}

#[tokio::test]
async fn a_store_that_cannot_downgrade_leaves_it_exclusive() {
    for refusal in [ErrorKind::Unsupported, ErrorKind::Unavailable] {
        let (script, _time, _log, all) = asked(move |n| (n == 1).then_some(refusal));
        let lock = script.store().rw_lock("a").owner(&Owner::new());
        let guard = lock.write().acquire().await.unwrap();
        assert_eq!(guard.downgrade().await.unwrap_err().kind(), refusal);
        assert!(guard.is_valid());
        drop(lock.write().acquire().await.unwrap());
        guard.confirm().await.unwrap();
        assert_eq!(all.lock().unwrap().last().unwrap().mode, Mode::Exclusive);
    }
}

#[tokio::test]
async fn a_proclamation_is_the_same_claim_with_another_label() {
    let (script, time, log, all) = asked(|_| None);
    let leadership = script.store().election("a").campaign("one").await.unwrap();
    leadership.proclaim("two").await.unwrap();
    leadership.confirm().await.unwrap();
    let labels: Vec<_> = all
        .lock()
        .unwrap()
        .iter()
        .map(|claim| (claim.label.to_string(), claim.policy))
        .collect();
    let [two, again] = [
        ("two".to_owned(), WaitPolicy::Try),
        ("two".to_owned(), WaitPolicy::Try),
    ];
    assert_eq!(labels, [("one".to_owned(), WaitPolicy::Fair), two, again]);
    // One that is too long is not sent, nor is any after the loss.
    let sent = log.claims();
    assert_eq!(
        leadership
            .proclaim("x".repeat(4097))
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Invalid
    );
    time.advance(TTL);
    assert_eq!(
        leadership.proclaim("three").await.unwrap_err().kind(),
        ErrorKind::Lost
    );
    assert_eq!(log.claims(), sent);
}

/// The hold was gone and the name free: the question took it anew. It is given back before the answer, and nobody holds it.
#[tokio::test]
async fn a_question_that_takes_the_lock_anew_gives_it_back() {
    let (script, _time, log) = Script::new();
    let store = script
        .claims(|claim, n| async move { Ok(granted(&claim, n as u64 + 1)) })
        .store();
    let leadership = store.election("a").campaign("one").await.unwrap();
    assert_eq!(
        in_time(leadership.proclaim("two"))
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Lost
    );
    assert_eq!(log.releases(), 1);
    assert!(!leadership.is_valid());
    let guard = store.lock("b").acquire().await.unwrap();
    assert_eq!(
        in_time(guard.confirm()).await.unwrap_err().kind(),
        ErrorKind::Lost
    );
    assert_eq!(log.releases(), 2);
}

/// Downgrades that are asked for at the same time go one after the other: what the first learns holds for the second.
#[tokio::test]
async fn two_downgrades_do_not_interleave() {
    in_time(async {
        let (script, _time, _log) = Script::new();
        let refuse = Arc::new(tokio::sync::Notify::new());
        let refused = refuse.clone();
        let script = script.claims(move |claim, n| {
            let refused = refused.clone();
            async move {
                match n {
                    1 => {
                        refused.notified().await;
                        error(ErrorKind::Unavailable)
                    }
                    _ => Ok(granted(&claim, 1)),
                }
            }
        });
        let lock = script.store().rw_lock("a").owner(&Owner::new());
        let guard = lock.write().acquire().await.unwrap();
        let (first, second, ()) = tokio::join!(guard.downgrade(), guard.downgrade(), async {
            crate::script::settle().await;
            refuse.notify_one();
        });
        assert_eq!(first.unwrap_err().kind(), ErrorKind::Unavailable);
        second.unwrap();
        // The store has it as a reader's: nobody of the owner enters to write.
        assert_eq!(
            lock.write().acquire().await.unwrap_err().kind(),
            ErrorKind::Invalid
        );
        drop(lock.read().acquire().await.unwrap());
    })
    .await;
}
