//! `leasehold verify` through the binary, a guest on a server: what is wrong with a server is found and said, and nothing is left on it.

use std::time::Duration;

use crate::support::{LONG, Running, code, leasehold, output};
use leasehold::backend::Moment;
use leasehold_testbed::{Redis, RedisOptions};
use rustix::process::Signal;
use serde_json::Value;

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_evicts_is_found_out() {
    let evicting = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]
        .map(String::from)
        .to_vec();
    let options = RedisOptions {
        password: Some("s3cret".into()),
        extra: evicting,
        ..RedisOptions::default()
    };
    let redis = Redis::start_with(&options).await.unwrap();
    let output = output(&mut leasehold(["verify", &redis.url(), "--strict"]));
    let (said, table) = (
        String::from_utf8(output.stderr).unwrap(),
        String::from_utf8(output.stdout).unwrap(),
    );
    assert_eq!(output.status.code(), Some(1), "{table}{said}");
    assert_eq!(
        said, "",
        "neither a bar without a terminal, nor what cases say"
    );
    assert!(
        table.contains("WARNING: settings: its maxmemory-policy"),
        "{table}"
    );
    assert!(
        table.contains("whatever a guest can judge holds; 2 warnings; the namespace is removed"),
        "{table}"
    );
    assert!(!table.contains("s3cret"), "{table}");
    assert_eq!(
        left(&redis).await,
        ["{}:f", "{}:store"],
        "the last token and the identity of the database, and nothing else"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_alone_are_checked_without_a_lock() {
    let redis = Redis::start().await.unwrap();
    let url = redis.url();
    let output = output(&mut leasehold([
        "verify",
        "--servers-only",
        "--strict",
        &url,
    ]));
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{table}");
    assert!(table.contains("WARNING: settings: "), "{table}");
    assert!(table.contains("the promises were not judged; "), "{table}");
    assert!(!table.contains("Exclusion "), "{table}");
    assert_eq!(left(&redis).await, ["{}:store"]);
}

#[test]
fn if_one_cannot_be_judged_the_rest_is() {
    let output = output(&mut leasehold([
        "verify",
        "etcd://127.0.0.1:1",
        "memory://",
        "--json",
    ]));
    let (json, said) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    let found: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (output.status.code(), found.as_array().unwrap().len()),
        (Some(69), 1),
        "{json}"
    );
    assert!(
        said.starts_with("leasehold: etcd://127.0.0.1:1: "),
        "{said}"
    );
    assert_eq!(
        (&found[0]["store"], &found[0]["broken"]),
        (&"memory".into(), &Value::Array(vec![])),
        "{json}"
    );
    assert!(
        found[0]["promises"]
            .as_array()
            .unwrap()
            .iter()
            .any(|promise| promise["title"] == "Exclusion"),
        "{json}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_stopped_leaves_nothing_behind() {
    let redis = Redis::start().await.unwrap();
    let mut command = leasehold(["verify", &redis.url()]);
    let said = tempfile::NamedTempFile::new().unwrap();
    let mut verify = Running::start(command.stderr(said.reopen().unwrap()));
    let give_up = Moment::now() + LONG;
    while redis.dbsize().await.unwrap() < 3 {
        assert!(Moment::now() < give_up && !verify.has_ended(), "no keys");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    verify.signal(Signal::TERM);
    assert_eq!(verify.end().code(), Some(143));
    assert_eq!(
        left(&redis).await,
        ["{}:f", "{}:store"],
        "the last token and the identity of the database, and nothing else"
    );
    assert!(
        std::fs::read_to_string(said.path())
            .unwrap()
            .contains("the namespace was removed")
    );
}

#[test]
fn bad_input_is_refused() {
    assert_eq!(code(&mut leasehold(["verify"])), Some(64));
    assert_eq!(code(&mut leasehold(["verify", "nonsense"])), Some(64));
    assert_eq!(
        code(&mut leasehold(["verify", "redis://127.0.0.1:1"])),
        Some(69)
    );
}

/// The keys that are left, in their order.
async fn left(redis: &Redis) -> Vec<String> {
    let mut keys = redis.keys("*").await.unwrap();
    keys.sort();
    keys
}
