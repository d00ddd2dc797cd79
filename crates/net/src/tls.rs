//! TLS for the connections of a store. [`Tls`] has the settings of a user (files, a name), `files`
//! reads the files, `provider` has the cryptography, `client` makes connections with them, `verifier` verifies less than all of a certificate if a user wants that, and
//! `error` says what went wrong and what to do. Nothing here falls back to plain text: there is a TLS connection, or an error.

mod client;
mod error;
mod files;
mod provider;
mod verifier;

use std::path::PathBuf;

use leasehold_core::{Error, ErrorKind, Result};
use rustls::pki_types::ServerName;

pub use self::client::Client;
pub use self::files::Identity;
pub use self::provider::install_provider;
use crate::{Address, Verified, tls_is_off};

/// The settings of TLS connections to a store: the CAs to trust, and the certificate to show.
///
/// By default the server has to show a certificate for the host of the URL, signed by a CA that the
/// operating system trusts (on Linux also those of `SSL_CERT_FILE`), and the client shows none.
/// A store connects without verifying the server only if its URL has a word for that, of which it warns, or on PostgreSQL has no word.
///
/// All files are PEM. They are read when the store connects, and **anew for each connection that it
/// makes** later: a certificate that was replaced on the disk is used from the next connection on,
/// and existing connections stay as they are. A file that cannot be read is
/// [`Invalid`](ErrorKind::Invalid), and no connection is made. A private key may not be encrypted.
///
/// The cryptography is that of the program's default [`CryptoProvider`](rustls::crypto::CryptoProvider) if it has installed one.
/// Otherwise it is that of the feature `tls-aws-lc` (which `tls` turns on) or `tls-ring`; with both it is `aws-lc-rs`. With neither, as
/// in a build with `tls-no-provider` alone, connecting is [`Unsupported`](ErrorKind::Unsupported).
///
/// In a URL the parameters are `ca`, `cert`, `key` and `server_name`.
///
/// # Examples
///
/// ```
/// use leasehold_net::Tls;
///
/// let tls = Tls::new().ca_file("/etc/store/ca.pem").client_files("/etc/store/me.pem", "/etc/store/me.key");
/// ```
#[derive(Clone, Default, Debug)]
pub struct Tls {
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
    verified: Verified,
}

impl Tls {
    /// Settings with the CAs that the operating system trusts, no client certificate, and the name
    /// in the URL.
    pub fn new() -> Tls {
        Tls::default()
    }

