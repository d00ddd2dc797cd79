//! The URLs that providers and frameworks give, with made-up hosts, and what becomes of each: the
//! page of the store has the same list.

use leasehold_net::{Host, Verified};
use leasehold_testbed::reasons::{Shape, urls_are_on_page};
use tokio_postgres::config::ChannelBinding;

use super::{Config, Listen};

const SHAPES: [Shape; 46] = [
    (
        "Heroku",
        "postgres://u1:pw@ec2-1-2-3-4.compute-1.amazonaws.com:5432/d1",
        "host ec2-1-2-3-4.compute-1.amazonaws.com:5432, database d1; TLS if offered",
    ),
    (
        "Neon",
        "postgresql://app:pw@ep-dark-1-pooler.eu-central-1.aws.neon.tech/app?sslmode=require&channel_binding=require",
        "host ep-dark-1-pooler.eu-central-1.aws.neon.tech:5432, database app; TLS, and the login is bound to it",
    ),
    (
        "Neon, direct",
        "postgresql://app:pw@ep-dark-1.eu-central-1.aws.neon.tech/app?sslmode=require",
        "host ep-dark-1.eu-central-1.aws.neon.tech:5432, database app; TLS, not verified (warning)",
    ),
    (
        "Supabase",
        "postgresql://postgres:pw@db.abcdefgh.supabase.co:5432/postgres",
        "host db.abcdefgh.supabase.co:5432, database postgres; TLS if offered",
    ),
    (
        "Supabase, pooler",
        "postgresql://postgres.abcdefgh:pw@aws-0-eu-central-1.pooler.supabase.com:6543/postgres?pgbouncer=true",
        "host aws-0-eu-central-1.pooler.supabase.com:6543, database postgres; TLS if offered; no notifications",
    ),
    (
        "Supabase by Vercel",
        "postgres://postgres.abcdefgh:pw@aws-0.pooler.supabase.com:6543/postgres?sslmode=require&supa=base-pooler.x",
        "host aws-0.pooler.supabase.com:6543, database postgres; TLS, not verified (warning)",
    ),
    (
        "Amazon RDS",
        "postgres://app:pw@db.abc.eu-west-1.rds.amazonaws.com:5432/app?sslmode=verify-full&sslrootcert=/rds.pem",
        "host db.abc.eu-west-1.rds.amazonaws.com:5432, database app; TLS, verified",
    ),
    (
        "Amazon Aurora",
        "postgresql://app:pw@c.cluster-abc.eu-west-1.rds.amazonaws.com/app?target_session_attrs=read-write",
        "host c.cluster-abc.eu-west-1.rds.amazonaws.com:5432, database app; TLS if offered",
    ),
    (
        "Amazon RDS Proxy",
        "postgresql://app:pw@p.proxy-abc.eu-west-1.rds.amazonaws.com:5432/app?sslmode=require",
        "host p.proxy-abc.eu-west-1.rds.amazonaws.com:5432, database app; TLS, not verified (warning)",
    ),
    (
        "Cloud SQL, socket",
        "postgresql://app:pw@/app?host=/cloudsql/project:region:instance",
        "socket in /cloudsql/project:region:instance, database app",
    ),
    (
        "Cloud SQL by Prisma",
        "postgresql://app:pw@localhost/app?host=/cloudsql/project:region:instance",
        "socket in /cloudsql/project:region:instance, database app",
    ),
    (
        "Render, internal",
        "postgresql://app:pw@dpg-abc-a/app",
        "host dpg-abc-a:5432, database app; TLS if offered",
    ),
    (
        "Render, external",
        "postgresql://app:pw@dpg-abc-a.oregon-postgres.render.com/app",
        "host dpg-abc-a.oregon-postgres.render.com:5432, database app; TLS if offered",
    ),
    (
        "Railway",
        "postgresql://postgres:pw@postgres.railway.internal:5432/railway",
        "host postgres.railway.internal:5432, database railway; TLS if offered",
    ),
    (
        "Railway, public",
        "postgresql://postgres:pw@viaduct.proxy.rlwy.net:12345/railway",
        "host viaduct.proxy.rlwy.net:12345, database railway; TLS if offered",
    ),
    (
        "Fly",
        "postgres://app:pw@app-db.flycast:5432/app?sslmode=disable",
        "host app-db.flycast:5432, database app; plain text",
    ),
    (
        "DigitalOcean",
        "postgresql://doadmin:pw@db-1-do-user-1-0.b.db.ondigitalocean.com:25060/defaultdb?sslmode=require",
        "host db-1-do-user-1-0.b.db.ondigitalocean.com:25060, database defaultdb; TLS, not verified (warning)",
    ),
    (
        "DigitalOcean, pool",
        "postgresql://doadmin:pw@db-1-do-user-1-0.b.db.ondigitalocean.com:25061/pool-1?sslmode=require",
        "host db-1-do-user-1-0.b.db.ondigitalocean.com:25061, database pool-1; TLS, not verified (warning)",
    ),
    (
        "Azure, user@server",
        "postgres://app@server1:pw@server1.postgres.database.azure.com:5432/app?sslmode=require",
        "host server1.postgres.database.azure.com:5432, database app; TLS, not verified (warning)",
    ),
    (
        "Azure, flexible",
        "postgres://app%40server1:pw@server1.postgres.database.azure.com/app?sslmode=require",
        "host server1.postgres.database.azure.com:5432, database app; TLS, not verified (warning)",
    ),
    (
        "Crunchy Bridge",
        "postgres://application:pw@p.abc.db.postgresbridge.com:5432/postgres",
        "host p.abc.db.postgresbridge.com:5432, database postgres; TLS if offered",
    ),
    (
        "Timescale",
        "postgres://tsdbadmin:pw@abc.def.tsdb.cloud.timescale.com:30123/tsdb?sslmode=require",
        "host abc.def.tsdb.cloud.timescale.com:30123, database tsdb; TLS, not verified (warning)",
    ),
    (
        "Aiven",
        "postgres://avnadmin:pw@pg-1-app.aivencloud.com:12345/defaultdb?sslmode=require",
        "host pg-1-app.aivencloud.com:12345, database defaultdb; TLS, not verified (warning)",
    ),
    (
        "CockroachDB",
        "postgresql://app:pw@free-1.cockroachlabs.cloud:26257/defaultdb?sslmode=verify-full&options=--cluster%3Dapp-1",
        "host free-1.cockroachlabs.cloud:26257, database defaultdb; TLS, verified; options sent",
    ),
    (
        "YugabyteDB Aeon",
        "postgresql://admin:pw@eu-1.abc.aws.yugabyte.cloud:5433/yugabyte?ssl=true&sslmode=verify-full&sslrootcert=/root.crt",
        "host eu-1.abc.aws.yugabyte.cloud:5433, database yugabyte; TLS, verified",
    ),
    (
        "A private CA",
        "postgres://app:pw@10.0.0.1/app?sslmode=verify-ca&sslrootcert=/ca.pem&sslcert=/me.pem&sslkey=/me.key",
        "host 10.0.0.1:5432, database app; TLS, its CA verified",
    ),
    (
        "CloudNativePG",
        "postgresql://app:pw@app-rw.default:5432/app",
        "host app-rw.default:5432, database app; TLS if offered",
    ),
    (
        "Docker Compose",
        "postgres://postgres:pw@my_db:5432/postgres",
        "host my_db:5432, database postgres; TLS if offered",
    ),
    (
        "Several servers",
        "postgresql://app:pw@a:5432,b:5433/app?target_session_attrs=primary&load_balance_hosts=random",
        "host a:5432,b:5433, database app; TLS if offered",
    ),
    (
        "psql, on this machine",
        "postgresql:///app?host=/var/run/postgresql&application_name=jobs&connect_timeout=10",
        "socket in /var/run/postgresql, database app",
    ),
    (
        "Prisma, as made",
        "postgresql://app:pw@localhost:5432/app?schema=public",
        "Refused: schema=public is not for locks: they have a schema of their own. Leave it out for schema=leasehold, or name another one",
    ),
    (
        "Prisma, pooled",
        "postgresql://app:pw@h/app?pgbouncer=true&connection_limit=1&pool_timeout=20&statement_cache_size=0",
        "host h:5432, database app; TLS if offered; no notifications; connections 1",
    ),
    (
        "Prisma, its TLS",
        "postgresql://app:pw@h/app?sslmode=prefer&sslaccept=strict",
        "Refused: the store's URL: sslaccept is written sslmode=verify-full (strict), or sslmode=require, which verifies nothing",
    ),
    (
        "SQLAlchemy, psycopg",
        "postgresql+psycopg://app:pw@localhost/app",
        "host localhost:5432, database app; TLS if offered",
    ),
    (
        "SQLAlchemy, asyncpg",
        "postgresql+asyncpg://app:pw@localhost/app?ssl=require",
        "host localhost:5432, database app; TLS, not verified (warning)",
    ),
    (
        "Django",
        "POSTGRES://app:pw%23%2F%40@localhost:5432/app",
        "host localhost:5432, database app; TLS if offered",
    ),
    (
        "Django, socket",
        "postgres://%2Fvar%2Frun%2Fpostgresql/app",
        "socket in /var/run/postgresql, database app",
    ),
    (
        "Rails",
        "postgresql://app:pw@localhost/app?pool=5&encoding=utf8&prepared_statements=false",
        "host localhost:5432, database app; TLS if offered; connections 5",
    ),
    (
        "Symfony",
        "postgresql://app:pw@127.0.0.1:5432/app?serverVersion=16&charset=utf8",
        "host 127.0.0.1:5432, database app; TLS if offered",
    ),
    (
        "pgx",
        "postgres://app:pw@h:5432/app?sslmode=disable&pool_max_conns=100",
        "host h:5432, database app; plain text; connections 64",
    ),
    (
        "sqlx",
        "postgres://localhost/app?statement-cache-capacity=0&sslmode=prefer",
        "host localhost:5432, database app; TLS if offered (warning)",
    ),
    (
        "node-postgres",
        "postgres://app:pw@h/app?sslmode=require&uselibpqcompat=true",
        "host h:5432, database app; TLS, not verified (warning)",
    ),
    (
        "node-postgres, no-verify",
        "postgres://app:pw@h/app?sslmode=no-verify",
        "Refused: the store's URL: sslmode is disable, allow, prefer, require, verify-ca or verify-full",
    ),
    (
        "node-postgres or JDBC, ssl",
        "postgres://app:pw@h/app?ssl=true",
        "host h:5432, database app; TLS, verified",
    ),
    (
        "JDBC",
        "jdbc:postgresql://h:5432/app?user=app&password=pw",
        "Refused: the store's URL: jdbc: is left out, and user and password stand before the host: postgresql://user:password@host/database",
    ),
    (
        "Read replica",
        "postgres://app:pw@replica/app?target_session_attrs=read-only",
        "Refused: the store's URL: target_session_attrs is read-write, since locks are written: the store uses the primary of the hosts",
    ),
];

