//! Reads a store's address into its servers, and a lease into the milliseconds that they grant.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::link::mark::StoreMark;
use futures_util::future::BoxFuture;
use leasehold_core::{Error, ErrorKind, MAX_TTL, Result};
use leasehold_net::{Address, Credentials, Host, Tls};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, Value};

/// One server: the client crate's description of it, the sources of its address and its
/// credentials, and its verification over TLS.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// Its address, credentials and database.
    pub(crate) info: ConnectionInfo,
    /// The sentinels that tell its address, in place of the one above.
    pub(crate) sentinels: Option<Sentinels>,
    /// The source of its credentials, in place of those above.
    pub(crate) credentials: Option<Credentials>,
    /// It has to be a node of a Cluster.
    pub(crate) cluster: bool,
    /// The check whether it belongs to the right Cluster.
    pub(crate) admission: Option<Admission>,
    /// The mark by which its database is recognized.
    pub(crate) mark: Option<Arc<StoreMark>>,
    /// TLS for the connection. `info` then has the address as a plain one.
    pub(crate) tls: Option<Tls>,
}

/// The check of a Cluster's node by its answer to `CLUSTER SLOTS`.
#[derive(Clone)]
pub(crate) struct Admission(Arc<dyn Fn(Value) -> BoxFuture<'static, Result<()>> + Send + Sync>);

impl Admission {
    /// Checks answers by this function.
    pub(crate) fn new<F>(check: impl Fn(Value) -> F + Send + Sync + 'static) -> Admission
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        Admission(Arc::new(move |answer| Box::pin(check(answer))))
    }

    /// Fails if the node may not be used.
    pub(crate) async fn check(&self, answer: Value) -> Result<()> {
        self.0(answer).await
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admission")
    }
}

/// The sentinels of a master: servers that tell its address, and put another server in its place.
#[derive(Clone, Debug)]
pub(crate) struct Sentinels {
    /// The name by which they know it.
    pub(crate) master: String,
    /// Their addresses, and the credentials for them.
    pub(crate) each: Vec<ConnectionInfo>,
}

impl From<ConnectionInfo> for Server {
    fn from(info: ConnectionInfo) -> Server {
        Server {
            info,
            sentinels: None,
            credentials: None,
            cluster: false,
            admission: None,
            mark: None,
            tls: None,
        }
    }
}

/// All servers of an address. Removes the TLS options from it.
pub(crate) fn servers(address: &mut Address) -> Result<Vec<Server>> {
    let tls = Tls::from_address(address, cfg!(feature = "tls"))?;
    let infos = address
        .hosts
        .iter()
        .map(|host| server(address, host))
        .collect::<Result<Vec<_>>>()?;
    let server = |info| Server {
        tls: tls.clone(),
        ..Server::from(info)
    };
    Ok(infos.into_iter().map(server).collect())
}

/// The server that the sentinels of an address know by the name in its path, `name[/db]`. Removes
/// the sentinels' credentials, which are the options `sentinel_user` and `sentinel_password`, and
/// the TLS options from the address.
pub(crate) fn server_of_sentinels(address: &mut Address) -> Result<Server> {
    let invalid = |what| Error::new(ErrorKind::Invalid, what);
    let (master, db) = address.path.split_once('/').unwrap_or((&address.path, ""));
    let master = master.to_owned();
    let db = db.to_owned();
    if master.is_empty() || master.contains(char::is_whitespace) {
        return Err(invalid(
            "sentinels/name: the name by which the sentinels know the master is missing or malformed",
        ));
    }
    address.path = db;
    let mut settings = RedisConnectionInfo::default();
    match (
        address.take("sentinel_user"),
        address.take("sentinel_password"),
    ) {
        (Some(_), None) => return Err(invalid("sentinel_user without sentinel_password")),
        (user, Some(password)) => {
            settings = settings.set_password(password);
            settings = user
                .into_iter()
                .fold(settings, RedisConnectionInfo::set_username);
        }
        (None, None) => {}
    }
    let servers = servers(address)?;
    let each = servers
        .iter()
        .map(|server| server.info.clone().set_redis_settings(settings.clone()))
        .collect();
    let server = servers
        .into_iter()
        .next()
        .ok_or_else(|| invalid("no sentinel is named"))?;
    Ok(Server {
        sentinels: Some(Sentinels { master, each }),
        ..server
    })
}

/// One of an address's servers, with its credentials and its database.
fn server(address: &Address, host: &Host) -> Result<ConnectionInfo> {
    let mut settings = RedisConnectionInfo::default();
    if !address.path.is_empty() {
        let Ok(db @ 0..) = address.path.parse() else {
            return Err(Error::new(
                ErrorKind::Invalid,
                "host/db: db is the number of a database",
            ));
        };
        settings = settings.set_db(db);
    }
    if let Some(user) = &address.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &address.password {
        settings = settings.set_password(password);
    }
    let info = ConnectionAddr::Tcp(host.name.clone(), host.port)
        .into_connection_info()
        .map_err(|e| Error::new(ErrorKind::Invalid, format!("redis: {}", e.category())))?;
    Ok(info.set_redis_settings(settings))
}

/// The lease in whole milliseconds, rounded up, and at least this long.
pub(crate) fn granted_ttl(ttl: Duration, least: Duration) -> Duration {
    let ms = ttl.clamp(least, MAX_TTL).as_nanos().div_ceil(1_000_000);
    Duration::from_millis(ms as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_rounded_up() {
        let least = Duration::from_millis(100);
        assert_eq!(granted_ttl(Duration::from_nanos(1), least), least);
        assert_eq!(
            granted_ttl(Duration::from_nanos(100_000_001), least),
            Duration::from_millis(101)
        );
        assert_eq!(granted_ttl(Duration::MAX, least), MAX_TTL);
    }
}
