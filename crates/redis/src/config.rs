//! Reads a URL into a configuration, strictly: an unknown part is refused, and no message shows a
//! credential.

#[cfg(all(test, feature = "tls-no-provider"))]
mod shapes;

use std::str::FromStr;
use std::time::Duration;

use crate::link::{
    AddressMap, Protocol, Sentinels, Server, other_words, server_of_sentinels, servers, verified,
};
use leasehold_core::{Error, ErrorKind, Result, StoreId};
#[cfg(feature = "tls-no-provider")]
use leasehold_net::Tls;
use leasehold_net::{Address, Credentials, Host, Verified};
use redis::{ConnectionAddr, ConnectionInfo};

/// The time in milliseconds for which a claim waits for replicas, unless the URL sets it.
const WAIT: u32 = 100;

/// The place of the server, and the options of the store.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) server: Server,
    /// The time limit of one request.
    pub(crate) timeout: Duration,
    /// The beginning of every key.
    pub(crate) prefix: String,
    /// The number of replicas that have to acknowledge a claim, and the time within which they have
    /// to.
    pub(crate) min_replicas: Option<(u32, Duration)>,
    /// Set if the server is a node of a Cluster.
    pub(crate) cluster: Option<Cluster>,
    /// The identity that the database has to have, if one is named.
    pub(crate) store_id: Option<StoreId>,
    /// Whether the server runs scripts.
    pub(crate) scripts: bool,
}

/// The settings of a Cluster beyond its first server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    /// Further nodes that are asked for the slots.
    others: Vec<ConnectionInfo>,
    pub(crate) reach: Option<AddressMap>,
}

impl Config {
    /// Reads `redis://[:password@|user:password@]host[:port][/db]`, and after a `?` `timeout=ms`, `prefix=text`,
    /// `store=id`, `scripts=off`, `min_replicas=n`, `min_replicas_timeout=ms`, joined by `&`. Any case of the scheme and
    /// `valkey` in place of `redis` mean the same.
    ///
    /// Or `redis+sentinel://[…@]sentinel[:port],sentinel[:port]…/master-name[/db]` with these
    /// options, and `sentinel_user=name` and `sentinel_password=text` for the sentinels themselves:
    /// the credentials before the `@` are for the master. The form of Lettuce is
    /// `redis-sentinel://[…@]sentinel,sentinel[/db]?sentinelMasterId=name`. Over TLS (also to the
    /// sentinels) the schemes are `rediss://` and `rediss+sentinel://`.
    ///
    /// Or `redis+unix://[user:password@]/path/of/the/socket[?db=n]`, or `unix://…`.
    ///
    /// Words of other clients are read, or refused with what to write: the store's page lists them.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) names the part that is wrong, and shows no credential. `rediss://` without the feature `tls`
    /// is [`Unsupported`](ErrorKind::Unsupported).
    pub fn from_url(url: &str) -> Result<Config> {
        let (kind, mut address) = read(url)?;
        let mut number =
            |key: &str, default| match address.take(key).map(|text| text.parse::<u32>()) {
                None => Ok(default),
                Some(Ok(number)) if number <= 60_000 => Ok(number),
                Some(_) => Err(Error::new(
                    ErrorKind::Invalid,
                    format!("{key} is a number up to 60000"),
                )),
            };
        let least = number("min_replicas", 0)?;
        let within = number("min_replicas_timeout", WAIT)?;
        let timeout = address.timeout()?;
        let store_id = address.store_id("redis")?;
        let prefix = address.take("prefix").unwrap_or_default();
        let scripts = match address.take("scripts").as_deref() {
            None | Some("on") => true,
            Some("off") => false,
            Some(_) => return Err(Error::new(ErrorKind::Invalid, "scripts is on or off")),
        };
        let config = match kind {
            Kind::Sentinel => Config::of(server_of_sentinels(&mut address)?),
            Kind::Socket => {
                let path = format!("/{}", std::mem::take(&mut address.path));
                let mut server = the_one(servers(&mut address)?)?;
                server.info = server.info.set_addr(ConnectionAddr::Unix(path.into()));
                Config::of(server)
            }
            Kind::Cluster => {
                let mut all = servers(&mut address)?;
                let others = all
                    .split_off(1)
                    .into_iter()
                    .map(|server| server.info)
                    .collect();
                Config::of(the_one(all)?).in_cluster(others)?
            }
            Kind::One => Config::of(the_one(servers(&mut address)?)?),
        };
        address.done()?;
        let config = Config {
            store_id,
            scripts,
            ..config
        };
        let config = config.timeout(timeout).prefix(prefix);
        Ok(config.min_replicas(least, Duration::from_millis(within.into())))
    }

