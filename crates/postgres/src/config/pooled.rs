//! The configuration of a store over a pool of the program.

use std::time::Duration;

use leasehold_core::StoreId;

use super::{Config, Listen};

/// The number of connections that are borrowed at once: one is kept, and another one is borrowed
/// while that is in use.
const CONNECTIONS: usize = 2;

/// The settings of a store that borrows its connections:
/// [`Postgres::with_pool`](crate::Postgres::with_pool).
///
/// ```
/// use leasehold_postgres::{Config, PoolOptions};
///
/// let listen = Config::from_url("postgres://app:secret@10.0.0.1/orders")?;
/// let options = PoolOptions::new().schema("locks").listen(listen);
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolOptions(Config);

impl PoolOptions {
    /// The schema `leasehold`, two connections, a timeout of one second, and no notifications.
    pub fn new() -> PoolOptions {
        PoolOptions(Config {
            listen: Listen::Off,
            connections: CONNECTIONS,
            ..Config::default()
        })
    }

    /// Sets the schema with the tables and functions, `leasehold` unless set: see
    /// [`Config::from_url`].
    pub fn schema(mut self, name: impl Into<String>) -> PoolOptions {
        self.0 = self.0.schema(name);
        self
    }

    /// Sets the number of connections that are borrowed at once in each runtime that uses the store,
    /// 2 unless set: from 1 to 64, and the nearest of these for any other number. One of them is
    /// kept while the store holds or waits for a lock. One is enough for everything; a request that waits for a
    /// row, because somebody else is at the same lock, then holds up the others.
    pub fn connections(mut self, most: usize) -> PoolOptions {
        self.0 = self.0.connections(most);
        self
    }

    /// Sets the limit of each request, and of the wait for a connection of the pool: from 10 ms to
    /// 60 s, and the nearest of these for any other duration.
    pub fn timeout(mut self, timeout: Duration) -> PoolOptions {
        self.0 = self.0.timeout(timeout);
        self
    }

    /// Sets whether the schema is installed if it is missing, as it is unless this is `false`.
    pub fn install(mut self, install: bool) -> PoolOptions {
        self.0.install = install;
        self
    }

    /// Uses the database with this identity, and no other: see [`Config::store_id`].
    pub fn store_id(mut self, id: StoreId) -> PoolOptions {
        self.0 = self.0.store_id(id);
        self
    }

    /// Opens a connection of the store's own to this server, for notifications. It has to be the
    /// database of the pool. Only the address, the credentials and TLS are used. Without it waiters
    /// poll.
    pub fn listen(mut self, server: Config) -> PoolOptions {
        self.0.listen = Listen::At(Box::new(server.server));
        self
    }
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions::new()
    }
}

impl From<PoolOptions> for Config {
    fn from(options: PoolOptions) -> Config {
        options.0
    }
}
