//! Completions: what is told of work that is done, and to whom, on a real server.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use futures_util::future::join_all;
use leasehold_core::backend::{
    Backend, Claim, Claimed, Complete, Completed, Completions, Grant, Moment, Notification,
};
use leasehold_core::{Completion, ErrorKind, FencingToken, Keep, Name};
use leasehold_testbed::{Proxy, ZooKeeper as Server, ZooKeeperOptions};
use leasehold_zookeeper::ZooKeeper;
use tokio::sync::mpsc;
use zookeeper_client::{Acls, Client, CreateMode, Error as ZkError};

/// Long enough for a test.
const KEEP: Keep = Keep::For(Duration::from_secs(600));

fn once(name: &str) -> Claim {
    fair(name, LONG).once(0)
}

fn at_once(name: &str) -> Claim {
    trying(name, LONG).once(0)
}

fn of(grant: &Grant, keep: Keep) -> Complete {
    Complete::new(grant.token, grant.place.clone(), keep)
}

async fn complete(client: &ZooKeeper, claim: &Claim, request: &Complete) -> Option<Completion> {
    match client.complete(claim, request).await.unwrap() {
        Completed::Done(completion) => Some(completion),
        Completed::NotHeld => None,
    }
}

async fn done(client: &ZooKeeper, claim: &Claim) -> Option<Completion> {
    match client.claim(claim).await.unwrap() {
        Claimed::Done(completion) => Some(completion),
        _ => None,
    }
}

/// Takes the lock of a name and completes its work.
async fn finish(client: &ZooKeeper, name: &str, fire: u64, keep: Keep) -> Completion {
    let claim = fair(name, LONG).once(fire);
    let grant = granted(client, &claim).await;
    let request = of(&grant, keep);
    complete(client, &claim, &request).await.expect("it holds")
}

/// Waits until the locks have so many places.
async fn until_places(server: &Server, places: usize) {
    let raw = Client::connect(server.addr()).await.unwrap();
    until(|| async {
        let mut there = 0;
        for lock in raw.list_children("/test").await.unwrap() {
            if lock != ".leasehold" {
                let path = format!("/test/{lock}");
                // The node of a lock without places is removed by the server.
                there += raw.list_children(&path).await.map_or(0, |all| all.len());
            }
        }
        there == places
    })
    .await;
}

/// The folder of a name's completion, and its node there.
async fn node_of(raw: &Client, node: &str) -> Option<String> {
    let above = "/test/.leasehold/done";
    for folder in raw.list_children(above).await.unwrap() {
        let path = format!("{above}/{folder}/{node}");
        if raw.check_stat(&path).await.unwrap().is_some() {
            return Some(path);
        }
    }
    None
}

#[tokio::test]
async fn done_is_told_to_each_kind_of_claim_and_to_no_lock() {
    limited(async {
        let server = server().await;
        let (a, b) = (client(&server).await, client(&server).await);
        let waits = once("a");
        let worker = once("a");
        let grant = granted(&a, &worker).await;
        waiting(&b, &waits).await;
        busy(&b, &at_once("a")).await;
        let lock = fair("a", LONG);
        waiting(&b, &lock).await;
        let mut request = of(&grant, KEEP);
        request.result = Some("42".into());
        let completion = complete(&a, &worker, &request).await.unwrap();
        assert_eq!(
            (completion.token, &*completion.label, completion.fire),
            (grant.token, "label of a", 0)
        );
        assert_eq!(completion.result.as_deref(), Some("42"));
        assert_eq!(completion.left, Some(Duration::from_secs(600)));
        for claim in [&waits, &once("a"), &at_once("a")] {
            let told = done(&b, claim).await.expect("it is done");
            assert_eq!(
                (told.token, told.at, told.result),
                (completion.token, completion.at, completion.result.clone())
            );
        }
        // No place is left but the lock's, which has its turn now.
        let grant = granted(&b, &lock).await;
        assert!(grant.token > completion.token);
        until_places(&server, 1).await;
        assert!(done(&a, &at_once("a")).await.is_some(), "beside a lock");
        assert!(done(&a, &once("a")).await.is_some());
        release(&b, &lock, &grant.place).await;
        until_places(&server, 0).await;
        let read = b.completion(&"a".into()).await.unwrap().unwrap();
        assert_eq!((read.token, read.at), (completion.token, completion.at));
    })
    .await;
}

