//! A command inside of a command's program.

use std::process::Command;

use leasehold_testbed::{Postgres, PostgresOptions};

use crate::support::{self, Running, Stage, output, until};

on!(redis, sqlite: who_would_wait_for_itself_is_told);

/// `leasehold run job WORDS -- sh -c SCRIPT`, in which `$L` is the command.
fn outer(stage: &Stage, words: &[&str], script: &str) -> Command {
    let mut run = stage.run("job", words.iter().copied());
    run.args(["--", "sh", "-c", script])
        .env("L", env!("CARGO_BIN_EXE_leasehold"));
    run
}

fn said(run: &mut Command) -> (Option<i32>, String) {
    let output = output(run);
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

async fn who_would_wait_for_itself_is_told(stage: &Stage) {
    for (words, inner, expected) in [
        (&[][..], "run job -- true", 64),
        (&[], "run job --wait 1h -- true", 64),
        (&[], "elect job -- true", 64),
        (&[], "run other -- $L run job -- true", 64),
        (&[], "run job --shared -- true", 64),
        (&["--shared"], "run job -- true", 64),
        (&["--permits", "1"], "run job --permits 1 -- true", 64),
        // None of these waits for ever.
        (&[], "run job --no-wait -- true", 75),
        (&[], "run other -- true", 0),
        (&["--shared"], "run job --shared -- true", 0),
        (&["--permits", "2"], "run job --permits 2 -- true", 0),
    ] {
        let (status, said) = said(&mut outer(stage, words, &format!("$L {inner}; exit $?")));
        assert_eq!(status, Some(expected), "{words:?}, {inner}: {said}");
        if expected == 64 {
            assert!(
                said.contains("\"job\"") && said.contains("wait for itself"),
                "{words:?}, {inner}: {said}"
            );
        }
    }
    // Another store's lock of this name is another lock.
    let other = support::sqlite().await;
    let script = format!("$L run job --store '{}' -- true", other.url);
    assert_eq!(said(&mut outer(stage, &[], &script)).0, Some(0));
}

/// A process that has left the program waits for the program, which does not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_of_the_program_waits_for_its_end() {
    let stage = support::sqlite().await;
    let folder = tempfile::tempdir().unwrap();
    let [alone, go, done] = ["alone", "go", "done"].map(|name| folder.path().join(name));
    // Its parent has ended once the guardian is its parent.
    let daemon = format!(
        "while read -r _ _ _ parent _ < /proc/$$/stat; [ \"$(cat /proc/$parent/comm)\" != lock-guardian ]; do sleep 0.01; done; \
         : > {}; exec $L run job -- touch {}",
        alone.display(),
        done.display()
    );
    let script = format!(
        "(setsid sh -c '{daemon}' &); while [ ! -e {} ]; do sleep 0.01; done; exit 5",
        go.display()
    );
    let mut run = Running::start(&mut outer(&stage, &[], &script));
    until("the daemon", || alone.exists().then_some(()));
    stage.until_queue("job", 1, 1);
    std::fs::write(&go, "").unwrap();
    assert_eq!(run.end().code(), Some(5));
    until("the daemon's turn", || done.exists().then_some(()));
}

/// What an ended run has left in the environment stops nobody.
#[tokio::test(flavor = "multi_thread")]
async fn an_environment_of_a_run_that_has_ended() {
    let stage = support::sqlite().await;
    let mut run = stage.run("job", ["--", "true"]);
    run.env("LEASEHOLD_NAME", "job")
        .env("LEASEHOLD_FENCING_TOKEN", "1");
    assert_eq!(said(&mut run).0, Some(0));
}

/// The program's URL is one that a command inside of it can use, if it needs no credentials.
#[tokio::test(flavor = "multi_thread")]
async fn a_url_of_which_a_parameter_may_not_be_shown() {
    let server = Postgres::start_with(&PostgresOptions::default().set("fsync", "off"))
        .await
        .unwrap();
    let listen = server
        .url()
        .replace(':', "%3A")
        .replace('/', "%2F")
        .replace('@', "%40");
    let stage = support::on_url(format!("{}?schema=locks&listen={listen}", server.url()));
    let url = server.url();
    let credentials = url.split(['/', '@']).nth(2).unwrap();
    let script = format!(
        "case $LEASEHOLD_STORE in *{}*|*…*|*listen*) exit 9;; esac; \
         $L run other --store \"$(echo $LEASEHOLD_STORE | sed s,//,//{credentials}@,)\" -- true",
        Postgres::PASSWORD,
    );
    let (status, said) = said(&mut outer(&stage, &[], &script));
    assert_eq!(status, Some(0), "{said}");
}
