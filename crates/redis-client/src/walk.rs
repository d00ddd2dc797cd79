//! Which names there are: a walk of all keys.

use std::collections::BTreeSet;

use leasehold_core::{Name, Result};
use redis::Value;

use crate::connection::Connection;
use crate::error::junk;
use crate::names::Names;
use crate::record::record;

/// How many keys one step of a walk may look at: well under a millisecond of the server's time.
const STEP: u32 = 1000;

/// The names that a walk of the whole database finds, in order: O(keys), in steps. A last token or an entry leads to a name,
/// and its lock or its line shows whether somebody holds it or waits.
pub async fn walk(
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
        let Value::Array(answer) = connection.refusal(answer)? else {
            return Err(junk("a walk"));
        };
        let [next, Value::Array(keys)] = answer.as_slice() else { return Err(junk("a walk")) };
        let wanted = |name: &Name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after);
        let some = keys.iter().filter_map(|key| match key {
            Value::BulkString(key) => names.name(key).filter(wanted),
            _ => None,
        });
        let some: BTreeSet<Name> = some.collect();
        let mut looks = redis::pipe();
        for name in &some {
            let [lock, _, _, line, _] = names.keys(name);
            looks.cmd("EXISTS").arg(lock).arg(line);
        }
        let there = if some.is_empty() { Vec::new() } else { connection.send(&looks).await? };
        let there = some.into_iter().zip(there).filter(|(_, there)| *there != Value::Int(0));
        found.extend(there.map(|(name, _)| name));
        while found.len() > limit {
            found.pop_last();
        }
        cursor = record(next)?;
        if cursor == "0" {
            return Ok(found.into_iter().collect());
        }
    }
}
