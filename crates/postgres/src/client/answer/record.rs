//! The record that a function returns as one column.
//!
//! A function with one answer is called in the list of a `SELECT`, and its answer is one column, a
//! record. As a table of a `FROM` with a column for each field, the server plans and executes the
//! call a third longer.

use std::error::Error;

use tokio_postgres::types::{FromSql, Type};

/// A record in its binary form: the number of its fields, and for each the oid of its type, the
/// length of its value (-1 for NULL), and the value.
pub(crate) struct Record<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Record<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Record(raw))
    }

    fn accepts(r#type: &Type) -> bool {
        *r#type == Type::RECORD
    }
}

impl<'a> Record<'a> {
    /// The value of a field, if there is one of this type.
    pub(crate) fn field<T: FromSql<'a>>(&self, nth: usize) -> Option<T> {
        let (number, mut rest) = word(self.0)?;
        if nth >= usize::try_from(number).ok()? {
            return None;
        }
        for at in 0.. {
            let (oid, behind) = word(rest)?;
            let (length, behind) = word(behind)?;
            let length = usize::try_from(length.cast_signed()).ok();
            let value = behind.get(..length.unwrap_or_default())?;
            if at == nth {
                let r#type = Type::from_oid(oid).filter(T::accepts)?;
                return T::from_sql_nullable(&r#type, length.map(|_| value)).ok();
            }
            rest = &behind[value.len()..];
        }
        None
    }
}

/// The first four bytes as a number, and the rest.
fn word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (word, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*word), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(fields: &[(Type, Option<&[u8]>)]) -> Vec<u8> {
        let mut record = u32::try_from(fields.len()).unwrap().to_be_bytes().to_vec();
        for (r#type, value) in fields {
            let length = value.map_or(-1, |value| i32::try_from(value.len()).unwrap());
            record.extend(r#type.oid().to_be_bytes());
            record.extend(length.to_be_bytes());
            record.extend(value.unwrap_or_default());
        }
        record
    }

    #[test]
    fn the_fields_of_a_record_have_their_types() {
        let number = 7_i64.to_be_bytes();
        let raw = record(&[
            (Type::TEXT, Some(b"done")),
            (Type::INT8, None),
            (Type::BYTEA, Some(b"")),
            (Type::INT8, Some(&number)),
        ]);
        let record = Record(&raw);
        assert_eq!(record.field(0), Some("done"));
        assert_eq!(record.field(1), Some(None::<i64>));
        assert_eq!(record.field(2), Some(&b""[..]));
        assert_eq!(record.field(3), Some(7_i64));
        assert_eq!(record.field::<i64>(0), None, "it is a text");
        assert_eq!(record.field::<i64>(1), None, "it is NULL");
        assert_eq!(record.field::<i32>(3), None, "it is longer");
        assert_eq!(record.field::<i64>(4), None, "there is none");
    }

    #[test]
    fn a_record_that_ends_early_has_no_value() {
        let whole = record(&[(Type::TEXT, Some(b"done")), (Type::TEXT, Some(b"more"))]);
        for length in 0..whole.len() {
            assert_eq!(Record(&whole[..length]).field::<&str>(1), None, "{length}");
        }
        assert_eq!(Record(&whole).field(1), Some("more"));
    }
}
