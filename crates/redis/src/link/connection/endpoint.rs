//! A server or a sentinel: the client that connects to it, and the texts of errors about it.

use std::time::Duration;

use leasehold_core::{Error, Result};
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{Client, ConnectionInfo, ProtocolVersion, RedisError};

use crate::link::error::{of_connect, of_plain_connect, of_sentinel};

/// The idle time after which the kernel probes a connection, and the interval of its probes.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));

#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) client: Client,
    is_sentinel: bool,
}

impl Endpoint {
    pub(super) fn new(info: ConnectionInfo, is_sentinel: bool) -> Result<Endpoint> {
        let redis = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3);
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE.0)
            .with_interval(KEEPALIVE.1);
        let tcp = info
            .tcp_settings()
            .clone()
            .set_nodelay(true)
            .set_keepalive(keepalive);
        let client = Client::open(info.set_redis_settings(redis).set_tcp_settings(tcp))
            .map_err(|e| of_connect(&e))?;
        Ok(Endpoint {
            client,
            is_sentinel,
        })
    }

    /// Prepares for the client crate's own TLS, if the program's client has that: it takes the program's provider of cryptography,
    /// and panics if there is none to choose among two. A program whose only provider is its own needs none of ours.
    #[cfg(feature = "tls-no-provider")]
    pub(super) fn prepare_its_tls(&self) {
        let info = self.client.get_connection_info();
        if matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            let _ = leasehold_net::tls::install_provider();
        }
    }

    /// The server by RESP2. Nothing is sent to it that proxies do not know.
    pub(super) fn by_resp2(&self) -> Result<Endpoint> {
        let info = self.client.get_connection_info().clone();
        let redis = info.redis_settings().clone();
        let redis = redis
            .set_protocol(ProtocolVersion::RESP2)
            .set_skip_set_lib_name();
        Ok(Endpoint {
            client: Client::open(info.set_redis_settings(redis)).map_err(|e| of_connect(&e))?,
            is_sentinel: self.is_sentinel,
        })
    }

    pub(super) fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    /// Adds the peer's address to an error.
    pub(super) fn at(&self, e: &Error) -> Error {
        let who = if self.is_sentinel { "sentinel " } else { "" };
        Error::new(e.kind(), format!("{who}{}: {e}", self.address()))
    }

    /// Explains why the peer could not be connected to, or asked.
    pub(super) fn explain(&self, e: &RedisError) -> Error {
        self.at(&if self.is_sentinel {
            of_sentinel(e)
        } else {
            of_connect(e)
        })
    }

    /// Explains an error of a connection without TLS: the server may expect TLS.
    pub(super) fn explain_plain(&self, e: &RedisError) -> Error {
        match of_sentinel(e) {
            known if self.is_sentinel && !e.is_connection_dropped() => self.at(&known),
            _ => self.at(&of_plain_connect(e)),
        }
    }
}
