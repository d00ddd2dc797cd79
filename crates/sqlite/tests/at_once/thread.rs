//! Clients that have no thread until there is something to do for it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use leasehold_core::{Loss, Store};
use leasehold_sqlite::{Config, Sqlite};

use super::TTL;
use super::support::*;

async fn store_at_once(path: impl AsRef<Path>) -> Store {
    Store::new(
        Sqlite::with_config(Config::new(path).at_once())
            .await
            .unwrap(),
    )
}

/// Says how many threads it has, when it has a lock and when it has none.
pub(crate) fn count_threads(words: &[String]) {
    let [locks] = words else { unreachable!() };
    run_alone(async {
        let threads = || fs::read_dir("/proc/self/task").unwrap().count();
        let store = store_at_once(locks).await;
        let guard = store.lock("a").acquire().await.unwrap();
        say(&threads().to_string());
        guard.release().await.unwrap();
        store.close(Duration::from_secs(20)).await.unwrap();
        say(&threads().to_string());
        assert!(store.lock("a").try_acquire().await.is_err());
        say("closed");
    });
}

pub(crate) fn no_thread_for_a_free_lock() {
    let place = Place::new();
    // The second finds the file that the first has made.
    for _ in 0..2 {
        let mut here = Actor::start("count_threads", &[&place.word()]);
        ["1", "1", "closed"]
            .into_iter()
            .for_each(|line| here.says(line));
        here.child.wait().unwrap();
        assert_eq!(
            fs::read_dir(place.folder()).unwrap().count(),
            3,
            "its FIFO is left"
        );
    }
}

/// Nothing was to be done for the thread yet.
pub(crate) fn eviction_is_heard() {
    let place = Place::new();
    run_alone(async {
        let (here, other) = (store_at_once(place.path()).await, store(place.path()).await);
        let guard = here
            .lock("a")
            .ttl(Duration::from_secs(3600))
            .acquire()
            .await
            .unwrap();
        assert!(other.evict("a", guard.fencing_token()).await.unwrap());
        assert_eq!(guard.lost().await, Loss::Evicted);
    });
}

pub(crate) fn dropped_store_leaves() {
    let place = Place::new();
    run_alone(async {
        let here = store_at_once(place.path()).await;
        let guard = here.lock("a").ttl(TTL).acquire().await.unwrap();
        drop(here);
        drop(guard);
        while fs::read_dir(place.folder()).unwrap().count() > 3 {
            tokio::time::sleep(ms(5)).await;
        }
        store(place.path())
            .await
            .lock("a")
            .try_acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    });
}
