//! A statement and its parameters, with their types. A request is therefore one flight of messages,
//! and needs no prepared statement: a prepared statement belongs to a session, and behind a pooler
//! the next request may run in another session.

use std::fmt::{self, Write};
use std::sync::Arc;

use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use crate::client::answer::Row;
use crate::pool::PoolError;
use crate::scripts::ASKED;
#[cfg(doc)]
use crate::scripts::call;

/// A statement of the store, with its parameters.
pub struct Request {
    pub(crate) sql: Arc<str>,
    values: Vec<Value>,
    /// The text that each row of the answer has to repeat.
    asked: Option<String>,
}

/// The value of a parameter.
enum Value {
    Text(Option<String>),
    Texts(Vec<String>),
    Number(Option<i64>),
    Numbers(Vec<Option<i64>>),
    Int(i32),
    Small(i16),
    Flag(bool),
    Bytes(Vec<u8>),
}

impl Request {
    pub(crate) fn new(sql: &Arc<str>) -> Request {
        Request {
            sql: sql.clone(),
            values: Vec::new(),
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

    fn with(mut self, value: Value) -> Request {
        self.values.push(value);
        self
    }

    pub(crate) fn text(self, value: &str) -> Request {
        self.with(Value::Text(Some(value.to_owned())))
    }

    pub(crate) fn texts(self, value: Vec<String>) -> Request {
        self.with(Value::Texts(value))
    }

    pub(crate) fn number(self, value: i64) -> Request {
        self.with(Value::Number(Some(value)))
    }

    pub(crate) fn maybe_number(self, value: Option<i64>) -> Request {
        self.with(Value::Number(value))
    }

    pub(crate) fn maybe_numbers(self, value: Vec<Option<i64>>) -> Request {
        self.with(Value::Numbers(value))
    }

    pub(crate) fn numbers(self, value: Vec<i64>) -> Request {
        self.with(Value::Numbers(value.into_iter().map(Some).collect()))
    }

    pub(crate) fn int(self, value: i32) -> Request {
        self.with(Value::Int(value))
    }

    pub(crate) fn small(self, value: i16) -> Request {
        self.with(Value::Small(value))
    }

    pub(crate) fn flag(self, value: bool) -> Request {
        self.with(Value::Flag(value))
    }

    pub(crate) fn bytes(self, value: &[u8]) -> Request {
        self.with(Value::Bytes(value.to_vec()))
    }

    pub(crate) fn maybe_text(self, value: Option<&str>) -> Request {
        self.with(Value::Text(value.map(str::to_owned)))
    }

    /// The parameters in the form of the client crate.
    pub(crate) fn parameters(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.values.iter().map(Value::parameter).collect()
    }
}

/// For authors of pools.
impl Request {
    /// Executes the statement on a client of [`tokio_postgres`]: one flight of messages.
    ///
    /// # Errors
    ///
    /// Those of the client, as [`PoolError::Client`].
    pub async fn ask(&self, client: &Client) -> Result<Vec<Row>, PoolError> {
        let parameters = self.parameters();
        let rows = client.query_typed(&self.sql, &parameters).await;
        let rows = rows.map_err(PoolError::Client)?;
        Ok(rows.into_iter().map(Row::from).collect())
    }

    /// The statement with its values in place of the parameters, for a client that can send it by
    /// the simple protocol only. It is ASCII, and means the same with any setting of the session.
    /// Its values include ids of claims, so it should not be logged.
    pub fn to_sql(&self) -> String {
        let mut sql = String::new();
        let mut rest = &*self.sql;
        while let Some((before, after)) = rest.split_once('$') {
            sql.push_str(before);
            let digits = after.bytes().take_while(u8::is_ascii_digit).count();
            let (number, behind) = after.split_at(digits);
            let nth = number.parse::<usize>().ok();
            match nth.and_then(|nth| self.values.get(nth.checked_sub(1)?)) {
                Some(value) => value.write(&mut sql),
                None => {
                    sql.push('$');
                    sql.push_str(number);
                }
            }
            rest = behind;
        }
        sql.push_str(rest);
        sql
    }
}

/// Shows no values.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({})", self.sql)
    }
}