    /// The address in a URL of this store or of a Redlock, with the words of other clients in their
    /// places, and how much is verified over TLS, for `leasehold verify`. The only host in that of a
    /// socket is its file, without a port.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for another URL.
    #[doc(hidden)]
    pub fn address(url: &str) -> Result<(Address, Verified)> {
        let (kind, mut address) = match Address::parse_tls(url, "redlock", 6379, 6379) {
            Ok(address) => (Kind::One, address),
            Err(_) => read(url)?,
        };
        if kind == Kind::Socket {
            let name = format!("/{}", std::mem::take(&mut address.path));
            address.hosts = vec![Host { name, port: 0 }];
        }
        let path = address.path.clone();
        let master = match kind {
            Kind::Sentinel => path.split_once('/').or(Some((&path, ""))),
            _ => None,
        };
        if let Some((_, db)) = master {
            db.clone_into(&mut address.path);
        }
        other_words(&mut address)?;
        if let Some((master, _)) = master {
            address.path = format!("{master}/{}", address.path);
        }
        let verified = verified(&mut address)?;
        Ok((address, verified))
    }

    /// A configuration from the client crate's description of the server, which may be a Unix
    /// socket, or use TLS if that crate's features are on. The store sets the protocol (RESP3),
    /// TCP_NODELAY and TCP keep-alive. A request may take a second, and keys have no prefix.
    pub fn new(server: ConnectionInfo) -> Config {
        Config::of(server.into())
    }

