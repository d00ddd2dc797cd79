//! What a request that did not succeed came to: surely not executed, or perhaps.

use std::error::Error as _;
use std::io;

use leasehold_core::Error;
use leasehold_core::ErrorKind::{self, Ambiguous, Denied, Internal, Invalid, Unavailable, Unsupported};
use tokio_postgres::error::DbError;

/// Why a request has no good answer.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    why: String,
    /// The connection can be used no further.
    pub(crate) broken: bool,
    /// The schema, or one of its functions, is missing.
    pub(crate) missing: bool,
    /// The statement is not prepared there.
    pub(crate) unprepared: bool,
    /// The text is whole.
    said: bool,
}

impl Failure {
    /// Of this kind, because of this; the connection is as good as before.
    pub(crate) fn new(kind: ErrorKind, why: impl Into<String>) -> Failure {
        Failure { kind, why: why.into(), broken: false, missing: false, unprepared: false, said: false }
    }

    /// The same, and the connection is of no use any more.
    pub(crate) fn broken(kind: ErrorKind, why: impl Into<String>) -> Failure {
        Failure { broken: true, ..Failure::new(kind, why) }
    }

    /// Of a connection that could not be made, which says it all.
    pub(crate) fn of(e: &Error) -> Failure {
        Failure { said: true, ..Failure::broken(e.kind(), e.to_string()) }
    }

    /// Of a request that was sent.
    pub(crate) fn of_request(e: &tokio_postgres::Error) -> Failure {
        let Some(said) = e.as_db_error() else {
            // Of values that do not fit: a mistake of ours.
            let is_ours = !e.is_closed() && e.source().is_none_or(|cause| !cause.is::<io::Error>());
            let kind = if is_ours { Internal } else { Ambiguous };
            return Failure::broken(kind, format!("the connection ended: {e}"));
        };
        let code = said.code().code();
        let kind = kind_of(code);
        Failure {
            kind,
            why: words(said),
            // A server that may not write, or that stops, is left.
            broken: matches!(&code[..2], "08" | "57" | "28") && code != "57014" || code == "25006",
            missing: matches!(code, "3F000" | "42P01" | "42883"),
            unprepared: code == "26000",
            said: false,
        }
    }

