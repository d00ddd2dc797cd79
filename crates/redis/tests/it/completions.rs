//! Work that is done once: completions, and claims for which they count.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use crate::support::*;
use leasehold_core::backend::{
    Backend, Claim, Claimed, Complete, Completed, Completions, Mode, Place, Renewal, WaitPolicy,
};
use leasehold_core::{Completion, ErrorKind, FencingToken, Keep, Loss, MAX_RESULT_BYTES, Name};
use leasehold_redis::Redis;
use leasehold_testbed::{RedisCluster, RedisClusterOptions, RedisGate, RedisOptions, Reply};
use tokio::task::JoinSet;

const KEEP: Keep = Keep::For(Duration::from_secs(60));

/// A fair claim for work that is done once.
fn once(name: &str, fire: u64) -> Claim {
    claim(name, WaitPolicy::Fair, TTL, "once").once(fire)
}

fn request(token: FencingToken, keep: Keep) -> Complete {
    Complete::new(token, Place::new("unused"), keep)
}

async fn done(store: &Redis, claim: &Claim) -> Completion {
    match store.claim(claim).await.unwrap() {
        Claimed::Done(done) => done,
        other => panic!("not done: {other:?}"),
    }
}

async fn completed(store: &Redis, claim: &Claim, request: &Complete) -> Completion {
    match store.complete(claim, request).await.unwrap() {
        Completed::Done(done) => done,
        Completed::NotHeld => panic!("not held"),
    }
}

async fn is_refused(store: &Redis, claim: &Claim, request: &Complete) -> bool {
    matches!(
        store.complete(claim, request).await.unwrap(),
        Completed::NotHeld
    )
}

/// Does the work of this name and fire.
async fn work(store: &Redis, name: &str, fire: u64, keep: Keep) -> (Claim, Completion) {
    let claim = once(name, fire);
    let token = granted(store, &claim).await.token;
    let done = completed(store, &claim, &request(token, keep)).await;
    (claim, done)
}

/// The completion, but for the rest of its keep.
fn lasting(mut done: Completion) -> Completion {
    done.left = None;
    done
}

async fn is_free(server: &Server, name: &str) -> bool {
    number(server, &["EXISTS", name, &format!("{{{name}}}:l")]).await == 0
}

