//! What a request came to when it did not succeed, told honestly.

use etcd_client::Error as ClientError;
use leasehold_core::{Error, ErrorKind};
use tonic::Code;

/// Why a request has no good answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The lease does not exist (any more).
    LeaseGone,
    /// `Unavailable`: surely not executed. `Ambiguous`: perhaps executed, perhaps later. For both, another endpoint may do
    /// better. Any other kind: the store said no, and would say so again.
    Of(ErrorKind, String),
}

/// What is said when a request was refused before it was proposed to the peers, or never sent. Other errors of code
/// `Unavailable` (`request timed out`, `server stopped`, `leader changed`) may follow a request that was carried out.
const NOT_EXECUTED: [&str; 6] = [
    "etcdserver: no leader",
    "too many requests",
    "not capable",
    "database space exceeded",
    "connect error",
    "dns error",
];

impl Failure {
    pub(crate) fn new(kind: ErrorKind, why: &str) -> Failure {
        Failure::Of(kind, why.to_owned())
    }

    pub(crate) fn is(&self, kind: ErrorKind) -> bool {
        matches!(self, Failure::Of(k, _) if *k == kind)
    }

    /// The same when an earlier attempt stayed unanswered.
    pub(crate) fn after_doubt(self) -> Failure {
        self.instead_of(ErrorKind::Unavailable, ErrorKind::Ambiguous)
    }

    /// The same for a request that changes nothing: whether it was executed does not matter.
    pub(crate) fn of_a_read(self) -> Failure {
        self.instead_of(ErrorKind::Ambiguous, ErrorKind::Unavailable)
    }

    fn instead_of(self, said: ErrorKind, kind: ErrorKind) -> Failure {
        match self {
            Failure::Of(is, why) if is == said => Failure::Of(kind, why),
            other => other,
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        use ErrorKind::{Ambiguous, Denied, Internal, Invalid, Unavailable};
        let status = match error {
            ClientError::GRpcStatus(status) => status,
            ClientError::LeaseKeepAliveError(why) if why == "lease not found" => return Failure::LeaseGone,
            ClientError::InvalidArgs(_) | ClientError::InvalidUri(_) | ClientError::InvalidMetadataValue(_) => {
                return Failure::Of(Invalid, error.to_string());
            }
            other => return Failure::Of(Ambiguous, other.to_string()),
        };
        let says = |words: &[&str]| words.iter().any(|word| status.message().contains(word));
        let kind = match status.code() {
            Code::NotFound if says(&["lease not found"]) => return Failure::LeaseGone,
            Code::Unauthenticated | Code::PermissionDenied => Denied,
            // How etcd says that a password is wrong, a user is needed, or that it knows no users at all.
            Code::InvalidArgument | Code::FailedPrecondition if says(&["authenticat", "user name"]) => Denied,
            Code::Unavailable | Code::ResourceExhausted if says(&NOT_EXECUTED) => Unavailable,
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange | Code::Unimplemented => Internal,
            _ => Ambiguous,
        };
        Failure::Of(kind, format!("{}: {}", status.code(), status.message()))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        let Failure::Of(kind, why) = failure else {
            return Error::new(ErrorKind::Unavailable, "the session's lease ended; claim again");
        };
        let what = match kind {
            ErrorKind::Unavailable => "etcd cannot be reached or cannot serve",
            ErrorKind::Ambiguous => "etcd did not answer; the request may have been executed",
            ErrorKind::Denied => "etcd refused the user, the password or the rights",
            _ => "etcd refused the request",
        };
        Error::new(kind, format!("{what} ({why})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: Code, message: &str) -> ErrorKind {
        Error::from(Failure::from(ClientError::GRpcStatus(tonic::Status::new(code, message)))).kind()
    }

    #[test]
    fn only_what_was_surely_not_executed_is_unavailable() {
        assert_eq!(kind(Code::Unavailable, "tcp connect error"), ErrorKind::Unavailable);
        assert_eq!(kind(Code::Unavailable, "etcdserver: no leader"), ErrorKind::Unavailable);
        assert_eq!(kind(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"), ErrorKind::Unavailable);
        assert_eq!(kind(Code::Unavailable, "etcdserver: request timed out"), ErrorKind::Ambiguous);
        assert_eq!(kind(Code::Unavailable, "keep-alive timed out"), ErrorKind::Ambiguous);
        assert_eq!(kind(Code::Unknown, "h2 protocol error"), ErrorKind::Ambiguous);
        assert_eq!(kind(Code::InvalidArgument, "etcdserver: authentication failed"), ErrorKind::Denied);
        assert_eq!(kind(Code::InvalidArgument, "etcdserver: user name is empty"), ErrorKind::Denied);
        assert_eq!(kind(Code::PermissionDenied, "etcdserver: permission denied"), ErrorKind::Denied);
        assert_eq!(kind(Code::InvalidArgument, "etcdserver: key is not provided"), ErrorKind::Internal);
    }
}
