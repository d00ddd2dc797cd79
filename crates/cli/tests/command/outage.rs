//! A store that becomes unavailable while clients wait for it, and comes back.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use leasehold::backend::Moment;
use leasehold_testbed::{Etcd, Proxy, Redis, RedisOptions, Server};

use crate::support::{self, Running, Stage, code, until};

/// A command that waits behind a holder, and what it says.
fn wait(stage: &Stage, said: &Path, words: [&str; 2]) -> Running {
    let mut command = stage.leasehold(words);
    command.args([
        "--ttl", "2s", "--label", words[0], "--", "sh", "-c", "exit 5",
    ]);
    Running::start(command.stderr(File::create(said).unwrap()))
}

async fn who_waits_for_ever_waits_it_out(stage: &Stage, server: &Server) {
    let folder = tempfile::tempdir().unwrap();
    let said = |of: &str| folder.path().join(of);
    let held = said("held");
    let script = format!("echo >> {}; exec sleep 1000", held.display());
    let mut leader = Running::start(
        stage
            .leasehold(["elect", "job", "--ttl", "2s", "--", "sh", "-c"])
            .arg(script),
    );
    until("the leader", || held.exists().then_some(()));
    let mut waiting = ["run", "elect"].map(|what| wait(stage, &said(what), [what, "job"]));
    stage.until_queue("job", 1, 2);
    server.kill().await.unwrap();
    for what in ["run", "elect"] {
        until("a word about it", || {
            fs::read_to_string(said(what))
                .unwrap()
                .contains("is unavailable")
                .then_some(())
        });
    }
    assert_eq!(
        code(&mut stage.run("job", ["-n", "--", "true"])),
        Some(69),
        "it cannot be used at the start"
    );
    assert!(waiting.iter_mut().all(|one| !one.has_ended()));
    // Otherwise it might lead again, for ever.
    leader.signal(rustix::process::Signal::TERM);
    leader.end();
    server.start_again().await.unwrap();
    for (mut one, what) in waiting.into_iter().zip(["run", "elect"]) {
        assert_eq!(one.end().code(), Some(5));
        let said = fs::read_to_string(said(what)).unwrap();
        assert!(
            said.lines().all(|line| line.contains("is unavailable")),
            "{said}"
        );
    }
}

/// Starts a command with this program, and waits until it has said that the store is unavailable.
fn start_before_the_store(stage: &Stage, said: &Path, words: &[&str], program: &str) -> Running {
    let mut command = stage.leasehold(words.iter().copied());
    command.args(["--", "sh", "-c", program]);
    let running = Running::start(command.stderr(File::create(said).unwrap()));
    until("a word about it", || {
        fs::read_to_string(said)
            .unwrap()
            .contains("is unavailable")
            .then_some(())
    });
    running
}

/// The server is away at the start, and comes while the command waits: without a limit, or within it.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_at_the_start_is_waited_for() {
    let redis = Redis::start().await.unwrap();
    let stage = support::on_url(redis.url());
    redis.kill().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let said = |of: &str| folder.path().join(of);
    let started: Vec<Running> = [
        ("wait", &["run", "a", "--wait", "1h"][..]),
        ("run", &["run", "b", "--ttl", "1s"]),
        ("elect", &["elect", "c", "--ttl", "1s"]),
    ]
    .map(|(of, words)| start_before_the_store(&stage, &said(of), words, "exit 5"))
    .into();
    // These end by themselves. The others have waited for longer than their leases then.
    for words in [
        &["run", "job", "-n"][..],
        &["run", "job", "--wait", "2s"],
        &["run", "job", "--wait", "2s", "--ttl", "1s"],
    ] {
        let began = Moment::now();
        let mut command = stage.leasehold(words.iter().copied());
        let output = support::output(command.args(["--", "true"]));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(69), "{words:?}: {said}");
        let refused = "connection refused";
        if words.contains(&"-n") {
            assert!(
                said.contains(refused) && said.lines().count() == 1,
                "{said}"
            );
            continue;
        }
        let told: Vec<&str> = said.lines().collect();
        assert!(
            matches!(
                told[..],
                [first, last] if first.contains("trying for 2s") && first.contains(refused)
                    && last.contains("not available for ") && last.contains(refused)
            ),
            "{said}"
        );
        let took = Moment::now().since(began);
        assert!(took > Duration::from_millis(1900), "{took:?}");
    }
    redis.start_again().await.unwrap();
    for (mut one, of) in started.into_iter().zip(["wait", "run", "elect"]) {
        assert_eq!(one.end().code(), Some(5), "{of}");
        let said = fs::read_to_string(said(of)).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("connection refused"), "{said}");
    }
}

/// `--no-wait` asks once: its end depends neither on the answer nor on the lease, a third of which would be 200 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_ends_soon_whatever_the_server_answers() {
    let tried = |url: String, why: &str| {
        let began = Moment::now();
        let run = ["run", "job", "-n", "--ttl", "10m", "--", "false"];
        let once = ["once", "job", "--ttl", "10m", "--", "false"];
        let stage = support::on_url(url);
        for words in [&run[..], &once] {
            let output = support::output(&mut stage.leasehold(words.iter().copied()));
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(69), "{why}: {words:?}: {said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
        Moment::now().since(began) / 2
    };
    for refusing in [
        &["--maxmemory", "1kb"][..],
        &["--replicaof", "127.0.0.1", "1"],
        &["--min-replicas-to-write", "3"],
    ] {
        let options = RedisOptions {
            extra: refusing.iter().map(|it| (*it).to_owned()).collect(),
            ..RedisOptions::default()
        };
        let redis = Redis::start_with(&options).await.unwrap();
        let took = tried(redis.url(), refusing[0]);
        assert!(took < Duration::from_secs(4), "{refusing:?}: {took:?}");
    }
    let redis = Redis::start().await.unwrap();
    redis.pause().await.unwrap();
    let took = tried(redis.url(), "silent");
    // Two seconds, and as much again for the end of the client.
    assert!(took < Duration::from_secs(8), "{took:?}");
}

