//! One owner in several threads: it enters its hold again while other guards of it go.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_core::Owner;
use shuttle::future::block_on;
use shuttle::thread;

use crate::server::{Server, pause};
use crate::under_all_schedules;

fn enters_again(fast: bool) {
    under_all_schedules(move || {
        let server = Server::default();
        let store = server.client();
        let (owner, inside) = (Owner::new(), Arc::new(AtomicUsize::new(0)));
        let lock = move |store: &leasehold_core::Store| {
            let lock = store.lock("a");
            if fast { lock.fast() } else { lock }
        };
        let mut threads: Vec<_> = (0..2)
            .map(|_| {
                let (lock, inside) = (lock(&store).owner(&owner), inside.clone());
                thread::spawn(move || {
                    for _ in 0..2 {
                        let guard = block_on(lock.acquire()).unwrap();
                        inside.fetch_add(1, Ordering::SeqCst);
                        pause();
                        assert!(guard.is_valid());
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(guard);
                    }
                })
            })
            .collect();
        let (other, inside) = (lock(&store), inside.clone());
        threads.push(thread::spawn(move || {
            let guard = block_on(other.acquire()).unwrap();
            assert_eq!(inside.load(Ordering::SeqCst), 0, "the owner is inside, too");
            pause();
            assert_eq!(inside.load(Ordering::SeqCst), 0, "the owner came in");
            drop(guard);
        }));
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        block_on(store.close(Duration::from_secs(1))).unwrap();
        assert_eq!(server.left(), 0);
    });
}

#[test]
fn an_owner_in_two_threads() {
    enters_again(false);
}

#[test]
fn an_owner_of_turns_in_two_threads() {
    enters_again(true);
}
