//! Asks a server at the start whether it is set up to keep locks.

use leasehold_core::Result;
use redis::{Value, from_redis_value_ref};

use crate::link::connection::Connection;

/// Reasons why this server may forget a held lock, or may be replaced by a server that has;
/// sentences for its operator. A store that records completions loses those, too.
pub(crate) async fn warnings(connection: &Connection, has_completions: bool) -> Vec<String> {
    let Ok(known) = facts(connection).await else {
        return vec![SILENT.to_owned()];
    };
    let in_cluster = connection.is_in_cluster().then_some(UNSERVED);
    let alone = if connection.has_sentinels() {
        Some(NO_REPLICA)
    } else {
        in_cluster
    };
    let unverified = connection.is_unverified().then_some(UNVERIFIED);
    let fell_back = connection.fell_back().then_some(FELL_BACK);
    let all = unverified.into_iter().chain(fell_back);
    let all = all.chain(judged(&known, alone));
    all.map(|warning| match connection.has_pushes() {
        _ if warning == EVICTS && has_completions => EVICTS_COMPLETIONS.to_owned(),
        true => warning.to_owned(),
        false => warning.replace(MAY_NOT, "over RESP2 it is not asked"),
    })
    .collect()
}

/// What the server says of its settings, one fact in each line.
async fn facts(connection: &Connection) -> Result<String> {
    let sections = ["memory", "persistence", "replication"];
    if !connection.has_pushes() {
        return Ok(connection.info(&sections).await?.concat());
    }
    let mut questions = redis::pipe();
    for section in sections {
        questions.cmd("INFO").arg(section);
    }
    for setting in ["save", "appendfsync"] {
        questions.cmd("CONFIG").arg("GET").arg(setting);
    }
    // A refusal has no text.
    let text = |value: &Value| from_redis_value_ref::<String>(value).unwrap_or_default();
    let mut known = String::new();
    for answer in &connection.send(&questions).await? {
        match answer {
            Value::Map(pairs) => {
                pairs
                    .iter()
                    .for_each(|(key, value)| known += &format!("{}:{}\n", text(key), text(value)));
            }
            other => known += &text(other),
        }
    }
    Ok(known)
}

