//! From a URL, or from parts, to what a client needs.

use std::fmt;
use std::time::Duration;

use leasehold_core::seam::{Address, Host};
use leasehold_core::{Error, ErrorKind, Result};
use uuid::Uuid;
use zookeeper_client::{Acls, Client, Connector, CreateMode, CreateOptions};

/// Where locks live when the URL names no path.
const DEFAULT_ROOT: &str = "/leasehold";

/// How long one request may take.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

/// ZooKeeper's own port.
const DEFAULT_PORT: u16 = 2181;

/// How a client finds its servers, and where on them its locks live.
#[derive(Clone)]
pub struct Config {
    pub(crate) connector: Connector,
    pub(crate) servers: String,
    pub(crate) root: String,
    pub(crate) timeout: Duration,
    private: bool,
}

impl Config {
    /// Reads `zookeeper://[user:password@]host[:port][,host[:port]…][/path][?timeout=milliseconds]`.
    ///
    /// The path, percent-decoded, is the node under which locks live; without one it is `/leasehold`. With credentials
    /// (scheme *digest*) all nodes are made for these credentials alone, as [`private`](Config::private) says.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] names the part that is wrong. It shows nothing of the credentials.
    pub fn from_url(url: &str) -> Result<Config> {
        let mut address = Address::parse(url, "zookeeper", DEFAULT_PORT)?;
        let timeout = address.timeout()?;
        address.done()?;
        let mut config = Config::of(&address.hosts).timeout(timeout);
        if !address.path.is_empty() {
            config = config.root(&format!("/{}", address.path))?;
        }
        match (&address.user, &address.password) {
            (Some(user), Some(password)) => {
                Ok(config.auth("digest", format!("{user}:{password}").as_bytes()).private())
            }
            (None, Some(_)) => Err(invalid("ZooKeeper knows no password without a user")),
            _ => Ok(config),
        }
    }

    /// Takes the servers as `host:port,host:port,…`. They are talked to in plain text.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] names the server that is wrong.
    pub fn new(servers: &str) -> Result<Config> {
        let hosts = servers.split(',').map(|host| Host::parse(host, DEFAULT_PORT)).collect::<Result<Vec<_>>>()?;
        Ok(Config::of(&hosts))
    }

    /// Adds credentials of a scheme, such as `digest` and `user:password`.
    #[must_use]
    pub fn auth(mut self, scheme: &str, credentials: &[u8]) -> Config {
        self.connector = self.connector.with_auth(scheme, credentials);
        self
    }

    fn of(hosts: &[Host]) -> Config {
        let connector = Client::connector();
        let servers = hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",");
        Config { connector, servers, root: DEFAULT_ROOT.to_owned(), timeout: DEFAULT_TIMEOUT, private: false }
    }

    /// The node under which locks live, such as `/prod/locks`. It is made when it is not there; and so are the nodes above it,
    /// with the access that the node above them gives.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for what is no absolute path of ZooKeeper, and for the root itself.
    pub fn root(mut self, path: &str) -> Result<Config> {
        let good = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(char::is_control);
        let parts: Vec<&str> =
            path.strip_prefix('/').ok_or_else(|| invalid("the path is not absolute"))?.split('/').collect();
        if !parts.iter().all(|part| good(part)) || parts.first() == Some(&"zookeeper") {
            return Err(invalid(format!("the path {path:?} is not one for ZooKeeper's clients")));
        }
        self.root = path.to_owned();
        Ok(self)
    }

    /// Makes all nodes from the root on for the credentials of the connection alone (ACL *auth: all*), so that nobody else can
    /// remove or even see a lock. Without it anybody who reaches ZooKeeper can, as with Curator's and kazoo's defaults. All users
    /// of one lock need the same credentials then. What is there already keeps the access that it has: whoever reaches a root
    /// that others made open sees the locks' names, and can make a lock's node before its first user does, and rule it.
    #[must_use]
    pub fn private(mut self) -> Config {
        self.private = true;
        self
    }

    /// How long a request may take before its outcome is called unknown. One second unless said otherwise. A call, which may
    /// need several and a new connection, takes at most twice as long.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout;
        self
    }

    /// Each server, in an order of chance.
    pub(crate) fn each_server(&self) -> impl Iterator<Item = &str> {
        let count = self.servers.split(',').count();
        let first = Uuid::new_v4().as_u128() as usize % count.max(1);
        self.servers.split(',').cycle().skip(first).take(count)
    }

    /// The folder of the sessions' own nodes, to which they write their heartbeats. Nothing else may be called so.
    pub(crate) fn sessions(&self) -> String {
        format!("{}/.leasehold", self.root)
    }

    /// The node that others touch so that the session hears of it.
    pub(crate) fn bell(&self, session: i64) -> String {
        format!("{}/{session:016x}-bell", self.sessions())
    }

    /// How nodes of this kind are made.
    pub(crate) fn make(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(if self.private { Acls::creator_all() } else { Acls::anyone_all() })
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("servers", &self.servers).field("root", &self.root).finish_non_exhaustive()
    }
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        let e = Config::from_url(url).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{url}");
        format!("{e:?}")
    }

    #[test]
    fn reads_what_the_url_says() {
        let config = Config::from_url("zookeeper://a,b.c:1,[::1]:7/prod/lo%20cks?timeout=250").unwrap();
        assert_eq!(config.servers, "a:2181,b.c:1,[::1]:7");
        assert_eq!((&*config.root, config.timeout.as_millis(), config.private), ("/prod/lo cks", 250, false));
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
            ("zookeeper://a/zookeeper", "path"),
            ("zookeeper://a?ttl=1", "ttl"),
            ("zookeeper://a?timeout=soon", "timeout"),
            ("zookeeper://:s3cret@a", "user"),
            ("zookeepers://a", "zookeeper://"),
            ("zookeeper://tcp+tls://a", "host"),
        ] {
            assert!(refused(bad).contains(part), "{bad}");
        }
    }

    /// Whoever asks for TLS does not get plain text.
    #[test]
    fn tls_is_refused_until_there_is_tls() {
        for tls in ["tcp+tls://a:2281", "a:2181,tcp+tls://b", "tcp://a"] {
            assert_eq!(Config::new(tls).unwrap_err().kind(), ErrorKind::Invalid, "{tls}");
        }
        assert_eq!(Config::new("a,[::1]:7").unwrap().servers, "a:2181,[::1]:7");
    }

    #[test]
    fn credentials_are_never_shown() {
        let config = Config::from_url("zookeeper://us%3Aer:s3cret@a/b").unwrap();
        assert!(config.private);
        assert!(!format!("{config:?} {:?}", config.connector).contains("s3cret"));
        for url in ["zookeeper://user:s3cret@:1", "zookeeper://user:s3cret@a?x=1", "zookeeper://user:s3cret@a/b//c"] {
            assert!(!refused(url).contains("s3cret"), "{url}");
        }
    }
}
