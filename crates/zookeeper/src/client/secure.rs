//! Connections over TLS: the TLS options for the client crate, from the files as they are now, and
//! the reason why a server could not be used.

use futures_util::future::join_all;
use leasehold_core::ErrorKind::{Denied, Internal, Invalid, Unavailable, Unsupported};
use leasehold_core::{Error, Result};
use leasehold_net::Host;
use leasehold_net::Tls;
use leasehold_net::tls::install_provider;
use tokio::time::timeout;
use zookeeper_client::{Connector, TlsOptions};

use crate::config::{Config, TLS_PORT};

impl Config {
    /// Fails unless the files are there and fit together.
    pub(crate) async fn check_files(&self) -> Result<()> {
        let Some(tls) = &self.tls else { return Ok(()) };
        tls.client().await.map(drop)
    }

    /// The connector with TLS, if that is configured. A file that is wrong now may be in the middle
    /// of being replaced.
    pub(crate) async fn secured(&self, connector: Connector) -> Result<Connector> {
        if self.is_secure() {
            install_provider()?;
        }
        let Some(tls) = &self.tls else {
            return Ok(connector);
        };
        let tls = tls
            .client()
            .await
            .map_err(|e| Error::new(Unavailable, e.to_string()))?;
        // The files were understood, so the client crate understands them.
        let refused = |_| {
            Error::new(
                Internal,
                "TLS: ZooKeeper's client does not accept the files",
            )
        };
        let mut said = TlsOptions::new()
            .with_pem_ca(&tls.ca_pem())
            .map_err(refused)?;
        if let Some(identity) = tls.identity() {
            said = said
                .with_pem_identity(&identity.certificate, &identity.key)
                .map_err(refused)?;
        }
        Ok(connector.with_tls(said))
    }

    /// Returns why servers cannot be used over TLS, as far as a handshake with each shows: the
    /// client crate does not report it. A refusal says more than a server that is away.
    pub(crate) async fn diagnose(&self) -> Option<Error> {
        let tls = self.tls.as_ref()?.client().await.ok()?;
        let each = self.each_server().map(async |server| {
            let host = Host::parse(server, TLS_PORT).ok()?;
            timeout(self.timeout, tls.diagnose(&host.name, host.port))
                .await
                .ok()?
        });
        let mut found: Vec<Error> = join_all(each).await.into_iter().flatten().collect();
        found.sort_by_key(|why| why.kind() != Denied);
        let why = found.into_iter().next()?;
        // There is no other way to name a server: see `secure_host`.
        let text = why.to_string().replace(", or give it as `server_name`", "");
        Some(Error::new(why.kind(), text))
    }
}

/// This server with its port, if a certificate can be issued for it: the client crate verifies no
/// other name, and panics at an impossible one.
pub(crate) fn secure_host(tls: Option<&Tls>, server: &str) -> Result<String> {
    let host = Host::parse(server, TLS_PORT)?;
    if tls.is_some_and(Tls::has_server_name) {
        let what = "server_name: a certificate of ZooKeeper has to be for the host of the URL: name the server so";
        return Err(Error::new(Unsupported, what));
    }
    let none = || {
        Error::new(
            Invalid,
            format!("TLS: no certificate can be for the host {:?}", host.name),
        )
    };
    Tls::can_be_for(&host.name)
        .then(|| host.to_string())
        .ok_or_else(none)
}
