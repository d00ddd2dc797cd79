//! The checks of the server at the start: whether it can be used, whether the schema is there, and
//! what its settings mean for locks.

use std::time::Duration;

use leasehold_core::ErrorKind::{Denied, Unavailable, Unsupported};
use leasehold_core::{Error, Result};

use crate::client::answer::Row;
use crate::client::link::Link;
use crate::client::request::Request;
use crate::client::session::WAITS_FOR_NONE;
use crate::config::Config;
use crate::error::{Failure, junk};
use crate::scripts::{HOLDS, MOVES, PROTOCOL, REVISION, grant, migration};

/// The time that an installation may take in addition to that of a request.
const INSTALLATION: Duration = Duration::from_secs(10);
/// The first query. A role or a database may have a `search_path` in which others define functions,
/// operators and types, so this query names all of them with their schema. No function of the store
/// is called before its owner is known: the version is read as text from the functions' sources.
/// A session whose user may update `pg_authid` belongs to a superuser, whose rights `SET role` may have
/// reduced: only superusers have that right, whatever is granted.
const LOOK: &str = "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('server_version_num'),
    pg_catalog.current_setting('server_encoding'),
    pg_catalog.current_setting('is_superuser'), pg_catalog.quote_ident(current_user), n.oid IS NOT NULL,
    pg_catalog.pg_get_userbyid(n.nspowner) OPERATOR(pg_catalog.=) current_user,
    pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(n.nspowner)), pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
    (SELECT pg_catalog.substring(p.prosrc, '[0-9]{1,9}') FROM pg_catalog.pg_proc p
        WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid AND p.proname OPERATOR(pg_catalog.=) 'protocol' AND p.pronargs OPERATOR(pg_catalog.=) 0),
    (SELECT pg_catalog.substring(p.prosrc, '[0-9]{1,9}') FROM pg_catalog.pg_proc p
        WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid AND p.proname OPERATOR(pg_catalog.=) 'revision' AND p.pronargs OPERATOR(pg_catalog.=) 0),
    (SELECT p.oid::pg_catalog.regprocedure::pg_catalog.text FROM pg_catalog.pg_proc p
        WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid AND p.proname OPERATOR(pg_catalog.=) ANY ($2) AND NOT p.prosecdef
        AND pg_catalog.pg_get_userbyid(p.proowner) OPERATOR(pg_catalog.<>) current_user LIMIT 1),
    pg_catalog.has_table_privilege(session_user, 'pg_catalog.pg_authid', 'UPDATE')
    FROM (SELECT 1) one LEFT JOIN pg_catalog.pg_namespace n ON n.nspname OPERATOR(pg_catalog.=) $1";
/// Queries an owner of something in the schema who is no superuser. Only superusers may execute it.
const OWNERS: &str = "SELECT pg_catalog.quote_ident(a.rolname) FROM pg_catalog.pg_namespace n, pg_catalog.pg_authid a
    WHERE n.nspname OPERATOR(pg_catalog.=) $1 AND NOT a.rolsuper AND (n.nspowner OPERATOR(pg_catalog.=) a.oid OR EXISTS (
        SELECT FROM pg_catalog.pg_proc p WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid AND p.proowner OPERATOR(pg_catalog.=) a.oid
    )) LIMIT 1";
/// Queries settings that only warnings need.
const SETTINGS: &str = "SELECT pg_catalog.current_setting('fsync'), pg_catalog.current_setting('full_page_writes'),
    pg_catalog.current_setting('synchronous_standby_names'), pg_catalog.current_setting('synchronous_commit')";
/// Queries activity that only warnings need, and that not every role may read.
const ACTIVITY: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_replication),
    coalesce((SELECT pg_catalog.max(pg_catalog.age(a.backend_xmin)) FROM pg_catalog.pg_stat_activity a
        WHERE a.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()), 0)";
/// Queries the reason why a function was refused.
const RIGHTS: &str = "SELECT pg_catalog.quote_ident(current_user), pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
    EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.pronamespace OPERATOR(pg_catalog.=) n.oid AND p.proname OPERATOR(pg_catalog.=) $2
        AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')),
    (SELECT c.relname::pg_catalog.text FROM pg_catalog.pg_class c WHERE c.relnamespace OPERATOR(pg_catalog.=) n.oid
        AND c.relrowsecurity AND c.relforcerowsecurity LIMIT 1)
    FROM pg_catalog.pg_namespace n WHERE n.nspname OPERATOR(pg_catalog.=) $1";
/// The age of the oldest snapshot, in transactions, above which there is a warning.
const OLD: i32 = 1_000_000;

