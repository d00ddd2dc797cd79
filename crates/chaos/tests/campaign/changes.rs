//! What changes around a store: the clock of its server, the limits of its members, its room, its users, and what else an etcd is told.

use std::{path::Path, process::Stdio, time::Duration};

use leasehold_testbed::{Etcd, Redis, Server, ZooKeeper};
use rusqlite::{Connection, OpenFlags, config::DbConfig};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use super::{
    breaking::{AGAIN, escaped},
    faults::Fault,
    kind::Kind,
    nemesis::Nemesis,
    room::{FILES, Room},
    servers::Servers,
    sessions,
    work::LOCKS,
};

/// What takes room beside the locks of a server of Redis: so many keys of so many bytes, for a minute at most.
const FILL: &str =
    "for n = 1, 16 do redis.call('SET', 'filler' .. n, string.rep('x', 65536), 'PX', 60000) end";
const EMPTY: &str = "for n = 1, 16 do redis.call('DEL', 'filler' .. n) end";
/// About half of them. The keys of locks are as many, and small.
const TOO_MUCH: u64 = 8 * 65536;
const POLICIES: [&str; 4] = [
    "allkeys-random",
    "volatile-random",
    "allkeys-lru",
    "volatile-ttl",
];
/// The longest step of a clock. Steps back come to much less than two hours.
const LONGEST_STEP: Duration = Duration::from_secs(60);
/// One part of so many is what a clock runs faster or slower. A lease's margin is one of a hundred, and two milliseconds.
const RATE: i64 = 125;
/// How long another program waits for the clients until it writes, at most, and then for them to go on.
const BUSY: Duration = Duration::from_millis(100);
const BETWEEN: Duration = Duration::from_millis(3);

impl Nemesis<'_> {
    /// Steps a server's clock by less than three leases, or by up to a minute. It stays there.
    pub(super) fn step_clock(&self, server: &Server, back: bool) {
        let most = if self.random.borrow_mut().bool() {
            3 * self.kind.ttl()
        } else {
            LONGEST_STEP
        };
        let by = i64::try_from(self.up_to(most).as_micros()).unwrap();
        server.step_clock(if back { -by } else { by }).unwrap();
    }

    /// Lets a server's clock run at another rate for some leases: faster or slower than the others by less than the margin of a lease.
    pub(super) async fn change_rate(&self, server: &Server, length: Duration) {
        let (sign, end, mut before) = (
            if self.coin() { 1 } else { -1 },
            Instant::now() + 4 * length,
            Instant::now(),
        );
        while before < end {
            sleep(Duration::from_millis(5)).await;
            // Where this process stood still, it goes on as before: nothing is made up for.
            let went = before.elapsed().min(Duration::from_millis(50));
            before = Instant::now();
            server
                .step_clock(sign * i64::try_from(went.as_micros()).unwrap() / RATE)
                .unwrap();
        }
    }

    /// Ends a member as its operator does, and starts it with other limits for sessions: too short for the leases, or longer than they are.
    pub(super) async fn change_limits(&self, member: usize, length: Duration) {
        let (ttl, tick) = (self.kind.ttl(), Duration::from_millis(400));
        let wide = (tick, Duration::from_secs(60));
        let limits = [
            wide,
            (tick, ttl),
            (tick, ttl * 2 / 3),
            (ttl * 3 / 2, wide.1),
        ];
        let (min, max) = limits[self.random.borrow_mut().usize(0..limits.len())];
        let members: Vec<&ZooKeeper> = match self.servers {
            Servers::ZooKeeper(server) => vec![server],
            Servers::Ensemble(ensemble) => ensemble.members().iter().collect(),
            _ => return,
        };
        members[member].stop().await.unwrap();
        members[member].set_sessions(min, max).unwrap();
        sleep(length / 4).await;
        while members[member].start_again().await.is_err() {}
    }

    /// A server has room for less than it has, and evicts what it likes.
    pub(super) async fn evict_keys(&self, server: &Redis, length: Duration) {
        let policy = POLICIES[self.random.borrow_mut().usize(0..POLICIES.len())];
        told(server, &["EVAL", FILL, "0"]).await;
        told(server, &["CONFIG", "SET", "maxmemory-policy", policy]).await;
        let used = loop {
            let memory = server.info("memory").await.unwrap_or_default();
            let used = memory.lines().find_map(|line| {
                line.strip_prefix("used_memory:")?
                    .trim()
                    .parse::<u64>()
                    .ok()
            });
            if let Some(used) = used {
                break used;
            }
            sleep(AGAIN).await;
        };
        told(
            server,
            &[
                "CONFIG",
                "SET",
                "maxmemory",
                &used.saturating_sub(TOO_MUCH).to_string(),
            ],
        )
        .await;
        sleep(length).await;
        told(server, &["CONFIG", "SET", "maxmemory", "0"]).await;
        told(server, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
        told(server, &["EVAL", EMPTY, "0"]).await;
    }

    /// A server that is down or does not answer is left alone.
    pub(super) async fn of_etcd(&self, server: &Etcd, fault: Fault) {
        let which = self.random.borrow_mut().usize(..);
        let change = async {
            match fault {
                Fault::ChangeUsers => drop(server.change_users().await),
                Fault::EndSession => drop(end_session(server, which).await),
                _ => drop(compact(server).await),
            }
        };
        let _ = timeout(self.kind.ttl(), change).await;
    }

    /// Ends a session of ZooKeeper that waits or holds. Where a server is down or does not answer, none is ended.
    pub(super) async fn end_session(&self) {
        let (addresses, mut locks) = (self.servers.addresses(), LOCKS);
        self.random.borrow_mut().shuffle(&mut locks);
        let (which, all) = (self.random.borrow_mut().usize(..), self.servers.all());
        let end = async {
            for lock in locks {
                if let Ok(Some(session)) =
                    sessions::of_entry(&addresses, &escaped(lock), which).await
                {
                    return drop(sessions::end(all[which % all.len()].addr(), session).await);
                }
            }
        };
        let _ = timeout(self.kind.ttl(), end).await;
    }

    pub(super) async fn of_file(&self, room: &Room, fault: Fault, length: Duration) {
        match fault {
            Fault::FillDisk => self.fill_disk(room, length).await,
            Fault::LockFile => self.lock_file(room, length).await,
            _ => self.delete_files(room),
        }
    }

    /// A disk has no room left. Its files may be deleted beside, and no others can be made.
    async fn fill_disk(&self, room: &Room, length: Duration) {
        room.fill();
        if self.random.borrow_mut().bool() {
            self.delete_files(room);
            // What that has freed.
            room.fill();
        }
        sleep(length).await;
        room.empty();
    }

    /// Another program has the file locked for writing, again and again: whatever a client does next comes much later than what it has just
    /// done. The files may be deleted meanwhile.
    async fn lock_file(&self, room: &Room, length: Duration) {
        let end = Instant::now() + length;
        while Instant::now() < end {
            // There may be no file just now.
            if let Some(other) = start_locker(&room.file()).await {
                sleep(self.up_to(self.kind.ttl() / 8)).await;
                if self.random.borrow_mut().u8(0..8) == 0 {
                    self.delete_files(room);
                }
                other.end().await;
            }
            sleep(self.up_to(BETWEEN)).await;
        }
    }

    fn delete_files(&self, room: &Room) {
        for name in FILES {
            if self.random.borrow_mut().bool() {
                // It may not be there.
                let _ = std::fs::remove_file(room.path().join(name));
            }
        }
    }
}

