//! `leasehold run`: exit codes, environment, streams, signals, what a program leaves behind, reports. Through the binary.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{
    self, Family, LONG, Running, Stage, code, leasehold, output, send, until, words_of,
};
use leasehold::backend::Moment;
use leasehold_testbed::{Redis, RedisOptions};
use rustix::process::Signal;

on!(redis, sqlite, postgres, etcd, zookeeper, redlock: exit_codes_are_the_programs_own);
on!(redis, sqlite: streams_are_the_programs);
on!(redis, sqlite, postgres, etcd, zookeeper, redlock: a_held_lock_is_refused_waited_for_and_got);
on!(redis, sqlite: a_script_without_an_interpreter_cannot_be_executed);
on!(redis, sqlite: signals_are_passed_on);
on!(redis, sqlite, postgres, etcd, zookeeper: a_signal_ends_the_wait_and_leaves_no_waiter);
on!(redis, sqlite: what_the_caller_ignores_stays_ignored);
on!(redis, sqlite: the_program_has_a_clean_signal_state);
on!(redis, sqlite, postgres, etcd, zookeeper, redlock: max_hold_ends_even_what_ignores_sigterm);
on!(redis, sqlite, postgres, etcd, zookeeper, redlock: an_evicted_holder_is_ended);
on!(redis, sqlite: leftovers);
on!(redis, sqlite, postgres, etcd, zookeeper: min_hold);
on!(redis, sqlite: reports);
on!(redis, sqlite: as_the_first_process_of_a_namespace);

async fn exit_codes_are_the_programs_own(stage: &Stage) {
    for (script, expected) in [
        ("true", 0),
        ("exit 7", 7),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
        ("kill -INT $$", 130),
        ("exit 255", 255),
    ] {
        assert_eq!(
            code(&mut support::afresh(&stage.sh(script))),
            Some(expected),
            "{script}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_finds_the_lock_in_its_environment_and_no_credentials() {
    let options = RedisOptions {
        password: Some("s3cret".into()),
        ..RedisOptions::default()
    };
    let redis = Redis::start_with(&options).await.unwrap();
    let stage = support::on_url(redis.url());
    assert!(stage.url.contains("s3cret"));
    let token = || {
        let output =
            output(&mut stage.sh("echo $LEASEHOLD_NAME $LEASEHOLD_STORE $LEASEHOLD_FENCING_TOKEN"));
        let text = String::from_utf8(output.stdout).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words[..2], ["job", &format!("redis://{}", redis.addr())]);
        words[2].parse::<u64>().unwrap()
    };
    let first = token();
    assert!(token() > first, "a later hold has a greater token");
    let verbose = output(&mut stage.leasehold(["-vv", "run", "job", "--", "true"]));
    let said = String::from_utf8(verbose.stderr).unwrap();
    assert!(
        said.contains("redis://") && !said.contains("s3cret"),
        "{said}"
    );
}

async fn streams_are_the_programs(stage: &Stage) {
    let mut command = stage.run("job", ["--", "cat"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"through");
    // With all three closed, too.
    let closed = Command::new("sh")
        .args([
            "-c",
            "exec \"$0\" run job -- sh -c 'cat; exit 5' <&- >&- 2>&-",
            env!("CARGO_BIN_EXE_leasehold"),
        ])
        .env("LEASEHOLD_STORE", &stage.url)
        .status();
    assert_eq!(closed.unwrap().code(), Some(5));
}

async fn a_held_lock_is_refused_waited_for_and_got(stage: &Stage) {
    let (_family, mut holder) = stage.held();
    let refused = output(&mut stage.run("job", ["--no-wait", "--", "true"]));
    assert_eq!(refused.status.code(), Some(75));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("held by") && said.contains("token"), "{said}");
    assert_eq!(
        code(&mut stage.run("job", ["-n", "-E", "0", "--", "false"])),
        Some(0)
    );
    // Long enough for a first answer on a busy machine: without one the store is not available.
    assert_eq!(
        code(&mut stage.run("job", ["--wait", "1500ms", "--", "true"])),
        Some(75)
    );
    assert_eq!(
        code(&mut stage.run("another", ["--no-wait", "--", "true"])),
        Some(0)
    );
    let mut next = Running::start(&mut stage.sh("exit 3"));
    holder.signal(Signal::KILL);
    assert_eq!(next.end().code(), Some(3));
    holder.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_client_waits_for_what_cannot_run() {
    // No store is asked: there is none at that address.
    let run = |program: &str| {
        code(&mut leasehold([
            "run",
            "job",
            "--no-wait",
            "--store",
            "redis://127.0.0.1:1",
            "--",
            program,
        ]))
    };
    assert_eq!(run("no-such-program-anywhere"), Some(127));
    assert_eq!(run("/no/such/program"), Some(127));
    assert_eq!(run("/etc/passwd"), Some(126));
    assert_eq!(run("/"), Some(126));
    assert_eq!(run("true"), Some(69));
}

async fn a_script_without_an_interpreter_cannot_be_executed(stage: &Stage) {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let status = code(stage.run("job", ["--"]).arg(&script));
    assert!(matches!(status, Some(126 | 127)), "{status:?}");
}

async fn signals_are_passed_on(stage: &Stage) {
    for (signal, name, expected) in [
        (Signal::TERM, "TERM", 41),
        (Signal::HUP, "HUP", 42),
        (Signal::INT, "INT", 43),
        (Signal::USR1, "USR1", 44),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let ready = folder.path().join("ready");
        let script = format!(
            "trap 'exit {expected}' {name}; : > {}; while :; do sleep 0.01; done",
            ready.display()
        );
        let mut running = Running::start(&mut support::afresh(&stage.sh(&script)));
        until_there(&ready);
        running.signal(signal);
        assert_eq!(running.end().code(), Some(expected), "{name}");
    }
}

async fn a_signal_ends_the_wait_and_leaves_no_waiter(stage: &Stage) {
    let _held = stage.held();
    let mut waiting = Running::start(&mut stage.sh("true"));
    stage.until_queue("job", 1, 1);
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.end().signal(), Some(Signal::TERM.as_raw()));
    assert_eq!(stage.queue("job"), (1, 0));
}

async fn what_the_caller_ignores_stays_ignored(stage: &Stage) {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let script = format!(
        ": > {}; while [ -e {0} ]; do sleep 0.01; done; exit 6",
        ready.display()
    );
    let nohup = format!("trap '' HUP CHLD; exec \"$0\" run job --ttl 3s -- sh -c '{script}'");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &nohup, env!("CARGO_BIN_EXE_leasehold")])
        .env("LEASEHOLD_STORE", &stage.url);
    let mut running = Running::start(&mut shell);
    until_there(&ready);
    running.signal(Signal::HUP);
    // Had it been passed on, the program would have ended before this.
    std::fs::remove_file(&ready).unwrap();
    assert_eq!(running.end().code(), Some(6));
}

