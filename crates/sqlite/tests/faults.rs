//! Bad days: places that are locked, refused or short of something, and processes that stop or lose their FIFO.
//!
//! Some processes run in namespaces of their own (`unshare`), where they mount what they need; one test needs to be root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

#[path = "faults/completions.rs"]
mod completions;
#[path = "faults/processes.rs"]
mod processes;
#[path = "faults/reasons.rs"]
mod reasons;
#[path = "it/support/mod.rs"]
mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use leasehold_core::backend::Moment;
use leasehold_core::{Error, ErrorKind, Store};
use processes::*;
use rusqlite::Connection;
use support::*;

fn main() -> ExitCode {
    let roles: &[Role] = &[
        ("connect", connect),
        ("connect_on_cue", connect_on_cue),
        ("connect_with_few_files", reasons::connect_with_few_files),
        ("stay", reasons::stay),
        (
            "connect_in_a_read_only_folder",
            connect_in_a_read_only_folder,
        ),
        ("fill_the_disk", fill_the_disk),
        ("hold", hold),
        ("hold_beside_work", hold_beside_work),
        ("hold_with_a_guardian", hold_with_a_guardian),
        ("read_together", read_together),
        ("stay_in_a_transaction", stay_in_a_transaction),
        (
            "complete_again_and_again",
            completions::complete_again_and_again,
        ),
    ];
    let tests: &[Test] = &[
        ("reasons/each_is_told", reasons::each_is_told),
        (
            "reasons/are_those_of_the_page",
            reasons::are_those_of_the_page,
        ),
        ("file/locked_names_the_process", locked_names_the_process),
        (
            "file/locked_by_a_stopped_process_says_so",
            locked_by_a_stopped_process_says_so,
        ),
        ("place/read_only_is_denied", read_only_is_denied),
        ("disk/full_keeps_what_is_held", full_disk_keeps_what_is_held),
        (
            "disk/stalled_keeps_what_is_held",
            stalled_disk_keeps_what_is_held,
        ),
        (
            "descriptors/none_left_is_an_error",
            no_descriptor_is_an_error,
        ),
        ("place/is_shared_by_its_group", is_shared_by_its_group),
        (
            "place/network_file_system_is_refused",
            network_file_system_is_refused,
        ),
        (
            "place/link_to_a_network_file_system_is_refused",
            link_to_a_network_file_system_is_refused,
        ),
        ("place/time_namespace_is_refused", time_namespace_is_refused),
        ("process/stopped_keeps_its_lease", stopped_keeps_its_lease),
        (
            "process/dead_is_seen_by_who_moved_up",
            dead_is_seen_by_who_moved_up,
        ),
        (
            "process/lives_as_long_as_its_guardian",
            lives_as_long_as_its_guardian,
        ),
        (
            "process/guardian_outlives_the_files",
            guardian_outlives_the_files,
        ),
        (
            "process/crowd_of_a_stopped_one_is_served",
            crowd_of_a_stopped_process_is_served,
        ),
        (
            "process/without_its_fifo_is_not_dead",
            without_its_fifo_is_not_dead,
        ),
        (
            "process/with_another_fifo_in_its_place_is_not_dead",
            another_fifo_is_not_death,
        ),
        (
            "process/killed_in_complete_leaves_the_hold_or_the_completion",
            completions::killed_in_complete_leaves_the_hold_or_the_completion,
        ),
    ];
    support::main(roles, tests, false)
}

fn files(place: &Place, part: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(place.folder())
        .unwrap()
        .map(|file| file.unwrap().path());
    all.filter(|file| file.file_name().unwrap().to_string_lossy().contains(part))
        .collect()
}

fn delete(files: &[PathBuf]) {
    files.iter().for_each(|file| {
        assert!(
            fs::remove_file(file).is_ok() || !file.exists(),
            "{}",
            file.display()
        );
    });
}

async fn refused(path: &Path) -> Error {
    open(path)
        .await
        .err()
        .unwrap_or_else(|| panic!("{} was opened", path.display()))
}

async fn in_line(store: &Store, name: &str, n: usize) {
    while store.lock(name).inspect().await.unwrap().waiters.len() != n {
        tokio::time::sleep(ms(5)).await;
    }
}

