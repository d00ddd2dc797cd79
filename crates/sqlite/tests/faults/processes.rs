//! Processes that stop, die, or lose their FIFO.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Store;
use leasehold_core::backend::Moment;

use super::*;

/// Holds a lock; on cue says whether it still does.
pub(crate) fn hold(words: &[String]) {
    let [locks, name, ttl] = words else {
        unreachable!()
    };
    run(async {
        let store = store(locks).await;
        let ttl = ms(ttl.parse().unwrap());
        let guard = store.lock(name).ttl(ttl).acquire().await.unwrap();
        say("held");
        while tokio::task::spawn_blocking(await_cue).await.unwrap() {
            say(if guard.confirm().await.is_ok() {
                "valid"
            } else {
                "lost"
            });
        }
    });
}

/// A stopped process may go on at any time: it is not dead, and its lease has to end.
pub(crate) fn stopped_keeps_its_lease() {
    let place = Place::new();
    run(async {
        let ttl = Duration::from_secs(2);
        let here = store(place.path()).await.ttl(ttl);
        let mut holder = Actor::start("hold", &[&place.word(), "a", "2000"]);
        holder.says("held");
        let waiter = tokio::spawn(here.lock("a").acquire());
        in_line(&here, "a", 1).await;
        holder.signal("STOP");
        let stopped = Moment::now();
        let guard = waiter.await.unwrap().unwrap();
        let took = since(stopped);
        // It was renewed a third of its lease ago at most, give or take a busy machine.
        assert!(
            took > ttl / 2 && took < ttl + Duration::from_secs(4),
            "{took:?}"
        );
        holder.signal("CONT");
        holder.cue();
        holder.says("lost");
        guard.release().await.unwrap();
    });
}

/// The waiter behind one that leaves is next, and its renewals find out: it sees the death of the holder, whose lease
/// lasts for longer than this test may.
pub(crate) fn dead_is_seen_by_who_moved_up() {
    let place = Place::new();
    run(async {
        let ttl = Duration::from_secs(1);
        let long = Duration::from_secs(120);
        let (one, two) = (
            store(place.path()).await.ttl(long),
            store(place.path()).await.ttl(ttl),
        );
        let mut holder = Actor::start("hold", &[&place.word(), "a", "120000"]);
        holder.says("held");
        let first = tokio::spawn(one.lock("a").acquire());
        in_line(&two, "a", 1).await;
        let second = tokio::spawn(two.lock("a").acquire());
        in_line(&two, "a", 2).await;
        first.abort();
        in_line(&two, "a", 1).await;
        // It is not told, and renews twice in a lease.
        tokio::time::sleep(ttl).await;
        let killed = Moment::now();
        holder.kill();
        let guard = second.await.unwrap().unwrap();
        assert!(
            since(killed) < Duration::from_secs(10),
            "{:?}",
            since(killed)
        );
        guard.release().await.unwrap();
    });
}

/// Holds a lock, with a process that has its life line as standard input.
#[allow(
    clippy::zombie_processes,
    reason = "it outlives this process, and the test ends it"
)]
pub(crate) fn hold_with_a_guardian(words: &[String]) {
    let [locks] = words else { unreachable!() };
    run(async {
        let client = Arc::new(open(locks).await.unwrap());
        let [life, leases] = client.life_line().await.unwrap();
        let guardian = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::from(life))
            .stdout(Stdio::from(leases))
            .spawn();
        let guardian = guardian.unwrap();
        let _guard = Store::new(client)
            .lock("a")
            .ttl(Duration::from_secs(60))
            .acquire()
            .await
            .unwrap();
        say(&guardian.id().to_string());
        tokio::task::spawn_blocking(await_cue).await.unwrap();
    });
}

/// Also if the files are gone: the guardian's work goes on until the lease ends.
pub(crate) fn guardian_outlives_the_files() {
    let place = Place::new();
    run(async {
        let mut holder = Actor::start("hold_with_a_guardian", &[&place.word()]);
        let guardian = holder.hear();
        delete(&files(&place, "locks.db"));
        holder.kill();
        // The next client finds a new file, which grants nothing; and so it stays.
        let early = store(place.path()).await.lock("a").try_acquire().await;
        assert!(
            early.is_err_and(|e| e.is_contended()),
            "granted while the guardian lives"
        );
        shell(&format!("kill -9 {guardian}"));
        let lives =
            || fs::read_dir(format!("/proc/{guardian}/fd")).is_ok_and(|open| open.count() > 0);
        while lives() {
            tokio::time::sleep(ms(5)).await;
        }
        delete(&files(&place, "locks.db"));
        drop(
            store(place.path())
                .await
                .lock("a")
                .try_acquire()
                .await
                .unwrap(),
        );
    });
}

