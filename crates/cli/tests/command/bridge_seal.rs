//! `leasehold bridge-seal`: tokens rise from the store that a fleet leaves to the one that it moves to, and back.

use std::process::Command;

use leasehold_testbed::{Redis, RedisOptions};

use crate::support::{Running, Stage, code, etcd, json, leasehold, on_url, output, redis, sqlite, text};

fn seal(from: &Stage, to: &Stage) -> Command {
    leasehold(["bridge-seal", &from.url, &to.url, "--json"])
}

/// The token of a hold of this name that is over.
fn token(stage: &Stage, name: &str) -> u64 {
    text(&mut stage.run(name, ["--", "sh", "-c", "echo $LEASEHOLD_FENCING_TOKEN"])).trim().parse().unwrap()
}

/// A name that nobody takes over the bridge goes on above its last token, on the way there and back.
fn there_and_back(old: &Stage, new: &Stage) {
    let first = token(old, "idle");
    let (status, sealed) = json(&mut seal(old, new));
    assert_eq!((status, &sealed["raised"]), (Some(0), &true.into()), "{sealed}");
    let number = |what: &str| sealed[what].as_u64().unwrap();
    assert!(number("mark") >= first && number("is") >= number("mark") && number("is") >= number("was"), "{sealed}");
    let second = token(new, "idle");
    assert!(second > number("mark"), "{second} after {sealed}");
    // Again, and late: it lowers nothing.
    assert_eq!(code(&mut seal(old, new)), Some(0));
    let third = token(new, "idle");
    assert!(third > second, "{third} after {second}");

    let said = text(&mut leasehold(["bridge-seal", &new.url, &old.url]));
    assert!(said.contains(&old.url) && said.contains("go on above"), "{said}");
    let fourth = token(old, "idle");
    assert!(fourth > third, "{fourth} after {third}");
}

#[tokio::test(flavor = "multi_thread")]
async fn from_redis_to_redis_and_back() {
    there_and_back(&redis().await, &redis().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn from_redis_to_etcd_and_back() {
    there_and_back(&redis().await, &etcd().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn from_sqlite_to_redis_and_back() {
    there_and_back(&sqlite().await, &redis().await);
}

/// Whoever holds in the old store alone is not on the bridge.
#[tokio::test(flavor = "multi_thread")]
async fn who_holds_in_the_old_store_alone_is_shown() {
    let (old, new) = (sqlite().await, redis().await);
    let mut stage_1 = Running::start(&mut old.run("job", ["--label", "me\x1b[2J", "--", "sleep", "1000"]));
    old.until_queue("job", 1, 0);
    let (status, sealed) = json(&mut seal(&old, &new));
    assert_eq!((status, &sealed["raised"], &sealed["is"]), (Some(1), &false.into(), &sealed["was"]), "{sealed}");
    let alone = &sealed["held_in_from_alone"][0];
    assert_eq!((&alone["name"], alone["token"].as_u64()), (&"job".into(), Some(old.token("job"))), "{sealed}");
    let output = output(&mut leasehold(["bridge-seal", &old.url, &new.url]));
    let (shown, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(shown.contains("job") && shown.contains("me") && !shown.contains('\x1b'), "{shown}");
    assert!(said.contains("nothing was raised"), "{said}");
    assert_eq!(code(seal(&old, &new).arg("--force")), Some(0));
    stage_1.signal(rustix::process::Signal::TERM);
    stage_1.end();
    assert_eq!(code(&mut seal(&old, &new)), Some(0), "it has gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_password_of_either_store_is_shown() {
    let options = RedisOptions { password: Some("s3cret".into()), ..RedisOptions::default() };
    let servers = Redis::start_many_with(2, &options).await.unwrap();
    let [old, new] = [0, 1].map(|nth| on_url(servers[nth].url()));
    let wrong = on_url(new.url.replace("s3cret", "s3cre"));
    let mut by_environment = leasehold(["bridge-seal"]);
    by_environment.env("LEASEHOLD_FROM", &old.url).env("LEASEHOLD_TO", &new.url);
    for (mut command, status) in [
        (by_environment, 0),
        (seal(&old, &new), 0),
        (seal(&old, &wrong), 69),
        (seal(&wrong, &new), 69),
        (seal(&old, &old), 64),
        (leasehold(["bridge-seal", &old.url, "redis://:s3cret@127.0.0.1:1"]), 69),
        (leasehold(["bridge-seal", &old.url, "nonsense://:s3cret@host"]), 64),
    ] {
        let output = output(&mut command);
        let all = [output.stdout, output.stderr].concat();
        let all = String::from_utf8(all).unwrap();
        assert_eq!(output.status.code(), Some(status), "{all}");
        assert!(!all.is_empty() && !all.contains("s3cre"), "{all}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused() {
    let old = redis().await;
    assert_eq!(code(&mut leasehold(["bridge-seal"])), Some(64));
    assert_eq!(code(&mut leasehold(["bridge-seal", &old.url])), Some(64));
    assert_eq!(code(&mut leasehold(["bridge-seal", &old.url, "memory://"])), Some(64));
    assert_eq!(code(&mut leasehold(["bridge-seal", &old.url, "sqlite:///nowhere/locks.db"])), Some(64));
    assert_eq!(code(&mut leasehold(["bridge-seal", "redis://127.0.0.1:1", &old.url])), Some(69));
}