/// What a URL means, or why it is refused.
fn meaning(url: &str) -> String {
    let config = match Config::read(url, &|_| None) {
        Ok(config) => config,
        Err(e) => return format!("Refused: {e}"),
    };
    let server = &config.server;
    let hosts: Vec<String> = server.hosts.iter().map(Host::to_string).collect();
    let mut meaning = match &server.hosts[..] {
        [socket] if socket.is_socket() => format!("socket in {}", socket.name),
        _ => format!("host {}", hosts.join(",")),
    };
    meaning += &format!(", database {}", server.database);
    let verified =
        |way: &Option<leasehold_net::Tls>| way.as_ref().map(leasehold_net::Tls::verified);
    let ways: Vec<Option<Verified>> = server.ways.iter().map(verified).collect();
    let is_bound = server.settings.get_channel_binding() == ChannelBinding::Require;
    if !server.hosts[0].is_socket() {
        meaning += match ways[..] {
            [None] => "; plain text",
            [Some(Verified::Nothing)] if is_bound => "; TLS, and the login is bound to it",
            [Some(Verified::Nothing)] => "; TLS, not verified",
            [Some(Verified::Ca)] => "; TLS, its CA verified",
            [Some(Verified::Name)] => "; TLS, verified",
            [None, _] => "; TLS if demanded",
            _ => "; TLS if offered",
        };
    }
    if !config.warnings().is_empty() {
        meaning += " (warning)";
    }
    if matches!(config.listen, Listen::Off) {
        meaning += "; no notifications";
    }
    if config.connections != super::CONNECTIONS {
        meaning += &format!("; connections {}", config.connections);
    }
    if server.settings.get_options().is_some() {
        meaning += "; options sent";
    }
    meaning
}

#[test]
fn each_shape_means_what_the_page_says() {
    urls_are_on_page("postgres", &SHAPES, meaning);
}

#[tokio::test]
async fn users_and_passwords_are_read_from_them() {
    for (of, user, password) in [
        ("Azure, user@server", "app@server1", Some("pw")),
        ("Azure, flexible", "app@server1", Some("pw")),
        ("Supabase, pooler", "postgres.abcdefgh", Some("pw")),
        ("Django", "app", Some("pw#/@")),
    ] {
        let (_, url, _) = SHAPES.iter().find(|(known, ..)| *known == of).unwrap();
        let config = Config::read(url, &|_| None).unwrap();
        let read = config.server.user().await.unwrap();
        assert_eq!(read, (user.to_owned(), password.map(str::to_owned)), "{of}");
    }
}
