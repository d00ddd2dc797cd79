//! Work that is done once: its completions, who is told of them, and what survives.

mod transactions;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{
    Backend, Claim, Claimed, Complete, Completed, Completions, Grant, Mode, Moment, Notification,
    Place, Renewal, WaitPolicy,
};
use leasehold_core::{Completion, ErrorKind, FencingToken, Keep, Name};
use leasehold_postgres::Postgres;
use leasehold_testbed::PostgresOptions;
use tokio::task::JoinSet;

/// A keep that no test outlives.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A claim for work that is done once, of this fire.
fn work(name: &str, policy: WaitPolicy, fire: u64) -> Claim {
    claim(name, policy).once(fire)
}

/// A request to complete the work of a hold with this token.
fn request(token: FencingToken, keep: Duration) -> Complete {
    Complete::new(token, Place::new("unused"), Keep::For(keep))
}

/// Completes the work of this hold, which has to be answered as done.
async fn complete(store: &Postgres, claim: &Claim, token: FencingToken) -> Completion {
    match store.complete(claim, &request(token, DAY)).await {
        Ok(Completed::Done(completion)) => completion,
        other => panic!("it holds: {other:?}"),
    }
}

/// Takes the lock for this work, and completes it.
async fn do_once(store: &Postgres, claim: &Claim, keep: Duration) -> Completion {
    let token = granted(store, claim).await.token;
    match store.complete(claim, &request(token, keep)).await {
        Ok(Completed::Done(completion)) => completion,
        other => panic!("it holds: {other:?}"),
    }
}

async fn told(store: &Postgres, claim: &Claim) -> Completion {
    match store.claim(claim).await {
        Ok(Claimed::Done(completion)) => completion,
        other => panic!("it is done: {other:?}"),
    }
}

/// The store answers that this claim does not hold with this token.
async fn not_held(store: &Postgres, claim: &Claim, token: FencingToken) {
    let answer = store.complete(claim, &request(token, DAY)).await;
    assert!(matches!(answer, Ok(Completed::NotHeld)), "{answer:?}");
}

/// The number of rows in a table of the store.
async fn rows(server: &Server, table: &str) -> u64 {
    let count = format!("SELECT count(*) FROM leasehold.{table}");
    server.number(&count).await.unwrap()
}

/// As if the keep of all completions had passed.
const OVER: &str = "UPDATE leasehold.completion SET until = clock_timestamp() - interval '1 ms'";

#[tokio::test]
async fn each_kind_of_claim_is_told_and_locks_ignore_it() {
    bounded(async {
        let server = server().await;
        let (one, two) = (client(&server).await, client(&server).await);
        let first = work("a", WaitPolicy::Fair, 0);
        let token = granted(&one, &first).await.token;
        let waits = work("a", WaitPolicy::Fair, 0);
        waiting(&two, &waits).await;
        let lock = claim("a", WaitPolicy::Fair);
        waiting(&two, &lock).await;
        busy(&two, &work("a", WaitPolicy::Try, 0)).await;
        let completion = complete(&one, &first, token).await;
        assert_eq!(
            (completion.token, &*completion.label, completion.fire),
            (token, "test", 0)
        );
        // Only the lock's claim has a place now: it is the next.
        assert_eq!(rows(&server, "place").await, 1);
        let before = server.wal().await.unwrap();
        for claim in [
            &waits,
            &work("a", WaitPolicy::Try, 0),
            &work("a", WaitPolicy::Fair, 0),
            &first,
        ] {
            for store in [&one, &two] {
                let seen = told(store, claim).await;
                assert_eq!((seen.token, seen.at), (token, completion.at));
            }
        }
        println!("{} bytes of log", server.wal().await.unwrap() - before);
        assert!(granted(&two, &lock).await.token > token);
        two.release(&lock, None).await.unwrap();
        assert_eq!(rows(&server, "place").await, 0);
        let seen = one.completion(&"a".into()).await.unwrap().unwrap();
        assert_eq!((seen.token, seen.at), (token, completion.at));
    })
    .await;
}

