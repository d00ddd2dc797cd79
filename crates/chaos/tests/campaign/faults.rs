//! The faults: which there are on which store, what they are made to, and what is not promised under them.

use std::{
    fmt::{self, Display, Formatter},
    time::Duration,
};

use leasehold_chaos::Breaks;

use super::kind::{Kind, loses_data};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    PauseClient,
    KillClient,
    /// The command, its guardian or its program is paused, or killed.
    PauseCommand,
    KillCommand,
    BlockRuntime,
    /// Its links are cut meanwhile: what it holds is lost while its runtime does not run.
    BlockAndCut,
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
    /// It is ended as its operator does, and is there again.
    StopServer,
    /// One process of a server that has one for each client.
    PauseBackend,
    /// A server takes no further connection of the clients.
    RefuseConnections,
    /// Some of the connections are ended by the server.
    Terminate,
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
    /// Another program writes in the file, again and again.
    LockFile,
    /// A server's clock was ahead for a moment. What stays of that are greater tokens.
    ClockAhead,
    /// A server's clock is stepped, and stays so.
    ClockForward,
    ClockBack,
    /// It runs a little faster, or slower.
    ClockRate,
    /// A member is started again, with other limits for sessions.
    ChangeLimits,
    /// A server has room for less than it has, and evicts what it likes.
    EvictKeys,
    /// The disk of a file is full.
    FillDisk,
    /// What is asked with earlier tokens of users is refused.
    ChangeUsers,
    /// Somebody else ends a client's session, and with it goes all that the client has by it.
    EndSession,
    /// The address of a server leads a client to another store, or to another node of the same list, and back.
    MoveAddress,
    /// A member comes back without data, as a store of its own.
    OwnCluster,
    /// The address of a server leads a client to a pooler before it.
    Pooler,
    /// A standby is promoted beside its primary, and some clients reach the former primary alone for a while.
    PromoteBeside,
    /// The list of nodes changes, and clients are started anew with the new one.
    ChangeNodes,
}

/// Which request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    Claim,
    KeepAlive,
    Release,
    /// The notification of another client.
    Ring,
}

/// To what a fault is made: it is one at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Client,
    Server,
    /// The server that a pooler may be before.
    Database,
    Leader,
    /// What is in the store.
    Content,
}

const CLIENTS: &[Fault] = &[
    Fault::PauseClient,
    Fault::PauseClient,
    Fault::KillClient,
    Fault::BlockRuntime,
];
/// They are made beside all others.
pub(crate) const COMMANDS: &[Fault] = &[Fault::PauseCommand, Fault::KillCommand];
const LINKS: &[Fault] = &[
    Fault::BlockAndCut,
    Fault::BlockAndCut,
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
const RELEASES: &[Fault] = &[
    Fault::LostAnswer(Moment::Release),
    Fault::LateRequest(Moment::Release),
];
const BY_HAND: &[Fault] = &[Fault::Evict, Fault::DeleteKeys, Fault::DeleteKeys];
const NONE: &[Fault] = &[];
const LOSSES: &[Fault] = &[Fault::LoseData, Fault::Restore];
const REDIS_LOSSES: &[Fault] = &[Fault::LoseData, Fault::Restore, Fault::EvictKeys];
const DATABASE: &[Fault] = &[
    Fault::Terminate,
    Fault::Terminate,
    Fault::PauseBackend,
    Fault::PauseBackend,
    Fault::StopServer,
    Fault::LateRequest(Moment::Ring),
];
const ZOOKEEPER: &[Fault] = &[Fault::ChangeLimits, Fault::EndSession];
/// A running client takes servers of ZooKeeper that have lost all data for others.
const ZOOKEEPER_LOSSES: &[Fault] = &[Fault::Restore];
/// A run that [loses data](loses_data) has none of these: with its data a server loses its identity.
const MOVES: &[Fault] = &[Fault::MoveAddress, Fault::MoveAddress];
const MEMBER_MOVES: &[Fault] = &[Fault::MoveAddress, Fault::MoveAddress, Fault::OwnCluster];
const DATABASE_MOVES: &[Fault] = &[Fault::MoveAddress, Fault::MoveAddress, Fault::Pooler];
const SCRIPTS: &[Fault] = &[Fault::ForgetScripts, Fault::CloseSubscriptions];

/// What is no step, and no excuse.
const RATES: &[Fault] = &[Fault::ClockRate, Fault::ClockRate];
/// What a run of PostgreSQL has that loses no data: a limit would come back with them.
const DATABASE_KEEPS: &[Fault] = &[
    Fault::ClockForward,
    Fault::ClockBack,
    Fault::ClockBack,
    Fault::RefuseConnections,
    Fault::RefuseConnections,
];
/// What a run of some stores has that [loses no data](loses_data).
const CLOCKS: &[Fault] = &[Fault::ClockForward, Fault::ClockBack, Fault::ClockBack];
const ETCD: &[Fault] = &[Fault::Compact, Fault::EndSession];
const USERS: &[Fault] = &[Fault::ChangeUsers, Fault::ChangeUsers];

/// Which of them a run makes, and how far apart.
#[derive(Clone, Default)]
pub(crate) struct Choice {
    /// Their names. None: all of the store.
    pub(crate) only: Vec<String>,
    /// One at a time, and this long after the one before. Otherwise several at a time, mostly within a lease.
    pub(crate) apart: Option<Duration>,
}

impl Display for Choice {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(if self.only.is_empty() { "all" } else { "" })?;
        f.write_str(&self.only.join(", "))?;
        self.apart.map_or(Ok(()), |apart| {
            write!(f, ", {} s apart", apart.as_secs_f64())
        })
    }
}

