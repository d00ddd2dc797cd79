//! Failed requests: whether a request may still have been executed, and the advice to the user.

use std::error::Error as _;
use std::iter::successors;

use etcd_client::Error as ClientError;
use leasehold_core::Error;
use leasehold_core::ErrorKind::{
    self, Ambiguous, Corrupt, Denied, Internal, Invalid, Lost, OtherStore, Unavailable, Unsupported,
};
use tonic::{Code, ConnectError, Status};

/// The failure of a request: its kind and the reason.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// `Unavailable`: surely not executed. `Ambiguous`: perhaps executed, perhaps later. For both,
    /// another endpoint may do better, and for `OtherStore`. `Lost`: the lease does not exist (any more). Any other kind:
    /// the store refused the request, and would refuse it again.
    pub(crate) kind: ErrorKind,
    why: String,
    /// The error that etcd reported, if it is in the table.
    known: Option<&'static Known>,
    /// The server said nothing: there was no connection, it broke, or no answer came in time.
    unheard: bool,
    /// The member let nobody in: nothing was sent to it but the user, and another member may be of
    /// another cluster.
    refused_entry: bool,
}

/// An error that etcd defines (`api/v3rpc/rpctypes/error.go`), by its code and its text: the code alone says too little.
#[derive(Debug)]
struct Known {
    code: Code,
    text: &'static str,
    kind: ErrorKind,
    /// The meaning of the error, and the advice.
    what: &'static str,
}

const FULL: &str = "etcdserver: mvcc: database space exceeded";
const LEASE_GONE: &str = "etcdserver: requested lease not found";
const OLD_TOKEN: &str = "etcdserver: revision of auth store is old";
const BAD_TOKEN: &str = "etcdserver: invalid auth token";

/// The errors that etcd defines and this store knows. Those of kind `Unavailable` here were refused
/// before they were proposed to the peers. Other errors of code `Unavailable` (`request timed out`,
/// `server stopped`, `leader changed`) may follow a request that was carried out.
static KNOWN: [Known; 16] = [
    Known {
        code: Code::NotFound,
        text: LEASE_GONE,
        kind: Lost,
        what: "the session's lease ended; claim again",
    },
    Known {
        code: Code::ResourceExhausted,
        text: FULL,
        kind: Unavailable,
        what: "etcd is full (alarm NOSPACE) and stores nothing more: compact and defragment it, then `etcdctl alarm disarm`",
    },
    Known {
        code: Code::DataLoss,
        text: "etcdserver: corrupt cluster",
        kind: Unavailable,
        what: "the members' data differ (alarm CORRUPT) and etcd serves nothing: replace the member that is wrong, then `etcdctl alarm disarm`",
    },
    Known {
        code: Code::Unavailable,
        text: "etcdserver: no leader",
        kind: Unavailable,
        what: "the member has no leader: start the other members, or mend its way to a majority of them",
    },
    Known {
        code: Code::Unavailable,
        text: "etcdserver: request timed out",
        kind: Ambiguous,
        what: "etcd did not carry the request out in time: is a majority of its members up?",
    },
    Known {
        code: Code::Unavailable,
        text: "etcdserver: not capable",
        kind: Unavailable,
        what: "the member is still starting, or is older than 3.0",
    },
    Known {
        code: Code::Unavailable,
        text: "etcdserver: rpc not supported for learner",
        kind: Unavailable,
        what: "the member is a learner, which serves no locks: name the voting members",
    },
    Known {
        code: Code::ResourceExhausted,
        text: "etcdserver: too many requests",
        kind: Unavailable,
        what: "etcd has more requests than it can carry out",
    },
    Known {
        code: Code::InvalidArgument,
        text: OLD_TOKEN,
        kind: Unavailable,
        what: "the users or roles of etcd were changed meanwhile",
    },
    Known {
        code: Code::Unauthenticated,
        text: BAD_TOKEN,
        kind: Denied,
        what: "etcd accepts no token that it gives to this user: do all members have the same `--auth-token`?",
    },
    Known {
        code: Code::InvalidArgument,
        text: "etcdserver: authentication failed, invalid user ID or password",
        kind: Denied,
        what: "etcd knows no such user, or the password is wrong",
    },
    Known {
        code: Code::InvalidArgument,
        text: "etcdserver: user name is empty",
        kind: Denied,
        what: "etcd demands a user: give user:password@ in the URL",
    },
    Known {
        code: Code::FailedPrecondition,
        text: "etcdserver: user name not found",
        kind: Denied,
        what: "etcd has no such user any more",
    },
    Known {
        code: Code::FailedPrecondition,
        text: "etcdserver: authentication is not enabled",
        kind: Denied,
        what: "this etcd has no users: leave the user and the password out, or run `etcdctl auth enable`",
    },
    Known {
        code: Code::PermissionDenied,
        text: "etcdserver: permission denied",
        kind: Denied,
        what: "the user has not the rights: grant a role of it `readwrite --prefix` on the namespace",
    },
    Known {
        code: Code::InvalidArgument,
        text: "etcdserver: too many operations in txn request",
        kind: Unsupported,
        what: "etcd runs with less than `--max-txn-ops=128`, which is its default",
    },
];

