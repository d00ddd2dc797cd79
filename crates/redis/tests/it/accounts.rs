//! Users with the documented rights, and names of servers: the cases of every store, with one server, behind sentinels and in a Cluster.

use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, Result, Store};
use leasehold_redis::Redis;
use leasehold_testbed::fleet_cases::FleetStore;
use leasehold_testbed::{
    RedisCluster, RedisClusterOptions, RedisSentinel, SentinelOptions, fleet_cases,
};

/// What a Cluster needs beside it is harmless elsewhere.
const RIGHTS: &str = "~* &leasehold:* -@all +@scripting +@read +@write +@pubsub +@connection +time +info +config|get \
    +cluster|slots";
/// As the store's page has them, for locks with the prefix `app:`, and for each command alone.
const DOCUMENTED: &str = "~app:* ~{app:* ~{}:f &leasehold:* -@all +@scripting +@read +@write +@pubsub +@connection +time +info +config|get";
const EACH: &str = "+hello +client +ping +subscribe +unsubscribe +publish +eval +evalsha +info +config|get +scan +exists +get +mget +set +setrange \
    +pexpire +pttl +del +unlink +hset +hget +hmget +hgetall +hlen +hdel +zadd +zcard +zscore +zrange +zrevrange \
    +zrangebyscore +zrem +time";

async fn user(servers: &[&Server], words: &str) {
    for server in servers {
        let words: Vec<&str> = ["ACL", "SETUSER", "app"]
            .into_iter()
            .chain(words.split(' '))
            .collect();
        server.command(&words).await.unwrap();
    }
}

/// The servers with keys, and how their clients find them.
trait Servers: Sized {
    async fn start() -> Self;
    fn servers(&self) -> Vec<&Server>;
    fn plain_url(&self) -> String;
}

struct Accounts<S>(S);

impl<S: Servers> FleetStore for Accounts<S> {
    const WRONG: &'static str = "refused our credentials";
    const RIGHTS: &'static str = "lacks a right";

    async fn start(password: &str) -> Self {
        let all = S::start().await;
        user(&all.servers(), &format!("on >{password} {RIGHTS}")).await;
        Accounts(all)
    }

    fn url(&self, password: &str) -> String {
        format!(
            "{}?timeout=8000",
            self.0
                .plain_url()
                .replace("://", &format!("://app:{password}@"))
        )
    }

    fn addrs(&self) -> Vec<String> {
        self.0
            .servers()
            .iter()
            .map(|server| server.addr().to_owned())
            .collect()
    }

    async fn connect(url: &str) -> Result<Store> {
        Redis::connect(url).await.map(Store::new)
    }

    async fn revoke(&self) {
        user(&self.0.servers(), "-@write").await;
    }

    async fn restore(&self) {
        user(&self.0.servers(), "+@write").await;
    }

    async fn nothing_is_left(&self) {
        for server in self.0.servers() {
            let list = async || {
                server
                    .command(&["CLIENT", "LIST"])
                    .await
                    .unwrap()
                    .text()
                    .unwrap()
            };
            until(async || !list().await.contains("user=app")).await;
            until(async || {
                traces(server)
                    .await
                    .iter()
                    .all(|key| key.starts_with("{}:f"))
            })
            .await;
        }
    }
}

mod one {
    use super::*;

    struct One(Server);

    impl Servers for One {
        async fn start() -> One {
            One(server().await)
        }

        fn servers(&self) -> Vec<&Server> {
            vec![&self.0]
        }

        fn plain_url(&self) -> String {
            self.0.url()
        }
    }

    fleet_cases!(Accounts<One>);
}

mod behind_sentinels {
    use super::*;

    impl Servers for RedisSentinel {
        async fn start() -> RedisSentinel {
            RedisSentinel::start_with(&SentinelOptions {
                replicas: 1,
                ..SentinelOptions::default()
            })
            .await
            .unwrap()
        }

        fn servers(&self) -> Vec<&Server> {
            RedisSentinel::servers(self).iter().collect()
        }

        fn plain_url(&self) -> String {
            self.url()
        }
    }

    fleet_cases!(Accounts<RedisSentinel>: a_wrong_password rights_that_are_revoked_in_the_middle_of_a_hold);
}

mod in_a_cluster {
    use super::*;

    impl Servers for RedisCluster {
        async fn start() -> RedisCluster {
            let options = RedisClusterOptions {
                replicas: 0,
                ..RedisClusterOptions::default()
            };
            RedisCluster::start(&options).await.unwrap()
        }

        fn servers(&self) -> Vec<&Server> {
            self.nodes().iter().map(AsRef::as_ref).collect()
        }

        fn plain_url(&self) -> String {
            self.url()
        }
    }

    fleet_cases!(Accounts<RedisCluster>: a_wrong_password rights_that_are_revoked_in_the_middle_of_a_hold);
}

/// Whatever locks do, with exactly the rights of the page: nothing is denied.
#[tokio::test]
async fn the_documented_rights_are_enough() {
    bounded(async {
        let page = include_str!("../../../../docs/stores/redis.md");
        for rights in [DOCUMENTED, EACH] {
            let is_shown = page.contains(&format!("`{rights}`"));
            assert!(is_shown, "the page does not show `{rights}`");
            let server = server().await;
            let rights = match rights {
                EACH => format!("~app:* ~{{app:* ~{{}}:f &leasehold:* {EACH}"),
                rights => rights.to_owned(),
            };
            user(&[&server], &format!("on >pw {rights}")).await;
            let url = format!("redis://app:pw@{}?prefix=app:&timeout=10000", server.addr());
            let stores: Vec<Store> = [Redis::connect(&url).await, Redis::connect(&url).await]
                .map(|store| Store::new(store.unwrap()))
                .into();
            family(&stores[0], &stores[1]).await;
            let denied = server.command(&["ACL", "LOG"]).await.unwrap();
            assert_eq!(format!("{denied:?}"), "Array([])");
        }
    })
    .await;
}

