//! A connection over TLS: the client crate asks the server for it, and `leasehold-net` shows and
//! verifies the certificates.

use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use leasehold_core::support::locked;
use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::Host;
use leasehold_net::Tls;
use leasehold_net::tls::Client as TlsClient;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::{Client, Config as Settings, Connection};
use tokio_rustls::client::TlsStream as Rustls;

use crate::error::{Failure, OfTls};

/// Connects over TLS, or not at all. The files are read at this time.
pub(super) async fn connect(
    tls: &Tls,
    host: &Host,
    tcp: TcpStream,
    settings: &Settings,
) -> Result<(Client, Connection<TcpStream, Secure>)> {
    let client = tls.client().await.map_err(|e| in_our_words(&e))?;
    let why = Arc::new(Mutex::new(None));
    let connector = Connector {
        client: client.clone(),
        host: host.clone(),
        why: why.clone(),
    };
    settings.connect_raw(tcp, connector).await.map_err(|e| {
        let cause = e
            .source()
            .and_then(|cause| cause.downcast_ref::<io::Error>());
        let is_tls = |e: &&io::Error| {
            e.get_ref()
                .is_some_and(|inner| inner.is::<tokio_rustls::rustls::Error>())
        };
        let why = match (locked(&why).take(), cause.filter(is_tls)) {
            (Some(why), _) => why,
            // The server reports a refusal of the client's certificate after the handshake.
            (None, Some(said)) => client.explain((&host.name, host.port), said),
            (None, None) if e.to_string().contains("TLS") => {
                let what = format!(
                    "{host} is no TLS port: `ssl` of that server is off, or no PostgreSQL is there"
                );
                Error::new(ErrorKind::Unavailable, what)
            }
            (None, None) => return Failure::of_connecting(&e).into(),
        };
        in_our_words(&why)
    })
}

/// Replaces the names that the other stores use, `ca`, `cert` and `key`, by those of PostgreSQL. A
/// URL of PostgreSQL has no parameter for another name of the server.
fn in_our_words(why: &Error) -> Error {
    let words = [
        ("`ca`", "`sslrootcert`"),
        ("`cert`", "`sslcert`"),
        ("`key`", "`sslkey`"),
        (
            "give it as `server_name`",
            "give it in code (`Tls::server_name`)",
        ),
        (
            "give `server_name`",
            "give its name in code (`Tls::server_name`)",
        ),
    ];
    let text = words.iter().fold(why.to_string(), |text, (theirs, ours)| {
        text.replace(theirs, ours)
    });
    Error::new(why.kind(), text).with_source(OfTls)
}

/// Completes the handshake, and keeps the error if it fails.
struct Connector {
    client: TlsClient,
    host: Host,
    why: Arc<Mutex<Option<Error>>>,
}

impl TlsConnect<TcpStream> for Connector {
    type Stream = Secure;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Secure>>;

    fn connect(self, tcp: TcpStream) -> Self::Future {
        Box::pin(async move {
            let Connector { client, host, why } = self;
            client
                .secure(&host.name, host.port, tcp)
                .await
                .map(Secure)
                .map_err(|e| {
                    *locked(&why) = Some(e);
                    io::Error::other("the TLS handshake failed")
                })
        })
    }
}

/// An encrypted stream.
pub(super) struct Secure(Rustls<TcpStream>);

impl TlsStream for Secure {
    /// None is needed, since the server's certificate is verified.
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Secure {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Secure {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
