//! Faults: lost replies, dropped futures, cut connections, sessions that end, servers that go and
//! come.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::common::*;
use leasehold_core::backend::{Backend, Claimed, Moment};
use leasehold_core::{ErrorKind, Loss, Store};
use leasehold_testbed::{Proxy, away};
use leasehold_zookeeper::ZooKeeper;
use zookeeper_client::{Acl, AuthId, Client, Permission};

/// A program may start before its server does.
#[tokio::test]
async fn a_server_that_is_away_at_the_start_is_waited_for() {
    limited(async {
        let server = server().await;
        let url = format!("zookeeper://{}/test", server.addr());
        let store = away::connected_before_the_server(&server, || ZooKeeper::connect(&url)).await;
        let guard = Store::new(store).lock("a").acquire().await.unwrap();
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_reported_in_time() {
    limited(async {
        let proxy = Proxy::to("127.0.0.1:1").await.unwrap();
        let silent = Proxy::to("127.0.0.1:1").await.unwrap();
        silent.hold();
        for addr in [
            "127.0.0.1:1",
            proxy.addr(),
            silent.addr(),
            "no.such.host.invalid:2181",
        ] {
            let started = Moment::now();
            let e = ZooKeeper::connect(&format!("zookeeper://{addr}"))
                .await
                .unwrap_err();
            assert!(
                e.kind() == ErrorKind::Unavailable && e.to_string().contains(addr),
                "{addr}: {e:?}"
            );
            // Three seconds, on a machine that has time.
            let took = Moment::now().since(started);
            assert!(took < Duration::from_secs(6), "{addr}: {took:?}");
        }
    })
    .await;
}

/// Each answer takes 0.4 s. Four come one after the other until a session is open, and it has 2.5
/// s.
#[tokio::test]
async fn a_session_is_opened_with_a_server_that_is_far_away() {
    limited(async {
        let server = server().await;
        drop(client(&server).await);
        let proxy = Proxy::to(server.addr()).await.unwrap();
        proxy.delay_replies(Duration::from_millis(400));
        let url = format!("zookeeper://{}/test", proxy.addr());
        for _ in 0..8 {
            match ZooKeeper::connect(&url).await {
                Ok(_) => return,
                // On a machine that has no time.
                Err(e) => assert_eq!(e.kind(), ErrorKind::Unavailable, "{e:?}"),
            }
        }
        panic!("no session in eight tries");
    })
    .await;
}

/// Wherever they stand in the list, which is tried in another order each time.
#[tokio::test]
async fn silent_servers_hide_none_that_answers() {
    limited(async {
        let ensemble = ensemble_of_one().await;
        let server = &ensemble.members()[0];
        drop(client(server).await);
        let (servers, _proxies) = beside_silent_ones(server, 2).await;
        for _ in 0..8 {
            let client = ZooKeeper::connect(&format!("zookeeper://{servers}/test"))
                .await
                .unwrap();
            // In a session of its own, too.
            let claim = fair("a", Duration::from_secs(8));
            let grant = granted(&client, &claim).await;
            release(&client, &claim, &grant.place).await;
        }
    })
    .await;
}

#[tokio::test]
async fn after_a_restart_everything_goes_on() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let store = Store::new(client.clone());
        let guard = hold(&store, "a", SHORT).await;
        let token = guard.fencing_token();
        server.kill().await.unwrap();
        let started = Moment::now();
        let e = client.claim(&fair("b", SHORT)).await.unwrap_err();
        assert!(
            matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous),
            "{e:?}"
        );
        assert!(matches!(
            client.inspect(&"a".into()).await.unwrap_err().kind(),
            ErrorKind::Unavailable
        ));
        assert!(
            Moment::now().since(started) < Duration::from_secs(8),
            "{:?}",
            Moment::now().since(started)
        );
        let waits = tokio::spawn({
            let store = store.clone();
            async move { hold_patiently(&store, "b", SHORT).await }
        });
        assert_eq!(guard.lost().await, Loss::Expired);
        server.start_again().await.unwrap();
        drop(waits.await.unwrap());
        drop(guard);
        let again = hold_patiently(&store, "a", SHORT).await;
        assert!(again.fencing_token() > token);
    })
    .await;
}

