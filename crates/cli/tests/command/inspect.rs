//! What the command shows: who holds, what there is, what a store gives; ending a hold by force; `elect`; shared modes.

use std::fs;
use std::process::Command;

use crate::support::{Family, Running, Stage, code, json, leasehold, output, text, until};
use rustix::process::Signal;
use serde_json::Value;

on!(redis, sqlite, postgres, etcd, zookeeper: who_ls_and_break);
on!(redis, sqlite, postgres, etcd, zookeeper: guarantees);
on!(redis, sqlite, postgres: readers_share_and_permits_are_counted);
on!(redis, sqlite, postgres, etcd, zookeeper: who_is_elected_runs_and_runs_again_when_elected_again);

async fn who_ls_and_break(stage: &Stage) {
    assert_eq!(code(&mut stage.leasehold(["who", "job"])), Some(1));
    assert_eq!(
        json(&mut stage.leasehold(["ls", "--json"])),
        (Some(0), Value::Array(vec![]))
    );

    let mut holder =
        Running::start(&mut stage.run("job", ["--label", "me\x1b[2J", "--", "sleep", "1000"]));
    stage.until_queue("job", 1, 0);
    let mut next = Running::start(&mut stage.run("job", ["--label", "you", "--", "true"]));
    stage.until_queue("job", 1, 1);

    let (status, mut who) = json(&mut stage.leasehold(["who", "job", "--json"]));
    assert_eq!(
        (status, &who["name"], &who["waiters"][0]["label"]),
        (Some(0), &"job".into(), &"you".into())
    );
    let token = who["holders"][0]["token"].as_u64().unwrap();
    let table = text(&mut stage.leasehold(["who", "job"]));
    assert!(
        table.contains("me") && table.contains(&token.to_string()) && table.contains("waits 1"),
        "{table}"
    );
    assert!(
        !table.contains('\x1b'),
        "neither colours nor what a label brings"
    );
    // Of its own it has which store that is.
    assert!(who.as_object_mut().unwrap().remove("store_id").is_some());
    let (_, all) = json(&mut stage.leasehold(["ls", "--json"]));
    assert_eq!(all, Value::Array(vec![who]));
    let table = text(&mut stage.leasehold(["ls", "jo"]));
    assert!(
        table.lines().count() == 2 && table.contains("job"),
        "{table}"
    );
    assert_eq!(
        text(&mut stage.leasehold(["ls", "other"])).lines().count(),
        1
    );

    let evict = |words: &[&str]| {
        code(&mut stage.leasehold(["break", "job"].into_iter().chain(words.iter().copied())))
    };
    let (right, wrong) = (token.to_string(), (token - 1).to_string());
    assert_eq!(evict(&["--token", &wrong]), Some(1));
    assert_eq!(evict(&[&wrong]), Some(1));
    assert_eq!(stage.queue("job"), (1, 1), "a wrong token ends nothing");
    assert_eq!(
        evict(&[&right, "--token", &right]),
        Some(64),
        "once is enough"
    );
    assert_eq!(evict(&[&right]), Some(0));
    assert_eq!(holder.end().code(), Some(76));
    assert_eq!(next.end().code(), Some(0));
    assert_eq!(code(&mut stage.leasehold(["break", "job"])), Some(64));
}

async fn guarantees(stage: &Stage) {
    let (status, given) = json(&mut leasehold(["guarantees", &stage.url, "--json"]));
    assert_eq!((status, &given["fairness"]), (Some(0), &"strict".into()));
    assert!(stage.url.starts_with(given["store"].as_str().unwrap()));
    assert!(text(&mut stage.leasehold(["guarantees"])).contains("in the order in which they came"));
    assert_eq!(
        json(&mut leasehold([
            "guarantees",
            "--store",
            &stage.url,
            "--json"
        ]))
        .1,
        given
    );
    assert_eq!(
        code(&mut leasehold([
            "guarantees",
            &stage.url,
            "--store",
            &stage.url
        ])),
        Some(64)
    );
    assert_eq!(
        code(&mut leasehold(["guarantees", "redis://127.0.0.1:1"])),
        Some(69)
    );
}

