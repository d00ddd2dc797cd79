//! Explains why there is no TLS connection: in one sentence, with the server and the remedy.

use std::borrow::Cow;
use std::io;

use leasehold_core::{Error, ErrorKind};
use rustls::AlertDescription as Alert;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, Error as TlsError};
use webpki::{EndEntityCert, Error as PkiError, KeyUsage};

use super::invalid;

/// The facts that are known when a handshake fails.
pub(crate) struct Facts<'a> {
    /// The user has named the CAs to trust.
    pub(crate) own_ca: bool,
    /// The server has asked for a certificate.
    pub(crate) was_asked: bool,
    /// The certificates that the server was shown then.
    pub(crate) chain: &'a [CertificateDer<'static>],
}

/// The error of the TCP connection.
pub(crate) fn of_tcp((host, port): (&str, u16), e: &io::Error) -> Error {
    let what = match e.kind() {
        io::ErrorKind::ConnectionRefused => {
            "nothing listens at this port: is the server running, and is the port right?".into()
        }
        _ => format!("cannot be reached: {e}"),
    };
    Error::new(ErrorKind::Unavailable, format!("{host}:{port}: {what}"))
}

/// The error of a handshake, or of the server's first message after it. It says what to do, given
/// the settings of the user.
pub(crate) fn of_handshake((host, port): (&str, u16), e: &io::Error, known: &Facts<'_>) -> Error {
    let (kind, what): (_, Cow<'_, str>) = match e
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<TlsError>())
    {
        Some(TlsError::InvalidCertificate(why)) => (
            ErrorKind::Denied,
            of_certificate(why, host, known.own_ca).into(),
        ),
        Some(TlsError::AlertReceived(alert)) => of_alert(*alert, host, known),
        Some(TlsError::PeerIncompatible(_)) => (ErrorKind::Unsupported, NOTHING_IN_COMMON.into()),
        Some(TlsError::InvalidMessage(_) | TlsError::InappropriateMessage { .. }) => {
            (ErrorKind::Unavailable, PLAIN.into())
        }
        Some(other) => (
            ErrorKind::Unavailable,
            format!("the TLS handshake failed: {other}").into(),
        ),
        None if e.kind() == io::ErrorKind::UnexpectedEof => (
            ErrorKind::Unavailable,
            format!("closed in the handshake: {PLAIN}").into(),
        ),
        // A server in plain text may close before it has read everything, and its answer may be
        // lost with that.
        None if e.kind() == io::ErrorKind::ConnectionReset => (
            ErrorKind::Unavailable,
            format!("the TLS handshake failed: {e}; perhaps {PLAIN}").into(),
        ),
        None => (
            ErrorKind::Unavailable,
            format!("the TLS handshake failed: {e}").into(),
        ),
    };
    Error::new(kind, format!("{host}:{port}: {what}"))
}

/// The explanation for a server that seems not to speak TLS.
const PLAIN: &str =
    "the server does not speak TLS here: name its TLS port, or use the scheme without s";

const NOTHING_IN_COMMON: &str = "the server has no version, cipher or key exchange of TLS in common with us: let it offer TLS 1.3, or TLS 1.2 with \
     ECDHE and AES-GCM or ChaCha20";

/// The kind and the explanation of an alert, which the server sent before it closed the connection.
fn of_alert(alert: Alert, host: &str, known: &Facts<'_>) -> (ErrorKind, Cow<'static, str>) {
    use Alert::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, DecryptError, HandshakeFailure, InsufficientSecurity,
        NoApplicationProtocol, NoCertificate, ProtocolVersion, UnknownCA, UnrecognisedName,
        UnsupportedCertificate,
    };
    let what = match alert {
        ProtocolVersion | InsufficientSecurity => {
            return (ErrorKind::Unsupported, NOTHING_IN_COMMON.into());
        }
        // Servers send this about certificates as well, but then they have asked for one.
        HandshakeFailure if !known.was_asked => {
            return (ErrorKind::Unsupported, NOTHING_IN_COMMON.into());
        }
        NoApplicationProtocol => {
            let what = "the server speaks TLS here, and another protocol over it: is this the port of the store?";
            return (ErrorKind::Unavailable, what.into());
        }
        UnrecognisedName => {
            format!("the server has no certificate for the name {host}: connect by one that it has")
        }
        AccessDenied
        | BadCertificate
        | CertificateExpired
        | CertificateRequired
        | CertificateRevoked
        | CertificateUnknown
        | DecryptError
        | HandshakeFailure
        | NoCertificate
        | UnknownCA
        | UnsupportedCertificate => match known.chain.first() {
            None => {
                format!(
                    "the server demands a client certificate ({alert:?}): give `cert` and `key`"
                )
            }
            Some(certificate) => {
                let why = flaw_of(certificate).unwrap_or_else(|| of_refusal(alert));
                format!("the server refused the client's certificate ({alert:?}): {why}")
            }
        },
        _ => {
            let what = format!("the server ended the TLS handshake ({alert:?}): its log says why");
            return (ErrorKind::Unavailable, what.into());
        }
    };
    (ErrorKind::Denied, what.into())
}