#[tokio::test]
async fn a_wait_survives_a_reconnect_and_what_happened_meanwhile() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (near, far) = (store(&server).await, Store::new(at(proxy.addr()).await));
        let ttl = Duration::from_secs(6);
        let guard = hold(&near, "a", ttl).await;
        let kept = hold(&far, "kept", ttl).await;
        let waits = tokio::spawn({
            let far = far.clone();
            async move { hold_patiently(&far, "a", ttl).await }
        });
        let watcher = client(&server).await;
        until(|| async {
            watcher
                .inspect(&"a".into())
                .await
                .is_ok_and(|queue| queue.waiters.len() == 1)
        })
        .await;
        for _ in 0..3 {
            proxy.disconnect().await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert!(!waits.is_finished());
        }
        proxy.cut().await;
        guard.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        proxy.heal().await;
        let guard = waits.await.unwrap();
        assert!(kept.is_valid(), "the session survived");
        guard.release().await.unwrap();
        kept.release().await.unwrap();
    })
    .await;
}

/// The reply to the create is lost: claiming again finds the entry, and withdrawing removes it.
#[tokio::test]
async fn a_lost_reply_leaves_neither_a_twin_nor_an_orphan() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let client = at(proxy.addr()).await;
        let ttl = Duration::from_secs(6);
        let warm = fair("a", ttl);
        let grant = granted(&client, &warm).await;
        release(&client, &warm, &grant.place).await;
        for claims_again in [true, false] {
            let claim = fair("a", ttl);
            let trap = proxy.lose_reply_matching("-lock-");
            let e = client.claim(&claim).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Ambiguous, "{e:?}");
            trap.done().await;
            until_entries(&server, 1, 2).await;
            if claims_again {
                // It is connected again by then, on a busy machine not at the first time.
                until(|| async { matches!(client.claim(&claim).await, Ok(Claimed::Granted(_))) })
                    .await;
                let grant = granted(&client, &claim).await;
                assert_eq!(granted(&client, &claim).await.token, grant.token);
                assert_eq!(client.inspect(&claim.name).await.unwrap().holders.len(), 1);
                release(&client, &claim, &grant.place).await;
            } else {
                until(|| async { client.release(&claim, None).await.is_ok() }).await;
            }
            until_entries(&server, 0, 2).await;
        }
    })
    .await;
}

/// A create that is held back on the way, and delivered after the claim was withdrawn.
#[tokio::test]
async fn a_late_create_leaves_nothing() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let client = at(proxy.addr()).await;
        let ttl = Duration::from_secs(4);
        let warm = fair("a", ttl);
        let grant = granted(&client, &warm).await;
        release(&client, &warm, &grant.place).await;
        let claim = fair("a", ttl);
        let trap = proxy.hold_matching("-lock-");
        assert_eq!(
            client.claim(&claim).await.unwrap_err().kind(),
            ErrorKind::Ambiguous
        );
        assert!(trap.has_sprung());
        // Everything behind it on that connection is held back too, until the client gives that
        // connection up.
        until(|| async { client.release(&claim, None).await.is_ok() }).await;
        proxy.deliver_held();
        tokio::time::sleep(Duration::from_millis(500)).await;
        until_entries(&server, 0, 2).await;
        assert!(matches!(
            client.claim(&fair("a", ttl)).await.unwrap(),
            Claimed::Granted(_)
        ));
    })
    .await;
}

/// A client whose release failed need not repeat it: the session does. A node that it may not
/// delete keeps it from no other.
#[tokio::test]
async fn a_release_that_failed_is_repeated_by_the_session() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let client = at(proxy.addr()).await;
        let claims = ["a", "b"].map(|name| fair(name, Duration::from_secs(6)));
        let grants = [
            granted(&client, &claims[0]).await,
            granted(&client, &claims[1]).await,
        ];
        until_entries(&server, 2, 2).await;
        let raw = Client::connect(server.addr()).await.unwrap();
        let undeletable = Acl::new(Permission::READ | Permission::ADMIN, AuthId::anyone());
        raw.set_acl("/test/a", &[undeletable], None).await.unwrap();
        proxy.cut().await;
        for (claim, grant) in claims.iter().zip(&grants) {
            client.release(claim, Some(&grant.place)).await.unwrap_err();
        }
        proxy.heal().await;
        until_entries(&server, 1, 2).await;
        raw.set_acl(
            "/test/a",
            &[Acl::new(Permission::ALL, AuthId::anyone())],
            None,
        )
        .await
        .unwrap();
        until_entries(&server, 0, 2).await;
    })
    .await;
}

