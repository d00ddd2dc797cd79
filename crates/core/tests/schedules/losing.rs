//! Holds that end beside their guards: evicted, or their lease over, while threads renew them, share them and give them back.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ErrorKind, Guard, Loss};
use shuttle::future::{block_on, spawn};
use shuttle::thread;

use crate::server::{Server, TTL, pause};
use crate::under_all_schedules;

/// A guard that was lost stays lost, and says why.
fn stays_lost(guard: &Guard) {
    let loss = guard.check().err();
    if let Some(lost) = &loss {
        assert_eq!(lost.kind(), ErrorKind::Lost);
        pause();
        assert!(!guard.is_valid());
        assert_eq!(guard.check().unwrap_err().to_string(), lost.to_string());
    }
}

fn eviction(fast: bool) {
    under_all_schedules(move || {
        let server = Server::default();
        let store = server.client();
        let evicts = thread::spawn({
            let server = server.clone();
            move || {
                for _ in 0..2 {
                    server.evict("a");
                    pause();
                }
            }
        });
        let threads: Vec<_> = (0..3)
            .map(|i| {
                let (server, lock) = (server.clone(), store.lock("a"));
                let lock = if fast { lock.fast() } else { lock };
                thread::spawn(move || {
                    let guard = block_on(lock.acquire()).unwrap();
                    pause();
                    stays_lost(&guard);
                    server.judge(&guard);
                    let (view, lost) = (guard.view(), guard.lost());
                    let hears = spawn(lost);
                    match i {
                        // It may have been evicted meanwhile.
                        0 => drop(block_on(guard.release())),
                        _ => drop(guard),
                    }
                    assert!(!view.is_valid());
                    let loss = block_on(hears).unwrap();
                    assert!(
                        matches!(loss, Loss::Released | Loss::Evicted | Loss::Gone),
                        "{loss:?}"
                    );
                })
            })
            .collect();
        threads
            .into_iter()
            .chain([evicts])
            .for_each(|thread| thread.join().unwrap());
        block_on(store.close(Duration::from_secs(1))).unwrap();
        assert_eq!(server.left(), 0);
    });
}

#[test]
fn an_evicted_hold_stays_lost() {
    eviction(false);
}

#[test]
fn an_evicted_turn_stays_lost() {
    eviction(true);
}

/// The lock goes on to the next task, although the guard of a turn that was evicted stays.
#[test]
fn an_evicted_turn_stands_in_nobodys_way() {
    under_all_schedules(|| {
        let server = Server::default();
        let store = server.client();
        let evicts = thread::spawn({
            let server = server.clone();
            move || {
                for _ in 0..3 {
                    server.evict("a");
                    pause();
                }
            }
        });
        let guard = block_on(store.lock("a").fast().acquire()).unwrap();
        evicts.join().unwrap();
        if !guard.is_valid() {
            drop(block_on(store.lock("a").fast().acquire()).unwrap());
        }
        drop(guard);
        block_on(store.close(Duration::from_secs(1))).unwrap();
        assert_eq!(server.left(), 0);
    });
}

/// Time passes in steps, so renewals come in time or not: a guard is never valid beside a later grant.
#[test]
fn leases_end_beside_renewals() {
    under_all_schedules(|| {
        let server = Server::default();
        let stores = [server.client(), server.client()];
        let here = Arc::new(()); // until all is over
        let passes = thread::spawn({
            let (time, here) = (server.time.clone(), Arc::downgrade(&here));
            move || {
                while here.strong_count() > 0 {
                    time.advance(TTL / 4);
                    thread::yield_now();
                }
            }
        });
        let threads: Vec<_> = stores
            .iter()
            .map(|store| {
                let (server, store) = (server.clone(), store.clone());
                thread::spawn(move || {
                    // Its lease may be over before it is there.
                    let Ok(guard) = block_on(store.lock("a").acquire()) else {
                        return;
                    };
                    for _ in 0..3 {
                        server.judge(&guard);
                        stays_lost(&guard);
                        pause();
                    }
                    drop(guard);
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        stores
            .iter()
            .for_each(|store| drop(block_on(store.close(TTL))));
        drop(here);
        passes.join().unwrap();
    });
}
