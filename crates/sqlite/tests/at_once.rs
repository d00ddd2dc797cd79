//! The short way of a lock that is free: that it never blocks a runtime, and that what is not so free takes the long one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

#[path = "it/support/mod.rs"]
mod support;
#[path = "at_once/thread.rs"]
mod thread;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::pin::pin;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::WaitPolicy::{self, Fast};
use leasehold_core::backend::{Backend, Claim, Claimed, LeaseRef, Mode, Moment, Renewal};
use leasehold_sqlite::Sqlite;
use rusqlite::Connection;
use support::*;

fn main() -> ExitCode {
    let roles: &[Role] = &[
        ("hold_on_a_stalled_disk", hold_on_a_stalled_disk),
        ("count_threads", thread::count_threads),
    ];
    let tests: &[Test] = &[
        (
            "runtime/is_not_blocked_by_another_writer",
            another_writer_blocks_no_runtime,
        ),
        (
            "runtime/is_told_of_a_loss_though_the_disk_stalls",
            stalled_disk_tells_of_the_loss,
        ),
        ("runtime/gets_its_thread_back", others_get_their_turn),
        (
            "session/that_others_ended_grants_nothing",
            ended_session_grants_nothing,
        ),
        (
            "session/that_went_back_is_begun_anew",
            session_that_went_back_is_begun_anew,
        ),
        (
            "files/that_are_new_are_seen_at_once",
            new_files_are_seen_at_once,
        ),
        ("tokens/rise_beyond_the_clock", tokens_rise_beyond_the_clock),
        (
            "place/that_was_left_ends_beside_other_work",
            left_place_ends,
        ),
        (
            "place/that_was_granted_by_a_message_lasts_as_long_as_said",
            granted_place_lasts,
        ),
        (
            "release/of_a_grant_whose_message_is_late_watches_nobody",
            late_message_watches_nobody,
        ),
        (
            "thread/is_not_started_for_a_lock_that_is_free",
            thread::no_thread_for_a_free_lock,
        ),
        ("thread/hears_of_an_eviction", thread::eviction_is_heard),
        ("thread/is_started_to_leave", thread::dropped_store_leaves),
        ("close/gives_back_many", close_gives_back_many),
    ];
    support::main(roles, tests, false)
}

const TTL: Duration = Duration::from_secs(60);

fn database(place: &Place) -> Connection {
    let database = Connection::open(place.path()).unwrap();
    database.busy_timeout(Duration::from_secs(10)).unwrap();
    database
}

/// The thread waits for the writer, for up to two seconds at a time. The runtime does not.
fn another_writer_blocks_no_runtime() {
    let place = Place::new();
    run_alone(async {
        let lock = store(place.path()).await.lock("a").ttl(TTL);
        lock.acquire().await.unwrap().release().await.unwrap();
        let writer = database(&place);
        for held in [false, true] {
            let guard = if held {
                Some(lock.acquire().await.unwrap())
            } else {
                None
            };
            writer.execute_batch("BEGIN IMMEDIATE").unwrap();
            let began = Moment::now();
            let mut work = pin!(async {
                match guard {
                    Some(guard) => guard.release().await.unwrap(),
                    None => drop(lock.acquire().await.unwrap()),
                }
            });
            tokio::select! {
                biased;
                () = &mut work => panic!("done beside a writer"),
                () = std::future::ready(()) => {}
            }
            assert!(
                since(began) < Duration::from_secs(1),
                "blocked for {:?}",
                since(began)
            );
            writer.execute_batch("COMMIT").unwrap();
            work.await;
        }
    });
}

/// Each write takes four seconds from somewhere in the work on: the lease of what is held ends meanwhile. Says how long after
/// that it was told.
fn hold_on_a_stalled_disk(words: &[String]) {
    let [locks] = words else { unreachable!() };
    let ttl = Duration::from_secs(1);
    run_alone(async {
        let store = store(locks).await.ttl(ttl);
        let guard = store.lock("held").acquire().await.unwrap();
        let work = async {
            loop {
                if let Ok(guard) = store.lock("a").acquire().await {
                    let _ = guard.release().await;
                }
            }
        };
        let lost = async {
            let mut end = Moment::now() + guard.remaining();
            loop {
                tokio::select! {
                    _ = guard.lost() => return since(end),
                    () = tokio::time::sleep(ms(10)) => end = Moment::now() + guard.remaining(),
                }
            }
        };
        tokio::select! {
            () = work => {}
            late = lost => say(&late.as_millis().to_string()),
        }
        // Nothing more is waited for.
        std::process::exit(0);
    });
}

fn stalled_disk_tells_of_the_loss() {
    let place = Place::new();
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "trace=pwrite64", "-e", "signal=none"]);
    strace.args([
        "-e",
        "inject=pwrite64:delay_enter=4000000:when=400+",
        "-o",
        "/dev/null",
    ]);
    strace.arg(std::env::current_exe().unwrap());
    let late: u64 = Actor::start_by(strace, "hold_on_a_stalled_disk", &[&place.word()])
        .hear()
        .parse()
        .unwrap();
    assert!(late < 2000, "told {late} ms after the end");
}