/// The flaw of the client's certificate, if it can be seen here: servers say little.
fn flaw_of(certificate: &CertificateDer<'_>) -> Option<&'static str> {
    let verified = EndEntityCert::try_from(certificate).and_then(|certificate| {
        let now = UnixTime::now();
        let usage = KeyUsage::client_auth();
        certificate
            .verify_for_usage(&[], &[], &[], now, usage, None, None)
            .map(drop)
    });
    Some(match verified {
        Err(PkiError::CertExpired { .. }) => "it has expired: put a new one in the file of `cert`",
        Err(PkiError::CertNotValidYet { .. }) => {
            "it is not valid yet: is the time of this machine right?"
        }
        Err(PkiError::UnsupportedCertVersion) => VERSION_1,
        Err(PkiError::CaUsedAsEndEntity) => {
            "it is a CA's own: have the CA sign one for the client, with CA:FALSE"
        }
        Err(PkiError::RequiredEkuNotFoundContext(_)) => {
            "it is not for clients: its extendedKeyUsage lacks clientAuth"
        }
        _ => return None,
    })
}

const VERSION_1: &str = "it is of version 1 of X.509, without extensions, which TLS takes no more: sign it with extensions \
     (`openssl x509 -req -extfile`)";

/// The explanation for a server that refuses the client's certificate.
fn of_refusal(alert: Alert) -> &'static str {
    match alert {
        Alert::CertificateExpired => "it has expired: put a new one in the file of `cert`",
        Alert::CertificateRevoked => "it was revoked: put a new one in the file of `cert`",
        _ => "it wants one that is signed by the CA that it trusts for clients",
    }
}

/// The error about the client's own certificate and key, before anything is sent. It shows nothing
/// of them.
pub(crate) fn of_own_pair(chain: &[CertificateDer<'_>], e: &TlsError) -> Error {
    match (e, chain.first().and_then(flaw_of)) {
        (TlsError::InconsistentKeys(_), _) => invalid(
            "the client's certificate and key do not fit together: the key in `key` is of another certificate than the first one in `cert`",
        ),
        (TlsError::InvalidCertificate(_), Some(why)) => {
            invalid(format_args!("the client's certificate in `cert`: {why}"))
        }
        (e, _) => invalid(format_args!(
            "the client's certificate and key are of no use: {e}"
        )),
    }
}

fn of_certificate(why: &CertificateError, host: &str, own_ca: bool) -> String {
    match why {
        // Another CA of the same name differs only in its signature.
        CertificateError::UnknownIssuer | CertificateError::BadSignature if own_ca => {
            "the server's certificate is not signed by the CA in the file of `ca`".into()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the server's certificate is signed by no CA that this system trusts: name its CA by `ca`".into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired: it needs a new one, or this machine the right time".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet: is the time of this machine right?".into()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().filter_map(|name| name_of(name)).collect();
            match &names[..] {
                [] => format!(
                    "the server's certificate is for no host, as it has no subjectAltName (the CN does not count): make it anew with \
                     `-addext {}`",
                    alternative_name(&expected.to_str())
                ),
                names => format!(
                    "the server's certificate is not for {}, but for {}: connect by such a name, or give it as `server_name`",
                    expected.to_str(),
                    names.join(", ")
                ),
            }
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the server's certificate is not for servers: its extendedKeyUsage lacks serverAuth".into()
        }
        CertificateError::Other(other) => match other.0.downcast_ref::<PkiError>() {
            Some(PkiError::CaUsedAsEndEntity) => format!(
                "the server's certificate is that of a CA, as `openssl req -x509` makes it, and cannot be a server's too: make it anew with \
                 `-addext basicConstraints=critical,CA:FALSE -addext {}`",
                alternative_name(host)
            ),
            Some(PkiError::UnsupportedCertVersion) => {
                format!("the server's certificate is refused: {VERSION_1}")
            }
            _ => format!("the server's certificate is refused: {why}"),
        },
        other => format!("the server's certificate is refused: {other}"),
    }
}

/// The form in which openssl takes this host for a certificate.
fn alternative_name(host: &str) -> String {
    let kind = match ServerName::try_from(host) {
        Ok(ServerName::IpAddress(_)) => "IP",
        _ => "DNS",
    };
    format!("subjectAltName={kind}:{host}")
}

/// Reads a host that a certificate is for. Rustls shows it only in the form of `Debug`:
/// `DnsName("db")`, `IpAddress(10.0.0.1)`.
fn name_of(debugged: &str) -> Option<&str> {
    let (kind, rest) = debugged.split_once('(')?;
    let name = rest.strip_suffix(')')?.trim_matches('"');
    matches!(kind, "DnsName" | "IpAddress").then_some(name)
}

#[cfg(test)]
mod tests;
