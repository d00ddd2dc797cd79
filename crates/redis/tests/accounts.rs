//! Users with the documented rights, and names of servers: the cases of every store, with one server, behind sentinels and in a Cluster.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use leasehold_core::{Result, Store};
use leasehold_redis::Redis;
use leasehold_testbed::fleet_cases::FleetStore;
use leasehold_testbed::{RedisCluster, RedisClusterOptions, RedisSentinel, SentinelOptions, fleet_cases};
use support::*;

/// What a Cluster needs beside it is harmless elsewhere.
const RIGHTS: &str = "~* &leasehold:* -@all +@scripting +@read +@write +@pubsub +@connection +time +info +config|get \
    +cluster|slots";

async fn user(servers: &[&Server], words: &str) {
    for server in servers {
        let words: Vec<&str> = ["ACL", "SETUSER", "app"].into_iter().chain(words.split(' ')).collect();
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
        format!("{}?timeout=8000", self.0.plain_url().replace("://", &format!("://app:{password}@")))
    }

    fn addrs(&self) -> Vec<String> {
        self.0.servers().iter().map(|server| server.addr().to_owned()).collect()
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
            let list = async || server.command(&["CLIENT", "LIST"]).await.unwrap().text().unwrap();
            until(async || !list().await.contains("user=app")).await;
            until(async || traces(server).await.iter().all(|key| key.starts_with("{}:f"))).await;
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
            RedisSentinel::start_with(&SentinelOptions { replicas: 1, ..SentinelOptions::default() }).await.unwrap()
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
            let options = RedisClusterOptions { replicas: 0, ..RedisClusterOptions::default() };
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
