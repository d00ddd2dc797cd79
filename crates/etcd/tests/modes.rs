//! Readers, permits, downgrades and observers: what they cost, what they leave, and who hears of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test judges by panicking")]
#![allow(clippy::large_futures, reason = "a test is one future")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::*;
use leasehold_core::seam::{Backend, Claim, Claimed, Mode, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken, Loss, Store};
use leasehold_testbed as testbed;

/// So long that nothing in here happens because a lease ended or a nap was over.
const LONG: Duration = Duration::from_secs(60);

async fn store(server: &testbed::Etcd) -> Store {
    Store::new(client(server.addr()).await).ttl(LONG)
}

fn of(mode: Mode, policy: WaitPolicy) -> Claim {
    Claim::new("a", mode, policy, LONG, "test")
}

fn again_as(claim: &Claim, mode: Mode, policy: WaitPolicy) -> Claim {
    let mut again = claim.clone();
    (again.mode, again.policy) = (mode, policy);
    again
}

fn permits(n: u32) -> Mode {
    Mode::Permits { n, of: 3 }
}

async fn revision(server: &testbed::Etcd) -> i64 {
    raw(server).await.get("nothing", None).await.unwrap().header().unwrap().revision()
}

#[tokio::test]
async fn a_try_of_any_mode_leaves_nothing_and_never_stands_in_line() {
    within(60, async {
        let server = server().await;
        let (etcd, rival) = (client(server.addr()).await, client(server.addr()).await);
        for etcd in [&etcd, &rival] {
            let warm = Claim::new("warm", Mode::Exclusive, WaitPolicy::Try, LONG, "");
            granted(etcd.claim(&warm).await);
            release(etcd, &warm).await;
        }
        for (held, refused, let_in) in [
            (Mode::Exclusive, [Mode::Exclusive, Mode::Shared, permits(1)], None),
            (Mode::Shared, [Mode::Exclusive, permits(1), permits(3)], Some(Mode::Shared)),
            (permits(2), [Mode::Exclusive, Mode::Shared, permits(2)], Some(permits(1))),
        ] {
            let before = requests(&server).await;
            let hold = of(held, WaitPolicy::Try);
            granted(rival.claim(&hold).await);
            assert_eq!(requests_since(&server, &before).await, counts(&[("Txn", 1)]), "{held:?} of an empty line");
            let (before, at) = (requests(&server).await, revision(&server).await);
            for mode in refused {
                let Claimed::Busy(who) = etcd.claim(&of(mode, WaitPolicy::Try)).await.unwrap() else {
                    panic!("{mode:?}")
                };
                assert_eq!((who.label.as_deref(), who.waiters), (Some("test"), Some(0)), "{mode:?}");
            }
            assert_eq!(revision(&server).await, at, "nothing was written, not even for a moment");
            let spent = requests_since(&server, &before).await;
            assert_eq!(spent["Txn"], 3, "a refusal is one request");
            if let Some(mode) = let_in {
                let before = requests(&server).await;
                let second = of(mode, WaitPolicy::Try);
                let grant = granted(etcd.claim(&second).await);
                assert_eq!(requests_since(&server, &before).await, counts(&[("Txn", 2)]), "{mode:?}");
                assert_eq!(granted(etcd.claim(&second).await).token, grant.token);
                release(&etcd, &second).await;
            }
            release(&rival, &hold).await;
        }
        assert!(keys(&server, "").await.is_empty());
    })
    .await;
}

/// A writer that comes between the look of a try and its entry is before it.
#[tokio::test]
async fn a_try_does_not_pass_whoever_came_meanwhile() {
    within(90, async {
        let server = server().await;
        let (etcd, rival) = (client(server.addr()).await, client(server.addr()).await);
        let reader = of(Mode::Shared, WaitPolicy::Fair);
        granted(rival.claim(&reader).await);
        let (mut before, mut behind) = (0, 0);
        for round in 0..300 {
            let (tried, writer) = (of(Mode::Shared, WaitPolicy::Try), of(Mode::Exclusive, WaitPolicy::Fair));
            let late = async {
                tokio::time::sleep(Duration::from_micros(round * 10)).await;
                rival.claim(&writer).await
            };
            let (answer, stood) = tokio::join!(etcd.claim(&tried), late);
            let place = waiting(stood).place;
            let number = raw(&server).await.get(place.as_str(), None).await.unwrap().kvs()[0].create_revision();
            match answer.unwrap() {
                Claimed::Granted(grant) => {
                    assert!(grant.token.as_i64() >> 8 < number, "let in behind a writer");
                    before += 1;
                }
                Claimed::Busy(_) => behind += 1,
                Claimed::Waiting(_) => panic!("a try does not wait"),
            }
            release(&etcd, &tried).await;
            release(&rival, &writer).await;
        }
        assert!(before > 0 && behind > 0, "{before} before, {behind} behind: no race was seen");
    })
    .await;
}