#[tokio::test]
async fn who_asks_again_is_answered_the_same_and_extends_nothing() {
    bounded(async {
        let server = server().await;
        let (store, other) = (client(&server).await, client(&server).await);
        let mine = work("a", WaitPolicy::Fair, 0);
        let token = granted(&store, &mine).await.token;
        let end = "SELECT (extract(epoch FROM until) * 1000000)::int8 FROM leasehold.completion";
        let first = complete(&store, &mine, token).await;
        let until = server.number(end).await.unwrap();
        // Another's lock in between makes no difference.
        let lock = claim("a", WaitPolicy::Try);
        granted(&other, &lock).await;
        for _ in 0..3 {
            let again = complete(&store, &mine, token).await;
            assert_eq!((again.token, again.at), (first.token, first.at));
            assert!(again.left <= first.left);
            assert_eq!(server.number(end).await.unwrap(), until);
        }
        assert!(matches!(
            renewed(&other, &lock, None).await,
            Renewal::Renewed(_) | Renewal::Granted(_)
        ));
        assert_eq!(rows(&server, "completion").await, 1);
    })
    .await;
}

/// A completion that comes too late records nothing.
#[tokio::test]
async fn without_its_hold_nothing_is_completed() {
    bounded(async {
        let server = server().await;
        let (one, two) = (client(&server).await, client(&server).await);
        let nothing = async || assert_eq!(rows(&server, "completion").await, 0);
        // It waits, or holds with another token.
        let mine = work("a", WaitPolicy::Fair, 0);
        let token = granted(&one, &mine).await.token;
        not_held(&one, &mine, FencingToken::new(token.get() + 1)).await;
        let waits = work("a", WaitPolicy::Fair, 0);
        waiting(&two, &waits).await;
        for token in [FencingToken::new(0), token] {
            not_held(&two, &waits, token).await;
        }
        nothing().await;
        // After the end of its lease, and after another's grant.
        let lapse = "UPDATE leasehold.place SET until = clock_timestamp() WHERE token IS NOT NULL";
        server.query(lapse).await.unwrap();
        not_held(&one, &mine, token).await;
        let next = granted(&two, &waits).await.token;
        not_held(&one, &mine, token).await;
        nothing().await;
        // Its own late claim takes the lock anew, with another token.
        two.release(&waits, None).await.unwrap();
        let anew = granted(&one, &mine).await.token;
        assert!(anew > next);
        not_held(&one, &mine, token).await;
        nothing().await;
        let done = complete(&one, &mine, anew).await;
        assert_eq!(done.token, anew);
        // After it was forgotten, and after its keep.
        assert!(one.forget(&"a".into(), anew).await.unwrap());
        not_held(&one, &mine, anew).await;
        nothing().await;
        let again = work("a", WaitPolicy::Fair, 0);
        let last = do_once(&two, &again, DAY).await.token;
        server.query(OVER).await.unwrap();
        not_held(&two, &again, last).await;
        // A name that was never used.
        not_held(&two, &work("b", WaitPolicy::Fair, 0), last).await;
        assert_eq!(rows(&server, "place").await, 0);
        assert_eq!(two.completion(&"a".into()).await.unwrap(), None);
        // Evicted, and about to end by itself.
        let late = work("a", WaitPolicy::Fair, 0);
        let token = granted(&one, &late).await.token;
        assert!(two.evict(&"a".into(), token).await.unwrap());
        not_held(&one, &late, token).await;
        let late = work("a", WaitPolicy::Fair, 0);
        let token = granted(&one, &late).await.token;
        one.release_after(&late, None, TTL).await.unwrap();
        not_held(&one, &late, token).await;
        assert_eq!(two.completion(&"a".into()).await.unwrap(), None);
    })
    .await;
}