/// Checks the server, and installs the schema if it is missing and may be installed. Returns the
/// warnings for an operator.
pub(crate) async fn prepare(link: &Link, config: &Config) -> Result<Vec<String>> {
    let called = HOLDS.iter().chain(&MOVES).map(|&name| name.to_owned());
    let look = Request::new(&LOOK.into())
        .text(&config.schema)
        .texts(called.collect());
    let row = match one(link, config, &look).await {
        Err(failure) if failure.forbidden => {
            let what = "connecting reads pg_namespace and pg_proc: GRANT SELECT ON pg_catalog.pg_namespace, pg_catalog.pg_proc TO this role";
            return Err(failure.because(what).into());
        }
        row => row?,
    };
    let text = |nth| column::<Option<&str>>(&row, nth);
    let version: i32 = number(text(1)?)?.ok_or_else(|| junk("its version"))?;
    let encoding = text(2)?.unwrap_or_default();
    if column(&row, 0)? {
        return Err(Failure::new(Unavailable, "it is a standby: locks are written").into());
    }
    if version < 120_000 {
        return Err(unsupported(format!(
            "PostgreSQL 12 or later is needed, and this is {}",
            version / 10_000
        )));
    }
    if encoding != "UTF8" {
        return Err(unsupported(format!(
            "the database is encoded in {encoding}, and names of locks are UTF-8"
        )));
    }
    let role = text(4)?.unwrap_or_default();
    if column(&row, 12)? && text(3)? != Some("on") {
        return Err(unsupported(format!(
            "a superuser has logged in, and acts as the role {role} (SET role, perhaps of the database or the user), whose functions could take \
             the superuser's rights back: log in as {role}"
        )));
    }
    let mut warnings = Vec::new();
    if column(&row, 5)? {
        check_owner(link, config, &row).await?;
    }
    match installed(&row)? {
        Some((protocol, revision)) if protocol >= PROTOCOL => {
            if !column::<Option<bool>>(&row, 8)?.unwrap_or_default() {
                return Err(lacks(config, &HOLDS, role));
            }
            // The earlier revision can be used as it is.
            if protocol == PROTOCOL && revision < REVISION {
                warnings.extend(correct(link, config, &row, revision).await?);
            }
        }
        installed => install(link, config, installed.is_some()).await?,
    }
    warnings.extend(of_settings(link, config, role).await?);
    Ok(warnings)
}

/// Refuses a schema in which another role could have code executed with the rights of this role.
/// The store's own functions run with the rights of their owner.
async fn check_owner(link: &Link, config: &Config, row: &Row) -> Result<()> {
    let schema = &config.schema;
    if let Some(function) = column::<Option<&str>>(row, 11)? {
        return Err(unsupported(format!(
            "the function {function} is executed with the rights of whoever calls it, so it is not of this store, but of somebody else: drop \
             the schema {schema}, or name another one"
        )));
    }
    if column::<Option<&str>>(row, 3)? != Some("on") {
        return Ok(());
    }
    let asked = Request::new(&OWNERS.into()).text(schema);
    let rows = link.ask(&asked, config.timeout).await;
    match rows.map_err(Failure::of_a_read)?.first() {
        None => Ok(()),
        Some(row) => Err(unsupported(format!(
            "this role is a superuser, and the schema {schema} belongs to the role {0}, who could have code executed with its rights: connect \
             as {0}, or as another role that is no superuser",
            column::<&str>(row, 0)?
        ))),
    }
}

/// The protocol and the revision that are installed; `None` if there are none.
fn installed(row: &Row) -> Result<Option<(i32, i32)>> {
    let protocol = number(column(row, 9)?)?;
    let revision = number(column(row, 10)?)?;
    Ok(protocol.map(|protocol| (protocol, revision.unwrap_or_default())))
}

/// Updates functions of an earlier revision, which has a mistake that this client's revision
/// corrects. If that is not possible, they are used as before, and the answer is a warning.
async fn correct(link: &Link, config: &Config, row: &Row, revision: i32) -> Result<Option<String>> {
    let is_own: Option<bool> = column(row, 6)?;
    let why = if !config.install {
        "install=false".to_owned()
    } else if is_own != Some(true) {
        let owner: Option<&str> = column(row, 7)?;
        format!("the schema belongs to {}", owner.unwrap_or_default())
    } else {
        match install(link, config, true).await {
            Ok(()) => return Ok(None),
            Err(e) => e.to_string(),
        }
    };
    let schema = &config.schema;
    Ok(Some(format!(
        "The schema {schema} has revision {revision} of the functions, and {REVISION} corrects it: execute what `leasehold \
         postgres-schema --schema {schema}` prints ({why})."
    )))
}

