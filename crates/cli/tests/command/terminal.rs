//! The command as one job of an interactive shell, driven through tmux: Ctrl-C, Ctrl-Z, fg, bg, pipelines, loops, scripts.
//!
//! Programs that Ctrl-C is to end are `exec`ed: a shell that has just forked one may swallow the signal, with us or without.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::support::{self, Stage, until};
use tempfile::TempDir;

/// A terminal with an interactive bash in it, on a tmux server of its own.
struct Desk {
    folder: TempDir,
    stage: Stage,
}

impl Desk {
    async fn open() -> Desk {
        let desk = Desk {
            folder: TempDir::new().unwrap(),
            stage: support::redis().await,
        };
        let rc = desk.folder.path().join("rc");
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_leasehold"));
        let path = format!(
            "{}:{}",
            binary.parent().unwrap().display(),
            std::env::var("PATH").unwrap()
        );
        fs::write(
            &rc,
            format!(
                "PATH='{path}'\nexport LEASEHOLD_STORE='{}'\nPS1='ready> '\n",
                desk.stage.url
            ),
        )
        .unwrap();
        let shell = format!("exec bash --noprofile --rcfile {}", rc.display());
        let started = desk.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "200",
            "-y",
            "50",
            &shell,
        ]);
        assert!(
            started.status.success(),
            "{}",
            String::from_utf8_lossy(&started.stderr)
        );
        until("a prompt", || {
            desk.screen().starts_with("ready>").then_some(())
        });
        desk
    }

    fn tmux(&self, words: &[&str]) -> Output {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S")
            .arg(self.folder.path().join("tmux"))
            .args(words)
            .stdin(Stdio::null());
        tmux.output().expect("tmux is needed: `cargo xtask setup`")
    }

    /// Types a line.
    fn line(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
        self.key("Enter");
    }

    /// Presses a key, as tmux calls it.
    fn key(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    fn screen(&self) -> String {
        String::from_utf8(self.tmux(&["capture-pane", "-p", "-S", "-"]).stdout).unwrap()
    }

    /// Waits until a line of the screen begins with `text`, after a prompt or the echo of a key, and returns the line from
    /// there on.
    fn until_shown(&self, text: &str) -> String {
        let last = std::cell::RefCell::new(String::new());
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(text, || {
                last.replace(self.screen());
                last.borrow()
                    .lines()
                    .map(bare)
                    .find(|line| line.starts_with(text))
                    .map(String::from)
            })
        }));
        seen.unwrap_or_else(|_| panic!("{text:?} is not on the screen:\n{}", last.borrow()))
    }

    /// Types a line until its answer is shown, every now and then: what is typed while the shell hands the terminal over may
    /// be lost.
    fn line_until(&self, text: &str, answer: impl Fn(&str) -> bool) {
        let mut turn = 0;
        until(text, || {
            if turn % 100 == 0 {
                self.line(text);
            }
            turn += 1;
            self.screen().lines().map(bare).any(&answer).then_some(())
        });
    }

    /// Runs a line and returns its `$?`; whatever is typed in between has been typed.
    fn status(&self, tag: &str) -> String {
        self.line(&format!("echo {tag}=$?"));
        let line = self.until_shown(&format!("{tag}="));
        line.split('=').nth(1).unwrap().to_owned()
    }
}

