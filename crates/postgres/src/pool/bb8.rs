//! The pool of `bb8-postgres`.
//!
//! It tries to connect until its time is over, and reports no error of an attempt. So a pool without
//! any connection is asked for the reason by an attempt beside it.

use bb8_postgres::PostgresConnectionManager as Manager;
use bb8_postgres::bb8::{ManageConnection, Pool, PooledConnection as Object, RunError};
use leasehold_core::backend::async_trait;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Error, Socket};

use super::{ConnectionPool, PoolError, PooledConnection, Request, Row, simple_query};

#[async_trait]
impl<T> ConnectionPool for Pool<Manager<T>>
where
    T: MakeTlsConnect<Socket> + 'static,
    Manager<T>: ManageConnection<Connection = Client, Error = Error>,
{
    fn name(&self) -> &'static str {
        "the pool of bb8-postgres"
    }

    async fn get(&self) -> Result<Box<dyn PooledConnection>, PoolError> {
        match self.get_owned().await {
            Ok(object) => Ok(Box::new(object)),
            Err(RunError::User(e)) => Err(PoolError::Client(e)),
            Err(RunError::TimedOut) => {
                let why = "it gave none within its connection_timeout";
                let trouble = self.trouble().await;
                Err(trouble.unwrap_or_else(|| PoolError::Failed(why.to_owned())))
            }
        }
    }

    async fn trouble(&self) -> Option<PoolError> {
        if self.state().connections > 0 {
            return None;
        }
        let attempt = self.dedicated_connection().await;
        attempt.err().map(PoolError::Client)
    }
}

#[async_trait]
impl<T> PooledConnection for Object<'static, Manager<T>>
where
    T: MakeTlsConnect<Socket> + 'static,
    Manager<T>: ManageConnection<Connection = Client, Error = Error>,
{
    fn is_closed(&self) -> bool {
        Client::is_closed(self)
    }

    async fn query(&mut self, request: &Request) -> Result<Vec<Row>, PoolError> {
        request.ask(self).await
    }

    async fn simple_query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, PoolError> {
        simple_query(self, sql).await
    }

    fn discard(mut self: Box<Self>) {
        // The pool has no way to take a connection out. It forgets one whose client is closed. The
        // crate `postgres` depends on this function too, so it stays as long as version 0.7.
        self.__private_api_close();
    }
}
