//! What a file system or SQLite refuses, and what the error says of it: one list, which the page of this store shows to the word.

use leasehold_core::backend::Backend;
use leasehold_sqlite::{Config, Sqlite};
use leasehold_testbed::reasons::{are_on_page, exit_code};

use super::*;

/// What is wrong; the kind of the error; what its text contains; how it comes about, and what is said then.
type Reason = (&'static str, ErrorKind, &'static str, fn(&Place) -> String);

const REASONS: &[Reason] = &[
    (
        "The directory does not exist",
        ErrorKind::Invalid,
        "does not exist: make the directory first",
        |place| opening(&place.folder().join("none/locks.db")),
    ),
    (
        "The path is a directory, a device or a FIFO",
        ErrorKind::Invalid,
        "is no file",
        |place| opening(place.folder()),
    ),
    (
        "A hard link was made to the file",
        ErrorKind::Invalid,
        "has another name, a hard link, and the files beside this one are not its own: use one name for it",
        |place| {
            run(async { drop(store(place.path()).await) });
            let link = place.folder().join("link.db");
            fs::hard_link(place.path(), &link).unwrap();
            opening(&link)
        },
    ),
    (
        "The file may not be written",
        ErrorKind::Denied,
        "may not be written: the file, its directory or its file system is read-only for us",
        |place| {
            run(async { drop(store(place.path()).await) });
            set_mode(&place.path(), 0o444);
            without_rights(place)
        },
    ),
    (
        "The directory may not be written",
        ErrorKind::Denied,
        "is a directory in which we may make no files",
        |place| {
            set_mode(place.folder(), 0o555);
            let said = without_rights(place);
            set_mode(place.folder(), 0o700);
            said
        },
    ),
    (
        "The file system is read-only",
        ErrorKind::Denied,
        "is a directory in which we may make no files",
        |place| {
            let words = [&*place.folder().display().to_string(), &place.word()];
            Actor::start_by(unshare(&["-rm"]), "connect_in_a_read_only_folder", &words).hear()
        },
    ),
    (
        "It is a network file system: NFS, SMB, 9P, FUSE and others",
        ErrorKind::Unsupported,
        "a lock file of several processes needs a local disk",
        |place| {
            let mount = "exec 3<>/dev/fuse; mount -i -t fuse -o fd=3,rootmode=40000,user_id=1,group_id=1 none \"$1\"; exec \"$2\"";
            in_mounts_of(&["-m"], mount, place)
        },
    ),
    (
        "The file is mounted without its directory, as into a container",
        ErrorKind::Unsupported,
        "is mounted without its directory, so the files beside it are not those of its other users: mount its directory",
        |place| {
            let alone =
                "touch \"$1/locks.db\"; mount --bind \"$1/locks.db\" \"$1/locks.db\"; exec \"$2\"";
            in_mounts_of(&["-rm"], alone, place)
        },
    ),
    (
        "The process lives in a time namespace",
        ErrorKind::Unsupported,
        "this process lives in a time namespace: leases in a file need the machine's own clock",
        |place| {
            let shifted = unshare(&["-rT", "--boottime", "1000"]);
            Actor::start_by(shifted, "connect", &[&place.word()]).hear()
        },
    ),
    (
        "It sees another boot id, as in a container, beside a client that holds or waits",
        ErrorKind::Unsupported,
        "Mount the machine's there, or use a server's store",
        |place| {
            let mut holder = Actor::start("hold", &[&place.word(), "a", "60000"]);
            holder.says("held");
            change(
                place,
                "UPDATE meta SET boot = 'another'; PRAGMA user_version = 257",
            );
            opening(&place.path())
        },
    ),
    (
        "The path leads to the file of another store, or the URL names another one",
        ErrorKind::OtherStore,
        "its locks are others, so it is not used. Does an address or path lead elsewhere, or was it set up anew?",
        |place| {
            run(async {
                let first = Sqlite::with_config(Config::new(place.path())).await;
                Backend::close(&first.unwrap()).await.unwrap();
            });
            opening_named(&place.path())
        },
    ),
    (
        "The URL names a store, and there is no file, or one of an earlier build",
        ErrorKind::OtherStore,
        "open it once without `store`, and name the identity that it has then (`leasehold guarantees`)",
        |place| opening_named(&place.path()),
    ),
    (
        "The file is no database, or damaged",
        ErrorKind::Corrupt,
        "is damaged, or no SQLite database. It is not made anew by itself, since a lock in it may be held: end all its users, \
         delete it, and start again; tokens keep rising",
        |place| {
            fs::write(place.path(), b"no database, and no lock in it".repeat(100)).unwrap();
            opening(&place.path())
        },
    ),
    (
        "The file is another program's database",
        ErrorKind::Unsupported,
        "it is another program's database",
        |place| {
            change(place, "CREATE TABLE users (name TEXT)");
            opening(&place.path())
        },
    ),
    (
        "The file is another version's",
        ErrorKind::Unsupported,
        "use that one; or end all its users, and delete it with -wal and -shm; tokens keep rising",
        |place| {
            run(async { drop(store(place.path()).await) });
            change(place, "PRAGMA user_version = 255");
            opening(&place.path())
        },
    ),
    (
        "Another program has set the file's `user_version` to 0",
        ErrorKind::Unsupported,
        "another program has set its user_version, by which Leasehold knows what is in it, to 0. End all its users, and delete it \
         with -wal and -shm; tokens keep rising",
        |place| {
            run(async { drop(store(place.path()).await) });
            change(place, "PRAGMA user_version = 0");
            opening(&place.path())
        },
    ),
    (
        "Another process stays in a transaction of the file",
        ErrorKind::Unavailable,
        "is locked, and with it every lock in it, by process",
        |place| {
            run(async { drop(store(place.path()).await) });
            let mut other = Actor::start("stay_in_a_transaction", &[&place.word(), "run"]);
            other.says("in");
            claiming(&place.path())
        },
    ),
    (
        "Another process has the directory locked with `flock`",
        ErrorKind::Unavailable,
        "with flock(2): no lock file in it can be opened meanwhile. Let that program lock a file of its own",
        |place| {
            let mut flock = Command::new("flock");
            flock
                .arg(place.folder())
                .arg(std::env::current_exe().unwrap());
            let mut other = Actor::start_by(flock, "stay", &[]);
            other.says("in");
            let said = opening(&place.path());
            let pid = format!("process {}", other.child.id());
            assert!(said.contains(&pid), "{pid}: {said}");
            said
        },
    ),
    (
        "The disk is full",
        ErrorKind::Unavailable,
        "the disk is full",
        |place| {
            let full = "mount -t tmpfs -o size=64k none \"$1\"; head -c 60k /dev/zero > \"$1/full\"; exec \"$2\"";
            in_mounts_of(&["-rm"], full, place)
        },
    ),
    (
        "The log or the index was cut by hand",
        ErrorKind::Unavailable,
        "cannot be read or written. Was it, or -wal or -shm beside it, cut or changed by hand? Then delete all three: the next client \
         begins anew",
        |place| {
            run(async {
                let user = store(place.path()).await;
                let held = user.lock("a").acquire().await.unwrap();
                held.release().await.unwrap();
                let log = fs::File::options()
                    .write(true)
                    .open(beside(place, "-wal"))
                    .unwrap();
                log.set_len(0).unwrap();
                said(&refused(&place.path()).await)
            })
        },
    ),
    (
        "The process may open no more files (`ulimit -n`)",
        ErrorKind::Unavailable,
        "this process has too many open files (ulimit -n)",
        |place| {
            let mut few = Command::new("prlimit");
            few.arg("--nofile=12").arg(std::env::current_exe().unwrap());
            Actor::start_by(few, "connect_with_few_files", &[&place.word()]).hear()
        },
    ),
];

