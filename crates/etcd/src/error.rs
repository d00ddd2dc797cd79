//! What a request came to when it did not succeed, told honestly.

use etcd_client::Error as ClientError;
use leasehold_core::{Error, ErrorKind};
use tonic::Code;

/// Why a request has no good answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// It was surely not executed; another endpoint may do better.
    NotExecuted(String),
    /// It may have been executed, or will be.
    Unanswered(String),
    /// The lease does not exist (any more).
    LeaseGone,
    /// The store answered: no. It would say so again.
    Refused(ErrorKind, String),
}

/// What etcd says when it has refused a request before proposing it to its peers. Its other errors of code `Unavailable`
/// (`request timed out`, `server stopped`, `leader changed`) may follow a request that was carried out all the same.
const REFUSED_UNSEEN: [&str; 4] =
    ["etcdserver: no leader", "too many requests", "not capable", "database space exceeded"];

impl Failure {
    pub(crate) fn silent() -> Failure {
        Failure::Unanswered("no answer in time".into())
    }

    /// The same when an earlier attempt stayed unanswered.
    pub(crate) fn after_doubt(self) -> Failure {
        match self {
            Failure::NotExecuted(why) => Failure::Unanswered(why),
            other => other,
        }
    }

    /// The same for a request that changes nothing: whether it was executed does not matter.
    pub(crate) fn of_a_read(self) -> Failure {
        match self {
            Failure::Unanswered(why) => Failure::NotExecuted(why),
            other => other,
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let status = match error {
            ClientError::GRpcStatus(status) => status,
            ClientError::LeaseKeepAliveError(why) if why == "lease not found" => return Failure::LeaseGone,
            ClientError::InvalidArgs(_) | ClientError::InvalidUri(_) | ClientError::InvalidMetadataValue(_) => {
                return Failure::Refused(ErrorKind::Invalid, error.to_string());
            }
            other => return Failure::Unanswered(other.to_string()),
        };
        let message = status.message();
        let why = format!("{}: {message}", status.code());
        match status.code() {
            Code::NotFound if message.contains("lease not found") => Failure::LeaseGone,
            Code::Unauthenticated | Code::PermissionDenied => Failure::Refused(ErrorKind::Denied, why),
            // How etcd says that a password is wrong, a user is needed, or that it knows no users at all.
            Code::InvalidArgument | Code::FailedPrecondition
                if ["authenticat", "user name"].iter().any(|word| message.contains(word)) =>
            {
                Failure::Refused(ErrorKind::Denied, why)
            }
            Code::Unavailable | Code::ResourceExhausted if REFUSED_UNSEEN.iter().any(|said| message.contains(said)) => {
                Failure::NotExecuted(why)
            }
            Code::Unavailable if ["connect error", "dns error"].iter().any(|said| message.contains(said)) => {
                Failure::NotExecuted(why)
            }
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange | Code::Unimplemented => {
                Failure::Refused(ErrorKind::Internal, why)
            }
            _ => Failure::Unanswered(why),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::NotExecuted(why) => {
                Error::new(ErrorKind::Unavailable, format!("etcd cannot be reached or cannot serve ({why})"))
            }
            Failure::Unanswered(why) => Error::new(
                ErrorKind::Ambiguous,
                format!("etcd did not answer; the request may have been executed ({why})"),
            ),
            Failure::LeaseGone => Error::new(ErrorKind::Unavailable, "the session's lease ended; claim again"),
            Failure::Refused(ErrorKind::Denied, why) => {
                Error::new(ErrorKind::Denied, format!("etcd refused the user, the password or the rights ({why})"))
            }
            Failure::Refused(kind, why) => Error::new(kind, format!("etcd refused the request ({why})")),
        }
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