async fn family(one: &Store, other: &Store) {
    let held = one.lock("a").acquire().await.unwrap();
    let next = tokio::spawn(other.lock("a").acquire());
    until(async || one.lock("a").inspect().await.unwrap().waiters.len() == 1).await;
    held.confirm().await.unwrap();
    held.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert!(one.evict("a", next.fencing_token()).await.unwrap());
    let read = one.rw_lock("b").read().acquire().await.unwrap();
    let reads = other.rw_lock("b").read().acquire().await.unwrap();
    let write = tokio::spawn(other.rw_lock("b").write().acquire());
    until(async || one.rw_lock("b").inspect().await.unwrap().waiters.len() == 1).await;
    drop((read, reads));
    let write = write.await.unwrap().unwrap();
    write.downgrade().await.unwrap();
    write.confirm().await.unwrap();
    assert_eq!(one.list("", None, 9).await.unwrap(), ["b".into()]);
    write.release().await.unwrap();
    let permits = one.semaphore("c", 3).permits(2).acquire().await.unwrap();
    let refused = other.semaphore("c", 3).permits(2).try_acquire().await;
    refused.unwrap_err();
    permits.release().await.unwrap();
    let both = one.multi_lock(["d", "e"]).acquire().await.unwrap();
    both.release().await.unwrap();
    let mut seen = other.election("f").observe().await.unwrap();
    let leads = one.election("f").campaign("me").await.unwrap();
    while seen.current().is_none() {
        seen.changed().await.unwrap();
    }
    leads.proclaim("still me").await.unwrap();
    leads.resign().await.unwrap();
    let fast = one.lock("g").fast().min_hold(Duration::from_millis(200));
    fast.acquire().await.unwrap().release().await.unwrap();
    other
        .lock("g")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// Whichever of them is missing, the error names it as the client connects, and nothing is there.
#[tokio::test]
async fn each_command_that_is_missing_is_named_before_anything_is_written() {
    bounded(async {
        let server = server().await;
        server.command(&["SET", "{}:f", "5"]).await.unwrap();
        let url = format!("redis://app:pw@{}?timeout=10000", server.addr());
        // A Redis lets everybody say hello, and does without what a client says of itself; these are for repairs, warnings and lists.
        let others = [
            "+hello",
            "+client",
            "+ping",
            "+unsubscribe",
            "+info",
            "+config|get",
            "+scan",
        ];
        for right in EACH
            .split_whitespace()
            .filter(|right| !others.contains(right))
        {
            let without = right.replace('+', "-");
            server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
            user(&[&server], &format!("reset on >pw ~* &* {EACH} {without}")).await;
            let Err(error) = Redis::connect(&url).await else {
                panic!("connected without {right}");
            };
            let words = error.to_string();
            assert!(
                error.kind() == ErrorKind::Denied
                    && words.contains(&format!("on Redis: {right}. ")),
                "{right}: {words}"
            );
        }
        let mut keys = server.keys("*").await.unwrap();
        keys.sort();
        assert_eq!(keys, ["{}:f", "{}:store"]);
        assert_eq!(text(&server, &["GET", "{}:f"]).await.as_deref(), Some("5"));
        assert_eq!(number(&server, &["PTTL", "{}:f"]).await, -1);
    })
    .await;
}

/// A right that is taken away later is named by the request that needs it.
#[tokio::test]
async fn a_right_that_is_taken_away_is_named_by_the_next_request() {
    bounded(async {
        let server = server().await;
        let url = format!("redis://app:pw@{}?timeout=10000", server.addr());
        user(&[&server], &format!("on >pw {RIGHTS}")).await;
        let store = Redis::connect(&url).await.unwrap();
        let held = claim("held", WaitPolicy::Try, TTL, "");
        let token = granted(&store, &held).await.token;
        user(&[&server], "-pexpire").await;
        let renewal = renewed(&store, &held, token).await;
        let Renewal::Unknown(error) = renewal else {
            panic!("{renewal:?}");
        };
        assert!(
            error.to_string().contains("on Redis: +pexpire. "),
            "{error}"
        );
        user(&[&server], "+pexpire").await;
        store.release(&held, None).await.unwrap();
        for (without, named) in [
            ("-set -hset", "on Redis: +set +hset. "),
            (
                "+set +hset resetkeys ~x ~{}:f",
                "on Redis: ~{x}:l ~{x}:o ~{x}:s ~{x}:r. ",
            ),
            ("resetkeys ~{x}:*", "on Redis: ~x ~{}:f. "),
        ] {
            user(&[&server], without).await;
            let error = store
                .claim(&claim("x", WaitPolicy::Try, TTL, ""))
                .await
                .unwrap_err();
            assert!(
                error.kind() == ErrorKind::Denied && error.to_string().contains(named),
                "{without}: {error}"
            );
        }
        assert_eq!(traces(&server).await, [""; 0]);
    })
    .await;
}
