//! Private servers, verified as a guest would: what is wrong with them is found, and nothing is left on them.

use std::time::Duration;

use leasehold_lab::verify::{Severity, Verification, verify};
use leasehold_testbed::{Etcd, PgBouncer, Postgres, Redis, RedisOptions, ZooKeeper};

async fn verified(url: &str) -> Verification {
    // Other tests of this binary may expect their panics to be seen: what cases say is in the verdicts.
    let verifying = verify(url, url, |_| {}, std::future::pending());
    let verification = tokio::time::timeout(Duration::from_secs(280), verifying)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    println!("{}", verification.table());
    verification
}

fn warnings(verification: &Verification) -> Vec<&'static str> {
    let warnings = verification
        .findings
        .iter()
        .filter(|finding| finding.severity == Severity::Warning);
    warnings.map(|finding| finding.about).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_evicts_and_forgets_is_found_out_and_left_clean() {
    let evicting = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]
        .map(String::from)
        .to_vec();
    let server = Redis::start_with(&RedisOptions {
        extra: evicting,
        ..RedisOptions::default()
    })
    .await
    .unwrap();
    let found = verified(&server.url()).await;
    assert_eq!(
        warnings(&found),
        ["settings", "settings"],
        "{:?}",
        found.findings
    );
    assert!(
        found.findings[0].text.contains("maxmemory-policy")
            && found.findings[1].text.contains("on disk")
    );
    assert!(found.holds(), "{:?}", found.broken);
    assert!(
        found.promises[0].passed > 5 && found.promises[0].title == "Exclusion",
        "{:?}",
        found.promises
    );
    assert_eq!(found.left_behind, 0);
    let mut keys = server.keys("*").await.unwrap();
    keys.sort();
    assert_eq!(
        keys,
        ["{}:f", "{}:store"],
        "the last token and the identity of the database, and nothing else"
    );
    assert_eq!(
        found
            .version
            .as_deref()
            .map(|version| version.contains('.')),
        Some(true)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_safe_redis_behind_a_password_has_nothing_to_warn_of() {
    let options = RedisOptions {
        persistent: true,
        password: Some("s3cret".into()),
        ..RedisOptions::default()
    };
    let server = Redis::start_with(&options).await.unwrap();
    let found = verified(&server.url()).await;
    assert_eq!(warnings(&found), [""; 0]);
    assert!(found.holds(), "{:?}", found.broken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_with_the_known_lease_bug_is_found_out() {
    let server = Etcd::start().await.unwrap();
    let keys = server.key_count().await.unwrap();
    let found = verified(&format!("etcd://{}", server.addr())).await;
    let version = found.version.clone().unwrap();
    // Debian ships 3.4.23. A newer one in its place has nothing to warn of.
    let old = version.starts_with("3.4.2") || version.starts_with("3.4.1");
    assert_eq!(
        warnings(&found),
        if old { vec!["version"] } else { vec![] },
        "etcd {version}"
    );
    assert!(found.holds(), "{:?}", found.broken);
    assert_eq!(found.left_behind, 0);
    // What is left are keys of sessions whose clients have gone, which end with their leases.
    for _ in 0..300 {
        if server.key_count().await.unwrap() == keys {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!(
        "{} keys are left, of {keys}",
        server.key_count().await.unwrap()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zookeeper_says_which_leases_it_grants() {
    let server = ZooKeeper::start().await.unwrap();
    let found = verified(&format!("zookeeper://{}", server.addr())).await;
    assert!(found.holds(), "{:?}", found.broken);
    assert_eq!(found.left_behind, 0);
    // The private server's longest session is a minute, of which some has passed since it was last proven.
    let longest = found
        .leases
        .iter()
        .find(|lease| lease.asked_ms == 300_000)
        .unwrap();
    assert!(
        longest
            .granted_ms
            .is_some_and(|ms| (45_000..=60_000).contains(&ms)),
        "{:?}",
        found.leases
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_is_left_as_it_was_and_so_it_is_behind_a_pooler() {
    let server = Postgres::start().await.unwrap();
    let found = verified(&server.url()).await;
    assert!(found.holds(), "{:?}", found.broken);
    assert_eq!(
        (warnings(&found), found.left_behind),
        (vec![], 0),
        "{:?}",
        found.findings
    );
    assert!(found.promises[0].passed > 5, "{:?}", found.promises);
    let rows = ["lines", "place", "observer"]
        .map(|table| format!("(SELECT count(*) FROM leasehold.{table})"))
        .join(" + ");
    assert_eq!(server.number(&format!("SELECT {rows}")).await.unwrap(), 0);
    // What it says of itself, and that it lets nothing through, which its own page says.
    let pooler = PgBouncer::start(&server).await.unwrap();
    let pooled = verified(&format!("{}?listen=off", pooler.url())).await;
    assert!(pooled.holds(), "{:?}", pooled.broken);
    let notes: Vec<&str> = pooled
        .findings
        .iter()
        .map(|finding| finding.about)
        .collect();
    assert_eq!(notes, ["pooler", "notifications"], "{:?}", pooled.findings);
    assert_eq!(server.number(&format!("SELECT {rows}")).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_file_and_a_majority_are_judged_by_what_they_promise() {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = verified(&format!(
        "sqlite://{}",
        folder.path().join("locks.db").display()
    ))
    .await;
    assert!(
        sqlite.holds() && sqlite.findings.is_empty() && sqlite.left_behind == 0,
        "{sqlite:?}"
    );
    let masters = Redis::start_many(3).await.unwrap();
    let nodes: Vec<&str> = masters.iter().map(|node| node.addr()).collect();
    let redlock = verified(&format!("redlock://{}", nodes.join(","))).await;
    assert!(redlock.holds(), "{:?}", redlock.broken);
    assert_eq!(
        warnings(&redlock),
        ["settings"; 3],
        "each master keeps nothing on disk"
    );
    for node in &masters {
        assert!(
            redlock
                .findings
                .iter()
                .any(|finding| finding.text.contains(node.addr())),
            "{:?}",
            redlock.findings
        );
        keeps_only_the_bound_of_tokens(node).await;
    }
    // It keeps no queue: the cases of order are not judged, and not failed.
    let order = |v: &Verification| {
        v.promises
            .iter()
            .find(|p| p.id == "P6")
            .map(|p| (p.passed, p.not_judged))
            .unwrap()
    };
    assert!(
        order(&redlock).1 > order(&sqlite).1,
        "{:?} {:?}",
        order(&redlock),
        order(&sqlite)
    );
}

/// The last tokens of names go within six seconds, and a hold whose release the node did not answer ends with its lease. The bound of
/// all tokens knows no name, nor does the identity of the node, or the note when the last lease ends, which goes some time after it.
async fn keeps_only_the_bound_of_tokens(node: &Redis) {
    let mut left = Vec::new();
    for _ in 0..300 {
        left = node.keys("*").await.unwrap();
        left.retain(|key| key != "{}:rn");
        left.sort();
        if left == ["{}:rb", "{}:store"] {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{} is left with {left:?}", node.addr());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_connected_is_an_error() {
    for (url, kind) in [
        ("redis://127.0.0.1:1", leasehold::ErrorKind::Unavailable),
        ("nonsense", leasehold::ErrorKind::Invalid),
    ] {
        assert_eq!(
            verify(url, url, |_| {}, std::future::pending())
                .await
                .unwrap_err()
                .kind(),
            kind,
            "{url}"
        );
    }
}
