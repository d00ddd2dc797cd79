//! Bad days: servers that are not there, stop, forget, refuse or fall silent; requests that are dropped, lost or late.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Claim, Claimed, Renewal, WaitPolicy};
use leasehold_core::{Error, ErrorKind, Loss, Result, Store};
use leasehold_redis::Redis;
use leasehold_testbed::{Proxy, RedisOptions, away};

/// A client that gives up sooner than most, so that tests of silence are short; on a busy machine also where nobody is silent.
async fn through(proxy: &Proxy) -> Redis {
    loop {
        match Redis::connect(&format!("redis://{}?timeout=300", proxy.addr())).await {
            Ok(store) => return store,
            Err(e) => assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}"),
        }
    }
}

/// Waits until it has given its connection up.
async fn until_down(store: &Redis) {
    until(async || format!("{store:?}").contains("not connected")).await;
}

fn kind<T: std::fmt::Debug>(answer: Result<T>) -> ErrorKind {
    answer.map_err(|e: Error| e.kind()).unwrap_err()
}

/// Claims until the store serves again.
async fn until_served(store: &Redis, claim: &Claim) -> Claimed {
    loop {
        match store.claim(claim).await {
            Ok(claimed) => return claimed,
            Err(e) => assert!(
                matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous),
                "{e:?}"
            ),
        }
        sleep(10).await;
    }
}

/// A program may start before its server does.
#[tokio::test]
async fn a_server_that_is_away_at_the_start_is_waited_for() {
    bounded(async {
        let server = server().await;
        let url = server.url();
        let store = away::connected_before_the_server(&server, || Redis::connect(&url)).await;
        let guard = Store::new(store).lock("a").acquire().await.unwrap();
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn connecting_fails_in_time_and_says_why() {
    bounded(async {
        let start = clock();
        assert_eq!(
            kind(Redis::connect("redis://127.0.0.1:1").await),
            ErrorKind::Unavailable
        );
        // Nobody answers, but the port is open.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", silent.local_addr().unwrap());
        assert_eq!(kind(Redis::connect(&url).await), ErrorKind::Unavailable);
        assert!(start.elapsed() < Duration::from_secs(10));
        let options = RedisOptions {
            password: Some("s3cret".into()),
            ..RedisOptions::default()
        };
        let server = Server::start_with(&options).await.unwrap();
        for wrong in [
            format!("redis://:s3ntinel@{}", server.addr()),
            format!("redis://{}", server.addr()),
        ] {
            let error = Redis::connect(&wrong).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(!format!("{error:?}").contains("s3ntinel"));
            assert!(
                wrong.contains("s3ntinel") || error.to_string().contains("wants a password"),
                "{error}"
            );
        }
        let store = Redis::connect(&server.url()).await.unwrap();
        granted(&store, &fair("x")).await;
        assert!(!format!("{store:?}").contains("s3cret"));
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_down_is_unavailable_at_once_and_used_again_when_it_is_back() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let holder = fair("x");
        let token = granted(&store, &holder).await.token;
        server.kill().await.unwrap();
        until_down(&store).await;
        let start = clock();
        let error = store.claim(&fair("x")).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unavailable && error.to_string().contains("Redis"),
            "{error}"
        );
        assert_eq!(
            kind(store.release(&holder, None).await),
            ErrorKind::Unavailable
        );
        assert_eq!(
            kind(store.inspect(&"x".into()).await),
            ErrorKind::Unavailable
        );
        let renewal = store
            .renew(&[lease(&holder, Some(token))])
            .await
            .unwrap()
            .remove(0);
        assert!(matches!(renewal, Renewal::Unknown(e) if e.kind() == ErrorKind::Unavailable));
        // One request might take ten seconds.
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
        server.start_again().await.unwrap();
        let Claimed::Granted(grant) = until_served(&store, &fair("x")).await else {
            panic!("not granted")
        };
        assert!(grant.token > token);
        // What it forgot is lost.
        assert!(matches!(
            renewed(&store, &holder, Some(token)).await,
            Renewal::Lost(Loss::Gone)
        ));
    })
    .await;
}

#[tokio::test]
async fn a_silent_link_is_ambiguous_first_and_replaced_soon() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let store = through(&proxy).await;
        until_served(&store, &fair("warm")).await;
        proxy.hold();
        let start = clock();
        assert_eq!(kind(store.claim(&fair("x")).await), ErrorKind::Ambiguous);
        assert!(start.elapsed() < Duration::from_secs(5));
        // The doubt is a second request's time; then nobody waits any more.
        until_down(&store).await;
        assert_eq!(kind(store.claim(&fair("x")).await), ErrorKind::Unavailable);
        proxy.heal().await;
        until_served(&store, &fair("y")).await;
        // Also when the caller is more impatient than we are.
        proxy.hold();
        let _ = tokio::time::timeout(Duration::from_millis(50), store.claim(&fair("z"))).await;
        until_down(&store).await;
        assert_eq!(kind(store.claim(&fair("z")).await), ErrorKind::Unavailable);
    })
    .await;
}

