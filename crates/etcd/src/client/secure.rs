//! Connections over TLS, each made from the files as they are at that moment, and the reason why a
//! server could not be used.
//!
//! The client crate reads the files once, makes its later connections from that content, and
//! resumes sessions, in which no certificate is verified again. Its requests therefore go over
//! connections that are made here.

use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions};
use futures_util::future::join_all;
use hyper_util::rt::TokioIo;
use leasehold_core::ErrorKind::{Denied, Invalid};
use leasehold_core::{Error, Result};
use leasehold_net::Host;
use leasehold_net::Tls;
use tokio::time::timeout;
use tonic::transport::Endpoint;
use tower::service_fn;

use crate::config::{Config, PING, SECURE};
use crate::error::Failure;

/// The protocol of an endpoint over TLS, for ALPN.
const PROTOCOL: &[u8] = b"h2";

/// A client of this endpoint, which connects when it is used.
pub(crate) async fn connect(
    tls: &Tls,
    endpoint: &str,
    options: ConnectOptions,
    limit: Duration,
) -> Result<Client, Failure> {
    let wrong = |e: &dyn std::fmt::Display| Failure::new(Invalid, format!("{endpoint}: {e}"));
    let at = endpoint.strip_prefix(SECURE).unwrap_or(endpoint);
    let host = Host::parse(at, 443).map_err(|e| wrong(&e))?;
    let origin = endpoint.parse().map_err(|e| wrong(&e))?;
    let tls = tls.clone();
    let connector = service_fn(move |_| {
        let tls = tls.clone();
        let host = host.clone();
        async move {
            let client = tls.client().await?.speaking(PROTOCOL);
            let stream = client.connect(&host.name, host.port).await?;
            Ok::<_, Error>(TokioIo::new(stream))
        }
    });
    // To the client crate the connection is one in plain text. The requests say what it is.
    let channel = Endpoint::from_shared(format!("http://{at}"))
        .map_err(|e| wrong(&e))?
        .origin(origin)
        .connect_timeout(limit)
        .http2_keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1)
        .keep_alive_while_idle(false)
        .connect_with_connector_lazy(connector);
    Ok(Client::from_channel(Channel::Tonic(channel), Some(options)).await?)
}

impl Config {
    /// Returns whether every connection is over TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Fails unless the files are there and fit together.
    pub(crate) async fn check_files(&self) -> Result<()> {
        let Some(tls) = &self.tls else { return Ok(()) };
        tls.client().await.map(drop)
    }

    /// Returns why servers cannot be used over TLS, as far as a handshake with each shows: the
    /// client crate reports little. A refusal says more than a server that is away.
    pub(crate) async fn diagnose(&self, limit: Duration) -> Option<Error> {
        let tls = self.tls.as_ref()?.client().await.ok()?;
        let each = self.endpoints.iter().map(async |endpoint| {
            let host = Host::parse(endpoint.strip_prefix(SECURE)?, 443).ok()?;
            timeout(limit, tls.diagnose(&host.name, host.port))
                .await
                .ok()?
        });
        let mut found: Vec<Error> = join_all(each).await.into_iter().flatten().collect();
        found.sort_by_key(|why| why.kind() != Denied);
        found.into_iter().next()
    }
}
