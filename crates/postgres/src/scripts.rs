//! The SQL that is installed: tables, and the functions that the verbs call.

use leasehold_core::{Error, ErrorKind, Result};

/// The schema unless another is named.
pub(crate) const SCHEMA: &str = "leasehold";

/// *This hold still stands, and stands until this transaction ends*: a statement for a transaction of your own, in the database of the
/// locks, if their schema is `leasehold`. `$1` is the lock's full name, `$2` its token. For another schema: [`held`].
pub const HELD: &str = "SELECT leasehold.held($1::text, $2::bigint)";

/// [`HELD`] for the locks of this schema.
///
/// # Errors
///
/// [`Invalid`](leasehold_core::ErrorKind::Invalid) for a name that is none.
pub fn held(schema: &str) -> Result<String> {
    check_schema(schema)?;
    Ok(HELD.replacen(SCHEMA, schema, 1))
}

/// The migration that installs the store in this schema, or brings it up to date: one transaction, which may be repeated. For the
/// program's own tool of migrations, where a client may not install it by itself.
///
/// # Errors
///
/// [`Invalid`](leasehold_core::ErrorKind::Invalid) for a name that is none.
pub fn migration(schema: &str) -> Result<String> {
    check_schema(schema)?;
    Ok(String::new())
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
