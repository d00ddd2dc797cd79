//! What each kind of server says of itself, asked beside the store's own client.

use leasehold::support::{Address, Host};

use crate::findings::{self, Finding, note};
use crate::http::ask;
use crate::sessions;

/// What was found out.
#[derive(Debug, Default)]
pub(crate) struct Server {
    pub(crate) version: Option<String>,
    pub(crate) findings: Vec<Finding>,
}

/// Asks the servers of this URL. What cannot be found out is a note.
pub(crate) async fn inspect(url: &str) -> Server {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    match scheme {
        "etcd" => each(url, "etcd", 2379, etcd).await,
        "zookeeper" => ensemble(url).await,
        #[cfg(feature = "redis")]
        "redis" | "redlock" => redis::inspect(url, scheme).await,
        _ => Server::default(),
    }
}

async fn each(
    url: &str,
    scheme: &'static str,
    port: u16,
    one: impl AsyncFn(&Host) -> Option<(String, Vec<Finding>)>,
) -> Server {
    let Ok(address) = Address::parse(url, scheme, port) else { return Server::default() };
    let mut server = Server::default();
    for host in &address.hosts {
        match one(host).await {
            Some((version, findings)) => server.add(version, findings),
            None => {
                let text = format!(
                    "{}:{} did not say which version it is: nothing is known of its settings.",
                    host.name, host.port
                );
                server.findings.push(note("version", text));
            }
        }
    }
    server
}

impl Server {
    /// Members of one cluster are often alike: what is said twice is said once.
    fn add(&mut self, version: String, findings: Vec<Finding>) {
        match &mut self.version {
            Some(seen) if !seen.split(", ").any(|one| one == version) => *seen += &format!(", {version}"),
            Some(_) => {}
            none => *none = Some(version),
        }
        for finding in findings {
            if !self.findings.contains(&finding) {
                self.findings.push(finding);
            }
        }
    }
}

async fn etcd(host: &Host) -> Option<(String, Vec<Finding>)> {
    let question = format!("GET /version HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", host.name);
    let answer = ask(host, &question).await?;
    let json = &answer[answer.find('{')?..=answer.rfind('}')?];
    let version = serde_json::from_str::<serde_json::Value>(json).ok()?.get("etcdserver")?.as_str()?.to_owned();
    let findings = findings::of_etcd(&version);
    Some((version, findings))
}

/// Each member by itself, and then whether they are alike.
async fn ensemble(url: &str) -> Server {
    let mut server = each(url, "zookeeper", 2181, zookeeper).await;
    let hosts = Address::parse(url, "zookeeper", 2181).map(|address| address.hosts).unwrap_or_default();
    let mut members = Vec::new();
    for host in &hosts {
        match sessions::limits(host).await {
            Some(limits) => members.push((host.to_string(), limits)),
            None if hosts.len() > 1 => {
                let text =
                    format!("{host} took no session: it is not known whether its limits for them are the others'.");
                server.findings.push(note("session limits", text));
            }
            None => {}
        }
    }
    server.findings.extend(sessions::differing(&members));
    server
}

async fn zookeeper(host: &Host) -> Option<(String, Vec<Finding>)> {
    let answer = ask(host, "srvr").await?;
    Some((findings::zookeeper_version(&answer)?, findings::of_zookeeper(&answer)))
}

#[cfg(feature = "redis")]
pub(crate) mod redis {
    //! Redis speaks through its own client: it may want a password.

    use std::time::Duration;

    use leasehold::redis::client::aio::MultiplexedConnection;
    use leasehold::redis::client::{Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult, cmd};
    use leasehold::support::{Address, Host};

    use super::Server;
    use crate::findings::{RedisFacts, note};

    const TIMEOUT: Duration = Duration::from_secs(3);

    pub(super) async fn inspect(url: &str, scheme: &str) -> Server {
        let mut server = Server::default();
        for (host, connection) in connections(url, scheme).await {
            match facts(connection).await {
                Some(facts) => {
                    let version = facts.field("redis_version").unwrap_or("unknown").to_owned();
                    server.add(version, facts.findings());
                }
                None => {
                    let text =
                        format!("{}:{} did not answer INFO: nothing is known of its settings.", host.name, host.port);
                    server.findings.push(note("settings", text));
                }
            }
        }
        server
    }

