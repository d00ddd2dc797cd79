//! The SQL that is installed: tables, and the functions that the verbs call.
//!
//! The files are in `scripts/`: `owner` (checks the owner of the schema), `tables`, `queue`
//! (admission), `claim`, `verbs` (the other verbs), `once` (work that is done once), `rights`,
//! `columns` (additions to existing tables). A function never changes its meaning: another meaning becomes `claim_2` beside
//! `claim_1`, so that clients of several versions run together.

use leasehold_core::support::fault;
use leasehold_core::{Error, ErrorKind, Result};

/// The default schema.
pub(crate) const SCHEMA: &str = "leasehold";
/// The version of the functions that this client calls.
pub(crate) const PROTOCOL: i32 = 1;
/// The revision of the scripts. It rises with each change of them, so that a correction also
/// reaches a schema that has this protocol already.
pub(crate) const REVISION: i32 = 1;

/// The scripts in the order of their execution.
const PARTS: [&str; 8] = [
    include_str!("scripts/owner.sql"),
    include_str!("scripts/tables.sql"),
    include_str!("scripts/queue.sql"),
    include_str!("scripts/claim.sql"),
    include_str!("scripts/verbs.sql"),
    include_str!("scripts/once.sql"),
    include_str!("scripts/rights.sql"),
    include_str!("scripts/columns.sql"),
];
/// The statements before the scripts. They set values for which a role, or the database, may have
/// other defaults.
const HEAD: &str = "\
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL standard_conforming_strings = on;
SET LOCAL check_function_bodies = off;
SET LOCAL client_min_messages = warning;
SET LOCAL lock_timeout = '5s';

";

/// The functions that a role needs to take locks.
pub(crate) const HOLDS: [&str; 18] = [
    "claim_1",
    "claim_all_1",
    "renew_1",
    "release_1",
    "release_after_1",
    "evict_1",
    "inspect_1",
    "list_1",
    "observe_1",
    "sweep_1",
    "held",
    "once_1",
    "complete_1",
    "recorded_1",
    "completion_1",
    "completions_1",
    "forget_1",
    "done",
];
/// The functions that a role needs in addition for a move from or to another store.
pub(crate) const MOVES: [&str; 2] = ["mark_1", "raise_1"];

/// The statements that let a role execute these functions. `role` must be quoted already where SQL
/// requires it.
pub(crate) fn grant(schema: &str, functions: &[&str], role: &str) -> String {
    let functions: Vec<String> = functions
        .iter()
        .map(|function| format!("{schema}.{function}"))
        .collect();
    let functions = functions.join(", ");
    format!(
        "GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT EXECUTE ON FUNCTION {functions} TO {role}"
    )
}

/// Returns the migration that installs the store in this schema, or updates it: one transaction,
/// which may be repeated, also by several clients at once. It is for the program's own migration
/// tool, where a client may not install the schema by itself.
///
/// The schema, and everything in it, has to belong to the role that executes the migration.
/// Otherwise the migration fails with the SQLSTATE `LH002`, and the message names the owner and the
/// remedy. It fails with `LH003` if a later version is installed. In both cases nothing is changed.
///
/// ```
/// let sql = leasehold_postgres::migration("leasehold")?;
/// assert!(sql.starts_with("-- ") && sql.ends_with("COMMIT;\n"));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
///
/// # Errors
///
/// [`Invalid`](leasehold_core::ErrorKind::Invalid) for a name that cannot be a schema of locks.
pub fn migration(schema: &str) -> Result<String> {
    check_schema(schema)?;
    let parts = PARTS
        .map(|part| {
            part.replace(SCHEMA, schema)
                .replace("$PROTOCOL", &PROTOCOL.to_string())
                .replace("$REVISION", &REVISION.to_string())
        })
        .join("\n");
    let parts = with_faults(parts);
    Ok(format!(
        "-- The locks of leasehold, protocol {PROTOCOL}, revision {REVISION}. It may be executed again.\n{HEAD}{parts}COMMIT;\n"
    ))
}

