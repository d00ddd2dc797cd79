//! Three servers, of which the holder's is cut off from the others: what a keep-alive verifies, and
//! what it does not.

use std::time::Duration;

use crate::common::{LONG, SHORT, at, connected, hold, hold_patiently, limited, server, until};
use leasehold_core::backend::{Backend, Moment};
use leasehold_core::{ErrorKind, Guard, Loss, Store};
use leasehold_testbed::verbs::within;
use leasehold_testbed::{Proxy, ZooKeeper as Server, ZooKeeperEnsemble, ZooKeeperOptions};
use leasehold_zookeeper::ZooKeeper;

/// A follower that is cut off goes on answering reads and pings for `sync_limit` ticks: much longer
/// than a session.
async fn ensemble(peer_proxies: bool) -> (ZooKeeperEnsemble, usize, usize) {
    let options = ZooKeeperOptions {
        tick: Duration::from_millis(500),
        min_session: Duration::from_secs(1),
        sync_limit: 20,
        init_limit: 8,
        peer_proxies,
        ..ZooKeeperOptions::default()
    };
    let ensemble = Server::ensemble_with(3, &options).await.unwrap();
    let leader = ensemble.leader().await;
    (ensemble, (leader + 1) % 3, leader)
}

/// The server frees the lock of a session that its leader has not heard of, while the holder's own
/// server still answers: validity must have ended before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_behind_a_follower_that_was_cut_off_loses_before_another_holds() {
    limited(async {
        let (ensemble, follower, leader) = ensemble(true).await;
        let near = Store::new(at(ensemble.members()[leader].addr()).await);
        let through_follower = at(ensemble.members()[follower].addr()).await;
        let far = Store::new(through_follower.clone());
        let guard = hold(&far, "a", SHORT).await;
        // Long enough for keep-alives to have extended it.
        tokio::time::sleep(SHORT * 3).await;
        assert!(guard.is_valid());
        let next = tokio::spawn({
            let (near, before) = (near.clone(), guard.view());
            async move {
                let next = hold(&near, "a", SHORT).await;
                // Asked at once: a busy machine may be late.
                (next, before.remaining(), Moment::now())
            }
        });
        let watcher = at(ensemble.members()[leader].addr()).await;
        until(|| async {
            watcher
                .inspect(&"a".into())
                .await
                .is_ok_and(|queue| queue.waiters.len() == 1)
        })
        .await;

        assert!(ensemble.isolate(follower));
        let cut = Moment::now();
        assert_eq!(guard.lost().await, Loss::Expired);
        let lost = Moment::now().since(cut);
        let (next, still_left, granted) = next.await.unwrap();
        println!(
            "lost {lost:?} after the cut, the next one granted {:?} after it",
            granted.since(cut)
        );
        assert_eq!(still_left, Duration::ZERO, "two at once");
        assert!(next.fencing_token() > guard.fencing_token());
        // A trap it was: the follower still answers.
        assert_eq!(
            ensemble.members()[follower].mode().await.unwrap(),
            "follower",
            "cut off for too long already"
        );
        ensemble.rejoin(follower).await;
        drop(next);
        drop(hold_patiently(&far, "a", SHORT).await);
    })
    .await;
}

/// Late enough to be met, and soon enough for the store's requests.
const LAG: Duration = Duration::from_millis(700);

/// Two stores, one at the leader and one at a follower that lags, with their sessions open.
async fn near_and_far(
    ensemble: &ZooKeeperEnsemble,
    leader: usize,
    follower: usize,
) -> (Store, Store) {
    let url = |member: usize| {
        format!(
            "zookeeper://{}/test?timeout=5000",
            ensemble.members()[member].addr()
        )
    };
    let near = Store::new(connected(&url(leader)).await);
    let far = Store::new(connected(&url(follower)).await);
    drop((hold(&near, "a", LONG).await, hold(&far, "b", LONG).await));
    assert!(ensemble.lag(follower, LAG));
    (near, far)
}

