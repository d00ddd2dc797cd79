//! A connection over TLS. The client crate has no support for another name of the server, for the
//! program's choice of cryptography, or for the reason with which a server refuses a certificate.

use std::sync::atomic::Ordering;

use futures_util::future::OptionFuture;
use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::Tls;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::link::connection::endpoint::Endpoint;
use crate::link::connection::link::Link;
use crate::link::connection::open::{NotOpened, carry, connect};

/// A server that is full closes the connection before it can say so.
fn or_full(e: Error) -> Error {
    match e.kind() {
        ErrorKind::Unavailable => {
            let what = format!("{e}. Or has this Redis as many clients as it may (maxclients)?");
            Error::new(ErrorKind::Unavailable, what)
        }
        _ => e,
    }
}

impl Link {
    /// A wrong file or certificate is a mistake at the first connection. Later it may be in the
    /// middle of being replaced.
    fn of_tls(&self, e: Error) -> Error {
        let first = self.made.load(Ordering::Relaxed) <= 1;
        if first {
            e
        } else {
            Error::new(ErrorKind::Unavailable, e.to_string())
        }
    }

    /// Connects over TLS, or not at all. The files are read at this moment.
    pub(super) async fn open_secure(
        &self,
        tls: &Tls,
        peer: &Endpoint,
        config: AsyncConnectionConfig,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<(MultiplexedConnection, Option<AbortHandle>), NotOpened> {
        let info = peer.client.get_connection_info();
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            let what = "TLS is configured for what is no plain address of a host and a port";
            return Err(peer.at(&Error::new(ErrorKind::Invalid, what)).into());
        };
        let mut secure = None;
        let connecting = async {
            let tls = tls.client().await.map_err(|e| self.of_tls(e))?;
            let tcp = connect(host, *port, info.tcp_settings()).await;
            let stream = tls
                .secure(host, *port, tcp.map_err(|e| peer.explain(&e))?)
                .await
                .map_err(|e| self.of_tls(or_full(e)))?;
            secure = Some(tls);
            carry(&peer.client, stream, config, on_end)
                .await
                .map_err(|e| NotOpened::of(&e, |e| peer.explain(e)))
        };
        let late = |_| {
            let what = "no TLS connection in time: is this the TLS port of a Redis?";
            Err(peer.at(&Error::new(ErrorKind::Unavailable, what)).into())
        };
        match timeout(self.timeout, connecting).await.unwrap_or_else(late) {
            Err(e) if e.why.kind() == ErrorKind::Unavailable => {
                // A server that refuses our certificate says so after the handshake, and only to a
                // client that reads then.
                let why = OptionFuture::from(secure.as_ref().map(|tls| tls.diagnose(host, *port)));
                let why = timeout(self.timeout, why).await.ok().flatten().flatten();
                Err(why.map_or(e, |why| self.of_tls(why).into()))
            }
            made => made,
        }
    }
}