#[tokio::test]
async fn a_completion_that_is_asked_again_has_one_answer_and_extends_nothing() {
    limited(async {
        let server = server().await;
        let (a, b) = (client(&server).await, client(&server).await);
        let claim = once("a");
        let grant = granted(&a, &claim).await;
        let request = of(&grant, KEEP);
        let first = complete(&a, &claim, &request).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        for client in [&a, &b, &a] {
            let again = complete(client, &claim, &request).await.unwrap();
            assert_eq!((again.token, again.at), (first.token, first.at));
            assert!(again.left < first.left, "{again:?} {first:?}");
        }
        // Neither another claim nor another token is answered by it.
        assert!(complete(&a, &once("a"), &request).await.is_none());
        assert!(a.forget(&claim.name, first.token).await.unwrap());
        assert!(complete(&a, &claim, &request).await.is_none(), "forgotten");
        assert!(a.completion(&claim.name).await.unwrap().is_none());
    })
    .await;
}

#[tokio::test]
async fn a_hold_that_has_ended_or_has_another_token_completes_nothing() {
    limited(async {
        let server = server().await;
        let (a, b) = (client(&server).await, client(&server).await);
        let claim = once("a");
        let grant = granted(&a, &claim).await;
        let request = of(&grant, KEEP);
        let mut wrong = request.clone();
        wrong.token = FencingToken::new(grant.token.get() + 256);
        assert!(complete(&a, &claim, &wrong).await.is_none());
        assert!(
            a.claim(&claim)
                .await
                .is_ok_and(|it| matches!(it, Claimed::Granted(_)))
        );
        // Evicted, and not yet granted to anybody: the entry is gone.
        assert!(b.evict(&claim.name, grant.token).await.unwrap());
        assert!(complete(&a, &claim, &request).await.is_none(), "ended");
        // Another client holds, and has completed.
        let next = once("a");
        let second = granted(&b, &next).await;
        assert!(
            complete(&a, &claim, &request).await.is_none(),
            "another's grant"
        );
        // The same claim takes the lock anew: its first hold stays ended.
        b.release(&next, Some(&second.place)).await.unwrap();
        let anew = granted(&a, &claim).await;
        assert!(anew.token > grant.token);
        assert!(
            complete(&a, &claim, &request).await.is_none(),
            "the token of before"
        );
        let completion = complete(&a, &claim, &of(&anew, KEEP)).await.unwrap();
        assert_eq!(completion.token, anew.token);
        assert_eq!(done(&b, &next).await.unwrap().token, anew.token);
        // A waiter has a place and no hold.
        assert!(b.forget(&claim.name, anew.token).await.unwrap());
        let holder = once("a");
        granted(&a, &holder).await;
        let waiter = once("a");
        let place = waiting(&b, &waiter).await.place;
        let request = Complete::new(FencingToken::new(0), place, KEEP);
        assert!(complete(&b, &waiter, &request).await.is_none());
        assert!(b.completion(&claim.name).await.unwrap().is_none());
    })
    .await;
}

