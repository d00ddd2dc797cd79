//! Readers, permits, downgrades and observers: what they cost, what they leave, and what is
//! notified.

use leasehold_core::backend::TokenFloor;
use std::time::{Duration, Instant};

use crate::common::*;
use leasehold_core::backend::{Backend, Claim, Claimed, ClaimedAll, Mode, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken};
use leasehold_testbed as testbed;

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
    raw(server)
        .await
        .get("nothing", None)
        .await
        .unwrap()
        .header()
        .unwrap()
        .revision()
}

#[tokio::test]
async fn a_try_of_any_mode_leaves_nothing_and_never_stands_in_the_queue() {
    within(60, async {
        let server = server().await;
        let (etcd, rival) = (client(server.addr()).await, client(server.addr()).await);
        for etcd in [&etcd, &rival] {
            let warm = Claim::new("warm", Mode::Exclusive, WaitPolicy::Try, LONG, "");
            granted(etcd.claim(&warm).await);
            release(etcd, &warm).await;
        }
        for (held, refused, let_in) in [
            (
                Mode::Exclusive,
                [Mode::Exclusive, Mode::Shared, permits(1)],
                None,
            ),
            (
                Mode::Shared,
                [Mode::Exclusive, permits(1), permits(3)],
                Some(Mode::Shared),
            ),
            (
                permits(2),
                [Mode::Exclusive, Mode::Shared, permits(2)],
                Some(permits(1)),
            ),
        ] {
            let before = requests(&server).await;
            let hold = of(held, WaitPolicy::Try);
            granted(rival.claim(&hold).await);
            assert_eq!(
                requests_since(&server, &before).await,
                counts(&[("Txn", 1)]),
                "{held:?} of an empty queue"
            );
            let (before, at) = (requests(&server).await, revision(&server).await);
            for mode in refused {
                let Claimed::Busy(who) = etcd.claim(&of(mode, WaitPolicy::Try)).await.unwrap()
                else {
                    panic!("{mode:?}")
                };
                assert_eq!(
                    (who.label.as_deref(), who.waiters),
                    (Some("test"), Some(0)),
                    "{mode:?}"
                );
            }
            assert_eq!(
                revision(&server).await,
                at,
                "nothing was written, not even for a moment"
            );
            let spent = requests_since(&server, &before).await;
            assert_eq!(spent["Txn"], 3, "a refusal is one request");
            if let Some(mode) = let_in {
                let before = requests(&server).await;
                let second = of(mode, WaitPolicy::Try);
                let grant = granted(etcd.claim(&second).await);
                assert_eq!(
                    requests_since(&server, &before).await,
                    counts(&[("Txn", 2)]),
                    "{mode:?}"
                );
                assert_eq!(granted(etcd.claim(&second).await).token, grant.token);
                release(&etcd, &second).await;
            }
            release(&rival, &hold).await;
        }
        assert!(keys(&server, "").await.is_empty());
    })
    .await;
}

/// A writer that comes between the read of a try and its entry is before it.
#[tokio::test]
async fn a_try_passes_no_claim_that_came_meanwhile() {
    within(90, async {
        let server = server().await;
        let (etcd, rival) = (client(server.addr()).await, client(server.addr()).await);
        let reader = of(Mode::Shared, WaitPolicy::Fair);
        granted(rival.claim(&reader).await);
        let (mut before, mut behind) = (0, 0);
        for round in 0..300 {
            let (tried, writer) = (
                of(Mode::Shared, WaitPolicy::Try),
                of(Mode::Exclusive, WaitPolicy::Fair),
            );
            let late = async {
                tokio::time::sleep(Duration::from_micros(round * 10)).await;
                rival.claim(&writer).await
            };
            let (answer, stood) = tokio::join!(etcd.claim(&tried), late);
            let place = waiting(stood).place;
            let number = raw(&server)
                .await
                .get(place.as_str(), None)
                .await
                .unwrap()
                .kvs()[0]
                .create_revision();
            match answer.unwrap() {
                Claimed::Granted(grant) => {
                    assert!(grant.token.as_i64() >> 8 < number, "let in behind a writer");
                    before += 1;
                }
                Claimed::Busy(_) => behind += 1,
                Claimed::Waiting(_) => panic!("a try does not wait"),
                Claimed::Done(_) => panic!("a lock is not done"),
            }
            release(&etcd, &tried).await;
            release(&rival, &writer).await;
        }
        assert!(
            before > 0 && behind > 0,
            "{before} before, {behind} behind: no race was seen"
        );
    })
    .await;
}

/// Each that gets in makes all others read again.
#[tokio::test]
async fn many_tries_at_once_get_in() {
    within(60, async {
        let server = server().await;
        let mut stores = Vec::new();
        for _ in 0..3 {
            stores.push(store(&server).await);
        }
        let tries: Vec<_> = (0..30)
            .map(|i| tokio::spawn(stores[i % 3].rw_lock("a").read().try_acquire()))
            .collect();
        let mut guards = Vec::new();
        for tried in tries {
            guards.push(tried.await.unwrap().unwrap());
        }
        let queue = stores[0].rw_lock("a").inspect().await.unwrap();
        assert_eq!((queue.holders.len(), queue.waiters.len()), (30, 0));
        let mut tokens: Vec<_> = guards.iter().map(|guard| guard.fencing_token()).collect();
        tokens.sort();
        tokens.dedup();
        assert_eq!(tokens.len(), 30, "each has a token of its own");
        let busy = stores[0]
            .rw_lock("a")
            .write()
            .try_acquire()
            .await
            .unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Contended);
    })
    .await;
}

