//! Asks a PostgreSQL server about itself through its own client, since it needs a user, and removes the rows of the namespace.

mod rules;

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use leasehold::Guarantees;
use leasehold::backend::Moment;
use leasehold::postgres::Config;
use leasehold::postgres::client::{Client, Row};
use leasehold_net::{Address, Host, Verified};

use self::rules::Facts;
use crate::verify::findings::{Finding, note};
use crate::verify::tcp::Servers;

/// The time-out of connecting and of each answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A connection of the server that is older than ours by this many seconds is not ours.
const OLDER: f64 = 0.05;
/// Two more connections for renewals, and one on which a client listens for notifications.
const OTHERS: i64 = 3;

/// Every role may read these. Only `pg_monitor` sees when transactions of other roles began.
const ASK: &str = "SELECT current_setting('server_version'), pg_is_in_recovery(), pg_postmaster_start_time()::text,
    extract(epoch FROM clock_timestamp())::float8,
    coalesce(extract(epoch FROM clock_timestamp() - (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())), 0)::float8,
    coalesce(inet_server_port(), 0),
    (SELECT setting::int8 FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'),
    (SELECT setting::int8 FROM pg_settings WHERE name = 'statement_timeout'),
    current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication),
    (SELECT min(room) FROM (
        SELECT current_setting('max_connections')::int8 - current_setting('superuser_reserved_connections')::int8
            - coalesce(current_setting('reserved_connections', true)::int8, 0) - (SELECT sum(numbackends) FROM pg_stat_database)
        UNION ALL SELECT rolconnlimit - (SELECT count(*) FROM pg_stat_activity WHERE usesysid = pg_roles.oid)
            FROM pg_roles WHERE rolname = current_user AND rolconnlimit >= 0
        UNION ALL SELECT datconnlimit - (SELECT numbackends FROM pg_stat_database s WHERE s.datid = pg_database.oid)
            FROM pg_database WHERE datname = current_database() AND datconnlimit >= 0
    ) limits(room))::int8,
    coalesce((SELECT max(extract(epoch FROM clock_timestamp() - xact_start)) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()), 0)::float8,
    (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database() AND prepared < clock_timestamp() - interval '1 minute'),
    coalesce((SELECT max(age(xmin)) FROM pg_replication_slots), 0)::int8";

/// A URL, as the store reads it.
pub(crate) struct Database {
    pub(crate) servers: Servers,
    config: Config,
    /// The greatest number of connections that a client opens.
    needs: i64,
}

impl Database {
    /// A URL that the store has taken.
    pub(crate) async fn of(url: &str) -> Option<Database> {
        let config = Config::from_url(url).ok()?;
        let mut address = Address::parse_libpq(url, 5432).ok()?;
        address.hosts = config.hosts().to_vec();
        let (_, connections) = config.uses();
        Some(Database {
            servers: Servers::reached(address, Verified::Name).await?,
            needs: OTHERS + i64::try_from(connections).ok()?,
            config,
        })
    }
}

/// Its version, and what its settings mean.
pub(crate) async fn inspect(database: &Database, host: &Host) -> Option<(String, Vec<Finding>)> {
    let (version, _, facts) = ask(database, host).await?;
    Some((version, rules::of_postgres(&host.to_string(), &facts)))
}

/// Reports several servers that take writes independently of each other.
pub(crate) async fn primaries(database: &Database) -> Option<Finding> {
    let hosts = &database.servers.address.hosts;
    let said = join_all(hosts.iter().map(|host| ask(database, host))).await;
    let started: Vec<_> = hosts
        .iter()
        .zip(said)
        .filter_map(|(host, said)| {
            let (_, at, facts) = said?;
            (!facts.is_standby).then(|| (host.to_string(), at))
        })
        .collect();
    rules::primaries(&started)
}

/// The finding that waiters are not notified, where the store does not give a reason.
pub(crate) fn notifications(guarantees: &Guarantees) -> Option<Finding> {
    let is_told = guarantees
        .warnings()
        .iter()
        .any(|warning| warning.contains("listen="));
    (!guarantees.pushed_wake() && !is_told).then(|| {
        note("notifications", "They are off: waiters poll, so each hand-over (\"No stuck waiter\") and each evicted holder hears of it later.")
    })
}