#[tokio::test]
async fn done_is_told_to_each_kind_of_claim_and_costs_one_request() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        // The scripts are known.
        work(&store, "warm", 0, KEEP).await;
        done(&store, &once("warm", 0)).await;
        let worker = once("x", 0);
        let waiter = once("x", 0);
        let count = Count::from_here(&server).await;
        let token = granted(&store, &worker).await.token;
        assert_eq!(count.requests().await, 1);
        // One key more is read than for a lock.
        assert_eq!(count.inner().await, 6);
        waiting(&store, &waiter).await;
        assert!(!busy(&store, &as_try(&once("x", 0))).await.foreign);
        let count = Count::from_here(&server).await;
        let mut asked = request(token, KEEP);
        asked.result = Some("42 rows".into());
        let before = SystemTime::now();
        let mine = completed(&store, &worker, &asked).await;
        assert_eq!(count.requests().await, 1);
        assert_eq!((mine.token, &*mine.label, mine.fire), (token, "once", 0));
        assert_eq!(
            (mine.result.as_deref(), mine.is_cut),
            (Some("42 rows"), false)
        );
        let late = mine
            .at
            .duration_since(before - Duration::from_millis(2))
            .unwrap();
        assert!(late < Duration::from_secs(60), "{late:?}");
        for claim in [&waiter, &once("x", 0), &as_try(&once("x", 0)), &worker] {
            let count = Count::from_here(&server).await;
            let told = done(&store, claim).await;
            assert_eq!(count.requests().await, 1);
            let left = told.left.unwrap();
            assert!((Duration::from_secs(50)..=Duration::from_secs(60)).contains(&left));
            assert_eq!(lasting(told), lasting(mine.clone()));
        }
        assert!(is_free(&server, "x").await);
        let bytes = number(&server, &["MEMORY", "USAGE", "{x}:d"]).await;
        assert!(bytes < 250, "{bytes}");
        println!("{bytes} bytes");
        assert!(matches!(
            renewed(&store, &waiter, None).await,
            Renewal::Lost(Loss::Gone)
        ));
        assert_eq!(
            lasting(store.completion(&"x".into()).await.unwrap().unwrap()),
            lasting(mine)
        );
        assert!(store.guarantees().once());
        // Where nobody holds, it is no name in use.
        assert!(store.list("", None, 10).await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_completion_that_is_asked_for_twice_is_one() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for (name, has_waiter) in [("alone", false), ("waited for", true)] {
            let claim = once(name, 0);
            let token = granted(&store, &claim).await.token;
            let waiter = fair(name);
            if has_waiter {
                waiting(&store, &waiter).await;
            }
            let asked = request(token, KEEP);
            let first = completed(&store, &claim, &asked).await;
            let key = format!("{{{name}}}:d");
            let before = text(&server, &["GET", &key]).await;
            sleep(20).await;
            let left = number(&server, &["PTTL", &key]).await;
            let mut longer = request(token, Keep::Forever);
            longer.result = Some("another".into());
            for asked in [&asked, &longer] {
                let again = completed(&store, &claim, asked).await;
                assert!(again.left.unwrap() < first.left.unwrap());
                assert_eq!(lasting(again), lasting(first.clone()));
            }
            assert_eq!(text(&server, &["GET", &key]).await, before);
            assert!(number(&server, &["PTTL", &key]).await <= left);
            // Whoever holds by now is not disturbed.
            if has_waiter {
                let held = granted(&store, &waiter).await.token;
                assert!(held > token);
                completed(&store, &claim, &asked).await;
                assert_eq!(granted(&store, &waiter).await.token, held);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn who_does_not_hold_with_this_token_completes_nothing() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let name: Name = "x".into();
        let nothing = async || {
            assert!(store.completion(&"x".into()).await.unwrap().is_none());
        };
        let brief = || claim("x", WaitPolicy::Fair, Duration::from_millis(100), "").once(0);
        // It never held.
        assert!(is_refused(&store, &once("x", 0), &request(FencingToken::new(1), KEEP)).await);
        // Its lease has ended, and it took the lock anew: a late request names the old token.
        let claim = brief();
        let first = granted(&store, &claim).await.token;
        until(async || number(&server, &["EXISTS", "x"]).await == 0).await;
        assert!(is_refused(&store, &claim, &request(first, KEEP)).await);
        let second = granted(&store, &claim).await.token;
        assert!(is_refused(&store, &claim, &request(first, KEEP)).await);
        nothing().await;
        store.release(&claim, None).await.unwrap();
        assert!(is_refused(&store, &claim, &request(second, KEEP)).await);
        // It only waits.
        let holder = once("x", 0);
        let token = granted(&store, &holder).await.token;
        let waiter = once("x", 0);
        waiting(&store, &waiter).await;
        assert!(is_refused(&store, &waiter, &request(token, KEEP)).await);
        nothing().await;
        assert_eq!(held_by(&server, "x").await, holder.id.to_string());
        // Readers do no work.
        store.release(&waiter, None).await.unwrap();
        store.release(&holder, None).await.unwrap();
        let reader = moded(SHARED, "");
        let token = granted(&store, &reader).await.token;
        assert!(is_refused(&store, &reader, &request(token, KEEP)).await);
        store.release(&reader, None).await.unwrap();
        // Another's lock, after another's completion.
        let late = brief();
        let old = granted(&store, &late).await.token;
        until(async || number(&server, &["EXISTS", "x"]).await == 0).await;
        let other = fair("x");
        granted(&store, &other).await;
        assert!(is_refused(&store, &late, &request(old, KEEP)).await);
        nothing().await;
        store.release(&other, None).await.unwrap();
        let (_, theirs) = work(&store, "x", 0, KEEP).await;
        assert!(is_refused(&store, &late, &request(old, KEEP)).await);
        assert_eq!(done(&store, &late).await.token, theirs.token);
        // After it was forgotten, and after a keep.
        assert!(store.forget(&name, theirs.token).await.unwrap());
        assert!(is_refused(&store, &late, &request(old, KEEP)).await);
        let (worker, mine) = work(&store, "x", 0, Keep::For(Duration::from_millis(1))).await;
        until(async || store.completion(&"x".into()).await.unwrap().is_none()).await;
        assert!(is_refused(&store, &worker, &request(mine.token, KEEP)).await);
        nothing().await;
        assert!(is_free(&server, "x").await);
        // What ends by itself was given back.
        let ends = once("x", 0);
        let token = granted(&store, &ends).await.token;
        store.release_after(&ends, None, TTL).await.unwrap();
        assert!(is_refused(&store, &ends, &request(token, KEEP)).await);
        nothing().await;
    })
    .await;
}

#[tokio::test]
async fn a_lock_ignores_completions() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let (_, mine) = work(&store, "x", 7, Keep::Forever).await;
        assert_eq!(mine.left, None);
        let mut last = mine.token;
        for mode in [Mode::Exclusive, SHARED, permits(1, 2)] {
            let claim = moded(mode, "");
            let token = granted(&store, &claim).await.token;
            assert!(token > last);
            last = token;
            // Work that is done need not wait for it.
            assert_eq!(done(&store, &once("x", 7)).await.token, mine.token);
            waiting(&store, &once("x", 8)).await;
            store.release(&claim, None).await.unwrap();
            server.command(&["DEL", "x", "{x}:l"]).await.unwrap();
        }
        let all = [fair("x"), fair("y")].map(|claim| as_try(&claim));
        assert!(matches!(
            store.claim_all(&all).await.unwrap(),
            leasehold_core::backend::ClaimedAll::Granted(_)
        ));
    })
    .await;
}

