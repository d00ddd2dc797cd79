//! How the schema comes to be, whose it may be, and which servers are refused.

use leasehold_core::backend::TokenFloor;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Claimed, Completions, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken, Guard, Store};
use leasehold_postgres::client::types::ToSql;
use leasehold_postgres::client::{NoTls, connect};
use leasehold_postgres::{Config, Postgres, migration};
use leasehold_testbed::PgBouncer;
use leasehold_testbed::reasons::{Reason, Reasons};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

#[tokio::test]
async fn who_is_not_there_or_silent_is_told_so() {
    bounded(async {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = closed.local_addr().unwrap();
        drop(closed);
        for (at, says) in [
            (at, "nothing listens at this port"),
            (silent.local_addr().unwrap(), "is it stopped, or overloaded"),
        ] {
            let url = format!("postgres://me@{at}/database?timeout=100");
            let error = Postgres::connect(&url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            assert!(error.to_string().contains(says), "{error:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn eight_install_it_at_once() {
    bounded(async {
        let server = server().await;
        let mut installers = JoinSet::new();
        for i in 0..8 {
            let url = url(&server, "");
            installers.spawn(async move {
                if i % 2 == 0 {
                    Postgres::connect(&url).await.map(drop).unwrap();
                } else {
                    // As a tool of migrations.
                    let (client, connection) = connect(url.split_once('?').unwrap().0, NoTls)
                        .await
                        .unwrap();
                    tokio::spawn(connection);
                    client
                        .batch_execute(&migration("leasehold").unwrap())
                        .await
                        .unwrap();
                }
            });
        }
        while let Some(installed) = installers.join_next().await {
            installed.unwrap();
        }
        let store = Store::new(client(&server).await);
        store
            .lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_role_that_may_only_execute_takes_locks_and_reads_no_table() {
    bounded(async {
        let server = server().await;
        drop(client(&server).await);
        // A name that has to be quoted.
        server
            .query(&format!(
                "CREATE ROLE \"Guest-1\" LOGIN PASSWORD '{}'",
                Server::PASSWORD
            ))
            .await
            .unwrap();
        let as_app = server.url_as("Guest-1");
        let app = as_role(&server, "Guest-1").await;
        let words = refused(&as_app, ErrorKind::Denied).await;
        let statements = grants("leasehold", "\"Guest-1\"");
        assert!(
            words.contains("42501") && words.contains(&statements),
            "{words}"
        );
        server.query(&statements).await.unwrap();
        let store = Store::new(connected(|| Postgres::connect(&as_app)).await);
        let guard = store.lock("a").acquire().await.unwrap();
        app.execute(
            leasehold_postgres::HELD,
            &[&"a", &guard.fencing_token().as_i64()],
        )
        .await
        .unwrap();
        for forbidden in [
            "SELECT * FROM leasehold.place",
            "DELETE FROM leasehold.lines",
            "SELECT leasehold.raise_1(1, 1)",
        ] {
            assert_eq!(
                state(app.execute(forbidden, &[]).await),
                "42501",
                "{forbidden}"
            );
        }
        guard.release().await.unwrap();
        // Who has no rights at all may not even fence.
        let nobody = role(&server, "nobody_else").await;
        assert_eq!(
            state(
                nobody
                    .execute(leasehold_postgres::HELD, &[&"a", &1_i64])
                    .await
            ),
            "42501"
        );
    })
    .await;
}

/// The words with which a client is refused because of how the store is set up.
async fn refused(url: &str, kind: ErrorKind) -> String {
    let error = Postgres::connect(url).await.unwrap_err();
    let words = format!("{error} {error:?}");
    assert!(
        error.kind() == kind && !words.contains(Server::PASSWORD),
        "{words}"
    );
    error.to_string()
}

#[tokio::test]
async fn each_use_has_its_grant_and_a_missing_one_is_named() {
    bounded(async {
        let server = server().await;
        let owner = client(&server).await;
        let mine = claim("a", WaitPolicy::Try);
        let token = granted(&owner, &mine).await.token;
        let lacks = |function: &str, role: &str, error: leasehold_core::Error| {
            let grant = format!("GRANT EXECUTE ON FUNCTION leasehold.{function} TO {role}");
            assert!(error.kind() == ErrorKind::Denied && error.to_string().contains(&grant), "{error}");
        };

        // Looks, and takes nothing.
        role(&server, "looks").await;
        server
            .query("GRANT USAGE ON SCHEMA leasehold TO looks; GRANT EXECUTE ON FUNCTION leasehold.inspect_1, leasehold.list_1,
                leasehold.completion_1, leasehold.completions_1 TO looks")
            .await
            .unwrap();
        let as_looks = server.url_as("looks");
        let looks = connected(|| Postgres::connect(&as_looks)).await;
        assert_eq!(looks.inspect(&"a".into()).await.unwrap().holders.len(), 1);
        assert_eq!(looks.list("", None, 9).await.unwrap().len(), 1);
        assert_eq!(looks.completion(&"a".into()).await.unwrap(), None);
        assert!(looks.list_completions("", None, 9).await.unwrap().is_empty());
        lacks("forget_1", "looks", looks.forget(&"a".into(), token).await.unwrap_err());
        lacks("once_1", "looks", looks.claim(&claim("b", WaitPolicy::Try).once(0)).await.unwrap_err());
        lacks("claim_1", "looks", looks.claim(&claim("b", WaitPolicy::Try)).await.unwrap_err());
        lacks("evict_1", "looks", looks.evict(&"a".into(), token).await.unwrap_err());

        // Fences its own transactions.
        let fences = role(&server, "fences").await;
        server
            .query("GRANT USAGE ON SCHEMA leasehold TO fences; GRANT EXECUTE ON FUNCTION leasehold.held, leasehold.done TO fences")
            .await
            .unwrap();
        fences.execute(leasehold_postgres::HELD, &[&"a", &token.as_i64()]).await.unwrap();
        let done: [&(dyn ToSql + Sync); 4] = [&"a", &token.as_i64(), &None::<i64>, &"by a role that takes no locks"];
        fences.execute(leasehold_postgres::DONE, &done).await.unwrap();
        let as_fences = server.url_as("fences");
        let fences = connected(|| Postgres::connect(&as_fences)).await;
        lacks("inspect_1", "fences", fences.inspect(&"a".into()).await.unwrap_err());

        // Takes locks, and is then moved to another store.
        role(&server, "moves").await;
        server.query(&grants("leasehold", "moves")).await.unwrap();
        let as_moves = server.url_as("moves");
        let moves = connected(|| Postgres::connect(&as_moves)).await;
        lacks("mark_1", "moves", moves.mark().await.unwrap_err());
        lacks("raise_1", "moves", moves.raise(token).await.unwrap_err());
        let mut far = claim("far", WaitPolicy::Try);
        far.floor = Some(FencingToken::new(1 << 60));
        let error = moves.claim(&far).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("raise_1"), "{error}");
        server.query("GRANT EXECUTE ON FUNCTION leasehold.mark_1, leasehold.raise_1 TO moves").await.unwrap();
        assert!(moves.mark().await.unwrap() >= token);
        moves.raise(token).await.unwrap();
        assert_eq!(granted(&moves, &far).await.token.get(), 1 << 60);
    })
    .await;
}

#[test]
fn the_page_has_the_statements_that_are_tested() {
    let page = include_str!("../../../../docs/stores/postgres.md");
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for statement in grants("leasehold", "app").split("; ") {
        assert!(words.contains(statement), "{statement}");
    }
    for functions in [
        "inspect_1, leasehold.list_1, leasehold.completion_1, leasehold.completions_1",
        "held, leasehold.done",
        "mark_1, leasehold.raise_1",
    ] {
        let statement = format!("GRANT EXECUTE ON FUNCTION leasehold.{functions} TO");
        assert!(words.contains(&statement), "{statement}");
    }
}

/// What is in a schema, and who may do what with it.
async fn state_of(server: &Server, schema: &str) -> String {
    let state = format!(
        "SELECT concat((SELECT n.nspowner || ' ' || coalesce(n.nspacl::text, '') FROM pg_namespace n WHERE n.nspname = '{schema}'),
            (SELECT string_agg(concat(c.relname, c.relowner, c.relacl, c.relhastriggers), ' ' ORDER BY c.relname) FROM pg_class c
                WHERE c.relnamespace = to_regnamespace('{schema}')),
            (SELECT string_agg(concat(p.oid, p.proowner, p.proacl, p.prosrc), ' ' ORDER BY p.oid) FROM pg_proc p
                WHERE p.pronamespace = to_regnamespace('{schema}')))"
    );
    server.text(&state).await.unwrap()
}

/// What somebody else has put into a schema; and what the refusal says, of which the last is the statement that mends it, but for the first two and the last three.
const FOREIGN: [(&str, &[&str]); 20] = [
    ("CREATE SCHEMA {s} AUTHORIZATION eve", &["the role eve", "log in as eve", "DROP SCHEMA {s} CASCADE"]),
    ("SET ROLE eve; {migration} RESET ROLE", &["the role eve", "log in as eve", "DROP SCHEMA {s} CASCADE"]),
    ("CREATE SCHEMA {s}; GRANT CREATE ON SCHEMA {s} TO eve", &["REVOKE CREATE ON SCHEMA {s} FROM eve"]),
    ("CREATE SCHEMA {s}; GRANT ALL ON SCHEMA {s} TO PUBLIC", &["REVOKE CREATE ON SCHEMA {s} FROM PUBLIC"]),
    ("CREATE SCHEMA {s}; CREATE TABLE {s}.meta (); ALTER TABLE {s}.meta OWNER TO eve", &["the role eve", "DROP TABLE {s}.meta"]),
    ("{migration} CREATE VIEW {s}.v AS SELECT 1; ALTER VIEW {s}.v OWNER TO eve", &["the role eve", "DROP VIEW {s}.v"]),
    ("{migration} CREATE SEQUENCE {s}.q; ALTER SEQUENCE {s}.q OWNER TO eve", &["the role eve", "DROP SEQUENCE {s}.q"]),
    ("{migration} ALTER FUNCTION {s}.enters_1 OWNER TO eve", &["the role eve", "DROP ROUTINE {s}.enters_1(integer)"]),
    (
        "{migration} CREATE FUNCTION {s}.enters_1(numeric) RETURNS int LANGUAGE sql AS 'SELECT 1'; ALTER FUNCTION {s}.enters_1(numeric) OWNER TO eve",
        &["the role eve", "DROP ROUTINE {s}.enters_1(numeric)"],
    ),
    ("{migration} CREATE DOMAIN {s}.text AS pg_catalog.text; ALTER DOMAIN {s}.text OWNER TO eve", &["the role eve", "DROP TYPE {s}.text"]),
    ("{migration} CREATE TYPE {s}.pair AS (a int); ALTER TYPE {s}.pair OWNER TO eve", &["the role eve", "DROP TYPE {s}.pair"]),
    (
        "{migration} CREATE OPERATOR {s}.+ (LEFTARG = text, RIGHTARG = text, FUNCTION = textcat); ALTER OPERATOR {s}.+ (text, text) OWNER TO eve",
        &["the role eve", "DROP OPERATOR {s}.+(text,text)"],
    ),
    ("{migration} CREATE COLLATION {s}.c FROM \"C\"; ALTER COLLATION {s}.c OWNER TO eve", &["the role eve", "DROP COLLATION {s}.c"]),
    (
        "{migration} GRANT USAGE ON SCHEMA {s} TO eve; GRANT TRIGGER ON {s}.lines TO eve; SET ROLE eve;
         CREATE TRIGGER t BEFORE UPDATE ON {s}.lines FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger(); RESET ROLE",
        &["DROP TRIGGER t ON {s}.lines"],
    ),
    ("{migration} CREATE RULE r AS ON DELETE TO {s}.observer DO INSTEAD NOTHING", &["DROP RULE r ON {s}.observer"]),
    ("{migration} CREATE POLICY p ON {s}.place", &["DROP POLICY p ON {s}.place"]),
    (
        "{migration} CREATE TABLE public.refers (name text COLLATE \"C\" CONSTRAINT f REFERENCES {s}.lines)",
        &["ALTER TABLE public.refers DROP CONSTRAINT f"],
    ),
    ("CREATE SCHEMA {s}; CREATE TABLE {s}.orders ()", &["{s}.orders", "name another one"]),
    ("CREATE SCHEMA {s}; CREATE FUNCTION {s}.pay() RETURNS int LANGUAGE sql AS 'SELECT 1'", &["function {s}.pay()", "name another one"]),
    (
        "{migration} CREATE OR REPLACE FUNCTION {s}.revision() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 999'",
        &["revision 999", "nothing was changed"],
    ),
];

#[tokio::test]
async fn a_migration_refuses_what_is_somebody_elses_and_changes_nothing() {
    bounded(async {
        let server = server().await;
        let eve = role(&server, "eve").await;
        server
            .query("GRANT CREATE ON DATABASE postgres TO eve")
            .await
            .unwrap();
        let admin = as_role(&server, Server::SUPERUSER).await;
        for (n, (made, says)) in FOREIGN.iter().enumerate() {
            let schema = format!("case_{n}");
            let sql = migration(&schema).unwrap();
            let made = made.replace("{migration}", &sql).replace("{s}", &schema);
            server.query(&made).await.unwrap();
            let was = state_of(&server, &schema).await;
            let error = admin.batch_execute(&sql).await.unwrap_err();
            let words = error.as_db_error().unwrap().message().to_owned();
            assert!(
                words.contains("nothing was changed")
                    && state(Err::<(), _>(error)).starts_with("LH00"),
                "{made}: {words}"
            );
            admin.batch_execute("ROLLBACK").await.unwrap();
            let says: Vec<String> = says
                .iter()
                .map(|said| said.replace("{s}", &schema))
                .collect();
            says.iter()
                .for_each(|said| assert!(words.contains(said), "{said}: {words}"));
            assert_eq!(state_of(&server, &schema).await, was, "{made}");
            // What it says to execute mends it.
            let mend = words
                .split_once("nothing was changed: ")
                .map(|(_, mend)| mend);
            if let Some(mend) = mend.filter(|_| (2..17).contains(&n)) {
                admin
                    .batch_execute(mend)
                    .await
                    .unwrap_or_else(|e| panic!("{mend}: {e:?}"));
                admin
                    .batch_execute(&sql)
                    .await
                    .unwrap_or_else(|e| panic!("after {mend}: {e:?}"));
            }
        }
        // Its own owner may.
        for schema in ["case_0", "case_1", "hers"] {
            eve.batch_execute(&migration(schema).unwrap())
                .await
                .unwrap();
        }
        // And a superuser calls no function of hers.
        let url = format!("{}?schema=hers", server.url_as(Server::SUPERUSER));
        let words = refused(&url, ErrorKind::Unsupported).await;
        assert!(
            words.contains("superuser") && words.contains("eve"),
            "{words}"
        );
    })
    .await;
}

#[tokio::test]
async fn default_privileges_open_neither_the_schema_nor_its_tables() {
    bounded(async {
        let server = server().await;
        role(&server, "eve").await;
        let defaults = ["SCHEMAS", "TABLES", "FUNCTIONS"]
            .map(|what| format!("ALTER DEFAULT PRIVILEGES GRANT ALL ON {what} TO PUBLIC, eve"));
        server.query(&defaults.join("; ")).await.unwrap();
        server.query(&migration("leasehold").unwrap()).await.unwrap();
        // A trigger is executed with the rights of the owner; and an operator is looked for in the schema.
        let open = "SELECT concat(
            (SELECT string_agg(a.grantee || a.privilege_type, ' ') FROM pg_namespace n, aclexplode(n.nspacl) a
                WHERE n.nspname = 'leasehold' AND a.grantee <> n.nspowner AND (a.grantee = 0 OR a.privilege_type = 'CREATE')),
            (SELECT string_agg(c.relname || a.grantee || a.privilege_type, ' ') FROM pg_class c, aclexplode(c.relacl) a
                WHERE c.relnamespace = 'leasehold'::regnamespace AND a.grantee <> c.relowner
                AND (a.grantee = 0 OR a.privilege_type IN ('TRIGGER', 'REFERENCES'))),
            (SELECT string_agg(p.proname, ' ') FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                WHERE p.pronamespace = 'leasehold'::regnamespace AND a.grantee = 0))";
        assert_eq!(server.text(open).await.unwrap(), "");
    })
    .await;
}

/// A schema in which a program has its own tables, as some frameworks name one in every URL.
#[tokio::test]
async fn a_schema_with_other_things_is_refused_and_keeps_its_rights() {
    bounded(async {
        let server = server().await;
        let error = Postgres::connect(&url(&server, "&schema=public")).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("schema=leasehold"), "{error}");
        let shop = "CREATE SCHEMA shop; CREATE TABLE shop.orders (); CREATE FUNCTION shop.pay() RETURNS int LANGUAGE sql AS 'SELECT 1';
            GRANT USAGE ON SCHEMA shop TO PUBLIC; GRANT SELECT ON shop.orders TO PUBLIC";
        program(&server).await.batch_execute(shop).await.unwrap();
        let was = state_of(&server, "shop").await;
        let words = refused(&url(&server, "&schema=shop"), ErrorKind::Unsupported).await;
        assert!(words.contains("function shop.pay()") && words.contains("name another one"), "{words}");
        assert_eq!(state_of(&server, "shop").await, was);
    })
    .await;
}

/// An administrator takes over a schema of another role, with everything in it.
#[tokio::test]
async fn a_former_owner_leaves_nothing_that_is_executed() {
    bounded(async {
        let server = server().await;
        let guest = role(&server, "guest").await;
        server.query("CREATE SCHEMA code AUTHORIZATION guest; GRANT CREATE ON DATABASE postgres TO guest").await.unwrap();
        let code = "CREATE FUNCTION code.is(anyelement) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
            CREATE DOMAIN code.small AS int CHECK (code.is(VALUE))";
        guest.batch_execute(code).await.unwrap();
        for (n, (left, name)) in [
            ("ALTER TABLE {s}.place ALTER parted SET DEFAULT code.is(1)", "DEFAULT of parted"),
            ("ALTER TABLE {s}.lines ADD CONSTRAINT c CHECK (code.is(seq))", "CHECK c"),
            ("CREATE INDEX i ON {s}.lines ((code.is(seq)))", "INDEX {s}.i"),
            ("CREATE INDEX i ON {s}.lines (seq) WHERE code.is(seq)", "INDEX {s}.i"),
            ("ALTER TABLE {s}.observer ADD COLUMN d code.small", "column d of the type code.small"),
            ("CREATE TABLE code.child () INHERITS ({s}.place)", "child code.child"),
            ("ALTER TABLE {s}.completion ALTER cut SET DEFAULT code.is(1)", "DEFAULT of cut"),
            ("CREATE STATISTICS code.s ON (code.is(seq)), head FROM {s}.lines", "STATISTICS s"),
        ].into_iter().enumerate() {
            let schema = format!("left_{n}");
            let sql = migration(&schema).unwrap();
            guest.batch_execute(&sql).await.unwrap();
            guest.batch_execute(&left.replace("{s}", &schema)).await.unwrap_or_else(|e| panic!("{left}: {:?}", e.as_db_error()));
            let take_over = format!("ALTER SCHEMA {schema} OWNER TO postgres; REASSIGN OWNED BY guest TO postgres; ALTER SCHEMA code OWNER TO guest;
                ALTER FUNCTION code.is(anyelement) OWNER TO guest; ALTER DOMAIN code.small OWNER TO guest");
            server.query(&take_over).await.unwrap();
            let refused = server.query(&sql).await.unwrap_err().to_string();
            let name = name.replace("{s}", &schema);
            let (why, remedy) = refused.rsplit_once("nothing was changed: ").unwrap_or_else(|| panic!("{left}: {refused}"));
            assert!(why.contains(&name), "{left}: {refused}");
            // What it says to execute mends it.
            let remedy = remedy.lines().next().unwrap();
            server.query(remedy).await.unwrap_or_else(|e| panic!("{remedy}: {e}"));
            server.query(&sql).await.unwrap_or_else(|e| panic!("{left}: {e}"));
        }
    })
    .await;
}

#[tokio::test]
async fn a_schema_that_an_administrator_made_serves_its_owner() {
    bounded(async {
        let server = server().await;
        let guest = role(&server, "guest").await;
        server.query("CREATE SCHEMA locks; GRANT ALL ON SCHEMA locks TO guest").await.unwrap();
        let as_guest = format!("{}?schema=locks", server.url_as("guest"));
        let words = refused(&as_guest, ErrorKind::Unsupported).await;
        let mend = "ALTER SCHEMA locks OWNER TO guest";
        assert!(words.contains(mend) && words.contains("postgres"), "{words}");
        server.query(&format!("{mend}; COMMENT ON SCHEMA locks IS 'ours'")).await.unwrap();
        drop(connected(|| Postgres::connect(&as_guest)).await);
        // Emptied by hand, it is installed again, and what the administrator wrote of it stays.
        let empty = "DO $$ DECLARE o text; BEGIN
            FOR o IN SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'locks'::regnamespace AND proname <> 'lock_1' LOOP
                EXECUTE 'DROP FUNCTION ' || o;
            END LOOP;
            DROP TABLE locks.lines, locks.place, locks.observer, locks.meta, locks.completion CASCADE; END $$";
        guest.batch_execute(empty).await.unwrap();
        let store = connected(|| Postgres::connect(&as_guest)).await;
        granted(&store, &claim("a", WaitPolicy::Try)).await;
        assert_eq!(server.text("SELECT obj_description('locks'::regnamespace)").await.unwrap(), "ours");
    })
    .await;
}

#[tokio::test]
async fn what_only_warnings_need_costs_a_warning() {
    bounded(async {
        let server = server().await;
        server
            .query("REVOKE ALL ON pg_stat_replication, pg_stat_activity FROM PUBLIC")
            .await
            .unwrap();
        let told = async || client(&server).await.guarantees().warnings().to_vec();
        let warnings = told().await;
        let grant = format!(
            "GRANT SELECT ON pg_catalog.pg_stat_replication, pg_catalog.pg_stat_activity TO {}",
            Server::USER
        );
        assert!(
            warnings.iter().any(|warning| warning.contains(&grant)),
            "{warnings:?}"
        );
        server.query(&grant).await.unwrap();
        assert_eq!(told().await.len(), warnings.len() - 1);
    })
    .await;
}

/// Some providers turn it on for each new table.
#[tokio::test]
async fn rows_that_are_hidden_are_not_taken_for_free() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let mine = claim("a", WaitPolicy::Try);
        granted(&store, &mine).await;
        for table in ["place", "lines"] {
            let secure =
                format!("ALTER TABLE leasehold.{table} ENABLE ROW LEVEL SECURITY; ALTER TABLE leasehold.{table} FORCE ROW LEVEL SECURITY");
            server.query(&secure).await.unwrap();
            let mend = format!("ALTER TABLE leasehold.{table} NO FORCE ROW LEVEL SECURITY");
            for hidden in [
                store.inspect(&"a".into()).await.map(drop),
                store.claim(&claim("a", WaitPolicy::Try)).await.map(drop),
            ] {
                let error = hidden.unwrap_err();
                assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(&mend), "{error}");
            }
            server.query(&mend).await.unwrap();
            busy(&store, &claim("a", WaitPolicy::Try)).await;
        }
    })
    .await;
}

/// As an earlier release might have installed it.
const EARLIER: &str = "CREATE OR REPLACE FUNCTION leasehold.revision() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 0';
    CREATE OR REPLACE FUNCTION leasehold.hex_1(p_claim uuid) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'a mistake' $$;";

#[tokio::test]
async fn a_correction_reaches_a_database_that_has_the_protocol() {
    bounded(async {
        let server = server().await;
        let earlier = client(&server).await;
        let hold = claim("a", WaitPolicy::Try);
        granted(&earlier, &hold).await;
        role(&server, "guest").await;
        server.query(&grants("leasehold", "guest")).await.unwrap();
        server.query(EARLIER).await.unwrap();
        let mistake =
            "SELECT count(*) FROM pg_proc WHERE prosrc LIKE '%a mistake%' AND proname = 'hex_1'";
        for (other, why) in [
            (
                server.url_as("guest"),
                format!("the schema belongs to {}", Server::USER),
            ),
            (url(&server, "&install=false"), "install=false".to_owned()),
        ] {
            let store = connected(|| Postgres::connect(&other)).await;
            let warnings = store.guarantees().warnings().to_vec();
            assert!(
                warnings
                    .iter()
                    .any(|warning| warning.contains("revision 0") && warning.contains(&why)),
                "{warnings:?}"
            );
            busy(&store, &claim("a", WaitPolicy::Try)).await;
        }
        assert_eq!(server.number(mistake).await.unwrap(), 1);
        let warnings = client(&server).await.guarantees().warnings().to_vec();
        assert!(
            !warnings.iter().any(|warning| warning.contains("revision")),
            "{warnings:?}"
        );
        assert_eq!(server.number(mistake).await.unwrap(), 0);
        assert_eq!(
            server.number("SELECT leasehold.revision()").await.unwrap(),
            1
        );
        // Rights and holds stay as they were.
        let as_guest = server.url_as("guest");
        busy(
            &connected(|| Postgres::connect(&as_guest)).await,
            &claim("a", WaitPolicy::Try),
        )
        .await;
        earlier.release(&hold, None).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_column_is_added_behind_no_transaction_for_which_verbs_would_wait() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let tool = program(&server).await;
        let mut program = program(&server).await;
        let mine = claim("a", WaitPolicy::Try);
        let token = granted(&store, &mine).await.token.as_i64();
        let later = migration("leasehold").unwrap().replace("('place', 'floor', 'bigint')", "('place', 'floor', 'bigint'), ('place', 'later', 'text')");
        let column = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'leasehold.place'::regclass AND attname = 'later'";
        let tx = program.transaction().await.unwrap();
        tx.execute(leasehold_postgres::HELD, &[&"a", &token]).await.unwrap();
        // Where nothing is to be added, no transaction is waited for.
        tool.batch_execute(&migration("leasehold").unwrap()).await.unwrap();
        // It gives up, and says so.
        let once = later.replace("1 .. 40", "1 .. 1").replace("nth = 40", "nth = 1");
        assert_eq!(state(tool.batch_execute(&once).await), "55P03");
        tool.batch_execute("ROLLBACK").await.unwrap();
        // However busy the machine is, it does not give up before this is over.
        let patient = later.replace("1 .. 40", "1 .. 4000").replace("nth = 40", "nth = 4000");
        let migrating = tokio::spawn(async move { tool.batch_execute(&patient).await });
        let waits = "SELECT count(*) FROM pg_locks WHERE relation = 'leasehold.place'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted";
        for i in 0..3 {
            until(async || server.number(waits).await.unwrap() > 0).await;
            let other = claim(&format!("other {i}"), WaitPolicy::Try);
            granted(&store, &other).await;
            store.release(&other, None).await.unwrap();
        }
        assert_eq!(server.number(column).await.unwrap(), 0);
        tx.commit().await.unwrap();
        migrating.await.unwrap().unwrap();
        assert_eq!(server.number(column).await.unwrap(), 1);
        store.release(&mine, None).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_schema_that_is_missing_may_be_left_to_others() {
    bounded(async {
        let server = server().await;
        let error = Postgres::connect(&url(&server, "&install=false&schema=locks"))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error
                .to_string()
                .contains("leasehold postgres-schema --schema locks"),
            "{error}"
        );
        let pw = Server::PASSWORD;
        server
            .query(&format!("CREATE ROLE guest LOGIN PASSWORD '{pw}'"))
            .await
            .unwrap();
        assert_eq!(
            kind(Postgres::connect(&server.url_as("guest")).await),
            ErrorKind::Unsupported
        );
        // It is the role's own.
        server
            .query("CREATE SCHEMA locks AUTHORIZATION guest")
            .await
            .unwrap();
        let as_owner = format!("{}?schema=locks", server.url_as("guest"));
        let store = connected(|| Postgres::connect(&as_owner)).await;
        granted(&store, &claim("a", WaitPolicy::Try)).await;
    })
    .await;
}

#[tokio::test]
async fn a_schema_that_has_gone_is_installed_again() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        granted(&store, &claim("a", WaitPolicy::Try)).await;
        server.query("DROP SCHEMA leasehold CASCADE").await.unwrap();
        let again = claim("a", WaitPolicy::Try);
        assert_eq!(kind(store.claim(&again).await), ErrorKind::Unavailable);
        granted(&store, &again).await;
        // An older version of it is brought up to date by who connects.
        server
            .query("CREATE OR REPLACE FUNCTION leasehold.protocol() RETURNS int LANGUAGE sql AS 'SELECT 0'")
            .await
            .unwrap();
        drop(client(&server).await);
        assert_eq!(server.number("SELECT leasehold.protocol()").await.unwrap(), 1);
    })
    .await;
}

#[tokio::test]
async fn two_schemas_are_two_stores() {
    bounded(async {
        let server = server().await;
        let (one, other) = (
            client(&server).await,
            Config::from_url(&url(&server, ""))
                .unwrap()
                .schema("locks_2"),
        );
        let other = Postgres::with_config(other).await.unwrap();
        for store in [&one, &other] {
            granted(store, &claim("a", WaitPolicy::Try)).await;
            busy(store, &claim("a", WaitPolicy::Try)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn versions_of_a_verb_take_the_same_locks() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        // A later version of the functions, of which this one has no idea.
        let later = migration("leasehold").unwrap().replace("claim_1(", "claim_2(").replace("settle_1(", "settle_2(");
        program(&server).await.batch_execute(&later).await.unwrap();
        let later = "SELECT what FROM leasehold.claim_2('a', gen_random_uuid(), 0::smallint, 1, 1, 1, false, 10000, '', 1, '', 1000, NULL)";
        let mine = claim("a", WaitPolicy::Try);
        let grant = granted(&store, &mine).await;
        assert_eq!(server.text(later).await.unwrap(), "busy");
        store.release(&mine, Some(&grant.place)).await.unwrap();
        assert_eq!(server.text(later).await.unwrap(), "granted");
        busy(&store, &claim("a", WaitPolicy::Try)).await;
    })
    .await;
}

#[tokio::test]
async fn every_isolation_that_is_the_default_of_a_role_serves() {
    bounded(async {
        let server = server().await;
        let role = Server::USER;
        let early = client(&server).await;
        let held = claim("held", WaitPolicy::Try);
        let token = granted(&early, &held).await.token;
        for level in ["repeatable read", "serializable", "read uncommitted"] {
            let set = format!("ALTER ROLE {role} SET default_transaction_isolation = '{level}'");
            server.query(&set).await.unwrap();
            // Its connections are new ones from now on.
            server
                .query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
                .await
                .unwrap();
            until(async || early.mark().await.is_ok()).await;
            assert!(matches!(renewed(&early, &held, token).await, Renewal::Renewed(_)), "{level}");
            let late = client(&server).await;
            busy(&late, &claim("held", WaitPolicy::Try)).await;
            let next = claim("next", WaitPolicy::Fair);
            granted(&late, &next).await;
            // A request that the server refuses ends its transaction, and nothing else.
            let mut twin = claim("another name", WaitPolicy::Fair);
            twin.id = next.id;
            assert_eq!(kind(late.claim(&twin).await), ErrorKind::Internal);
            late.release(&next, None).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn what_cannot_serve_is_refused_in_words() {
    bounded(async {
        let server = server().await;
        let pw = Server::PASSWORD;
        server
            .query("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
            .await
            .unwrap();
        let base = server.url();
        let (at, _) = base.rsplit_once('/').unwrap();
        for (url, expected, says) in [
            (format!("{at}/latin"), ErrorKind::Unsupported, "LATIN1"),
            (format!("{at}/nothing"), ErrorKind::Invalid, "3D000"),
            (base.replace(pw, "wr0ng"), ErrorKind::Denied, "28P01"),
            (
                format!("postgres://{}:@{}/{}", Server::USER, server.addr(), Server::DATABASE),
                ErrorKind::Denied,
                "password",
            ),
            (format!("postgres://{}/{}", server.addr(), Server::DATABASE), ErrorKind::Denied, "asks for a password"),
        ] {
            let answer = Postgres::connect(&url).await;
            let found = answer.as_ref().map_err(leasehold_core::Error::kind).err();
            let words = words_without(&[pw, "wr0ng"], answer);
            assert!(found == Some(expected) && words.contains(says), "{found:?} {words}");
        }
        // Nobody is left behind.
        until(async || server.clients().await.unwrap() == 0).await;
    })
    .await;
}

#[tokio::test]
async fn settings_that_lose_locks_are_told() {
    bounded(async {
        let server = server().await;
        let told = async || client(&server).await.guarantees().warnings().to_vec();
        let warnings = told().await;
        assert!(
            warnings.len() == 1 && warnings[0].contains("fsync"),
            "{warnings:?}"
        );
        let standby = server.standby("one").await.unwrap();
        until(async || {
            server
                .number("SELECT count(*) FROM pg_stat_replication")
                .await
                .unwrap()
                == 1
        })
        .await;
        let warnings = told().await;
        assert!(
            warnings
                .iter()
                .any(|warning| warning.contains("synchronous_standby_names is empty")),
            "{warnings:?}"
        );
        server
            .set("synchronous_standby_names", "one")
            .await
            .unwrap();
        until(async || told().await.len() == 1).await;
        server
            .query(&format!(
                "ALTER ROLE {} SET synchronous_commit = remote_write",
                Server::USER
            ))
            .await
            .unwrap();
        let warnings = told().await;
        assert!(
            warnings
                .iter()
                .any(|warning| warning.contains("synchronous_commit")),
            "{warnings:?}"
        );
        // A standby is told apart before anything is asked of it.
        let refused = Postgres::connect(&url(&standby, "")).await;
        let words = words_without(&[Server::PASSWORD], refused);
        assert!(words.contains("standby"), "{words}");
    })
    .await;
}

#[tokio::test]
async fn functions_are_replaced_under_those_who_use_them() {
    bounded(async {
        let server = server().await;
        let (store, program) = (Arc::new(client(&server).await), program(&server).await);
        let turns = |by: Arc<Postgres>| async move {
            for _ in 0..60 {
                let mine = claim("a", WaitPolicy::Fair);
                until(async || matches!(by.claim(&mine).await.unwrap(), Claimed::Granted(_))).await;
                by.release(&mine, None).await.unwrap();
            }
        };
        let both = [
            tokio::spawn(turns(store.clone())),
            tokio::spawn(turns(Arc::new(client(&server).await))),
        ];
        while !both.iter().all(tokio::task::JoinHandle::is_finished) {
            program
                .batch_execute(&migration("leasehold").unwrap())
                .await
                .unwrap();
        }
        for turns in both {
            turns.await.unwrap();
        }
    })
    .await;
}

/// The reasons on the page of this store.
const REASONS: [Reason; 20] = {
    use ErrorKind::{Denied, Invalid, Lost, Unavailable, Unsupported};
    [
        (
            CLOSED,
            Unavailable,
            "nothing listens at this port: is it running there, and is the port right?",
            "at once",
        ),
        (
            UNKNOWN,
            Unavailable,
            "the host name cannot be looked up: is it written right?",
            "as long as the system looks, at most `timeout`",
        ),
        (
            SILENT,
            Unavailable,
            "it takes connections and does not answer: is it stopped, or overloaded, or no PostgreSQL?",
            "`timeout`: 1 s",
        ),
        (
            STARTING,
            Unavailable,
            "SQLSTATE 57P03 the database system is …",
            "at once",
        ),
        (
            TOO_MANY,
            Unavailable,
            "SQLSTATE 53300 …: it, or this role or database, has as many connections as it may",
            "at once",
        ),
        (
            FULL,
            Unavailable,
            "SQLSTATE 53100 …: No space left on device",
            "a try at once, `acquire` after a lease",
        ),
        (
            STANDBY,
            Unavailable,
            "it is a standby: locks are written",
            "at once",
        ),
        (
            READ_ONLY,
            Unavailable,
            "SQLSTATE 25006 …: it is a standby, or read-only",
            "a try at once, `acquire` after a lease",
        ),
        (
            CANCELLED,
            Unavailable,
            "SQLSTATE 57014 canceling statement due to statement timeout",
            "a try at once, `acquire` after a lease",
        ),
        (
            PASSWORD,
            Denied,
            "SQLSTATE 28P01: the password is wrong, or there is no such user",
            "at once",
        ),
        (
            HBA,
            Denied,
            "SQLSTATE 28000: no rule of its pg_hba.conf lets this user into this database from here without encryption: sslmode=verify-full encrypts",
            "at once",
        ),
        (NO_GRANT, Denied, "…: GRANT …", "at once"),
        (
            NO_DATABASE,
            Invalid,
            "SQLSTATE 3D000 database … does not exist",
            "at once",
        ),
        (
            POOLED_NO_DATABASE,
            Invalid,
            "SQLSTATE 08P01 database … does not exist",
            "at once",
        ),
        (
            POOLED_PASSWORD,
            Denied,
            "SQLSTATE 08P01 … authentication failed",
            "at once",
        ),
        (
            MISSING,
            Unsupported,
            "the schema … is missing: execute what `leasehold postgres-schema --schema …` prints",
            "at once",
        ),
        (THEIRS, Unsupported, "SQLSTATE LH002 …", "at once"),
        (
            RESERVED,
            Invalid,
            "SQLSTATE 42… …: the name of the schema is a word of SQL; choose another one (schema=…)",
            "at once",
        ),
        (
            HELD_NO_GRANT,
            Lost,
            "its lease ran out before it could be renewed: …SQLSTATE 42501",
            "at the end of the lease",
        ),
        (
            HELD_AWAY,
            Lost,
            "its lease ran out before it could be renewed: … PostgreSQL cannot be reached …",
            "at the end of the lease",
        ),
    ]
};

const CLOSED: &str = "Nothing listens at the port";
const UNKNOWN: &str = "Nobody knows the host name";
const SILENT: &str = "The server takes connections and is silent: it is stopped, or overloaded";
const STARTING: &str = "The server is starting up, or shutting down";
const TOO_MANY: &str =
    "`max_connections` is used up, or the `CONNECTION LIMIT` of the role or the database";
const FULL: &str = "The disk of the server is full";
const STANDBY: &str = "The server is a standby";
const READ_ONLY: &str =
    "The server is read-only (`default_transaction_read_only`), or has become so";
const PASSWORD: &str = "The password is wrong, or there is no such user";
const HBA: &str = "`pg_hba.conf` has no rule for the user, the database and the address, or only one for TLS (`hostssl`)";
const NO_DATABASE: &str = "There is no such database";
const POOLED_NO_DATABASE: &str = "There is no such database behind a PgBouncer";
const POOLED_PASSWORD: &str = "A PgBouncer refuses the password, or does not know the user";
const MISSING: &str = "The schema is missing, and the role may not make it";
const THEIRS: &str = "The schema, or something in it, is somebody else's";
const RESERVED: &str = "The name of the schema is a word of SQL";
const NO_GRANT: &str = "A right is missing";
const CANCELLED: &str = "`statement_timeout` ends a request";
const HELD_NO_GRANT: &str = "A right is taken away while a lock is held";
const HELD_AWAY: &str = "The server is away while a lock is held";

const SHORT: Duration = Duration::from_secs(2);

async fn reason(judged: &Reasons, row: &'static str, url: &str) {
    let error = Postgres::connect(url).await.unwrap_err();
    judged.is(row, &error);
}

/// The hold ends, for that reason.
async fn lost(judged: &Reasons, row: &'static str, guard: &Guard) {
    guard.lost().await;
    judged.is(row, &guard.check().unwrap_err());
}

/// A server that answers each client with this error, as one does that has just begun.
async fn refusing(code: &str, message: &str) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let fields = format!("SFATAL\0VFATAL\0C{code}\0M{message}\0\0");
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let said = [
                &b"E"[..],
                &(fields.len() as u32 + 4).to_be_bytes(),
                fields.as_bytes(),
            ]
            .concat();
            let _ = client.read(&mut [0; 1024]).await;
            let _ = client.write_all(&said).await;
        }
    });
    addr
}

async fn of_addresses(judged: &Reasons) {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = closed.local_addr().unwrap();
    drop(closed);
    reason(judged, CLOSED, &format!("postgres://me@{at}/database")).await;
    reason(
        judged,
        UNKNOWN,
        "postgres://me@nobody.invalid/database?timeout=5000",
    )
    .await;
    let at = silent.local_addr().unwrap();
    reason(
        judged,
        SILENT,
        &format!("postgres://me@{at}/database?timeout=100"),
    )
    .await;
    for message in [
        "the database system is starting up",
        "the database system is shutting down",
    ] {
        let at = refusing("57P03", message).await;
        let url = format!("postgres://me@{at}/database?sslmode=disable");
        reason(judged, STARTING, &url).await;
    }
    // The words of a server in a file system without room.
    let words = "could not extend file \"base/5/16385_fsm\": No space left on device";
    let at = refusing("53100", words).await;
    let url = format!("postgres://me@{at}/database?sslmode=disable");
    reason(judged, FULL, &url).await;
}

/// A server, and another one that follows it.
async fn of_servers(judged: &Reasons) {
    let server = server().await;
    let at = |user: &str, password: &str, rest: &str| {
        format!("postgres://{user}:{password}@{}/{rest}", server.addr())
    };
    let app = |rest: &str| at(Server::USER, Server::PASSWORD, rest);
    reason(
        judged,
        PASSWORD,
        &at(Server::USER, "wr0ng", Server::DATABASE),
    )
    .await;
    reason(judged, NO_DATABASE, &app("nowhere")).await;
    let pooler = PgBouncer::start(&server).await.unwrap();
    let pooled = app("nowhere").replace(server.addr(), pooler.addr());
    reason(judged, POOLED_NO_DATABASE, &pooled).await;
    for (user, password) in [(Server::USER, "wr0ng"), ("nobody", Server::PASSWORD)] {
        let pooled = at(user, password, Server::DATABASE).replace(server.addr(), pooler.addr());
        reason(judged, POOLED_PASSWORD, &pooled).await;
    }
    drop(pooler);
    let standby = server.standby("follower").await.unwrap();
    reason(judged, STANDBY, &standby.url()).await;
    drop(standby);

    let store = Store::new(client(&server).await).ttl(SHORT);
    server
        .query("CREATE SCHEMA theirs; CREATE ROLE other LOGIN PASSWORD 's3cret'")
        .await
        .unwrap();
    reason(
        judged,
        MISSING,
        &at(
            "other",
            Server::PASSWORD,
            &format!("{}?schema=absent", Server::DATABASE),
        ),
    )
    .await;
    let theirs = app(&format!("{}?schema=theirs", Server::DATABASE));
    reason(judged, THEIRS, &theirs).await;
    for name in ["none", "user"] {
        let url = app(&format!("{}?schema={name}", Server::DATABASE));
        reason(judged, RESERVED, &url).await;
    }
    reason(
        judged,
        NO_GRANT,
        &at("other", Server::PASSWORD, Server::DATABASE),
    )
    .await;

    // Whoever waits for the row longer than that is ended.
    let table = program(&server).await;
    table
        .batch_execute("BEGIN; LOCK TABLE leasehold.lines")
        .await
        .unwrap();
    server
        .query("ALTER ROLE app SET statement_timeout = '100ms'")
        .await
        .unwrap();
    let hasty = Store::new(client(&server).await);
    let error = hasty.lock("a").try_acquire().await.unwrap_err();
    judged.is(CANCELLED, &error);
    table.batch_execute("ROLLBACK").await.unwrap();
    server
        .query("ALTER ROLE app RESET statement_timeout")
        .await
        .unwrap();
    server
        .query("ALTER ROLE app SET default_transaction_read_only = on")
        .await
        .unwrap();
    let read_only = Store::new(client(&server).await);
    let error = read_only.lock("a").try_acquire().await.unwrap_err();
    judged.is(READ_ONLY, &error);
    server
        .query("ALTER ROLE app RESET default_transaction_read_only")
        .await
        .unwrap();
    server
        .query("ALTER ROLE app CONNECTION LIMIT 1")
        .await
        .unwrap();
    let held = store.lock("b").acquire().await.unwrap();
    reason(judged, TOO_MANY, &app(Server::DATABASE)).await;
    server
        .query("ALTER ROLE app CONNECTION LIMIT -1")
        .await
        .unwrap();
    held.release().await.unwrap();

    server.query(&grants("leasehold", "other")).await.unwrap();
    let url = at(
        "other",
        Server::PASSWORD,
        &format!("{}?timeout=5000", Server::DATABASE),
    );
    let theirs = Store::new(connected(|| Postgres::connect(&url)).await).ttl(SHORT);
    let held = theirs.lock("c").acquire().await.unwrap();
    server
        .query("REVOKE EXECUTE ON FUNCTION leasehold.renew_1 FROM other")
        .await
        .unwrap();
    lost(judged, HELD_NO_GRANT, &held).await;

    let rules = server.text("SHOW hba_file").await.unwrap();
    for rule in [
        "hostssl all all all scram-sha-256",
        "host all all 192.0.2.1/32 scram-sha-256",
    ] {
        let rules = format!(
            "COPY (SELECT * FROM (VALUES ('local all all trust'), ('{rule}')) rules) TO '{rules}'"
        );
        server.query(&rules).await.unwrap();
        server.query("SELECT pg_reload_conf()").await.unwrap();
        until(async || Postgres::connect(&app(Server::DATABASE)).await.is_err()).await;
        reason(judged, HBA, &app(Server::DATABASE)).await;
    }

    let held = store.lock("d").acquire().await.unwrap();
    server.kill().await.unwrap();
    lost(judged, HELD_AWAY, &held).await;
}

/// Each of them is what the page says, and the page has no other.
#[tokio::test(flavor = "multi_thread")]
async fn each_reason_of_the_page_is_told() {
    bounded(Box::pin(async {
        let judged = Reasons::new(&REASONS);
        of_addresses(&judged).await;
        of_servers(&judged).await;
        judged.are_judged();
    }))
    .await;
}

#[test]
fn the_page_has_each_reason() {
    Reasons::new(&REASONS).are_on_the_page_of("postgres");
}