/// Puts faults of earlier versions back into the functions, in builds for campaigns.
fn with_faults(mut scripts: String) -> String {
    if fault("downgrade-unpinned") {
        let pinned = "p.mode = 0 AND p_mode = 1 AND NOT p.parted THEN";
        scripts = scripts.replace(pinned, "false THEN");
    }
    if fault("turn-is-hold") {
        let one = "t.token = p_token AND t.turns = 1";
        let any = "t.token <= p_token AND p_token < t.token + t.turns";
        scripts = scripts.replace(one, any);
    }
    scripts
}

/// Accepts only names that need no quotes, so that they can be written into every statement.
pub(crate) fn check_schema(name: &str) -> Result<()> {
    if matches!(name, "public" | "information_schema") {
        let what = format!(
            "schema={name} is not for locks: they have a schema of their own. Leave it out for schema={SCHEMA}, or name another one"
        );
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if begins && name.len() <= 63 && name.chars().all(plain) && !name.starts_with("pg_") {
        return Ok(());
    }
    let what = "schema is lower-case letters, digits and _, at most 63, and begins neither with a digit nor with pg_";
    Err(Error::new(ErrorKind::Invalid, what))
}

/// The columns in which an answer repeats the schema and the number of its request.
pub(crate) const HOME: &str = "home";
pub(crate) const ASKED: &str = "asked";
/// The column with the time at which the server was started that has answered: a pooler may lead to
/// another one than before.
pub(crate) const STARTED: &str = "started";

/// The time at which the server was started, in microseconds.
macro_rules! started {
    () => {
        "(pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8"
    };
}
pub(crate) use started;
/// The column with the record that a function returns.
pub(crate) const ANSWER: &str = "answer";

/// The fields of the record that `claim_1` returns.
pub(crate) const CLAIMED: [&str; 16] = [
    "what",
    "a_seq",
    "a_token",
    "a_turns",
    "a_sent",
    "a_ttl",
    "who_label",
    "who_token",
    "who_for",
    "waiters",
    "ahead",
    "nap",
    "waited",
    "theirs",
    "channels",
    "payloads",
];
/// The fields of the record that `once_1` returns: those of a claim, and those of a completion.
pub(crate) const ONCE: [&str; 23] = [
    "what",
    "a_seq",
    "a_token",
    "a_turns",
    "a_sent",
    "a_ttl",
    "who_label",
    "who_token",
    "who_for",
    "waiters",
    "ahead",
    "nap",
    "waited",
    "theirs",
    "channels",
    "payloads",
    "d_token",
    "d_label",
    "d_at",
    "d_left",
    "d_fire",
    "d_result",
    "d_cut",
];
/// The fields of the records that `complete_1` and `recorded_1` return.
pub(crate) const COMPLETED: [&str; 11] = [
    "what", "more", "channels", "payloads", "d_token", "d_label", "d_at", "d_left", "d_fire",
    "d_result", "d_cut",
];
/// The fields of the records that `release_1`, `release_after_1` and `evict_1` return.
pub(crate) const ENDED: [&str; 3] = ["what", "channels", "payloads"];

/// The call of a function in this schema that returns one record. One more parameter is the number
/// that the answer repeats beside the name of the schema.
pub(crate) fn answer_of(schema: &str, function: &str, parameters: usize) -> String {
    let [asked, call] = asked_call(schema, function, parameters);
    format!("SELECT {asked}, {call} AS {ANSWER}")
}

/// The call of a function in this schema that returns rows. Each repeats the number of the request,
/// which is one more parameter, beside the name of the schema.
pub(crate) fn rows_of(schema: &str, function: &str, parameters: usize) -> String {
    let [asked, call] = asked_call(schema, function, parameters);
    format!("SELECT {asked}, * FROM {call}")
}

/// The call of [`answer_of`] with a column for each field of the record, as [`rows_of`] writes it.
pub(crate) fn as_rows(answer: &str) -> String {
    let asked = format!(" AS {ASKED}, ");
    let record = format!(" AS {ANSWER}");
    let call = answer.strip_suffix(&*record).unwrap_or(answer);
    call.replacen(&asked, &format!("{asked}* FROM "), 1)
}

fn asked_call(schema: &str, function: &str, parameters: usize) -> [String; 2] {
    let all: Vec<String> = (1..=parameters).map(|nth| format!("${nth}")).collect();
    [
        format!(
            "'{schema}' AS {HOME}, {} AS {STARTED}, ${} AS {ASKED}",
            started!(),
            parameters + 1
        ),
        format!("{schema}.{function}({})", all.join(", ")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of all functions that the scripts create.
    fn made() -> Vec<&'static str> {
        let texts = PARTS
            .iter()
            .flat_map(|part| part.split(" FUNCTION leasehold.").skip(1));
        texts
            .filter_map(|text| text.split_once('(').map(|(name, _)| name))
            .collect()
    }

    #[test]
    fn every_function_is_taken_from_the_public_and_each_verb_runs_with_a_path_of_its_own() {
        let rights = include_str!("scripts/rights.sql");
        for function in made() {
            assert!(rights.contains(&format!("'{function}'")), "{function}");
        }
        for function in HOLDS.iter().chain(&MOVES) {
            assert!(made().contains(function), "{function}");
        }
        let definers = PARTS.concat().matches("SECURITY DEFINER").count();
        let pinned = "SECURITY DEFINER SET search_path = pg_catalog, pg_temp ";
        assert_eq!(definers, HOLDS.len() + MOVES.len());
        assert_eq!(PARTS.concat().matches(pinned).count(), definers);
        assert_eq!(
            PARTS
                .concat()
                .matches("SET row_security = off AS $$")
                .count(),
            definers
        );
    }

    #[test]
    fn records_have_the_fields_that_are_read_from_them() {
        let scripts = PARTS.concat();
        for (function, fields) in [
            ("claim_1", &CLAIMED[..]),
            ("once_1", &ONCE),
            ("complete_1", &COMPLETED),
            ("recorded_1", &COMPLETED),
            ("release_1", &ENDED),
            ("release_after_1", &ENDED),
            ("evict_1", &ENDED),
        ] {
            let begin = format!(" FUNCTION leasehold.{function}(");
            let (_, made) = scripts.split_once(&begin).unwrap();
            let (parameters, _) = made.split_once(" LANGUAGE ").unwrap();
            let out = parameters.split("OUT ").skip(1);
            let names: Vec<&str> = out.map(|it| it.split(' ').next().unwrap()).collect();
            assert_eq!(names, fields, "{function}");
        }
    }

    /// An installed schema is updated only by a greater revision.
    #[test]
    fn other_scripts_are_another_revision() {
        let hash = PARTS
            .concat()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let what = "the scripts have changed: raise REVISION if a release has this one, and write this hash here";
        assert_eq!(
            (REVISION, format!("{hash:016x}").as_str()),
            (1, "e79341ca109581dd"),
            "{what}"
        );
    }

    #[test]
    fn a_migration_is_for_one_schema() {
        let sql = migration("locks_2").unwrap();
        assert!(sql.contains("locks_2.claim_1(") && sql.contains("UPDATE locks_2.lines"));
        assert!(
            !sql.replace("The locks of leasehold", "")
                .contains("leasehold.")
        );
        for bad in ["a;b", "public", "information_schema"] {
            assert_eq!(migration(bad).unwrap_err().kind(), ErrorKind::Invalid);
        }
        let started = started!();
        assert_eq!(
            answer_of("s", "f_1", 2),
            format!(
                "SELECT 's' AS home, {started} AS started, $3 AS asked, s.f_1($1, $2) AS answer"
            )
        );
        assert_eq!(
            rows_of("s", "f_1", 0),
            format!("SELECT 's' AS home, {started} AS started, $1 AS asked, * FROM s.f_1()")
        );
        assert_eq!(as_rows(&answer_of("s", "f_1", 2)), rows_of("s", "f_1", 2));
    }
}
