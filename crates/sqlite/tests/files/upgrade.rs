//! Files of earlier versions, as those made them: `schema/1.sql` and `schema/2.sql` are what they executed.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use leasehold_core::ErrorKind;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, params};

use super::replaced::is_held_up;
use super::*;

/// What the clients of the earlier version use. Their last token is one of tomorrow.
struct Earlier {
    database: Connection,
    token: i64,
}

/// A client of that version, which lives as long as this.
struct Client {
    fifo: Option<File>,
    session: i64,
}

fn this_boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

fn now() -> i64 {
    Moment::now().as_nanos() as i64
}

impl Earlier {
    fn make(place: &Place, schema: i64, boot: &str) -> Earlier {
        let database = Connection::open(place.path()).unwrap();
        database.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
        database.busy_timeout(Duration::from_secs(30)).unwrap();
        database.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
        let (tables, version) = match schema {
            1 => (include_str!("schema/1.sql"), 1),
            _ => (include_str!("schema/2.sql"), 0x1234 << 8 | 2),
        };
        let header = format!("PRAGMA application_id = {}; PRAGMA user_version = {version}", 0x4C65_6173);
        database.execute_batch(&format!("{tables}; {header}")).unwrap();
        let wall = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap() + Duration::from_secs(86_400);
        let token = wall.as_micros() as i64;
        match schema {
            1 => database.execute("INSERT INTO meta VALUES (?1, ?2)", params![boot, token]).unwrap(),
            _ => database.execute("INSERT INTO meta VALUES ('its files', ?1, 1, 0, ?2)", params![boot, token]).unwrap(),
        };
        if schema == 2 {
            // As that version does it at once.
            database.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
        }
        Earlier { database, token }
    }

    fn client(&self, place: &Place, number: i64, until: i64) -> Client {
        let path = beside(place, &format!("-fifo-{number:016x}"));
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let fifo = File::options().read(true).write(true).open(&path).unwrap();
        let is = fifo.metadata().unwrap();
        let insert = "INSERT INTO session (fifo, dev, ino, pid, ttl, until) VALUES (?1, ?2, ?3, 4711, 1, ?4)";
        self.database.execute(insert, params![number, is.dev() as i64, is.ino() as i64, until]).unwrap();
        Client { fifo: Some(fifo), session: self.database.last_insert_rowid() }
    }

    fn hold(&self, name: &str, session: i64) {
        let insert = "INSERT INTO place (name, claim, session, mode, n, permits, turns, token, label, since)
                      VALUES (?1, ?1, ?2, 'exclusive', 0, 0, 1, 7, '', 0)";
        self.database.execute(insert, params![name, session]).unwrap();
    }
}

/// A new client opens it, is granted what was held, and its tokens are greater.
async fn is_begun_anew(place: &Place, earlier: &Earlier) {
    let before = fs::metadata(place.path()).unwrap().ino();
    let guard = store(place.path()).await.lock("a").try_acquire().await.unwrap();
    assert!(guard.fencing_token().as_i64() > earlier.token);
    assert_ne!(fs::metadata(place.path()).unwrap().ino(), before);
    guard.release().await.unwrap();
}

/// It is refused, and as it was. Says why.
async fn is_refused(place: &Place, earlier: &Earlier) -> String {
    let before = fs::metadata(place.path()).unwrap().ino();
    let error = refused(&place.path()).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(fs::metadata(place.path()).unwrap().ino(), before);
    // Its clients go on.
    earlier.database.execute("UPDATE session SET until = until + 1 WHERE id > 0", []).unwrap();
    error.to_string()
}

pub(crate) fn of_another_boot_is_begun_anew() {
    run(async {
        for schema in [1, 2] {
            let place = Place::new();
            let earlier = Earlier::make(&place, schema, "another");
            let client = earlier.client(&place, 1, i64::MAX);
            earlier.hold("a", client.session);
            is_begun_anew(&place, &earlier).await;
        }
    });
}

/// An idle client, one that has died, and one whose lease is over.
pub(crate) fn without_a_holder_is_begun_anew() {
    run(async {
        for schema in [1, 2] {
            let place = Place::new();
            let earlier = Earlier::make(&place, schema, &this_boot());
            let _idle = earlier.client(&place, 1, i64::MAX);
            let (mut dead, late) = (earlier.client(&place, 2, i64::MAX), earlier.client(&place, 3, now()));
            dead.fifo = None;
            earlier.hold("a", dead.session);
            earlier.hold("b", late.session);
            is_begun_anew(&place, &earlier).await;
            assert!(!beside(&place, "-fifo-0000000000000002").exists(), "the FIFO of the dead one is left");
        }
    });
}