/// Begins a transaction, and commits it on cue; or stops itself in it.
fn stay_in_a_transaction(words: &[String]) {
    let [locks, how] = words else { unreachable!() };
    let database = Connection::open(locks).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    say("in");
    if how == "stop" {
        Command::new("kill")
            .args(["-s", "STOP", &std::process::id().to_string()])
            .status()
            .unwrap();
    }
    await_cue();
    database.execute_batch("COMMIT").unwrap();
    say("out");
}

/// The lease of a claim that waits for a locked file, which is its time limit, too.
const LEASE: Duration = Duration::from_secs(3);

async fn error_while_locked(store: &Store) -> Error {
    let error = store.lock("a").ttl(LEASE).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    error
}

fn locked_names_the_process() {
    let place = Place::new();
    run(async {
        let here = store(place.path()).await;
        let mut other = Actor::start("stay_in_a_transaction", &[&place.word(), "run"]);
        other.says("in");
        let error = error_while_locked(&here).await;
        assert!(
            error
                .to_string()
                .contains(&format!("process {}", other.child.id())),
            "{error}"
        );
        assert!(!error.to_string().contains("stopped"), "{error}");
        // Who only looks is not kept out, nor who opens the file.
        assert!(here.lock("a").inspect().await.unwrap().holders.is_empty());
        let new = store(place.path()).await;
        assert!(new.lock("a").inspect().await.unwrap().holders.is_empty());
        error_while_locked(&new).await;
        other.cue();
        other.says("out");
        here.lock("a")
            .try_acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    });
}

fn locked_by_a_stopped_process_says_so() {
    let place = Place::new();
    run(async {
        let here = store(place.path()).await;
        let mut other = Actor::start("stay_in_a_transaction", &[&place.word(), "stop"]);
        other.says("in");
        let stat = format!("/proc/{}/stat", other.child.id());
        while !fs::read_to_string(&stat).unwrap().contains(") T ") {
            tokio::time::sleep(ms(1)).await;
        }
        let error = error_while_locked(&here).await;
        let who = format!("process {}, which is stopped", other.child.id());
        assert!(error.to_string().contains(&who), "{error}");
        other.kill();
        here.lock("a")
            .try_acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    });
}

/// Says how opening went.
fn connect(words: &[String]) {
    let [locks] = words else { unreachable!() };
    match run(open(locks)) {
        Ok(_) => say("opened"),
        Err(e) => say(&format!("{:?} {e}", e.kind())),
    }
}

fn shell(script: &str) {
    let status = Command::new("sh").args(["-euc", script]).status().unwrap();
    assert!(status.success(), "{script}: {status}");
}

fn unshare(words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(words).arg(std::env::current_exe().unwrap());
    command
}

/// Makes its folder read-only, in a mount namespace of its own.
fn connect_in_a_read_only_folder(words: &[String]) {
    let [folder, locks] = words else {
        unreachable!()
    };
    shell(&format!(
        "mount --bind '{folder}' '{folder}'; mount -o remount,bind,ro '{folder}'"
    ));
    connect(std::slice::from_ref(locks));
}

fn read_only_is_denied() {
    let place = Place::new();
    run(async { drop(store(place.path()).await) });
    let folder = place.folder().display().to_string();
    let mut mounted = Actor::start_by(
        unshare(&["-rm"]),
        "connect_in_a_read_only_folder",
        &[&folder, &place.word()],
    );
    let answer = mounted.hear();
    assert!(
        answer.starts_with("Denied ") && answer.contains(&folder),
        "{answer}"
    );
    // In a user namespace without a mapping even root is bound by permissions.
    let set =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for (path, readable, writable) in [
        (place.path(), 0o444, 0o644),
        (place.folder().into(), 0o555, 0o700),
    ] {
        set(&path, readable);
        let answer = Actor::start_by(unshare(&["--user"]), "connect", &[&place.word()]).hear();
        assert!(
            answer.starts_with("Denied ") && answer.contains(&folder),
            "{answer}"
        );
        set(&path, writable);
        assert_eq!(
            Actor::start_by(unshare(&["--user"]), "connect", &[&place.word()]).hear(),
            "opened"
        );
    }
}

