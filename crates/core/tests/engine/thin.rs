//! What is thin over a lock: semaphores, elections, bodies that run while it is held. What they refuse unsent, and what they send.

use std::fmt;
use std::time::Duration;

use leasehold_core::{
    ErrorKind, FencingToken, Lease, LockQueue, Loss, Lost, MAX_VALUE_BYTES, Owner, Participant,
};

use crate::script::{Script, TTL, error, granted, in_time, settle};

#[tokio::test]
async fn permits_that_will_never_be_free_are_refused_unsent() {
    let (script, _time, log) = Script::new();
    let store = script.store();
    for (n, of, says) in [
        (1, 0, "at least one permit"),
        (0, 3, "zero permits"),
        (4, 3, "4 of 3 permits"),
    ] {
        let refused = store
            .semaphore("a", of)
            .permits(n)
            .acquire()
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().contains(says), "{refused}");
    }
    assert_eq!(log.claims(), 0);
    for n in 1..=3 {
        store
            .semaphore("a", 3)
            .permits(n)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    assert_eq!(log.claims(), 3);
}

#[tokio::test]
async fn an_election_shows_its_leader_and_its_candidates() {
    let (script, _time, log) = Script::new();
    let leads = Participant::new("one").token(FencingToken::new(7));
    let queue = LockQueue::new(vec![leads], vec![Participant::new("two")]);
    let store = script
        .inspects(move |_, _| std::future::ready(Ok(queue.clone())))
        .store();
    let election = store.election("a");
    let leader = election.leader().await.unwrap().unwrap();
    assert_eq!((leader.value.as_str(), leader.token.get()), ("one", 7));
    let shown = election.inspect().await.unwrap();
    for shown in [
        shown,
        store.rw_lock("a").inspect().await.unwrap(),
        store.semaphore("a", 2).inspect().await.unwrap(),
    ] {
        assert_eq!(
            (
                &*shown.holders[0].label.clone().unwrap(),
                shown.waiters.len()
            ),
            ("one", 1)
        );
    }
    assert_eq!(log.inspects(), 4);
}

#[tokio::test]
async fn a_leader_that_resigns_has_given_it_back() {
    let (script, time, log) = Script::new();
    let election = script.store().election("a");
    let leadership = election
        .campaign("x".repeat(MAX_VALUE_BYTES))
        .await
        .unwrap();
    leadership.resign().await.unwrap();
    assert_eq!(log.releases(), 1);
    let leadership = election.campaign("one").await.unwrap();
    time.advance(TTL);
    assert_eq!(
        leadership.resign().await.unwrap_err().loss(),
        Some(Loss::Expired)
    );
}

/// A double of a test: what a resource asks of it is what the trait computes.
#[derive(Debug)]
struct Double(Option<Loss>);

impl Lease for Double {
    fn loss(&self) -> Option<Loss> {
        self.0
    }
    fn remaining(&self) -> Duration {
        Duration::ZERO
    }
    fn lost(&self) -> Lost {
        unreachable!("nobody waits")
    }
}

#[test]
fn a_double_is_valid_until_its_loss() {
    assert!(Double(None).is_valid());
    assert!(!Double(Some(Loss::Evicted)).is_valid());
}

#[tokio::test]
async fn a_release_that_fails_is_no_error_of_the_body_and_a_loss_is() {
    let (script, time, _log) = Script::new();
    let store = script
        .releases(|_, _| std::future::ready(error(ErrorKind::Denied)))
        .store();
    let guard = store.lock("a").acquire().await.unwrap();
    assert_eq!(in_time(guard.run(async |_| 7)).await.unwrap(), 7);
    // The lease ends while the body runs, which ends at once: nothing has seen the loss before the release.
    let guard = store.lock("b").acquire().await.unwrap();
    let lost = in_time(guard.run(async |_| time.advance(TTL)))
        .await
        .unwrap_err();
    assert_eq!(
        (lost.loss(), lost.name().map(|name| name.as_str())),
        (Some(Loss::Expired), Some("b"))
    );
}

