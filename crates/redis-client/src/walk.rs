//! Which names there are: a walk of all keys.

use std::collections::BTreeSet;

use leasehold_core::{Name, Result};
use redis::{Value, from_redis_value};

use crate::connection::Connection;
use crate::error::junk;
use crate::names::Names;

/// How many keys one step of a walk may look at: well under a millisecond of the server's time.
const STEP: u32 = 1000;

/// The names that a walk of the whole database finds, in order: O(keys), in steps. A last token or an entry leads to a name,
/// and its lock or its queue shows whether it is held or waited for. Any other string is a lock that another tool holds: it
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
            let answer = from_redis_value(connection.refusal(answer)?);
            let (next, keys): (String, Vec<Vec<u8>>) = answer.map_err(|_| junk("a walk"))?;
            let wanted = |name: &Name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after);
            let name = |key: &Vec<u8>| if of_ours { names.name(key) } else { names.name_of_lock(key) };
            let some: BTreeSet<Name> = keys.iter().filter_map(name).filter(wanted).collect();
            found.extend(if of_ours { in_use(connection, names, some).await? } else { some });
            while found.len() > limit {
                found.pop_last();
            }
            if next == "0" {
                break;
            }
            cursor = next;
        }
    }
    Ok(found.into_iter().collect())
}

/// Those of these names that are held or waited for.
async fn in_use(connection: &Connection, names: &Names, some: BTreeSet<Name>) -> Result<BTreeSet<Name>> {
    if some.is_empty() {
        return Ok(some);
    }
    let mut questions = redis::pipe();
    for name in &some {
        let [lock, _, _, queue, _] = names.keys(name);
        questions.cmd("EXISTS").arg(lock).arg(queue);
    }
    let there = some.into_iter().zip(connection.send(&questions).await?).filter(|(_, there)| *there != Value::Int(0));
    Ok(there.map(|(name, _)| name).collect())
}
