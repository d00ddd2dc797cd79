//! Private Redis servers: start, stop, restart, pause, counters.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use leasehold_testbed::{Error, Redis, RedisOptions, Reply};
use tokio::time::timeout;

const NEVER: Duration = Duration::from_millis(150);

#[tokio::test]
async fn answers_and_counts() {
    let redis = Redis::start().await.unwrap();
    redis.reset_commandstats().await.unwrap();
    redis.command(&["SET", "a", "1"]).await.unwrap();
    redis.command(&["SET", "b", "2"]).await.unwrap();
    assert_eq!(
        redis.command(&["GET", "a"]).await.unwrap(),
        Reply::Bulk(b"1".into())
    );
    let stats = redis.commandstats().await.unwrap();
    assert_eq!(
        (stats.get("set"), stats.get("get"), stats.get("del")),
        (Some(&2), Some(&1), None)
    );
    assert_eq!(redis.dbsize().await.unwrap(), 2);
    assert_eq!(redis.keys("*").await.unwrap(), ["a", "b"]);
    assert!(matches!(
        redis.command(&["NONSENSE"]).await,
        Err(Error::Answer { .. })
    ));
}

#[tokio::test]
async fn forgets_without_persistence_and_keeps_with_it() {
    for persistent in [false, true] {
        let redis = Redis::start_with(&RedisOptions {
            persistent,
            ..RedisOptions::default()
        })
        .await
        .unwrap();
        let addr = redis.addr().to_owned();
        redis.command(&["SET", "a", "1"]).await.unwrap();
        redis.restart_with_data().await.unwrap();
        assert_eq!(redis.dbsize().await.unwrap(), u64::from(persistent));
        redis.command(&["SET", "b", "1"]).await.unwrap();
        redis.restart_without_data().await.unwrap();
        assert_eq!(redis.dbsize().await.unwrap(), 0);
        assert_eq!(redis.addr(), addr);
    }
}

#[tokio::test]
async fn its_clock_is_stepped() {
    let redis = Redis::start_with(&RedisOptions {
        clock: true,
        ..RedisOptions::default()
    })
    .await
    .unwrap();
    let other = Redis::start().await.unwrap();
    assert!(other.step_clock(1).is_err());
    let clock = async |server: &Redis| {
        let Reply::Array(parts) = server.command(&["TIME"]).await.unwrap() else {
            unreachable!()
        };
        let [seconds, micros] =
            [0, 1].map(|at: usize| parts[at].text().unwrap().parse::<i64>().unwrap());
        seconds * 1000 + micros / 1000
    };
    let ahead = async || clock(&redis).await - clock(&other).await;
    assert!(ahead().await.abs() < 10_000);
    redis.command(&["SET", "a", "1", "EX", "60"]).await.unwrap();
    redis.step_clock(-100_000_000).unwrap();
    assert!((ahead().await + 100_000).abs() < 10_000);
    assert_eq!(redis.dbsize().await.unwrap(), 1);
    redis.step_clock(300_000_000).unwrap();
    assert!((ahead().await - 200_000).abs() < 10_000);
    assert_eq!(redis.command(&["GET", "a"]).await.unwrap(), Reply::Nil);
    redis.restart_with_data().await.unwrap();
    assert!((ahead().await - 200_000).abs() < 10_000);
}

#[tokio::test]
async fn asks_for_the_password() {
    let options = RedisOptions {
        password: Some("secret".into()),
        ..RedisOptions::default()
    };
    let redis = Redis::start_with(&options).await.unwrap();
    assert_eq!(
        redis.command(&["PING"]).await.unwrap(),
        Reply::Simple("PONG".into())
    );
    assert!(redis.url().starts_with("redis://:secret@127.0.0.1:"));
    redis.restart_with_data().await.unwrap();
}

#[tokio::test]
async fn takes_extra_arguments_and_reports_bad_ones() {
    let with = |extra: &[&str]| RedisOptions {
        extra: extra.iter().map(ToString::to_string).collect(),
        ..RedisOptions::default()
    };
    let redis = Redis::start_with(&with(&["--maxmemory", "3mb"]))
        .await
        .unwrap();
    assert!(
        redis
            .info("memory")
            .await
            .unwrap()
            .contains("maxmemory:3145728")
    );
    let refused = Redis::start_with(&with(&["--no-such-option", "1"]))
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("no-such-option"), "{refused}");
}

#[tokio::test]
async fn pauses_resumes_stops_and_starts_again() {
    let redis = Redis::start().await.unwrap();
    redis.pause().await.unwrap();
    assert!(timeout(NEVER, redis.command(&["PING"])).await.is_err());
    assert!(redis.is_running());
    redis.resume().unwrap();
    redis.command(&["PING"]).await.unwrap();
    redis.stop().await.unwrap();
    assert!(!redis.is_running());
    assert!(redis.command(&["PING"]).await.is_err());
    assert!(matches!(redis.pause().await, Err(Error::NotRunning(_))));
    redis.start_again().await.unwrap();
    redis.pause().await.unwrap();
    redis.kill().await.unwrap();
    assert!(!redis.is_running());
}

#[tokio::test]
async fn a_paused_server_and_its_data_go_when_dropped() {
    let redis = Redis::start().await.unwrap();
    redis.pause().await.unwrap();
    let (pid, data) = (redis.pid().unwrap(), redis.data().to_owned());
    drop(redis);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists() && !data.exists());
}

#[tokio::test]
async fn many_know_nothing_of_each_other() {
    let servers = Redis::start_many(5).await.unwrap();
    servers[0].command(&["SET", "a", "1"]).await.unwrap();
    let mut sizes = Vec::new();
    for server in &servers {
        sizes.push(server.dbsize().await.unwrap());
    }
    assert_eq!(sizes, [1, 0, 0, 0, 0]);
}

/// Tells the process id of a server and waits to be killed.
#[tokio::test]
#[ignore = "a_server_ends_when_its_test_is_killed runs this"]
async fn start_and_wait_to_be_killed() {
    let redis = Redis::start().await.unwrap();
    println!("\nserver {}", redis.pid().unwrap());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_server_ends_when_its_test_is_killed() {
    // No process is left to remove the server's folder.
    let folder = tempfile::tempdir().unwrap();
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "redis::start_and_wait_to_be_killed",
        ])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(test.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let pid = lines
        .find_map(|line| Some(line.strip_prefix("server ")?.to_owned()))
        .unwrap();
    test.kill().unwrap();
    test.wait().unwrap();
    let ended = async {
        while std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.contains("redis"))
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), ended).await.unwrap();
}
