//! A client that begins the files anew: what others find meanwhile, and when it is killed.

use leasehold_core::backend::TokenFloor;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::{Command, Stdio};

use leasehold_core::ErrorKind;
use leasehold_core::backend::Backend;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rustix::io::{FdFlags, fcntl_setfd};

use super::replaced::{is_held_up, restore_older_content};
use super::*;

/// Files are complete and in use before a path leads to them, whatever a client that begins them anew has done when it is held up; and if
/// it is killed there, the next one goes on, with greater tokens. A file that still had to be taken into use would be so by two clients, each
/// over an index of its own, if that of the first one were deleted just then: both would write in one log.
pub(crate) fn new_files_are_in_use_when_they_are_found() {
    run(async {
        let mut steps = JoinSet::new();
        for step in 1..=4 {
            steps.spawn(begun_anew_until("rename", step));
        }
        for step in 1..=8 {
            steps.spawn(begun_anew_until("unlink", step));
        }
        let mut held_up = Vec::new();
        while let Some(done) = steps.join_next().await {
            held_up.extend(done.unwrap());
        }
        // What nobody uses comes first, and then the three.
        assert_eq!(
            held_up.iter().filter(|call| **call == "rename").count(),
            4,
            "{held_up:?}"
        );
        assert!(held_up.contains(&"unlink"), "{held_up:?}");
    });
}

/// What the client was held up at. `None`: it has made so many calls not at all.
async fn begun_anew_until(call: &'static str, step: usize) -> Option<&'static str> {
    let place = Place::new();
    // Greater than any clock says.
    let (client, raised) = (
        open(place.path()).await.unwrap(),
        FencingToken::new(1 << 60),
    );
    client.raise(raised).await.unwrap();
    // Or it would begin them anew when it leaves.
    Store::new(client).close(ms(5000)).await.unwrap();
    let written_back = "PRAGMA wal_checkpoint(PASSIVE)";
    Connection::open(place.path())
        .unwrap()
        .query_row(written_back, [], |_| Ok(()))
        .unwrap();
    fs::remove_file(beside(&place, "-shm")).unwrap_or_default();
    let (old, link) = (
        fs::metadata(place.path()).unwrap().ino(),
        place.folder().join("link"),
    );
    symlink(place.path(), &link).unwrap();

    let mut late = Actor::start_by(held_up_at(call, step), "open_and_try", &[&place.word()]);
    let tracer = late.child.id();
    let mut said = tokio::task::spawn_blocking(move || late.ends_or_says());
    while !said.is_finished() && !is_held_up(tracer).await {}
    if said.is_finished() {
        return None;
    }
    let found = fs::read(place.path()).unwrap();
    let is_in_use = found[60..63] != [0, 0, 0];
    if is_in_use && fs::metadata(place.path()).unwrap().ino() != old {
        let number = |file: &PathBuf| {
            fs::metadata(file)
                .map(|file| file.ino())
                .unwrap_or_default()
        };
        for known in all(&place)
            .iter()
            .map(|file| format!(", {}, ", number(file)))
        {
            assert!(
                found
                    .windows(known.len())
                    .any(|part| part == known.as_bytes()),
                "{call} {step}: not with {known}"
            );
        }
    }
    kill_traced(tracer);
    drop((&mut said).await);
    let guard = store(&link).await.lock("b").acquire().await.unwrap();
    assert!(guard.fencing_token() > raised, "{call} {step}");
    Some(call)
}

/// This program, held up for two seconds at such a call.
fn held_up_at(call: &str, step: usize) -> Command {
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "signal=none",
        "-e",
        &format!("trace=/^{call}"),
    ]);
    strace.args([
        "-e",
        &format!("inject=/^{call}:delay_enter=2000000:when={step}"),
    ]);
    strace.arg(std::env::current_exe().unwrap());
    strace
}

fn kill_traced(tracer: u32) {
    let traced = fs::read_to_string(format!("/proc/{tracer}/task/{tracer}/children")).unwrap();
    assert!(
        Command::new("kill")
            .args(["-s", "KILL"])
            .args(traced.split_whitespace())
            .status()
            .unwrap()
            .success()
    );
}

