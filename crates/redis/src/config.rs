//! URL to configuration, strictly: what is not understood is refused, and no message shows a credential.

use std::time::Duration;

use leasehold_core::seam::Address;
use leasehold_core::{Error, ErrorKind, Result};
use leasehold_redis_client::server;
use redis::ConnectionInfo;

/// How the store uses its server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The limit of one request.
    pub(crate) timeout: Duration,
    /// What stands before every key.
    pub(crate) prefix: String,
    /// How many replicas have to acknowledge a claim, and within what time.
    pub(crate) min_replicas: Option<(u32, Duration)>,
}

impl Options {
    /// A second for each request, and no prefix.
    pub fn new() -> Options {
        Options { timeout: Duration::from_secs(1), prefix: String::new(), min_replicas: None }
    }

    /// Limits each request, and each of the two steps of connecting. Of a request that takes longer the outcome is
    /// unknown. At least a millisecond; keep it well under a third of the shortest TTL.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Options {
        self.timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// Puts this text before every key. It may not contain `{`, `}` or NUL.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Options {
        self.prefix = prefix.into();
        self
    }

    /// A claim counts only once so many replicas have acknowledged it, within so much time each (`WAIT`). With fewer, the
    /// claim fails as [`Ambiguous`](ErrorKind::Ambiguous), which is tried again for as long as an acquire is patient, and is
    /// withdrawn in the end. None: nobody is waited for, as without this.
    ///
    /// It makes it less likely that a failover forgets a lock, and not safe: a replica that never acknowledged may be the one
    /// that is promoted, renewals and releases are not waited for, and an acknowledged write is in a replica's memory, not
    /// on its disk. Only the fencing token survives a failover. A claim costs two requests more, on a connection of their
    /// own; whoever is handed the lock claims again to wait for the replicas too.
    #[must_use]
    pub fn min_replicas(mut self, least: u32, within: Duration) -> Options {
        self.min_replicas = (least > 0).then_some((least, within.max(Duration::from_millis(1))));
        self
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

/// How long a claim waits for replicas if the URL does not say.
const WAIT: u32 = 100;

/// Reads `redis://[:password@|user:password@]host[:port][/db]`, and after a `?` `timeout=ms`, `prefix=text`,
/// `min_replicas=n`, `min_replicas_timeout=ms`.
pub(crate) fn parse(url: &str) -> Result<(ConnectionInfo, Options)> {
    if url.starts_with("rediss://") {
        let what = "TLS is not built in: connect with a `redis::ConnectionInfo` of your own, or through a local tunnel";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let invalid = |what| Err(Error::new(ErrorKind::Invalid, what));
    let mut address = Address::parse(url, "redis", 6379)?;
    let mut number = |key: &str, default| match address.take(key).map(|text| text.parse::<u32>()) {
        None => Ok(default),
        Some(Ok(number)) if number <= 60_000 => Ok(number),
        Some(_) => Err(Error::new(ErrorKind::Invalid, format!("{key} is a number up to 60000"))),
    };
    let (least, within) = (number("min_replicas", 0)?, number("min_replicas_timeout", WAIT)?);
    let options = Options::new().timeout(address.timeout()?).prefix(address.take("prefix").unwrap_or_default());
    let options = options.min_replicas(least, Duration::from_millis(within.into()));
    address.done()?;
    let [host] = &address.hosts[..] else { return invalid("redis:// names one server") };
    Ok((server(&address, host)?, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_part() {
        let (info, options) =
            parse("redis://me:s%40cret@[::1]:7000/3?timeout=250&prefix=app%3A&min_replicas=2").unwrap();
        assert_eq!(info.addr().to_string(), "::1:7000");
        assert_eq!(info.redis_settings().username(), Some("me"));
        assert_eq!(info.redis_settings().password(), Some("s@cret"));
        assert_eq!(info.redis_settings().db(), 3);
        assert_eq!(
            format!("{options:?}"),
            "Options { timeout: 250ms, prefix: \"app:\", min_replicas: Some((2, 100ms)) }"
        );
        let (info, _) = parse("redis://:pw@localhost").unwrap();
        assert_eq!(
            (info.addr().to_string().as_str(), info.redis_settings().password()),
            ("localhost:6379", Some("pw"))
        );
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
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            let text = format!("{error} {error:?}");
            assert!(text.contains(part) && !text.contains("s3ntinel"), "{url}: {text}");
        }
        assert_eq!(parse("rediss://h").unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
