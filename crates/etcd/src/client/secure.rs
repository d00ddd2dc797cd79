//! Connections over TLS: what the client crate is told, as the files are now, and why a server could not be used.

use std::time::Duration;

use etcd_client::{ConnectOptions, Identity, TlsOptions};
use futures_util::future::join_all;
use leasehold_core::ErrorKind::{Denied, Unavailable};
use leasehold_core::support::Host;
use leasehold_core::{Error, Result};
use tokio::time::timeout;

use crate::config::{Config, SECURE};
use crate::error::Failure;

impl Config {
    /// Whether every connection is over TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether the files are there and fit together.
    pub(crate) async fn check_files(&self) -> Result<()> {
        let Some(tls) = &self.tls else { return Ok(()) };
        tls.client().await.map(drop)
    }

    /// The options with TLS, if that is configured. A file that is wrong now may be in the middle of being replaced.
    pub(crate) async fn secured(&self, options: ConnectOptions) -> Result<ConnectOptions, Failure> {
        let Some(tls) = &self.tls else { return Ok(options) };
        let tls = tls.client().await.map_err(|e| Failure::new(Unavailable, e.to_string()))?;
        let mut said = TlsOptions::new().trust_anchors(tls.trust_anchors());
        if let Some(identity) = tls.identity() {
            said = said.identity(Identity::from_pem(&identity.certificate, &identity.key));
        }
        if let Some(name) = tls.server_name() {
            said = said.domain_name(name);
        }
        Ok(options.with_tls(said))
    }

    /// Why servers cannot be used over TLS, as far as a handshake with each shows: the client crate reports little. A refusal
    /// says more than a server that is away.
    pub(crate) async fn diagnose(&self, limit: Duration) -> Option<Error> {
        let tls = self.tls.as_ref()?.client().await.ok()?;
        let each = self.endpoints.iter().map(async |endpoint| {
            let host = Host::parse(endpoint.strip_prefix(SECURE)?, 443).ok()?;
            timeout(limit, tls.diagnose(&host.name, host.port)).await.ok()?
        });
        let mut found: Vec<Error> = join_all(each).await.into_iter().flatten().collect();
        found.sort_by_key(|why| why.kind() != Denied);
        found.into_iter().next()
    }
}
