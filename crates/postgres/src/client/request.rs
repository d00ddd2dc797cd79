//! A statement and its parameters, with their types. A request is therefore one flight of messages,
//! and needs no prepared statement: a prepared statement belongs to a session, and behind a pooler
//! the next request may run in another session.

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::scripts::ASKED;
#[cfg(doc)]
use crate::scripts::call;

type Parameter = Box<dyn ToSql + Sync + Send>;

/// One request.
pub(crate) struct Request {
    pub(crate) sql: Arc<str>,
    parameters: Vec<(Parameter, Type)>,
    /// The text that each row of the answer has to repeat.
    asked: Option<String>,
}

impl Request {
    pub(crate) fn new(sql: &Arc<str>) -> Request {
        Request {
            sql: sql.clone(),
            parameters: Vec::new(),
            asked: None,
        }
    }

    /// Makes the answer repeat the schema and a number that no other request has, for the call of a
    /// function [in this form](call). A client therefore never accepts the answer to another
    /// request, not even from a faulty pooler.
    pub(crate) fn asking(self, schema: &str) -> Request {
        let number = format!("{:032x}", fastrand::u128(..));
        let asked = format!("{schema} {number}");
        Request {
            asked: Some(asked),
            ..self.text(&number)
        }
    }

    /// Returns whether these rows answer this request.
    pub(crate) fn is_answered_by(&self, rows: &[Row]) -> bool {
        let says =
            |row: &Row, asked: &str| row.try_get(ASKED).is_ok_and(|said: &str| said == asked);
        self.asked
            .as_deref()
            .is_none_or(|asked| rows.iter().all(|row| says(row, asked)))
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

    /// The parameters in the form of the client crate.
    pub(crate) fn parameters(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.parameters
            .iter()
            .map(|(value, r#type)| (&**value as &(dyn ToSql + Sync), r#type.clone()))
            .collect()
    }
}
