//! Users and passwords: those of a function, those that change, rights that are taken away, and none in any text.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, WaitPolicy};
use leasehold_core::{ErrorKind, Store};
use leasehold_postgres::{Config, Postgres};

async fn terminate(server: &Server) {
    server
        .query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()",
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn a_function_says_the_password_of_each_connection() {
    bounded(async {
        let server = server().await;
        let said = Arc::new(Mutex::new(Server::PASSWORD.to_owned()));
        let asked = said.clone();
        let url = format!(
            "postgres://{}/{}?timeout=5000",
            server.addr(),
            Server::DATABASE
        );
        let config = Config::from_url(&url).unwrap().credentials(move || {
            let password = asked.lock().unwrap().clone();
            async move { Ok((Server::USER.to_owned(), password)) }
        });
        let store =
            Store::new(Postgres::with_config(config).await.unwrap()).ttl(Duration::from_secs(60));
        let held = store.lock("x").acquire().await.unwrap();
        server
            .query(&format!("ALTER ROLE {} PASSWORD 'n3w'", Server::USER))
            .await
            .unwrap();
        terminate(&server).await;
        let denied = loop {
            match held.confirm().await {
                Err(e) if e.kind() == ErrorKind::Denied => break format!("{e} {e:?}"),
                Ok(()) | Err(_) => sleep(5).await,
            }
        };
        assert!(
            denied.contains("28P01") && !denied.contains(Server::PASSWORD),
            "{denied}"
        );
        // The hold stays meanwhile, and goes on with the new one.
        assert!(held.is_valid());
        *said.lock().unwrap() = "n3w".to_owned();
        until(async || held.confirm().await.is_ok()).await;
        held.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_function_that_fails_is_asked_again_unless_it_is_final() {
    bounded(async {
        let server = server().await;
        let good = Arc::new(AtomicBool::new(false));
        let asked = good.clone();
        let url = format!(
            "postgres://{}/{}?timeout=5000",
            server.addr(),
            Server::DATABASE
        );
        let config = Config::from_url(&url).unwrap().credentials(move || {
            let good = asked.load(Ordering::Relaxed);
            async move {
                let vault = leasehold_core::Error::new(ErrorKind::Ambiguous, "no vault");
                if good {
                    Ok((Server::USER.to_owned(), Server::PASSWORD.to_owned()))
                } else {
                    Err(vault)
                }
            }
        });
        let error = Postgres::with_config(config.clone()).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unavailable && error.to_string().contains("no vault"),
            "{error}"
        );
        good.store(true, Ordering::Relaxed);
        let store = connected(|| Postgres::with_config(config.clone())).await;
        granted(&store, &claim("a", WaitPolicy::Try)).await;
    })
    .await;
}

#[tokio::test]
async fn rights_that_are_taken_away_are_told_and_end_no_hold_before_its_time() {
    bounded(async {
        let server = server().await;
        drop(client(&server).await);
        let pw = Server::PASSWORD;
        let grant = grants("leasehold", "guest");
        server
            .query(&format!("CREATE ROLE guest LOGIN PASSWORD '{pw}'; {grant}"))
            .await
            .unwrap();
        let url = format!("{}?timeout=5000", server.url_as("guest"));
        let store =
            Store::new(connected(|| Postgres::connect(&url)).await).ttl(Duration::from_secs(3));
        let held = store.lock("x").acquire().await.unwrap();
        server
            .query("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA leasehold FROM guest")
            .await
            .unwrap();
        for denied in [
            store.lock("y").try_acquire().await.map(drop),
            held.confirm().await,
        ] {
            let denied = denied.unwrap_err();
            let words = format!("{denied} {denied:?}");
            assert!(
                denied.kind() == ErrorKind::Denied && !words.contains(pw),
                "{words}"
            );
            assert!(
                words.contains("GRANT EXECUTE ON FUNCTION leasehold."),
                "{words}"
            );
        }
        within(10, held.lost()).await;
        server.query(&grant).await.unwrap();
        let next = store.lock("x").acquire().await.unwrap();
        assert!(next.fencing_token() > held.fencing_token());
        next.release().await.unwrap();
    })
    .await;
}

/// The server says what it was asked in the detail, the hint and the context of errors, and with its own words in the message of some.
#[tokio::test]
async fn no_error_repeats_what_a_request_said() {
    bounded(async {
        let server = server().await;
        drop(client(&server).await);
        for code in ["22P02", "23505", "28P01", "42501", "40001", "55P03", "57014", "XX000", "P0001", "LH001", "53300"] {
            let shown = if matches!(code, "22P02" | "23505" | "28P01") { "s3ntinel" } else { "refused" };
            let refuse = format!(
                "CREATE OR REPLACE FUNCTION leasehold.enters_1(p_patience integer) RETURNS boolean LANGUAGE plpgsql AS $$
                 BEGIN RAISE EXCEPTION '{shown}' USING ERRCODE = '{code}', DETAIL = 's3ntinel', HINT = 's3ntinel'; END $$"
            );
            server.query(&refuse).await.unwrap();
            let url = url(&server, "");
            for verb in ["claim", "claim_all", "renew", "release", "release_after", "evict"] {
                let store = connected(|| Postgres::connect(&url)).await;
                let claims = ["a", "b"].map(|name| claim(name, WaitPolicy::Try));
                let (first, id) = (&claims[0], claims[0].id.to_string());
                let secrets = ["s3ntinel", &id, Server::PASSWORD];
                let words = match verb {
                    "claim" => words_without(&secrets, store.claim(first).await),
                    "claim_all" => words_without(&secrets, store.claim_all(&claims).await),
                    "renew" => words_without(&secrets, store.renew(&[lease(first, None)]).await),
                    "release" => words_without(&secrets, store.release(first, None).await),
                    "release_after" => words_without(&secrets, store.release_after(first, None, TTL).await),
                    _ => words_without(&secrets, store.evict(&first.name, leasehold_core::FencingToken::new(7)).await),
                };
                assert!(words.contains(code), "{verb} {code}: {words}");
            }
        }
    })
    .await;
}