impl Choice {
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.only.is_empty() || self.only.contains(&format!("{fault:?}"))
    }

    /// Whether it is the only one.
    pub(crate) fn is_only(&self, fault: Fault) -> bool {
        self.only == [format!("{fault:?}")]
    }

    /// A name that is none of a fault of this store.
    pub(crate) fn unknown(&self, kind: Kind, seed: u64) -> Option<&String> {
        let known: Vec<String> = faults(kind, seed)
            .iter()
            .chain(COMMANDS)
            .map(|fault| format!("{fault:?}"))
            .collect();
        self.only.iter().find(|name| !known.contains(name))
    }
}

/// Those of a store, in the run with this seed.
pub(crate) fn faults(kind: Kind, seed: u64) -> Vec<Fault> {
    let or = |losses, others| if loses_data(seed) { losses } else { others };
    let groups: &[&[Fault]] = match kind {
        Kind::Memory => &[&[Fault::PauseClient, Fault::PauseClient, Fault::BlockRuntime]],
        Kind::Sqlite => &[
            CLIENTS,
            &[
                Fault::DeleteFiles,
                Fault::LockFile,
                Fault::Evict,
                Fault::FillDisk,
            ],
        ],
        Kind::Redis => &[
            CLIENTS,
            LINKS,
            SERVERS,
            RELEASES,
            BY_HAND,
            SCRIPTS,
            or(REDIS_LOSSES, CLOCKS),
            or(NONE, MOVES),
            RATES,
            &[Fault::FillMemory],
        ],
        Kind::Redlock => &[
            CLIENTS,
            LINKS,
            SERVERS,
            RELEASES,
            SCRIPTS,
            or(REDIS_LOSSES, MOVES),
            RATES,
            &[Fault::Evict, Fault::ClockAhead, Fault::FillMemory],
        ],
        Kind::RedlockNodes => &[
            CLIENTS,
            SERVERS,
            SCRIPTS,
            RATES,
            &[Fault::ChangeNodes; 10],
            &[Fault::ClockAhead, Fault::FillMemory],
        ],
        Kind::Etcd => &[
            CLIENTS,
            LINKS,
            SERVERS,
            BY_HAND,
            or(LOSSES, USERS),
            or(NONE, MOVES),
            ETCD,
        ],
        Kind::EtcdCluster => &[
            CLIENTS,
            LINKS,
            SERVERS,
            MEMBERS,
            BY_HAND,
            or(LOSSES, USERS),
            or(NONE, MEMBER_MOVES),
            ETCD,
        ],
        Kind::ZooKeeper => &[
            CLIENTS,
            LINKS,
            SERVERS,
            BY_HAND,
            or(ZOOKEEPER_LOSSES, MOVES),
            ZOOKEEPER,
        ],
        Kind::Ensemble => &[
            CLIENTS,
            LINKS,
            SERVERS,
            MEMBERS,
            BY_HAND,
            or(ZOOKEEPER_LOSSES, MEMBER_MOVES),
            ZOOKEEPER,
            ZOOKEEPER,
        ],
        // A server that is started again has the part that it began with: sentinels would not set that right soon.
        Kind::Sentinel => &[
            CLIENTS,
            SCRIPTS,
            &[
                Fault::PauseServer,
                Fault::Evict,
                Fault::FailOver,
                Fault::FailOver,
                Fault::FillMemory,
            ],
        ],
        Kind::Postgres => &[
            CLIENTS,
            LINKS,
            SERVERS,
            RELEASES,
            BY_HAND,
            or(LOSSES, DATABASE_KEEPS),
            or(NONE, DATABASE_MOVES),
            RATES,
            DATABASE,
        ],
        Kind::PgBouncer => &[
            CLIENTS,
            LINKS,
            SERVERS,
            RELEASES,
            BY_HAND,
            DATABASE,
            &[Fault::RefuseConnections],
        ],
        // Who is started while it reaches the former primary alone cannot know that it is one: nobody is.
        Kind::Pair => &[&[
            Fault::PauseClient,
            Fault::PauseClient,
            Fault::BlockRuntime,
            Fault::PromoteBeside,
            Fault::PromoteBeside,
        ]],
        Kind::Cluster => &[
            CLIENTS,
            SERVERS,
            SCRIPTS,
            &[
                Fault::Evict,
                Fault::FailOver,
                Fault::MoveSlot,
                Fault::FillMemory,
            ],
        ],
    };
    groups.concat()
}

