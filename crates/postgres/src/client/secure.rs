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
use sha2::{Digest, Sha256, Sha384, Sha512};
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
    let client = tls.client().await.map_err(|e| in_our_words(&e, true))?;
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
        in_our_words(&why, why.kind() == ErrorKind::Invalid)
    })
}

/// Replaces the names that the other stores use, `ca`, `cert` and `key`, by those of PostgreSQL. A
/// URL of PostgreSQL has no parameter for another name of the server. `is_own` says that no server
/// is at fault.
fn in_our_words(why: &Error, is_own: bool) -> Error {
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
    Error::new(why.kind(), text).with_source(OfTls { is_own })
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
    /// The hash of the server's certificate, by which a login shows that nobody is in between, even
    /// if the certificate was not verified.
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.0.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let hash = certificate.and_then(|certificate| end_point(certificate));
        hash.map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

/// The beginnings of the object identifiers of signatures.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1];
const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4];

/// The hash of a certificate in DER by the function of its signature, as RFC 5929 has it; `None`
/// for a signature without a function of its own.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (_, content, _) = element(certificate)?;
    let (.., behind_the_signed) = element(content)?;
    let (_, algorithm, _) = element(behind_the_signed)?;
    let (_, oid, _) = element(algorithm)?;
    Some(match (oid.strip_prefix(RSA), oid.strip_prefix(ECDSA)) {
        // MD5 and SHA-1 are replaced by SHA-256.
        (Some([4 | 5 | 11]), _) | (_, Some([1] | [3, 2])) => Sha256::digest(certificate).to_vec(),
        (Some([12]), _) | (_, Some([3, 3])) => Sha384::digest(certificate).to_vec(),
        (Some([13]), _) | (_, Some([3, 4])) => Sha512::digest(certificate).to_vec(),
        _ => return None,
    })
}

/// The tag and the content of the first element, and what is behind it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, length], rest) = der.split_first_chunk()?;
    let (length, rest) = match length {
        0x80.. => {
            let (length, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            let long = length.iter().try_fold(0_usize, |long, &byte| {
                Some(long.checked_mul(256)? + usize::from(byte))
            })?;
            (long, rest)
        }
        short => (short.into(), rest),
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
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

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz;

    use super::*;

    #[test]
    fn a_certificate_is_hashed_as_its_signature_was() {
        let signed = |oid: &[u8]| {
            let algorithm = [&[6, oid.len() as u8], oid].concat();
            let content = [
                &[0x30, 2, 5, 0, 0x30, algorithm.len() as u8],
                &algorithm[..],
            ]
            .concat();
            [&[0x30, 0x82, 0, content.len() as u8], &content[..]].concat()
        };
        for (begin, end, length) in [
            (RSA, &[11][..], Some(32)),
            (RSA, &[5], Some(32)),
            (RSA, &[12], Some(48)),
            (RSA, &[13], Some(64)),
            (ECDSA, &[3, 2], Some(32)),
            (ECDSA, &[3, 3], Some(48)),
            (ECDSA, &[3, 4], Some(64)),
            (RSA, &[10], None),
            (&[0x2b, 0x65, 0x70], &[], None),
        ] {
            let certificate = signed(&[begin, end].concat());
            let hash = end_point(&certificate);
            assert_eq!(hash.map(|hash| hash.len()), length, "{begin:?} {end:?}");
            assert!(end_point(&certificate[..8]).is_none());
        }
        fuzz("0\\x820\\x820\\xff\n0\\x04\\x05\\x000\\x00", |der| {
            end_point(der);
        });
    }
}
