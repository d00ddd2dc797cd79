//! What is said when something is wrong: which store it is, what to do instead, and never a password.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{self, Running, Stage, code, leasehold, output};

const SECRET: &str = "redis://me:s3cret@127.0.0.1:1";

on!(redis, sqlite: bad_names);

/// How it ends, and what it says.
fn said(command: &mut Command) -> (Option<i32>, String) {
    let output = output(command);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!said.contains("s3cret"), "{said}");
    (output.status.code(), said)
}

#[test]
fn a_bad_command_line() {
    let tls = if cfg!(any(feature = "tls", feature = "tls-ring")) {
        "rediss://127.0.0.1:1?ca=/no/file: TLS: the CA file /no/file cannot be read"
    } else {
        "rediss://127.0.0.1:1?ca=/no/file: this build has no TLS"
    };
    for (words, what) in [
        (&["guarantees", SECRET, SECRET][..], "redis://127.0.0.1:1"),
        (&["ls", "--frobnicate", SECRET], "--frobnicate"),
        (
            &["run", "x", "./job.sh", "-a"],
            "put -- before the program: leasehold run x -- ./job.sh -a",
        ),
        (
            &["run", "--store", SECRET, "x", "a"],
            "leasehold run --store redis://127.0.0.1:1 x -- a",
        ),
        (&["break", "x"], "leasehold who"),
        (&["evict", "x", "1"], "did you mean `leasehold break`?"),
        (
            &["lock", "x", "--", "true"],
            "did you mean `leasehold run`?",
        ),
        (&["guarantees", "redis"], "redis://HOST"),
        (&["guarantees", "sqlite"], "sqlite:///PATH"),
        (&["who", "x", "--store", "mysql://h"], "redis+sentinel"),
        (&["who", "x", "--store", "mysql://h"], "bridge+"),
        (
            &["who", "x", "--store", "postgres://h/db?…"],
            "without credentials",
        ),
        (&["rnu", "x", "--", "true"], "did you mean `leasehold run`?"),
        (
            &[
                "run",
                "x",
                "--min-hold",
                "2",
                "--max-hold",
                "1",
                "--",
                "true",
            ],
            "--min-hold is longer than --max-hold",
        ),
        (
            &["guarantees", "redis://h/0?password=s3cret", "--frobnicate"],
            "--frobnicate",
        ),
        (
            &["guarantees", "redis://127.0.0.1:1/0?passwort=s3cret"],
            "redis://127.0.0.1:1/0?…: ",
        ),
        (&["run", "x", "--max-hold", "0s", "--", "true"], "at once"),
        (&["run", "x", "--report", "-", "--", "true"], "/dev/stderr"),
        (
            &[
                "run",
                "x",
                "--store",
                "rediss://me:s3cret@127.0.0.1:1?ca=/no/file",
                "--",
                "true",
            ],
            tls,
        ),
        (
            &["run", "x", "--store", "redis://:s3cret", "--", "true"],
            "redis://…: ",
        ),
    ] {
        let (status, said) = said(&mut leasehold(words.iter().copied()));
        assert!(
            status == Some(64) && said.contains(what),
            "{words:?}: {said}"
        );
        assert!(!said.contains("as a value"), "{said}");
    }
}