#[tokio::test]
async fn a_completion_counts_for_its_fire_and_for_earlier_ones() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        // Numbers that only differ where a double ends, and that are not in the order of texts.
        for (before, it, after) in [
            (9, 10, 11),
            ((1 << 53) - 1, 1 << 53, (1 << 53) + 1),
            (u64::MAX - 2, u64::MAX - 1, u64::MAX),
        ] {
            let (_, mine) = work(&store, "x", it, KEEP).await;
            assert_eq!(mine.fire, it);
            for fire in [0, before, it] {
                assert_eq!(done(&store, &once("x", fire)).await.token, mine.token);
            }
            // A later one is not done, and takes its place.
            let (_, later) = work(&store, "x", after, KEEP).await;
            assert!(later.token > mine.token && later.fire == after);
            assert_eq!(done(&store, &once("x", after)).await.token, later.token);
            assert!(store.forget(&"x".into(), later.token).await.unwrap());
        }
        // Who holds for an earlier one, by a hand-over without a look, does not overwrite it.
        let (_, mine) = work(&store, "y", 5, KEEP).await;
        copy(&server, "y", "x").await;
        let blind = blindly_held(&server, &store, 4).await;
        assert!(is_refused(&store, &blind.0, &request(blind.1, KEEP)).await);
        assert_eq!(done(&store, &once("x", 5)).await.token, mine.token);
    })
    .await;
}

/// Puts the completion of one name in the place of another's.
async fn copy(server: &Server, from: &str, to: &str) {
    let [from, to] = [from, to].map(|name| format!("{{{name}}}:d"));
    assert_eq!(number(server, &["COPY", &from, &to, "REPLACE"]).await, 1);
}

/// A claim for work of `x` that holds, although a completion counts for it.
async fn blindly_held(server: &Server, store: &Redis, fire: u64) -> (Claim, FencingToken) {
    server.command(&["RENAME", "{x}:d", "aside"]).await.unwrap();
    let claim = once("x", fire);
    let token = granted(store, &claim).await.token;
    server.command(&["RENAME", "aside", "{x}:d"]).await.unwrap();
    (claim, token)
}

#[tokio::test]
async fn a_hold_that_was_handed_over_without_a_look_ends() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let holder = fair("x");
        let waiters = [once("x", 0), fair("x"), once("x", 0), once("x", 1)];
        granted(&store, &holder).await;
        for waiter in &waiters {
            waiting(&store, waiter).await;
        }
        let (_, mine) = work(&store, "y", 0, KEEP).await;
        copy(&server, "y", "x").await;
        // The release of a lock, also by an older version, looks at no completion.
        store.release(&holder, None).await.unwrap();
        assert_eq!(held_by(&server, "x").await, waiters[0].id.to_string());
        let pushed = renewed(&store, &waiters[0], None).await;
        assert!(matches!(pushed, Renewal::Granted(_)), "{pushed:?}");
        assert_eq!(done(&store, &waiters[0]).await.token, mine.token);
        // The next one for whom it does not count holds, and the others have been told.
        assert_eq!(held_by(&server, "x").await, waiters[1].id.to_string());
        assert!(place(&server, &waiters[2]).await.is_none());
        assert!(place(&server, &waiters[3]).await.is_some());
        assert_eq!(in_line(&server, "x").await, 1);
        assert_eq!(done(&store, &waiters[2]).await.token, mine.token);
        store.release(&waiters[1], None).await.unwrap();
        let token = granted(&store, &waiters[3]).await.token;
        let last = completed(&store, &waiters[3], &request(token, KEEP)).await;
        assert_eq!((last.fire, last.token > mine.token), (1, true));
        // One that nobody waits behind.
        copy(&server, "y", "x").await;
        let (blind, _) = blindly_held(&server, &store, 0).await;
        done(&store, &blind).await;
        assert!(is_free(&server, "x").await);
        // A late claim leaves no place, and ends none of another's.
        let other = fair("x");
        granted(&store, &other).await;
        for claim in [&blind, &waiters[0], &as_try(&blind)] {
            done(&store, claim).await;
            assert_eq!(in_line(&server, "x").await, 0);
            assert_eq!(held_by(&server, "x").await, other.id.to_string());
        }
    })
    .await;
}

