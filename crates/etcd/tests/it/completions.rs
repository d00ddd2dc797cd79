//! Work that is done once: who is told that it is done, and when; what a completion that is late,
//! lost or repeated does; and what is left of completions.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use etcd_client::GetOptions;
use futures_util::future::join_all;
use futures_util::poll;
use leasehold_core::backend::{
    Backend, Claim, Claimed, Complete, Completed, Completions, Grant, LeaseRef, Moment,
    Notification, Place, Renewal, WaitPolicy,
};
use leasehold_core::{Completion, ErrorKind, FencingToken, Keep, MAX_RESULT_BYTES, Name};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const KEEP: Keep = Keep::For(Duration::from_secs(600));
const SHORT: Duration = Duration::from_secs(2);

fn once(name: &str) -> Claim {
    fair(name).once(0)
}

fn of_fire(name: &str, fire: u64) -> Claim {
    fair(name).once(fire)
}

#[track_caller]
fn done(answer: leasehold_core::Result<Claimed>) -> Completion {
    match answer {
        Ok(Claimed::Done(completion)) => completion,
        other => panic!("not told that it is done: {other:?}"),
    }
}

fn request(grant: &Grant, keep: Keep) -> Complete {
    Complete::new(grant.token, grant.place.clone(), keep)
}

#[track_caller]
fn completed(answer: leasehold_core::Result<Completed>) -> Completion {
    match answer {
        Ok(Completed::Done(completion)) => completion,
        other => panic!("not completed: {other:?}"),
    }
}

#[track_caller]
fn not_held(answer: &leasehold_core::Result<Completed>) {
    assert!(matches!(answer, Ok(Completed::NotHeld)), "{answer:?}");
}

/// Takes the lock and completes the work.
async fn do_once(etcd: &Etcd, claim: &Claim, keep: Keep) -> (Grant, Completion) {
    let grant = becomes_granted(etcd, claim).await;
    let completion = completed(etcd.complete(claim, &request(&grant, keep)).await);
    (grant, completion)
}

/// The hints that the claim gets.
fn hints(etcd: &Etcd, claim: &Claim) -> (UnboundedReceiver<Notification>, impl Sized + use<>) {
    let (to, hints) = unbounded_channel();
    let notifier = etcd.notifier().unwrap();
    let listens = notifier.subscribe(claim.id, move |hint| drop(to.send(hint)));
    (hints, listens)
}

fn done_key(name: &str) -> String {
    format!("test/%done/{name}")
}

/// The key of the completion, with its lease and its revisions.
async fn stored(server: &testbed::Etcd, name: &str) -> Option<etcd_client::KeyValue> {
    let read = raw(server).await.get(done_key(name), None).await.unwrap();
    read.kvs().first().cloned()
}

/// Until there are only so many leases: those of the sessions, and those of completions.
async fn until_leases(server: &testbed::Etcd, n: usize) {
    while server.lease_count().await.unwrap() != n {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until_gone(server: &testbed::Etcd, key: &str) {
    while !keys(server, key).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn ends(etcd: &Etcd, claim: &Claim, grant: &Grant, keep: Keep) {
    completed(etcd.complete(claim, &request(grant, keep)).await);
}

#[tokio::test]
async fn done_is_told_to_each_kind_of_claim_and_leaves_no_place() {
    within(60, async {
        let server = server().await;
        let (etcd, other) = (client(server.addr()).await, client(server.addr()).await);
        let holder = once("a");
        let grant = granted(etcd.claim(&holder).await);
        // One waits before the work is done, and one of the same client.
        let waiters = [once("a"), once("a")];
        waiting(other.claim(&waiters[0]).await);
        waiting(etcd.claim(&waiters[1]).await);
        let mut ask = request(&grant, KEEP);
        ask.result = Some("42 rows".into());
        let told = completed(etcd.complete(&holder, &ask).await);
        assert_eq!(
            (
                told.token,
                &*told.label,
                told.fire,
                told.result.as_deref(),
                told.is_cut
            ),
            (grant.token, "test", 0, Some("42 rows"), false)
        );
        assert!(
            told.left
                .is_some_and(|left| left <= Duration::from_secs(600))
        );
        let all = [
            other.claim(&waiters[0]).await,
            etcd.claim(&waiters[1]).await,
            other.claim(&claim("a", WaitPolicy::Try, TTL).once(0)).await,
            other.claim(&once("a")).await,
            etcd.claim(&once("a")).await,
            // A late request of the claim that has done it.
            etcd.claim(&holder).await,
            // A new client, which has no lease.
            client(server.addr()).await.claim(&once("a")).await,
        ];
        for answer in all {
            let answer = done(answer);
            assert_eq!(
                (answer.token, answer.result.as_deref()),
                (grant.token, Some("42 rows"))
            );
        }
        assert!(keys(&server, "test/a/").await.is_empty());
        // It ends no lock, and a lock does not look at it.
        let lock = fair("a");
        assert!(granted(etcd.claim(&lock).await).token > grant.token);
        assert!(matches!(
            other.claim(&claim("a", WaitPolicy::Try, TTL)).await,
            Ok(Claimed::Busy(_))
        ));
        done(other.claim(&once("a")).await);
        assert_eq!(keys(&server, "test/a/").await.len(), 1);
        release(&etcd, &lock).await;
    })
    .await;
}

#[tokio::test]
async fn a_completion_that_is_asked_for_again_is_the_same_and_extends_nothing() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let claim = once("a");
        let grant = granted(etcd.claim(&claim).await);
        let ask = request(&grant, KEEP);
        let first = completed(etcd.complete(&claim, &ask).await);
        let before = stored(&server, "a").await.unwrap();
        until_leases(&server, 2).await;
        for keep in [KEEP, Keep::For(Duration::from_secs(9999)), Keep::Forever] {
            let again = completed(etcd.complete(&claim, &request(&grant, keep)).await);
            assert_eq!((again.token, again.at), (first.token, first.at));
        }
        let after = stored(&server, "a").await.unwrap();
        assert_eq!(
            (after.mod_revision(), after.lease(), after.value()),
            (before.mod_revision(), before.lease(), before.value())
        );
        until_leases(&server, 2).await;
        // Another client's is no answer to it.
        not_held(&etcd.complete(&once("a"), &ask).await);
        not_held(&client(server.addr()).await.complete(&once("a"), &ask).await);
    })
    .await;
}