    /// Of a connection that could not be made. Nothing was executed.
    pub(crate) fn of_connecting(e: &tokio_postgres::Error) -> Failure {
        if let Some(said) = e.as_db_error() {
            let kind = match kind_of(said.code().code()) {
                kind @ (Denied | Invalid | Unsupported) => kind,
                _ => Unavailable,
            };
            return Failure::broken(kind, words(said));
        }
        let cause = e.source();
        // What the client crate says of a password that is missing, or of a method that it does not know.
        let is_refused =
            ["authentication", "invalid configuration"].iter().any(|begin| e.to_string().starts_with(begin));
        if is_refused && cause.is_none_or(|cause| !cause.is::<io::Error>()) {
            return Failure::broken(Denied, "the server asks for a password, or for another way to show who we are");
        }
        let why = cause.map_or_else(|| e.to_string(), |cause| format!("{e}: {cause}"));
        Failure::broken(Unavailable, why)
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

/// What is known about a request that the server refused with this SQLSTATE.
fn kind_of(code: &str) -> ErrorKind {
    match code {
        // Rolled back, as all of these.
        "40001" | "40P01" | "55P03" | "57014" | "54000" | "57P03" | "25006" | "08001" | "08004" => Unavailable,
        // They may come after the commit.
        "57P01" | "57P02" | "57P05" | "40003" => Ambiguous,
        "42501" => Denied,
        "25001" | "26000" | "3F000" | "42P01" | "42883" => Unsupported,
        "22021" | "22P05" | "3D000" => Invalid,
        _ => match code.get(..2) {
            Some("53") => Unavailable,
            Some("08") => Ambiguous,
            Some("28") => Denied,
            Some("0A") => Unsupported,
            _ => Internal,
        },
    }
}

/// What the server says, without what may be a secret: its DETAIL, its parameters, and the values that it could not read.
fn words(said: &DbError) -> String {
    let code = said.code().code();
    let hint = match code {
        "25001" => ": locks need READ COMMITTED; ALTER ROLE … SET default_transaction_isolation = 'read committed'",
        "25006" => ": it is a standby, or read-only",
        "26000" => ": does a pooler stand there, in statement mode? Locks need transaction mode",
        "3F000" | "42P01" | "42883" => {
            ": the schema of the locks is missing, or too old; its migration is to be executed"
        }
        "28000" if said.message().contains("no encryption") => {
            ": it takes encrypted connections only; say sslmode=verify-full"
        }
        "28000" if said.message().contains("certificate") => {
            ": the server demands a client certificate; give `sslcert` and `sslkey`"
        }
        _ => "",
    };
    let shows_values = matches!(code.get(..2), Some("22" | "28")) || code == "23505";
    let message = if shows_values { "" } else { said.message() };
    let between = if message.is_empty() { "" } else { " " };
    format!("SQLSTATE {code}{between}{message}{hint}")
}

impl From<Failure> for Error {
    fn from(Failure { kind, why, said, .. }: Failure) -> Error {
        if said {
            return Error::new(kind, why);
        }
        let what = match kind {
            Unavailable => "PostgreSQL cannot be reached or cannot serve",
            Ambiguous => "PostgreSQL did not answer; the request may have been executed",
            Denied => "PostgreSQL refused the user, the password or the rights",
            Unsupported => "this PostgreSQL cannot be used for locks",
            _ => "PostgreSQL refused the request",
        };
        Error::new(kind, format!("{what} ({why})"))
    }
}

/// The server answered what none of our functions answers.
pub(crate) fn junk(what: &str) -> Error {
    Error::new(Internal, format!("PostgreSQL holds something that is not ours, or that nobody can read: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_surely_not_executed_is_unavailable() {
        for (kind, codes) in [
            (
                Unavailable,
                &["40001", "40P01", "55P03", "57014", "53300", "53100", "54000", "57P03", "25006", "08001"][..],
            ),
            (Ambiguous, &["57P01", "57P02", "08006", "08P01", "40003"]),
            (Denied, &["28P01", "28000", "42501"]),
            (Unsupported, &["25001", "26000", "0A000", "42883", "3F000", "42P01"]),
            (Invalid, &["22021", "22P05", "3D000"]),
            (Internal, &["XX000", "23505", "P0001", ""]),
        ] {
            for code in codes {
                assert_eq!(kind_of(code), kind, "{code}");
            }
        }
    }

    #[test]
    fn a_read_that_was_not_answered_changed_nothing() {
        assert_eq!(Failure::new(Ambiguous, "x").of_a_read().kind, Unavailable);
        assert_eq!(Failure::new(Denied, "x").of_a_read().kind, Denied);
        assert_eq!(Failure::new(Denied, "x").instead_of(Denied, Internal).kind, Internal);
    }

    #[test]
    fn an_error_says_what_is_known_and_why() {
        for (kind, words) in [
            (Unavailable, "PostgreSQL cannot be reached or cannot serve (why)"),
            (Ambiguous, "PostgreSQL did not answer; the request may have been executed (why)"),
            (Denied, "PostgreSQL refused the user, the password or the rights (why)"),
            (Unsupported, "this PostgreSQL cannot be used for locks (why)"),
            (Internal, "PostgreSQL refused the request (why)"),
        ] {
            let error = Error::from(Failure::new(kind, "why"));
            assert_eq!((error.kind(), error.to_string()), (kind, words.to_owned()));
        }
        let whole = Failure::of(&Error::new(Denied, "the whole story"));
        assert!(whole.broken);
        assert_eq!(Error::from(whole).to_string(), "the whole story");
        let junk = junk("an entry");
        assert!(junk.kind() == Internal && junk.to_string().contains("an entry"));
    }
}
