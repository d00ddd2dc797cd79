//! Connecting by sentinels: what is wrong is said as what it is, in time, and without secrets; and which of them is believed.

use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Claimed, WaitPolicy};
use leasehold_core::{Error, ErrorKind, Store};
use leasehold_redis::client::{ConnectionAddr, IntoConnectionInfo};
use leasehold_redis::{Config, Redis};
use leasehold_testbed::{Proxy, RedisOptions, RedisSentinel, SentinelOptions};

async fn with_passwords() -> RedisSentinel {
    let servers = RedisOptions {
        password: Some("s3cret".into()),
        ..RedisOptions::default()
    };
    let options = SentinelOptions {
        servers,
        password: Some("s3ntinel".into()),
        replicas: 1,
        ..Default::default()
    };
    RedisSentinel::start_with(&options).await.unwrap()
}

async fn refused(url: &str) -> Error {
    let began = clock();
    let error = Redis::connect(url).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(30), "{error}");
    let text = format!("{error} {error:?}");
    assert!(
        !text.contains("s3cret") && !text.contains("s3ntinel") && !text.contains("wr0ng"),
        "{text}"
    );
    assert!(text.contains("127.0.0.1:"), "it names no server: {text}");
    error
}

#[tokio::test]
async fn what_is_wrong_is_said_as_what_it_is() {
    bounded(async {
        let all = with_passwords().await;
        let (url, sentinel, master) = (
            all.url(),
            all.sentinels()[0].addr(),
            all.servers()[0].addr(),
        );
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = silent.local_addr().unwrap();
        for (url, kind, words) in [
            (
                url.replace("/locks", "/another"),
                ErrorKind::Invalid,
                "no master with the name \"another\"",
            ),
            (
                url.replace("?sentinel_password=s3ntinel", ""),
                ErrorKind::Denied,
                "sentinel_password",
            ),
            (
                url.replace("=s3ntinel", "=wr0ng"),
                ErrorKind::Denied,
                "sentinel_password",
            ),
            (
                url.replace(":s3cret@", ""),
                ErrorKind::Denied,
                "wants a password",
            ),
            (
                url.replace(":s3cret@", ":wr0ng@"),
                ErrorKind::Denied,
                "credentials",
            ),
            (
                format!("redis://:s3ntinel@{sentinel}"),
                ErrorKind::Unsupported,
                "redis+sentinel://",
            ),
            (
                format!("redis+cluster://:s3ntinel@{sentinel}"),
                ErrorKind::Unsupported,
                "redis+sentinel://",
            ),
            (
                format!("redis+sentinel://{master}/locks?sentinel_password=s3cret"),
                ErrorKind::Unsupported,
                "no Redis Sentinel",
            ),
            (
                "redis+sentinel://127.0.0.1:1,127.0.0.1:2/locks".into(),
                ErrorKind::Unavailable,
                "no sentinel says where",
            ),
            (
                format!("redis+sentinel://{silent}/locks?timeout=300"),
                ErrorKind::Unavailable,
                "in time",
            ),
        ] {
            // A limit that a busy machine keeps, but where silence is what is said.
            let more = if url.contains('?') { '&' } else { '?' };
            let url = if url.contains("timeout") {
                url
            } else {
                format!("{url}{more}timeout=8000")
            };
            let error = refused(&url).await;
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
        assert_eq!(all.servers()[0].keys("*").await.unwrap(), [""; 0]);
    })
    .await;
}

#[tokio::test]
async fn one_sentinel_that_answers_is_enough_and_a_replica_is_not() {
    bounded(async {
        let all = with_passwords().await;
        let (dead, alive) = ("127.0.0.1:1", all.sentinels()[1].addr());
        let by = |hosts: &str| {
            let (own, rest) = ("sentinel_password=s3ntinel", "/locks?timeout=8000&");
            format!("redis+sentinel://:s3cret@{hosts}{rest}{own}")
        };
        let store = Redis::connect(&by(&format!("{dead},{alive}")))
            .await
            .unwrap();
        granted(&store, &fair("x")).await;
        assert!(!format!("{store:?}").contains("s3"), "{store:?}");
        // The same, configured without a URL.
        let at = |addr: &str| {
            let (host, port) = addr.split_once(':').unwrap();
            ConnectionAddr::Tcp(host.to_owned(), port.parse().unwrap())
                .into_connection_info()
                .unwrap()
        };
        let own = at(alive);
        let settings = own.redis_settings().clone().set_password("s3ntinel");
        let server = at("0.0.0.0:1");
        let server_settings = server.redis_settings().clone().set_password("s3cret");
        let config = Config::new(server.set_redis_settings(server_settings));
        let config = config.sentinels(RedisSentinel::MASTER, [own.set_redis_settings(settings)]);
        let store = Store::new(Redis::with_config(config).await.unwrap());
        store
            .lock("y")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        let none = Config::new(at(alive)).sentinels(RedisSentinel::MASTER, []);
        assert_eq!(
            Redis::with_config(none).await.unwrap_err().kind(),
            ErrorKind::Invalid
        );
        // The sentinels say of a replica that it is the master, as they do until they have noticed.
        let port = all.servers()[1].port();
        all.watch_too("late", port).await.unwrap();
        let error = refused(&by(alive).replace("/locks", "/late")).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("it is a replica"), "{error}");
    })
    .await;
}

