//! The faults: which there are on which store, what they are made to, and what is not promised under them.

use leasehold_chaos::Breaks;

use super::kind::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    PauseClient,
    KillClient,
    BlockRuntime,
    Cut,
    Hold,
    LateReplies,
    LoseReplies,
    Slow,
    Disconnect,
    Freeze,
    /// The answer to one particular request is lost, or late, or the request itself is.
    LostAnswer(Moment),
    LateAnswer(Moment),
    LateRequest(Moment),
    PauseServer,
    RestartServer,
    PauseLeader,
    KillLeader,
    Isolate,
    /// The same, and a client reaches that member alone.
    Partition,
    /// Another server takes the place of the one that leads.
    FailOver,
    /// A lock's slot moves to another node.
    MoveSlot,
    LoseData,
    /// What a server had some time ago takes the place of what it has.
    Restore,
    /// A server takes no more data.
    FillMemory,
    DeleteKeys,
    Evict,
    ForgetScripts,
    CloseSubscriptions,
    Compact,
    DeleteFiles,
    /// A server's clock was ahead for a moment. What stays of that are greater tokens.
    ClockAhead,
}

/// Which request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    Claim,
    KeepAlive,
    Release,
}

/// To what a fault is made: it is one at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Client,
    Server,
    Leader,
    /// What is in the store.
    Content,
}

const CLIENTS: &[Fault] = &[Fault::PauseClient, Fault::PauseClient, Fault::KillClient, Fault::BlockRuntime];
const LINKS: &[Fault] = &[
    Fault::Cut,
    Fault::Hold,
    Fault::LateReplies,
    Fault::LoseReplies,
    Fault::Slow,
    Fault::Disconnect,
    Fault::Freeze,
    Fault::LostAnswer(Moment::Claim),
    Fault::LateAnswer(Moment::Claim),
    Fault::LateRequest(Moment::Claim),
    Fault::LostAnswer(Moment::KeepAlive),
    Fault::LateAnswer(Moment::KeepAlive),
];
const SERVERS: &[Fault] = &[Fault::PauseServer, Fault::RestartServer];
const MEMBERS: &[Fault] = &[
    Fault::PauseLeader,
    Fault::PauseLeader,
    Fault::KillLeader,
    Fault::Isolate,
    Fault::Partition,
    Fault::Partition,
    Fault::Partition,
];
const RELEASES: &[Fault] = &[Fault::LostAnswer(Moment::Release), Fault::LateRequest(Moment::Release)];
const BY_HAND: &[Fault] = &[Fault::Evict, Fault::DeleteKeys, Fault::DeleteKeys];
const LOSSES: &[Fault] = &[Fault::LoseData, Fault::Restore];
const SCRIPTS: &[Fault] = &[Fault::ForgetScripts, Fault::CloseSubscriptions];

/// Those of a store.
pub(crate) fn faults(kind: Kind) -> Vec<Fault> {
    let groups: &[&[Fault]] = match kind {
        Kind::Memory => &[&[Fault::PauseClient, Fault::PauseClient, Fault::BlockRuntime]],
        Kind::Sqlite => &[CLIENTS, &[Fault::DeleteFiles, Fault::Evict]],
        Kind::Redis => &[CLIENTS, LINKS, SERVERS, RELEASES, BY_HAND, SCRIPTS, LOSSES, &[Fault::FillMemory]],
        Kind::Redlock => {
            &[CLIENTS, LINKS, SERVERS, RELEASES, SCRIPTS, LOSSES, &[Fault::Evict, Fault::ClockAhead, Fault::FillMemory]]
        }
        Kind::Etcd => &[CLIENTS, LINKS, SERVERS, BY_HAND, LOSSES, &[Fault::Compact]],
        Kind::EtcdCluster => &[CLIENTS, LINKS, SERVERS, MEMBERS, BY_HAND, &[Fault::Compact]],
        Kind::ZooKeeper => &[CLIENTS, LINKS, SERVERS, BY_HAND, LOSSES],
        Kind::Ensemble => &[CLIENTS, LINKS, SERVERS, MEMBERS, BY_HAND],
        // A server that is started again has the part that it began with: sentinels would not set that right soon.
        Kind::Sentinel => &[
            CLIENTS,
            SCRIPTS,
            &[Fault::PauseServer, Fault::Evict, Fault::FailOver, Fault::FailOver, Fault::FillMemory],
        ],
        Kind::Cluster => {
            &[CLIENTS, SERVERS, SCRIPTS, &[Fault::Evict, Fault::FailOver, Fault::MoveSlot, Fault::FillMemory]]
        }
    };
    groups.concat()
}

impl Fault {
    /// What is not promised under it. The stores' pages say so.
    pub(crate) fn breaks(self, kind: Kind) -> Breaks {
        match self {
            // The server's clock is in Redis' tokens.
            Fault::LoseData | Fault::Restore if kind != Kind::Redis => Breaks::Order,
            Fault::DeleteKeys | Fault::Evict | Fault::LoseData | Fault::Restore | Fault::FailOver => Breaks::Exclusion,
            _ => Breaks::Nothing,
        }
    }

    pub(crate) fn target(self) -> Target {
        match self {
            Fault::PauseServer | Fault::RestartServer | Fault::Isolate => Target::Server,
            Fault::LoseData | Fault::Restore | Fault::FillMemory => Target::Server,
            Fault::PauseLeader | Fault::KillLeader | Fault::Partition | Fault::FailOver | Fault::MoveSlot => {
                Target::Leader
            }
            Fault::ForgetScripts
            | Fault::CloseSubscriptions
            | Fault::Compact
            | Fault::DeleteFiles
            | Fault::DeleteKeys
            | Fault::Evict
            | Fault::ClockAhead => Target::Content,
            _ => Target::Client,
        }
    }

    /// Whether it concerns one lock.
    pub(crate) fn is_of_one_lock(self) -> bool {
        matches!(self, Fault::DeleteKeys | Fault::Evict)
    }
}

impl Moment {
    /// What this request has and others of the store do not.
    pub(crate) fn pattern(self, kind: Kind) -> Vec<u8> {
        let ttl = kind.ttl().as_millis();
        match (kind, self) {
            (Kind::Redlock, Moment::Claim) => b"\r\nclaim\r\n".into(),
            (Kind::Redlock, Moment::KeepAlive) => b"\r\nrenew\r\n".into(),
            (Kind::Redlock, Moment::Release) => b"\r\nrelease\r\n".into(),
            // A renewal names the claim, the token and the mode, and ends with the lease. A release names the claim alone.
            (Kind::Redis, Moment::KeepAlive) => format!(" {ttl} \r\n").into(),
            (Kind::Redis, Moment::Release) => b"\r\n$33\r\n-".into(),
            // An id of 63 bits, alone in its message.
            (Kind::Etcd | Kind::EtcdCluster, Moment::KeepAlive) => b"\0\0\0\0\x0a\x08".into(),
            (Kind::ZooKeeper | Kind::Ensemble, Moment::Claim) => b"-lock-".into(),
            // Nothing is written to this node, whatever its version.
            (Kind::ZooKeeper | Kind::Ensemble, Moment::KeepAlive) => b"/.leasehold\0\0\0\0\xff\xff\xff\xff".into(),
            // The label of the clients.
            _ => b"op-".into(),
        }
    }
}
