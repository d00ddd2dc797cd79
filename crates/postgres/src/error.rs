//! Failures of requests. They tell whether the request was surely not executed, or perhaps was.

use std::error::Error as _;
use std::io;

use crate::pool::PoolError;
use leasehold_core::Error;
use leasehold_core::ErrorKind::{
    self, Ambiguous, Corrupt, Denied, Internal, Invalid, Unavailable, Unsupported,
};

/// The failure of a request, with its cause.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    why: String,
    /// The connection can be used no further.
    pub(crate) broken: bool,
    /// The schema, or one of its functions, is missing.
    pub(crate) missing: bool,
    /// The role lacks a right, or rows are hidden from it.
    pub(crate) forbidden: bool,
    /// A later version of the schema is there.
    pub(crate) outdated: bool,
    /// The transaction had another isolation level than locks need. Nothing was executed.
    pub(crate) is_isolation: bool,
    /// Somebody had left a transaction open on the connection, and it was aborted.
    pub(crate) is_aborted: bool,
    /// The statement was canceled: by an operator, or by a time limit of the session.
    pub(crate) is_canceled: bool,
    /// A pool lent no connection, or the server had room for no further one.
    pub(crate) lacks_room: bool,
    /// `why` is the complete text of the error.
    said: bool,
    /// The failure is about the files of TLS, or the certificates.
    of_tls: bool,
    /// The server refused the request, and would refuse it again.
    is_answer: bool,
}

/// The source of an error about TLS. It distinguishes the error from the server's refusal of a
/// user.
#[derive(Debug)]
pub(crate) struct OfTls {
    /// The fault is in our own files and settings: the server may be as it should.
    pub(crate) is_own: bool,
}

impl std::fmt::Display for OfTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no connection by TLS was made")
    }
}

impl std::error::Error for OfTls {}

/// Returns whether an error is about the files of TLS, or the certificates.
pub(crate) fn is_of_tls(e: &Error) -> bool {
    e.source().is_some_and(|cause| cause.is::<OfTls>())
}

/// Returns whether a server that has refused a connection over TLS (`by_tls`) may let one in plain
/// text in, or the reverse. A mistake of our own, and a login over TLS that fails because somebody
/// is in between, are no reasons to go on in plain text.
pub(crate) fn is_of_encryption(e: &Error, by_tls: bool) -> bool {
    let of_tls = e.source().and_then(|cause| cause.downcast_ref::<OfTls>());
    let text = || e.to_string();
    match of_tls {
        Some(of_tls) => !of_tls.is_own,
        None => text().contains("SQLSTATE 28000") && (!by_tls || text().contains(NO_RULE)),
    }
}

/// A part of the hint about a server whose rules do not let us in.
const NO_RULE: &str = "no rule of its pg_hba.conf";

impl Failure {
    /// Creates a failure of this kind with this reason; the connection can still be used.
    pub(crate) fn new(kind: ErrorKind, why: impl Into<String>) -> Failure {
        Failure {
            kind,
            why: why.into(),
            broken: false,
            missing: false,
            forbidden: false,
            outdated: false,
            is_isolation: false,
            is_aborted: false,
            is_canceled: false,
            lacks_room: false,
            said: false,
            of_tls: false,
            is_answer: false,
        }
    }

    /// Creates a failure of this kind with this reason, after which the connection cannot be used
    /// any more.
    pub(crate) fn broken(kind: ErrorKind, why: impl Into<String>) -> Failure {
        Failure {
            broken: true,
            ..Failure::new(kind, why)
        }
    }