async fn readers_share_and_permits_are_counted(stage: &Stage) {
    let hold = |name: &'static str, words: &[&'static str]| {
        let mut command = stage.run(name, words.iter().copied());
        Running::start(command.args(["--", "sleep", "1000"]))
    };
    let _readers = [hold("table", &["--shared"]), hold("table", &["--shared"])];
    stage.until_queue("table", 2, 0);
    assert_eq!(
        code(&mut stage.run("table", ["-n", "--", "true"])),
        Some(75),
        "a writer waits for readers"
    );
    assert_eq!(
        code(&mut stage.run("table", ["-n", "--shared", "--", "true"])),
        Some(0)
    );

    let _permits = [
        hold("pool", &["--permits", "2"]),
        hold("pool", &["--permits", "2"]),
    ];
    stage.until_queue("pool", 2, 0);
    let who = stage.who("pool");
    assert_eq!(
        (&who["holders"][0]["mode"], &who["holders"][0]["of"]),
        (&"permits".into(), &2.into()),
        "{who}"
    );
    let shown = text(&mut stage.leasehold(["who", "pool"]));
    assert!(
        shown.contains("2 of 2 permits are taken") && shown.contains("1 of 2"),
        "{shown}"
    );
    assert_eq!(stage.who("table")["holders"][1]["mode"], "shared");
    assert!(text(&mut stage.leasehold(["who", "table"])).contains("shared"));
    assert_eq!(
        code(&mut stage.run("pool", ["-n", "--permits", "2", "--", "true"])),
        Some(75)
    );
    assert_eq!(
        code(&mut stage.run("pool", ["-n", "--permits", "0", "--", "true"])),
        Some(64)
    );
}

