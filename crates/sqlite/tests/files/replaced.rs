//! Files that another one replaces, or whose rows somebody deletes.

use std::fs;

use leasehold_core::{ErrorKind, Loss};
use rusqlite::Connection;

use super::*;

/// A restore from a backup, into new files.
pub(crate) fn a_copy_in_their_place_is_loss() {
    let place = Place::new();
    run(async {
        let old = store(place.path()).await.ttl(TTL);
        old.lock("a").acquire().await.unwrap().release().await.unwrap();
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
        let copies = all(&place).map(|file| fs::read(file).unwrap());
        let end = || -> i64 {
            let database = Connection::open(place.path()).unwrap();
            database.query_row("SELECT max(until) FROM session", [], |row| row.get(0)).unwrap()
        };
        let began = end();
        while end() == began {
            tokio::time::sleep(ms(5)).await;
        }
        for (file, copy) in all(&place).iter().zip(copies) {
            fs::write(file, copy).unwrap();
        }
        assert_eq!(end(), began, "restored");
        let loss = tokio::time::timeout(TTL / 2, first.lost()).await;
        assert_eq!(loss.expect("told within one renewal"), Loss::Gone);
        let second = store(place.path()).await.lock("a").acquire().await.unwrap();
        assert!(second.fencing_token() > first.fencing_token());
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
        store(&other).await.lock("b").acquire().await.unwrap().release().await.unwrap();
        let first = store(place.path()).await.ttl(TTL).lock("a").acquire().await.unwrap();
        fs::rename(&other, place.path()).unwrap();
        is_lost_before_another_gets_it(&place, first).await;
    });
}

/// A cleaner that comes between the first commit in a new file and the checkpoint after it: nobody has to delete the rest.
pub(crate) fn a_new_file_without_its_log_is_begun_anew() {
    let place = Place::new();
    run(async {
        let here = store(place.path()).await.ttl(TTL);
        let first = here.lock("a").acquire().await.unwrap();
        // What the file says of its use is in its log alone.
        let mut bytes = fs::read(place.path()).unwrap();
        bytes[60..64].copy_from_slice(&3u32.to_be_bytes());
        fs::write(place.path(), bytes).unwrap();
        fs::remove_file(beside(&place, "-wal")).unwrap();
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
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("hard link"), "{error}");
        let busy = store(place.path()).await.lock("a").try_acquire().await;
        assert!(busy.is_err_and(|e| e.is_contended()) && first.confirm().await.is_ok());
    });
}

/// A log that was emptied in place has the same inode.
pub(crate) fn a_cut_log_is_an_error() {
    let place = Place::new();
    run(async {
        let old = store(place.path()).await;
        old.lock("a").acquire().await.unwrap().release().await.unwrap();
        fs::File::options().write(true).open(beside(&place, "-wal")).unwrap().set_len(0).unwrap();
        let error = refused(&place.path()).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("delete all three"), "{error}");
        all(&place).iter().for_each(|file| fs::remove_file(file).unwrap());
        store(place.path()).await.lock("a").acquire().await.unwrap().release().await.unwrap();
        old.lock("a").acquire().await.unwrap().release().await.unwrap();
    });
}

/// Its own row, that of its client, or all.
pub(crate) fn deleted_rows_are_loss() {
    run(async {
        for table in ["place", "session", "meta"] {
            let place = Place::new();
            let here = store(place.path()).await.ttl(TTL);
            let first = here.lock("a").acquire().await.unwrap();
            Connection::open(place.path()).unwrap().execute(&format!("DELETE FROM {table}"), []).unwrap();
            let loss = tokio::time::timeout(TTL / 2, first.lost()).await;
            assert_eq!(loss.expect("told within one renewal"), Loss::Gone, "{table}");
            here.lock("a").acquire().await.unwrap().release().await.unwrap();
        }
    });
}
