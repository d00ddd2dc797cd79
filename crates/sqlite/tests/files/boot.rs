//! Files of another boot, damaged ones, and those of somebody else.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use leasehold_core::ErrorKind;
use leasehold_core::backend::Backend;
use leasehold_sqlite::{Config, Sqlite};
use rusqlite::Connection;

use super::*;

/// Has the file be one of another boot, and its client one of which nothing is known.
pub(crate) fn of_another_boot(place: &Place) {
    let database = Connection::open(place.path()).unwrap();
    database
        .execute("UPDATE meta SET boot = 'another'", [])
        .unwrap();
    let mark: i64 = database
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .unwrap();
    database
        .execute_batch(&format!(
            "PRAGMA user_version = {}; PRAGMA wal_checkpoint",
            mark ^ 0x7F00
        ))
        .unwrap();
}

/// What another boot has left is dead, however long its lease: only the time of this boot means anything.
pub(crate) fn another_boot_is_free() {
    let place = Place::new();
    run(async {
        let mut holder = Actor::start("hold", &[&place.word(), "a", "60000"]);
        holder.says("held");
        let [fifo] = &fifos(&place)[..] else {
            panic!("one client, one FIFO")
        };
        fs::remove_file(fifo).unwrap(); // so that nobody sees it die
        holder.kill();
        let here = store(place.path()).await;
        let busy = here
            .lock("a")
            .try_acquire()
            .await
            .unwrap_err()
            .into_contention()
            .expect("it is held");
        drop(here);
        of_another_boot(&place);
        let guard = store(place.path())
            .await
            .lock("a")
            .try_acquire()
            .await
            .unwrap();
        assert!(Some(guard.fencing_token()) > busy.token);
    });
}

/// Another boot id beside a living lease is no reboot: a container sees another one on the same machine. Nobody's hold is ended.
pub(crate) fn another_boot_beside_a_lease_is_refused() {
    let place = Place::new();
    run(async {
        let mut holder = Actor::start("hold", &[&place.word(), "a", "60000"]);
        holder.says("held");
        of_another_boot(&place);
        for looks in [false, true] {
            let error = open_to(&place.path(), looks).await.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("boot_id"), "{error}");
        }
        holder.cue();
        holder.says("valid");
        holder.kill();
        let free = store(place.path()).await;
        drop(free.lock("a").try_acquire().await.unwrap());
    });
}