async fn who_is_elected_runs_and_runs_again_when_elected_again(stage: &Stage) {
    let family = Family::new();
    let ttl = format!("{}ms", stage.ttl.as_millis());
    let elect = |value: &str, command: &[String]| {
        let mut candidate =
            stage.leasehold(["elect", "boss", "--ttl", &ttl, "--value", value, "--"]);
        Running::start(candidate.args(command))
    };
    let terms = family.folder().join("terms");
    let script = format!(
        "echo $LEASEHOLD_FENCING_TOKEN >> {}; exec sleep 1000",
        terms.display()
    );
    let mut first = elect("one", &["sh".into(), "-c".into(), script]);
    let tokens = || -> Vec<u64> {
        let text = fs::read_to_string(&terms).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    until("the first term", || (tokens().len() == 1).then_some(()));
    let mut second = elect("two", &["sh".into(), "-c".into(), "exit 5".into()]);
    stage.until_queue("boss", 1, 1);
    assert_eq!(stage.who("boss")["holders"][0]["label"], "one");

    // The first is deposed; the second leads, its program ends, and the first is elected again.
    assert_eq!(stage.evict("boss", tokens()[0]), Some(0));
    assert_eq!(second.end().code(), Some(5));
    until("the second term of the first", || {
        (tokens().len() == 2).then_some(())
    });
    assert!(tokens()[1] > tokens()[0]);
    first.signal(Signal::TERM);
    assert_eq!(first.end().code(), Some(143));
    assert_eq!(stage.queue("boss"), (0, 0));
}

#[test]
fn the_version_has_the_commit() {
    let version = text(&mut leasehold(["--version"]));
    let commit = Command::new("git")
        .args(["rev-parse", "--short=10", "HEAD"])
        .output()
        .ok();
    if let Some(commit) = commit.filter(|commit| commit.status.success()) {
        assert!(
            version.contains(String::from_utf8(commit.stdout).unwrap().trim()),
            "{version}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_cut_says_so() {
    let stage = crate::support::sqlite().await;
    let _holders =
        ["a", "b", "c"].map(|name| Running::start(&mut stage.run(name, ["--", "sleep", "1000"])));
    ["a", "b", "c"]
        .into_iter()
        .for_each(|name| stage.until_queue(name, 1, 0));
    let list = |words: &[&str]| {
        let output =
            output(&mut stage.leasehold(["ls", "--json"].into_iter().chain(words.iter().copied())));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let names: Vec<String> = found
            .as_array()
            .unwrap()
            .iter()
            .map(|line| line["name"].as_str().unwrap().to_owned())
            .collect();
        (names.concat(), String::from_utf8(output.stderr).unwrap())
    };
    let (names, said) = list(&["--limit", "2"]);
    assert!(
        names == "ab" && said.contains("first 2") && said.contains("--after \"b\""),
        "{said}"
    );
    assert_eq!(
        list(&["--limit", "2", "--after", "b"]),
        ("c".into(), String::new())
    );
    assert_eq!(list(&["--limit", "3"]), ("abc".into(), String::new()));
    assert_eq!(code(&mut stage.leasehold(["ls", "--limit", "0"])), Some(64));
}

/// Programs say the name that they use; a namespace stands before it in the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_another_namespace_is_pointed_to() {
    let stage = crate::support::sqlite().await;
    let hold = |name| Running::start(&mut stage.run(name, ["--", "sleep", "1000"]));
    let names = ["shop/orders/5", "shop/workorders/5", "shop/orders/5/x"];
    let _holders = names.map(hold);
    names
        .into_iter()
        .for_each(|name| stage.until_queue(name, 1, 0));
    let who = output(&mut stage.leasehold(["who", "orders/5"]));
    assert_eq!(who.status.code(), Some(1));
    let said = String::from_utf8(who.stderr).unwrap();
    assert!(
        said.contains("leasehold who shop/orders/5")
            && !said.contains("workorders")
            && !said.contains("/x"),
        "{said}"
    );
    for name in ["orders/6", "5x"] {
        let who = output(&mut stage.leasehold(["who", name]));
        assert_eq!((who.status.code(), who.stderr.len()), (Some(1), 0));
    }
}

/// Another tool's lock that is never released and never expires is shown, and ended as it was shown; what is no lock is refused.
#[tokio::test(flavor = "multi_thread")]
async fn what_other_tools_left_on_redis() {
    let redis = leasehold_testbed::Redis::start().await.unwrap();
    let stage = crate::support::on_url(redis.url());
    let cli = |words: &[&str]| {
        let mut cli = Command::new("redis-cli");
        cli.args(["-u", &redis.url()]).args(words);
        assert!(output(&mut cli).status.success(), "{words:?}");
    };
    cli(&["SET", "theirs", "another"]);
    cli(&["LPUSH", "a list", "1"]);
    let (_, all) = json(&mut stage.leasehold(["ls", "--json"]));
    assert_eq!(
        (all.as_array().unwrap().len(), &all[0]["name"]),
        (1, &"theirs".into()),
        "{all}"
    );
    let shown = text(&mut stage.leasehold(["who", "theirs"]));
    assert!(
        shown.contains("another (another tool's, without an end)"),
        "{shown}"
    );
    let seen = all[0]["holders"][0]["evict_by"].as_u64().unwrap();
    assert!(shown.contains(&seen.to_string()), "{shown}");
    assert_eq!(
        code(&mut stage.run("theirs", ["-n", "--", "true"])),
        Some(75)
    );
    assert_eq!(
        code(&mut stage.leasehold(["break", "theirs", "1"])),
        Some(1)
    );
    // Nothing is deleted that was not looked at, or has another value since.
    assert_eq!(
        code(&mut stage.leasehold(["break", "theirs", "0"])),
        Some(64)
    );
    cli(&["SET", "theirs", "changed"]);
    assert_eq!(stage.evict("theirs", seen), Some(1));
    cli(&["SET", "theirs", "another"]);
    assert_eq!(stage.evict("theirs", seen), Some(0));
    assert_eq!(
        stage.evict("theirs", seen),
        Some(1),
        "there is none any more"
    );
    assert_eq!(
        code(&mut stage.run("theirs", ["-n", "--", "true"])),
        Some(0)
    );
    let wrong = output(&mut stage.leasehold(["who", "a list"]));
    assert_eq!(wrong.status.code(), Some(69));
    assert!(
        String::from_utf8_lossy(&wrong.stderr).contains("no lock"),
        "{wrong:?}"
    );
    // It ends no hold of ours.
    let _holder = Running::start(&mut stage.run("ours", ["--", "sleep", "1000"]));
    stage.until_queue("ours", 1, 0);
    assert_eq!(stage.evict("ours", seen), Some(1));
    assert_eq!(stage.evict("ours", 0), Some(1));
    assert_eq!(stage.queue("ours"), (1, 0));
}
