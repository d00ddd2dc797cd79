//! The identity of the database, which each new connection proves.
//!
//! A database is the cluster's `system_identifier`, the database's oid, and the schema. A standby
//! that was promoted has the identifier of its primary, and a greater timeline. So of two servers
//! that accept writes, the one of the lower timeline is a former primary, and is not used. A copy
//! that was started without a promotion has the same timeline, and only its start is at another
//! time. Hosts are compared with each other at connect, and again after a connection broke.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use leasehold_core::ErrorKind::{OtherStore, Unavailable};
use leasehold_core::backend::Identity;
use leasehold_core::support::{fault, locked};
use leasehold_core::{Error, Result, StoreId};

use crate::client::answer::Row;
use crate::error::{Failure, junk};
use crate::scripts::started;

/// Asks a server whether it is a standby, and who it is. The last column has the name of the file
/// that it writes to, which begins with its timeline, and the time of its start.
macro_rules! who {
    ($file:literal) => {
        concat!(
            "SELECT pg_catalog.pg_is_in_recovery(), c.system_identifier,
    (SELECT d.oid::pg_catalog.int8 FROM pg_catalog.pg_database d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()),
    pg_catalog.concat(",
            $file,
            ", ' ', ",
            started!(),
            ")
    FROM pg_catalog.pg_control_system() c"
        )
    };
}

const WHO: &str = who!(
    "CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL ELSE pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) END"
);
/// Asks a server that does not tell the file that it writes to, as one with storage of its own.
const WHO_WITHOUT_FILE: &str = who!("NULL::pg_catalog.text");
/// Asks a server that does not say who it is.
pub(crate) const ROLE: &str = "SELECT pg_catalog.pg_is_in_recovery()";

/// What a server has said of itself.
#[derive(Debug, PartialEq)]
pub(crate) struct Who {
    pub(crate) is_standby: bool,
    /// `None` if the server does not say it.
    pub(crate) id: Option<StoreId>,
    /// 0 if it is not known.
    pub(crate) timeline: u32,
    /// The time of the start in microseconds; 0 if it is not known.
    started: i64,
}

impl Who {
    /// Reads the answer to [`ROLE`].
    pub(crate) fn unknown(rows: &[Row]) -> Result<Who> {
        Ok(Who {
            is_standby: column(rows, 0)?,
            id: None,
            timeline: 0,
            started: 0,
        })
    }

    /// Returns whether the other one is a primary of the same database and timeline that was
    /// started at another time: this one before or after a restart, or a copy.
    pub(crate) fn is_twin_of(&self, other: &Who) -> bool {
        self.id.is_some()
            && self.id == other.id
            && self.timeline == other.timeline
            && self.started != other.started
    }
}

/// The identity of the database, as far as a client knows it.
#[derive(Debug, Default)]
pub(crate) struct DatabaseIdentity {
    schema: String,
    identity: Identity,
    primary: Mutex<Primary>,
    /// The number of the primaries that were used, with each start of one. It changes with them.
    era: AtomicU64,
    /// The number of connections that broke.
    breaks: AtomicU64,
    /// That number when the hosts were compared with each other for the last time, plus one; 0
    /// before the first time.
    compared: AtomicU64,
    /// Two servers may be primaries, so no host is left out of the next comparison.
    is_doubted: AtomicBool,
    silence: Mutex<Silence>,
}

/// The primary that a client uses.
#[derive(Debug, Default)]
struct Primary {
    /// 0 if it is not known.
    timeline: u32,
    /// The time of its start; 0 before any is known.
    started: i64,
    /// The number of connections that had broken when it was seen for the last time.
    breaks: u64,
}

/// A time of no start, of a primary that is not to be used any more.
const NEVER: i64 = i64::MIN;

/// What the servers do not say of themselves, with the warning for an operator.
#[derive(Debug, Default)]
enum Silence {
    #[default]
    None,
    OfTimeline(String),
    OfAll(String),
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

    /// The warning for an operator if the servers do not say who they are.
    pub(crate) fn warning(&self) -> Option<String> {
        match &*locked(&self.silence) {
            Silence::None => None,
            Silence::OfTimeline(warning) | Silence::OfAll(warning) => Some(warning.clone()),
        }
    }

    /// The question to a server; `None` if it does not answer, and never did.
    pub(crate) fn question(&self) -> Option<&'static str> {
        match &*locked(&self.silence) {
            Silence::None => Some(WHO),
            Silence::OfTimeline(_) => Some(WHO_WITHOUT_FILE),
            // It may have been given the right meanwhile.
            Silence::OfAll(_) => self.id().is_some().then_some(WHO),
        }
    }

    /// The question to a server that refuses this one for good.
    pub(crate) fn next_question(refused: &'static str) -> Option<&'static str> {
        (refused == WHO).then_some(WHO_WITHOUT_FILE)
    }

    /// Notes that a question was refused for good, as at some rented servers. Returns the next one.
    pub(crate) fn was_refused(
        &self,
        question: &'static str,
        failure: &Failure,
    ) -> Option<&'static str> {
        let why = failure.why();
        let silence = if question == WHO {
            let what = format!(
                "a former primary would not be told from the standby that was promoted, because the server does not tell its timeline ({why})"
            );
            Silence::OfTimeline(what)
        } else {
            let grant = match failure.forbidden {
                true => ": GRANT EXECUTE ON FUNCTION pg_control_system() TO this role",
                false => "",
            };
            let what = format!(
                "a server of another database behind this address would not be recognized, because the server does not say who it is ({why}){grant}"
            );
            Silence::OfAll(what)
        };
        *locked(&self.silence) = silence;
        Self::next_question(question)
    }

    /// Reads the answer to the [`question`](DatabaseIdentity::question).
    pub(crate) fn read(&self, rows: &[Row]) -> Result<Who> {
        let [system, database]: [i64; 2] = [column(rows, 1)?, column(rows, 2)?];
        let state: &str = column(rows, 3)?;
        let (file, started) = state.split_once(' ').ok_or_else(|| junk("its identity"))?;
        let timeline = file.get(..8).map(|it| u32::from_str_radix(it, 16));
        let id = format!("{system:x}.{database}.{}", self.schema);
        Ok(Who {
            is_standby: column(rows, 0)?,
            id: Some(StoreId::of("postgres", id)),
            timeline: timeline.and_then(Result::ok).unwrap_or_default(),
            started: started.parse().map_err(|_| junk("its identity"))?,
        })
    }

    /// Returns the number of this primary, for [`is_former`](DatabaseIdentity::is_former), and
    /// `None` for a primary of the known timeline that was started at another time: it was
    /// restarted, or is a copy.
    ///
    /// Fails if the server is another database, or a former primary.
    pub(crate) fn check(&self, who: &Who) -> Result<Option<u64>> {
        let Some(id) = &who.id else {
            return match self.identity.id() {
                Some(known) => {
                    let what = match self.warning() {
                        Some(why) => {
                            format!("it is not known whether it is the store {known}: {why}")
                        }
                        None => format!("the server does not say whether it is the store {known}"),
                    };
                    Err(Error::new(Unavailable, what))
                }
                None => Ok(Some(0)),
            };
        };
        self.identity.check(id)?;
        if who.is_standby || fault("any-store") {
            return Ok(Some(0));
        }
        let mut primary = locked(&self.primary);
        if who.timeline != 0 && who.timeline < primary.timeline {
            let what = format!(
                "it is a former primary, of timeline {}, and a standby that was promoted writes timeline {}: stop the former one",
                who.timeline, primary.timeline
            );
            return Err(Error::new(OtherStore, what));
        }
        if primary.started == 0 || who.timeline > primary.timeline {
            return Ok(Some(self.go_on_with(who, &mut primary)));
        }
        if who.started != primary.started {
            return Ok(None);
        }
        primary.breaks = self.breaks.load(Relaxed);
        Ok(Some(self.era.load(Relaxed)))
    }

    fn go_on_with(&self, who: &Who, primary: &mut Primary) -> u64 {
        *primary = Primary {
            timeline: who.timeline.max(primary.timeline),
            started: who.started,
            breaks: self.breaks.load(Relaxed),
        };
        self.era.fetch_add(1, Relaxed) + 1
    }

    /// Checks the only server that can be asked. One that was started after the known one takes its
    /// place: as a rule it is the same one.
    ///
    /// Fails also if it runs since before the known one was started, and no connection broke
    /// meanwhile: then there are two.
    pub(crate) fn follow(&self, who: &Who) -> Result<u64> {
        if let Some(era) = self.check(who)? {
            return Ok(era);
        }
        let mut primary = locked(&self.primary);
        if who.started < primary.started && primary.breaks == self.breaks.load(Relaxed) {
            let what = "a server with the same data was started after this one, and was used since: one of them is a copy of the other, with locks \
                        of its own. Stop it, or make it a standby";
            return Err(Error::new(OtherStore, what));
        }
        Ok(self.go_on_with(who, &mut primary))
    }

    /// Checks the server that was chosen among all hosts, and uses no other one from now on.
    pub(crate) fn choose(&self, who: &Who) -> Result<u64> {
        let era = self.check(who)?;
        self.is_doubted.store(false, Relaxed);
        Ok(era.unwrap_or_else(|| self.go_on_with(who, &mut locked(&self.primary))))
    }

    /// Returns whether the server that was started at this time has said who it is.
    pub(crate) fn knows(&self, started: i64) -> bool {
        let known = locked(&self.primary).started;
        known == 0 || known == started
    }

    /// Notes that a connection broke: a standby may have been promoted meanwhile.
    pub(crate) fn interrupted(&self) {
        self.breaks.fetch_add(1, Relaxed);
    }

    /// Notes that another server may be a primary beside the known one: before a further connection
    /// is used, all hosts are compared, also slow ones.
    pub(crate) fn doubt(&self) {
        self.is_doubted.store(true, Relaxed);
        self.interrupted();
    }

    /// Uses no connection any more that was made so far.
    pub(crate) fn leave(&self) {
        locked(&self.primary).started = NEVER;
        self.era.fetch_add(1, Relaxed);
    }

    pub(crate) fn is_doubted(&self) -> bool {
        self.is_doubted.load(Relaxed)
    }

    /// Returns the number for [`settle`](DatabaseIdentity::settle) if the hosts have to be compared
    /// with each other before one of them is used: they never were, or a connection broke since.
    pub(crate) fn unsettled(&self) -> Option<u64> {
        let now = self.breaks.load(Relaxed) + 1;
        (self.compared.load(Relaxed) < now).then_some(now)
    }

    /// Notes that the hosts were compared with each other. Returns whether no other comparison has
    /// settled this before.
    pub(crate) fn settle(&self, since: u64) -> bool {
        self.compared.fetch_max(since, Relaxed) < since
    }

    /// Returns whether the comparison of this number is the last one.
    pub(crate) fn is_settled(&self, since: u64) -> bool {
        self.compared.load(Relaxed) == since
    }

    /// Returns whether a connection to the primary of this number leads to a former primary by now.
    pub(crate) fn is_former(&self, era: u64) -> bool {
        era != 0 && era != self.era.load(Relaxed)
    }
}