#[tokio::test]
async fn only_the_hold_with_the_token_is_completed() {
    within(60, async {
        let server = server().await;
        let (etcd, other) = (client(server.addr()).await, client(server.addr()).await);
        let (claim, waiter) = (once("a"), once("a"));
        let grant = granted(etcd.claim(&claim).await);
        let place = waiting(other.claim(&waiter).await).place;
        for wrong in [-256, -1, 1, 7, 256] {
            let mut ask = request(&grant, KEEP);
            ask.token = FencingToken::new(grant.token.get().checked_add_signed(wrong).unwrap());
            not_held(&etcd.complete(&claim, &ask).await);
            not_held(&etcd.complete(&waiter, &ask).await);
            // A waiter holds nothing.
            ask.place = place.clone();
            not_held(&other.complete(&waiter, &ask).await);
        }
        not_held(&other.complete(&claim, &request(&grant, KEEP)).await);
        assert!(stored(&server, "a").await.is_none());
        assert_eq!(keys(&server, "test/a/").await.len(), 2, "the hold goes on");
        ends(&etcd, &claim, &grant, KEEP).await;
        done(other.claim(&waiter).await);
        assert!(keys(&server, "test/a/").await.is_empty());
        until_leases(&server, 3).await;
    })
    .await;
}

/// Its session's lease has run out, and nobody has renewed it.
#[tokio::test]
async fn a_completion_after_a_lapse_or_another_grant_records_nothing() {
    within(60, async {
        let server = server().await;
        let (etcd, other) = (client(server.addr()).await, client(server.addr()).await);
        let late = claim("a", WaitPolicy::Fair, SHORT).once(0);
        let grant = granted(etcd.claim(&late).await);
        until_gone(&server, "test/a/").await;
        not_held(&etcd.complete(&late, &request(&grant, KEEP)).await);
        assert!(stored(&server, "a").await.is_none());
        let next = once("a");
        let after = granted(other.claim(&next).await);
        not_held(&etcd.complete(&late, &request(&grant, KEEP)).await);
        // It takes the lock anew: the old token is another hold's.
        release(&other, &next).await;
        let anew = becomes_granted(&etcd, &late).await;
        assert!(anew.token > after.token);
        not_held(&etcd.complete(&late, &request(&grant, KEEP)).await);
        assert!(stored(&server, "a").await.is_none());
        ends(&etcd, &late, &anew, KEEP).await;
        // After it was forgotten, the same request is late.
        assert!(other.forget(&"a".into(), anew.token).await.unwrap());
        not_held(&etcd.complete(&late, &request(&anew, KEEP)).await);
        assert!(stored(&server, "a").await.is_none());
    })
    .await;
}

/// An eviction has deleted the place in the same step as it has written its note.
#[tokio::test]
async fn an_evicted_hold_is_not_completed() {
    within(60, async {
        let server = server().await;
        let (etcd, operator) = (client(server.addr()).await, client(server.addr()).await);
        let claim = once("a");
        let grant = granted(etcd.claim(&claim).await);
        assert!(operator.evict(&"a".into(), grant.token).await.unwrap());
        not_held(&etcd.complete(&claim, &request(&grant, KEEP)).await);
        assert!(stored(&server, "a").await.is_none());
        assert!(granted(operator.claim(&once("a")).await).token > grant.token);
        until_leases(&server, 2).await;
    })
    .await;
}

