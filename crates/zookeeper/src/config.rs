//! Where the servers are, and how the store uses them: from a URL, or from parts.

use std::fmt;
use std::time::Duration;

use leasehold_core::support::{Address, Host};
use leasehold_core::{Error, ErrorKind, Result};
use uuid::Uuid;
use zookeeper_client::{Acls, Client, Connector, CreateMode, CreateOptions};

/// ZooKeeper's own port.
const DEFAULT_PORT: u16 = 2181;

/// Where the servers are, and how the store uses them.
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
    pub(crate) connector: Connector,
    /// `host:port,host:port,…`
    pub(crate) servers: String,
    pub(crate) root: String,
    pub(crate) timeout: Duration,
    private: bool,
}

impl Config {
    /// Reads `zookeeper://[user:password@]host[:port][,host[:port]…][/path][?timeout=milliseconds]`.
    ///
    /// The path, percent-decoded, is the [`root`](Config::root). The credentials are of the scheme *digest*, and the nodes are
    /// [`private`](Config::private).
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) names the part that is wrong, and shows no credential.
    pub fn from_url(url: &str) -> Result<Config> {
        let mut address = Address::parse(url, "zookeeper", DEFAULT_PORT)?;
        let timeout = address.timeout()?;
        address.done()?;
        let hosts: Vec<String> = address.hosts.iter().map(Host::to_string).collect();
        let mut config = Config::new(&hosts.join(",")).timeout(timeout);
        if !address.path.is_empty() {
            config = config.root(&format!("/{}", address.path));
        }
        match (&address.user, &address.password) {
            (Some(user), Some(password)) => {
                config.auth("digest", format!("{user}:{password}").as_bytes()).private().checked()
            }
            (None, Some(_)) => Err(Error::new(ErrorKind::Invalid, "ZooKeeper knows no password without a user")),
            _ => config.checked(),
        }
    }

    /// The servers, as `host[:port],host[:port],…`. They are talked to in plain text: TLS is not built in. The root is
    /// `/leasehold`, and a request may take a second.
    pub fn new(servers: &str) -> Config {
        let (connector, servers, root) = (Client::connector(), servers.to_owned(), "/leasehold".to_owned());
        Config { connector, servers, root, timeout: Duration::from_secs(1), private: false }
    }

    /// Adds credentials of a scheme, such as `digest` and `user:password`.
    #[must_use]
    pub fn auth(mut self, scheme: &str, credentials: &[u8]) -> Config {
        self.connector = self.connector.with_auth(scheme, credentials);
        self
    }

    /// The node under which locks live: an absolute path such as `/prod/locks`, neither `/` nor below `/zookeeper`. It is created if
    /// it is not there; and so are the nodes above it, each with the access rights of the node above it.
    #[must_use]
    pub fn root(mut self, path: &str) -> Config {
        path.clone_into(&mut self.root);
        self
    }

    /// Creates all nodes from the root on for the credentials of the connection alone (ACL *auth: all*): no other client can
    /// remove or even see a lock. Without it every client that reaches ZooKeeper can, as with Curator's and kazoo's defaults. All
    /// users of a lock then need the same credentials. Nodes that exist keep their access rights: under a root that is open to
    /// others, they see the locks' names, and can create a lock's node before its first user does, and control it.
    #[must_use]
    pub fn private(mut self) -> Config {
        self.private = true;
        self
    }

    /// How long a request may take before its outcome is unknown. A call, which may need several requests and a new connection,
    /// takes at most twice as long.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout;
        self
    }

    /// The same with a port for each server, or what was configured wrongly.
    pub(crate) fn checked(mut self) -> Result<Config> {
        let hosts = self.servers.split(',').map(|host| Ok(Host::parse(host, DEFAULT_PORT)?.to_string()));
        self.servers = hosts.collect::<Result<Vec<_>>>()?.join(",");
        let good = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(char::is_control);
        let parts: Vec<&str> = self.root.split('/').collect();
        match parts[..] {
            ["", first, ..] if first != "zookeeper" && parts[1..].iter().all(|part| good(part)) => Ok(self),
            _ => Err(Error::new(ErrorKind::Invalid, format!("{:?} is no absolute path for locks", self.root))),
        }
    }

    /// Each server once, beginning with a random one.
    pub(crate) fn each_server(&self) -> impl Iterator<Item = &str> {
        let count = self.servers.split(',').count();
        let first = Uuid::new_v4().as_u128() as usize % count.max(1);
        self.servers.split(',').cycle().skip(first).take(count)
    }

    /// How nodes of this kind are created.
    pub(crate) fn create_options(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(if self.private { Acls::creator_all() } else { Acls::anyone_all() })
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL that was given as the servers, and is not checked yet, shows no credentials either.
        let servers = self.servers.rsplit('@').next().unwrap_or_default();
        f.debug_struct("Config").field("servers", &servers).field("root", &self.root).finish_non_exhaustive()
    }
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
            ("zookeeper://a/zookeeper/b", "path"),
            ("zookeeper://a?ttl=1", "ttl"),
            ("zookeeper://a?timeout=soon", "timeout"),
            ("zookeeper://:s3cret@a", "user"),
            ("zookeepers://a", "zookeeper://"),
            ("zookeeper://tcp+tls://a", "host"),
        ] {
            assert!(refused(bad).contains(part), "{bad}");
        }
    }

    /// No connection is made in plain text where TLS is asked for.
    #[test]
    fn tls_is_refused_until_there_is_tls() {
        for tls in ["tcp+tls://a:2281", "a:2181,tcp+tls://b", "tcp://a"] {
            assert_eq!(Config::new(tls).checked().unwrap_err().kind(), ErrorKind::Invalid, "{tls}");
        }
        assert_eq!(Config::new("a,[::1]:7").checked().unwrap().servers, "a:2181,[::1]:7");
    }

    #[test]
    fn a_root_is_an_absolute_path() {
        for bad in ["", "/", "a", "a/b", "/a/", "/a/../b", "/a\u{1}"] {
            assert!(Config::new("a").root(bad).checked().unwrap_err().to_string().contains("path"), "{bad:?}");
        }
        assert_eq!(Config::new("a").root("/zookeeper2").checked().unwrap().root, "/zookeeper2");
    }

    #[test]
    fn credentials_are_never_shown() {
        assert!(!format!("{:?}", Config::new("me:s3cret@a,b")).contains("s3cret"));
        let config = Config::from_url("zookeeper://us%3Aer:s3cret@a/b").unwrap();
        assert!(config.private);
        assert!(!format!("{config:?} {:?}", config.connector).contains("s3cret"));
        for url in ["zookeeper://user:s3cret@:1", "zookeeper://user:s3cret@a?x=1", "zookeeper://user:s3cret@a/b//c"] {
            assert!(!refused(url).contains("s3cret"), "{url}");
        }
    }
}
