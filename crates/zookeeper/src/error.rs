//! ZooKeeper's errors in core's terms.

use leasehold_core::{Error, ErrorKind};
use zookeeper_client::Error as ZkError;

use crate::config::Config;

/// The answer of ZooKeeper, or the reason why there was none.
pub(crate) type Answer<T> = Result<T, ZkError>;

impl Config {
    /// The error of a request that only reads: nothing was changed.
    pub(crate) fn reading(&self, e: ZkError) -> Error {
        self.of(e, ErrorKind::Unavailable)
    }

    /// The error of a request that writes: without an answer it may or may not have been executed.
    pub(crate) fn writing(&self, e: ZkError) -> Error {
        self.of(e, ErrorKind::Ambiguous)
    }

    /// A request that reached no server was not sent, and perhaps that is because all of them
    /// belong to another store, or the only one runs alone.
    fn of(&self, e: ZkError, unanswered: ErrorKind) -> Error {
        match self.complaint() {
            Some(other) if matches!(e, ZkError::NoHosts | ZkError::Timeout) => other,
            _ => of(&self.servers, e, unanswered),
        }
    }
}

/// The name of completions in errors of decoding.
pub(crate) const COMPLETION: &str = "a completion";

/// An error code for which the client crate has no name.
const EPHEMERAL_ON_LOCAL_SESSION: i32 = -120;

fn of(servers: &str, e: ZkError, unanswered: ErrorKind) -> Error {
    let (kind, what) = match &e {
        ZkError::NoAuth | ZkError::InvalidAcl | ZkError::AuthFailed => (
            ErrorKind::Denied,
            "ZooKeeper refuses: check the credentials, and the ACLs of the store's nodes",
        ),
        ZkError::SessionExpired | ZkError::SessionMoved | ZkError::ClientClosed => (
            ErrorKind::Unavailable,
            "the session with ZooKeeper has ended; a new one will be opened",
        ),
        ZkError::NoHosts | ZkError::Timeout => (
            ErrorKind::Unavailable,
            "no ZooKeeper server can be reached; or each wants TLS (zookeepers://), or refuses the credentials, or its maxClientCnxns is used up",
        ),
        ZkError::NotReadOnly => (
            ErrorKind::Unavailable,
            "the ZooKeeper server has no quorum and only reads",
        ),
        ZkError::Throttled => (ErrorKind::Unavailable, "the ZooKeeper server is overloaded"),
        ZkError::QuotaExceeded => (
            ErrorKind::Unavailable,
            "the quota of the store's root node is used up",
        ),
        ZkError::ConnectionLoss | ZkError::Custom(_) | ZkError::UnexpectedError(_) => (
            unanswered,
            "ZooKeeper has not answered, or the connection was lost before it did",
        ),
        ZkError::NoNode => (unanswered, "the node was removed meanwhile"),
        ZkError::NoChildrenForEphemerals => (
            ErrorKind::Corrupt,
            "the lock's node is an ephemeral one, which is not Leasehold's: remove it",
        ),
        ZkError::UnmarshalError {
            entity: COMPLETION, ..
        } => (
            ErrorKind::Internal,
            "a completion was recorded by a newer version of Leasehold, or by others, and cannot be read",
        ),
        ZkError::UnmarshalError { .. } => (
            ErrorKind::Corrupt,
            "what is in ZooKeeper was not written by Leasehold, or cannot be read",
        ),
        ZkError::Unimplemented => (
            ErrorKind::Unsupported,
            "the ZooKeeper server is too old: 3.6 is needed",
        ),
        // This is the error of a session that only its own server knows, which has no node of its
        // own.
        ZkError::UnexpectedErrorCode(EPHEMERAL_ON_LOCAL_SESSION) => (
            ErrorKind::Unsupported,
            "the servers have localSessionsEnabled=true without localSessionsUpgradingEnabled=true, and a local session can hold no lock: set \
             the second one, too",
        ),
        ZkError::BadArguments(_) => (
            ErrorKind::Invalid,
            "ZooKeeper's client does not accept the request",
        ),
        _ => (
            ErrorKind::Internal,
            "ZooKeeper gave an answer that Leasehold does not expect",
        ),
    };
    let is_answer = matches!(
        e,
        ZkError::NotReadOnly | ZkError::Throttled | ZkError::QuotaExceeded
    );
    let error = Error::new(kind, format!("{servers}: {what}")).with_source(e);
    if is_answer { error.answered() } else { error }
}

#[cfg(test)]
mod tests {
    use ErrorKind::{Ambiguous, Corrupt, Denied, Internal, Invalid, Unavailable, Unsupported};

    use super::*;

    /// A read and a write differ only if the outcome is unknown: `None` stands for that.
    #[test]
    fn only_a_write_without_an_answer_is_in_doubt() {
        let config = Config::from_url("zookeeper://zk-1,zk-2").unwrap();
        for (e, kind) in [
            (ZkError::NoAuth, Some(Denied)),
            (ZkError::InvalidAcl, Some(Denied)),
            (ZkError::AuthFailed, Some(Denied)),
            (ZkError::SessionExpired, Some(Unavailable)),
            (ZkError::SessionMoved, Some(Unavailable)),
            (ZkError::ClientClosed, Some(Unavailable)),
            (ZkError::NoHosts, Some(Unavailable)),
            (ZkError::Timeout, Some(Unavailable)),
            (ZkError::NotReadOnly, Some(Unavailable)),
            (ZkError::Throttled, Some(Unavailable)),
            (ZkError::QuotaExceeded, Some(Unavailable)),
            (ZkError::ConnectionLoss, None),
            (ZkError::UnexpectedError("x".to_owned()), None),
            (ZkError::NoNode, None),
            (ZkError::NoChildrenForEphemerals, Some(Corrupt)),
            (ZkError::Unimplemented, Some(Unsupported)),
            (ZkError::UnexpectedErrorCode(-120), Some(Unsupported)),
            (ZkError::UnexpectedErrorCode(-1), Some(Internal)),
            (ZkError::BadArguments(&"x"), Some(Invalid)),
            (ZkError::NodeExists, Some(Internal)),
        ] {
            let read = config.reading(e.clone());
            let written = config.writing(e.clone());
            assert_eq!(read.kind(), kind.unwrap_or(Unavailable), "{e:?}");
            assert_eq!(written.kind(), kind.unwrap_or(Ambiguous), "{e:?}");
            let is_refusal = matches!(
                e,
                ZkError::NotReadOnly | ZkError::Throttled | ZkError::QuotaExceeded
            );
            assert_eq!(written.is_answer(), is_refusal, "{e:?}");
            assert!(
                read.to_string().contains("zk-1") && format!("{read:?}").contains(&e.to_string()),
                "{read:?}"
            );
        }
    }

    #[test]
    fn a_lock_that_cannot_have_entries_is_to_be_removed() {
        let error = Config::from_url("zookeeper://zk-1")
            .unwrap()
            .writing(ZkError::NoChildrenForEphemerals);
        assert!(error.to_string().contains("remove it"), "{error}");
    }
}
