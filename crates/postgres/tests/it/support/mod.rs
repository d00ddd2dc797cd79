//! What the tests of this store share: a server of their own, clients of the store, and connections of a program beside it.
#![allow(
    dead_code,
    unused_imports,
    reason = "each test binary uses its own part"
)]

use leasehold_core::backend::{Claim, Mode, WaitPolicy};
use leasehold_postgres::Postgres;
use leasehold_postgres::client::{Client, NoTls, connect};
use leasehold_testbed::PostgresOptions;
pub(crate) use leasehold_testbed::verbs::*;

pub(crate) type Server = leasehold_testbed::Postgres;

/// No machine is switched off here.
pub(crate) fn options() -> PostgresOptions {
    PostgresOptions::default().set("fsync", "off")
}

pub(crate) async fn server() -> Server {
    Server::start_with(&options()).await.unwrap()
}

/// Where nothing fails, a request that takes long says only that the machine is busy.
pub(crate) fn url(server: &Server, words: &str) -> String {
    format!("{}?timeout=5000{words}", server.url())
}

pub(crate) async fn client(server: &Server) -> Postgres {
    let url = url(server, "");
    connected(|| Postgres::connect(&url)).await
}

pub(crate) async fn client_at(url: &str) -> Postgres {
    connected(|| Postgres::connect(url)).await
}

/// Lets in whom these rules let in, one a line, beside the testbed itself.
pub(crate) async fn rules(server: &Server, rules: &str) {
    let file = server.text("SHOW hba_file").await.unwrap();
    let rows = format!(
        "('local all all trust'), ('{}')",
        rules.replace('\n', "'), ('")
    );
    let copy = format!("COPY (SELECT * FROM (VALUES {rows}) rules) TO '{file}'");
    server.query(&copy).await.unwrap();
    server.query("SELECT pg_reload_conf()").await.unwrap();
    let loaded = format!(
        "SELECT count(*) FROM pg_hba_file_rules WHERE type = '{}'",
        rules.split(' ').next().unwrap()
    );
    until(async || server.number(&loaded).await.unwrap() == 1).await;
}

/// A connection of the program's own, as the role of the store.
pub(crate) async fn program(server: &Server) -> Client {
    let (client, connection) = connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) fn claim(name: &str, policy: WaitPolicy) -> Claim {
    Claim::new(name, Mode::Exclusive, policy, TTL, "test")
}

/// The statements that let a role take locks in this schema, as the page of the store and the command have them.
pub(crate) fn grants(schema: &str, role: &str) -> String {
    let functions = [
        "claim_1",
        "claim_all_1",
        "renew_1",
        "release_1",
        "release_after_1",
        "evict_1",
        "inspect_1",
        "list_1",
        "observe_1",
        "sweep_1",
        "held",
        "once_1",
        "complete_1",
        "recorded_1",
        "completion_1",
        "completions_1",
        "forget_1",
        "done",
    ];
    let functions = functions.map(|function| format!("{schema}.{function}"));
    format!(
        "GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT EXECUTE ON FUNCTION {} TO {role}",
        functions.join(", ")
    )
}

/// Makes a role that may do nothing yet, and connects as it.
pub(crate) async fn role(server: &Server, name: &str) -> Client {
    let make = format!("CREATE ROLE {name} LOGIN PASSWORD '{}'", Server::PASSWORD);
    server.query(&make).await.unwrap();
    as_role(server, name).await
}

/// A connection of this role.
pub(crate) async fn as_role(server: &Server, name: &str) -> Client {
    let (client, connection) = connect(&server.url_as(name), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The SQLSTATE with which a statement failed.
pub(crate) fn state<T: std::fmt::Debug>(
    answer: Result<T, leasehold_postgres::client::Error>,
) -> String {
    answer.unwrap_err().code().unwrap().code().to_owned()
}
