//! The files of `compose/`: what is in them can be read, is of one version each, stays on this machine, and is what their page says. What
//! they set is given to private servers, and a lock is taken there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use leasehold_testbed::{
    Certificates, Etcd, EtcdOptions, KeyFiles, PgBouncer, PgBouncerOptions, Postgres,
    PostgresOptions, Redis, RedisOptions, TlsPort, ZooKeeper, ZooKeeperEnsemble, ZooKeeperOptions,
};
use serde_yaml_ng::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../compose")
}

/// The services of each file, by the file's name and theirs.
fn services() -> BTreeMap<String, BTreeMap<String, Value>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let (path, name) = entry
            .map(|entry| (entry.path(), entry.file_name().into_string().unwrap()))
            .unwrap();
        if name.ends_with(".yaml") {
            let mut file: Value =
                serde_yaml_ng::from_str(&fs::read_to_string(path).unwrap()).unwrap();
            // What is merged may itself merge.
            for _ in 0..3 {
                file.apply_merge().unwrap();
            }
            all.insert(
                name,
                serde_yaml_ng::from_value(file["services"].clone()).unwrap(),
            );
        }
    }
    all
}

/// The text of a command, a port and the like.
fn texts(list: &Value) -> Vec<String> {
    list.as_sequence()
        .into_iter()
        .flatten()
        .map(|item| item.as_str().unwrap().to_owned())
        .collect()
}

/// The rows of the page: a file's name, and the URLs of what it starts.
fn page() -> BTreeMap<String, Vec<String>> {
    let page = fs::read_to_string(folder().join("README.md")).unwrap();
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let urls = |row: &str| {
        row.split('`')
            .filter(|part| part.contains("://"))
            .map(str::to_owned)
            .collect()
    };
    rows.map(|(file, row)| (file.to_owned(), urls(row)))
        .collect()
}

/// The ports of the loopback address that a URL names.
fn ports_of(url: &str) -> Vec<String> {
    url.split("127.0.0.1:")
        .skip(1)
        .map(|rest| rest.chars().take_while(char::is_ascii_digit).collect())
        .collect()
}

/// The URL of the page, with other addresses in it.
fn at(url: &str, addrs: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (user, rest) = rest
        .split_once('@')
        .map_or((String::new(), rest), |(user, rest)| {
            (format!("{user}@"), rest)
        });
    let words = rest.find(['/', '?']).map_or("", |end| &rest[end..]);
    format!("{scheme}://{user}{addrs}{words}")
}

#[test]
fn images_are_of_one_version_and_services_are_watched_and_stay_here() {
    for (file, services) in services() {
        assert!(!services.is_empty(), "{file}");
        for (name, service) in services {
            let (of, image) = (
                format!("{name} of {file}"),
                service["image"].as_str().unwrap_or_default(),
            );
            let version = image
                .rsplit_once(':')
                .map(|(_, version)| version.trim_start_matches('v'))
                .unwrap_or_default();
            let numbers: Vec<&str> = version
                .split('-')
                .next()
                .unwrap_or_default()
                .split('.')
                .collect();
            // PostgreSQL counts with two since 10.
            let count = if image.starts_with("postgres:") { 2 } else { 3 };
            assert!(
                numbers.len() == count && numbers.iter().all(|n| n.parse::<u32>().is_ok()),
                "{of}: {image}"
            );
            assert!(texts(&service["healthcheck"]["test"]).len() > 1, "{of}");
            let (ports, command) = (
                texts(&service["ports"]),
                texts(&service["command"]).join(" "),
            );
            assert!(
                ports.iter().all(|port| port.starts_with("127.0.0.1:")),
                "{of}: {ports:?}"
            );
            if service["network_mode"].as_str() == Some("host") && command.contains("exec redis") {
                assert!(command.contains("bind 127.0.0.1"), "{of}: {command}");
            }
            let waits = service["depends_on"].as_mapping().into_iter().flatten();
            assert!(
                waits
                    .into_iter()
                    .all(|(_, how)| how["condition"].as_str() == Some("service_healthy")),
                "{of}"
            );
        }
    }
}