/// A sentinel that knows of no other one: it says of the master what it was told, and clients come to it by a proxy.
struct Lone {
    sentinel: Server,
    way: Proxy,
}

impl Lone {
    /// It says that this server is the master, since the failover of this number.
    async fn start(master: u16, epoch: u64) -> Lone {
        let lines = format!(
            "sentinel monitor locks 127.0.0.1 {master} 1\nsentinel down-after-milliseconds locks 600000\n\
            sentinel config-epoch locks {epoch}\n"
        );
        let sentinel = Server::start_sentinel(&lines).await.unwrap();
        let way = Proxy::to(sentinel.addr()).await.unwrap();
        Lone { sentinel, way }
    }

    /// Another sentinel has put this server in the master's place.
    async fn tell(&self, master: &Server, epoch: u64) {
        let (run, port) = ("0".repeat(40), master.port());
        let hello = format!("127.0.0.1,1,{run},{epoch},locks,127.0.0.1,{port},{epoch}");
        self.sentinel
            .command(&["PUBLISH", "__sentinel__:hello", &hello])
            .await
            .unwrap();
    }

    /// So many listen to it.
    async fn until_heard_by(&self, listeners: usize) {
        let all = async || {
            text(&self.sentinel, &["CLIENT", "LIST", "TYPE", "pubsub"])
                .await
                .unwrap_or_default()
        };
        until(async || all().await.lines().count() == listeners).await;
    }
}

/// A server that stays a master, whatever sentinels want, and by which they learn nothing of each other.
async fn master() -> Server {
    let server = server().await;
    stays_master(&server).await;
    server
}

async fn stays_master(server: &Server) {
    let rules = ["resetchannels", "&leasehold:*", "-replicaof", "-slaveof"];
    server
        .command(&[&["ACL", "SETUSER", "default"], &rules[..]].concat())
        .await
        .unwrap();
}

fn by(all: &[&Lone]) -> String {
    let hosts: Vec<&str> = all.iter().map(|lone| lone.way.addr()).collect();
    format!("redis+sentinel://{}/locks?timeout=8000", hosts.join(","))
}

/// Whether the store's claims come to this server.
async fn is_at(store: &Redis, server: &Server) -> bool {
    let claim = fair("where");
    let granted = matches!(store.claim(&claim).await, Ok(Claimed::Granted(_)));
    let there = granted && number(server, &["EXISTS", "where"]).await == 1;
    surely_released(store, &claim).await;
    there
}

#[tokio::test]
async fn of_two_sentinels_the_one_with_the_later_failover_counts() {
    bounded(async {
        let (old, new) = (master().await, master().await);
        let (late, stale) = (
            Lone::start(new.port(), 2).await,
            Lone::start(old.port(), 1).await,
        );
        for slow in [&late, &stale] {
            // Whichever answers first.
            slow.way.delay_replies(Duration::from_millis(200));
            for all in [[&late, &stale], [&stale, &late]] {
                let store = Redis::connect(&by(&all)).await.unwrap();
                assert!(is_at(&store, &new).await);
            }
            slow.way.heal().await;
        }
    })
    .await;
}