    /// Trusts the CAs of this file, and no other.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Tls {
        self.ca = Some(path.into());
        self
    }

    /// Shows the server the certificate of the first file, with the chain that leads to its CA, and
    /// proves it by the private key of the second. If one file has both, it is named twice.
    #[must_use]
    pub fn client_files(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Tls {
        self.identity = Some((certificate.into(), key.into()));
        self
    }

    /// Sets the name (or IP address) that the server's certificate has to be for, in place of the
    /// host that the store connects to.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Tls {
        self.server_name = Some(name.into());
        self
    }

    /// Verifies only so much of the server's certificate: for the words of a URL, whose store warns.
    #[doc(hidden)]
    #[must_use]
    pub fn verifying(mut self, what: Verified) -> Tls {
        self.verified = what;
        self
    }

    /// The part of the server's certificate that is verified.
    #[doc(hidden)]
    pub fn verified(&self) -> Verified {
        self.verified
    }

    /// Takes the parameters `ca`, `cert`, `key` and `server_name` out of a URL; `None` if it does
    /// not ask for TLS. `speaks_tls`: the store has TLS in this build.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for a URL that asks a store for TLS that has none.
    /// [`Invalid`](ErrorKind::Invalid) for a certificate without a key or a key without a
    /// certificate, for a `server_name` that is neither a host name nor an IP address, and for any
    /// of the parameters in a URL without TLS.
    pub fn from_address(address: &mut Address, speaks_tls: bool) -> Result<Option<Tls>> {
        if !speaks_tls {
            return match address.tls {
                true => Err(tls_is_off()),
                false => Ok(None),
            };
        }
        let words = ["ca", "cert", "key", "server_name"];
        let [ca, cert, key, server_name] = words.map(|word| address.take(word));
        if !address.tls {
            let given = words
                .into_iter()
                .zip([ca, cert, key, server_name])
                .find(|(_, value)| value.is_some());
            let what = |(word, _)| {
                invalid(format!(
                    "{word} is for TLS, and this URL asks for none: add an s to its scheme"
                ))
            };
            return given.map_or(Ok(None), |given| Err(what(given)));
        }
        let tls = Tls {
            server_name,
            ..Tls::from_files(["ca", "cert", "key"], [ca, cert, key])?
        };
        tls.check_name().map(|()| Some(tls))
    }

    /// Settings with these files: the CAs to trust, the certificate to show, and its key. `words`
    /// are the parameters of a URL that name them.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for an empty path, and for a certificate without a key or a
    /// key without a certificate.
    pub fn from_files(words: [&str; 3], files: [Option<String>; 3]) -> Result<Tls> {
        let mut given = words.into_iter().zip(&files);
        if let Some((word, _)) = given.find(|(_, file)| file.as_deref() == Some("")) {
            return Err(invalid(format!("{word} is the path of a file")));
        }
        let [_, cert_word, key_word] = words;
        let [ca, cert, key] = files.map(|file| file.map(PathBuf::from));
        let half = |given, lacking| {
            let what = format!("{given} without {lacking}: a client certificate needs both");
            Err(invalid(what))
        };
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => return half(cert_word, key_word),
            (None, Some(_)) => return half(key_word, cert_word),
        };
        Ok(Tls {
            ca,
            identity,
            ..Tls::default()
        })
    }

    /// Returns whether a file names the CAs to trust; otherwise they are the system's.
    pub fn has_ca_file(&self) -> bool {
        self.ca.is_some()
    }

    /// Returns whether a certificate can be for this host, as its URL names it.
    pub fn can_be_for(host: &str) -> bool {
        ServerName::try_from(host).is_ok()
    }

    /// Returns whether another name than the host's is verified.
    pub fn has_server_name(&self) -> bool {
        self.server_name.is_some()
    }

    fn check_name(&self) -> Result<()> {
        match &self.server_name {
            Some(name) if ServerName::try_from(&**name).is_err() => {
                Err(invalid("server_name is a host name or an IP address"))
            }
            _ => Ok(()),
        }
    }
}

fn invalid(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("TLS: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<Option<Tls>> {
        let mut address = Address::parse_tls(&format!("etcd{query}"), "etcd", 1, 1)?;
        let tls = Tls::from_address(&mut address, true)?;
        address.done().map(|()| tls)
    }

    #[test]
    fn a_url_says_whom_to_trust_and_what_to_show() {
        let tls = read("s://h?ca=/a%20b.pem&cert=c.pem&key=k.pem&server_name=db.internal")
            .unwrap()
            .unwrap();
        assert_eq!(tls.ca.as_deref(), Some("/a b.pem".as_ref()));
        assert_eq!(tls.identity, Some(("c.pem".into(), "k.pem".into())));
        assert_eq!(tls.server_name.as_deref(), Some("db.internal"));
        assert!(tls.has_ca_file() && tls.has_server_name());
        assert!(read("s://h").unwrap().is_some() && read("://h").unwrap().is_none());
    }

    #[test]
    fn half_a_pair_and_words_without_tls_are_refused() {
        for (query, part) in [
            ("s://h?cert=a", "cert without key"),
            ("s://h?key=a", "key without cert"),
            ("s://h?ca=", "ca is the path"),
            ("s://h?cert=&key=a", "cert is the path"),
            ("s://h?server_name=a%20b", "server_name"),
            ("s://h?server_name=", "server_name"),
            ("s://h?ca=a&ca=b", "given twice"),
            ("://h?ca=a", "add an s"),
            ("://h?cert=a&key=b", "add an s"),
            ("://h?server_name=b", "add an s"),
        ] {
            let error = read(query).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{query}");
            assert!(error.to_string().contains(part), "{query}: {error}");
        }
    }
}