/// Each server in turn comes back alone and without data. No two programs hold one
/// lock, also if one of them is started then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_alone_and_empty_grants_nothing() {
    within(300, async {
        let (ensemble, ..) = ensemble(false).await;
        let alone = server().await;
        // Somebody uses it.
        drop(at(alone.addr()).await);
        let (mut programs, mut ways) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let mut proxies = Vec::new();
            for member in ensemble.members() {
                proxies.push(Proxy::to(member.addr()).await.unwrap());
            }
            ways.push(proxies);
        }
        let addrs = |n: usize| {
            ways[n]
                .iter()
                .map(Proxy::addr)
                .collect::<Vec<_>>()
                .join(",")
        };
        for n in 0..2 {
            programs.push(Store::new(at(&addrs(n)).await).ttl(LONG));
        }
        for (nth, member) in ensemble.members().iter().enumerate() {
            let before = hold_patiently(&programs[0], &format!("{nth}"), LONG).await;
            member.kill().await.unwrap();
            for proxies in &ways {
                proxies[nth].lead_to(alone.addr());
                proxies[nth].disconnect().await;
            }
            let late = format!("zookeeper://{}/test", addrs(2));
            let late = loop {
                match ZooKeeper::connect(&late).await {
                    Ok(late) => break late,
                    // The others elect a leader.
                    Err(e) => assert!(e.is_retryable(), "{e:?}"),
                }
            };
            programs.push(Store::new(late).ttl(LONG));
            for n in 0..6 {
                let name = format!("{nth}-{n}");
                let (one, two) = (&programs[n % 3], &programs[(n + 1) % 3]);
                let guard = hold_patiently(one, &name, LONG).await;
                refused(two, &name).await;
                let seen = two.lock(name.as_str()).inspect().await.unwrap();
                assert_eq!(seen.holders.len(), 1, "{seen:?}");
                assert!(guard.is_valid());
                surely_released(guard).await;
            }
            refused(&programs[1], &format!("{nth}")).await;
            assert!(before.is_valid());
            surely_released(before).await;
            assert_eq!(alone.ephemerals_count().await.unwrap(), 0);
            programs.pop();
            for proxies in &ways {
                proxies[nth].lead_to(member.addr());
                proxies[nth].disconnect().await;
            }
            member.start_again().await.unwrap();
        }
    })
    .await;
}

/// It may have the data and the identity of those that it has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_runs_alone_is_not_used_where_several_are_named() {
    limited(async {
        let alone = server().await;
        let way = Proxy::to(alone.addr()).await.unwrap();
        let nodes = alone.znode_count().await.unwrap();
        let several = format!("zookeeper://{},{}/test", alone.addr(), way.addr());
        let refused = ZooKeeper::connect(&several).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::OtherStore, "{refused:?}");
        assert!(refused.to_string().contains("runs alone"), "{refused}");
        assert_eq!(alone.znode_count().await.unwrap(), nodes);
        drop(hold(&Store::new(at(way.addr()).await), "a", SHORT).await);
    })
    .await;
}

/// Somebody else holds it, whatever outages there are meanwhile.
async fn refused(store: &Store, name: &str) {
    loop {
        match store.lock(name).try_acquire().await {
            Err(e) if e.kind() == ErrorKind::Contended => return,
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
            Ok(_) => panic!("{name} is held twice"),
        }
    }
}

async fn surely_released(guard: Guard) {
    if let Err(e) = guard.release().await {
        assert!(e.is_retryable(), "{e:?}");
    }
}

/// A follower answers reads from the past: a lock that was released there is still held in its
/// eyes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_through_a_follower_that_lags_knows_of_an_answered_release() {
    limited(async {
        let (ensemble, follower, leader) = ensemble(true).await;
        let (near, far) = near_and_far(&ensemble, leader, follower).await;
        for round in 0..3 {
            let guard = hold(&near, "a", LONG).await;
            // The follower has seen it by now; its release it has not.
            tokio::time::sleep(LAG * 2).await;
            assert_eq!(
                far.lock("a")
                    .ttl(LONG)
                    .try_acquire()
                    .await
                    .unwrap_err()
                    .kind(),
                ErrorKind::Contended
            );
            guard.release().await.unwrap();
            // A try gives up a server that has not answered for two seconds, as on a busy machine.
            let taken = loop {
                match far.lock("a").ttl(LONG).try_acquire().await {
                    Err(e) if e.kind() == ErrorKind::Ambiguous => {}
                    taken => break taken,
                }
            };
            taken
                .unwrap_or_else(|e| panic!("round {round}: {e:?}"))
                .release()
                .await
                .unwrap();
        }
    })
    .await;
}