#[tokio::test]
async fn a_completion_counts_for_its_fire_and_earlier_ones() {
    limited(async {
        let server = server().await;
        let (a, b) = (client(&server).await, client(&server).await);
        let of_fire = |fire| fair("a", LONG).once(fire);
        let first = finish(&a, "a", 7, KEEP).await;
        for fire in [0, 6, 7] {
            assert_eq!(done(&b, &of_fire(fire)).await.unwrap().fire, 7);
        }
        let claim = of_fire(8);
        let grant = granted(&b, &claim).await;
        assert!(
            done(&a, &of_fire(7)).await.is_some(),
            "while a later one runs"
        );
        let (same, later) = (of_fire(8), of_fire(9));
        waiting(&a, &same).await;
        waiting(&a, &later).await;
        let second = complete(&b, &claim, &of(&grant, Keep::Forever))
            .await
            .unwrap();
        assert!(second.token > first.token && second.left.is_none());
        assert!(
            !a.forget(&"a".into(), first.token).await.unwrap(),
            "an old token"
        );
        assert_eq!(done(&a, &same).await.unwrap().token, second.token);
        let third = granted(&a, &later).await;
        let third = complete(&a, &later, &of(&third, KEEP)).await.unwrap();
        let read = b.completion(&"a".into()).await.unwrap().unwrap();
        assert_eq!((read.token, read.fire), (third.token, 9));
    })
    .await;
}

#[tokio::test]
async fn all_waiters_are_told_by_a_hint() {
    limited(async {
        let server = server().await;
        let clients = join_all((0..4).map(|_| client(&server))).await;
        let worker = once("a");
        let grant = granted(&clients[0], &worker).await;
        let (told, mut hints) = mpsc::unbounded_channel();
        let mut waiters = Vec::new();
        for nth in 0..40 {
            let (client, claim) = (clients[nth % 4].clone(), once("a"));
            let (told, id) = (told.clone(), claim.id);
            let subscription = client
                .notifier()
                .unwrap()
                .subscribe(id, move |notification| {
                    if matches!(notification, Notification::ClaimAgain) {
                        let _ = told.send(id);
                    }
                });
            waiting(&client, &claim).await;
            waiters.push((client, claim, subscription));
        }
        // One for whom it does not count.
        let later = fair("a", LONG).once(1);
        waiting(&clients[1], &later).await;
        while hints.try_recv().is_ok() {}
        complete(&clients[0], &worker, &of(&grant, KEEP))
            .await
            .unwrap();
        let mut missing: HashSet<_> = waiters.iter().map(|(_, claim, _)| claim.id).collect();
        while !missing.is_empty() {
            missing.remove(&hints.recv().await.unwrap());
        }
        let asked = waiters.iter().map(|(client, claim, _)| done(client, claim));
        assert!(join_all(asked).await.iter().all(Option::is_some));
        granted(&clients[1], &later).await;
        until_places(&server, 1).await;
        drop(waiters);
        clients[1].release(&later, None).await.unwrap();
        // Each session watches two nodes.
        until(|| async { server.watch_count().await.unwrap() == 8 }).await;
    })
    .await;
}

#[tokio::test]
async fn a_keep_ends_not_sooner_and_later_tokens_are_greater() {
    limited(async {
        let server = server().await;
        let (a, b) = (client(&server).await, client(&server).await);
        let keep = Duration::from_millis(700);
        let claim = once("a");
        let grant = granted(&a, &claim).await;
        let request = of(&grant, Keep::For(keep));
        let asked = Moment::now();
        let first = complete(&a, &claim, &request).await.unwrap();
        let again = loop {
            match b.claim(&at_once("a")).await.unwrap() {
                Claimed::Done(completion) => {
                    assert!(completion.left.unwrap() <= keep, "{completion:?}");
                }
                Claimed::Granted(grant) => break grant,
                other => panic!("{other:?}"),
            }
        };
        let waited = Moment::now().since(asked);
        assert!(waited >= keep, "{waited:?}");
        assert!(again.token > first.token);
        assert!(b.completion(&"a".into()).await.unwrap().is_none());
        assert!(b.list_completions("", None, 9).await.unwrap().is_empty());
        assert!(
            !b.forget(&"a".into(), first.token).await.unwrap(),
            "it was over"
        );
    })
    .await;
}

