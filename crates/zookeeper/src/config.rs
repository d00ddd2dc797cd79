//! The configuration: the servers and the settings of their use, from a URL or from parts.

mod acls;
mod connector;
#[cfg(feature = "sasl")]
mod sasl;

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::backend::Identity;
use leasehold_core::support::uuid;
use leasehold_core::{Error, ErrorKind, Result, StoreId};
use leasehold_net::{Address, Credentials, Host, Tls};
use zookeeper_client::{Acl, Acls, Client, Connector};

/// ZooKeeper's own port.
pub(crate) const DEFAULT_PORT: u16 = 2181;

/// Its documentation's port for TLS.
pub(crate) const TLS_PORT: u16 = 2281;

/// The client crate's scheme for a server that is reached over TLS.
const SECURE: &str = "tcp+tls://";

/// The addresses of the servers, and the settings of their use.
///
/// ```
/// # use std::time::Duration;
/// use leasehold_zookeeper::Config;
///
/// let config = Config::new("zk1,zk2:2281").auth("digest", b"me:secret").private().root("/prod/locks");
/// let config = config.timeout(Duration::from_millis(500));
/// ```
#[derive(Clone)]
pub struct Config {
    connector: Connector,
    /// `host:port,host:port,…`
    pub(crate) servers: String,
    pub(crate) root: String,
    pub(crate) timeout: Duration,
    /// The connector has TLS of its own.
    secure: bool,
    credentials: Option<Credentials>,
    #[cfg(feature = "sasl")]
    sasl: Option<Credentials>,
    pub(crate) tls: Option<Tls>,
    acls: Vec<Acl>,
    /// The identity that the ensemble has to have, if one is named.
    pub(crate) store_id: Option<StoreId>,
    /// The identity of the ensemble, of the client that connects by this.
    pub(crate) identity: Arc<Identity>,
    /// The sentence about a server that ran alone, if that is what was asked last.
    pub(crate) alone: Arc<Mutex<Option<String>>>,
}

