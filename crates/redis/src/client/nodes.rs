//! The servers behind a store: one, or the nodes of a Cluster. The verbs do not distinguish the
//! two.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::link::{
    Call, Cluster, Connection, Inbox, Keys, Names, Needs, Protocol, Server, StoreMark, check,
    fence_of, forbids_scripts, run_all, slot_of, walk, warnings,
};
use leasehold_core::backend::Subscription;
use leasehold_core::{Error, ErrorKind, Name, Result};
use redis::Value;

use crate::config::Config;

const WITHOUT_SCRIPTS: &str = "Where scripts are forbidden, scripts=off in the URL makes this a store of exclusive locks alone";

/// The connections of a store.
pub(crate) enum Nodes {
    One(Connection),
    Many(Cluster),
}

impl Nodes {
    /// Connects according to the configuration. Returns also the warnings of servers that may
    /// forget a lock.
    pub(crate) async fn connect(
        config: &Config,
        inbox: &Inbox,
        mark: &Arc<StoreMark>,
    ) -> Result<(Nodes, Vec<String>)> {
        let Some(cluster) = &config.cluster else {
            let protocol = config.server.protocol.or(Some(Protocol::Either));
            let server = Server {
                mark: Some(mark.clone()),
                protocol,
                ..config.server.clone()
            };
            let connection = Connection::new(server, config.timeout, Duration::ZERO, inbox)?;
            connection.connect().await?;
            let warnings = warnings(&connection, config.scripts).await;
            return Ok((Nodes::One(connection), warnings));
        };
        for (is_asked, what) in [
            (
                config.min_replicas.is_some(),
                "min_replicas is for one primary",
            ),
            (
                config.server.protocol == Some(Protocol::Resp2),
                "protocol=2 is for one server",
            ),
        ] {
            if is_asked {
                let what = format!("{what}, and not for a Redis Cluster");
                return Err(Error::new(ErrorKind::Unsupported, what));
            }
        }
        let (cluster, mut all) = Cluster::connect(
            config.seeds(cluster),
            config.timeout,
            inbox,
            cluster.reach.clone(),
            mark,
        )
        .await?;
        for connection in cluster.connections() {
            let told = warnings(&connection, true).await.into_iter();
            all.extend(told.map(|text| format!("{}: {text}", connection.address())));
        }
        if mark.id().is_none() {
            all.push(format!(
                "the key {}, by which a program recognizes its Redis Cluster, could not be read or written: if most nodes change \
                 at once, the Cluster is refused until the program is restarted (let this user GET and SET that key)",
                mark.key
            ));
        }
        match cluster.unserved() {
            0 => {}
            n => all.push(format!(
                "{n} slots of the Redis Cluster are served by no node: names in them have no locks"
            )),
        }
        Ok((Nodes::Many(cluster), all))
    }

    /// Refuses servers that can never do what the store needs, and users without the rights.
    /// `fence` is the key of the tokens on one server.
    pub(crate) async fn check(&self, needs: &Needs, fence: &str, names: &Names) -> Result<()> {
        let absent = names.absent();
        match self {
            Nodes::One(connection) => check(connection, needs, fence, &absent).await,
            Nodes::Many(cluster) => {
                for connection in cluster.connections() {
                    check(&connection, needs, &fence_of(0), &absent).await?;
                }
                Ok(())
            }
        }
    }

    /// Adds to the error of a server that cannot run the scripts what to do without them.
    pub(crate) async fn or_without_scripts(&self, e: Error) -> Error {
        match self {
            Nodes::One(connection) if forbids_scripts(connection).await => {
                let what = format!("{e}. {WITHOUT_SCRIPTS}");
                Error::new(e.kind(), what)
            }
            _ => e,
        }
    }

    /// Runs a script at the server of this lock. `call` builds the call for each connection over
    /// which it is tried.
    pub(crate) async fn run(
        &self,
        lock: impl FnOnce() -> String,
        mut call: impl FnMut(&Connection) -> Result<Call>,
    ) -> Result<Value> {
        match self {
            Nodes::One(connection) => call(connection)?.run(connection).await,
            // Boxed: it is larger, and unboxed it would enlarge every call's future.
            Nodes::Many(cluster) => Box::pin(cluster.run(slot_of(&lock()), call)).await,
        }
    }

    /// Runs these calls, each at the server of its lock.
    pub(crate) async fn run_all(&self, calls: Vec<(Call, String)>) -> Vec<Result<Value>> {
        match self {
            Nodes::One(connection) => {
                let calls: Vec<Call> = calls.into_iter().map(|(call, _)| call).collect();
                run_all(connection, &calls).await
            }
            Nodes::Many(cluster) => {
                let calls: Vec<_> = calls
                    .into_iter()
                    .map(|(call, lock)| (slot_of(&lock), call))
                    .collect();
                cluster.run_all(&calls).await
            }
        }
    }

    /// The server that has this lock now.
    pub(crate) fn server_of(&self, lock: &str) -> Result<Arc<str>> {
        match self {
            Nodes::One(connection) => connection.server(),
            Nodes::Many(cluster) => cluster.server(slot_of(lock)),
        }
    }

    /// Returns whether the servers push.
    pub(crate) fn has_pushes(&self) -> bool {
        match self {
            Nodes::One(connection) => connection.has_pushes(),
            Nodes::Many(_) => true,
        }
    }

    pub(crate) fn observes(&self, name: &Name) -> bool {
        match self {
            Nodes::One(connection) => connection.observes(name),
            Nodes::Many(cluster) => cluster.observes(name),
        }
    }

    pub(crate) fn observe(&self, name: &Name, names: &Names) -> Subscription {
        match self {
            Nodes::One(connection) => connection.observe(name, names.channel(name)),
            Nodes::Many(cluster) => {
                cluster.observe(slot_of(&names.lock(name)), name, names.channel(name))
            }
        }
    }

    /// The names that a walk over these keys of all nodes finds. A name that moves meanwhile may be
    /// missed.
    pub(crate) async fn list(
        &self,
        names: &Names,
        keys: Keys,
        prefix: &str,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<Name>> {
        match self {
            Nodes::One(connection) => walk(connection, names, keys, prefix, after, limit).await,
            Nodes::Many(cluster) => {
                let mut all = BTreeSet::new();
                for connection in cluster.connections() {
                    all.extend(walk(&connection, names, keys, prefix, after, limit).await?);
                }
                Ok(all.into_iter().take(limit).collect())
            }
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Nodes::One(connection) => connection.close(),
            Nodes::Many(cluster) => cluster.close(),
        }
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nodes::One(connection) => connection.fmt(f),
            Nodes::Many(cluster) => cluster.fmt(f),
        }
    }
}
