//! Files that another one replaces, or whose rows somebody deletes.

use std::fs;
use std::process::Command;

use leasehold_core::{ErrorKind, Loss};
use rusqlite::Connection;

use super::*;

/// A restore from a backup, into new files.
pub(crate) fn a_copy_in_their_place_is_loss() {
    let place = Place::new();
    run(async {
        let old = store(place.path()).await.ttl(TTL);
        old.lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        let copies = all(&place).map(|file| fs::read(file).unwrap());
        let first = old.lock("a").acquire().await.unwrap();
        for (file, copy) in all(&place).iter().zip(copies) {
            fs::remove_file(file).unwrap();
            fs::write(file, copy).unwrap();
        }
        is_lost_before_another_gets_it(&place, first).await;
    });
}

/// The same into the very files, which no check of them can see: older content is seen by the client that wrote younger.
pub(crate) fn a_copy_of_older_content_is_loss() {
    let place = Place::new();
    run(async {
        let old = store(place.path()).await.ttl(TTL);
        let first = old.lock("a").acquire().await.unwrap();
        restore_older_content(&place).await;
        // A hold of which nothing is told before its lease runs out is lost for another reason.
        assert_eq!(first.lost().await, Loss::Gone);
        let second = store(place.path()).await.lock("a").acquire().await.unwrap();
        assert!(second.fencing_token() > first.fencing_token());
    });
}

/// What a client has written last is taken back, in the same files.
pub(crate) async fn restore_older_content(place: &Place) {
    let copies = all(place).map(|file| fs::read(file).unwrap());
    let end = || -> i64 {
        let database = Connection::open(place.path()).unwrap();
        database
            .query_row("SELECT max(until) FROM session", [], |row| row.get(0))
            .unwrap()
    };
    let began = end();
    while end() == began {
        tokio::time::sleep(ms(5)).await;
    }
    for (file, copy) in all(place).iter().zip(copies) {
        fs::write(file, copy).unwrap();
    }
    assert_eq!(end(), began, "restored");
}

/// The same between two transactions of a client, within which it does not look at all of them again.
pub(crate) fn moved_away_and_back_at_once_is_noticed() {
    let place = Place::new();
    run(async {
        let one = store(place.path()).await.ttl(TTL);
        for _ in 0..5 {
            one.lock("b")
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
            let away = place.folder().join("away");
            fs::rename(place.path(), &away).unwrap();
            let first = store(place.path())
                .await
                .ttl(TTL)
                .lock("a")
                .try_acquire()
                .await;
            fs::rename(&away, place.path()).unwrap();
            let second = one.lock("a").try_acquire().await;
            let both = first.is_ok_and(|guard| guard.is_valid())
                && second.is_ok_and(|guard| guard.is_valid());
            assert!(!both, "two hold");
        }
    });
}

/// Away, somebody makes a new one, and back.
pub(crate) fn moved_away_and_back_is_loss() {
    let place = Place::new();
    run(async {
        let old = store(place.path()).await.ttl(TTL);
        let first = old.lock("a").acquire().await.unwrap();
        let away = place.folder().join("away");
        fs::rename(place.path(), &away).unwrap();
        let new = store(place.path()).await.ttl(TTL);
        let waiter = tokio::spawn(new.lock("a").acquire());
        fs::rename(&away, place.path()).unwrap();
        let second = waiter.await.unwrap().unwrap();
        assert!(!first.is_valid(), "two hold");
        assert!(second.fencing_token() > first.fencing_token());
    });
}

/// A file of Leasehold's own, but another one.
pub(crate) fn a_file_of_other_locks_is_loss() {
    let place = Place::new();
    run(async {
        let other = place.folder().join("other.db");
        store(&other)
            .await
            .lock("b")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        let first = store(place.path())
            .await
            .ttl(TTL)
            .lock("a")
            .acquire()
            .await
            .unwrap();
        fs::rename(&other, place.path()).unwrap();
        is_lost_before_another_gets_it(&place, first).await;
    });
}

/// Two names would have a log each, and holders that do not see each other. A link that is somebody's backup harms nobody.
pub(crate) fn a_hard_link_is_refused() {
    let place = Place::new();
    run(async {
        let first = store(place.path()).await.lock("a").acquire().await.unwrap();
        let link = place.folder().join("link.db");
        fs::hard_link(place.path(), &link).unwrap();
        let error = refused(&link).await;
        assert!(
            error.kind() == ErrorKind::Invalid && error.to_string().contains("hard link"),
            "{error}"
        );
        let busy = store(place.path()).await.lock("a").try_acquire().await;
        assert!(busy.is_err_and(|e| e.is_contended()) && first.confirm().await.is_ok());
    });
}

