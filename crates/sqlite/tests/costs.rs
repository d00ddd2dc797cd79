//! What a cycle of acquire and release costs alone, as far as it does not depend on the machine: allocations, pages, system calls.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

#[path = "it/support/mod.rs"]
mod support;

use std::alloc::System;
use std::fs;
use std::pin::pin;
use std::process::{Command, ExitCode};
use std::time::Duration;

use leasehold_core::backend::{Backend, Claim, Claimed, Mode, WaitPolicy};
use leasehold_core::{Lock, Store};
use leasehold_sqlite::{Config, Sqlite};
use rusqlite::Connection;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::*;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How many allocations a cycle may cost. Fewer is better: lower it then.
const ALLOCATIONS: usize = 13;
/// So many cycles are counted: the log of so many is not written back meanwhile.
const CYCLES: usize = 100;
/// Long, so that no renewal falls into the count.
const TTL: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    let roles: &[Role] = &[
        ("cycle", cycle),
        ("after_an_idle_lease", after_an_idle_lease),
        ("beside_a_writer", beside_a_writer),
    ];
    let tests: &[Test] = &[
        ("cycle/allocates_little", allocates_little),
        (
            "cycle/writes_three_pages_in_two_transactions",
            writes_three_pages,
        ),
        (
            "client/of_one_lock_comes_and_goes_in_two_transactions",
            comes_and_goes,
        ),
        (
            "cycle/asks_the_system_little_and_no_other_thread",
            asks_the_system_little,
        ),
        (
            "cycle/beside_a_hold_leaves_the_runtime_alone",
            leaves_the_runtime_alone,
        ),
        (
            "claim/after_an_idle_lease_reads_only_its_own",
            reads_only_its_own,
        ),
        ("claim/beside_a_writer_asks_for_no_name", asks_for_no_name),
        (
            "waiters/are_not_all_counted_by_each_that_joins",
            not_all_waiters_are_counted,
        ),
        (
            "readers/cost_the_same_however_many_they_are",
            readers_cost_the_same,
        ),
    ];
    // Others would allocate beside it.
    support::main(roles, tests, true)
}

async fn cycles(lock: &Lock, n: usize) {
    for _ in 0..n {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
}

fn allocates_little() {
    let mut least = usize::MAX;
    // A client whose request a busy machine made slow asks its thread for a while.
    for _ in 0..20 {
        let place = Place::new();
        run_alone(async {
            let lock = store(place.path()).await.lock("a").ttl(TTL);
            for _ in 0..CYCLES {
                let region = Region::new(ALLOCATOR);
                cycles(&lock, 1).await;
                // A table that grows, or what a task in the background does, is not the cycle's.
                least = least.min(region.change().allocations + region.change().reallocations);
            }
        });
        if least <= ALLOCATIONS {
            break;
        }
    }
    println!("{least} allocations for each cycle");
    assert!(least <= ALLOCATIONS, "{least} allocations");
}

/// Frames and commits in the log, as SQLite's *WAL-mode File Format* has them.
fn log(place: &Place) -> (usize, usize) {
    let log = fs::read(place.folder().join("locks.db-wal")).unwrap();
    let number = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap()) as usize;
    let (page, salt) = (number(8), &log[16..24]);
    let frames = log[32..]
        .chunks_exact(24 + page)
        .take_while(|frame| frame[8..16] == *salt);
    frames.fold((0, 0), |(frames, commits), frame| {
        (frames + 1, commits + usize::from(frame[4..8] != [0; 4]))
    })
}

fn writes_three_pages() {
    let place = Place::new();
    run(async {
        let lock = store(place.path()).await.lock("a").ttl(TTL);
        cycles(&lock, 10).await;
        let before = log(&place);
        cycles(&lock, CYCLES).await;
        let after = log(&place);
        assert_eq!(
            (after.0 - before.0, after.1 - before.1),
            (3 * CYCLES, 2 * CYCLES),
            "pages and transactions"
        );
    });
}

/// Cycles between two marks in the trace, beside a hold or not.
fn cycle(words: &[String]) {
    let [locks, held] = words else { unreachable!() };
    run(async {
        let store = store(locks).await;
        let lock = store.lock("a").ttl(TTL);
        let held = match held.is_empty() {
            true => None,
            false => Some(store.lock(held).ttl(TTL).acquire().await.unwrap()),
        };
        cycles(&lock, 10).await;
        let _ = fs::metadata("/mark");
        cycles(&lock, CYCLES).await;
        let _ = fs::metadata("/mark");
        drop(held);
        say("done");
    });
}

