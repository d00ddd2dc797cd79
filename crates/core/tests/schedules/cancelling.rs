//! Acquires that are dropped at any of their steps: nothing stays taken, and nobody waits for them.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{self, Either};
use leasehold_core::Lock;
use shuttle::future::{block_on, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use crate::server::{Server, pause};
use crate::under_all_schedules;

/// What the work has come to after so many turns of the scheduler, if anything.
async fn within<T>(turns: usize, work: impl Future<Output = T>) -> Option<T> {
    let passing = pin!(async {
        for _ in 0..turns {
            yield_now().await;
        }
    });
    match future::select(pin!(work), passing).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

fn some_go(lock: impl Fn(&leasehold_core::Store) -> Lock + Send + Sync + Clone + 'static) {
    under_all_schedules(move || {
        let server = Server::default();
        let store = server.client();
        let threads: Vec<_> = (0..3)
            .map(|i| {
                let lock = lock(&store);
                thread::spawn(move || {
                    for _ in 0..2 {
                        let turns = thread_rng().gen_range(0..12);
                        // The last one stays until it has the lock.
                        let guard = match i {
                            0 => Some(block_on(lock.acquire())),
                            _ => block_on(within(turns, lock.acquire())),
                        };
                        drop(guard.map(|acquired| acquired.unwrap()));
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        block_on(store.close(Duration::from_secs(1))).unwrap();
        assert_eq!(server.left(), 0);
    });
}

#[test]
fn a_dropped_acquire_leaves_nothing() {
    some_go(|store| store.lock("a"));
}

#[test]
fn a_dropped_acquire_of_a_turn_leaves_nothing() {
    some_go(|store| store.lock("a").fast());
}

/// A release whose future is dropped goes on in the background.
#[test]
fn a_dropped_release_goes_on() {
    under_all_schedules(|| {
        let server = Server::default();
        let store = server.client();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let lock = store.lock("a").fast();
                thread::spawn(move || {
                    let guard = block_on(lock.acquire()).unwrap();
                    let turns = thread_rng().gen_range(0..6);
                    block_on(within(turns, guard.release()));
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        block_on(store.close(Duration::from_secs(1))).unwrap();
        assert_eq!(server.left(), 0);
    });
}

/// A future that is polled once and kept takes the lock from nobody for ever: its drop gives it back.
#[test]
fn a_future_that_is_not_polled_stands_in_the_way_until_it_is_dropped() {
    under_all_schedules(|| {
        let server = Server::default();
        let store = server.client();
        let lock = store.lock("a");
        let kept = thread::spawn({
            let lock = lock.clone();
            move || {
                let mut acquire = Box::pin(lock.acquire());
                block_on(future::poll_fn(|cx| {
                    let _ = acquire.as_mut().poll(cx);
                    Poll::Ready(())
                }));
                pause();
                drop(acquire);
            }
        });
        drop(block_on(lock.acquire()).unwrap());
        kept.join().unwrap();
        block_on(store.close(Duration::from_secs(1))).unwrap();
        assert_eq!(server.left(), 0);
    });
}
