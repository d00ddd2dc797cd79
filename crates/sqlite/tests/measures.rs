//! What several processes see of each other: exclusion while some are killed, an even share, deaths and idle waiters.
//! Each prints its figures; what it asserts leaves room for a busy machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "tests"
)]

#[path = "it/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::Duration;

use leasehold_core::backend::Moment;
use rusqlite::{Connection, params};
use support::*;

fn main() -> ExitCode {
    let roles: &[Role] = &[
        ("count", count),
        ("hammer", hammer),
        ("hold", hold),
        ("wait", wait),
    ];
    let tests: &[Test] = &[
        (
            "counter/is_exact_while_processes_are_killed",
            counter_is_exact,
        ),
        ("share/is_even_among_names", share_is_even),
        ("death/is_seen_at_once", death_is_seen_at_once),
        ("waiters/cost_nothing_while_idle", waiters_cost_nothing),
    ];
    support::main(roles, tests, true)
}

const COUNTERS: usize = 8;
const INCREMENTS: i64 = 500;

/// A resource that remembers the greatest token: one row for the counter, and one for what each worker has done.
fn resource(path: &str) -> Connection {
    let resource = Connection::open(path).unwrap();
    resource.busy_timeout(Duration::from_secs(10)).unwrap();
    resource.execute_batch("PRAGMA synchronous = OFF").unwrap();
    resource
}

/// Adds to the counter until this worker has done its part: reads, and then writes in another transaction, so that only the
/// lock keeps others out between.
fn count(words: &[String]) {
    let [locks, counter, me] = words else {
        unreachable!()
    };
    run(async {
        let (mut resource, store) = (resource(counter), store(locks).await);
        let lock = store.lock("counter").ttl(Duration::from_secs(5));
        let done = |resource: &Connection| -> i64 {
            resource
                .query_row("SELECT done FROM worker WHERE id = ?1", [me], |row| {
                    row.get(0)
                })
                .unwrap()
        };
        while done(&resource) < INCREMENTS {
            let guard = lock.acquire().await.unwrap();
            let value: i64 = resource
                .query_row("SELECT value FROM counter", [], |row| row.get(0))
                .unwrap();
            let write = resource.transaction().unwrap();
            let set = "UPDATE counter SET value = ?1, token = ?2 WHERE token < ?2";
            // One row, or the fence has refused a stale token.
            let fresh = write
                .execute(set, params![value + 1, guard.fencing_token().as_i64()])
                .unwrap();
            write
                .execute(
                    "UPDATE worker SET done = done + ?2 WHERE id = ?1",
                    params![me, fresh as i64],
                )
                .unwrap();
            write.commit().unwrap();
            let _ = guard.release().await;
        }
    });
}

/// 8 processes, 500 increments each, and every 200 ms one of them is killed with -9 and begins again.
fn counter_is_exact() {
    let (place, begin) = (Place::new(), Moment::now());
    let counter = place.folder().join("counter.db").display().to_string();
    let result = resource(&counter);
    result
        .execute_batch(
            "CREATE TABLE counter (value INTEGER, token INTEGER); INSERT INTO counter VALUES (0, 0);
             CREATE TABLE worker (id TEXT, done INTEGER);",
        )
        .unwrap();
    let start = |id: usize| Actor::start("count", &[&place.word(), &counter, &id.to_string()]);
    for id in 0..COUNTERS {
        result
            .execute("INSERT INTO worker VALUES (?1, 0)", [id.to_string()])
            .unwrap();
    }
    let mut workers: Vec<Actor> = (0..COUNTERS).map(start).collect();
    let (mut kills, mut next) = (0, begin + ms(200));
    loop {
        // A worker that ended has done its part.
        let busy: Vec<usize> = (0..COUNTERS)
            .filter(|id| workers[*id].child.try_wait().unwrap().is_none())
            .collect();
        if busy.is_empty() {
            break;
        }
        std::thread::sleep(next.since(Moment::now()));
        next = next + ms(200);
        let victim = busy[kills % busy.len()];
        if workers[victim].child.try_wait().unwrap().is_none() {
            workers[victim].kill();
            workers[victim] = start(victim);
            kills += 1;
        }
        assert!(
            since(begin) < Duration::from_secs(240),
            "the counter does not come to its end"
        );
    }
    let value: i64 = result
        .query_row("SELECT value FROM counter", [], |row| row.get(0))
        .unwrap();
    let done: i64 = result
        .query_row("SELECT sum(done) FROM worker", [], |row| row.get(0))
        .unwrap();
    println!(
        "counter: {value} after {kills} kills in {:.1} s",
        since(begin).as_secs_f64()
    );
    assert_eq!(
        (value, done),
        (COUNTERS as i64 * INCREMENTS, COUNTERS as i64 * INCREMENTS)
    );
    assert!(kills >= 5, "too few kills to prove anything: {kills}");
}

const HAMMERING: Duration = Duration::from_secs(3);

/// Takes and gives back its own lock as fast as it can.
fn hammer(words: &[String]) {
    let [locks, name] = words else { unreachable!() };
    run(async {
        let store = store(locks).await;
        let lock = store.lock(name);
        lock.acquire().await.unwrap().release().await.unwrap();
        say("ready");
        await_cue();
        let (begin, mut cycles, mut worst) = (Moment::now(), 0, Duration::ZERO);
        while since(begin) < HAMMERING {
            let before = Moment::now();
            let guard = lock.acquire().await.unwrap();
            let taken = since(before);
            let before = Moment::now();
            guard.release().await.unwrap();
            worst = worst.max(taken).max(since(before));
            cycles += 1;
        }
        say(&format!("{cycles} {}", worst.as_micros()));
    });
}