/// The error text of a stream of keep-alives whose lease is not there. etcd's answer has no text
/// for it; this one is etcd-client's and this crate's.
pub(crate) const LEASE_NOT_FOUND: &str = "lease not found";

impl Failure {
    /// Creates a failure of this kind for this reason.
    pub(crate) fn new(kind: ErrorKind, why: impl Into<String>) -> Failure {
        Failure {
            kind,
            why: why.into(),
            known: None,
            unheard: false,
            refused_entry: false,
        }
    }

    /// The failure of a connection to one endpoint of several.
    pub(crate) fn of_connecting(self) -> Failure {
        let refused_entry = self.kind == Denied;
        // An endpoint that is no member must not be used, but the others may be.
        Failure {
            refused_entry,
            ..self.instead_of(Unsupported, Unavailable)
        }
    }

    /// Creates a failure of a request to which the server said nothing.
    pub(crate) fn unheard(kind: ErrorKind, why: impl Into<String>) -> Failure {
        Failure {
            unheard: true,
            ..Failure::new(kind, why)
        }
    }

    /// Names the endpoint in the failure, unless only a client of the program's knows it.
    pub(crate) fn at(self, endpoint: &str) -> Failure {
        if endpoint.is_empty() {
            self
        } else {
            Failure {
                why: format!("{endpoint}: {}", self.why),
                ..self
            }
        }
    }

    /// Returns whether the server said nothing.
    pub(crate) fn is_unheard(&self) -> bool {
        self.unheard
    }

    /// Returns whether another endpoint may do better.
    pub(crate) fn is_of_this_endpoint(&self) -> bool {
        self.refused_entry || matches!(self.kind, Ambiguous | Unavailable | OtherStore)
    }

    /// Returns whether the server refuses all that stores something; it still deletes.
    pub(crate) fn is_full(&self) -> bool {
        self.says(&[FULL])
    }

    /// Returns whether the token is the reason, and a new one may be accepted: it has run out, or
    /// is older than a change of the users or roles.
    pub(crate) fn is_stale_token(&self) -> bool {
        self.says(&[OLD_TOKEN, BAD_TOKEN])
    }

    fn says(&self, texts: &[&str]) -> bool {
        self.known.is_some_and(|known| texts.contains(&known.text))
    }

    /// The failure of a request that changes nothing, for which it does not matter whether it was
    /// executed.
    pub(crate) fn of_a_read(self) -> Failure {
        self.instead_of(Ambiguous, Unavailable)
    }

    /// Replaces the kind by `kind` if it is `said`.
    pub(crate) fn instead_of(self, said: ErrorKind, kind: ErrorKind) -> Failure {
        if self.kind == said {
            Failure { kind, ..self }
        } else {
            self
        }
    }
}

/// Returns whether a lease with the number that was asked for is there already.
pub(crate) fn is_lease_there(error: &ClientError) -> bool {
    let text = "etcdserver: lease already exists";
    matches!(error, ClientError::GRpcStatus(status) if status.message() == text)
}

/// Returns whether a stream of keep-alives reports that its lease is not there.
pub(crate) fn is_lease_not_found(error: &ClientError) -> bool {
    matches!(error, ClientError::LeaseKeepAliveError(why) if why == LEASE_NOT_FOUND)
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let status = match error {
            ClientError::GRpcStatus(status) => status,
            error if is_lease_not_found(&error) => return Failure::new(Lost, LEASE_NOT_FOUND),
            ClientError::InvalidArgs(_)
            | ClientError::InvalidUri(_)
            | ClientError::InvalidMetadataValue(_) => {
                return Failure::new(Invalid, error.to_string());
            }
            other => return Failure::new(Ambiguous, other.to_string()),
        };
        if let Some(cause) = of_connecting(&status) {
            return Failure::unheard(Unavailable, cause);
        }
        let known = KNOWN
            .iter()
            .find(|known| known.code == status.code() && known.text == status.message());
        let kind = match (known, status.code()) {
            (Some(known), _) => known.kind,
            (None, Code::Unauthenticated | Code::PermissionDenied) => Denied,
            (
                None,
                Code::InvalidArgument
                | Code::FailedPrecondition
                | Code::OutOfRange
                | Code::Unimplemented,
            ) => Internal,
            (None, _) => Ambiguous,
        };
        Failure {
            known,
            // An error that the server reports has no cause on this side.
            unheard: status.source().is_some(),
            ..Failure::new(kind, format!("{}: {}", status.code(), status.message()))
        }
    }
}

