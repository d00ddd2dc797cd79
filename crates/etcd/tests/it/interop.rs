//! What operators and other tools see of etcd's locks: lists, `etcdctl`, tokens in a user's own
//! transactions, refusals.

use leasehold_core::backend::TokenFloor;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use etcd_client::{Compare, Txn, TxnOp};
use leasehold_core::backend::{Backend, Claimed, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken, Loss, Name, Store};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::ChildStdout;

#[tokio::test]
async fn names_are_listed_over_many_pages_and_long_queues() {
    within(90, async {
        let server = server().await;
        let mut raw = raw(&server).await;
        // Many entries of one name, many names, another tool's names, and keys that are no lock's.
        let mut puts: Vec<String> = (0..1200)
            .map(|i| format!("test/many/{:x}-{i}", 0x1000 + i))
            .collect();
        puts.extend((0..700).map(|i| format!("test/n{i:04}/1-0")));
        puts.extend(
            ["test/a!/1-0", "test/a/1-0", "test/a%2Fb/1-0", "test/a./1-0"].map(String::from),
        );
        puts.extend(
            [
                "test/%session/1",
                "test/stray",
                "test/%2f/1",
                "tes",
                "other/x/1-0",
            ]
            .map(String::from),
        );
        for chunk in puts.chunks(100) {
            let puts: Vec<TxnOp> = chunk
                .iter()
                .map(|key| TxnOp::put(key.as_str(), "", None))
                .collect();
            raw.txn(Txn::new().and_then(puts)).await.unwrap();
        }
        let etcd = client(server.addr()).await;
        let mut expected: Vec<Name> = (0..700).map(|i| Name::from(format!("n{i:04}"))).collect();
        expected.extend(["many", "a!", "a", "a/b", "a."].map(Name::from));
        expected.sort();
        assert_eq!(etcd.list("", None, 10_000).await.unwrap(), expected);
        assert_eq!(
            etcd.list("", None, 3).await.unwrap(),
            ["a", "a!", "a."].map(Name::from)
        );
        assert_eq!(
            etcd.list("a/", None, 3).await.unwrap(),
            ["a/b"].map(Name::from)
        );
        assert_eq!(
            etcd.list("n069", Some(&"n0697".into()), 9).await.unwrap(),
            ["n0698", "n0699"].map(Name::from)
        );
        assert!(etcd.list("zzz", None, 9).await.unwrap().is_empty());
        assert_eq!(
            etcd.inspect(&"many".into()).await.unwrap().waiters.len(),
            1199
        );
        let bare = Etcd::connect(&format!("etcd://{}", server.addr()))
            .await
            .unwrap();
        assert_eq!(
            bare.list("", None, 9).await.unwrap(),
            ["other", "test"].map(Name::from)
        );
    })
    .await;
}

#[tokio::test]
async fn other_tools_wait_for_us_and_a_stray_key_blocks_visibly() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let held = fair("jobs/1");
        granted(etcd.claim(&held).await);
        let mut ctl = tokio::process::Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args([
                "--endpoints",
                &server.url(),
                "lock",
                "test/jobs%2F1",
                "true",
            ])
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let name = Name::from("jobs/1");
        while etcd.inspect(&name).await.unwrap().waiters.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(etcd.inspect(&name).await.unwrap().waiters[0].foreign);
        assert!(ctl.try_wait().unwrap().is_none());
        release(&etcd, &held).await;
        assert!(within(20, ctl.wait()).await.unwrap().success());
        assert!(keys(&server, "").await.is_empty());

        raw(&server)
            .await
            .put("test/junk/\u{0}odd", "x".repeat(1000), None)
            .await
            .unwrap();
        let Claimed::Busy(who) = etcd
            .claim(&claim("junk", WaitPolicy::Try, TTL))
            .await
            .unwrap()
        else {
            panic!()
        };
        assert!(who.foreign && who.label.is_none());
        let queue = etcd.inspect(&"junk".into()).await.unwrap();
        // It can be removed like any holder.
        assert!(
            etcd.evict(&"junk".into(), queue.holders[0].token.unwrap())
                .await
                .unwrap()
        );
        granted(etcd.claim(&fair("junk")).await);
    })
    .await;
}