/// A cleaner that takes away what a client has made for new files, and not yet moved: it makes others.
pub(crate) fn cleaned_before_they_are_moved() {
    run(async {
        for (call, taken) in [
            ("fallocate", "-new-wal"),
            ("rename", "-new"),
            ("rename", "-empty"),
            ("rename", "-new-shm"),
        ] {
            let place = Place::new();
            open(place.path()).await.unwrap().close().await.unwrap();
            fs::remove_file(beside(&place, "-wal")).unwrap();
            let mut late = Actor::start_by(held_up_at(call, 1), "open_and_try", &[&place.word()]);
            while !is_held_up(late.child.id()).await {}
            fs::remove_file(beside(&place, taken)).unwrap();
            late.says("held");
        }
    });
}

/// A client is killed as it begins the files anew, and its guardian lives: it is in nobody's way.
pub(crate) fn begun_anew_beside_a_guardian() {
    let place = Place::new();
    run(async {
        open(place.path()).await.unwrap().close().await.unwrap();
        let mut late = Actor::start_by(
            held_up_at("rename", 1),
            "hold_with_a_guardian",
            &[&place.word(), "900"],
        );
        let guardian = late.hear();
        fs::remove_file(beside(&place, "-shm")).unwrap();
        late.cue();
        let tracer = late.child.id();
        while !is_held_up(tracer).await {}
        kill_traced(tracer);
        let here = open(place.path()).await;
        assert!(
            Command::new("kill")
                .arg(guardian)
                .status()
                .unwrap()
                .success()
        );
        assert!(here.is_ok(), "{:?}", here.err());
    });
}

/// A client is dead and its guardian lives, and older files are restored: into new ones, which may have the numbers of those that were deleted
/// for them.
pub(crate) fn restored_beside_a_guardian() {
    let place = Place::new();
    run(async {
        open(place.path()).await.unwrap().close().await.unwrap();
        let copies = all(&place).map(|file| fs::read(file).unwrap());
        let mut holder = Actor::start("hold_with_a_guardian", &[&place.word(), "20000"]);
        let guardian = holder.hear();
        holder.kill();
        for (file, copy) in all(&place).iter().zip(copies) {
            fs::remove_file(file).unwrap();
            fs::write(file, copy).unwrap();
        }
        let tried = store(place.path()).await.lock("a").try_acquire().await;
        assert!(
            Command::new("kill")
                .arg(guardian)
                .status()
                .unwrap()
                .success()
        );
        assert!(tried.is_err_and(|e| e.is_contended()), "two hold");
    });
}

/// Holds a lock, while another process has what keeps this one alive to others; asks for another lock on cue.
pub(crate) fn hold_with_a_guardian(words: &[String]) {
    let [locks, ttl] = words else { unreachable!() };
    run(async {
        let client = open(locks).await.unwrap();
        let life_line = client.life_line().await.unwrap();
        life_line
            .iter()
            .for_each(|fd| fcntl_setfd(fd, FdFlags::empty()).unwrap());
        let mut guardian = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        drop(life_line);
        let store = Store::new(client).ttl(ms(ttl.parse().unwrap()));
        let guard = store.lock("a").acquire().await.unwrap();
        say(&guardian.id().to_string());
        tokio::task::spawn_blocking(await_cue).await.unwrap();
        drop(store.lock("b").try_acquire().await);
        drop(guard);
        guardian.kill().unwrap();
        guardian.wait().unwrap();
    });
}

/// A client begins the files anew that others see no fault of, and is held up just before the path leads nowhere: a lease that is
/// taken in the old ones until then is waited for, however long it is.
pub(crate) fn a_lease_taken_until_then_is_waited_for() {
    // On a busy machine the moment may pass unseen.
    run(async { while !is_waited_for(&Place::new()).await {} });
}

/// Returns whether the client was seen held up.
async fn is_waited_for(place: &Place) -> bool {
    let here = store(place.path()).await.ttl(ms(20_000));
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "signal=none",
        "-e",
        "trace=/^rename",
        "-P",
    ]);
    strace
        .arg(beside(place, "-empty"))
        .args(["-e", "inject=/^rename:delay_enter=2000000"]);
    strace.arg(std::env::current_exe().unwrap());
    let file = || fs::metadata(place.path()).map(|file| file.ino()).ok();
    let mut late = Actor::start_by(strace, "hold", &[&place.word(), "b", "900"]);
    late.says("held");
    let old = file();
    restore_older_content(place).await;
    while !is_held_up(late.child.id()).await {
        if file() != old {
            return false;
        }
    }
    let first = here.lock("a").acquire().await.unwrap();
    while file().is_none_or(|now| Some(now) == old) {
        tokio::time::sleep(ms(5)).await;
    }
    // The other one's lease is over by then.
    let second = store(place.path())
        .await
        .lock("a")
        .acquire_timeout(ms(1500))
        .await;
    assert!(
        !first.is_valid() || second.is_err_and(|e| e.kind() == ErrorKind::TimedOut),
        "two hold"
    );
    true
}