#[test]
fn an_error_names_the_store_and_who_named_it() {
    let at = |url: &str, words: &[&str]| {
        said(leasehold(words.iter().copied()).env("LEASEHOLD_STORE", url))
    };
    for words in [
        &["run", "x", "-w", "1s", "--", "true"][..],
        &["run", "x", "-n", "--", "true"],
        &["ls"],
        &["who", "x"],
    ] {
        let (status, said) = at(SECRET, words);
        assert!(
            status == Some(69) && said.contains("redis://127.0.0.1:1 (from LEASEHOLD_STORE): "),
            "{said}"
        );
    }
    let (status, said) = at("redsi://me:s3cret@host", &["who", "x"]);
    assert!(
        status == Some(64) && said.contains("LEASEHOLD_STORE") && said.contains("redis+unix"),
        "{said}"
    );
    let (status, said) = at(SECRET, &["run", "x", "--", "/"]);
    assert!(
        status == Some(126) && said.contains("it is a directory"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stands_in_the_way_and_who_ended_a_hold() {
    let stage = support::sqlite().await;
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let mut holder = stage.run("job", ["--label", "me", "--report"]);
    let mut holder = Running::start(holder.arg(&report).args(["--", "sleep", "1000"]));
    let token = stage.token("job");
    let (status, refused) = said(&mut stage.run("job", ["-n", "--", "true"]));
    assert_eq!(status, Some(75));
    let why = format!("not acquired, nothing was run: held by me, token {token}");
    assert!(refused.contains(&why), "{refused}");
    assert_eq!(stage.evict("job", token), Some(0));
    assert_eq!(holder.end().code(), Some(76));
    assert!(
        fs::read_to_string(&report)
            .unwrap()
            .contains("`leasehold break`")
    );
    // What could not be run has a store, too.
    code(
        stage
            .run("job", ["--report"])
            .arg(&report)
            .args(["--", "no-such-program-anywhere"]),
    );
    assert!(fs::read_to_string(&report).unwrap().contains(&stage.url));
}

#[test]
fn who_only_looks_makes_no_file() {
    let home = tempfile::tempdir().unwrap();
    let looks = |store: Option<&Path>, at: &Path| {
        for words in [
            &["ls"][..],
            &["who", "job"],
            &["break", "job", "--token", "1"],
        ] {
            let mut command = leasehold(words.iter().copied());
            command.env_remove("XDG_STATE_HOME").env("HOME", at);
            if let Some(file) = store {
                command.env("LEASEHOLD_STORE", format!("sqlite://{}", file.display()));
            }
            let (status, said) = said(&mut command);
            assert_eq!(status, Some(64), "{said}");
            assert!(
                !at.exists() || said.contains("there is no such file"),
                "{said}"
            );
        }
    };
    looks(Some(&home.path().join("typo.db")), home.path());
    let missing = home.path().join("missing");
    looks(None, &missing);
    let (status, _) = said(
        leasehold(["run", "job", "--", "true"])
            .env_remove("XDG_STATE_HOME")
            .env("HOME", &missing),
    );
    assert_eq!(status, Some(64), "nor is a home made");
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    // Where nothing was locked yet, nothing is held.
    let mut who = leasehold(["who", "job"]);
    assert_eq!(
        code(who.env_remove("XDG_STATE_HOME").env("HOME", home.path())),
        Some(1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_one_says_nothing_of_a_lock_that_is_held() {
    let stage = support::sqlite().await;
    let _holder = Running::start(&mut stage.run("job", ["--", "sleep", "1000"]));
    stage.until_queue("job", 1, 0);
    let cron = output(&mut stage.run("job", ["-q", "-n", "-E", "0", "--", "true"]));
    assert_eq!(
        (cron.status.code(), &cron.stdout[..], &cron.stderr[..]),
        (Some(0), &b""[..], &b""[..])
    );
    // Seconds without a unit; the report has the reason all the same, and a fault is said.
    let report = tempfile::NamedTempFile::new().unwrap();
    let mut waited = stage.run("job", ["-q", "-w", "0.2", "--report"]);
    let (status, quiet) = said(waited.arg(report.path()).args(["--", "true"]));
    assert_eq!((status, &*quiet), (Some(75), ""));
    assert!(
        fs::read_to_string(report.path())
            .unwrap()
            .contains("held by")
    );
    let (status, fault) = said(&mut leasehold([
        "run",
        "job",
        "-q",
        "-n",
        "--store",
        "redis://127.0.0.1:1",
        "--",
        "true",
    ]));
    assert!(
        status == Some(69) && fault.contains("redis://127.0.0.1:1"),
        "{fault}"
    );
}

#[test]
fn too_few_file_descriptors_are_said() {
    for limit in ["4", "6", "7", "12", "40"] {
        for words in [
            "run job -- true",
            "ls",
            "compare memory:// --glance",
            "verify memory://",
        ] {
            let mut shell = Command::new("bash");
            shell
                .args(["-c", &format!("ulimit -n {limit}; exec $L {words}")])
                .env("L", env!("CARGO_BIN_EXE_leasehold"));
            let (status, said) = said(&mut shell);
            assert!(
                status == Some(125) && said.contains("ulimit -n 64"),
                "{limit}, {words}: {status:?}, {said}"
            );
        }
    }
}

#[test]
fn bad_usage() {
    let bad: [&[&str]; 16] = [
        &[],
        &["frobnicate"],
        &["run", "job", "--store", "", "--", "true"],
        &["run", "job", "--store", "memory://", "--", "true"],
        &["run"],
        &["run", "job"],
        &["run", "job", "true"],
        &["run", "job", "--"],
        &["run", "job", "--nonsense", "--", "true"],
        &["run", "job", "--ttl", "10ms", "--", "true"],
        &["run", "job", "--ttl", "soon", "--", "true"],
        &["run", "job", "--wait", "1s", "--no-wait", "--", "true"],
        &["run", "job", "-E", "256", "--", "true"],
        &["run", "job", "--store", "nonsense", "--", "true"],
        &["run", "job", "--store", "mysql://host", "--", "true"],
        &[
            "run",
            "job",
            "--store",
            "redis://user:s3cret@host:notaport",
            "--",
            "true",
        ],
    ];
    for words in bad {
        let output = output(&mut leasehold(words.iter().copied()));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{words:?}: {said}");
        assert!(
            !said.is_empty() && !said.contains("s3cret"),
            "{words:?}: {said}"
        );
    }
    for good in [&["--help"][..], &["run", "--help"], &["--version"]] {
        assert_eq!(
            output(&mut leasehold(good.iter().copied())).status.code(),
            Some(0),
            "{good:?}"
        );
    }
}

async fn bad_names(stage: &Stage) {
    assert_eq!(code(&mut stage.run("", ["--", "true"])), Some(64));
    assert_eq!(
        code(&mut stage.run(&"x".repeat(513), ["--", "true"])),
        Some(64)
    );
    assert_eq!(
        code(&mut stage.run("a/b c\u{1F512}", ["--", "true"])),
        Some(0)
    );
}