    /// A Redis Cluster, given by some of its nodes, which are asked for the others. All nodes have
    /// the credentials of the first.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) without any node, and for a database: a Cluster has one.
    pub fn cluster(nodes: Vec<ConnectionInfo>) -> Result<Config> {
        let mut nodes = nodes.into_iter();
        let first = nodes
            .next()
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "a Redis Cluster needs an address"))?;
        Config::of(first.into()).in_cluster(nodes.collect())
    }

    fn of(server: Server) -> Config {
        Config {
            server,
            timeout: Duration::from_secs(1),
            prefix: String::new(),
            min_replicas: None,
            cluster: None,
            store_id: None,
            scripts: true,
        }
    }

    fn in_cluster(mut self, others: Vec<ConnectionInfo>) -> Result<Config> {
        if self.server.info.redis_settings().db() != 0 {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a Redis Cluster has one database, 0",
            ));
        }
        self.server.cluster = true;
        self.cluster = Some(Cluster {
            others,
            reach: None,
        });
        Ok(self)
    }

    /// Maps the host and the port by which the Cluster calls a node to those by which this client
    /// reaches it: behind port forwarding, or from outside of a container's network. Without it,
    /// nodes are reached where the Cluster says. It changes nothing for one server.
    #[must_use]
    pub fn reach(mut self, at: impl Fn(&Host) -> Host + Send + Sync + 'static) -> Config {
        if let Some(cluster) = &mut self.cluster {
            cluster.reach = Some(AddressMap::new(at));
        }
        self
    }

    /// The nodes of a Cluster that are asked first.
    pub(crate) fn seeds(&self, cluster: &Cluster) -> Vec<Server> {
        let others = cluster.others.iter().map(|info| Server {
            info: info.clone(),
            ..self.server.clone()
        });
        [self.server.clone()].into_iter().chain(others).collect()
    }

    /// Takes as the server the master that these sentinels know by this name, wherever they say it
    /// is. The credentials and the database stay those of this configuration's server, whose
    /// address is not used any more. The sentinels' own credentials are in their descriptions.
    #[must_use]
    pub fn sentinels(
        mut self,
        master: impl Into<String>,
        each: impl IntoIterator<Item = ConnectionInfo>,
    ) -> Config {
        self.server.sentinels = Some(Sentinels {
            master: master.into(),
            each: each.into_iter().collect(),
        });
        self
    }

    /// Calls this function for the user and the password before each connection to the server, or
    /// to a node of a Cluster, so that they can be rotated without a restart. Its answer replaces
    /// the credentials of the URL and of descriptions, except the sentinels' own. The user of a
    /// server that has a password and no users is `default`.
    ///
    /// Redis asks for credentials once in each connection. The function may therefore return the
    /// new password before the server takes it, or after, as long as no connection ends meanwhile.
    /// A refused password leaves the store without a connection: requests are
    /// [`Denied`](ErrorKind::Denied), and holds stay until their leases end. The function may take
    /// as long as connecting may. Its error is reported as [`Unavailable`](ErrorKind::Unavailable)
    /// unless it is `Invalid` or `Denied`.
    ///
    /// ```
    /// use leasehold_core::{Error, ErrorKind};
    /// use leasehold_redis::Config;
    ///
    /// let config = Config::from_url("redis://10.0.0.1")?.credentials(|| async {
    ///     let read = |e| Error::new(ErrorKind::Unavailable, "no password").with_source(e);
    ///     let password = std::fs::read_to_string("/run/secrets/redis").map_err(read)?;
    ///     Ok(("me".to_owned(), password.trim().to_owned()))
    /// });
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn credentials<F>(mut self, function: impl Fn() -> F + Send + Sync + 'static) -> Config
    where
        F: Future<Output = Result<(String, String)>> + Send + 'static,
    {
        self.server.credentials = Some(Credentials::new(function));
        self
    }

    /// Makes every connection over TLS. The server's address has to be a host and a port.
    #[cfg(feature = "tls-no-provider")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Config {
        self.server.tls = Some(tls);
        self
    }

    /// Speaks RESP2 with the server, also if that knows RESP3. Without it, the store speaks RESP3, or
    /// RESP2 with a server, or a proxy before it, that refuses `HELLO 3`. Nothing is pushed over
    /// RESP2: waiters ask up to 20 times a second. A Cluster refuses it as
    /// [`Unsupported`](ErrorKind::Unsupported), and so does [`min_replicas`](Config::min_replicas).
    #[must_use]
    pub fn resp2(mut self) -> Config {
        self.server.protocol = Some(Protocol::Resp2);
        self
    }

    /// Uses the database or the Cluster with this identity, and no other: see [`StoreId`]. Without
    /// it, the first one that answers is used, and of a Cluster the one to which most hosts belong.
    #[must_use]
    pub fn store_id(mut self, id: StoreId) -> Config {
        self.store_id = Some(id);
        self
    }

    /// Uses no scripts, for a server that forbids them: `scripts=off` in a URL. The store then keeps
    /// exclusive locks alone, with fencing tokens, by `WATCH` and `MULTI`. Waiters stand in no queue
    /// and ask again about every tenth of a second; readers, permits and conditions
    /// ([`still_holds`](crate::Redis::still_holds)) are [`Unsupported`](ErrorKind::Unsupported), and
    /// several names are taken one after the other.
    ///
    /// Programs with scripts and without them, and clients that do `SET NX PX`, exclude one another.
    /// A Redis Cluster is [`Unsupported`](ErrorKind::Unsupported). An ACL user needs
    /// `+@read +@write +@pubsub +@connection +@transaction +time`, and the keys and channels of
    /// [`Redis`](crate::Redis).
    #[must_use]
    pub fn without_scripts(mut self) -> Config {
        self.scripts = false;
        self
    }

    /// Limits each request, and each of the two steps of connecting. The outcome of a request that takes longer is
    /// unknown. At least a millisecond; keep it well under a third of the shortest TTL.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// Puts this text before every key. It may not contain `{`, `}` or NUL.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Config {
        self.prefix = prefix.into();
        self
    }

    /// A claim counts only once this number of replicas have acknowledged it, within this time for
    /// each claim (`WAIT`). With fewer, the claim fails as [`Ambiguous`](ErrorKind::Ambiguous), is
    /// retried within the retry budget of the acquire, and is withdrawn in the end. The default is
    /// 0: claims wait for no replica.
    ///
    /// This makes it less likely that a failover forgets a lock, but does not make a failover safe:
    /// a replica that never acknowledged may be the one that is promoted, renewals and releases do
    /// not wait for replicas, and an acknowledged write is in a replica's memory, not on its disk.
    /// Only the fencing token survives a failover. A claim costs two more requests, on a connection
    /// of their own. A waiter that is granted the lock, and a hold whose token was raised, claim
    /// again, to wait for the replicas too.
    #[must_use]
    pub fn min_replicas(mut self, least: u32, within: Duration) -> Config {
        self.min_replicas = (least > 0).then_some((least, within.max(Duration::from_millis(1))));
        self
    }
}