async fn ask(database: &Database, host: &Host) -> Option<(String, String, Facts)> {
    let begin = Moment::now();
    let client = connect(&database.config, host).await?;
    let wall = || {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map(|since| since.as_secs_f64())
    };
    let before = wall().ok()?;
    let row = tokio::time::timeout(TIMEOUT, client.query_typed(ASK, &[]))
        .await
        .ok()?
        .ok()?
        .into_iter()
        .next()?;
    let after = wall().ok()?;
    let age = Moment::now().since(begin).as_secs_f64();
    let mut facts = facts(&row)?;
    let theirs: f64 = row.try_get(3).ok()?;
    // It was read at some instant between.
    facts.ahead = if theirs > after {
        theirs - after
    } else {
        (theirs - before).min(0.0)
    };
    let (older, port): (f64, i32) = (row.try_get(4).ok()?, row.try_get(5).ok()?);
    facts.is_behind = older > age + OLDER || (port != 0 && port != i32::from(host.port));
    facts.needs = database.needs;
    Some((row.try_get(0).ok()?, row.try_get(2).ok()?, facts))
}

fn facts(row: &Row) -> Option<Facts> {
    Some(Facts {
        is_standby: row.try_get(1).ok()?,
        idle_in_transaction: row.try_get(6).ok()?,
        statement: row.try_get(7).ok()?,
        synchronous: row.try_get(8).ok()?,
        standbys: row.try_get(9).ok()?,
        room: row.try_get(10).ok()?,
        longest: row.try_get(11).ok()?,
        prepared: row.try_get(12).ok()?,
        slot: row.try_get(13).ok()?,
        ..Facts::default()
    })
}

/// Removes the rows that the store would keep for a while of names that begin so and are free. A role without the right leaves them.
pub(crate) async fn sweep(url: &str, root: &str) {
    let Ok(config) = Config::from_url(url) else {
        return;
    };
    let (schema, _) = config.uses();
    for host in config.hosts() {
        let Some(client) = connect(&config, host).await else {
            continue;
        };
        // Clients that a case cut off have left places that have ended. The next claim would have removed them.
        let free = format!("NOT EXISTS (SELECT FROM {schema}.place p WHERE p.name = t.name)");
        for (table, is_over) in [
            ("place", "t.until <= clock_timestamp()"),
            ("lines", &free),
            ("observer", "true"),
        ] {
            let sql = format!(
                "DELETE FROM {schema}.{table} t WHERE starts_with(t.name, '{root}/') AND {is_over}"
            );
            let _ = tokio::time::timeout(TIMEOUT, client.batch_execute(&sql)).await;
        }
    }
}

