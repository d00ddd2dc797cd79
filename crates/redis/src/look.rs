//! Looking on: inspect, list, evict.

use std::collections::BTreeSet;
use std::time::SystemTime;

use leasehold_core::{Entry, FencingToken, Line, Name, Result};
use redis::Value;

use crate::Redis;
use crate::error::{junk, of_request};
use crate::record::Fields;
use crate::script::{Call, EVICT, INSPECT, record};

/// How many keys one step of a walk may look at: well under a millisecond of the server's time.
const STEP: u32 = 1000;

impl Redis {
    pub(crate) async fn look(&self, name: &Name) -> Result<Line> {
        let call = Call { keys: self.names.keys(name), args: Vec::new() };
        let Value::Array(records) = INSPECT.run(&self.connection, call).await? else {
            return Err(junk("the answer to an inspection"));
        };
        let mut line = Line::default();
        for text in records {
            let text = record(&text)?;
            if text == "foreign" {
                line.holders.push(Entry::foreign());
                continue;
            }
            let mut fields = Fields::of(&text);
            let (token, since) = (fields.token()?, SystemTime::UNIX_EPOCH + fields.millis()?);
            let entry = Entry::new(fields.text()).since(since);
            match token.get() {
                0 => line.waiters.push(entry),
                _ => line.holders.push(entry.token(token)),
            }
        }
        Ok(line)
    }

    pub(crate) async fn scan(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        let pattern = self.names.pattern(prefix);
        let mut found = BTreeSet::new();
        let mut cursor = String::from("0");
        loop {
            let mut step = redis::pipe();
            step.cmd("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
            let answer = self.connection.send(&step).await?.pop().unwrap_or_default();
            let Value::Array(answer) = answer.extract_error().map_err(|e| of_request(&e))? else {
                return Err(junk("a walk"));
            };
            let [next, Value::Array(keys)] = answer.as_slice() else { return Err(junk("a walk")) };
            let wanted = |name: &Name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after);
            let names = keys.iter().filter_map(|key| match key {
                Value::BulkString(key) => self.names.beside(key).filter(wanted),
                _ => None,
            });
            let names: Vec<Name> = names.collect::<BTreeSet<_>>().into_iter().collect();
            let mut looks = redis::pipe();
            for name in &names {
                let [lock, _, _, entries, _] = self.names.keys(name);
                looks.cmd("EXISTS").arg(lock).arg(entries);
            }
            let there = if names.is_empty() { Vec::new() } else { self.connection.send(&looks).await? };
            for (name, there) in names.into_iter().zip(there) {
                if there != Value::Int(0) {
                    found.insert(name);
                }
            }
            while found.len() > limit {
                found.pop_last();
            }
            cursor = record(next)?;
            if cursor == "0" {
                return Ok(found.into_iter().collect());
            }
        }
    }

    pub(crate) async fn end(&self, name: &Name, token: FencingToken) -> Result<bool> {
        let call = Call { keys: self.names.keys(name), args: vec![token.to_string()] };
        let answer = EVICT.run(&self.connection, call).await?;
        match record(&answer)?.as_str() {
            "evicted" => Ok(true),
            "none" => Ok(false),
            _ => Err(junk("the answer to an eviction")),
        }
    }
}
