//! The values of requests and answers.

use std::fmt;

use zookeeper_client::{Acls, Error, SessionId};

use crate::wire::{CONTAINER, EPHEMERAL, Record, SEQUENTIAL, code, op};

/// The id and the password by which a server knows a session.
#[derive(Clone)]
pub struct SessionInfo {
    pub(crate) id: i64,
    pub(crate) password: Vec<u8>,
}

impl fmt::Debug for SessionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionInfo")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl SessionInfo {
    /// The id of the session.
    #[must_use]
    pub fn id(&self) -> SessionId {
        SessionId(self.id)
    }
}

/// The kind of a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    /// The node ends with its session.
    Ephemeral,
    /// The node ends with its session, and has a number.
    EphemeralSequential,
    /// The node ends some time after its last child.
    Container,
    /// The node stays.
    Persistent,
}

/// The options for a new node.
#[derive(Clone, Debug)]
pub struct CreateOptions<'a> {
    pub(crate) mode: CreateMode,
    _acls: Acls<'a>,
}

/// The number of a node.
#[derive(Clone, Copy, Debug)]
pub struct CreateSequence(pub(crate) i64);

impl fmt::Display for CreateSequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}", self.0)
    }
}

impl CreateMode {
    /// Adds these access rights, which are not simulated.
    #[must_use]
    pub fn with_acls(self, acls: Acls<'_>) -> CreateOptions<'_> {
        CreateOptions {
            mode: self,
            _acls: acls,
        }
    }

    pub(crate) fn op(self) -> i32 {
        if self == CreateMode::Container {
            op::CREATE_CONTAINER
        } else {
            op::CREATE
        }
    }
}

impl CreateOptions<'_> {
    /// Writes the request that creates this node, with access for anybody.
    pub(crate) fn written(&self, record: Record, path: &str, data: &[u8]) -> Record {
        let flags = match self.mode {
            CreateMode::Ephemeral => EPHEMERAL,
            CreateMode::EphemeralSequential => EPHEMERAL | SEQUENTIAL,
            CreateMode::Container => CONTAINER,
            CreateMode::Persistent => 0,
        };
        record
            .text(path)
            .bytes(data)
            .int(1)
            .int(31)
            .text("world")
            .text("anyone")
            .int(flags)
    }
}

/// The error of this number.
pub(crate) fn error_of(number: i32) -> Error {
    match number {
        code::UNIMPLEMENTED => Error::Unimplemented,
        code::BAD_ARGUMENTS => Error::BadArguments(&"server error"),
        code::NO_NODE => Error::NoNode,
        code::BAD_VERSION => Error::BadVersion,
        code::NO_CHILDREN_FOR_EPHEMERALS => Error::NoChildrenForEphemerals,
        code::NODE_EXISTS => Error::NodeExists,
        code::NOT_EMPTY => Error::NotEmpty,
        code::SESSION_EXPIRED => Error::SessionExpired,
        code::SESSION_MOVED => Error::SessionMoved,
        code::NO_WATCHER => Error::NoWatcher,
        other => Error::UnexpectedErrorCode(other),
    }
}

pub(crate) fn unexpected() -> Error {
    Error::UnexpectedError("the answer is to another request".to_owned())
}
