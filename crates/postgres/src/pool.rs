//! Pools of connections that a program has already, and from which the store borrows:
//! [`Postgres::with_pool`](crate::Postgres::with_pool).
//!
//! Three kinds of pool can be used as they are, each with the feature of its name: those of
//! `deadpool-postgres` (feature `deadpool`), `bb8-postgres` (`bb8`) and `sqlx` (`sqlx`). Any other
//! pool implements [`ConnectionPool`] and [`PooledConnection`].
//!
//! With `bb8-postgres`:
//!
#![cfg_attr(feature = "bb8", doc = "```no_run")]
#![cfg_attr(not(feature = "bb8"), doc = "```ignore")]
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use bb8_postgres::{PostgresConnectionManager, bb8::Pool};
//! use leasehold_postgres::client::NoTls;
//! use leasehold_postgres::{PoolOptions, Postgres};
//!
//! let server = "postgres://app:secret@10.0.0.1/orders";
//! let manager = PostgresConnectionManager::new_from_stringlike(server, NoTls)?;
//! let pool = Pool::builder().max_size(8).build(manager).await?;
//! let locks = Postgres::with_pool(pool.clone(), PoolOptions::new()).await?;
//! # Ok(()) }
//! ```
//!
//! With `sqlx`, here with notifications over a connection of the store's own:
//!
#![cfg_attr(feature = "sqlx", doc = "```no_run")]
#![cfg_attr(not(feature = "sqlx"), doc = "```ignore")]
//! # mod sqlx { pub use sqlx_postgres::PgPool; }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use leasehold_postgres::{Config, PoolOptions, Postgres};
//!
//! let server = "postgres://app:secret@10.0.0.1/orders";
//! let pool = sqlx::PgPool::connect(server).await?;
//! let options = PoolOptions::new().listen(Config::from_url(server)?);
//! let locks = Postgres::with_pool(pool.clone(), options).await?;
//! # Ok(()) }
//! ```

#[cfg(feature = "bb8")]
mod bb8;
#[cfg(feature = "deadpool")]
mod deadpool;
#[cfg(feature = "sqlx")]
mod sqlx;

use std::fmt;
use std::future::{pending, ready};
use std::pin::Pin;

use leasehold_core::backend::async_trait;
use tokio_postgres::{Client, SimpleQueryMessage};

pub use crate::client::answer::Row;
pub use crate::client::request::Request;

/// A pool that lends connections to one PostgreSQL database.
///
/// ```
/// # use std::sync::Arc;
/// use leasehold_core::backend::async_trait;
/// use leasehold_postgres::client::Client;
/// use leasehold_postgres::pool::{self, ConnectionPool, PoolError, PooledConnection, Request, Row};
///
/// # struct Mine;
/// # impl Mine { async fn take(&self) -> Result<Client, String> { Err("closed".into()) } fn put(&self, _: Client) {} }
/// struct MyPool(Arc<Mine>);
/// struct Borrowed(Arc<Mine>, Option<Client>);
///
/// #[async_trait]
/// impl ConnectionPool for MyPool {
///     fn name(&self) -> &'static str {
///         "my pool"
///     }
///
///     async fn get(&self) -> Result<Box<dyn PooledConnection>, PoolError> {
///         let client = self.0.take().await.map_err(PoolError::Failed)?;
///         Ok(Box::new(Borrowed(self.0.clone(), Some(client))))
///     }
/// }
///
/// #[async_trait]
/// impl PooledConnection for Borrowed {
///     fn is_closed(&self) -> bool {
///         self.1.as_ref().is_none_or(Client::is_closed)
///     }
///
///     async fn query(&mut self, request: &Request) -> Result<Vec<Row>, PoolError> {
///         let client = self.1.as_ref().ok_or_else(|| PoolError::Failed("closed".into()))?;
///         request.ask(client).await
///     }
///
///     async fn simple_query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, PoolError> {
///         let client = self.1.as_ref().ok_or_else(|| PoolError::Failed("closed".into()))?;
///         pool::simple_query(client, sql).await
///     }
///
///     fn discard(mut self: Box<Self>) {
///         self.1 = None;
///     }
/// }
///
/// impl Drop for Borrowed {
///     fn drop(&mut self) {
///         self.1.take().into_iter().for_each(|client| self.0.put(client));
///     }
/// }
/// ```
#[async_trait]
pub trait ConnectionPool: Send + Sync + 'static {
    /// The name of the pool in errors.
    fn name(&self) -> &'static str;

    /// Waits until the pool has a connection for the caller. The store gives up after its
    /// [`timeout`](crate::PoolOptions::timeout), so this function needs no limit of its own.
    ///
    /// # Errors
    ///
    /// The reason why the pool lends none. It may not contain a password.
    ///
    /// # Cancel safety
    ///
    /// The future may be dropped at any time. The pool then has lost no connection.
    async fn get(&self) -> Result<Box<dyn PooledConnection>, PoolError>;

    /// Says why the pool could not give a connection in time, if it knows more than that none was
    /// free, as an answer of the server. It is called after the limit of [`get`](Self::get), for
    /// half as long.
    async fn trouble(&self) -> Option<PoolError> {
        None
    }

    /// Waits until the program closes the pool. The store then keeps no connection any more. A pool
    /// whose `close` waits for nobody does not need this.
    async fn closed(&self) {
        pending::<()>().await;
    }
}