/// A task that does nothing but take a lock and give it back leaves the only thread to others.
fn others_get_their_turn() {
    let place = Place::new();
    run_alone(async {
        let lock = store(place.path()).await.lock("a").ttl(TTL);
        let (done, mut cycles) = (tokio::spawn(async { tokio::task::yield_now().await }), 0);
        while !done.is_finished() {
            lock.acquire().await.unwrap().release().await.unwrap();
            cycles += 1;
            assert!(cycles < 10_000, "no other task runs");
        }
    });
}

/// Others took us for dead. What we claim then is not under the session that they have ended.
fn ended_session_grants_nothing() {
    let place = Place::new();
    run(async {
        let (here, other) = (
            store(place.path()).await.ttl(TTL),
            store(place.path()).await.ttl(TTL),
        );
        let lock = here.lock("a");
        for sql in ["UPDATE session SET until = 0", "DELETE FROM session"] {
            lock.acquire().await.unwrap().release().await.unwrap();
            database(&place).execute_batch(sql).unwrap();
            let guard = lock.acquire().await.unwrap();
            let busy = other.lock("a").try_acquire().await;
            assert!(
                busy.is_err_and(|e| e.is_contended()),
                "two hold after {sql}"
            );
            assert!(guard.confirm().await.is_ok());
            guard.release().await.unwrap();
        }
    });
}

fn session_that_went_back_is_begun_anew() {
    let place = Place::new();
    run(async {
        let here = store(place.path()).await.ttl(TTL);
        let token = {
            let guard = here.lock("a").acquire().await.unwrap();
            let token = guard.fencing_token();
            guard.release().await.unwrap();
            token
        };
        let before = fs::metadata(place.path()).unwrap().ino();
        database(&place)
            .execute_batch("UPDATE session SET until = until - 1000000")
            .unwrap();
        let guard = here.lock("a").acquire().await.unwrap();
        assert_ne!(
            fs::metadata(place.path()).unwrap().ino(),
            before,
            "content that we have not written was used"
        );
        assert!(guard.fencing_token() > token);
        guard.release().await.unwrap();
    });
}

/// Nothing is granted in files that another client has begun anew.
fn new_files_are_seen_at_once() {
    let place = Place::new();
    run(async {
        let here = store(place.path()).await.ttl(TTL);
        for _ in 0..20 {
            here.lock("a")
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
            fs::remove_file(place.path()).unwrap();
            let other = store(place.path()).await.ttl(TTL);
            let guard = other.lock("a").try_acquire().await.unwrap();
            let busy = here.lock("a").try_acquire().await;
            assert!(busy.is_err_and(|e| e.is_contended()), "two hold");
            guard.release().await.unwrap();
        }
    });
}

/// Also where the clock was set back, and for as many as a fast lock reserves.
fn tokens_rise_beyond_the_clock() {
    let place = Place::new();
    run(async {
        let (here, other) = (
            open(place.path()).await.unwrap(),
            open(place.path()).await.unwrap(),
        );
        let (mut last, hour) = (0, 3_600_000_000i64);
        for i in 0..20 {
            if i == 10 {
                let ahead = "UPDATE meta SET token = token + ?1 RETURNING token";
                last = database(&place)
                    .query_row(ahead, [hour], |row| row.get::<_, i64>(0))
                    .unwrap();
            }
            for (client, policy) in [&here, &other]
                .into_iter()
                .flat_map(|of| [(of, Fast), (of, WaitPolicy::Try)])
            {
                let claim = Claim::new("a", Mode::Exclusive, policy, TTL, "");
                let Claimed::Granted(grant) = client.claim(&claim).await.unwrap() else {
                    panic!("it is free")
                };
                let token = grant.token.as_i64();
                assert!(token > last, "{token} after {last}");
                last = token + i64::from(grant.turns) - 1;
                client.release(&claim, None).await.unwrap();
            }
        }
    });
}

/// Neither renewed nor withdrawn, it ends with its lease, though the client goes on with others in the same session.
fn left_place_ends() {
    let place = Place::new();
    run(async {
        let (here, other) = (
            open(place.path()).await.unwrap(),
            open(place.path()).await.unwrap(),
        );
        let claim = |name: &str| Claim::new(name, Mode::Exclusive, WaitPolicy::Try, ms(500), "");
        is_granted(&here, &claim("left")).await;
        let began = Moment::now();
        loop {
            let work = claim("work");
            is_granted(&here, &work).await;
            here.release(&work, None).await.unwrap();
            if let Claimed::Granted(_) = other.claim(&claim("left")).await.unwrap() {
                break;
            }
            assert!(
                since(began) < Duration::from_secs(30),
                "it lives on with the session"
            );
        }
        assert!(since(began) >= ms(450), "it ended after {:?}", since(began));
    });
}

