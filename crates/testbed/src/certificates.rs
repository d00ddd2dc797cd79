//! Certificates of a private CA, and the options by which servers use them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;

use crate::{
    error::{Error, Result},
    ports, server,
};

/// A private CA, with a folder for the files that it signs.
#[derive(Debug)]
pub struct Certificates {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
    ca: PathBuf,
}

/// A certificate and its private key, each in a file, as PEM.
#[derive(Clone, Debug)]
pub struct KeyFiles {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The hosts of the testbed's servers.
const HOSTS: [&str; 2] = ["127.0.0.1", "localhost"];

impl Certificates {
    /// Makes a CA that nothing else knows.
    pub fn new() -> Result<Self> {
        let folder = server::folder("ca")?;
        let ca = folder.path().join("ca.pem");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "leasehold testbed");
        let key = KeyPair::generate().map_err(failed("a key"))?;
        write(
            &ca,
            &params.self_signed(&key).map_err(failed("a CA"))?.pem(),
        )?;
        Ok(Self {
            folder,
            issuer: Issuer::new(params, key),
            ca,
        })
    }

    /// The file with the CA's own certificate.
    #[must_use]
    pub fn ca(&self) -> &Path {
        &self.ca
    }

    /// Signs a certificate for `127.0.0.1` and `localhost`. With a name that was used before, it
    /// overwrites those files.
    pub fn issue(&self, name: &str) -> Result<KeyFiles> {
        self.sign(name, &HOSTS, false)
    }

    /// Signs a certificate like [`issue`](Self::issue), but for these hosts.
    pub fn issue_for(&self, name: &str, hosts: &[&str]) -> Result<KeyFiles> {
        self.sign(name, hosts, false)
    }

    /// Signs a certificate like [`issue`](Self::issue), but one that expired long ago.
    pub fn issue_expired(&self, name: &str) -> Result<KeyFiles> {
        self.sign(name, &HOSTS, true)
    }

    fn sign(&self, name: &str, hosts: &[&str], expired: bool) -> Result<KeyFiles> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).map_err(failed("names"))?;
        params.distinguished_name.push(DnType::CommonName, name);
        if expired {
            (params.not_before, params.not_after) =
                (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
        }
        let key = KeyPair::generate().map_err(failed("a key"))?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(failed("a certificate"))?;
        let file = |ending| self.folder.path().join(format!("{name}.{ending}"));
        let files = KeyFiles {
            certificate: file("pem"),
            key: file("key"),
        };
        write(&files.certificate, &certificate.pem())?;
        write(&files.key, &key.serialize_pem())?;
        Ok(files)
    }
}

/// The TLS port of a server, beside its plain one, over which the testbed asks it.
#[derive(Clone, Debug)]
pub struct TlsPort {
    /// The port, on `127.0.0.1`.
    pub port: u16,
    /// The CA of the clients' certificates.
    pub ca: PathBuf,
    /// The server's certificate and key.
    pub files: KeyFiles,
    /// Clients have to show a certificate.
    pub mutual: bool,
}

impl TlsPort {
    /// A free port, with a certificate of this CA for `127.0.0.1`. Clients may show none.
    pub fn new(certificates: &Certificates) -> Result<Self> {
        let [port] = ports::free()?;
        let ca = certificates.ca().to_owned();
        let files = certificates.issue("server")?;
        Ok(Self {
            port,
            ca,
            files,
            mutual: false,
        })
    }

    /// Has clients show a certificate.
    #[must_use]
    pub fn mutual(mut self) -> Self {
        self.mutual = true;
        self
    }

    /// A copy of this at another free port, with files of its own: those of the certificate
    /// `server-<port>`.
    pub fn at_another_port(&self) -> Result<Self> {
        let [port] = ports::free()?;
        let own = |file: &Path, ending: &str| {
            let to = file.with_file_name(format!("server-{port}.{ending}"));
            fs::copy(file, &to)
                .map(|_| to)
                .map_err(Error::io("copying a certificate"))
        };
        let files = KeyFiles {
            certificate: own(&self.files.certificate, "pem")?,
            key: own(&self.files.key, "key")?,
        };
        Ok(Self {
            port,
            files,
            ..self.clone()
        })
    }

    /// The address to which clients connect: `host:port`.
    #[must_use]
    pub fn addr(&self) -> String {
        ports::addr(self.port).to_string()
    }

    /// The options for [`RedisOptions::extra`](crate::RedisOptions::extra).
    #[must_use]
    pub fn redis(&self) -> Vec<String> {
        let clients = if self.mutual { "yes" } else { "no" };
        let path = |path: &Path| path.display().to_string();
        let words = [
            ("--tls-port", self.port.to_string()),
            ("--tls-ca-cert-file", path(&self.ca)),
            ("--tls-cert-file", path(&self.files.certificate)),
            ("--tls-key-file", path(&self.files.key)),
            ("--tls-auth-clients", clients.to_owned()),
        ];
        words
            .into_iter()
            .flat_map(|(word, value)| [word.to_owned(), value])
            .collect()
    }

    /// The lines of ZooKeeper's configuration. ZooKeeper wants the key and the certificate in one
    /// file, which is made beside them.
    pub(crate) fn zookeeper(&self) -> Result<Vec<String>> {
        let read =
            |path: &Path| fs::read_to_string(path).map_err(Error::io("reading a certificate"));
        let both = self.files.certificate.with_extension("both.pem");
        write(
            &both,
            &format!(
                "{}{}",
                read(&self.files.key)?,
                read(&self.files.certificate)?
            ),
        )?;
        Ok(vec![
            format!("secureClientPort={}", self.port),
            "secureClientPortAddress=127.0.0.1".into(),
            // ZooKeeper's default connection factory has no TLS.
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".into(),
            "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider".into(),
            format!("ssl.keyStore.location={}", both.display()),
            format!("ssl.trustStore.location={}", self.ca.display()),
            format!(
                "ssl.clientAuth={}",
                if self.mutual { "need" } else { "none" }
            ),
        ])
    }

    /// The arguments for etcd, except the URL at which it listens.
    pub(crate) fn etcd(&self) -> Vec<String> {
        let path = |word: &str, path: &Path| format!("{word}={}", path.display());
        let mut words = vec![
            path("--cert-file", &self.files.certificate),
            path("--key-file", &self.files.key),
        ];
        if self.mutual {
            words.extend([
                path("--trusted-ca-file", &self.ca),
                "--client-cert-auth".into(),
            ]);
        }
        words
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Error::io("writing a certificate"))
}

fn failed(what: &'static str) -> impl FnOnce(rcgen::Error) -> Error {
    move |error| Error::answer(format!("making {what}"), error.to_string())
}
