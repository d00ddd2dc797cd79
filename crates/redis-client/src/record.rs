//! The scripts' one notation: fields separated by single blanks, the free text last.

use std::str::FromStr;
use std::time::Duration;

use leasehold_core::{FencingToken, Result};
use redis::Value;

use crate::error::junk;

/// The record in an answer. What is no UTF-8 in it was written by others, and is only shown.
pub fn record(answer: &Value) -> Result<String> {
    match answer {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        _ => Err(junk("an answer")),
    }
}

/// Reads one record from left to right.
#[derive(Debug)]
pub struct Fields<'a> {
    whole: &'a str,
    rest: &'a str,
}

impl<'a> Fields<'a> {
    /// From its start.
    pub fn of(record: &'a str) -> Fields<'a> {
        Fields { whole: record, rest: record }
    }

    /// The next word.
    pub fn word(&mut self) -> &'a str {
        let (word, rest) = self.rest.split_once(' ').unwrap_or((self.rest, ""));
        self.rest = rest;
        word
    }

    /// The next word as what it stands for.
    pub fn value<T: FromStr>(&mut self) -> Result<T> {
        // The record may hold an id, so only its first word is shown.
        let kind = || self.whole.split(' ').next().unwrap_or_default();
        self.rest.split(' ').next().unwrap_or_default().parse().map_err(|_| junk(kind())).inspect(|_| {
            self.rest = self.rest.split_once(' ').map_or("", |(_, rest)| rest);
        })
    }

    /// The next word as a token.
    pub fn token(&mut self) -> Result<FencingToken> {
        self.value()
    }

    /// The next word as milliseconds.
    pub fn millis(&mut self) -> Result<Duration> {
        self.value().map(Duration::from_millis)
    }

    /// Whatever is left.
    pub fn text(self) -> &'a str {
        self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_words_and_keeps_the_text_whole() {
        let mut record = Fields::of("granted 17 250 a label  with blanks\n");
        assert_eq!(record.word(), "granted");
        assert_eq!(record.token().unwrap().get(), 17);
        assert_eq!(record.millis().unwrap(), Duration::from_millis(250));
        assert_eq!(record.text(), "a label  with blanks\n");
        assert_eq!(Fields::of("").word(), "");
        assert!(Fields::of("x").token().is_err());
    }
}
