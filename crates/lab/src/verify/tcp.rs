//! The servers of a URL, reached as it says, in plain text or by TLS, beside the store's own client. And one question to one of them,
//! answered until it closes: `GET /version`, or a four-letter word.

use std::time::Duration;

use leasehold_net::{Address, Host, Verified};
#[cfg(feature = "tls")]
use leasehold_net::{Tls, tls::Client};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

/// No answer is longer, and none takes longer.
const MOST: u64 = 64 * 1024;
const TIMEOUT: Duration = Duration::from_secs(3);

/// A connection of either kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The servers of a URL, and how they are reached.
pub(crate) struct Servers {
    pub(crate) address: Address,
    #[cfg(feature = "tls")]
    tls: Option<Client>,
}

impl Servers {
    /// Reads a URL of this scheme, with an `s` behind it or without.
    pub(crate) async fn of(url: &str, scheme: &str, port: u16, tls_port: u16) -> Option<Servers> {
        let address = Address::parse_tls(url, scheme, port, tls_port).ok()?;
        Servers::reached(address, Verified::Name).await
    }

    /// Reads a URL of Redis or of a Redlock as the store does.
    #[cfg(feature = "redis")]
    pub(crate) async fn of_redis(url: &str) -> Option<Servers> {
        let (address, verified) = leasehold::redis::Config::address(url).ok()?;
        Servers::reached(address, verified).await
    }

    #[cfg(feature = "tls")]
    pub(crate) async fn reached(mut address: Address, verified: Verified) -> Option<Servers> {
        let tls = match Tls::from_address(&mut address, true).ok()? {
            Some(tls) => Some(tls.verifying(verified).client().await.ok()?),
            None => None,
        };
        Some(Servers { address, tls })
    }

    #[cfg(not(feature = "tls"))]
    pub(crate) async fn reached(address: Address, _verified: Verified) -> Option<Servers> {
        (!address.tls).then_some(Servers { address })
    }

    /// A connection, over which nothing was sent yet.
    pub(crate) async fn connect(&self, host: &Host) -> Option<Box<dyn Stream>> {
        #[cfg(unix)]
        if host.is_socket() {
            return Some(Box::new(UnixStream::connect(&host.name).await.ok()?));
        }
        let tcp = TcpStream::connect((host.name.as_str(), host.port))
            .await
            .ok()?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return Some(Box::new(tls.secure(&host.name, host.port, tcp).await.ok()?));
        }
        Some(Box::new(tcp))
    }

    /// Returns the server's answer up to its end of the connection, if there is one.
    pub(crate) async fn ask(&self, host: &Host, question: &str) -> Option<String> {
        let asking = async {
            let mut stream = self.connect(host).await?;
            stream.write_all(question.as_bytes()).await.ok()?;
            let mut answer = Vec::new();
            // Over TLS some close without saying so: what came before counts.
            let _ = stream.take(MOST).read_to_end(&mut answer).await;
            Some(String::from_utf8_lossy(&answer).into_owned())
        };
        tokio::time::timeout(TIMEOUT, asking)
            .await
            .ok()
            .flatten()
            .filter(|answer| !answer.is_empty())
    }
}