/// A line without prompts and without the echo of keys before it.
fn bare(line: &str) -> &str {
    ["ready> ", "^Z", "^C"]
        .iter()
        .find_map(|before| line.strip_prefix(before))
        .map_or(line, bare)
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_the_program() {
    let desk = Desk::open().await;
    desk.line("leasehold run job -- sh -c 'echo begun; exec sleep 1000'");
    desk.until_shown("begun");
    desk.key("C-c");
    assert_eq!(desk.status("a"), "130");
    // A program that handles it decides itself.
    desk.line("leasehold run job -- sh -c 'trap \"exit 9\" INT; echo handler; while :; do sleep 0.01; done'");
    desk.until_shown("handler");
    desk.key("C-c");
    assert_eq!(desk.status("b"), "9");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_a_loop_and_a_script() {
    let desk = Desk::open().await;
    desk.line(
        "for i in 1 2 3; do leasehold run job -- sh -c \"echo turn $i; exec sleep 1000\"; done",
    );
    desk.until_shown("turn 1");
    desk.key("C-c");
    assert_eq!(desk.status("a"), "130");
    desk.line("sh -c 'leasehold run job -- sh -c \"echo inner; exec sleep 1000\"; echo after the program'");
    desk.until_shown("inner");
    desk.key("C-c");
    assert_eq!(desk.status("b"), "130");
    let screen = desk.screen();
    assert!(
        !screen
            .lines()
            .map(bare)
            .any(|line| line.starts_with("turn 2") || line.starts_with("after")),
        "{screen}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_ends_the_wait() {
    let desk = Desk::open().await;
    desk.line("leasehold run job -- sh -c 'echo holding; exec sleep 1000' &");
    desk.until_shown("holding");
    desk.line("leasehold run job -- echo never");
    // After two seconds it says for whom it waits.
    desk.until_shown("| waiting");
    desk.key("C-c");
    assert_eq!(desk.status("a"), "130");
    desk.line("kill %1; wait %1; echo killed=$?");
    assert_eq!(desk.until_shown("killed="), "killed=143");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_z_and_fg_in_a_pipeline() {
    let desk = Desk::open().await;
    desk.line("leasehold run job -- cat | sed -u 's/^/got /'");
    desk.line_until("one", |line| line.starts_with("got one"));
    desk.key("C-z");
    desk.until_shown("[1]+  Stopped");
    desk.line("jobs -s | wc -l");
    desk.until_shown("1");
    desk.line("fg");
    desk.line_until("two", |line| line.starts_with("got two"));
    desk.key("C-d");
    assert_eq!(desk.status("a"), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn bg_lets_it_run_on_and_fg_gives_it_the_terminal() {
    let desk = Desk::open().await;
    // What is typed while the shell changes the terminal's mode becomes a line with the next one, so it reads more than one.
    let wait = "while [ ! -e go ]; do sleep 0.01; done";
    let script =
        format!("echo begun; {wait}; echo gone on; while read answer; do echo read $answer; done");
    desk.line(&format!(
        "cd {}; leasehold run job -- bash -c '{script}'",
        desk.folder.path().display()
    ));
    desk.until_shown("begun");
    desk.key("C-z");
    desk.until_shown("[1]+  Stopped");
    desk.line("bg");
    desk.line("touch go");
    desk.until_shown("gone on");
    // It wants to read, and is in the background: the job stops.
    desk.line_until("jobs -s | sed 's/^/stopped: /'", |line| {
        line.starts_with("stopped: [1]+")
    });
    desk.line("fg");
    desk.line_until("something", |line| line.starts_with("read something"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pager_behind_it_gets_the_keyboard() {
    let desk = Desk::open().await;
    // The pager reads the terminal while the program, in another group, has it.
    desk.line("leasehold run job -- sh -c 'echo begun; exec sleep 1000' | sh -c 'exec 3<&0; cat <&3 & read key </dev/tty; echo pager read $key; kill -TERM 0'");
    desk.until_shown("begun");
    desk.line("space");
    desk.until_shown("pager read space");
    desk.status("a");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_z_for_too_long_loses_the_lock() {
    let desk = Desk::open().await;
    desk.line("leasehold run job --ttl 2s -- sh -c 'echo begun; exec sleep 1000'");
    desk.until_shown("begun");
    desk.key("C-z");
    desk.until_shown("leasehold: stopped; the lock is held for");
    desk.until_shown("[1]+  Stopped");
    // Another client gets it.
    desk.line("leasehold run job -- echo mine now");
    desk.until_shown("mine now");
    desk.line("fg");
    desk.until_shown("leasehold: the lock \"job\" was lost");
    assert_eq!(desk.status("a"), "76");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphaned_group_is_not_stopped_for_ever() {
    let desk = Desk::open().await;
    // As in `ssh -t host leasehold …`: the shell that could continue it is not there.
    let command = "leasehold run job -- sh -c 'echo begun; kill -TSTP $$; echo went on'";
    desk.tmux(&[
        "new-window",
        &format!(
            "bash -c \"exec env LEASEHOLD_STORE={} {} > {}/out; exec sleep 1000\"",
            desk.stage.url,
            command
                .replace(
                    "leasehold run",
                    &format!("{} run", env!("CARGO_BIN_EXE_leasehold"))
                )
                .replace('$', "\\$"),
            desk.folder.path().display()
        ),
    ]);
    until("its end", || {
        fs::read_to_string(desk.folder.path().join("out"))
            .ok()
            .filter(|text| text.contains("went on"))
    });
}
