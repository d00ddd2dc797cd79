//! Finds the names in use by a walk over all keys.

use std::collections::BTreeSet;

use leasehold_core::{Name, Result};
use redis::from_redis_value;

use crate::link::connection::Connection;
use crate::link::error::junk;
use crate::link::names::Names;

/// The number of keys that one step of a walk may look at: well under a millisecond of the server's
/// time.
const STEP: &str = "1000";

/// The names that a walk over the whole database finds, in order: O(keys), in steps. Each string is
/// a lock, of ours or of another tool, which would block a claim. A queue leads to the name of its
/// waiters.
pub(crate) async fn walk(
    connection: &Connection,
    names: &Names,
    prefix: &str,
    after: Option<&Name>,
    limit: usize,
) -> Result<Vec<Name>> {
    let mut found = BTreeSet::new();
    for (pattern, of_queues) in [
        (names.pattern_of_queues(prefix), true),
        (names.pattern_of_locks(prefix), false),
    ] {
        let mut cursor = String::from("0");
        loop {
            let step = [&cursor, "MATCH", &pattern, "COUNT", STEP, "TYPE", "string"];
            let words = if of_queues { &step[..5] } else { &step[..] };
            let answer = from_redis_value(connection.scan(words).await?);
            let (next, keys): (String, Vec<Vec<u8>>) = answer.map_err(|_| junk("a walk"))?;
            let wanted = |name: &Name| {
                name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after)
            };
            let name = |key: &Vec<u8>| {
                if of_queues {
                    names.name_of_queue(key)
                } else {
                    names.name_of_lock(key)
                }
            };
            found.extend(keys.iter().filter_map(name).filter(wanted));
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
