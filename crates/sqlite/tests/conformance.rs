//! The suite against files of our own.

#![allow(
    clippy::expect_used,
    reason = "a harness that cannot do its part has failed"
)]

use std::alloc::System;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_conformance::{Capabilities, Detour, FencedResource, Harness, Need};
use leasehold_core::backend::{Backend, async_trait};
use leasehold_core::{Fenced, Result};
use leasehold_sqlite::{Config, Sqlite};
use rusqlite::{Connection, params};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tempfile::TempDir;

/// Counts what the suite and the clients allocate.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A directory with one file of locks.
struct World(TempDir, AtomicUsize);

impl World {
    fn fresh() -> Arc<dyn Harness> {
        Arc::new(World(
            tempfile::tempdir().expect("a directory"),
            AtomicUsize::default(),
        ))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("locks.db")
    }

    /// What is in the directory.
    fn files(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.0.path()).expect("the directory");
        files.map(|file| file.expect("a file").path()).collect()
    }

    /// Looks at the file as anybody could.
    fn database(&self) -> Connection {
        let database = Connection::open(self.path()).expect("the file");
        database
            .busy_timeout(Duration::from_secs(5))
            .expect("a timeout");
        database
    }
}

#[async_trait]
impl Harness for World {
    fn store_name(&self) -> &'static str {
        "sqlite"
    }

    async fn client(&self) -> Arc<dyn Backend> {
        let config =
            Config::from_url(&format!("sqlite://{}", self.path().display())).expect("a path");
        // Both kinds must bear one another.
        let is_odd = self.1.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        Arc::new(
            Sqlite::with_config(if is_odd { config.at_once() } else { config })
                .await
                .expect("a client"),
        )
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn capabilities(&self) -> Capabilities {
        use Need::{
            Contents, DeleteHolder, Detour, Fence, Footprint, Heap, Junk, MinHold, Once, Private,
            PushedWake, Restart, Wipe,
        };
        let able = [
            Private,
            DeleteHolder,
            Detour,
            Fence,
            Junk,
            MinHold,
            Once,
            Restart,
            Wipe,
            Footprint,
            Contents,
            Heap,
            PushedWake,
        ];
        Capabilities::new(
            &able,
            "there is no server: neither a link to cut, nor requests to count, nor other tools",
        )
    }

    async fn private(&self) -> Arc<dyn Harness> {
        World::fresh()
    }

    async fn misled_client(&self) -> (Arc<dyn Backend>, Arc<dyn Detour>) {
        let world = |folder| World(folder, AtomicUsize::default());
        let there = world(tempfile::tempdir().expect("a directory"));
        for used in [self, &there] {
            used.client().await.close().await.expect("its end");
        }
        let way = Way {
            folder: tempfile::tempdir().expect("a directory"),
            here: self.path(),
            there,
        };
        way.lead_back().await;
        let client = Sqlite::with_config(Config::new(way.link())).await;
        (Arc::new(client.expect("a client")), Arc::new(way))
    }

    async fn fenced_client(&self) -> (Arc<dyn Backend>, Arc<dyn FencedResource>) {
        let client = Arc::new(
            Sqlite::with_config(Config::new(self.path()))
                .await
                .expect("a client"),
        );
        let folder = tempfile::tempdir().expect("a directory");
        let orders = Connection::open(folder.path().join("orders.db")).expect("a database");
        orders
            .busy_timeout(Duration::from_secs(5))
            .expect("a timeout");
        orders
            .execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
            .expect("a table");
        orders
            .execute("ATTACH ?1 AS locks", [self.path().to_str()])
            .expect("the file of locks");
        (
            client.clone(),
            Arc::new(Orders {
                client,
                orders: Mutex::new(orders),
                _folder: folder,
            }),
        )
    }

    async fn delete_holder(&self, full_name: &str) {
        let delete = "DELETE FROM place WHERE name = ?1 AND token IS NOT NULL";
        assert_eq!(
            self.database()
                .execute(delete, [full_name])
                .expect("DELETE"),
            1
        );
    }

    async fn put_junk(&self, full_name: &str) {
        let session = "INSERT INTO session (fifo, dev, ino, pid, ttl, until) VALUES (0, 0, 0, 0, 1, ?1) RETURNING id";
        let place =
            "INSERT INTO place (name, seq, claim, session, mode, n, permits, turns, label, since)
                     VALUES (?1, 1, 'nobody', ?2, 'junk', 0, 0, 1, '', 0)";
        let database = self.database();
        let session: i64 = database
            .query_row(session, [i64::MAX], |row| row.get(0))
            .expect("a session");
        database
            .execute(place, params![full_name, session])
            .expect("a place");
    }

    /// Nobody has the file open any more: as after a restart of all its users, since there is no server.
    async fn restart(&self) {
        while self
            .files()
            .iter()
            .any(|file| file.to_string_lossy().contains("-fifo-"))
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Deletes the file, and what SQLite keeps beside it.
    async fn wipe(&self) {
        self.restart().await;
        self.files()
            .iter()
            .for_each(|file| fs::remove_file(file).expect("a file to delete"));
    }

    /// Files and rows.
    async fn footprint(&self) -> u64 {
        let mut rows = 0;
        for table in ["session", "place", "observer"] {
            let count = format!("SELECT count(*) FROM {table}");
            rows += self
                .database()
                .query_row(&count, [], |row| row.get::<_, i64>(0))
                .expect("a count") as u64;
        }
        self.files().len() as u64 + rows
    }

    async fn contents(&self) -> u64 {
        // Nothing of it ends by itself.
        self.footprint().await
    }

    fn cycles(&self) -> usize {
        1_000_000
    }

    fn heap(&self) -> usize {
        let stats = ALLOCATOR.stats();
        stats.bytes_allocated - stats.bytes_deallocated
    }
}

/// A link that leads to one of two files.
struct Way {
    folder: TempDir,
    here: PathBuf,
    there: World,
}

impl Way {
    fn link(&self) -> PathBuf {
        self.folder.path().join("link.db")
    }

    fn lead_to(&self, file: &Path) {
        let next = self.folder.path().join("next");
        symlink(file, &next).expect("a link");
        fs::rename(next, self.link()).expect("the link");
    }
}

#[async_trait]
impl Detour for Way {
    async fn lead_away(&self) {
        self.lead_to(&self.there.path());
    }

    async fn lead_back(&self) {
        self.lead_to(&self.here);
    }

    async fn elsewhere(&self) -> Arc<dyn Backend> {
        self.there.client().await
    }
}

/// A database beside the locks.
struct Orders {
    client: Arc<Sqlite>,
    orders: Mutex<Connection>,
    _folder: TempDir,
}

#[async_trait]
impl FencedResource for Orders {
    async fn write(&self, by: &dyn Fenced) -> Result<bool> {
        let still_holds = self.client.still_holds(by)?;
        let mut orders = self.orders.lock().expect("the database");
        let tx = orders.transaction().expect("a transaction");
        let holds = tx
            .execute(&still_holds.sql("locks"), still_holds.params())
            .expect("the check")
            == 1;
        tx.execute("INSERT INTO orders DEFAULT VALUES", [])
            .expect("a row");
        if holds { tx.commit() } else { tx.rollback() }.expect("the end");
        Ok(holds)
    }

    async fn written(&self) -> u64 {
        let orders = self.orders.lock().expect("the database");
        orders
            .query_row("SELECT count(*) FROM orders", [], |row| {
                row.get::<_, i64>(0)
            })
            .expect("a count") as u64
    }
}

fn main() -> ExitCode {
    leasehold_conformance::main(|| async { World::fresh() })
}
