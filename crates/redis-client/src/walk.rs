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
/// and its lock or its line shows whether somebody holds it or waits. Any other string is a lock that another tool holds: it
/// would be in our way.
pub async fn walk(
    connection: &Connection,
    names: &Names,
    prefix: &str,
    after: Option<&Name>,
    limit: usize,
) -> Result<Vec<Name>> {
    let mut found = BTreeSet::new();
    for (pattern, of_ours) in [(names.pattern(prefix), true), (names.pattern_of_locks(prefix), false)] {
        let mut cursor = String::from("0");
        loop {
            let mut step = redis::pipe();
            let scan = step.cmd("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
            if !of_ours {
                scan.arg("TYPE").arg("string");
            }
            let answer = connection.send(&step).await?.pop().unwrap_or_default();
            let Value::Array(answer) = connection.refusal(answer)? else {
                return Err(junk("a walk"));
            };
            let [next, Value::Array(keys)] = answer.as_slice() else { return Err(junk("a walk")) };
            let wanted = |name: &Name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after);
            let name = |key: &Value| match key {
                Value::BulkString(key) if of_ours => names.name(key),
                Value::BulkString(key) => names.name_of_lock(key),
                _ => None,
            };
            let some: BTreeSet<Name> = keys.iter().filter_map(name).filter(wanted).collect();
            let there = if of_ours { taken(connection, names, some).await? } else { some };
            found.extend(there);
            while found.len() > limit {
                found.pop_last();
            }
            cursor = record(next)?;
            if cursor == "0" {
                break;
            }
        }
    }
    Ok(found.into_iter().collect())
}

/// Those of these names that somebody holds or waits for.
async fn taken(connection: &Connection, names: &Names, some: BTreeSet<Name>) -> Result<BTreeSet<Name>> {
    if some.is_empty() {
        return Ok(some);
    }
    let mut looks = redis::pipe();
    for name in &some {
        let [lock, _, _, line, _] = names.keys(name);
        looks.cmd("EXISTS").arg(lock).arg(line);
    }
    let there = some.into_iter().zip(connection.send(&looks).await?).filter(|(_, there)| *there != Value::Int(0));
    Ok(there.map(|(name, _)| name).collect())
}
