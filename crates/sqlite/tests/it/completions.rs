//! Work that is done once: the store's own verbs, on files as they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{
    Backend, Claim, Claimed, Complete, Completed, Completions, Grant, Mode, Moment, WaitPolicy,
};
use leasehold_core::{Completion, ErrorKind, FencingToken, Keep, MAX_RESULT_BYTES, Name};
use leasehold_sqlite::Sqlite;
use rusqlite::{Connection, params};

const TTL: Duration = Duration::from_secs(30);
const DAY: Keep = Keep::For(Duration::from_secs(24 * 3600));

fn lock(name: &str, policy: WaitPolicy) -> Claim {
    Claim::new(name, Mode::Exclusive, policy, TTL, "test")
}

fn once(name: &str, policy: WaitPolicy, fire: u64) -> Claim {
    lock(name, policy).once(fire)
}

async fn granted(client: &Sqlite, claim: &Claim) -> Grant {
    match client.claim(claim).await.unwrap() {
        Claimed::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn told(client: &Sqlite, claim: &Claim) -> Completion {
    match client.claim(claim).await.unwrap() {
        Claimed::Done(completion) => completion,
        other => panic!("{other:?}"),
    }
}

async fn waits(client: &Sqlite, claim: &Claim) {
    let answer = client.claim(claim).await.unwrap();
    assert!(matches!(answer, Claimed::Waiting(_)), "{answer:?}");
}

fn request(grant: &Grant, keep: Keep) -> Complete {
    Complete::new(grant.token, grant.place.clone(), keep)
}

/// Whether it is done now; otherwise nothing was recorded.
async fn completes(client: &Sqlite, claim: &Claim, request: &Complete) -> Option<Completion> {
    match client.complete(claim, request).await.unwrap() {
        Completed::Done(completion) => Some(completion),
        Completed::NotHeld => None,
    }
}

/// Does the work of this name.
async fn does(client: &Sqlite, name: &str, keep: Keep) -> Completion {
    let claim = once(name, WaitPolicy::Try, 0);
    let grant = granted(client, &claim).await;
    let done = completes(client, &claim, &request(&grant, keep)).await;
    done.expect("it holds")
}

async fn queue(client: &Sqlite, name: &str) -> (usize, usize) {
    let queue = client.inspect(&Name::from(name)).await.unwrap();
    (queue.holders.len(), queue.waiters.len())
}

fn second(place: &Place) -> std::path::PathBuf {
    place.folder().join("locks.db-done")
}

/// The second file as any program sees it.
fn rows(place: &Place) -> Connection {
    let rows = Connection::open(second(place)).unwrap();
    rows.busy_timeout(Duration::from_secs(10)).unwrap();
    rows
}

#[test]
fn done_is_told_to_each_kind_of_claim_and_a_lock_ignores_it() {
    let place = Place::new();
    run(async {
        let (one, two) = (
            open(place.path()).await.unwrap(),
            open(place.path()).await.unwrap(),
        );
        assert!(one.guarantees().once());
        let claim = once("a", WaitPolicy::Fair, 0);
        let grant = granted(&one, &claim).await;
        let waiter = once("a", WaitPolicy::Fair, 0);
        waits(&two, &waiter).await;
        let behind = lock("a", WaitPolicy::Fair);
        waits(&two, &behind).await;
        let busy = two.claim(&once("a", WaitPolicy::Try, 0)).await.unwrap();
        assert!(matches!(busy, Claimed::Busy(_)), "{busy:?}");
        let done = completes(&one, &claim, &request(&grant, DAY))
            .await
            .unwrap();
        assert_eq!((done.token, &*done.label), (grant.token, "test"));
        assert_eq!(queue(&one, "a").await, (1, 0), "the lock is served");
        for claim in [
            &waiter,
            &claim,
            &once("a", WaitPolicy::Try, 0),
            &once("a", WaitPolicy::Fair, 0),
        ] {
            for client in [&one, &two] {
                let seen = told(client, claim).await;
                assert_eq!((seen.token, seen.at), (done.token, done.at));
                assert!(seen.left < done.left && seen.left > Some(Duration::from_secs(80_000)));
            }
        }
        assert_eq!(queue(&one, "a").await, (1, 0), "none of them left a place");
        let held = granted(&two, &behind).await;
        assert!(held.token > done.token);
        two.release(&behind, Some(&held.place)).await.unwrap();
        let new = store(place.path()).await;
        let guard = new.lock("a").try_acquire().await.unwrap();
        guard.release().await.unwrap();
        assert_eq!(
            one.completion(&"a".into()).await.unwrap().unwrap().at,
            done.at
        );
    });
}

/// A claim, a late completion and a look make no file; the first completion does.
#[test]
fn the_second_file_comes_with_the_first_completion() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        let claim = once("a", WaitPolicy::Try, 0);
        let grant = granted(&client, &claim).await;
        client.release(&claim, Some(&grant.place)).await.unwrap();
        let late = completes(&client, &claim, &request(&grant, DAY)).await;
        assert_eq!(late, None);
        assert_eq!(client.completion(&"a".into()).await.unwrap(), None);
        assert!(!client.forget(&"a".into(), grant.token).await.unwrap());
        let listed = client.list_completions("", None, 9).await.unwrap();
        assert!(listed.is_empty());
        assert!(!second(&place).exists());
        does(&client, "a", DAY).await;
        assert!(second(&place).exists());
        let files = std::fs::read_dir(place.folder()).unwrap().count();
        assert_eq!(files, 7, "two times three files, and a FIFO");
    });
}