fn share_is_even() {
    let place = Place::new();
    let mut actors: Vec<Actor> = (0..4)
        .map(|i| Actor::start("hammer", &[&place.word(), &format!("name {i}")]))
        .collect();
    actors.iter_mut().for_each(|actor| actor.says("ready"));
    actors.iter_mut().for_each(Actor::cue);
    let answers: Vec<String> = actors.iter_mut().map(Actor::hear).collect();
    let numbers = |answer: &String| -> (u64, u64) {
        let (cycles, worst) = answer.split_once(' ').unwrap();
        (cycles.parse().unwrap(), worst.parse().unwrap())
    };
    let mut all: Vec<(u64, u64)> = answers.iter().map(numbers).collect();
    all.sort_unstable();
    let worst = all.iter().map(|(_, worst)| *worst).max().unwrap();
    println!("share: 4 processes took {all:?} (cycles, worst in µs) in {HAMMERING:?}");
    assert!(all[0].0 * 4 >= all[3].0, "an uneven share: {all:?}");
    assert!(worst < 1_000_000, "an operation took {worst} µs");
}

/// Holds a lock until it is killed.
fn hold(words: &[String]) {
    let [locks, name] = words else { unreachable!() };
    run(async {
        let store = store(locks).await;
        let _guard = store
            .lock(name)
            .ttl(Duration::from_secs(20))
            .acquire()
            .await
            .unwrap();
        say("held");
        tokio::task::spawn_blocking(await_cue).await.unwrap();
    });
}

/// `kill -9` of the holder, and the next one holds, though the lease was for 20 s.
fn death_is_seen_at_once() {
    let place = Place::new();
    run(async {
        let store = store(place.path()).await;
        let lock = store.lock("a").ttl(Duration::from_secs(20));
        let mut all = Vec::new();
        for _ in 0..20 {
            let mut holder = Actor::start("hold", &[&place.word(), "a"]);
            holder.says("held");
            let waiter = tokio::spawn(lock.acquire());
            while lock.inspect().await.unwrap().waiters.is_empty() {
                tokio::time::sleep(ms(1)).await;
            }
            let before = Moment::now();
            holder.kill();
            let guard = waiter.await.unwrap().unwrap();
            all.push(since(before));
            guard.release().await.unwrap();
        }
        all.sort_unstable();
        println!(
            "death: kill -9 to grant p50 {:?}, max {:?}, n = {}",
            share(&all, 50),
            share(&all, 100),
            all.len()
        );
        assert!(
            share(&all, 50) < ms(50) && share(&all, 100) < Duration::from_secs(2),
            "{all:?}"
        );
    });
}

const WAITERS: usize = 100;

/// Waiters in line, spread over clients, each of which has a connection, a thread and a FIFO of its own.
fn wait(words: &[String]) {
    let [locks, clients, waiters] = words else {
        unreachable!()
    };
    let (clients, waiters): (usize, usize) = (clients.parse().unwrap(), waiters.parse().unwrap());
    let waiting = async {
        let mut stores = Vec::new();
        for _ in 0..clients {
            stores.push(store(locks).await);
        }
        let _waiting: Vec<_> = (0..waiters)
            .map(|i| tokio::spawn(stores[i % stores.len()].lock("a").acquire()))
            .collect();
        tokio::task::spawn_blocking(await_cue).await.unwrap();
        std::process::exit(0);
    };
    // A process that waits for one lock is as the command is: of one thread.
    if waiters == 1 {
        run_alone(waiting);
    } else {
        run(waiting);
    }
}

fn waiters_cost_nothing() {
    // Side by side: each spends its time waiting, and the processor time of its own processes is what is measured.
    std::thread::scope(|scope| {
        for (processes, clients) in [(1, 4), (1, WAITERS), (WAITERS, 1)] {
            scope.spawn(move || idle_waiters(processes, clients));
        }
    });
}

fn idle_waiters(processes: usize, clients: usize) {
    const WATCHED: Duration = Duration::from_secs(10);
    // Percent of a core at most, idle and beside others, on a machine that is slow or busy with something else: that makes it four times as much.
    let (most_idle, most_beside) = if cfg!(debug_assertions) {
        (20.0, 24.0)
    } else {
        (3.0, 4.0)
    };
    let place = Place::new();
    run(async {
        let store = store(place.path()).await;
        let _held = store.lock("a").acquire().await.unwrap();
        let words = [
            place.word(),
            clients.to_string(),
            (WAITERS / processes).to_string(),
        ];
        let start = |_| Actor::start("wait", &words.each_ref().map(String::as_str));
        let crowd: Vec<Actor> = (0..processes).map(start).collect();
        while store.lock("a").inspect().await.unwrap().waiters.len() < WAITERS {
            tokio::time::sleep(ms(10)).await;
        }
        let cpu = || crowd.iter().map(Actor::cpu).sum::<Duration>();
        let percent = |before: Duration, began: Moment| {
            (cpu() - before).as_secs_f64() / since(began).as_secs_f64() * 100.0
        };
        // Each compiles its statements once.
        tokio::time::sleep(WATCHED).await;
        let (before, began) = (cpu(), Moment::now());
        tokio::time::sleep(WATCHED).await;
        let idle = percent(before, began);
        let (before, began) = (cpu(), Moment::now());
        while since(began) < WATCHED {
            // A cycle is two commits.
            store
                .lock("other")
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
            tokio::time::sleep(ms(100)).await;
        }
        let beside = percent(before, began);
        let crowd = format!("{WAITERS} idle ones of {processes} × {clients} clients");
        println!("waiters: {crowd} take {idle:.2} % of a core, {beside:.2} % beside 20 commits/s");
        assert!(
            idle < most_idle && beside < most_beside,
            "{idle} % and {beside} %"
        );
    });
}