/// In class F two hold at once. What one has completed, the other neither overwrites nor claims to have done.
#[tokio::test]
async fn what_another_has_completed_is_not_overwritten() {
    bounded(async {
        let server = server().await;
        let (one, two) = (client(&server).await, client(&server).await);
        let [mine, theirs] = [(); 2].map(|()| work("a", WaitPolicy::Fair, 3));
        let token = granted(&one, &mine).await.token;
        // As after a failover that has lost the first grant, which comes back with a later one.
        let lost = "CREATE TABLE lost AS TABLE leasehold.place; DELETE FROM leasehold.place; UPDATE leasehold.lines SET size = 0";
        server.query(lost).await.unwrap();
        let other = granted(&two, &theirs).await.token;
        server
            .query("INSERT INTO leasehold.place SELECT name, seq + 100, claim, mode, n, of, turns, token, client, label, since, ttl, until, sent, said FROM lost;
                    UPDATE leasehold.lines SET size = 2, seq = 101")
            .await
            .unwrap();
        let done = complete(&two, &theirs, other).await;
        not_held(&one, &mine, token).await;
        let kept = one.completion(&"a".into()).await.unwrap().unwrap();
        assert_eq!((kept.token, kept.at), (other, done.at));
        // For a later fire it does not count, and is replaced.
        let later = work("a", WaitPolicy::Fair, 4);
        one.release(&mine, None).await.unwrap();
        assert_eq!(do_once(&one, &later, DAY).await.fire, 4);
        assert_eq!(rows(&server, "completion").await, 1);
    })
    .await;
}

#[tokio::test]
async fn a_completion_counts_for_fires_up_to_its_own() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let holder = work("a", WaitPolicy::Fair, 7);
        let token = granted(&store, &holder).await.token;
        let waiters = [0, 6, 7, 8, u64::MAX].map(|fire| work("a", WaitPolicy::Fair, fire));
        for waiter in &waiters {
            waiting(&store, waiter).await;
        }
        let done = complete(&store, &holder, token).await;
        assert_eq!(done.fire, 7);
        for waiter in &waiters[..3] {
            assert_eq!(told(&store, waiter).await.fire, 7);
        }
        // The later fires are served in their order, and complete beside it.
        let eight = granted(&store, &waiters[3]).await.token;
        waiting(&store, &waiters[4]).await;
        assert_eq!(complete(&store, &waiters[3], eight).await.fire, 8);
        let last = granted(&store, &waiters[4]).await.token;
        assert_eq!(complete(&store, &waiters[4], last).await.fire, u64::MAX);
        for fire in [0, 8, u64::MAX] {
            assert_eq!(
                told(&store, &work("a", WaitPolicy::Try, fire)).await.fire,
                u64::MAX
            );
        }
        assert_eq!(rows(&server, "place").await, 0);
    })
    .await;
}

/// Notifies with the time at which each of these claims was told to ask again.
fn listens(
    store: &Postgres,
    claims: &[Claim],
    told: &Arc<AtomicUsize>,
) -> Vec<leasehold_core::backend::Subscription> {
    let each = claims.iter().map(|claim| {
        let told = told.clone();
        store.notifier().unwrap().subscribe(claim.id, move |what| {
            if matches!(what, Notification::ClaimAgain) {
                told.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    each.collect()
}

/// Waiters of several clients, one of which is paused, are told at once.
#[tokio::test]
async fn a_thousand_waiters_are_told_at_once() {
    const CLIENTS: usize = 10;
    const EACH: usize = 250;
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let long = |fire| {
            let ttl = Duration::from_secs(600);
            Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, ttl, "test").once(fire)
        };
        for all in [1_000, CLIENTS * EACH] {
            let holder = long(0);
            let token = granted(&store, &holder).await.token;
            let count = Arc::new(AtomicUsize::new(0));
            let mut clients = Vec::new();
            for _ in 0..CLIENTS {
                let other = client(&server).await;
                let claims: Vec<Claim> = (0..all / CLIENTS).map(|_| long(0)).collect();
                for claim in &claims {
                    waiting(&other, claim).await;
                }
                let listening = listens(&other, &claims, &count);
                clients.push((other, claims, listening));
            }
            // This one asks no more.
            waiting(&store, &long(0)).await;
            let began = Moment::now();
            complete(&store, &holder, token).await;
            let answered = Moment::now().since(began);
            until(async || count.load(Ordering::SeqCst) == all).await;
            println!(
                "{all} waiters: answered after {answered:?}, all told after {:?}",
                Moment::now().since(began)
            );
            assert!(
                Moment::now().since(began) < Duration::from_secs(10),
                "{:?}",
                Moment::now().since(began)
            );
            assert_eq!(rows(&server, "place").await, 0);
            for (other, claims, _) in &clients {
                told(other, &claims[0]).await;
            }
            assert_eq!(count.load(Ordering::SeqCst), all, "each is told once");
            assert!(store.forget(&"a".into(), token).await.unwrap());
        }
    })
    .await;
}

#[tokio::test]
async fn it_is_forgotten_by_its_own_token_only() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let name = Name::from("a");
        let first = do_once(&store, &work("a", WaitPolicy::Fair, 1), DAY).await;
        let second = do_once(&store, &work("a", WaitPolicy::Fair, 2), DAY).await;
        for token in [
            first.token,
            FencingToken::new(0),
            FencingToken::new(second.token.get() + 1),
        ] {
            assert!(!store.forget(&name, token).await.unwrap());
        }
        assert!(!store.forget(&"b".into(), second.token).await.unwrap());
        let kept = told(&store, &work("a", WaitPolicy::Try, 0)).await;
        assert_eq!(kept.token, second.token);
        assert!(store.forget(&name, second.token).await.unwrap());
        assert!(!store.forget(&name, second.token).await.unwrap());
        let anew = do_once(&store, &work("a", WaitPolicy::Try, 0), DAY).await;
        assert!(anew.token > second.token);
        // One that is over cannot be forgotten: nobody is told of it.
        server.query(OVER).await.unwrap();
        assert!(!store.forget(&name, anew.token).await.unwrap());
    })
    .await;
}

