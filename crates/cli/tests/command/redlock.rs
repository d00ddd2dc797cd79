//! The command on Redlock: five masters, of which two may be missing.

use leasehold_testbed::{Redis, RedisOptions};

use crate::support::{self, Running, code, leasehold, output, text, until};

#[tokio::test(flavor = "multi_thread")]
async fn who_ls_and_break() {
    let stage = support::redlock().await;
    assert_eq!(code(&mut stage.leasehold(["who", "job"])), Some(1));
    let mut holder =
        Running::start(&mut stage.run("job", ["--label", "me", "--", "sleep", "1000"]));
    let token = stage.token("job");
    let listed = text(&mut stage.leasehold(["ls"]));
    assert!(
        listed.lines().count() == 2 && listed.contains("job") && listed.contains("me"),
        "{listed}"
    );
    assert_eq!(stage.evict("job", token - 1), Some(1));
    // On a busy machine no majority may answer in time.
    until("an eviction", || {
        (stage.evict("job", token) == Some(0) || holder.has_ended()).then_some(())
    });
    assert_eq!(holder.end().code(), Some(76));
    assert_eq!(code(&mut stage.leasehold(["who", "job"])), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_cannot_give_is_refused() {
    let stage = support::redlock().await;
    assert_eq!(
        code(&mut stage.run("job", ["--permits", "2", "--", "true"])),
        Some(64)
    );
    assert_eq!(
        code(&mut stage.run("job", ["--fair", "--", "true"])),
        Some(64)
    );
    let two = stage.url.rsplitn(4, ',').last().unwrap();
    assert_eq!(
        code(&mut stage.run("job", ["--store", two, "--", "true"])),
        Some(64),
        "two have no majority"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn it_outlives_two_masters_and_ends_with_the_third() {
    let masters = Redis::start_many(5).await.unwrap();
    let stage = support::on_masters(&masters);
    let (family, mut holder) = stage.held();
    for master in &masters[..2] {
        master.kill().await.unwrap();
    }
    let alone = support::now();
    until("two leases", || {
        (family.last() > alone + 2 * stage.ttl.as_micros() as u64).then_some(())
    });
    assert_eq!(
        code(&mut stage.run("job", ["--no-wait", "--", "true"])),
        Some(75)
    );
    masters[2].kill().await.unwrap();
    let killed = support::now();
    assert_eq!(holder.end().code(), Some(76));
    let lived = family.until_gone() - killed;
    assert!(
        u128::from(lived) < stage.ttl.as_micros(),
        "the program lived on for {lived} µs"
    );
    assert_eq!(
        code(&mut stage.run("job", ["--no-wait", "--", "true"])),
        Some(69),
        "two of five are no majority"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_credentials_are_shown() {
    let options = RedisOptions {
        password: Some("s3cret".into()),
        ..RedisOptions::default()
    };
    let masters = Redis::start_many_with(3, &options).await.unwrap();
    let mut stage = support::on_masters(&masters);
    let shown = stage.url.clone();
    stage.url = shown.replace("redlock://", "redlock://:s3cret@");
    let ran = output(&mut stage.run("job", ["-vv", "--", "sh", "-c", "echo $LEASEHOLD_STORE"]));
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(
        String::from_utf8(ran.stdout).unwrap().trim(),
        shown,
        "{said}"
    );
    assert!(
        said.contains("redlock://") && !said.contains("s3cret"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_change_numbers_grows_and_repairs_the_list() {
    let masters = Redis::start_many(4).await.unwrap();
    let of = |n: usize| support::on_masters(&masters[..n]).url;
    let (three, four) = (of(3), of(4));
    let change = |old: &str, new: &str| output(&mut leasehold(["redlock-change", old, new]));
    let said = |output: &std::process::Output| {
        String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
    };
    // A list gets a number before it changes.
    let refused = change(&three, &four);
    assert_eq!(refused.status.code(), Some(64));
    assert!(said(&refused).contains("no number"), "{}", said(&refused));
    for (new, number) in [(&three, "list 1: "), (&four, "list 2: ")] {
        let changed = change(&three, new);
        assert_eq!(changed.status.code(), Some(0), "{}", said(&changed));
        assert!(said(&changed).starts_with(number), "{}", said(&changed));
    }
    let stage = support::on_masters(&masters);
    let job = ["--wait", "20", "--", "true"];
    assert_eq!(
        code(&mut stage.run("job", job)),
        Some(0),
        "four nodes with a number"
    );
    // A node that loses its data has no vote, and is brought back.
    masters[3].command(&["FLUSHALL"]).await.unwrap();
    let found = change(&four, &four);
    assert_eq!(found.status.code(), Some(1), "{}", said(&found));
    assert!(said(&found).contains("has no vote"), "{}", said(&found));
    let json = output(&mut leasehold(["redlock-change", &four, &four, "--json"]));
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["number"], 4);
    assert_eq!(json["without_vote"], serde_json::json!([]));
    assert_eq!(json["nodes"].as_array().unwrap().len(), 4);
    // Without a list, and with one that is not in use.
    assert_eq!(code(&mut leasehold(["redlock-change"])), Some(64));
    let elsewhere = change(&three, &three);
    assert_eq!(elsewhere.status.code(), Some(64), "{}", said(&elsewhere));
}