/// Its claims are writes, so it sends no keep-alives of its own.
#[tokio::test]
async fn a_busy_session_repeats_a_release_that_failed_too() {
    limited(async {
        let server = server().await;
        let (client, raw) = (client(&server).await, Client::connect(server.addr()).await.unwrap());
        let ttl = Duration::from_secs(6);
        let (claim, other) = (fair("a", ttl), fair("a", ttl));
        let grant = granted(&client, &claim).await;
        let near = crate::common::client(&server).await;
        waiting(&near, &other).await;
        let undeletable = Permission::READ | Permission::ADMIN;
        raw.set_acl("/test/a", &[Acl::new(undeletable, AuthId::anyone())], None).await.unwrap();
        client.release(&claim, Some(&grant.place)).await.unwrap_err();
        raw.set_acl("/test/a", &[Acl::new(Permission::ALL, AuthId::anyone())], None).await.unwrap();
        let busy = async {
            for i in 0.. {
                let claim = fair(&format!("busy {i}"), ttl);
                if let Ok(Claimed::Granted(grant)) = client.claim(&claim).await {
                    let _ = client.release(&claim, Some(&grant.place)).await;
                }
                tokio::time::sleep(ttl / 100).await;
            }
        };
        tokio::select! {
            () = busy => {}
            () = until(|| async { matches!(near.claim(&other).await.unwrap(), Claimed::Granted(_)) }) => {}
        }
    })
    .await;
}

#[tokio::test]
async fn a_claim_dropped_at_any_await_is_withdrawn() {
    limited(async {
        let server = server().await;
        let (client, other) = (client(&server).await, client(&server).await);
        let ttl = Duration::from_secs(10);
        for held in [false, true] {
            let holder = fair("a", ttl);
            if held {
                granted(&other, &holder).await;
            }
            for polls in 1..8 {
                let claim = fair("a", ttl);
                {
                    let mut attempt = pin!(client.claim(&claim));
                    for _ in 0..polls {
                        let done = attempt
                            .as_mut()
                            .poll(&mut Context::from_waker(Waker::noop()))
                            .is_ready();
                        tokio::time::sleep(Duration::from_millis(3)).await;
                        if done {
                            break;
                        }
                    }
                }
                client.release(&claim, None).await.unwrap();
                until_entries(&server, u64::from(held), 2).await;
            }
        }
        // Each session watches its notification node, and what raises tokens.
        until(|| async { server.watch_count().await.unwrap() == 4 }).await;
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_session_is_a_loss_in_time_and_its_waiters_take_new_places() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (far, near) = (at(proxy.addr()).await, client(&server).await);
        let (far_store, near_store) = (Store::new(far.clone()), Store::new(near.clone()));
        let guard = hold(&far_store, "a", SHORT).await;
        let before = guard.view();
        let next = tokio::spawn(async move {
            let next = hold(&near_store, "a", SHORT).await;
            // Asked at once: a busy machine may be late.
            (next, before.remaining(), near_store)
        });
        until(|| async {
            near.inspect(&"a".into())
                .await
                .is_ok_and(|queue| queue.waiters.len() == 1)
        })
        .await;
        let third = tokio::spawn({
            let far_store = far_store.clone();
            async move { hold_patiently(&far_store, "a", SHORT).await }
        });
        until(|| async {
            near.inspect(&"a".into())
                .await
                .is_ok_and(|queue| queue.waiters.len() == 2)
        })
        .await;
        proxy.hold();
        assert_eq!(guard.lost().await, Loss::Expired);
        let (next, still_left, _near_store) = next.await.unwrap();
        assert_eq!(still_left, Duration::ZERO, "two at once");
        assert!(next.fencing_token() > guard.fencing_token());
        proxy.heal().await;
        until(|| async {
            near.inspect(&"a".into())
                .await
                .is_ok_and(|queue| queue.waiters.len() == 1)
        })
        .await;
        let token = next.fencing_token();
        next.release().await.unwrap();
        let third = third.await.unwrap();
        assert!(third.fencing_token() > token);
        drop(guard); // late, of another session: frees no other hold
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(third.is_valid());
        assert_eq!(
            near.inspect(&"a".into()).await.unwrap().holders[0].token,
            Some(third.fencing_token())
        );
    })
    .await;
}

/// Validity counts from what was sent. A keep-alive is verified by another, sent a quarter of the
/// session's timeout after its answer: when that is answered, two slow answers and this quarter
/// have passed.
#[tokio::test]
async fn slow_answers_shorten_a_lease_and_never_extend_it() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (slow, ttl) = (Duration::from_millis(200), Duration::from_secs(6));
        let store = Store::new(at(proxy.addr()).await);
        proxy.delay_replies(slow);
        // In a new session, which a busy machine may not open in time.
        let (asked, guard) = loop {
            let asked = Moment::now();
            match store.lock("a").ttl(ttl).try_acquire().await {
                Ok(guard) => break (asked, guard),
                Err(e) => assert!(e.is_retryable(), "{e:?}"),
            }
        };
        for _ in 0..100 {
            let most =
                (ttl - ttl / 4 - slow * 2).max(ttl.saturating_sub(Moment::now().since(asked)));
            let remaining = guard.remaining();
            assert!(remaining <= most, "{remaining:?}, more than {most:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(guard.is_valid());
    })
    .await;
}