/// Executes the migration for a schema that is missing, or, if `is_there`, has an older version.
pub(crate) async fn install(link: &Link, config: &Config, is_there: bool) -> Result<()> {
    let schema = &config.schema;
    let what = if is_there {
        "of an older version"
    } else {
        "missing"
    };
    let command = format!(
        "the schema {schema} is {what}: execute what `leasehold postgres-schema --schema {schema}` prints"
    );
    if !config.install {
        return Err(unsupported(command));
    }
    let sql = migration(schema)?;
    let done = link.execute(&sql, config.timeout + INSTALLATION).await;
    let Err(failure) = done else { return Ok(()) };
    // The migration's transaction is open, and aborted.
    let is_ended = !failure.broken && link.execute("ROLLBACK", config.timeout).await.is_ok();
    if !is_ended {
        link.cut();
    }
    match failure.kind {
        // Another client has installed a later version meanwhile.
        _ if failure.outdated => Ok(()),
        Denied => Err(Error::new(
            Unsupported,
            format!("{command} ({})", Error::from(failure)),
        )),
        // The migration is one transaction, and may be repeated.
        _ => Err(failure.of_a_read().into()),
    }
}

/// The warnings about the server's settings, in sentences for its operator.
async fn of_settings(link: &Link, config: &Config, role: &str) -> Result<Vec<String>> {
    let row = one(link, config, &Request::new(&SETTINGS.into())).await?;
    let is = |nth, what: &str| column::<&str>(&row, nth).map(|is| is == what);
    let fsync = is(0, "on")?;
    let pages = is(1, "on")?;
    let is_synchronous = !is(2, "")?;
    let waits_for_none = is(3, "local")? || is(3, "remote_write")?;
    let mut warnings = Vec::new();
    let mut warn = |is_so: bool, what: &str| warnings.extend(is_so.then(|| what.to_owned()));
    warn(
        !fsync,
        "fsync is off: a crash of the machine may lose locks that are held, and only the token tells their holders apart.",
    );
    warn(
        !pages,
        "full_page_writes is off: a crash of the machine may damage the tables of locks.",
    );
    warn(is_synchronous && waits_for_none, WAITS_FOR_NONE);
    let row = match one(link, config, &Request::new(&ACTIVITY.into())).await {
        Err(failure) if failure.forbidden => {
            let what = format!(
                "The role {role} may not read pg_stat_replication and pg_stat_activity: it is not known whether a failover may lose grants, \
                 nor whether an old snapshot makes locks slow. GRANT SELECT ON pg_catalog.pg_stat_replication, \
                 pg_catalog.pg_stat_activity TO {role}"
            );
            warn(true, &what);
            return Ok(warnings);
        }
        row => row?,
    };
    let has_standbys: bool = column(&row, 0)?;
    let oldest: i32 = column(&row, 1)?;
    warn(
        has_standbys && !is_synchronous,
        "There are standbys, and synchronous_standby_names is empty: a failover may lose the last grants, and only the token tells \
         their holders apart.",
    );
    warn(
        oldest > OLD,
        "Somebody has kept a snapshot of this database for more than a million transactions: until it ends nothing is cleaned up, and \
         busy locks get slower.",
    );
    Ok(warnings)
}

/// The request that asks why this function of the schema was refused.
pub(crate) fn why_refused(schema: &str, function: &str) -> Request {
    Request::new(&RIGHTS.into()).text(schema).text(function)
}

/// Reads the answer to [`why_refused`] and returns the error that names the missing right and the
/// statement that mends it. `None` if there is another reason.
pub(crate) fn refusal(config: &Config, function: &str, row: &Row) -> Result<Option<Error>> {
    let schema = &config.schema;
    if !column::<bool>(row, 1)? || column(row, 2)? {
        return Ok(Some(lacks(config, &[function], column(row, 0)?)));
    }
    let hidden: Option<&str> = column(row, 3)?;
    Ok(hidden.map(|table| {
        unsupported(format!(
            "row level security hides rows of {schema}.{table} from its own functions, which could take a lock that is held for a free one: \
             ALTER TABLE {schema}.{table} NO FORCE ROW LEVEL SECURITY"
        ))
    }))
}

/// The error about a role that lacks the rights for these functions, with the statements that give
/// them.
fn lacks(config: &Config, functions: &[&str], role: &str) -> Error {
    let schema = &config.schema;
    let grant = grant(schema, functions, role);
    let what = match functions {
        [function] => format!("execute {schema}.{function}"),
        _ => format!("use the schema {schema}"),
    };
    let what = format!("the role {role} may not {what} (SQLSTATE 42501): {grant}");
    Failure::new(Denied, what).into()
}

/// Returns the row that answers this request.
async fn one(link: &Link, config: &Config, request: &Request) -> Result<Row, Failure> {
    let rows = link.ask(request, config.timeout).await;
    let mut rows = rows.map_err(Failure::of_a_read)?;
    rows.pop().ok_or_else(|| Failure::of(&junk("its settings")))
}

fn unsupported(what: String) -> Error {
    Failure::new(Unsupported, what).into()
}

fn number(text: Option<&str>) -> Result<Option<i32>> {
    let number = text.map(str::parse).transpose();
    number.map_err(|_| junk("a number"))
}

fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, nth: usize) -> Result<T> {
    row.try_get(nth).map_err(|_| junk("its settings"))
}
