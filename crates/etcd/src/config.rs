//! From a URL to what is needed to connect.

use std::fmt;
use std::time::Duration;

use etcd_client::ConnectOptions;
use leasehold_core::{Error, ErrorKind, Result};

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(1);
/// etcd closes the connection of a client that pings more often than its `--grpc-keepalive-min-time`, 5 s unless set.
const PING: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(1));

/// Where the servers are and how to talk to them.
#[derive(Clone)]
pub(crate) struct Config {
    /// `http://host:port`, at least one.
    pub(crate) endpoints: Vec<String>,
    /// What all keys begin with; without the `/` that follows it.
    pub(crate) namespace: String,
    pub(crate) options: ConnectOptions,
    /// How long one request to one endpoint may take.
    pub(crate) limit: Duration,
}

impl Config {
    /// Reads `etcd://[user:password@]host[:port][,host[:port]…][/namespace][?timeout=ms]`.
    pub(crate) fn parse(url: &str) -> Result<Config> {
        let Some(rest) = url.strip_prefix("etcd://") else {
            let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
            return Err(match scheme {
                "etcds" => Error::new(ErrorKind::Unsupported, "etcds: TLS is not supported yet; use etcd://"),
                _ => invalid("an etcd URL begins with etcd://"),
            });
        };
        if rest.contains('#') {
            return Err(invalid("an etcd URL has no fragment (`#`); write %23"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, namespace) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(credentials(user)?), hosts),
            None => (None, authority),
        };
        let mut options = ConnectOptions::new();
        if let Some((user, password)) = user {
            options = options.with_user(user, password).with_auto_token_refresh(true);
        }
        let endpoints = hosts.split(',').map(endpoint).collect::<Result<_>>()?;
        let namespace = unescape(namespace.strip_suffix('/').unwrap_or(namespace))
            .ok_or_else(|| invalid("the namespace of the etcd URL is not percent-encoded UTF-8"))?;
        Config::new(endpoints, &namespace, options, limit(query)?)
    }

    /// With etcd-client's own options.
    pub(crate) fn new(
        endpoints: Vec<String>,
        namespace: &str,
        options: ConnectOptions,
        limit: Option<Duration>,
    ) -> Result<Config> {
        if endpoints.is_empty() {
            return Err(invalid("etcd needs at least one endpoint"));
        }
        // `%` begins what no name can be written as: see `names`.
        if !namespace.is_empty() && namespace.split('/').any(|part| part.is_empty() || part.starts_with('%')) {
            return Err(invalid("a part of the etcd namespace may neither be empty nor begin with `%`"));
        }
        if namespace.contains('\0') {
            return Err(invalid("the etcd namespace may not contain NUL"));
        }
        let limit = limit.unwrap_or(REQUEST);
        // A ping on an idle connection would be answered by its end, so pings are sent beside open streams only.
        let options = options
            .with_require_leader(true)
            .with_connect_timeout(limit)
            .with_keep_alive(PING.0, PING.1)
            .with_keep_alive_while_idle(false);
        Ok(Config { endpoints, namespace: namespace.into(), options, limit })
    }
}

/// The options hold the password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.endpoints.join(","), self.namespace)
    }
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

fn endpoint(host: &str) -> Result<String> {
    let (name, port) = match host.strip_prefix('[').and_then(|v6| v6.split_once(']')) {
        Some((v6, "")) => (v6, None),
        Some((v6, port)) => (v6, Some(port.strip_prefix(':').unwrap_or("?"))),
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    if name.is_empty() || !name.chars().all(plain) {
        return Err(invalid("a host of the etcd URL is missing or malformed"));
    }
    let port: u16 = match port {
        None => 2379,
        Some(port) => {
            port.parse().ok().filter(|p| *p > 0).ok_or_else(|| invalid("a port of the etcd URL is no port"))?
        }
    };
    Ok(if name.contains(':') { format!("http://[{name}]:{port}") } else { format!("http://{name}:{port}") })
}

fn credentials(text: &str) -> Result<(String, String)> {
    let (user, password) =
        text.split_once(':').ok_or_else(|| invalid("the etcd URL names a user without a password"))?;
    let both = unescape(user).filter(|user| !user.is_empty()).zip(unescape(password));
    both.ok_or_else(|| invalid("the user or the password of the etcd URL is not percent-encoded UTF-8"))
}

fn limit(query: &str) -> Result<Option<Duration>> {
    let mut limit = None;
    for parameter in query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match key {
            "timeout" => {
                let ms = value.parse().ok().filter(|ms| (10..=10_000).contains(ms));
                let ms = ms.ok_or_else(|| invalid("timeout of the etcd URL is in milliseconds, from 10 to 10000"))?;
                limit = Some(Duration::from_millis(ms));
            }
            _ => return Err(invalid(&format!("the etcd URL has an unknown parameter {key:?}; it knows timeout"))),
        }
    }
    Ok(limit)
}

/// Undoes percent-encoding.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let hex = tail.get(..2).and_then(|hex| str::from_utf8(hex).ok()).filter(|hex| !hex.starts_with('+'))?;
        bytes.push(u8::from_str_radix(hex, 16).ok()?);
        rest = &tail[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where() {
        let config = Config::parse("etcd://10.0.0.1:2379,[::1]:7,db/prod/eu/?timeout=250").unwrap();
        assert_eq!(config.endpoints, ["http://10.0.0.1:2379", "http://[::1]:7", "http://db:2379"]);
        assert_eq!((config.namespace.as_str(), config.limit), ("prod/eu", Duration::from_millis(250)));
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