/// A client is held up between its look at the files and its open: nobody begins them anew meanwhile. Else it would open the former file beside
/// the new index, and as it closes that one, its process's locks would go.
pub(crate) fn nobody_begins_while_another_opens() {
    let place = Place::new();
    run(async {
        open(place.path()).await.unwrap().close().await.unwrap();
        let mut strace = Command::new("strace");
        strace
            .args([
                "-f",
                "-qq",
                "-o",
                "/dev/null",
                "-e",
                "signal=none",
                "-e",
                "trace=openat",
                "-P",
            ])
            .arg(place.path());
        strace
            .args(["-e", "inject=openat:delay_exit=2000000:when=1"])
            .arg(std::env::current_exe().unwrap());
        let mut late = Actor::start_by(strace, "open_and_try", &[&place.word()]);
        let tracer = late.child.id();
        while !is_held_up(tracer).await {}
        fs::remove_file(beside(&place, "-shm")).unwrap();
        let here = tokio::spawn(open(place.path()));
        let file = || fs::metadata(place.path()).map(|file| file.ino()).ok();
        let old = file();
        let mut looks = 0;
        loop {
            let now = file();
            if !is_held_up(tracer).await {
                break;
            }
            assert_eq!(now, old, "it was begun anew");
            looks += 1;
        }
        late.says("held");
        drop(here.await.unwrap().unwrap());
        println!("{looks} looks");
        assert_ne!(file(), old);
    });
}

/// Nobody opens an index beside a file that it does not belong to: of a main file that was restored alone, and of the empty one that a killed
/// client leaves. SQLite would cut it under the other clients of the process, which die of that, or drop their locks in it.
pub(crate) fn no_index_is_opened_beside_another_file() {
    run(async {
        for is_restored in [true, false] {
            let place = Place::new();
            open(place.path()).await.unwrap().close().await.unwrap();
            if is_restored {
                let copy = place.folder().join("copy");
                fs::copy(place.path(), &copy).unwrap();
                fs::rename(copy, place.path()).unwrap();
            } else {
                fs::remove_file(beside(&place, "-wal")).unwrap();
                let mut late =
                    Actor::start_by(held_up_at("rename", 3), "open_and_try", &[&place.word()]);
                while !is_held_up(late.child.id()).await {}
                kill_traced(late.child.id());
                late.ends_or_says();
                assert!(all(&place).iter().all(|file| file.exists()));
            }
            let trace = place.folder().join("trace");
            let mut strace = Command::new("strace");
            strace
                .args(["-f", "-qq", "-e", "signal=none", "-e", "trace=openat", "-o"])
                .arg(&trace);
            strace.arg(std::env::current_exe().unwrap());
            let mut late = Actor::start_by(strace, "open_and_try", &[&place.word()]);
            late.says("held");
            late.dismiss();
            late.child.wait().unwrap();
            let trace = fs::read_to_string(&trace).unwrap();
            let opens = |what| {
                let index = format!("{:?}", beside(&place, what));
                trace.lines().filter(|line| line.contains(&index)).count()
            };
            // The new one stays open under its former name until it is used under this one.
            assert_eq!(
                (opens("-new-shm"), opens("-shm")),
                (1, 0),
                "restored: {is_restored}"
            );
        }
    });
}

/// A program that locks no directory opens the files while they are moved, and keeps them open: the new index is not built from the old log.
pub(crate) fn a_foreign_program_opens_them_meanwhile() {
    let place = Place::new();
    run(async {
        let here = store(place.path()).await;
        for _ in 0..20 {
            here.lock("b")
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        }
        here.close(ms(5000)).await.unwrap();
        fs::remove_file(beside(&place, "-shm")).unwrap();
        let mut late = Actor::start_by(held_up_at("rename", 3), "open_and_try", &[&place.word()]);
        while !is_held_up(late.child.id()).await {}
        let foreign = Connection::open(place.path()).unwrap();
        let _ = foreign.query_row("SELECT count(*) FROM place", [], |_| Ok(()));
        late.says("held");
        Actor::start("open_and_try", &[&place.word()]).says("busy");
        drop(foreign);
    });
}

