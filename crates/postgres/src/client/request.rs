//! A statement and its parameters, with their types. A request is therefore one flight of messages,
//! and needs no prepared statement: a prepared statement belongs to a session, and behind a pooler
//! the next request may run in another session.

use std::error::Error as StdError;
use std::sync::Arc;

use leasehold_core::backend::ClaimId;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Error};

use crate::client::answer::Row;
#[cfg(doc)]
use crate::scripts::answer_of;
use crate::scripts::{ASKED, HOME};

type Parameter = Box<dyn ToSql + Sync + Send>;

/// One request.
pub(crate) struct Request {
    pub(crate) sql: Arc<str>,
    parameters: Vec<(Parameter, Type)>,
    /// The names of the fields of the answer, if that is a record.
    fields: &'static [&'static str],
    /// The schema and the number that each row of the answer has to repeat.
    asked: Option<[String; 2]>,
}

/// The id of a claim, as a `uuid`.
#[derive(Debug)]
struct Id(ClaimId);

impl Request {
    pub(crate) fn new(sql: &Arc<str>) -> Request {
        Request {
            sql: sql.clone(),
            parameters: Vec::new(),
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
            ..self.with(number, Type::TEXT)
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

    /// Sends it, and returns its answer.
    pub(crate) async fn ask(&self, client: &Client) -> Result<Vec<Row>, Error> {
        let parameters = self.parameters();
        let rows = client.query_typed(&self.sql, &parameters).await?;
        let rows = rows.into_iter().map(|row| Row::new(row, self.fields));
        Ok(rows.collect())
    }

    fn with(mut self, value: impl ToSql + Sync + Send + 'static, r#type: Type) -> Request {
        self.parameters.push((Box::new(value), r#type));
        self
    }

    pub(crate) fn text(self, value: &str) -> Request {
        self.with(value.to_owned(), Type::TEXT)
    }

    pub(crate) fn id(self, value: ClaimId) -> Request {
        self.with(Id(value), Type::UUID)
    }

    pub(crate) fn ids(self, values: impl Iterator<Item = ClaimId>) -> Request {
        self.with(values.map(Id).collect::<Vec<_>>(), Type::UUID_ARRAY)
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
    fn parameters(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.parameters
            .iter()
            .map(|(value, r#type)| (&**value as &(dyn ToSql + Sync), r#type.clone()))
            .collect()
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio_postgres::{Config, NoTls};

    use super::*;

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
