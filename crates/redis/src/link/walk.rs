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

/// The keys that lead a walk to names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keys {
    /// Each string is a lock, of ours or of another tool, which would block a claim. A queue leads
    /// to the name of its waiters.
    InUse,
    /// The keys with this ending beside the locks.
    Beside(&'static str),
}

/// The names that a walk over the whole database finds, in order: O(keys), in steps.
pub(crate) async fn walk(
    connection: &Connection,
    names: &Names,
    keys: Keys,
    prefix: &str,
    after: Option<&Name>,
    limit: usize,
) -> Result<Vec<Name>> {
    let endings = match keys {
        Keys::InUse => vec![Some(names.of_queues()), None],
        Keys::Beside(ending) => vec![Some(ending)],
    };
    let mut found = BTreeSet::new();
    for ending in endings {
        let pattern = match ending {
            Some(ending) => names.pattern_of(ending, prefix),
            None => names.pattern_of_locks(prefix),
        };
        let mut cursor = String::from("0");
        loop {
            let step = [&cursor, "MATCH", &pattern, "COUNT", STEP, "TYPE", "string"];
            let words = if ending.is_some() {
                &step[..5]
            } else {
                &step[..]
            };
            let answer = from_redis_value(connection.scan(words).await?);
            let (next, keys): (String, Vec<Vec<u8>>) = answer.map_err(|_| junk("a walk"))?;
            let wanted = |name: &Name| {
                name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after)
            };
            let name = |key: &Vec<u8>| match ending {
                Some(ending) => names.name_of(ending, key),
                None => names.name_of_lock(key),
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
