//! URL to configuration, strictly: what is not understood is refused, and no message shows a credential.

use std::time::Duration;

use leasehold_core::support::Address;
use leasehold_core::{Error, ErrorKind, Result};
use leasehold_redis_client::{Server, servers};
#[cfg(feature = "tls")]
use leasehold_tls::Tls;
use redis::ConnectionInfo;

/// How long a claim waits for replicas if the URL does not say.
const WAIT: u32 = 100;

/// Where the server is, and how the store uses it.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) server: Server,
    /// The limit of one request.
    pub(crate) timeout: Duration,
    /// What stands before every key.
    pub(crate) prefix: String,
    /// How many replicas have to acknowledge a claim, and within what time.
    pub(crate) min_replicas: Option<(u32, Duration)>,
}

impl Config {
    /// Reads `redis://[:password@|user:password@]host[:port][/db]`, and after a `?` `timeout=ms`, `prefix=text`,
    /// `min_replicas=n`, `min_replicas_timeout=ms`, joined by `&`.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) names the part that is wrong, and shows no credential. `rediss://` without the feature `tls`
    /// is [`Unsupported`](ErrorKind::Unsupported).
    pub fn from_url(url: &str) -> Result<Config> {
        let mut address = Address::parse_tls(url, "redis", 6379, 6379)?;
        let mut number = |key: &str, default| match address.take(key).map(|text| text.parse::<u32>()) {
            None => Ok(default),
            Some(Ok(number)) if number <= 60_000 => Ok(number),
            Some(_) => Err(Error::new(ErrorKind::Invalid, format!("{key} is a number up to 60000"))),
        };
        let (least, within) = (number("min_replicas", 0)?, number("min_replicas_timeout", WAIT)?);
        let (timeout, prefix) = (address.timeout()?, address.take("prefix").unwrap_or_default());
        let mut servers = servers(&mut address)?;
        address.done()?;
        let (Some(server), 0) = (servers.pop(), servers.len()) else {
            return Err(Error::new(ErrorKind::Invalid, "redis:// names one server"));
        };
        let config = Config::of(server).timeout(timeout).prefix(prefix);
        Ok(config.min_replicas(least, Duration::from_millis(within.into())))
    }

    /// The client crate's own description of the server, which may be a Unix socket, or say TLS if that crate's features are on.
    /// The store sets the protocol (RESP3), TCP_NODELAY and TCP keep-alive. A second for each request, and no prefix.
    pub fn new(server: ConnectionInfo) -> Config {
        Config::of(server.into())
    }

    fn of(server: Server) -> Config {
        Config { server, timeout: Duration::from_secs(1), prefix: String::new(), min_replicas: None }
    }

    /// Makes every connection over TLS, and none without. The server's address is a host and a port.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Config {
        self.server.tls = Some(tls);
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

    /// A claim counts only once so many replicas have acknowledged it, within so much time each (`WAIT`). With fewer, the
    /// claim fails as [`Ambiguous`](ErrorKind::Ambiguous), is retried within the retry budget of the acquire, and is
    /// withdrawn in the end. With 0, the default, no replica is waited for.
    ///
    /// It makes it less likely that a failover forgets a lock, and not safe: a replica that never acknowledged may be the one
    /// that is promoted, renewals and releases are not waited for, and an acknowledged write is in a replica's memory, not
    /// on its disk. Only the fencing token survives a failover. A claim costs two requests more, on a connection of their
    /// own; a waiter that is granted the lock claims again, to wait for the replicas too.
    #[must_use]
    pub fn min_replicas(mut self, least: u32, within: Duration) -> Config {
        self.min_replicas = (least > 0).then_some((least, within.max(Duration::from_millis(1))));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_part() {
        let all = "redis://me:s%40cret@[::1]:7000/3?timeout=250&prefix=app%3A&min_replicas=2";
        let config = Config::from_url(all).unwrap();
        let settings = config.server.info.redis_settings();
        assert_eq!(config.server.info.addr().to_string(), "::1:7000");
        assert_eq!((settings.username(), settings.password(), settings.db()), (Some("me"), Some("s@cret"), 3));
        assert_eq!((config.timeout, &*config.prefix), (Duration::from_millis(250), "app:"));
        assert_eq!(config.min_replicas, Some((2, Duration::from_millis(100))));
        assert!(!format!("{config:?}").contains("s@cret"));
        let server = Config::from_url("redis://:pw@localhost").unwrap().server.info;
        assert_eq!((&*server.addr().to_string(), server.redis_settings().password()), ("localhost:6379", Some("pw")));
    }

    #[test]
    fn refuses_the_rest_and_names_the_part_but_no_secret() {
        for (url, part) in [
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
            ("redis://:s3ntinel@h?timeout=soon", "timeout"),
            ("redis://:s3ntinel@h?timeout=0", "timeout"),
            ("redis://:s3ntinel@h?min_replicas=-1", "min_replicas"),
            ("redis://:s3ntinel@h?min_replicas=1&min_replicas_timeout=x", "min_replicas_timeout"),
            ("redis://:s3ntinel@h?tls=1", "tls"),
            ("redis://:s3ntinel@h#x", "fragment"),
            ("http://:s3ntinel@h", "redis://"),
            ("s3ntinel", ""),
        ] {
            let error = Config::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            let text = format!("{error} {error:?}");
            assert!(text.contains(part) && !text.contains("s3ntinel"), "{url}: {text}");
        }
        let read = Config::from_url("rediss://:s3ntinel@h?ca=/a.pem");
        if cfg!(feature = "tls") {
            assert_eq!(read.unwrap().server.info.addr().to_string(), "h:6379");
        } else {
            let error = read.unwrap_err();
            assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("\"tls\""), "{error}");
        }
    }
}