/// The warnings that follow from these facts, one fact in each line. `alone` is the warning that no
/// replica follows the server, where a replica is expected to replace it.
fn judged(known: &str, alone: Option<&'static str>) -> impl Iterator<Item = &'static str> {
    let fact = |key: &str| {
        known
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
    };
    let mut warnings = Vec::new();
    match (fact("maxmemory"), fact("maxmemory_policy")) {
        (Some("0"), _) | (_, Some("noeviction")) => {}
        (Some(_), Some(_)) => warnings.push(EVICTS),
        _ => warnings.push(MEMORY_UNKNOWN),
    }
    match (fact("aof_enabled"), fact("save")) {
        (Some("1"), _) => match fact("appendfsync") {
            Some("always") => {}
            Some("no") => warnings.push(LATE),
            Some(_) => warnings.push(EVERY_SECOND),
            None => warnings.push(FSYNC_UNKNOWN),
        },
        (Some(_), Some("")) => warnings.push(KEEPS_NOTHING),
        (Some(_), Some(_)) => warnings.push(SNAPSHOTS),
        _ => warnings.push(DISK_UNKNOWN),
    }
    if fact("role") == Some("slave") {
        warnings.push(REPLICA);
    }
    match (fact("connected_slaves"), fact("min_slaves_good_slaves")) {
        (Some("0"), _) => warnings.extend(alone),
        // The server reports the number of good replicas only if it stops without them.
        (Some(_), Some(_)) => warnings.push(LAGS),
        (Some(_), None) => warnings.extend([LAGS, GOES_ON]),
        // The missing right to ask is reported above.
        (None, _) => {}
    }
    warnings.into_iter()
}

/// The reason why a setting is not known, in the warnings.
const MAY_NOT: &str = "this user may not ask";
const FELL_BACK: &str = "it, or the proxy before it, refuses RESP3 (HELLO 3), so RESP2 is spoken, over which nothing is pushed: waiters \
ask up to 20 times a second, and learn of a release, an eviction or a new holder only then (protocol=2 in the URL says that this is meant)";
const SILENT: &str = "it did not answer when the store connected, so its settings are not known";
const REPLICA: &str = "it is a replica: it grants nothing, and what it says of locks may be old (name the primary, or its sentinels)";
const UNVERIFIED: &str = "ssl_cert_reqs=none encrypts, and verifies no certificate: whoever is on the way can answer in the server's place \
(write ca=file, with the CA of the server, in place of it)";
const EVICTS: &str = "its maxmemory-policy may delete locks that are held: locks have a TTL, so every policy but noeviction \
can choose them (set maxmemory-policy noeviction)";
const EVICTS_COMPLETIONS: &str = "its maxmemory-policy may delete locks that are held, and completions, whose work is then done again: \
both have a TTL, so every policy but noeviction can choose them, and volatile-lru chooses completions first, as nobody renews them \
(set maxmemory-policy noeviction)";
const MEMORY_UNKNOWN: &str = "whether it may evict locks, and whether replicas follow it, is not known: this user may not ask (INFO)";
const KEEPS_NOTHING: &str = "it keeps nothing on disk: after a restart every lock that was held is free (set appendonly yes)";
const SNAPSHOTS: &str = "it keeps snapshots only: after a restart locks taken since the last one are free (set appendonly yes)";
const EVERY_SECOND: &str = "it writes to the disk once a second: after a crash of its machine locks of the last second or two are free \
(set appendfsync always)";
const LATE: &str = "it leaves it to the system when to write to the disk: after a crash of its machine locks of the last half minute \
are free (set appendfsync always)";
const FSYNC_UNKNOWN: &str =
    "how soon it writes locks to the disk is not known: this user may not ask (CONFIG GET)";
const NO_REPLICA: &str =
    "no replica follows it: if it is lost, its sentinels have nothing to put in its place";
const UNSERVED: &str = "no replica follows it: if it is lost, no node serves its slots";
const LAGS: &str = "replicas follow it and may lack its last grants: once one of them is promoted, two clients may hold a lock, and \
only the fencing token tells them apart";
const GOES_ON: &str = "its min-replicas-to-write is 0: cut off from its replicas it goes on granting locks beside the one that is \
promoted in its place (set min-replicas-to-write 1 or more, which stops it after min-replicas-max-lag)";
const DISK_UNKNOWN: &str =
    "whether it keeps locks on disk is not known: this user may not ask (INFO, CONFIG GET)";

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn whatever_a_server_says_of_itself_is_judged() {
        fuzz_text(include_str!("../../corpus/facts"), |facts| {
            let found: Vec<&str> = judged(facts, Some(UNSERVED)).collect();
            assert!(found.len() <= 5, "{found:?}");
        });
        let judged = |facts| judged(facts, None);
        assert_eq!(
            judged("maxmemory:0\r\naof_enabled:1\nappendfsync:always").count(),
            0
        );
        for (facts, warnings) in [
            ("", [MEMORY_UNKNOWN, DISK_UNKNOWN]),
            (
                "maxmemory:9\nmaxmemory_policy:allkeys-lru\naof_enabled:0\nsave:",
                [EVICTS, KEEPS_NOTHING],
            ),
            (
                "maxmemory:9\naof_enabled:0\nsave:60 1",
                [MEMORY_UNKNOWN, SNAPSHOTS],
            ),
            (
                "maxmemory:9\naof_enabled:1\nappendfsync:no",
                [MEMORY_UNKNOWN, LATE],
            ),
            (
                "maxmemory:9\naof_enabled:1\nappendfsync:everysec",
                [MEMORY_UNKNOWN, EVERY_SECOND],
            ),
            (
                "maxmemory:9\naof_enabled:1",
                [MEMORY_UNKNOWN, FSYNC_UNKNOWN],
            ),
        ] {
            assert_eq!(judged(facts).collect::<Vec<_>>(), warnings, "{facts}");
        }
        assert_eq!(
            judged("maxmemory:9\nmaxmemory_policy:noeviction\naof_enabled:0").collect::<Vec<_>>(),
            [DISK_UNKNOWN]
        );
    }
    #[test]
    fn replicas_are_judged_by_what_may_become_of_them() {
        const KEPT: &str = "maxmemory:0\naof_enabled:1\nappendfsync:always\n";
        for (facts, alone, with_sentinels) in [
            ("connected_slaves:0", &[][..], &[NO_REPLICA][..]),
            (
                "connected_slaves:0\nmin_slaves_good_slaves:0",
                &[],
                &[NO_REPLICA],
            ),
            (
                "connected_slaves:2\r\nmin_slaves_good_slaves:2\r\n",
                &[LAGS],
                &[LAGS],
            ),
            ("connected_slaves:2", &[LAGS, GOES_ON], &[LAGS, GOES_ON]),
            ("", &[], &[]),
            ("role:master", &[], &[]),
            (
                "role:slave\nconnected_slaves:0",
                &[REPLICA],
                &[REPLICA, NO_REPLICA],
            ),
        ] {
            let facts = [KEPT, facts].concat();
            assert_eq!(judged(&facts, None).collect::<Vec<_>>(), alone, "{facts}");
            assert_eq!(
                judged(&facts, Some(NO_REPLICA)).collect::<Vec<_>>(),
                with_sentinels,
                "{facts}"
            );
        }
    }
}