impl Fault {
    /// What is made in its place where the client is the command: of that, one process of three.
    pub(crate) fn of_command(self) -> Fault {
        match self {
            Fault::PauseClient | Fault::BlockRuntime => Fault::PauseCommand,
            Fault::KillClient => Fault::KillCommand,
            Fault::BlockAndCut => Fault::Cut,
            other => other,
        }
    }

    /// What is not promised under it. The stores' pages say so.
    pub(crate) fn breaks(self, kind: Kind) -> Breaks {
        match self {
            // The server's clock is in their tokens.
            Fault::LoseData | Fault::Restore if kind != Kind::Redis && !kind.is_database() => {
                Breaks::Order
            }
            Fault::EvictKeys if kind != Kind::Redis => Breaks::Order,
            // A lease lasts longer then.
            Fault::ClockBack if kind.is_database() => Breaks::Nothing,
            Fault::DeleteKeys
            | Fault::Evict
            | Fault::LoseData
            | Fault::Restore
            | Fault::FailOver => Breaks::Exclusion,
            Fault::EvictKeys | Fault::EndSession | Fault::ClockForward | Fault::ClockBack => {
                Breaks::Exclusion
            }
            _ => Breaks::Nothing,
        }
    }

    pub(crate) fn target(self) -> Target {
        match self {
            Fault::PauseServer | Fault::RestartServer | Fault::Isolate | Fault::OwnCluster => {
                Target::Server
            }
            Fault::StopServer | Fault::PauseBackend | Fault::RefuseConnections => Target::Database,
            Fault::LoseData | Fault::Restore | Fault::FillMemory | Fault::EvictKeys => {
                Target::Server
            }
            Fault::ClockForward | Fault::ClockBack | Fault::ClockRate | Fault::ChangeLimits => {
                Target::Server
            }
            Fault::PauseLeader
            | Fault::KillLeader
            | Fault::Partition
            | Fault::FailOver
            | Fault::MoveSlot => Target::Leader,
            Fault::ForgetScripts
            | Fault::Terminate
            | Fault::CloseSubscriptions
            | Fault::Compact
            | Fault::ChangeUsers
            | Fault::EndSession
            | Fault::DeleteFiles
            | Fault::LockFile
            | Fault::FillDisk
            | Fault::DeleteKeys
            | Fault::Evict
            | Fault::ClockAhead
            | Fault::PromoteBeside
            | Fault::ChangeNodes => Target::Content,
            _ => Target::Client,
        }
    }

    /// Whether it is made to all members of a store that has several: one alone has it from the others again, or cannot come back.
    pub(crate) fn is_of_all(self, kind: Kind) -> bool {
        kind.is_several() && matches!(self, Fault::LoseData | Fault::Restore)
    }

    /// Whether a database loses by it what was counted there, too.
    pub(crate) fn loses_counts(self, kind: Kind) -> bool {
        kind.is_database() && matches!(self, Fault::LoseData | Fault::Restore)
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
            (Kind::Postgres | Kind::PgBouncer, Moment::Claim) => b".claim_1(".into(),
            (Kind::Postgres | Kind::PgBouncer, Moment::KeepAlive) => b".renew_1(".into(),
            (Kind::Postgres | Kind::PgBouncer, Moment::Release) => b".release_1(".into(),
            (Kind::Postgres | Kind::PgBouncer, Moment::Ring) => b"pg_notify(".into(),
            (Kind::Redis, Moment::KeepAlive) => format!(" {ttl} \r\n").into(),
            (Kind::Redis, Moment::Release) => b"\r\n$33\r\n-".into(),
            // An id of 63 bits, alone in its message.
            (Kind::Etcd | Kind::EtcdCluster, Moment::KeepAlive) => b"\0\0\0\0\x0a\x08".into(),
            (Kind::ZooKeeper | Kind::Ensemble, Moment::Claim) => b"-lock-".into(),
            // Nothing is written to this node, whatever its version.
            (Kind::ZooKeeper | Kind::Ensemble, Moment::KeepAlive) => {
                b"/.leasehold\0\0\0\0\xff\xff\xff\xff".into()
            }
            // The label of the clients.
            _ => b"op-".into(),
        }
    }
}
