//! From a URL, or the client crate's own builder, to what a client needs.

use std::fmt;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};
use percent_encoding::percent_decode_str;
use zookeeper_client::{Acls, Connector, CreateMode, CreateOptions};

use crate::names::Root;

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
    pub(crate) root: Root,
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
        let rest = url.strip_prefix("zookeeper://").ok_or_else(|| invalid("the scheme is not zookeeper://"))?;
        if rest.contains('#') {
            return Err(invalid("a fragment (#…) means nothing here"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let mut config = Config::new(zookeeper_client::Client::connector(), hosts)?;
        if !matches!(path, "" | "/") {
            config = config.root(&decoded(path, "the path")?)?;
        }
        if let Some(user) = user {
            let (name, password) = user.split_once(':').ok_or_else(|| invalid("the credentials have no password"))?;
            let credentials = format!("{}:{}", decoded(name, "the user")?, decoded(password, "the password")?);
            config.connector = config.connector.with_auth("digest", credentials.as_bytes());
            config = config.private();
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (key, value.parse::<u64>()) {
                ("timeout", Ok(ms @ 1..=60_000)) => config.timeout = Duration::from_millis(ms),
                ("timeout", _) => return Err(invalid("timeout is a number of milliseconds from 1 to 60000")),
                _ => return Err(invalid(format!("the parameter {key:?} is unknown; there is only timeout"))),
            }
        }
        Ok(config)
    }

    /// Takes the client crate's own builder, for credentials of any scheme and for TLS, and the servers as
    /// `host:port,host:port,…`. The session and connection timeouts of the builder are overridden.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] names the server that is wrong.
    pub fn new(connector: Connector, servers: &str) -> Result<Config> {
        let servers: Vec<String> = servers.split(',').map(server).collect::<Result<_>>()?;
        Ok(Config {
            connector,
            servers: servers.join(","),
            root: Root::new(DEFAULT_ROOT),
            timeout: DEFAULT_TIMEOUT,
            private: false,
        })
    }

    /// The node under which locks live, such as `/prod/locks`. It is made when it is not there.
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
        self.root = Root::new(path);
        Ok(self)
    }

    /// Makes all nodes for the credentials of the connection alone (ACL *auth: all*), so that nobody else can remove or
    /// even see a lock. Without it anybody who reaches ZooKeeper can, as with Curator's and kazoo's defaults. All users of
    /// one lock need the same credentials then.
    #[must_use]
    pub fn private(mut self) -> Config {
        self.private = true;
        self
    }

    /// How long one request may take before its outcome is called unknown. One second unless said otherwise.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Config {
        self.timeout = timeout;
        self
    }

    /// How nodes of this kind are made.
    pub(crate) fn make(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(if self.private { Acls::creator_all() } else { Acls::anyone_all() })
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("servers", &self.servers)
            .field("root", &self.root.path())
            .finish_non_exhaustive()
    }
}

/// One server with its port.
fn server(text: &str) -> Result<String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok().filter(|port| *port != 0)),
        _ => (text, Some(DEFAULT_PORT)),
    };
    let port: u16 = port.ok_or_else(|| invalid(format!("the port of {host:?} is not a number from 1 to 65535")))?;
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let good = match v6 {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)),
    };
    if good { Ok(format!("{host}:{port}")) } else { Err(invalid("a server's host is missing or malformed")) }
}

fn decoded(text: &str, what: &str) -> Result<String> {
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| invalid(format!("{what} is not UTF-8")))?;
    Ok(decoded.into_owned())
}

fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, format!("not a URL of ZooKeeper: {}", why.into()))
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
        assert_eq!((config.root.path(), config.timeout.as_millis(), config.private), ("/prod/lo cks", 250, false));
        for bare in ["zookeeper://a", "zookeeper://a/", "zookeeper://[::1]/"] {
            assert_eq!(Config::from_url(bare).unwrap().root.path(), "/leasehold");
        }
    }

    #[test]
    fn refuses_the_rest_and_names_the_part() {
        assert!(refused("zk://a").contains("scheme"));
        assert!(refused("zookeeper://").contains("host"));
        assert!(refused("zookeeper:///a").contains("host"));
        assert!(refused("zookeeper://a,,b").contains("host"));
        assert!(refused("zookeeper://a:0").contains("port"));
        assert!(refused("zookeeper://a:99999").contains("port"));
        assert!(refused("zookeeper://a b").contains("host"));
        assert!(refused("zookeeper://a/b//c").contains("path"));
        assert!(refused("zookeeper://a/b/").contains("path"));
        assert!(refused("zookeeper://a/../b").contains("path"));
        assert!(refused("zookeeper://a/zookeeper").contains("path"));
        assert!(refused("zookeeper://a?ttl=1").contains("ttl"));
        assert!(refused("zookeeper://a?timeout=soon").contains("timeout"));
        assert!(refused("zookeeper://a#b").contains("fragment"));
        assert!(refused("zookeeper://user@a").contains("password"));
    }

    #[test]
    fn credentials_are_never_shown() {
        let config = Config::from_url("zookeeper://us%3Aer:s3cret@a/b").unwrap();
        assert!(config.private);
        assert!(!format!("{config:?} {:?}", config.connector).contains("s3cret"));
        for url in ["zookeeper://user:s3cret@:1", "zookeeper://user:s3cret@a?x=1", "zookeeper://user:s3cret@a:b"] {
            assert!(!refused(url).contains("s3cret"), "{url}");
        }
    }
}
