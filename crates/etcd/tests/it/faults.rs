//! Faults: servers that are down, stopped, replaced; members of a cluster that fail; users without
//! rights.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{usual as client, *};
use etcd_client::Client;
use leasehold_core::backend::{Backend, LeaseRef, Moment, Renewal};
use leasehold_core::{ErrorKind, Store};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;

#[allow(
    clippy::disallowed_methods,
    reason = "a test measures how long it waited"
)]
fn clock() -> Instant {
    Instant::now()
}

/// A program may start before its server does.
#[tokio::test]
async fn a_server_that_is_away_at_the_start_is_waited_for() {
    testbed::verbs::bounded(async {
        let server = server().await;
        let url = format!("etcd://{}/test?timeout=5000", server.addr());
        let store =
            testbed::away::connected_before_the_server(&server, || Etcd::connect(&url)).await;
        let guard = Store::new(store).lock("a").acquire().await.unwrap();
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn connecting_fails_in_bounded_time_and_says_why() {
    within(30, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        proxy.hold();
        let (hole, user) = (
            format!("etcd://{}", proxy.addr()),
            format!("etcd://me:secret@{}", proxy.addr()),
        );
        // From 192.0.2.1 (TEST-NET-1) there is no answer, or the network says so at once.
        for url in ["etcd://127.0.0.1:1/x", "etcd://192.0.2.1/x", &hole, &user] {
            let started = clock();
            let error = Etcd::connect(url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            let addr = url
                .rsplit(['/', '@'])
                .find(|part| part.contains('.'))
                .unwrap();
            assert!(
                error.to_string().contains(addr) && !format!("{error:?}").contains("secret"),
                "{error:?}"
            );
            // Three seconds, on a machine that has time.
            assert!(
                started.elapsed() < Duration::from_secs(6),
                "{url}: {:?}",
                started.elapsed()
            );
        }
    })
    .await;
}

#[tokio::test]
async fn users_are_let_in_or_denied_and_their_tokens_are_renewed() {
    within(60, async {
        let options = testbed::EtcdOptions {
            extra: vec!["--auth-token-ttl=1".into()],
            ..Default::default()
        };
        let server = testbed::Etcd::start_with(&options).await.unwrap();
        let mut raw = Client::connect([server.url()], None).await.unwrap();
        raw.user_add("root", "pass", None).await.unwrap();
        raw.user_grant_role("root", "root").await.unwrap();
        raw.role_add("locks").await.unwrap();
        let below = etcd_client::Permission::read_write("test/").with_prefix();
        raw.role_grant_permission("locks", below).await.unwrap();
        raw.user_add("me", "p@ss", None).await.unwrap();
        raw.user_grant_role("me", "locks").await.unwrap();
        raw.auth_enable().await.unwrap();
        for bad in ["me:s3cret@", "nobody:p@", ""] {
            let error = Etcd::connect(&format!("etcd://{bad}{}/test", server.addr()))
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{bad}: {error:?}");
            assert!(!format!("{error:?}").contains("s3cret"));
        }
        let elsewhere = Etcd::connect(&format!("etcd://me:p%40ss@{}/other", server.addr()))
            .await
            .unwrap_err();
        assert_eq!(elsewhere.kind(), ErrorKind::Denied, "{elsewhere:?}");
        // The hash of a password takes a busy machine long.
        let etcd = Etcd::connect(&format!(
            "etcd://me:p%40ss@{}/test?timeout=5000",
            server.addr()
        ))
        .await
        .unwrap();
        assert!(!format!("{etcd:?}").contains("p@ss"));
        let store = Store::new(etcd).ttl(Duration::from_secs(5));
        let guard = store.lock("a").acquire().await.unwrap();
        let waiter = tokio::spawn(store.lock("a").acquire());
        // Longer than a token lives, and longer than the lease.
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(guard.is_valid(), "{:?}", guard.check());
        guard.release().await.unwrap();
        within(20, waiter)
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_down_is_unavailable_and_all_works_when_it_is_back() {
    within(90, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let held = Arc::new(fair("a"));
        let grant = granted(etcd.claim(&held).await);
        let waiter = fair("a");
        waiting(etcd.claim(&waiter).await);
        server.kill().await.unwrap();
        let lease = LeaseRef::new(held.clone(), grant.place.clone(), Some(grant.token));
        for _ in 0..3 {
            let started = clock();
            let error = etcd.claim(&fair("b")).await.unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous),
                "{error:?}"
            );
            assert!(etcd.inspect(&"a".into()).await.is_err());
            let answers = etcd.renew(std::slice::from_ref(&lease)).await.unwrap();
            assert!(matches!(answers[..], [Renewal::Unknown(_)]), "{answers:?}");
            assert!(started.elapsed() < Duration::from_secs(5));
        }
        // The connection is known to be refused by now: surely nothing is executed.
        assert_eq!(
            etcd.claim(&fair("b")).await.unwrap_err().kind(),
            ErrorKind::Unavailable
        );
        server.start_again().await.unwrap();
        let answers = renewals(&etcd, &[lease]).await;
        assert!(matches!(answers[..], [Renewal::Renewed(_)]), "{answers:?}");
        assert_eq!(becomes_granted(&etcd, &held).await.token, grant.token);
        while etcd.release(&held, None).await.is_err() {}
        assert!(becomes_granted(&etcd, &waiter).await.token > grant.token);
        etcd.close().await.unwrap();
        assert_eq!(server.lease_count().await.unwrap(), 0);
    })
    .await;
}

/// The watch dies with the server; the waiter learns of the release all the same, long before it
/// asks again by itself.
#[tokio::test]
async fn a_waiter_is_woken_after_a_restart_and_by_a_release_that_it_missed() {
    within(90, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let ttl = Duration::from_secs(60);
        let (one, two) = (
            Store::new(client(server.addr()).await).ttl(ttl),
            Store::new(client(proxy.addr()).await).ttl(ttl),
        );
        for missed in [false, true] {
            let guard = one.lock("a").acquire().await.unwrap();
            let waiter = tokio::spawn(two.lock("a").acquire());
            until_waiting(&one, "a", 1).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            if missed {
                proxy.cut().await;
                guard.release().await.unwrap();
                tokio::time::sleep(Duration::from_millis(500)).await;
                proxy.heal().await;
            } else {
                server.restart_with_data().await.unwrap();
                tokio::time::sleep(Duration::from_secs(2)).await;
                give_back(guard).await;
            }
            // By itself it would ask again after twenty seconds.
            give_back(within(15, waiter).await.unwrap().unwrap()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_stopped_server_is_ambiguous_in_bounded_time() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let held = fair("a");
        let grant = granted(etcd.claim(&held).await);
        server.pause().await.unwrap();
        let doubtful = fair("b");
        let started = clock();
        assert_eq!(
            etcd.claim(&doubtful).await.unwrap_err().kind(),
            ErrorKind::Ambiguous
        );
        assert_eq!(
            etcd.inspect(&"a".into()).await.unwrap_err().kind(),
            ErrorKind::Unavailable
        );
        // One second, and two.
        assert!(
            started.elapsed() < Duration::from_secs(8),
            "{:?}",
            started.elapsed()
        );
        server.resume().unwrap();
        while etcd.release(&doubtful, None).await.is_err() {}
        assert_eq!(becomes_granted(&etcd, &held).await.token, grant.token);
        assert!(keys(&server, "test/b/").await.is_empty());
    })
    .await;
}

/// One member after the other dies, and one stops: a hold lives on, and so does the queue.
#[tokio::test]
async fn members_fail_one_by_one() {
    within(110, async {
        let cluster = testbed::Etcd::cluster(3).await.unwrap();
        let members = cluster.members();
        let addresses: Vec<&str> = members.iter().map(|member| member.addr()).collect();
        let (all, ttl) = (addresses.join(","), Duration::from_secs(6));
        let (one, two) = (
            Store::new(client(&all).await).ttl(ttl),
            Store::new(client(&all).await).ttl(ttl),
        );
        let guard = one.lock("a").acquire().await.unwrap();
        let mut waiter = tokio::spawn(two.lock("a").acquire());
        for member in members {
            member.pause().await.unwrap();
            // Not for as long as a lease: when it wakes, a leader of etcd 3.4.23 revokes what it
            // takes for expired (etcd#15247), although the new leader has renewed it.
            tokio::time::sleep(ttl / 2).await;
            assert!(
                guard.is_valid(),
                "{:?} at {:?}",
                guard.check(),
                Moment::now()
            );
            assert!(!waiter.is_finished());
            member.resume().unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            member.kill().await.unwrap();
            tokio::time::sleep(ttl + Duration::from_secs(1)).await;
            assert!(guard.is_valid(), "{:?}", guard.check());
            assert!(!waiter.is_finished());
            member.start_again().await.unwrap();
        }
        give_back(guard).await;
        give_back(within(20, &mut waiter).await.unwrap().unwrap()).await;
    })
    .await;
}

/// The endpoint in use swallows everything without a word: the others are asked.
#[tokio::test]
async fn a_black_hole_is_left() {
    within(60, async {
        let cluster = testbed::Etcd::cluster(3).await.unwrap();
        let members = cluster.members();
        let proxy = testbed::Proxy::to(members[0].addr()).await.unwrap();
        let all = format!(
            "{},{},{}",
            proxy.addr(),
            members[1].addr(),
            members[2].addr()
        );
        let ttl = Duration::from_secs(60);
        let (one, two) = (
            Store::new(client(&all).await).ttl(ttl),
            Store::new(client(members[1].addr()).await).ttl(ttl),
        );
        let guard = two.lock("a").acquire().await.unwrap();
        let waiter = tokio::spawn(one.lock("a").acquire());
        until_waiting(&two, "a", 1).await;
        proxy.hold();
        let started = clock();
        drop(one.lock("b").acquire().await.unwrap());
        assert!(
            started.elapsed() < Duration::from_secs(8),
            "{:?}",
            started.elapsed()
        );
        // The watch has moved too, and what it missed is read: by itself the waiter would ask again
        // after twenty seconds.
        guard.release().await.unwrap();
        drop(within(15, waiter).await.unwrap().unwrap());
    })
    .await;
}

/// A leader that is cut off from its peers: nothing that it answers counts, and the client goes
/// elsewhere.
#[tokio::test]
async fn a_leader_that_is_cut_off_grants_nothing() {
    within(60, async {
        let options = testbed::EtcdOptions {
            peer_proxies: true,
            ..Default::default()
        };
        let cluster = testbed::Etcd::cluster_with(3, &options).await.unwrap();
        let leader = cluster.leader().await;
        let members = cluster.members();
        let other = members[(leader + 1) % 3].addr();
        let both = format!("{},{other}", members[leader].addr());
        let ttl = Duration::from_secs(5);
        let one = Store::new(client(&both).await).ttl(ttl);
        let lonely = client(members[leader].addr()).await;
        let guard = one.lock("a").acquire().await.unwrap();
        assert!(cluster.isolate(leader));
        tokio::time::sleep(ttl * 2).await;
        assert!(guard.is_valid(), "{:?}", guard.check());
        assert!(lonely.claim(&fair("b")).await.is_err());
        give_back(one.lock("b").acquire().await.unwrap()).await;
        cluster.rejoin(leader).await;
        give_back(guard).await;
    })
    .await;
}

/// Endpoints that are dead or silent do not hide the one that lives.
#[tokio::test]
async fn one_live_endpoint_is_found_among_dead_ones() {
    within(60, async {
        let server = server().await;
        let hole = testbed::Proxy::to(server.addr()).await.unwrap();
        hole.hold();
        for others in [
            ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"],
            [hole.addr(), hole.addr(), "127.0.0.1:1"],
        ] {
            for _ in 0..4 {
                let all = format!("{},{}", others.join(","), server.addr());
                let etcd = Etcd::connect(&format!("etcd://{all}/test")).await.unwrap();
                let claim = fair("a");
                becomes_granted(&etcd, &claim).await;
                while etcd.release(&claim, None).await.is_err() {}
            }
        }
        // None of them is waited for: to ask one after the other takes twelve seconds, on average.
        let started = clock();
        for _ in 0..12 {
            let all = format!("{},{},{}", hole.addr(), hole.addr(), server.addr());
            drop(Etcd::connect(&format!("etcd://{all}/test")).await.unwrap());
        }
        assert!(
            started.elapsed() < Duration::from_secs(8),
            "{:?}",
            started.elapsed()
        );
    })
    .await;
}

/// Round trips of more than a second: the limits grow with them.
#[tokio::test]
async fn a_server_that_is_far_away_is_waited_for() {
    within(120, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let ttl = Duration::from_secs(12);
        let store = Store::new(client(proxy.addr()).await).ttl(ttl);
        proxy.delay(Duration::from_millis(550));
        let guard = store.lock("a").acquire().await.unwrap();
        tokio::time::sleep(ttl + Duration::from_millis(500)).await;
        assert!(guard.is_valid(), "{:?}", guard.check());
        guard.release().await.unwrap();
    })
    .await;
}

/// One read of a mirror gets no answer: it is repeated by itself, and no other mirror is read
/// again.
#[tokio::test]
async fn one_failed_read_begins_no_other_mirror_anew() {
    within(60, async {
        const OTHERS: u64 = 30;
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let slow = Etcd::connect(&format!("etcd://{}/test?timeout=2000", proxy.addr()))
            .await
            .unwrap();
        let (rival, waits) = (store(&server).await, Store::new(slow).ttl(LONG));
        let wait = async |name: &str| {
            let guard = rival.lock(name).acquire().await.unwrap();
            let waiter = tokio::spawn(waits.lock(name).acquire());
            until_waiting(&rival, name, 1).await;
            (guard, waiter)
        };
        let mut others = Vec::new();
        for i in 0..OTHERS {
            others.push(wait(&format!("other {i}")).await);
        }
        // The mirror's read is the only request for all keys below, oldest first.
        let read = [b"\x0a\x07test/z/", b"\x12\x07test/z0", &b"\x28\x01"[..]].concat();
        let trap = proxy.hold_matching(read);
        let (guard, waiter) = wait("z").await;
        while !trap.has_sprung() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let before = requests(&server).await;
        // After the time limit of the first attempt, and long before that of the second.
        tokio::time::sleep(Duration::from_millis(3000)).await;
        proxy.deliver_held();
        trap.done().await;
        guard.release().await.unwrap();
        drop(within(10, waiter).await.unwrap().unwrap());
        let reads = requests_since(&server, &before).await.get("Range").copied();
        assert!(reads.unwrap_or_default() < OTHERS / 2, "{reads:?} reads");
        assert!(
            others
                .iter()
                .all(|(guard, waiter)| guard.is_valid() && !waiter.is_finished())
        );
    })
    .await;
}