#[test]
fn asked_again_it_answers_the_same_and_extends_nothing() {
    let place = Place::new();
    run(async {
        let (one, two) = (
            open(place.path()).await.unwrap(),
            open(place.path()).await.unwrap(),
        );
        let claim = once("a", WaitPolicy::Try, 0);
        let grant = granted(&one, &claim).await;
        let mut asked = request(&grant, Keep::For(Duration::from_secs(60)));
        asked.result = Some("first".into());
        let first = completes(&one, &claim, &asked).await.unwrap();
        tokio::time::sleep(ms(50)).await;
        asked.keep = DAY;
        asked.result = Some("second".into());
        for client in [&one, &two, &one] {
            let again = completes(client, &claim, &asked).await.unwrap();
            assert_eq!((again.token, again.at), (first.token, first.at));
            assert_eq!(again.result.as_deref(), Some("first"));
            assert!(again.left < first.left, "{:?}", again.left);
        }
    });
}

#[test]
fn nothing_is_recorded_for_a_hold_that_has_ended() {
    let place = Place::new();
    run(async {
        let (one, two) = (
            open(place.path()).await.unwrap(),
            open(place.path()).await.unwrap(),
        );
        let is_none = async |name: &str| {
            let found = one.completion(&Name::from(name)).await.unwrap();
            assert_eq!(found, None, "{name}");
        };
        // A lapse, before and after another's grant.
        let mut short = once("lapsed", WaitPolicy::Try, 0);
        short.ttl = ms(100);
        let grant = granted(&one, &short).await;
        while queue(&two, "lapsed").await.0 > 0 {
            tokio::time::sleep(ms(5)).await;
        }
        let asked = request(&grant, DAY);
        assert_eq!(completes(&one, &short, &asked).await, None);
        let next = once("lapsed", WaitPolicy::Try, 0);
        let new = granted(&two, &next).await;
        assert_eq!(completes(&one, &short, &asked).await, None);
        is_none("lapsed").await;
        assert!(completes(&two, &next, &request(&new, DAY)).await.is_some());
        assert_eq!(completes(&one, &short, &asked).await, None);
        // An eviction, and the same claim again.
        let claim = once("broken", WaitPolicy::Try, 0);
        let grant = granted(&one, &claim).await;
        assert!(two.evict(&"broken".into(), grant.token).await.unwrap());
        assert_eq!(completes(&one, &claim, &request(&grant, DAY)).await, None);
        let anew = granted(&one, &claim).await;
        assert!(anew.token > grant.token);
        assert_eq!(completes(&one, &claim, &request(&grant, DAY)).await, None);
        let mut other = request(&anew, DAY);
        other.token = FencingToken::new(anew.token.get() + 1);
        assert_eq!(completes(&one, &claim, &other).await, None);
        is_none("broken").await;
        // Another client's claim.
        let stranger = once("broken", WaitPolicy::Try, 0);
        let asked = request(&anew, DAY);
        assert_eq!(completes(&two, &stranger, &asked).await, None);
        assert!(completes(&one, &claim, &asked).await.is_some());
        // A hold that was given back, and lapses by itself.
        let claim = once("rest", WaitPolicy::Try, 0);
        let grant = granted(&one, &claim).await;
        one.release_after(&claim, Some(&grant.place), TTL)
            .await
            .unwrap();
        assert_eq!(completes(&one, &claim, &request(&grant, DAY)).await, None);
        is_none("rest").await;
        // The end of the keep, and a record that was forgotten.
        let claim = once("kept", WaitPolicy::Try, 0);
        let grant = granted(&one, &claim).await;
        let asked = request(&grant, Keep::For(ms(200)));
        assert!(completes(&one, &claim, &asked).await.is_some());
        while one.completion(&"kept".into()).await.unwrap().is_some() {
            tokio::time::sleep(ms(5)).await;
        }
        assert_eq!(completes(&one, &claim, &asked).await, None);
        let claim = once("forgotten", WaitPolicy::Try, 0);
        let grant = granted(&one, &claim).await;
        let asked = request(&grant, DAY);
        assert!(completes(&one, &claim, &asked).await.is_some());
        assert!(two.forget(&"forgotten".into(), grant.token).await.unwrap());
        assert_eq!(completes(&one, &claim, &asked).await, None);
        is_none("forgotten").await;
    });
}