#[tokio::test]
async fn a_thousand_waiters_are_told_at_once_and_the_others_are_served() {
    bounded(async {
        let server = server().await;
        let store = Arc::new(client(&server).await);
        let long = |fire| claim("x", WaitPolicy::Fair, TTL * 6, "once").once(fire);
        let worker = long(5);
        let token = granted(&store, &worker).await.token;
        // Locks and later fires stand among them.
        let mut waiters = Vec::new();
        for n in 0..1000 {
            waiters.push(long(n % 6));
            match n {
                0 => {}
                250 => waiters.push(claim("x", WaitPolicy::Fair, TTL * 6, "lock")),
                _ if n % 100 == 0 => waiters.push(long(6)),
                _ => {}
            }
        }
        for waiter in &waiters {
            waiting(&store, waiter).await;
        }
        let told = Arc::new(AtomicUsize::new(0));
        let notifier = store.notifier().unwrap();
        let (heard, mut hears) = tokio::sync::mpsc::unbounded_channel();
        let _subscribed: Vec<_> = waiters
            .iter()
            .map(|waiter| {
                let (heard, id) = (heard.clone(), waiter.id);
                notifier.subscribe(id, move |what| drop(heard.send((id, format!("{what:?}")))))
            })
            .collect();
        let count = Count::from_here(&server).await;
        let begun = clock();
        completed(&store, &worker, &request(token, KEEP)).await;
        let counts = |waiter: &Claim| waiter.once.is_some_and(|fire| fire <= 5);
        let mut left: Vec<_> = waiters
            .iter()
            .filter(|it| counts(it))
            .map(|it| it.id)
            .collect();
        left.sort();
        let mut granted_ones = Vec::new();
        while told.load(Ordering::Relaxed) < 1000 || granted_ones.is_empty() {
            let (id, what) = hears.recv().await.unwrap();
            match what.as_str() {
                "ClaimAgain" => {
                    let at = left.binary_search(&id).expect("one who is told once");
                    left.remove(at);
                    told.fetch_add(1, Ordering::Relaxed);
                }
                _ => granted_ones.push(id),
            }
        }
        let after = begun.elapsed();
        println!("a thousand waiters were told after {after:?}");
        // A busy machine may take longer: the number of scripts is the bound.
        assert!(count.requests().await <= 16, "{}", count.requests().await);
        assert!(after < Duration::from_secs(2), "{after:?}");
        let others: Vec<_> = waiters.iter().filter(|it| !counts(it)).collect();
        assert_eq!(granted_ones, [others[0].id]);
        assert_eq!(in_line(&server, "x").await as usize, others.len() - 1);
        let mut asking = JoinSet::new();
        for waiter in waiters.iter().filter(|it| counts(it)) {
            let store = store.clone();
            let waiter = waiter.clone();
            asking.spawn(async move { done(&store, &waiter).await.token });
        }
        while let Some(theirs) = asking.join_next().await {
            assert_eq!(theirs.unwrap(), token);
        }
        for other in others {
            granted(&store, other).await;
            store.release(other, None).await.unwrap();
        }
        assert!(is_free(&server, "x").await);
    })
    .await;
}

/// If the client dies while others are told, whoever was told goes on with it, or whoever renews.
#[tokio::test]
async fn waiters_that_were_not_told_are_told_by_the_others() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let holder = fair("x");
        granted(&store, &holder).await;
        let waiters: Vec<_> = (0..250).map(|_| once("x", 0)).collect();
        for waiter in &waiters {
            waiting(&store, waiter).await;
        }
        let (_, mine) = work(&store, "y", 0, KEEP).await;
        copy(&server, "y", "x").await;
        // As many as one script tells are taken out by one that asks.
        let mut counts = vec![in_line(&server, "x").await];
        for waiter in waiters.iter().rev().take(3) {
            assert_eq!(done(&store, waiter).await.token, mine.token);
            counts.push(in_line(&server, "x").await);
        }
        assert_eq!(counts, [250, 149, 48, 0]);
        assert_eq!(held_by(&server, "x").await, holder.id.to_string());
        store.release(&holder, None).await.unwrap();
        assert!(is_free(&server, "x").await);
    })
    .await;
}

/// How many fields of the queue say for which fire somebody waits.
async fn fires(server: &Server, name: &str) -> usize {
    let queue = format!("{{{name}}}:l");
    let Reply::Array(fields) = server.command(&["HKEYS", &queue]).await.unwrap() else {
        panic!("no queue")
    };
    // Ids are hexadecimal, too, but longer.
    let is_fire = |field: &Reply| {
        let field = field.text().unwrap();
        field.starts_with('f') && field.len() < 32
    };
    fields.iter().filter(|field| is_fire(field)).count()
}

#[tokio::test]
async fn a_place_that_ends_leaves_no_fire() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let [holder, first, second, last] = [(); 4].map(|()| fair("x"));
        granted(&store, &holder).await;
        waiting(&store, &first).await;
        for n in 0..20 {
            let waiter = once("x", 3);
            waiting(&store, &waiter).await;
            waiting(&store, &waiter).await;
            assert_eq!(fires(&server, "x").await, 1, "{n}");
            store.release(&waiter, None).await.unwrap();
            assert_eq!(fires(&server, "x").await, 0, "{n}");
        }
        // Those that die before others, and one that is granted.
        let granted_one = once("x", 3);
        waiting(&store, &granted_one).await;
        let brief = || claim("x", WaitPolicy::Fair, Duration::from_millis(100), "").once(3);
        for _ in 0..5 {
            waiting(&store, &brief()).await;
        }
        for waiter in [&second, &last] {
            waiting(&store, waiter).await;
        }
        assert_eq!(fires(&server, "x").await, 6);
        sleep(150).await;
        for claim in [&holder, &first] {
            store.release(claim, None).await.unwrap();
        }
        granted(&store, &granted_one).await;
        assert_eq!(fires(&server, "x").await, 5);
        store.release(&granted_one, None).await.unwrap();
        granted(&store, &second).await;
        assert_eq!(
            (fires(&server, "x").await, in_line(&server, "x").await),
            (0, 1)
        );
    })
    .await;
}

