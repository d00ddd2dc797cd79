//! What the command writes: into pipes that are closed, on full disks, on narrow terminals, with and without colours; the
//! manual and the completions.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use crate::support::{self, Running, code, leasehold, output, text, until};

/// Runs these words of a shell with `$L` for the binary, and a store of its own.
async fn shell(script: &str) -> (Option<i32>, String, String) {
    let stage = support::redis().await;
    let mut shell = Command::new("bash");
    shell
        .args(["-o", "pipefail", "-c", script])
        .env("L", env!("CARGO_BIN_EXE_leasehold"));
    let output = output(
        shell
            .env("LEASEHOLD_STORE", &stage.url)
            .stdin(Stdio::null()),
    );
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_is_no_error() {
    for words in [
        "--help",
        "help run",
        "ls",
        "ls --json",
        "guarantees",
        "guarantees --json",
        "man",
        "completions bash",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let ended = shell(&format!(
            "cd {}; mkfifo pipe; (while [ ! -e closed ]; do sleep 0.01; done; $L {words}) > pipe & \
             true < pipe; : > closed; wait $!",
            folder.path().display()
        ))
        .await;
        assert_eq!(ended, (Some(0), String::new(), String::new()), "{words}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_written_is_no_success() {
    for words in [
        "--help",
        "run --help",
        "ls",
        "ls --json",
        "who job",
        "guarantees",
        "man",
        "completions zsh",
    ] {
        let (status, _, said) = shell(&format!("$L {words} > /dev/full")).await;
        assert_eq!(status, Some(125), "{words}: {said}");
        assert!(
            said.starts_with("leasehold: standard output: No space left"),
            "{words}: {said}"
        );
    }
    let (status, _, _) = shell("$L run job -- sh -c 'exit 7' 2> /dev/full").await;
    assert_eq!(status, Some(7));
    let (status, _, _) = shell("$L run '' -- true 2> /dev/full").await;
    assert_eq!(status, Some(64));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_wrote_does_not_move_the_cursor() {
    let stage = support::redis().await;
    let evil = "me\x1b[2J\r\n\u{9b}2J\u{202e}";
    let _holder =
        Running::start(&mut stage.run("job\x1b[2J", ["--label", evil, "--", "sleep", "1000"]));
    stage.until_queue("job\x1b[2J", 1, 0);
    for words in [
        &["who", "job\x1b[2J"][..],
        &["ls"],
        &["who", "job\x1b[2J", "--json"],
        &["ls", "--json"],
    ] {
        let text = text(&mut stage.leasehold(words.iter().copied()));
        assert!(
            text.contains("me") && !text.contains(['\x1b', '\u{9b}', '\u{202e}']),
            "{text:?}"
        );
    }
    let refused = output(&mut stage.run("job\x1b[2J", ["-n", "--", "true"]));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !said.contains(['\x1b', '\u{9b}', '\u{202e}']) && said.ends_with('\n'),
        "{said:?}"
    );
    assert_eq!(said.lines().count(), 1);
}

#[test]
fn words_that_are_not_utf_8() {
    use std::os::unix::ffi::OsStrExt;
    let bad = std::ffi::OsStr::from_bytes(b"a\xff");
    let home = tempfile::tempdir().unwrap();
    let run = |name: &str| {
        let mut command = leasehold(["run", name, "--store"]);
        command.arg(format!("sqlite://{}/locks.db", home.path().display()));
        command
    };
    assert_eq!(
        code(leasehold(["run"]).arg(bad).args(["--", "true"])),
        Some(64)
    );
    assert_eq!(
        code(leasehold(["run", "job", "--", "true"]).env("LEASEHOLD_STORE", bad)),
        Some(64)
    );
    // The program's own words are its own business.
    let echoed = output(run("job").args(["--", "printf", "%s"]).arg(bad));
    assert_eq!(
        (echoed.status.code(), &echoed.stdout[..]),
        (Some(0), &b"a\xff"[..])
    );
    let odd = home.path().join(bad);
    fs::write(&odd, "#!/bin/sh\nexit 9\n").unwrap();
    fs::set_permissions(&odd, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(code(run("job").arg("--").arg(&odd)), Some(9));
    let report = home.path().join(std::ffi::OsStr::from_bytes(b"report\xff"));
    assert_eq!(
        code(run("job").arg("--report").arg(&report).args(["--", "true"])),
        Some(0)
    );
    assert!(report.exists());
}

/// What `script` shows on a terminal of this width.
fn on_a_terminal(script: &str, columns: u16) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (socket, done) = (folder.path().join("tmux"), folder.path().join("done"));
    let tmux = |words: &[&str]| {
        let mut tmux = Command::new("tmux");
        output(tmux.arg("-S").arg(&socket).args(words).stdin(Stdio::null()))
    };
    let script = format!("{{ {script}; }}; : > {}; exec sleep 1000", done.display());
    let started = tmux(&[
        "-f",
        "/dev/null",
        "new-session",
        "-d",
        "-x",
        &columns.to_string(),
        "-y",
        "50",
        &script,
    ]);
    assert!(started.status.success(), "{started:?}");
    until("the end of the script", || done.exists().then_some(()));
    let shown = tmux(&["capture-pane", "-e", "-p", "-S", "-"]).stdout;
    tmux(&["kill-server"]);
    String::from_utf8(shown).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn colours_are_for_terminals_and_for_those_who_want_them() {
    let stage = support::redis().await;
    let show = |before: &str| {
        let binary = env!("CARGO_BIN_EXE_leasehold");
        on_a_terminal(
            &format!(
                "{before} LEASEHOLD_STORE={} {binary} -v guarantees",
                stage.url
            ),
            150,
        )
    };
    let coloured = show("env");
    assert!(
        coloured.contains("tokens rise") && coloured.contains("\x1b[1m"),
        "{coloured:?}"
    );
    assert!(
        coloured.contains("\x1b[34m"),
        "the level of a line of -v: {coloured:?}"
    );
    assert!(
        show("env NO_COLOR=").contains("\x1b[1m"),
        "set to nothing is not set"
    );
    for plain in [show("env NO_COLOR=1"), show("env TERM=dumb")] {
        assert!(
            plain.contains("tokens rise") && !plain.contains('\x1b'),
            "{plain:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_on_a_narrow_terminal_leaves_no_trace() {
    let stage = support::redis().await;
    let label = "a-long-name-that-would-wrap-again-and-again";
    let mut holder =
        Running::start(&mut stage.run("job", ["--label", label, "--", "sleep", "1000"]));
    stage.until_queue("job", 1, 0);
    let folder = tempfile::tempdir().unwrap();
    let seen = folder.path().join("seen");
    let binary = env!("CARGO_BIN_EXE_leasehold");
    let wait = format!(
        "LEASEHOLD_STORE={} {binary} run job --wait 4s -- true 2>&1 >/dev/tty | tee {}",
        stage.url,
        seen.display()
    );
    // First through a pipe, where there is no terminal to show anything on.
    let piped = on_a_terminal(&wait.replace("4s", "100ms"), 30);
    assert!(
        !piped.contains("waiting") && fs::read_to_string(&seen).unwrap().contains("held by"),
        "{piped}"
    );
    let shown = on_a_terminal(
        &format!(
            "LEASEHOLD_STORE={} {binary} run job --wait 4s -- true 2>/dev/tty",
            stage.url
        ),
        30,
    );
    assert!(!shown.contains("waiting"), "its line is gone: {shown:?}");
    let said: String = shown.split('\n').collect();
    assert!(
        said.trim_start().starts_with("leasehold: "),
        "nothing of it has wrapped: {shown:?}"
    );
    holder.signal(rustix::process::Signal::TERM);
    holder.end();
}

#[test]
fn the_manual_and_the_completions() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(code(leasehold(["man"]).arg(folder.path())), Some(0));
    assert_eq!(
        code(leasehold(["man"]).arg(folder.path().join("missing"))),
        Some(64)
    );
    let pages: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|page| page.unwrap().path())
        .collect();
    assert!(pages.len() > 10, "{pages:?}");
    assert!(
        pages
            .iter()
            .all(|page| fs::read_to_string(page).unwrap().starts_with(".ie"))
    );
    let page = fs::read_to_string(folder.path().join("leasehold-run.1")).unwrap();
    assert!(
        page.contains("LEASEHOLD_FENCING_TOKEN") && page.contains("max\\-hold"),
        "{page}"
    );
    assert!(
        page.contains("<NAME> \\-\\- <CMD>")
            && page.contains("\n\\&  75   the lock was not acquired"),
        "{page}"
    );
    assert_eq!(text(&mut leasehold(["man", "run"])), page);
    for shell in ["zsh", "fish"] {
        let completions = text(&mut leasehold(["completions", shell]));
        assert!(completions.contains("max-hold"), "{completions}");
    }
    // What bash completes.
    let script = "complete() { [[ $* = *_leasehold* ]] && done=1; }; . \"$0\"; [[ $done ]] || exit 1; \
                  COMP_WORDS=(leasehold run --max); COMP_CWORD=2; _leasehold leasehold --max run; echo \"${COMPREPLY[@]}\"; \
                  COMP_WORDS=(leasehold run x -- unshar); COMP_CWORD=4; _leasehold_or_program leasehold unshar --; echo \"${COMPREPLY[@]}\"; \
                  COMP_WORDS=(leasehold run x -- cat /etc/passw); COMP_CWORD=5; _leasehold_or_program leasehold /etc/passw cat; echo \"${COMPREPLY[@]}\"; \
                  COMP_WORDS=(leasehold run x -- --max); COMP_CWORD=4; _leasehold_or_program leasehold --max --; echo \"${COMPREPLY[@]}\"";
    let file = folder.path().join("completions");
    let to = File::create(&file).unwrap();
    assert!(
        leasehold(["completions", "bash"])
            .stdout(to)
            .status()
            .unwrap()
            .success()
    );
    let lines = text(Command::new("bash").args(["-c", script]).arg(&file));
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines[0], "--max-hold");
    assert!(
        lines[1].split(' ').any(|word| word == "unshare"),
        "a program: {lines:?}"
    );
    assert!(lines[2].contains("/etc/passwd"), "a file: {lines:?}");
    assert_eq!(lines[3], "", "no option of ours");
}
