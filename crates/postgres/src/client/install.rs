//! What is asked of the server at the start: whether it can be used, whether the schema is there, and what its settings mean for locks.

use std::time::Duration;

use leasehold_core::ErrorKind::{Ambiguous, Denied, Unavailable, Unsupported};
use leasehold_core::{Error, Result};
use tokio::time::timeout;
use tokio_postgres::Row;

use crate::client::link::Link;
use crate::client::request::Request;
use crate::config::Config;
use crate::error::{Failure, junk};
use crate::scripts::{PROTOCOL, migration};

/// How much longer than a request an installation may take.
const INSTALLATION: Duration = Duration::from_secs(10);
/// What is asked.
const LOOK: &str = "SELECT pg_is_in_recovery(), current_setting('server_version_num')::int4, current_setting('server_encoding'),
    current_setting('default_transaction_isolation'), current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
    current_setting('synchronous_standby_names') <> '', current_setting('synchronous_commit'),
    EXISTS (SELECT FROM pg_stat_replication), to_regprocedure($1) IS NOT NULL,
    coalesce((SELECT max(age(backend_xmin)) FROM pg_stat_activity WHERE datname = current_database()), 0)::int8";
/// So many transactions ago the oldest snapshot may have been taken.
const OLD: i64 = 1_000_000;

/// Looks at the server, and installs the schema where it is missing and may be installed. Answers what an operator should know.
pub(crate) async fn prepare(link: &Link, config: &Config) -> Result<Vec<String>> {
    let look = Request::new(&LOOK.into()).text(&format!("{}.protocol()", config.schema));
    let rows = link.ask(&look, config.timeout).await.map_err(Failure::of_a_read)?;
    let row = rows.first().ok_or_else(|| junk("its settings"))?;
    let (version, encoding): (i32, &str) = (column(row, 1)?, column(row, 2)?);
    if column(row, 0)? {
        return Err(Failure::new(Unavailable, "it is a standby: locks are written").into());
    }
    let unsupported = |what: String| Err(Failure::new(Unsupported, what).into());
    if version < 120_000 {
        return unsupported(format!("PostgreSQL 12 or later is needed, and this is {}", version / 10_000));
    }
    if encoding != "UTF8" {
        return unsupported(format!("the database is encoded in {encoding}, and names of locks are UTF-8"));
    }
    let installed = if column(row, 9)? { protocol(link, config).await? } else { 0 };
    if installed < PROTOCOL {
        install(link, config, installed).await?;
    }
    warnings(row)
}

/// Which version of the functions is there.
async fn protocol(link: &Link, config: &Config) -> Result<i32> {
    let asked = Request::new(&format!("SELECT {}.protocol()", config.schema).into());
    let rows = link.ask(&asked, config.timeout).await.map_err(Failure::of_a_read)?;
    column(rows.first().ok_or_else(|| junk("its protocol"))?, 0)
}

/// Executes the migration.
pub(crate) async fn install(link: &Link, config: &Config, installed: i32) -> Result<()> {
    let (schema, what) = (&config.schema, if installed == 0 { "missing" } else { "of an older version" });
    let command =
        format!("the schema {schema} is {what}: execute what `leasehold postgres-schema --schema {schema}` prints");
    if !config.install {
        return Err(Failure::new(Unsupported, command).into());
    }
    let sql = migration(schema)?;
    let done = timeout(config.timeout + INSTALLATION, link.client.batch_execute(&sql)).await;
    let failure = match done {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(e)) => Failure::of_request(&e),
        Err(_) => Failure::new(Ambiguous, "the installation took too long"),
    };
    // The transaction is open, and aborted.
    link.cut();
    match failure.kind {
        Denied => Err(Error::new(Unsupported, format!("{command} ({})", Error::from(failure)))),
        // It is one transaction, and may be repeated.
        _ => Err(failure.of_a_read().into()),
    }
}

/// What the settings mean, in sentences for the server's operator.
fn warnings(row: &Row) -> Result<Vec<String>> {
    let (fsync, pages, is_synchronous, commit): (bool, bool, bool, &str) =
        (column(row, 4)?, column(row, 5)?, column(row, 6)?, column(row, 7)?);
    let (isolation, has_standbys, oldest): (&str, bool, i64) = (column(row, 3)?, column(row, 8)?, column(row, 10)?);
    if !matches!(isolation, "read committed" | "read uncommitted") {
        let what = format!(
            "its default_transaction_isolation is {isolation}, and locks need READ COMMITTED: ALTER ROLE … SET \
             default_transaction_isolation = 'read committed'"
        );
        return Err(Failure::new(Unsupported, what).into());
    }
    let mut warnings = Vec::new();
    let mut warn = |is_so: bool, what: &str| warnings.extend(is_so.then(|| what.to_owned()));
    warn(
        !fsync,
        "fsync is off: a crash of the machine may lose locks that are held, and only the token tells their holders apart.",
    );
    warn(!pages, "full_page_writes is off: a crash of the machine may damage the tables of locks.");
    warn(
        has_standbys && !is_synchronous,
        "There are standbys, and synchronous_standby_names is empty: a failover may lose the last grants, and only the token tells \
         their holders apart.",
    );
    warn(
        is_synchronous && matches!(commit, "local" | "remote_write"),
        "synchronous_commit does not wait until a standby has stored a grant: a failover may lose the last ones, and only the token \
         tells their holders apart.",
    );
    warn(
        oldest > OLD,
        "Somebody has kept a snapshot of this database for more than a million transactions: until it ends nothing is cleaned up, and \
         busy locks get slower.",
    );
    Ok(warnings)
}

fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, nth: usize) -> Result<T> {
    row.try_get(nth).map_err(|_| junk("its settings"))
}