/// And a hold that was evicted there is still valid in its eyes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirmation_through_a_follower_that_lags_knows_of_an_answered_eviction() {
    limited(async {
        let (ensemble, follower, leader) = ensemble(true).await;
        let (near, far) = near_and_far(&ensemble, leader, follower).await;
        for round in 0..3 {
            let guard = hold(&far, "b", LONG).await;
            guard.confirm().await.unwrap();
            assert!(near.evict("b", guard.fencing_token()).await.unwrap());
            let e = guard.confirm().await.expect_err("evicted, and answered so");
            assert_eq!(e.kind(), ErrorKind::Lost, "round {round}: {e:?}");
        }
    })
    .await;
}

/// Starts a member anew with other limits: a rolling change.
async fn limit_sessions(member: &Server, to: Duration) {
    member.kill().await.unwrap();
    let config = member.data().parent().unwrap().join("zoo.cfg");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(
        config,
        format!("{text}\nmaxSessionTimeout={}\n", to.as_millis()),
    )
    .unwrap();
    member.start_again().await.unwrap();
}

/// Each server has limits of its own for a session's timeout, and what it agrees to is what the
/// leader goes by from then on. Who stands still goes by what it was told before: so such a server
/// is taken as soon as its limit lasts beyond that, and the hold is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_a_shorter_limit_is_taken_when_that_lasts_beyond_the_promise() {
    limited(async {
        let (ensemble, follower, leader) = ensemble(false).await;
        let member = |index: usize| &ensemble.members()[index];
        let other = 3 - leader - follower;
        limit_sessions(member(other), SHORT).await;
        let generous = Proxy::to(member(follower).addr()).await.unwrap();
        let strict = Proxy::to(member(other).addr()).await.unwrap();
        strict.cut().await;
        let near = Store::new(at(member(leader).addr()).await);
        let ttl = SHORT * 3;
        for comes_back in [true, false] {
            let far = Store::new(at(&format!("{},{}", generous.addr(), strict.addr())).await);
            let guard = hold_patiently(&far, "a", ttl).await;
            let next = tokio::spawn({
                let (near, before) = (near.clone(), guard.view());
                async move {
                    let next = hold(&near, "a", SHORT).await;
                    // Asked at once: a busy machine may be late.
                    (next, before.remaining())
                }
            });
            until(|| async {
                near.lock("a")
                    .inspect()
                    .await
                    .is_ok_and(|queue| queue.waiters.len() == 1)
            })
            .await;
            until(|| async { guard.remaining() > ttl / 2 }).await;
            let promised = Moment::now() + guard.remaining();
            strict.heal().await;
            generous.cut().await;
            strict.until_open(1).await;
            if comes_back {
                generous.heal().await;
            }
            until(|| async { Moment::now() > promised }).await;
            assert!(
                guard.is_valid(),
                "both servers let it have its session in time"
            );
            guard.release().await.unwrap();
            assert_eq!(next.await.unwrap().1, Duration::ZERO, "two at once");
            strict.cut().await;
            generous.heal().await;
        }
    })
    .await;
}