/// The end of a keep is by the server's clock, and later tokens are greater.
#[tokio::test]
async fn a_keep_is_not_cut_short_and_tokens_rise_beyond_it() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let keep = Duration::from_millis(700);
        let mut last = 0;
        for round in 0..3 {
            let began = Moment::now();
            let mine = work("a", WaitPolicy::Fair, 0);
            let done = do_once(&store, &mine, keep).await;
            let ended = Moment::now();
            assert!(done.token.get() > last && done.left.unwrap() <= keep);
            last = done.token.get();
            let kept = "SELECT (extract(epoch FROM until - at) * 1000000)::int8 FROM leasehold.completion";
            assert_eq!(server.number(kept).await.unwrap(), 700_000);
            let next = work("a", WaitPolicy::Try, 0);
            let grant = loop {
                let asked = Moment::now();
                match store.claim(&next).await.unwrap() {
                    Claimed::Granted(grant) => break grant,
                    Claimed::Done(still) => {
                        assert!(asked < ended + keep + Duration::from_secs(10), "{still:?}");
                        assert!(still.left.unwrap() <= keep);
                    }
                    other => panic!("{other:?}"),
                }
                sleep(5).await;
            };
            assert!(Moment::now().since(began) >= keep.mul_f64(0.98), "{:?}", Moment::now().since(began));
            assert!(grant.token.get() > last);
            last = grant.token.get();
            store.release(&next, None).await.unwrap();
            if round == 1 {
                // The line of the name is swept away with it, and its token is remembered. A clock that steps back makes none smaller.
                let far = "UPDATE leasehold.lines SET token = token + 3600000000, used = used - interval '1 hour'; UPDATE leasehold.meta SET swept = '-infinity';
                           SELECT leasehold.sweep_1(1000, 1000)";
                server.query(far).await.unwrap();
                server.query(far).await.unwrap();
                assert_eq!(rows(&server, "lines").await, 0);
                last += 3_600_000_000;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn nothing_is_left_behind_by_a_thousand_completions() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for i in 0..1_000 {
            do_once(&store, &work(&format!("n/{i:04}"), WaitPolicy::Try, i), DAY).await;
        }
        do_once(&store, &work("kept", WaitPolicy::Try, 0), DAY).await;
        let listed = store.list_completions("n/", None, 2_000).await.unwrap();
        assert!(listed.len() == 1_000 && listed.is_sorted_by_key(|(name, _)| name.as_str().to_owned()));
        assert!(listed.iter().enumerate().all(|(i, (_, done))| done.fire == i as u64));
        assert!(store.list("", None, 9).await.unwrap().is_empty());
        let ended = "UPDATE leasehold.completion SET until = clock_timestamp() WHERE name <> 'kept'";
        server.query(ended).await.unwrap();
        assert_eq!(store.list_completions("", None, 2_000).await.unwrap().len(), 1);
        until(async || {
            let sweep = "UPDATE leasehold.lines SET used = used - interval '1 hour'; UPDATE leasehold.meta SET swept = '-infinity'";
            server.query(sweep).await.unwrap();
            let more = server.text("SELECT leasehold.sweep_1(1000, 300)").await.unwrap();
            more == "f"
        })
        .await;
        assert_eq!([rows(&server, "completion").await, rows(&server, "place").await, rows(&server, "lines").await], [1, 0, 0]);
        told(&store, &work("kept", WaitPolicy::Try, 0)).await;
    })
    .await;
}

