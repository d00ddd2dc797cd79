//! A store that becomes unavailable while clients wait for it, and comes back.

use std::fs::{self, File};
use std::path::Path;

use leasehold_testbed::{Etcd, Redis, Server};

use crate::support::{self, Running, Stage, code, until};

/// A command that waits behind a holder, and what it says.
fn wait(stage: &Stage, said: &Path, words: [&str; 2]) -> Running {
    let mut command = stage.leasehold(words);
    command.args(["--ttl", "2s", "--label", words[0], "--", "sh", "-c", "exit 5"]);
    Running::start(command.stderr(File::create(said).unwrap()))
}

async fn who_waits_for_ever_waits_it_out(stage: &Stage, server: &Server) {
    let folder = tempfile::tempdir().unwrap();
    let said = |of: &str| folder.path().join(of);
    let held = said("held");
    let script = format!("echo >> {}; exec sleep 1000", held.display());
    let mut leader = Running::start(stage.leasehold(["elect", "job", "--ttl", "2s", "--", "sh", "-c"]).arg(script));
    until("the leader", || held.exists().then_some(()));
    let mut waiting = ["run", "elect"].map(|what| wait(stage, &said(what), [what, "job"]));
    stage.until_queue("job", 1, 2);
    server.kill().await.unwrap();
    for what in ["run", "elect"] {
        until("a word about it", || fs::read_to_string(said(what)).unwrap().contains("is unavailable").then_some(()));
    }
    assert_eq!(code(&mut stage.run("job", ["-n", "--", "true"])), Some(69), "it cannot be used at the start");
    assert!(waiting.iter_mut().all(|one| !one.has_ended()));
    // Otherwise it might lead again, for ever.
    leader.signal(rustix::process::Signal::TERM);
    leader.end();
    server.start_again().await.unwrap();
    for (mut one, what) in waiting.into_iter().zip(["run", "elect"]) {
        assert_eq!(one.end().code(), Some(5));
        let said = fs::read_to_string(said(what)).unwrap();
        assert!(said.lines().all(|line| line.contains("is unavailable")), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_ever_waits_it_out_on_redis() {
    let redis = Redis::start().await.unwrap();
    who_waits_for_ever_waits_it_out(&support::on_url(redis.url()), &redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_ever_waits_it_out_on_etcd() {
    let etcd = Etcd::start().await.unwrap();
    who_waits_for_ever_waits_it_out(&support::on_url(format!("etcd://{}", etcd.addr())), &etcd).await;
}