impl Config {
    /// Reads
    /// `zookeeper://[user:password@]host[:port][,host[:port]…][/path][?timeout=milliseconds&sasl=digest-md5&store=id]`.
    ///
    /// The path, percent-decoded, is the [`root`](Config::root). The credentials are of the scheme
    /// *digest*, and the nodes are [`private`](Config::private). `zookeepers://` is the same over
    /// TLS, at port 2281 unless another one is given, and needs the feature `tls`. Its options are
    /// `ca`, `cert` and `key`, as `Tls` has them; there is no `server_name`. With
    /// `sasl=digest-md5`, which needs the feature `sasl`, the credentials are for SASL. `store` is
    /// [`Config::store_id`].
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) names the part that is wrong, and
    /// [`Unsupported`](ErrorKind::Unsupported) is `zookeepers://` or `sasl` without the feature, or
    /// `server_name`. Neither shows a credential.
    pub fn from_url(url: &str) -> Result<Config> {
        let mut address = Address::parse_tls(url, "zookeeper", DEFAULT_PORT, TLS_PORT)?;
        let timeout = address.timeout()?;
        let store_id = address.store_id("zookeeper")?;
        let tls = Tls::from_address(&mut address, cfg!(feature = "tls-no-provider"))?;
        let sasl = match address.take("sasl").as_deref() {
            None => false,
            Some("digest-md5") if cfg!(feature = "sasl") => true,
            Some("digest-md5") => {
                let what = "SASL needs the feature \"sasl\", which is off in this build";
                return Err(Error::new(ErrorKind::Unsupported, what));
            }
            Some(_) => {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    "the store's URL: sasl: it is digest-md5, or left out",
                ));
            }
        };
        address.done()?;
        let hosts: Vec<String> = address.hosts.iter().map(Host::to_string).collect();
        let mut config = Config {
            tls,
            store_id,
            ..Config::new(&hosts.join(",")).timeout(timeout)
        };
        if !address.path.is_empty() {
            config = config.root(&format!("/{}", address.path));
        }
        let invalid = |what| Err(Error::new(ErrorKind::Invalid, what));
        match (address.user, address.password, sasl) {
            (Some(user), Some(password), false) => config
                .auth("digest", format!("{user}:{password}").as_bytes())
                .private()
                .checked(),
            #[cfg(feature = "sasl")]
            (Some(user), Some(password), true) => config.sasl(&user, &password).private().checked(),
            (None, Some(_), _) => invalid("ZooKeeper knows no password without a user"),
            (_, None, true) => invalid("the store's URL: sasl: it needs a user and a password"),
            _ => config.checked(),
        }
    }

    /// The servers, as `host[:port],host[:port],…`. The root is `/leasehold`, and a request may
    /// take a second.
    pub fn new(servers: &str) -> Config {
        let connector = Client::connector();
        let servers = servers.to_owned();
        let root = "/leasehold".to_owned();
        Config {
            connector,
            servers,
            root,
            timeout: Duration::from_secs(1),
            secure: false,
            credentials: None,
            #[cfg(feature = "sasl")]
            sasl: None,
            tls: None,
            acls: Acls::anyone_all().to_vec(),
            store_id: None,
            identity: Arc::default(),
            alone: Arc::default(),
        }
    }

    /// Makes every connection over TLS, and none without. The port is 2281 unless a server's is
    /// given. Another [`server_name`](Tls::server_name) is `Unsupported`: the servers' certificates
    /// are for the hosts that they are reached by.
    #[cfg(feature = "tls-no-provider")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Config {
        self.tls = Some(tls);
        self
    }

    /// Uses the ensemble with this identity, and no other: see [`StoreId`]. Without it, the first
    /// one that answers is used, and no other later.
    #[must_use]
    pub fn store_id(mut self, id: StoreId) -> Config {
        self.store_id = Some(id);
        self
    }

    /// Adds credentials of a scheme, such as `digest` and `user:password`.
    #[must_use]
    pub fn auth(mut self, scheme: &str, credentials: &[u8]) -> Config {
        self.connector = self.connector.with_auth(scheme, credentials);
        self
    }

    /// Asks this function for a user and a password, of the scheme *digest*, before each
    /// connection, so they can be rotated without a restart.
    ///
    /// To ZooKeeper a digest user with another password is another user, and nodes that are
    /// [`private`](Config::private) stay closed to it. Give the previous credentials by
    /// [`auth`](Config::auth) meanwhile: a connection can have several, and the nodes that it
    /// creates are open to each. The function may take as long as connecting may; its errors are
    /// [`Unavailable`](ErrorKind::Unavailable) unless they are `Invalid` or `Denied`.
    #[must_use]
    pub fn credentials<F>(mut self, function: impl Fn() -> F + Send + Sync + 'static) -> Config
    where
        F: Future<Output = Result<(String, String)>> + Send + 'static,
    {
        self.credentials = Some(Credentials::new(function));
        self
    }

    /// The connector with the credentials as they are now.
    pub(crate) async fn authenticated(&self) -> Result<Connector> {
        let connector = self.connector.clone();
        #[cfg(feature = "sasl")]
        let connector = self.with_sasl(connector).await?;
        let Some(credentials) = &self.credentials else {
            return Ok(connector);
        };
        let (user, password) = credentials.ask().await?;
        Ok(connector.with_auth("digest", format!("{user}:{password}").as_bytes()))
    }

    /// The node under which locks live: an absolute path such as `/prod/locks`, neither `/` nor
    /// below `/zookeeper`. It is created if it is not there, and so are the nodes above it, each
    /// with the access rights of the node above it.
    #[must_use]
    pub fn root(mut self, path: &str) -> Config {
        path.clone_into(&mut self.root);
        self
    }

    /// The time that a request may take before its outcome is unknown. A call, which may need
    /// several requests and a new connection, takes at most twice as long.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout;
        self
    }

    /// Returns the configuration with a port for each server, or fails if a setting is wrong.
    pub(crate) fn checked(mut self) -> Result<Config> {
        let hosts = self.servers.split(',').map(|host| self.host(host));
        self.servers = hosts.collect::<Result<Vec<_>>>()?.join(",");
        self.check_connector()?;
        self.check_acls()?;
        let good =
            |part: &str| !matches!(part, "" | "." | "..") && !part.contains(char::is_control);
        let parts: Vec<&str> = self.root.split('/').collect();
        match parts[..] {
            ["", first, ..] if first != "zookeeper" && parts[1..].iter().all(|part| good(part)) => {
                Ok(self)
            }
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!("{:?} is no absolute path for locks", self.root),
            )),
        }
    }

    /// Returns whether every connection is over TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.secure || self.tls.is_some()
    }

    /// This server with its port.
    fn host(&self, server: &str) -> Result<String> {
        #[cfg(feature = "tls-no-provider")]
        if self.is_secure() {
            return crate::client::secure_host(self.tls.as_ref(), server);
        }
        Ok(Host::parse(server, DEFAULT_PORT)?.to_string())
    }

    /// These servers, as the client crate connects to them: over TLS if that is configured, and
    /// only over TLS then.
    pub(crate) fn at(&self, servers: &str) -> String {
        if self.is_secure() {
            return servers
                .split(',')
                .map(|server| format!("{SECURE}{server}"))
                .collect::<Vec<_>>()
                .join(",");
        }
        servers.to_owned()
    }

    /// Each server once, beginning with a random one.
    pub(crate) fn each_server(&self) -> impl Iterator<Item = &str> {
        let count = self.servers.split(',').count();
        let first = uuid().as_u128() as usize % count.max(1);
        self.servers.split(',').cycle().skip(first).take(count)
    }
}

impl FromStr for Config {
    type Err = Error;