/// On a small disk of its own: what happens while it is full, and afterwards.
fn fill_the_disk(words: &[String]) {
    let [folder] = words else { unreachable!() };
    shell(&format!("mount -t tmpfs -o size=16m none '{folder}'"));
    let folder = Path::new(folder);
    run(async {
        let ttl = Duration::from_secs(2);
        let here = store(folder.join("locks.db")).await.ttl(ttl);
        let guard = here.lock("held").acquire().await.unwrap();
        let filler = folder.join("filler");
        assert!(
            fs::write(&filler, vec![1; 16 << 20]).is_err(),
            "the disk is larger than it was made"
        );
        let cold = refused(&folder.join("new.db")).await;
        assert_eq!(cold.kind(), ErrorKind::Unavailable, "{cold}");
        // Work goes on, for longer than the log is long.
        for _ in 0..2000 {
            here.lock("a")
                .try_acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        }
        // Until there is more of it than the file has room for.
        let (mut all, name) = (Vec::new(), |n| format!("{} {n}", "long name ".repeat(40)));
        let full = loop {
            match here.lock(name(all.len())).try_acquire().await {
                Ok(guard) => all.push(guard),
                Err(e) => break e,
            }
            assert!(all.len() < 10_000, "the file grows on a full disk");
        };
        assert_eq!(full.kind(), ErrorKind::Unavailable, "{full}");
        assert!(full.to_string().contains("disk is full"), "{full}");
        // Nothing of what is held is lost meanwhile: renewals need no room.
        let began = Moment::now();
        while since(began) < 3 * ttl {
            assert!(here.lock(name(all.len())).try_acquire().await.is_err());
            assert!(guard.confirm().await.is_ok());
        }
        assert!(guard.is_valid() && all.iter().all(leasehold_core::Guard::is_valid));
        fs::remove_file(&filler).unwrap();
        here.lock(name(all.len()))
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        assert!(guard.confirm().await.is_ok());
        say("fine");
    });
}

fn full_disk_keeps_what_is_held() {
    let place = Place::new();
    let folder = place.folder().display().to_string();
    let mut actor = Actor::start_by(unshare(&["-rm"]), "fill_the_disk", &[&folder]);
    while actor.hear() != "fine" {}
}

/// Holds a lock of five seconds beside enough work that the log is written back several times.
fn hold_beside_work(words: &[String]) {
    let [locks] = words else { unreachable!() };
    run(async {
        let here = store(locks).await.ttl(Duration::from_secs(5));
        let guard = here.lock("held").acquire().await.unwrap();
        for _ in 0..2000 {
            here.lock("a")
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        }
        assert!(guard.is_valid());
        guard.release().await.unwrap();
        say("fine");
    });
}

/// A disk that takes seconds to say that something is on it: nothing asks it to. `strace` makes each such request take eight
/// seconds, and names it.
fn stalled_disk_keeps_what_is_held() {
    let place = Place::new();
    let (trace, calls) = (
        place.folder().join("trace"),
        "fsync,fdatasync,sync_file_range,msync,syncfs,sync",
    );
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "-qq",
        "-e",
        &format!("trace={calls}"),
        "-e",
        "signal=none",
    ]);
    strace
        .args(["-e", &format!("inject={calls}:delay_enter=8000000"), "-o"])
        .arg(&trace);
    strace.arg(std::env::current_exe().unwrap());
    Actor::start_by(strace, "hold_beside_work", &[&place.word()]).says("fine");
    let log = fs::metadata(place.path().with_extension("db-wal"))
        .unwrap()
        .len();
    assert!(log < 4 << 20, "it was never written back: {log} bytes");
    let asked = fs::read_to_string(trace).unwrap();
    assert!(!asked.contains("sync"), "the disk was asked: {asked}");
}

/// Opens again and again, on cue.
fn connect_on_cue(words: &[String]) {
    let [locks] = words else { unreachable!() };
    run(async {
        say("ready");
        while await_cue() {
            let lock = async {
                let store = Store::new(open(locks).await?);
                let guard = store.lock("a").acquire().await?;
                guard.release().await?;
                store.close(Duration::from_secs(5)).await
            };
            match lock.await {
                Ok(()) => say("fine"),
                Err(e) => say(&format!("{:?} {e}", e.kind())),
            }
        }
    });
}