/// Another program, which has the file locked. `None` if that was not possible in time.
async fn start_locker(file: &Path) -> Option<Locker> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .arg("lock")
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let locker = Locker(child);
    match lines.next_line().await {
        Ok(Some(_)) => Some(locker),
        _ => {
            locker.end().await;
            None
        }
    }
}

struct Locker(Child);

impl Locker {
    async fn end(mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait().await;
    }
}

/// The other program: begins to write in the file, as no client of the store does, and says so, until its standard input ends. In a process of its
/// own: in one of a client, SQLite would let both share an index, and each close would drop the other one's locks.
pub(crate) fn lock(file: &Path) {
    let begun = || {
        let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        // It would delete the log of others, should they have replaced the file.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        connection.busy_timeout(BUSY)?;
        connection.execute_batch("BEGIN IMMEDIATE")?;
        Ok::<_, rusqlite::Error>(connection)
    };
    if let Ok(_connection) = begun() {
        println!("locked");
        let _ = std::io::stdin().lines().count();
    }
}

/// It is told until it has answered.
pub(super) async fn told(server: &Redis, words: &[&str]) {
    while server.command(words).await.is_err() {
        sleep(AGAIN).await;
    }
}

/// Revokes one of the leases that there are, as `etcdctl lease revoke` does.
async fn end_session(server: &Etcd, which: usize) -> Option<()> {
    let leases: Value =
        serde_json::from_str(&server.post("/v3/lease/leases", "{}").await.ok()?).ok()?;
    let leases = leases["leases"]
        .as_array()
        .filter(|leases| !leases.is_empty())?;
    let id = &leases[which % leases.len()]["ID"];
    server
        .post("/v3/lease/revoke", &format!(r#"{{"ID":{id}}}"#))
        .await
        .ok()
        .map(drop)
}

/// Forgets all revisions before this one.
async fn compact(server: &Etcd) -> Option<()> {
    let range: Value = serde_json::from_str(
        &server
            .post("/v3/kv/range", r#"{"key":"AA=="}"#)
            .await
            .ok()?,
    )
    .ok()?;
    let revision = &range["header"]["revision"];
    server
        .post(
            "/v3/kv/compaction",
            &format!(r#"{{"revision":{revision}}}"#),
        )
        .await
        .ok()
        .map(drop)
}

/// How long a user's token is good, which is counted in whole seconds: not for longer than a lease.
pub(super) fn good_for(kind: Kind) -> Duration {
    (kind.ttl() / 2).max(Duration::from_secs(2))
}
