//! The command on PostgreSQL: who installs its schema, and what is said of it.

use std::process::{Command, Stdio};

use leasehold_testbed::{Postgres, PostgresOptions};

use crate::support::{self, Running, code, leasehold, output, text, until};
use rustix::process::Signal;

async fn server() -> Postgres {
    Postgres::start_with(&PostgresOptions::default().set("fsync", "off"))
        .await
        .unwrap()
}

/// A role that may not make schemas.
async fn guest(server: &Postgres) -> String {
    server
        .query(&format!(
            "CREATE ROLE guest LOGIN PASSWORD '{}'",
            Postgres::PASSWORD
        ))
        .await
        .unwrap();
    server.url_as("guest")
}

/// What `psql` needs in its environment is enough.
#[tokio::test(flavor = "multi_thread")]
async fn the_environment_of_psql_names_the_store() {
    let server = server().await;
    let with = |url: &str, variables: &[(&str, &str)]| {
        let mut command = leasehold(["run", "job", "--store", url, "--", "true"]);
        command.envs(variables.iter().copied());
        command
    };
    let port = server.port().to_string();
    let folder = server.sockets().display().to_string();
    let socket = [
        ("PGHOST", &*folder),
        ("PGPORT", &*port),
        ("PGUSER", Postgres::USER),
        ("PGDATABASE", Postgres::DATABASE),
    ];
    assert_eq!(code(&mut with("postgres:///", &socket)), Some(0));
    let password = [
        ("PGPORT", &*port),
        ("PGUSER", Postgres::USER),
        ("PGPASSWORD", Postgres::PASSWORD),
    ];
    let url = "postgres://127.0.0.1/postgres?sslmode=disable";
    assert_eq!(code(&mut with(url, &password)), Some(0));
    let authority = [("PGSSLROOTCERT", "/no/ca.pem")];
    let (status, told) = said(&mut with(&url.replace("disable", "prefer"), &authority));
    assert!(
        status == Some(64) && told.contains("PGSSLROOTCERT: sslrootcert is for"),
        "{told}"
    );
}