#[test]
fn the_page_names_each_file_and_where_its_services_are() {
    let page = page();
    let files = services();
    assert!(
        page.keys().eq(files.keys()),
        "{:?} and {:?}",
        page.keys(),
        files.keys()
    );
    for (file, services) in files {
        let mut offered: Vec<String> = Vec::new();
        for service in services.values() {
            let published = texts(&service["ports"])
                .into_iter()
                .map(|port| port.split(':').nth(1).unwrap().to_owned());
            // On the host's own network a service has its port for itself.
            offered.extend(
                published.chain(service["environment"]["PORT"].as_str().map(str::to_owned)),
            );
        }
        let named: Vec<String> = page[&file].iter().flat_map(|url| ports_of(url)).collect();
        assert!(
            !named.is_empty() && named.iter().all(|port| offered.contains(port)),
            "{file}: {named:?}, {offered:?}"
        );
        // All that publish a port are named: servers behind sentinels are not for clients to know.
        let all = services
            .values()
            .flat_map(|service| texts(&service["ports"]))
            .count();
        assert!(named.len() >= all, "{file}");
    }
}

/// The words of its command line that are the same for each of its kind, if it is a Redis server.
fn redis_words(service: &Value) -> Option<Vec<String>> {
    let command = texts(&service["command"]).join(" ");
    let (_, words) = command.split_once("redis-server ")?;
    let words: Vec<&str> = words
        .split_whitespace()
        .filter(|word| !word.contains('$'))
        .collect();
    let pairs = words
        .windows(2)
        .filter(|pair| pair[0].starts_with("--") && !pair[1].starts_with("--"));
    Some(pairs.flatten().map(|word| (*word).to_owned()).collect())
}