#[tokio::test]
async fn only_the_completion_with_the_token_is_forgotten() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let name: Name = "x".into();
        assert!(!store.forget(&name, FencingToken::new(1)).await.unwrap());
        let (_, first) = work(&store, "x", 1, KEEP).await;
        let (_, second) = work(&store, "x", 2, KEEP).await;
        for token in [
            first.token,
            FencingToken::new(0),
            FencingToken::new(u64::MAX),
        ] {
            assert!(!store.forget(&name, token).await.unwrap());
        }
        assert_eq!(done(&store, &once("x", 2)).await.token, second.token);
        assert!(store.forget(&name, second.token).await.unwrap());
        assert!(!store.forget(&name, second.token).await.unwrap());
        assert!(granted(&store, &once("x", 1)).await.token > second.token);
    })
    .await;
}

#[tokio::test]
async fn a_keep_ends_by_the_servers_clock_and_not_sooner() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let keep = Duration::from_millis(700);
        let (_, mine) = work(&store, "x", 0, Keep::For(keep)).await;
        assert_eq!(mine.left, Some(keep));
        let ends = mine.at + keep;
        loop {
            let before = store.claim(&as_try(&once("x", 0))).await.unwrap();
            // The clock of the server is this machine's.
            let is_over = SystemTime::now() >= ends;
            match before {
                Claimed::Done(it) => assert!(it.left.unwrap() <= keep),
                Claimed::Granted(grant) => {
                    assert!(is_over, "too early");
                    assert!(grant.token > mine.token);
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        // A hundred years, more than that, and for ever.
        let years = Duration::from_secs(100 * 366 * 86_400);
        for (keep, left) in [
            (Keep::For(years), Some(years)),
            (
                Keep::For(Duration::MAX),
                Some(Duration::from_millis(9_000_000_000_000)),
            ),
            (Keep::Forever, None),
        ] {
            let (_, mine) = work(&store, "y", 0, keep).await;
            let shown = done(&store, &once("y", 0)).await.left;
            assert_eq!(mine.left, left);
            assert_eq!(shown.is_some(), left.is_some());
            assert!(shown.is_none_or(|shown| shown + Duration::from_secs(60) > left.unwrap()));
            assert!(store.forget(&"y".into(), mine.token).await.unwrap());
        }
    })
    .await;
}

#[tokio::test]
async fn nothing_is_left_of_a_thousand_keeps_that_have_ended() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for n in 0..1000 {
            let keep = Keep::For(Duration::from_millis(100 + n % 50));
            work(&store, &format!("kept/{n}"), 0, keep).await;
        }
        until(async || traces(&server).await.is_empty()).await;
        assert!(
            store
                .list_completions("", None, 2000)
                .await
                .unwrap()
                .is_empty()
        );
    })
    .await;
}

#[tokio::test]
async fn completions_are_listed_in_the_order_of_their_names() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let prefixed = Redis::connect(&format!("{}?prefix=app:", server.url()))
            .await
            .unwrap();
        let mut names: Vec<String> = (0..25).map(|n| format!("job/{n}*")).collect();
        names.extend([
            "job/}:d".to_owned(),
            "{job/}:d".to_owned(),
            "job/%".to_owned(),
            "k".to_owned(),
        ]);
        for (n, name) in names.iter().enumerate() {
            work(&store, name, n as u64, KEEP).await;
        }
        granted(&store, &fair("job/held")).await;
        server
            .command(&["SET", "{job/x}:o", "1 2 3"])
            .await
            .unwrap();
        names.sort();
        let all = store.list_completions("", None, 100).await.unwrap();
        let listed: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(listed, names);
        for (name, it) in &all {
            let shown = store.completion(name).await.unwrap().unwrap();
            assert_eq!(lasting(shown), lasting(it.clone()));
        }
        names.retain(|name| name.starts_with("job/"));
        let mut paged = Vec::new();
        loop {
            let after = paged.last().cloned();
            let some = store
                .list_completions("job/", after.as_ref(), 4)
                .await
                .unwrap();
            let is_last = some.len() < 4;
            paged.extend(some.into_iter().map(|(name, _)| name));
            if is_last {
                break;
            }
        }
        let paged: Vec<_> = paged.iter().map(Name::as_str).collect();
        assert_eq!(paged, names);
        assert!(
            store
                .list_completions("job/", None, 0)
                .await
                .unwrap()
                .is_empty()
        );
        work(&prefixed, "job/1*", 99, KEEP).await;
        let theirs = prefixed.list_completions("", None, 10).await.unwrap();
        assert_eq!((theirs.len(), theirs[0].1.fire), (1, 99));
    })
    .await;
}

