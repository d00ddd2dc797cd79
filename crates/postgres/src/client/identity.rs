//! The identity of the database, which each new connection proves.
//!
//! A database is the cluster's `system_identifier`, the database's oid, and the schema. A standby
//! that was promoted has the identifier of its primary, and a greater timeline. So of two servers
//! that accept writes, the one of the lower timeline is a former primary, and is not used. Hosts are
//! compared with each other at connect, and again after a connection broke.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use leasehold_core::ErrorKind::{OtherStore, Unavailable};
use leasehold_core::backend::Identity;
use leasehold_core::support::fault;
use leasehold_core::{Error, Result, StoreId};

use crate::client::answer::Row;
use crate::error::junk;

/// Asks a server whether it is a standby, and who it is. The name of the file that it writes to
/// begins with its timeline.
const WHO: &str = "SELECT pg_catalog.pg_is_in_recovery(), c.system_identifier,
    (SELECT d.oid::pg_catalog.int8 FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()),
    CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL ELSE pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) END
    FROM pg_catalog.pg_control_system() c";
/// Asks a server that does not say who it is.
pub(crate) const ROLE: &str = "SELECT pg_catalog.pg_is_in_recovery()";

/// What a server has said of itself.
#[derive(Debug)]
pub(crate) struct Who {
    pub(crate) is_standby: bool,
    /// `None` if this role may not ask.
    pub(crate) id: Option<StoreId>,
    pub(crate) timeline: u32,
}

impl Who {
    /// Reads the answer to [`ROLE`].
    pub(crate) fn unknown(rows: &[Row]) -> Result<Who> {
        Ok(Who {
            is_standby: column(rows, 0)?,
            id: None,
            timeline: 0,
        })
    }
}

/// The identity of the database, as far as a client knows it.
#[derive(Debug, Default)]
pub(crate) struct DatabaseIdentity {
    schema: String,
    identity: Identity,
    /// The greatest timeline that was seen; 0 before that.
    timeline: AtomicU32,
    /// The number of connections that broke.
    breaks: AtomicU64,
    /// That number when the hosts were compared with each other for the last time, plus one; 0
    /// before the first time.
    compared: AtomicU64,
    /// The role may not ask.
    is_refused: AtomicBool,
}

impl DatabaseIdentity {
    /// The database with this identity is the right one, if one is given, and otherwise the first
    /// that answers.
    pub(crate) fn pinned(id: Option<StoreId>, schema: &str) -> DatabaseIdentity {
        DatabaseIdentity {
            schema: schema.to_owned(),
            identity: Identity::pinned(id),
            ..DatabaseIdentity::default()
        }
    }

    pub(crate) fn id(&self) -> Option<StoreId> {
        self.identity.id()
    }

    /// The warning for an operator if the role may not ask.
    pub(crate) fn warning(&self) -> Option<String> {
        let what = "a server of another database behind this address would not be recognized, because the role may not ask for the identity: \
                    GRANT EXECUTE ON FUNCTION pg_control_system() TO this role";
        self.is_refused.load(Relaxed).then(|| what.to_owned())
    }

    /// The question to a server; `None` if the role may not ask it, and never could.
    pub(crate) fn question(&self) -> Option<&'static str> {
        let may_ask = !self.is_refused.load(Relaxed) || self.id().is_some();
        may_ask.then_some(WHO)
    }

    /// Notes that the role may not ask, as at some rented servers.
    pub(crate) fn was_refused(&self) {
        self.is_refused.store(true, Relaxed);
    }

    /// Reads the answer to the [`question`](DatabaseIdentity::question).
    pub(crate) fn read(&self, rows: &[Row]) -> Result<Who> {
        let [system, database]: [i64; 2] = [column(rows, 1)?, column(rows, 2)?];
        let file: Option<&str> = column(rows, 3)?;
        let timeline = file.and_then(|file| u32::from_str_radix(file.get(..8)?, 16).ok());
        let id = format!("{system:x}.{database}.{}", self.schema);
        Ok(Who {
            is_standby: column(rows, 0)?,
            id: Some(StoreId::of("postgres", id)),
            timeline: timeline.unwrap_or_default(),
        })
    }

    /// Fails if the server is another database, or a former primary.
    pub(crate) fn check(&self, who: &Who) -> Result<()> {
        let Some(id) = &who.id else {
            return match self.identity.id() {
                Some(known) => {
                    let what = format!(
                        "the server does not say whether it is the store {known}: GRANT EXECUTE ON FUNCTION pg_control_system() TO this role"
                    );
                    Err(Error::new(Unavailable, what))
                }
                None => Ok(()),
            };
        };
        self.identity.check(id)?;
        let latest = self.timeline.fetch_max(who.timeline, Relaxed);
        if who.timeline != 0 && who.timeline < latest && !fault("any-store") {
            let what = format!(
                "it is a former primary, of timeline {}, and a standby that was promoted writes timeline {latest}: stop the former one",
                who.timeline
            );
            return Err(Error::new(OtherStore, what));
        }
        Ok(())
    }

    /// Notes that a connection broke: a standby may have been promoted meanwhile.
    pub(crate) fn interrupted(&self) {
        self.breaks.fetch_add(1, Relaxed);
    }

    /// Returns the number for [`settle`](DatabaseIdentity::settle) if the hosts have to be compared
    /// with each other before one of them is used: they never were, or a connection broke since.
    pub(crate) fn unsettled(&self) -> Option<u64> {
        let now = self.breaks.load(Relaxed) + 1;
        (self.compared.load(Relaxed) < now).then_some(now)
    }

    /// Notes that the hosts were compared with each other.
    pub(crate) fn settle(&self, since: u64) {
        self.compared.fetch_max(since, Relaxed);
    }

    /// Returns whether a connection to a server of this timeline leads to a former primary by now.
    pub(crate) fn is_former(&self, timeline: u32) -> bool {
        timeline != 0 && timeline < self.timeline.load(Relaxed)
    }
}

fn column<'a, T: tokio_postgres::types::FromSql<'a>>(rows: &'a [Row], nth: usize) -> Result<T> {
    let row = rows.first().ok_or_else(|| junk("its identity"))?;
    row.try_get(nth).map_err(|_| junk("its identity"))
}