impl Value {
    fn parameter(&self) -> (&(dyn ToSql + Sync), Type) {
        match self {
            Value::Text(text) => (text, Type::TEXT),
            Value::Texts(texts) => (texts, Type::TEXT_ARRAY),
            Value::Number(number) => (number, Type::INT8),
            Value::Numbers(numbers) => (numbers, Type::INT8_ARRAY),
            Value::Int(number) => (number, Type::INT4),
            Value::Small(number) => (number, Type::INT2),
            Value::Flag(flag) => (flag, Type::BOOL),
            Value::Bytes(bytes) => (bytes, Type::BYTEA),
        }
    }

    /// Writes the value as a literal of its type.
    fn write(&self, sql: &mut String) {
        let literal = match self {
            Value::Text(text) => {
                let text = text.as_deref().map_or_else(|| "NULL".to_owned(), quoted);
                format!("{text}::pg_catalog.text")
            }
            Value::Texts(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                format!("ARRAY[{}]::pg_catalog.text[]", texts.join(","))
            }
            Value::Number(Some(number)) => format!("'{number}'::pg_catalog.int8"),
            Value::Number(None) => "NULL::pg_catalog.int8".to_owned(),
            Value::Numbers(numbers) => {
                let shown = |n: &Option<i64>| n.map_or("NULL".to_owned(), |n| n.to_string());
                let numbers: Vec<String> = numbers.iter().map(shown).collect();
                format!("'{{{}}}'::pg_catalog.int8[]", numbers.join(","))
            }
            Value::Int(number) => format!("'{number}'::pg_catalog.int4"),
            Value::Small(number) => format!("'{number}'::pg_catalog.int2"),
            Value::Flag(flag) => format!("'{flag}'::pg_catalog.bool"),
            Value::Bytes(bytes) => {
                let mut digits = String::new();
                for byte in bytes {
                    let _ = write!(digits, "{byte:02x}");
                }
                format!("pg_catalog.decode('{digits}', 'hex')")
            }
        };
        sql.push_str(&literal);
    }
}

/// The text as a literal with escapes. It is ASCII, so that no `client_encoding` makes another text
/// of it, and does not depend on `standard_conforming_strings`.
fn quoted(text: &str) -> String {
    let mut literal = "E'".to_owned();
    for c in text.chars() {
        let code = u32::from(c);
        let _ = match c {
            '\'' | '\\' => write!(literal, "\\x{code:02x}"),
            ' '..='~' => write!(literal, "{c}"),
            '\0'..='\x7f' => write!(literal, "\\x{code:02x}"),
            '\u{80}'..='\u{ffff}' => write!(literal, "\\u{code:04x}"),
            _ => write!(literal, "\\U{code:08x}"),
        };
    }
    literal.push('\'');
    literal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_its_values_as_literals() {
        let sql = "SELECT $1, $2::uuid, $10, $3 FROM f($4, $5, $6, $7, $8, $9), '$', $11";
        let request = Request::new(&sql.into())
            .text("it's \\ $1 é 🔒\0\n")
            .maybe_text(None)
            .texts(vec!["a".into(), "{\",}".into()])
            .number(i64::MIN)
            .maybe_number(None)
            .maybe_numbers(vec![Some(-1), None])
            .int(-2)
            .small(3)
            .flag(true)
            .bytes(&[0, 255]);
        let expected = "SELECT E'it\\x27s \\x5c $1 \\u00e9 \\U0001f512\\x00\\x0a'::pg_catalog.text, \
            NULL::pg_catalog.text::uuid, pg_catalog.decode('00ff', 'hex'), ARRAY[E'a',E'{\",}']::pg_catalog.text[] \
            FROM f('-9223372036854775808'::pg_catalog.int8, NULL::pg_catalog.int8, '{-1,NULL}'::pg_catalog.int8[], \
            '-2'::pg_catalog.int4, '3'::pg_catalog.int2, 'true'::pg_catalog.bool), '$', $11";
        assert_eq!(request.to_sql(), expected);
        assert!(request.to_sql().is_ascii());
        assert_eq!(format!("{request:?}"), format!("Request({sql})"));
    }
}
