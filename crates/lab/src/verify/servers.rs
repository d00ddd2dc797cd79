//! Asks each kind of server about itself, beside the store's own client.

use futures_util::future::{join, join_all};
use leasehold::{Guarantees, StoreId};
use leasehold_net::Host;

use crate::verify::findings::{self, Finding, note, warning};
use crate::verify::identity;
use crate::verify::sessions;
use crate::verify::tcp::Servers;

/// The answers and findings of the servers of one URL.
#[derive(Debug, Default)]
pub(crate) struct Server {
    pub(crate) version: Option<String>,
    pub(crate) findings: Vec<Finding>,
}

/// The scheme of a URL in lower case, as the most common client writes it: Valkey is asked as a Redis
/// is, and the driver of a Python program means nothing here.
pub(crate) fn scheme(url: &str) -> String {
    let (scheme, _) = url.split_once("://").unwrap_or_default();
    let scheme = scheme.to_ascii_lowercase().replace('-', "+");
    match scheme.split_once('+') {
        Some((kind @ ("postgres" | "postgresql"), _)) => kind.to_owned(),
        None if scheme == "unix" => "redis+unix".to_owned(),
        _ if scheme.starts_with("valkeys") => scheme.replacen("valkeys", "rediss", 1),
        _ => scheme.replacen("valkey", "redis", 1),
    }
}

/// Asks the servers of this URL, and adds the store's own warnings. A question without an answer becomes a note. The servers are asked
/// side by side, and those of a store with this identity are compared.
pub(crate) async fn inspect(url: &str, guarantees: &Guarantees, id: Option<&StoreId>) -> Server {
    let mut server = Server::default();
    match &*scheme(url) {
        "etcd" | "etcds" => {
            let servers = Servers::of(url, "etcd", 2379, 2379).await;
            let asked = server.ask_all(servers.as_ref(), etcd);
            let ((), others) = join(asked, others(url, servers.as_ref(), id)).await;
            server.findings.extend(others);
        }
        "zookeeper" | "zookeepers" => {
            let servers = Servers::of(url, "zookeeper", 2181, 2281).await;
            let asked = server.ask_all(servers.as_ref(), zookeeper);
            let ((), others) = join(asked, others(url, servers.as_ref(), id)).await;
            server.findings.extend(others);
            if let Some(servers) = servers {
                server.findings.extend(session_limits(&servers).await);
            }
        }
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let database = crate::verify::postgres::Database::of(url).await;
            if let Some(database) = &database {
                let one = async |_: &Servers, host: &Host| {
                    crate::verify::postgres::inspect(database, host).await
                };
                server.ask_all(Some(&database.servers), one).await;
                server
                    .findings
                    .extend(crate::verify::postgres::primaries(database).await);
            }
            server
                .findings
                .extend(crate::verify::postgres::notifications(guarantees));
        }
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redlock" | "redlocks" | "redis+unix" | "redis+socket" => {
            server
                .ask_all(
                    Servers::of_redis(url).await.as_ref(),
                    crate::verify::redis::inspect,
                )
                .await;
        }
        #[cfg(feature = "redis")]
        "redis+sentinel" | "rediss+sentinel" => {
            let (members, findings) = crate::verify::members::behind_sentinels(url).await;
            server.findings.extend(findings);
            server
                .ask_all(members.as_ref(), crate::verify::members::inspect)
                .await;
        }
        #[cfg(feature = "redis")]
        "redis+cluster" | "rediss+cluster" => {
            let nodes = crate::verify::members::of_cluster(url);
            let asked = async {
                let nodes = nodes.await;
                let one = crate::verify::members::inspect;
                server.ask_all(nodes.as_ref(), one).await;
            };
            let named = Servers::of_redis(url).await;
            let ((), others) = join(asked, others(url, named.as_ref(), id)).await;
            server.findings.extend(others);
        }
        _ => {}
    }
    // A finding from here is not repeated by the store.
    let is_new = |text: &&String| server.findings.iter().all(|finding| finding.text != **text);
    let told: Vec<Finding> = guarantees
        .warnings()
        .iter()
        .filter(is_new)
        .map(|text| warning("settings", text))
        .collect();
    server.findings.splice(0..0, told);
    server
        .findings
        .sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    server
}