    /// The reason, without the words for its kind.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    /// Returns whether the same request may succeed later.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self.kind, Unavailable | Ambiguous)
    }

    /// Wraps an error whose text is complete, such as that of a connection that could not be made.
    /// The connection counts as broken.
    pub(crate) fn of(e: &Error) -> Failure {
        Failure {
            said: true,
            of_tls: is_of_tls(e),
            is_answer: e.is_answer(),
            ..Failure::broken(e.kind(), e.to_string())
        }
    }

    /// The failure for a further connection after an earlier one was made. An error about TLS or an
    /// `Invalid` one becomes `Unavailable`: a configuration that was good at first is wrong only
    /// for a while, such as a certificate that is being replaced.
    pub(crate) fn of_another_connection(self) -> Failure {
        let passes = self.of_tls || self.kind == Invalid;
        Failure {
            kind: if passes { Unavailable } else { self.kind },
            ..self
        }
    }

    /// The failure of a request that was sent.
    pub(crate) fn of_request(e: &tokio_postgres::Error) -> Failure {
        let Some(said) = e.as_db_error() else {
            // The connection is open, and no input or output failed: the values do not fit their
            // types, which is a mistake of this client.
            let is_ours = !e.is_closed() && e.source().is_none_or(|cause| !cause.is::<io::Error>());
            let kind = if is_ours { Internal } else { Ambiguous };
            return Failure::broken(kind, format!("the connection ended: {e}"));
        };
        Failure::of_answer(said.code().code(), said.message())
    }

    /// The failure of a request that the server refused with this SQLSTATE and this message.
    fn of_answer(code: &str, message: &str) -> Failure {
        Failure {
            kind: kind_of(code),
            why: words(code, message),
            // A server that stops, refuses the user, loses the connection or may not write is of no
            // further use.
            broken: matches!(code.get(..2), Some("08" | "57" | "28")) && code != "57014"
                || matches!(code, "25006" | "25P02"),
            missing: matches!(code, "3F000" | "42P01" | "42883"),
            forbidden: code == "42501",
            outdated: code == "LH003",
            is_isolation: code == "25001",
            is_aborted: code == "25P02",
            is_canceled: code == "57014",
            lacks_room: false,
            said: false,
            of_tls: false,
            is_answer: is_answer(code),
        }
    }

    /// The failure of a request that was sent on a borrowed connection.
    pub(crate) fn of_borrowed(e: PoolError) -> Failure {
        match e {
            PoolError::Client(e) => Failure::of_request(&e),
            PoolError::Refused { sqlstate, message } => Failure::of_answer(&sqlstate, &message),
            PoolError::Failed(why) => {
                Failure::broken(Ambiguous, format!("the connection ended: {why}"))
            }
        }
    }

    /// The failure of a pool that lends no connection. Nothing was executed.
    pub(crate) fn of_lending(name: &str, e: PoolError) -> Failure {
        let lacks_room = match &e {
            PoolError::Client(e) => e.code().is_some_and(|code| code.code().starts_with("53")),
            PoolError::Refused { sqlstate, .. } => sqlstate.starts_with("53"),
            // A pool that was full for too long says so in its own words.
            PoolError::Failed(_) => true,
        };
        let failure = match e {
            PoolError::Client(e) => Failure::of_connecting(&e),
            PoolError::Refused { sqlstate, message } => {
                Failure::of_refused_login(&sqlstate, &message)
            }
            PoolError::Failed(why) => Failure::broken(Unavailable, why),
        };
        Failure {
            why: format!("{name}: {}", failure.why),
            lacks_room,
            ..failure
        }
    }

    /// The failure of a connection for which there may be room once another one is given back.
    pub(crate) fn for_lack_of_room(self) -> Failure {
        Failure {
            lacks_room: true,
            ..self
        }
    }

    /// The failure of a login that the server refused with this SQLSTATE and this message.
    fn of_refused_login(code: &str, message: &str) -> Failure {
        let by_pooler = (code == "08P01").then(|| kind_by_pooler(message)).flatten();
        let kind = match kind_of(code) {
            kind @ (Denied | Invalid | Unsupported) => kind,
            _ => by_pooler.unwrap_or(Unavailable),
        };
        Failure {
            is_answer: is_answer(code) || by_pooler.is_some(),
            ..Failure::broken(kind, words(code, message))
        }
    }

    /// The failure of a connection that could not be made. Nothing was executed.
    pub(crate) fn of_connecting(e: &tokio_postgres::Error) -> Failure {
        if let Some(said) = e.as_db_error() {
            return Failure::of_refused_login(said.code().code(), said.message());
        }
        let cause = e.source();
        if cause.is_some_and(|cause| cause.to_string().contains("channel binding")) {
            let why = "channel_binding=require, and the server did not bind the login to its certificate: it takes TLS, and a password that is \
                       stored as scram-sha-256";
            return Failure::broken(Denied, why);
        }
        // The client crate reports a missing password, or an unknown method of authentication, with
        // these words.
        let is_refused = ["authentication", "invalid configuration"]
            .iter()
            .any(|begin| e.to_string().starts_with(begin));
        if is_refused && cause.is_none_or(|cause| !cause.is::<io::Error>()) {
            return Failure::broken(
                Denied,
                "the server asks for a password, or for another way to show who we are",
            );
        }
        let why = cause.map_or_else(|| e.to_string(), |cause| format!("{e}: {cause}"));
        Failure::broken(Unavailable, why)
    }

    /// The failure of a request that changes nothing: it does not matter whether it was executed,
    /// so `Ambiguous` becomes `Unavailable`.
    pub(crate) fn of_a_read(self) -> Failure {
        self.instead_of(Ambiguous, Unavailable)
    }

    /// The failure as `Unsupported`, with an explanation: the server or the role is not set up for
    /// locks.
    pub(crate) fn because(self, what: &str) -> Failure {
        Failure {
            kind: Unsupported,
            why: format!("{}: {what}", self.why),
            ..self
        }
    }

    /// The failure with this `kind` if its kind was `said`, and unchanged otherwise.
    pub(crate) fn instead_of(self, said: ErrorKind, kind: ErrorKind) -> Failure {
        if self.kind == said {
            Failure { kind, ..self }
        } else {
            self
        }
    }
}