#[tokio::test]
async fn a_completion_counts_for_its_fire_and_for_earlier_ones() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let (five, _) = do_once(&etcd, &of_fire("a", 5), KEEP).await;
        for fire in [0, 4, 5] {
            let told = done(etcd.claim(&of_fire("a", fire)).await);
            assert_eq!((told.token, told.fire), (five.token, 5));
        }
        for fire in [6, u64::MAX] {
            let later = of_fire("a", fire);
            granted(etcd.claim(&later).await);
            release(&etcd, &later).await;
        }
        // A later fire takes its place, and with it its lease: none is left of the earlier one.
        until_leases(&server, 2).await;
        let (sixteen, _) = do_once(&etcd, &of_fire("a", 16), KEEP).await;
        until_leases(&server, 2).await;
        assert_eq!(
            done(etcd.claim(&of_fire("a", 6)).await).token,
            sixteen.token
        );
        assert!(!etcd.forget(&"a".into(), five.token).await.unwrap());
        // An earlier one cannot, even with a hold that was granted blindly: see below.
        let (last, _) = do_once(&etcd, &of_fire("a", u64::MAX), Keep::Forever).await;
        until_leases(&server, 1).await;
        let told = done(etcd.claim(&of_fire("a", u64::MAX)).await);
        assert_eq!((told.token, told.left), (last.token, None));
    })
    .await;
}

/// Fifty clients wait, and one of them never asks. Each is told once by the completion's key.
#[tokio::test(flavor = "multi_thread")]
async fn all_who_wait_are_told_at_once_and_each_asks_once() {
    within(120, async {
        let server = server().await;
        let (etcd, lock) = (client(server.addr()).await, client(server.addr()).await);
        let holder = once("a");
        let grant = granted(etcd.claim(&holder).await);
        let mut waiters = Vec::new();
        for _ in 0..50 {
            let (client, claim) = (client(server.addr()).await, once("a"));
            let (hints, listens) = hints(&client, &claim);
            waiting(client.claim(&claim).await);
            waiters.push((client, claim, hints, listens));
        }
        // Behind them: a lock, and a later fire.
        let (locks, later) = (fair("a"), of_fire("a", 1));
        waiting(lock.claim(&locks).await);
        waiting(lock.claim(&later).await);
        // The watches are there.
        tokio::time::sleep(Duration::from_millis(500)).await;
        waiters
            .iter_mut()
            .for_each(|(_, _, hints, _)| while hints.try_recv().is_ok() {});
        let paused = waiters.pop().unwrap();
        let before = requests(&server).await;
        let begun = Moment::now();
        ends(&etcd, &holder, &grant, KEEP).await;
        let told = waiters
            .iter_mut()
            .map(|(client, claim, hints, _)| async move {
                let hint = hints.recv().await.unwrap();
                assert!(matches!(hint, Notification::ClaimAgain), "{hint:?}");
                done(client.claim(claim).await)
            });
        let told = within(20, join_all(told)).await;
        println!("{} told in {:?}", told.len(), Moment::now().since(begun));
        assert!(told.iter().all(|told| told.token == grant.token));
        let spent = requests_since(&server, &before).await;
        assert!(spent["Txn"] <= 51, "each asks once: {spent:?}");
        // The paused one keeps the others out, for no longer than its lease.
        assert_eq!(keys(&server, "test/a/").await.len(), 3);
        done(paused.0.claim(&paused.1).await);
        let next = becomes_granted(&lock, &locks).await;
        assert!(next.token > grant.token);
        release(&lock, &locks).await;
        becomes_granted(&lock, &later).await;
    })
    .await;
}