/// The reason why there was no connection, if there was none.
fn of_connecting(status: &Status) -> Option<String> {
    let mut causes = successors(status.source(), |&cause| cause.source());
    let of_connecting = causes.find(|cause| cause.is::<ConnectError>())?;
    // Each cause has less detail than the one below it.
    let causes = successors(Some(of_connecting), |&cause| cause.source());
    causes.last().map(ToString::to_string)
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        // Without a lease, or with a token that is too old, the next request gets a new one.
        let is_answer = failure.known.is_some()
            && !failure.says(&[LEASE_GONE, OLD_TOKEN, BAD_TOKEN])
            && !failure.is_unheard();
        let error = failure.told();
        if is_answer { error.answered() } else { error }
    }
}

impl Failure {
    /// The error of this failure, with the advice to the user.
    fn told(self) -> Error {
        let Failure {
            kind, why, known, ..
        } = self;
        let known = known.map(|known| known.what);
        let (kind, what) = match kind {
            OtherStore => return Error::new(kind, why),
            Unsupported => {
                let what = known.map_or_else(|| why.clone(), |known| format!("{known} ({why})"));
                return Error::new(kind, what);
            }
            Lost => (
                Unavailable,
                known.unwrap_or("the session's lease ended; claim again"),
            ),
            Unavailable => (
                kind,
                known.unwrap_or("etcd cannot be reached or cannot serve"),
            ),
            Ambiguous => {
                let what = known.unwrap_or("etcd did not answer");
                let what = format!("{what}; the request may have been executed ({why})");
                return Error::new(kind, what);
            }
            Denied => (
                kind,
                known.unwrap_or("etcd refused the user, the password or the rights"),
            ),
            Corrupt => (kind, "etcd holds something that Leasehold did not write"),
            _ => (kind, known.unwrap_or("etcd refused the request")),
        };
        Error::new(kind, format!("{what} ({why})"))
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt, io};

    use super::*;

    fn kind(code: Code, message: &str) -> ErrorKind {
        Error::from(Failure::from(ClientError::GRpcStatus(Status::new(
            code, message,
        ))))
        .kind()
    }

    #[test]
    fn only_what_was_surely_not_executed_is_unavailable() {
        assert_eq!(
            kind(Code::Unavailable, "etcdserver: no leader"),
            Unavailable
        );
        assert_eq!(
            kind(
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded"
            ),
            Unavailable
        );
        assert_eq!(
            kind(
                Code::InvalidArgument,
                "etcdserver: revision of auth store is old"
            ),
            Unavailable
        );
        assert_eq!(
            kind(Code::Unavailable, "etcdserver: request timed out"),
            Ambiguous
        );
        assert_eq!(kind(Code::Unavailable, "keep-alive timed out"), Ambiguous);
        assert_eq!(kind(Code::Unknown, "h2 protocol error"), Ambiguous);
        assert_eq!(
            kind(
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password"
            ),
            Denied
        );
        assert_eq!(
            kind(Code::InvalidArgument, "etcdserver: user name is empty"),
            Denied
        );
        assert_eq!(
            kind(Code::PermissionDenied, "etcdserver: permission denied"),
            Denied
        );
        assert_eq!(
            kind(Code::InvalidArgument, "etcdserver: key is not provided"),
            Internal
        );
        assert_eq!(
            kind(
                Code::FailedPrecondition,
                "etcdserver: authentication is not enabled"
            ),
            Denied
        );
        assert_eq!(
            kind(Code::Unauthenticated, "etcdserver: invalid auth token"),
            Denied
        );
        assert_eq!(kind(Code::Internal, "user name"), Ambiguous);
        assert_eq!(kind(Code::Unimplemented, "unknown method"), Internal);
        assert_eq!(
            kind(Code::FailedPrecondition, "etcdserver: corrupt cluster"),
            Internal
        );
        assert_eq!(
            kind(
                Code::OutOfRange,
                "etcdserver: mvcc: required revision is a future revision"
            ),
            Internal
        );
        assert_eq!(
            kind(Code::NotFound, "etcdserver: member not found"),
            Ambiguous
        );
    }

    fn status(code: Code, message: &str) -> Failure {
        ClientError::GRpcStatus(Status::new(code, message)).into()
    }