#[tokio::test]
async fn names_that_try_to_share_a_completion_do_not() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let names = [
            "a", "{a}", "{a}:d", "a}:d", "%7Ba%7D", "a:d", "{a", "A", " a", "a ",
        ];
        for name in names {
            assert!(
                store.completion(&name.into()).await.unwrap().is_none(),
                "{name}"
            );
            work(&store, name, 0, KEEP).await;
        }
        assert_eq!(
            store.list_completions("", None, 100).await.unwrap().len(),
            names.len()
        );
        for name in names {
            let token = store.completion(&name.into()).await.unwrap().unwrap().token;
            assert!(store.forget(&name.into(), token).await.unwrap());
        }
    })
    .await;
}

#[tokio::test]
async fn labels_and_results_are_kept_as_they_are() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let long: String = "\u{1F512}".repeat(MAX_RESULT_BYTES / 4);
        let odd = "\r\n a  b\t%s\\ \u{1}\u{7f}\u{feff}é = 3 \"'";
        for (label, result, is_cut) in [
            ("", None, false),
            ("", Some(""), false),
            (" a  b ", Some(long.as_str()), true),
            (odd, Some(odd), false),
            ("3 x", Some("- 0 "), true),
        ] {
            let claim = claim("x", WaitPolicy::Fair, TTL, label).once(0);
            let token = granted(&store, &claim).await.token;
            let mut asked = request(token, KEEP);
            asked.result = result.map(Into::into);
            asked.is_cut = is_cut;
            let mine = completed(&store, &claim, &asked).await;
            for it in [
                mine,
                completed(&store, &claim, &asked).await,
                done(&store, &once("x", 0)).await,
                store.completion(&"x".into()).await.unwrap().unwrap(),
            ] {
                assert_eq!((&*it.label, it.result.as_deref()), (label, result));
                assert_eq!((it.token, it.is_cut), (token, is_cut));
            }
            assert!(store.forget(&"x".into(), token).await.unwrap());
        }
    })
    .await;
}

#[tokio::test]
async fn a_completion_that_cannot_be_read_is_never_ignored() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let worker = once("x", 5);
        let token = granted(&store, &worker).await.token;
        let waiter = once("x", 0);
        waiting(&store, &waiter).await;
        let id = worker.id.to_string();
        for junk in [
            &["SET", "{x}:d", "2 of a later version"][..],
            &["SET", "{x}:d", ""],
            &["SET", "{x}:d", &format!("{id} 1 0 0 - 0  ")],
            &["SET", "{x}:d", "1 abc 1 x 0 - 0  "],
            &["LPUSH", "{x}:d", "1"],
        ] {
            server.command(&["DEL", "{x}:d"]).await.unwrap();
            server.command(junk).await.unwrap();
            let name: Name = "x".into();
            let words = [
                words_without(&[&id], store.claim(&worker).await),
                words_without(&[&id], store.claim(&as_try(&once("x", 6))).await),
                words_without(&[&id], store.complete(&worker, &request(token, KEEP)).await),
                words_without(&[&id], store.completion(&name).await),
                words_without(&[&id], store.forget(&name, token).await),
                words_without(&[&id], store.list_completions("", None, 10).await),
            ];
            for words in words {
                assert!(
                    words.contains("Internal") && words.contains("{x}:d"),
                    "{words}"
                );
            }
            // Locks are none of its business.
            assert_eq!(kind(store.claim(&waiter).await), ErrorKind::Internal);
            assert!(matches!(
                renewed(&store, &worker, token).await,
                Renewal::Renewed(_)
            ));
            waiting(&store, &fair("x")).await;
            assert_eq!(held_by(&server, "x").await, id);
        }
        server.command(&["DEL", "{x}:d"]).await.unwrap();
        completed(&store, &worker, &request(token, KEEP)).await;
        assert_eq!(done(&store, &waiter).await.token, token);
    })
    .await;
}

#[tokio::test]
async fn what_is_damaged_by_hand_fails_before_anything_is_written() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let worker = once("x", 0);
        let token = granted(&store, &worker).await.token;
        waiting(&store, &once("x", 0)).await;
        server.command(&["RENAME", "{x}:l", "aside"]).await.unwrap();
        server.command(&["SET", "{x}:l", "text"]).await.unwrap();
        let refused = store.complete(&worker, &request(token, KEEP)).await;
        assert_eq!(kind(refused), ErrorKind::Corrupt);
        assert!(store.completion(&"x".into()).await.unwrap().is_none());
        assert_eq!(held_by(&server, "x").await, worker.id.to_string());
        server.command(&["RENAME", "aside", "{x}:l"]).await.unwrap();
        // Fires that are no numbers, and those of tickets that are gone.
        for (field, fire) in [("f1", "x"), ("f2", "0"), ("f3", "")] {
            server
                .command(&["HSET", "{x}:l", field, fire, "t", "5000"])
                .await
                .unwrap();
        }
        completed(&store, &worker, &request(token, KEEP)).await;
        done(&store, &once("x", 0)).await;
    })
    .await;
}

