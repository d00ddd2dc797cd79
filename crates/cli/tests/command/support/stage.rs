//! The stores that the command is tested on, and what is asked of one through the command.

use std::any::Any;
use std::process::Command;
use std::time::Duration;

use leasehold_testbed::{Etcd, Postgres, PostgresOptions, Redis, ZooKeeper};
use serde_json::Value;
use tempfile::TempDir;

use super::{Family, Running, code, json, leasehold, until};

const TTL: Duration = Duration::from_secs(3);

/// A store to test on, and what keeps it alive.
pub(crate) struct Stage {
    /// What `--store` takes.
    pub(crate) url: String,
    /// A short lease that it keeps.
    pub(crate) ttl: Duration,
    _keep: Box<dyn Any + Send + Sync>,
}

/// A Redis of its own.
pub(crate) async fn redis() -> Stage {
    let redis = Redis::start().await.unwrap();
    Stage {
        url: redis.url(),
        _keep: Box::new(redis),
        ttl: TTL,
    }
}

/// A file of its own.
pub(crate) async fn sqlite() -> Stage {
    let folder = TempDir::new().unwrap();
    let url = format!("sqlite://{}", folder.path().join("locks.db").display());
    // A command that only reads makes none.
    drop(leasehold::connect(&url).await.unwrap());
    Stage {
        url,
        _keep: Box::new(folder),
        ttl: TTL,
    }
}

/// An etcd of its own.
pub(crate) async fn etcd() -> Stage {
    let etcd = Etcd::start().await.unwrap();
    Stage {
        url: format!("etcd://{}", etcd.addr()),
        _keep: Box::new(etcd),
        ttl: TTL,
    }
}

/// A ZooKeeper of its own.
pub(crate) async fn zookeeper() -> Stage {
    let zookeeper = ZooKeeper::start().await.unwrap();
    Stage {
        url: format!("zookeeper://{}", zookeeper.addr()),
        _keep: Box::new(zookeeper),
        ttl: Duration::from_secs(4),
    }
}

/// A PostgreSQL of its own.
pub(crate) async fn postgres() -> Stage {
    // No machine is switched off here.
    let postgres = Postgres::start_with(&PostgresOptions::default().set("fsync", "off"))
        .await
        .unwrap();
    Stage {
        url: postgres.url(),
        _keep: Box::new(postgres),
        ttl: TTL,
    }
}

/// Five Redis masters that know nothing of each other.
pub(crate) async fn redlock() -> Stage {
    let masters = Redis::start_many(5).await.unwrap();
    let stage = on_masters(&masters);
    Stage {
        _keep: Box::new(masters),
        ..stage
    }
}

/// Redis masters that the test keeps.
pub(crate) fn on_masters(masters: &[Redis]) -> Stage {
    let addrs: Vec<&str> = masters.iter().map(|master| master.addr()).collect();
    // With a limit that a busy machine keeps.
    on_url(format!("redlock://{}?timeout=1000", addrs.join(",")))
}

/// A store that the test keeps.
pub(crate) fn on_url(url: String) -> Stage {
    Stage {
        url,
        _keep: Box::new(()),
        ttl: TTL,
    }
}

impl Stage {
    /// `leasehold` with these words, on this store.
    pub(crate) fn leasehold<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = leasehold(words);
        command.env("LEASEHOLD_STORE", &self.url);
        command
    }

    /// `leasehold run NAME --ttl … WORDS`.
    pub(crate) fn run<'a>(
        &self,
        name: &'a str,
        words: impl IntoIterator<Item = &'a str>,
    ) -> Command {
        let mut command =
            self.leasehold(["run", name, "--ttl", &format!("{}ms", self.ttl.as_millis())]);
        command.args(words);
        command
    }

    /// `leasehold run job --ttl … -- sh -c SCRIPT`.
    pub(crate) fn sh(&self, script: &str) -> Command {
        self.run("job", ["--", "sh", "-c", script])
    }

    /// A holder of `job` whose program is a family that lives.
    pub(crate) fn held(&self) -> (Family, Running) {
        let family = Family::new();
        let holder = Running::start(self.run("job", ["--"]).args(family.all()));
        family.until_alive();
        (family, holder)
    }

    /// What `leasehold who NAME --json` prints.
    pub(crate) fn who(&self, name: &str) -> Value {
        json(&mut self.leasehold(["who", name, "--json"])).1
    }

    /// How many hold, and how many wait.
    pub(crate) fn queue(&self, name: &str) -> (usize, usize) {
        let who = self.who(name);
        let count = |what: &str| who[what].as_array().unwrap().len();
        (count("holders"), count("waiters"))
    }

    /// Waits until so many hold and so many wait.
    pub(crate) fn until_queue(&self, name: &str, holders: usize, waiters: usize) {
        until("a queue", || {
            (self.queue(name) == (holders, waiters)).then_some(())
        });
    }

    /// Waits for a holder, and returns its token.
    pub(crate) fn token(&self, name: &str) -> u64 {
        until("a holder", || {
            self.who(name)["holders"][0]["token"].as_u64()
        })
    }

    /// The exit code of `leasehold break NAME --token TOKEN`.
    pub(crate) fn evict(&self, name: &str, token: u64) -> Option<i32> {
        code(&mut self.leasehold(["break", name, "--token", &token.to_string()]))
    }
}