/// A server that was asked for a session may ask the leader for it much later: when that is
/// connected to another one again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_connect_request_to_a_server_with_a_shorter_limit_ends_no_hold_early() {
    limited(async {
        let (ensemble, follower, leader) = ensemble(false).await;
        let member = |index: usize| &ensemble.members()[index];
        let other = 3 - leader - follower;
        // A server that does not answer is given up after two seconds, and may be asked twice.
        limit_sessions(member(other), 2 * SHORT).await;
        limit_sessions(member(follower), LONG).await;
        let generous = Proxy::to(member(follower).addr()).await.unwrap();
        let strict = Proxy::to(member(other).addr()).await.unwrap();
        strict.cut().await;
        let far = Store::new(at(&format!("{},{}", generous.addr(), strict.addr())).await);
        let near = Store::new(at(member(leader).addr()).await);
        // Nothing is promised in this session while it goes from server to server.
        let ttl = LONG / 2;
        let guard = hold_patiently(&far, "a", ttl).await;
        let session = session_of(&ensemble, leader, "/test/a/").await;
        guard.release().await.unwrap();
        let id = u64::from_str_radix(session.trim_start_matches("0x"), 16).unwrap();
        strict.heal().await;
        let late = strict.hold_matching(id.to_be_bytes());
        generous.cut().await;
        late.sprung().await;
        strict.hold();
        generous.heal().await;
        let guard = hold_patiently(&far, "a", ttl).await;
        until(|| async { server_of(&ensemble, &session).await == Some(follower) }).await;
        assert_eq!(session_of(&ensemble, leader, "/test/a/").await, session);
        assert!(guard.is_valid());
        let next = tokio::spawn({
            let (near, before) = (near.clone(), guard.view());
            async move {
                let next = hold_patiently(&near, "a", SHORT).await;
                // Asked at once: a busy machine may be late.
                (next, before.remaining(), Moment::now())
            }
        });
        until(|| async {
            near.lock("a")
                .inspect()
                .await
                .is_ok_and(|queue| queue.waiters.len() == 1)
        })
        .await;
        generous.hold();
        // The other server reports within half a tick what it has heard of. No longer: a server
        // closes a connection that has sent nothing for ten seconds.
        tokio::time::sleep(Duration::from_millis(600)).await;
        let left = guard.remaining();
        strict.deliver_held();
        late.done().await;
        let delivered = Moment::now();
        let (next, still_left, granted) = next.await.unwrap();
        println!(
            "{left:?} were left, the next one granted {:?} later",
            granted.since(delivered)
        );
        assert_eq!(still_left, Duration::ZERO, "two at once");
        drop((next, guard));
    })
    .await;
}

/// The session with an entry in this queue.
async fn session_of(ensemble: &ZooKeeperEnsemble, leader: usize, queue: &str) -> String {
    let dump = ensemble.members()[leader]
        .four_letter_word("dump")
        .await
        .unwrap();
    let at = dump.find(queue).expect("an entry");
    let session = dump[..at]
        .lines()
        .rev()
        .find(|line| line.starts_with("0x"))
        .expect("its session");
    session.trim_end_matches(':').to_owned()
}

/// The member that this session is connected to.
async fn server_of(ensemble: &ZooKeeperEnsemble, session: &str) -> Option<usize> {
    for (index, member) in ensemble.members().iter().enumerate() {
        if member
            .four_letter_word("cons")
            .await
            .unwrap()
            .contains(session)
        {
            return Some(index);
        }
    }
    None
}

/// The holder's server dies, and takes the touches along that it has not passed on yet; if it
/// leads, another is elected. The client goes to another server, and keeps its session and its
/// locks if that is quick enough; if not, the loss comes first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_server_dies_goes_to_another_or_loses_first() {
    limited(async {
        let (ensemble, _, leader) = ensemble(false).await;
        let (near, far) = (
            at(&ensemble.connect_string()).await,
            at(&ensemble.connect_string()).await,
        );
        let (near, far) = (Store::new(near), Store::new(far));
        let guard = hold(&far, "a", SHORT).await;
        let next = tokio::spawn({
            let (near, before) = (near.clone(), guard.view());
            async move {
                let next = hold_patiently(&near, "a", SHORT).await;
                // Asked at once: a busy machine may be late.
                (next, before.remaining(), Moment::now())
            }
        });
        tokio::time::sleep(SHORT).await;
        let session = session_of(&ensemble, leader, "/test/a/").await;
        let victim = server_of(&ensemble, &session).await.expect("a connection");
        ensemble.members()[victim].kill().await.unwrap();
        let lost = tokio::time::timeout(SHORT * 2, guard.lost())
            .await
            .map(|loss| (loss, Moment::now()));
        println!(
            "it was {}the leader; {lost:?}",
            if victim == leader { "" } else { "not " }
        );
        match lost {
            Ok((loss, lost)) => {
                assert_eq!(loss, Loss::Expired);
                let (_next, still_left, granted) = next.await.unwrap();
                println!("the next one granted {:?} later", granted.since(lost));
                assert_eq!(still_left, Duration::ZERO, "two at once");
            }
            Err(_) => {
                assert!(!next.is_finished() && guard.is_valid());
                // What is not answered is released in the background.
                drop(guard.release().await);
                drop(next.await.unwrap().0.release().await);
            }
        }
    })
    .await;
}
