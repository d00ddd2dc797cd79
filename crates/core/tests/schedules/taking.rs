//! Threads take locks of one client, and of two, and give them back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_core::{Guard, Lock, Store};
use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::server::{Server, pause};
use crate::under_all_schedules;

const SOON: Duration = Duration::from_secs(1);

/// Who is between taking and giving back, and the greatest token that was seen there.
#[derive(Default)]
struct Section {
    inside: AtomicUsize,
    token: AtomicU64,
}

impl Section {
    fn enter(&self, guard: &Guard) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two hold");
        let before = self
            .token
            .swap(guard.fencing_token().get(), Ordering::SeqCst);
        assert!(before < guard.fencing_token().get(), "tokens fall");
        pause();
        assert!(guard.is_valid());
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Each thread takes the lock twice, and gives it back in either way.
fn take_turns(locks: Vec<Lock>, stores: Vec<Store>, server: &Server) {
    let section = Arc::new(Section::default());
    let threads: Vec<_> = locks
        .into_iter()
        .map(|lock| {
            let section = section.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let guard = block_on(lock.acquire()).unwrap();
                    section.enter(&guard);
                    match thread_rng().gen_bool(0.5) {
                        true => block_on(guard.release()).unwrap(),
                        false => drop(guard),
                    }
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    stores
        .iter()
        .for_each(|store| block_on(store.close(SOON)).unwrap());
    assert_eq!(server.left(), 0);
}

#[test]
fn tasks_of_one_client() {
    under_all_schedules(|| {
        let server = Server::default();
        let store = server.client();
        take_turns(
            (0..3).map(|_| store.lock("a")).collect(),
            vec![store],
            &server,
        );
    });
}

#[test]
fn turns_of_a_fast_lock() {
    under_all_schedules(|| {
        let server = Server::default();
        let store = server.client();
        take_turns(
            (0..3).map(|_| store.lock("a").fast()).collect(),
            vec![store],
            &server,
        );
    });
}

#[test]
fn turns_of_two_clients() {
    under_all_schedules(|| {
        let server = Server::default();
        let stores = [server.client(), server.client()];
        let locks = (0..4).map(|i| stores[i % 2].lock("a").fast()).collect();
        take_turns(locks, stores.to_vec(), &server);
    });
}

/// What a notification says that is not so costs a look.
#[test]
fn beside_false_notifications() {
    under_all_schedules(|| {
        let server = Server::default();
        let store = server.client();
        let notifies = {
            let server = server.clone();
            thread::spawn(move || {
                for _ in 0..3 {
                    server.notify_of_nothing();
                    pause();
                }
            })
        };
        take_turns(
            (0..2).map(|_| store.lock("a")).collect(),
            vec![store],
            &server,
        );
        notifies.join().unwrap();
    });
}