/// `etcdctl elect` campaigns behind our leader, leads, and resigns to ours; each side sees who
/// leads.
#[tokio::test]
async fn etcdctl_campaigns_in_one_queue_with_us() {
    within(90, async {
        let server = server().await;
        let (one, two) = (
            Store::new(client(server.addr()).await),
            Store::new(client(server.addr()).await),
        );
        let elect = |word: &str| {
            let mut ctl = tokio::process::Command::new("etcdctl");
            ctl.env("ETCDCTL_API", "3")
                .args(["--endpoints", &server.url(), "elect"]);
            ctl.args(word.split(' '))
                .kill_on_drop(true)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let until = |waiters: usize| {
            let store = &one;
            async move {
                while store
                    .election("jobs/1")
                    .inspect()
                    .await
                    .unwrap()
                    .waiters
                    .len()
                    != waiters
                {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        };
        let mut observer = two.election("jobs/1").observe().await.unwrap();
        let first = one
            .election("jobs/1")
            .campaign("ours, first")
            .await
            .unwrap();
        observer.changed().await.unwrap();
        assert_eq!(observer.current().unwrap().value, "ours, first");

        let mut theirs = elect("test/jobs%2F1 theirs");
        until(1).await;
        let second = tokio::spawn(two.election("jobs/1").campaign("ours, second"));
        until(2).await;
        let mut listener = elect("-l test/jobs%2F1");
        let mut heard = BufReader::new(listener.stdout.take().unwrap()).lines();
        let mut said = BufReader::new(theirs.stdout.take().unwrap()).lines();
        hears(&mut heard, "ours, first").await;

        let token = first.fencing_token();
        first.resign().await.unwrap();
        hears(&mut said, "theirs").await;
        hears(&mut heard, "theirs").await;
        observer.changed().await.unwrap();
        let leader = observer.current().unwrap().clone();
        // What another tool stands for is not known to us, but that it leads, and that it came
        // later.
        assert!(
            leader.value.is_empty() && leader.token > token,
            "{leader:?}"
        );
        assert!(two.election("jobs/1").inspect().await.unwrap().holders[0].foreign);
        assert!(!second.is_finished());

        let pid = theirs.id().unwrap().to_string();
        assert!(
            tokio::process::Command::new("kill")
                .args(["-INT", &pid])
                .status()
                .await
                .unwrap()
                .success()
        );
        let second = within(10, second).await.unwrap().unwrap();
        assert!(second.fencing_token() > leader.token);
        hears(&mut heard, "ours, second").await;
        observer.changed().await.unwrap();
        assert_eq!(observer.current().unwrap().value, "ours, second");
        second.resign().await.unwrap();
        theirs.wait().await.unwrap();
        assert!(keys(&server, "").await.is_empty());
    })
    .await;
}

/// Reads lines until this one.
async fn hears(lines: &mut Lines<BufReader<ChildStdout>>, line: &str) {
    let heard = async {
        while let Some(next) = lines.next_line().await.unwrap() {
            if next == line {
                return;
            }
        }
        panic!("{line:?} was never said");
    };
    within(20, heard).await;
}

/// A holder that is cut off past its lease, and does not know it, writes nothing: etcd itself
/// refuses, atomically.
#[tokio::test]
async fn the_write_of_a_holder_that_was_paused_is_refused() {
    within(60, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let (locks, others) = (
            Arc::new(client(proxy.addr()).await),
            Arc::new(client(server.addr()).await),
        );
        let (store, other) = (Store::new(locks.clone()), Store::new(others.clone()));
        let ttl = Duration::from_secs(2);
        let mut raw = raw(&server).await;
        let write = |condition: &Compare, value: &str| {
            Txn::new()
                .when([condition.clone()])
                .and_then([put("data", value)])
        };

        let paused = store
            .rw_lock("rows")
            .ttl(ttl)
            .write()
            .acquire()
            .await
            .unwrap();
        let condition = locks.still_holds(&paused).unwrap();
        assert!(
            raw.txn(write(&condition, "first"))
                .await
                .unwrap()
                .succeeded()
        );
        // It remains true for the whole hold: another label, a downgrade.
        paused.downgrade().await.unwrap();
        assert!(
            raw.txn(write(&condition, "second"))
                .await
                .unwrap()
                .succeeded()
        );
        assert_eq!(
            others.still_holds(&paused).unwrap_err().kind(),
            ErrorKind::Lost,
            "it is not theirs"
        );

        proxy.hold();
        let next = other.lock("rows").ttl(LONG).acquire().await.unwrap();
        assert!(next.fencing_token() > paused.fencing_token());
        let now = others.still_holds(&next).unwrap();
        // The write that the paused holder had under way, or makes without asking its guard.
        assert!(
            !raw.txn(write(&condition, "stale"))
                .await
                .unwrap()
                .succeeded()
        );
        assert!(raw.txn(write(&now, "next")).await.unwrap().succeeded());
        assert!(
            !raw.txn(write(&condition, "stale"))
                .await
                .unwrap()
                .succeeded()
        );
        assert_eq!(
            raw.get("data", None).await.unwrap().kvs()[0].value(),
            b"next"
        );

        // The same key is used again for the next hold, and is another one.
        next.release().await.unwrap();
        let again = other.lock("rows").ttl(LONG).acquire().await.unwrap();
        assert!(!raw.txn(write(&now, "stale")).await.unwrap().succeeded());
        let view = again.view();
        assert!(others.still_holds(&view).is_ok());
        again.release().await.unwrap();
        assert_eq!(
            others.still_holds(&view).unwrap_err().kind(),
            ErrorKind::Lost
        );
    })
    .await;
}

fn put(key: &str, value: &str) -> TxnOp {
    TxnOp::put(key, value, None)
}

#[tokio::test]
async fn what_cannot_be_done_is_an_error() {
    within(30, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let forever = claim("a", WaitPolicy::Fair, Duration::MAX);
        assert_eq!(
            etcd.claim(&forever).await.unwrap_err().kind(),
            ErrorKind::Invalid
        );
        let short = granted(
            etcd.claim(&claim("a", WaitPolicy::Fair, Duration::from_millis(1)))
                .await,
        );
        assert!(
            short.validity.ttl() >= Duration::from_secs(1),
            "the server's minimum, and no less is answered"
        );
        etcd.close().await.unwrap();
        assert_eq!(
            etcd.claim(&fair("b")).await.unwrap_err().kind(),
            ErrorKind::Closed
        );
        assert_eq!(server.lease_count().await.unwrap(), 0);
    })
    .await;
}

#[tokio::test]
async fn other_tools_wait_behind_readers_and_readers_behind_them() {
    within(60, async {
        let server = server().await;
        let store = store(&server).await;
        let (first, second) = (
            store.rw_lock("a").read().acquire().await.unwrap(),
            store.rw_lock("a").read().acquire().await.unwrap(),
        );
        let mut ctl = tokio::process::Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &server.url(), "lock", "test/a"])
            .kill_on_drop(true)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        until_waiting(&store, "a", 1).await;
        let reader = tokio::spawn(store.rw_lock("a").read().acquire());
        until_waiting(&store, "a", 2).await;
        first.release().await.unwrap();
        assert_eq!(
            store.lock("a").inspect().await.unwrap().waiters.len(),
            2,
            "it waits for all of ours"
        );
        second.release().await.unwrap();
        while !store.lock("a").inspect().await.unwrap().holders[0].foreign {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!reader.is_finished());
        ctl.kill().await.unwrap();
        // It revoked nothing: its entry is deleted by hand.
        let queue = store.lock("a").inspect().await.unwrap();
        assert!(
            store
                .evict("a", queue.holders[0].token.unwrap())
                .await
                .unwrap()
        );
        drop(within(15, reader).await.unwrap().unwrap());
    })
    .await;
}

