//! The identity of the store: what keeps it, and which files are refused.

use std::fs;
use std::os::unix::fs::symlink;

use leasehold_core::backend::Backend;
use leasehold_core::{ErrorKind, StoreId};
use leasehold_sqlite::{Config, Sqlite};
use rusqlite::Connection;

use super::boot::of_another_boot;
use super::*;

async fn id(path: &Path) -> StoreId {
    let client = open(path).await.unwrap();
    let id = client.identity().unwrap();
    client.close().await.unwrap();
    id
}

async fn kind(config: Config) -> ErrorKind {
    Sqlite::with_config(config).await.unwrap_err().kind()
}

fn pinned(path: &Path, id: &StoreId) -> Config {
    Config::new(path).store_id(id.clone())
}

fn say_in(file: &Path, sql: &str) {
    Connection::open(file).unwrap().execute_batch(sql).unwrap();
}

/// All that leaves the data leaves the identity, too: so does a loss that a running client makes good.
pub(crate) fn is_kept_with_the_data() {
    let place = Place::new();
    run(async {
        let first = id(&place.path()).await;
        assert!(first.as_str().starts_with("sqlite-"), "{first}");
        let link = place.folder().join("link.db");
        symlink(place.path(), &link).unwrap();
        assert_eq!(id(&link).await, first);
        say_in(&place.path(), "VACUUM");
        assert_eq!(id(&place.path()).await, first);
        of_another_boot(&place);
        assert_eq!(id(&place.path()).await, first);
        fs::remove_file(beside(&place, "-shm")).unwrap();
        assert_eq!(id(&place.path()).await, first);

        // A backup that is restored elsewhere cannot be told from its original.
        let copies = Place::new();
        let copy = format!("VACUUM INTO '{}'", copies.path().display());
        say_in(&place.path(), &copy);
        assert_eq!(id(&copies.path()).await, first);

        let running = store(place.path()).await;
        all(&place)
            .iter()
            .for_each(|file| fs::remove_file(file).unwrap());
        drop(running.lock("a").acquire().await.unwrap());
        assert_eq!(id(&place.path()).await, first);
        // Its rows are written anew by a client that knows it.
        say_in(&place.path(), "DELETE FROM meta");
        drop(running.lock("a").acquire().await.unwrap());
        assert_eq!(id(&place.path()).await, first);
        assert_ne!(id(&place.folder().join("other.db")).await, first);
    });
}

/// Who begins new files in their place waits for all leases, so clients go on in them, whatever identity they have. Only one whose URL
/// names the store does not.
pub(crate) fn of_new_files_is_taken_over() {
    let place = Place::new();
    run(async {
        let first = id(&place.path()).await;
        let [running, strict] = [Config::new(place.path()), pinned(&place.path(), &first)]
            .map(|config| async { Arc::new(Sqlite::with_config(config).await.unwrap()) });
        let (running, strict) = (running.await, strict.await);
        all(&place)
            .iter()
            .for_each(|file| fs::remove_file(file).unwrap());
        let second = id(&place.path()).await;
        assert_ne!(second, first);
        let [running_lock, strict_lock] =
            [&running, &strict].map(|client| Store::new(client.clone()).lock("a"));
        let guard = running_lock.acquire().await.unwrap();
        assert_eq!(running.identity(), Some(second));
        guard.release().await.unwrap();
        let error = strict_lock.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OtherStore, "{error}");
        assert_eq!(strict.identity(), Some(first));
    });
}

/// Elsewhere nobody waits for the leases of a client: it uses only its own store there, and begins none.
pub(crate) fn of_another_place_is_compared() {
    let place = Place::new();
    let other = Place::new();
    run(async {
        let lead_to = |folder: &Path| {
            let next = place.folder().join("next");
            symlink(folder, &next).unwrap();
            fs::rename(next, place.folder().join("link")).unwrap();
        };
        let [here, there] = ["here", "there"].map(|name| place.folder().join(name));
        fs::create_dir(&here).unwrap();
        lead_to(&here);
        let path = place.folder().join("link/locks.db");
        let client = store(&path).await.ttl(TTL);
        let first = client.identity().unwrap();
        let guard = client.lock("a").acquire().await.unwrap();

        // There is another store, and then none.
        id(&other.path()).await;
        lead_to(other.folder());
        let error = client.lock("b").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OtherStore, "{error}");
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
        fs::create_dir(&there).unwrap();
        lead_to(&there);
        let error = client.lock("b").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OtherStore, "{error}");
        assert!(!there.join("locks.db").exists());
        assert!(guard.is_valid());

        // A copy of the store is taken for the store. It grants nothing beside the lease of this client.
        say_in(
            &here.join("locks.db"),
            &format!("VACUUM INTO '{}'", there.join("locks.db").display()),
        );
        drop(client.lock("b").acquire().await.unwrap());
        assert_eq!(client.identity(), Some(first));
    });
}

/// A URL that names the store finds that store, or nothing.
pub(crate) fn that_is_named_is_demanded() {
    let place = Place::new();
    let other = Place::new();
    run(async {
        let first = id(&place.path()).await;
        let url = format!("sqlite://{}?store={first}", place.word());
        let client = Sqlite::connect(&url).await.unwrap();
        assert_eq!(client.identity(), Some(first.clone()));
        client.close().await.unwrap();
        assert_eq!(
            kind(pinned(&other.path(), &first)).await,
            ErrorKind::OtherStore
        );
        assert!(!other.path().exists());
        for config in [
            pinned(&other.path(), &first),
            pinned(&other.path(), &first).at_once(),
            pinned(&other.path(), &first).to_look(),
        ] {
            assert_eq!(kind(config.clone()).await, ErrorKind::OtherStore, "no file");
            id(&other.path()).await;
            assert_eq!(kind(config).await, ErrorKind::OtherStore, "another file");
            all(&other)
                .iter()
                .for_each(|file| fs::remove_file(file).unwrap());
        }
    });
}

/// A file of a build without identities gets one from the next client that may write, and its holds stay.
pub(crate) fn is_given_to_an_earlier_file() {
    let place = Place::new();
    run(async {
        let before = open(place.path()).await.unwrap();
        let first = before.identity().unwrap();
        let before = Store::new(before);
        let guard = before.lock("a").acquire().await.unwrap();
        say_in(&place.path(), "ALTER TABLE meta DROP COLUMN store");

        let looks = Sqlite::with_config(Config::new(place.path()).to_look()).await;
        assert_eq!(looks.unwrap().identity(), None);
        assert_eq!(
            kind(pinned(&place.path(), &first)).await,
            ErrorKind::OtherStore
        );
        let given = id(&place.path()).await;
        assert_ne!(given, first);
        assert_eq!(id(&place.path()).await, given);
        guard.confirm().await.unwrap();
        let busy = store(place.path()).await.lock("a").try_acquire().await;
        assert!(busy.is_err_and(|e| e.is_contended()));

        // It is in the main file, which is read alone when the files are begun anew.
        drop((guard, before));
        fs::remove_file(beside(&place, "-shm")).unwrap();
        assert_eq!(id(&place.path()).await, given);
        // A text that is none is replaced.
        say_in(&place.path(), "UPDATE meta SET store = 'not one'");
        let again = id(&place.path()).await;
        assert_eq!(id(&place.path()).await, again);
    });
}
