//! What a request that did not succeed came to: surely not executed, or perhaps.

use std::error::Error as _;
use std::iter::successors;

use etcd_client::Error as ClientError;
use leasehold_core::Error;
use leasehold_core::ErrorKind::{self, Ambiguous, Denied, Internal, Invalid, Lost, Unavailable};
use tonic::{Code, ConnectError, Status};

/// Why a request has no good answer.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// `Unavailable`: surely not executed. `Ambiguous`: perhaps executed, perhaps later. For both, another endpoint may do
    /// better. `Lost`: the lease does not exist (any more). Any other kind: the store said no, and would say so again.
    pub(crate) kind: ErrorKind,
    why: String,
    /// It came from the connection, not from the server.
    broken: bool,
}

/// How etcd says that a lease is not there.
pub(crate) const LEASE_NOT_FOUND: &str = "lease not found";

/// What is said when a request was refused before it was proposed to the peers, or never sent. Other errors of code
/// `Unavailable` (`request timed out`, `server stopped`, `leader changed`) may follow a request that was carried out.
const NOT_EXECUTED: [&str; 7] = [
    "auth store is old",
    "etcdserver: no leader",
    "too many requests",
    "not capable",
    FULL,
    "connect error",
    "dns error",
];

/// How a connection says that nothing drives it any more: the runtime has ended in which it was made. Nothing is sent over it.
const NOT_READY: &str = "Service was not ready";

/// How etcd says that it stores nothing more until its alarm is disarmed.
const FULL: &str = "database space exceeded";

/// How etcd refuses a token that has run out, or that is older than a change of the users or roles.
const STALE_TOKEN: [&str; 2] = ["invalid auth token", "auth store is old"];

impl Failure {
    /// Of this kind, because of this.
    pub(crate) fn new(kind: ErrorKind, why: impl Into<String>) -> Failure {
        Failure { kind, why: why.into(), broken: false }
    }

    /// The same, of the server at this endpoint, unless only a client of the program's knows it.
    pub(crate) fn at(self, endpoint: &str) -> Failure {
        if endpoint.is_empty() { self } else { Failure { why: format!("{endpoint}: {}", self.why), ..self } }
    }

    /// Whether the connection failed, or could not be made.
    #[cfg(feature = "tls")]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// The same when a connection in plain text was made: a server that speaks TLS ends it without a word.
    pub(crate) fn of_plain_connect(mut self) -> Failure {
        if self.broken && self.kind == Unavailable && !NOT_EXECUTED.iter().any(|words| self.why.contains(words)) {
            self.why += ": does it speak TLS there? Then the scheme of the URL is etcds://";
        }
        self
    }

    /// Whether another endpoint may do better.
    pub(crate) fn is_of_this_endpoint(&self) -> bool {
        matches!(self.kind, Ambiguous | Unavailable)
    }

    /// Whether the server refuses whatever stores something; it still deletes.
    pub(crate) fn is_full(&self) -> bool {
        self.why.contains(FULL)
    }

    /// Whether only another connection can send it.
    pub(crate) fn is_not_sent(&self) -> bool {
        self.why.contains(NOT_READY)
    }

    /// Whether another token may be let in.
    pub(crate) fn is_stale_token(&self) -> bool {
        STALE_TOKEN.iter().any(|words| self.why.contains(words))
    }

    /// The same for a request that changes nothing: whether it was executed does not matter.
    pub(crate) fn of_a_read(self) -> Failure {
        self.instead_of(Ambiguous, Unavailable)
    }

    /// The same; if it was of kind `said`, of this kind.
    pub(crate) fn instead_of(self, said: ErrorKind, kind: ErrorKind) -> Failure {
        if self.kind == said { Failure { kind, ..self } } else { self }
    }
}