/// How often each of these was called in a cycle.
fn calls<const N: usize>(held: &str, names: [&str; N]) -> [usize; N] {
    let place = Place::new();
    calls_of("cycle", &place, held, names)
}

/// How often a role called each of these between its two marks.
fn calls_of<const N: usize>(role: &str, place: &Place, word: &str, names: [&str; N]) -> [usize; N] {
    let trace = place.folder().join("trace");
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-e", "signal=none", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap());
    let mut actor = Actor::start_by(strace, role, &[&place.word(), word]);
    actor.says("done");
    actor.child.wait().unwrap();
    let trace = fs::read_to_string(trace).unwrap();
    let counted = trace.split("\"/mark\"").nth(1).unwrap();
    let of = |name| counted.matches(&format!(" {name}(")).count();
    // `708 fcntl(5, F_SETLK, …`
    let call = |line: &'_ str| {
        line.split_once('(')
            .and_then(|(call, _)| call.split(' ').next_back().map(str::to_owned))
    };
    let mut all: Vec<String> = counted.lines().filter_map(call).collect();
    all.sort_unstable();
    let kinds: Vec<_> = all
        .chunk_by(|a, b| a == b)
        .map(|same| format!("{} {}", same.len(), same[0]))
        .collect();
    println!("{role} {word:?}: {}", kinds.join(", "));
    names.map(of)
}

/// Short programs come one after the other, each for one lock.
fn comes_and_goes() {
    let place = Place::new();
    let come = || {
        run_alone(async {
            let store = Store::new(
                Sqlite::with_config(Config::new(place.path()).at_once())
                    .await
                    .unwrap(),
            );
            store
                .lock("a")
                .ttl(TTL)
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
            store.close(Duration::from_secs(20)).await.unwrap();
        });
    };
    // It makes the file.
    come();
    let before = log(&place);
    come();
    let after = log(&place);
    let (pages, commits) = (after.0 - before.0, after.1 - before.1);
    assert!(
        commits == 2 && pages <= 10,
        "{pages} pages in {commits} transactions"
    );
    let left = "SELECT (SELECT count(*) FROM session) + (SELECT count(*) FROM place)";
    let left: i64 = Connection::open(place.path())
        .unwrap()
        .query_row(left, [], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 0);
}

fn asks_the_system_little() {
    let mut woken = usize::MAX;
    // After a request that a busy machine made slow, the thread is asked for a while.
    for _ in 0..20 {
        // Two writes for each page, and the locks of SQLite; the lease that others see is announced and taken back.
        let [pwrite, fcntl, write] = calls("", ["pwrite64", "fcntl", "write"]);
        assert_eq!(
            (pwrite, fcntl),
            (6 * CYCLES, 14 * CYCLES),
            "pwrite64 and fcntl"
        );
        woken = woken.min(write);
        if woken < CYCLES / 10 {
            break;
        }
    }
    assert!(
        woken < CYCLES / 10,
        "the client's thread was woken: {woken}"
    );
}

fn leaves_the_runtime_alone() {
    let [write] = calls("held", ["write"]);
    assert!(
        write >= 2 * CYCLES,
        "the client's thread was not asked: {write}"
    );
}

/// Claims between two marks in the trace, when its lease has ended meanwhile.
fn after_an_idle_lease(words: &[String]) {
    let [locks, ttl] = words else { unreachable!() };
    run(async {
        let ttl = ms(ttl.parse().unwrap());
        let lock = store(locks).await.lock("a").ttl(ttl);
        cycles(&lock, 2).await;
        tokio::time::sleep(ttl * 2).await;
        let _ = fs::metadata("/mark");
        cycles(&lock, 1).await;
        let _ = fs::metadata("/mark");
        say("done");
    });
}

