//! `postgres-schema`: the migration of the PostgreSQL store, for those who install it by themselves.

use std::io;

use leasehold::postgres::migration;

use crate::exit::{self, Exit};
use crate::output;

const AFTER: &str = "\
Examples:
  leasehold postgres-schema | psql -v ON_ERROR_STOP=1 orders
  leasehold postgres-schema --schema locks > migrations/0007_locks.sql

It is executed by the role that owns the schema. For another one that takes locks:
  GRANT USAGE ON SCHEMA leasehold TO app;
  GRANT EXECUTE ON FUNCTION leasehold.claim_1, leasehold.claim_all_1, leasehold.renew_1,
    leasehold.release_1, leasehold.release_after_1, leasehold.evict_1, leasehold.inspect_1,
    leasehold.list_1, leasehold.observe_1, leasehold.sweep_1, leasehold.held, leasehold.once_1,
    leasehold.complete_1, leasehold.recorded_1, leasehold.completion_1, leasehold.completions_1,
    leasehold.forget_1, leasehold.done TO app;
To look only, inspect_1, list_1, completion_1 and completions_1 do. Bridges and bridge-seal also need mark_1 and raise_1.";

/// Print the SQL that installs the PostgreSQL store in a database.
///
/// It is one transaction, may be executed again, and brings an older schema up to date while clients run. A client whose role may
/// create schemas does the same by itself: this is for roles that may not, and for your own tool of migrations.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct PostgresSchema {
    /// The schema for its tables and functions: `?schema=NAME` of the store's URL.
    #[arg(long, value_name = "NAME", default_value = "leasehold")]
    schema: String,
}

pub(crate) fn main(args: &PostgresSchema) -> io::Result<Exit> {
    match migration(&args.schema) {
        Ok(sql) => output::print(&sql).map(|()| Exit::Code(0)),
        Err(e) => Ok(exit::bad_usage(e)),
    }
}