/// The hint comes between the answer of the claim and its watch, or before both.
#[tokio::test]
async fn a_completion_right_behind_a_claim_that_waits_is_heard() {
    within(120, async {
        let server = server().await;
        let (etcd, other) = (client(server.addr()).await, client(server.addr()).await);
        for i in 0..30 {
            let name = format!("a{i}");
            let (holder, waiter) = (once(&name), once(&name));
            let grant = granted(etcd.claim(&holder).await);
            let (mut hints, _listens) = hints(&other, &waiter);
            let ask = request(&grant, KEEP);
            let (answer, finished) = tokio::join!(other.claim(&waiter), async {
                for _ in 0..i {
                    tokio::task::yield_now().await;
                }
                etcd.complete(&holder, &ask).await
            });
            completed(finished);
            match answer.unwrap() {
                Claimed::Waiting(_) => {
                    hints.recv().await.unwrap();
                    done(other.claim(&waiter).await);
                }
                Claimed::Done(_) => {}
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn only_the_completion_with_the_token_is_forgotten() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let name = Name::from("a");
        assert!(!etcd.forget(&name, FencingToken::new(512)).await.unwrap());
        let (first, _) = do_once(&etcd, &once("a"), KEEP).await;
        assert!(etcd.forget(&name, first.token).await.unwrap());
        assert!(!etcd.forget(&name, first.token).await.unwrap());
        until_leases(&server, 1).await;
        assert!(etcd.completion(&name).await.unwrap().is_none());
        for keep in [KEEP, Keep::Forever] {
            let (second, _) = do_once(&etcd, &once("a"), keep).await;
            assert!(second.token > first.token);
            assert!(!etcd.forget(&name, first.token).await.unwrap());
            assert_eq!(
                etcd.completion(&name).await.unwrap().unwrap().token,
                second.token
            );
            done(etcd.claim(&once("a")).await);
            assert!(etcd.forget(&name, second.token).await.unwrap());
        }
        until_leases(&server, 1).await;
        assert_eq!(server.key_count().await.unwrap(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_keep_ends_and_not_too_soon_and_later_tokens_are_greater() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let keep = Duration::from_secs(3);
        let begun = Moment::now();
        let (first, told) = do_once(&etcd, &once("a"), Keep::For(keep)).await;
        assert!(told.left.is_some_and(|left| left <= keep));
        let told = Moment::now();
        let next = once("a");
        let again = loop {
            match etcd.claim(&next).await.unwrap() {
                Claimed::Granted(grant) => break grant,
                Claimed::Done(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                other => panic!("{other:?}"),
            }
        };
        let counted = Moment::now().since(told);
        println!("it counted for {counted:?} after {:?}", told.since(begun));
        assert!(counted >= keep, "it ended too soon: {counted:?}");
        assert!(counted < keep + Duration::from_secs(20));
        assert!(again.token > first.token);
    })
    .await;
}

/// The lease begins anew with the server: the completion counts longer than was asked for.
#[tokio::test]
async fn a_restart_keeps_completions_and_begins_their_time_anew() {
    within(120, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let keep = Keep::For(Duration::from_secs(600));
        let (first, _) = do_once(&etcd, &once("a"), keep).await;
        let (for_ever, _) = do_once(&etcd, &once("b"), Keep::Forever).await;
        let lease = stored(&server, "a").await.unwrap().lease();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let left = raw(&server)
            .await
            .lease_client()
            .time_to_live(lease, None)
            .await
            .unwrap();
        assert!(left.ttl() <= 598, "{left:?}");
        server.kill().await.unwrap();
        server.start_again().await.unwrap();
        for (name, token) in [("a", first.token), ("b", for_ever.token)] {
            let told = loop {
                match etcd.claim(&once(name)).await {
                    Err(e) => assert!(e.is_retryable(), "{e:?}"),
                    told => break done(told),
                }
            };
            assert_eq!(told.token, token);
        }
        let left = raw(&server)
            .await
            .lease_client()
            .time_to_live(lease, None)
            .await
            .unwrap();
        assert!((599..=601).contains(&left.ttl()), "{left:?}");
    })
    .await;
}

#[tokio::test]
async fn a_result_of_any_text_comes_back() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let long = "漢\u{1F512}\n\"' \\%\u{1}é".repeat(300);
        let results = [
            None,
            Some(""),
            Some("\n"),
            Some(&long[..long.floor_char_boundary(MAX_RESULT_BYTES)]),
        ];
        for (i, result) in results.into_iter().enumerate() {
            let name = format!("a{i}");
            let claim = once(&name).with_label("two\nlines of 漢");
            let grant = granted(etcd.claim(&claim).await);
            let mut ask = request(&grant, KEEP);
            ask.result = result.map(Arc::from);
            ask.is_cut = i == 3;
            completed(etcd.complete(&claim, &ask).await);
            let told = done(etcd.claim(&once(&name)).await);
            assert_eq!(
                (told.result.as_deref(), told.is_cut, &*told.label),
                (result, i == 3, "two\nlines of 漢")
            );
            let read = etcd.completion(&Name::from(&*name)).await.unwrap().unwrap();
            assert_eq!(read.result, told.result);
        }
    })
    .await;
}

/// A release hands the lock over by the deletion of a key, and looks at no completion. This is how
/// each older client and each other tool ends its hold.
#[tokio::test]
async fn a_hold_that_was_handed_over_blindly_ends_when_the_work_is_done() {
    within(60, async {
        let server = server().await;
        let (etcd, other) = (client(server.addr()).await, client(server.addr()).await);
        do_once(&etcd, &once("b"), KEEP).await;
        let value = stored(&server, "b").await.unwrap().value().to_vec();
        let record = async |name: &str| {
            raw(&server)
                .await
                .put(done_key(name), value.clone(), None)
                .await
                .unwrap();
        };
        // While it waits: the release makes it the first.
        let (lock, waiter) = (fair("a"), once("a"));
        granted(etcd.claim(&lock).await);
        let (mut hints, listens) = hints(&other, &waiter);
        waiting(other.claim(&waiter).await);
        record("a").await;
        release(&etcd, &lock).await;
        while let Some(hint) = hints.recv().await {
            assert!(
                !matches!(hint, Notification::Granted(_)),
                "only an answer grants"
            );
            if keys(&server, "test/a/").await.len() == 1 {
                break;
            }
        }
        // A renewal does not tell it that it holds, either.
        let place = Place::new(keys(&server, "test/a/").await.remove(0));
        let lease = LeaseRef::new(Arc::new(waiter.clone()), place, None);
        let renewal = renewals(&other, &[lease]).await;
        assert!(matches!(renewal[..], [Renewal::Renewed(_)]), "{renewal:?}");
        done(other.claim(&waiter).await);
        assert!(keys(&server, "test/a/").await.is_empty());
        drop(listens);
        // While it holds: its hold ends, and it completes nothing.
        let holder = once("c");
        let grant = granted(other.claim(&holder).await);
        record("c").await;
        done(other.claim(&holder).await);
        assert!(keys(&server, "test/c/").await.is_empty());
        not_held(&other.complete(&holder, &request(&grant, KEEP)).await);
        // While it completes: another's is not overwritten, and its hold ends.
        let holder = once("d");
        let grant = granted(other.claim(&holder).await);
        record("d").await;
        not_held(&other.complete(&holder, &request(&grant, KEEP)).await);
        assert_eq!(stored(&server, "d").await.unwrap().value(), value);
        assert!(keys(&server, "test/d/").await.is_empty());
        until_leases(&server, 3).await;
    })
    .await;
}

/// The answer of a claim that waits is on its way when the holder completes, and the mirror has
/// heard of that before: the answer is older than the completion, and must grant nothing.
#[tokio::test]
async fn an_answer_that_is_older_than_the_completion_grants_nothing() {
    within(120, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let (etcd, other) = (client(server.addr()).await, client(proxy.addr()).await);
        for i in 0..8 {
            let name = format!("a{i}");
            let (holder, first, second) = (once(&name), once(&name), once(&name));
            let grant = granted(etcd.claim(&holder).await);
            // Its mirror of the queue stands.
            waiting(other.claim(&first).await);
            tokio::time::sleep(Duration::from_millis(100)).await;
            let (answer, ()) = tokio::join!(other.claim(&second), async {
                while keys(&server, &format!("test/{name}/")).await.len() < 3 {
                    tokio::task::yield_now().await;
                }
                ends(&etcd, &holder, &grant, KEEP).await;
            });
            assert!(!matches!(answer, Ok(Claimed::Granted(_))), "{answer:?}");
            done(other.claim(&first).await);
            done(other.claim(&second).await);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_thousand_completions_whose_keeps_have_ended() {
    within(120, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let keep = Keep::For(SHORT);
        let etcd = &etcd;
        for part in 0..20 {
            let all = (0..50).map(|i| async move {
                do_once(etcd, &once(&format!("n/{}", part * 50 + i)), keep).await
            });
            join_all(all).await;
        }
        while server.key_count().await.unwrap() > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(
            etcd.list_completions("", None, 10)
                .await
                .unwrap()
                .is_empty()
        );
        assert!(etcd.list("", None, 10).await.unwrap().is_empty());
        etcd.close().await.unwrap();
        until_leases(&server, 0).await;
    })
    .await;
}

#[tokio::test]
async fn two_names_never_interact() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let names = [
            "a", "a/b", "a%2Fb", "%", "%done", "a!", "%done/a", "é漢", "a/", "/", "1f-0",
        ];
        let mut tokens = Vec::new();
        for name in names {
            for other in names {
                let is_done = tokens.iter().any(|(done, _)| *done == other);
                let claim = claim(other, WaitPolicy::Try, TTL).once(0);
                match etcd.claim(&claim).await.unwrap() {
                    Claimed::Done(_) => assert!(is_done, "{other} after {tokens:?}"),
                    Claimed::Granted(_) => assert!(!is_done, "{other} after {tokens:?}"),
                    answer => panic!("{answer:?}"),
                }
                release(&etcd, &claim).await;
            }
            tokens.push((name, do_once(&etcd, &once(name), KEEP).await.0.token));
        }
        tokens.sort_unstable();
        let list = async |prefix: &str, after: Option<&str>, limit| {
            let after = after.map(Name::from);
            let all = etcd
                .list_completions(prefix, after.as_ref(), limit)
                .await
                .unwrap();
            let all = all
                .into_iter()
                .map(|(name, done)| (name.as_str().to_owned(), done.token));
            all.collect::<Vec<_>>()
        };
        let wanted = |of: &dyn Fn(&str) -> bool| -> Vec<(String, FencingToken)> {
            let all = tokens.iter().filter(|(name, _)| of(name));
            all.map(|(name, token)| ((*name).to_owned(), *token))
                .collect()
        };
        assert_eq!(list("", None, 99).await, wanted(&|_| true));
        assert_eq!(
            list("a/", None, 99).await,
            wanted(&|name| name.starts_with("a/"))
        );
        assert_eq!(
            list("%", None, 99).await,
            wanted(&|name| name.starts_with('%'))
        );
        assert_eq!(
            list("", Some("a"), 3).await,
            wanted(&|name| name > "a")[..3]
        );
        assert!(etcd.list("", None, 99).await.unwrap().is_empty());
        // The other tools' queues: `etcdctl lock` waits for each key below its name and a slash.
        for key in keys(&server, "test/").await {
            assert!(key.starts_with("test/%done/"), "{key}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_done_key_costs_one_request_and_a_free_one_one_more_than_a_lock() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let (a, b) = (once("a"), fair("b"));
        let before = requests(&server).await;
        granted(etcd.claim(&b).await);
        release(&etcd, &b).await;
        let lock = requests_since(&server, &before).await;
        assert_eq!(
            lock,
            counts(&[("LeaseGrant", 1), ("Txn", 1), ("DeleteRange", 1)])
        );
        // With a live session.
        let before = requests(&server).await;
        let grant = granted(etcd.claim(&a).await);
        let got = requests_since(&server, &before).await;
        assert_eq!(got, counts(&[("Txn", 1)]));
        ends(&etcd, &a, &grant, KEEP).await;
        let all = requests_since(&server, &before).await;
        assert_eq!(all, counts(&[("LeaseGrant", 1), ("Txn", 2)]));
        let before = requests(&server).await;
        done(etcd.claim(&once("a")).await);
        assert_eq!(
            requests_since(&server, &before).await,
            counts(&[("Txn", 1)])
        );
        let c = once("c");
        let grant = granted(etcd.claim(&c).await);
        let before = requests(&server).await;
        ends(&etcd, &c, &grant, Keep::Forever).await;
        assert_eq!(
            requests_since(&server, &before).await,
            counts(&[("Txn", 1)])
        );
        // A client without a session needs no lease to hear that it is done.
        let new = client(server.addr()).await;
        let before = requests(&server).await;
        done(new.claim(&once("a")).await);
        assert_eq!(
            requests_since(&server, &before).await,
            counts(&[("Range", 1)])
        );
    })
    .await;
}

/// The reply is lost; the same request, asked again, is answered by the completion.
#[tokio::test]
async fn a_completion_whose_reply_is_lost_is_answered_once_more() {
    within(120, async {
        let server = server().await;
        for lost in [0x5a, 0] {
            let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
            let etcd = Etcd::connect(&format!("etcd://{}/test?timeout=1500", proxy.addr()))
                .await
                .unwrap();
            let name = format!("a{lost}");
            let claim = once(&name);
            let grant = becomes_granted(&etcd, &claim).await;
            let trap = proxy.lose_reply_matching(format!("%done/{name}"));
            let ask = request(&grant, KEEP);
            if lost == 0 {
                // The caller leaves, too.
                let mut asked = etcd.complete(&claim, &ask);
                while !trap.has_sprung() {
                    drop(poll!(&mut asked));
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                trap.done().await;
            }
            let first = loop {
                match etcd.complete(&claim, &ask).await {
                    Ok(Completed::Done(first)) => break first,
                    Ok(Completed::NotHeld) => panic!("it was completed"),
                    Err(e) => assert!(e.is_retryable(), "{e:?}"),
                }
            };
            assert!(trap.has_sprung());
            let kv = stored(&server, &name).await.unwrap();
            assert_eq!((kv.version(), first.token), (1, grant.token));
            assert_eq!(done(etcd.claim(&once(&name)).await).token, grant.token);
            assert!(keys(&server, &format!("test/{name}/")).await.is_empty());
            etcd.close().await.unwrap();
        }
        // Two completions, and no lease of an attempt that was not needed.
        until_leases(&server, 2).await;
    })
    .await;
}

/// A client with two ways to the server, whose first way is slow for the completion.
async fn two_ways(server: &testbed::Etcd) -> (testbed::Proxy, testbed::Proxy, Etcd) {
    let (one, two) = (
        testbed::Proxy::to(server.addr()).await.unwrap(),
        testbed::Proxy::to(server.addr()).await.unwrap(),
    );
    let url = format!("etcd://{},{}/test?timeout=1000", one.addr(), two.addr());
    let etcd = Etcd::connect(&url).await.unwrap();
    (one, two, etcd)
}

/// The request arrives when the completion has been forgotten, and another client holds.
#[tokio::test]
async fn a_late_request_to_complete_records_nothing() {
    within(120, async {
        let server = server().await;
        let (one, two, etcd) = two_ways(&server).await;
        let other = client(server.addr()).await;
        for keep in [KEEP, Keep::Forever] {
            let claim = claim("a", WaitPolicy::Fair, LONG).once(0);
            let grant = becomes_granted(&etcd, &claim).await;
            let traps = [&one, &two].map(|way| way.hold_matching("%done/a"));
            // Both ways are slow; a third attempt goes the first way again, on a new connection.
            let ask = request(&grant, keep);
            let first = loop {
                match etcd.complete(&claim, &ask).await {
                    Ok(Completed::Done(first)) => break first,
                    Ok(Completed::NotHeld) => panic!("it holds"),
                    Err(e) => assert!(e.is_retryable(), "{e:?}"),
                }
            };
            assert!(traps.iter().any(testbed::Trap::has_sprung));
            assert!(other.forget(&"a".into(), first.token).await.unwrap());
            let next = once("a");
            let after = granted(other.claim(&next).await);
            [&one, &two]
                .into_iter()
                .for_each(testbed::Proxy::deliver_held);
            for trap in traps.iter().filter(|trap| trap.has_sprung()) {
                trap.done().await;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(stored(&server, "a").await.is_none());
            assert_eq!(keys(&server, "test/a/").await, [after.place.as_str()]);
            release(&other, &next).await;
            [&one, &two].into_iter().for_each(testbed::Proxy::disarm);
        }
    })
    .await;
}

/// Asked again after another client has forgotten it, the store cannot know: an attempt stayed
/// unanswered.
#[tokio::test]
async fn not_held_after_an_attempt_without_an_answer_is_ambiguous() {
    within(120, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let etcd = Etcd::connect(&format!("etcd://{}/test?timeout=2000", proxy.addr()))
            .await
            .unwrap();
        let other = client(server.addr()).await;
        let held = claim("a", WaitPolicy::Fair, LONG).once(0);
        let grant = becomes_granted(&etcd, &held).await;
        let lost = proxy.hold_reply_matching("%done/a");
        let ask = request(&grant, KEEP);
        let (answer, ()) = tokio::join!(etcd.complete(&held, &ask), async {
            lost.sprung().await;
            while stored(&server, "a").await.is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            assert!(other.forget(&"a".into(), grant.token).await.unwrap());
        });
        match answer {
            Err(e) => assert_eq!(e.kind(), ErrorKind::Ambiguous, "{e:?}"),
            other => panic!("{other:?}"),
        }
        assert!(stored(&server, "a").await.is_none());
    })
    .await;
}

/// It arrives when the keep has passed. The session lives on.
#[tokio::test]
async fn a_late_claim_leaves_no_place_after_its_completion_and_after_its_keep() {
    within(120, async {
        let server = server().await;
        let (one, two, etcd) = two_ways(&server).await;
        let held = claim("b", WaitPolicy::Fair, LONG);
        becomes_granted(&etcd, &held).await;
        let traps = [&one, &two].map(|way| way.hold_matching("test/a/"));
        let claim = claim("a", WaitPolicy::Fair, LONG).once(0);
        let grant = becomes_granted(&etcd, &claim).await;
        assert!(traps.iter().any(testbed::Trap::has_sprung));
        let ask = request(&grant, Keep::For(SHORT));
        let mut answer = etcd.complete(&claim, &ask).await;
        while answer
            .as_ref()
            .is_err_and(leasehold_core::Error::is_retryable)
        {
            answer = etcd.complete(&claim, &ask).await;
        }
        completed(answer);
        until_gone(&server, "test/%done/").await;
        [&one, &two]
            .into_iter()
            .for_each(testbed::Proxy::deliver_held);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(keys(&server, "test/a/").await.is_empty());
    })
    .await;
}

/// It is never ignored, and never a reason to leave a place.
#[tokio::test]
async fn a_completion_that_cannot_be_read_is_told_and_not_ignored() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        do_once(&etcd, &of_fire("b", 7), KEEP).await;
        let value = stored(&server, "b")
            .await
            .unwrap()
            .value_str()
            .unwrap()
            .to_owned();
        let newer = value.replacen(" 1 ", " 2 ", 1);
        let id = value.split(' ').nth(3).unwrap().to_owned();
        for (i, junk) in ["", "!", "zzz", "0000000000000003 9 x", &newer]
            .iter()
            .enumerate()
        {
            let name = format!("a{i}");
            raw(&server)
                .await
                .put(done_key(&name), *junk, None)
                .await
                .unwrap();
            for claim in [
                of_fire(&name, 5),
                claim(&name, WaitPolicy::Try, TTL).once(9),
            ] {
                let e = etcd.claim(&claim).await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Internal, "{junk:?} {e:?}");
                assert!(!format!("{e:?} {e}").contains(&id));
                assert!(
                    keys(&server, &format!("test/{name}/")).await.is_empty(),
                    "{junk:?}"
                );
            }
            let read = etcd.completion(&Name::from(&*name)).await;
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Internal);
            let lock = fair(&name);
            granted(etcd.claim(&lock).await);
            release(&etcd, &lock).await;
        }
        assert!(!format!("{:?}", etcd.completion(&"b".into()).await).contains(&id));
    })
    .await;
}