/// Sentinels hear of a failover one after the other, within seconds. Those that have not name the old master, which still answers.
#[tokio::test]
async fn a_master_that_was_left_is_not_returned_to_because_most_have_not_heard() {
    bounded(async {
        let (old, new) = (master().await, master().await);
        let port = old.port();
        let all = [
            Lone::start(port, 1).await,
            Lone::start(port, 1).await,
            Lone::start(port, 1).await,
        ];
        let store = Redis::connect(&by(&[&all[0], &all[1], &all[2]]))
            .await
            .unwrap();
        assert!(is_at(&store, &old).await);
        for lone in &all {
            lone.until_heard_by(1).await;
        }
        // The one that knows is slower than the others.
        all[0].way.delay_replies(Duration::from_millis(300));
        let count = Count::from_here(&old).await;
        all[0].tell(&new, 2).await;
        within(30, until(async || is_at(&store, &new).await)).await;
        assert_eq!(count.of("hello").await, 0, "it came back to the old master");
        // Also for what is asked anew, for as long as the others have not heard.
        new.command(&["CLIENT", "KILL", "TYPE", "pubsub"])
            .await
            .unwrap();
        within(30, until(async || is_at(&store, &new).await)).await;
        assert_eq!(count.of("hello").await, 0, "it came back to the old master");
    })
    .await;
}

/// The master went away and came back, and one that hears late tells the first half of it.
#[tokio::test]
async fn a_failover_that_another_one_has_followed_moves_nobody() {
    bounded(async {
        let (old, new) = (master().await, master().await);
        let all = [
            Lone::start(old.port(), 1).await,
            Lone::start(old.port(), 1).await,
        ];
        let store = Redis::connect(&by(&[&all[0], &all[1]])).await.unwrap();
        for lone in &all {
            lone.until_heard_by(1).await;
        }
        let count = Count::from_here(&old).await;
        // What this one is asked after its first news comes once both are over.
        let trap = all[0].way.hold_matching("GET-MASTER-ADDR");
        all[0].tell(&new, 2).await;
        trap.sprung().await;
        all[0].tell(&old, 3).await;
        all[0].way.deliver_held();
        trap.done().await;
        assert!(is_at(&store, &old).await);
        let before = all[1].way.request_bytes();
        all[1].tell(&new, 2).await;
        until(async || all[1].way.request_bytes() > before).await;
        for _ in 0..20 {
            assert!(is_at(&store, &old).await);
        }
        assert_eq!(count.of("hello").await, 0, "it left the master");
    })
    .await;
}

#[tokio::test]
async fn what_sentinels_say_that_have_begun_anew_counts() {
    bounded(async {
        let (old, new) = (master().await, master().await);
        let all = [
            Lone::start(old.port(), 7).await,
            Lone::start(old.port(), 7).await,
        ];
        let store = Redis::connect(&by(&[&all[0], &all[1]])).await.unwrap();
        assert!(is_at(&store, &old).await);
        for lone in &all {
            lone.sentinel
                .command(&["SENTINEL", "REMOVE", "locks"])
                .await
                .unwrap();
            let port = new.port().to_string();
            lone.sentinel
                .command(&["SENTINEL", "MONITOR", "locks", "127.0.0.1", &port, "1"])
                .await
                .unwrap();
        }
        old.kill().await.unwrap();
        within(60, until(async || is_at(&store, &new).await)).await;
    })
    .await;
}

