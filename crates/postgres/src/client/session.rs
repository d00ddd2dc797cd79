//! The state of a session that a pool of the program lends, as whoever had it before has left it.
//!
//! The role and the right to write have to be those that the store was set up with: a request of
//! another role is refused, or finds other rights. All other settings change no request.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The columns that ask for the state. The first one tells whether the statement is a transaction of
/// its own: by the simple protocol a transaction begins when its first statement arrives.
pub(crate) const STATE: &str = "pg_catalog.now() OPERATOR(pg_catalog.=) pg_catalog.statement_timestamp(),
    pg_catalog.current_setting('client_encoding'), pg_catalog.quote_ident(current_user), pg_catalog.quote_ident(session_user),
    pg_catalog.current_setting('default_transaction_read_only'), pg_catalog.current_setting('synchronous_commit'),
    pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.<>) ''";

/// Why a session is not fit that is left in a transaction.
pub(crate) const IN_TRANSACTION: &str = "with an open transaction";

/// The warning about a session whose commits no standby has to store.
pub(crate) const WAITS_FOR_NONE: &str = "\
synchronous_commit does not wait until a standby has stored a grant: a failover may lose the last ones, and only the token tells their \
holders apart.";

/// The state of one session.
#[derive(Debug)]
pub(crate) struct Session {
    is_alone: bool,
    encoding: String,
    role: Role,
    is_read_only: bool,
    waits_for_none: bool,
}

/// The role that acts, and the one that has logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Role(String, String);

impl Role {
    /// Returns whether nobody has changed it since the login. A pool may log in by another name from
    /// some time on, as with credentials that are made anew.
    fn is_as(&self, first: &Role) -> bool {
        let is_own = |role: &Role| role.0 == role.1;
        self.0 == first.0 || is_own(self) && is_own(first)
    }
}

/// All sessions that one client has borrowed.
#[derive(Default)]
pub(crate) struct Sessions {
    /// The role of the first one.
    role: OnceLock<Role>,
    /// The commits of one of them do not wait for a synchronous standby.
    waits_for_none: AtomicBool,
}

impl Session {
    /// Reads the answer for the columns [`STATE`], and returns the columns behind them as well.
    pub(crate) fn read(texts: &[Option<String>]) -> Option<(Session, &[Option<String>])> {
        let (state, rest) = texts.split_first_chunk()?;
        let [alone, encoding, role, login, read_only, commit, standbys] = state
            .each_ref()
            .map(|text| text.as_deref().unwrap_or_default());
        let session = Session {
            is_alone: alone == "t",
            encoding: encoding.to_owned(),
            role: Role(role.to_owned(), login.to_owned()),
            is_read_only: read_only == "on",
            waits_for_none: standbys == "t" && matches!(commit, "local" | "remote_write"),
        };
        Some((session, rest))
    }

    /// The reason why nobody should get this session again, if there is one: a claim in it would be
    /// taken back with the transaction, or be for another name.
    pub(crate) fn defect(&self) -> Option<&'static str> {
        if !self.is_alone {
            return Some(IN_TRANSACTION);
        }
        (self.encoding != "UTF8").then_some("with another client_encoding than UTF8")
    }
}

impl Sessions {
    /// The reason why this session is not for the store, if there is one.
    pub(crate) fn refusal(&self, session: &Session) -> Option<String> {
        let other = self.role.get().filter(|first| !session.role.is_as(first));
        if let Some(Role(first, _)) = other {
            let Role(role, login) = &session.role;
            return Some(format!(
                "of the role {role}, logged in as {login}, and the first one was of the role {first} (SET ROLE)"
            ));
        }
        let why = "that are read-only (default_transaction_read_only)";
        session.is_read_only.then(|| why.to_owned())
    }

    /// Notes that the store uses this session.
    pub(crate) fn admit(&self, session: Session) {
        self.role.get_or_init(|| session.role);
        self.waits_for_none
            .fetch_or(session.waits_for_none, Ordering::Relaxed);
    }

    /// The warning for an operator, if there is one.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        let waits_for_none = self.waits_for_none.load(Ordering::Relaxed);
        waits_for_none.then_some(WAITS_FOR_NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(state: [&str; 7]) -> Session {
        let texts = [state.as_slice(), &["f"]].concat();
        let texts: Vec<_> = texts.iter().map(|text| Some((*text).to_owned())).collect();
        let (session, rest) = Session::read(&texts).unwrap();
        assert_eq!(rest, [Some("f".to_owned())]);
        session
    }

    #[test]
    fn a_session_in_another_state_than_the_first_one_is_refused() {
        let usual = ["t", "UTF8", "app", "app", "off", "on", "f"];
        let with = |nth: usize, value| {
            let mut state = usual;
            state[nth] = value;
            session(state)
        };
        let sessions = Sessions::default();
        for (nth, value, words) in [
            (0, "f", "open transaction"),
            (1, "LATIN1", "client_encoding"),
        ] {
            assert!(with(nth, value).defect().unwrap().contains(words));
        }
        assert!(
            sessions
                .refusal(&with(4, "on"))
                .unwrap()
                .contains("read-only")
        );
        // The first one decides about the role.
        assert!(sessions.refusal(&with(2, "other")).is_none());
        sessions.admit(session(usual));
        assert!(session(usual).defect().is_none() && sessions.refusal(&session(usual)).is_none());
        let why = sessions.refusal(&with(2, "other")).unwrap();
        assert!(why.contains("other") && why.contains("app"), "{why}");
        // The pool has new credentials.
        for (role, login) in [("app", "app2"), ("app2", "app2")] {
            let renewed = session(["t", "UTF8", role, login, "off", "on", "f"]);
            assert!(sessions.refusal(&renewed).is_none());
        }
        assert!(Session::read(&[None]).is_none());
    }

    #[test]
    fn a_session_whose_commits_do_not_wait_for_standbys_is_a_warning() {
        for (commit, standbys, warns) in [
            ("on", "t", false),
            ("off", "t", false),
            ("local", "f", false),
            ("local", "t", true),
            ("remote_write", "t", true),
        ] {
            let sessions = Sessions::default();
            sessions.admit(session([
                "t", "UTF8", "app", "app", "off", commit, standbys,
            ]));
            sessions.admit(session(["t", "UTF8", "app", "app", "off", "on", "t"]));
            assert_eq!(sessions.warning().is_some(), warns, "{commit} {standbys}");
        }
    }
}
