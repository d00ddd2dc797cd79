//! The members of a Redis that is several servers: those that sentinels watch, and the nodes of a Cluster.

use std::collections::{BTreeMap, BTreeSet};

use leasehold::redis::client::{RedisResult, cmd};
use leasehold_net::Host;

use crate::verify::findings::{self, Finding, info_field, note, warning};
use crate::verify::redis::connect;
use crate::verify::tcp::Servers;

/// Its version, and what its `INFO` means: for one that takes locks, or may be promoted.
pub(crate) async fn inspect(servers: &Servers, host: &Host) -> Option<(String, Vec<Finding>)> {
    let mut connection = connect(servers, host).await?;
    let info: String = cmd("INFO").query_async(&mut connection).await.ok()?;
    let version = info_field(&info, "redis_version")
        .unwrap_or("unknown")
        .to_owned();
    if info_field(&info, "role") == Some("slave") {
        return Some((version, findings::of_replica(&host.to_string(), &info)));
    }
    Some((version, findings::of_redis(&info)))
}

type Facts = BTreeMap<String, String>;

/// The servers of a master, each to be asked, and what its sentinels say.
pub(crate) async fn behind_sentinels(url: &str) -> (Option<Servers>, Vec<Finding>) {
    let parse = || Servers::of_redis(url);
    let (Some(mut servers), Some(mut asked)) = (parse().await, parse().await) else {
        return (None, Vec::new());
    };
    let address = &mut servers.address;
    let sentinels = &mut asked.address;
    (sentinels.user, sentinels.password) = (
        address.take("sentinel_user"),
        address.take("sentinel_password"),
    );
    let (name, db) = address.path.split_once('/').unwrap_or((&address.path, ""));
    let name = name.to_owned();
    let db = db.to_owned();
    (sentinels.path, address.path) = (String::new(), db);
    let mut findings = Vec::new();
    let mut masters = BTreeSet::new();
    let mut members = BTreeSet::new();
    let mut known = 0;
    for host in &asked.address.hosts {
        let Some((master, replicas)) = ask_sentinel(&asked, host, &name).await else {
            let text = format!("The sentinel {host} did not say where the master is.");
            findings.push(note("sentinels", text));
            continue;
        };
        let others = master
            .get("num-other-sentinels")
            .and_then(|n| n.parse::<usize>().ok())
            .unwrap_or_default();
        known = known.max(others + 1);
        masters.extend(at(&master));
        members.extend(
            at(&master)
                .into_iter()
                .chain(replicas.iter().filter_map(at)),
        );
    }
    if masters.len() > 1 {
        let all: Vec<&str> = masters.iter().map(String::as_str).collect();
        let text = format!(
            "The sentinels name several masters ({}): clients of different sentinels may hold the same lock.",
            all.join(", ")
        );
        findings.push(warning("sentinels", text));
    }
    let named = asked.address.hosts.len();
    if known > named {
        let text = format!(
            "The URL names {named} of {known} sentinels: a client asks these only, and hears of a failover from no other."
        );
        findings.push(note("sentinels", text));
    }
    if (1..3).contains(&known) {
        let text = format!(
            "{known} sentinels: without three, the loss of one leaves nobody to put another server in the master's place."
        );
        findings.push(note("sentinels", text));
    }
    servers.address.hosts = members
        .iter()
        .filter_map(|member| Host::parse(member, 6379).ok())
        .collect();
    (
        (!servers.address.hosts.is_empty()).then_some(servers),
        findings,
    )
}

/// Asks a sentinel about the master and its replicas.
async fn ask_sentinel(sentinels: &Servers, host: &Host, name: &str) -> Option<(Facts, Vec<Facts>)> {
    let mut connection = connect(sentinels, host).await?;
    let master = cmd("SENTINEL")
        .arg("MASTER")
        .arg(name)
        .query_async(&mut connection)
        .await
        .ok()?;
    let replicas = cmd("SENTINEL")
        .arg("REPLICAS")
        .arg(name)
        .query_async(&mut connection)
        .await
        .ok()?;
    Some((master, replicas))
}

