//! Connections over TLS, with the present content of the files. No session is resumed, since a
//! resumed session verifies neither certificate again.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, SignatureScheme};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::error::{Facts, of_handshake, of_own_pair, of_tcp};
use super::files::{Files, Identity, pem};
use super::provider::provider;
use super::{Tls, invalid, verifier};
use crate::Verified;

/// The time in which a server may refuse the certificate that it was shown, or the lack of one:
/// with TLS 1.3 it does so after the handshake.
const REFUSAL: Duration = Duration::from_millis(500);

/// Makes TLS connections with the content that the files had when this client was made.
#[derive(Clone)]
pub struct Client {
    config: Arc<ClientConfig>,
    /// In the latest handshake, the server has asked for a certificate.
    asked: Arc<AtomicBool>,
    /// The certificates that a server is shown if it asks.
    chain: Vec<CertificateDer<'static>>,
    server_name: Option<String>,
    ca: Option<String>,
    system: Vec<CertificateDer<'static>>,
    identity: Option<Identity>,
}

impl Tls {
    /// Reads the files, on a thread that may block.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid), with the file that is wrong, and without any of its
    /// content. [`Unsupported`](ErrorKind::Unsupported) if there is no provider of cryptography.
    pub async fn client(&self) -> Result<Client> {
        self.check_name()?;
        let tls = self.clone();
        let read = spawn_blocking(move || Client::new(&tls)).await;
        read.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Internal,
                "TLS: the files were not read",
            ))
        })
    }
}

impl Client {
    fn new(tls: &Tls) -> Result<Client> {
        let Files {
            ca,
            system,
            roots,
            identity,
            chain,
            key,
        } = Files::read(tls)?;
        let provider = provider()?;
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| {
                invalid(format_args!(
                    "the program's CryptoProvider is of no use: {e}"
                ))
            })?;
        let builder = match tls.verified {
            Verified::Name => builder.with_root_certificates(roots),
            less => builder
                .dangerous()
                .with_custom_certificate_verifier(verifier::of(less, roots, provider)?),
        };
        let mut config = match key {
            Some(key) => builder
                .with_client_auth_cert(chain.clone(), key)
                .map_err(|e| of_own_pair(&chain, &e))?,
            None => builder.with_no_client_auth(),
        };
        config.resumption = Resumption::disabled();
        let asked = Arc::new(AtomicBool::new(false));
        config.client_auth_cert_resolver = Arc::new(Asked {
            inner: config.client_auth_cert_resolver,
            asked: asked.clone(),
        });
        Ok(Client {
            config: Arc::new(config),
            asked,
            chain,
            server_name: tls.server_name.clone(),
            ca,
            system,
            identity,
        })
    }

    /// Sets the protocol that is agreed on in the handshake (ALPN).
    #[must_use]
    pub fn speaking(mut self, protocol: &[u8]) -> Client {
        Arc::make_mut(&mut self.config).alpn_protocols = vec![protocol.to_vec()];
        self
    }

    /// Connects to this server, and completes the handshake.
    ///
    /// # Errors
    ///
    /// Those of [`secure`](Client::secure), and [`Unavailable`](ErrorKind::Unavailable) for a server that cannot be reached.
    pub async fn connect(&self, host: &str, port: u16) -> Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect((host, port)).await;
        let tcp = tcp.map_err(|e| of_tcp((host, port), &e))?;
        // Requests are small, and must not wait for one another.
        tcp.set_nodelay(true)
            .map_err(|e| of_tcp((host, port), &e))?;
        self.secure(host, port, tcp).await
    }

    /// Completes the handshake on a connection to this server. It has no time limit: the caller
    /// sets one.
    ///
    /// # Errors
    ///
    /// [`Denied`](ErrorKind::Denied) if the client refuses the server's certificate or the server
    /// refuses the client's, and [`Unavailable`](ErrorKind::Unavailable) if there is no server, or
    /// none that speaks TLS. They name the server and the remedy.
    pub async fn secure(
        &self,
        host: &str,
        port: u16,
        tcp: TcpStream,
    ) -> Result<TlsStream<TcpStream>> {
        let name = self.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned()).map_err(|_| {
            invalid(format_args!(
                "no certificate can be for the host {host:?}: give `server_name`"
            ))
        })?;
        self.asked.store(false, Relaxed);
        let connecting = TlsConnector::from(self.config.clone()).connect(name, tcp);
        connecting.await.map_err(|e| self.explain((host, port), &e))
    }

    /// Finds out, by one more connection, why a server that could not be used over TLS may have
    /// refused; `None` if that cannot be seen. The client crates report less. It takes at most half
    /// a second longer than connecting does.
    pub async fn diagnose(&self, host: &str, port: u16) -> Option<Error> {
        let mut stream = match self.connect(host, port).await {
            Ok(stream) => stream,
            Err(why) => return Some(why),
        };
        match timeout(REFUSAL, stream.read(&mut [0])).await {
            Ok(Err(e)) => Some(self.explain((host, port), &e)),
            _ => None,
        }
    }

    /// Explains why a connection to this server failed, in the handshake or at the server's first
    /// message after it.
    pub fn explain(&self, at: (&str, u16), e: &std::io::Error) -> Error {
        let known = Facts {
            own_ca: self.ca.is_some(),
            was_asked: self.asked.load(Relaxed),
            chain: &self.chain,
        };
        of_handshake(at, e, &known)
    }

    /// The trusted CAs as PEM: those of the CA file, or else those of the operating system.
    pub fn ca_pem(&self) -> String {
        self.ca.clone().unwrap_or_else(|| pem(&self.system))
    }

    /// The client's certificate and its key, if it has one.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// The name that is verified, if it is not the host's.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }
}

/// Notes whether a server asks for a certificate: if an alert says little, this tells what it is
/// about.
#[derive(Debug)]
struct Asked {
    inner: Arc<dyn ResolvesClientCert>,
    asked: Arc<AtomicBool>,
}

impl ResolvesClientCert for Asked {
    fn resolve(
        &self,
        root_hint_subjects: &[&[u8]],
        sigschemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.asked.store(true, Relaxed);
        self.inner.resolve(root_hint_subjects, sigschemes)
    }

    fn has_certs(&self) -> bool {
        self.inner.has_certs()
    }
}

/// Shows nothing of the client, which has a private key.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
