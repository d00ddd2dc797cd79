//! A program that speaks TLS by rustls as it is, and has locks in stores over TLS.

use std::error::Error;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Connects as most programs do. It panics if rustls cannot choose a provider: if there are two, or none.
async fn greet(at: &str, ca: &Path) -> Result<()> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let address: IpAddr = [127, 0, 0, 1].into();
    let tcp = TcpStream::connect(at).await?;
    TlsConnector::from(Arc::new(config))
        .connect(ServerName::from(address), tcp)
        .await?;
    Ok(())
}

/// Takes a lock in each of these stores.
async fn lock(urls: &[String]) -> leasehold::Result<()> {
    for url in urls {
        let store = leasehold::connect(url).await?;
        store.lock("job").acquire().await?.release().await?;
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    Ok(lock(&urls).await?)
}

#[cfg(test)]
mod tests {
    use leasehold::ErrorKind;
    use leasehold_testbed::{
        Certificates, Etcd, EtcdOptions, Postgres, PostgresOptions, Redis, RedisOptions, TlsPort,
    };
    use rustls::crypto::{CryptoProvider, ring};

    use super::*;

    /// A process has one default provider, so there is one test.
    #[tokio::test]
    async fn both_speak_tls() {
        let authority = Certificates::new().unwrap();
        let port = || TlsPort::new(&authority).unwrap();
        let [of_redis, of_etcd, of_postgres] = [port(), port(), port()];
        let extra = of_redis.redis();
        let _redis = Redis::start_with(&RedisOptions { extra, ..RedisOptions::default() }).await.unwrap();
        let tls = Some(of_etcd.clone());
        let _etcd = Etcd::start_with(&EtcdOptions { tls, ..EtcdOptions::default() }).await.unwrap();
        let tls = Some(of_postgres.clone());
        let _postgres =
            Postgres::start_with(&PostgresOptions { tls, ..PostgresOptions::default() }).await.unwrap();
        let ca = authority.ca().display();
        let urls = [
            format!("rediss://{}?ca={ca}", of_redis.addr()),
            format!("etcds://{}?ca={ca}", of_etcd.addr()),
            format!(
                "postgres://{}:{}@{}/{}?sslmode=verify-full&sslrootcert={ca}",
                Postgres::USER,
                Postgres::PASSWORD,
                of_postgres.addr(),
                Postgres::DATABASE
            ),
        ];
        if cfg!(not(feature = "tls-ring")) {
            for url in &urls {
                let error = leasehold::connect(url).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("install_default"), "{error}");
            }
            ring::default_provider().install_default().unwrap();
        }
        lock(&urls).await.unwrap();
        assert_eq!(CryptoProvider::get_default().is_none(), cfg!(feature = "tls-ring"));
        greet(&of_redis.addr(), authority.ca()).await.unwrap();
    }
}
