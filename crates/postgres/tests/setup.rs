//! How the schema comes to be, whose it may be, and which servers are refused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::sync::Arc;

use leasehold_core::seam::{Backend, Claimed, WaitPolicy};
use leasehold_core::{ErrorKind, Store};
use leasehold_postgres::client::{NoTls, connect};
use leasehold_postgres::{Config, Postgres, migration};
use support::*;
use tokio::task::JoinSet;

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
                    let (client, connection) = connect(url.split_once('?').unwrap().0, NoTls).await.unwrap();
                    tokio::spawn(connection);
                    client.batch_execute(&migration("leasehold").unwrap()).await.unwrap();
                }
            });
        }
        while let Some(installed) = installers.join_next().await {
            installed.unwrap();
        }
        let store = Store::new(client(&server).await);
        store.lock("a").acquire().await.unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_role_that_may_only_execute_takes_locks_and_reads_no_table() {
    bounded(async {
        let server = server().await;
        drop(client(&server).await);
        let pw = Server::PASSWORD;
        server.query(&format!("CREATE ROLE guest LOGIN PASSWORD '{pw}'")).await.unwrap();
        let as_app = server.url_as("guest");
        let refused = words_without(&[pw, "claim"], Postgres::connect(&as_app).await);
        assert!(refused.contains("42501"), "{refused}");
        server
            .query(
                "GRANT USAGE ON SCHEMA leasehold TO guest; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA leasehold TO guest",
            )
            .await
            .unwrap();
        let store = Store::new(connected(|| Postgres::connect(&as_app)).await);
        let guard = store.lock("a").acquire().await.unwrap();
        let (app, connection) = connect(&as_app, NoTls).await.unwrap();
        tokio::spawn(connection);
        app.execute(leasehold_postgres::HELD, &[&"a", &guard.fencing_token().as_i64()]).await.unwrap();
        for forbidden in ["SELECT * FROM leasehold.place", "DELETE FROM leasehold.lines"] {
            assert_eq!(state(app.execute(forbidden, &[]).await), "42501", "{forbidden}");
        }
        guard.release().await.unwrap();
        // Who has no rights at all may not even fence.
        server.query(&format!("CREATE ROLE nobody_else LOGIN PASSWORD '{pw}'")).await.unwrap();
        assert_eq!(kind(Postgres::connect(&server.url_as("nobody_else")).await), ErrorKind::Denied);
    })
    .await;
}

#[tokio::test]
async fn a_schema_that_is_missing_may_be_left_to_others() {
    bounded(async {
        let server = server().await;
        let error = Postgres::connect(&url(&server, "&install=false&schema=locks")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("leasehold postgres-schema --schema locks"), "{error}");
        let pw = Server::PASSWORD;
        server.query(&format!("CREATE ROLE guest LOGIN PASSWORD '{pw}'")).await.unwrap();
        assert_eq!(kind(Postgres::connect(&server.url_as("guest")).await), ErrorKind::Unsupported);
        // By its operator, who owns it.
        server.query("CREATE SCHEMA locks AUTHORIZATION guest").await.unwrap();
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
        let (one, other) = (client(&server).await, Config::from_url(&url(&server, "")).unwrap().schema("locks_2"));
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
        server.query(&format!("{later} GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA leasehold TO {}", Server::USER)).await.unwrap();
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
async fn only_read_committed_serves() {
    bounded(async {
        let server = server().await;
        let role = Server::USER;
        let isolate = async |level: &str| {
            server.query(&format!("ALTER ROLE {role} SET default_transaction_isolation = '{level}'")).await.unwrap();
        };
        let early = client(&server).await;
        for level in ["repeatable read", "serializable"] {
            isolate(level).await;
            let words = words_without(&[Server::PASSWORD], Postgres::connect(&url(&server, "")).await);
            assert!(words.contains("ALTER ROLE") && words.contains(level), "{words}");
            // One that was connected before, whose connections are new ones now.
            server
                .query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
                .await
                .unwrap();
            let refused = loop {
                match early.claim(&claim("early", WaitPolicy::Try)).await {
                    Err(e) if !e.is_retryable() => break e,
                    // By a connection that is not ended yet, or as it was.
                    _ => sleep(5).await,
                }
            };
            assert!(refused.kind() == ErrorKind::Unsupported && refused.to_string().contains("25001"), "{refused}");
            server
                .query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
                .await
                .unwrap();
        }
        isolate("read uncommitted").await;
        granted(&client(&server).await, &claim("a", WaitPolicy::Try)).await;
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
            (format!("postgres://{}/{}", server.addr(), Server::DATABASE), ErrorKind::Invalid, "user"),
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
        let told = async || client(&server).await.guarantees().warnings;
        let warnings = told().await;
        assert!(warnings.len() == 1 && warnings[0].contains("fsync"), "{warnings:?}");
        let standby = server.standby("one").await.unwrap();
        until(async || server.number("SELECT count(*) FROM pg_stat_replication").await.unwrap() == 1).await;
        let warnings = told().await;
        assert!(warnings.iter().any(|warning| warning.contains("synchronous_standby_names is empty")), "{warnings:?}");
        server.set("synchronous_standby_names", "one").await.unwrap();
        until(async || told().await.len() == 1).await;
        server.query(&format!("ALTER ROLE {} SET synchronous_commit = remote_write", Server::USER)).await.unwrap();
        let warnings = told().await;
        assert!(warnings.iter().any(|warning| warning.contains("synchronous_commit")), "{warnings:?}");
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
        let both = [tokio::spawn(turns(store.clone())), tokio::spawn(turns(Arc::new(client(&server).await)))];
        while !both.iter().all(tokio::task::JoinHandle::is_finished) {
            program.batch_execute(&migration("leasehold").unwrap()).await.unwrap();
        }
        for turns in both {
            turns.await.unwrap();
        }
    })
    .await;
}
