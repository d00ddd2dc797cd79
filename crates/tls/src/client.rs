//! Connections by TLS, made of what the files say at that moment.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::{of_handshake, of_tcp};
use crate::files::{Files, Identity, pem};
use crate::{Tls, invalid};

/// How long a server that was shown a certificate, or none, is given to refuse it: with TLS 1.3 it does so after the handshake.
const REFUSAL: Duration = Duration::from_millis(500);

/// What makes TLS connections, as the files were when it was made.
#[derive(Clone)]
pub struct Client {
    config: Arc<ClientConfig>,
    server_name: Option<String>,
    roots: Arc<RootCertStore>,
    ca: Option<String>,
    system: Vec<CertificateDer<'static>>,
    identity: Option<Identity>,
}

impl Tls {
    /// Reads the files, on a thread where that may block.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid), with the file that is wrong, and nothing of what is in it.
    pub async fn client(&self) -> Result<Client> {
        self.check_name()?;
        let tls = self.clone();
        let read = spawn_blocking(move || Client::new(&tls)).await;
        read.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "TLS: the files were not read")))
    }
}

impl Client {
    fn new(tls: &Tls) -> Result<Client> {
        let Files { ca, system, roots, identity, chain, key } = Files::read(tls)?;
        let roots = Arc::new(roots);
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|e| invalid(format_args!("the program's CryptoProvider is of no use: {e}")))?
            .with_root_certificates(roots.clone());
        let config = match key {
            // It may say what is wrong with them, and shows nothing of them.
            Some(key) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|e| invalid(format_args!("the client's certificate and key do not fit together: {e}")))?,
            None => builder.with_no_client_auth(),
        };
        Ok(Client { config: Arc::new(config), server_name: tls.server_name.clone(), roots, ca, system, identity })
    }

    /// Completes the handshake on a connection to this server. It takes as long as it takes: the caller limits it.
    ///
    /// # Errors
    ///
    /// [`Denied`](ErrorKind::Denied) if the server's certificate is refused here or ours there, and
    /// [`Unavailable`](ErrorKind::Unavailable) if there is no server, or none that speaks TLS. They name the server and what to do.
    pub async fn secure(&self, host: &str, port: u16, tcp: TcpStream) -> Result<TlsStream<TcpStream>> {
        let name = self.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| invalid(format_args!("no certificate can be for the host {host:?}: give `server_name`")))?;
        let connecting = TlsConnector::from(self.config.clone()).connect(name, tcp);
        connecting.await.map_err(|e| self.explain((host, port), &e))
    }

    /// Why a server that could not be used over TLS may have refused, if that can be found out by one more connection: the
    /// client crates report less. It takes at most half a second longer than connecting does.
    pub async fn diagnose(&self, host: &str, port: u16) -> Option<Error> {
        let connecting = async {
            let tcp = TcpStream::connect((host, port)).await.map_err(|e| of_tcp((host, port), &e))?;
            self.secure(host, port, tcp).await
        };
        let mut stream = match connecting.await {
            Ok(stream) => stream,
            Err(why) => return Some(why),
        };
        match timeout(REFUSAL, stream.read(&mut [0])).await {
            Ok(Err(e)) => Some(self.explain((host, port), &e)),
            _ => None,
        }
    }

    /// Why a connection to this server failed, in a handshake or at what it said first after that.
    pub fn explain(&self, at: (&str, u16), e: &std::io::Error) -> Error {
        of_handshake(at, e, self.ca.is_some(), self.identity.is_some())
    }

    /// The CAs that are trusted.
    pub fn trust_anchors(&self) -> Vec<TrustAnchor<'static>> {
        self.roots.roots.clone()
    }

    /// The same as PEM: what is in the CA file, or in the operating system's.
    pub fn ca_pem(&self) -> String {
        self.ca.clone().unwrap_or_else(|| pem(&self.system))
    }

    /// What the server is shown.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// The name that is verified, if it is not the host's.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }
}

/// The key is in it.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// The program's provider, or ours.
fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(aws_lc_rs::default_provider()))
}

/// Makes ours the program's provider, if it has installed none: for a client crate that cannot be told which one to use, and panics
/// if there are two.
pub fn install_provider() {
    if CryptoProvider::get_default().is_none() {
        // Somebody else was faster: then it has one.
        let _ = aws_lc_rs::default_provider().install_default();
    }
}
