//! What a server's settings mean for locks: pure rules over what the server said.

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Note,
    /// A lock may be held by two, or be lost, though nothing else fails.
    Warning,
}

/// Something about the server that matters for locks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about, in a word or two.
    pub about: &'static str,
    /// What it means, and what to do.
    pub text: String,
}

pub(crate) fn warning(about: &'static str, text: impl Into<String>) -> Finding {
    Finding { severity: Severity::Warning, about, text: text.into() }
}

pub(crate) fn note(about: &'static str, text: impl Into<String>) -> Finding {
    Finding { severity: Severity::Note, about, text: text.into() }
}

/// The numbers of a version, as far as they are there.
pub(crate) fn version(text: &str) -> [u32; 3] {
    let mut numbers = text.split(['.', '-', '+', ' ']).map_while(|part| part.parse().ok());
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
            "etcd {text} may revoke leases that are alive when a stopped leader wakes (etcd#15247): two may hold at once, and \
             only the fencing token tells them apart. Fixed in 3.4.30 and 3.5.12."
        ),
    )]
}

/// A ZooKeeper that said this to `srvr`.
pub(crate) fn of_zookeeper(srvr: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let version = zookeeper_version(srvr).map(|text| version(&text));
    if version.is_some_and(|version| version < [3, 6, 0]) {
        findings.push(warning("version", "Before 3.6 a session cannot be asked for its nodes: locks need that."));
    }
    if srvr.lines().any(|line| line.trim() == "Mode: standalone") {
        let text = "One server without others: while it is down nobody takes a lock, and if it loses its disk, tokens begin anew.";
        findings.push(note("replication", text));
    }
    findings
}

/// The version in an answer to `srvr`.
pub(crate) fn zookeeper_version(srvr: &str) -> Option<String> {
    let line = srvr.lines().find_map(|line| line.strip_prefix("Zookeeper version: "))?;
    line.split(['-', ',']).next().map(str::to_owned)
}

/// What a Redis says of itself: its `INFO`, and the two settings that are not in there, if it tells them.
#[cfg(any(feature = "redis", test))]
#[derive(Debug, Default)]
pub(crate) struct RedisFacts {
    pub(crate) info: String,
    pub(crate) save: Option<String>,
    pub(crate) appendfsync: Option<String>,
}

#[cfg(any(feature = "redis", test))]
impl RedisFacts {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let value = |line: &str| line.split_once(':').filter(|(key, _)| *key == name).map(|(_, value)| value.len());
        self.info.lines().find_map(|line| value(line).map(|len| line[line.len() - len..].trim()))
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        findings.extend(self.eviction());
        findings.extend(self.persistence());
        if self.field("role") == Some("slave") {
            findings.push(warning("role", "This is a replica: it does not take locks, and what it shows may be old."));
        }
        if let Some(replicas) = self.field("connected_slaves").and_then(|n| n.parse::<u32>().ok()).filter(|n| *n > 0) {
            let text = format!(
                "{replicas} replicas follow asynchronously: after a failover to one that lacks the latest grants two may hold at \
                 once, and only the fencing token tells them apart."
            );
            findings.push(warning("failover", text));
        }
        if self.field("cluster_enabled") == Some("1") {
            findings.push(warning("cluster", "Redis Cluster is not supported: keys of other nodes cannot be reached."));
        }
        findings
    }

    fn eviction(&self) -> Option<Finding> {
        let policy = self.field("maxmemory_policy")?;
        if policy == "noeviction" {
            return None;
        }
        let limit = match self.field("maxmemory_human").filter(|_| self.field("maxmemory") != Some("0")) {
            Some(limit) => format!("when the {limit} of maxmemory are used"),
            None => "as soon as maxmemory is set and used".to_owned(),
        };
        let text = format!(
            "maxmemory-policy is {policy}: {limit}, the server deletes keys, among them locks that are held, and two may hold at \
             once. Set maxmemory-policy noeviction."
        );
        Some(warning("eviction", text))
    }

    fn persistence(&self) -> Option<Finding> {
        let aof = self.field("aof_enabled")? == "1";
        match (aof, self.appendfsync.as_deref(), self.save.as_deref()) {
            (true, Some("always"), _) => None,
            (true, how, _) => {
                let how = how.map_or(String::new(), |how| format!(" (appendfsync {how})"));
                let text = format!(
                    "Writes reach the disk late{how}: a crash of the machine may forget the latest locks, and two may hold at once. \
                     appendfsync always closes that."
                );
                Some(note("persistence", text))
            }
            (false, _, Some(save)) if !save.is_empty() => Some(warning(
                "persistence",
                "Only snapshots reach the disk: a restart forgets every lock taken since the last one, and two may hold at once. \
                 Tokens go on rising. appendonly yes keeps them.",
            )),
            (false, _, Some(_)) => Some(warning(
                "persistence",
                "Nothing reaches the disk: a restart forgets every lock that is held, and two may hold at once. Tokens go on \
                 rising. appendonly yes keeps them.",
            )),
            (false, _, None) => Some(warning(
                "persistence",
                "No append-only file: a restart forgets locks that are held, and two may hold at once. Tokens go on rising. \
                 appendonly yes keeps them.",
            )),
        }
    }
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
        let srvr = "Zookeeper version: 3.8.0-5a02a05eddb, built on 2022\nLatency: 0\nMode: standalone\n";
        assert_eq!(zookeeper_version(srvr).as_deref(), Some("3.8.0"));
        assert_eq!(of_zookeeper(srvr)[0].about, "replication");
        assert!(of_zookeeper("Zookeeper version: 3.8.0--1\nMode: follower").is_empty());
        for old in ["3.4.14", "3.5.10"] {
            assert_eq!(
                of_zookeeper(&format!("Zookeeper version: {old}-x\nMode: follower"))[0].about,
                "version",
                "{old}"
            );
        }
    }

    #[test]
    fn a_redis_is_judged_by_what_it_says() {
        let facts = |info: &str, save: &str, fsync: &str| RedisFacts {
            info: info.to_owned(),
            save: Some(save.to_owned()),
            appendfsync: Some(fsync.to_owned()),
        };
        let abouts = |facts: RedisFacts| facts.findings().iter().map(|f| (f.severity, f.about)).collect::<Vec<_>>();
        let safe = "maxmemory_policy:noeviction\r\naof_enabled:1\r\nrole:master\r\nconnected_slaves:0\r\ncluster_enabled:0\r\n";
        assert_eq!(abouts(facts(safe, "", "always")), []);
        assert_eq!(abouts(facts(safe, "", "everysec")), [(Severity::Note, "persistence")]);
        let loose = "maxmemory:1\r\nmaxmemory_human:1B\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:0\r\nrole:master\r\nconnected_slaves:2";
        let found = abouts(facts(loose, "", "everysec"));
        let expected = ["eviction", "persistence", "failover"].map(|about| (Severity::Warning, about));
        assert_eq!(found, expected);
    }
}