#[tokio::test]
async fn a_lost_reply_is_ambiguous_and_claiming_again_adopts_the_grant() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let store = through(&proxy).await;
        until_served(&store, &fair("warm")).await;
        surely_released(&store, &fair("warm")).await;
        let claim = fair("x");
        let trap = proxy.lose_reply_matching(claim.id.to_string());
        assert_eq!(kind(store.claim(&claim).await), ErrorKind::Ambiguous);
        trap.done().await;
        let held = text(&server, &["GET", "{}:f"]).await.unwrap();
        let Claimed::Granted(grant) = until_served(&store, &claim).await else {
            panic!("not granted")
        };
        assert_eq!(grant.token.to_string(), held);
        // The same for a release.
        let trap = proxy.lose_reply_matching(claim.id.to_string());
        assert_eq!(
            kind(store.release(&claim, None).await),
            ErrorKind::Ambiguous
        );
        trap.done().await;
        let Claimed::Granted(_) = until_served(&store, &fair("x")).await else {
            panic!("not granted")
        };
        surely_released(&store, &claim).await;
        assert!(text(&server, &["GET", "x"]).await.is_some());
    })
    .await;
}

#[tokio::test]
async fn a_late_claim_leaves_nothing_that_outlives_one_ttl() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let store = through(&proxy).await;
        until_served(&store, &fair("warm")).await;
        surely_released(&store, &fair("warm")).await;
        for held in [false, true] {
            let late = claim("x", WaitPolicy::Fair, Duration::from_millis(300), "");
            let holder = fair("x");
            let trap = proxy.hold_matching(late.id.to_string());
            assert_eq!(kind(store.claim(&late).await), ErrorKind::Ambiguous);
            surely_released(&store, &late).await;
            if held {
                until_served(&store, &holder).await;
            }
            proxy.deliver_held();
            trap.done().await;
            sleep(400).await;
            surely_released(&store, &holder).await;
            // The server may see it a little after it was delivered.
            until(async || !traces(&server).await.iter().any(|key| key.contains('x'))).await;
            let Claimed::Granted(_) = until_served(&store, &holder).await else {
                panic!("not granted")
            };
            surely_released(&store, &holder).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_claim_dropped_at_any_await_and_withdrawn_leaves_nothing() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for cold in [false, true] {
            for polls in 0..12 {
                for contended in [false, true] {
                    let (holder, dropped) = (fair("x"), fair("x"));
                    if contended {
                        granted(&store, &holder).await;
                    }
                    if cold {
                        server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
                    }
                    {
                        let mut future = pin!(store.claim(&dropped));
                        for _ in 0..polls {
                            let ready =
                                poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready()))
                                    .await;
                            if ready {
                                break;
                            }
                            if polls % 2 == 0 {
                                sleep(1).await;
                            } else {
                                tokio::task::yield_now().await;
                            }
                        }
                    }
                    store.release(&dropped, None).await.unwrap();
                    if contended {
                        assert_eq!(traces(&server).await, ["x"], "{polls} polls");
                        store.release(&holder, None).await.unwrap();
                    }
                    assert_eq!(traces(&server).await, [""; 0], "{polls} polls");
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_full_server_refuses_new_locks_but_renews_and_releases() {
    bounded(async {
        let options = RedisOptions {
            extra: vec!["--maxmemory-policy".into(), "noeviction".into()],
            ..RedisOptions::default()
        };
        let server = Server::start_with(&options).await.unwrap();
        let store = client(&server).await;
        let (holder, next) = (fair("x"), fair("x"));
        let token = granted(&store, &holder).await.token;
        waiting(&store, &next).await;
        renewed(&store, &holder, Some(token)).await;
        store.release(&fair("warm"), None).await.unwrap();
        server
            .command(&["CONFIG", "SET", "maxmemory", "1"])
            .await
            .unwrap();
        let error = store.claim(&fair("y")).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unavailable && error.to_string().contains("memory"),
            "{error}"
        );
        assert!(matches!(
            renewed(&store, &holder, Some(token)).await,
            Renewal::Renewed(_)
        ));
        // Even the hand-over: what was deleted makes room.
        store.release(&holder, None).await.unwrap();
        assert_eq!(held_by(&server, "x").await, next.id.to_string());
    })
    .await;
}

#[tokio::test]
async fn a_replica_is_unavailable_until_it_is_promoted() {
    bounded(async {
        let (primary, replica) = (server().await, server().await);
        let store = client(&replica).await;
        granted(&store, &fair("warm")).await;
        let port = primary.addr().rsplit(':').next().unwrap().to_owned();
        replica
            .command(&["REPLICAOF", "127.0.0.1", &port])
            .await
            .unwrap();
        let mut said = String::new();
        for _ in 0..5 {
            let error = store.claim(&fair("x")).await.unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous),
                "{error:?}"
            );
            said += &error.to_string();
            sleep(20).await;
        }
        assert!(said.contains("replica"), "{said}");
        replica.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
        until_served(&store, &fair("x")).await;
    })
    .await;
}