/// A mistake is no outage, however long the command may wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_is_not_waited_for() {
    let options = RedisOptions {
        password: Some("s3cret".into()),
        ..RedisOptions::default()
    };
    let redis = Redis::start_with(&options).await.unwrap();
    let wrong = support::on_url(format!("redis://:wr0ng@{}", redis.addr()));
    let bad = support::on_url("redis://h:x".into());
    for words in [
        &["run", "job"][..],
        &["run", "job", "--wait", "1h"],
        &["elect", "job"],
    ] {
        for (stage, expected) in [(&wrong, 69), (&bad, 64)] {
            let mut command = stage.leasehold(words.iter().copied());
            let output = support::output(command.args(["--", "true"]));
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(expected), "{words:?}: {said}");
            assert!(
                said.lines().count() == 1 && !said.contains("is unavailable"),
                "{said}"
            );
            assert!(!said.contains("wr0ng"), "{said}");
        }
    }
}

/// A signal ends the wait for the store, as it ends a wait for the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_wait_for_a_store_that_is_away() {
    use rustix::process::Signal;

    let stage = support::on_url("redis://127.0.0.1:1".into());
    let folder = tempfile::tempdir().unwrap();
    let path = |of: &str| folder.path().join(of);
    let ran = path("ran");
    let report = path("report");
    let program = format!("touch {}", ran.display());
    let report_words = report.display().to_string();
    for words in [
        &["run", "job", "--report", &report_words][..],
        &["run", "job", "--wait", "1h"],
        &["elect", "job"],
    ] {
        let mut command = start_before_the_store(&stage, &path("said"), words, &program);
        let guardian = command.guardian();
        command.signal(Signal::TERM);
        let ended = command.end();
        assert_eq!(ended.signal(), Some(15), "{words:?}: {ended:?}");
        until("the end of the guardian", || {
            (!Path::new(&format!("/proc/{guardian}")).exists()).then_some(())
        });
        assert!(!ran.exists(), "{words:?}");
    }
    let told = fs::read_to_string(report).unwrap();
    assert!(told.contains("\"outcome\":\"interrupted\""), "{told}");
}

/// The lock is free then, and nobody needs to know.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_was_lost() {
    let redis = Redis::start().await.unwrap();
    let proxy = Proxy::to(redis.addr()).await.unwrap();
    let stage = support::on_url(format!("redis://{}", proxy.addr()));
    let folder = tempfile::tempdir().unwrap();
    let [go, said] = ["go", "said"].map(|name| folder.path().join(name));
    let script = format!("while [ ! -e {} ]; do sleep 0.01; done", go.display());
    // Nothing is renewed meanwhile.
    let mut run = stage.leasehold(["run", "job", "--ttl", "1h", "--", "sh", "-c", &script]);
    let mut run = Running::start(run.stderr(File::create(&said).unwrap()));
    support::on_url(redis.url()).until_queue("job", 1, 0);
    let trap = proxy.lose_reply_matching("job");
    fs::write(&go, "").unwrap();
    trap.done().await;
    assert_eq!(run.end().code(), Some(0));
    assert_eq!(fs::read_to_string(&said).unwrap(), "");
}

/// The server is stopped while a lock is held. Once the program is ended, nothing that the command still asks can be of use for long.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_command_does_not_wait_for_a_silent_server() {
    let etcd = Etcd::start().await.unwrap();
    let stage = support::on_url(format!("etcd://{}", etcd.addr()));
    let folder = tempfile::tempdir().unwrap();
    let [pid, said] = ["pid", "said"].map(|name| folder.path().join(name));
    let script = format!(
        "echo $$ > {0}-; mv {0}- {0}; exec sleep 1000",
        pid.display()
    );
    let mut run = stage.leasehold(["run", "job", "--ttl", "3s", "--", "sh", "-c", &script]);
    let mut run = Running::start(run.stderr(File::create(&said).unwrap()));
    let pid = until("the program", || fs::read_to_string(&pid).ok());
    etcd.pause().await.unwrap();
    let program = Path::new("/proc").join(pid.trim());
    until("the end of the program", || {
        (!program.exists()).then_some(())
    });
    let ended = Moment::now();
    assert_eq!(run.end().code(), Some(76));
    let took = Moment::now().since(ended);
    // Two seconds for a release, two for the end of the client, and a busy machine.
    assert!(took < Duration::from_secs(6), "{took:?}");
    etcd.resume().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_ever_waits_it_out_on_redis() {
    let redis = Redis::start().await.unwrap();
    who_waits_for_ever_waits_it_out(&support::on_url(redis.url()), &redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_ever_waits_it_out_on_etcd() {
    let etcd = Etcd::start().await.unwrap();
    who_waits_for_ever_waits_it_out(&support::on_url(format!("etcd://{}", etcd.addr())), &etcd)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_tells_why_nothing_was_renewed() {
    let redis = Redis::start().await.unwrap();
    let stage = support::on_url(redis.url());
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let mut run = stage.run("job", ["--", "sleep", "1000"]);
    let mut run = Running::start(run.stderr(File::create(&said).unwrap()));
    stage.until_queue("job", 1, 0);
    redis.kill().await.unwrap();
    assert_eq!(run.end().code(), Some(76));
    let said = fs::read_to_string(&said).unwrap();
    assert!(
        said.contains("was lost") && said.contains("connection refused"),
        "{said}"
    );
}
