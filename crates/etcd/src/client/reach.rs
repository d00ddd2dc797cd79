//! The reason why no connection to an endpoint was made: the client crate does not distinguish a
//! closed port from an unknown host name.

use std::io::ErrorKind::ConnectionRefused;
use std::time::Duration;

use leasehold_net::Host;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// Connects to this endpoint once more, and returns a sentence with the obstacle and the remedy.
pub(crate) async fn explain(url: &str, limit: Duration) -> String {
    let secure = url.starts_with("https://");
    let at = url.split_once("://").map_or(url, |(_, at)| at);
    let Ok(host) = Host::parse(at, if secure { 443 } else { 80 }) else {
        return format!("{at}: this is no host and port");
    };
    let connecting = async {
        let mut addrs = lookup_host((&*host.name, host.port)).await.map_err(|e| {
            format!("the host name cannot be looked up: is it written right? ({e})")
        })?;
        let addr = addrs
            .next()
            .ok_or("the host name has no address: is it written right?")?;
        TcpStream::connect(addr).await.map_err(|e| match e.kind() {
            ConnectionRefused => {
                "nothing listens at this port: is etcd running there, and is the port right?"
                    .to_owned()
            }
            _ => format!("it cannot be reached: {e}"),
        })
    };
    let why = match timeout(limit, connecting).await {
        Err(_) => "it does not answer: is it up, and does a firewall let clients through?".into(),
        Ok(Err(why)) => why,
        Ok(Ok(_)) if secure => "it takes connections and does not answer over TLS: is it stopped, or another server?".into(),
        Ok(Ok(_)) => {
            "it takes connections and does not answer in plain text: is it stopped, or overloaded? Or does it speak TLS there? Then the scheme of the URL is etcds://"
                .into()
        }
    };
    format!("{at}: etcd cannot be reached: {why}")
}