#[tokio::test]
async fn a_restart_and_a_kill_keep_what_is_on_disk() {
    bounded(async {
        let options = RedisOptions {
            persistent: true,
            ..RedisOptions::default()
        };
        let server = Server::start_with(&options).await.unwrap();
        let store = client(&server).await;
        let (_, kept) = work(&store, "x", 3, KEEP).await;
        let (_, brief) = work(&store, "y", 0, Keep::For(Duration::from_millis(1))).await;
        server.kill().await.unwrap();
        server.start_again().await.unwrap();
        let store = client(&server).await;
        let told = done(&store, &once("x", 3)).await;
        assert!(told.left.unwrap() <= Duration::from_secs(60));
        assert_eq!(lasting(told), lasting(kept));
        assert!(granted(&store, &once("y", 0)).await.token > brief.token);
    })
    .await;
}

#[tokio::test]
async fn a_full_server_completes() {
    bounded(async {
        let options = RedisOptions {
            extra: vec!["--maxmemory-policy".into(), "noeviction".into()],
            ..RedisOptions::default()
        };
        let server = Server::start_with(&options).await.unwrap();
        let store = client(&server).await;
        work(&store, "warm", 0, KEEP).await;
        let [alone, followed, next] = [once("alone", 0), once("x", 0), fair("x")];
        let tokens = [&alone, &followed].map(async |claim| granted(&store, claim).await.token);
        let tokens = futures_util::future::join_all(tokens).await;
        waiting(&store, &next).await;
        waiting(&store, &once("x", 0)).await;
        server
            .command(&["CONFIG", "SET", "maxmemory", "1"])
            .await
            .unwrap();
        let refused = store.claim(&once("y", 0)).await;
        assert_eq!(kind(refused), ErrorKind::Unavailable);
        for (claim, token) in [&alone, &followed].into_iter().zip(tokens) {
            assert_eq!(
                completed(&store, claim, &request(token, KEEP)).await.token,
                token
            );
            assert_eq!(
                done(&store, &once(claim.name.as_str(), 0)).await.token,
                token
            );
        }
        assert_eq!(held_by(&server, "x").await, next.id.to_string());
    })
    .await;
}

#[tokio::test]
async fn a_completion_counts_once_replicas_have_it() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let words = "timeout=10000&min_replicas=1&min_replicas_timeout=50";
        let strict = Redis::connect(&format!("{}?{words}", server.url()))
            .await
            .unwrap();
        let claim = once("x", 0);
        let token = granted(&store, &claim).await.token;
        let asked = request(token, KEEP);
        // No replica is there: it is recorded, and not told.
        assert_eq!(
            kind(strict.complete(&claim, &asked).await),
            ErrorKind::Ambiguous
        );
        assert_eq!(
            kind(strict.claim(&once("x", 0)).await),
            ErrorKind::Ambiguous
        );
        assert_eq!(
            kind(strict.completion(&"x".into()).await),
            ErrorKind::Ambiguous
        );
        assert_eq!(done(&store, &once("x", 0)).await.token, token);
        let replica = Server::start().await.unwrap();
        let port = server.addr().rsplit(':').next().unwrap().to_owned();
        replica
            .command(&["REPLICAOF", "127.0.0.1", &port])
            .await
            .unwrap();
        until(async || strict.complete(&claim, &asked).await.is_ok()).await;
        until(async || strict.claim(&once("x", 0)).await.is_ok()).await;
        assert_eq!(completed(&strict, &claim, &asked).await.token, token);
    })
    .await;
}

/// One works, and another is told.
async fn serves(one: &Redis, other: &Redis) {
    let [worker, waiter, lock] = [once("x", 1), once("x", 1), fair("x")];
    let token = granted(one, &worker).await.token;
    waiting(other, &waiter).await;
    waiting(other, &lock).await;
    completed(one, &worker, &request(token, KEEP)).await;
    assert_eq!(done(other, &waiter).await.token, token);
    let held = granted(other, &lock).await.token;
    assert!(held > token);
    assert_eq!(done(other, &once("x", 0)).await.token, token);
    other.release(&lock, None).await.unwrap();
    work(other, "y", 0, Keep::Forever).await;
    let listed = one.list_completions("", None, 10).await.unwrap();
    let names: Vec<_> = listed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["x", "y"]);
    assert!(one.forget(&"x".into(), token).await.unwrap());
    assert!(one.completion(&"x".into()).await.unwrap().is_none());
    work(one, "x", 0, KEEP).await;
    assert!(one.guarantees().once() && one.completions().is_some());
}