/// Nothing is recorded, and nothing is left, until there is room.
#[tokio::test]
async fn a_server_that_is_full_records_nothing_until_there_is_room() {
    within(60, async {
        use etcd_client::{AlarmAction, AlarmType};
        let server = server().await;
        let etcd = client(server.addr()).await;
        let claim = once("a");
        let grant = granted(etcd.claim(&claim).await);
        let mut operator = raw(&server).await;
        let full = AlarmType::Nospace;
        operator
            .alarm(AlarmAction::Activate, full, None)
            .await
            .unwrap();
        for keep in [KEEP, Keep::Forever, KEEP] {
            let refused = etcd
                .complete(&claim, &request(&grant, keep))
                .await
                .unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused:?}");
            // No body begins whose work cannot be recorded.
            let refused = etcd.claim(&once("b")).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused:?}");
        }
        operator
            .alarm(AlarmAction::Deactivate, full, None)
            .await
            .unwrap();
        assert!(stored(&server, "a").await.is_none());
        ends(&etcd, &claim, &grant, KEEP).await;
        until_leases(&server, 2).await;
    })
    .await;
}

/// etcd grants none for longer.
#[tokio::test]
async fn a_keep_beyond_the_longest_lease_is_refused_and_the_hold_stays() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let claim = once("a");
        let grant = granted(etcd.claim(&claim).await);
        for keep in [Duration::from_secs(9_000_000_000), Duration::MAX] {
            let refused = etcd
                .complete(&claim, &request(&grant, Keep::For(keep)))
                .await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
        }
        let longest = Keep::For(Duration::from_secs(8_999_999_999));
        ends(&etcd, &claim, &grant, longest).await;
        until_leases(&server, 2).await;
    })
    .await;
}