/// The same with two boot ids, as in a container: both see what the other holds, or are refused. Needs root, to mount one.
pub(crate) fn two_boot_ids_on_one_machine() {
    let place = Place::new();
    let id = place.folder().join("boot_id");
    fs::write(&id, "01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
    let inside = |role: &str, words: &[&str]| {
        let mount = "mount --bind \"$1\" /proc/sys/kernel/random/boot_id; exec \"$2\"";
        let mut command = std::process::Command::new("unshare");
        command.args(["-rm", "sh", "-euc", mount, "sh"]).arg(&id);
        command.arg(std::env::current_exe().unwrap());
        Actor::start_by(command, role, words)
    };
    run(async {
        let mut holder = Actor::start("hold", &[&place.word(), "a", "60000"]);
        holder.says("held");
        for how in ["looks", "opens"] {
            let said = inside("say_how_it_opens", &[&place.word(), how]).hear();
            assert!(
                said.starts_with("Unsupported ") && said.contains("boot_id"),
                "{how}: {said}"
            );
        }
        holder.cue();
        holder.says("valid");
        holder.dismiss();
        holder.ends_or_says();
        let mut holder = inside("hold", &[&place.word(), "a", "60000"]);
        holder.says("held");
        assert_eq!(refused(&place.path()).await.kind(), ErrorKind::Unsupported);
        holder.cue();
        holder.says("valid");
    });
}

/// A client that only looks begins nothing anew, sees that nobody holds, and ends no hold. Its first claim begins the file.
pub(crate) fn looking_begins_nothing() {
    let place = Place::new();
    run(async {
        let missing = place.folder().join("missing.db");
        let looks = open_to(&missing, true).await.unwrap();
        assert!(looks.list("", None, 9).await.unwrap().is_empty());
        let evicted = looks.evict(&"a".into(), FencingToken::new(1)).await;
        assert!(!evicted.unwrap() && !missing.exists());
        drop(looks);
        drop(store(place.path()).await);
        of_another_boot(&place);
        let inode = || fs::metadata(place.path()).unwrap().ino();
        let before = inode();
        let looks = open_to(&place.path(), true).await.unwrap();
        let queue = looks.inspect(&"a".into()).await.unwrap();
        assert!(queue.holders.is_empty());
        let evicted = looks.evict(&"a".into(), FencingToken::new(1)).await;
        assert!(!evicted.unwrap() && inode() == before);
        let other = store(place.path()).await;
        let held = other.lock("a").acquire().await.unwrap();
        assert_ne!(inode(), before);
        let queue = looks.inspect(&"a".into()).await.unwrap();
        assert_eq!(queue.holders[0].token, Some(held.fencing_token()));
        // The file is in use by now, so there is a hold to end.
        assert!(
            looks
                .evict(&"a".into(), held.fencing_token())
                .await
                .unwrap()
        );
        assert_eq!(held.lost().await, Loss::Evicted);
        let _ = held.release().await;
        // It would begin the file anew to say that it has gone.
        other.close(ms(5000)).await.unwrap();
        fs::remove_file(place.path()).unwrap();
        assert!(looks.list("", None, 9).await.unwrap().is_empty() && !place.path().exists());
        drop(Store::new(looks).lock("a").acquire().await.unwrap());
        assert!(place.path().exists());
    });
}

async fn open_to(path: &Path, looks: bool) -> leasehold_core::Result<Sqlite> {
    let config = Config::new(path);
    Sqlite::with_config(if looks { config.to_look() } else { config }).await
}

/// Says how opening went, of a client that looks or of another.
pub(crate) fn say_how_it_opens(words: &[String]) {
    let [locks, how] = words else { unreachable!() };
    match run(open_to(Path::new(locks), how == "looks")) {
        Ok(_) => say("opened"),
        Err(e) => say(&format!("{:?} {e}", e.kind())),
    }
}

/// What a power cut leaves of a file that nobody waited for: the next boot begins anew, and tokens rise.
pub(crate) fn another_boots_damage_is_begun_anew() {
    run(async {
        for (name, from, to) in [
            ("file", 4096, usize::MAX),
            ("log", 32, 4096),
            ("log", 0, 24),
        ] {
            let place = Place::new();
            let token = {
                let here = store(place.path()).await;
                here.lock("a").acquire().await.unwrap().fencing_token()
            };
            while !fifos(&place).is_empty() {
                tokio::time::sleep(ms(5)).await;
            }
            of_another_boot(&place);
            let which = if name == "file" {
                place.path()
            } else {
                beside(&place, "-wal")
            };
            let mut bytes = fs::read(&which).unwrap_or_default();
            let to = to.min(bytes.len());
            bytes.get_mut(from..to).unwrap_or_default().fill(0x5A);
            fs::write(&which, bytes).unwrap();
            let guard = store(place.path())
                .await
                .lock("a")
                .try_acquire()
                .await
                .unwrap();
            assert!(guard.fencing_token() > token, "{name} {from}");
            guard.release().await.unwrap();
        }
    });
}

/// A client that begins it anew, root perhaps, does not lock its users out.
pub(crate) fn owner_and_rights_stay() {
    let place = Place::new();
    run(async {
        drop(store(place.path()).await);
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o646)).unwrap();
        // Only root can give it away, and then it has to be given back.
        let given = std::os::unix::fs::chown(place.path(), Some(12_345), None).is_ok();
        of_another_boot(&place);
        let before = fs::metadata(place.path()).unwrap();
        drop(store(place.path()).await);
        let after = fs::metadata(place.path()).unwrap();
        assert_ne!(before.ino(), after.ino());
        assert_eq!((before.uid(), before.mode()), (after.uid(), after.mode()));
        assert_eq!(given, after.uid() == 12_345);
    });
}