    /// The error of a connection, with a cause.
    fn caused(message: &str, cause: impl std::error::Error + Send + Sync + 'static) -> Failure {
        let mut status = Status::new(Code::Unavailable, message);
        status.set_source(std::sync::Arc::new(cause));
        ClientError::GRpcStatus(status).into()
    }

    #[test]
    fn a_lease_that_is_not_there_is_lost_and_is_claimed_again() {
        let gone = || ClientError::LeaseKeepAliveError(LEASE_NOT_FOUND.to_owned());
        assert!(is_lease_not_found(&gone()));
        assert!(!is_lease_not_found(&ClientError::LeaseKeepAliveError(
            "closed".to_owned()
        )));
        assert!(!is_lease_not_found(&ClientError::WatchError(
            LEASE_NOT_FOUND.to_owned()
        )));
        for failure in [
            Failure::from(gone()),
            status(Code::NotFound, "etcdserver: requested lease not found"),
        ] {
            assert_eq!(
                (failure.kind, Error::from(failure).kind()),
                (Lost, Unavailable)
            );
        }
        assert_eq!(
            Failure::from(ClientError::InvalidArgs("x".to_owned())).kind,
            Invalid
        );
        assert_eq!(
            Failure::from(ClientError::WatchError("x".to_owned())).kind,
            Ambiguous
        );
    }

    #[test]
    fn a_failure_says_what_may_help() {
        let full = status(
            Code::ResourceExhausted,
            "etcdserver: mvcc: database space exceeded",
        );
        let stale = status(Code::Unauthenticated, "etcdserver: invalid auth token");
        let old = status(
            Code::InvalidArgument,
            "etcdserver: revision of auth store is old",
        );
        let denied = status(Code::PermissionDenied, "etcdserver: permission denied");
        let facts = |f: &Failure| [f.is_of_this_endpoint(), f.is_full(), f.is_stale_token()];
        assert_eq!(facts(&full), [true, true, false]);
        assert_eq!(facts(&stale), [false, false, true]);
        assert_eq!(facts(&old), [true, false, true]);
        assert_eq!(facts(&denied), [false; 3]);
        assert!(status(Code::Unknown, "h2 protocol error").is_of_this_endpoint());
    }

    #[test]
    fn a_read_that_was_not_answered_changed_nothing() {
        assert_eq!(
            status(Code::Unknown, "h2 protocol error").of_a_read().kind,
            Unavailable
        );
        assert_eq!(
            status(Code::PermissionDenied, "no").of_a_read().kind,
            Denied
        );
        assert_eq!(
            Failure::new(Lost, "x").instead_of(Lost, Internal).kind,
            Internal
        );
    }

    #[test]
    fn an_error_names_the_endpoint_and_says_what_is_known() {
        let told =
            |kind, endpoint: &str| Error::from(Failure::new(kind, "why").at(endpoint)).to_string();
        assert_eq!(
            told(Unavailable, "db:2379"),
            "etcd cannot be reached or cannot serve (db:2379: why)"
        );
        assert_eq!(
            told(Ambiguous, ""),
            "etcd did not answer; the request may have been executed (why)"
        );
        assert_eq!(
            told(Denied, ""),
            "etcd refused the user, the password or the rights (why)"
        );
        assert_eq!(told(Internal, ""), "etcd refused the request (why)");
        assert_eq!(
            told(Corrupt, ""),
            "etcd holds something that Leasehold did not write (why)"
        );
        assert_eq!(
            told(Lost, ""),
            "the session's lease ended; claim again (why)"
        );
    }

    /// The failures of a connection that was not made, and of one that broke.
    #[test]
    fn what_was_not_connected_was_not_sent() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let unmade = caused("error trying to connect", ConnectError(refused.into()));
        assert!(unmade.kind == Unavailable && unmade.is_unheard());
        assert!(unmade.why.contains("refused"), "{unmade:?}");
        let broken = caused("transport error", fmt::Error);
        assert!(broken.kind == Ambiguous && broken.is_unheard());
    }

    /// Each error is reported with advice, and is recognized by its code and its text together.
    #[test]
    fn what_etcd_says_by_its_table_is_told_with_what_to_do() {
        for known in &KNOWN {
            let failure = status(known.code, known.text);
            assert!(failure.kind == known.kind && !failure.is_unheard());
            let told = Error::from(failure).to_string();
            assert!(
                told.contains(known.what) && told.contains(known.text),
                "{told}"
            );
            let other = status(Code::Aborted, known.text);
            assert!(other.known.is_none() && other.kind == Ambiguous);
        }
    }
}