fn at(facts: &Facts) -> Option<String> {
    let port = facts.get("port")?.parse().ok()?;
    Some(
        Host {
            name: facts.get("ip")?.clone(),
            port,
        }
        .to_string(),
    )
}

/// All nodes that one of those in the URL knows.
pub(crate) async fn of_cluster(url: &str) -> Option<Servers> {
    let mut servers = Servers::of_redis(url).await?;
    let mut nodes = BTreeSet::new();
    for host in &servers.address.hosts {
        let Some(mut connection) = connect(&servers, host).await else {
            continue;
        };
        // Unlike CLUSTER SLOTS it also names replicas that have not got the data yet.
        let answer: RedisResult<String> = cmd("CLUSTER")
            .arg("NODES")
            .query_async(&mut connection)
            .await;
        nodes.extend(answer.unwrap_or_default().lines().filter_map(node));
        break;
    }
    if !nodes.is_empty() {
        servers.address.hosts = nodes
            .iter()
            .filter_map(|node| Host::parse(node, 6379).ok())
            .collect();
    }
    Some(servers)
}

/// The address in a line of `CLUSTER NODES`, `id address:port@bus,name flags …`, unless it has none.
fn node(line: &str) -> Option<String> {
    let mut words = line.split(' ').skip(1);
    let at = words.next()?;
    let flags = words.next()?;
    let (name, port) = at.split('@').next()?.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let is_known = !name.is_empty() && !flags.contains("noaddr") && !flags.contains("handshake");
    is_known.then(|| {
        Host {
            name: name.to_owned(),
            port,
        }
        .to_string()
    })
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "tls")]
    use leasehold_testbed::{Certificates, TlsPort};
    use leasehold_testbed::{RedisCluster, RedisClusterOptions, RedisSentinel, SentinelOptions};

    use std::time::Duration;

    use leasehold::backend::Moment;

    use crate::verify::findings::{Finding, Severity};
    use crate::verify::servers::inspect;

    async fn found(url: &str) -> Vec<Finding> {
        let store = leasehold::connect(url).await.unwrap();
        let server = inspect(url, &store.guarantees(), None).await;
        assert!(server.version.is_some(), "{:?}", server.findings);
        server.findings
    }

    fn says(findings: &[Finding], words: &[&str]) -> bool {
        findings
            .iter()
            .any(|finding| words.iter().all(|word| finding.text.contains(word)))
    }

    #[tokio::test]
    async fn each_member_behind_sentinels_is_asked() {
        let options = SentinelOptions {
            password: Some("s3ntinel".into()),
            ..SentinelOptions::default()
        };
        let all = RedisSentinel::start_with(&options).await.unwrap();
        let findings = found(&all.url()).await;
        for replica in &all.servers()[1..] {
            assert!(
                says(&findings, &[replica.addr(), "append-only"]),
                "{findings:?}"
            );
        }
        assert!(
            says(&findings, &["replicas follow it"]) && says(&findings, &["min-replicas-to-write"]),
            "{findings:?}"
        );
        assert!(
            !findings.iter().any(|finding| finding.about == "sentinels"),
            "{findings:?}"
        );
        // One of three is named, and one is down.
        let [one, two, ..] = all.sentinels() else {
            panic!("no sentinels")
        };
        two.kill().await.unwrap();
        // As Lettuce writes it, and as we do.
        let hosts = format!("{},{}", one.addr(), two.addr());
        let theirs =
            format!("redis-sentinel://{hosts}/0?sentinelMasterId=locks&sentinel_password=s3ntinel");
        assert!(says(&found(&theirs).await, &["2 of 3 sentinels"]));
        let url = format!("redis+sentinel://{hosts}/locks?sentinel_password=s3ntinel");
        let findings = found(&url).await;
        assert!(
            says(&findings, &["2 of 3 sentinels"]) && says(&findings, &[two.addr(), "did not say"]),
            "{findings:?}"
        );
        all.servers()[0]
            .command(&["CONFIG", "SET", "min-replicas-to-write", "1"])
            .await
            .unwrap();
        all.servers()[1]
            .command(&["CONFIG", "SET", "maxmemory", "100mb"])
            .await
            .unwrap();
        all.servers()[1]
            .command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
            .await
            .unwrap();
        let findings = found(&url).await;
        assert!(!says(&findings, &["min-replicas-to-write"]), "{findings:?}");
        assert!(
            says(&findings, &[all.servers()[1].addr(), "noeviction"]),
            "{findings:?}"
        );
        assert!(
            !findings
                .iter()
                .any(|finding| finding.text.contains("s3ntinel"))
        );
    }

    #[cfg(feature = "tls")]
    #[tokio::test]
    async fn nodes_of_a_cluster_behind_tls_are_asked_too() {
        let authority = Certificates::new().unwrap();
        let tls = Some(TlsPort::new(&authority).unwrap());
        let cluster = RedisCluster::start(&RedisClusterOptions {
            tls,
            ..RedisClusterOptions::default()
        })
        .await
        .unwrap();
        let findings = found(&format!(
            "{}?ca={}",
            cluster.url(),
            authority.ca().display()
        ))
        .await;
        assert!(
            findings
                .iter()
                .filter(|finding| finding.text.contains("append-only"))
                .count()
                >= 3,
            "{findings:?}"
        );
    }

    /// Only the servers of the Cluster that the client uses are one store. Nothing is written to the others.
    #[tokio::test]
    async fn hosts_of_another_cluster_in_one_url_are_found_out() {
        let of = |primaries| RedisClusterOptions {
            primaries,
            replicas: 0,
            ..RedisClusterOptions::default()
        };
        let own = RedisCluster::start(&of(2)).await.unwrap();
        let other = RedisCluster::start(&of(1)).await.unwrap();
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = silent.local_addr().unwrap().to_string();
        let [stranger] = other.nodes() else {
            panic!("one node")
        };
        let mut hosts: Vec<&str> = own.nodes().iter().map(|node| node.addr()).collect();
        hosts.extend([stranger.addr(), &silent]);
        let url = format!("redis+cluster://{}?timeout=5000", hosts.join(","));
        let client = leasehold::connect(&url).backend().await.unwrap();
        let id = client.identity();
        assert!(id.is_some());
        let begin = Moment::now();
        let found = inspect(&url, &client.guarantees(), id.as_ref()).await;
        assert!(Moment::now().since(begin) < Duration::from_secs(30));
        let told = |at: &str| {
            let mut about = found.findings.iter().filter(|it| it.about == "identity");
            let told = about.find(|it| it.text.contains(at));
            told.map(|it| it.severity)
        };
        assert_eq!(told(stranger.addr()), Some(Severity::Warning), "{found:?}");
        assert_eq!(told(&silent), Some(Severity::Note), "{found:?}");
        for node in own.nodes() {
            assert_eq!(told(&format!("{} ", node.addr())), None, "{found:?}");
        }
        assert!(stranger.keys("*").await.unwrap().is_empty());
        client.close().await.unwrap();
    }

    #[tokio::test]
    async fn each_node_of_a_cluster_is_asked_whichever_the_url_names() {
        let cluster = RedisCluster::start(&RedisClusterOptions::default())
            .await
            .unwrap();
        let findings = found(&format!("redis+cluster://{}", cluster.nodes()[0].addr())).await;
        for replica in &cluster.nodes()[3..] {
            assert!(
                says(&findings, &[replica.addr(), "append-only"]),
                "{findings:?}"
            );
        }
        assert!(!says(&findings, &["does not take locks"]), "{findings:?}");
    }
}