    /// Reads a URL, as [`from_url`](Config::from_url) does.
    fn from_str(url: &str) -> Result<Config> {
        Config::from_url(url)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL that was given as the servers and is not checked yet shows no credentials either.
        let servers = self.servers.rsplit('@').next().unwrap_or_default();
        f.debug_struct("Config")
            .field("servers", &servers)
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_urls;

    use super::*;

    fn refused(url: &str) -> String {
        let e = Config::from_url(url).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{url}");
        format!("{e:?}")
    }

    #[test]
    fn reads_what_the_url_says() {
        let config =
            Config::from_url("zookeeper://a,b.c:1,[::1]:7/prod/lo%20cks?timeout=250").unwrap();
        assert_eq!(config.servers, "a:2181,b.c:1,[::1]:7");
        assert_eq!(
            (&*config.root, config.timeout.as_millis()),
            ("/prod/lo cks", 250)
        );
        assert_eq!(config.acls, *Acls::anyone_all());
        for bare in ["zookeeper://a", "zookeeper://a/", "zookeeper://[::1]/"] {
            assert_eq!(Config::from_url(bare).unwrap().root, "/leasehold");
        }
    }

    #[test]
    fn refuses_the_rest_and_names_the_part() {
        for (bad, part) in [
            ("zk://a", "zookeeper://"),
            ("zookeeper://a,,b", "host"),
            ("zookeeper://a:0", "port"),
            ("zookeeper://a/b//c", "path"),
            ("zookeeper://a/../b", "path"),
            ("zookeeper://a/zookeeper/b", "path"),
            ("zookeeper://a?ttl=1", "ttl"),
            ("zookeeper://a?timeout=soon", "timeout"),
            ("zookeeper://:s3cret@a", "user"),
            ("zookeeper://tcp+tls://a", "host"),
            ("zookeeper://a?ca=/ca.pem", "ca"),
            ("zookeeper://me:s3cret@a?sasl=s3cret", "sasl"),
        ] {
            assert!(refused(bad).contains(part), "{bad}");
        }
    }

    #[test]
    fn tls_is_for_all_servers_or_none() {
        let read = |url| Config::from_url(url).map(|config| config.at(&config.servers));
        #[cfg(feature = "tls-no-provider")]
        {
            let secure = read("zookeepers://a,b.c:1,[::1]:7/prod?ca=/ca.pem").unwrap();
            assert_eq!(secure, "tcp+tls://a:2281,tcp+tls://b.c:1,tcp+tls://[::1]:7");
            let config = Config::new("a").tls(Tls::new()).checked().unwrap();
            assert_eq!(config.at("b:1"), "tcp+tls://b:1");
            for (bad, kind, part) in [
                (
                    "zookeepers://a?server_name=b",
                    ErrorKind::Unsupported,
                    "server_name",
                ),
                ("zookeepers://a..b", ErrorKind::Invalid, "a..b"),
                ("zookeepers://a?cert=/a.pem", ErrorKind::Invalid, "key"),
            ] {
                let e = read(bad).unwrap_err();
                assert!(e.kind() == kind && e.to_string().contains(part), "{e}");
            }
        }
        #[cfg(not(feature = "tls-no-provider"))]
        {
            let e = read("zookeepers://us:s3cret@a").unwrap_err();
            assert!(
                e.kind() == ErrorKind::Unsupported && e.to_string().contains("\"tls\""),
                "{e}"
            );
        }
        assert_eq!(read("zookeeper://a").unwrap(), "a:2181");
        for tls in ["tcp+tls://a:2281", "a:2181,tcp+tls://b", "tcp://a"] {
            assert_eq!(
                Config::new(tls).checked().unwrap_err().kind(),
                ErrorKind::Invalid,
                "{tls}"
            );
        }
        assert_eq!(
            Config::new("a,[::1]:7").checked().unwrap().servers,
            "a:2181,[::1]:7"
        );
    }

    #[test]
    fn a_root_is_an_absolute_path() {
        for bad in ["", "/", "a", "a/b", "/a/", "/a/../b", "/a\u{1}"] {
            assert!(
                Config::new("a")
                    .root(bad)
                    .checked()
                    .unwrap_err()
                    .to_string()
                    .contains("path"),
                "{bad:?}"
            );
        }
        assert_eq!(
            Config::new("a").root("/zookeeper2").checked().unwrap().root,
            "/zookeeper2"
        );
    }

    #[test]
    fn credentials_are_never_shown() {
        let shown = format!("{:?}", Config::new("me:s3cret@a,b"));
        assert!(
            shown.contains("a,b") && shown.contains("/leasehold") && !shown.contains("s3cret"),
            "{shown}"
        );
        let config = Config::from_url("zookeeper://us%3Aer:s3cret@a/b").unwrap();
        assert_eq!(config.acls, *Acls::creator_all());
        assert!(!format!("{config:?} {:?}", config.connector).contains("s3cret"));
        for url in [
            "zookeeper://user:s3cret@:1",
            "zookeeper://user:s3cret@a?x=1",
            "zookeeper://user:s3cret@a/b//c",
        ] {
            assert!(!refused(url).contains("s3cret"), "{url}");
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
