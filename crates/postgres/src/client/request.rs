//! A statement and its parameters, with their types. A request is therefore one flight of messages,
//! and needs no prepared statement: a prepared statement belongs to a session, and behind a pooler
//! the next request may run in another session.

use std::error::Error as StdError;
use std::fmt::{self, Write};
use std::sync::Arc;

use leasehold_core::backend::ClaimId;
use tokio_postgres::Client;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::client::answer::Row;
use crate::pool::PoolError;
#[cfg(doc)]
use crate::scripts::answer_of;
use crate::scripts::{ASKED, HOME, as_rows};

/// A statement of the store, with its parameters.
pub struct Request {
    pub(crate) sql: Arc<str>,
    values: Vec<Value>,
    /// The names of the fields of the answer, if that is a record.
    fields: &'static [&'static str],
    /// The schema and the number that each row of the answer has to repeat.
    asked: Option<[String; 2]>,
}

/// The id of a claim, as a `uuid`.
#[derive(Debug)]
struct Id(ClaimId);

/// The value of a parameter.
enum Value {
    Text(Option<String>),
    Texts(Vec<String>),
    Id(Id),
    Ids(Vec<Id>),
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
            fields: &[],
            asked: None,
        }
    }

    /// Gives the fields of the answer these names.
    pub(crate) fn fields(self, fields: &'static [&'static str]) -> Request {
        Request { fields, ..self }
    }

    /// Makes the answer repeat the schema and a number that no other request has, for the call of a
    /// function [in this form](answer_of). A client therefore never accepts the answer to another
    /// request, not even from a faulty pooler.
    pub(crate) fn asking(self, schema: &str) -> Request {
        let number = format!("{:032x}", fastrand::u128(..));
        Request {
            asked: Some([schema.to_owned(), number.clone()]),
            ..self.text(&number)
        }
    }

    /// Returns whether these rows answer this request.
    pub(crate) fn is_answered_by(&self, rows: &[Row]) -> bool {
        let says = |row: &Row, column: &str, value: &str| {
            row.try_get(column).is_ok_and(|said: &str| said == value)
        };
        self.asked.as_ref().is_none_or(|[schema, number]| {
            rows.iter()
                .all(|row| says(row, HOME, schema) && says(row, ASKED, number))
        })
    }

    fn with(mut self, value: Value) -> Request {
        self.values.push(value);
        self
    }

    pub(crate) fn text(self, value: &str) -> Request {
        self.with(Value::Text(Some(value.to_owned())))
    }

    pub(crate) fn id(self, value: ClaimId) -> Request {
        self.with(Value::Id(Id(value)))
    }

    pub(crate) fn ids(self, values: impl Iterator<Item = ClaimId>) -> Request {
        self.with(Value::Ids(values.map(Id).collect()))
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
        let rows = rows.into_iter().map(|row| Row::new(row, self.fields));
        Ok(rows.collect())
    }

    /// The statement with its values in place of the parameters, for a client that can send it by
    /// the simple protocol only. It is ASCII, and means the same with any setting of the session.
    /// Its values include ids of claims, so it should not be logged.
    pub fn to_sql(&self) -> String {
        let mut sql = String::new();
        // The text of a record does not say of which types its fields are.
        let statement = match self.fields {
            [] => self.sql.to_string(),
            _ => as_rows(&self.sql),
        };
        let mut rest = &*statement;
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
            Value::Id(id) => (id, Type::UUID),
            Value::Ids(ids) => (ids, Type::UUID_ARRAY),
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
            Value::Id(Id(id)) => format!("'{id}'::pg_catalog.uuid"),
            Value::Ids(ids) => {
                let ids: Vec<String> = ids.iter().map(|Id(id)| id.to_string()).collect();
                format!("'{{{}}}'::pg_catalog.uuid[]", ids.join(","))
            }
            Value::Number(Some(number)) => format!("'{number}'::pg_catalog.int8"),
            Value::Number(None) => "NULL::pg_catalog.int8".to_owned(),
            Value::Numbers(numbers) => {
                // In a literal, `array_nulls = off` makes a text of NULL.
                let shown = |n: &Option<i64>| n.map_or("NULL".to_owned(), |n| format!("'{n}'"));
                let numbers: Vec<String> = numbers.iter().map(shown).collect();
                format!("ARRAY[{}]::pg_catalog.int8[]", numbers.join(","))
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

impl ToSql for Id {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        let number = u128::from_str_radix(&self.0.to_string(), 16)?;
        out.extend_from_slice(&number.to_be_bytes());
        Ok(IsNull::No)
    }

    fn accepts(r#type: &Type) -> bool {
        *r#type == Type::UUID
    }

    to_sql_checked!();
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio_postgres::{Config, NoTls};

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
            FROM f('-9223372036854775808'::pg_catalog.int8, NULL::pg_catalog.int8, ARRAY['-1',NULL]::pg_catalog.int8[], \
            '-2'::pg_catalog.int4, '3'::pg_catalog.int2, 'true'::pg_catalog.bool), '$', $11";
        assert_eq!(request.to_sql(), expected);
        assert!(request.to_sql().is_ascii());
        assert_eq!(format!("{request:?}"), format!("Request({sql})"));
    }

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap();
        [&[kind][..], &length.to_be_bytes(), body].concat()
    }

    /// The messages of a server that answers with one row.
    fn answer(row: [(&str, &str); 2]) -> Vec<u8> {
        let [mut columns, mut values] =
            [2_u16.to_be_bytes().to_vec(), 2_u16.to_be_bytes().to_vec()];
        for (name, value) in row {
            columns.extend([name.as_bytes(), b"\0"].concat());
            // Of no table; of any length, in the binary format.
            columns.extend([0; 6]);
            columns.extend(Type::TEXT.oid().to_be_bytes());
            columns.extend([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 1]);
            values.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
            values.extend(value.as_bytes());
        }
        [
            message(b'1', b""),
            message(b'2', b""),
            message(b't', &[0, 0]),
            message(b'T', &columns),
            message(b'D', &values),
            message(b'C', b"SELECT 1\0"),
            message(b'Z', b"I"),
        ]
        .concat()
    }

    #[tokio::test]
    async fn the_answer_to_another_request_or_of_another_schema_is_none() {
        let request = Request::new(&"SELECT".into()).asking("mine");
        let [_, number] = request.asked.clone().unwrap();
        for (home, asked, is_answer) in [
            ("mine", &*number, true),
            ("yours", &number, false),
            ("mine", "0", false),
        ] {
            let (ours, mut theirs) = duplex(1 << 16);
            let server = async move {
                let mut said = [0; 1024];
                assert!(theirs.read(&mut said).await.unwrap() > 0);
                let welcome = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
                theirs.write_all(welcome).await.unwrap();
                assert!(theirs.read(&mut said).await.unwrap() > 0);
                let answer = answer([(HOME, home), (ASKED, asked)]);
                theirs.write_all(&answer).await.unwrap();
                theirs
            };
            let client = async {
                let mut settings = Config::new();
                let connecting = settings.user("me").connect_raw(ours, NoTls);
                let (client, connection) = connecting.await.unwrap();
                tokio::spawn(connection);
                request.ask(&client).await.unwrap()
            };
            let (rows, _theirs) = tokio::join!(client, server);
            assert_eq!(request.is_answered_by(&rows), is_answer, "{home} {asked}");
        }
    }
}
