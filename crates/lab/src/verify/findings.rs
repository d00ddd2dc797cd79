//! Rules over the settings that a server reports: each finding says what a setting means for locks.

use serde::Serialize;

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Note,
    /// Two clients may hold a lock, or one may lose it, though nothing else fails.
    Warning,
}

/// Something about the server that matters for locks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The severity of the finding.
    pub severity: Severity,
    /// The subject, in a word or two.
    pub about: &'static str,
    /// The consequence for locks, and the remedy.
    pub text: String,
}

pub(crate) fn warning(about: &'static str, text: impl Into<String>) -> Finding {
    Finding {
        severity: Severity::Warning,
        about,
        text: text.into(),
    }
}

pub(crate) fn note(about: &'static str, text: impl Into<String>) -> Finding {
    Finding {
        severity: Severity::Note,
        about,
        text: text.into(),
    }
}

/// The numbers of a version, as far as they are there.
pub(crate) fn version(text: &str) -> [u32; 3] {
    let mut numbers = text
        .split(['.', '-', '+', ' '])
        .map_while(|part| part.parse().ok());
    [0; 3].map(|_: u32| numbers.next().unwrap_or_default())
}

/// An etcd of this version.
pub(crate) fn of_etcd(text: &str) -> Vec<Finding> {
    let version = version(text);
    let fixed = match version {
        [3, 4, patch] => patch >= 30,
        [3, 5, patch] => patch >= 12,
        newer => newer > [3, 5, 0],
    };
    if fixed {
        return Vec::new();
    }
    vec![warning(
        "version",
        format!(
            "etcd {text} may revoke leases that are alive when a stopped leader wakes (etcd#15247): two clients may \
             hold at once, and only the fencing token tells them apart. Fixed in 3.4.30 and 3.5.12."
        ),
    )]
}

/// A ZooKeeper that said this to `srvr`, and is alone in the URL or not.
pub(crate) fn of_zookeeper(srvr: &str, is_alone: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let version = zookeeper_version(srvr).map(|text| version(&text));
    if version.is_some_and(|version| version < [3, 6, 0]) {
        findings.push(warning(
            "version",
            "Before 3.6 a session cannot be asked for its nodes: locks need that.",
        ));
    }
    let is_standalone = srvr.lines().any(|line| line.trim() == "Mode: standalone");
    if is_standalone && !is_alone {
        let text = "It runs alone (standalone), and the URL names several servers: its locks are no longer those of the others, even if it \
                    has their data and their identity. Remove it from the URL, or let it join them.";
        findings.push(warning("replication", text));
    } else if is_standalone {
        let text = "One server without others: while it is down no client gets a lock, and if it loses its disk, tokens begin anew.";
        findings.push(note("replication", text));
    }
    findings
}

/// The version in an answer to `srvr`.
pub(crate) fn zookeeper_version(srvr: &str) -> Option<String> {
    let line = srvr
        .lines()
        .find_map(|line| line.strip_prefix("Zookeeper version: "))?;
    line.split(['-', ',']).next().map(str::to_owned)
}

/// The findings for a Redis with this `INFO`. The store itself reports what settings and replicas mean for locks.
#[cfg(feature = "redis")]
pub(crate) fn of_redis(info: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if info_field(info, "role") == Some("slave") {
        findings.push(warning(
            "role",
            "This is a replica: it does not take locks, and what it shows may be old.",
        ));
    }
    findings
}

/// A replica that said this to `INFO`, which may be promoted.
#[cfg(feature = "redis")]
pub(crate) fn of_replica(host: &str, info: &str) -> Vec<Finding> {
    let field = |name| info_field(info, name);
    let mut findings = Vec::new();
    let mut add =
        |about, text: &str| findings.push(warning(about, format!("The replica {host} {text}")));
    if field("master_link_status").is_some_and(|status| status != "up") {
        add(
            "failover",
            "has no link to its primary: if it is promoted, it lacks every lock granted since that broke.",
        );
    }
    if field("maxmemory") != Some("0")
        && field("maxmemory_policy").is_some_and(|policy| policy != "noeviction")
    {
        add(
            "settings",
            "may delete locks that are held once it is promoted: set maxmemory-policy noeviction there too.",
        );
    }
    if field("aof_enabled") == Some("0") {
        add(
            "settings",
            "keeps no append-only file: once it is promoted, a restart may free every lock that is held.",
        );
    }
    findings
}

/// A field of an `INFO`.
#[cfg(feature = "redis")]
pub(crate) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_etcd_fix_is_known_by_version() {
        for old in ["3.4.23", "3.4.29", "3.5.0", "3.5.11", "3.3.27"] {
            assert_eq!(of_etcd(old).len(), 1, "{old}");
        }
        for fixed in ["3.4.30", "3.4.35", "3.5.12", "3.6.0", "3.6.0-rc.1", "4.0.0"] {
            assert!(of_etcd(fixed).is_empty(), "{fixed}");
        }
    }

    #[test]
    fn a_zookeeper_says_its_version_and_mode() {
        let srvr =
            "Zookeeper version: 3.8.0-5a02a05eddb, built on 2022\nLatency: 0\nMode: standalone\n";
        assert_eq!(zookeeper_version(srvr).as_deref(), Some("3.8.0"));
        assert_eq!(of_zookeeper(srvr, true)[0].about, "replication");
        assert!(of_zookeeper("Zookeeper version: 3.8.0--1\nMode: follower", false).is_empty());
        for old in ["3.4.14", "3.5.10"] {
            assert_eq!(
                of_zookeeper(
                    &format!("Zookeeper version: {old}-x\nMode: follower"),
                    false
                )[0]
                .about,
                "version",
                "{old}"
            );
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_redis_is_judged_by_what_it_says() {
        let abouts = |info: &str| {
            of_redis(info)
                .iter()
                .map(|f| (f.severity, f.about))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            abouts("role_before:slave\r\nrole:master\r\nconnected_slaves:2"),
            []
        );
        assert_eq!(abouts("role:slave\r\n"), [(Severity::Warning, "role")]);
        let replica = |info: &str| {
            of_replica("h:1", info)
                .iter()
                .map(|f| f.about)
                .collect::<Vec<_>>()
        };
        let good = "role:slave\r\nmaster_link_status:up\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:1\r\n";
        assert!(replica(good).is_empty());
        assert_eq!(replica(&good.replace("up", "down")), ["failover"]);
        assert_eq!(replica(&good.replace("y:0", "y:9")), ["settings"]);
        assert!(
            replica(
                &good
                    .replace("y:0", "y:9")
                    .replace("allkeys-lru", "noeviction")
            )
            .is_empty()
        );
        assert_eq!(replica(&good.replace("d:1", "d:0")), ["settings"]);
    }

    #[test]
    fn whatever_a_server_says_of_itself_it_is_judged() {
        leasehold_fuzz::fuzz_text(include_str!("../../corpus/servers"), |text| {
            let found = [of_etcd(text), of_zookeeper(text, true)];
            #[cfg(feature = "redis")]
            let found = [found.concat(), of_redis(text)];
            assert!(found.iter().all(|found| found.len() <= 3));
        });
    }
}
