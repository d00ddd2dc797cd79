//! The second file, and its log and index, which are deleted, replaced, restored or damaged.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use leasehold_core::Keep;
use leasehold_core::backend::{
    Backend, Claim, Claimed, Complete, Completed, Completions, Grant, Mode, WaitPolicy,
};
use leasehold_sqlite::{Config, Sqlite};
use rusqlite::Connection;

use super::*;

const LONG: Duration = Duration::from_secs(30);
const DAY: Keep = Keep::For(Duration::from_secs(24 * 3600));

fn claim(name: &str) -> Claim {
    Claim::new(name, Mode::Exclusive, WaitPolicy::Fair, LONG, "").once(0)
}

/// The hold of this claim; `None` if its work is done.
async fn asks(client: &Sqlite, claim: &Claim) -> Option<Grant> {
    match client.claim(claim).await.unwrap() {
        Claimed::Granted(grant) => Some(grant),
        Claimed::Done(_) => None,
        other => panic!("{other:?}"),
    }
}

async fn completes(client: &Sqlite, claim: &Claim, grant: &Grant) -> bool {
    let request = Complete::new(grant.token, grant.place.clone(), DAY);
    match client.complete(claim, &request).await.unwrap() {
        Completed::Done(_) => true,
        Completed::NotHeld => false,
    }
}

async fn does(client: &Sqlite, name: &str) {
    let claim = claim(name);
    let grant = asks(client, &claim).await.expect("it is not done");
    assert!(completes(client, &claim, &grant).await);
}

async fn is_done(client: &Sqlite, name: &str) -> bool {
    let claim = claim(name);
    let Some(grant) = asks(client, &claim).await else {
        return true;
    };
    client.release(&claim, Some(&grant.place)).await.unwrap();
    false
}

fn second(place: &Place) -> [PathBuf; 3] {
    ["-done", "-done-wal", "-done-shm"].map(|what| beside(place, what))
}

fn say_in_second(place: &Place, sql: &str) {
    let file = Connection::open(beside(place, "-done")).unwrap();
    file.execute_batch(sql).unwrap();
}

/// As after a reboot.
fn second_of_another_boot(place: &Place) {
    let file = Connection::open(beside(place, "-done")).unwrap();
    file.execute("UPDATE meta SET boot = 'another'", [])
        .unwrap();
    let mark: i64 = file
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .unwrap();
    file.execute_batch(&format!(
        "PRAGMA user_version = {}; UPDATE done SET boot = 'another'",
        mark ^ 0x7F00
    ))
    .unwrap();
}

async fn alone(place: &Place) {
    while !fifos(place).is_empty() {
        tokio::time::sleep(ms(5)).await;
    }
}

/// The locks are begun anew, by whichever cause, and the completions stay, also those that are only in their log.
pub(crate) fn outlive_new_files_and_another_boot() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        for n in 0..20 {
            does(&client, &n.to_string()).await;
        }
        for file in all(&place) {
            fs::remove_file(file).unwrap();
            assert!(is_done(&client, "0").await && is_done(&client, "19").await);
            assert!(!is_done(&client, "20").await);
        }
        client.close().await.unwrap();
        alone(&place).await;
        of_another_boot(&place);
        second_of_another_boot(&place);
        let [one, two] = [open(place.path()).await, open(place.path()).await].map(Result::unwrap);
        for n in 0..20 {
            let client = if n % 2 == 0 { &one } else { &two };
            assert!(is_done(client, &n.to_string()).await, "{n}");
        }
        does(&one, "20").await;
        assert!(is_done(&two, "20").await);
        for file in fs::read_dir(place.folder()).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(!name.contains("-new"), "{name} stays");
        }
    });
}

/// In the boot in which it was written, the wall clock means nothing; in another one, the boot clock.
pub(crate) fn of_another_boot_end_by_the_wall_clock() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        does(&client, "a").await;
        does(&client, "b").await;
        // The wall clock steps forward.
        say_in_second(&place, "UPDATE done SET wall = 1");
        assert!(is_done(&client, "a").await);
        let hour = "(unixepoch() + 3600) * 1000";
        say_in_second(
            &place,
            &format!("UPDATE done SET until = 1, wall = {hour} WHERE name = 'b'"),
        );
        assert!(!is_done(&client, "b").await);
        say_in_second(&place, "UPDATE done SET boot = 'another'");
        assert!(!is_done(&client, "a").await && is_done(&client, "b").await);
        let seen = client.completion(&"b".into()).await.unwrap().unwrap();
        let left = seen.left.unwrap().as_secs();
        assert!((3590..=3600).contains(&left), "{left} s");
    });
}