/// `ulimit -n`: an error that says so, wherever it is met.
fn no_descriptor_is_an_error() {
    let place = Place::new();
    let mut actor = Actor::start("connect_on_cue", &[&place.word()]);
    actor.says("ready");
    let pid = actor.child.id().to_string();
    let used = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let mut answers = Vec::new();
    for more in 0..20 {
        let limit = format!("--nofile={}:", used + more);
        assert!(
            Command::new("prlimit")
                .args(["--pid", &pid, &limit])
                .status()
                .unwrap()
                .success()
        );
        actor.cue();
        answers.push(actor.hear());
    }
    assert_eq!(answers.last().unwrap(), "fine", "{answers:?}");
    let refused: Vec<_> = answers.iter().filter(|answer| *answer != "fine").collect();
    assert!(
        refused.len() >= 3
            && refused
                .iter()
                .all(|answer| answer.starts_with("Unavailable ")),
        "{answers:?}"
    );
}

/// Another user of the directory's group stands in the same line, is rung, and is seen to die. Needs root, to be two users.
fn is_shared_by_its_group() {
    let place = Place::new();
    let folder = place.folder().display();
    shell(&format!("chgrp 54321 '{folder}'; chmod 2770 '{folder}'"));
    let program = place.folder().join("other");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let other = || {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", "12345", "--regid", "54321", "--clear-groups"])
            .arg(&program);
        let mut other = Actor::start_by(command, "hold", &[&place.word(), "a", "60000"]);
        other.says("held");
        other
    };
    run(async {
        let here = store(place.path()).await.ttl(Duration::from_secs(60));
        for killed in [true, false] {
            let mut holder = other();
            let waiter = tokio::spawn(here.lock("a").acquire());
            in_line(&here, "a", 1).await;
            let ended = Moment::now();
            match killed {
                true => holder.kill(),
                false => holder.dismiss(),
            }
            let guard = waiter.await.unwrap().unwrap();
            assert!(since(ended) < Duration::from_secs(5), "{:?}", since(ended));
            guard.release().await.unwrap();
        }
    });
}

/// A FUSE mount that nobody serves: its type is known all the same. Needs root: the mount belongs to another user.
fn network_file_system_is_refused() {
    let place = Place::new();
    let mount = "exec 3<>/dev/fuse
                 mount -i -t fuse -o fd=3,rootmode=40000,user_id=1,group_id=1 none \"$1\"
                 exec \"$2\"";
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-euc", mount, "sh"])
        .arg(place.folder())
        .arg(std::env::current_exe().unwrap());
    let answer = Actor::start_by(command, "connect", &[&place.word()]).hear();
    assert!(
        answer.starts_with("Unsupported ") && answer.contains("FUSE"),
        "{answer}"
    );
}

/// A link on a local disk, to a file on another one: `strace` calls the disk of one path NFS.
fn link_to_a_network_file_system_is_refused() {
    let place = Place::new();
    let folder = place.folder().canonicalize().unwrap();
    let share = folder.join("share");
    let file = share.join("locks.db");
    fs::create_dir(&share).unwrap();
    fs::write(&file, "").unwrap();
    symlink(&file, place.path()).unwrap();
    for remote in [&share, &file, &folder] {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "signal=none"]);
        strace.args(["-e", "trace=/^statfs", "-P"]).arg(remote);
        let nfs = "inject=/^statfs:poke_exit=@arg2=6969000000000000";
        strace
            .args(["-e", nfs])
            .arg(std::env::current_exe().unwrap());
        let answer = Actor::start_by(strace, "connect", &[&place.word()]).hear();
        let expected = format!("{} is on NFS", remote.display());
        assert!(
            answer.starts_with("Unsupported ") && answer.contains(&expected),
            "{answer}"
        );
        assert_eq!(fs::read_dir(&share).unwrap().count(), 1);
    }
    let answer = Actor::start("connect", &[&place.word()]).hear();
    assert_eq!(answer, "opened", "without it");
}

fn time_namespace_is_refused() {
    let place = Place::new();
    let shifted = unshare(&["-rT", "--boottime", "1000"]);
    let answer = Actor::start_by(shifted, "connect", &[&place.word()]).hear();
    assert!(
        answer.starts_with("Unsupported ") && answer.contains("time namespace"),
        "{answer}"
    );
    assert_eq!(
        Actor::start_by(unshare(&["-r"]), "connect", &[&place.word()]).hear(),
        "opened"
    );
}