/// The lease ends between its grant and its use, as after a restore or by hand.
#[tokio::test]
async fn a_lease_that_ends_before_it_is_used_is_granted_anew() {
    within(60, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let etcd = client(proxy.addr()).await;
        let claim = once("a");
        let grant = granted(etcd.claim(&claim).await);
        let session = raw(&server).await.lease_client().leases().await.unwrap();
        let session = session.leases()[0].id();
        let held = proxy.hold_matching("%done/a");
        let ask = request(&grant, KEEP);
        let (answer, ()) = tokio::join!(etcd.complete(&claim, &ask), async {
            held.sprung().await;
            let mut leases = raw(&server).await.lease_client();
            let all = leases.leases().await.unwrap();
            for lease in all.leases().iter().filter(|lease| lease.id() != session) {
                leases.revoke(lease.id()).await.unwrap();
            }
            proxy.deliver_held();
        });
        completed(answer);
        assert!(stored(&server, "a").await.unwrap().lease() != 0);
        until_leases(&server, 2).await;
        // The session ends while it completes: the place ends with it, and nothing is recorded.
        let late = once("b");
        let grant = granted(etcd.claim(&late).await);
        let held = proxy.hold_matching("%done/b");
        let ask = request(&grant, KEEP);
        let (answer, ()) = tokio::join!(etcd.complete(&late, &ask), async {
            held.sprung().await;
            raw(&server)
                .await
                .lease_client()
                .revoke(session)
                .await
                .unwrap();
            proxy.deliver_held();
        });
        not_held(&answer);
        assert!(stored(&server, "b").await.is_none());
        until_leases(&server, 1).await;
    })
    .await;
}

