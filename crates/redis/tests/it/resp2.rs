//! Servers and proxies that refuse `HELLO 3`: RESP2 is spoken with them, and nothing is pushed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Claimed, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, Loss, Store};
use leasehold_redis::{Config, Redis};
use leasehold_testbed::{Proxy, RedisGate, RedisLike, RedisOptions};

/// A server that knows no `HELLO`, as a Redis 5.
async fn old_server() -> Server {
    let extra = ["--rename-command", "HELLO", ""].map(str::to_owned);
    let options = RedisOptions {
        extra: extra.to_vec(),
        ..RedisOptions::default()
    };
    Server::start_with(&options).await.unwrap()
}

async fn at(addr: &str) -> Redis {
    let url = format!("redis://{addr}?timeout=10000");
    Redis::connect(&url).await.unwrap()
}

fn says_why(store: &Redis) -> bool {
    let guarantees = store.guarantees();
    let warnings = guarantees.warnings();
    !guarantees.pushed_wake()
        && guarantees.notes().contains("Over RESP2")
        && warnings.iter().any(|warning| warning.contains("HELLO 3"))
}

/// A cycle in which one waits, and all that people ask.
async fn serves(one: &Redis, other: &Redis) {
    let [holder, next] = [fair("x"), fair("x")];
    let token = granted(one, &holder).await.token;
    let Claimed::Waiting(place) = other.claim(&next).await.unwrap() else {
        panic!("not held")
    };
    let again = place.retry_after.unwrap();
    assert!(again <= Duration::from_millis(50), "{again:?}");
    let queue = other.inspect(&"x".into()).await.unwrap();
    assert_eq!((queue.holders.len(), queue.waiters.len()), (1, 1));
    let names = other.list("", None, 10).await.unwrap();
    assert_eq!(names, ["x".into()]);
    assert!(matches!(
        renewed(one, &holder, token).await,
        Renewal::Renewed(_)
    ));
    one.release(&holder, None).await.unwrap();
    let after = granted(other, &next).await.token;
    assert!(after > token);
    assert!(one.evict(&"x".into(), after).await.unwrap());
    assert!(matches!(
        renewed(other, &next, after).await,
        Renewal::Lost(Loss::Gone)
    ));
    other.release(&next, None).await.unwrap();
}

#[tokio::test]
async fn a_server_without_hello_is_served_and_says_so() {
    bounded(async {
        let old = old_server().await;
        let stores = [at(old.addr()).await, at(old.addr()).await];
        assert!(says_why(&stores[0]));
        serves(&stores[0], &stores[1]).await;
        // What its settings are is known all the same.
        let warnings = stores[0].guarantees().warnings().join("\n");
        assert!(
            warnings.contains("CONFIG GET") && !warnings.contains("may not ask"),
            "{warnings}"
        );
        assert!(!warnings.contains("maxmemory"), "{warnings}");
    })
    .await;
}

