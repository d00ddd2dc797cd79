//! A file: two transactions of SQLite, and the lock of the system.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use crate::servers::Server;
use crate::subject::{Result, Subject, TAKEN, Tries};

fn folder(server: &Server) -> Result<&std::path::Path> {
    let Server::File(folder) = server else {
        return Err("this needs a file".into());
    };
    Ok(folder.path())
}

/// A row inserted in one `IMMEDIATE` transaction, deleted in another. They wait for no disk, as those of our store.
#[derive(Clone)]
pub struct Transactions(Arc<Mutex<Connection>>);

impl Transactions {
    pub fn open(server: &Server) -> Result<Transactions> {
        let connection = Connection::open(folder(server)?.join("raw.db"))?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        connection.execute_batch(
            "PRAGMA synchronous = OFF; CREATE TABLE IF NOT EXISTS lock (name TEXT PRIMARY KEY) WITHOUT ROWID",
        )?;
        Ok(Transactions(Arc::new(Mutex::new(connection))))
    }

    /// Says how many rows it changed.
    fn execute(&self, sql: &str, name: &str) -> Result<usize> {
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let changed = transaction.prepare_cached(sql)?.execute([name])?;
        transaction.commit()?;
        Ok(changed)
    }
}

impl Subject for Transactions {
    type Held = String;

    async fn acquire(&self, name: &str) -> Result<String> {
        Ok(self.try_acquire(name).await?.ok_or(TAKEN)?)
    }

    async fn release(&self, name: String) -> Result<()> {
        self.execute("DELETE FROM lock WHERE name = ?1", &name)?;
        Ok(())
    }
}

impl Tries for Transactions {
    async fn try_acquire(&self, name: &str) -> Result<Option<String>> {
        let inserted = self.execute("INSERT INTO lock VALUES (?1) ON CONFLICT DO NOTHING", name)?;
        Ok((inserted == 1).then(|| name.into()))
    }
}

/// `flock` of an open file.
#[derive(Clone)]
pub struct Flock(Arc<File>);

impl Flock {
    pub fn open(server: &Server) -> Result<Flock> {
        Ok(Flock(Arc::new(File::create(
            folder(server)?.join("flock"),
        )?)))
    }
}

impl Subject for Flock {
    type Held = ();

    async fn acquire(&self, _: &str) -> Result<()> {
        Ok(self.0.lock()?)
    }

    async fn release(&self, (): ()) -> Result<()> {
        Ok(self.0.unlock()?)
    }
}