/// Connects as the store does.
async fn connect(config: &Config, host: &Host) -> Option<Client> {
    let connecting = config.session(host);
    tokio::time::timeout(TIMEOUT, connecting).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "tls")]
    use leasehold_testbed::{Certificates, TlsPort};
    use leasehold_testbed::{PgBouncer, PgBouncerOptions, Postgres, PostgresOptions};

    use crate::verify::findings::{Finding, Severity};
    use crate::verify::servers::{Server, inspect};

    async fn found(url: &str) -> Server {
        let store = leasehold::connect(url).await.unwrap();
        inspect(url, &store.guarantees(), None).await
    }

    fn abouts(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|finding| finding.about).collect()
    }

    fn says(findings: &[Finding], words: &[&str]) -> bool {
        findings
            .iter()
            .any(|finding| words.iter().all(|word| finding.text.contains(word)))
    }

    #[tokio::test]
    async fn a_plain_server_has_nothing_to_tell_and_one_of_bad_settings_has() {
        let server = Postgres::start().await.unwrap();
        let plain = found(&server.url()).await;
        assert_eq!(abouts(&plain.findings), [""; 0], "{:?}", plain.findings);
        let version = plain.version.unwrap();
        let said = server.text("SHOW server_version").await.unwrap();
        assert_eq!(version, said);

        let bad = PostgresOptions::default()
            .set("fsync", "off")
            .set("max_connections", "20")
            .set("max_prepared_transactions", "3");
        let server = Postgres::start_with(&bad).await.unwrap();
        server
            .set("idle_in_transaction_session_timeout", "1h")
            .await
            .unwrap();
        server
            .query("ALTER ROLE app SET statement_timeout = '500ms'")
            .await
            .unwrap();
        server
            .query("BEGIN; CREATE TABLE t(); PREPARE TRANSACTION 'p'")
            .await
            .unwrap();
        let findings = found(&format!("{}?connections=12", server.url()))
            .await
            .findings;
        for words in [
            &["fsync is off"][..],
            &["idle_in_transaction", "3600 s"],
            &["statement_timeout", "500 ms"],
            &["opens up to 15"],
        ] {
            assert!(says(&findings, words), "{words:?}: {findings:?}");
        }
        assert!(
            !says(&findings, &["prepared transactions"]),
            "it is young: {findings:?}"
        );
        assert!(
            findings
                .iter()
                .any(|finding| finding.severity == Severity::Warning
                    && finding.about == "connections")
        );
        server
            .query("ALTER ROLE app CONNECTION LIMIT 8")
            .await
            .unwrap();
        let findings = found(&server.url()).await.findings;
        assert!(
            says(&findings, &["room for 5 more connections"]),
            "the role has its listener, a verb, and this: {findings:?}"
        );
    }

    #[tokio::test]
    async fn standbys_are_told_and_two_primaries_are_found_out() {
        let server = Postgres::start().await.unwrap();
        let standby = server.standby("b").await.unwrap();
        let url = |one: &Postgres, two: &Postgres| {
            let user = Postgres::USER;
            let password = Postgres::PASSWORD;
            let database = Postgres::DATABASE;
            format!(
                "postgres://{user}:{password}@{},{}/{database}",
                one.addr(),
                two.addr()
            )
        };
        let both = url(&server, &standby);
        let findings = found(&both).await.findings;
        assert_eq!(abouts(&findings), ["settings", "role"], "{findings:?}");
        assert!(
            says(&findings, &[standby.addr(), "standby"])
                && says(&findings, &["synchronous_standby_names is empty"])
        );
        // It is not told of another's place: of a stopped one nothing is known, but that.
        server.set("synchronous_standby_names", "b").await.unwrap();
        standby.kill().await.unwrap();
        let silent = inspect(
            &both,
            &leasehold::Guarantees::none("postgres").with_pushed_wake(true),
            None,
        )
        .await
        .findings;
        assert!(
            says(&silent, &[standby.addr(), "did not say"]),
            "{silent:?}"
        );
        server.set("synchronous_standby_names", "").await.unwrap();
        standby.start_again().await.unwrap();
        standby.promote().await.unwrap();
        let findings = found(&both).await.findings;
        assert!(
            says(
                &findings,
                &[server.addr(), standby.addr(), "not the same server"]
            ),
            "{findings:?}"
        );
        let twice = found(&url(&server, &server)).await.findings;
        assert_eq!(abouts(&twice), [""; 0], "{twice:?}");
    }

    #[tokio::test]
    async fn a_pooler_is_noticed_and_that_nothing_is_rung() {
        let server = Postgres::start().await.unwrap();
        let pooler = PgBouncer::start_with(server.addr(), &PgBouncerOptions::default())
            .await
            .unwrap();
        let findings = found(&format!(
            "{}?timeout=5000&listen={}",
            pooler.url(),
            server.addr()
        ))
        .await
        .findings;
        assert_eq!(abouts(&findings), ["pooler"], "{findings:?}");
        let off = found(&format!("{}?timeout=5000&listen=off", pooler.url()))
            .await
            .findings;
        assert_eq!(abouts(&off), ["pooler", "notifications"], "{off:?}");
        let deaf = found(&pooler.url()).await.findings;
        assert_eq!(abouts(&deaf), ["settings", "pooler"], "{deaf:?}");
    }

    #[cfg(feature = "tls")]
    #[tokio::test]
    async fn over_tls_it_is_asked_as_the_store_asks_it() {
        let authority = Certificates::new().unwrap();
        let tls = Some(TlsPort::new(&authority).unwrap().mutual());
        let server = Postgres::start_with(&PostgresOptions {
            tls,
            ..PostgresOptions::default()
        })
        .await
        .unwrap();
        let client = authority.issue("client").unwrap();
        let cert = client.certificate.display();
        let key = client.key.display();
        let with = |ca: &Certificates| {
            format!(
                "{}?sslmode=verify-full&sslrootcert={}&sslcert={cert}&sslkey={key}",
                server.url(),
                ca.ca().display()
            )
        };
        let found = found(&with(&authority)).await;
        assert!(
            found.version.is_some() && found.findings.is_empty(),
            "{:?}",
            found.findings
        );
        // There is no fallback to plain text.
        let stranger = Certificates::new().unwrap();
        let silent = inspect(
            &with(&stranger),
            &leasehold::Guarantees::none("postgres").with_pushed_wake(true),
            None,
        )
        .await;
        assert!(
            silent.version.is_none() && abouts(&silent.findings) == ["version"],
            "{:?}",
            silent.findings
        );
    }
}
