//! A connector of the program's: the parts that are used, and those that cannot be.

use leasehold_core::{Error, ErrorKind, Result};
use zookeeper_client::Connector;

use crate::config::{Config, SECURE};

impl Config {
    /// Uses these servers, and connects as the program does: with the credentials, the TLS and the
    /// SASL of this connector. For TLS each server is given as `tcp+tls://host[:port]`, which needs
    /// the feature `tls`.
    ///
    /// Sessions are this store's own, one for each TTL in use: it sets their time-outs, and never
    /// allows read-only ones. A ready client, which is one session with one time-out, can therefore
    /// not be used. A connector that resumes a session (`with_session`), or leaves it open behind
    /// it (`with_detached`), is `Invalid`.
    pub fn with_connector(servers: &str, connector: Connector) -> Config {
        let plain: Option<Vec<&str>> = servers
            .split(',')
            .map(|server| server.strip_prefix(SECURE))
            .collect();
        let servers = plain
            .as_ref()
            .map_or_else(|| servers.to_owned(), |plain| plain.join(","));
        Config {
            connector,
            secure: plain.is_some(),
            ..Config::new(&servers)
        }
    }

    /// Fails if the program's connector cannot be used. Its settings are only readable from its
    /// debug output.
    pub(super) fn check_connector(&self) -> Result<()> {
        let connector = format!("{:?}", self.connector);
        let invalid = |what| Err(Error::new(ErrorKind::Invalid, what));
        if !connector.contains("session: None") {
            return invalid(
                "the connector resumes a session (with_session): this store needs sessions of its own",
            );
        }
        if !connector.contains("detached: false") {
            return invalid(
                "the connector leaves its session open (with_detached): a lock would outlive its client",
            );
        }
        #[cfg(not(feature = "tls-no-provider"))]
        if self.secure {
            return Err(leasehold_net::tls_is_off());
        }
        // Nothing is sent in plain text by mistake.
        if connector.contains("tls: Some") != self.secure {
            return invalid(
                "a connector with TLS (with_tls) and servers of tcp+tls:// are given together, all of them",
            );
        }
        #[cfg(feature = "sasl")]
        if self.sasl.is_some() && connector.contains("sasl: Some") {
            return invalid("the connector has SASL of its own, beside `sasl`");
        }
        #[cfg(feature = "tls-no-provider")]
        if self.secure && self.tls.is_some() {
            return invalid("the connector has TLS of its own, beside `tls`");
        }
        Ok(())
    }
}