impl Server {
    /// Asks each of them, if it is known where they are and how they are reached.
    async fn ask_all(
        &mut self,
        servers: Option<&Servers>,
        one: impl AsyncFn(&Servers, &Host) -> Option<(String, Vec<Finding>)>,
    ) {
        let Some(servers) = servers else {
            let text = "The servers were not asked for their versions and settings: nothing is known of them.";
            return self.findings.push(note("version", text));
        };
        let mut answers = Vec::new();
        let hosts = &servers.address.hosts;
        let said = join_all(hosts.iter().map(|host| one(servers, host))).await;
        for (host, said) in hosts.iter().zip(said) {
            match said {
                Some((version, findings)) => answers.push((host.to_string(), version, findings)),
                None => {
                    let text = format!(
                        "{host} did not say which version it is: nothing is known of its settings."
                    );
                    self.findings.push(note("version", text));
                }
            }
        }
        self.add(&answers);
    }

    /// Adds an answer once if all servers agree, and otherwise for each server.
    fn add(&mut self, answers: &[(String, String, Vec<Finding>)]) {
        let mut versions: Vec<&str> = answers
            .iter()
            .map(|(_, version, _)| version.as_str())
            .collect();
        versions.sort_unstable();
        versions.dedup();
        self.version = (!versions.is_empty()).then(|| versions.join(", "));
        if versions.len() > 1 {
            let each: Vec<String> = answers
                .iter()
                .map(|(host, version, _)| format!("{host} {version}"))
                .collect();
            let text = format!(
                "The servers are of different versions: {}. What a version is warned of weakens the promises of all.",
                each.join(", ")
            );
            self.findings.push(note("version", text));
        }
        for (host, _, findings) in answers {
            for finding in findings {
                let of_all = answers.iter().all(|(.., others)| others.contains(finding));
                let named = of_all || finding.text.contains(host);
                let text = if named {
                    finding.text.clone()
                } else {
                    format!("{host}: {}", finding.text)
                };
                let finding = Finding {
                    text,
                    ..finding.clone()
                };
                if !self.findings.contains(&finding) {
                    self.findings.push(finding);
                }
            }
        }
    }
}

/// The findings about servers that belong to another store, or do not say to which.
async fn others(url: &str, servers: Option<&Servers>, id: Option<&StoreId>) -> Vec<Finding> {
    match (servers, id) {
        (Some(servers), Some(id)) => identity::compare(url, &servers.address.hosts, id).await,
        _ => Vec::new(),
    }
}

async fn etcd(servers: &Servers, host: &Host) -> Option<(String, Vec<Finding>)> {
    let question = format!(
        "GET /version HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        host.name
    );
    let answer = servers.ask(host, &question).await?;
    let json = &answer[answer.find('{')?..=answer.rfind('}')?];
    let version = serde_json::from_str::<serde_json::Value>(json)
        .ok()?
        .get("etcdserver")?
        .as_str()?
        .to_owned();
    let findings = findings::of_etcd(&version);
    Some((version, findings))
}

async fn zookeeper(servers: &Servers, host: &Host) -> Option<(String, Vec<Finding>)> {
    let answer = servers.ask(host, "srvr").await?;
    let is_alone = servers.address.hosts.len() == 1;
    Some((
        findings::zookeeper_version(&answer)?,
        findings::of_zookeeper(&answer, is_alone),
    ))
}