fn beside(place: &Place, what: &str) -> PathBuf {
    place.folder().join(format!("locks.db{what}"))
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn change(place: &Place, sql: &str) {
    let database = Connection::open(place.path()).unwrap();
    database
        .execute_batch(&format!("{sql}; PRAGMA wal_checkpoint"))
        .unwrap();
}

fn said(e: &Error) -> String {
    format!("{:?} {e}", e.kind())
}

fn opening(path: &Path) -> String {
    said(&run(refused(path)))
}

/// Opens a file of which the URL names the identity.
fn opening_named(path: &Path) -> String {
    let named = Config::new(path).store_id("sqlite-1".parse().unwrap());
    said(&run(Sqlite::with_config(named)).unwrap_err())
}

async fn claim(store: &Store) -> String {
    let lock = store.lock("a").ttl(LEASE);
    said(&lock.try_acquire().await.unwrap_err())
}

fn claiming(path: &Path) -> String {
    run(async { claim(&store(path).await).await })
}

/// In a user namespace without a mapping even root is bound by permissions.
fn without_rights(place: &Place) -> String {
    Actor::start_by(unshare(&["--user"]), "connect", &[&place.word()]).hear()
}

fn in_mounts_of(namespaces: &[&str], script: &str, place: &Place) -> String {
    let mut command = Command::new("unshare");
    command
        .args(namespaces)
        .args(["sh", "-euc", script, "sh"])
        .arg(place.folder())
        .arg(std::env::current_exe().unwrap());
    Actor::start_by(command, "connect", &[&place.word()]).hear()
}

/// Stays until it is ended.
pub(crate) fn stay(_: &[String]) {
    say("in");
    await_cue();
}

/// Opens files until none is left, and then the store.
pub(crate) fn connect_with_few_files(words: &[String]) {
    let mut all = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    while let Ok(file) = fs::File::open("/") {
        all.push(file);
    }
    // One is for the question whether any is left.
    all.truncate(all.len() - 1);
    let at_once = Config::new(&words[0]).at_once();
    let answer = runtime.block_on(Sqlite::with_config(at_once));
    say(&answer.map_or_else(|e| said(&e), |_| "opened".into()));
}

pub(crate) fn each_is_told() {
    for (what, kind, text, make) in REASONS {
        let place = Place::new();
        let said = make(&place);
        assert!(
            said.starts_with(&format!("{kind:?} ")) && said.contains(text),
            "{what}: {said}"
        );
    }
}

/// The rows of the page are these, in this order, and no others.
pub(crate) fn are_those_of_the_page() {
    let rows = REASONS.iter().map(|(what, kind, text, _)| {
        format!("| {what} | `{kind:?}`, {} | {text} |", exit_code(*kind))
    });
    are_on_page("sqlite", "What an error says", rows);
}