/// What a sentinel says while the first connection is made.
#[tokio::test]
async fn a_connection_to_where_the_master_was_is_not_used() {
    bounded(async {
        let (old, new) = (master().await, master().await);
        let way = Proxy::to(old.addr()).await.unwrap();
        let lone = Lone::start(way.port(), 1).await;
        // It names the proxy, which is slow: connecting takes a while.
        way.delay_replies(Duration::from_millis(500));
        let url = by(&[&lone]);
        let connecting = tokio::spawn(async move { Redis::connect(&url).await });
        lone.until_heard_by(1).await;
        lone.tell(&new, 2).await;
        match connecting.await.unwrap() {
            Ok(store) => assert!(is_at(&store, &new).await),
            Err(e) => assert!(
                e.kind() == ErrorKind::Unavailable && e.to_string().contains("in its place"),
                "{e}"
            ),
        }
    })
    .await;
}

/// The same for an answer that is older than what the sentinel has told meanwhile.
#[tokio::test]
async fn an_old_answer_does_not_count_against_later_news() {
    bounded(async {
        let (old, new) = (master().await, master().await);
        // The first question is that of the connection, or of the listener: it is a matter of luck.
        for _ in 0..8 {
            let lone = Lone::start(old.port(), 1).await;
            let trap = lone.way.hold_reply_matching("GET-MASTER-ADDR");
            let url = by(&[&lone]);
            let connecting = tokio::spawn(async move { Redis::connect(&url).await });
            trap.sprung().await;
            lone.until_heard_by(1).await;
            let before = lone.way.request_bytes();
            lone.tell(&new, 2).await;
            // The listener asks at once, if it was not its question that is late.
            let _ = tokio::time::timeout(
                Duration::from_millis(300),
                until(async || lone.way.request_bytes() > before),
            )
            .await;
            sleep(20).await;
            lone.way.deliver_held();
            match connecting.await.unwrap() {
                Ok(store) => within(30, until(async || is_at(&store, &new).await)).await,
                Err(e) => assert!(
                    e.kind() == ErrorKind::Unavailable && e.to_string().contains("in its place"),
                    "{e}"
                ),
            }
        }
    })
    .await;
}

/// A promoted replica lacks the last tokens of the old master, be it of a tenth of a second: the clock makes up for them.
#[tokio::test]
async fn tokens_rise_where_the_last_ones_are_missing() {
    bounded(async {
        let server = master().await;
        let lone = Lone::start(server.port(), 1).await;
        let store = Redis::connect(&by(&[&lone])).await.unwrap();
        for n in 0..20 {
            let claim = fair("x");
            let token = granted(&store, &claim).await.token.get();
            surely_released(&store, &claim).await;
            server
                .command(&["SET", "{}:f", &(token - 50_000).to_string(), "EX", "7200"])
                .await
                .unwrap();
            let next = fair("x");
            assert!(granted(&store, &next).await.token.get() > token, "{n}");
            surely_released(&store, &next).await;
        }
    })
    .await;
}

/// The old master answers it after its replica was promoted, and before the client hears of that.
#[tokio::test]
async fn a_release_that_only_the_old_master_saw_is_sent_again() {
    bounded(async {
        let (old, new) = (master().await, server().await);
        new.command(&["REPLICAOF", "127.0.0.1", &old.port().to_string()])
            .await
            .unwrap();
        let lone = Lone::start(old.port(), 1).await;
        let (mine, other) = (
            Redis::connect(&by(&[&lone])).await.unwrap(),
            Redis::connect(&by(&[&lone])).await.unwrap(),
        );
        lone.until_heard_by(2).await;
        let long = || claim("x", WaitPolicy::Fair, Duration::from_secs(600), "long");
        let (given, next) = (long(), long());
        granted(&mine, &given).await;
        until(async || number(&new, &["EXISTS", "x"]).await == 1).await;
        new.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
        stays_master(&new).await;
        surely_released(&mine, &given).await;
        assert_eq!(
            [
                number(&old, &["EXISTS", "x"]).await,
                number(&new, &["EXISTS", "x"]).await
            ],
            [0, 1]
        );
        lone.tell(&new, 2).await;
        // Until the other client hears of it, the old master grants.
        let is_next = async || {
            text(&new, &["GET", "x"])
                .await
                .is_some_and(|x| x.contains(&next.id.to_string()))
        };
        within(
            30,
            until(async || other.claim(&next).await.is_ok() && is_next().await),
        )
        .await;
    })
    .await;
}