#[test]
fn it_counts_for_fires_up_to_its_own() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        let most = i64::MAX as u64;
        let fires = [1, 7, most - 2, most, most + 2, u64::MAX];
        for fire in fires {
            let claim = once("a", WaitPolicy::Fair, fire);
            let grant = granted(&client, &claim).await;
            let waiters = [fire - 1, fire, fire.saturating_add(1)]
                .map(|fire| once("a", WaitPolicy::Fair, fire));
            for waiter in &waiters {
                waits(&client, waiter).await;
            }
            let done = completes(&client, &claim, &request(&grant, DAY)).await;
            assert_eq!(done.unwrap().fire, fire);
            assert_eq!(told(&client, &waiters[0]).await.fire, fire);
            assert_eq!(told(&client, &waiters[1]).await.fire, fire);
            if fire < u64::MAX {
                let grant = granted(&client, &waiters[2]).await;
                client
                    .release(&waiters[2], Some(&grant.place))
                    .await
                    .unwrap();
            }
            assert_eq!(queue(&client, "a").await, (0, 0), "fire {fire}");
        }
    });
}

/// More than one transaction tells: all are told without a poll, and have left the queue when the completion is answered.
#[test]
fn all_waiters_are_told_at_once() {
    const WAITERS: usize = 1200;
    let place = Place::new();
    run(async {
        let (one, two, three) = (
            open(place.path()).await.unwrap(),
            open(place.path()).await.unwrap(),
            open(place.path()).await.unwrap(),
        );
        let claim = once("a", WaitPolicy::Fair, 3);
        let grant = granted(&one, &claim).await;
        let heard = Arc::new(AtomicUsize::new(0));
        let mut subscriptions = Vec::new();
        let waiters: Vec<Claim> = (0..WAITERS)
            .map(|n| once("a", WaitPolicy::Fair, n as u64 % 4))
            .collect();
        for (n, waiter) in waiters.iter().enumerate() {
            let client = if n % 2 == 0 { &two } else { &three };
            let heard = heard.clone();
            let listen = client.notifier().unwrap().subscribe(waiter.id, move |_| {
                heard.fetch_add(1, Ordering::SeqCst);
            });
            subscriptions.push(listen);
            waits(client, waiter).await;
        }
        let later = once("a", WaitPolicy::Fair, 4);
        waits(&two, &later).await;
        let began = Moment::now();
        let done = completes(&one, &claim, &request(&grant, DAY)).await;
        let took = since(began);
        assert!(done.is_some());
        assert_eq!(queue(&one, "a").await, (1, 0));
        while heard.load(Ordering::SeqCst) < WAITERS {
            assert!(since(began) < Duration::from_secs(20), "not all are told");
            tokio::time::sleep(ms(1)).await;
        }
        println!(
            "{WAITERS} waiters: answered in {took:?}, told in {:?}",
            since(began)
        );
        granted(&two, &later).await;
        told(&two, &waiters[0]).await;
        told(&three, &waiters[WAITERS - 1]).await;
    });
}