#[tokio::test]
async fn a_result_comes_back_as_it_was_left() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let odd = "\u{1}\"'\\{}%~$1\n\r\t é 漢 \u{1f600}\u{fffd}\u{10ffff}".repeat(60);
        for (n, text) in [
            None,
            Some(String::new()),
            Some(odd),
            Some("é".repeat(2_048)),
            Some("\u{1f600}".repeat(1_024)),
        ]
        .into_iter()
        .enumerate()
        {
            let mut mine = work(&format!("n{n}"), WaitPolicy::Try, 0);
            mine.label = "a label, ünïcode".into();
            let token = granted(&store, &mine).await.token;
            let mut request = request(token, DAY);
            request.keep = Keep::Forever;
            request.result = text.clone().map(Into::into);
            request.is_cut = n == 3;
            let Ok(Completed::Done(done)) = store.complete(&mine, &request).await else {
                panic!("it holds")
            };
            let seen = told(&store, &work(&format!("n{n}"), WaitPolicy::Try, 0)).await;
            assert_eq!((&seen, seen.left), (&done, None));
            assert_eq!(
                (seen.result.as_deref(), seen.is_cut),
                (text.as_deref(), n == 3)
            );
            assert_eq!(&*seen.label, "a label, ünïcode");
        }
        // One that core would have cut is refused, and the hold stays.
        let mine = work("long", WaitPolicy::Try, 0);
        let token = granted(&store, &mine).await.token;
        let mut long = request(token, DAY);
        long.result = Some("x".repeat(4_097).into());
        assert_eq!(kind(store.complete(&mine, &long).await), ErrorKind::Invalid);
        complete(&store, &mine, token).await;
    })
    .await;
}

#[tokio::test]
async fn two_names_have_nothing_to_do_with_each_other() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let names = ["a", "A", "a/", "a/b", "a b", "aé", "é", "%", "_"];
        let mut tokens = Vec::new();
        for name in names {
            let mine = work(name, WaitPolicy::Try, 0);
            let token = granted(&store, &mine).await.token;
            // Neither the name of another claim, nor the hold of another name.
            let mut other = mine.clone();
            other.name = "other".into();
            not_held(&store, &other, token).await;
            tokens.push(complete(&store, &mine, token).await.token);
        }
        for (name, token) in names.iter().zip(&tokens) {
            assert_eq!(
                store
                    .completion(&Name::from(*name))
                    .await
                    .unwrap()
                    .unwrap()
                    .token,
                *token
            );
        }
        let page = async |prefix, after: Option<&str>, limit| {
            let after = after.map(Name::from);
            let listed = store
                .list_completions(prefix, after.as_ref(), limit)
                .await
                .unwrap();
            listed
                .into_iter()
                .map(|(name, _)| name.to_string())
                .collect::<Vec<_>>()
        };
        let mut sorted = names.to_vec();
        sorted.sort_unstable();
        assert_eq!(page("", None, 99).await, sorted);
        assert_eq!(page("", Some("_"), 2).await, sorted[3..5]);
        assert_eq!(page("a/", None, 99).await, ["a/", "a/b"]);
        assert_eq!(page("a", Some("a/"), 99).await, ["a/b", "aé"]);
        assert!(page("a", None, 0).await.is_empty() && page("a\0", None, 9).await.is_empty());
    })
    .await;
}

/// An older client, or the release of a lock, hands the lock over without a look.
#[tokio::test]
async fn who_was_handed_the_lock_is_told_when_it_asks() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for is_granted in [false, true] {
            let name = format!("{is_granted}");
            let lock = claim(&name, WaitPolicy::Fair);
            granted(&store, &lock).await;
            let [first, second] = [(); 2].map(|()| work(&name, WaitPolicy::Fair, 5));
            let behind = claim(&name, WaitPolicy::Fair);
            for waiter in [&first, &second, &behind] {
                waiting(&store, waiter).await;
            }
            if is_granted {
                store.release(&lock, None).await.unwrap();
            }
            let done = format!(
                "INSERT INTO leasehold.completion SELECT '{name}', gen_random_uuid(), 77, 'other', now(), NULL, 5, NULL, false"
            );
            server.query(&done).await.unwrap();
            if !is_granted {
                store.release(&lock, None).await.unwrap();
            }
            let held = "SELECT count(*) FROM leasehold.place WHERE token IS NOT NULL AND once = 5";
            assert_eq!(server.number(held).await.unwrap(), 1);
            // Its renewal may say that it holds; it is told by its claim, and so are the others.
            let count = Arc::new(AtomicUsize::new(0));
            let _listening = listens(&store, std::slice::from_ref(&second), &count);
            let seen = told(&store, &first).await;
            assert_eq!((seen.token.get(), &*seen.label), (77, "other"));
            until(async || count.load(Ordering::SeqCst) == 1).await;
            told(&store, &second).await;
            granted(&store, &behind).await;
            store.release(&behind, None).await.unwrap();
            assert_eq!(rows(&server, "place").await, 0);
        }
    })
    .await;
}