#[tokio::test]
async fn a_restart_keeps_completions_and_every_text() {
    limited(async {
        let server = server().await;
        let a = client(&server).await;
        let results = [
            "",
            "é\u{1F512}\n \u{7f}\r",
            &"\u{1F512}".repeat(1024),
            &"x".repeat(4096),
        ];
        let mut written = Vec::new();
        for (nth, result) in results.iter().enumerate() {
            let name = format!("a{nth}");
            let label = "two\nlines é";
            let mut claim = fair(&name, LONG).once(3);
            claim.label = label.into();
            let grant = granted(&a, &claim).await;
            let mut request = of(&grant, KEEP);
            request.result = Some((*result).into());
            request.is_cut = nth % 2 == 1;
            let completion = complete(&a, &claim, &request).await.unwrap();
            assert_eq!(
                (&*completion.label, completion.is_cut),
                (label, nth % 2 == 1)
            );
            assert_eq!(completion.result.as_deref(), Some(*result));
            written.push((Name::new(&*name), completion));
        }
        a.close().await.unwrap();
        server.restart_with_data().await.unwrap();
        let b = client(&server).await;
        let listed = b.list_completions("a", None, 9).await.unwrap();
        for ((name, mut read), (same, first)) in listed.into_iter().zip(written.clone()) {
            read.left = first.left;
            assert_eq!((name, read), (same, first));
        }
        for (name, first) in written {
            let told = done(&b, &fair(name.as_str(), LONG).once(3)).await.unwrap();
            assert_eq!((told.token, told.result), (first.token, first.result));
        }
    })
    .await;
}

