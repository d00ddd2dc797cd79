//! What a node says of a refused request may repeat the request, and what it says of itself matters: no secret in an error, and
//! each node's set-up is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::redlock::common::*;
use leasehold_core::backend::Backend;
use leasehold_core::{ErrorKind, Result, Store};
use leasehold_redis::redlock::{Config, Redlock};
use leasehold_testbed::fleet_cases::FleetStore;
use leasehold_testbed::{Redis, RedisEcho, RedisLike, RedisOptions, fleet_cases};

const CANARY: &str = "s3ntinel";

async fn echoes(code: &str, authenticates: bool) -> (Vec<RedisEcho>, String) {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(RedisEcho::start(code, authenticates).await.unwrap());
    }
    let addrs: Vec<&str> = servers.iter().map(RedisEcho::addr).collect();
    let url = format!("redlock://:{CANARY}@{}", addrs.join(","));
    (servers, url)
}

#[tokio::test]
async fn no_error_repeats_what_a_request_said() {
    bounded(async {
        for code in [
            "ERR",
            "NOPERM",
            "READONLY",
            "OOM",
            "WRONGTYPE",
            "X-s3ntinel",
        ] {
            let (servers, url) = echoes(code, true).await;
            for (verb, words) in
                refusals(async || Redlock::connect(&url).await.unwrap(), CANARY).await
            {
                let names_a_node = servers.iter().any(|server| words.contains(server.addr()));
                assert!(
                    verb == "claim_all" || names_a_node,
                    "{verb} names no node: {words}"
                );
            }
        }
        let (_servers, url) = echoes("ERR", false).await;
        words_without(
            &[CANARY],
            Redlock::connect(&url.replace(":s3", "app:s3")).await,
        );
    })
    .await;
}

async fn set_up(words: &[&str], persistent: bool) -> Redis {
    let extra = words.iter().map(|word| (*word).to_owned()).collect();
    let options = RedisOptions {
        persistent,
        extra,
        password: Some(CANARY.into()),
        ..RedisOptions::default()
    };
    Redis::start_with(&options).await.unwrap()
}

#[tokio::test]
async fn each_node_is_asked_whether_it_may_forget_locks() {
    bounded(async {
        let good = set_up(&[], true).await;
        let second = set_up(&["--appendfsync", "everysec"], true).await;
        let forgets = set_up(
            &["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"],
            false,
        )
        .await;
        let url = format!(
            "redlock://:{CANARY}@{},{},{}",
            good.addr(),
            second.addr(),
            forgets.addr()
        );
        let warnings = Redlock::connect(&url)
            .await
            .unwrap()
            .guarantees()
            .warnings()
            .to_vec();
        let about = |node: &Redis| {
            warnings
                .iter()
                .filter(|warning| warning.starts_with(node.addr()))
                .count()
        };
        assert_eq!(
            (about(&good), about(&second), about(&forgets)),
            (0, 1, 2),
            "{warnings:?}"
        );
        assert!(
            warnings
                .iter()
                .any(|warning| warning.contains("appendfsync always")),
            "{warnings:?}"
        );
        assert!(!format!("{warnings:?}").contains(CANARY));
    })
    .await;
}

#[tokio::test]
async fn a_node_that_cannot_be_used_is_named() {
    bounded(async {
        let nodes = Redis::start_many(2).await.unwrap();
        let extra = vec!["--cluster-enabled".into(), "yes".into()];
        let cluster = Redis::start_with(&RedisOptions {
            extra,
            ..RedisOptions::default()
        })
        .await
        .unwrap();
        let addrs = [nodes[0].addr(), nodes[1].addr(), cluster.addr()];
        let error = Redlock::connect(&url(addrs)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(
            error.to_string().contains(cluster.addr()) && error.to_string().contains("Cluster"),
            "{error}"
        );
        // What is no lock is an error, and not a free one.
        let nodes = Redis::start_many(3).await.unwrap();
        let store = client(&nodes).await;
        for node in &nodes {
            node.command(&["RPUSH", "x", "1"]).await.unwrap();
        }
        let error = store.inspect(&"x".into()).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Corrupt && error.to_string().contains("delete it"),
            "{error}"
        );
    })
    .await;
}

/// What one node says is said of it: a mistake at once, also if it is one of many; the rest if a majority is missed.
#[tokio::test]
async fn what_a_node_says_reaches_the_person() {
    bounded(async {
        let nodes = Redis::start_many(2).await.unwrap();
        for (line, kind, told) in [
            (
                "-DENIED Redis is running in protected mode",
                ErrorKind::Unsupported,
                "protected mode",
            ),
            (
                "-ERR unknown command 'HELLO'",
                ErrorKind::Unsupported,
                "HELLO 3",
            ),
        ] {
            let other = RedisLike::saying(&format!("{line}\r\n")).await.unwrap();
            let addrs = [nodes[0].addr(), nodes[1].addr(), other.addr()];
            let error = Redlock::connect(&url(addrs)).await.unwrap_err();
            let words = error.to_string();
            assert!(error.kind() == kind && words.contains(told), "{error:?}");
            assert!(
                words.contains(other.addr()) && !words.contains("TLS"),
                "{error:?}"
            );
        }
        let strict = RedisLike::answering(|words| {
            let line = "-ERR EVALSHA - all keys in the script don't hash to the same slot";
            (words[0] == "EVALSHA").then(|| line.to_owned())
        });
        let strict = strict.await.unwrap();
        let addrs = [nodes[0].addr(), nodes[1].addr(), strict.addr()];
        let error = Redlock::connect(&url(addrs)).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unsupported
                && error
                    .to_string()
                    .contains("spreads keys over several servers"),
            "{error:?}"
        );
        let full = [
            RedisLike::saying("-ERR max number of clients reached\r\n")
                .await
                .unwrap(),
            RedisLike::saying("-ERR max number of clients reached\r\n")
                .await
                .unwrap(),
        ];
        let addrs = [nodes[0].addr(), full[0].addr(), full[1].addr()];
        let error = Redlock::connect(&url(addrs)).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unavailable
                && error.to_string().contains("raise maxclients"),
            "{error:?}"
        );
    })
    .await;
}

