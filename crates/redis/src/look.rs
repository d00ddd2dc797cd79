//! Looking on: inspect, list, evict.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use leasehold_core::{Entry, FencingToken, Line, Name, Result};
use redis::Value;

use crate::Redis;
use crate::connection::Connection;
use crate::error::{junk, of_request};
use crate::names::Names;
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
        for (nth, text) in records.iter().enumerate() {
            let text = record(text)?;
            let mut fields = Fields::of(&text);
            if nth > 0 {
                line.waiters.push(waiter(fields)?);
                continue;
            }
            match fields.word() {
                "free" => {}
                "foreign" => line.holders.push(Entry::foreign()),
                _ => {
                    let token = fields.token()?;
                    line.holders.push(waiter(fields)?.token(token));
                }
            }
        }
        Ok(line)
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

/// The names that a walk of the whole database finds: O(keys), in steps.
pub async fn scan(
    connection: &Connection,
    names: &Names,
    prefix: &str,
    after: Option<&Name>,
    limit: usize,
) -> Result<Vec<Name>> {
    let pattern = names.pattern(prefix);
    let mut found = BTreeSet::new();
    let mut cursor = String::from("0");
    loop {
        let mut step = redis::pipe();
        step.cmd("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
        let answer = connection.send(&step).await?.pop().unwrap_or_default();
        let Value::Array(answer) = answer.extract_error().map_err(|e| of_request(&e))? else {
            return Err(junk("a walk"));
        };
        let [next, Value::Array(keys)] = answer.as_slice() else { return Err(junk("a walk")) };
        for key in keys {
            let Value::BulkString(key) = key else { continue };
            let Some(name) = names.name(key) else { continue };
            if name.as_str().starts_with(prefix) && after.is_none_or(|after| name > *after) {
                found.insert(name);
                if found.len() > limit {
                    found.pop_last();
                }
            }
        }
        cursor = record(next)?;
        if cursor == "0" {
            return Ok(found.into_iter().collect());
        }
    }
}

/// `since label`.
fn waiter(mut fields: Fields<'_>) -> Result<Entry> {
    let since = SystemTime::UNIX_EPOCH + Duration::from_millis(fields.value()?);
    Ok(Entry::new(fields.text()).since(since))
}