/// Nothing of this library grants beside a completion that counts. A node that is made by hand
/// stands for whatever does.
#[tokio::test]
async fn a_hold_beside_a_completion_ends_and_completes_nothing() {
    limited(async {
        let server = server().await;
        let (a, b) = (client(&server).await, client(&server).await);
        let raw = Client::connect(server.addr()).await.unwrap();
        let first = finish(&a, "a", 0, KEEP).await;
        let path = node_of(&raw, "a").await.unwrap();
        let (data, _) = raw.get_data(&path).await.unwrap();
        assert!(a.forget(&"a".into(), first.token).await.unwrap());
        let (worker, waiter) = (once("a"), once("a"));
        let grant = granted(&b, &worker).await;
        waiting(&a, &waiter).await;
        raw.create(&path, &data, &anybodys(CreateMode::Persistent))
            .await
            .unwrap();
        assert!(
            complete(&b, &worker, &of(&grant, KEEP)).await.is_none(),
            "another's counts"
        );
        assert_eq!(raw.get_data(&path).await.unwrap().0, data);
        assert_eq!(done(&b, &worker).await.unwrap().token, first.token);
        until_places(&server, 1).await;
        assert_eq!(done(&a, &waiter).await.unwrap().token, first.token);
        until_places(&server, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_completion_that_cannot_be_read_is_an_error_and_stays() {
    limited(async {
        let server = server().await;
        let a = client(&server).await;
        let raw = Client::connect(server.addr()).await.unwrap();
        let first = finish(&a, "a", 0, KEEP).await;
        let path = node_of(&raw, "a").await.unwrap();
        let (data, _) = raw.get_data(&path).await.unwrap();
        let id = String::from_utf8(data).unwrap();
        let id = id.split(' ').nth(2).unwrap().to_owned();
        for newer in ["leasehold/2 done x\n", "", "leasehold/1 done\n"] {
            raw.set_data(&path, newer.as_bytes(), None).await.unwrap();
            let name = Name::new("a");
            let errors = [
                a.claim(&once("a")).await.map(drop),
                a.claim(&at_once("a")).await.map(drop),
                a.completion(&name).await.map(drop),
                a.forget(&name, first.token).await.map(drop),
                a.list_completions("", None, 9).await.map(drop),
            ];
            for e in errors {
                let e = e.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Internal, "{e:?}");
                assert!(!format!("{e} {e:?}").contains(&id));
            }
            until_places(&server, 0).await;
            let lock = fair("a", LONG);
            let grant = granted(&a, &lock).await;
            release(&a, &lock, &grant.place).await;
        }
        // It is there by the time of the completion.
        raw.delete(&path, None).await.unwrap();
        let worker = once("a");
        let grant = granted(&a, &worker).await;
        raw.create(&path, b"x", &anybodys(CreateMode::Persistent))
            .await
            .unwrap();
        let e = a.complete(&worker, &of(&grant, KEEP)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Internal, "{e:?}");
        assert_eq!(raw.get_data(&path).await.unwrap().0, b"x");
    })
    .await;
}

#[tokio::test]
async fn names_do_not_meet_and_are_listed_in_order() {
    limited(async {
        let server = server().await;
        let a = client(&server).await;
        let mut names = ["a/b", "a%2Fb", "a", "é", ".", ".leasehold", "a/c", "lock-1"];
        for (nth, name) in names.iter().enumerate() {
            for other in &names[nth..] {
                let claim = fair(other, LONG).once(1);
                let grant = granted(&a, &claim).await;
                release(&a, &claim, &grant.place).await;
            }
            finish(&a, name, 1, KEEP).await;
        }
        names.sort_unstable();
        let all = a.list_completions("", None, 99).await.unwrap();
        assert!(
            all.iter()
                .map(|(name, _)| name.as_str())
                .eq(names.iter().copied())
        );
        let some = a.list_completions("a", Some(&all[2].0), 2).await.unwrap();
        let expected = names
            .iter()
            .filter(|name| name.starts_with('a') && **name > names[2]);
        assert!(
            some.iter()
                .map(|(name, _)| name.as_str())
                .eq(expected.copied().take(2))
        );
        let gone = &all[3];
        assert!(a.forget(&gone.0, gone.1.token).await.unwrap());
        assert!(!a.forget(&gone.0, gone.1.token).await.unwrap());
        for (name, completion) in &all {
            let told = done(&a, &fair(name.as_str(), LONG).once(1)).await;
            assert_eq!(
                told.map(|it| it.token),
                (*name != gone.0).then_some(completion.token)
            );
        }
    })
    .await;
}

#[tokio::test]
async fn ended_completions_are_removed_by_later_ones() {
    limited(async {
        let server = server().await;
        let a = client(&server).await;
        let kept = finish(&a, "kept", 0, KEEP).await;
        let keep = Keep::For(Duration::from_millis(1));
        // 256 folders with 16 each are left alone, so this is one name's folder.
        let raw = Client::connect(server.addr()).await.unwrap();
        let folder = node_of(&raw, "kept").await.unwrap();
        let folder = folder.rsplit_once('/').unwrap().0.to_owned();
        let is_whole = std::env::var_os("LEASEHOLD_WHOLE").is_some();
        let each = if is_whole { 125 } else { 30 };
        let many = AtomicU32::new(0);
        let next = || format!("n{}", many.fetch_add(1, Ordering::Relaxed));
        let work = (0..8).map(async |_| {
            for _ in 0..each {
                finish(&a, &next(), 0, keep).await;
            }
        });
        join_all(work).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        let listed = a.list_completions("", None, 2000).await.unwrap();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0].1.token, kept.token);
        until_places(&server, 0).await;
        let locks = raw.list_children("/test").await.unwrap();
        assert_eq!(locks, [".leasehold"]);
        // Junk as of many keeps in that folder: each completion there removes up to 16.
        let (data, _) = raw.get_data(&format!("{folder}/kept")).await.unwrap();
        let text = String::from_utf8(data).unwrap().replace(" 600000 ", " 1 ");
        for nth in 0..200 {
            let path = format!("{folder}/old{nth}");
            raw.create(&path, text.as_bytes(), &anybodys(CreateMode::Persistent))
                .await
                .unwrap();
        }
        raw.create(
            &format!("{folder}/newer"),
            b"leasehold/2",
            &anybodys(CreateMode::Persistent),
        )
        .await
        .unwrap();
        let mut rounds = 0;
        loop {
            let left: Vec<String> = raw.list_children(&folder).await.unwrap();
            if left.len() <= 16 {
                assert!(left.contains(&"kept".to_owned()) && left.contains(&"newer".to_owned()));
                break;
            }
            rounds += 1;
            assert!(rounds < 200, "{} are left", left.len());
            finish(&a, "kept", rounds, KEEP).await;
        }
        let last = a.completion(&"kept".into()).await.unwrap().unwrap();
        assert_eq!(last.fire, rounds);
    })
    .await;
}

/// The request is executed, and its answer lost, with the connection or with the session.
#[tokio::test]
async fn an_answer_that_was_lost_is_found_again() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (a, b) = (at(proxy.addr()).await, client(&server).await);
        finish(&b, "a", 0, KEEP).await; // its folder
        for (nth, forgotten) in [(1, false), (2, true)] {
            let claim = fair("a", SHORT * 2).once(nth);
            let grant = granted(&a, &claim).await;
            let request = of(&grant, KEEP);
            let trap = proxy.lose_reply_matching("leasehold/1 done");
            let e = a.complete(&claim, &request).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Ambiguous, "{e:?}");
            trap.done().await;
            until(|| async {
                b.completion(&"a".into())
                    .await
                    .unwrap()
                    .is_some_and(|it| it.fire == nth)
            })
            .await;
            if forgotten {
                assert!(b.forget(&"a".into(), grant.token).await.unwrap());
            }
            let again = loop {
                match a.complete(&claim, &request).await {
                    Ok(answer) => break answer,
                    Err(e) => assert!(e.is_retryable(), "{e:?}"),
                }
            };
            match again {
                Completed::Done(completion) => {
                    assert_eq!((completion.token, forgotten), (grant.token, false));
                }
                Completed::NotHeld => assert!(forgotten),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_session_leaves_done_or_not_held() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (a, b) = (at(proxy.addr()).await, client(&server).await);
        finish(&b, "recorded", 0, KEEP).await; // its folder
        let (recorded, open) = (fair("recorded", SHORT).once(1), fair("open", SHORT).once(0));
        let grants = [granted(&a, &recorded).await, granted(&a, &open).await];
        let requests = grants.each_ref().map(|grant| of(grant, KEEP));
        let trap = proxy.lose_reply_matching("leasehold/1 done");
        let e = a.complete(&recorded, &requests[0]).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Ambiguous, "{e:?}");
        trap.done().await;
        proxy.cut().await;
        // Both are gone with the session.
        granted(&b, &{
            let claim = fair("open", LONG).once(0);
            until(|| async { b.inspect(&claim.name).await.unwrap().holders.is_empty() }).await;
            claim
        })
        .await;
        proxy.heal().await;
        let answer = async |claim: &Claim, request: &Complete| loop {
            match a.complete(claim, request).await {
                Ok(answer) => break answer,
                Err(e) => assert!(e.is_retryable(), "{e:?}"),
            }
        };
        let Completed::Done(completion) = answer(&recorded, &requests[0]).await else {
            panic!("it was recorded");
        };
        assert_eq!(completion.token, grants[0].token);
        assert!(matches!(
            answer(&open, &requests[1]).await,
            Completed::NotHeld
        ));
        assert!(b.completion(&"open".into()).await.unwrap().is_none());
    })
    .await;
}

