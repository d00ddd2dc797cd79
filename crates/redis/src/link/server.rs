//! Reads a store's address into its servers, and a lease into the milliseconds that they grant.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::link::mark::StoreMark;
use futures_util::future::BoxFuture;
use leasehold_core::{Error, ErrorKind, MAX_TTL, Result};
use leasehold_net::{Address, Credentials, Host, Tls, Verified};
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
    /// The protocol that was asked for; RESP3 if none was.
    pub(crate) protocol: Option<Protocol>,
}

/// The version of the protocol that a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// A connection that nothing is pushed over.
    Resp2,
    Resp3,
    /// RESP3, or RESP2 if the server refuses `HELLO 3`.
    Either,
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
            protocol: None,
        }
    }
}

/// Words of redis-py for TLS, and what they are called here.
const NAMES: [(&str, &str); 3] = [
    ("ssl_ca_certs", "ca"),
    ("ssl_certfile", "cert"),
    ("ssl_keyfile", "key"),
];

/// Words of other clients that are refused, with what to write instead.
const REFUSED: [(&str, &str); 12] = [
    ("socket_timeout", "timeout=milliseconds"),
    ("socket_connect_timeout", "timeout=milliseconds"),
    ("connect_timeout", "timeout=milliseconds"),
    ("connectTimeout", "timeout=milliseconds"),
    ("commandTimeout", "timeout=milliseconds"),
    ("dial_timeout", "timeout=milliseconds"),
    ("read_timeout", "timeout=milliseconds"),
    ("write_timeout", "timeout=milliseconds"),
    ("ssl", "the scheme rediss:// for TLS"),
    ("tls", "the scheme rediss:// for TLS"),
    (
        "skip_verify",
        "ssl_cert_reqs=none, or the CA's file as ca=file",
    ),
    ("client_name", "nothing: connections get no name"),
];

/// Reads words that other clients have in a URL: the user, the password, the database, the protocol
/// and the family of addresses. Returns the protocol.
pub(crate) fn other_words(address: &mut Address) -> Result<Option<Protocol>> {
    address.rename("clientName", "client_name");
    if let Some((word, instead)) = REFUSED.iter().find(|(it, _)| address.take(it).is_some()) {
        return Err(invalid(format!("{word} is not read here: write {instead}")));
    }
    for (theirs, ours) in NAMES {
        address.rename(theirs, ours);
    }
    for (theirs, ours) in [("username", "user"), ("pass", "password")] {
        address.rename(theirs, ours);
    }
    for (word, value) in ["user", "password"].map(|word| (word, address.take(word))) {
        let place = match word {
            "user" => &mut address.user,
            _ => &mut address.password,
        };
        if value.is_some() && place.is_some() {
            let what = format!("a {word} stands before the @ already: leave the parameter out");
            return Err(invalid(what));
        }
        *place = place.take().or(value);
    }
    if address.user.is_some() && address.password.is_none() {
        return Err(invalid("a user without a password: write password="));
    }
    for (theirs, ours) in [("database", "db"), ("virtual_host", "db")] {
        address.rename(theirs, ours);
    }
    if let Some(db) = address.take("db") {
        if !address.path.is_empty() && address.path != db {
            let what = "the database stands behind the host and in a parameter: leave one out";
            return Err(invalid(what));
        }
        address.path = db;
    }
    let protocol = match address.take("protocol").as_deref() {
        None => None,
        Some("2" | "resp2") => Some(Protocol::Resp2),
        Some("3" | "resp3") => Some(Protocol::Resp3),
        Some(_) => return Err(invalid("protocol is 2 or 3 (resp2, resp3)")),
    };
    match address.take("family").as_deref() {
        // The addresses of a name are tried together, of both families.
        None | Some("0") => Ok(protocol),
        Some(_) => Err(invalid("family is 0: addresses of both are used")),
    }
}

/// Reads how much of a server's certificate is verified, in the words of redis-py.
pub(crate) fn verified(address: &mut Address) -> Result<Verified> {
    let words = ["ssl_cert_reqs", "ssl_check_hostname"];
    let [needs, name] = words.map(|word| address.take(word).map(|text| text.to_lowercase()));
    if !address.tls && (needs.is_some() || name.is_some()) {
        let what = "ssl_cert_reqs and ssl_check_hostname are for TLS: write rediss://";
        return Err(invalid(what));
    }
    let verifies_name = match name.as_deref() {
        None | Some("true") => true,
        Some("false") => false,
        Some(_) => return Err(invalid("ssl_check_hostname is true or false")),
    };
    match needs.as_deref() {
        Some("none" | "cert_none") if name.as_deref() == Some("true") => Err(contradiction()),
        Some("none" | "cert_none") => Ok(Verified::Nothing),
        None | Some("required" | "cert_required" | "optional" | "cert_optional") => {
            Ok(match verifies_name {
                true => Verified::Name,
                false => Verified::Ca,
            })
        }
        Some(_) => Err(invalid("ssl_cert_reqs is required or none")),
    }
}

fn contradiction() -> Error {
    invalid(
        "ssl_cert_reqs=none verifies nothing, and ca, server_name and ssl_check_hostname=true are for verifying: leave it out, or these",
    )
}

/// All servers of an address. Removes the TLS options from it, and words of other clients.
pub(crate) fn servers(address: &mut Address) -> Result<Vec<Server>> {
    let protocol = other_words(address)?;
    let verified = verified(address)?;
    let tls = Tls::from_address(address, cfg!(feature = "tls-no-provider"))?;
    if verified == Verified::Ca && !tls.as_ref().is_some_and(Tls::has_ca_file) {
        let what = "ssl_check_hostname=false needs ca=file: the system's CAs sign for everybody";
        return Err(invalid(what));
    }
    let verifies = |tls: &Tls| tls.has_ca_file() || tls.has_server_name();
    if verified == Verified::Nothing && tls.as_ref().is_some_and(verifies) {
        return Err(contradiction());
    }
    let tls = tls.map(|tls| tls.verifying(verified));
    let infos = address
        .hosts
        .iter()
        .map(|host| server(address, host))
        .collect::<Result<Vec<_>>>()?;
    let server = |info| Server {
        tls: tls.clone(),
        protocol,
        ..Server::from(info)
    };
    Ok(infos.into_iter().map(server).collect())
}

fn invalid(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("the store's URL: {what}"))
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