/// A damaged file is never made anew in silence: somebody may hold a lock in it.
pub(crate) fn damaged_is_an_error_and_stays() {
    let place = Place::new();
    run(async {
        let junk = b"this is no database, and long enough to be looked at as one".repeat(100);
        fs::write(place.path(), &junk).unwrap();
        let error = refused(&place.path()).await;
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("delete it"), "{error}");
        assert_eq!(fs::read(place.path()).unwrap(), junk);
        // One that is damaged later, while it is open.
        let path = place.folder().join("later.db");
        let here = store(&path).await;
        here.lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        let database = Connection::open(&path).unwrap();
        database
            .execute_batch("DROP INDEX waiting; DROP TABLE place")
            .unwrap();
        let error = here.lock("a").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    });
}

pub(crate) fn of_somebody_else_is_refused() {
    let place = Place::new();
    run(async {
        Connection::open(place.path())
            .unwrap()
            .execute_batch("CREATE TABLE users (name TEXT)")
            .unwrap();
        let before = fs::read(place.path()).unwrap();
        let error = refused(&place.path()).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("another program"), "{error}");
        assert!(
            fs::read(place.path()).unwrap() == before,
            "it was written to"
        );
        assert_eq!(
            fs::read_dir(place.folder()).unwrap().count(),
            1,
            "nothing beside it"
        );
        for (path, kind) in [
            ("missing/locks.db", ErrorKind::Invalid),
            ("", ErrorKind::Invalid),
        ] {
            let error = refused(&place.folder().join(path)).await;
            assert_eq!(error.kind(), kind, "{path}: {error}");
        }
    });
}

/// Another program has changed what Leasehold knows the file by: it is no other version's.
pub(crate) fn of_no_version_says_so() {
    let place = Place::new();
    run(async {
        drop(store(place.path()).await);
        let database = Connection::open(place.path()).unwrap();
        database
            .execute_batch("PRAGMA user_version = 0; PRAGMA wal_checkpoint")
            .unwrap();
        let error = refused(&place.path()).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(
            error
                .to_string()
                .contains("another program has set its user_version"),
            "{error}"
        );
        assert!(!error.to_string().contains("another version"), "{error}");
    });
}

/// A file with another layout of the tables stays as it is, whoever uses it.
pub(crate) fn of_another_version_is_refused() {
    let place = Place::new();
    run(async {
        store(place.path())
            .await
            .lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        let database = Connection::open(place.path()).unwrap();
        let mark: i64 = database
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .unwrap();
        let other = mark >> 8 << 8 | 0xFF;
        database
            .execute_batch(&format!(
                "PRAGMA user_version = {other}; PRAGMA wal_checkpoint"
            ))
            .unwrap();
        let before = fs::metadata(place.path()).unwrap().ino();
        let error = refused(&place.path()).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("schema 255"), "{error}");
        assert_eq!(fs::metadata(place.path()).unwrap().ino(), before);
    });
}

pub(crate) fn fifos(place: &Place) -> Vec<PathBuf> {
    let all = fs::read_dir(place.folder())
        .unwrap()
        .map(|file| file.unwrap().path());
    all.filter(|file| file.to_string_lossy().contains("-fifo-"))
        .collect()
}

/// What a client left that was killed before it had a row.
pub(crate) fn fifo_of_nobody_is_swept() {
    let place = Place::new();
    run(async {
        let here = store(place.path()).await;
        let _held = here.lock("a").acquire().await.unwrap();
        let [mine] = &fifos(&place)[..] else {
            panic!("one client, one FIFO")
        };
        let nobodys = beside(&place, "-fifo-0123456789abcdef");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&nobodys)
                .status()
                .unwrap()
                .success()
        );
        let others = [
            beside(&place, "-fifo-0123456789abcde"),
            place.folder().join("fifo-0123456789abcdef"),
        ];
        fs::write(&others[0], "no FIFO").unwrap();
        fs::write(&others[1], "no FIFO").unwrap();
        drop(store(place.path()).await);
        assert!(!nobodys.exists() && mine.exists() && others.iter().all(|file| file.exists()));
    });
}