/// Many clients want one work at the same moment, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_come_at_once_one_does_the_work() {
    within(120, async {
        let server = server().await;
        let mut clients = Vec::new();
        for _ in 0..6 {
            clients.push(client(server.addr()).await);
        }
        for round in 0..20_u64 {
            let all = clients.iter().enumerate().map(|(i, etcd)| async move {
                let policy = if i % 3 == 0 {
                    WaitPolicy::Try
                } else {
                    WaitPolicy::Fair
                };
                let claim = claim("a", policy, TTL).once(round);
                loop {
                    match etcd.claim(&claim).await.unwrap() {
                        Claimed::Done(told) => return (0, told.token),
                        Claimed::Granted(grant) => {
                            tokio::task::yield_now().await;
                            ends(etcd, &claim, &grant, KEEP).await;
                            return (1, grant.token);
                        }
                        Claimed::Waiting(_) | Claimed::Busy(_) => tokio::task::yield_now().await,
                    }
                }
            });
            let ran = join_all(all).await;
            assert_eq!(ran.iter().map(|(ran, _)| ran).sum::<i32>(), 1, "{ran:?}");
            assert!(ran.iter().all(|(_, token)| *token == ran[0].1), "{ran:?}");
        }
        let left = raw(&server)
            .await
            .get("test/a/", Some(GetOptions::new().with_prefix()))
            .await
            .unwrap();
        assert_eq!(left.count(), 0);
        until_leases(&server, 7).await;
    })
    .await;
}
