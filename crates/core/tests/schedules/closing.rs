//! A client is closed, or its last handle dropped, while threads use it.

use std::time::Duration;

use leasehold_core::ErrorKind;
use shuttle::future::block_on;
use shuttle::thread;

use crate::server::{Server, pause};
use crate::under_all_schedules;

fn closes(fast: bool) {
    under_all_schedules(move || {
        let server = Server::default();
        let store = server.client();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let lock = store.lock("a");
                let lock = if fast { lock.fast() } else { lock };
                thread::spawn(move || block_on(lock.acquire()))
            })
            .collect();
        block_on(store.close(Duration::from_secs(1))).unwrap();
        for thread in threads {
            match thread.join().unwrap() {
                Ok(guard) => assert!(!guard.is_valid(), "it is valid after close"),
                Err(e) => assert!(
                    matches!(e.kind(), ErrorKind::Closed | ErrorKind::Lost),
                    "{e:?}"
                ),
            }
        }
        let refused = block_on(store.lock("a").try_acquire()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Closed);
        // What was granted after all is withdrawn.
        while server.left() > 0 {
            thread::yield_now();
        }
    });
}

#[test]
fn beside_acquires() {
    closes(false);
}

#[test]
fn beside_turns() {
    closes(true);
}

/// No handle is left but the guards: what they give back is given back all the same.
#[test]
fn the_last_guard_of_a_client_gives_its_lock_back() {
    under_all_schedules(|| {
        let server = Server::default();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let store = server.client();
                thread::spawn(move || {
                    let lock = store.lock("a");
                    drop(store);
                    let guard = block_on(lock.acquire()).unwrap();
                    drop(lock);
                    pause();
                    drop(guard);
                })
            })
            .collect();
        for _ in 0..4 {
            // So long that the background looks again, and rests.
            server.time.advance(Duration::from_millis(900));
            pause();
        }
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        let judge = server.client();
        // It waits for what the others give back in the background.
        drop(block_on(judge.lock("a").acquire()).unwrap());
    });
}