/// Whether a stream of keep-alives says that its lease is not there.
pub(crate) fn is_lease_not_found(error: &ClientError) -> bool {
    matches!(error, ClientError::LeaseKeepAliveError(why) if why == LEASE_NOT_FOUND)
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let status = match error {
            ClientError::GRpcStatus(status) => status,
            error if is_lease_not_found(&error) => return Failure::new(Lost, LEASE_NOT_FOUND),
            ClientError::InvalidArgs(_) | ClientError::InvalidUri(_) | ClientError::InvalidMetadataValue(_) => {
                return Failure::new(Invalid, error.to_string());
            }
            other => return Failure::new(Ambiguous, other.to_string()),
        };
        let broken = status.source().is_some();
        let says = |words: &[&str]| words.iter().any(|word| status.message().contains(word));
        let kind = match status.code() {
            _ if is_of_connecting(&status) || says(&[NOT_READY]) => Unavailable,
            Code::NotFound if says(&[LEASE_NOT_FOUND]) => Lost,
            Code::Unauthenticated | Code::PermissionDenied => Denied,
            // How etcd says that a password is wrong, a user is needed, or that it knows no users at all.
            Code::InvalidArgument | Code::FailedPrecondition if says(&["authenticat", "user name"]) => Denied,
            Code::Unavailable | Code::ResourceExhausted | Code::InvalidArgument if says(&NOT_EXECUTED) => Unavailable,
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange | Code::Unimplemented => Internal,
            _ => Ambiguous,
        };
        Failure { kind, why: format!("{}: {}", status.code(), status.message()), broken }
    }
}

/// Whether there was no connection, so that nothing was sent.
fn is_of_connecting(status: &Status) -> bool {
    let mut causes = successors(status.source(), |&cause| cause.source());
    causes.any(|cause| cause.is::<ConnectError>())
}

