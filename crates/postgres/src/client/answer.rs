//! A row of an answer: as the client crate has it, or made of texts.

mod record;

use std::fmt;

use tokio_postgres::types::{FromSql, Type};

use self::record::Record;
use crate::scripts::ANSWER;

/// A row of an answer.
pub struct Row(Values);

enum Values {
    /// The columns, and the names of the fields in the column [`ANSWER`]; none if that is no record.
    Client(tokio_postgres::Row, &'static [&'static str]),
    /// The columns, with their values in the binary format of their types.
    Binary(Vec<Column>),
}

struct Column {
    name: String,
    r#type: Type,
    value: Result<Option<Vec<u8>>, NoSuchValue>,
}

/// A column, by its number or its name.
pub(crate) enum At<'a> {
    Nth(usize),
    Named(&'a str),
}

impl From<usize> for At<'_> {
    fn from(nth: usize) -> Self {
        At::Nth(nth)
    }
}

impl<'a> From<&'a str> for At<'a> {
    fn from(name: &'a str) -> Self {
        At::Named(name)
    }
}

/// There is no such column, or its value is of another type.
#[derive(Debug)]
pub(crate) struct NoSuchValue;

impl Row {
    /// A row as the client crate has it. The fields of the answer have these names, if that is a
    /// record.
    pub(crate) fn new(columns: tokio_postgres::Row, fields: &'static [&'static str]) -> Row {
        Row(Values::Client(columns, fields))
    }

    /// Makes a row of the texts that the simple protocol returns. Each column has a name and the oid
    /// of its type.
    pub fn from_texts(
        columns: impl IntoIterator<Item = (String, u32)>,
        texts: impl IntoIterator<Item = Option<String>>,
    ) -> Row {
        let columns = columns.into_iter().zip(texts);
        let columns = columns.map(|((name, oid), text)| {
            let r#type = Type::from_oid(oid).unwrap_or(Type::TEXT);
            let value = text.map(|text| binary(&r#type, text)).transpose();
            Column {
                name,
                r#type,
                value,
            }
        });
        Row(Values::Binary(columns.collect()))
    }

    /// The value of a column, or of a field of the record.
    pub(crate) fn try_get<'a, 'b, T: FromSql<'a>>(
        &'a self,
        at: impl Into<At<'b>>,
    ) -> Result<T, NoSuchValue> {
        let columns = match (&self.0, at.into()) {
            (Values::Client(row, _), At::Nth(nth)) => {
                return row.try_get(nth).map_err(|_| NoSuchValue);
            }
            (Values::Client(row, fields), At::Named(name)) => {
                let Some(nth) = fields.iter().position(|field| *field == name) else {
                    return row.try_get(name).map_err(|_| NoSuchValue);
                };
                let answer: Record<'_> = row.try_get(ANSWER).map_err(|_| NoSuchValue)?;
                return answer.field(nth).ok_or(NoSuchValue);
            }
            (Values::Binary(columns), At::Nth(nth)) => columns.get(nth),
            (Values::Binary(columns), At::Named(name)) => {
                columns.iter().find(|column| column.name == name)
            }
        };
        let column = columns.filter(|column| T::accepts(&column.r#type));
        let column = column.ok_or(NoSuchValue)?;
        let value = column.value.as_ref().map_err(|_| NoSuchValue)?;
        T::from_sql_nullable(&column.r#type, value.as_deref()).map_err(|_| NoSuchValue)
    }
}

/// Shows no values.
impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Row")
    }
}

/// The binary form of a text of this type.
fn binary(r#type: &Type, text: String) -> Result<Vec<u8>, NoSuchValue> {
    let value = match *r#type {
        Type::INT2 => text.parse().ok().map(|n: i16| n.to_be_bytes().to_vec()),
        Type::INT4 => text.parse().ok().map(|n: i32| n.to_be_bytes().to_vec()),
        Type::INT8 => text.parse().ok().map(|n: i64| n.to_be_bytes().to_vec()),
        Type::BOOL => match text.as_str() {
            "t" => Some(vec![1]),
            "f" => Some(vec![0]),
            _ => None,
        },
        Type::BYTEA => bytes(&text),
        Type::TEXT_ARRAY => array(&text).map(|elements| binary_array(&elements)),
        _ => Some(text.into_bytes()),
    };
    value.ok_or(NoSuchValue)
}

/// An array of texts: the number of dimensions, if there are NULLs, the type of the elements, for
/// the dimension its length and its first number, and the elements with their lengths.
fn binary_array(elements: &[Option<String>]) -> Vec<u8> {
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX).to_be_bytes();
    let has_null = elements.iter().any(Option::is_none);
    let dimensions = usize::from(!elements.is_empty());
    let mut array = Vec::new();
    array.extend(number(dimensions));
    array.extend(number(usize::from(has_null)));
    array.extend(Type::TEXT.oid().to_be_bytes());
    if dimensions == 0 {
        return array;
    }
    array.extend(number(elements.len()));
    array.extend(number(1));
    for element in elements {
        match element {
            None => array.extend((-1_i32).to_be_bytes()),
            Some(text) => {
                array.extend(number(text.len()));
                array.extend(text.as_bytes());
            }
        }
    }
    array
}