    /// Removes every key that has this text in it.
    pub(crate) async fn sweep(url: &str, scheme: &str, part: &str) {
        for (_, connection) in connections(url, scheme).await {
            let Some(mut connection) = connection else { continue };
            let _ = tokio::time::timeout(TIMEOUT * 10, sweep_one(&mut connection, part)).await;
        }
    }

    async fn sweep_one(connection: &mut MultiplexedConnection, part: &str) -> RedisResult<()> {
        let mut cursor = 0u64;
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("*{part}*")).arg("COUNT").arg(1000);
            let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(connection).await?;
            if !keys.is_empty() {
                cmd("DEL").arg(keys).query_async::<u64>(connection).await?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    async fn connections(url: &str, scheme: &str) -> Vec<(Host, Option<MultiplexedConnection>)> {
        let scheme = if scheme == "redis" { "redis" } else { "redlock" };
        let Ok(address) = Address::parse(url, scheme, 6379) else { return Vec::new() };
        let mut settings = RedisConnectionInfo::default().set_db(address.path.parse().unwrap_or_default());
        if let Some(user) = &address.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &address.password {
            settings = settings.set_password(password);
        }
        let mut all = Vec::new();
        for host in &address.hosts {
            let connecting = connect(host, settings.clone());
            let connection = tokio::time::timeout(TIMEOUT, connecting).await.ok().and_then(Result::ok);
            all.push((host.clone(), connection));
        }
        all
    }

    async fn connect(host: &Host, settings: RedisConnectionInfo) -> RedisResult<MultiplexedConnection> {
        let info = ConnectionAddr::Tcp(host.name.clone(), host.port).into_connection_info()?;
        Client::open(info.set_redis_settings(settings))?.get_multiplexed_async_connection().await
    }

    async fn facts(connection: Option<MultiplexedConnection>) -> Option<RedisFacts> {
        let mut connection = connection?;
        let info = cmd("INFO").query_async::<String>(&mut connection).await.ok()?;
        let save = setting(&mut connection, "save").await;
        let appendfsync = setting(&mut connection, "appendfsync").await;
        Some(RedisFacts { info, save, appendfsync })
    }

    /// Services often forbid `CONFIG`.
    async fn setting(connection: &mut MultiplexedConnection, name: &str) -> Option<String> {
        let pair: Vec<String> = cmd("CONFIG").arg("GET").arg(name).query_async(connection).await.ok()?;
        pair.into_iter().nth(1)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_testbed::ZooKeeper;

    use super::*;

    async fn differing(url: &str) -> Vec<Finding> {
        let found = inspect(url).await.findings;
        found.into_iter().filter(|finding| finding.about == "session limits").collect()
    }

    /// Each member has limits of its own, and a client comes to any of them.
    #[tokio::test]
    async fn members_of_an_ensemble_that_allow_different_sessions_are_found_out() {
        let ensemble = ZooKeeper::ensemble(3).await.unwrap();
        let url = format!("zookeeper://{}", ensemble.connect_string());
        assert_eq!(differing(&url).await, []);
        let strict = &ensemble.members()[1];
        strict.kill().await.unwrap();
        let silent = differing(&url).await;
        assert!(matches!(&silent[..], [one] if one.text.contains(strict.addr())), "{silent:?}");
        let config = strict.data().parent().unwrap().join("zoo.cfg");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(config, format!("{text}\nmaxSessionTimeout=20000\n")).unwrap();
        strict.start_again().await.unwrap();
        let [found] = &differing(&url).await[..] else { panic!("no finding, or several") };
        let limits = |host: &str, longest: u32| format!("{host} 400 to {longest} ms");
        for (member, longest) in ensemble.members().iter().zip([60_000, 20_000, 60_000]) {
            assert!(found.text.contains(&limits(member.addr(), longest)), "{}", found.text);
        }
        assert_eq!(found.severity, findings::Severity::Warning);
        // The sessions that asked are closed, and do not wait for their ends.
        let leader = &ensemble.members()[ensemble.leader().await];
        let dump = leader.four_letter_word("dump").await.unwrap();
        assert!(dump.contains("Global Sessions(0)") || dump.contains("Sessions with Ephemerals (0)"), "{dump}");
        assert!(!dump.contains("20000ms") && !dump.contains("60000ms"), "{dump}");
    }
}