/// The kind of error for a request that the server refused with this SQLSTATE.
fn kind_of(code: &str) -> ErrorKind {
    match code {
        // The request was surely not executed, or was rolled back.
        "40001" | "40P01" | "55P03" | "57014" | "54000" | "57P03" | "25006" | "25P02" | "08001"
        | "08004" => Unavailable,
        // The server may send these after the commit.
        "57P01" | "57P02" | "57P05" | "40003" => Ambiguous,
        "42501" => Denied,
        // The last two are the store's own: the schema belongs to another role, or has a later
        // version.
        "25001" | "3F000" | "42P01" | "42883" | "LH002" | "LH003" => Unsupported,
        // Only the name of the schema makes a statement that is no SQL. The last one is the store's
        // own: an argument is out of its bounds.
        "22021" | "22P05" | "3D000" | "42601" | "LH004" => Invalid,
        // Data corrupted: also the store's own, for a place that it cannot have written.
        "XX001" | "XX002" => Corrupt,
        _ => match code.get(..2) {
            Some("53") => Unavailable,
            Some("08") => Ambiguous,
            Some("28") => Denied,
            Some("0A") => Unsupported,
            _ => Internal,
        },
    }
}

/// The kind of error for a login that PgBouncer has refused for good. It gives the SQLSTATE of a
/// broken protocol to all of its reasons, and to those of the server that it passes on.
fn kind_by_pooler(message: &str) -> Option<ErrorKind> {
    let has = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    if has(&["authentication failed", "auth failed", "no such user"]) {
        Some(Denied)
    } else if has(&["no such database"])
        || message.contains("database") && message.contains("does not exist")
    {
        Some(Invalid)
    } else {
        None
    }
}

/// Returns whether the server would refuse the same request again. It would not if another session
/// was in the way, or if it ended this one connection.
fn is_answer(code: &str) -> bool {
    !matches!(
        code,
        "40001" | "40003" | "40P01" | "55P03" | "57P01" | "57P02" | "57P05" | "25P02"
    ) && !code.starts_with("08")
}

