//! Connecting by sentinels: what is wrong is said as what it is, in time, and without secrets.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Store};
use leasehold_redis::client::{ConnectionAddr, IntoConnectionInfo};
use leasehold_redis::{Config, Redis};
use leasehold_testbed::{RedisOptions, RedisSentinel, SentinelOptions};
use support::*;

async fn with_passwords() -> RedisSentinel {
    let servers = RedisOptions { password: Some("s3cret".into()), ..RedisOptions::default() };
    let options = SentinelOptions { servers, password: Some("s3ntinel".into()), replicas: 1, ..Default::default() };
    RedisSentinel::start_with(&options).await.unwrap()
}

async fn refused(url: &str) -> Error {
    let began = clock();
    let error = Redis::connect(url).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(5), "{error}");
    let text = format!("{error} {error:?}");
    assert!(!text.contains("s3cret") && !text.contains("s3ntinel") && !text.contains("wr0ng"), "{text}");
    error
}

#[tokio::test]
async fn what_is_wrong_is_said_as_what_it_is() {
    bounded(async {
        let all = with_passwords().await;
        let (url, sentinel, master) = (all.url(), all.sentinels()[0].addr(), all.servers()[0].addr());
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = silent.local_addr().unwrap();
        for (url, kind, words) in [
            (url.replace("/locks", "/another"), ErrorKind::Invalid, "no master with the name \"another\""),
            (url.replace("sentinel_password=s3ntinel", ""), ErrorKind::Denied, "sentinel_password"),
            (url.replace("=s3ntinel", "=wr0ng"), ErrorKind::Denied, "sentinel_password"),
            (url.replace(":s3cret@", ""), ErrorKind::Denied, "wants a password"),
            (url.replace(":s3cret@", ":wr0ng@"), ErrorKind::Denied, "credentials"),
            (format!("redis://:s3ntinel@{sentinel}"), ErrorKind::Unsupported, "redis+sentinel://"),
            (
                format!("redis+sentinel://{master}/locks?sentinel_password=s3cret"),
                ErrorKind::Unsupported,
                "no Redis Sentinel",
            ),
            ("redis+sentinel://127.0.0.1:1,127.0.0.1:2/locks".into(), ErrorKind::Unavailable, "no sentinel says where"),
            (format!("redis+sentinel://{silent}/locks?timeout=300"), ErrorKind::Unavailable, "in time"),
        ] {
            let error = refused(&url).await;
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    })
    .await;
}

#[tokio::test]
async fn one_sentinel_that_answers_is_enough_and_a_replica_is_not() {
    bounded(async {
        let all = with_passwords().await;
        let (dead, alive) = ("127.0.0.1:1", all.sentinels()[1].addr());
        let by = |hosts: &str| {
            let (own, rest) = ("sentinel_password=s3ntinel", "/locks?timeout=500&");
            format!("redis+sentinel://:s3cret@{hosts}{rest}{own}")
        };
        let store = Redis::connect(&by(&format!("{dead},{alive}"))).await.unwrap();
        granted(&store, &fair("x")).await;
        assert!(!format!("{store:?}").contains("s3"), "{store:?}");
        // The same, configured without a URL.
        let at = |addr: &str| {
            let (host, port) = addr.split_once(':').unwrap();
            ConnectionAddr::Tcp(host.to_owned(), port.parse().unwrap()).into_connection_info().unwrap()
        };
        let own = at(alive);
        let settings = own.redis_settings().clone().set_password("s3ntinel");
        let server = at("0.0.0.0:1");
        let server_settings = server.redis_settings().clone().set_password("s3cret");
        let config = Config::new(server.set_redis_settings(server_settings));
        let config = config.sentinels(RedisSentinel::MASTER, [own.set_redis_settings(settings)]);
        let store = Store::new(Redis::with_config(config).await.unwrap());
        store.lock("y").acquire().await.unwrap().release().await.unwrap();
        let none = Config::new(at(alive)).sentinels(RedisSentinel::MASTER, []);
        assert_eq!(Redis::with_config(none).await.unwrap_err().kind(), ErrorKind::Invalid);
        // The sentinels say of a replica that it is the master, as they do until they have noticed.
        let port = all.servers()[1].port();
        all.watch_too("late", port).await.unwrap();
        let error = refused(&by(alive).replace("/locks", "/late")).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("it is a replica"), "{error}");
    })
    .await;
}