async fn the_program_has_a_clean_signal_state(stage: &Stage) {
    let state = |command: &mut Command| {
        let text = String::from_utf8(output(command).stdout).unwrap();
        let line = |key| {
            text.lines()
                .find(|line: &&str| line.starts_with(key))
                .unwrap()
                .to_owned()
        };
        [line("SigBlk"), line("SigIgn")]
    };
    let cat = ["cat", "/proc/self/status"];
    let plain = state(Command::new(cat[0]).arg(cat[1]));
    assert_eq!(state(stage.run("job", ["--"]).args(cat)), plain);
}

async fn max_hold_ends_even_what_ignores_sigterm(stage: &Stage) {
    let family = Family::new();
    assert_eq!(
        code(
            stage
                .run("job", ["--max-hold", "500ms", "--"])
                .args(family.all())
        ),
        Some(124)
    );
    assert!(family.alive().is_empty());
    // The lock was given back, not left to run out.
    assert_eq!(
        code(&mut stage.run("job", ["--no-wait", "--", "true"])),
        Some(0)
    );
}

/// The lock stays taken, whether the store keeps it alone or the command does; and only so long.
async fn min_hold(stage: &Stage) {
    let alone = leasehold::connect(&stage.url)
        .await
        .unwrap()
        .guarantees()
        .min_hold_outlives_process();
    let began = Moment::now();
    let mut first =
        Running::start(&mut stage.run("job", ["--min-hold", "6s", "--", "sh", "-c", "exit 4"]));
    if alone {
        assert_eq!(first.end().code(), Some(4));
        assert!(
            Moment::now().since(began) < Duration::from_secs(6),
            "it ends at once"
        );
    }
    stage.token("job");
    assert_eq!(
        code(&mut stage.run("job", ["-n", "--", "true"])),
        Some(75),
        "it is taken"
    );
    assert_eq!(code(&mut stage.run("job", ["--", "true"])), Some(0));
    let waited = Moment::now().since(began);
    assert!(
        waited >= Duration::from_millis(5900) && waited < LONG,
        "{waited:?}"
    );
    assert_eq!(first.end().code(), Some(4));
    // One that ends later is given back at once.
    let began = Moment::now();
    assert_eq!(
        code(&mut stage.run("job", ["--min-hold", "100ms", "--", "sleep", "0.3"])),
        Some(0)
    );
    assert_eq!(code(&mut stage.run("job", ["--", "true"])), Some(0));
    assert!(Moment::now().since(began) < stage.ttl, "nothing ran out");
    if !alone {
        // A signal ends the wait, and the hold with it.
        let mut first = Running::start(&mut support::afresh(
            &stage.run("job", ["--min-hold", "1h", "--", "true"]),
        ));
        stage.token("job");
        until("the program's end", || {
            support::children_of(first.pid()).is_empty().then_some(())
        });
        first.signal(Signal::TERM);
        assert_eq!(first.end().code(), Some(0));
        assert_eq!(stage.queue("job"), (0, 0));
    }
}