/// The server's message, without parts that may contain a secret: its DETAIL, its parameters, and
/// the values that it could not read.
fn words(code: &str, message: &str) -> String {
    let hint = hint(code, message);
    let shows_values = matches!(code.get(..2), Some("22" | "28")) || code == "23505";
    let message = if shows_values { "" } else { message };
    let between = if message.is_empty() { "" } else { " " };
    format!("SQLSTATE {code}{between}{message}{hint}")
}

/// What to do about this code and this message, which may be in the server's language.
fn hint(code: &str, message: &str) -> &'static str {
    match code {
        "25001" => {
            ": locks need READ COMMITTED, and no transaction of it could be begun; ALTER ROLE … SET default_transaction_isolation = \
             'read committed'"
        }
        "55P03" => {
            ": a transaction has locked the row of this lock; pg_stat_activity shows it, or pg_prepared_xacts if it is a prepared one"
        }
        "25006" => {
            ": it is a standby, or read-only; behind a pooler, another program may have set default_transaction_read_only"
        }
        "3F000" | "42P01" | "42883" => {
            ": the schema of the locks is missing, or too old; its migration is to be executed"
        }
        "42601" => ": the name of the schema is a word of SQL; choose another one (schema=…)",
        "LH004" => {
            ": a token beyond 2^52 is only for roles that may execute raise_1, for a move from another store"
        }
        "28000" if message.contains("channel binding") => {
            ": the server saw another certificate than we did: a proxy, or somebody, is in between; channel_binding=disable if you trust it"
        }
        "28000" if message.contains("no encryption") => {
            ": no rule of its pg_hba.conf lets this user into this database from here without encryption: sslmode=verify-full encrypts"
        }
        "28000" if message.contains("pg_hba.conf") => {
            ": no rule of its pg_hba.conf lets this user into this database from here"
        }
        "28P01" => ": the password is wrong, or there is no such user",
        "53300" => ": it, or this role or database, has as many connections as it may",
        "28000" if message.starts_with("certificate authentication failed") => {
            ": the name (CN) in the certificate of `sslcert` is not this user's; log in as the user that it names, or map it in pg_ident.conf"
        }
        "28000" if message.contains("certificate") => {
            ": the server demands a client certificate; give `sslcert` and `sslkey`"
        }
        _ => "",
    }
}

impl From<Failure> for Error {
    fn from(
        Failure {
            kind,
            why,
            said,
            is_answer,
            ..
        }: Failure,
    ) -> Error {
        let of = |what: String| {
            let error = Error::new(kind, what);
            if is_answer { error.answered() } else { error }
        };
        if said {
            return of(why);
        }
        let what = match kind {
            Unavailable => "PostgreSQL cannot be reached or cannot serve",
            Ambiguous => "PostgreSQL did not answer; the request may have been executed",
            Denied => "PostgreSQL refused the user, the password or the rights",
            Unsupported => "this PostgreSQL cannot be used for locks",
            Corrupt => "PostgreSQL holds something that is not ours, or that nobody can read",
            _ => "PostgreSQL refused the request",
        };
        of(format!("{what} ({why})"))
    }
}

