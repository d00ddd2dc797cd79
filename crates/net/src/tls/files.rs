//! Reads and parses the files that a user names. Their content is never shown.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use leasehold_core::Result;
use rustls::RootCertStore;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{Tls, invalid};
use crate::Verified;

/// The greatest size of a file in bytes, more than any bundle of CAs has. Without a limit, reading
/// a device would not end.
const MOST: u64 = 4 << 20;

/// A client's certificate and its private key, as the text of their files.
#[derive(Clone)]
pub struct Identity {
    /// The certificate, with the chain that leads to its CA.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// Shows nothing of the identity, which has a private key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// The content of the files of one [`Tls`].
pub(crate) struct Files {
    pub(crate) ca: Option<String>,
    /// The CAs that the operating system trusts, if no others were named.
    pub(crate) system: Vec<CertificateDer<'static>>,
    pub(crate) roots: RootCertStore,
    pub(crate) identity: Option<Identity>,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: Option<PrivateKeyDer<'static>>,
}

impl Files {
    /// Reads all files. It may block.
    pub(crate) fn read(tls: &Tls) -> Result<Files> {
        let ca = tls
            .ca
            .as_ref()
            .map(|path| text("the CA file", path))
            .transpose()?;
        let (system, roots) = match (&tls.ca, &ca) {
            _ if tls.verified == Verified::Nothing => (Vec::new(), RootCertStore::empty()),
            (Some(path), Some(pem)) => (Vec::new(), own_roots(path, pem)?),
            _ => system_roots()?,
        };
        let mut files = Files {
            ca,
            system,
            roots,
            identity: None,
            chain: Vec::new(),
            key: None,
        };
        if let Some((certificate, key)) = &tls.identity {
            let identity = Identity {
                certificate: text("the certificate", certificate)?,
                key: text(KEY, key)?,
            };
            files.chain = certificates(certificate, &identity.certificate)?;
            files.key = Some(private_key(key, &identity.key)?);
            files.identity = Some(identity);
        }
        Ok(files)
    }
}

/// Reads a file as text.
fn text(what: &str, path: &Path) -> Result<String> {
    let cannot = |why: &dyn fmt::Display| {
        invalid(format_args!(
            "{what} {} cannot be read: {why}",
            path.display()
        ))
    };
    let mut bytes = Vec::new();
    // Opening a pipe may never end.
    if !path.metadata().map_err(|e| cannot(&e))?.is_file() {
        return Err(cannot(&"it is no file"));
    }
    let file = File::open(path).map_err(|e| cannot(&e))?;
    file.take(MOST + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| cannot(&e))?;
    if bytes.len() as u64 > MOST {
        return Err(cannot(&"it is too large"));
    }
    String::from_utf8(bytes).map_err(|e| {
        let path = path.display();
        // In DER, a certificate and a key begin with this byte, which is that of a sequence.
        match e.as_bytes() {
            [0x30, ..] => {
                let tool = if what == KEY { "pkey" } else { "x509" };
                cannot(&format_args!(
                    "it is in DER, and has to be in PEM: `openssl {tool} -inform der -in {path} -out {path}.pem`"
                ))
            }
            _ => cannot(&"it is no text, and so not in PEM"),
        }
    })
}

/// The name of a key's file in messages.
const KEY: &str = "the key";

/// The private key in a file.
fn private_key(path: &Path, pem: &str) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| {
        let path = path.display();
        if pem.contains("ENCRYPTED") {
            return invalid(format_args!(
                "the key {path} is encrypted, which is not supported: `openssl pkey -in {path} -out {path}.plain`, and protect that file"
            ));
        }
        invalid(format_args!("no private key in {path}, in PEM"))
    })
}

/// The certificates in a file, at least one.
fn certificates(path: &Path, pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| invalid(format_args!("no certificate in {}, in PEM", path.display())))
}

/// The CAs of a file. Every certificate in it is a CA to trust: one that cannot be parsed is a
/// mistake.
fn own_roots(path: &Path, pem: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        roots.add(certificate).map_err(|e| {
            invalid(format_args!(
                "a certificate in {} is of no use: {e}",
                path.display()
            ))
        })?;
    }
    Ok(roots)
}

/// The CAs of the operating system. Some may be too old to be parsed; these are left out of the
/// store of roots.
fn system_roots() -> Result<(Vec<CertificateDer<'static>>, RootCertStore)> {
    let system = rustls_native_certs::load_native_certs().certs;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(system.iter().cloned());
    if roots.is_empty() {
        return Err(invalid(
            "this system trusts no CA (Debian: the package ca-certificates): name one by `ca`",
        ));
    }
    Ok((system, roots))
}

/// These certificates as PEM.
pub(crate) fn pem(certificates: &[CertificateDer<'_>]) -> String {
    let one = |certificate: &CertificateDer<'_>| {
        let body = BASE64.encode(certificate);
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    };
    certificates.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn certificates_come_back_from_pem() {
        let ders: Vec<CertificateDer<'_>> = (1..200)
            .map(|n| CertificateDer::from(vec![n as u8; n]))
            .collect();
        let read: Result<Vec<_>, PemError> =
            CertificateDer::pem_slice_iter(pem(&ders).as_bytes()).collect();
        assert_eq!(read.unwrap(), ders);
    }

    #[test]
    fn whatever_is_in_a_file_it_is_understood_or_refused_and_not_shown() {
        let path = Path::new("/a.pem");
        fuzz_text(include_str!("../../corpus/pem"), |pem| {
            let own = own_roots(path, pem).map(drop);
            let found = certificates(path, pem).map(|found| assert!(!found.is_empty()));
            for refused in [own.err(), found.err()].into_iter().flatten() {
                assert!(
                    !format!("{refused} {refused:?}").contains("S3CRET"),
                    "{refused}"
                );
                assert!(refused.to_string().contains("/a.pem"), "{refused}");
            }
            let identity = Identity {
                certificate: pem.to_owned(),
                key: pem.to_owned(),
            };
            assert!(!format!("{identity:?}").contains("S3CRET"));
            let _ = PrivateKeyDer::from_pem_slice(pem.as_bytes());
        });
    }
}