#[tokio::test]
async fn etcdctl_sees_the_value_of_a_leader() {
    within(60, async {
        let server = server().await;
        let store = store(&server).await;
        let leadership = store.election("a").campaign("10.0.0.7:8080").await.unwrap();
        let mut listener = tokio::process::Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &server.url(), "elect", "-l", "test/a"])
            .kill_on_drop(true)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The key is said first.
        let mut heard = BufReader::new(listener.stdout.take().unwrap()).lines();
        hears(&mut heard, &keys(&server, "test/a/").await[0]).await;
        hears(&mut heard, "10.0.0.7:8080").await;
        leadership.resign().await.unwrap();
    })
    .await;
}

/// All names of one step have one create_revision: of each hold its own key is compared, and no
/// other.
#[tokio::test]
async fn a_condition_is_about_its_own_name_of_several() {
    within(60, async {
        let server = server().await;
        let (etcd, others) = (
            Arc::new(client(server.addr()).await),
            Arc::new(client(server.addr()).await),
        );
        let (store, other) = (Store::new(etcd.clone()), Store::new(others.clone()));
        let mut raw = raw(&server).await;
        let writes = |condition: Compare| {
            Txn::new()
                .when([condition])
                .and_then([TxnOp::put("data", "x", None)])
        };
        // Suffixes of one another, in namespaces that hide that.
        let (names, one, other) = (
            ["a", "one/a", "a/a"],
            store.namespace("one"),
            other.namespace("one"),
        );
        let several = one.multi_lock(names).acquire().await.unwrap();
        let views = names.map(|name| several.get(name).unwrap().view());
        for (i, view) in views.iter().enumerate() {
            let condition = etcd.still_holds(view).unwrap();
            assert!(
                raw.txn(writes(condition.clone()))
                    .await
                    .unwrap()
                    .succeeded()
            );
            assert_eq!(
                others.still_holds(view).unwrap_err().kind(),
                ErrorKind::Lost
            );
            other
                .evict(view.name().clone(), view.fencing_token())
                .await
                .unwrap();
            assert!(
                !raw.txn(writes(condition)).await.unwrap().succeeded(),
                "evicted"
            );
            assert_eq!(within(15, view.lost()).await, Loss::Evicted);
            assert_eq!(etcd.still_holds(view).unwrap_err().kind(), ErrorKind::Lost);
            for next in &views[i + 1..] {
                let condition = etcd.still_holds(next).unwrap();
                assert!(
                    raw.txn(writes(condition)).await.unwrap().succeeded(),
                    "{:?}",
                    next.name()
                );
            }
        }
    })
    .await;
}

/// Another tool's entries have their own numbers, and one of ours behind them a greater one.
#[tokio::test]
async fn ours_behind_another_tool_s_is_greater() {
    within(60, async {
        let server = server().await;
        const CLOCK: FencingToken = FencingToken::new(1_795_000_000_000_000);
        let (etcd, mut raw) = (client(server.addr()).await, raw(&server).await);
        let (before, after) = (fair("a"), fair("a"));
        let first = granted(etcd.claim(&before).await);
        raw.put("test/a/694d7", "", None).await.unwrap();
        etcd.raise(CLOCK).await.unwrap();
        waiting(etcd.claim(&after).await);
        release(&etcd, &before).await;
        let holder = etcd.inspect(&"a".into()).await.unwrap().holders.remove(0);
        assert!(holder.foreign && holder.token > Some(first.token) && holder.token < Some(CLOCK));
        assert!(
            etcd.evict(&"a".into(), holder.token.unwrap())
                .await
                .unwrap()
        );
        assert!(becomes_granted(&etcd, &after).await.token > CLOCK);
    })
    .await;
}