fn said(command: &mut Command) -> (Option<i32>, String) {
    let output = output(command);
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_install_it_is_told_by_which_command() {
    let server = server().await;
    for schema in ["leasehold", "locks_2"] {
        let url = match schema {
            "leasehold" => guest(&server).await,
            other => format!("{}?schema={other}", server.url_as("guest")),
        };
        let stage = support::on_url(url);
        let command = format!("`leasehold postgres-schema --schema {schema}`");
        for words in [
            &["run", "job", "--", "true"][..],
            &["who", "job"],
            &["ls"],
            &["break", "job", "1"],
        ] {
            let (status, said) = said(&mut stage.leasehold(words.iter().copied()));
            assert!(
                status == Some(64) && said.contains(&command),
                "{words:?}: {said}"
            );
            assert!(
                said.contains("missing") && !said.contains(Postgres::PASSWORD),
                "{said}"
            );
        }
        // What it prints, executed by who may; twice, as tools of migrations are wrong now and then.
        let words: &[&str] = if schema == "leasehold" {
            &["postgres-schema"]
        } else {
            &["postgres-schema", "--schema", schema]
        };
        let sql = text(&mut leasehold(words.iter().copied()));
        server.query(&sql).await.unwrap();
        server.query(&sql).await.unwrap();
        // The owner's alone, until rights are given.
        let (status, said) = said(&mut stage.leasehold(["who", "job"]));
        let usage = format!("GRANT USAGE ON SCHEMA {schema} TO guest");
        assert!(status == Some(69) && said.contains(&usage), "{said}");
        let help = text(&mut leasehold(["postgres-schema", "--help"]));
        let (begin, end) = (help.find("GRANT USAGE").unwrap(), help.rfind(';').unwrap());
        let rights = help[begin..end]
            .replace("leasehold", schema)
            .replace("TO app", "TO guest");
        assert_eq!(rights.matches("guest").count(), 2, "{rights}");
        server.query(&rights).await.unwrap();
        assert_eq!(code(&mut stage.leasehold(["who", "job"])), Some(1));
        assert_eq!(
            code(&mut stage.run("job", ["-n", "--", "sh", "-c", "exit 5"])),
            Some(5)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn psql_executes_what_it_prints() {
    let server = server().await;
    let owner = guest(&server).await;
    server
        .query("CREATE SCHEMA locks AUTHORIZATION guest")
        .await
        .unwrap();
    let mut shell = Command::new("bash");
    let script = "\"$L\" postgres-schema --schema locks | psql -X -q -v ON_ERROR_STOP=1 \"$TO\"";
    shell
        .args(["-o", "pipefail", "-c", script])
        .env("L", env!("CARGO_BIN_EXE_leasehold"))
        .env("TO", &owner);
    let output = output(shell.stdin(Stdio::null()));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let stage = support::on_url(format!("{owner}?schema=locks&install=false"));
    assert_eq!(
        code(&mut stage.run("job", ["-n", "--", "sh", "-c", "exit 6"])),
        Some(6)
    );
}

#[test]
fn a_bad_schema_is_bad_usage() {
    for bad in ["", "Locks", "a;b", "pg_locks", "1"] {
        let (status, said) = said(&mut leasehold(["postgres-schema", "--schema", bad]));
        assert!(
            status == Some(64) && said.contains("schema is lower-case letters"),
            "{bad}: {said}"
        );
    }
    let (status, said) = said(&mut leasehold(["postgres-schme"]));
    assert!(
        status == Some(64) && said.contains("did you mean `leasehold postgres-schema`?"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_credentials_are_shown() {
    let server = server().await;
    let stage = support::on_url(server.url());
    let mut holder =
        Running::start(&mut stage.run("job", ["--label", "me", "--", "sleep", "1000"]));
    stage.until_queue("job", 1, 0);
    for words in [
        &["who", "job"][..],
        &["ls"],
        &["guarantees"],
        &["-vvv", "run", "job", "-n", "--", "true"],
    ] {
        let output = output(&mut stage.leasehold(words.iter().copied()));
        let all = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(!all.contains(Postgres::PASSWORD), "{words:?}: {all}");
    }
    let shown = text(&mut stage.run("other", ["--", "sh", "-c", "echo $LEASEHOLD_STORE"]));
    assert_eq!(
        shown.trim(),
        format!("postgres://{}/{}", server.addr(), Postgres::DATABASE)
    );
    assert_eq!(stage.evict("job", stage.token("job")), Some(0));
    assert_eq!(holder.end().code(), Some(76));
    for bad in [
        "postgres://me:s3cret@,",
        "postgres://:s3cret",
        "postgres://me:s3cret@127.0.0.1:1/db?sslmode=no",
    ] {
        let (status, said) = said(&mut leasehold(["who", "job", "--store", bad]));
        assert!(
            status == Some(64) && !said.contains("s3cret"),
            "{bad}: {said}"
        );
    }
}

/// Who is next, and who was evicted, hears of it although the process that did it ends at once: long before they would ask.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_ends_leaves_nobody_waiting() {
    let server = server().await;
    let stage = support::on_url(server.url());
    let run = |words: &[&str]| {
        Running::start(
            stage
                .leasehold(["run", "job", "--ttl", "1h", "--"])
                .args(words),
        )
    };
    let mut first = run(&["sleep", "1000"]);
    stage.until_queue("job", 1, 0);
    let mut second = run(&["sleep", "1000"]);
    stage.until_queue("job", 1, 1);
    first.signal(Signal::TERM);
    assert_eq!(first.end().code(), Some(143));
    stage.until_queue("job", 1, 0);
    // It knows of it, too.
    until("the program of the second", || {
        (!support::children_of(second.guardian()).is_empty()).then_some(())
    });
    assert_eq!(stage.evict("job", stage.token("job")), Some(0));
    assert_eq!(second.end().code(), Some(76));
}

/// As the command's page shows it: a transaction that outlives its hold fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_psql_asks_whether_its_hold_is_there() {
    let server = server().await;
    let stage = support::on_url(server.url());
    server
        .query("CREATE TABLE done (n int); GRANT ALL ON done TO PUBLIC")
        .await
        .unwrap();
    let psql = |token: &str| {
        let script = format!(
            "psql -qAt -v ON_ERROR_STOP=1 -v name=\"$LEASEHOLD_NAME\" -v token={token} {} <<'SQL'\n\
             BEGIN;\nSELECT leasehold.held(:'name', :token);\nINSERT INTO done VALUES (1);\nCOMMIT;\nSQL\n",
            server.url()
        );
        said(&mut stage.sh(&script))
    };
    let (status, told) = psql("$LEASEHOLD_FENCING_TOKEN");
    assert_eq!(status, Some(0), "{told}");
    // The token of a hold that has gone.
    let (status, told) = psql("1");
    assert_eq!(status, Some(3), "{told}");
    let done = server.query("SELECT count(*) FROM done").await.unwrap();
    assert_eq!(done[0][0].as_deref(), Some("1"));
}
