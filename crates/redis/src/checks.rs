//! What is asked of a server at the start: whether it is set up to keep locks.

use leasehold_redis_client::Connection;
use redis::Value;

/// Reasons why this server may forget a lock that somebody holds, as sentences for its operator.
pub(crate) async fn warnings(connection: &Connection) -> Vec<&'static str> {
    let mut questions = redis::pipe();
    questions.cmd("INFO").arg("memory").cmd("INFO").arg("persistence").cmd("CONFIG").arg("GET").arg("save");
    let answers = connection.send(&questions).await.unwrap_or_default();
    let mut known = String::new();
    for answer in &answers {
        match answer {
            Value::ServerError(_) => {}
            Value::Map(pairs) => {
                pairs.iter().for_each(|(key, value)| known += &format!("{}:{}\n", text(key), text(value)));
            }
            other => known += &text(other),
        }
    }
    let fact = |key: &str| known.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let mut warnings = Vec::new();
    match (fact("maxmemory"), fact("maxmemory_policy")) {
        (Some("0"), _) | (_, Some("noeviction")) => {}
        (Some(_), Some(_)) => warnings.push(EVICTS),
        _ => warnings.push(MEMORY_UNKNOWN),
    }
    match (fact("aof_enabled"), fact("save")) {
        (Some("1"), _) => {}
        (Some(_), Some("")) => warnings.push(KEEPS_NOTHING),
        (Some(_), Some(_)) => warnings.push(SNAPSHOTS),
        _ => warnings.push(DISK_UNKNOWN),
    }
    warnings
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}

const EVICTS: &str = "its maxmemory-policy may delete locks that are held: locks have a TTL, so every policy but noeviction \
can choose them (set maxmemory-policy noeviction)";
const MEMORY_UNKNOWN: &str = "whether it may evict locks is not known: this user may not ask (INFO)";
const KEEPS_NOTHING: &str =
    "it keeps nothing on disk: after a restart every lock that was held is free (set appendonly yes)";
const SNAPSHOTS: &str =
    "it keeps snapshots only: after a restart locks taken since the last one are free (set appendonly yes)";
const DISK_UNKNOWN: &str = "whether it keeps locks on disk is not known: this user may not ask (INFO, CONFIG GET)";