#[tokio::test]
async fn what_nobody_can_read_is_not_ignored() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        do_once(&store, &work("a", WaitPolicy::Try, 1), DAY).await;
        for broken in ["fire = -1", "token = -1, fire = 1"] {
            server
                .query(&format!("UPDATE leasehold.completion SET {broken}"))
                .await
                .unwrap();
            let asks = work("a", WaitPolicy::Fair, 1);
            assert_eq!(kind(store.claim(&asks).await), ErrorKind::Internal);
            assert_eq!(
                kind(store.completion(&"a".into()).await),
                ErrorKind::Internal
            );
            // Locks have nothing to do with it.
            let lock = claim("a", WaitPolicy::Try);
            granted(&store, &lock).await;
            store.release(&lock, None).await.unwrap();
            assert_eq!(rows(&server, "place").await, 0);
        }
    })
    .await;
}

/// A completion that was answered is on the disk, whatever a role has as its default.
#[tokio::test]
async fn what_was_answered_survives_kills() {
    // A server that is killed replays its log for a second.
    let kills = if std::env::var_os("LEASEHOLD_WHOLE").is_some() {
        50
    } else {
        5
    };
    within(900, async {
        let options = PostgresOptions::default().set("wal_writer_delay", "10000");
        let server = Server::start_with(&options).await.unwrap();
        let role = Server::USER;
        let careless = format!("ALTER ROLE {role} SET synchronous_commit = off");
        server.query(&careless).await.unwrap();
        let mut tokens = Vec::new();
        for n in 0..kills {
            let store = client(&server).await;
            let name = format!("n{n:02}");
            let done = do_once(&store, &work(&name, WaitPolicy::Try, 0), DAY).await;
            server.kill().await.unwrap();
            tokens.push((name, done.token));
            server.start_again().await.unwrap();
        }
        let store = client(&server).await;
        let listed = store.list_completions("", None, 99).await.unwrap();
        let listed: Vec<_> = listed
            .into_iter()
            .map(|(name, done)| (name.to_string(), done.token))
            .collect();
        println!("{} of {} are there", listed.len(), tokens.len());
        assert_eq!(listed, tokens);
        for (name, _) in &tokens {
            told(&store, &work(name, WaitPolicy::Try, 0)).await;
        }
    })
    .await;
}

