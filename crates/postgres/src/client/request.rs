//! A statement and its parameters. They are typed here, so that it is one flight of messages and needs no prepared statement, which a
//! pooler would lose. Where none stands between, those that are sent often are prepared all the same: the server then neither reads nor
//! plans them again, which is a third of what it does for a claim.

use std::sync::Arc;

use tokio_postgres::types::{ToSql, Type};

type Parameter = Box<dyn ToSql + Sync + Send>;

/// One request.
pub(crate) struct Request {
    pub(crate) sql: Arc<str>,
    parameters: Vec<(Parameter, Type)>,
    /// It may be prepared.
    pub(crate) is_frequent: bool,
}

impl Request {
    pub(crate) fn new(sql: &Arc<str>) -> Request {
        Request { sql: sql.clone(), parameters: Vec::new(), is_frequent: false }
    }

    /// One that is sent again and again.
    pub(crate) fn frequent(sql: &Arc<str>) -> Request {
        Request { is_frequent: true, ..Request::new(sql) }
    }

    fn with(mut self, value: impl ToSql + Sync + Send + 'static, r#type: Type) -> Request {
        self.parameters.push((Box::new(value), r#type));
        self
    }

    pub(crate) fn text(self, value: &str) -> Request {
        self.with(value.to_owned(), Type::TEXT)
    }

    pub(crate) fn texts(self, value: Vec<String>) -> Request {
        self.with(value, Type::TEXT_ARRAY)
    }

    pub(crate) fn number(self, value: i64) -> Request {
        self.with(value, Type::INT8)
    }

    pub(crate) fn maybe_number(self, value: Option<i64>) -> Request {
        self.with(value, Type::INT8)
    }

    pub(crate) fn maybe_numbers(self, value: Vec<Option<i64>>) -> Request {
        self.with(value, Type::INT8_ARRAY)
    }

    pub(crate) fn numbers(self, value: Vec<i64>) -> Request {
        self.with(value, Type::INT8_ARRAY)
    }

    pub(crate) fn int(self, value: i32) -> Request {
        self.with(value, Type::INT4)
    }

    pub(crate) fn small(self, value: i16) -> Request {
        self.with(value, Type::INT2)
    }

    pub(crate) fn flag(self, value: bool) -> Request {
        self.with(value, Type::BOOL)
    }

    pub(crate) fn bytes(self, value: &[u8]) -> Request {
        self.with(value.to_vec(), Type::BYTEA)
    }

    pub(crate) fn maybe_text(self, value: Option<&str>) -> Request {
        self.with(value.map(str::to_owned), Type::TEXT)
    }

    /// As the client crate takes them.
    pub(crate) fn parameters(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.parameters.iter().map(|(value, r#type)| (&**value as &(dyn ToSql + Sync), r#type.clone())).collect()
    }

    /// The same where the statement is prepared.
    pub(crate) fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.parameters.iter().map(|(value, _)| &**value as &(dyn ToSql + Sync)).collect()
    }

    pub(crate) fn types(&self) -> Vec<Type> {
        self.parameters.iter().map(|(_, r#type)| r#type.clone()).collect()
    }
}
