//! Reads a URL into a configuration. Tells which sets of nodes can be a Redlock, and why the others
//! cannot.

use std::str::FromStr;
use std::time::Duration;

use crate::link::{Protocol, Server, servers};
use leasehold_core::{Error, ErrorKind, Result};
#[cfg(feature = "tls-no-provider")]
use leasehold_net::Tls;
use leasehold_net::{Address, Credentials};
use redis::ConnectionInfo;

/// The limit of one request to one node, if the user sets no other.
const TIMEOUT: Duration = Duration::from_millis(250);

/// The places of the nodes, and the options of the store.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) nodes: Vec<Server>,
    pub(crate) timeout: Duration,
    pub(crate) prefix: String,
}

impl Config {
    /// Reads `redlock://[user:password@]host[:port],host[:port],host[:port]…[/db][?timeout=ms][&prefix=text]`.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) names the part that is wrong, and shows no credential. `redlocks://` without the feature
    /// `tls` is [`Unsupported`](ErrorKind::Unsupported).
    pub fn from_url(url: &str) -> Result<Config> {
        let mut address = Address::parse_tls(url, "redlock", 6379, 6379)?;
        let timeout = address.timeout_or(TIMEOUT)?;
        let prefix = address.take("prefix").unwrap_or_default();
        let nodes = servers(&mut address)?;
        address.done()?;
        if nodes
            .iter()
            .any(|node| node.protocol == Some(Protocol::Resp2))
        {
            return Err(invalid("protocol is 3: the nodes have to push"));
        }
        check(&nodes)?;
        Ok(Config {
            nodes,
            timeout,
            prefix,
        })
    }

    /// A configuration from the client crate's description of each node, which may be a Unix
    /// socket, use TLS if that crate's features are on, or have credentials of its own. A request
    /// to a node may take a quarter of a second, and keys have no prefix.
    pub fn new(nodes: Vec<ConnectionInfo>) -> Config {
        Config {
            nodes: nodes.into_iter().map(Server::from).collect(),
            timeout: TIMEOUT,
            prefix: String::new(),
        }
    }

    /// Calls this function for the user and the password before each connection to a node, so that
    /// they can be rotated without a restart, in each node before or after the function returns the
    /// new ones. Its answer replaces the credentials of the URL and of descriptions. The user of a
    /// node that has a password and no users is `default`. The function may take as long as
    /// connecting may. Its error is reported as [`Unavailable`](ErrorKind::Unavailable) unless it
    /// is `Invalid` or `Denied`.
    #[must_use]
    pub fn credentials<F>(mut self, function: impl Fn() -> F + Send + Sync + 'static) -> Config
    where
        F: Future<Output = Result<(String, String)>> + Send + 'static,
    {
        let credentials = Some(Credentials::new(function));
        self.nodes
            .iter_mut()
            .for_each(|node| node.credentials.clone_from(&credentials));
        self
    }

    /// Makes every connection to every node over TLS. The address of a node has to be a host and a
    /// port.
    #[cfg(feature = "tls-no-provider")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Config {
        let tls = Some(tls);
        self.nodes
            .iter_mut()
            .for_each(|node| node.tls.clone_from(&tls));
        self
    }

    /// Limits each request to each node, and each of the two steps of connecting. At least a millisecond; keep it well under
    /// a third of the shortest TTL.
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
}

impl FromStr for Config {
    type Err = Error;

    /// Reads a URL, as [`from_url`](Config::from_url) does.
    fn from_str(url: &str) -> Result<Config> {
        Config::from_url(url)
    }
}

pub(crate) fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("redlock: {what}"))
}

/// Refuses sets of nodes whose majority gains nothing: too few, or an even number. While a list of
/// nodes is changed, one step may have such a number.
pub(crate) fn suffices_alone(n: usize) -> Result<()> {
    if n < 3 {
        return Err(invalid(&format!(
            "{n} nodes survive the loss of none: name three or five, or use redis:// with one"
        )));
    }
    if n.is_multiple_of(2) {
        let what = "an even one more needs a larger majority and survives no more losses: name an odd number";
        return Err(invalid(&format!("{n} nodes: {what}")));
    }
    Ok(())
}

/// Refuses a single node, and one server that is named twice.
pub(crate) fn check(nodes: &[Server]) -> Result<()> {
    if nodes.len() < 2 {
        suffices_alone(nodes.len())?;
    }
    let mut names: Vec<String> = nodes
        .iter()
        .map(|node| node.info.addr().to_string().to_lowercase())
        .collect();
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(invalid(&format!(
            "{} is named twice, and one server has only one vote",
            pair[0]
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_urls;

    use super::*;

    #[test]
    fn reads_every_node() {
        let config =
            Config::from_url("redlock://me:s%40cret@a,b:7000,[::1]/3?timeout=80&prefix=app%3A")
                .unwrap();
        let nodes = &config.nodes;
        let addrs: Vec<String> = nodes
            .iter()
            .map(|node| node.info.addr().to_string())
            .collect();
        assert_eq!(addrs, ["a:6379", "b:7000", "::1:6379"]);
        assert!(
            nodes
                .iter()
                .all(|node| node.info.redis_settings().password() == Some("s@cret"))
        );
        assert!(
            nodes
                .iter()
                .all(|node| node.info.redis_settings().db() == 3)
        );
        assert_eq!(
            (config.timeout, &*config.prefix),
            (Duration::from_millis(80), "app:")
        );
    }

    #[test]
    fn refuses_what_is_no_majority_and_shows_no_secret() {
        for (url, why) in [
            ("redlock://:s3ntinel@a", "1 nodes"),
            ("redlock://:s3ntinel@a,b,a", "twice"),
            ("redlock://:s3ntinel@a,b,A:6379", "twice"),
            ("redlock://:s3ntinel@a,b,", "host"),
            ("redlock://:s3ntinel@a,b,c/x", "database"),
            ("redlock://:s3ntinel@a,b,c?quorum=2", "quorum"),
            ("redlock://:s3ntinel@a,b,c?min_replicas=1", "min_replicas"),
            ("redis://:s3ntinel@a,b,c", "redlock://"),
        ] {
            let error = Config::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            let text = format!("{error} {error:?}");
            assert!(
                text.contains(why) && !text.contains("s3ntinel"),
                "{url}: {text}"
            );
        }
    }

    #[test]
    fn a_list_without_a_number_is_odd_and_survives_a_loss() {
        for (n, why) in [(1, "1 nodes"), (2, "2 nodes"), (4, "odd")] {
            let error = suffices_alone(n).unwrap_err();
            assert!(error.to_string().contains(why), "{n}: {error}");
        }
        suffices_alone(3).unwrap();
        suffices_alone(5).unwrap();
    }

    #[test]
    fn whatever_a_url_says_it_is_read_or_refused_and_no_secret_is_shown() {
        fuzz_urls(
            include_str!("../../corpus/redlock_urls"),
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