/// A waiter's session is extended for another claim before it is granted, and its own renewals fail from then on: it holds for as
/// long as the notification said, also beside further claims of its client.
fn granted_place_lasts() {
    let place = Place::new();
    run(async {
        let (here, other) = (
            open(place.path()).await.unwrap(),
            open(place.path()).await.unwrap(),
        );
        let claim = |name, policy, ttl| Claim::new(name, Mode::Exclusive, policy, ttl, "");
        for ttl in [1000, 2000, 4000, 8000] {
            let held = claim("a", WaitPolicy::Try, TTL);
            is_granted(&other, &held).await;
            let began = Moment::now();
            let waiter = claim("a", WaitPolicy::Fair, ms(ttl));
            assert!(matches!(
                here.claim(&waiter).await.unwrap(),
                Claimed::Waiting(_)
            ));
            tokio::time::sleep(ms(ttl / 2)).await;
            let beside = claim("beside", WaitPolicy::Try, ms(ttl));
            is_granted(&here, &beside).await;
            other.release(&held, None).await.unwrap();
            // The message is there; the first question wakes the thread, which reads it before the second.
            for _ in 0..2 {
                here.inspect(&"a".into()).await.unwrap();
            }
            let end = "SELECT until FROM session WHERE ttl = ?1";
            let end: i64 = database(&place)
                .query_row(end, [ttl as i64 * 1_000_000], |row| row.get(0))
                .unwrap();
            tokio::time::sleep((began + ms(ttl + ttl / 20)).since(Moment::now())).await;
            let last = claim("last", WaitPolicy::Try, ms(ttl));
            is_granted(&here, &last).await;
            let next = other.claim(&held).await.unwrap();
            let conclusive = Moment::now() < Moment::from_nanos(end as u64);
            if conclusive {
                assert!(matches!(next, Claimed::Busy(_)), "two hold: {next:?}");
                return;
            }
            for (client, claim) in [
                (&here, &waiter),
                (&here, &beside),
                (&here, &last),
                (&other, &held),
            ] {
                client.release(claim, None).await.unwrap();
            }
        }
        panic!("a machine too slow to say");
    });
}

async fn is_granted(client: &Sqlite, claim: &Claim) {
    let claimed = client.claim(claim).await.unwrap();
    assert!(matches!(claimed, Claimed::Granted(_)), "{claimed:?}");
}

/// The renewal of a waiter answers that it is granted, before the one that granted it has written the message.
fn late_message_watches_nobody() {
    let place = Place::new();
    run(async {
        let (here, other) = (
            open(place.path()).await.unwrap(),
            open(place.path()).await.unwrap(),
        );
        let claim = |policy| Arc::new(Claim::new("a", Mode::Exclusive, policy, TTL, ""));
        let open_here = || {
            let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
            let all = all.filter_map(|fd| fs::read_link(fd.path()).ok());
            all.filter(|file| {
                file.starts_with(place.folder()) && file.to_string_lossy().contains("-fifo-")
            })
            .count()
        };
        is_granted(&other, &claim(WaitPolicy::Try)).await;
        let waiter = claim(WaitPolicy::Fair);
        let Claimed::Waiting(waiting) = here.claim(&waiter).await.unwrap() else {
            panic!("it is held")
        };
        assert_eq!(open_here(), 3, "its own, the other's, and that it watches");
        let grant = "DELETE FROM place WHERE token IS NOT NULL; UPDATE place SET token = seq";
        database(&place).execute_batch(grant).unwrap();
        let lease = LeaseRef::new(waiter.clone(), waiting.place, None);
        let renewed = here.renew(&[lease]).await.unwrap();
        assert!(matches!(renewed[..], [Renewal::Granted(_)]), "{renewed:?}");
        here.release(&waiter, None).await.unwrap();
        // Its thread listens to what is watched from its next turn on. If it does not, this hangs.
        while open_here() > 2 {
            here.inspect(&"a".into()).await.unwrap();
        }
    });
}

/// More than one transaction removes.
fn close_gives_back_many() {
    let place = Place::new();
    run(async {
        let (here, other) = (
            store(place.path()).await.ttl(TTL),
            store(place.path()).await.ttl(TTL),
        );
        let mut guards = Vec::new();
        for i in 0..1100 {
            guards.push(here.lock(format!("many/{i}")).acquire().await.unwrap());
        }
        let waiter = tokio::spawn(other.lock("many/7").acquire());
        while other
            .lock("many/7")
            .inspect()
            .await
            .unwrap()
            .waiters
            .is_empty()
        {
            tokio::time::sleep(ms(2)).await;
        }
        here.close(Duration::from_secs(20)).await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        let rows = "SELECT count(*) FROM place";
        assert_eq!(
            database(&place)
                .query_row(rows, [], |row| row.get::<_, i64>(0))
                .unwrap(),
            0
        );
        drop(guards);
    });
}