/// The put of a label that is held up in the network and arrives after the downgrade finds another
/// version of the key.
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
            let value = raw(&server)
                .await
                .get(grant.place.as_str(), None)
                .await
                .unwrap();
            let since = value.kvs()[0]
                .value_str()
                .unwrap()
                .strip_prefix("test\n")
                .unwrap()
                .to_owned();
            let trap = proxy.hold_matching(format!("overtaken\n{since}"));
            while !trap.has_sprung() {
                assert!(
                    etcd.claim(&writer.clone().with_label("overtaken"))
                        .await
                        .is_err()
                );
            }
            // On another connection: the one that does not answer is given up.
            let shared = again_as(&writer, Mode::Shared, WaitPolicy::Fair);
            assert_eq!(becomes_granted(&etcd, &shared).await.token, grant.token);
            proxy.deliver_held();
            trap.done().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            let reader = client(server.addr()).await;
            granted(reader.claim(&of(Mode::Shared, WaitPolicy::Try)).await);
            let queue = reader.inspect(&"a".into()).await.unwrap();
            assert_eq!(queue.holders[0].label.as_deref(), Some("test"));
            reader.close().await.unwrap();
            // The limit is so short that a busy machine may miss it.
            while etcd.close().await.is_err() {}
        }
    })
    .await;
}

/// An observer reads once a second by itself: a change that is pushed is seen sooner.
#[tokio::test]
async fn observers_are_notified_of_each_leader_and_each_value() {
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
                        // A server that stalls leaves the outcome in doubt: a proclamation is asked
                        // again, and a resignation goes on in the background.
                        1 => {
                            while let Err(e) =
                                leadership.as_ref().unwrap().proclaim(value("second")).await
                            {
                                assert!(e.is_retryable(), "{e:?}");
                            }
                        }
                        _ => {
                            let resigned = leadership.take().unwrap().resign().await;
                            assert!(
                                resigned
                                    .as_ref()
                                    .map_or_else(|e| e.is_retryable(), |()| true),
                                "{resigned:?}"
                            );
                        }
                    }
                    started
                };
                let (started, changed) = tokio::join!(change, observer.changed());
                changed.unwrap();
                *quickest = started.elapsed().min(*quickest);
                let expected = [Some(value("first")), Some(value("second")), None][step].clone();
                assert_eq!(
                    observer.current().map(|leader| leader.value.clone()),
                    expected
                );
            }
        }
        assert!(
            quickest.iter().all(|d| *d < Duration::from_millis(500)),
            "{quickest:?}"
        );
    })
    .await;
}

#[allow(
    clippy::disallowed_methods,
    reason = "a test measures how long it waited"
)]
fn clock() -> Instant {
    Instant::now()
}

/// A waiting reader that is claimed again as a writer stays a reader, and behind the writer before
/// it.
#[tokio::test]
async fn claiming_again_as_exclusive_passes_no_writer() {
    within(30, async {
        let server = server().await;
        let (etcd, rival) = (client(server.addr()).await, client(server.addr()).await);
        let reads = |name: &str| Claim::new(name, Mode::Shared, WaitPolicy::Fair, TTL, "test");
        granted(rival.claim(&reads("a")).await);
        waiting(rival.claim(&fair("a")).await);
        let reader = reads("a");
        waiting(etcd.claim(&reader).await);
        let mut again = reader.clone();
        again.mode = Mode::Exclusive;
        let answer = etcd.claim(&again).await.unwrap();
        assert!(matches!(answer, Claimed::Waiting(_)), "{answer:?}");
    })
    .await;
}

/// Tries, readers, permits and several names at once, each by a client that does not know of it
/// yet.
#[tokio::test]
async fn every_kind_of_claim_is_raised() {
    within(60, async {
        let server = server().await;
        let raiser = client(server.addr()).await;
        let permits = Mode::Permits { n: 1, of: 3 };
        for (i, (mode, policy)) in [
            (Mode::Exclusive, WaitPolicy::Try),
            (Mode::Shared, WaitPolicy::Try),
            (Mode::Shared, WaitPolicy::Fair),
            (permits, WaitPolicy::Try),
            (permits, WaitPolicy::Fast),
        ]
        .into_iter()
        .enumerate()
        {
            let (etcd, number) = (
                client(server.addr()).await,
                FencingToken::new((i as u64 + 1) << 52),
            );
            let claim = |name: &str| Claim::new(name, mode, policy, TTL, "test");
            let (shared, mine) = (format!("shared {i}"), claim(&format!("shared {i}")));
            if mode != Mode::Exclusive {
                granted(raiser.claim(&claim(&shared)).await);
            }
            raiser.raise(number).await.unwrap();
            let grant = granted(etcd.claim(&mine).await);
            assert!(
                grant.token > number,
                "{mode:?} {policy:?}: {:?}",
                grant.token
            );
        }
        let (etcd, number) = (client(server.addr()).await, FencingToken::new(1 << 60));
        raiser.raise(number).await.unwrap();
        let all: Vec<Claim> = (0..100)
            .map(|i| claim(&format!("all {i}"), WaitPolicy::Try, TTL))
            .collect();
        let ClaimedAll::Granted(grants) = etcd.claim_all(&all).await.unwrap() else {
            panic!("they are free")
        };
        assert!(grants.len() == 100 && grants.iter().all(|grant| grant.token > number));
        let busy = claim("all 7", WaitPolicy::Try, TTL);
        let Claimed::Busy(who) = raiser.claim(&busy).await.unwrap() else {
            panic!("it is held")
        };
        assert_eq!(who.token, Some(grants[7].token));
    })
    .await;
}
