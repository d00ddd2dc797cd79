//! Words of a URL that a real server has to answer: sockets, users without a password, and those of a session.

use crate::support::*;
use leasehold_core::{ErrorKind, Store};
use leasehold_postgres::Postgres;
use leasehold_testbed::tls_cases::works;

#[tokio::test]
async fn a_socket_and_a_user_without_a_password() {
    bounded(async {
        let server = server().await;
        let folder = server.sockets().display().to_string();
        let encoded = folder.replace('/', "%2F");
        let port = server.port();
        for url in [
            format!("postgres://app@/postgres?host={folder}&port={port}&timeout=5000"),
            format!("postgresql://app@{encoded}:{port}/postgres?timeout=5000&sslmode=verify-full"),
            format!("postgres:///postgres?host={folder}&port={port}&user=app&timeout=5000&listen={folder}:{port}"),
        ] {
            let url = match cfg!(feature = "tls-no-provider") {
                true => url,
                false => url.replace("&sslmode=verify-full", ""),
            };
            let store = Store::new(client_at(&url).await);
            works(store).await;
        }
        let gone = format!("postgres://app@/postgres?host={folder}/no&timeout=5000");
        let error = Postgres::connect(&gone).await.unwrap_err();
        let said = error.to_string();
        assert!(error.kind() == ErrorKind::Unavailable && said.contains("no socket is there"), "{said}");

        let alone = format!("postgres://app@{}/postgres?timeout=5000", server.addr());
        let error = Postgres::connect(&alone).await.unwrap_err();
        let said = error.to_string();
        assert!(error.kind() == ErrorKind::Denied && said.contains("asks for a password"), "{said}");
        rules(&server, "host all all 127.0.0.1/32 trust").await;
        works(Store::new(client_at(&alone).await)).await;
    })
    .await;
}

#[tokio::test]
async fn the_words_of_a_session_reach_the_server() {
    bounded(async {
        let server = server().await;
        let named = client_at(&url(&server, "&application_name=jobs&connect_timeout=9")).await;
        let names = "SELECT string_agg(DISTINCT application_name, ',') FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        assert_eq!(server.text(names).await.unwrap(), "jobs");
        drop(named);
        let words = "&options=-c%20default_transaction_read_only%3Don";
        let error = Store::new(client_at(&url(&server, words)).await)
            .lock("a")
            .try_acquire()
            .await
            .unwrap_err();
        assert!(error.to_string().contains("25006"), "{error}");
    })
    .await;
}