#[tokio::test]
async fn missing_rights_are_denied_and_the_documented_ones_suffice() {
    bounded(async {
        let server = server().await;
        // As documented at the store's type.
        let rights =
            "on >pw ~locks:* ~{locks:* ~{}:f &leasehold:* +@scripting +@read +@write +@pubsub +@connection +time";
        let user: Vec<&str> = ["ACL", "SETUSER", "app"].into_iter().chain(rights.split(' ')).collect();
        server.command(&user).await.unwrap();
        let url = format!("redis://app:pw@{}?prefix=locks:", server.addr());
        let store = Redis::connect(&url).await.unwrap();
        let (holder, next) = (fair("x"), fair("x"));
        let token = granted(&store, &holder).await.token;
        waiting(&store, &next).await;
        renewed(&store, &holder, Some(token)).await;
        assert_eq!(store.list("", None, 9).await.unwrap().len(), 1);
        store.inspect(&"x".into()).await.unwrap();
        store.release(&holder, None).await.unwrap();
        let token = granted(&store, &next).await.token;
        assert!(store.evict(&"x".into(), token).await.unwrap());
        let elsewhere = Redis::connect(&format!("redis://app:pw@{}", server.addr())).await.unwrap();
        assert_eq!(kind(elsewhere.claim(&fair("x")).await), ErrorKind::Denied);
    })
    .await;
}

#[tokio::test]
async fn a_closed_store_says_so() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        store.close().await.unwrap();
        assert_eq!(kind(store.claim(&fair("x")).await), ErrorKind::Closed);
        assert_eq!(kind(store.list("", None, 1).await), ErrorKind::Closed);
        until_alone(&server).await;
        let dropped = client(&server).await;
        drop(dropped);
        until_alone(&server).await;
    })
    .await;
}

/// Waits until no client but the one that asks is connected.
async fn until_alone(server: &Server) {
    while text(server, &["CLIENT", "LIST"])
        .await
        .unwrap()
        .lines()
        .count()
        > 1
    {
        sleep(10).await;
    }
}

#[test]
fn a_store_outlives_the_runtime_that_connected_it() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let (server, store) = first.block_on(async {
        let server = server().await;
        let store = client(&server).await;
        granted(&store, &fair("x")).await;
        (server, store)
    });
    drop(first);
    runtime().block_on(bounded(async {
        until_served(&store, &fair("y")).await;
        server.kill().await.unwrap();
        server.start_again().await.unwrap();
        until_served(&store, &fair("z")).await;
    }));
}