/// Each that gets in makes all others look again.
#[tokio::test]
async fn a_crowd_of_tries_gets_in() {
    within(60, async {
        let server = server().await;
        let mut stores = Vec::new();
        for _ in 0..3 {
            stores.push(store(&server).await);
        }
        let tries: Vec<_> = (0..30).map(|i| tokio::spawn(stores[i % 3].rw_lock("a").read().try_acquire())).collect();
        let mut guards = Vec::new();
        for tried in tries {
            guards.push(tried.await.unwrap().unwrap());
        }
        let line = stores[0].rw_lock("a").inspect().await.unwrap();
        assert_eq!((line.holders.len(), line.waiters.len()), (30, 0));
        let mut tokens: Vec<_> = guards.iter().map(|guard| guard.fencing_token()).collect();
        tokens.sort();
        tokens.dedup();
        assert_eq!(tokens.len(), 30, "each has a token of its own");
        let busy = stores[0].rw_lock("a").write().try_acquire().await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Contended);
    })
    .await;
}

#[tokio::test]
async fn readers_and_writers_take_turns_in_line_order() {
    within(60, async {
        let server = server().await;
        let (one, two) = (store(&server).await, store(&server).await);
        let lock = |store: &Store| store.rw_lock("a");
        let (first, second) = (lock(&one).read().acquire().await.unwrap(), lock(&two).read().acquire().await.unwrap());
        let writer = tokio::spawn(lock(&two).write().acquire());
        until_waiting(&one, 1).await;
        let third = tokio::spawn(lock(&one).read().acquire());
        until_waiting(&one, 2).await;
        let fourth = tokio::spawn(lock(&two).read().acquire());
        until_waiting(&one, 3).await;
        first.release().await.unwrap();
        assert!(!writer.is_finished() && !third.is_finished(), "a reader does not pass a writer");
        second.release().await.unwrap();
        let writer = within(5, writer).await.unwrap().unwrap();
        assert!(!third.is_finished() && !fourth.is_finished());
        let token = writer.fencing_token();
        writer.release().await.unwrap();
        let (third, fourth) = (within(5, third).await.unwrap().unwrap(), within(5, fourth).await.unwrap().unwrap());
        assert!(third.fencing_token() > token && fourth.fencing_token() > third.fencing_token());
    })
    .await;
}