fn column<'a, T: tokio_postgres::types::FromSql<'a>>(rows: &'a [Row], nth: usize) -> Result<T> {
    let row = rows.first().ok_or_else(|| junk("its identity"))?;
    row.try_get(nth).map_err(|_| junk("its identity"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primary(timeline: u32, started: i64) -> Who {
        Who {
            is_standby: false,
            id: Some(StoreId::of("postgres", "1.2.leasehold")),
            timeline,
            started,
        }
    }

    #[test]
    fn the_only_server_may_be_restarted_and_no_copy_is_used_by_turns() {
        let identity = DatabaseIdentity::pinned(None, "leasehold");
        let first = identity.follow(&primary(1, 5)).unwrap();
        assert_eq!(identity.follow(&primary(1, 5)).unwrap(), first);
        let second = identity.follow(&primary(1, 7)).unwrap();
        assert!(identity.is_former(first) && !identity.is_former(second));
        let error = identity.follow(&primary(1, 5)).unwrap_err();
        assert_eq!(error.kind(), OtherStore);
        assert!(error.to_string().contains("a copy"), "{error}");
        assert!(!identity.is_former(second) && identity.knows(7) && !identity.knows(5));
        // Its clock was set back before it was restarted, which ends its connections.
        identity.interrupted();
        let third = identity.follow(&primary(1, 6)).unwrap();
        assert!(identity.is_former(second) && !identity.is_former(third));
    }

    #[test]
    fn of_several_hosts_only_a_promoted_one_takes_the_place_of_the_known_one_by_itself() {
        let identity = DatabaseIdentity::pinned(None, "leasehold");
        let first = identity.check(&primary(1, 5)).unwrap().unwrap();
        for other in [3, 7] {
            assert_eq!(identity.check(&primary(1, other)).unwrap(), None);
            assert!(!identity.is_former(first));
        }
        let promoted = identity.check(&primary(2, 3)).unwrap().unwrap();
        assert!(identity.is_former(first) && !identity.is_former(promoted));
        let error = identity.check(&primary(1, 9)).unwrap_err();
        assert!(error.to_string().contains("former primary"), "{error}");
        assert_eq!(identity.choose(&primary(2, 3)).unwrap(), promoted);
        identity.leave();
        assert!(identity.is_former(promoted));
        let again = identity.choose(&primary(2, 3)).unwrap();
        assert!(!identity.is_former(again) && identity.is_former(promoted));
    }

    #[test]
    fn a_server_that_does_not_tell_all_is_asked_for_the_rest() {
        let identity = DatabaseIdentity::pinned(None, "leasehold");
        assert!(identity.warning().is_none());
        let failure = Failure::new(leasehold_core::ErrorKind::Unsupported, "no file");
        assert_eq!(identity.question(), Some(WHO));
        assert_eq!(identity.was_refused(WHO, &failure), Some(WHO_WITHOUT_FILE));
        assert_eq!(identity.question(), Some(WHO_WITHOUT_FILE));
        let warning = identity.warning().unwrap();
        assert!(warning.contains("timeline (no file)"), "{warning}");
        let mut forbidden = failure;
        forbidden.forbidden = true;
        assert_eq!(identity.was_refused(WHO_WITHOUT_FILE, &forbidden), None);
        assert_eq!(identity.question(), None);
        let warning = identity.warning().unwrap();
        assert!(warning.contains("GRANT EXECUTE"), "{warning}");
    }
}