/// A program that locks no directory has opened the former log, and opens the index once both are moved, before any client does: it
/// does not build the new index from the former log. A client would find damage then, or go on in it.
pub(crate) fn a_foreign_program_is_slow_to_open_them() {
    let place = Place::new();
    run(async {
        used_and_closed(&place).await;
        let mut foreign = Actor::start_by(
            stopped_after("openat", &beside(&place, "-wal")),
            "open_as_a_foreign_program",
            &[&place.word()],
        );
        is_stopped(&foreign).await;
        fs::remove_file(beside(&place, "-shm")).unwrap();
        let mut late = Actor::start_by(
            stopped_after("rename", &beside(&place, "-new-shm")),
            "open_and_try",
            &[&place.word()],
        );
        is_stopped(&late).await;
        go_on(&foreign);
        foreign.says("open");
        go_on(&late);
        late.says("held");
        Actor::start("open_and_try", &[&place.word()]).says("busy");
    });
}

/// A foreign program is the first that opens the index since all clients have gone: the next client waits until it ends.
pub(crate) fn a_foreign_program_is_slower_than_all_clients() {
    let place = Place::new();
    run(async {
        used_and_closed(&place).await;
        let mut foreign = Actor::start_by(
            stopped_after("openat", &beside(&place, "-wal")),
            "open_as_a_foreign_program",
            &[&place.word()],
        );
        is_stopped(&foreign).await;
        fs::remove_file(beside(&place, "-shm")).unwrap();
        open(place.path()).await.unwrap().close().await.unwrap();
        // The thread of a client ends a little later.
        while has_open(&beside(&place, "-shm")) {
            tokio::time::sleep(ms(1)).await;
        }
        go_on(&foreign);
        foreign.says("open");
        let here = tokio::spawn(open(place.path()));
        // It meets what the program has made of the index.
        tokio::time::sleep(ms(300)).await;
        foreign.dismiss();
        let here = Store::new(here.await.unwrap().unwrap());
        drop(here.lock("a").try_acquire().await.unwrap());
    });
}

/// Leaves files with a log of many transactions, which no process has open.
async fn used_and_closed(place: &Place) {
    let here = store(place.path()).await;
    for _ in 0..20 {
        here.lock("b")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    here.close(ms(5000)).await.unwrap();
}

/// Whether this process has the file open.
fn has_open(file: &Path) -> bool {
    let mut fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
    fds.any(|fd| fs::read_link(fd.path()).is_ok_and(|open| open == file))
}

/// Opens the file as SQLite does by itself, until it is dismissed.
pub(crate) fn open_as_a_foreign_program(words: &[String]) {
    let [file] = words else { unreachable!() };
    let foreign = Connection::open(file).unwrap();
    // It would write its log into its file, and delete the one at the path.
    foreign
        .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .unwrap();
    let _ = foreign.query_row("SELECT count(*) FROM place", [], |_| Ok(()));
    say("open");
    while await_cue() {}
}

/// This program, which stops after its first such call with this path.
fn stopped_after(call: &str, path: &Path) -> Command {
    let mut strace = Command::new("strace");
    let trace = format!("trace=/^{call}");
    let stop = format!("inject=/^{call}:signal=SIGSTOP:when=1");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "signal=none"]);
    strace.args(["-e", &trace, "-e", &stop, "-P"]).arg(path);
    strace.arg(std::env::current_exe().unwrap());
    strace
}

/// The process behind the tracer.
fn traced(tracer: &Actor) -> Option<u32> {
    let tracer = tracer.child.id();
    let children = fs::read_to_string(format!("/proc/{tracer}/task/{tracer}/children"));
    children.ok()?.split_whitespace().next()?.parse().ok()
}

async fn is_stopped(tracer: &Actor) {
    while !is_held_up(tracer.child.id()).await {}
}

fn go_on(tracer: &Actor) {
    let process = traced(tracer).unwrap().to_string();
    let told = Command::new("kill").args(["-s", "CONT", &process]).status();
    assert!(told.unwrap().success());
}