impl FromStr for Config {
    type Err = Error;

    /// Reads a URL, as [`from_url`](Config::from_url) does.
    fn from_str(url: &str) -> Result<Config> {
        Config::from_url(url)
    }
}

/// The kinds of servers that a scheme names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    One,
    Sentinel,
    Cluster,
    /// One server, behind a Unix socket: the path of the address is its file.
    Socket,
}

/// Reads the scheme of a URL, and parses the rest.
fn read(url: &str) -> Result<(Kind, Address)> {
    let invalid = |what: &str| Error::new(ErrorKind::Invalid, format!("the store's URL: {what}"));
    let unknown = || invalid("it does not begin with redis://");
    let (scheme, rest) = url.split_once("://").ok_or_else(unknown)?;
    let scheme = scheme.to_ascii_lowercase();
    let (server, kind) = match &*scheme {
        "unix" => ("redis", "unix"),
        scheme => scheme.split_once(['+', '-']).unwrap_or((scheme, "")),
    };
    let tls = match server {
        "redis" | "valkey" => false,
        "rediss" | "valkeys" => true,
        _ => return Err(unknown()),
    };
    let of = |rest: &str, port| Address::parse(&format!("redis://{rest}"), "redis", port);
    let (kind, mut address) = match kind {
        "" => (Kind::One, of(rest, 6379)?),
        "cluster" => (Kind::Cluster, of(rest, 6379)?),
        "sentinel" if scheme.contains('-') => (Kind::Sentinel, lettuce(rest)?),
        "sentinel" => (Kind::Sentinel, of(rest, 26379)?),
        "unix" | "socket" if !tls => {
            // A socket has no host, but the grammar of URLs wants one.
            let (before, path) = rest.split_once('/').unwrap_or((rest, ""));
            if path.is_empty() || !before.is_empty() && !before.ends_with('@') {
                let what =
                    "the path of a socket begins with /, as in redis+unix:///run/redis/redis.sock";
                return Err(invalid(what));
            }
            let address = of(&format!("{before}localhost/{path}"), 6379)?;
            if address.path.contains('\0') {
                return Err(invalid("the path of a socket may not contain NUL"));
            }
            (Kind::Socket, address)
        }
        _ => return Err(unknown()),
    };
    address.tls = tls;
    Ok((kind, address))
}

/// Parses the form that Lettuce has for sentinels, in which a word names the master, and the path is
/// the database.
fn lettuce(rest: &str) -> Result<Address> {
    let invalid = |what: &str| Error::new(ErrorKind::Invalid, format!("the store's URL: {what}"));
    let missing = "the name of the master is written ?sentinelMasterId=name";
    if rest.contains('#') {
        return Err(invalid(missing));
    }
    let mut address = Address::parse(&format!("redis://{rest}"), "redis", 26379)?;
    for theirs in ["master", "masterName"] {
        address.rename(theirs, "sentinelMasterId");
    }
    match address.take("sentinelMasterId") {
        Some(master) => address.path = format!("{master}/{}", address.path),
        // The name stands in the path, as behind redis+sentinel://.
        None if address.path.parse::<u32>().is_err() && !address.path.is_empty() => {}
        None => return Err(invalid(missing)),
    }
    Ok(address)
}

