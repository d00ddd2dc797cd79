//! `leasehold bridge-seal`: tokens rise from the store that a fleet leaves to the one that it moves to, and back.

use std::process::Command;

use leasehold_testbed::{Redis, RedisOptions};

use crate::support::{
    LONG, Running, Stage, code, etcd, json, leasehold, on_url, output, redis, sqlite, text,
};

fn seal(from: &Stage, to: &Stage) -> Command {
    leasehold(["bridge-seal", &from.url, &to.url, "--json"])
}

fn stages(old: &Stage, new: &Stage) -> Command {
    leasehold(["bridge-stages", &old.url, &new.url, "--json"])
}

/// The token of a hold of this name that is over.
fn token(stage: &Stage, name: &str) -> u64 {
    text(&mut stage.run(name, ["--", "sh", "-c", "echo $LEASEHOLD_FENCING_TOKEN"]))
        .trim()
        .parse()
        .unwrap()
}

/// A name that nobody takes over the bridge goes on above its last token, on the way there and back.
fn there_and_back(old: &Stage, new: &Stage) {
    let first = token(old, "idle");
    let (status, sealed) = json(&mut seal(old, new));
    assert_eq!(
        (status, &sealed["raised"]),
        (Some(0), &true.into()),
        "{sealed}"
    );
    let number = |what: &str| sealed[what].as_u64().unwrap();
    assert!(
        number("mark") >= first && number("is") >= number("mark") && number("is") >= number("was"),
        "{sealed}"
    );
    let second = token(new, "idle");
    assert!(second > number("mark"), "{second} after {sealed}");
    // Again, and late: it lowers nothing.
    assert_eq!(code(&mut seal(old, new)), Some(0));
    let third = token(new, "idle");
    assert!(third > second, "{third} after {second}");

    let said = text(&mut leasehold(["bridge-seal", &new.url, &old.url]));
    assert!(
        said.contains(&old.url) && said.contains("go on above"),
        "{said}"
    );
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
    let mut stage_1 =
        Running::start(&mut old.run("job", ["--label", "me\x1b[2J", "--", "sleep", "1000"]));
    old.until_queue("job", 1, 0);
    let (status, sealed) = json(&mut seal(&old, &new));
    assert_eq!(
        (status, &sealed["raised"], &sealed["is"]),
        (Some(1), &false.into(), &sealed["was"]),
        "{sealed}"
    );
    let alone = &sealed["held_in_from_alone"][0];
    assert_eq!(
        (&alone["name"], alone["token"].as_u64()),
        (&"job".into(), Some(old.token("job"))),
        "{sealed}"
    );
    let output = output(&mut leasehold(["bridge-seal", &old.url, &new.url]));
    let (shown, said) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(
        shown.contains("job") && shown.contains("me") && !shown.contains('\x1b'),
        "{shown}"
    );
    assert!(said.contains("nothing was raised"), "{said}");
    assert_eq!(code(seal(&old, &new).arg("--force")), Some(0));
    assert_eq!(code(&mut stages(&old, &new)), Some(1));
    stage_1.signal(rustix::process::Signal::TERM);
    stage_1.end();
    assert_eq!(code(&mut seal(&old, &new)), Some(0), "it has gone");
}

/// One client of a service holds in the one store and one in the other: a label for all of them does not make them one.
#[tokio::test(flavor = "multi_thread")]
async fn two_holders_with_one_label_are_two() {
    let (old, new) = (sqlite().await, sqlite().await);
    let hold = |stage: &Stage| {
        let words = ["--label", "svc", "--", "sleep", "1000"];
        let running = Running::start(&mut stage.run("job", words));
        stage.until_queue("job", 1, 0);
        running
    };
    let (_stage_1, _stage_3) = (hold(&old), hold(&new));
    let (status, sealed) = json(&mut seal(&old, &new));
    assert_eq!(
        (status, &sealed["raised"]),
        (Some(1), &false.into()),
        "{sealed}"
    );
    let (status, seen) = json(&mut stages(&old, &new));
    let of = |nth: usize| {
        (
            seen[nth]["stage"].as_str(),
            seen[nth]["alone_in_from"].as_bool(),
        )
    };
    assert_eq!(
        (status, of(0), of(1)),
        (Some(1), (Some("1"), Some(true)), (Some("3"), Some(false))),
        "{seen}"
    );
}

