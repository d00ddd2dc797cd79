//! The pool of `deadpool-postgres`.

use deadpool_postgres::{Object, Pool, PoolError as Refusal};
use leasehold_core::backend::async_trait;

use super::{ConnectionPool, PoolError, PooledConnection, Request, Row, simple_query};

#[async_trait]
impl ConnectionPool for Pool {
    fn name(&self) -> &'static str {
        "the pool of deadpool-postgres"
    }

    async fn get(&self) -> Result<Box<dyn PooledConnection>, PoolError> {
        match Pool::get(self).await {
            Ok(object) => Ok(Box::new(object)),
            Err(Refusal::Backend(e)) => Err(PoolError::Client(e)),
            Err(other) => Err(PoolError::Failed(other.to_string())),
        }
    }
}

#[async_trait]
impl PooledConnection for Object {
    fn is_closed(&self) -> bool {
        self.as_ref().is_closed()
    }

    async fn query(&mut self, request: &Request) -> Result<Vec<Row>, PoolError> {
        request.ask(self).await
    }

    async fn simple_query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, PoolError> {
        simple_query(self, sql).await
    }

    fn discard(self: Box<Self>) {
        // The pool forgets the connection, and the end of its wrapper closes the socket.
        drop(Object::take(*self));
    }
}