/// Whichever is deleted under running programs: they and new ones see the same, and go on. Only with the file, or the log of what
/// was not written back, completions are lost.
pub(crate) fn each_of_their_files_may_go() {
    run(async {
        for gone in 0..8_u32 {
            let place = Place::new();
            let (one, two) = (
                open(place.path()).await.unwrap(),
                open(place.path()).await.unwrap(),
            );
            does(&one, "a").await;
            assert!(is_done(&two, "a").await);
            let held = claim("held");
            let grant = asks(&one, &held).await.unwrap();
            for (n, file) in second(&place).iter().enumerate() {
                if gone & 1 << n != 0 {
                    fs::remove_file(file).unwrap();
                }
            }
            let three = open(place.path()).await.unwrap();
            let seen = is_done(&three, "a").await;
            assert!(seen || gone & 3 != 0, "{gone:03b}: it is in the log");
            for client in [&one, &two, &three] {
                assert_eq!(is_done(client, "a").await, seen, "{gone:03b}");
            }
            assert!(completes(&one, &held, &grant).await, "{gone:03b}");
            does(&two, "b").await;
            for client in [&one, &two, &three, &open(place.path()).await.unwrap()] {
                assert!(is_done(client, "held").await, "{gone:03b}");
                assert!(is_done(client, "b").await, "{gone:03b}");
            }
            let check = Connection::open(beside(&place, "-done")).unwrap();
            let found =
                check.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
            assert_eq!(found.unwrap(), "ok", "{gone:03b}");
        }
    });
}

/// A backup that is put in the place of the file counts, with its log or without, beside the log of what it replaces.
pub(crate) fn are_restored_with_their_file() {
    run(async {
        for parts in [1, 2, 3] {
            let place = Place::new();
            let client = open(place.path()).await.unwrap();
            does(&client, "old").await;
            let copies = second(&place).map(|file| fs::read(file).unwrap());
            let backup = place.folder().join("backup.db");
            let into = format!("VACUUM INTO '{}'", backup.display());
            say_in_second(&place, &into);
            does(&client, "new").await;
            for (file, copy) in second(&place).iter().zip(copies).take(parts) {
                let copy = if parts == 1 {
                    fs::read(&backup).unwrap()
                } else {
                    copy
                };
                let next = beside(&place, "-restored");
                fs::write(&next, copy).unwrap();
                fs::rename(next, file).unwrap();
            }
            for client in [&client, &open(place.path()).await.unwrap()] {
                assert!(is_done(client, "old").await, "{parts}");
                assert!(!is_done(client, "new").await, "{parts}");
            }
            does(&client, "new").await;
            assert!(is_done(&open(place.path()).await.unwrap(), "new").await);
        }
    });
}

/// A client was killed between the moves of its new files: the new file is beside the former log, or its index.
pub(crate) fn left_halfway_are_all_there() {
    run(async {
        for moved in [1, 2] {
            let place = Place::new();
            let client = open(place.path()).await.unwrap();
            for n in 0..20 {
                does(&client, &n.to_string()).await;
            }
            let former = second(&place).map(|file| {
                let kept = PathBuf::from(format!("{}-kept", file.display()));
                fs::hard_link(&file, &kept).unwrap();
                kept
            });
            fs::remove_file(beside(&place, "-done-shm")).unwrap();
            fs::remove_file(&former[0]).unwrap();
            assert!(is_done(&client, "0").await);
            for (file, kept) in second(&place).iter().zip(&former).skip(moved) {
                fs::rename(kept, file).unwrap();
            }
            for client in [&client, &open(place.path()).await.unwrap()] {
                for n in 0..20 {
                    assert!(is_done(client, &n.to_string()).await, "{moved}: {n}");
                }
                assert!(!is_done(client, "20").await);
            }
        }
    });
}

/// It is refused and left as it is, and no work that may be done begins. Locks go on.
pub(crate) fn in_a_file_that_is_unfit_are_an_error() {
    run(async {
        type Spoil = fn(&Place);
        let cases: [(&str, ErrorKind, Spoil); 7] = [
            ("schema 255", ErrorKind::Internal, |place| {
                let file = Connection::open(beside(place, "-done")).unwrap();
                file.execute_batch("PRAGMA user_version = 511; PRAGMA wal_checkpoint")
                    .unwrap();
            }),
            ("another program", ErrorKind::Unsupported, |place| {
                fs::remove_file(beside(place, "-done")).unwrap();
                say_in_second(place, "CREATE TABLE users (name TEXT)");
            }),
            ("is damaged", ErrorKind::Corrupt, |place| {
                let junk = b"this is no database, and long enough".repeat(1000);
                fs::remove_file(beside(place, "-done")).unwrap();
                fs::write(beside(place, "-done"), junk).unwrap();
            }),
            ("hard link", ErrorKind::Invalid, |place| {
                let other = place.folder().join("other");
                fs::hard_link(beside(place, "-done"), other).unwrap();
            }),
            ("is a link", ErrorKind::Invalid, |place| {
                let other = place.folder().join("other");
                fs::rename(beside(place, "-done"), &other).unwrap();
                symlink(other, beside(place, "-done")).unwrap();
            }),
            ("is no file", ErrorKind::Invalid, |place| {
                fs::remove_file(beside(place, "-done")).unwrap();
                fs::create_dir(beside(place, "-done")).unwrap();
            }),
            ("is damaged", ErrorKind::Corrupt, |place| {
                let file = Connection::open(beside(place, "-done")).unwrap();
                file.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
                    .unwrap();
                drop(file);
                let path = beside(place, "-done");
                let mut bytes = fs::read(&path).unwrap();
                bytes[8192..].fill(0x5A);
                fs::remove_file(&path).unwrap();
                fs::write(&path, bytes).unwrap();
            }),
        ];
        for (text, kind, spoil) in cases {
            let place = Place::new();
            let one = open(place.path()).await.unwrap();
            does(&one, "a").await;
            one.close().await.unwrap();
            alone(&place).await;
            spoil(&place);
            let before = fs::read(beside(&place, "-done")).ok();
            let client = open(place.path()).await.unwrap();
            for name in ["a", "b"] {
                let error = client.claim(&claim(name)).await.unwrap_err();
                assert_eq!(error.kind(), kind, "{text}: {error}");
                assert!(error.to_string().contains(text), "{text}: {error}");
                assert!(error.to_string().contains("locks.db-done"), "{error}");
                let error = client.completion(&name.into()).await.unwrap_err();
                assert_eq!(error.kind(), kind, "{text}: {error}");
            }
            let store = Store::new(client);
            drop(store.lock("a").try_acquire().await.unwrap());
            assert!(fs::read(beside(&place, "-done")).ok() == before, "{text}");
        }
    });
}

