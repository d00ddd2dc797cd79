//! The pool of `sqlx`.
//!
//! `sqlx` sends a statement with parameters in two flights, and a pooler in transaction mode may
//! execute the second one in another session, where the same name may be another statement. So a
//! request is one message of the simple protocol, with its values as literals.

use std::pin::Pin;

use leasehold_core::backend::async_trait;
use sqlx_core::Error;
use sqlx_core::column::Column;
use sqlx_core::executor::Executor;
use sqlx_core::pool::PoolConnection;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row as _;
use sqlx_postgres::{PgDatabaseError, PgPool, PgRow, Postgres};

use super::{ConnectionPool, PoolError, PooledConnection, Request, Row};

#[async_trait]
impl ConnectionPool for PgPool {
    fn name(&self) -> &'static str {
        "the pool of sqlx"
    }

    async fn get(&self) -> Result<Box<dyn PooledConnection>, PoolError> {
        let connection = self.acquire().await.map_err(|e| reason(&e))?;
        Ok(Box::new(connection))
    }

    async fn closed(&self) {
        self.close_event().await;
    }
}

#[async_trait]
impl PooledConnection for PoolConnection<Postgres> {
    fn is_closed(&self) -> bool {
        // Its next request reports it.
        false
    }

    async fn query(&mut self, request: &Request) -> Result<Vec<Row>, PoolError> {
        let sql = request.to_sql();
        let rows = Executor::fetch_all(&mut **self, raw_sql(&sql)).await;
        rows.map_err(|e| reason(&e))?.iter().map(row).collect()
    }

    async fn simple_query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>, PoolError> {
        let rows = Executor::fetch_all(&mut **self, raw_sql(sql)).await;
        rows.map_err(|e| reason(&e))?.iter().map(texts).collect()
    }

    fn give_back(mut self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        // As its drop does, in a task of its own.
        Box::pin(self.return_to_pool())
    }

    fn discard(self: Box<Self>) {
        drop(self.detach());
    }
}

fn row(row: &PgRow) -> Result<Row, PoolError> {
    let columns = row.columns().iter().map(|column| {
        let oid = column.type_info().oid().map_or(0, |oid| oid.0);
        (column.name().to_owned(), oid)
    });
    Ok(Row::from_texts(columns, texts(row)?))
}

fn texts(row: &PgRow) -> Result<Vec<Option<String>>, PoolError> {
    let text = |nth| {
        let value = row.try_get_raw(nth).map_err(|e| reason(&e))?;
        if sqlx_core::value::ValueRef::is_null(&value) {
            return Ok(None);
        }
        let text = value.as_str();
        let text = text.map_err(|_| PoolError::Failed("a value is no text".to_owned()))?;
        Ok(Some(text.to_owned()))
    };
    (0..row.len()).map(text).collect()
}

/// An error of `sqlx`, without the details of the server's message.
fn reason(e: &Error) -> PoolError {
    if let Error::Database(said) = e
        && let Some(said) = said.try_downcast_ref::<PgDatabaseError>()
    {
        return PoolError::Refused {
            sqlstate: said.code().to_owned(),
            message: said.message().to_owned(),
        };
    }
    PoolError::Failed(e.to_string())
}