/// Whichever of the commands is missing, the error names it and the node as the client connects, and nothing is there.
#[tokio::test]
async fn a_right_that_is_missing_on_one_node_is_named() {
    bounded(async {
        let all = Accounts::start("pw").await;
        let url = all.url("pw");
        let last = &all.0[2];
        for (right, named) in [
            ("-pexpire", "+pexpire"),
            ("-rename", "+rename"),
            ("-@write", "+zadd"),
            ("resetkeys ~x", "~{}:rt"),
        ] {
            let words: Vec<&str> = ["ACL", "SETUSER", "app"]
                .into_iter()
                .chain(right.split(' '))
                .collect();
            last.command(&words).await.unwrap();
            let error = Redlock::connect(&url).await.unwrap_err();
            let words = error.to_string();
            assert!(
                error.kind() == ErrorKind::Denied && words.contains(named),
                "{right}: {words}"
            );
            assert!(words.contains(last.addr()), "{words}");
            last.command(&["ACL", "SETUSER", "app", "~*", "+@write"])
                .await
                .unwrap();
        }
        assert_eq!(traces(last).await, [""; 0]);
    })
    .await;
}

/// One node after the other takes the next password, and ends its connections: who is asked for it has said it before.
#[tokio::test]
async fn credentials_that_are_asked_for_are_rotated_without_a_restart() {
    bounded(async {
        let nodes = Redis::start_many(3).await.unwrap();
        let change = async |node: &Redis, words: &str| {
            let words: Vec<&str> = ["ACL", "SETUSER", "app"]
                .into_iter()
                .chain(words.split(' '))
                .collect();
            node.command(&words).await.unwrap();
            let _ = node.command(&["CLIENT", "KILL", "USER", "app"]).await;
        };
        for node in &nodes {
            change(node, &format!("on >{CANARY}-0 ~* &leasehold:* +@all")).await;
        }
        let now = Arc::new(AtomicU32::new(0));
        let said = now.clone();
        let config = Config::from_url(&format!(
            "{}?timeout=8000",
            url(nodes.iter().map(|node| node.addr()))
        ))
        .unwrap();
        let config = config.credentials(move || {
            let n = said.load(Ordering::SeqCst);
            async move { Ok(("app".to_owned(), format!("{CANARY}-{n}"))) }
        });
        assert!(!format!("{config:?}").contains(CANARY));
        let store = Store::new(Redlock::with_config(config).await.unwrap());
        let held = store.lock("x").ttl(TTL * 6).acquire().await.unwrap();
        for n in 1..=2 {
            now.store(n, Ordering::SeqCst);
            for node in &nodes {
                change(node, &format!("resetpass >{CANARY}-{n}")).await;
                // All three are there again before the next one goes.
                let listening = async || {
                    node.command(&["CLIENT", "LIST", "TYPE", "pubsub"])
                        .await
                        .unwrap()
                        .text()
                };
                until(async || {
                    listening()
                        .await
                        .is_some_and(|clients| clients.contains("user=app"))
                })
                .await;
            }
            until(async || held.confirm().await.is_ok()).await;
            until(async || store.lock("y").try_acquire().await.is_ok()).await;
        }
        assert!(held.is_valid());
    })
    .await;
}

/// Three nodes, each with the user.
struct Accounts(Vec<Redis>);

impl Accounts {
    async fn user(&self, words: &str) {
        for node in &self.0 {
            let words: Vec<&str> = ["ACL", "SETUSER", "app"]
                .into_iter()
                .chain(words.split(' '))
                .collect();
            node.command(&words).await.unwrap();
        }
    }
}

impl FleetStore for Accounts {
    const WRONG: &'static str = "refused our credentials";
    const RIGHTS: &'static str = "lacks a right";

    async fn start(password: &str) -> Accounts {
        let all = Accounts(Redis::start_many(3).await.unwrap());
        let rights = "~* &leasehold:* -@all +@scripting +@read +@write +@pubsub +@connection +time +info +config|get";
        all.user(&format!("on >{password} {rights}")).await;
        all
    }

    fn url(&self, password: &str) -> String {
        let url = url(self.0.iter().map(|node| node.addr()));
        format!(
            "{}?timeout=4000",
            url.replace("://", &format!("://app:{password}@"))
        )
    }

    fn addrs(&self) -> Vec<String> {
        self.0.iter().map(|node| node.addr().to_owned()).collect()
    }

    async fn connect(url: &str) -> Result<Store> {
        Redlock::connect(url).await.map(Store::new)
    }

    async fn revoke(&self) {
        self.user("-@write").await;
    }

    async fn restore(&self) {
        self.user("+@write").await;
    }

    async fn nothing_is_left(&self) {
        for node in &self.0 {
            let list = async || {
                node.command(&["CLIENT", "LIST"])
                    .await
                    .unwrap()
                    .text()
                    .unwrap()
            };
            until(async || !list().await.contains("user=app")).await;
        }
        until_clean(&self.0.iter().collect::<Vec<_>>()).await;
    }
}

fleet_cases!(Accounts);