/// Says how a claim of work is answered.
pub(crate) fn say_what_is_done(words: &[String]) {
    let [locks, name] = words else { unreachable!() };
    run(async {
        let client = open(locks).await.unwrap();
        match client.claim(&claim(name)).await {
            Ok(Claimed::Done(_)) => say("done"),
            Ok(Claimed::Granted(_)) => say("granted"),
            Ok(other) => say(&format!("{other:?}")),
            Err(e) => say(&format!("{:?} {e}", e.kind())),
        }
    });
}

pub(crate) fn mounted_alone_are_refused() {
    let place = Place::new();
    let inside = place.folder().join("inside");
    fs::create_dir(&inside).unwrap();
    let words = inside.join("locks.db").display().to_string();
    run(async {
        let client = open(place.path()).await.unwrap();
        does(&client, "a").await;
        let mount = "cd \"$1\"; touch inside/locks.db-done; \
                     mount --bind locks.db-done inside/locks.db-done; exec \"$2\"";
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-euc", mount, "sh"]);
        command.arg(place.folder());
        command.arg(std::env::current_exe().unwrap());
        let said = Actor::start_by(command, "say_what_is_done", &[&words, "a"]).hear();
        assert!(
            said.starts_with("Unsupported ") && said.contains("mount its directory"),
            "{said}"
        );
        assert!(is_done(&client, "a").await);
    });
}

/// The hold was in locks that are gone: nothing is recorded for it, whoever has the name since.
pub(crate) fn of_former_files_are_not_recorded() {
    let place = Place::new();
    run(async {
        let (one, two) = (
            open(place.path()).await.unwrap(),
            open(place.path()).await.unwrap(),
        );
        does(&one, "first").await;
        let mut held = claim("a");
        held.ttl = ms(200);
        let grant = asks(&one, &held).await.unwrap();
        for file in all(&place) {
            fs::remove_file(file).unwrap();
        }
        // The new files wait for the lease.
        let next = claim("a");
        let next_grant = loop {
            match two.claim(&next).await.unwrap() {
                Claimed::Granted(grant) => break grant,
                Claimed::Waiting(_) => tokio::time::sleep(ms(5)).await,
                other => panic!("{other:?}"),
            }
        };
        assert!(next_grant.token > grant.token);
        assert!(!completes(&one, &held, &grant).await);
        assert!(one.completion(&"a".into()).await.unwrap().is_none());
        assert!(completes(&two, &next, &next_grant).await);
        assert!(is_done(&one, "a").await && is_done(&one, "first").await);
    });
}

pub(crate) fn are_seen_by_who_only_looks() {
    let place = Place::new();
    run(async {
        let client = open(place.path()).await.unwrap();
        does(&client, "a").await;
        let token = client.completion(&"a".into()).await.unwrap().unwrap().token;
        client.close().await.unwrap();
        alone(&place).await;
        of_another_boot(&place);
        second_of_another_boot(&place);
        let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(place.path()).unwrap());
        let before = inode();
        let looks = Sqlite::with_config(Config::new(place.path()).to_look()).await;
        let looks = looks.unwrap();
        let listed = looks.list_completions("", None, 9).await.unwrap();
        assert_eq!((&*listed[0].1.label, listed[0].1.token), ("", token));
        assert!(!looks.forget(&"b".into(), token).await.unwrap());
        assert_eq!(inode(), before, "it begins nothing");
        assert!(looks.forget(&"a".into(), token).await.unwrap());
        assert!(!is_done(&open(place.path()).await.unwrap(), "a").await);
    });
}