/// A transaction that begins with a condition.
const CHECK: &[u8] = b"\0\0\0\x0d\0\xff\xff\xff\xff";

/// A client whose transactions can be held back for a while.
async fn slow(proxy: &Proxy) -> ZooKeeper {
    connected(&format!("zookeeper://{}/test?timeout=20000", proxy.addr())).await
}

/// A node that is created anew has the version of the one before it.
#[tokio::test]
async fn a_late_forget_leaves_the_next_completion() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (a, b) = (slow(&proxy).await, client(&server).await);
        let first = finish(&b, "a", 0, KEEP).await;
        let trap = proxy.hold_matching(CHECK);
        let late = tokio::spawn({
            let a = a.clone();
            async move { a.forget(&"a".into(), first.token).await }
        });
        trap.sprung().await;
        assert!(b.forget(&"a".into(), first.token).await.unwrap());
        let second = finish(&b, "a", 0, KEEP).await;
        proxy.deliver_held();
        assert!(!late.await.unwrap().unwrap());
        assert_eq!(done(&b, &once("a")).await.unwrap().token, second.token);
    })
    .await;
}

/// The folder of a name's completion, as the page of the store says it.
fn folder_of(name: &str) -> u32 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    (hash ^ (hash >> 8) ^ (hash >> 16) ^ (hash >> 24)) & 0xff
}