fn the_one(servers: Vec<Server>) -> Result<Server> {
    let [server] = <[Server; 1]>::try_from(servers).map_err(|_| {
        Error::new(
            ErrorKind::Invalid,
            "redis:// names one server (others: redis+sentinel://, redis+cluster://, redlock://)",
        )
    })?;
    Ok(server)
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_urls;

    use super::*;

    #[test]
    fn reads_every_part() {
        let all = "redis://me:s%40cret@[::1]:7000/3?timeout=250&prefix=app%3A&min_replicas=2";
        let config = Config::from_url(all).unwrap();
        let settings = config.server.info.redis_settings();
        assert_eq!(config.server.info.addr().to_string(), "::1:7000");
        assert_eq!(
            (settings.username(), settings.password(), settings.db()),
            (Some("me"), Some("s@cret"), 3)
        );
        assert_eq!(
            (config.timeout, &*config.prefix),
            (Duration::from_millis(250), "app:")
        );
        assert_eq!(config.min_replicas, Some((2, Duration::from_millis(100))));
        assert!(!format!("{config:?}").contains("s@cret"));
        let server = Config::from_url("redis://:pw@localhost")
            .unwrap()
            .server
            .info;
        assert_eq!(
            (
                &*server.addr().to_string(),
                server.redis_settings().password()
            ),
            ("localhost:6379", Some("pw"))
        );
    }

    #[test]
    fn words_of_other_clients_are_read() {
        for (url, read_as) in [
            ("REDIS://h", "h:6379 0 None None"),
            (
                "valkey://default:pw@h:1/2",
                "h:1 2 Some(\"default\") Some(\"pw\")",
            ),
            ("redis://h?db=3&protocol=3&family=0", "h:6379 3 None None"),
            (
                "redis://h/3?database=3&username=me&password=p%23w",
                "h:6379 3 Some(\"me\") Some(\"p#w\")",
            ),
            ("unix:///run/a%20b.sock?db=1", "/run/a b.sock 1 None None"),
            (
                "redis+unix://:pw@/run/x?virtual_host=2",
                "/run/x 2 None Some(\"pw\")",
            ),
            ("redis+socket:///run/x", "/run/x 0 None None"),
        ] {
            let info = Config::from_url(url).unwrap().server.info;
            let settings = info.redis_settings();
            let (user, password) = (settings.username(), settings.password());
            let shown = format!("{} {} {user:?} {password:?}", info.addr(), settings.db());
            assert_eq!(shown, read_as, "{url}");
        }
        for url in [
            "redis-sentinel://:pw@a,b/3?sentinelMasterId=main",
            "redis-sentinel://:pw@a,b/3?master=main",
            "redis-sentinel://:pw@a,b?db=3&master=main",
            "valkey+sentinel://:pw@a,b/main/3",
            "redis-sentinel://:pw@a,b/main/3",
        ] {
            let server = Config::from_url(url).unwrap().server;
            let sentinels = server.sentinels.unwrap();
            assert_eq!(
                (&*sentinels.master, sentinels.each.len()),
                ("main", 2),
                "{url}"
            );
            assert_eq!(sentinels.each[0].addr().to_string(), "a:26379", "{url}");
            assert_eq!(server.info.redis_settings().db(), 3, "{url}");
        }
    }

    #[cfg(feature = "tls-no-provider")]
    #[test]
    fn certificates_are_verified_unless_a_word_says_less() {
        for (words, verified) in [
            ("", "Name"),
            ("?ssl_cert_reqs=required", "Name"),
            ("?ssl_cert_reqs=CERT_NONE", "Nothing"),
            ("?ssl_cert_reqs=none&ssl_check_hostname=False", "Nothing"),
            ("?ssl_check_hostname=false&ssl_ca_certs=/a.pem", "Ca"),
        ] {
            let config = Config::from_url(&format!("valkeys://h{words}")).unwrap();
            let tls = config.server.tls.unwrap();
            assert_eq!(format!("{:?}", tls.verified()), verified, "{words}");
        }
        for words in ["ca=/a.pem", "server_name=h", "ssl_check_hostname=true"] {
            let refused = Config::from_url(&format!("rediss://h?ssl_cert_reqs=none&{words}"));
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{words}");
            assert!(error.to_string().contains("leave it out"), "{error}");
        }
    }

    #[test]
    fn a_tool_reads_the_address_as_the_store_does() {
        for (url, read_as) in [
            (
                "VALKEY://h/2?password=pw",
                "h:6379 2 None Some(\"pw\") Name",
            ),
            ("redlocks://:pw@a,b?pass=", "refused"),
            ("REDLOCK://:pw@a:1", "a:1  None Some(\"pw\") Name"),
            (
                "redis-sentinel://a/3?masterName=m&username=me&password=pw",
                "a:26379 m/3 Some(\"me\") Some(\"pw\") Name",
            ),
            (
                "valkeys://h?ssl_cert_reqs=none",
                "h:6379  None None Nothing",
            ),
            ("unix://:pw@/run/x?db=1", "/run/x 1 None Some(\"pw\") Name"),
        ] {
            let read = match Config::address(url) {
                Err(_) => "refused".to_owned(),
                Ok((it, verified)) => format!(
                    "{} {} {:?} {:?} {verified:?}",
                    it.hosts[0], it.path, it.user, it.password
                ),
            };
            assert_eq!(read, read_as, "{url}");
        }
        assert!(Config::from_url("unix:///a%00b").is_err());
    }

    #[test]
    fn a_word_that_cannot_be_followed_says_what_to_write() {
        for (url, says) in [
            ("redis://:s3cret@h?protocol=4", "protocol is 2 or 3"),
            ("redis://:s3cret@h?socket_timeout=5", "timeout=milliseconds"),
            ("redis://:s3cret@h?ssl=true", "rediss://"),
            ("redis://:s3cret@h?ssl_cert_reqs=none", "rediss://"),
            ("redis://:s3cret@h?clientName=x", "connections get no name"),
            (
                "redis://:s3cret@h?password=s3cret",
                "leave the parameter out",
            ),
            ("redis://h?username=s3cret", "write password="),
            ("redis://:s3cret@h/1?db=2", "leave one out"),
            ("redis://:s3cret@h?family=6", "family is 0"),
            ("redis://:s3cret@h?health_check_interval=30", "leave it out"),
            ("redis-sentinel://:s3cret@a,b#main", "sentinelMasterId=name"),
            ("redis-sentinel://:s3cret@a,b/0", "sentinelMasterId=name"),
            ("unix://:s3cret@run/redis.sock", "begins with /"),
            ("rediss+unix:///run/redis.sock", "redis://"),
            ("redis+x://:s3cret@h", "redis://"),
        ] {
            let error = Config::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            let said = format!("{error} {error:?}");
            assert!(
                said.contains(says) && !said.contains("s3cret"),
                "{url}: {said}"
            );
        }
    }

    #[test]
    fn reads_sentinels() {
        let url = "redis+sentinel://me:pw@a,[::1]:5000/main/3?sentinel_user=s&sentinel_password=s3cret&prefix=app%3A";
        let config = Config::from_url(url).unwrap();
        let server = config.server.info.redis_settings();
        let sentinels = config.server.sentinels.as_ref().unwrap();
        assert_eq!(
            (server.username(), server.password(), server.db()),
            (Some("me"), Some("pw"), 3)
        );
        let each: Vec<String> = sentinels
            .each
            .iter()
            .map(|sentinel| sentinel.addr().to_string())
            .collect();
        assert_eq!(
            (&*sentinels.master, each),
            ("main", vec!["a:26379".to_owned(), "::1:5000".to_owned()])
        );
        for sentinel in &sentinels.each {
            let its = sentinel.redis_settings();
            assert_eq!(
                (its.username(), its.password(), its.db()),
                (Some("s"), Some("s3cret"), 0)
            );
        }
        assert!(!format!("{config:?}").contains("s3cret"));
        let plain = Config::from_url("redis+sentinel://a/main")
            .unwrap()
            .server
            .sentinels
            .unwrap();
        assert_eq!(plain.each[0].redis_settings().password(), None);
    }

    #[test]
    fn reads_the_nodes_of_a_cluster() {
        let config = Config::from_url("redis+cluster://me:pw@a,b:7001?timeout=250").unwrap();
        let seeds = config.seeds(config.cluster.as_ref().unwrap());
        let each: Vec<String> = seeds
            .iter()
            .map(|seed| seed.info.addr().to_string())
            .collect();
        assert_eq!(each, ["a:6379", "b:7001"]);
        for seed in &seeds {
            assert!(
                seed.cluster && seed.info.redis_settings().username() == Some("me"),
                "{seed:?}"
            );
        }
        assert!(Config::from_url("redis://a").unwrap().cluster.is_none());
        assert_eq!(
            Config::cluster(Vec::new()).unwrap_err().kind(),
            ErrorKind::Invalid
        );
    }

    #[test]
    fn replicas_are_waited_for_if_there_is_a_number_of_them() {
        let least = |least| {
            Config::from_url("redis://a")
                .unwrap()
                .min_replicas(least, Duration::ZERO)
                .min_replicas
        };
        assert_eq!(
            (least(0), least(1)),
            (None, Some((1, Duration::from_millis(1))))
        );
        assert!(Config::from_url("redis://a?min_replicas=1&min_replicas_timeout=60000").is_ok());
    }

    #[test]
    fn refuses_the_rest_and_names_the_part_but_no_secret() {
        for (url, part) in [
            ("redis+cluster://:s3ntinel@a,b/1", "database"),
            ("redis+cluster://:s3ntinel@", "host"),
            ("redis://:s3ntinel@h?min_replicas=60001", "min_replicas"),
            ("redis://:s3ntinel@", "host"),
            ("redis:///1", "host"),
            ("redis://:s3ntinel@h:99999", "port"),
            ("redis://:s3ntinel@h:x", "port"),
            ("redis://h:0", "port"),
            ("redis://s3ntinel@h", "user"),
            ("redis://:s3ntinel@h/one", "database"),
            ("redis://:s3ntinel@h/1/2", "database"),
            ("redis://:s3ntinel@h/99999999999999999999", "database"),
            ("redis://a,b", "one server"),
            ("redis+sentinel://:s3ntinel@a,b", "name"),
            ("redis+sentinel://:s3ntinel@a,b/", "name"),
            ("redis+sentinel://:s3ntinel@a,b/main/one", "database"),
            (
                "redis+sentinel://a/main?sentinel_user=s3ntinel",
                "sentinel_password",
            ),
            (
                "redis+sentinel://a/main?sentinel_pw=s3ntinel",
                "sentinel_pw",
            ),
            ("redis+sentinels://:s3ntinel@a/main", "redis://"),
            ("redis://h?sentinel_password=s3ntinel", "sentinel_password"),
            ("redis://:s3ntinel@h?timeout=soon", "timeout"),
            ("redis://:s3ntinel@h?timeout=0", "timeout"),
            ("redis://:s3ntinel@h?min_replicas=-1", "min_replicas"),
            (
                "redis://:s3ntinel@h?min_replicas=1&min_replicas_timeout=x",
                "min_replicas_timeout",
            ),
            ("redis://:s3ntinel@h?tls=1", "tls"),
            ("redis://:s3ntinel@h#x", "fragment"),
            ("http://:s3ntinel@h", "redis://"),
            ("s3ntinel", ""),
        ] {
            let error = Config::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            let text = format!("{error} {error:?}");
            assert!(
                text.contains(part) && !text.contains("s3ntinel"),
                "{url}: {text}"
            );
        }
        let read = Config::from_url("rediss://:s3ntinel@h?ca=/a.pem");
        if cfg!(feature = "tls-no-provider") {
            assert_eq!(read.unwrap().server.info.addr().to_string(), "h:6379");
        } else {
            let error = read.unwrap_err();
            assert!(
                error.kind() == ErrorKind::Unsupported && error.to_string().contains("\"tls\""),
                "{error}"
            );
        }
    }

    #[test]
    fn whatever_a_url_says_it_is_read_or_refused_and_no_secret_is_shown() {
        fuzz_urls(
            include_str!("../corpus/urls"),
            |url| match Config::from_url(url) {
                Ok(config) => format!("{config:?}"),
                Err(e) => {
                    assert!(
                        matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Unsupported),
                        "{e}"
                    );
                    format!("{e} {e:?}")
                }
            },
        );
    }
}