impl From<Failure> for Error {
    fn from(Failure { kind, why, .. }: Failure) -> Error {
        let (kind, what) = match kind {
            Lost => (Unavailable, "the session's lease ended; claim again"),
            Unavailable => (kind, "etcd cannot be reached or cannot serve"),
            Ambiguous => (kind, "etcd did not answer; the request may have been executed"),
            Denied => (kind, "etcd refused the user, the password or the rights"),
            _ => (kind, "etcd refused the request"),
        };
        Error::new(kind, format!("{what} ({why})"))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    fn kind(code: Code, message: &str) -> ErrorKind {
        Error::from(Failure::from(ClientError::GRpcStatus(Status::new(code, message)))).kind()
    }

    #[test]
    fn only_what_was_surely_not_executed_is_unavailable() {
        assert_eq!(kind(Code::Unavailable, "tcp connect error"), Unavailable);
        assert_eq!(kind(Code::Unavailable, "etcdserver: no leader"), Unavailable);
        assert_eq!(kind(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"), Unavailable);
        assert_eq!(kind(Code::Unknown, "Service was not ready: transport error"), Unavailable);
        assert_eq!(kind(Code::InvalidArgument, "etcdserver: revision of auth store is old"), Unavailable);
        assert_eq!(kind(Code::Unavailable, "etcdserver: request timed out"), Ambiguous);
        assert_eq!(kind(Code::Unavailable, "keep-alive timed out"), Ambiguous);
        assert_eq!(kind(Code::Unknown, "h2 protocol error"), Ambiguous);
        assert_eq!(kind(Code::InvalidArgument, "etcdserver: authentication failed"), Denied);
        assert_eq!(kind(Code::InvalidArgument, "etcdserver: user name is empty"), Denied);
        assert_eq!(kind(Code::PermissionDenied, "etcdserver: permission denied"), Denied);
        assert_eq!(kind(Code::InvalidArgument, "etcdserver: key is not provided"), Internal);
        assert_eq!(kind(Code::FailedPrecondition, "etcdserver: authentication is not enabled"), Denied);
        assert_eq!(kind(Code::Unauthenticated, "etcdserver: invalid auth token"), Denied);
        assert_eq!(kind(Code::Internal, "user name"), Ambiguous);
        assert_eq!(kind(Code::Unimplemented, "unknown method"), Internal);
        assert_eq!(kind(Code::FailedPrecondition, "etcdserver: corrupt cluster"), Internal);
        assert_eq!(kind(Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"), Internal);
        assert_eq!(kind(Code::NotFound, "etcdserver: member not found"), Ambiguous);
    }

    fn status(code: Code, message: &str) -> Failure {
        ClientError::GRpcStatus(Status::new(code, message)).into()
    }

    /// Of a connection: with a cause.
    fn caused(message: &str, cause: impl std::error::Error + Send + Sync + 'static) -> Failure {
        let mut status = Status::new(Code::Unavailable, message);
        status.set_source(std::sync::Arc::new(cause));
        ClientError::GRpcStatus(status).into()
    }

    #[test]
    fn a_lease_that_is_not_there_is_lost_and_is_claimed_again() {
        let gone = || ClientError::LeaseKeepAliveError(LEASE_NOT_FOUND.to_owned());
        assert!(is_lease_not_found(&gone()));
        assert!(!is_lease_not_found(&ClientError::LeaseKeepAliveError("closed".to_owned())));
        assert!(!is_lease_not_found(&ClientError::WatchError(LEASE_NOT_FOUND.to_owned())));
        for failure in [Failure::from(gone()), status(Code::NotFound, "etcdserver: requested lease not found")] {
            assert_eq!((failure.kind, Error::from(failure).kind()), (Lost, Unavailable));
        }
        assert_eq!(Failure::from(ClientError::InvalidArgs("x".to_owned())).kind, Invalid);
        assert_eq!(Failure::from(ClientError::WatchError("x".to_owned())).kind, Ambiguous);
    }

    #[test]
    fn a_failure_says_what_may_help() {
        let full = status(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        let stale = status(Code::Unauthenticated, "etcdserver: invalid auth token");
        let old = status(Code::InvalidArgument, "etcdserver: revision of auth store is old");
        let undriven = status(Code::Unknown, "Service was not ready: transport error");
        let denied = status(Code::PermissionDenied, "etcdserver: permission denied");
        let facts = |f: &Failure| [f.is_of_this_endpoint(), f.is_full(), f.is_stale_token(), f.is_not_sent()];
        assert_eq!(facts(&full), [true, true, false, false]);
        assert_eq!(facts(&stale), [false, false, true, false]);
        assert_eq!(facts(&old), [true, false, true, false]);
        assert_eq!(facts(&undriven), [true, false, false, true]);
        assert_eq!(facts(&denied), [false; 4]);
        assert!(status(Code::Unknown, "h2 protocol error").is_of_this_endpoint());
    }

    #[test]
    fn a_read_that_was_not_answered_changed_nothing() {
        assert_eq!(status(Code::Unknown, "h2 protocol error").of_a_read().kind, Unavailable);
        assert_eq!(status(Code::PermissionDenied, "no").of_a_read().kind, Denied);
        assert_eq!(Failure::new(Lost, "x").instead_of(Lost, Internal).kind, Internal);
    }

    #[test]
    fn an_error_names_the_endpoint_and_says_what_is_known() {
        let told = |kind, endpoint: &str| Error::from(Failure::new(kind, "why").at(endpoint)).to_string();
        assert_eq!(told(Unavailable, "db:2379"), "etcd cannot be reached or cannot serve (db:2379: why)");
        assert_eq!(told(Ambiguous, ""), "etcd did not answer; the request may have been executed (why)");
        assert_eq!(told(Denied, ""), "etcd refused the user, the password or the rights (why)");
        assert_eq!(told(Internal, ""), "etcd refused the request (why)");
        assert_eq!(told(Lost, ""), "the session's lease ended; claim again (why)");
    }

    /// A server that speaks TLS ends a connection in plain text without a word.
    #[test]
    fn a_connection_in_plain_text_that_ends_may_want_tls() {
        let unmade = || ConnectError("reset".into());
        let hint = |failure: Failure| Error::from(failure.of_plain_connect()).to_string().contains("etcds://");
        let ended = caused("transport error", unmade());
        assert_eq!(ended.kind, Unavailable, "nothing was sent");
        assert!(hint(ended));
        assert!(!hint(caused("tcp connect error", unmade())), "it was refused");
        assert!(!hint(caused("transport error", fmt::Error)), "it may have been sent");
        assert!(!hint(status(Code::Unavailable, "etcdserver: no leader")), "the server said so");
        assert!(!hint(Failure::new(Unavailable, "x")), "no connection was tried");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn what_a_connection_says_is_told_from_what_the_server_says() {
        assert!(caused("transport error", fmt::Error).is_broken());
        assert!(!status(Code::Unavailable, "etcdserver: no leader").is_broken());
    }
}