#[tokio::test]
async fn keys_are_declared_and_resp2_and_a_cluster_are_served() {
    bounded(async {
        let server = server().await;
        let through = async |addr: &str| {
            let url = format!("redis://{addr}?timeout=10000");
            [
                Redis::connect(&url).await.unwrap(),
                Redis::connect(&url).await.unwrap(),
            ]
        };
        let gate = RedisGate::declared_keys(server.addr()).await.unwrap();
        let [one, other] = through(gate.addr()).await;
        serves(&one, &other).await;
        server.command(&["FLUSHALL"]).await.unwrap();
        let gate = RedisGate::twemproxy(vec![server.addr().to_owned()])
            .await
            .unwrap();
        let [one, other] = through(gate.addr()).await;
        assert!(!one.guarantees().pushed_wake());
        serves(&one, &other).await;
        server.command(&["FLUSHALL"]).await.unwrap();
        serves(&one, &client(&server).await).await;
        let cluster = RedisCluster::start(&RedisClusterOptions {
            replicas: 0,
            ..RedisClusterOptions::default()
        })
        .await
        .unwrap();
        let url = format!("{}?timeout=10000", cluster.url());
        let [one, other] = [
            Redis::connect(&url).await.unwrap(),
            Redis::connect(&url).await.unwrap(),
        ];
        serves(&one, &other).await;
        // It moves with its slot.
        let (_, mine) = work(&one, "moved", 4, KEEP).await;
        let slot = cluster.slot("moved").await.unwrap();
        let to = (cluster.owner(slot).await.unwrap() + 1) % 3;
        cluster.move_slot(slot, to).await.unwrap();
        until(async || other.claim(&once("moved", 4)).await.is_ok()).await;
        assert_eq!(done(&other, &once("moved", 4)).await.token, mine.token);
    })
    .await;
}

#[tokio::test]
async fn without_scripts_nothing_is_done_once() {
    bounded(async {
        let server = server().await;
        let url = format!("{}?scripts=off", server.url());
        let store = Redis::connect(&url).await.unwrap();
        assert!(!store.guarantees().once() && store.completions().is_none());
    })
    .await;
}

#[tokio::test]
async fn evictions_of_completions_are_warned_of() {
    bounded(async {
        let limited = ["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"];
        let options = RedisOptions {
            extra: limited.map(str::to_owned).to_vec(),
            ..RedisOptions::default()
        };
        let server = Server::start_with(&options).await.unwrap();
        let guarantees = client(&server).await.guarantees();
        let says =
            |warning: &String| warning.contains("completions") && warning.contains("volatile");
        assert!(guarantees.warnings().iter().any(says), "{guarantees:?}");
    })
    .await;
}

/// Clients whose requests are dropped, doubled and late do each work once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_in_a_hurry_do_each_work_once() {
    const WORKS: usize = 40;
    const CLIENTS: usize = 12;
    bounded(async {
        let server = server().await;
        let bodies: Arc<Vec<AtomicUsize>> =
            Arc::new((0..WORKS).map(|_| AtomicUsize::new(0)).collect());
        let mut clients = JoinSet::new();
        for n in 0..CLIENTS {
            let (store, bodies) = (client(&server).await, bodies.clone());
            clients.spawn(async move {
                let mut ran = 0;
                for work in 0..WORKS {
                    let fire = (work % 4) as u64;
                    let claim = once(&format!("work/{}", work / 4), fire);
                    let hurry = |round: usize| {
                        Duration::from_micros(50 * ((n * 7 + work * 3 + round) % 20) as u64)
                    };
                    let mut round = 0;
                    let grant = loop {
                        round += 1;
                        // Dropped somewhere, and asked again at once.
                        let asked = store.claim(&claim);
                        let answer = match round % 3 {
                            0 => asked.await,
                            _ => match tokio::time::timeout(hurry(round), asked).await {
                                Ok(answer) => answer,
                                Err(_) => continue,
                            },
                        };
                        match answer.unwrap() {
                            Claimed::Granted(grant) => break Some(grant),
                            Claimed::Done(done) => {
                                assert!(done.fire >= fire);
                                break None;
                            }
                            Claimed::Waiting(_) => sleep(1).await,
                            Claimed::Busy(_) => panic!("a fair claim is busy"),
                        }
                    };
                    let Some(grant) = grant else {
                        assert!(bodies[work].load(Ordering::SeqCst) <= 1, "work {work}");
                        continue;
                    };
                    let before = bodies[work].fetch_add(1, Ordering::SeqCst);
                    assert_eq!(before, 0, "work {work} is done again");
                    ran += 1;
                    let asked = request(grant.token, KEEP);
                    let _ =
                        tokio::time::timeout(hurry(round), store.complete(&claim, &asked)).await;
                    // Unless a later fire has taken its place before it was asked again.
                    if is_refused(&store, &claim, &asked).await {
                        assert!(fire < 3, "its own completion stands");
                    }
                    // Late requests of this claim.
                    done(&store, &claim).await;
                }
                ran
            });
        }
        let mut ran = 0;
        while let Some(some) = clients.join_next().await {
            ran += some.unwrap();
        }
        let done = bodies
            .iter()
            .filter(|body| body.load(Ordering::SeqCst) == 1)
            .count();
        assert_eq!(ran, done);
        // The last fire of each name is always done.
        for last in bodies.iter().skip(3).step_by(4) {
            assert_eq!(last.load(Ordering::SeqCst), 1);
        }
        for n in 0..WORKS / 4 {
            assert!(is_free(&server, &format!("work/{n}")).await);
        }
    })
    .await;
}