/// A borrowed connection. Its drop gives it back too.
#[async_trait]
pub trait PooledConnection: Send + 'static {
    /// Returns whether the connection is known to have ended.
    fn is_closed(&self) -> bool;

    /// Executes one statement with its parameters, as a transaction of its own unless one is open.
    ///
    /// # Errors
    ///
    /// The server's refusal, or the end of the connection.
    async fn query(&mut self, request: &Request) -> Result<Vec<Row>, PoolError>;

    /// Executes statements without parameters by the simple protocol, and returns the rows of all
    /// of them, each with its values as texts.
    ///
    /// # Errors
    ///
    /// Those of [`query`](PooledConnection::query).
    async fn simple_query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, PoolError>;

    /// Gives the connection back, in the state in which it was lent. The future ends when the pool
    /// has it. It is dropped after five seconds, or before; the connection then goes back, or ends,
    /// all the same. A pool that has the connection back as soon as it is dropped does not need this.
    fn give_back(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        drop(self);
        Box::pin(ready(()))
    }

    /// Closes the connection instead of giving it back. The store does so with a connection on
    /// which a request was not answered, or somebody has left a transaction open.
    fn discard(self: Box<Self>);
}

/// The reason why a pool lends no connection, or a connection does not answer.
#[non_exhaustive]
pub enum PoolError {
    /// An error of the client crate.
    Client(tokio_postgres::Error),
    /// The server's refusal, as another client crate reports it.
    Refused {
        /// The SQLSTATE.
        sqlstate: String,
        /// The message, without its detail.
        message: String,
    },
    /// The pool is closed, the connection has ended, or another reason. A request that ends with
    /// it counts as one that may have been executed.
    Failed(String),
}

/// Shows no detail of the server's message, which may contain values.
impl fmt::Debug for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Client(e) => write!(f, "Client({e})"),
            PoolError::Refused { sqlstate, .. } => write!(f, "Refused({sqlstate})"),
            PoolError::Failed(why) => write!(f, "Failed({why})"),
        }
    }
}

/// [`PooledConnection::simple_query`] on a client of [`tokio_postgres`].
///
/// # Errors
///
/// Those of the client, as [`PoolError::Client`].
pub async fn simple_query(
    client: &Client,
    sql: &str,
) -> Result<Vec<Vec<Option<String>>>, PoolError> {
    let messages = client.simple_query(sql).await.map_err(PoolError::Client)?;
    let rows = messages.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            let texts = (0..row.len()).map(|nth| row.get(nth).map(str::to_owned));
            Some(texts.collect())
        }
        _ => None,
    });
    Ok(rows.collect())
}
