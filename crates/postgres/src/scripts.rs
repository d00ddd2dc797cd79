//! The SQL that is installed: tables, and the functions that the verbs call.
//!
//! It lies in `scripts/`: `tables`, `queue` (who is admitted), `claim`, `verbs` (the rest), `rights`. A function never changes what it
//! means: another meaning is `claim_2` beside `claim_1`, so that clients of several versions run together.

use leasehold_core::{Error, ErrorKind, Result};

/// The schema unless another is named.
pub(crate) const SCHEMA: &str = "leasehold";
/// The version of the functions that this client calls.
pub(crate) const PROTOCOL: i32 = 1;

/// In their order.
const PARTS: [&str; 5] = [
    include_str!("scripts/tables.sql"),
    include_str!("scripts/queue.sql"),
    include_str!("scripts/claim.sql"),
    include_str!("scripts/verbs.sql"),
    include_str!("scripts/rights.sql"),
];

/// The migration that installs the store in this schema, or brings it up to date: one transaction, which may be repeated, also by several
/// at once. For the program's own tool of migrations, where a client may not install it by itself.
///
/// ```
/// let sql = leasehold_postgres::migration("leasehold")?;
/// assert!(sql.starts_with("-- ") && sql.ends_with("COMMIT;\n"));
/// # Ok::<(), leasehold_core::Error>(())
/// ```
///
/// # Errors
///
/// [`Invalid`](leasehold_core::ErrorKind::Invalid) for a name that is none.
pub fn migration(schema: &str) -> Result<String> {
    check_schema(schema)?;
    let head = "-- The locks of leasehold, protocol 1. It may be executed again.\nBEGIN;\n\
                -- One at a time, whatever IF NOT EXISTS says.\n\
                SELECT pg_advisory_xact_lock(7812185219467);\n\
                SET LOCAL client_min_messages = warning;\n";
    let parts = PARTS.map(|part| part.replace(SCHEMA, schema)).join("\n");
    Ok(format!("{head}{parts}COMMIT;\n"))
}

/// Names that need no quotes, so that they can be written into every statement.
pub(crate) fn check_schema(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    if begins && name.len() <= 63 && name.chars().all(plain) && !name.starts_with("pg_") {
        return Ok(());
    }
    let what = "schema is lower-case letters, digits and _, at most 63, and begins neither with a digit nor with pg_";
    Err(Error::new(ErrorKind::Invalid, what))
}

/// A call of a function in this schema, with so many parameters, which have these casts.
pub(crate) fn call(schema: &str, function: &str, casts: &[&str]) -> String {
    let parameters: Vec<String> = casts.iter().enumerate().map(|(i, cast)| format!("${}{cast}", i + 1)).collect();
    format!("SELECT * FROM {schema}.{function}({})", parameters.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_migration_is_for_one_schema() {
        let sql = migration("locks_2").unwrap();
        assert!(sql.contains("locks_2.claim_1(") && sql.contains("search_path = locks_2, pg_temp"));
        assert!(!sql.replace("The locks of leasehold", "").contains("leasehold."));
        assert_eq!(migration("a;b").unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(call("s", "f_1", &["", "::uuid"]), "SELECT * FROM s.f_1($1, $2::uuid)");
    }
}