/// In a container that has the files, or the main one, but not their directory: nobody there uses them, or says of a lock in them that it is
/// free. Needs `unshare`.
pub(crate) fn files_mounted_alone_are_refused() {
    let place = Place::new();
    let inside = place.folder().join("inside");
    fs::create_dir(&inside).unwrap();
    let words = inside.join("locks.db").display().to_string();
    run(async {
        let first = store(place.path()).await.lock("a").acquire().await.unwrap();
        for endings in ["''", "'' -wal -shm"] {
            let mount = format!(
                "cd \"$1\"; for end in {endings}; do touch inside/locks.db$end; \
                 mount --bind locks.db$end inside/locks.db$end; done; exec \"$2\""
            );
            for how in ["looks", "opens"] {
                let mut command = Command::new("unshare");
                command.args(["-rm", "sh", "-euc", &mount, "sh"]);
                command.arg(place.folder());
                command.arg(std::env::current_exe().unwrap());
                let said = Actor::start_by(command, "say_how_it_opens", &[&words, how]).hear();
                assert!(
                    said.starts_with("Unsupported ") && said.contains("mount its directory"),
                    "{how}: {said}"
                );
            }
        }
        assert!(first.confirm().await.is_ok());
    });
}

/// A log that was emptied in place has the same inode.
pub(crate) fn a_cut_log_is_an_error() {
    let place = Place::new();
    run(async {
        let old = store(place.path()).await;
        old.lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        fs::File::options()
            .write(true)
            .open(beside(&place, "-wal"))
            .unwrap()
            .set_len(0)
            .unwrap();
        let error = refused(&place.path()).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("delete all three"), "{error}");
        all(&place)
            .iter()
            .for_each(|file| fs::remove_file(file).unwrap());
        store(place.path())
            .await
            .lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        old.lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    });
}

/// Its own row, that of its client, or all.
pub(crate) fn deleted_rows_are_loss() {
    run(async {
        for table in ["place", "session", "meta"] {
            let place = Place::new();
            let here = store(place.path()).await.ttl(TTL);
            let first = here.lock("a").acquire().await.unwrap();
            Connection::open(place.path())
                .unwrap()
                .execute(&format!("DELETE FROM {table}"), [])
                .unwrap();
            assert_eq!(first.lost().await, Loss::Gone, "{table}");
            here.lock("a")
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        }
    });
}

/// Opens a store, and says whether it gets the lock, which it then holds until it is killed.
pub(crate) fn open_and_try(words: &[String]) {
    let [locks] = words else { unreachable!() };
    run(async {
        let tried = store(locks)
            .await
            .ttl(ms(500))
            .lock("a")
            .try_acquire()
            .await;
        say(if tried.is_ok() { "held" } else { "busy" });
        tokio::task::spawn_blocking(await_cue).await.unwrap();
    });
}

/// A client that is held up at any of its looks at the file, while another one begins the files anew, does not go on in the
/// former ones, whatever it sees afterwards.
pub(crate) fn replaced_while_they_are_opened() {
    run(async {
        let mut looks = JoinSet::new();
        for look in 1..=5 {
            looks.spawn(replaced_at_this_look(look));
        }
        while let Some(done) = looks.join_next().await {
            done.unwrap();
        }
    });
}

async fn replaced_at_this_look(look: usize) {
    let place = Place::new();
    store(place.path())
        .await
        .lock("a")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
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
            "trace=statx",
            "-P",
        ])
        .arg(place.path());
    let held_up = format!("inject=statx:delay_enter=2000000:when={look}");
    strace
        .args(["-e", &held_up])
        .arg(std::env::current_exe().unwrap());
    let mut late = Actor::start_by(strace, "open_and_try", &[&place.word()]);
    let tracer = late.child.id();
    let mut said = tokio::task::spawn_blocking(move || (late.hear(), late));
    while !said.is_finished() && !is_held_up(tracer).await {}
    fs::remove_file(beside(&place, "-wal")).unwrap();
    let here = store(place.path()).await;
    tokio::select! {
        // It was first, or has made so many looks not at all: there is nothing to judge.
        _ = &mut said => {}
        first = here.lock("a").acquire() => {
            assert_eq!(said.await.unwrap().0, "busy", "two hold, after look {look}");
            assert!(first.unwrap().confirm().await.is_ok());
        }
    }
}

/// Whether a thread of the process that this one traces stays in one call for longer than a call takes.
pub(crate) async fn is_held_up(tracer: u32) -> bool {
    let children =
        fs::read_to_string(format!("/proc/{tracer}/task/{tracer}/children")).unwrap_or_default();
    let calls = || {
        let traced = children.split_whitespace().next().unwrap_or_default();
        let threads = fs::read_dir(format!("/proc/{traced}/task"))
            .into_iter()
            .flatten()
            .flatten();
        let call = |file: PathBuf| {
            Some((
                fs::read_to_string(file.join("stat")).ok()?,
                fs::read_to_string(file.join("syscall")).ok()?,
            ))
        };
        let calls = threads.filter_map(|thread| call(thread.path()));
        calls
            .filter(|(stat, _)| stat.contains(") t "))
            .map(|(_, call)| call)
            .collect::<Vec<_>>()
    };
    let mut same = calls();
    for _ in 0..40 {
        tokio::time::sleep(ms(5)).await;
        let now = calls();
        same.retain(|call| now.contains(call));
    }
    !same.is_empty()
}