async fn until_waiting(store: &Store, waiters: usize) {
    while store.lock("a").inspect().await.unwrap().waiters.len() != waiters {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn permits_are_never_more_than_there_are_and_a_hand_over_is_two_requests() {
    within(90, async {
        const WORKERS: usize = 12;
        let server = server().await;
        let mut stores = Vec::new();
        for _ in 0..3 {
            stores.push(store(&server).await);
        }
        let out = Arc::new(AtomicU32::new(0));
        let work = |rounds: usize| {
            let workers = (0..WORKERS).map(|i| {
                let (semaphore, out) = (stores[i % 3].semaphore("a", 3), out.clone());
                tokio::spawn(async move {
                    let n = 1 + (i % 2) as u32;
                    for _ in 0..rounds {
                        let guard = semaphore.permits(n).acquire().await.unwrap();
                        let now = out.fetch_add(n, SeqCst) + n;
                        assert!(now <= 3, "{now} permits are out");
                        tokio::task::yield_now().await;
                        out.fetch_sub(n, SeqCst);
                        guard.release().await.unwrap();
                    }
                })
            });
            let workers: Vec<_> = workers.collect();
            async move {
                for worker in workers {
                    worker.await.unwrap();
                }
            }
        };
        work(1).await;
        let before = requests(&server).await;
        work(30).await;
        let spent: u64 = requests_since(&server, &before).await.values().sum();
        let each = spent as f64 / (WORKERS * 30) as f64;
        assert!(each <= 2.1, "{each} requests for a hand-over");
    })
    .await;
}

#[tokio::test]
async fn another_number_of_permits_is_refused_and_leaves_nothing() {
    within(60, async {
        let server = server().await;
        let (one, two) = (store(&server).await, store(&server).await);
        // Also if the claim with another number only waits.
        let writer = one.lock("a").acquire().await.unwrap();
        let waiter = tokio::spawn(one.semaphore("a", 3).acquire());
        until_waiting(&one, 1).await;
        let refused = two.semaphore("a", 2).acquire().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        let refused = two.semaphore("a", 2).try_acquire().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        while keys(&server, "test/a/").await.len() != 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        writer.release().await.unwrap();
        drop(within(5, waiter).await.unwrap().unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_downgrade_keeps_the_key_and_lets_the_readers_in() {
    within(60, async {
        let server = server().await;
        let (etcd, other) = (client(server.addr()).await, store(&server).await);
        let writer = of(Mode::Exclusive, WaitPolicy::Fair);
        let grant = granted(etcd.claim(&writer).await);
        let reader = tokio::spawn(other.rw_lock("a").read().acquire());
        until_waiting(&other, 1).await;
        let next_writer = tokio::spawn(other.rw_lock("a").write().acquire());
        until_waiting(&other, 2).await;
        // The watch of the waiters stands, or the claim that follows is read by it.
        let shared = again_as(&writer, Mode::Shared, WaitPolicy::Try);
        let again = granted(etcd.claim(&shared).await);
        assert_eq!((again.token, &again.place), (grant.token, &grant.place));
        let reader = within(5, reader).await.unwrap().unwrap();
        assert!(reader.fencing_token() > grant.token);
        // One that comes late does not take it back, nor does a new label.
        let late = granted(etcd.claim(&writer.clone().with_label("late")).await);
        assert_eq!(late.token, grant.token);
        let line = other.lock("a").inspect().await.unwrap();
        assert_eq!((line.holders.len(), line.waiters.len()), (2, 1));
        assert_eq!(line.holders[0].label.as_deref(), Some("late"));
        // A place in line changes no mode.
        release(&etcd, &shared).await;
        assert!(!next_writer.is_finished());
        reader.release().await.unwrap();
        let writing = within(5, next_writer).await.unwrap().unwrap();
        let waiter = of(Mode::Exclusive, WaitPolicy::Fair);
        waiting(etcd.claim(&waiter).await);
        waiting(etcd.claim(&again_as(&waiter, Mode::Shared, WaitPolicy::Fair)).await);
        writing.release().await.unwrap();
        becomes_granted(&etcd, &waiter).await;
        let Claimed::Busy(_) = etcd.claim(&of(Mode::Shared, WaitPolicy::Try)).await.unwrap() else {
            panic!("still exclusive")
        };
        release(&etcd, &waiter).await;
        assert!(keys(&server, "").await.is_empty());
    })
    .await;
}

/// The put of a label that is held up in the network and arrives after the downgrade finds another version of the key.
#[tokio::test]
async fn a_late_label_does_not_undo_a_downgrade() {
    within(60, async {
        let server = server().await;
        // Not each time: the server may hear first that its sender has left.
        for _ in 0..12 {
            let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
            let slow = format!("etcd://{}/test?timeout=150", proxy.addr());
            let etcd = leasehold_etcd::Etcd::connect(&slow).await.unwrap();
            let writer = of(Mode::Exclusive, WaitPolicy::Fair);
            let grant = becomes_granted(&etcd, &writer).await;
            // Its value keeps the time at which the place was taken, so this is no claim's put.
            let value = raw(&server).await.get(grant.place.as_str(), None).await.unwrap();
            let since = value.kvs()[0].value_str().unwrap().strip_prefix("test\n").unwrap().to_owned();
            let trap = proxy.hold_matching(format!("overtaken\n{since}"));
            while !trap.has_sprung() {
                assert!(etcd.claim(&writer.clone().with_label("overtaken")).await.is_err());
            }
            // On another connection: the one that says nothing is given up.
            let shared = again_as(&writer, Mode::Shared, WaitPolicy::Fair);
            assert_eq!(becomes_granted(&etcd, &shared).await.token, grant.token);
            proxy.deliver_held();
            trap.done().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            let reader = client(server.addr()).await;
            granted(reader.claim(&of(Mode::Shared, WaitPolicy::Try)).await);
            let line = reader.inspect(&"a".into()).await.unwrap();
            assert_eq!(line.holders[0].label.as_deref(), Some("test"));
            reader.close().await.unwrap();
            etcd.close().await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn other_tools_wait_behind_readers_and_readers_behind_them() {
    within(60, async {
        let server = server().await;
        let store = store(&server).await;
        let (first, second) =
            (store.rw_lock("a").read().acquire().await.unwrap(), store.rw_lock("a").read().acquire().await.unwrap());
        let mut ctl = tokio::process::Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &server.url(), "lock", "test/a"])
            .kill_on_drop(true)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        until_waiting(&store, 1).await;
        let reader = tokio::spawn(store.rw_lock("a").read().acquire());
        until_waiting(&store, 2).await;
        first.release().await.unwrap();
        assert_eq!(store.lock("a").inspect().await.unwrap().waiters.len(), 2, "it waits for all of ours");
        second.release().await.unwrap();
        while !store.lock("a").inspect().await.unwrap().holders[0].foreign {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!reader.is_finished());
        ctl.kill().await.unwrap();
        // It revoked nothing: its entry is deleted by hand.
        let line = store.lock("a").inspect().await.unwrap();
        assert!(store.evict("a", line.holders[0].token.unwrap()).await.unwrap());
        drop(within(5, reader).await.unwrap().unwrap());
    })
    .await;
}

#[tokio::test]
async fn any_of_several_holders_can_be_evicted_and_a_waiter_cannot() {
    within(60, async {
        let server = server().await;
        let (store, operator) = (store(&server).await, store(&server).await);
        let lock = store.rw_lock("a");
        let (first, second) = (lock.read().acquire().await.unwrap(), lock.read().acquire().await.unwrap());
        let etcd = client(server.addr()).await;
        let writer = of(Mode::Exclusive, WaitPolicy::Fair);
        let place = waiting(etcd.claim(&writer).await).place;
        let key = raw(&server).await.get(place.as_str(), None).await.unwrap();
        let number = key.kvs()[0].create_revision().unsigned_abs() << 8;
        assert!(!operator.evict("a", FencingToken::new(number)).await.unwrap());
        assert!(operator.evict("a", second.fencing_token()).await.unwrap());
        assert_eq!(within(5, second.lost()).await, Loss::Evicted);
        assert!(first.is_valid());
        first.release().await.unwrap();
        becomes_granted(&etcd, &writer).await;
    })
    .await;
}

/// An observer looks once a second by itself: a change that is rung is seen sooner.
#[tokio::test]
async fn observers_are_rung_for_each_leader_and_each_value() {
    within(60, async {
        let server = server().await;
        let (one, two) = (store(&server).await, store(&server).await);
        let election = one.election("a");
        let mut observer = two.election("a").observe().await.unwrap();
        assert!(observer.current().is_none());
        let mut quickest = [Duration::MAX; 3];
        for round in 0..6 {
            if round == 3 {
                server.restart_with_data().await.unwrap();
            }
            let value = |what: &str| format!("{what} {round}");
            let mut leadership = None;
            for (step, quickest) in quickest.iter_mut().enumerate() {
                // So that the observer is waiting when the change comes.
                let change = async {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    let started = clock();
                    match step {
                        0 => leadership = Some(election.campaign(value("first")).await.unwrap()),
                        // A server that stalls leaves the outcome in doubt: a proclamation is asked again, and a resignation
                        // goes on in the background.
                        1 => {
                            while let Err(e) = leadership.as_ref().unwrap().proclaim(value("second")).await {
                                assert!(e.is_retryable(), "{e:?}");
                            }
                        }
                        _ => {
                            let resigned = leadership.take().unwrap().resign().await;
                            assert!(resigned.as_ref().map_or_else(|e| e.is_retryable(), |()| true), "{resigned:?}");
                        }
                    }
                    started
                };
                let (started, changed) = tokio::join!(change, observer.changed());
                changed.unwrap();
                *quickest = started.elapsed().min(*quickest);
                let expected = [Some(value("first")), Some(value("second")), None][step].clone();
                assert_eq!(observer.current().map(|leader| leader.value.clone()), expected);
            }
        }
        assert!(quickest.iter().all(|d| *d < Duration::from_millis(500)), "{quickest:?}");
    })
    .await;
}

#[tokio::test]
async fn etcdctl_sees_the_value_of_a_leader() {
    within(60, async {
        let server = server().await;
        let store = store(&server).await;
        let leadership = store.election("a").campaign("10.0.0.7:8080").await.unwrap();
        let listen = tokio::process::Command::new("timeout")
            .env("ETCDCTL_API", "3")
            .args(["3", "etcdctl", "--endpoints", &server.url(), "elect", "-l", "test/a"])
            .kill_on_drop(true)
            .output();
        let heard = String::from_utf8(within(20, listen).await.unwrap().stdout).unwrap();
        assert!(heard.contains("test/a/") && heard.lines().any(|line| line == "10.0.0.7:8080"), "{heard}");
        leadership.resign().await.unwrap();
    })
    .await;
}

#[allow(clippy::disallowed_methods, reason = "a test measures how long it waited")]
fn clock() -> Instant {
    Instant::now()
}