/// A claim that meets another writer, and is left to the thread, between two marks in the trace.
fn beside_a_writer(words: &[String]) {
    let [locks, _] = words else { unreachable!() };
    run_alone(async {
        let lock = store(locks).await.lock("a").ttl(TTL);
        cycles(&lock, 2).await;
        let writer = Connection::open(locks).unwrap();
        writer.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut work = pin!(cycles(&lock, 1));
        let _ = fs::metadata("/mark");
        tokio::select! {
            biased;
            () = &mut work => panic!("done beside a writer"),
            () = std::future::ready(()) => {}
        }
        let _ = fs::metadata("/mark");
        writer.execute_batch("COMMIT").unwrap();
        work.await;
        say("done");
    });
}

/// Who the writer is was looked up among all locks of the machine for a text that nobody saw, in each hand-over between busy clients.
fn asks_for_no_name() {
    let [opened] = calls_of("beside_a_writer", &Place::new(), "", ["openat"]);
    assert_eq!(opened, 0, "files were opened");
}

/// Not the places of all others: they would wait meanwhile.
fn reads_only_its_own() {
    let place = Place::new();
    run(async {
        let other = store(place.path()).await;
        let _held = other.lock("held").ttl(TTL).acquire().await.unwrap();
        let many = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
                    INSERT INTO place SELECT 'many/' || i, i, claim, session, mode, n, permits, turns, i, label, since, floor, once
                    FROM place, n WHERE name = 'held'";
        Connection::open(place.path())
            .unwrap()
            .execute(many, [])
            .unwrap();
        let [reads] = calls_of("after_an_idle_lease", &place, "500", ["pread64"]);
        assert!(reads < 100, "{reads} pages were read for one claim");
    });
}

/// One more reader comes and goes; and one goes while a writer waits. What is looked at is allocated for, so that is counted.
fn readers_cost_the_same() {
    let place = Place::new();
    run_alone(async {
        let client = open(place.path()).await.unwrap();
        let claim = |mode, policy| Claim::new("a", mode, policy, TTL, "");
        let reader = || claim(Mode::Shared, WaitPolicy::Fair);
        let (mut readers, mut costs) = (Vec::new(), Vec::new());
        for crowd in [20, 500] {
            while readers.len() < crowd {
                readers.push(reader());
                assert!(matches!(
                    client.claim(&readers[readers.len() - 1]).await.unwrap(),
                    Claimed::Granted(_)
                ));
            }
            let (mut beside, mut before) = (usize::MAX, usize::MAX);
            for _ in 0..10 {
                let one = reader();
                let region = Region::new(ALLOCATOR);
                assert!(matches!(
                    client.claim(&one).await.unwrap(),
                    Claimed::Granted(_)
                ));
                client.release(&one, None).await.unwrap();
                beside = beside.min(region.change().allocations);
            }
            let writer = claim(Mode::Exclusive, WaitPolicy::Fair);
            assert!(matches!(
                client.claim(&writer).await.unwrap(),
                Claimed::Waiting(_)
            ));
            for last in readers.split_off(crowd - 10) {
                let region = Region::new(ALLOCATOR);
                client.release(&last, None).await.unwrap();
                before = before.min(region.change().allocations);
            }
            client.release(&writer, None).await.unwrap();
            println!(
                "{crowd} readers: {beside} allocations to come and go, {before} to go before a writer"
            );
            costs.push((beside, before));
        }
        assert!(
            costs[1].0 < costs[0].0 + 20 && costs[1].1 < costs[0].1 + 20,
            "{costs:?}"
        );
    });
}

/// Thousands that join would count each other, and all others in the file wait meanwhile.
fn not_all_waiters_are_counted() {
    let place = Place::new();
    run_alone(async {
        let client = open(place.path()).await.unwrap();
        let claim = |policy| Claim::new("a", Mode::Exclusive, policy, TTL, "");
        assert!(matches!(
            client.claim(&claim(WaitPolicy::Try)).await.unwrap(),
            Claimed::Granted(_)
        ));
        for others in 0..300 {
            let Claimed::Waiting(waiting) = client.claim(&claim(WaitPolicy::Fair)).await.unwrap()
            else {
                panic!("held")
            };
            assert_eq!(
                waiting.who.waiters,
                (others < 64).then_some(others),
                "{waiting:?}"
            );
        }
        let Claimed::Busy(who) = client.claim(&claim(WaitPolicy::Try)).await.unwrap() else {
            panic!("held")
        };
        assert_eq!(who.waiters, Some(300));
    });
}
