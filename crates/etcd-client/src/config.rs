//! From a URL to what is needed to connect.

use std::fmt;
use std::time::Duration;

use etcd_client::ConnectOptions;
use leasehold_core::seam::Address;
use leasehold_core::{Error, ErrorKind, Result};

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(1);
/// etcd closes the connection of a client that pings more often than its `--grpc-keepalive-min-time`, 5 s unless set.
const PING: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(1));

/// Where the servers are and how to talk to them.
#[derive(Clone)]
pub struct Config {
    /// `http://host:port`, at least one.
    pub(crate) endpoints: Vec<String>,
    /// What all keys begin with: empty, or ends in `/`.
    pub root: String,
    pub(crate) options: ConnectOptions,
    /// How long one request to one endpoint may take.
    pub(crate) limit: Duration,
}

impl Config {
    /// Reads `etcd://[user:password@]host[:port][,host[:port]…][/namespace][?timeout=ms]`.
    pub fn parse(url: &str) -> Result<Config> {
        if url.starts_with("etcds://") {
            let what = "TLS is not built in: connect with `etcd_client::ConnectOptions` of your own";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let mut address = Address::parse(url, "etcd", 2379)?;
        let limit = address.timeout()?;
        address.done()?;
        let mut options = ConnectOptions::new();
        options = match (&address.user, &address.password) {
            (Some(user), Some(password)) => options.with_user(user, password).with_auto_token_refresh(true),
            (None, Some(_)) => return Err(invalid("etcd knows no password without a user")),
            _ => options,
        };
        let endpoints = address.hosts.iter().map(|host| format!("http://{host}")).collect();
        Config::new(endpoints, &address.path, options, Some(limit))
    }

    /// With etcd-client's own options. `limit` is how long one request to one endpoint may take, a second unless said.
    pub fn new(
        endpoints: Vec<String>,
        namespace: &str,
        options: ConnectOptions,
        limit: Option<Duration>,
    ) -> Result<Config> {
        if endpoints.is_empty() {
            return Err(invalid("etcd needs at least one endpoint"));
        }
        // A key whose part begins with `%` is the library's own.
        if !namespace.is_empty() && namespace.split('/').any(|part| part.is_empty() || part.starts_with('%')) {
            return Err(invalid("a part of the etcd namespace may neither be empty nor begin with `%`"));
        }
        if namespace.contains('\0') {
            return Err(invalid("the etcd namespace may not contain NUL"));
        }
        let limit = limit.unwrap_or(REQUEST);
        // A ping on an idle connection would be answered by its end, so pings are sent beside open streams only.
        let options =
            options.with_require_leader(true).with_keep_alive(PING.0, PING.1).with_keep_alive_while_idle(false);
        let root = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        Ok(Config { endpoints, root, options, limit })
    }
}

/// The options hold the password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.endpoints.join(","), self.root.trim_end_matches('/'))
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where() {
        let config = Config::parse("etcd://10.0.0.1:2379,[::1]:7,db/prod/eu/?timeout=250").unwrap();
        assert_eq!(config.endpoints, ["http://10.0.0.1:2379", "http://[::1]:7", "http://db:2379"]);
        assert_eq!((config.root.as_str(), config.limit), ("prod/eu/", Duration::from_millis(250)));
        let secret = Config::parse("etcd://me:p%40ss%2Fword@h").unwrap();
        assert_eq!(format!("{secret:?}"), "http://h:2379/");
        assert!(format!("{:?}", secret.options).contains("p@ss/word"), "the password is understood");
    }

    #[test]
    fn a_bad_url_is_invalid_and_shows_no_secret() {
        for bad in [
            "redis://h",
            "etcd://",
            "etcd:///ns",
            "etcd://h:0",
            "etcd://h:99999",
            "etcd://h:x",
            "etcd://h,,h",
            "etcd://h/a//b",
            "etcd://h/%25x",
            "etcd://h/%zz",
            "etcd://h?timeout=0",
            "etcd://h?timeout=soon",
            "etcd://h?retries=secret",
            "etcd://secret@h",
            "etcd://me:secret%f@h",
            "etcd://h/#secret",
            "etcd://[::1]x",
        ] {
            let error = Config::parse(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!format!("{error:?}").contains("secret"), "{bad}");
        }
        assert_eq!(Config::parse("etcds://h").unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