#[tokio::test]
async fn a_late_removal_of_what_has_ended_leaves_the_next_completion() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (a, b) = (slow(&proxy).await, client(&server).await);
        let raw = Client::connect(server.addr()).await.unwrap();
        let names = (0..).map(|nth| format!("n{nth}"));
        let names: Vec<String> = names
            .filter(|name| folder_of(name) == folder_of("a"))
            .take(16)
            .collect();
        for name in &names {
            finish(&b, name, 0, Keep::For(Duration::from_millis(1))).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        let claim = once("a");
        let grant = granted(&a, &claim).await;
        let trap = proxy.hold_matching(CHECK);
        let late = tokio::spawn({
            let (a, request) = (a.clone(), of(&grant, KEEP));
            async move { complete(&a, &claim, &request).await }
        });
        trap.sprung().await;
        // Others have removed them, and their work was done again.
        for name in &names {
            if let Some(path) = node_of(&raw, name).await {
                raw.delete(&path, None).await.unwrap();
            }
            finish(&b, name, 0, KEEP).await;
        }
        proxy.deliver_held();
        assert!(late.await.unwrap().is_some());
        for name in &names {
            assert!(done(&b, &once(name)).await.is_some(), "{name}");
        }
    })
    .await;
}

/// A follower that lags shows neither the completion nor that it was forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_lags_tells_what_the_leader_knows() {
    const LAG: Duration = Duration::from_millis(300);
    limited(async {
        let options = ZooKeeperOptions {
            peer_proxies: true,
            ..ZooKeeperOptions::default()
        };
        let ensemble = Server::ensemble_with(3, &options).await.unwrap();
        let leader = ensemble.leader().await;
        let follower = (leader + 1) % 3;
        let url = |member: usize| {
            let addr = ensemble.members()[member].addr();
            format!("zookeeper://{addr}/test?timeout=10000")
        };
        let near = connected(&url(leader)).await;
        let far = connected(&url(follower)).await;
        for client in [&near, &far] {
            finish(client, "warm", 0, Keep::For(Duration::from_millis(1))).await;
            finish(client, "a", 0, Keep::For(Duration::from_millis(1))).await;
        }
        assert!(ensemble.lag(follower, LAG));
        for fire in 1..6_u64 {
            let claims = [fair("a", LONG).once(fire), trying("a", LONG).once(fire)];
            for claim in claims {
                let completion = finish(&near, "a", fire, KEEP).await;
                let told = done(&far, &claim).await.expect("it is done");
                assert_eq!(told.token, completion.token);
                assert!(near.forget(&"a".into(), completion.token).await.unwrap());
                let grant = granted(&far, &claim).await;
                assert!(grant.token > completion.token);
                release(&far, &claim, &grant.place).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn work_that_is_done_costs_two_requests_and_free_work_one_more_than_a_lock() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let many = AtomicU32::new(0);
        let next = || format!("n{}", many.fetch_add(1, Ordering::Relaxed));
        let least = async |work: &dyn Fn() -> std::pin::Pin<Box<dyn Future<Output = ()>>>| {
            let mut least = u64::MAX;
            for _ in 0..8 {
                least = least.min(requests(&server, work()).await.0);
            }
            least
        };
        finish(&client, "a", 0, KEEP).await;
        let free = least(&|| {
            let (client, name) = (client.clone(), next());
            Box::pin(async move { drop(finish(&client, &name, 0, KEEP).await) })
        })
        .await;
        assert_eq!(free, 3, "a read, create, delete");
        let fires = Arc::new(AtomicU64::new(1));
        let recurring = least(&|| {
            let (client, fires) = (client.clone(), fires.clone());
            Box::pin(async move {
                let fire = fires.fetch_add(1, Ordering::Relaxed);
                drop(finish(&client, "a", fire, KEEP).await);
            })
        })
        .await;
        assert_eq!(recurring, 3, "the same where an earlier fire is done");
        for claim in [once("a"), at_once("a")] {
            let told = least(&|| {
                let (client, claim) = (client.clone(), claim.clone());
                Box::pin(async move { assert!(done(&client, &claim).await.is_some()) })
            })
            .await;
            assert_eq!(told, 2, "a read, and the leader's word");
        }
    })
    .await;
}

/// Many clients, of which some fail, some forget, and all ask again: no two bodies at once, none
/// for a fire that is done, and one for each fire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_does_each_fire_once() {
    const FIRES: u64 = 20;
    limited(async {
        let server = server().await;
        let clients = join_all((0..4).map(|_| client(&server))).await;
        let (running, last) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
        let ran = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for (nth, client) in clients.iter().enumerate() {
            let (client, running, last, ran) =
                (client.clone(), running.clone(), last.clone(), ran.clone());
            tasks.push(tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(nth as u64);
                for fire in 1..=FIRES {
                    let is_fair = random.bool();
                    let policy = |claim: Claim| claim.once(fire);
                    let mut claim = policy(if is_fair {
                        fair("a", LONG)
                    } else {
                        trying("a", LONG)
                    });
                    loop {
                        match client.claim(&claim).await.unwrap() {
                            Claimed::Done(completion) => {
                                assert!(completion.fire >= fire, "{completion:?}");
                                break;
                            }
                            Claimed::Granted(grant) => {
                                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                                let done = last.load(Ordering::SeqCst);
                                assert!(done < fire, "{fire} begins after {done} was done");
                                if random.u8(..4) == 0 {
                                    running.fetch_sub(1, Ordering::SeqCst);
                                    release(&client, &claim, &grant.place).await;
                                    claim = policy(fair("a", LONG));
                                    continue;
                                }
                                running.fetch_sub(1, Ordering::SeqCst);
                                last.fetch_max(fire, Ordering::SeqCst);
                                ran.fetch_add(1, Ordering::SeqCst);
                                assert!(
                                    complete(&client, &claim, &of(&grant, KEEP)).await.is_some()
                                );
                                break;
                            }
                            _ => tokio::time::sleep(Duration::from_millis(5)).await,
                        }
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert!(ran.load(Ordering::SeqCst) <= FIRES);
        let read = clients[0].completion(&"a".into()).await.unwrap().unwrap();
        assert_eq!(read.fire, FIRES);
        until_places(&server, 0).await;
    })
    .await;
}

#[tokio::test]
async fn credentials_close_completions_too() {
    limited(async {
        let server = server().await;
        let a = connected(&format!("zookeeper://me:s3cret@{}/test", server.addr())).await;
        finish(&a, "a", 0, KEEP).await;
        let mine = Client::connector()
            .with_auth("digest", b"me:s3cret")
            .connect(server.addr())
            .await
            .unwrap();
        let path = node_of(&mine, "a").await.unwrap();
        let raw = Client::connect(server.addr()).await.unwrap();
        assert_eq!(raw.get_data(&path).await.unwrap_err(), ZkError::NoAuth);
        assert_eq!(raw.delete(&path, None).await.unwrap_err(), ZkError::NoAuth);
        let (folder, _) = path.rsplit_once('/').unwrap();
        let created = raw
            .create(
                &format!("{folder}/b"),
                b"",
                &CreateMode::Persistent.with_acls(Acls::anyone_all()),
            )
            .await;
        assert_eq!(created.unwrap_err(), ZkError::NoAuth);
    })
    .await;
}