async fn take_a_lock(url: &str) {
    let store = leasehold::connect(url).await.unwrap();
    let guard = store
        .lock("compose")
        .ttl(Duration::from_secs(6))
        .acquire()
        .await
        .unwrap();
    guard.confirm().await.unwrap();
    guard.release().await.unwrap();
    store.close(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_servers_take_these_settings_and_forget_no_lock() {
    let (files, page) = (services(), page());
    let mut kinds = 0;
    for (file, services) in &files {
        let words = services.values().filter_map(redis_words).next();
        let Some(extra) = words else { continue };
        kinds += 1;
        assert!(
            extra.contains(&"noeviction".to_owned()) && extra.contains(&"--appendonly".to_owned()),
            "{extra:?}"
        );
        let options = RedisOptions {
            extra,
            ..RedisOptions::default()
        };
        let server = Redis::start_with(&options)
            .await
            .unwrap_or_else(|e| panic!("{file}: {e}"));
        match &file[..] {
            "compose.yaml" => take_a_lock(&at(&page[file][0], server.addr())).await,
            "redlock.yaml" => {
                let count = services.len();
                let servers = Redis::start_many_with(count, &options).await.unwrap();
                let addrs: Vec<&str> = servers.iter().map(|server| server.addr()).collect();
                assert_eq!(ports_of(&page[file][0]).len(), count);
                take_a_lock(&at(&page[file][0], &addrs.join(","))).await;
                let store = leasehold::connect(at(&page[file][0], &addrs.join(",")))
                    .await
                    .unwrap();
                assert_eq!(store.guarantees().warnings(), [""; 0]);
            }
            // They are one store only together, as the tests of that store start them.
            _ => {}
        }
    }
    assert_eq!(kinds, 4);
}

/// Makes them, into a folder of its own.
fn certificates() -> tempfile::TempDir {
    let made = tempfile::tempdir().unwrap();
    let run = Command::new("bash")
        .arg(folder().join("certificates.sh"))
        .arg(made.path())
        .output()
        .unwrap();
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    made
}

fn tls_of(made: &tempfile::TempDir, port: u16, mutual: bool) -> TlsPort {
    let file = |name: &str| made.path().join(name);
    let files = KeyFiles {
        certificate: file("server.pem"),
        key: file("server.key"),
    };
    TlsPort {
        port,
        ca: file("ca.pem"),
        files,
        mutual,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificates_are_good_for_members_and_clients() {
    let made = certificates();
    let tls = Some(tls_of(&made, 0, true));
    let members = services()["etcd.yaml"].len();
    let cluster = Etcd::cluster_with(
        members,
        &EtcdOptions {
            tls,
            ..EtcdOptions::default()
        },
    )
    .await
    .unwrap();
    let addrs: Vec<&str> = cluster
        .members()
        .iter()
        .filter_map(|member| member.tls_addr())
        .collect();
    let url = at(&page()["etcd.yaml"][0], &addrs.join(","));
    take_a_lock(&url.replace("compose/certificates", &made.path().display().to_string())).await;
    // Without ours nobody is let in.
    let (without, _) = url.split_once("&cert=").unwrap();
    let without = without.replace("compose/certificates", &made.path().display().to_string());
    assert_eq!(
        leasehold::connect(&without).await.unwrap_err().kind(),
        leasehold::ErrorKind::Denied
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ensemble_of_these_ticks_serves_these_credentials() {
    let services = &services()["zookeeper.yaml"];
    let ticks = services.values().map(|service| {
        service["environment"]["ZOO_TICK_TIME"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    });
    let ticks: Vec<u64> = ticks.collect();
    assert!(ticks.iter().all(|tick| *tick == ticks[0]), "{ticks:?}");
    let tick = Duration::from_millis(ticks[0]);
    let options = ZooKeeperOptions {
        tick,
        min_session: tick * 2,
        max_session: tick * 20,
        ..ZooKeeperOptions::default()
    };
    let ensemble: ZooKeeperEnsemble = ZooKeeper::ensemble_with(services.len(), &options)
        .await
        .unwrap();
    take_a_lock(&at(
        &page()["zookeeper.yaml"][0],
        &ensemble.connect_string(),
    ))
    .await;
}

/// A private server with the settings of this service, its role and its database.
async fn postgres_of(service: &Value, tls: Option<TlsPort>) -> Postgres {
    let command = texts(&service["command"]).join(" ");
    let settings = command
        .split(" -c ")
        .filter_map(|word| word.split_whitespace().next()?.split_once('='));
    let mut options = PostgresOptions {
        tls,
        ..PostgresOptions::default()
    };
    for (name, value) in settings.filter(|(name, _)| !name.starts_with("ssl_")) {
        options = options.set(name, value);
    }
    let server = Postgres::start_with(&options).await.unwrap();
    let [user, password, database] = ["USER", "PASSWORD", "DB"].map(|word| {
        service["environment"][format!("POSTGRES_{word}")]
            .as_str()
            .unwrap()
            .to_owned()
    });
    server
        .query(&format!("CREATE ROLE {user} LOGIN PASSWORD '{password}'"))
        .await
        .unwrap();
    server
        .query(&format!("CREATE DATABASE {database} OWNER {user}"))
        .await
        .unwrap();
    let room: u64 = server.number("SHOW max_connections").await.unwrap();
    assert!(
        command.contains(&format!("max_connections={room}")),
        "{command}"
    );
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_of_these_settings_serves_over_tls_and_through_its_pooler() {
    let (files, page, made) = (services(), page(), certificates());
    let plain = postgres_of(&files["compose.yaml"]["postgres"], None).await;
    let url = page["compose.yaml"]
        .iter()
        .find(|url| url.starts_with("postgres:"))
        .unwrap();
    take_a_lock(&at(url, plain.addr())).await;

    let services = &files["postgres.yaml"];
    let port = TlsPort::new(&Certificates::new().unwrap()).unwrap().port;
    let server = postgres_of(&services["postgres"], Some(tls_of(&made, port, false))).await;
    let [over_tls, pooled] = &page["postgres.yaml"][..] else {
        panic!("not two URLs")
    };
    take_a_lock(
        &at(over_tls, server.addr())
            .replace("compose/certificates", &made.path().display().to_string()),
    )
    .await;
    let pool_mode = match services["pgbouncer"]["environment"]["POOL_MODE"].as_str() {
        Some("transaction") => "transaction",
        other => panic!("{other:?}"),
    };
    // It knows the role by asking the server.
    let extra = [
        "auth_user = postgres",
        "auth_query = SELECT usename, passwd FROM pg_shadow WHERE usename = $1",
    ];
    let options = PgBouncerOptions {
        pool_mode,
        extra: extra.map(String::from).into(),
        ..PgBouncerOptions::default()
    };
    let pooler = PgBouncer::start_with(server.addr(), &options)
        .await
        .unwrap();
    let [through, past] = &ports_of(pooled)[..] else {
        panic!("{pooled}")
    };
    let url = pooled.replace(&format!("127.0.0.1:{through}"), pooler.addr());
    let url = url.replace(&format!("127.0.0.1:{past}"), server.addr());
    take_a_lock(&url).await;
    let store = leasehold::connect(&url).await.unwrap();
    assert!(
        store.guarantees().pushed_wake(),
        "{:?}",
        store.guarantees().warnings()
    );
    assert_eq!(store.guarantees().warnings(), [""; 0]);
}