/// Each hold is in both then, as one of a bridge is.
#[tokio::test(flavor = "multi_thread")]
async fn one_store_by_two_names_is_refused() {
    let old = redis().await;
    let again = on_url(old.url.replace("127.0.0.1", "localhost"));
    let _stage_1 = Running::start(&mut old.run("job", ["--", "sleep", "1000"]));
    old.until_queue("job", 1, 0);
    for force in [&[][..], &["--force"]] {
        let output = output(seal(&old, &again).args(force));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{said}");
        assert!(said.contains("are the same store"), "{said}");
    }
}

/// All names are looked at: more than a page of them, and whoever is not on the bridge has the last.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_many_names_is_looked_at() {
    let (old, new) = (sqlite().await, sqlite().await);
    let bridge = leasehold::connect(format!("bridge+{} {}", old.url, new.url))
        .await
        .unwrap()
        .ttl(LONG);
    let mut held = Vec::new();
    for n in 0..1_001 {
        held.push(bridge.lock(format!("a{n}")).try_acquire().await.unwrap());
    }
    assert_eq!(
        code(&mut seal(&old, &new)),
        Some(0),
        "all are on the bridge"
    );
    let (status, seen) = json(&mut stages(&old, &new));
    let seen = seen.as_array().unwrap();
    assert!(status == Some(0) && seen.len() == 1_001 && seen.iter().all(|it| it["stage"] == "2"));
    let stage_1 = leasehold::connect(&old.url).await.unwrap().ttl(LONG);
    let _last = stage_1.lock("z").try_acquire().await.unwrap();
    let (status, sealed) = json(&mut seal(&old, &new));
    assert_eq!(status, Some(1), "{sealed}");
    let alone = &sealed["held_in_from_alone"];
    assert_eq!(
        (alone.as_array().unwrap().len(), &alone[0]["name"]),
        (1, &"z".into())
    );
    let shown = text(&mut leasehold(["bridge-stages", &old.url, &new.url]));
    assert!(
        shown.contains(
            "in FROM alone: 1 held, 0 waiting; in both: 1001 held; in TO alone: 0 held, 0 waiting"
        ),
        "{shown}"
    );
}

/// A command that only looks begins no file anew: neither one that is missing a part, nor one of another boot.
#[tokio::test(flavor = "multi_thread")]
async fn looking_begins_no_file_anew() {
    let (old, new) = (sqlite().await, sqlite().await);
    let file = old.url.strip_prefix("sqlite://").unwrap();
    std::fs::remove_file(format!("{file}-wal")).unwrap();
    assert_eq!(code(&mut old.leasehold(["who", "job"])), Some(1));
    assert_eq!(code(&mut old.leasehold(["ls"])), Some(0));
    assert_eq!(code(&mut old.leasehold(["break", "job", "1"])), Some(1));
    assert_eq!(code(&mut stages(&old, &new)), Some(0));
    assert!(!std::path::Path::new(&format!("{file}-wal")).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_password_of_either_store_is_shown() {
    let options = RedisOptions {
        password: Some("s3cret".into()),
        ..RedisOptions::default()
    };
    let servers = Redis::start_many_with(2, &options).await.unwrap();
    let [old, new] = [0, 1].map(|nth| on_url(servers[nth].url()));
    let wrong = on_url(new.url.replace("s3cret", "s3cre"));
    let mut by_environment = leasehold(["bridge-seal"]);
    by_environment
        .env("LEASEHOLD_FROM", &old.url)
        .env("LEASEHOLD_TO", &new.url);
    for (mut command, status) in [
        (by_environment, 0),
        (seal(&old, &new), 0),
        (seal(&old, &wrong), 69),
        (seal(&wrong, &new), 69),
        (seal(&old, &old), 64),
        (
            leasehold(["bridge-seal", &old.url, "redis://:s3cret@127.0.0.1:1"]),
            69,
        ),
        (
            leasehold(["bridge-seal", &old.url, "nonsense://:s3cret@host"]),
            64,
        ),
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
    assert_eq!(
        code(&mut leasehold(["bridge-seal", &old.url, "memory://"])),
        Some(64)
    );
    assert_eq!(
        code(&mut leasehold([
            "bridge-seal",
            &old.url,
            "sqlite:///nowhere/locks.db"
        ])),
        Some(64)
    );
    assert_eq!(
        code(&mut leasehold([
            "bridge-seal",
            "redis://127.0.0.1:1",
            &old.url
        ])),
        Some(69)
    );
}
