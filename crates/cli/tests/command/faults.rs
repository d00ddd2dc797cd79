//! Faults of the command, of its guardian, of the link and of the server: the program and all its descendants have ended
//! before another client's begins. Judged by the times that the programs themselves write.

use std::process::Command;

use crate::support::{self, Family, Running, Stage, is_stopped, send, until};
use leasehold_testbed::{Proxy, Redis};
use rustix::process::Signal;

on!(redis, sqlite, postgres, etcd, zookeeper, redlock: a_stopped_command);
on!(redis, sqlite, postgres, etcd, zookeeper, redlock: a_killed_command);
on!(redis, sqlite, postgres, etcd, zookeeper, redlock: a_killed_guardian);
on!(redis, sqlite, postgres, etcd, zookeeper, redlock: a_stopped_guardian);
on!(redis, sqlite: both_killed);
on!(redis, sqlite: both_stopped);

const NAME: &str = "job";

/// A holder whose program is a family, and a waiter for the same lock.
struct Two {
    family: Family,
    holder: Running,
    next: Running,
}

impl Two {
    fn start(stage: &Stage) -> Two {
        Two::with(stage, stage.run(NAME, ["--"]))
    }

    fn with(stage: &Stage, mut holder: Command) -> Two {
        let family = Family::new();
        let holder = Running::start(holder.args(family.all()));
        family.until_alive();
        let next = Running::start(stage.run(NAME, ["--"]).args(family.once("next")));
        Two {
            family,
            holder,
            next,
        }
    }

    /// The next program ran, and no member of the family lived then.
    fn assert_apart(&mut self) {
        assert_eq!(self.next.end().code(), Some(0));
        let last = self.family.until_gone();
        let next = self.family.written("next");
        assert!(
            last < next,
            "the family lived for {} µs beside the next program",
            last - next
        );
    }
}

async fn a_stopped_command(stage: &Stage) {
    let mut two = Two::start(stage);
    two.holder.signal(Signal::STOP);
    two.assert_apart();
    two.holder.signal(Signal::CONT);
    assert_eq!(two.holder.end().code(), Some(76));
}

/// What the guardian said meanwhile is heard before it is taken for dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_stopped_before_its_guardian_has_answered() {
    let stage = support::sqlite().await;
    let mut two = Two::start(&stage);
    let guardian = two.holder.guardian();
    send(guardian, Signal::STOP);
    // It is asked in each fortieth of a lease, and has a third of one to answer.
    std::thread::sleep(stage.ttl / 8);
    two.holder.signal(Signal::STOP);
    until("the stop of the command", || {
        is_stopped(two.holder.pid()).then_some(())
    });
    send(guardian, Signal::CONT);
    two.assert_apart();
    two.holder.signal(Signal::CONT);
    assert_eq!(two.holder.end().code(), Some(76));
}

async fn a_killed_command(stage: &Stage) {
    let mut two = Two::start(stage);
    two.holder.signal(Signal::KILL);
    two.assert_apart();
}

/// Nothing of the hold is left in the store then, and the program lives on until its guardian has ended it.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_command_whose_store_is_deleted() {
    let stage = support::sqlite().await;
    let (family, mut holder) = stage.held();
    let file = stage.url.strip_prefix("sqlite://").unwrap();
    ["", "-wal", "-shm"]
        .iter()
        .for_each(|part| std::fs::remove_file(format!("{file}{part}")).unwrap());
    holder.signal(Signal::KILL);
    holder.end();
    let next = Running::start(stage.run(NAME, ["--"]).args(family.once("next")));
    Two {
        family,
        holder,
        next,
    }
    .assert_apart();
}

async fn a_killed_guardian(stage: &Stage) {
    let mut two = Two::start(stage);
    send(two.holder.guardian(), Signal::KILL);
    two.assert_apart();
    assert_eq!(two.holder.end().code(), Some(125));
}

async fn a_stopped_guardian(stage: &Stage) {
    let mut two = Two::start(stage);
    send(two.holder.guardian(), Signal::STOP);
    two.assert_apart();
    assert_eq!(two.holder.end().code(), Some(125));
}

/// The documented limit: the kernel ends the program with its guardian, and no process is left to end the rest.
async fn both_killed(stage: &Stage) {
    let mut two = Two::start(stage);
    let guardian = two.holder.guardian();
    two.holder.signal(Signal::STOP);
    send(guardian, Signal::KILL);
    two.holder.signal(Signal::KILL);
    until("the end of the program", || {
        (two.family.alive().len() < 3).then_some(())
    });
    assert_eq!(two.next.end().code(), Some(0));
    assert_eq!(
        two.family.alive().len(),
        2,
        "its child and its daemon run on"
    );
}

/// The documented limit: no process is left to end the program, and only the fencing token protects.
async fn both_stopped(stage: &Stage) {
    let mut two = Two::start(stage);
    let guardian = two.holder.guardian();
    two.holder.signal(Signal::STOP);
    send(guardian, Signal::STOP);
    assert_eq!(two.next.end().code(), Some(0));
    assert_eq!(
        two.family.alive().len(),
        3,
        "the program runs on while the next has the lock"
    );
    // Whichever runs again ends it.
    send(guardian, Signal::CONT);
    two.family.until_gone();
    two.holder.signal(Signal::CONT);
    assert_eq!(two.holder.end().code(), Some(76));
}

/// A holder whose link to the store is the proxy's, and another whose link is not.
fn behind(proxy: &Proxy, stage: &Stage) -> Two {
    let mut holder = stage.run(
        NAME,
        ["--store", &format!("redis://{}", proxy.addr()), "--"],
    );
    holder.env_remove("LEASEHOLD_STORE");
    Two::with(stage, holder)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_swallows_everything() {
    let redis = Redis::start().await.unwrap();
    let (stage, proxy) = (
        support::on_url(redis.url()),
        Proxy::to(redis.addr()).await.unwrap(),
    );
    let mut two = behind(&proxy, &stage);
    proxy.hold();
    two.assert_apart();
    assert_eq!(two.holder.end().code(), Some(76));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_is_cut() {
    let redis = Redis::start().await.unwrap();
    let (stage, proxy) = (
        support::on_url(redis.url()),
        Proxy::to(redis.addr()).await.unwrap(),
    );
    let mut two = behind(&proxy, &stage);
    proxy.cut().await;
    two.assert_apart();
    assert_eq!(two.holder.end().code(), Some(76));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies() {
    let redis = Redis::start().await.unwrap();
    let stage = support::on_url(redis.url());
    let (family, mut holder) = stage.held();
    redis.kill().await.unwrap();
    let killed = support::now();
    assert_eq!(holder.end().code(), Some(76));
    let lived = family.until_gone() - killed;
    assert!(
        u128::from(lived) < stage.ttl.as_micros(),
        "the program lived on for {lived} µs"
    );
}

/// Another's lease is no reason to end anything earlier or later.
#[tokio::test(flavor = "multi_thread")]
async fn two_leases_on_one_name() {
    let stage = support::redis().await;
    let mut long = stage.leasehold(["run", NAME, "--ttl", "1h", "--"]);
    let mut two = Two::with(&stage, stage.run(NAME, ["--"]));
    let mut third = Running::start(long.args(two.family.once("third")));
    two.holder.signal(Signal::STOP);
    until("the command's stop", || {
        is_stopped(two.holder.pid()).then_some(())
    });
    two.assert_apart();
    assert_eq!(third.end().code(), Some(0));
    assert!(two.family.last() < two.family.written("third"));
}