/// The bytes of a `bytea`, in either form of `bytea_output`.
fn bytes(text: &str) -> Option<Vec<u8>> {
    if let Some(digits) = text.strip_prefix("\\x") {
        let digit = |nth: usize| u8::from_str_radix(digits.get(nth..nth + 2)?, 16).ok();
        return (0..digits.len()).step_by(2).map(digit).collect();
    }
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'\\', [b'\\', after @ ..]) => {
                bytes.push(b'\\');
                after
            }
            (b'\\', [a, b, c, after @ ..]) => {
                let octal = [*a, *b, *c];
                let octal = std::str::from_utf8(&octal).ok()?;
                bytes.push(u8::from_str_radix(octal, 8).ok()?);
                after
            }
            (b'\\', _) => return None,
            (other, after) => {
                bytes.push(*other);
                after
            }
        };
    }
    Some(bytes)
}

/// The elements of an array of texts with one dimension, `{a,"b c"}`.
fn array(text: &str) -> Option<Vec<Option<String>>> {
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    let mut elements = Vec::new();
    let mut rest = inner.chars().peekable();
    while rest.peek().is_some() {
        let mut element = String::new();
        let quoted = rest.next_if_eq(&'"').is_some();
        loop {
            match rest.next() {
                Some('\\') => element.push(rest.next()?),
                Some('"') if quoted => {
                    // A comma or the end is behind it.
                    match rest.next() {
                        None | Some(',') => break,
                        Some(_) => return None,
                    }
                }
                Some(',') if !quoted => break,
                Some(other) => element.push(other),
                None if quoted => return None,
                None => break,
            }
        }
        let is_null = !quoted && element.eq_ignore_ascii_case("NULL");
        elements.push((!is_null).then_some(element));
    }
    Some(elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(oid: &Type, text: &str) -> Row {
        Row::from_texts([("it".to_owned(), oid.oid())], [Some(text.to_owned())])
    }

    #[test]
    fn texts_are_read_as_the_values_that_they_show() {
        assert!(row(&Type::BOOL, "t").try_get::<bool>("it").unwrap());
        assert!(!row(&Type::BOOL, "f").try_get::<bool>(0).unwrap());
        assert_eq!(row(&Type::INT2, "-7").try_get::<i16>(0).unwrap(), -7);
        assert_eq!(row(&Type::INT4, "7").try_get::<i32>(0).unwrap(), 7);
        let least = i64::MIN.to_string();
        assert_eq!(
            row(&Type::INT8, &least).try_get::<i64>(0).unwrap(),
            i64::MIN
        );
        assert_eq!(row(&Type::TEXT, "ä\\").try_get::<&str>(0).unwrap(), "ä\\");
        for (text, bytes) in [
            ("\\x00ff5c", &[0, 255, 92][..]),
            ("a\\\\b\\377\\000", &[97, 92, 98, 255, 0]),
            ("", &[]),
        ] {
            assert_eq!(
                row(&Type::BYTEA, text).try_get::<&[u8]>(0).unwrap(),
                bytes,
                "{text}"
            );
        }
        for (text, elements) in [
            ("{}", &[][..]),
            ("{a,b}", &["a", "b"]),
            (
                r#"{"a b","{","\"","\\","NULL",""}"#,
                &["a b", "{", "\"", "\\", "NULL", ""],
            ),
        ] {
            let read = row(&Type::TEXT_ARRAY, text)
                .try_get::<Vec<String>>(0)
                .unwrap();
            assert_eq!(read, elements, "{text}");
        }
        let none = Row::from_texts([("it".to_owned(), Type::INT8.oid())], [None]);
        assert_eq!(none.try_get::<Option<i64>>("it").unwrap(), None);
    }

    #[test]
    fn what_is_no_value_of_its_type_is_an_error() {
        for (oid, text) in [
            (Type::INT8, "x"),
            (Type::INT4, "99999999999"),
            (Type::BOOL, "yes"),
            (Type::BYTEA, "\\x0"),
            (Type::BYTEA, "\\9"),
        ] {
            let row = row(&oid, text);
            assert!(row.try_get::<i64>(0).is_err(), "{text}");
            assert!(row.try_get::<i32>(0).is_err(), "{text}");
            assert!(row.try_get::<bool>(0).is_err(), "{text}");
            assert!(row.try_get::<&[u8]>(0).is_err(), "{text}");
        }
        for text in ["", "{", "{\"a}", "{\"a\"b}", "{a\\}"] {
            let row = row(&Type::TEXT_ARRAY, text);
            assert!(row.try_get::<Vec<String>>(0).is_err(), "{text}");
        }
        assert!(row(&Type::INT8, "1").try_get::<&str>(0).is_err());
        assert!(row(&Type::INT8, "1").try_get::<i64>("other").is_err());
        assert!(row(&Type::INT8, "1").try_get::<i64>(1).is_err());
    }
}
