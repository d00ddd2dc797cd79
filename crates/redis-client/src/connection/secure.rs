//! A connection over TLS: the client crate knows neither a server's other name, nor the program's choice of cryptography, nor what a
//! server says when it refuses a certificate.

use std::sync::atomic::Ordering;

use futures_util::future::OptionFuture;
use leasehold_core::{Error, ErrorKind, Result};
use leasehold_tls::Tls;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::connection::driver::{UnderWay, carry, connect};
use crate::connection::link::Link;
use crate::connection::peer::Peer;

impl Link {
    /// A file that is wrong is a mistake at the first connection. Later it may be in the middle of being replaced.
    fn of_files(&self, e: Error) -> Error {
        let first = self.made.load(Ordering::Relaxed) <= 1;
        if first { e } else { Error::new(ErrorKind::Unavailable, e.to_string()) }
    }

    /// Connects by TLS, or not at all. The files are read now.
    pub(super) async fn open_secure(
        &self,
        tls: &Tls,
        peer: &Peer,
        config: AsyncConnectionConfig,
        under_way: UnderWay,
    ) -> Result<(MultiplexedConnection, Option<AbortHandle>)> {
        let info = peer.client.get_connection_info();
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            let what = "TLS is configured for what is no plain address of a host and a port";
            return Err(peer.at(&Error::new(ErrorKind::Invalid, what)));
        };
        let mut secure = None;
        let connecting = async {
            let tls = tls.client().await.map_err(|e| self.of_files(e))?;
            let tcp = connect(host, *port, info.tcp_settings()).await;
            let stream = tls.secure(host, *port, tcp.map_err(|e| peer.explain(&e.into()))?).await?;
            secure = Some(tls);
            carry(&peer.client, stream, config, under_way).await.map_err(|e| peer.explain(&e))
        };
        let late = |_| {
            let what = "no TLS connection in time: is this the TLS port of a Redis?";
            Err(peer.at(&Error::new(ErrorKind::Unavailable, what)))
        };
        match timeout(self.timeout, connecting).await.unwrap_or_else(late) {
            Err(e) if e.kind() == ErrorKind::Unavailable => {
                // A server that refuses our certificate says so after the handshake, and to nobody but who reads then.
                let why = OptionFuture::from(secure.as_ref().map(|tls| tls.diagnose(host, *port)));
                Err(timeout(self.timeout, why).await.ok().flatten().flatten().unwrap_or(e))
            }
            made => made,
        }
    }
}