pub(crate) fn with_a_holder_is_refused() {
    run(async {
        for schema in [1, 2] {
            let place = Place::new();
            let earlier = Earlier::make(&place, schema, &this_boot());
            let mut holder = earlier.client(&place, 1, now() + 3_600_000_000_000);
            earlier.hold("a", holder.session);
            let why = is_refused(&place, &earlier).await;
            assert!(why.contains(&format!("schema {schema}")) && why.contains("process 4711"), "{why}");
            // Others must see that it lives, or has ended. What cannot be seen is no proof.
            let (fifo, away) = (beside(&place, "-fifo-0000000000000001"), beside(&place, "-away"));
            fs::rename(&fifo, &away).unwrap();
            is_refused(&place, &earlier).await;
            fs::rename(&away, &fifo).unwrap();
            holder.fifo = None;
            is_begun_anew(&place, &earlier).await;
        }
    });
}

pub(crate) fn with_a_hold_that_lapses_is_refused() {
    let place = Place::new();
    run(async {
        let earlier = Earlier::make(&place, 2, &this_boot());
        let lapsing = "INSERT INTO session (id, fifo, dev, ino, pid, ttl, until) VALUES (-9, -9, 0, 0, 0, 1, ?1)";
        earlier.database.execute(lapsing, [now() + 3_600_000_000_000]).unwrap();
        earlier.hold("a", -9);
        let why = is_refused(&place, &earlier).await;
        assert!(why.contains("min_hold"), "{why}");
        earlier.database.execute("UPDATE session SET until = ?1", [now()]).unwrap();
        is_begun_anew(&place, &earlier).await;
    });
}

/// A log that was taken away may be in use, and somebody in it.
pub(crate) fn without_its_log_is_refused_unless_nobody_lives() {
    run(async {
        for (schema, boot, refused) in [(1, this_boot(), true), (2, "another".into(), false), (2, this_boot(), false)] {
            let place = Place::new();
            let earlier = Earlier::make(&place, schema, &boot);
            let held = earlier.client(&place, 1, now() + 3_600_000_000_000);
            earlier.hold("a", held.session);
            earlier.database.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
            fs::remove_file(beside(&place, "-wal")).unwrap();
            match refused {
                true => drop(is_refused(&place, &earlier).await),
                false => is_begun_anew(&place, &earlier).await,
            }
        }
    });
}

/// What a power cut leaves is no reason to ask anybody.
pub(crate) fn damaged_by_the_end_of_its_boot_is_begun_anew() {
    let place = Place::new();
    run(async {
        let earlier = Earlier::make(&place, 2, "another");
        let mut bytes = fs::read(place.path()).unwrap();
        bytes[3 * 4096..].fill(0x5A);
        fs::write(place.path(), bytes).unwrap();
        is_begun_anew(&place, &earlier).await;
    });
}

/// Opens the store, and says so.
pub(crate) fn open_it(words: &[String]) {
    let [locks] = words else { unreachable!() };
    run(async {
        let opened = open(locks).await;
        say(&opened.map_or_else(|e| e.to_string(), |_| "opened".into()));
        tokio::task::spawn_blocking(await_cue).await.unwrap();
    });
}

/// Two clients of this version come at once, and one of the earlier in the last step of the first: either that one gets its lock,
/// or these get their file.
pub(crate) fn clients_of_both_versions_come_at_once() {
    run(async {
        for schema in [1, 2] {
            let place = Place::new();
            let earlier = Earlier::make(&place, schema, &this_boot());
            let client = earlier.client(&place, 1, i64::MAX);
            let mut strace = Command::new("strace");
            strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "signal=none", "-e", "trace=/^rename", "-P"]);
            strace.arg(beside(&place, "-empty")).args(["-e", "inject=/^rename:delay_enter=1000000"]);
            strace.arg(std::env::current_exe().unwrap());
            let mut first = Actor::start_by(strace, "open_it", &[&place.word()]);
            while !is_held_up(first.child.id()).await {
                assert!(first.child.try_wait().unwrap().is_none(), "nothing was renamed");
            }
            let second = tokio::spawn(open(place.path()));
            // As that version does it.
            let opened = fs::metadata(place.path()).unwrap().ino();
            earlier.database.execute_batch("BEGIN IMMEDIATE").unwrap();
            let is_current = fs::metadata(place.path()).is_ok_and(|file| file.ino() == opened);
            if is_current {
                earlier.hold("a", client.session);
            }
            earlier.database.execute_batch("COMMIT").unwrap();
            let (first, second) = (first.hear(), second.await.unwrap());
            let second = second.map_or_else(|e| e.to_string(), |_| "opened".into());
            for said in [first, second] {
                assert_eq!(said == "opened", !is_current, "schema {schema}: {said}");
            }
        }
    });
}