#[tokio::test]
async fn a_writer_that_shares_its_hold_stays_one() {
    let (script, _time, log) = Script::new();
    let lock = script
        .claims(async |claim, _| Ok(granted(&claim, 1)))
        .store()
        .rw_lock("a");
    let lock = lock.owner(&Owner::new());
    let guard = lock.write().acquire().await.unwrap();
    let another = lock.write().acquire().await.unwrap();
    let refused = guard.downgrade().await.unwrap_err();
    assert_eq!(
        (refused.kind(), refused.name().map(|name| name.as_str())),
        (ErrorKind::Invalid, Some("a"))
    );
    assert_eq!(log.claims(), 1, "nothing was sent");
    drop(lock.write().acquire().await.unwrap()); // it is exclusive as before
    drop(another);
    guard.downgrade().await.unwrap();
    let beside = lock.read().acquire().await.unwrap();
    guard.downgrade().await.unwrap(); // of readers, any number share it
    drop(beside);
    assert_eq!(
        lock.write().acquire().await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
}

#[tokio::test]
async fn an_owner_of_many_names_enters_each_again() {
    let (script, _time, log) = Script::new();
    let (store, owner) = (script.store(), Owner::new());
    let mut guards = Vec::new();
    for i in 0..100 {
        guards.push(
            store
                .lock(("a", i))
                .owner(&owner)
                .try_acquire()
                .await
                .unwrap(),
        );
    }
    for (i, first) in guards.iter().enumerate() {
        let again = store
            .lock(("a", i))
            .owner(&owner)
            .try_acquire()
            .await
            .unwrap();
        assert_eq!(again.fencing_token(), first.fencing_token());
    }
    assert_eq!(log.claims(), 100);
}

/// One of its tasks is entering: another one waits for that, and sends no claim of its own, however many names came meanwhile.
#[tokio::test]
async fn an_owner_does_not_compete_with_itself() {
    let (script, _time, log) = Script::new();
    let script = script.claims(async |claim, n| {
        if claim.name.as_str() == "a" {
            std::future::pending().await
        } else {
            Ok(granted(&claim, n as u64 + 1))
        }
    });
    let (store, owner) = (script.store(), Owner::new());
    let entering = tokio::spawn(store.lock("a").owner(&owner).acquire());
    settle().await;
    let mut guards = Vec::new();
    for i in 0..100 {
        guards.push(store.lock(("b", i)).owner(&owner).acquire().await.unwrap());
    }
    assert_eq!(
        store
            .lock("a")
            .owner(&owner)
            .try_acquire()
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Contended
    );
    assert_eq!(log.claims(), 101);
    entering.abort();
}

/// The text that a type shows.
fn shown(value: &impl fmt::Debug) -> String {
    format!("{value:?}")
}

#[tokio::test]
async fn what_is_held_shows_its_lock_its_token_and_its_end() {
    let (script, _time, log) = Script::new();
    let store = script.store().namespace("billing");
    let acquire = store.lock("a").acquire();
    assert_eq!(shown(&acquire), "Acquire");
    let guard = acquire.await.unwrap();
    let view = guard.view();
    let secret = log.first_id().to_string();
    assert_eq!(shown(&view), "Held { name: \"a\", token: 1, loss: None }");
    assert_eq!(shown(&guard), format!("Guard({})", shown(&view)));
    assert_eq!(shown(&guard.lost()), "Lost");
    guard.release().await.unwrap();
    assert_eq!(
        shown(&view),
        "Held { name: \"a\", token: 1, loss: Some(Released) }"
    );
    let leadership = store.election("b").campaign("one").await.unwrap();
    assert_eq!(
        shown(&leadership),
        "Leadership(Held { name: \"b\", token: 2, loss: None })"
    );
    let several = store.multi_lock(["c", "d"]).acquire().await.unwrap();
    let texts = [shown(&leadership), shown(&several), shown(&store)];
    assert!(
        ["\"c\"", "\"d\""]
            .iter()
            .all(|name| texts[1].contains(name)),
        "{texts:?}"
    );
    assert!(
        ["Script", "billing"]
            .iter()
            .all(|part| texts[2].contains(part)),
        "{texts:?}"
    );
    assert!(
        texts
            .iter()
            .all(|text| !text.contains(&secret) && !text.contains("at billing")),
        "{texts:?}"
    );
}

#[test]
fn the_blocking_types_show_the_same() {
    let (script, _time, _log) = Script::new();
    let store = script.store();
    let store = leasehold_core::blocking::Store::open(async { Ok(store) }).unwrap();
    assert!(shown(&store).contains("Script"), "{store:?}");
    let guard = store.lock("a").acquire().unwrap();
    assert_eq!(
        shown(&guard),
        "Guard(Held { name: \"a\", token: 1, loss: None })"
    );
    let owners = [Owner::new(), Owner::new()];
    assert!(
        shown(&owners[0]) != shown(&owners[1]) && shown(&owners[0]) == shown(&owners[0].clone())
    );
}