/// The error for an answer that none of the store's functions gives.
pub(crate) fn junk(what: &str) -> Error {
    Error::new(
        Corrupt,
        format!("PostgreSQL holds something that is not ours, or that nobody can read: {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_surely_not_executed_is_unavailable() {
        for (kind, codes) in [
            (
                Unavailable,
                &[
                    "40001", "40P01", "55P03", "57014", "53300", "53100", "54000", "57P03",
                    "25006", "08001",
                ][..],
            ),
            (Ambiguous, &["57P01", "57P02", "08006", "08P01", "40003"]),
            (Denied, &["28P01", "28000", "42501"]),
            (
                Unsupported,
                &[
                    "25001", "0A000", "42883", "3F000", "42P01", "LH002", "LH003",
                ],
            ),
            (Invalid, &["22021", "22P05", "3D000", "42601", "LH004"]),
            (Corrupt, &["XX001", "XX002"]),
            (Internal, &["XX000", "23505", "P0001", ""]),
        ] {
            for code in codes {
                assert_eq!(kind_of(code), kind, "{code}");
            }
        }
    }

    #[test]
    fn what_a_pooler_refuses_for_good_is_not_waited_for() {
        for (message, kind) in [
            ("password authentication failed", Denied),
            ("SASL authentication failed", Denied),
            ("auth failed", Denied),
            ("no such user", Denied),
            ("no such user: me", Denied),
            (
                "server login failed: FATAL password authentication failed for user \"me\"",
                Denied,
            ),
            ("no such database: shop", Invalid),
            ("database \"shop\" does not exist", Invalid),
            (
                "server login failed: FATAL the database system is starting up",
                Unavailable,
            ),
            ("pgbouncer cannot connect to server", Unavailable),
            ("query_wait_timeout", Unavailable),
            ("no more connections allowed (max_client_conn)", Unavailable),
        ] {
            let failure = Failure::of_refused_login("08P01", message);
            assert_eq!(failure.kind, kind, "{message}");
            let error = Error::from(failure);
            assert_eq!(error.is_answer(), kind != Unavailable, "{message}");
            assert!(error.to_string().contains(message), "{error}");
        }
        let other = Failure::of_refused_login("53300", "no such user");
        assert_eq!(other.kind, Unavailable);
    }

    #[test]
    fn only_a_server_whose_rules_want_plain_text_gets_it_after_tls() {
        let refused = |message: &str| {
            let why = format!("SQLSTATE 28000{}", hint("28000", message));
            Error::from(Failure::broken(Denied, why))
        };
        let rule = refused("no pg_hba.conf entry for host \"h\", user \"u\", SSL encryption");
        let binding = refused("SCRAM channel binding check failed");
        let unknown = refused("eine Meldung in einer anderen Sprache");
        let of_tls = |is_own| Error::new(Denied, "no TLS").with_source(OfTls { is_own });
        for (error, after_tls, after_plain) in [
            (rule, true, true),
            (unknown, false, true),
            (of_tls(false), true, true),
            (of_tls(true), false, false),
            (Error::new(Denied, "SQLSTATE 28P01"), false, false),
        ] {
            assert_eq!(is_of_encryption(&error, true), after_tls, "{error}");
            assert_eq!(is_of_encryption(&error, false), after_plain, "{error}");
        }
        assert!(!is_of_encryption(&binding, true), "{binding}");
        assert!(binding.to_string().contains("channel_binding=disable"));
    }

    #[test]
    fn a_read_that_was_not_answered_changed_nothing() {
        assert_eq!(Failure::new(Ambiguous, "x").of_a_read().kind, Unavailable);
        assert_eq!(Failure::new(Denied, "x").of_a_read().kind, Denied);
        assert_eq!(
            Failure::new(Denied, "x").instead_of(Denied, Internal).kind,
            Internal
        );
    }

    #[test]
    fn an_error_says_what_is_known_and_why() {
        for (kind, words) in [
            (
                Unavailable,
                "PostgreSQL cannot be reached or cannot serve (why)",
            ),
            (
                Ambiguous,
                "PostgreSQL did not answer; the request may have been executed (why)",
            ),
            (
                Denied,
                "PostgreSQL refused the user, the password or the rights (why)",
            ),
            (
                Unsupported,
                "this PostgreSQL cannot be used for locks (why)",
            ),
            (Internal, "PostgreSQL refused the request (why)"),
        ] {
            let error = Error::from(Failure::new(kind, "why"));
            assert_eq!((error.kind(), error.to_string()), (kind, words.to_owned()));
        }
        let whole = Failure::of(&Error::new(Denied, "the whole story"));
        assert!(whole.broken);
        assert_eq!(Error::from(whole).to_string(), "the whole story");
        let junk = junk("an entry");
        assert!(junk.kind() == Corrupt && junk.to_string().contains("an entry"));
    }
}
