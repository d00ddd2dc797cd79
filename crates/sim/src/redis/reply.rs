//! The replies of a mini-server in both versions of the protocol, and its format of numbers.

use std::fmt::Write;

/// One reply, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Status(String),
    /// An error; its first word is its code.
    Error(String),
    Int(i64),
    Double(f64),
    Bulk(Vec<u8>),
    /// A text for people.
    Verbatim(String),
    Nil,
    Array(Vec<Reply>),
    /// Names and values: one after the other in the older protocol.
    Map(Vec<(Reply, Reply)>),
    /// Members and scores: one after the other in the older protocol.
    Pairs(Vec<(Reply, Reply)>),
    /// A message that the client has not asked for.
    Push(Vec<Reply>),
}

impl Reply {
    pub(crate) fn ok() -> Reply {
        Reply::Status("OK".to_owned())
    }

    pub(crate) fn error(text: impl Into<String>) -> Reply {
        Reply::Error(text.into())
    }

    pub(crate) fn bulk(text: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(text.as_ref().to_vec())
    }

    pub(crate) fn of(text: Option<&Vec<u8>>) -> Reply {
        text.map_or(Reply::Nil, Reply::bulk)
    }

    /// Writes the reply in version 3 of the protocol, or else in version 2.
    pub(crate) fn encode(&self, three: bool, to: &mut Vec<u8>) {
        let line = |to: &mut Vec<u8>, sign: char, text: &str| {
            to.extend_from_slice(format!("{sign}{text}\r\n").as_bytes());
        };
        let text = |to: &mut Vec<u8>, sign: char, bytes: &[u8]| {
            to.extend_from_slice(format!("{sign}{}\r\n", bytes.len()).as_bytes());
            to.extend_from_slice(bytes);
            to.extend_from_slice(b"\r\n");
        };
        match self {
            Reply::Status(said) => line(to, '+', said),
            Reply::Error(said) => line(to, '-', said),
            Reply::Int(number) => line(to, ':', &number.to_string()),
            Reply::Double(number) if three => line(to, ',', &double(*number)),
            Reply::Double(number) => text(to, '$', double(*number).as_bytes()),
            Reply::Bulk(bytes) => text(to, '$', bytes),
            Reply::Verbatim(said) if three => text(to, '=', format!("txt:{said}").as_bytes()),
            Reply::Verbatim(said) => text(to, '$', said.as_bytes()),
            Reply::Nil if three => line(to, '_', ""),
            Reply::Nil => line(to, '$', "-1"),
            Reply::Array(all) | Reply::Push(all) => {
                let sign = if three && matches!(self, Reply::Push(_)) {
                    '>'
                } else {
                    '*'
                };
                line(to, sign, &all.len().to_string());
                all.iter().for_each(|one| one.encode(three, to));
            }
            Reply::Pairs(pairs) if three => {
                line(to, '*', &pairs.len().to_string());
                for (member, score) in pairs {
                    line(to, '*', "2");
                    member.encode(three, to);
                    score.encode(three, to);
                }
            }
            Reply::Map(pairs) | Reply::Pairs(pairs) => {
                let (sign, many) = if three {
                    ('%', pairs.len())
                } else {
                    ('*', 2 * pairs.len())
                };
                line(to, sign, &many.to_string());
                pairs.iter().for_each(|(name, value)| {
                    name.encode(three, to);
                    value.encode(three, to);
                });
            }
        }
    }
}

/// Writes a number as Redis writes scores and the numbers that Lua passes to a command: `%.17g`.
pub(crate) fn double(number: f64) -> String {
    if !number.is_finite() {
        let sign = if number.is_sign_negative() { "-" } else { "" };
        return format!("{sign}{}", if number.is_nan() { "nan" } else { "inf" });
    }
    if number == number.trunc() && number.abs() < 1e17 {
        let sign = if number == 0.0 && number.is_sign_negative() {
            "-"
        } else {
            ""
        };
        return format!("{sign}{}", number as i64);
    }
    // Seventeen digits without zeros at the end, and an exponent if there are more places.
    let text = format!("{number:.16e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let mut said = String::new();
    if (-4..17).contains(&exponent) {
        let places = usize::try_from(16 - exponent).unwrap_or_default();
        let _ = write!(said, "{number:.places$}");
        return said.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    let _ = write!(said, "{digits}e{sign}{:02}", exponent.abs());
    said
}

/// Reads a whole number, as strictly as Redis.
pub(crate) fn integer(text: &[u8]) -> Option<i64> {
    let number: i64 = str::from_utf8(text).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

/// Reads a score.
pub(crate) fn score(text: &[u8]) -> Option<f64> {
    let text = str::from_utf8(text).ok()?;
    let number: f64 = match text.to_ascii_lowercase().as_str() {
        "inf" | "+inf" | "infinity" | "+infinity" => f64::INFINITY,
        "-inf" | "-infinity" => f64::NEG_INFINITY,
        other => other.parse().ok()?,
    };
    (!number.is_nan()).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_by_c() {
        for (number, said) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1_795_000_000_000.0, "1795000000000"),
            (0.1, "0.10000000000000001"),
            (2.5, "2.5"),
            (-1234.5678, "-1234.5678"),
            (1e17, "1e+17"),
            (1.5e300, "1.5000000000000001e+300"),
            (0.000_012_5, "1.2500000000000001e-05"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(double(number), said);
        }
    }

    #[test]
    fn integers_are_read_strictly() {
        let read: Vec<_> = [
            "0",
            "-7",
            "+7",
            "07",
            " 7",
            "7.0",
            "9223372036854775808",
            "-0",
            "",
        ]
        .iter()
        .map(|text| integer(text.as_bytes()))
        .collect();
        assert_eq!(
            read,
            [Some(0), Some(-7), None, None, None, None, None, None, None]
        );
    }
}