#[test]
fn only_its_own_token_forgets_it() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        let first = does(&client, "a", DAY).await;
        let name = Name::from("a");
        let old = FencingToken::new(first.token.get() - 1);
        assert!(!client.forget(&name, old).await.unwrap());
        assert!(client.forget(&name, first.token).await.unwrap());
        assert!(!client.forget(&name, first.token).await.unwrap());
        let second = does(&client, "a", DAY).await;
        assert!(second.token > first.token);
        assert!(!client.forget(&name, first.token).await.unwrap());
        told(&client, &once("a", WaitPolicy::Try, 0)).await;
    });
}

#[test]
fn a_keep_ends_and_not_sooner() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        let keep = ms(300);
        let before = Moment::now();
        let first = does(&client, "a", Keep::For(keep)).await;
        let for_ever = does(&client, "b", Keep::Forever).await;
        assert_eq!(for_ever.left, None);
        let claim = once("a", WaitPolicy::Try, 0);
        let grant = loop {
            match client.claim(&claim).await.unwrap() {
                Claimed::Granted(grant) => break grant,
                Claimed::Done(_) => tokio::time::sleep(ms(1)).await,
                other => panic!("{other:?}"),
            }
        };
        assert!(since(before) >= keep, "{:?}", since(before));
        assert!(grant.token > first.token);
        let second = completes(&client, &claim, &request(&grant, DAY)).await;
        assert!(second.unwrap().token > first.token);
        let listed = client.list_completions("", None, 9).await.unwrap();
        assert_eq!(listed.len(), 2);
        assert_eq!(listed[1].1.left, None);
    });
}

/// As a newer build's, or a foreign hand's: later tokens exceed what is there, also when it has ended.
#[test]
fn tokens_exceed_that_of_the_completion() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        let done = does(&client, "a", DAY).await;
        let far = done.token.get() + 3_600_000_000;
        let set = "UPDATE done SET token = ?1, until = 1, wall = 1";
        rows(&place).execute(set, [far as i64]).unwrap();
        let grant = granted(&client, &once("a", WaitPolicy::Try, 0)).await;
        assert!(grant.token.get() > far, "{}", grant.token);
    });
}

#[test]
fn any_result_comes_back() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        let odd = "\u{1}\"'\\{}%~\n\r\t é 漢 \u{1f600}".repeat(100);
        let full = "é".repeat(MAX_RESULT_BYTES / 2);
        for (name, result, is_cut) in [
            ("none", None, false),
            ("empty", Some(String::new()), false),
            ("odd", Some(odd), false),
            ("full", Some(full), true),
        ] {
            let mut claim = once(name, WaitPolicy::Try, 5);
            claim.label = "ünïcode".into();
            let grant = granted(&client, &claim).await;
            let mut asked = request(&grant, DAY);
            asked.result = result.clone().map(Into::into);
            asked.is_cut = is_cut;
            let done = completes(&client, &claim, &asked).await.unwrap();
            for seen in [
                done,
                client.completion(&name.into()).await.unwrap().unwrap(),
                told(&client, &once(name, WaitPolicy::Try, 5)).await,
            ] {
                assert_eq!(seen.result.as_deref(), result.as_deref(), "{name}");
                assert_eq!((seen.is_cut, seen.fire), (is_cut, 5), "{name}");
                assert_eq!(&*seen.label, "ünïcode");
            }
        }
    });
}

/// A release that knows nothing of completions hands the lock to a waiter whose work is done: the next claim is told, and the
/// hold ends.
#[test]
fn a_blind_hand_over_is_told_and_ends() {
    let place = Place::new();
    run(async {
        let (one, two) = (
            open(place.path()).await.unwrap(),
            open(place.path()).await.unwrap(),
        );
        does(&one, "model", DAY).await;
        let held = lock("a", WaitPolicy::Try);
        let grant = granted(&one, &held).await;
        let waiter = once("a", WaitPolicy::Fair, 0);
        waits(&two, &waiter).await;
        let copy = "INSERT INTO done SELECT 'a', claim, token, label, at, boot, until, wall, fire, result, is_cut FROM done";
        rows(&place).execute(copy, []).unwrap();
        one.release(&held, Some(&grant.place)).await.unwrap();
        assert_eq!(queue(&one, "a").await, (1, 0), "it is handed over");
        told(&two, &waiter).await;
        assert_eq!(queue(&one, "a").await, (0, 0), "and given back");
        // The same with the token of that hold: another's completion is no answer.
        let claim = once("b", WaitPolicy::Try, 0);
        let grant = granted(&one, &claim).await;
        let copy = "INSERT INTO done SELECT 'b', claim, token, label, at, boot, until, wall, fire, result, is_cut FROM done LIMIT 1";
        rows(&place).execute(copy, []).unwrap();
        assert_eq!(completes(&one, &claim, &request(&grant, DAY)).await, None);
        told(&one, &claim).await;
        assert_eq!(queue(&one, "b").await, (0, 0));
    });
}