/// Reports members of an ensemble that allow different sessions.
async fn session_limits(servers: &Servers) -> Vec<Finding> {
    let mut members = Vec::new();
    let mut findings = Vec::new();
    let hosts = &servers.address.hosts;
    let said = join_all(hosts.iter().map(|host| sessions::limits(servers, host))).await;
    for (host, limits) in hosts.iter().zip(said) {
        match limits {
            Some(limits) => members.push((host.to_string(), limits)),
            None if hosts.len() > 1 => {
                let text = format!(
                    "{host} took no session: whether it allows the same timeouts as the others is not known."
                );
                findings.push(note("session limits", text));
            }
            None => {}
        }
    }
    findings.extend(sessions::differing(&members));
    findings
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold::backend::Moment;
    use leasehold_testbed::ZooKeeper;
    #[cfg(feature = "tls")]
    use leasehold_testbed::{Certificates, Etcd, EtcdOptions, TlsPort, ZooKeeperOptions};
    #[cfg(any(feature = "tls", all(unix, feature = "redis")))]
    use leasehold_testbed::{Redis, RedisOptions};

    use super::*;

    #[test]
    fn a_scheme_in_other_words_is_the_same() {
        for (url, expected) in [
            ("VALKEY://h", "redis"),
            ("valkeys+sentinel://h/m", "rediss+sentinel"),
            ("redis-sentinel://h", "redis+sentinel"),
            ("PostgreSQL+psycopg://h/d", "postgresql"),
            ("unix:///run/x", "redis+unix"),
            ("SQLITE:///x", "sqlite"),
            ("bridge+redis://a redis://b", "bridge+redis"),
        ] {
            assert_eq!(scheme(url), expected, "{url}");
        }
    }

    #[cfg(all(unix, feature = "redis"))]
    #[tokio::test]
    async fn a_server_behind_a_socket_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("redis.sock");
        let options = RedisOptions {
            extra: vec!["--unixsocket".into(), file.display().to_string()],
            ..RedisOptions::default()
        };
        let redis = Redis::start_with(&options).await.unwrap();
        for (scheme, words) in [("unix", ""), ("REDIS+SOCKET", "?db=1")] {
            let url = format!("{scheme}://{}{words}", file.display());
            let found = inspect(&url, &Guarantees::none("redis"), None).await;
            let version = found.version.unwrap_or_default();
            assert!(version.contains('.'), "{:?}", found.findings);
        }
        redis.kill().await.unwrap();
        let url = format!("unix://{}", file.display());
        let found = inspect(&url, &Guarantees::none("redis"), None).await;
        let texts: Vec<&str> = found.findings.iter().map(|it| &*it.text).collect();
        let silent = format!("{} did not say which version", file.display());
        assert!(
            matches!(&texts[..], [one] if one.starts_with(&silent)),
            "{texts:?}"
        );
    }

    #[test]
    fn what_differs_is_said_of_each_member() {
        let [both, one] = ["keeps no file", "evicts keys"].map(|text| warning("data", text));
        let answer = |host: &str, version: &str, findings: &[&Finding]| {
            (
                host.to_owned(),
                version.to_owned(),
                findings.iter().copied().cloned().collect(),
            )
        };
        let mut server = Server::default();
        server.add(&[
            answer("a:1", "7.0", &[&both]),
            answer("b:2", "6.2", &[&both, &one]),
        ]);
        assert_eq!(server.version.as_deref(), Some("6.2, 7.0"));
        let texts: Vec<&str> = server
            .findings
            .iter()
            .map(|finding| finding.text.as_str())
            .collect();
        assert!(texts[0].contains("a:1 7.0, b:2 6.2"), "{texts:?}");
        assert_eq!(texts[1..], ["keeps no file", "b:2: evicts keys"]);
        let mut alike = Server::default();
        alike.add(&[answer("a:1", "7.0", &[&one]), answer("b:2", "7.0", &[&one])]);
        assert_eq!(alike.findings.len(), 1, "{:?}", alike.findings);
    }

    /// Over TLS they are asked as over plain text, with the certificate that the URL names.
    #[cfg(feature = "tls")]
    #[tokio::test]
    async fn servers_behind_tls_say_their_versions() {
        let authority = Certificates::new().unwrap();
        let port = || TlsPort::new(&authority).unwrap().mutual();
        let client = authority.issue("client").unwrap();
        let ca = authority.ca().display();
        let certificate = client.certificate.display();
        let key = client.key.display();
        let url = |scheme: &str, at: &str| {
            format!("{scheme}://{at}?ca={ca}&cert={certificate}&key={key}")
        };
        let of_etcd = port();
        let of_zookeeper = port();
        let of_redis = port();
        let tls = Some(of_etcd.clone());
        let _etcd = Etcd::start_with(&EtcdOptions {
            tls,
            ..EtcdOptions::default()
        })
        .await
        .unwrap();
        let tls = Some(of_zookeeper.clone());
        let _zookeeper = ZooKeeper::start_with(&ZooKeeperOptions {
            tls,
            ..ZooKeeperOptions::default()
        })
        .await
        .unwrap();
        let extra = of_redis.redis();
        let password = Some("s3cret".into());
        let _redis = Redis::start_with(&RedisOptions {
            extra,
            password,
            ..RedisOptions::default()
        })
        .await
        .unwrap();
        let masked = |addr: String| format!(":s3cret@{addr}");
        for url in [
            url("etcds", &of_etcd.addr()),
            url("zookeepers", &of_zookeeper.addr()),
            url("rediss", &masked(of_redis.addr())),
            url("redlocks", &masked(of_redis.addr())),
        ] {
            let found = inspect(&url, &Guarantees::none(""), None).await;
            assert!(
                found.version.is_some_and(|version| version.contains('.')),
                "{url}: {:?}",
                found.findings
            );
            assert!(
                found
                    .findings
                    .iter()
                    .all(|finding| finding.about != "session limits"),
                "{:?}",
                found.findings
            );
        }
        // There is no fallback to plain text.
        let stranger = Certificates::new().unwrap();
        let found = inspect(
            &format!("etcds://{}?ca={}", of_etcd.addr(), stranger.ca().display()),
            &Guarantees::none(""),
            None,
        )
        .await;
        assert!(
            found.version.is_none() && found.findings.len() == 1,
            "{:?}",
            found.findings
        );
    }

    /// The findings about limits once all members but these have taken a session. Members of a busy machine may be late and are asked again.
    async fn differing(url: &str, silent: &[&str]) -> Vec<Finding> {
        for _ in 0..60 {
            let mut found = inspect(url, &Guarantees::none("zookeeper"), None)
                .await
                .findings;
            found.retain(|finding| finding.about == "session limits");
            let is_late = |it: &Finding| {
                it.text.contains("no session") && !silent.iter().any(|at| it.text.contains(at))
            };
            if !found.iter().any(is_late) {
                return found;
            }
        }
        panic!("members that run take no session")
    }

    /// ZooKeeper itself compares no servers at connect, and nothing waits longer for a silent one than for the others.
    #[tokio::test]
    async fn servers_of_two_stores_in_one_url_are_found_out() {
        let ensemble = ZooKeeper::ensemble(3).await.unwrap();
        let stranger = ZooKeeper::start().await.unwrap();
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = silent.local_addr().unwrap().to_string();
        let of_all = format!("zookeeper://{}", ensemble.connect_string());
        let client = leasehold::connect(&of_all).backend().await.unwrap();
        let id = client.identity();
        let begin = Moment::now();
        let url = format!("{of_all},{},{silent}", stranger.addr());
        let findings = inspect(&url, &Guarantees::none("zookeeper"), id.as_ref())
            .await
            .findings;
        assert!(Moment::now().since(begin) < Duration::from_secs(30));
        let about = |about: &str, at: &str| {
            let mut found = findings.iter().filter(|it| it.about == about);
            found.any(|it| it.text.contains(at))
        };
        assert!(about("identity", stranger.addr()), "{findings:?}");
        assert!(about("replication", stranger.addr()), "{findings:?}");
        assert!(about("identity", &silent), "{findings:?}");
        for member in ensemble.members() {
            assert!(
                !about("identity", &format!("{} ", member.addr())),
                "{findings:?}"
            );
        }
        client.close().await.unwrap();
    }

    /// Each member has limits of its own, and a client comes to any of them.
    #[tokio::test]
    async fn members_of_an_ensemble_that_allow_different_sessions_are_found_out() {
        let ensemble = ZooKeeper::ensemble(3).await.unwrap();
        let url = format!("zookeeper://{}", ensemble.connect_string());
        assert_eq!(differing(&url, &[]).await, []);
        let strict = &ensemble.members()[1];
        strict.kill().await.unwrap();
        let silent = differing(&url, &[strict.addr()]).await;
        assert!(
            matches!(&silent[..], [one] if one.text.contains(strict.addr())),
            "{silent:?}"
        );
        let config = strict.data().parent().unwrap().join("zoo.cfg");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(config, format!("{text}\nmaxSessionTimeout=20000\n")).unwrap();
        strict.start_again().await.unwrap();
        let [found] = &differing(&url, &[]).await[..] else {
            panic!("no finding, or several")
        };
        let limits = |host: &str, longest: u32| format!("{host} 400 to {longest} ms");
        for (member, longest) in ensemble.members().iter().zip([60_000, 20_000, 60_000]) {
            assert!(
                found.text.contains(&limits(member.addr(), longest)),
                "{}",
                found.text
            );
        }
        assert_eq!(found.severity, findings::Severity::Warning);
        // The sessions that asked are closed, and do not wait for their ends.
        let leader = &ensemble.members()[ensemble.leader().await];
        let dump = leader.four_letter_word("dump").await.unwrap();
        assert!(
            dump.contains("Global Sessions(0)") || dump.contains("Sessions with Ephemerals (0)"),
            "{dump}"
        );
        assert!(
            !dump.contains("20000ms") && !dump.contains("60000ms"),
            "{dump}"
        );
    }
}
