//! `leasehold compare` through the binary: numbers, JSON and the page; holders that are killed for real; bad input.

use std::fs;

use crate::support::{code, leasehold, output};
use leasehold_testbed::{Redis, RedisOptions};
use serde_json::Value;

#[tokio::test(flavor = "multi_thread")]
async fn two_stores_are_compared_and_the_page_is_written() {
    let options = RedisOptions {
        password: Some("s3cret".into()),
        ..RedisOptions::default()
    };
    let redis = Redis::start_with(&options).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("compare.html");
    let mut command = leasehold([
        "compare",
        &redis.url(),
        "memory://",
        "--glance",
        "--json",
        "--html",
    ]);
    let output = output(command.arg(&page));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(said, "", "no bar where there is no terminal");
    let json = String::from_utf8(output.stdout).unwrap();
    let page = fs::read_to_string(page).unwrap();
    assert!(
        page.starts_with("<!DOCTYPE html>")
            && page.contains("<svg")
            && page.contains("redis://127.0.0.1")
    );
    assert!(
        !json.contains("s3cret") && !page.contains("s3cret"),
        "a password is never shown"
    );

    let report: Value = serde_json::from_str(&json).unwrap();
    let [redis, memory] = &report["stores"].as_array().unwrap()[..] else {
        panic!("{report}")
    };
    assert_eq!(
        (&redis["label"], &memory["label"]),
        (&"redis".into(), &"memory".into())
    );
    assert_eq!(
        (&redis["failures"], &memory["failures"]),
        (&Value::Array(vec![]), &Value::Array(vec![]))
    );
    let killed = [&redis["recovery"]["killed"], &memory["recovery"]["killed"]];
    assert_eq!(killed, [&Value::from("process"), &Value::from("client")]);
    assert!(report["advice"].as_array().unwrap().len() > 6, "{report}");
}

#[test]
fn bad_input_is_refused_before_anything_is_measured() {
    assert_eq!(code(&mut leasehold(["compare"])), Some(64));
    assert_eq!(code(&mut leasehold(["compare", "nonsense"])), Some(64));
    assert_eq!(
        code(&mut leasehold([
            "compare",
            "memory://",
            "--html",
            "/nowhere/at/all.html"
        ])),
        Some(64)
    );
    assert_eq!(
        code(&mut leasehold(["compare", "redis://127.0.0.1:1"])),
        Some(69)
    );
}

#[test]
fn a_page_that_is_there_stays_until_the_new_one_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    fs::write(&page, "yesterday's").unwrap();
    let files = || fs::read_dir(folder.path()).unwrap().count();
    // Nothing is measured: the old page is still there, and nothing else.
    let unreachable =
        output(leasehold(["compare", "redis://127.0.0.1:1", "--glance", "--html"]).arg(&page));
    assert!(String::from_utf8_lossy(&unreachable.stderr).contains("redis://127.0.0.1:1: "));
    assert_eq!(
        (
            unreachable.status.code(),
            fs::read_to_string(&page).unwrap().as_str(),
            files()
        ),
        (Some(69), "yesterday's", 1)
    );
    // One that is there and one that is not.
    let some = output(
        leasehold([
            "compare",
            "redis://127.0.0.1:1",
            "memory://",
            "--glance",
            "--html",
        ])
        .arg(&page),
    );
    let (table, said) = (
        String::from_utf8(some.stdout).unwrap(),
        String::from_utf8(some.stderr).unwrap(),
    );
    assert_eq!(some.status.code(), Some(69), "{said}");
    assert!(
        table.contains("memory")
            && table.contains("only a glance")
            && said.contains("redis://127.0.0.1:1: "),
        "{said}"
    );
    assert!(fs::read_to_string(&page).unwrap().contains("Only a glance") && files() == 1);
    // If the page cannot be written, the table is.
    let full = output(&mut leasehold([
        "compare",
        "memory://",
        "--glance",
        "--html",
        "/dev/full",
    ]));
    assert_eq!(full.status.code(), Some(125));
    assert!(
        String::from_utf8_lossy(&full.stdout).contains("one round trip"),
        "{full:?}"
    );
    assert!(
        String::from_utf8_lossy(&full.stderr).contains("the page's file: No space left"),
        "{full:?}"
    );
}