/// A verb on the way to the answer of each attempt, of many clients at once: no body begins after somebody was told that the work is done.
#[tokio::test]
async fn no_two_bodies_whoever_meets() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 60;
    bounded(async {
        let server = server().await;
        let mut all = Vec::new();
        for _ in 0..CLIENTS {
            all.push(Arc::new(client(&server).await));
        }
        let grants = Arc::new(AtomicUsize::new(0));
        for round in 0..ROUNDS {
            let name = format!("r{round}");
            let bodies = Arc::new(AtomicUsize::new(0));
            let is_told = Arc::new(AtomicUsize::new(0));
            let mut tasks = JoinSet::new();
            for (nth, store) in all.iter().enumerate() {
                let (store, name) = (store.clone(), name.clone());
                let (bodies, is_told, grants) = (bodies.clone(), is_told.clone(), grants.clone());
                tasks.spawn(async move {
                    if nth == 0 {
                        // Somebody uses the same name as a lock, and hands it over.
                        let lock = claim(&name, WaitPolicy::Fair);
                        until(async || matches!(store.claim(&lock).await, Ok(Claimed::Granted(_))))
                            .await;
                        return store.release(&lock, None).await.unwrap();
                    }
                    let policy = [WaitPolicy::Fair, WaitPolicy::Try][nth % 2];
                    let mut mine = work(&name, policy, 0);
                    loop {
                        let told_before = is_told.load(Ordering::SeqCst);
                        match store.claim(&mine).await.unwrap() {
                            Claimed::Granted(Grant { token, .. }) => {
                                grants.fetch_add(1, Ordering::SeqCst);
                                assert_eq!(told_before, 0, "a body after done was told");
                                // Some bodies fail.
                                if nth == 1 && bodies.load(Ordering::SeqCst) == 0 {
                                    store.release(&mine, None).await.unwrap();
                                    mine = work(&name, WaitPolicy::Fair, 0);
                                    sleep(1).await;
                                    continue;
                                }
                                assert_eq!(bodies.fetch_add(1, Ordering::SeqCst), 0, "two bodies");
                                complete(&store, &mine, token).await;
                                is_told.store(1, Ordering::SeqCst);
                                return;
                            }
                            Claimed::Done(_) => {
                                is_told.store(1, Ordering::SeqCst);
                                assert_eq!(bodies.load(Ordering::SeqCst), 1);
                                return;
                            }
                            Claimed::Waiting(_) | Claimed::Busy(_) => sleep(1).await,
                        }
                    }
                });
            }
            tasks.join_all().await;
            assert_eq!(bodies.load(Ordering::SeqCst), 1);
        }
        println!(
            "{} grants for {ROUNDS} bodies",
            grants.load(Ordering::SeqCst)
        );
        assert_eq!(rows(&server, "place").await, 0);
        assert_eq!(rows(&server, "completion").await, ROUNDS as u64);
    })
    .await;
}

/// What a completion has written and not committed yet is what a claim waits for: it looks again after that.
#[tokio::test]
async fn a_claim_that_has_waited_for_a_completion_sees_it() {
    bounded(async {
        let server = server().await;
        let (store, beside) = (Arc::new(client(&server).await), program(&server).await);
        for nth in 0..10 {
            let name = format!("a{nth}");
            let mine = work(&name, WaitPolicy::Try, 0);
            let token = granted(&*store, &mine).await.token;
            let complete = format!(
                "BEGIN; SELECT leasehold.complete_1('{name}', '{}', {token}, '0', 86400000, NULL, false, 1000)",
                mine.id
            );
            beside.batch_execute(&complete).await.unwrap();
            let (by, next) = (store.clone(), work(&name, WaitPolicy::Fair, 0));
            let claiming = tokio::spawn(async move { by.claim(&next).await });
            let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%.once_1(%' AND pid <> pg_backend_pid()";
            until(async || server.number(waits).await.unwrap() > 0).await;
            beside.batch_execute("COMMIT").await.unwrap();
            let answer = claiming.await.unwrap().unwrap();
            assert!(matches!(&answer, Claimed::Done(done) if done.token == token), "{answer:?}");
            assert_eq!(rows(&server, "place").await, 0);
        }
    })
    .await;
}

/// A renewal that is under way, of the holder or of a waiter, is waited for.
#[tokio::test]
async fn a_completion_meets_a_renewal() {
    bounded(async {
        let server = server().await;
        let (store, beside) = (Arc::new(client(&server).await), program(&server).await);
        for of_the_holder in [true, false] {
            let name = format!("{of_the_holder}");
            let [mine, waits] = [(); 2].map(|()| work(&name, WaitPolicy::Fair, 0));
            let token = granted(&*store, &mine).await.token;
            waiting(&*store, &waits).await;
            let renewed = if of_the_holder { &mine } else { &waits };
            let renew = format!(
                "BEGIN; SELECT leasehold.renew_1(ARRAY['{}']::uuid[], '{{0}}', '{{10000}}', 1, 1000)",
                renewed.id
            );
            beside.batch_execute(&renew).await.unwrap();
            let by = store.clone();
            let completing = tokio::spawn(async move { complete(&by, &mine, token).await });
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%.complete_1(%' AND pid <> pg_backend_pid()";
            until(async || server.number(waiting).await.unwrap() > 0).await;
            beside.batch_execute("COMMIT").await.unwrap();
            assert_eq!(completing.await.unwrap().token, token);
            assert_eq!(rows(&server, "place").await, 0);
            told(&store, &waits).await;
        }
    })
    .await;
}
