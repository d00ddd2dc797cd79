//! A server that is connected to, or a sentinel: how it is reached, and what is said of it.

use std::time::Duration;

use leasehold_core::{Error, Result};
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{Client, ConnectionInfo, ProtocolVersion, RedisError};

use crate::error::{of_connect, of_plain_connect, of_sentinel};

/// After how long an idle connection is probed by the kernel, and how often then.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(5));

#[derive(Clone)]
pub(super) struct Peer {
    pub(super) client: Client,
    is_sentinel: bool,
}

impl Peer {
    pub(super) fn new(info: ConnectionInfo, is_sentinel: bool) -> Result<Peer> {
        let redis = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE.0).with_interval(KEEPALIVE.1);
        let tcp = info.tcp_settings().clone().set_nodelay(true).set_keepalive(keepalive);
        let client = Client::open(info.set_redis_settings(redis).set_tcp_settings(tcp)).map_err(|e| of_connect(&e))?;
        Ok(Peer { client, is_sentinel })
    }

    pub(super) fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    /// The same error, with its address.
    pub(super) fn at(&self, e: &Error) -> Error {
        let who = if self.is_sentinel { "sentinel " } else { "" };
        Error::new(e.kind(), format!("{who}{}: {e}", self.address()))
    }

    /// Why it could not be connected to, or asked.
    pub(super) fn explain(&self, e: &RedisError) -> Error {
        self.at(&if self.is_sentinel { of_sentinel(e) } else { of_connect(e) })
    }

    /// The same without TLS: the server may expect that.
    pub(super) fn explain_plain(&self, e: &RedisError) -> Error {
        match of_sentinel(e) {
            known if self.is_sentinel && !e.is_connection_dropped() => self.at(&known),
            _ => self.at(&of_plain_connect(e)),
        }
    }
}