async fn an_evicted_holder_is_ended(stage: &Stage) {
    let (family, mut holder) = stage.held();
    let token = stage.token("job");
    assert_eq!(stage.evict("job", token), Some(0));
    assert_eq!(holder.end().code(), Some(76));
    assert!(family.alive().is_empty(), "token {token}");
}

async fn leftovers(stage: &Stage) {
    // The program ends; its child and its daemon do not.
    let script = |family: &Family| {
        format!(
            "{} & while [ $(ls {1}/*.daemon | wc -l) = 0 ]; do sleep 0.01; done; exit 4",
            family.all().join(" "),
            family.folder().display()
        )
    };
    let killed = Family::new();
    let output = output(&mut stage.sh(&script(&killed)));
    assert_eq!(output.status.code(), Some(4));
    let left = killed.alive();
    assert_eq!(left.len(), 1, "the daemon has left the group");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains(&format!("run on without the lock: {}", left[0])),
        "and is told of: {said}"
    );

    let left = Family::new();
    assert_eq!(
        code(&mut stage.run(
            "job",
            ["--leftovers", "leave", "--", "sh", "-c", &script(&left)]
        )),
        Some(4)
    );
    assert_eq!(left.alive().len(), 3);

    let waited = Family::new();
    let mut running = Running::start(&mut stage.run(
        "job",
        ["--leftovers", "wait", "--", "sh", "-c", &script(&waited)],
    ));
    waited.until_alive();
    assert_eq!(
        code(&mut stage.run("job", ["--wait", "500ms", "--", "true"])),
        Some(75)
    );
    assert!(!running.has_ended());
    waited
        .alive()
        .into_iter()
        .for_each(|pid| send(pid, Signal::KILL));
    assert_eq!(running.end().code(), Some(4));
}

async fn reports(stage: &Stage) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    let report = |words: &[&str]| {
        let status = code(stage.run("job", ["--report"]).arg(&file).args(words));
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.lines().count(), 1);
        (
            status,
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
        )
    };
    let (status, ended) = report(&["--", "sh", "-c", "exit 76"]);
    assert_eq!(
        (status, &ended["outcome"], &ended["code"]),
        (Some(76), &"ended".into(), &76.into())
    );
    assert!(ended["token"].as_u64().unwrap() > 0);
    let (status, over) = report(&["--max-hold", "100ms", "--", "sleep", "60"]);
    assert_eq!(
        (status, &over["outcome"], &over["signal"]),
        (Some(124), &"max_hold".into(), &15.into())
    );
    let (status, bad) = report(&["-n", "--store", "redis://127.0.0.1:1", "--", "true"]);
    assert_eq!(
        (status, &bad["outcome"], &bad["token"]),
        (Some(69), &"unavailable".into(), &serde_json::Value::Null)
    );
    // A report of an earlier run does not stay.
    let (status, missing) = report(&["--", "no-such-program-anywhere"]);
    assert_eq!((status, &missing["outcome"]), (Some(127), &"failed".into()));
    assert!(
        missing["detail"]
            .as_str()
            .unwrap()
            .contains("no-such-program-anywhere"),
        "{missing}"
    );
    let nowhere = code(&mut stage.run("job", ["--report", "/no/such/folder/report", "--", "true"]));
    assert_eq!(nowhere, Some(64));
}

async fn as_the_first_process_of_a_namespace(stage: &Stage) {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let script = format!(
        "trap 'exit 3' TERM; (setsid true &); : > {}; while :; do sleep 0.01; done",
        ready.display()
    );
    let mut first = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        first.arg("--map-root-user");
    }
    first.args([
        "--pid",
        "--fork",
        "--mount-proc",
        env!("CARGO_BIN_EXE_leasehold"),
        "run",
        "job",
        "--",
        "sh",
        "-c",
        &script,
    ]);
    let mut running = Running::start(first.env("LEASEHOLD_STORE", &stage.url));
    until_there(&ready);
    let inside = support::children_of(running.pid());
    assert!(
        words_of(inside[0]).contains("leasehold"),
        "the first process is leasehold itself"
    );
    send(inside[0], Signal::TERM);
    assert_eq!(running.end().code(), Some(3));
}

fn until_there(file: &Path) {
    until("a file", || file.exists().then_some(()));
}
