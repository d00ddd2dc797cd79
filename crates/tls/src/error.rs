//! Why there is no TLS connection: in one sentence, with the server and what to do about it.

use std::io;

use leasehold_core::{Error, ErrorKind};
use rustls::AlertDescription as Alert;
use rustls::{CertificateError, Error as TlsError};

/// Of the connection below.
pub(crate) fn of_tcp((host, port): (&str, u16), e: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{host}:{port}: cannot be reached: {e}"))
}

/// Of a handshake, or of the first answer after it. Says what is to be done about it, given what the user named.
pub(crate) fn of_handshake((host, port): (&str, u16), e: &io::Error, own_ca: bool, has_certificate: bool) -> Error {
    let (kind, what) = match e.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
        Some(TlsError::InvalidCertificate(why)) => (ErrorKind::Denied, of_certificate(why, own_ca)),
        Some(TlsError::AlertReceived(alert)) if is_about_certificates(*alert) => {
            let what = match has_certificate {
                true => format!("the server refused the client's certificate ({alert:?}): it wants one of its own CA"),
                false => format!("the server demands a client certificate ({alert:?}): give `cert` and `key`"),
            };
            (ErrorKind::Denied, what)
        }
        Some(TlsError::PeerIncompatible(_) | TlsError::AlertReceived(Alert::ProtocolVersion)) => (
            ErrorKind::Unsupported,
            "the server has no version or cipher of TLS in common with us: TLS 1.2 or 1.3".into(),
        ),
        Some(TlsError::InvalidMessage(_) | TlsError::InappropriateMessage { .. }) => {
            (ErrorKind::Unavailable, PLAIN.into())
        }
        Some(other) => (ErrorKind::Unavailable, format!("the TLS handshake failed: {other}")),
        None if e.kind() == io::ErrorKind::UnexpectedEof => {
            (ErrorKind::Unavailable, format!("closed in the handshake: {PLAIN}"))
        }
        // A server in plain text that closes before it has read all of it; its answer may be lost with that.
        None if e.kind() == io::ErrorKind::ConnectionReset => {
            (ErrorKind::Unavailable, format!("the TLS handshake failed: {e}; perhaps {PLAIN}"))
        }
        None => (ErrorKind::Unavailable, format!("the TLS handshake failed: {e}")),
    };
    Error::new(kind, format!("{host}:{port}: {what}"))
}

/// What a server that does not speak TLS looks like from here.
const PLAIN: &str = "the server does not speak TLS here: name its TLS port, or use the scheme without s";

fn of_certificate(why: &CertificateError, own_ca: bool) -> String {
    match why {
        // Another CA of the same name is told by its signature alone.
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
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "the server's certificate is not for {}, but for {}: connect by such a name, or give it as `server_name`",
            expected.to_str(),
            presented.join(", ")
        ),
        other => format!("the server's certificate is refused: {other}"),
    }
}

/// Whether a server says so of a certificate that it was shown, or was not.
fn is_about_certificates(alert: Alert) -> bool {
    use Alert::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked, CertificateUnknown,
        DecryptError, HandshakeFailure, NoCertificate, UnknownCA, UnsupportedCertificate,
    };
    matches!(
        alert,
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
            | UnsupportedCertificate
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_closes_in_the_handshake_may_speak_no_tls() {
        for (kind, says) in [
            (io::ErrorKind::UnexpectedEof, true),
            (io::ErrorKind::ConnectionReset, true),
            (io::ErrorKind::PermissionDenied, false),
        ] {
            let error = of_handshake(("h", 1), &kind.into(), true, false);
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert_eq!(error.to_string().contains("name its TLS port"), says, "{error}");
        }
    }
}
