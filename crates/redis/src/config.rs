//! URL to configuration, strictly: what is not understood is refused, and no message shows a credential.

use std::fmt;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};
use redis::{ConnectionInfo, IntoConnectionInfo};
use url::{ParseError, Url};

/// How the store uses its server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The limit of one request.
    pub(crate) timeout: Duration,
    /// What stands before every key.
    pub(crate) prefix: String,
}

impl Options {
    /// A second for each request, and no prefix.
    pub fn new() -> Options {
        Options { timeout: Duration::from_secs(1), prefix: String::new() }
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
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

fn invalid(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("redis URL: {what}"))
}

/// Reads `redis://[:password@|user:password@]host[:port][/db][?timeout=ms][&prefix=text]`.
pub(crate) fn parse(text: &str) -> Result<(ConnectionInfo, Options)> {
    let mut url = Url::parse(text).map_err(|e| match e {
        ParseError::InvalidPort => invalid("the port is not a number up to 65535"),
        ParseError::EmptyHost => invalid("the host is missing"),
        other => invalid(other),
    })?;
    match url.scheme() {
        "redis" => {}
        "rediss" => {
            let what =
                "TLS is not built in: connect with a `redis::ConnectionInfo` of your own, or through a local tunnel";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        _ => return Err(invalid("the scheme is not `redis`")),
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(invalid("the host is missing"));
    }
    if url.port() == Some(0) {
        return Err(invalid("the port may not be 0"));
    }
    if !url.username().is_empty() && url.password().is_none() {
        return Err(invalid("there is a user without a password (a password alone is written `:password@`)"));
    }
    if url.fragment().is_some() {
        return Err(invalid("a fragment (`#…`) means nothing here; `#` in a password is written `%23`"));
    }
    let db = url.path().strip_prefix('/').unwrap_or_default();
    if !db.is_empty() && !db.bytes().all(|b| b.is_ascii_digit()) {
        return Err(invalid("what follows the host is not the number of a database"));
    }
    let mut options = Options::new();
    for (key, value) in url.query_pairs() {
        match &*key {
            "timeout" => {
                let limit = value.parse().ok().filter(|ms| (1..=60_000).contains(ms));
                let limit =
                    limit.ok_or_else(|| invalid("`timeout` is not a number of milliseconds from 1 to 60000"))?;
                options = options.timeout(Duration::from_millis(limit));
            }
            "prefix" => options = options.prefix(value),
            other => return Err(invalid(format_args!("unknown parameter {other:?}"))),
        }
    }
    url.set_query(None);
    let info = url.into_connection_info().map_err(|e| invalid(e.category()))?;
    Ok((info, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_part() {
        let (info, options) = parse("redis://me:s%40cret@[::1]:7000/3?timeout=250&prefix=app%3A").unwrap();
        assert_eq!(info.addr().to_string(), "::1:7000");
        assert_eq!(info.redis_settings().username(), Some("me"));
        assert_eq!(info.redis_settings().password(), Some("s@cret"));
        assert_eq!(info.redis_settings().db(), 3);
        assert_eq!(format!("{options:?}"), "Options { timeout: 250ms, prefix: \"app:\" }");
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
            ("redis://:s3ntinel@h/99999999999999999999", ""),
            ("redis://:s3ntinel@h?timeout=soon", "timeout"),
            ("redis://:s3ntinel@h?timeout=0", "timeout"),
            ("redis://:s3ntinel@h?tls=1", "tls"),
            ("redis://:s3ntinel@h#x", "fragment"),
            ("http://:s3ntinel@h", "scheme"),
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