#[test]
fn nothing_is_left_of_a_thousand_keeps() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        let count = |which: &str| -> i64 {
            let count = format!("SELECT count(*) FROM done WHERE {which}");
            rows(&place)
                .query_row(&count, [], |row| row.get(0))
                .unwrap()
        };
        for n in 0..1000 {
            does(&client, &format!("job/{n}"), Keep::For(ms(1))).await;
        }
        // Of another boot, whose end only the wall clock says.
        let moved =
            "UPDATE done SET boot = 'another' WHERE name IN (SELECT name FROM done LIMIT 5)";
        rows(&place).execute(moved, []).unwrap();
        let kept = "UPDATE done SET boot = 'another', until = 0, wall = wall + 3600000 WHERE name = 'kept'";
        does(&client, "kept", DAY).await;
        rows(&place).execute(kept, []).unwrap();
        tokio::time::sleep(ms(5)).await;
        assert!(
            count("true") < 100,
            "each completion removes some: {}",
            count("true")
        );
        for n in 0..3 {
            does(&client, &format!("last/{n}"), DAY).await;
        }
        assert_eq!(count("name LIKE 'job/%'"), 0);
        assert_eq!(count("name = 'kept'"), 1);
        let listed = client.list_completions("", None, 2000).await.unwrap();
        let names: Vec<&str> = listed.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["kept", "last/0", "last/1", "last/2"]);
        let after = Name::from("last/0");
        let page = client.list_completions("last/", Some(&after), 1).await;
        assert_eq!(page.unwrap()[0].0.as_str(), "last/1");
        assert_eq!(queue(&client, "job/1").await, (0, 0));
        let log = std::fs::metadata(place.folder().join("locks.db-done-wal")).unwrap();
        assert!(log.len() < 4 << 20, "the log has {} bytes", log.len());
    });
}

/// A file of a build before there were completions gets what it lacks, and its clients go on in it.
#[test]
fn a_file_of_an_earlier_build_gets_its_column() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        let held = lock("a", WaitPolicy::Try);
        let grant = granted(&client, &held).await;
        let older = || {
            let first = Connection::open(place.path()).unwrap();
            first
                .execute_batch("ALTER TABLE place DROP COLUMN once")
                .unwrap();
        };
        older();
        let waiter = once("a", WaitPolicy::Fair, 0);
        waits(&client, &waiter).await;
        client.release(&held, Some(&grant.place)).await.unwrap();
        let grant = granted(&client, &waiter).await;
        older();
        let done = completes(&client, &waiter, &request(&grant, DAY)).await;
        assert!(done.is_some());
        told(&client, &once("a", WaitPolicy::Try, 0)).await;
    });
}

/// What cannot be read is never taken for nothing.
#[test]
fn what_cannot_be_read_is_an_error() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        for (n, junk) in [
            "claim = 'no claim'",
            "at = -1",
            "until = NULL",
            "wall = NULL",
        ]
        .iter()
        .enumerate()
        {
            let name = format!("a{n}");
            does(&client, &name, DAY).await;
            let spoil = format!("UPDATE done SET {junk} WHERE name = ?1");
            assert_eq!(rows(&place).execute(&spoil, params![name]).unwrap(), 1);
            let claim = once(&name, WaitPolicy::Try, 0);
            let error = client.claim(&claim).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal, "{junk}: {error}");
            assert!(error.to_string().contains("locks.db-done"), "{error}");
            assert_eq!(queue(&client, &name).await, (0, 0));
            let guard = lock(&name, WaitPolicy::Try);
            granted(&client, &guard).await;
        }
    });
}

/// The id of a claim is a secret of its client.
#[test]
fn nothing_that_is_shown_has_the_id_of_a_claim() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        let claim = once("a", WaitPolicy::Try, 0);
        let grant = granted(&client, &claim).await;
        let done = client.complete(&claim, &request(&grant, DAY)).await;
        let shown = format!("{done:?} {:?}", client.completion(&"a".into()).await);
        assert!(!shown.contains(&claim.id.to_string()), "{shown}");
    });
}