pub(crate) fn lives_as_long_as_its_guardian() {
    let place = Place::new();
    run(async {
        let here = store(place.path()).await.ttl(Duration::from_secs(60));
        let mut holder = Actor::start("hold_with_a_guardian", &[&place.word()]);
        let guardian = holder.hear();
        let mut waiter = Box::pin(here.lock("a").acquire());
        let early = tokio::time::timeout(ms(300), &mut waiter).await;
        assert!(early.is_err(), "granted beside a holder");
        holder.kill();
        let early = tokio::time::timeout(ms(700), &mut waiter).await;
        assert!(early.is_err(), "granted while the guardian lives");
        let ended = Moment::now();
        shell(&format!("kill -9 {guardian}"));
        drop(waiter.await.unwrap());
        assert!(since(ended) < Duration::from_secs(5), "{:?}", since(ended));
    });
}

/// A cleaner of old files takes the FIFOs away: nobody is dead, those who wait are served, and there are new ones.
pub(crate) fn without_its_fifo_is_not_dead() {
    let place = Place::new();
    run(async {
        let ttl = Duration::from_secs(2);
        let (one, two) = (
            store(place.path()).await.ttl(ttl),
            store(place.path()).await.ttl(ttl),
        );
        let guard = one.lock("a").acquire().await.unwrap();
        delete(&files(&place, "-fifo-"));
        let waiter = tokio::spawn(two.lock("a").acquire());
        in_line(&one, "a", 1).await;
        delete(&files(&place, "-fifo-"));
        tokio::time::sleep(ttl).await;
        // Renewals make new ones.
        while files(&place, "-fifo-").len() != 2 {
            tokio::time::sleep(ms(5)).await;
        }
        assert!(guard.is_valid() && !waiter.is_finished());
        guard.release().await.unwrap();
        drop(waiter.await.unwrap().unwrap());
    });
}

/// A FIFO that nobody has open is a death only if it is the one of the row.
pub(crate) fn another_fifo_is_not_death() {
    let place = Place::new();
    run(async {
        let ttl = Duration::from_secs(3);
        let (one, two) = (
            store(place.path()).await.ttl(ttl),
            store(place.path()).await.ttl(ttl),
        );
        let guard = one.lock("a").acquire().await.unwrap();
        let [fifo] = &files(&place, "-fifo-")[..] else {
            panic!("one client, one FIFO")
        };
        shell(&format!(
            "mkfifo '{0}.new'; mv '{0}.new' '{0}'",
            fifo.display()
        ));
        assert!(
            two.lock("a")
                .try_acquire()
                .await
                .is_err_and(|e| e.is_contended())
        );
        let waiter = tokio::spawn(two.lock("a").acquire());
        tokio::time::sleep(ttl).await;
        assert!(guard.is_valid() && !waiter.is_finished());
        guard.release().await.unwrap();
        drop(waiter.await.unwrap().unwrap());
    });
}

/// Waits for a lock with as many readers; says when they stand in the queue, and when all hold.
pub(crate) fn read_together(words: &[String]) {
    let [locks, readers] = words else {
        unreachable!()
    };
    let readers: usize = readers.parse().unwrap();
    run_for(Duration::from_secs(240), async {
        // No renewal, and no poll, does the work of a message.
        let store = store(locks).await.ttl(Duration::from_secs(600));
        let lock = store.rw_lock("a").read();
        let waiting: Vec<_> = (0..readers).map(|_| tokio::spawn(lock.acquire())).collect();
        while store.lock("a").inspect().await.unwrap().waiters.len() < readers {
            tokio::time::sleep(ms(100)).await;
        }
        say("waiting");
        for reader in waiting {
            std::mem::forget(reader.await.unwrap().unwrap());
        }
        say("held");
    });
}

/// Its FIFO has no room for as many messages while it does not read them.
pub(crate) fn crowd_of_a_stopped_process_is_served() {
    let place = Place::new();
    run_for(Duration::from_secs(240), async {
        let here = store(place.path()).await.ttl(Duration::from_secs(600));
        let writer = here.rw_lock("a").write().acquire().await.unwrap();
        let mut readers = Actor::start("read_together", &[&place.word(), "1800"]);
        readers.says("waiting");
        readers.signal("STOP");
        writer.release().await.unwrap();
        readers.signal("CONT");
        let held = tokio::task::spawn_blocking(move || readers.says("held"));
        tokio::time::timeout(Duration::from_secs(100), held)
            .await
            .expect("some wait for their renewal")
            .unwrap();
    });
}