/// One answers what it does not know by an error, the other one by closing the connection.
#[tokio::test]
async fn proxies_that_know_few_commands_are_served() {
    bounded(async {
        let server = server().await;
        let envoy = RedisGate::envoy(server.addr()).await.unwrap();
        let twemproxy = RedisGate::twemproxy(vec![server.addr().to_owned()]);
        let twemproxy = twemproxy.await.unwrap();
        let straight = client(&server).await;
        for gate in [&envoy, &twemproxy] {
            let by_proxy = at(gate.addr()).await;
            assert!(says_why(&by_proxy), "{gate:?}");
            serves(&by_proxy, &at(gate.addr()).await).await;
            // Beside a client that is pushed to.
            let [holder, next, last] = [fair("y"), fair("y"), fair("y")];
            granted(&straight, &holder).await;
            waiting(&by_proxy, &next).await;
            waiting(&straight, &last).await;
            straight.release(&holder, None).await.unwrap();
            granted(&by_proxy, &next).await;
            waiting(&straight, &last).await;
            by_proxy.release(&next, None).await.unwrap();
            granted(&straight, &last).await;
            straight.release(&last, None).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn waiters_ask_until_they_hold() {
    bounded(async {
        let server = old_server().await;
        let stores = [at(server.addr()).await, at(server.addr()).await];
        let [one, other] = stores.map(Store::new);
        let held = one.lock("x").acquire().await.unwrap();
        let next = tokio::spawn(async move { other.lock("x").acquire().await });
        while one.lock("x").inspect().await.unwrap().waiters.is_empty() {
            sleep(5).await;
        }
        let start = clock();
        held.release().await.unwrap();
        let guard = next.await.unwrap().unwrap();
        // A waiter that is not told and does not ask comes at the end of a third of its lease, of ten seconds.
        let took = start.elapsed();
        assert!(took < Duration::from_secs(3), "{took:?}");
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn the_protocol_can_be_chosen() {
    bounded(async {
        let server = server().await;
        let url = |protocol: &str| format!("{}?protocol={protocol}", server.url());
        for chosen in [
            Config::from_url(&url("2")).unwrap(),
            Config::from_url(&url("resp2")).unwrap(),
            Config::from_url(&server.url()).unwrap().resp2(),
        ] {
            let store = Redis::with_config(chosen).await.unwrap();
            let warnings = store.guarantees().warnings().join("\n");
            assert!(
                !store.guarantees().pushed_wake() && !warnings.contains("HELLO"),
                "{warnings}"
            );
            serves(&client(&server).await, &store).await;
        }
        let hellos = server.commandstats().await.unwrap().get("hello").copied();
        // Those of the other three.
        assert_eq!(hellos, Some(2 * 3));
        let store = Redis::connect(&url("3")).await.unwrap();
        assert!(store.guarantees().pushed_wake());
        let gate = RedisGate::envoy(server.addr()).await.unwrap();
        let only = format!("redis://{}?protocol=3", gate.addr());
        let refused = Redis::connect(&only).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        assert!(refused.to_string().contains("HELLO 3"), "{refused}");
    })
    .await;
}

#[tokio::test]
async fn what_needs_pushes_or_other_commands_is_refused() {
    bounded(async {
        let server = old_server().await;
        for (url, kind, told) in [
            (
                format!("redis://{}?min_replicas=1", server.addr()),
                ErrorKind::Unsupported,
                "min_replicas is for a server that speaks RESP3",
            ),
            (
                format!("redis://{}?protocol=2&min_replicas=1", server.addr()),
                ErrorKind::Unsupported,
                "min_replicas is for a server that speaks RESP3",
            ),
            (
                format!("redis://{}?scripts=off", server.addr()),
                ErrorKind::Unsupported,
                "scripts=off is for a server that speaks RESP3",
            ),
            (
                format!("redis://{}?protocol=2&scripts=off", server.addr()),
                ErrorKind::Unsupported,
                "scripts=off is for a server that speaks RESP3",
            ),
            (
                format!("redis+cluster://{}?protocol=2", server.addr()),
                ErrorKind::Unsupported,
                "protocol=2 is for one server",
            ),
            (
                format!("redis+cluster://{}", server.addr()),
                ErrorKind::Unsupported,
                "HELLO 3",
            ),
            (
                format!("redis://{}?protocol=4", server.addr()),
                ErrorKind::Invalid,
                "protocol is 2 or 3",
            ),
        ] {
            let refused = Redis::connect(&url).await.unwrap_err();
            assert_eq!(refused.kind(), kind, "{url}: {refused}");
            assert!(refused.to_string().contains(told), "{url}: {refused}");
        }
    })
    .await;
}

/// There a script for several names would find only those of its first key's server.
#[tokio::test]
async fn a_proxy_that_spreads_keys_is_refused() {
    bounded(async {
        let servers = [server().await, server().await];
        let addrs = servers.each_ref().map(|server| server.addr().to_owned());
        let gate = RedisGate::twemproxy(addrs.to_vec()).await.unwrap();
        let refused = Redis::connect(&format!("redis://{}", gate.addr())).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        let words = refused.to_string();
        assert!(
            words.contains("spreads keys") && !words.contains("TLS"),
            "{words}"
        );
    })
    .await;
}

/// A connection that ends is made again before it is needed, and by RESP2.
#[tokio::test]
async fn a_connection_that_broke_is_made_again() {
    bounded(async {
        let server = old_server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let store = at(proxy.addr()).await;
        let claim = fair("x");
        let token = granted(&store, &claim).await.token;
        let before = proxy.connections();
        proxy.disconnect().await;
        until(async || proxy.connections() > before).await;
        until(async || store.list("", None, 1).await.is_ok()).await;
        assert_eq!(granted(&store, &claim).await.token, token);
        server.kill().await.unwrap();
        let asked = store.claim(&fair("y")).await.unwrap_err();
        assert!(asked.is_retryable(), "{asked}");
        server.start_again().await.unwrap();
        until(async || store.claim(&fair("y")).await.is_ok()).await;
    })
    .await;
}

/// A server that closes one connection at `HELLO` may just be restarting, and a proxy may have a refusal of its own.
#[tokio::test]
async fn a_server_that_refused_once_is_asked_again_before_pushes_are_given_up() {
    bounded(async {
        for first in ["", "-ERR the tenant is waking up"] {
            let hellos = AtomicUsize::new(0);
            let server = RedisLike::answering(move |words| {
                let answer = match (words[0].as_str(), words.len()) {
                    ("HELLO", 2..) if hellos.fetch_add(1, Ordering::SeqCst) == 0 => first,
                    ("GET", _) => "$7\r\nredis-1",
                    ("EVAL", _) if words[1].contains("INFO") => "*2\r\n$0\r\n\r\n$0\r\n",
                    ("EVAL", _) if words[1].contains("'GET', KEYS[2]") => "$7\r\nredis-1",
                    _ => return None,
                };
                Some(answer.to_owned())
            });
            let server = server.await.unwrap();
            let store = at(server.addr()).await;
            assert!(store.guarantees().pushed_wake(), "{first}");
            let claim = claim("x", WaitPolicy::Try, TTL, "");
            assert!(store.claim(&claim).await.is_err());
        }
    })
    .await;
}

/// Over RESP2 the first request is `AUTH` or `SELECT`, and its refusal is none of `HELLO`.
#[tokio::test]
async fn a_refusal_is_told_as_over_resp3() {
    bounded(async {
        let open = server().await;
        let options = RedisOptions {
            password: Some("s3cret".into()),
            ..RedisOptions::default()
        };
        let closed = Server::start_with(&options).await.unwrap();
        for (url, kind, told) in [
            (
                format!("redis://{}/99", open.addr()),
                ErrorKind::Invalid,
                "no database of this number",
            ),
            (
                format!("redis://:s3cret@{}/99", closed.addr()),
                ErrorKind::Invalid,
                "no database of this number",
            ),
            (
                format!("redis://:wr0ng@{}", closed.addr()),
                ErrorKind::Denied,
                "refused our credentials",
            ),
            (
                format!("redis://:wr0ng@{}/1", closed.addr()),
                ErrorKind::Denied,
                "refused our credentials",
            ),
            (
                format!("redis://{}/1", closed.addr()),
                ErrorKind::Denied,
                "wants a password",
            ),
        ] {
            for url in [format!("{url}?protocol=2"), url] {
                let refused = Redis::connect(&url).await.unwrap_err();
                assert_eq!(refused.kind(), kind, "{url}: {refused}");
                assert!(refused.to_string().contains(told), "{url}: {refused}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_replica_that_takes_writes_is_refused() {
    bounded(async {
        let [old, new] = [old_server().await, server().await];
        for (replica, words) in [(&old, ""), (&new, "?protocol=2")] {
            for command in [
                &["CONFIG", "SET", "replica-read-only", "no"][..],
                &["REPLICAOF", "127.0.0.1", "1"],
            ] {
                replica.command(command).await.unwrap();
            }
            let url = format!("redis://{}{words}", replica.addr());
            let refused = Redis::connect(&url).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
            assert!(
                refused.to_string().contains("a replica that takes writes"),
                "{refused}"
            );
            // One that takes none is good for a look.
            let reads = ["CONFIG", "SET", "replica-read-only", "yes"];
            replica.command(&reads).await.unwrap();
            let store = Redis::connect(&url).await.unwrap();
            let queue = store.inspect(&"x".into()).await;
            assert!(queue.is_ok(), "{queue:?}");
        }
    })
    .await;
}

/// An observer looks as often as where nothing is pushed.
#[tokio::test]
async fn an_observer_is_told_of_nothing() {
    bounded(async {
        let server = old_server().await;
        let store = at(server.addr()).await;
        let subscription = store.observe(&"x".into());
        assert_eq!(
            format!("{subscription:?}"),
            "Subscription(asked from time to time)"
        );
    })
    .await;
}
